#!/usr/bin/env bash
# gpu.sh FOLDER [adapter|rows|drafts|host|engines]...: on a GPU machine that has PyTorch 2.11 for
# CUDA 13, transformers and nvcc, and no network. FOLDER has site.tar.xz, which site.sh made, and
# routecap/, an unpacked wheel that was built with nvcc. adapter measures the adapter alone
# (1 minute). rows, drafts and host check every row in CUDA graphs: of requests (3 minutes), with
# speculative decoding (5), with KV that comes back from the host (2). engines measures SGLang's own
# step (9 minutes). Without a name it does adapter, rows and engines. $OUT/ gets the figures.
set -uo pipefail
folder=$(realpath "$1") out=${OUT:-.}
shift
[ $# -gt 0 ] || set -- adapter rows engines
cd "$(dirname "$0")/../.."
site=/tmp/sglang_site
[ -e "$site/ready" ] || { mkdir -p "$site" && xz -T0 -dc "$folder/site.tar.xz" | tar -C "$site" -x && touch "$site/ready"; }
export PYTHONPATH=$folder/routecap:$PWD/tests/sglang_engine/plugin:$site PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1

adapter() { python3 tests/bench/sglang.py cuda --json "$out/sglang_h200.json"; }

# Without --beside, rows are compared with a teacher's alone, which computes in float32.
every_row() {
    local options
    for options; do
        # shellcheck disable=SC2086
        timeout 150 python3 tests/sglang_engine/check.py --gpu $options /tmp/sglang_run > "$out/check.log" 2>&1
        echo "check.py --gpu $options"
        grep -vE "^\[20|it/s\]|^Triton" "$out/check.log" | tail -n 24
    done
}
rows() { every_row "--beside --seed 3" "--beside --retract --seed 4" "--retract --seed 5"; }
drafts() { every_row "--drafts chain --seed 5" "--drafts ngram --seed 6" "--drafts tree --seed 7"; }
host() { every_row "--host-cache --seed 8"; }

engines() {
    python3 tests/bench/sglang_engine.py --engines "${ENGINES:-2}" --kinds "${KINDS:-off,own,routecap}" --rounds 3 \
        --budget "${BUDGET:-540}" --logs "$out/logs" --json "$out/sglang_engine_h200.json" --settings '{
            "attention_backend": "triton", "sampling_backend": "pytorch", "grammar_backend": "none",
            "mem_fraction_static": 0.8, "max_running_requests": 256,
            "cuda_graph_bs_decode": [1, 64, 256], "cuda_graph_bs_prefill": [128, 8192]}'
}

for part; do "$part"; done
