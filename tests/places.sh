#!/usr/bin/env bash
# Names the places where a function, status or struct of the headers was forgotten:
# places.sh HEADER...
# Compilers and tests find the rest: how arguments cross into Python (routecap.i), and vectors.
set -u
cd "$(dirname "$0")/.."
checked=0 forgotten=0

# has NAME PLACE PATTERN FILE...: the pattern, as of grep -E, is in one of the files.
has() {
    local name=$1 place=$2 pattern=$3
    shift 3
    checked=$((checked + 1))
    grep -qE -- "$pattern" "$@" && return
    forgotten=$((forgotten + 1))
    echo "places: $name is not in $place"
}

mapfile -t python < <(find bindings/python/src/routecap -maxdepth 1 -name '*.py')
mapfile -t rust < <(find bindings/rust/routecap/src -name '*.rs')
mapfile -t go < <(find bindings/go -maxdepth 1 -name '*.go' ! -name 'zz_*' ! -name '*_test.go')
raw_rust=bindings/rust/routecap-sys/src/bindings.rs raw_go=bindings/go/zz_generated.go
functions=$(sed -n -E 's/^ROUTECAP_API .*\b(routecap_[a-z0-9_]+)\(.*/\1/p' "$@")
statuses=$(sed -n -E 's/^#define (ROUTECAP_ERR_[A-Z_]+) .*/\1/p' "$@")
structs=$(sed -n -E 's/^typedef struct (routecap_[a-z_]+) \{/\1/p' "$@")

for function in $functions; do
    if [ "$function" != routecap_get_api ]; then
        has "$function" "the function table, include/routecap/table.h" "\(\*${function#routecap_}\)\(" "$@"
        has "$function" "the table's entries, src/api/table.cc" "ROUTECAP_ENTRY\(${function#routecap_}\)" src/api/table.cc
    fi
    has "$function" "src/api" "\b$function\(" src/api/*.cc
    has "$function" "src/routecap.map, under the next version" "\b$function;" src/routecap.map
    has "$function" "tests/abi/symbols.txt: run tests/abi/check.sh --refresh" "^$function@" tests/abi/symbols.txt
    has "$function" "Rust's generated layer: run bindings/rust/generate.sh" "\b$function\b" "$raw_rust"
    has "$function" "Go's generated layer: run go generate in bindings/go" "\b$function\b" "$raw_go"
    # In Python the interpreter counts references.
    [ "$function" = routecap_routing_retain ] || has "$function" "Python's package" "\b$function\b" "${python[@]}"
    has "$function" "Rust's crate" "\b$function\b" "${rust[@]}"
    has "$function" "Go's package" "\b$function\b" "${go[@]}"
done
for status in $statuses; do
    has "$status" "src/base/status.cc" "ROUTECAP_NAME\($status\)" src/base/status.cc
    has "$status" "tests/abi/layout.c: run tests/abi/check.sh --refresh" "\($status," tests/abi/layout.c
    has "$status" "Rust's generated layer: run bindings/rust/generate.sh" "\b$status\b" "$raw_rust"
    has "$status" "Go's generated layer: run go generate in bindings/go" "\b$status\b" "$raw_go"
    has "$status" "Python's constants, _constants.py" "\b${status#ROUTECAP_}\b" bindings/python/src/routecap/_constants.py
done
for struct in $structs; do
    has "$struct" "tests/abi/layout.c: run tests/abi/check.sh --refresh" "SIZE\($struct," tests/abi/layout.c
done
echo "places: $checked looked at, $forgotten forgotten"
[ $forgotten = 0 ]
