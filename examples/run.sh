#!/usr/bin/env bash
# The main job: runs a small mixture-of-experts model in llama.cpp on real text, captures the
# routing of every request, and shows it: in the terminal, as files, and as a page for a browser.
# Sets up all it needs.
cd "$(dirname "$0")/.." && . dev/setup.sh && . integrations/llama_cpp/setup.sh

install_library
install_llama
build_llama_example
install_package
work=$build/run
rm -rf "$work" && mkdir -p "$work"

say
say "== llama.cpp, the model of tests/model, three prompts of this project's own text"
GGML_BACKEND_DIR=$llama_libraries "$llama/capture" "$library" tests/model/weights/model.gguf --save "$work" \
    LICENSE:600 include/routecap/requests.h:700 bindings/python/bench_python.py:560

say
say "== routecap show build/run --html build/run/routing.html"
PYTHONPATH=$package "$build/python/bin/python" -m routecap_tools show "$work" --html "$work/routing.html"

say
say "The routing of each request is in build/run/request-*.routecap, its text beside it. Open build/run/routing.html in a browser to look at it."
