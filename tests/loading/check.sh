#!/usr/bin/env bash
# What loading the library does, and beside what: the cases of loading.c, another C++ library,
# PyTorch.
#
#   check.sh [LIBRARY [FAKE_DRIVER_FOLDER]]   default: those of build/, which it makes
#
# ROUTECAP_TORCH_PYTHON names a Python with PyTorch, in the place of one made under build/.
cd "$(dirname "$0")/../.." && . dev/setup.sh
set +e

if [ $# = 0 ]; then
    install_library
    install_fake_driver
fi
library=${1:-$library}
fake=${2:-$build/tests/fake}
work=$build/loading
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
