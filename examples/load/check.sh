#!/usr/bin/env bash
# Runs the example, and watches it with a real Prometheus, which is asked everything that the
# dashboard and the alerts of routecap.metrics ask. usage: check.sh [PREFIX]
cd "$(dirname "$0")/../.." && . examples/setup.sh
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error

need prometheus=prometheus promtool=prometheus
use_library "$@"
install_package
python_environment "$build/load" numpy==2.4.6 prometheus-client==0.26.0 rich==15.0.0
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$package
"$build/load/bin/python" examples/load/check.py "$build/load_check"
