#!/usr/bin/env bash
# Fuzzes with libFuzzer under AddressSanitizer and UndefinedBehaviorSanitizer, each target for a
# time; prints what was executed as JSON.
#
#   run.sh [--seconds N] [--jobs J] [--json FILE] [--update] [--only TARGET]...
#                                      builds first; N seconds a target (6), J processes each (1)
#   run.sh --build-only DIRECTORY      builds what the next form needs, to be carried to a machine
#                                      without compilers or network
#   run.sh --prebuilt DIRECTORY ...    runs what was built there; the targets run at once
#
# New inputs are merged into DIRECTORY/corpus (build/fuzz/corpus), with --update also into the
# corpora here. What fails is left in DIRECTORY/failures: fuzz_TARGET FILE runs it again, also the
# one that CMake builds.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
targets=(serialized operations wire sequence)
model=(model reader sequence_model check)
seconds=6 workers=1 json= update=0 prebuilt= build_only= only=()
while [ $# -gt 0 ]; do
    case $1 in
        --seconds) seconds=$2; shift ;;
        --jobs) workers=$2; shift ;;
        --json) json=$2; shift ;;
        --only) only+=("$2"); shift ;;
        --prebuilt) prebuilt=$2; shift ;;
        --build-only) build_only=$2; shift ;;
        --update) update=1 ;;
        *) echo "unknown option $1"; exit 2 ;;
    esac
    shift
