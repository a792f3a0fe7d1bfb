#!/usr/bin/env bash
# The same models and prompts through transformers, llama.cpp (from C and from Rust), Ollama's
# engine and candle, captured through routecap in each: oracle.py says what is compared. One model;
# twenty with --full. Built from nothing the engines take five minutes of two cores. usage: check.sh
# [--full] [--library PREFIX] [--without ENGINE]...   ENGINE: rust, ollama or candle
cd "$(dirname "$0")/../.." && . dev/setup.sh && . integrations/llama_cpp/setup.sh
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error

models=1 installed=() left_out=" "
while [ $# -gt 0 ]; do
    case $1 in
        --full) models=20 ;;
        --library) installed=("$2"); shift ;;
        --without) left_out+="$2 "; shift ;;
        *) say "check.sh: $1 is not understood"; exit 2 ;;
    esac
    shift
done
use_library "${installed[@]}"
install_llama
install_package
install_transformers
work=$build/engines
mkdir -p "$work"

link_llama "$work/llama_cpp" -Iintegrations/llama_cpp integrations/llama_cpp/{tap,tests/engine,tests/support}.c
engines=("llama.cpp=$work/llama_cpp")
for pair in rust=integrations/llama_cpp/rust ollama=integrations/ollama candle=integrations/candle; do
    case $left_out in
        *" ${pair%%=*} "*) say "LEFT OUT, as asked: ${pair%%=*}" ;;
        *) . "${pair#*=}/build.sh"; engines+=("${pair%%=*}=$program") ;;
    esac
done

export PYTHONPATH=$package GGML_BACKEND_DIR=$llama_libraries
"$transformers_python" tests/engines/oracle.py "$work" $models "$build/python/bin/python" "$library" "${engines[@]}"
