# What examples, tests and packages need, made once under build/ and found there the next time. To
# be sourced by bash, in the project's root.
set -euo pipefail

root=$PWD
build=$root/build
prefix=$build/install
jobs=$(nproc)
mkdir -p "$build"
# What Python compiles, once for all suites. Environments are installed uncompiled: most of their
# modules nobody imports. Images of containers say that nothing is to be written, and then each
# process compiles all that it imports: four seconds for PyTorch.
export PYTHONPYCACHEPREFIX=$build/bytecode
unset PYTHONDONTWRITEBYTECODE

say() { printf '%s\n' "$*"; }

# locked NAME COMMAND...: one at a time of those that name the same, as two suites may set up at once.
locked() {
    local status=0 lock=
    exec {lock}> "$build/$1.lock" && flock "$lock"
    "${@:2}" || status=$?
    exec {lock}>&-
    return $status
}

# need COMMAND=PACKAGE...: installs Debian or Ubuntu packages for commands that are not there. A
# FILE in the place of a command is looked for as it is.
need() {
    local missing=() pair command
    for pair in "$@"; do
        command=${pair%%=*}
        command -v "$command" > /dev/null || [ -e "$command" ] || missing+=("${pair#*=}")
    done
    [ ${#missing[@]} = 0 ] && return
    say "setup: installing ${missing[*]}"
    locked apt install_packages "${missing[@]}" || exit 1
}
install_packages() {
    local sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    $sudo apt-get update -qq > "$build/apt.log" 2>&1 || true
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "$@" >> "$build/apt.log" 2>&1 ||
        { tail -n 20 "$build/apt.log"; say "setup: could not install $*"; return 1; }
}

# libclang for bindgen, with the compiler's own headers, which are in a package of their own: the
# library alone says that there is no stddef.h.
need_libclang() {
    local folder
    for folder in /usr/lib/llvm-*; do
        ls "$folder"/lib/libclang.so* "$folder"/lib/clang/*/include/stddef.h > /dev/null 2>&1 || continue
        export LIBCLANG_PATH=$folder/lib  # of several, the one with headers
        return
    done
    need /no/libclang=libclang-dev
}

# python_environment FOLDER PACKAGE...: a Python environment with these packages, made once.
python_environment() { locked "python-${1##*/}" make_python_environment "$@"; }
make_python_environment() {
    local folder=$1
    shift
    [ "$(cat "$folder/packages" 2> /dev/null)" = "$*" ] && return
    need python3=python3
    say "setup: making a Python environment with $*"
    rm -rf "$folder"
    locked pip install_pip
    python3 -m venv --without-pip "$folder"
    printf '#!/bin/sh\nexec "%s" --python "%s" "$@"\n' "$build/pip/bin/pip" "$folder/bin/python" > "$folder/bin/pip"
    chmod +x "$folder/bin/pip"
    "$folder/bin/pip" install --quiet --disable-pip-version-check --no-compile "$@" || exit 1
    printf '%s' "$*" > "$folder/packages"
}
# One pip for all environments: a pip of its own takes five seconds in each.
install_pip() {
    local folder=$build/pip
    [ -e "$folder/ready" ] && return
    python3 -m venv "$folder" > /dev/null 2>&1 || { rm -rf "$folder"; need /no/venv=python3-venv; python3 -m venv "$folder"; }
    touch "$folder/ready"
}

# nvcc, for the kernels: the one that is there, or else that of NVIDIA's packages, without the rest
# of a toolkit.
install_nvcc() {
    need python3=python3
    command -v nvcc > /dev/null && return
    [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ] && return
    python_environment "$build/nvcc" nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 \
        nvidia-cuda-cccl==13.0.85
    export CUDA_HOME
    CUDA_HOME=$(ls -d "$build"/nvcc/lib/python3*/site-packages/nvidia/cu13)
}

# What the stores of routecap.remote need: fsspec with S3, moto for a server of it, Mooncake without
# CUDA (18 MB), Ray (80 MB).
remote_environment() {
    need /usr/lib/x86_64-linux-gnu/libibverbs.so.1=libibverbs1 /usr/lib/x86_64-linux-gnu/libnl-route-3.so.200=libnl-route-3-200
    python_environment "$build/remote" numpy==2.4.6 pytest==9.2.0 'moto[server]==5.2.5' s3fs==2026.9.0 ray==2.60.0 \
        mooncake-transfer-engine-non-cuda==0.3.13.post1
}

# Builds the library and installs it under build/install; with CUDA if there is nvcc.
install_library() { locked library build_library; }
build_library() {
    library=$(find "$prefix" -name 'libroutecap.so.1' 2> /dev/null || true)
    [ "${ROUTECAP_INSTALLED:-}" != "$prefix" ] || return 0  # by who runs this script
    need cmake=cmake ninja=ninja-build c++=g++ cc=gcc pkg-config=pkg-config
    cmake --preset release ${ROUTECAP_ARCHS_OPTION:-} > "$build/configure.log" || { cat "$build/configure.log"; exit 1; }
    cmake --build --preset release -j "$jobs" > "$build/build.log" || { cat "$build/build.log"; exit 1; }
    cmake --install build/release --prefix "$prefix" > "$build/install.log" || { cat "$build/install.log"; exit 1; }
    say "setup: routecap $(PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name routecap.pc)") pkg-config --modversion routecap) is installed in build/install"
    library=$(find "$prefix" -name 'libroutecap.so.1')
}

