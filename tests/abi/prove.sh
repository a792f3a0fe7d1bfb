#!/usr/bin/env bash
# Proves the ABI gate: prove.sh SOURCE_DIR COMPILER
# Breaks the ABI in copies, one way each, and expects the gate to fail every time; an untouched copy must pass.
set -u
source_dir=$1 compiler=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Only the entry points are compiled: what they call does not matter to the ABI.
gate() {
    "$compiler" -std=c++20 -g -O0 -fPIC -fvisibility=hidden -shared -Wl,--unresolved-symbols=ignore-all -Wl,-soname,libroutecap.so.0 \
        -Wl,--version-script="$source_dir/src/routecap.map" -I"$work/include" -I"$work/src" -I"$source_dir/src" -I"$source_dir" \
        "$work/src/api.cc" -o "$work/libroutecap.so" || exit 2
    bash "$here/check.sh" "$work/libroutecap.so" "$work/include" cc > "$work/log" 2>&1
}
copy() { mkdir -p "$work/include" "$work/src" && cp "$source_dir/include/routecap.h" "$work/include" && cp "$source_dir/src/api.cc" "$work/src"; }

broken=0 missed=0
breaks() { # breaks DESCRIPTION FILE SED_SCRIPT
    copy
    sed -i -E "$3" "$work/$2"
    cmp -s "$work/$2" "$source_dir/$2" && { echo "abi: could not apply: $1"; exit 2; }
    broken=$((broken + 1))
    if gate; then
        echo "abi: the gate missed: $1"
        missed=$((missed + 1))
    fi
}

copy
gate || { cat "$work/log"; echo "abi: the gate fails on the untouched source"; exit 1; }
breaks "two fields swapped" include/routecap.h '/^    uint32_t sink_row; /{h;d};/^    uint32_t rows;         \/\* >= 1 \*\//{G}'
breaks "a field appended" include/routecap.h 's/^(    const uint32_t \*layer_experts; \/\* \[layers\] experts of each.*)$/\1\n    uint64_t added;/'
breaks "a function removed" src/api.cc '/^int32_t routecap_capturer_progress\(/,/^}/d; /ROUTECAP_ENTRY\(capturer_progress\)/d; s/static_assert\(sizeof\(routecap_api\).*//'
breaks "a status renumbered" include/routecap.h 's/^(#define ROUTECAP_ERR_CAPACITY) .*/\1 (-119)/'
breaks "a constant changed" include/routecap.h 's/^(#define ROUTECAP_SPAN_DEVICE_POSITIONS) 2u/\1 4u/'

# These change declaration and definition together.
copy
sed -i 's/routecap_step_begin(routecap_capturer \*capturer, uint32_t rows,/routecap_step_begin(routecap_capturer *capturer, uint64_t rows,/' "$work/include/routecap.h" "$work/src/api.cc"
sed -i -E 's/\(\*step_begin\)\(routecap_capturer \*, uint32_t,/(*step_begin)(routecap_capturer *, uint64_t,/; ' "$work/include/routecap.h"
sed -i 's/c.begin(rows, stream)/c.begin(static_cast<uint32_t>(rows), stream)/' "$work/src/api.cc"
broken=$((broken + 1))
gate && { echo "abi: the gate missed: a parameter widened"; missed=$((missed + 1)); }
copy
sed -i -E '/^    int32_t \(\*step_begin\)/{h;d};/^    int32_t \(\*step_snapshot\)/{G}' "$work/include/routecap.h"
sed -i -E '/^        ROUTECAP_ENTRY\(step_begin\)/{h;d};/^        ROUTECAP_ENTRY\(step_snapshot\)/{G}' "$work/src/api.cc"
broken=$((broken + 1))
gate && { echo "abi: the gate missed: an entry of the table moved"; missed=$((missed + 1)); }
copy
sed -i 's/routecap_step_discard/routecap_step_forget/' "$work/include/routecap.h" "$work/src/api.cc"
sed -i 's/ROUTECAP_ENTRY(step_discard)/.step_discard = routecap_step_forget/' "$work/src/api.cc"
broken=$((broken + 1))
gate && { echo "abi: the gate missed: a function renamed"; missed=$((missed + 1)); }

echo "abi: $((broken - missed)) of $broken deliberate breaks were caught"
[ "$missed" = 0 ]
