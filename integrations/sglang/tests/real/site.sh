#!/usr/bin/env bash
# site.sh OUT.tar.xz: the newest SGLang that is tested out of its released wheel, with what it needs beside PyTorch
# 2.11 for CUDA 13, transformers and nvcc on Python 3.12, in an archive of 41 MiB for compute
# capability 9.0. For a GPU machine without a network.
#
# SGLang wants PyTorch 2.14. Its own kernels are compiled where they run, by nvcc and Triton; those
# of sglang-kernel 0.4.5 are the last that load beside 2.11, and come in the place of 0.4.10's. Left
# out: FlashAttention 3, FlashMLA, FlashInfer, Rust's tree of the cache (Python's takes its place).
# Drafts by a model import FlashMLA without a use for it: its names are there, and refuse.
set -euo pipefail
cd "$(dirname "$0")"
out=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
platforms=()
for each in manylinux_2_35 manylinux_2_34 manylinux_2_31 manylinux_2_28 manylinux_2_24 manylinux_2_17 manylinux2014 manylinux1; do
    platforms+=(--platform "${each}_x86_64")
done
fetch=(python3 -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: --no-compile --python-version 3.12 --implementation cp)
# What the machine has, or a CPU alone needs.
present='^(#|torchvision|triton|transformers|numpy|scipy|tokenizers|safetensors|huggingface|hf-xet|pandas|pyarrow|datasets|pytest|networkx|sympy|mpmath|pillow)'
grep -vEi "$present" requirements.txt > "$work/requirements.txt"
"${fetch[@]}" "${platforms[@]}" --target "$work/site" -r "$work/requirements.txt" "sglang==$(tail -n 1 ../../releases.txt)" nvidia-ml-py==13.580.82
"${fetch[@]}" --platform manylinux2014_x86_64 --target "$work/kernel" sglang-kernel==0.4.10
"${fetch[@]}" --platform manylinux2014_x86_64 --target "$work/older" sglang-kernel==0.4.5
cd "$work/site"
cp -r ../kernel/sgl_kernel ../kernel/sglang_kernel-0.4.10.dist-info .
rm -rf sgl_kernel/*.so sgl_kernel/sm100 && cp ../older/sgl_kernel/sm90/common_ops.abi3.so sgl_kernel/sm90/
rm -rf sglang/multimodal_gen sglang/test sglang/benchmark sglang/srt/rust_extensions/*.so sglang/srt/mem_cache/rust_tree_core/*.so \
    xgrammar/lib/*.a bin share uvloop/loop.c
mkdir flash_mla
cat > flash_mla/__init__.py << 'end'
def fused_norm_rope_attn_rope_cast(*_, **__):
    raise NotImplementedError("FlashMLA is left out")
end
echo 'class FlashMLASchedMeta: ...' > flash_mla/flash_mla_interface.py
find . -name '*.so*' -type f -exec strip --strip-unneeded {} + 2> /dev/null || true
tar -cf - . | xz -T2 -4 > "$out"
du -sh . && ls -l "$out"
