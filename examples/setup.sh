# What the examples and the tests need, made once under build/ and found there the next time. To be sourced by bash, in the project's root.
set -euo pipefail

root=$PWD
build=$root/build
prefix=$build/install
llama=$build/llama_cpp
jobs=$(nproc)
mkdir -p "$build"

say() { printf '%s\n' "$*"; }

# need COMMAND=PACKAGE...: installs Debian or Ubuntu packages for commands that are not there. A FILE in the place of a command is looked for as it is.
need() {
    local missing=() pair command
    for pair in "$@"; do
        command=${pair%%=*}
        command -v "$command" > /dev/null || [ -e "$command" ] || missing+=("${pair#*=}")
    done
    [ ${#missing[@]} = 0 ] && return
    say "setup: installing ${missing[*]}"
    local sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    $sudo apt-get update -qq > "$build/apt.log" 2>&1 || true
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >> "$build/apt.log" 2>&1 ||
        { tail -n 20 "$build/apt.log"; say "setup: could not install ${missing[*]}"; exit 1; }
}

# python_environment FOLDER PACKAGE...: a Python environment with these packages, made once.
python_environment() {
    local folder=$1
    shift
    [ "$(cat "$folder/packages" 2> /dev/null)" = "$*" ] && return
    need python3=python3
    say "setup: making a Python environment with $*"
    rm -rf "$folder"
    python3 -m venv "$folder" 2> /dev/null || { rm -rf "$folder"; need /no/venv=python3-venv; python3 -m venv "$folder"; }
    "$folder/bin/pip" install --quiet --disable-pip-version-check "$@" || exit 1
    printf '%s' "$*" > "$folder/packages"
}

# nvcc, for the kernels: the one that is there, or else that of NVIDIA's packages, without the rest of a toolkit.
install_nvcc() {
    need python3=python3
    command -v nvcc > /dev/null && return
    [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ] && return
    python_environment "$build/nvcc" nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 \
        nvidia-cuda-cccl==13.0.85
    export CUDA_HOME
    CUDA_HOME=$(ls -d "$build"/nvcc/lib/python3*/site-packages/nvidia/cu13)
}

# Builds the library and installs it under build/install; with CUDA if there is nvcc.
install_library() {
    need cmake=cmake ninja=ninja-build c++=g++ cc=gcc pkg-config=pkg-config
    cmake --preset release > "$build/configure.log" || { cat "$build/configure.log"; exit 1; }
    cmake --build --preset release -j "$jobs" > "$build/build.log" || { cat "$build/build.log"; exit 1; }
    cmake --install build/release --prefix "$prefix" > "$build/install.log" || { cat "$build/install.log"; exit 1; }
    say "setup: routecap $(PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name routecap.pc)") pkg-config --modversion routecap) is installed in build/install"
    library=$(find "$prefix" -name 'libroutecap.so.0')
}

# NumPy, and gguf, which writes models for llama.cpp.
install_python() { python_environment "$build/python" gguf==0.19.0; }

# PyTorch for the CPU, out of the wheel for CUDA (540 MB) and without the libraries that one needs on a GPU.
install_torch() {
    local environment=$build/torch
    torch_python=$environment/bin/python
    [ -e "$environment/ready" ] && return
    need cc=gcc readelf=binutils
    python_environment "$environment" numpy pytest filelock typing-extensions sympy networkx jinja2 fsspec setuptools
    say "setup: fetching PyTorch (540 MB)"
    "$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps torch==2.15.0 nvidia-cuda-runtime==13.2.86 || exit 1
    "$torch_python" examples/torch_on_cpu.py
    "$torch_python" -c 'import torch; torch.ones(2).sum()'
    touch "$environment/ready"
}

# llama.cpp: the engine's prebuilt libraries and its headers from npm, four small models made on the spot.
llama_version=3.22.1
install_llama() {
    need npm=npm git=git python3=python3
    local machine bindings
    case $(uname -m) in
        x86_64) machine=linux-x64 ;;
        aarch64) machine=linux-arm64 ;;
        *) say "setup: there is no prebuilt llama.cpp for $(uname -m)"; exit 1 ;;
    esac
    mkdir -p "$llama"
    if [ ! -e "$llama/ready-$llama_version" ]; then
        say "setup: fetching a prebuilt llama.cpp (about 46 MB)"
        rm -rf "$llama/binaries" "$llama/bindings" "$llama/source"
        mkdir -p "$llama/binaries" "$llama/bindings"
        (cd "$llama" && npm pack --silent "@node-llama-cpp/$machine@$llama_version" "node-llama-cpp@$llama_version" > npm.log 2>&1) ||
            { cat "$llama/npm.log"; exit 1; }
        tar -xzf "$llama/node-llama-cpp-$machine-$llama_version.tgz" -C "$llama/binaries" --strip-components=1
        tar -xzf "$llama/node-llama-cpp-$llama_version.tgz" -C "$llama/bindings" --strip-components=1
        git clone --quiet "$llama/bindings/llama/gitRelease.bundle" "$llama/source" 2> "$llama/git.log" || { cat "$llama/git.log"; exit 1; }
        rm -rf "$llama/bindings" "$llama"/*.tgz
        touch "$llama/ready-$llama_version"
    fi
    llama_libraries=$llama/binaries/bins/$machine
    install_python
    for bindings in qwen3moe deepseek2 gpt-oss qwen3; do
        [ "$llama/$bindings.gguf" -nt examples/llama_cpp/make_model.py ] ||
            "$build/python/bin/python" examples/llama_cpp/make_model.py "$bindings" "$llama/$bindings.gguf"
    done
}

# link_llama PROGRAM SOURCE...: a C program on llama.cpp. The prebuilt libraries' names carry a version in some releases and none in others.
link_llama() {
    local so program=$1 names=()
    shift
    for so in llama ggml ggml-base; do
        names+=("-l:$(cd "$llama_libraries" && ls | grep -E "^lib$so(\.v[0-9.]+)?\.so$" | head -n 1)")
    done
    cc -O2 -std=gnu11 -Wall -Wextra -Werror -I"$prefix/include" -isystem "$llama/source/include" -isystem "$llama/source/ggml/include" "$@" \
        -o "$program" -L"$llama_libraries" "${names[@]}" -lm -ldl -Wl,-rpath,"$llama_libraries" -Wl,-rpath-link,"$llama_libraries"
}
# The examples, each with the tap.
build_llama_example() {
    local program
    for program in capture scenarios bench; do link_llama "$llama/$program" examples/llama_cpp/{"$program",tap,oracle,support}.c || return 1; done
}
# capture_llama MODEL ARGUMENTS..., scenarios_llama MODEL, bench_llama MODEL ARGUMENTS...
on_llama() {
    local program=$1 model=$2
    shift 2
    GGML_BACKEND_DIR=$llama_libraries "$llama/$program" "$library" "$llama/$model.gguf" "$@"
}
capture_llama() { on_llama capture "$@"; }
scenarios_llama() { on_llama scenarios "$1" "$llama/qwen3.gguf"; }
bench_llama() { on_llama bench "$@"; }