done
[ ${#only[@]} = 0 ] || targets=("${only[@]}")

build() {
    local to=$1 target source flags=(-gline-tables-only -O1 -std=c++20 -fno-omit-frame-pointer -fno-sanitize-recover=all)
    cd "$here/../.." && . dev/setup.sh
    need clang++-14=clang-14 "/usr/lib/llvm-14/lib/clang/14.0.6/lib/linux/libclang_rt.fuzzer-$(uname -m).a=libclang-rt-14-dev" cmake=cmake \
        ninja=ninja-build python3=python3 /usr/include/gtest/gtest.h=libgtest-dev
    mkdir -p "$to/objects" "$build/fuzz"
    rm -rf "$to/seeds"
    cmake -S . -B "$build/fuzz/library" -G Ninja -DCMAKE_C_COMPILER=clang-14 -DCMAKE_CXX_COMPILER=clang++-14 -DCMAKE_BUILD_TYPE=Fuzz \
        -DCMAKE_CXX_FLAGS_FUZZ='-O1 -gline-tables-only' -DBUILD_SHARED_LIBS=OFF -DROUTECAP_CUDA=OFF \
        -DROUTECAP_SANITIZE=fuzzer-no-link,address,undefined > "$build/fuzz/configure.log" ||
        { cat "$build/fuzz/configure.log"; exit 1; }
    cmake --build "$build/fuzz/library" -j "$(nproc)" > "$build/fuzz/build.log" || { cat "$build/fuzz/build.log"; exit 1; }
    for source in "${model[@]}" ../support/device "${targets[@]}"; do
        echo "clang++-14 ${flags[*]} -fsanitize=fuzzer-no-link,address,undefined -Iinclude -Itests/support -c tests/fuzz/$source.cc" \
            "-o '$to/objects/$(basename "$source").o'"
    done | xargs -d '\n' -P "$(nproc)" -n 1 bash -c
    local objects=("${model[@]/#/$to/objects/}" "$to/objects/device")
    for target in "${targets[@]}"; do
        clang++-14 -fsanitize=fuzzer,address,undefined -static-libstdc++ -static-libgcc "${objects[@]/%/.o}" "$to/objects/$target.o" \
            "$build/fuzz/library/libroutecap.a" -o "$to/fuzz_$target"
    done
    rm -r "$to/objects"
    cp "$here/run.sh" "$here/corpus.py" "$to/"
    cp -r "$here/corpus" "$to/seeds"
}

if [ -n "$build_only" ]; then
    build "$(realpath -m "$build_only")"
    echo "built: bash $build_only/run.sh --prebuilt $build_only"
    exit
fi
directory=${prebuilt:-$here/../../build/fuzz}
directory=$(realpath -m "$directory")
[ -n "$prebuilt" ] || build "$directory"
mkdir -p "$directory/failures" "$directory/logs"
export ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1

# fuzz TARGET: its processes share one corpus.
fuzz() {
    local target=$1 job
    local corpus=$directory/corpus/$target
    python3 "$directory/corpus.py" unpack "$directory/seeds/$target.inputs" "$corpus"
    rm -f "$directory/logs/$target".*
    for job in $(seq "$workers"); do
        ( TIMEFORMAT='%U %S'
          time "$directory/fuzz_$target" -max_total_time="$seconds" -max_len=1024 -len_control=0 -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
              -artifact_prefix="$directory/failures/$target-" "$corpus" > "$directory/logs/$target.$job" 2>&1
        ) 2> "$directory/logs/$target.$job.time" &
    done
    local failed=0
    for job in $(jobs -p); do wait "$job" || failed=1; done
    return $failed
}
# merge TARGET: keeps of the corpus what adds coverage, the smallest first.
merge() {
    local corpus=$directory/corpus/$1
    rm -rf "$corpus.merged" && mkdir -p "$corpus.merged"
    "$directory/fuzz_$1" -merge=1 "$corpus.merged" "$corpus" > "$directory/logs/$1.merge" 2>&1 || return 1
    rm -rf "$corpus" && mv "$corpus.merged" "$corpus"
}
run() { fuzz "$1" && merge "$1"; }

passed=0 failed=0
pids=()
for target in "${targets[@]}"; do
    run "$target" &
    pids+=($!)
    # Where others work too, as many at a time as there are cores for their processes.
    while [ -z "$prebuilt" ] && [ "$(jobs -pr | wc -l)" -ge $(((($(nproc) - 1) / workers) + 1)) ]; do wait -n || true; done
done
for i in "${!targets[@]}"; do
    if wait "${pids[$i]}"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "failed: ${targets[$i]}"
        grep -hE 'SUMMARY|difference:|ERROR|Test unit written' "$directory/logs/${targets[$i]}".* || tail -n 20 "$directory/logs/${targets[$i]}".*
    fi
done

report() {
    python3 - "$directory" "$seconds" "$workers" "${targets[@]}" << 'END'
import json, re, sys
from pathlib import Path
directory, seconds, jobs, *targets = sys.argv[1:]
report = {}
for target in targets:
    logs = [path for path in Path(directory, "logs").glob(target + ".*") if path.suffix[1:].isdigit()]
    texts = [path.read_text(errors="replace") for path in logs]
    executions = sum(int(n) for text in texts for n in re.findall(r"stat::number_of_executed_units:\s*(\d+)", text))
    times = [float(n) for path in logs for n in Path(str(path) + ".time").read_text().split()[-2:]]
    covered = [int(n) for text in texts for n in re.findall(r"cov: (\d+)", text)]
    corpus = Path(directory, "corpus", target)
    report[target] = {"executions": executions, "cpu_seconds": round(sum(times), 1), "edges": max(covered, default=0),
                      "corpus": len(list(corpus.iterdir())) if corpus.exists() else 0}
totals = {name: round(sum(target[name] for target in report.values()), 1) for name in ("executions", "cpu_seconds")}
hours = round(totals["cpu_seconds"] / 3600, 2)
print(json.dumps({"seconds": int(seconds), "jobs": int(jobs), "targets": report, **totals, "cpu_hours": hours}, indent=1))
END
}
report
[ -z "$json" ] || report > "$json"
if [ $update = 1 ]; then
    for target in "${targets[@]}"; do python3 "$directory/corpus.py" pack "$directory/corpus/$target" "$here/corpus/$target.inputs"; done
fi
echo "$passed checks passed, $failed failed"
[ $failed = 0 ]
