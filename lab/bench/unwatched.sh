#!/usr/bin/env bash
# The log and the counts of the load cost the engine's thread nothing. usage: unwatched.sh
cd "$(dirname "$0")/../.." && . dev/setup.sh
need valgrind=valgrind cmake=cmake ninja=ninja-build c++=g++
set +e
run cmake -S . -B build/unwatched -G Ninja -DCMAKE_BUILD_TYPE=Release -DROUTECAP_CUDA=OFF
run cmake --build build/unwatched -j "$jobs" --target routecap
run python3 lab/bench/off.py build/unwatched/libroutecap.so.1
closing
