#!/usr/bin/env bash
# check.sh [--server | --rust] [PREFIX of an installed library]: every row that was captured is
# compared with the engine's own tensors. By itself: the tap in C, with small models of random
# weights, and what caches of experts would do with a trace of them. --server: the library to preload, in llama-server as it is released, whose rows are
# compared with the choices of a program that captures nothing. --rust: the tap in Rust, with the
# shipped model, in llama.cpp as its crate builds it.
cd "$(dirname "$0")/../.." && . dev/setup.sh && . integrations/llama_cpp/setup.sh
what=tap
case ${1:-} in --*) what=${1#--}; shift ;; esac
here=integrations/llama_cpp

# caches_llama MODEL TEXT:BYTES...: rows and a callback's own trace say the same of caches of experts.
caches_llama() {
    local run=$build/caches
    rm -rf "$run" && mkdir -p "$run/rows" && capture_llama "$1" --save "$run/rows" --trace "$run/raw.txt" "${@:2}" &&
        PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$package "$build/python/bin/python" $here/tests/caches.py "$run/rows" "$run/raw.txt"
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
    GGML_BACKEND_DIR=$llama_libraries PYTHONPATH=$package:$here/server PYTHONDONTWRITEBYTECODE=1 "$build/python/bin/python" \
        $here/tests/server/check.py "$llama_server" "$work/routecap_preload.so" "$work/replay" "$work/model.gguf" "$work" $here/server/preload.c "$work/renamed.so" | tee "$work/out"
    [ "${PIPESTATUS[0]}" = 0 ] || grep -q ^FAILED "$work/out" || failed=$((failed + 1)) # it did not come to its end
    passed=$((passed + $(grep -c '^ok ' "$work/out"))) failed=$((failed + $(grep -c ^FAILED "$work/out")))
}
check_rust() {
    local model=examples/model/weights/model.gguf dense=$build/llama_cpp_rust/dense.gguf
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
case $what in tap | server | rust) ;; *) say "check.sh: no option is called --$what"; exit 2 ;; esac
[ "$what" = server ] || export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error
use_library "$@"
"check_$what"
closing
