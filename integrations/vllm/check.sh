#!/usr/bin/env bash
# Runs vLLM's engine and server without a GPU, out of its wheels for CUDA, in a release of each of
# the three ways in which it captures; the newest with its own model runner (V2), whose kernels
# Triton's interpreter runs. Needs Python 3.12, fetches 1 GB the first time, and takes some minutes.
# On a GPU machine that has vLLM and routecap, `python3 check.py` is the same on the device. Every
# other release: release.sh.
#
#   check.sh [VERSION...]     0.21, 0.26 and the newest (of releases.txt) unless named
cd "$(dirname "$0")/../.." && . dev/setup.sh && . integrations/vllm/tests/real/environment.sh
set +e

newest=$(newest_of vllm)
newest=${newest%.*}
versions=("$@")
[ $# -gt 0 ] || versions=(0.21 0.26 "$newest")

# blocks VERSION OPTIONS...: slots.py, once with each.
blocks() {
    local version=$1 options
    shift
    for options; do
        check "$version: rows of the blocks that are hit, slots.py $options" "$python" integrations/vllm/tests/real/slots.py $options
    done
}

# every_row VERSION OPTIONS...: check.py, once with each, and what a user does.
every_row() {
    local version=$1 options
    shift
    environment "$version.0"
    for options; do
        check "$version: every row, check.py $options" "$python" integrations/vllm/tests/real/check.py $options
    done
    for options in "" --drafts; do
        check "$version: what Prometheus scrapes, metrics.py $options" "$python" integrations/vllm/tests/real/metrics.py $options
    done
    check "$version: the same tokens without capture, tokens.py" "$python" integrations/vllm/tests/real/tokens.py "$build/vllm_engine_tokens_$version"
    check "$version: what a step calls, steps.py" "$python" integrations/vllm/tests/real/steps.py
    check "$version: the plugin, points.py" "$python" integrations/vllm/tests/real/points.py "$build/vllm_engine_points_$version"
    check "$version: a saved load for its balancer, load.py" "$python" integrations/vllm/tests/real/load.py
}
# judged VERSION OPTIONS...: conform's clean runs and planted faults, once with each.
judged() {
    local version=$1 options
    shift
    for options; do
        check "$version: conform, prove.py $options" env PYTHONPATH="$PYTHONPATH:integrations/vllm/tests/real:integrations/transformers/tests/real" "$python" tools/tests/conform/prove.py --json "$build/conform_reports" vllm_engine $options
    done
}
check_0.21() {
    every_row 0.21 "" --sync "--preempt --prefix" "--sync --prefix --seed 2" "--drafts --prefix" \
        "--lora --prefix" "--weights --preempt --prefix" "--sleep --prefix" "--preempt --prefix --store 13000" \
        "--copies --preempt --prefix" "--copies --drafts --prefix --seed 7" "--router-weights --preempt --prefix"
    blocks 0.21 "--router-weights" "--sync --updates tag --blocks 40 --seed 1" "--block 32 --seed 4" "--block 64 --seed 2"
    judged 0.21 capture=routecap "capture=own cache=" "--runs 2 drafts=1 blocks= cache=" "--runs 2 lora=1" "--runs 2 copies=1"
    check "0.21: two data-parallel ranks, parallel.py" "$python" integrations/vllm/tests/real/parallel.py data --requests 120 --prefix
    for options in --prefix --sync; do
        check "0.21: two stages of a pipeline, parallel.py $options" "$python" integrations/vllm/tests/real/parallel.py pipeline --requests 48 $options
    done
    check "0.21: the HTTP server, server.py" "$python" integrations/vllm/tests/real/server.py "$build/vllm_engine_server"
    check "0.21: the static table of lab/frontier, frontier_table.py" "$python" integrations/vllm/tests/real/frontier_table.py \
        "$build/vllm_engine_frontier"
}
check_0.26() {
    every_row 0.26 --sync --preempt "--prefix --seed 5" "--preempt --prefix" "--sync --prefix --seed 2" \
        "--drafts --prefix" "--weights --preempt --prefix" "--copies --preempt --prefix" "--router-weights --preempt --prefix"
    blocks 0.26 "--router-weights" "--sync --updates tag --blocks 40 --seed 1" "--block 32 --seed 4" "--block 64 --seed 2"
    judged 0.26 capture=routecap capture=own "--beside transformers_engine capture=routecap load=1"
    check "0.26: as if it were a version that nobody checked, next_version.py" "$python" integrations/vllm/tests/real/next_version.py \
        "$build/vllm_engine_next"
    check "0.26: the HTTP server, server.py" "$python" integrations/vllm/tests/real/server.py "$build/vllm_engine_server_0.26"
}
check_newest() {
    local options
    environment "$newest.0"
    for options in "" --sync --preempt "--drafts --seed 1" "--weights --preempt --seed 2" "--router-weights --preempt"; do
        check "$newest: every row, check_aux.py $options" "$python" integrations/vllm/tests/real/check_aux.py $options
    done
    check "$newest: the HTTP server, server.py" "$python" integrations/vllm/tests/real/server.py "$build/vllm_engine_server_$newest"
    check "$newest: beside its own connector, aux_output.py" "$python" integrations/vllm/tests/real/aux_output.py
    for options in "" --router-weights; do
        check "$newest: what a program gets in a format, front_aux.py $options" "$python" integrations/vllm/tests/real/front_aux.py "$build/vllm_engine_objects_$newest" $options
    done
    for options in "" "--sync --blocks 24 --seed 1" "--block 64 --seed 2" "--block 4 --flush 0.8 --seed 3"; do
        check "$newest: rows of the blocks that are hit, slots_aux.py $options" "$python" integrations/vllm/tests/real/slots_aux.py $options
    done
    check "$newest: two tensor-parallel ranks, parallel.py" "$python" integrations/vllm/tests/real/parallel.py tensor --prefix --requests 24
    check "$newest: a saved load for its balancer, load.py" "$python" integrations/vllm/tests/real/load.py
}

install_library
install_package

export PYTHONPATH=$package
for version in "${versions[@]}"; do "check_${version/#$newest/newest}"; done
closing
