#!/usr/bin/env bash
# Runs the programs of this folder with small models of random weights: every row that was captured
# is compared with the engine's own tensors, and what caches of experts would do with a trace of them.
cd "$(dirname "$0")/../.." && . dev/setup.sh
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error
install_library
install_llama
build_llama_example
install_package
set +e
# caches_llama MODEL TEXT:BYTES...: rows and a callback's own trace say the same of caches of experts.
caches_llama() {
    local run=$build/caches
    rm -rf "$run" && mkdir -p "$run/rows" && capture_llama "$1" --save "$run/rows" --trace "$run/raw.txt" "${@:2}" &&
        PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$package "$build/python/bin/python" integrations/llama_cpp/tests/caches.py "$run/rows" "$run/raw.txt"
}

for model in qwen3moe deepseek2 gpt-oss; do
    check "$model: three prompts" capture_llama "$model" LICENSE:700 include/routecap/requests.h:150 README.md:33
    check "$model: prompts of one token" capture_llama "$model" LICENSE:1 README.md:1
    check "$model: logits of the last token only" capture_llama "$model" --prune LICENSE:200 README.md:50 include/routecap/requests.h:7
    check "$model: caches of experts" caches_llama "$model" LICENSE:600 include/routecap/requests.h:150 README.md:33
    check "$model: what an engine does with its memory" scenarios_llama "$model"
    check "$model: prefill and decode in two processes" prefill_decode_llama "$model" LICENSE:700
done
closing
