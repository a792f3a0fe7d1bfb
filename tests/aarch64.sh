#!/usr/bin/env bash
# The library for aarch64 in Release, without CUDA, as GCC and Clang build it: both run the
# scenarios, the tests of the API and of recording, and the conformance vectors. Elsewhere than on
# aarch64 under qemu.
cd "$(dirname "$0")/.." && . dev/setup.sh
set +e
work=$build/aarch64
need cmake=cmake ninja=ninja-build python3=python3 aarch64-linux-gnu-g++=g++-aarch64-linux-gnu clang++-14=clang-14 \
    /usr/src/googletest/CMakeLists.txt=googletest /usr/include/nlohmann/json.hpp=nlohmann-json3-dev
emulator=
if [ "$(uname -m)" != aarch64 ]; then
    need qemu-aarch64-static=qemu-user-static
    emulator=qemu-aarch64-static
    export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
fi
gcc=(-DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++)
clang=(-DCMAKE_C_COMPILER=clang-14 -DCMAKE_CXX_COMPILER=clang++-14
    -DCMAKE_C_COMPILER_TARGET=aarch64-linux-gnu -DCMAKE_CXX_COMPILER_TARGET=aarch64-linux-gnu)

# configured NAME SOURCES OPTION..., installed NAME: in a folder of that name.
configured() {
    local folder=$work/$1 sources=$2
    shift 2
    cmake -S "$sources" -B "$folder" -G Ninja -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 "$@"
}
installed() { cmake --build "$work/$1" -j "$jobs" && cmake --install "$work/$1" --prefix "$work/$1/prefix"; }

release=(-DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS=-Werror -DCMAKE_INSTALL_LIBDIR=lib -DROUTECAP_CUDA=OFF)
library_by_gcc() { configured gcc . "${gcc[@]}" "${release[@]}" && installed gcc; }
library_by_clang() { configured clang . "${clang[@]}" "${release[@]}" && installed clang; }
check "GCC builds the library" library_by_gcc
check "Clang builds the library" library_by_clang

# The programs, once: they know no folder of the library, so that they run with the one that is
# named.
programs=(scenarios api recording vectors wire)
mapfile -t cuda < <(sed -n -E 's/^(ROUTECAP_CUDA_INCLUDE:.*)/-D\1/p' "$build/release/CMakeCache.txt")
targets=("${programs[@]}")
[ ${#cuda[@]} = 0 ] || targets+=(fake_cuda)
test_programs() {
    configured googletest /usr/src/googletest "${gcc[@]}" -DBUILD_GMOCK=OFF && installed googletest &&
        configured tests tests "${gcc[@]}" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS=-Werror "${cuda[@]}" \
            -DROUTECAP_BENCH=OFF -DCMAKE_SKIP_BUILD_RPATH=ON -DCMAKE_PREFIX_PATH="$work/gcc/prefix;$work/googletest/prefix" &&
        cmake --build "$work/tests" -j "$jobs" --target "${targets[@]}"
}
check "GCC builds the tests" test_programs

# with COMPILER PROGRAM: runs it with that compiler's library; the log ends with the exit status.
with() {
    LD_LIBRARY_PATH=$work/$1/prefix/lib $emulator "$work/tests/$2" --gtest_brief=1 > "$work/$1.$2.log" 2>&1
    echo "status $?" >> "$work/$1.$2.log"
}
export -f with
export work emulator
rm -f "$work"/*.log
printf '%s\n' "${programs[@]/#/gcc }" "${programs[@]/#/clang }" | xargs -P "$jobs" -I{} bash -c 'with {}'
for log in "${programs[@]/#/$work/gcc.}" "${programs[@]/#/$work/clang.}"; do
    log+=.log
    good=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log") bad=$(grep -c '^\[  FAILED  \] .*ms)$' "$log")
    if [ "$(tail -n 1 "$log")" != "status 0" ]; then
        cat "$log"
        [ "$bad" != 0 ] || bad=1
    fi
    passed=$((passed + ${good:-0})) failed=$((failed + bad))
    log=${log##*/}
    say "${log%.log}: ${good:-0} passed, $bad failed"
done
closing
