#!/usr/bin/env bash
# Runs the example with JAX from PyPI (80 MB), on the CPU. usage: check.sh [PREFIX]
cd "$(dirname "$0")/../.." && . dev/setup.sh
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error

use_library "$@"
install_package
python_environment "$build/jax" jax==0.6.2 jaxlib==0.6.2
export PYTHONPATH=$package
set +e

check "every id that the compiled function chose" "$build/jax/bin/python" examples/jax/jit.py
closing
