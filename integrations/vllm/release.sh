#!/usr/bin/env bash
# Judges any release of vLLM, without a GPU, with each model runner that it captures with: conform,
# and random schedules whose rows are judged by the numbers of blocks (slots.py). Needs Python 3.12.
# Fetches 1 GB the first time, and 15 MB for each release; a release takes minutes.
#
#   release.sh [VERSION...]     those of releases.txt unless named; 0.24 is 0.24.0
#
# The reports are in build/vllm_engine/reports: lab/matrix.py add FILE... enters them in the matrix.
cd "$(dirname "$0")/../.." && . dev/setup.sh && . integrations/vllm/tests/real/environment.sh
set +e

versions=("$@") reports=$build/vllm_engine/reports
[ $# -gt 0 ] || mapfile -t versions < integrations/vllm/releases.txt
mkdir -p "$reports"
install_library
install_package
export PYTHONPATH=$package ROUTECAP_VLLM_UNCHECKED=1  # of releases that routecap knows it changes nothing

# ended PROCESS LOG: a process that was started here, and what it said.
ended() {
    local status=0
    wait "$1" || status=$?
    cat "$2"
    return $status
}

for version in "${versions[@]}"; do
    [[ $version == *.*.* ]] || version=$version.0
    environment "$version"
    declare -A started=()
    for runner in $("$python" integrations/vllm/tests/real/releases.py); do  # side by side
        rm -f "$reports/vllm-$version-$runner.json"
        VLLM_USE_V2_MODEL_RUNNER=$((${runner#V} - 1)) "$python" integrations/vllm/tests/real/slots.py --json "$reports" \
            > "$reports/$version-$runner.log" 2>&1 &
        started[$runner]=$!
    done
    [ ${#started[@]} -gt 0 ] || check "$version: model runners" false
    for runner in "${!started[@]}"; do
        check "$version, model runner $runner: $(basename "$reports")/$version-$runner.log" ended "${started[$runner]}" "$reports/$version-$runner.log"
    done
done
closing
