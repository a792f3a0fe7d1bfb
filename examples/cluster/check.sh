#!/usr/bin/env bash
# Rows across processes by each store that routecap.remote knows: S3 and HTTP (of moto), Mooncake
# Store over TCP, Ray; and the job of main.py with each, and with transformers as its engine.
# usage: check.sh [PREFIX]
cd "$(dirname "$0")/../.." && . dev/setup.sh
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error

use_library "$@"
install_package
remote_environment
install_transformers
engine=$("$transformers_python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
engine+=:$("$torch_python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$package:examples/cluster:$engine
set +e

# Each in a process of its own, as Ray begins once in a process.
tests "stores" "$build/remote/bin/python" -m pytest examples/cluster/test_stores.py
tests "the job" "$build/remote/bin/python" -m pytest examples/cluster/test_job.py
closing
