#!/usr/bin/env bash
# Runs every suite, after setting up all they need. --full adds the slow ones. Ends with one line
# per suite and exit status 0 if all passed. With names it runs these suites alone: run.sh headers
# abi. Some need what the suite `tests` has built.
cd "$(dirname "$0")/.." && . examples/setup.sh
set +e

export PYTHONDONTWRITEBYTECODE=1
full=0 only=()
for argument; do
    full=1
    [ "$argument" = --full ] || only+=("$argument")
done
logs=$build/test-logs
mkdir -p "$logs"
results=$logs/results
: > "$results"

# suite NAME FUNCTION: runs it, keeps its output, and notes the line it ends with. Two may run at
# once.
suite() {
    local name=$1 started=$SECONDS status
    shift
    [ ${#only[@]} = 0 ] || [[ " ${only[*]} " == *" $name "* ]] || return 0
    passed=0 failed=0
    say "-- $name"
    "$@" > "$logs/$name.log" 2>&1
    status=$?
    local word=passed
    [ $status = 0 ] || { word=FAILED; tail -n 60 "$logs/$name.log"; }
    say "$word  $name: $(tail -n 1 "$logs/$name.log") ($((SECONDS - started)) s)" | tee -a "$results"
}

# either NAME COMMAND...: a suite for the first of two that asks for it.
rm -rf "$logs/taken" && mkdir "$logs/taken"
either() { ! mkdir "$logs/taken/$1" 2> /dev/null || suite "$@"; }

# slow NAME COMMAND...: a suite that --full adds.
left_out=()
slow() { if [ $full = 1 ]; then suite "$@"; else left_out+=("$1"); fi; }

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
    sh include/single.sh "$build/routecap_single.h"
    for source in "$build/routecap_single.h" include/routecap.h include/routecap/*.h; do
        for standard in c99 c11 c17; do run cc -x c -std=$standard "${warnings[@]}" "$source"; done
        for standard in c++11 c++17 c++20; do run c++ -x c++ -std=$standard "${warnings[@]}" "$source"; done
    done
    for source in kernels/*.h; do
        echo "#include \"$source\"" > "$build/kernel.cc"
        run c++ -std=c++20 -Wall -Wextra -Werror -Iinclude -I. -fsyntax-only "$build/kernel.cc"
    done
    run python3 tests/headers.py include
    run bash tests/rooms.sh
    rm -rf "$build/headers" && cp -r include "$build/headers"
    sed -i '/@param\[in\] options /d' "$build/headers/routecap/capture.h"
    run bash -c "! python3 tests/headers.py '$build/headers' > '$build/headers.log' && grep -q routecap_step_issue '$build/headers.log'"
    for source in examples/*.c tests/abi/*.c tests/loading/*.c; do run cc -std=c11 -Wall -Wextra -pedantic -Werror -Iinclude -fsyntax-only "$source"; done
    closing
}

# With the library of the loop for contributors, which has debug information.
abi() {
    cmake --preset dev && cmake --build --preset dev -j "$jobs" --target routecap || return 1
    run bash tests/abi/check.sh build/dev/libroutecap.so include cc
    run cc -std=c11 -Wall -Wextra -pedantic -Werror -g -Itests/abi/frozen tests/abi/consumer.c -o "$build/abi_consumer" -ldl
    run "$build/abi_consumer" build/dev/libroutecap.so
    closing
}

# needed LIBRARY: what it depends on must be the system's.
needed() {
    ! readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(libstdc\+\+\.so\.6|libgcc_s\.so\.1|libm\.so\.6|libc\.so\.6|libpthread\.so\.0|libdl\.so\.2|ld-linux.*)$'
}
# consumers PREFIX: programs built against an installed tree, in the three ways there are.
consumers() {
    local tree=$1 work=$build/consumers pc so
    rm -rf "$work" && mkdir -p "$work"
    pc=$(dirname "$(find "$tree" -name routecap.pc)")
    so=$(find "$tree" -name libroutecap.so.1)
    local flags
    flags=$(PKG_CONFIG_PATH="$pc" pkg-config --cflags --libs routecap) || return 1
    run eval "cc -std=c11 -Wall -Wextra -Werror examples/worker_loop.c -o '$work/linked' $flags"
    run env LD_LIBRARY_PATH="$(dirname "$so")" "$work/linked"
    run cmake -S tests/install -B "$work/cmake" -DCMAKE_PREFIX_PATH="$tree" -DEXAMPLES="$root/examples"
    run cmake --build "$work/cmake"
    run "$work/cmake/worker_loop"
    run cc -std=c11 -Wall -Wextra -Werror -I"$tree/include" examples/cpu_callback.c -o "$work/loaded" -ldl
    run "$work/loaded" "$so"
    # The single file alone, as a project has it that copied nothing else.
    run bash -c "sh include/single.sh | cmp - '$tree/include/routecap_single.h'"
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
    run cmake -S tests/install -B "$build/static/consumer" -DCMAKE_PREFIX_PATH="$tree" -DEXAMPLES="$root/examples"
    run cmake --build "$build/static/consumer"
    run "$build/static/consumer/worker_loop"
}
installed_tree() {
    run needed "$library"
    run bash -c "grep -q -a -m 1 routecap_snapshot8_8 '$library'"
    run bash -c "! readelf -d '$library' | grep -E 'RPATH|RUNPATH'"
    run bash -c "readelf -d '$library' | grep -q 'SONAME.*libroutecap.so.1'"
    run bash -c "readelf -d '$library' | grep -q NODELETE"
    consumers "$prefix"
    rm -rf "$build/moved tree" && cp -a "$prefix" "$build/moved tree"
    consumers "$build/moved tree"
    static_consumers
    closing
}

# ctest_in DIRECTORY: prints ctest's own count as the closing line. Many of the tests wait more than
# they compute.
ctest_in() {
    ctest --test-dir "$1" -j $((2 * jobs)) --output-on-failure --no-tests=error > "$1/ctest.log" 2>&1
    local status=$?
    [ $status = 0 ] || cat "$1/ctest.log"
    say "$(grep 'tests passed' "$1/ctest.log" | tail -n 1)"
    return $status
}
against_installed() {
    local cuda
    mapfile -t cuda < <(sed -n -E 's/^(ROUTECAP_(NVCC|CUDA_INCLUDE):.*)/-D\1/p' build/release/CMakeCache.txt)
    cmake -S tests -B build/tests -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS=-Werror -DCMAKE_PREFIX_PATH="$prefix" "${cuda[@]}" &&
        cmake --build build/tests -j "$jobs" && ctest_in build/tests
}
sanitized() { cmake --preset "$1" && cmake --build --preset "$1" -j "$jobs" && ctest_in "build/$1"; }

# Routing from logits, against NumPy.
routing() { install_python && "$build/python/bin/python" tests/recording/route.py "$library"; }

# The packages, each against the installed library; on CUDA with the driver that needs no device,
# which the suite "tests" has built.
export ROUTECAP_FAKE_CUDA=$build/tests/fake
python_package() { install_torch && ROUTECAP_TORCH_PYTHON=$torch_python bash bindings/python/test.sh "$prefix"; }
loading() { install_torch && ROUTECAP_TORCH_PYTHON=$torch_python bash tests/loading/check.sh "$library" "$build/tests/fake"; }
rust_package() { bash bindings/rust/test.sh "$prefix"; }
go_package() { bash bindings/go/test.sh "$prefix"; }
quick_starts() { bash tests/quick_starts/check.sh "$prefix"; }

# A place that is forgotten is found: here all are, for a function that is added to a header alone.
every_place() {
    run bash tests/places.sh include/routecap/*.h
    sed 's/^ROUTECAP_API int32_t routecap_step_discard(/ROUTECAP_API int32_t routecap_step_added(routecap_capturer *capturer);\n&/' include/routecap/capture.h > "$build/added.h"
    run bash -c "bash tests/places.sh '$build/added.h' include/routecap/table.h | tee '$build/added.log' | grep -q ' 10 forgotten'"
    closing
}

# The model that is shipped is the same in every program that reads it.
small_model() { run bash examples/model/check.sh; closing; }

# The same routing in every engine. The three that are slow to build belong to --full.
other_engines() {
    local example
    for example in llama_cpp_rust ollama_go candle; do run bash "examples/$example/check.sh" "$prefix"; done
    closing
}
engines() { bash tests/engines/check.sh --without rust --without ollama --without candle --library "$prefix"; }
every_engine() { bash tests/engines/check.sh --full --library "$prefix"; }

bench() {
    run build/tests/bench/bench --quick --json "$build/bench.json"
    run python3 -m json.tool "$build/bench.json" "$build/bench.pretty.json"
    run env LD_LIBRARY_PATH="$ROUTECAP_FAKE_CUDA" build/tests/bench/bench_driver --quick --json "$build/bench_driver.json"
    run python3 -m json.tool "$build/bench_driver.json" "$build/bench_driver.pretty.json"
    run build/tests/bench/bench_plan --quick
    run build/tests/bench/bench_scale --quick
    run env PYTHONPATH=build/python_package/unpacked build/python_package/tested/bin/python tests/bench/traffic.py --samples 512
    install_llama && build_llama_example || return 1
    bench_llama qwen3moe 3 > "$build/bench_llama.jsonl" || return 1
    run python3 -m json.tool --json-lines "$build/bench_llama.jsonl" "$build/bench_llama.pretty.json"
    run env LD_LIBRARY_PATH="$(dirname "$library")" python3 tests/bench/bindings.py --runs 1 --json "$build/bindings.json" \
        c=build/tests/bench/bench_c rust=build/rust/bench_rust go=build/go/bench_go "python=build/python_package/tested/bin/python bindings/python/bench_python.py"
    run env PYTHONPATH=build/python_package/unpacked build/torch/bin/python tests/bench/vllm.py cpu --json "$build/vllm.json"
    install_package && install_transformers || return 1
    run env PYTHONPATH="$package" "$transformers_python" tests/bench/transformers.py cpu --json "$build/transformers.json"
    run python3 -m json.tool "$build/transformers.json" "$build/transformers.pretty.json"
    closing
}

more_random() { run build/tests/fuzz/fuzz_operations --generated 200000; closing; }
more_faults() {
    run env ROUTECAP_FAULT_STRIDE=0 LD_LIBRARY_PATH=build/tests/fake ROUTECAP_TEST_BACKEND=cuda build/tests/fault/faults
    closing
}
# What there is to see inside costs nothing while nobody looks.
unwatched() {
    need valgrind=valgrind
    local tracing
    for tracing in OFF ON; do
        run cmake -S . -B "build/tracing_$tracing" -G Ninja -DCMAKE_BUILD_TYPE=Release -DROUTECAP_CUDA=OFF -DROUTECAP_TRACING=$tracing
        run cmake --build "build/tracing_$tracing" -j "$jobs" --target routecap
    done
    run python3 tests/bench/off.py build/tracing_OFF/libroutecap.so.1 build/tracing_ON/libroutecap.so.1
    closing
}
valgrinded() {
    need valgrind=valgrind
    local program
    local valgrind=(valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite,possible)
    for program in scenarios api; do
        run "${valgrind[@]}" "build/tests/$program" --gtest_filter='-*F24*:*F27_memory*:*F34*:Sizes.*:Lifecycle.forked_child:Steps.tickets*'
    done
    run "${valgrind[@]}" build/loading/loading "$library" build/loading/copy/libroutecap.so.1
    run env LD_LIBRARY_PATH="$(dirname "$library")" "${valgrind[@]}" build/consumers/linked
    run "${valgrind[@]}" build/consumers/loaded "$library"
    run "${valgrind[@]}" build/abi_consumer "$library"
    closing
}

# ----

say "setup: compilers and tools"
need cmake=cmake ninja=ninja-build c++=g++ cc=gcc pkg-config=pkg-config python3=python3 abidiff=abigail-tools readelf=binutils \
    /usr/include/gtest/gtest.h=libgtest-dev /usr/include/nlohmann/json.hpp=nlohmann-json3-dev \
    "/usr/include/$(uname -m)-linux-gnu/sys/sdt.h=systemtap-sdt-dev"
install_nvcc
install_library
# All else is built whole and once. The library that is installed has shown that no include is
# missing.
[ -n "${CMAKE_CXX_COMPILER_LAUNCHER:-}" ] || export ROUTECAP_PRECOMPILED=ON

suite headers headers
suite installed-tree installed_tree
suite tests against_installed
# What compiles on all cores runs beside what mostly has one thread, waits, or fetches, and shares
# what it has fetched. Both take of the rest, so that they end together.
rest() {
    either go go_package
    either aarch64 bash tests/aarch64.sh
    either docs bash tests/docs/check.sh
}
{
    suite tsan sanitized tsan
    suite asan-ubsan sanitized asan
    rest
} &
beside=$!
suite routing routing
suite python python_package
suite loading loading
suite rust rust_package
suite abi abi
suite quick-starts quick_starts
suite every-place every_place
suite llama-cpp bash examples/llama_cpp/check.sh
suite model small_model
suite transformers bash examples/transformers/check.sh "$prefix"
suite replay bash examples/replay/check.sh "$prefix"
suite trainers bash bindings/python/tests/replay/check.sh --library "$prefix"
suite grpo bash examples/grpo/check.sh "$prefix"
suite ray bash examples/ray/check.sh "$prefix"
suite load bash examples/load/check.sh "$prefix"
suite html bash examples/html/check.sh
suite engines engines
rest
wait "$beside" || say "FAILED  beside: not every suite was run" | tee -a "$results"
# What has its time, or measures it, has the machine to itself.
suite fuzz bash tests/fuzz/run.sh
suite soak bash tests/soak/check.sh
suite bench bench
slow other-engines other_engines
slow every-engine every_engine
slow every-trainer bash bindings/python/tests/replay/check.sh --full --library "$prefix"
slow grpo-by-ray bash examples/grpo/check.sh --full "$prefix"
slow vllm bash examples/vllm/check.sh
slow vllm-engine bash tests/vllm_engine/check.sh
slow sglang bash tests/sglang_engine/check.sh
slow more-random more_random
slow more-faults more_faults
slow abi-proof bash tests/abi/prove.sh "$root" c++
slow fuzz-proof bash tests/fuzz/prove.sh
slow unwatched unwatched
slow valgrind valgrinded
slow artefacts bash packaging/check.sh
slow coverage bash tests/coverage.sh
slow lint bash tests/lint.sh

say
cat "$results"
[ $full = 1 ] || say "left out without --full: ${left_out[*]}"
[ -s "$results" ] || { say "no suite is called ${only[*]}"; exit 2; }
! grep -q ^FAILED "$results"
