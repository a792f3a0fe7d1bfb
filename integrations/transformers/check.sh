#!/usr/bin/env bash
# Runs the first example with the model of tests/model, and the tests of routecap_transformers on the
# CPU. usage: check.sh [--full | --conform] [PREFIX]. --full has the tests in transformers 5.23, the
# last version whose models call a cache otherwise, what is marked slow, the other examples, and many
# random mixtures, alone. --conform has ten clean runs in each precision, in which conform must find
# nothing, and runs with a planted fault, which it must find.
cd "$(dirname "$0")/../.." && . dev/setup.sh
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error
full=0 conform=0
[ "${1:-}" = --full ] && full=1 && shift
[ "${1:-}" = --conform ] && conform=1 && shift

use_library "$@"
install_package
install_transformers
released prometheus-client==0.26.0 psutil==7.2.2 accelerate==1.15.0
export HF_HUB_OFFLINE=1
export PYTHONPATH=$package:$build/released/prometheus-client==0.26.0:$build/released/psutil==7.2.2:$build/released/accelerate==1.15.0
examples=integrations/transformers/examples
set +e

if [ $full = 1 ]; then
    install_transformers 5.23.0
    tests "tests, transformers 5.23.0" "$transformers_python" -m pytest integrations/transformers/tests
    install_transformers
    tests "what takes long" "$transformers_python" -m pytest -m slow integrations/transformers/tests
    # What they say the tests compare with hooks by default.
    check "experts are pruned by what they add, which hooks alone say too" "$transformers_python" $examples/prune.py
    check "tokens of each expert are those of hooks" prints " 0 counts differ from those of hooks" "$transformers_python" $examples/calibration.py
    check "a step needs the experts that hooks saw" prints "as hooks on the routers saw" "$transformers_python" $examples/caches.py
    check "an engine that is a step behind drifts more" "$transformers_python" $examples/drift.py
    tests "200 random mixtures of each family" env ROUTECAP_MIXTURES=200 "$transformers_python" -m pytest integrations/transformers/tests/test_mixtures.py
    closing
    exit
fi
if [ $conform = 1 ]; then
    export PYTHONPATH=$PYTHONPATH:integrations/transformers/tests/real OMP_NUM_THREADS=1
    for options in dtype=float32 dtype=bfloat16 "trained=1 dtype=bfloat16" "trained=1 dtype=bfloat16 activations=float8"; do
        # shellcheck disable=SC2086
        check "conform, $options" "$transformers_python" tools/tests/conform/prove.py --json "$build/conform_reports" transformers_engine $options
    done
    closing
    exit
fi
check "every row of a generation and of a packed batch is what the routers chose" prints " 0 of them differ from what hooks on the routers saw" \
    "$transformers_python" $examples/capture.py tests/model/weights "int main(" "import numpy as " "#" --save "$build/transformers_run"
check "the files are there" test -s "$build/transformers_run/sequence-2.routecap"
tests "tests" "$transformers_python" -m pytest -m "not slow" integrations/transformers/tests
closing
