#!/usr/bin/env bash
# What the headers promise of the library's binary interface. structs.c is a program of another
# version, whose structs have other sizes. usage: check.sh
cd "$(dirname "$0")/../.." && . dev/setup.sh
install_library
set +e
run bash tests/abi/gate.sh "$library" include cc
run cc -std=c11 -Wall -Wextra -pedantic -Werror -g -Iinclude tests/abi/structs.c -o "$build/abi_structs" -ldl
run "$build/abi_structs" "$library"
closing
