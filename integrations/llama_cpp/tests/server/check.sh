#!/usr/bin/env bash
# Builds the library to preload, starts llama-server with it and a small model of random weights, and
# compares every row that it delivers with the choices of a program that captures nothing.
cd "$(dirname "$0")/../../../.." && . dev/setup.sh
install_library
install_llama
install_llama_server
install_package
set +e
use_library "$prefix"
work=$build/llama_server/work
rm -rf "$work" && mkdir -p "$work"

check "the library to preload" build_preload "$work/routecap_preload.so"
check "a dlsym that does not find a name" cc -O2 -std=gnu11 -Wall -Wextra -Werror -shared -fPIC -o "$work/renamed.so" integrations/llama_cpp/tests/server/renamed.c
check "the oracle" link_llama "$work/replay" integrations/llama_cpp/tests/server/replay.c
"$build/python/bin/python" integrations/llama_cpp/tests/make_model.py qwen3moe "$work/model.gguf" --tokenizer || exit 1

GGML_BACKEND_DIR=$llama_libraries PYTHONPATH=$package:integrations/llama_cpp/server PYTHONDONTWRITEBYTECODE=1 "$build/python/bin/python" \
    integrations/llama_cpp/tests/server/check.py "$llama_server" "$work/routecap_preload.so" "$work/replay" "$work/model.gguf" "$work" integrations/llama_cpp/server/preload.c "$work/renamed.so" | tee "$work/out"
[ "${PIPESTATUS[0]}" = 0 ] || grep -q ^FAILED "$work/out" || failed=$((failed + 1)) # it did not come to its end
passed=$((passed + $(grep -c '^ok ' "$work/out"))) failed=$((failed + $(grep -c ^FAILED "$work/out")))
closing
