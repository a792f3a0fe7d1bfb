#!/usr/bin/env bash
# Proves that the shipped files are one model, the same in PyTorch, llama.cpp and, where it is
# installed, transformers. usage: check.sh [FOLDER [TEXT:BYTES]]
#
# ROUTECAP_TORCH_PYTHON names a Python with PyTorch, in the place of one made under build/.
cd "$(dirname "$0")/../.." && . dev/setup.sh && . integrations/llama_cpp/setup.sh

folder=${1:-tests/model/weights}
text=${2:-LICENSE:1000}  # of a text that does not change: where two experts tie, engines may differ
work=$build/model
mkdir -p "$work"
install_llama
torch_python=${ROUTECAP_TORCH_PYTHON:-}
[ -n "$torch_python" ] || install_torch

export GGML_BACKEND_DIR=$llama_libraries
link_llama "$work/evaluate" tests/model/evaluate.c
"$build/python/bin/python" tests/model/to_gguf.py "$folder" "$work/float32.gguf" --float32
"$build/python/bin/python" tests/model/to_gguf.py "$folder" "$work/q8_0.gguf"
cmp "$work/q8_0.gguf" "$folder/model.gguf"
for model in float32 q8_0; do
    "$work/evaluate" "$work/$model.gguf" "${text%:*}" "${text##*:}" "$work/$model.out"
done
"$torch_python" tests/model/check.py "$folder" "${text%:*}" "${text##*:}" "$work/float32.out" "$work/q8_0.out"
