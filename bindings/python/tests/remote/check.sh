#!/usr/bin/env bash
# Rows across processes by each store that routecap.remote knows: S3 and HTTP (of moto), Mooncake
# Store over TCP, Ray; the job of main.py with each, and with transformers as its engine; and the
# example of ranks as Ray's actors.
# usage: check.sh [PREFIX]
cd "$(dirname "$0")/../../../.." && . dev/setup.sh
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error

use_library "$@"
install_package
remote_environment
install_transformers
engine=$("$transformers_python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
engine+=:$("$torch_python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
export PYTHONPATH=$package:bindings/python/tests/remote:examples:$engine
set +e

# Each in a process of its own, as Ray begins once in a process. What ends with a rank that is killed
# warns as it goes.
check "the example: two stages of a pipeline" prints "700 rows x 24 layers united: OK" "$build/remote/bin/python" examples/ray_ranks.py
tests "ranks as actors" "$build/remote/bin/python" -m pytest -W default bindings/python/tests/remote/test_ranks.py
tests "stores" "$build/remote/bin/python" -m pytest -W default bindings/python/tests/remote/test_stores.py
tests "the job" "$build/remote/bin/python" -m pytest -W default bindings/python/tests/remote/test_job.py
for store in mooncake s3; do # a host each for rollouts and ranks: root, /dev/net/tun
    check "two hosts, $store" "$build/remote/bin/python" bindings/python/tests/remote/two_hosts.py --store $store --samples 4 --steps 1 --seconds 10
done
closing
