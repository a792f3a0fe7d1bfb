#!/usr/bin/env bash
# The programs in C++: those that tests/CMakeLists.txt has for the default run, or all.
#
#     programs.sh installed | asan | tsan             what the default run has
#     programs.sh every-test | every-asan | every-tsan
cd "$(dirname "$0")/.." && . dev/setup.sh
install_library
set +e

# ctest_in DIRECTORY OPTION...: prints ctest's own count as the closing line. Many of the tests wait
# more than they compute.
ctest_in() {
    ctest --test-dir "$1" "${@:2}" -j $((2 * jobs)) --output-on-failure --no-tests=error > "$1/ctest.log" 2>&1
    local status=$?
    [ $status = 0 ] || cat "$1/ctest.log"
    say "$(grep 'tests passed' "$1/ctest.log" | tail -n 1)"
    return $status
}

# Against the installed library: what is not the same as under a sanitizer, which are its optimised
# code and its calls in the hot path. `every-test` has all programs, and on a device the random
# traffic of `Promises`, which is here on the host alone.
installed() {
    build_tests default_installed &&
        GTEST_FILTER='-Promises.no_row_that_issue_accepted_*' ROUTECAP_TEST_ONE_OF=8 \
            ctest_in build/tests -R "$(cat build/tests/default_installed.tests)"
}
every_test() { build_tests all && ctest_in build/tests; }

# configure_sanitized PRESET OPTION...: with the kernels that build/release has.
configure_sanitized() {
    local options
    [ -e "$prefix" ] || install_library
    need /usr/include/gtest/gtest.h=libgtest-dev /usr/include/nlohmann/json.hpp=nlohmann-json3-dev
    mapfile -t options < <(sed -n -E 's/^(ROUTECAP_(NVCC|CUDA_INCLUDE|CUDA_ARCHS):.*)/-D\1/p' build/release/CMakeCache.txt)
    [ ! -e build/release/kernels/kernels.fatbin ] || options+=("-DROUTECAP_FATBIN=$build/release/kernels/kernels.fatbin")
    locked "$1" cmake --preset "$1" "${options[@]}" "${@:2}"
}
# What takes bytes of others or manages memory, on the host. `every-asan` has the rest. The library
# alone is sanitized, under programs of build/tests, which `tests` has in part. Its build is not
# optimised, and has none of the checks of UBSan that are expensive to compile and that
# AddressSanitizer has in another form.
asan_checks=address,shift,integer-divide-by-zero,unreachable,vla-bound,return,signed-integer-overflow,bounds,bool,enum,alignment
asan_checks+=,nonnull-attribute,returns-nonnull-attribute,builtin
asan() {
    local -x ROUTECAP_TEST_ONE_OF=8
    local program programs name options
    configure_sanitized asan -B build/asan_part -DROUTECAP_SANITIZE=$asan_checks '-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O0 -g1 -DNDEBUG' \
        -DROUTECAP_CUDA=OFF && locked asan cmake --build build/asan_part -j "$jobs" --target routecap &&
        build_tests default_asan && mapfile -t programs < build/tests/default_asan.programs || return 1
    for program in "${programs[@]}"; do
        name=${program##*/}
        case $name in
            fuzz_*) options=(--generated 100 "tests/fuzz/corpus/${name#fuzz_}.inputs") ;;
            *) options=(--gtest_brief=1 '--gtest_filter=-Promises.*') ;;
        esac
        run on_asan "$program" "${options[@]}"
    done
    closing
}
# on_asan PROGRAM...: on the sanitized library, in the place of the installed one.
on_asan() {
    local sanitized=(env LD_LIBRARY_PATH="$build/asan_part")
    "${sanitized[@]}" ldd "$1" | grep "$build/asan_part/libroutecap" > /dev/null &&
        "${sanitized[@]}" LD_PRELOAD="$(c++ -print-file-name=libasan.so):$(c++ -print-file-name=libstdc++.so)" "$@"
}
every_asan() {
    configure_sanitized asan && locked asan cmake --build build/asan -j "$jobs" && decoders_asan && ctest_in build/asan
}
# Decoders write into memory of Rust's and Go's, of no length too.
decoders_asan() {
    local -x LD_LIBRARY_PATH=$build/asan ASAN_OPTIONS=detect_leaks=0 GOCACHE=$build/go/cache PKG_CONFIG_PATH
    PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name routecap.pc)")
    local asan
    asan=LD_PRELOAD=$(c++ -print-file-name=libasan.so):$(c++ -print-file-name=libstdc++.so)
    (cd bindings/rust && cargo test --quiet -p routecap --test wire --config "target.'cfg(unix)'.runner=['env', '$asan']") &&
        (cd bindings/go && go test -asan -count=1 -timeout 60m -run Wire .)
}
# What has most threads in the least time: `delayed` is `threads` and `limits` with random delays, and
# two tests of `store` are long and have one thread. `every-tsan` has the rest, and the
# CUDA backend on the driver without a device, which takes a minute to compile for it.
tsan() {
    configure_sanitized tsan && locked tsan cmake --build build/tsan -j "$jobs" --target default_tsan &&
        ROUTECAP_TEST_ONE_OF=8 ctest_in build/tsan -R "$(cat build/tsan/tests/default_tsan.tests)" \
            -E 'may_be_all_the_memory|65536_keys'
}
every_tsan() { configure_sanitized tsan && locked tsan cmake --build build/tsan -j "$jobs" && ctest_in build/tsan; }

case ${1:-} in
    installed | asan | tsan) "$1" ;;
    every-test | every-asan | every-tsan) "${1/-/_}" ;;
    *) say "usage: programs.sh installed | asan | tsan | every-test | every-asan | every-tsan"; exit 2 ;;
esac
