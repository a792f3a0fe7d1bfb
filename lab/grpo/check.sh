#!/usr/bin/env bash
# Makes a GRPO-like training step with replay on two ranks of Megatron-Core, with the model of
# tests/model on the CPU. --full also makes it on one rank, on transformers, and with Ray's
# actors as ranks.
# usage: check.sh [--full] [PREFIX of an installed library]
cd "$(dirname "$0")/../.." && . dev/setup.sh
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error
full=0
[ "${1:-}" = --full ] && full=1 && shift

use_library "$@"
install_package
install_transformers
released megatron-core==0.19.2
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 PYTHONPATH=$package:$build/released/megatron-core==0.19.2:$root/lab/grpo
set +e

check "a step on two ranks of Megatron-Core" "$transformers_python" -W ignore lab/grpo/main.py megatron tests/model/weights
if [ $full = 1 ]; then
    install_verl_needs
    check "a step on one rank of Megatron-Core" "$transformers_python" -W ignore lab/grpo/main.py megatron tests/model/weights --ranks 1 --device cpu
    check "a step on transformers" "$transformers_python" lab/grpo/main.py transformers tests/model/weights --device cpu
    check "a step on two ranks that are Ray's actors" "$verl_python" -W ignore lab/grpo/main.py megatron tests/model/weights --ray
fi
closing
