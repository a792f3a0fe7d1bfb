#!/usr/bin/env bash
# The ABI gate. Prints what differs; exit status 1 if anything does.
#
#   check.sh LIBRARY HEADER_DIR COMPILER             LIBRARY needs debug information
#   check.sh --refresh LIBRARY HEADER_DIR COMPILER   after a wanted change, in its commit
#
# It compares
#   - exported symbols with their versions: symbols.txt
#   - values, sizes and offsets: layout.c, which has to name every constant and every field of the
#     headers
#   - functions and types as compiled: routecap.abi, by abidiff without filters or suppressions, and
#     with what abidiff calls harmless
#
# --refresh writes routecap.abi. `python3 include/generate` writes symbols.txt and adds to layout.c
# what it says nothing of; what layout.c says already is changed by hand. frozen/ never changes:
# consumer.c is built with that header of 1.0 and has to run with every later library.
set -u
here=$(cd "$(dirname "$0")" && pwd)

symbols() { nm -D --defined-only "$1" | awk '$2 == "T" { print $3 }' | LC_ALL=C sort; }
# exported-interfaces-only limits the dump to what can be reached from exported functions; it hides
# nothing of that.
dump() { abidw --exported-interfaces-only --no-comp-dir-path --short-locs "$1"; }

# What layout.c has to say about the headers, as it says it: constants, sizes, and offsets of
# fields.
asserted() {
    local text
    text=$(echo '#include <routecap.h>' | "$compiler" -std=c11 -I"$headers" -E -dD -x c -) || return
    sed -n -E 's/^#define (ROUTECAP_[A-Z0-9_]+) .+/SAME(\1,/p' <<< "$text" | grep -vE '\((ROUTECAP_VERSION_|ROUTECAP_API)'
    awk '
        /^typedef struct [a-z_]+ \{/ { type = $3; print "SIZE(" type ","; next }
        /^}/ { type = "" }
        type == "" || !/^    [a-z]/ { next }
        match($0, /\(\*[a-z_]+\)/) { print "AT(" type ", " substr($0, RSTART + 2, RLENGTH - 3) ","; next }
        match($0, /[a-z0-9_]+(\[[A-Z_]+\])?;/) { name = substr($0, RSTART, RLENGTH - 1); sub(/\[.*/, "", name); print "AT(" type ", " name "," }
    ' <<< "$text"
}

# What layout.c says nothing of.
unsaid() { asserted | grep -vFf <(grep -oE '^(SAME\(|SIZE\(|AT\([a-z_]+, )[A-Za-z0-9_]+,' "$here/layout.c"); }
refresh=0
[ "${1:-}" != --refresh ] || { refresh=1; shift; }
library=$1 headers=$2 compiler=$3 failed=0
if [ $refresh = 1 ]; then
    dump "$library" > "$here/routecap.abi"
    exit
fi

diff -u "$here/symbols.txt" <(symbols "$library") || { echo "abi: the exported symbols differ"; failed=1; }
"$compiler" -std=c11 -I"$headers" -fsyntax-only "$here/layout.c" || { echo "abi: values or layouts differ"; failed=1; }
missing=$(unsaid)
[ -z "$missing" ] || { echo "abi: layout.c says nothing of"; echo "$missing"; failed=1; }
abidiff --harmless --exported-interfaces-only "$here/routecap.abi" "$library" || { echo "abi: functions or types differ"; failed=1; }
exit $failed
