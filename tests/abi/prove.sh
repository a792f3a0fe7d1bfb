#!/usr/bin/env bash
# Proves the ABI gate: breaks the ABI in copies, one way each, and expects the gate to fail every
# time. An untouched copy must pass, and so must what a later version may do.
#
#   prove.sh SOURCE_DIR COMPILER
#   prove.sh --freeze VERSION SOURCE_DIR COMPILER    instead makes the folder of what VERSION promises
set -u
freeze=
[ "${1:-}" != --freeze ] || { freeze=$2; shift 2; }
source_dir=$1 compiler=$2
here=$(cd "$(dirname "$0")" && pwd)
(cd "$here/../.." && . dev/setup.sh && need abidiff=abigail-tools) || exit
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

header=include/routecap.h code=src/entries.cc map=src/routecap.map
mkdir -p "$work/whole/include" "$work/whole/src"
sh "$source_dir/dev/single.sh" "$source_dir/include" "$work/whole/$header"  # in one file, whatever is broken is there
# The table's entries stand in it one a line, so that each can be broken alone.
sed -n -E '/^#define ROUTECAP_FUNCTIONS/,/^$/s/^    X\((\w+)\).*/        ROUTECAP_ENTRY(\1)/p' "$source_dir/src/base/declared.h" > "$work/entries"
cat "$source_dir"/src/api/*.cc | sed -e "/^ *ROUTECAP_FUNCTIONS(ROUTECAP_ENTRY)/{r $work/entries" -e 'd}' > "$work/whole/$code"
cp "$source_dir/$map" "$work/whole/src"

gate=$here/gate.sh
# Only the entry points are compiled: what they call does not matter to the ABI.
gate() {
    "$compiler" -std=c++20 -g -O0 -fPIC -fvisibility=hidden -shared -DROUTECAP_EXPERIMENTAL -Wl,--unresolved-symbols=ignore-all -Wl,-soname,libroutecap.so.1 \
        -Wl,--version-script="$work/$map" -I"$work/include" -I"$work/src" -I"$source_dir/src" -I"$source_dir" \
        "$work/$code" -o "$work/libroutecap.so" ||
        { echo "abi: this break does not compile: $1"; exit 2; }
    if [ -n "$freeze" ]; then
        mkdir -p "$here/$freeze" && cp "$here"/{symbols,layout}.txt "$here/$freeze" &&
            # exported-interfaces-only limits it to what can be reached from exported functions; it
            # hides nothing of that.
            abidw --exported-interfaces-only --no-comp-dir-path --no-corpus-path --short-locs "$work/libroutecap.so" | gzip -9n > "$here/$freeze/types.abi.gz"
        exit
    fi
    bash "$gate" "$work/libroutecap.so" "$work/include" cc --types > "$work/log" 2>&1
}

broken=0 missed=0
# breaks DESCRIPTION {FILE SED_SCRIPT}...: each script must change its file.
breaks() {
    local description=$1 file chapter
    shift
    mkdir -p "$work/include/routecap" "$work/src"
    for chapter in base plan reading record; do  # which kernels/ includes
        echo '#include "../routecap.h"' > "$work/include/routecap/$chapter.h"
    done
    for file in $header $code $map; do cp "$work/whole/$file" "$work/$file"; done
    while [ $# -gt 0 ]; do
        cp "$work/$1" "$work/before"
        sed -i -E "$2" "$work/$1"
        cmp -s "$work/$1" "$work/before" && { echo "abi: could not apply to $1: $description"; exit 2; }
        shift 2
    done
    broken=$((broken + 1))
    gate "$description" || return
    echo "abi: the gate missed: $description"
    missed=$((missed + 1))
}

breaks "nothing, but for a space in a comment" $header '1s/$/ /' > /dev/null
[ $missed = 1 ] || { cat "$work/log"; echo "abi: the gate fails on the untouched source"; exit 1; }
broken=0 missed=0

# Structs.
breaks "two fields swapped" $header '/^typedef struct routecap_span /,/^}/{/ sink_row;/{h;d};/ rows;/{G}}'
breaks "a field inserted" $header 's/^    uint32_t max_requests;/    uint64_t added;\n&/'
breaks "a field appended" $header 's/^} routecap_config;$/    uint64_t added;\n&/'
breaks "a field renamed" $header 's/^    uint32_t max_requests;/    uint32_t most_requests;/'
breaks "a field of another type of the same size" $header 's/^    int32_t device; +/    uint32_t device;/'
breaks "a field that points to something else" $header 's/^    const int32_t (\*layer_map;)/    const uint32_t \1/'

# Values.
breaks "a status renumbered" $header 's/^(#define ROUTECAP_ERR_CAPACITY) .*/\1 (-119)/'
breaks "a status added, and not asserted" $header 's/^#define ROUTECAP_ERR_CAPACITY .*/&\n#define ROUTECAP_ERR_ADDED (-119)/'
breaks "a constant changed" $header 's/^(#define ROUTECAP_SPAN_DEVICE_POSITIONS) 2u/\1 4u/'
breaks "a constant removed" $header '/^#define ROUTECAP_PIECE_TAIL /d'
breaks "a limit changed" $header 's/^(#define ROUTECAP_MAX_SLOTS) 64/\1 32/'

