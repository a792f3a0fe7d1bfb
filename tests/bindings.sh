#!/usr/bin/env bash
# Every function and status of the header is in every binding, in what it generated and in what its users see: bindings.sh HEADER
set -u
cd "$(dirname "$0")/.."
header=$1 checked=0 missing=0

# has NAME LAYER FILE...: the name as a whole word.
has() {
    local name=$1 layer=$2
    shift 2
    checked=$((checked + 1))
    grep -qw -- "$name" "$@" && return
    missing=$((missing + 1))
    echo "bindings: $name is missing in $layer"
}

mapfile -t python < <(find bindings/python/src/routecap -maxdepth 1 -name '*.py')
mapfile -t rust < <(find bindings/rust/routecap/src -name '*.rs')
mapfile -t go < <(find bindings/go -maxdepth 1 -name '*.go' ! -name 'zz_*' ! -name '*_test.go')
for function in $(grep -oE '\broutecap_[a-z0-9_]+\(' "$header" | tr -d '(' | sort -u); do
    grep -qE "^ROUTECAP_API .*\b$function\(" "$header" || continue
    has "$function" "Rust's generated layer" bindings/rust/routecap-sys/src/bindings.rs
    has "$function" "Go's generated layer" bindings/go/zz_*
    # In Python the interpreter counts references.
    [ "$function" = routecap_routing_retain ] || has "$function" "Python's package" "${python[@]}"
    has "$function" "Rust's crate" "${rust[@]}"
    has "$function" "Go's package" "${go[@]}"
done
for status in $(grep -oE '^#define ROUTECAP_ERR_[A-Z_]+' "$header" | cut -d' ' -f2); do
    has "$status" "Rust's generated layer" bindings/rust/routecap-sys/src/bindings.rs
    has "$status" "Go's generated layer" bindings/go/zz_*
done
echo "bindings: $checked names looked for, $missing missing"
[ $missing = 0 ]
