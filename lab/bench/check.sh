#!/usr/bin/env bash
# The benchmarks run, and write JSON: those here, of llama.cpp and of transformers. Those of the
# packages run in their own tests. usage: check.sh
cd "$(dirname "$0")/../.." && . dev/setup.sh && . integrations/llama_cpp/setup.sh
install_library
build_tests all
install_package
install_python
install_transformers
install_llama
build_llama_example
set +e

writes_json() { python3 -m json.tool "$1" > /dev/null; }
writes_lines() { python3 -m json.tool --json-lines "$1" > /dev/null; }
bench_of_llama() { bench_llama qwen3moe 3 > "$build/bench_llama.jsonl"; }
run build/tests/bench/bench --quick --json "$build/bench.json"
run writes_json "$build/bench.json"
run build/tests/bench/bench_plan --quick
run build/tests/bench/bench_scale --quick
run env PYTHONPATH="$package" "$build/python/bin/python" lab/bench/traffic.py --samples 512
run bench_of_llama
run writes_lines "$build/bench_llama.jsonl"
run env PYTHONPATH="$package" "$transformers_python" integrations/transformers/tests/bench.py cpu --json "$build/transformers.json"
run writes_json "$build/transformers.json"
closing
