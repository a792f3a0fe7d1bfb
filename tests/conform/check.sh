#!/usr/bin/env bash
# Conform in transformers, llama.cpp and llama-server: ten clean runs of each, in which it must find
# nothing, and runs with a planted fault, which it must find. Models have random weights, or are that
# of examples/model, which is trained, in low precision. Then small models of five families, with
# more planted faults, among these of adapters, updates and preemptions. vLLM and SGLang: integrations/vllm/check.sh
# and integrations/sglang/check.sh. usage: bash tests/conform/check.sh [PREFIX]
cd "$(dirname "$0")/../.." && . dev/setup.sh && . integrations/llama_cpp/setup.sh
set +e
use_library "$@"
install_llama
install_llama_server
install_package
install_transformers
work=$build/conform
mkdir -p "$work"
link_llama "$work/llama_cpp" -Iintegrations/llama_cpp integrations/llama_cpp/{tap,tests/engine,tests/support}.c || exit 1
"$transformers_python" tests/engines/make_model.py 1 "$work/model" || exit 1
"$build/python/bin/python" examples/model/to_gguf.py "$work/model" "$work/model/model.gguf" --float32 || exit 1

export PYTHONPATH=$package:integrations/llama_cpp/tests PYTHONDONTWRITEBYTECODE=1 GGML_BACKEND_DIR=$llama_libraries OMP_NUM_THREADS=1
for options in dtype=float32 dtype=bfloat16 "trained=1 dtype=bfloat16" "trained=1 dtype=bfloat16 activations=float8"; do
    # shellcheck disable=SC2086
    check "transformers, $options" "$transformers_python" tests/conform/prove.py --json "$build/conform_reports" transformers_engine $options
done
check "transformers, five families" "$transformers_python" tests/conform/families.py --json "$build/conform_families.json"
llama_engine() {
    check "llama.cpp, $1" "$transformers_python" tests/conform/prove.py --json "$build/conform_reports" llama_engine \
        program="$work/llama_cpp" library="$library" version="node-llama-cpp-$llama_version" "${@:2}"
}
llama_engine "one memory" model="$work/model" split=
llama_engine "a memory for each sequence" model="$work/model" split=1
llama_engine "beside transformers" model="$work/model" --beside transformers_engine
llama_engine "trained, Q8_0" model="$root/examples/model/weights" trained=Q8_0
mkdir -p "$work/q4_0" && cp examples/model/weights/config.json "$work/q4_0"
"$build/python/bin/python" examples/model/to_gguf.py examples/model/weights "$work/q4_0/model.gguf" --q4_0 || exit 1
llama_engine "trained, Q4_0" model="$work/q4_0" trained=Q4_0
build_preload "$work/routecap_preload.so" || exit 1
"$build/python/bin/python" integrations/llama_cpp/tests/make_model.py qwen3moe "$work/server.gguf" --tokenizer || exit 1
for unified in "" 1; do
    check "llama-server${unified:+, one memory}" "$build/python/bin/python" tests/conform/prove.py --json "$build/conform_reports" llama_server_engine \
        program="$llama_server" preload="$work/routecap_preload.so" model="$work/server.gguf" unified=$unified
done
closing
