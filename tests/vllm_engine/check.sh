#!/usr/bin/env bash
# Runs check.py, points.py and server.py in vLLM 0.21 without a GPU, out of its wheel for CUDA. Needs Python 3.12,
# fetches 1 GB the first time, and takes some minutes. On a GPU machine that has vLLM 0.21 and
# routecap, `python3 check.py` alone is the same on the device.
cd "$(dirname "$0")/../.." && . examples/setup.sh
set +e

environment=$build/vllm_engine
requirements=$root/tests/vllm_engine/requirements.txt
need python3.12=python3.12-venv cc=gcc readelf=binutils
if ! cmp -s "$requirements" "$environment/requirements.txt"; then
    say "setup: fetching vLLM 0.21 and PyTorch 2.11"
    rm -rf "$environment" && python3.12 -m venv "$environment" || exit 1
    pip=("$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps)
    "${pip[@]}" torch==2.11.0 nvidia-cuda-runtime==13.0.96 && "${pip[@]}" -r "$requirements" || exit 1
    "$environment/bin/python" examples/torch_on_cpu.py
    sed -i 's/^Version: 0.21.0$/Version: 0.21.0+cpu/' \
        "$environment"/lib/python3.12/site-packages/vllm-0.21.0*.dist-info/METADATA
    cp "$requirements" "$environment/requirements.txt"
fi
install_library
install_package

export PYTHONPATH=$package PYTHONDONTWRITEBYTECODE=1 VLLM_ENGINE_ON_CPU=1 VLLM_CPU_KVCACHE_SPACE=1
export VLLM_CACHE_ROOT=$build/vllm_engine_cache VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
python=$environment/bin/python
for options in "" --sync "--preempt --prefix" "--sync --prefix --seed 2"; do
    check "every row, check.py $options" "$python" tests/vllm_engine/check.py $options
done
check "the plugin, points.py" "$python" tests/vllm_engine/points.py "$build/vllm_engine_points"
check "the HTTP server, server.py" "$python" tests/vllm_engine/server.py "$build/vllm_engine_server"
closing