# build_tests TARGET...: programs of the tests in build/tests, against the installed library.
build_tests() { locked tests build_test_programs "$@"; }
build_test_programs() {
    local cuda=()
    need cmake=cmake ninja=ninja-build c++=g++ python3=python3 /usr/include/gtest/gtest.h=libgtest-dev \
        /usr/include/nlohmann/json.hpp=nlohmann-json3-dev
    [ -e "$prefix" ] || install_library
    mapfile -t cuda < <(sed -n -E 's/^(ROUTECAP_(NVCC|CUDA_INCLUDE):.*)/-D\1/p' build/release/CMakeCache.txt)
    cmake -S tests -B build/tests -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS=-Werror \
        -DCMAKE_PREFIX_PATH="$prefix" "${cuda[@]}" &&
        cmake --build build/tests -j "$jobs" --target "$@"
}

# The CUDA driver without a device of tests/fault: $fake, for LD_LIBRARY_PATH.
install_fake_driver() {
    fake=$build/tests/fake
    [ "${ROUTECAP_FAKE_CUDA:-}" != "$fake" ] || return 0  # by who runs this script
    export ROUTECAP_FAKE_CUDA=$fake
    build_tests fake_cuda > "$build/fake.log" 2>&1 || { cat "$build/fake.log"; exit 1; }
}

# use_library [PREFIX]: the library that is installed there, or else one that is built and
# installed, for pkg-config and for the loader.
use_library() {
    if [ $# = 0 ]; then
        install_library
    else
        prefix=$(realpath "$1")
        library=$(find "$prefix" -name libroutecap.so.1)
    fi
    PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name routecap.pc)")
    LD_LIBRARY_PATH=$(dirname "$library")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export PKG_CONFIG_PATH LD_LIBRARY_PATH
}

# rust_packages ARGUMENTS...: the two crates as packages, each built from what is in it; to be called
# in bindings/rust. The second finds the first beside it: crates.io need not have this version.
rust_packages() {
    cargo package -p routecap-sys --allow-dirty "$@" &&
        cargo package -p routecap --allow-dirty --config 'patch.crates-io.routecap-sys.path="routecap-sys"' "$@"
}

# NumPy; gguf, which writes models for llama.cpp; rich, for tables in a terminal.
install_python() { python_environment "$build/python" gguf==0.19.0 rich==15.0.0; }

# The Python packages with the installed library in them, unpacked: PYTHONPATH=$package. Each is
# built again when its sources or the library change; their wheels are in build/package/wheel.
install_package() { locked package build_packages; }
build_packages() {
    local tools=$build/package/tools folder
    package=$build/package/unpacked
    need cc=gcc c++=g++
    need "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h"=python3-dev
    build_wheel routecap bindings/python/{src,routecap.i,outbox.*,pyproject.toml,CMakeLists.txt} include "$(realpath "$library")" -- \
        --config-settings=build-dir="$build/package/cmake" --config-settings=cmake.define.ROUTECAP_BUNDLE="$library" bindings/python
    for folder in integrations/*/pyproject.toml tools/pyproject.toml; do
        folder=${folder%/pyproject.toml}
        build_wheel "routecap_${folder##*/}" "$folder"/{src,pyproject.toml,README.md} -- "./$folder"
    done
}
# build_wheel NAME SOURCE... -- ARGUMENT...: the wheel that `pip wheel ARGUMENT...` makes, unpacked,
# unless nothing of the sources has changed.
build_wheel() {
    local name=$1 sources=() content info=$build/package/wheel/$1.content
    shift
    while [ "$1" != -- ]; do sources+=("$1") && shift; done
    shift
    content=$(find "${sources[@]}" -type f -not -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum | sha256sum)
    [ "$(cat "$info" 2> /dev/null)" != "$content" ] || return 0
    say "setup: building the Python package $name"
    python_environment "$tools" scikit-build-core==1.1.2 swig==4.5.1 cmake==4.4.4 ninja==1.13.2 hatchling==1.33.0 numpy==2.4.6
    rm -rf "$build/package/wheel/$name"-[0-9]* "$package/$name" "$package/$name"-[0-9]*
    PATH=$tools/bin:$PATH "$tools/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w "$build/package/wheel" "$@" \
        > "$build/package.log" 2>&1 || { cat "$build/package.log"; exit 1; }
    python3 -m zipfile -e "$build/package/wheel/$name"-[0-9]*.whl "$package"
    printf '%s' "$content" > "$info"
}

