#!/usr/bin/env bash
# Runs check.py, points.py and server.py in vLLM without a GPU, out of its wheels for CUDA. Needs
# Python 3.12, fetches 1 GB for each version the first time, and takes some minutes. On a GPU machine
# that has vLLM and routecap, `python3 check.py` alone is the same on the device.
#
#   check.sh [VERSION...]     0.21 and 0.26 unless named
cd "$(dirname "$0")/../.." && . examples/setup.sh
set +e

here=$root/tests/vllm_engine
versions=("$@")
[ $# -gt 0 ] || versions=(0.21 0.26)
need python3.12=python3.12-venv cc=gcc readelf=binutils

# environment VERSION: makes it, once; afterwards $python is its interpreter.
environment() {
    local folder=$build/vllm_engine_$1 content pip
    python=$folder/bin/python
    content=$(cat "$here/requirements.txt" "$here/requirements-$1.txt")
    [ "$(cat "$folder/requirements" 2> /dev/null)" != "$content" ] || return 0
    say "setup: fetching vLLM $1 and PyTorch 2.11"
    rm -rf "$folder"
    PYENV_VERSION=$(pyenv versions --bare 2> /dev/null | grep '^3\.12' | tail -n 1) python3.12 -m venv "$folder" || exit 1
    pip=("$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps)
    "${pip[@]}" torch==2.11.0 nvidia-cuda-runtime==13.0.96 || exit 1
    "${pip[@]}" -r "$here/requirements.txt" -r "$here/requirements-$1.txt" || exit 1
    "$python" examples/torch_on_cpu.py
    sed -i 's/^Version: \(.*\)$/Version: \1+cpu/' "$folder"/lib/python3.12/site-packages/vllm-"$1".0.dist-info/METADATA
    printf '%s' "$content" > "$folder/requirements"
}

install_library
install_package

export PYTHONPATH=$package PYTHONDONTWRITEBYTECODE=1 VLLM_ENGINE_ON_CPU=1 VLLM_CPU_KVCACHE_SPACE=1
export VLLM_CACHE_ROOT=$build/vllm_engine_cache VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
for version in "${versions[@]}"; do
    environment "$version"
    for options in "" --sync "--preempt --prefix" "--sync --prefix --seed 2"; do
        check "$version: every row, check.py $options" "$python" tests/vllm_engine/check.py $options
    done
    check "$version: the plugin, points.py" "$python" tests/vllm_engine/points.py "$build/vllm_engine_points_$version"
done
closing
