#!/usr/bin/env bash
# The main job: captures the routing of mixture-of-experts models that run in llama.cpp, on the bytes of real text. Sets up all it needs.
cd "$(dirname "$0")/.." && . examples/setup.sh

install_library
install_llama
build_llama_example
for model in qwen3moe deepseek2; do
    say
    say "== llama.cpp, a small $model with random weights, three prompts of this project's own text"
    capture_llama "$model" LICENSE:700 include/routecap.h:150 README.md:33
done
