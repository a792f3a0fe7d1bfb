#!/usr/bin/env bash
# Plants faults, one at a time, and says which suites of run.sh notice each.
#
#     planted.sh FOLDER [PATTERN [SUITE...]]
#
# FOLDER is a checkout that this script may change and build in; what it built stays for the next
# fault. PATTERN: only faults whose description matches. SUITES take the place of each fault's own.
# Suites that fail without a fault prove nothing, so these run first.
set -u
cd "${1:?usage: planted.sh FOLDER [PATTERN [SUITE...]]}" || exit 2
pattern=${2:-.}
shift; [ $# = 0 ] || shift
git diff --quiet || { echo "planted: $PWD has changes"; exit 2; }
log=$(mktemp) && trap 'rm -f "$log"; git checkout --quiet -- src bindings' EXIT
planted=0 missed=0 sound=' '

# passes SUITE: whether it passes, in which case it is sound without a fault.
passes() { bash tests/run.sh "$1" > "$log" 2>&1; }
# plants SUITES DESCRIPTION FILE SED_SCRIPT: the script must change the file.
plants() {
    local suites=${chosen:-$1} description=$2 file=$3 script=$4 suite noticed='' overlooked=''
    [[ $description =~ $pattern ]] || return
    for suite in $suites; do
        [[ $sound == *" $suite "* ]] && continue
        passes "$suite" || { cat "$log"; echo "planted: $suite fails without a fault"; exit 1; }
        sound+="$suite "
    done
    sed -i -E "$script" "$file"
    ! git diff --quiet -- "$file" || { echo "planted: could not apply to $file: $description"; exit 2; }
    for suite in $suites; do
        if passes "$suite"; then overlooked+=" $suite"; else noticed+=" $suite"; fi
    done
    git checkout --quiet -- "$file"
    planted=$((planted + 1))
    [ -n "$noticed" ] || missed=$((missed + 1))
    echo "$description: ${noticed:+noticed by$noticed}${overlooked:+; not by$overlooked}"
}
chosen="$*"

# Between threads.
plants tsan "a routing is ready before its rows are" src/routing/routing.cc \
    's/(ready_\.store\(true, std::memory_order_)release/\1relaxed/'
plants tsan "a page is given back before others have read it" src/storage/pages.cc \
    's/(references\.fetch_sub\(1, std::memory_order_)acq_rel/\1relaxed/'
plants tsan "a store is asked without its lock" src/store/local_store.cc \
    's/^    std::lock_guard lock\(mutex_\);//'
# Bytes and memory.
plants asan-ubsan "the bound of an expert is one too high" src/wire/cells.cc \
    's/in_range &= plain < bound</in_range \&= plain <= bound</'
plants asan-ubsan "a filled cell reads behind the experts" src/plan/row_writer.cc \
    's/if \(number >= at\.experts\) number -= at\.experts;//'
plants asan-ubsan "a row at the end of a piece is lost" src/wire/cells.cc \
    's/if \(rest_\.size\(\) < layout_\.row_bytes\) return/if (rest_.size() <= layout_.row_bytes) return/'
plants "asan-ubsan tests" "a reserved field may be anything" src/routing/serialized.cc \
    's/if \(header\.reserved != 0\)/if (header.reserved > 255)/'
# What the library does.
plants "tests asan-ubsan" "a truncate leaves what is in flight" src/capture/request_operations.cc \
    's/^( *)cut_in_flight\(\*request, rows, Cut::truncated\);/\1if (rows % 4 != 3) cut_in_flight(*request, rows, Cut::truncated);/'
plants "tests asan-ubsan" "a child has a row too few" src/storage/row_store.cc \
    's/const uint64_t entry_end = std::min\(entry\.end, end\);/const uint64_t entry_end = std::min(entry.end, end - 1);/'
plants "tests asan-ubsan" "a slice of a serialised routing begins a row late" src/routing/serialized.cc \
    's/select\(whole, first, rows ==/select(whole, first + (first > begin), rows ==/'
# The package.
plants python "a slice of a routing begins elsewhere" bindings/python/src/routecap/_routing.py \
    's/return self\.slice\(self\.first \+ start,/return self.slice(start,/'

echo "planted: $((planted - missed)) of $planted faults were noticed"
[ "$missed" = 0 ]
