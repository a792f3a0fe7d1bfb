#!/usr/bin/env bash
# The ABI gate. Prints what differs; exit status 1 if anything does.
#
#   check.sh LIBRARY HEADER_DIR COMPILER [DUMP]
#
# It compares
#   - exported symbols with their versions: symbols.txt
#   - values, sizes and offsets: layout.txt, which has to name every constant and every field of the
#     headers, as a compiler has them
#   - with DUMP, functions and types as compiled: by abidiff without filters or suppressions, and
#     with what abidiff calls harmless. LIBRARY needs debug information then
#
# `python3 dev/generate` writes both files anew, as long as the version is 1.0.0-dev. With 1.0.0
# they become what that version promises, and so does a dump of its types, which prove.sh makes of
# the sources as they are.
set -u
here=$(cd "$(dirname "$0")" && pwd)

symbols() { nm -D --defined-only "$1" | awk '$2 == "T" { print $3 }' | LC_ALL=C sort; }

# layout.txt as assertions of the compiler.
assertions() {
    printf '#include <%s.h>\n' routecap stddef
    sed -E 's/^(ROUTECAP_\w+) (\S+)$/_Static_assert(\1 == (\2), "\1 is not \2");/
        s/^(\w+)\.(\w+) (\S+)$/_Static_assert(offsetof(\1, \2) == \3, "\1.\2 is not at \3");/
        s/^(\w+) (\S+)$/_Static_assert(sizeof(\1) == \2, "\1 has not \2 bytes");/' "$here/layout.txt"
}
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
assertions | "$compiler" -std=c11 -I"$headers" -fsyntax-only -x c - || { echo "abi: values or layouts differ"; failed=1; }
missing=$(unsaid)
[ -z "$missing" ] || { echo "abi: layout.txt says nothing of"; echo "$missing"; failed=1; }
[ -z "${4:-}" ] || abidiff --harmless --exported-interfaces-only "$4" "$library" ||
    { echo "abi: functions or types differ"; failed=1; }
exit $failed
