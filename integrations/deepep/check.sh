#!/usr/bin/env bash
# The check of a dispatch on a stand-in for DeepEP v2, on the host, with two processes: check.sh
# [PREFIX of an installed library]. `python3 dispatch.py` is the same with DeepEP itself, on two GPUs.
cd "$(dirname "$0")/../.." && . dev/setup.sh
use_library "$@"
install_package
install_torch
export PYTHONPATH=$package
set +e
check "every count is what it must be" prints "dispatch: all right" "$torch_python" integrations/deepep/dispatch.py --simulate
closing
