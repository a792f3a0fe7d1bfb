#!/usr/bin/env bash
# Builds and tests the example, and runs it with the shipped model. usage: check.sh
# [PREFIX of an installed library]
cd "$(dirname "$0")/../../.." && . dev/setup.sh
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error
use_library "$@"
install_python
. integrations/llama_cpp/rust/build.sh
set +e

model=examples/model/weights/model.gguf
dense=$build/llama_cpp_rust/dense.gguf
"$build/python/bin/python" integrations/llama_cpp/tests/make_model.py qwen3 "$dense"
cargo_here() { local command=$1; shift; cargo "$command" --quiet --locked --manifest-path integrations/llama_cpp/rust/Cargo.toml "$@"; }

check "formatted" cargo fmt --check --manifest-path integrations/llama_cpp/rust/Cargo.toml
check "clippy" cargo_here clippy -- -D warnings
check "tests of the tap" cargo_here test
check "two requests, whole" prints '17 rows x 5 layers x 2 experts: Complete' "$program" $model "int main(" "class Tap:"
check "the last layer's rows that want no logits are missing" \
    prints 'missing: rows 0..8 of decoder layers [4] (Unwritten)' "$program" $model --prune "int main(" "class Tap:"
check "a model without MoE layers is refused" refuses 'no MoE layers' "$program" "$dense" "int main("
closing
