#!/usr/bin/env bash
# Runs the suites, after setting up all they need, and ends with one line for each and exit status 0
# if all passed.
#
#     run.sh                  the default: what finds most, in thirteen minutes of two cores, fetching included
#     run.sh --full           every suite
#     run.sh NAME...          these alone, begun in this order; each sets up what it needs
#     run.sh --list           their names, and the usual minutes of each beside another on two cores
#
# What each printed is in build/test-logs.
cd "$(dirname "$0")/.." && . dev/setup.sh
set +e

logs=$build/test-logs
results=$logs/results

# run COMMAND...: one check of a suite; counts it.
run() {
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        say "failed: $*"
    fi
}

# ---- Suites

headers() {
    local standard source
    local warnings=(-Wall -Wextra -pedantic -Wpadded -Werror -fsyntax-only)
    sh dev/single.sh include "$build/routecap_single.h"
    for source in "$build/routecap_single.h" include/routecap.h include/routecap/*.h; do
        for standard in c99 c11 c17; do run cc -x c -std=$standard "${warnings[@]}" "$source"; done
        for standard in c++11 c++17 c++20; do run c++ -x c++ -std=$standard "${warnings[@]}" "$source"; done
    done
    for source in kernels/*.h; do
        echo "#include \"$source\"" > "$build/kernel.cc"
        run c++ -std=c++20 -Wall -Wextra -Werror -Iinclude -I. -fsyntax-only "$build/kernel.cc"
    done
    run python3 tests/headers/headers.py include
    run bash tests/rooms.sh
    rm -rf "$build/headers" && cp -r include "$build/headers"
    sed -i '/@param\[in\] options /d' "$build/headers/routecap/capture.h"
    run bash -c "! python3 tests/headers/headers.py '$build/headers' > '$build/headers.log' && grep -q routecap_step_issue '$build/headers.log'"
    for source in examples/*.c tests/abi/*.c tests/loading/*.c; do run cc -std=c11 -Wall -Wextra -pedantic -Werror -Iinclude -fsyntax-only "$source"; done
    closing
}

# What the headers promise of the library's binary interface. structs.c is a program of another
# version, whose structs have other sizes.
abi() {
    run bash tests/abi/gate.sh "$library" include cc
    run cc -std=c11 -Wall -Wextra -pedantic -Werror -g -Iinclude tests/abi/structs.c -o "$build/abi_structs" -ldl
    run "$build/abi_structs" "$library"
    closing
}

# needed LIBRARY: what it depends on must be the system's.
needed() {
    ! readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(libstdc\+\+\.so\.6|libgcc_s\.so\.1|libm\.so\.6|libc\.so\.6|libpthread\.so\.0|libdl\.so\.2|ld-linux.*)$'
}
# consumers PREFIX: programs built against an installed tree, in the three ways there are.
consumers() {
    local tree=$1 work=$build/consumers pc so example
    rm -rf "$work" && mkdir -p "$work"
    pc=$(dirname "$(find "$tree" -name routecap.pc)")
    so=$(find "$tree" -name libroutecap.so.1)
    local flags
    flags=$(PKG_CONFIG_PATH="$pc" pkg-config --cflags --libs routecap) || return 1
    run eval "cc -std=c11 -Wall -Wextra -Werror examples/worker_loop.c -o '$work/linked' $flags"
    run env LD_LIBRARY_PATH="$(dirname "$so")" "$work/linked"
    for example in own_copy conversation; do
        run eval "cc -std=c11 -Wall -Wextra -Werror examples/$example.c -o '$work/$example' $flags -pthread"
        run env LD_LIBRARY_PATH="$(dirname "$so")" "$work/$example"
    done
    run cmake -S tests/install -B "$work/cmake" -G Ninja -DCMAKE_PREFIX_PATH="$tree" -DEXAMPLES="$root/examples"
    run cmake --build "$work/cmake"
    run "$work/cmake/worker_loop"
    run cc -std=c11 -Wall -Wextra -Werror -I"$tree/include" examples/cpu_callback.c -o "$work/loaded" -ldl
    run "$work/loaded" "$so"
    # The single file alone, as a project has it that copied nothing else.
    run bash -c "sh dev/single.sh include | cmp - '$tree/include/routecap_single.h'"
    mkdir "$work/single" && cp "$tree/include/routecap_single.h" "$work/single/routecap.h"
    run cc -std=c11 -Wall -Wextra -Werror -I"$work/single" examples/cpu_callback.c -o "$work/single/loaded" -ldl
    run "$work/single/loaded" "$so"
}
# The same of a static library: C programs, which have nothing of C++ unless it is named.
static_library() {
    cmake -S . -B build/static -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DBUILD_SHARED_LIBS=OFF \
        -DROUTECAP_CUDA=OFF && cmake --build build/static -j "$jobs" && cmake --install build/static --prefix "$1"
}
static_consumers() {
    local tree=$build/static/prefix pc flags
    rm -rf "$tree" "$build/static/consumer"
    run static_library "$tree"
    pc=$(dirname "$(find "$tree" -name routecap.pc)")
    flags=$(PKG_CONFIG_PATH="$pc" pkg-config --static --cflags --libs routecap)
    run eval "cc -std=c11 -Wall -Wextra -Werror examples/worker_loop.c -o '$build/static/linked' $flags"
    run "$build/static/linked"
    run cmake -S tests/install -B "$build/static/consumer" -G Ninja -DCMAKE_PREFIX_PATH="$tree" -DEXAMPLES="$root/examples"
    run cmake --build "$build/static/consumer"
    run "$build/static/consumer/worker_loop"
}
installed_tree() {
    need readelf=binutils
    run needed "$library"
    run bash -c "grep -q -a -m 1 routecap_snapshot8_8 '$library'"
    run bash -c "! readelf -d '$library' | grep -E 'RPATH|RUNPATH'"
    run bash -c "readelf -d '$library' | grep -q 'SONAME.*libroutecap.so.1'"
    run bash -c "readelf -d '$library' | grep -q NODELETE"
    consumers "$prefix"
    rm -rf "$build/moved tree" && cp -a "$prefix" "$build/moved tree"
    consumers "$build/moved tree"
    closing
}
static_tree() { static_consumers; closing; }

# ctest_in DIRECTORY OPTION...: prints ctest's own count as the closing line. Many of the tests wait
# more than they compute.
ctest_in() {
    ctest --test-dir "$1" "${@:2}" -j $((2 * jobs)) --output-on-failure --no-tests=error > "$1/ctest.log" 2>&1
    local status=$?
    [ $status = 0 ] || cat "$1/ctest.log"
    say "$(grep 'tests passed' "$1/ctest.log" | tail -n 1)"
    return $status
}
# any NAME...: a pattern that matches each.
any() { local IFS='|'; echo "$*"; }
# Against the installed library: what is not the same as under a sanitizer, which are its optimised
# code, its calls in the hot path, and what happens under a lock. `every-test` has all programs, and
# on a device the random traffic of `Promises`, which is here on the host alone.
against_installed() {
    local programs=(scenarios api recording fewer hot_path locks blocked protocol)
    local others=(vectors vectors_have_an_author fake trace trace_is_that_of_a_device failing_device old_driver)
    build_tests "${programs[@]}" vectors{,_author} device fake_cuda fake_test trace trace_cuda no_driver soak &&
        GTEST_FILTER='-Promises.no_row_that_issue_accepted_*' ROUTECAP_TEST_ONE_OF=4 ctest_in build/tests \
            -R "^((cuda|graph)[.])?($(any "${programs[@]}"))([.]|$)|^($(any "${others[@]}"))$"
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
    local -x ROUTECAP_TEST_ONE_OF=4
    local program suites=(api fewer wire store vectors) targets=(serialized operations wire sequence)
    configure_sanitized asan -B build/asan_part -DROUTECAP_SANITIZE=$asan_checks '-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O0 -g1 -DNDEBUG' \
        -DROUTECAP_CUDA=OFF && locked asan cmake --build build/asan_part -j "$jobs" --target routecap &&
        build_tests "${suites[@]}" "${targets[@]/#/fuzz_}" || return 1
    for program in "${suites[@]}"; do run on_asan "build/tests/$program" --gtest_brief=1 --gtest_filter='-Promises.*'; done
    for program in "${targets[@]}"; do
        run on_asan "build/tests/fuzz/fuzz_$program" --generated 100 "tests/fuzz/corpus/$program.inputs"
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
# two tests of `store` are long and have one thread. `every-tsan` has the rest.
tsan() {
    configure_sanitized tsan &&
        locked tsan cmake --build build/tsan -j "$jobs" --target threads limits delayed store fake_cuda &&
        ROUTECAP_TEST_ONE_OF=4 ctest_in build/tsan -R '^store[.]|^(delayed|graph[.]threads)$' \
            -E 'may_be_all_the_memory|65536_keys'
}
every_tsan() { configure_sanitized tsan && locked tsan cmake --build build/tsan -j "$jobs" && ctest_in build/tsan; }

# Routing from logits, against NumPy: by default in fewer shapes, and every method.
routing() { install_python && "$build/python/bin/python" tests/recording/route.py "$library" "$@"; }

# The packages, each against the installed library; on CUDA with the driver that needs no device.
# Each with --more: what takes longer and finds less.
package_of() {
    local name=$1
    shift
    install_fake_driver
    [ "$name" != python ] || { install_torch && export ROUTECAP_TORCH_PYTHON=$torch_python; }
    bash "bindings/$name/test.sh" "$@" "$prefix"
}
loading() { install_fake_driver; install_torch && ROUTECAP_TORCH_PYTHON=$torch_python bash tests/loading/check.sh "$library" "$fake"; }

# Nothing is stale or forgotten; nothing that is generated follows from a sentence of the headers, and
# what is added to them is in every language. Rust and Go are compiled in every_place_more.
every_place() {
    run python3 dev/generate --check --without missing
    run python3 -m unittest discover tests/generate
    closing
}
every_place_more() {
    need cargo=cargo clang=clang
    need_libclang
    run bash dev/bindgen.sh
    run python3 dev/generate --check
    run env ROUTECAP_TEST_MORE=1 python3 -m unittest discover tests/generate
    closing
}

# The model that is shipped is the same in every program that reads it.
newest() { run python3 -m unittest discover tests/newest; closing; }
small_model() { run bash tests/model/check.sh; closing; }

# The same routing in every engine. Those that are slow to build belong to --full.
engines() { bash tests/engines/check.sh --without rust --without ollama --without candle --library "$prefix"; }
every_engine() { bash tests/engines/check.sh --full --library "$prefix"; }

# `routecap conform` on engines that are quick to run; on vLLM and SGLang in their own suites.
judge() {
    run bash tools/tests/conform/check.sh "$prefix"
    run bash integrations/transformers/check.sh --conform "$prefix"
    run bash integrations/llama_cpp/check.sh --conform "$prefix"
    closing
}

# Beside the benchmarks of the packages, which their own tests run.
bench() {
    build_tests all || return 1
    [ -x build/python_package/tested/bin/python ] || package_of python
    run build/tests/bench/bench --quick --json "$build/bench.json"
    run python3 -m json.tool "$build/bench.json" "$build/bench.pretty.json"
    run build/tests/bench/bench_plan --quick
    run build/tests/bench/bench_scale --quick
    install_package
    run env PYTHONPATH="$package" build/python_package/tested/bin/python lab/bench/traffic.py --samples 512
    . integrations/llama_cpp/setup.sh
    install_llama && build_llama_example || return 1
    bench_llama qwen3moe 3 > "$build/bench_llama.jsonl" || return 1
    run python3 -m json.tool --json-lines "$build/bench_llama.jsonl" "$build/bench_llama.pretty.json"
    install_transformers || return 1
    run env PYTHONPATH="$package" "$transformers_python" integrations/transformers/tests/bench.py cpu --json "$build/transformers.json"
    run python3 -m json.tool "$build/transformers.json" "$build/transformers.pretty.json"
    closing
}

more_random() { build_tests fuzz_operations; run build/tests/fuzz/fuzz_operations --generated 200000; closing; }
more_faults() {
    build_tests faults fake_cuda
    run env ROUTECAP_FAULT_STRIDE=0 LD_LIBRARY_PATH=build/tests/fake ROUTECAP_TEST_BACKEND=cuda build/tests/fault/faults
    closing
}
# The log and the counts of the load cost the engine's thread nothing.
unwatched() {
    need valgrind=valgrind
    run cmake -S . -B build/unwatched -G Ninja -DCMAKE_BUILD_TYPE=Release -DROUTECAP_CUDA=OFF
    run cmake --build build/unwatched -j "$jobs" --target routecap
    run python3 lab/bench/off.py build/unwatched/libroutecap.so.1
    closing
}
valgrinded() {
    need valgrind=valgrind
    build_tests scenarios api || return 1
    (loading; installed_tree; abi) > "$build/valgrind.log" 2>&1  # for their programs
    local program
    local valgrind=(valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite,possible)
    for program in scenarios api; do
        run "${valgrind[@]}" "build/tests/$program" --gtest_filter='-*F24*:*F27_memory*:*F34*:Sizes.*:Lifecycle.forked_child'
    done
    run "${valgrind[@]}" build/loading/loading "$library" build/loading/copy/libroutecap.so.1
    run env LD_LIBRARY_PATH="$(dirname "$library")" "${valgrind[@]}" build/consumers/linked
    run "${valgrind[@]}" build/consumers/loaded "$library"
    run "${valgrind[@]}" build/abi_structs "$library"
    closing
}

abi_proof() { need abidiff=abigail-tools && bash tests/abi/prove.sh "$root" c++; }

# Compiled by `tests`, beside another suite: here one core would wait.
soak() { build_tests soak fake_cuda && bash tests/soak/check.sh --seconds $((full ? 10 : 5)); }

# ---- What there is: NAME|default, full or alone|minutes, beside another on two cores|COMMAND. Those
# that are alone are of the default too, after the others: what they do depends on the time that they
# have.
suites='
asan-ubsan|default|2.5|asan
python|default|2.5|package_of python
tsan|default|2.5|tsan
tests|default|2|against_installed
transformers|default|1.4|bash integrations/transformers/check.sh $prefix
quick-starts|default|1.3|bash tests/quick_starts/check.sh $prefix
rust|default|0.6|package_of rust
trainers|default|0.6|bash integrations/replay/check.sh --library $prefix
replay|default|0.5|bash integrations/replay/examples/gap/check.sh $prefix
go|default|0.4|package_of go
engines|default|0.3|engines
llama-cpp|default|0.3|bash integrations/llama_cpp/check.sh $prefix
html|default|0.3|bash tools/tests/html/check.sh
docs|default|0.1|bash tests/docs/check.sh
routing|default|0.1|routing --quick
installed-tree|default|0.1|installed_tree
abi|default|0.1|abi
model|default|0.1|small_model
loading|default|0.1|loading
headers|default|0.1|headers
every-place|default|0.1|every_place
soak|alone|0.2|soak
every-test|full|5|every_test
every-routing|full|1|routing
every-tsan|full|9|every_tsan
every-asan|full|12|every_asan
aarch64|full|6|bash tests/aarch64.sh
fuzz|full|4|bash tests/fuzz/run.sh
bench|full|3|bench
python-more|full|6|package_of python --more
rust-more|full|5|package_of rust --more
go-more|full|5|package_of go --more
every-place-more|full|2|every_place_more
contributing|full|9|bash tests/quick_starts/check.sh $prefix CONTRIBUTING.md
jax|full|1|bash examples/jax/check.sh $prefix
remote|full|3|bash bindings/python/tests/remote/check.sh $prefix
static-tree|full|3|static_tree
llama-cpp-rust|full|4|bash integrations/llama_cpp/check.sh --rust $prefix
ollama|full|4|bash integrations/ollama/check.sh $prefix
candle|full|2|bash integrations/candle/check.sh $prefix
every-engine|full|9|every_engine
more-transformers|full|9|bash integrations/transformers/check.sh --full $prefix
every-transformers|full|60|bash integrations/transformers/releases.sh --library $prefix
newest|full|1|newest
site|full|2|bash tests/docs/check.sh --site
every-trainer|full|9|bash integrations/replay/check.sh --full --library $prefix
grpo|full|2|bash integrations/replay/examples/grpo/check.sh --full $prefix
whole-ways|full|9|bash integrations/replay/tests/whole_ways/check.sh
load|full|0.5|bash tools/tests/load/check.sh $prefix
frontier|full|3|bash lab/frontier/check.sh $prefix
llama-server|full|1|bash integrations/llama_cpp/check.sh --server $prefix
vllm|full|9|bash integrations/vllm/examples/check.sh
deepep|full|1|bash integrations/deepep/check.sh $prefix
conform|full|5|judge
vllm-engine|full|60|bash integrations/vllm/check.sh
vllm-releases|full|60|bash integrations/vllm/release.sh
sglang|full|60|bash integrations/sglang/check.sh
more-random|full|9|more_random
more-faults|full|9|more_faults
abi-proof|full|1|abi_proof
fuzz-proof|full|60|bash tests/fuzz/prove.sh
unwatched|full|5|unwatched
valgrind|full|9|valgrinded
artefacts|full|50|bash packaging/check.sh
coverage|full|9|bash tests/coverage.sh
lint|full|4.5|bash tests/lint.sh
'

# ---- How they run

full=0 only=()
for argument; do
    case $argument in
        --full) full=1 ;;
        --list) awk -F'|' 'NF { printf "%-16s %5s min  %s\n", $1, $3, $2 == "full" ? "--full" : "" }' <<< "$suites"; exit ;;
        -*) say "no option is called $argument"; exit 2 ;;
        *) grep -q "^$argument|" <<< "$suites" || { say "no suite is called $argument: run.sh --list"; exit 2; }
           only+=("$argument") ;;
    esac
done

# chosen WHERE...: the lines of the suites that run there, of those that were asked for, in the order
# in which they were.
chosen() {
    local line where
    while IFS= read -r line; do
        IFS='|' read -r _ where _ <<< "$line"
        [ -n "$line" ] && [[ " $* " == *" $where "* ]] || continue
        [ ${#only[@]} != 0 ] || [ $full = 1 ] || [ "$where" != full ] || continue
        say "$line"
    done < <(
        [ ${#only[@]} != 0 ] || say "$suites"
        for line in "${only[@]}"; do grep "^$line|" <<< "$suites"; done
    )
}

rm -rf "$logs"
mkdir -p "$logs/running" "$logs/taken"
: > "$results"
started=$SECONDS
planned=$(chosen default alone full | awk -F'|' '{ sum += $3 } END { print sum + 0 }')

# What runs now, for how long all has run, and which share of the minutes is done.
progress() {
    local share
    share=$(awk -F'|' -v all="$planned" '{ sum += $3 } END { print all ? int(100 * sum / all) : 100 }' "$logs/done" 2> /dev/null)
    say "$(printf '%3d:%02d %3d %%' $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60)) "${share:-0}")  $(ls "$logs/running" | tr '\n' ' ')"
}

# one LINE: runs a suite in a shell of its own, keeps its output, and notes the line it ends with.
one() {
    local line=$1 name where minutes command status began=$SECONDS word=passed
    IFS='|' read -r name where minutes command <<< "$line"
    : > "$logs/running/$name"
    progress
    ( passed=0 failed=0; eval "$command" ) > "$logs/$name.log" 2>&1 < /dev/null
    status=$?
    [ $status = 0 ] || word=FAILED
    rm "$logs/running/$name"
    say "$line" >> "$logs/done"
    say "$word  $name: $(tail -n 1 "$logs/$name.log") ($((SECONDS - began)) s)" >> "$results"
    [ $status = 0 ] || failure "$name"
}
# The ten lines that matter of a suite that failed, and what runs it again.
failure() {
    local name=$1 pattern='failed|FAILED|[Ee]rror|ERROR|SUMMARY|panicked|difference|could not'
    grep "^FAILED  $name: " "$results"
    { grep -E "$pattern" "$logs/$name.log" || tail -n 10 "$logs/$name.log"; } | head -n 10 | cut -c 1-200 | sed 's/^/    /'
    say "    again: bash tests/run.sh $name     all it printed: build/test-logs/$name.log"
}

# lane WHERE: takes one suite after the other until none is left.
lane() {
    local line
    while IFS= read -r line; do
        ! mkdir "$logs/taken/${line%%|*}" 2> /dev/null || one "$line"
    done < <(chosen "$@")
}

say "setup: compilers and tools"
need cmake=cmake ninja=ninja-build c++=g++ cc=gcc pkg-config=pkg-config python3=python3
install_nvcc
# Kernels for every device take a minute and a half of two cores: where there is none, one is enough
# by default.
if [ $full = 1 ]; then
    export ROUTECAP_ARCHS_OPTION=-UROUTECAP_CUDA_ARCHS
elif [ ! -e /dev/nvidiactl ] && ! grep -q ^ROUTECAP_CUDA_ARCHS: build/release/CMakeCache.txt 2> /dev/null; then
    export ROUTECAP_ARCHS_OPTION=-DROUTECAP_CUDA_ARCHS=90
fi
install_library
export ROUTECAP_INSTALLED=$prefix
install_fake_driver

# Two at a time: what compiles on all cores beside what has one thread, waits, or fetches.
lane default & lane default
wait
lane alone
lane full

say
failures=$(grep -c ^FAILED "$results")
[ "$failures" = 0 ] || while read -r _ name _; do failure "${name%:}"; done < <(grep ^FAILED "$results")
grep ^passed "$results"
[ $full = 1 ] || [ ${#only[@]} != 0 ] || say "left out without --full: $(awk -F'|' '$2 == "full" { printf "%s ", $1 }' <<< "$suites")"
progress
say "$(grep -c ^passed "$results") passed, $failures failed"
[ "$failures" = 0 ] && [ -s "$results" ]