# PyTorch for the CPU, out of the wheel for CUDA (540 MB) and without the libraries that one needs
# on a GPU.
install_torch() { locked torch fetch_torch; }
fetch_torch() {
    local environment=$build/torch
    torch_python=$environment/bin/python
    [ -e "$environment/ready" ] && return
    need cc=gcc readelf=binutils
    python_environment "$environment" numpy pytest filelock typing-extensions sympy networkx jinja2 fsspec setuptools
    say "setup: fetching PyTorch (540 MB)"
    "$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile --no-deps torch==2.15.0 nvidia-cuda-runtime==13.2.86 || exit 1
    "$torch_python" dev/torch_on_cpu.py
    "$torch_python" -c 'import torch; torch.ones(2).sum()'
    touch "$environment/ready"
}

# newest_of NAME: the newest release of an engine that is tested.
newest_of() { tail -n 1 "$root/integrations/$1/releases.txt"; }

# transformers, beside the PyTorch of install_torch. install_transformers [VERSION]: another one than
# the newest.
install_transformers() {
    local environment=$build/transformers${1:+-$1}
    install_torch
    python_environment "$environment" "transformers==${1:-$(newest_of transformers)}"
    transformers_python=$environment/bin/python
    "$torch_python" -c 'import site; print(site.getsitepackages()[0])' > "$(ls -d "$environment"/lib/python3*/site-packages)/torch.pth"
}

# released VERSION...: wheels as they are on PyPI (name==version), unpacked beside one another
# without what they need: $build/released/name==version.
released() { locked released fetch_released "$@"; }
fetch_released() {
    local package folder
    install_torch
    for package; do
        folder=$build/released/$package
        [ -e "$folder/ready" ] && continue
        say "setup: fetching $package"
        rm -rf "$folder"
        "${torch_python%/*}/pip" install --quiet --disable-pip-version-check --no-deps --no-compile --ignore-requires-python --only-binary :all: \
            --target "$folder" "$package" || exit 1
        touch "$folder/ready"
    done
}

# What verl imports, beside the PyTorch and the transformers of the others.
install_verl_needs() { locked verl fetch_verl_needs; }
fetch_verl_needs() {
    install_transformers
    local environment=$build/verl
    verl_python=$environment/bin/python
    [ -e "$environment/ready" ] && return
    python_environment "$environment" ray==2.60.0 omegaconf==2.3.1 hydra-core==1.3.8 codetiming==1.4.0 einops==0.8.2 cloudpickle==3.1.2 orjson==3.13.0 \
        numpy==2.4.6 importlib_metadata==10.2.0
    "$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile --no-deps tensordict==0.15.3 pyvers==0.2.3 || exit 1 # the first wants torch
    "$transformers_python" -c 'import site, torch; print(site.getsitepackages()[0]); print(torch.__path__[0].removesuffix("/torch"))' \
        > "$(ls -d "$environment"/lib/python3*/site-packages)/others.pth"
    touch "$environment/ready"
}

# ---- For scripts that check

passed=0 failed=0
# run COMMAND...: one check, which prints what it likes.
run() {
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        say "failed: $*"
    fi
}
# check NAME COMMAND...: one check, silent if it passes.
check() {
    local name=$1 log=$build/check.$BASHPID.log
    shift
    if "$@" > "$log" 2>&1; then
        passed=$((passed + 1))
        say "ok      $name"
    else
        failed=$((failed + 1))
        cat "$log"
        say "FAILED  $name"
    fi
    rm -f "$log"
}
# tests NAME COMMAND...: pytest; each of its tests is a check. What it skips, and a run without
# tests, is a failure.
tests() {
    local name=$1 line status log=$build/check.$BASHPID.log
    shift
    "$@" -p no:cacheprovider -q --tb=short > "$log" 2>&1
    status=$?
    line=$(tail -n 1 "$log")
    count() { grep -oE "[0-9]+ $1" <<< "$line" | grep -oE '[0-9]+' || echo 0; }
    passed=$((passed + $(count passed))) failed=$((failed + $(count failed) + $(count error) + $(count skipped)))
    [ $status = 0 ] || [[ $line == *failed* || $line == *error* ]] || failed=$((failed + 1))
    [ $status = 0 ] && [ "$(count skipped)" = 0 ] || cat "$log"
    rm -f "$log"
    say "$name: $line"
}
# prints TEXT COMMAND..., refuses TEXT COMMAND...: whether a command succeeds, or fails, and says
# so.
prints() {
    local text=$1 output
    shift
    output=$("$@" 2>&1) && printf '%s\n' "$output" && grep -q -F -e "$text" <<< "$output"
}
refuses() {
    local text=$1 output
    shift
    ! output=$("$@" 2>&1) && printf '%s\n' "$output" && grep -q -F -e "$text" <<< "$output"
}
closing() { say "$passed checks passed, $failed failed"; [ $failed = 0 ]; }
