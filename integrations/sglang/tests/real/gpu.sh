#!/usr/bin/env bash
# gpu.sh FOLDER [engines|rows|retract|drafts|host|ranks]...: on a GPU machine that has PyTorch
# 2.11 for CUDA 13, transformers and nvcc, and no network. FOLDER has site.tar.xz, which site.sh
# made, and routecap/, an unpacked wheel that was built with nvcc. engines measures SGLang's own step
# (9 minutes). The others check every row in CUDA graphs: rows of requests, retract those of
# retracted ones, drafts those of speculative decoding, host those of KV that comes back from the
# host; ranks, on two GPUs, those of tensor parallel, of data-parallel attention, and of that with
# experts divided. Whichever of these are named run at once, behind the measurement (2 to 4 minutes
# in all). Without a name it does engines, rows and retract. $OUT/ gets figures, and checks.log the
# whole output of the checks.
# Fails if a part does.
set -uo pipefail
folder=$(realpath "$1") out=$(realpath "${OUT:-.}") failed=0
shift
[ $# -gt 0 ] || set -- engines rows retract
cd "$(dirname "$0")/../../../.."
site=/tmp/sglang_site
[ -e "$site/ready" ] || { mkdir -p "$site" && xz -T0 -dc "$folder/site.tar.xz" | tar -C "$site" -x && touch "$site/ready"; } || exit 1
export PYTHONPATH=$folder/routecap:$PWD/tests/engines:$PWD/integrations/sglang/tests/real/plugin:$site PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1

engines() {
    python3 integrations/sglang/tests/real/bench.py --engines "${ENGINES:-2}" --kinds "${KINDS:-off,own,routecap}" --rounds 3 \
        --budget "${BUDGET:-540}" --logs "$out/logs" --json "$out/sglang_engine_h200.json" --settings '{
            "attention_backend": "triton", "sampling_backend": "pytorch", "grammar_backend": "none",
            "mem_fraction_static": 0.8, "max_running_requests": 256,
            "cuda_graph_bs_decode": [1, 64, 256], "cuda_graph_bs_prefill": [128, 8192]}'
}

# One run of check.py, said when it ends. Its engine takes a few GiB.
every_row() {
    local log status
    log=$(mktemp)
    # shellcheck disable=SC2086
    OMP_NUM_THREADS=2 timeout "${SECONDS_EACH:-330}" python3 integrations/sglang/tests/real/check.py --gpu $1 "/tmp/sglang_run/${1//[- ]/}" > "$log" 2>&1
    status=$?
    {
        echo "check.py --gpu $1: status $status after $SECONDS s"
        grep -vE "^\[20|it/s\]|Completed \||^Triton|Warning|warnings.warn" "$log" | tail -n "$((status ? 60 : 24))"
        [ $status = 0 ] || grep -E "^\[20.*(rror|routed experts)" "$log" | tail -n 20
    } | cut -c1-400
    { echo "==== check.py --gpu $1" && cat "$log"; } >> "$out/checks.log"
    return $status
}

# Without --beside, rows are compared with a teacher's alone, which computes in float32.
checks=()
for part; do
    case $part in
        engines) engines || failed=1 ;;
        rows) checks+=("--beside --seed 3") ;;
        retract) checks+=("--beside --retract --seed 4" "--retract --seed 1") ;;
        drafts) checks+=("--drafts chain --seed 5" "--drafts ngram --seed 6" "--drafts tree --retract --seed 7") ;;
        host) checks+=("--host-cache --seed 8") ;;
        ranks) checks+=("--ranks tensor --beside --seed 3" "--ranks data --beside --seed 4" "--ranks data --seed 5" "--ranks expert --beside --seed 6" "--ranks expert --seed 7") ;;
        *) echo "gpu.sh: there is no part $part" && failed=1 ;;
    esac
done
running=()
for each in "${checks[@]}"; do
    every_row "$each" &
    running+=($!)
done
for each in "${running[@]}"; do wait "$each" || failed=1; done
exit $failed
