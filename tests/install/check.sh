#!/usr/bin/env bash
# Programs built against an installed library in each way there is, where it was installed and where
# it was moved to. --static: against a static one, C programs, which have nothing of C++ unless it
# is named. usage: check.sh [--static]
cd "$(dirname "$0")/../.." && . dev/setup.sh
need cc=gcc cmake=cmake ninja=ninja-build pkg-config=pkg-config readelf=binutils
set +e
strict=(cc -std=c11 -Wall -Wextra -Werror)

# with_pkgconfig TREE [--static] ARGUMENT...: compiles with the flags that pkg-config says, in which
# a space of the tree's path is escaped.
with_pkgconfig() {
    local -x PKG_CONFIG_PATH
    local flags how=()
    PKG_CONFIG_PATH=$(dirname "$(find "$1" -name routecap.pc)")
    shift
    [ "$1" != --static ] || { how=(--static) && shift; }
    flags=$(pkg-config "${how[@]}" --cflags --libs routecap) && xargs "${strict[@]}" "$@" <<< "$flags"
}
# with_cmake TREE FOLDER: a project that finds the package, built there and run.
with_cmake() {
    run cmake -S tests/install -B "$2" -G Ninja -DCMAKE_PREFIX_PATH="$1" -DEXAMPLES="$root/examples"
    run cmake --build "$2"
    run "$2/worker_loop"
}

# What the library depends on must be the system's.
needs_the_system_alone() {
    ! readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
        grep -vE '^(libstdc\+\+\.so\.6|libgcc_s\.so\.1|libm\.so\.6|libc\.so\.6|libpthread\.so\.0|libdl\.so\.2|ld-linux.*)$'
}
has_no_rpath() { ! readelf -d "$library" | grep -E 'RPATH|RUNPATH'; }
is_named() { readelf -d "$library" | grep -q 'SONAME.*libroutecap.so.1'; }
stays_loaded() { readelf -d "$library" | grep -q NODELETE; }
# The single file alone, as a project has it that copied nothing else.
is_the_single_file() { sh dev/single.sh include | cmp - "$1"; }

consumers() {
    local tree=$1 work=$build/consumers so example
    rm -rf "$work" && mkdir -p "$work/single"
    so=$(find "$tree" -name libroutecap.so.1)
    run with_pkgconfig "$tree" examples/worker_loop.c -o "$work/linked"
    run env LD_LIBRARY_PATH="$(dirname "$so")" "$work/linked"
    for example in own_copy conversation; do
        run with_pkgconfig "$tree" "examples/$example.c" -o "$work/$example" -pthread
        run env LD_LIBRARY_PATH="$(dirname "$so")" "$work/$example"
    done
    with_cmake "$tree" "$work/cmake"
    run "${strict[@]}" -I"$tree/include" examples/cpu_callback.c -o "$work/loaded" -ldl
    run "$work/loaded" "$so"
    run is_the_single_file "$tree/include/routecap_single.h"
    cp "$tree/include/routecap_single.h" "$work/single/routecap.h"
    run "${strict[@]}" -I"$work/single" examples/cpu_callback.c -o "$work/single/loaded" -ldl
    run "$work/single/loaded" "$so"
}

static_library() {
    cmake -S . -B build/static -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DBUILD_SHARED_LIBS=OFF \
        -DROUTECAP_CUDA=OFF && cmake --build build/static -j "$jobs" && cmake --install build/static --prefix "$1"
}
if [ "${1:-}" = --static ]; then
    tree=$build/static/prefix
    rm -rf "$tree" "$build/static/consumer"
    run static_library "$tree"
    run with_pkgconfig "$tree" --static examples/worker_loop.c -o "$build/static/linked"
    run "$build/static/linked"
    with_cmake "$tree" "$build/static/consumer"
    closing
    exit
fi
install_library
run needs_the_system_alone
run grep -q -a -m 1 routecap_snapshot8_8 "$library"
run has_no_rpath
run is_named
run stays_loaded
consumers "$prefix"
rm -rf "$build/moved tree" && cp -a "$prefix" "$build/moved tree"
consumers "$build/moved tree"
closing
