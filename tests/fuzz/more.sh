#!/usr/bin/env bash
# Many more sequences of calls than ctest runs, without libFuzzer. usage: more.sh
cd "$(dirname "$0")/../.." && . dev/setup.sh
install_library
build_tests fuzz_operations
set +e
run build/tests/fuzz/fuzz_operations --generated 200000
closing
