#!/usr/bin/env bash
# Builds the bindgen that dev/generate runs, once, under build/rust: bash dev/bindgen.sh. It needs
# cargo and Debian's libclang-dev. bindgen-cli is a program of its own: nothing of it enters the
# crates. It runs for a moment, so that it is not optimized.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n 's/^BINDGEN = "\(.*\)"$/\1/p' dev/generate/raw.py)
tools=$PWD/build/rust/bindgen-$version
[ ! -x "$tools/bin/bindgen" ] || exit 0
echo "building bindgen $version: a minute"
CARGO_TARGET_DIR=$tools/target CARGO_PROFILE_DEV_DEBUG=0 cargo install --debug --quiet --locked --root "$tools" "bindgen-cli@$version"
rm -rf "$tools/target"
