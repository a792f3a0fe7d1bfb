#!/usr/bin/env bash
# Routing from logits, against NumPy. usage: check.sh [--quick], which has every method in fewer
# shapes
cd "$(dirname "$0")/../.." && . dev/setup.sh
install_library
install_python
"$build/python/bin/python" tests/recording/route.py "$library" "$@"
