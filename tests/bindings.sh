#!/usr/bin/env bash
# Every function and status of the headers is in every binding, in what it generated and in what its users see: bindings.sh HEADER...
set -u
cd "$(dirname "$0")/.."
checked=0 missing=0

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
for function in $(sed -n -E 's/^ROUTECAP_API .*\b(routecap_[a-z0-9_]+)\(.*/\1/p' "$@"); do
    has "$function" "Rust's generated layer" bindings/rust/routecap-sys/src/bindings.rs
    has "$function" "Go's generated layer" bindings/go/zz_*
    # In Python the interpreter counts references.
    [ "$function" = routecap_routing_retain ] || has "$function" "Python's package" "${python[@]}"
    has "$function" "Rust's crate" "${rust[@]}"
    has "$function" "Go's package" "${go[@]}"
done
for status in $(sed -n -E 's/^#define (ROUTECAP_ERR_[A-Z_]+) .*/\1/p' "$@"); do
    has "$status" "Rust's generated layer" bindings/rust/routecap-sys/src/bindings.rs
    has "$status" "Go's generated layer" bindings/go/zz_*
done
echo "bindings: $checked names looked for, $missing missing"
[ $missing = 0 ]
