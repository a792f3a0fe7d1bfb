#!/usr/bin/env bash
# The ABI gate. Prints what differs; exit status 1 if anything does.
#
#   gate.sh LIBRARY HEADER_DIR COMPILER [--types]
#
# It compares
#   - with what `python3 dev/generate` wrote: exported symbols with their versions (symbols.txt);
#     values, sizes and offsets (layout.txt, which has to name every constant and every field of the
#     headers, as a compiler has them)
#   - with what each version promised, in a folder of its own that never changes (1.0): its symbols
#     are there, its values and offsets are the same, and structs have at least its size
#   - with --types, also functions and types as compiled: abidiff finds nothing but functions that
#     were added, and structs of grown.ini that grew at their end. LIBRARY needs debug information
#     then
#
# prove.sh --freeze VERSION makes the folder of a version.
set -u
here=$(cd "$(dirname "$0")" && pwd)

symbols() { nm -D --defined-only "$1" | awk '$2 == "T" { print $3 }' | LC_ALL=C sort; }

# assertions FILE OPERATOR: a layout as assertions of the compiler, of sizes by that operator.
assertions() {
    printf '#include <%s.h>\n' routecap stddef
    sed -E 's/^(ROUTECAP_\w+) (\S+)$/_Static_assert(\1 == (\2), "\1 is not \2");/
        s/^(\w+)\.(\w+) (\S+)$/_Static_assert(offsetof(\1, \2) == \3, "\1.\2 is not at \3");/
        s/^(\w+) (\S+)$/_Static_assert(sizeof(\1) '"$2"' \2, "\1 has not \2 bytes");/' "$1"
}
# so FILE OPERATOR: whether the headers are so.
so() { assertions "$@" | "$compiler" -std=c11 -I"$headers" -fsyntax-only -x c -; }
# What layout.txt has to name: constants, structs and their fields.
named() {
    local text
    text=$(echo '#include <routecap.h>' | "$compiler" -std=c11 -I"$headers" -E -dD -x c -) || return
    sed -n -E 's/^#define (ROUTECAP_[A-Z0-9_]+) .+/\1/p' <<< "$text" | grep -vE '^ROUTECAP_(VERSION_|API|NODISCARD)'
    awk '
        /^typedef struct [a-z_]+ \{/ { type = $3; print type; next }
        /^}/ { type = "" }
        type == "" || !/^    [a-z]/ { next }
        match($0, /\(\*[a-z_]+\)/) { print type "." substr($0, RSTART + 2, RLENGTH - 3); next }
        match($0, /[a-z0-9_]+(\[[A-Z_]+\])?;/) { name = substr($0, RSTART, RLENGTH - 1); sub(/\[.*/, "", name); print type "." name }
    ' <<< "$text"
}

# What it says nothing of.
unsaid() { comm -23 <(named | sort -u) <(cut -d ' ' -f 1 "$here/layout.txt" | sort -u); }
library=$1 headers=$2 compiler=$3 failed=0

diff -u "$here/symbols.txt" <(symbols "$library") || { echo "abi: the exported symbols differ"; failed=1; }
so "$here/layout.txt" == || { echo "abi: values or layouts differ"; failed=1; }
missing=$(unsaid)
[ -z "$missing" ] || { echo "abi: layout.txt says nothing of"; echo "$missing"; failed=1; }
for version in "$here"/[0-9]*/; do
    lost=$(comm -23 "$version/symbols.txt" <(symbols "$library"))
    [ -z "$lost" ] || { echo "abi: of $version these symbols are gone"; echo "$lost"; failed=1; }
    so "$version/layout.txt" '>=' || { echo "abi: values or layouts of $version differ"; failed=1; }
    [ "${4:-}" = --types ] || continue
    types=$(mktemp)
    gzip -dc "$version/types.abi.gz" > "$types"
    abidiff --harmless --no-added-syms --suppressions "${ROUTECAP_GROWN:-$here/grown.ini}" --exported-interfaces-only "$types" "$library" ||
        { echo "abi: functions or types of $version differ"; failed=1; }
    rm -f "$types"
done
exit $failed
