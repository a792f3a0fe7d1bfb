#!/usr/bin/env bash
# check.sh [--server | --rust | --conform] [PREFIX of an installed library]: every row that was captured is
# compared with the engine's own tensors. By itself: the tap in C, with small models of random
# weights, and what caches of experts would do with a trace of them. --server: the library to preload, in llama-server as it is released, whose rows are
# compared with the choices of a program that captures nothing. --rust: the tap in Rust, with the
# shipped model, in llama.cpp as its crate builds it. --conform: ten clean runs of llama.cpp and of
# llama-server, in which conform must find nothing, and runs with a planted fault, which it must find.
cd "$(dirname "$0")/../.." && . dev/setup.sh && . integrations/llama_cpp/setup.sh
what=tap
case ${1:-} in --*) what=${1#--}; shift ;; esac
here=integrations/llama_cpp

# caches_llama MODEL TEXT:BYTES...: rows and a callback's own trace say the same of caches of experts.
caches_llama() {
    local run=$build/caches
    rm -rf "$run" && mkdir -p "$run/rows" && capture_llama "$1" --save "$run/rows" --trace "$run/raw.txt" "${@:2}" &&
        PYTHONPATH=$package "$build/python/bin/python" $here/tests/caches.py "$run/rows" "$run/raw.txt"
}
check_tap() {
    local model
    install_llama
    build_llama_example
    install_package
    set +e
    for model in qwen3moe deepseek2 gpt-oss; do
        check "$model: three prompts" capture_llama "$model" LICENSE:700 include/routecap/requests.h:150 README.md:33
        check "$model: prompts of one token" capture_llama "$model" LICENSE:1 README.md:1
        check "$model: logits of the last token only" capture_llama "$model" --prune LICENSE:200 README.md:50 include/routecap/requests.h:7
        check "$model: caches of experts" caches_llama "$model" LICENSE:600 include/routecap/requests.h:150 README.md:33
        check "$model: what an engine does with its memory" scenarios_llama "$model"
        check "$model: prefill and decode in two processes" prefill_decode_llama "$model" LICENSE:700
    done
}
check_server() {
    local work=$build/llama_server/work
    install_llama
    install_llama_server
    install_package
    set +e
    rm -rf "$work" && mkdir -p "$work"
    check "the library to preload" build_preload "$work/routecap_preload.so"
    check "a dlsym that does not find a name" cc -O2 -std=gnu11 -Wall -Wextra -Werror -shared -fPIC -o "$work/renamed.so" $here/tests/server/renamed.c
    check "the oracle" link_llama "$work/replay" $here/tests/server/replay.c
    "$build/python/bin/python" $here/tests/make_model.py qwen3moe "$work/model.gguf" --tokenizer || exit 1
    GGML_BACKEND_DIR=$llama_libraries PYTHONPATH=$package:$here/server "$build/python/bin/python" \
        $here/tests/server/check.py "$llama_server" "$work/routecap_preload.so" "$work/replay" "$work/model.gguf" "$work" $here/server/preload.c "$work/renamed.so" | tee "$work/out"
    [ "${PIPESTATUS[0]}" = 0 ] || grep -q ^FAILED "$work/out" || failed=$((failed + 1)) # it did not come to its end
    passed=$((passed + $(grep -c '^ok ' "$work/out"))) failed=$((failed + $(grep -c ^FAILED "$work/out")))
}
check_rust() {
    local model=tests/model/weights/model.gguf dense=$build/llama_cpp_rust/dense.gguf
    install_python
    . $here/rust/build.sh
    set +e
    "$build/python/bin/python" $here/tests/make_model.py qwen3 "$dense"
    cargo_here() { local command=$1; shift; cargo "$command" --quiet --locked --manifest-path $here/rust/Cargo.toml "$@"; }
    check "formatted" cargo fmt --check --manifest-path $here/rust/Cargo.toml
    check "clippy" cargo_here clippy -- -D warnings
    check "tests of the tap" cargo_here test
    check "two requests, whole" prints '17 rows x 5 layers x 2 experts: Complete' "$program" $model "int main(" "class Tap:"
    check "the last layer's rows that want no logits are missing" \
        prints 'missing: rows 0..8 of decoder layers [4] (Unwritten)' "$program" $model --prune "int main(" "class Tap:"
    check "a model without MoE layers is refused" refuses 'no MoE layers' "$program" "$dense" "int main("
}
check_conform() {
    local unified work=$build/conform
    install_llama
    install_llama_server
    install_package
    install_transformers
    mkdir -p "$work/q4_0"
    link_llama "$work/llama_cpp" -I$here $here/{tap,tests/engine,tests/support}.c
    "$transformers_python" tests/engines/make_model.py 1 "$work/model"
    "$build/python/bin/python" tests/model/to_gguf.py "$work/model" "$work/model/model.gguf" --float32
    cp tests/model/weights/config.json "$work/q4_0"
    "$build/python/bin/python" tests/model/to_gguf.py tests/model/weights "$work/q4_0/model.gguf" --q4_0
    build_preload "$work/routecap_preload.so"
    "$build/python/bin/python" $here/tests/make_model.py qwen3moe "$work/server.gguf" --tokenizer
    set +e
    export PYTHONPATH=$package:$here/tests:integrations/transformers/tests/real OMP_NUM_THREADS=1
    export GGML_BACKEND_DIR=$llama_libraries
    proved() { check "conform, $1" "$2" tools/tests/conform/prove.py --json "$build/conform_reports" "${@:3}"; }
    llama_engine() {
        proved "llama.cpp, $1" "$transformers_python" llama_engine \
            program="$work/llama_cpp" library="$library" version="node-llama-cpp-$llama_version" "${@:2}"
    }
    llama_engine "one memory" model="$work/model" split=
    llama_engine "a memory for each sequence" model="$work/model" split=1
    llama_engine "beside transformers" model="$work/model" --beside transformers_engine
    llama_engine "trained, Q8_0" model="$root/tests/model/weights" trained=Q8_0
    llama_engine "trained, Q4_0" model="$work/q4_0" trained=Q4_0
    for unified in "" 1; do
        proved "llama-server${unified:+, one memory}" "$build/python/bin/python" llama_server_engine \
            program="$llama_server" preload="$work/routecap_preload.so" model="$work/server.gguf" unified=$unified
    done
}
case $what in tap | server | rust | conform) ;; *) say "check.sh: no option is called --$what"; exit 2 ;; esac
[[ $what != @(tap|rust) ]] || export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error
use_library "$@"
"check_$what"
closing
