#!/usr/bin/env bash
# Runs the example, and watches it with a real Prometheus, which is asked everything that the
# dashboard and the alerts of routecap_tools.metrics ask. No registry has Grafana itself; npm has its
# schema, which the dashboard is held against. usage: check.sh [PREFIX]
cd "$(dirname "$0")/../../.." && . dev/setup.sh
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error

need prometheus=prometheus promtool=prometheus npm=npm
grafana=$build/grafana
if [ ! -e "$grafana/ready" ]; then
    say "setup: fetching Grafana's schema"
    rm -rf "$grafana" && mkdir -p "$grafana"
    (cd "$grafana" && npm install --silent --no-audit --no-fund --prefix . @grafana/schema@13.2.3 typescript@5.9.3 &&
        npm pack --silent @grafana/prometheus@13.2.1 && tar -xzf grafana-prometheus-13.2.1.tgz package/dist/types/dataquery.d.ts &&
        rm grafana-prometheus-13.2.1.tgz) > "$build/grafana.log" 2>&1 || { cat "$build/grafana.log"; exit 1; }
    touch "$grafana/ready"
fi
use_library "$@"
install_package
python_environment "$build/load" numpy==2.4.6 prometheus-client==0.26.0 rich==15.0.0
export PYTHONPATH=$package:examples
"$build/load/bin/python" tools/tests/load/check.py "$build/load_check" "$grafana"
