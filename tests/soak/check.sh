#!/usr/bin/env bash
# The soak in three ways, each for a time (30 s): on the host backend, and on CUDA with the driver that needs no device, eager and in graphs.
# Where passes are not in graphs, half of the time is for sequences that share a store.
#
#     check.sh [--seconds N] [--seed S]         after tests/CMakeLists.txt was built in build/tests
#
# 17 million steps with stores on 16 cores, where each process has three threads:
#     seq 6 | xargs -P 6 -I{} ./soak --store 1 --steps 2900000 --seconds 36000 --seed {} --json soak_store_{}.json
#
# On a machine with a device, where these two files and libroutecap.so.1 are:
#     for graph in 0 1; do LD_LIBRARY_PATH=. ROUTECAP_TEST_BACKEND=cuda ROUTECAP_TEST_GRAPH=$graph ./soak --seconds 300 --json soak_$graph.json; done
cd "$(dirname "$0")/../.." && . examples/setup.sh
set +e
seconds=30 seed=1
while [ $# -gt 0 ]; do
    case $1 in
        --seconds) seconds=$2 ;;
        --seed) seed=$2 ;;
        *) say "unknown option $1"; exit 2 ;;
    esac
    shift 2
done
run() {  # run SECONDS STORE VARIABLE=VALUE...
    local seconds=$1 store=$2
    shift 2
    if env "$@" "$build/tests/soak/soak" --seconds "$seconds" --store "$store" --seed "$seed" 2> "$build/soak.log"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        say "failed: $* --store $store"
        tail -n 60 "$build/soak.log"
    fi
}
cuda=(LD_LIBRARY_PATH="$build/tests/fake" ROUTECAP_TEST_BACKEND=cuda FAKE_CUDA_ABORT=1)
for store in 0 1; do
    run $((seconds / 2)) $store ROUTECAP_TEST_BACKEND=host
    run $((seconds / 2)) $store "${cuda[@]}"
done
run "$seconds" 0 "${cuda[@]}" ROUTECAP_TEST_GRAPH=1 FAKE_CUDA_EXECUTION=2 FAKE_CUDA_ORDER=1
closing
