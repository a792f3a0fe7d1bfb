# Released vLLM without a GPU: to be sourced behind dev/setup.sh.

# environment VERSION: makes that of a release, once; afterwards $python is its interpreter. What
# the releases import is shared, and so is PyTorch (600 MB, fetched once); of vLLM itself the Python
# files are fetched (15 MB).
environment() { locked vllm_engine make_environment "$1"; }
make_environment() {
    local here=$root/integrations/vllm/tests/real base=$build/vllm_engine/base folder=$build/vllm_engine/$1 site
    python=$folder/bin/python
    if ! cmp -s "$here/requirements.txt" "$base/requirements.txt"; then
        need python3.12=python3.12-venv cc=gcc readelf=binutils
        say "setup: fetching PyTorch 2.11 and what vLLM imports"
        rm -rf "$base"
        PYENV_VERSION=$(pyenv versions --bare 2> /dev/null | grep '^3\.12' | tail -n 1) python3.12 -m venv "$base" || exit 1
        "$base/bin/pip" install --quiet --disable-pip-version-check --no-compile --no-deps -r "$here/requirements.txt" || exit 1
        "$base/bin/python" dev/torch_on_cpu.py
        cp "$here/requirements.txt" "$base"
    fi
    [ ! -e "$folder/ready" ] || return 0
    say "setup: fetching vLLM $1"
    rm -rf "$folder"
    "$base/bin/python" -m venv --without-pip "$folder" || exit 1
    site=$(ls -d "$folder"/lib/python3*/site-packages)
    "$base/bin/python" "$here/fetch.py" "$1" "$site" || exit 1
    "$base/bin/python" -c 'import site; print(site.getsitepackages()[0])' > "$site/base.pth"
    touch "$folder/ready"
}

export VLLM_ENGINE_ON_CPU=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_CACHE_ROOT=$build/vllm_engine/cache
export PYTHONPYCACHEPREFIX=$build/vllm_engine/pycache VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1
export OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind  # of workers in processes of their own