# Functions.
breaks "a function removed" $code \
    '/^routecap_status routecap_capturer_progress\(/,/^}/d; /ROUTECAP_ENTRY\(capturer_progress\)/d'
breaks "a function renamed" $header 's/routecap_step_discard/routecap_step_forget/' \
    $code 's/routecap_step_discard/routecap_step_forget/; s/ROUTECAP_ENTRY\(step_discard\)/.step_discard = routecap_step_forget,/' \
    $map 's/routecap_step_discard/routecap_step_forget/'
breaks "a function added" $header 's/^ROUTECAP_API uint32_t routecap_version\(void\);/&\nROUTECAP_API uint32_t routecap_added(void);/' \
    $code 's/^uint32_t routecap_version\(void\)/uint32_t routecap_added(void) { return 1; }\n&/' $map 's/^    routecap_version;/    routecap_added;\n&/'
breaks "a parameter widened" $header 's/(routecap_step_begin\(routecap_capturer \*capturer, )uint32_t rows,/\1uint64_t rows,/' \
    $header 's/\(\*step_begin\)\(routecap_capturer \*, uint32_t,/(*step_begin)(routecap_capturer *, uint64_t,/' \
    $code 's/(routecap_step_begin\(routecap_capturer \*capturer, )uint32_t rows,/\1uint64_t rows,/' \
    $code 's/\.begin\(rows, stream\)/.begin(static_cast<uint32_t>(rows), stream)/'
breaks "a parameter no longer const" $header 's/(routecap_routing_poll\()const routecap_routing \*/\1routecap_routing */' \
    $header 's/(\(\*routing_poll\)\()const routecap_routing \*/\1routecap_routing */' \
    $code 's/(routecap_routing_poll\()const routecap_routing \*/\1routecap_routing */'
breaks "a return type widened" $header 's/uint32_t (routecap_version\(void\))/uint64_t \1/' $header 's/uint32_t \(\*version\)/uint64_t (*version)/' \
    $code 's/uint32_t (routecap_version\(void\))/uint64_t \1/'
breaks "an entry of the table moved" $header '/^    ROUTECAP_NODISCARD routecap_status \(\*step_discard\)/{h;d};/^    ROUTECAP_NODISCARD routecap_status \(\*capturer_progress\)/{G}' \
    $code '/^        ROUTECAP_ENTRY\(step_discard\)/{h;d};/^        ROUTECAP_ENTRY\(capturer_progress\)/{G}'
breaks "a version node renamed" $map 's/^ROUTECAP_1\.0 /ROUTECAP_1.1 /'
breaks "a function left out of the version node" $map '/^    routecap_step_begin;/d'

# What a later version may do. layout.txt and symbols.txt, which have every line, say what is new; the
# folders of versions pass.
gate=$work/promised.sh
sed -e "s|^here=.*|here=$here|" -e '/^diff -u/d; /^so .*layout.txt" ==/d; /^missing=/d; /missing" \]/d' "$here/gate.sh" > "$gate"
allowed=0
allows() {
    local before=$missed
    breaks "$@" > /dev/null
    broken=$((broken - 1)) allowed=$((allowed + 1))
    [ "$missed" = $((before + 1)) ] || { cat "$work/log"; echo "abi: the gate refuses: $1"; exit 1; }
    missed=$before
}
# suppressions NAME: what grown.ini has of a struct that grew.
suppressions() { printf '[suppress_type]\n  name = %s\n  type_kind = struct\n  has_data_member_inserted_at = end\n' "$1"; }
suppressions routecap_config > "$work/grown.ini"
ROUTECAP_GROWN=$work/grown.ini allows "a field appended" $header 's/^} routecap_config;$/    uint64_t added;\n&/'
allows "a status added" $header 's/^#define ROUTECAP_ERR_CAPACITY .*/&\n#define ROUTECAP_ERR_ADDED (-119)/'
allows "a function added" $header 's/^ROUTECAP_API uint32_t routecap_version\(void\);/&\nROUTECAP_API uint32_t routecap_added(void);/' \
    $code 's/^uint32_t routecap_version\(void\)/uint32_t routecap_added(void) { return 1; }\n&/' $map 's/^    routecap_version;/    routecap_added;\n&/'
for change in "a field inserted:s/^    uint32_t max_requests;/    uint64_t added;\n&/" "a constant removed:/^#define ROUTECAP_PIECE_TAIL /d" \
    "a field of another type of the same size:s/^    int32_t device; +/    uint32_t device;/"; do
    breaks "${change%%:*}, by what the version promised" $header "${change#*:}"
done

echo "abi: $allowed additions pass, and $((broken - missed)) of $broken deliberate breaks were caught"
[ "$missed" = 0 ]
