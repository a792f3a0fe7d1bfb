#!/usr/bin/env bash
# The fault loops on the fake driver, with every step of theirs. usage: more.sh
cd "$(dirname "$0")/../.." && . dev/setup.sh
install_library
install_fake_driver
build_tests faults
set +e
run env ROUTECAP_FAULT_STRIDE=0 LD_LIBRARY_PATH="$fake" ROUTECAP_TEST_BACKEND=cuda build/tests/fault/faults
closing
