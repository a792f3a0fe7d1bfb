#!/usr/bin/env bash
# Nothing is stale or forgotten; nothing that is generated follows from a sentence of the headers,
# and what is added to them is in every language. Rust and Go are compiled with --more.
# usage: check.sh [--more]
cd "$(dirname "$0")/../.." && . dev/setup.sh
without=(--without missing)
if [ "${1:-}" = --more ]; then
    need cargo=cargo clang=clang
    need_libclang
    bash dev/bindgen.sh
    without=()
    export ROUTECAP_TEST_MORE=1
fi
set +e
run python3 dev/generate --check "${without[@]}"
run python3 -m unittest discover tests/generate
closing
