#!/usr/bin/env bash
# The soak in five ways at once, for a time (20 s): on the host backend, and on CUDA with the driver
# that needs no device, eager and in graphs. host_store and cuda_store are of sequences that share a
# store.
#
#     check.sh [--seconds N] [--seed S]
#
# 17 million steps with stores on 16 cores, some 5,000 a second and process:
#
#     seq 14 | xargs -P 14 -I{} ./soak --store 1 --steps 1220000 --seconds 560 --seed {} \
#         --json soak_store_{}.json
#
# On a machine with a device, where these two files and libroutecap.so.1 are:
#
#     for graph in 0 1; do
#         LD_LIBRARY_PATH=. ROUTECAP_TEST_BACKEND=cuda ROUTECAP_TEST_GRAPH=$graph \
#             ./soak --seconds 300 --json soak_$graph.json
#     done
cd "$(dirname "$0")/../.." && . dev/setup.sh
set +e
seconds=20 seed=1
while [ $# -gt 0 ]; do
    case $1 in
        --seconds) seconds=$2 ;;
        --seed) seed=$2 ;;
        *) say "unknown option $1"; exit 2 ;;
    esac
    shift 2
done
build_tests soak fake_cuda > "$build/soak.log" 2>&1 || { cat "$build/soak.log"; exit 1; }
# soak NAME SETTING...: its line of JSON, and what it says of a fault, under build/soak.
soak() {
    local store=0
    case $1 in *_store) store=1 ;; esac
    env "${@:2}" "$build/tests/soak/soak" --seconds "$seconds" --store $store --seed "$seed" > "$build/soak/$1" 2> "$build/soak/$1.log"
}
cuda=(LD_LIBRARY_PATH="$build/tests/fake" ROUTECAP_TEST_BACKEND=cuda FAKE_CUDA_ABORT=1)
names=(host host_store cuda cuda_store graph)
mkdir -p "$build/soak"
for name in host host_store; do soak $name ROUTECAP_TEST_BACKEND=host & pids+=($!); done
for name in cuda cuda_store; do soak $name "${cuda[@]}" & pids+=($!); done
soak graph "${cuda[@]}" ROUTECAP_TEST_GRAPH=1 FAKE_CUDA_EXECUTION=2 FAKE_CUDA_ORDER=1 & pids+=($!)
for i in "${!names[@]}"; do
    if wait "${pids[$i]}"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        say "failed: ${names[$i]}"
        tail -n 60 "$build/soak/${names[$i]}.log"
    fi
    cat "$build/soak/${names[$i]}"
done
closing
