#!/usr/bin/env bash
# Builds and tests the example, and runs it with the shipped model. usage: check.sh
# [PREFIX of an installed library]
cd "$(dirname "$0")/../.." && . dev/setup.sh
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error
use_library "$@"
install_python
. integrations/ollama/build.sh
set +e

export MOE_MODEL=$root/tests/model/weights/model.gguf DENSE_MODEL=$build/ollama/dense.gguf # for the tests of the tap
"$build/python/bin/python" integrations/llama_cpp/tests/make_model.py qwen3 "$DENSE_MODEL"

check "formatted" bash -c '[ -z "$(gofmt -l integrations/ollama)" ]'
check "vet" go -C integrations/ollama vet .
check "tests of the tap" go -C integrations/ollama test -count=1 .
check "two requests, whole" prints '17 rows x 5 layers x 2 experts: ROUTECAP_OK' "$program" "$MOE_MODEL" "int main(" "class Tap:"
check "the last layer's rows that want no logits are missing" \
    prints 'missing: rows 0..8 of decoder layers [4]' "$program" -prune "$MOE_MODEL" "int main(" "class Tap:"
check "a model without MoE layers is refused" refuses 'no MoE layers' "$program" "$DENSE_MODEL" "int main("
closing
