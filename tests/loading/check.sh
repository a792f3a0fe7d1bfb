#!/usr/bin/env bash
# What loading the library does, and beside what: the cases of loading.c, another C++ library,
# PyTorch.
#
#   check.sh [LIBRARY [FAKE_DRIVER_FOLDER]]   default: the installed library, and the fake driver
#                                             that the tests have built
#
# ROUTECAP_TORCH_PYTHON names a Python with PyTorch, in the place of one made under build/.
cd "$(dirname "$0")/../.." && . dev/setup.sh
set +e

library=${1:-$(find "$prefix" -name libroutecap.so.1)}
fake=${2:-$build/tests/fake}
work=$build/loading
run() {
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)) && say "failed: $*"; fi
}
need cc=gcc c++=g++
rm -rf "$work" && mkdir -p "$work/copy" && cp -L "$library" "$work/copy/libroutecap.so.1"

run cc -std=c11 -Wall -Wextra -pedantic -Werror -g -O1 -Iinclude tests/loading/loading.c -o "$work/loading" -ldl -pthread
run env LD_LIBRARY_PATH="$fake" "$work/loading" "$library" "$work/copy/libroutecap.so.1"
run c++ -std=c++20 -Wall -Wextra -Werror -O1 -Iinclude -static-libstdc++ -static-libgcc -rdynamic \
    tests/loading/other_libstdcxx.cc -o "$work/other_libstdcxx" -ldl
run "$work/other_libstdcxx" "$library"
torch_python=${ROUTECAP_TORCH_PYTHON:-}
[ -n "$torch_python" ] || install_torch
for order in before after both; do
    run env "$torch_python" tests/loading/beside_torch.py "$library" "$work/copy/libroutecap.so.1" $order
done
closing
