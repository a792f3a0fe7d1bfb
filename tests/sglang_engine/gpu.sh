#!/usr/bin/env bash
# gpu.sh FOLDER: on a GPU machine that has PyTorch 2.11 for CUDA 13, transformers and nvcc, and no
# network. FOLDER has site.tar.xz, which site.sh made, and routecap/, an unpacked wheel that was built
# with nvcc. Checks every row in CUDA graphs (3 minutes), then measures; $OUT/ gets the figures.
set -uo pipefail
folder=$(realpath "$1") out=${OUT:-.}
cd "$(dirname "$0")/../.."
site=/tmp/sglang_site
[ -e "$site/ready" ] || { mkdir -p "$site" && xz -T0 -dc "$folder/site.tar.xz" | tar -C "$site" -x && touch "$site/ready"; }
export PYTHONPATH=$folder/routecap:$site PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
python3 tests/bench/sglang.py cuda --json "$out/sglang_h200.json"
for options in "" "--beside --retract --seed 3"; do
    # shellcheck disable=SC2086
    timeout 200 python3 tests/sglang_engine/check.py --gpu $options /tmp/sglang_run > "$out/check.log" 2>&1
    tail -n 16 "$out/check.log"
done
python3 tests/bench/sglang_engine.py --engines 2 --rounds 3 --budget "${BUDGET:-300}" --logs "$out/logs" --json "$out/sglang_engine_h200.json" \
    --settings '{"attention_backend": "triton", "sampling_backend": "pytorch", "grammar_backend": "none", "mem_fraction_static": 0.8, "cuda_graph_max_bs_decode": 256, "max_running_requests": 256}'
