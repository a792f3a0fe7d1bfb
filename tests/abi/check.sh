#!/usr/bin/env bash
# The ABI gate: check.sh LIBRARY HEADER_DIR COMPILER
#   exported symbols with their versions   tests/abi/symbols.txt
#   values, sizes and offsets              tests/abi/layout.c
#   functions and types as compiled        tests/abi/routecap.abi, by abidiff without filters or suppressions
# LIBRARY needs debug information. Prints what differs; exit status 1 if anything does.
# After a wanted change: tests/abi/check.sh --refresh LIBRARY, in the commit that changes the ABI.
set -u
here=$(cd "$(dirname "$0")" && pwd)

symbols() { nm -D --defined-only "$1" | awk '$2 == "T" { print $3 }' | LC_ALL=C sort; }
# exported-interfaces-only limits the dump to what can be reached from exported functions; it hides nothing of that.
dump() { abidw --exported-interfaces-only --no-comp-dir-path --short-locs "$1"; }

if [ "${1:-}" = --refresh ]; then
    symbols "$2" > "$here/symbols.txt"
    dump "$2" > "$here/routecap.abi"
    exit
fi

library=$1 headers=$2 compiler=$3 failed=0
diff -u "$here/symbols.txt" <(symbols "$library") || { echo "abi: the exported symbols differ"; failed=1; }
"$compiler" -std=c11 -I"$headers" -fsyntax-only "$here/layout.c" || { echo "abi: values or layouts differ"; failed=1; }
abidiff --exported-interfaces-only "$here/routecap.abi" "$library" || { echo "abi: functions or types differ"; failed=1; }
exit $failed
