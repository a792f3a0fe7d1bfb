#!/usr/bin/env bash
# Runs the tests of routecap_replay with released trainers, on the CPU: check.sh [--full]
# [--library PREFIX]. By itself Megatron-Core 0.19, Automodel, slime, miles, and the formats of
# SkyRL and ART; --full adds Megatron-Core 0.16, torchtitan, and verl with what it needs (290 MB).
cd "$(dirname "$0")/../.." && . dev/setup.sh
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error
full=0
[ "${1:-}" = --full ] && full=1 && shift
[ "${1:-}" = --library ] && shift # before the prefix

use_library "$@"
install_package
install_transformers
released megatron-core==0.19.2 nemo-automodel==0.7.0 skyrl==0.4.0 openpipe-art==0.5.23
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
folder=integrations/replay/tests
set +e

# with NAME PYTHON PACKAGES... -- TESTS...: the tests of some files, beside these released packages.
with() {
    local name=$1 python=$2 path=$package files=() file
    shift 2
    while [ "$1" != -- ]; do path=$path:$build/released/$1; shift; done
    for file in "${@:2}"; do files+=("$folder/$file.py"); done
    tests "$name" env PYTHONPATH="$path" "$python" -m pytest -W ignore "${files[@]}"
}
with "Megatron-Core 0.19.2, Automodel 0.7.0, slime, miles" "$transformers_python" megatron-core==0.19.2 nemo-automodel==0.7.0 -- \
    test_megatron test_queues test_automodel
formats=$build/formats # what the modules of two wheels import that read and write their formats
python_environment "$formats" openai==2.54.0 pydantic==2.14.4 orjson==3.13.0 pybase64==1.5.1 loguru==0.7.3 jaxtyping==0.3.11 \
    numpy==2.4.6 pytest==9.2.0
cp "$(ls -d "$build"/transformers/lib/python3*/site-packages)/torch.pth" "$(ls -d "$formats"/lib/python3*/site-packages)"
with "SkyRL 0.4.0, ART 0.5.23" "$formats/bin/python" skyrl==0.4.0 openpipe-art==0.5.23 -- test_formats
if [ $full = 1 ]; then
    titan=(torchtitan==0.3.0 spmd_types==0.2.3 tyro==1.0.17 docstring_parser==0.18.0)
    released megatron-core==0.16.1 verl==0.9.1 "${titan[@]}"
    with "torchtitan 0.3.0" "$torch_python" megatron-core==0.19.2 "${titan[@]}" -- test_torchtitan
    install_verl_needs
    with "Megatron-Core 0.16.1, slime, miles" "$torch_python" megatron-core==0.16.1 -- test_megatron test_queues
    for version in 0.16.1 0.19.2; do
        with "verl 0.9.1 with Megatron-Core $version" "$verl_python" verl==0.9.1 megatron-core==$version -- test_verl
    done
fi
closing
