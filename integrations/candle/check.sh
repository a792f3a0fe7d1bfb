#!/usr/bin/env bash
# Builds and tests the example, and runs it with the shipped model. usage: check.sh
# [PREFIX of an installed library]
cd "$(dirname "$0")/../.." && . dev/setup.sh
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error
use_library "$@"
. integrations/candle/build.sh
set +e

model=tests/model/weights
dense=$build/candle/dense
mkdir -p "$dense"
sed 's/"num_experts": .*/"num_experts": 0,/' $model/config.json > "$dense/config.json"
cargo_here() { local command=$1; shift; cargo "$command" --quiet --locked --manifest-path integrations/candle/Cargo.toml "$@"; }

check "formatted" cargo fmt --check --manifest-path integrations/candle/Cargo.toml
check "tests of the tap" cargo_here test
check "a batch of two requests and one of one, whole" prints 'request 2, "int main()" -> ' "$program" $model "int main(" "class Tap" "int main()"
check "every row is there" prints '17 rows x 5 layers x 2 experts: Complete' "$program" $model "class Tap:"
check "a model without MoE layers is refused" refuses 'no MoE layers' "$program" "$dense" "int main("
closing
