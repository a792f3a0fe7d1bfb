#!/usr/bin/env bash
# Plants faults, one at a time, and says which suite of run.sh notices each, and by which tests.
#
#     planted.sh [PATTERN]
#
# In the project's root, without changes, after `bash tests/run.sh tsan asan-ubsan python`, whose
# builds it goes on with. PATTERN: only faults whose description matches. Of a suite each fault has
# the tests of one program, which is a minute instead of five. Tests that fail without a fault prove
# nothing, so these run first.
. dev/setup.sh
set +e
pattern=${1:-.}
git diff --quiet || { say "planted: there are changes"; exit 2; }
export TSAN_OPTIONS=halt_on_error=1 # the first race is enough
log=$(mktemp) && trap 'rm -f "$log"; git checkout --quiet -- src kernels bindings' EXIT
planted=0 missed=0 sound=' '

# passes SUITE TARGET TESTS: whether tests of a suite pass; 2 if they cannot be built.
passes() {
    local folder=$build/$1 options=()
    [ "$1" != asan-ubsan ] || folder=$build/asan_part options=(-LE '^slow$')  # as that suite has it
    cmake --build "$folder" -j "$jobs" --target "$2" > "$log" 2>&1 || { cat "$log"; return 2; }
    ctest --test-dir "$folder" -R "$3" "${options[@]}" -j "$jobs" --output-on-failure --no-tests=error > "$log" 2>&1
}
# passes_in_python FILE: whether a file of the package's tests passes, with the sources as they are.
passes_in_python() {
    local package=$build/planted
    rm -rf "$package" && cp -r "$build/python_package/unpacked" "$package" &&
        cp -r bindings/python/src/routecap "$package" &&
        PYTHONPATH=$package "$build/python_package/tested/bin/python" -m pytest -p no:cacheprovider -q --tb=no "$1" > "$log" 2>&1
}
# failures: the first names of tests that failed.
failures() {
    { sed -n -E '/Skipped/d; s/^\t *[0-9]+ - ([^ ]+) .*/\1/p' "$log"; sed -n -E 's/^FAILED [^:]*::([^ ]+).*/\1/p' "$log"; } | head -n 2 | paste -s -d ' '
}
# plants SUITE TARGET TESTS DESCRIPTION FILE SED_SCRIPT: the script must change the file.
plants() {
    local suite=$1 target=$2 tests=$3 description=$4 file=$5 script=$6 status
    local try=(passes "$suite" "$target" "$tests")
    [ "$suite" != python ] || try=(passes_in_python "$tests")
    [[ $description =~ $pattern ]] || return
    if [[ $sound != *" $suite $tests "* ]]; then
        "${try[@]}" || { cat "$log"; say "planted: $suite fails without a fault"; exit 1; }
        sound+="$suite $tests "
    fi
    sed -i -E "$script" "$file"
    ! git diff --quiet -- "$file" || { say "planted: could not apply to $file: $description"; exit 2; }
    "${try[@]}"
    status=$?
    git checkout --quiet -- "$file"
    planted=$((planted + 1))
    case $status in
        0) missed=$((missed + 1)); say "$description: not noticed by $suite" ;;
        2) say "planted: does not compile: $description"; exit 2 ;;
        *) say "$description: noticed by $suite: $(failures)" ;;
    esac
}

# Between threads.
plants tsan delayed '^delayed$' "a routing is ready before its rows are" src/routing/routing.cc \
    's/(ready_\.store\(true, std::memory_order_)release/\1relaxed/'
plants tsan delayed '^delayed$' "a page is given back before others have read it" src/rows/pages.cc \
    's/(references\.fetch_sub\(1, std::memory_order_)acq_rel/\1relaxed/'
plants tsan delayed '^delayed$' "the log is taken without a lock" src/capture/step_worker.cc \
    's/^        const Lock lock\(registry_\.mutex\);//'
plants tsan store '^store[.]' "a store is asked without its lock" src/prefix/store.cc \
    's/^    const Lock lock\(mutex_\);//'
# Bytes and memory.
plants asan-ubsan wire '^wire[.]' "the bound of an expert is one too high" src/wire/cells.cc \
    's/in_range &= plain < bound</in_range \&= plain <= bound</'
plants asan-ubsan plan '^plan[.]' "a filled cell reads behind the experts" src/plan/row_writer.cc \
    's/if \(number >= at\.experts\) number -= at\.experts;//'
plants asan-ubsan wire '^wire[.]' "half a row between two pieces of base64 is lost" src/wire/decoder.cc \
    's/rest -= taken, at \+= most;/rest = 0, at += most;/'
plants asan-ubsan vectors '^vectors$' "a reserved field may be anything" src/routing/serialized.cc \
    's/header\.values_dtype != 0 \|\| header\.reserved != 0/header.values_dtype != 0 || header.reserved > 255/'
# What the library does.
plants asan-ubsan fuzz_operations '^fuzz[.]operations$' "a truncate leaves what is in flight" src/capture/requests.cc \
    's/^( *)cut_in_flight\(request, rows\);/\1if (rows % 4 != 3) cut_in_flight(request, rows);/'
plants asan-ubsan api '^api[.]' "a child has a row too few" src/rows/row_store.cc \
    's/const uint64_t entry_end = std::min\(entry\.end, end\);/const uint64_t entry_end = std::min(entry.end, end - 1);/'
plants asan-ubsan fuzz_serialized '^fuzz[.]serialized$' "a slice of a serialised routing begins a row late" src/routing/serialized.cc \
    's/select\(ROUTECAP_PIECE_HEAD, whole, first,/select(ROUTECAP_PIECE_HEAD, whole, first + (first > begin),/'
plants asan-ubsan vectors '^vectors$' "an id out of range is called twice there" kernels/snapshot.h \
    's/: !in_range( +)\? ROUTECAP_MISSING_OUT_OF_RANGE/: false\1? ROUTECAP_MISSING_OUT_OF_RANGE/'
plants asan-ubsan vectors '^vectors$' "cells of a conflict are not counted" kernels/record.h \
    's/count\(&control->conflicts, 1\);/count(\&control->conflicts, 0);/'
plants asan-ubsan vectors '^vectors$' "a row that is filled keeps the newer tag" src/rows/merge.cc \
    's/to_tag = std::min\(to_tag, from_tag\);/to_tag = std::max(to_tag, from_tag);/'
plants asan-ubsan vectors '^vectors$' "drafts beyond a cut stay" src/capture/requests.cc \
    's/draft->cut = std::min\(draft->cut, rows\);/draft->cut = draft->cut;/'
plants asan-ubsan vectors '^vectors$' "a mask by layers is a row too narrow" src/routing/copy_out.cc \
    's/(\.mask_layer_stride = row_major \? 1 : static_cast<int64_t>\(rows\))/\1 - 1/'
plants asan-ubsan vectors '^vectors$' "rows behind the last segment are not in the form" src/routing/serialized.cc \
    's/for_all_rows\(routing\.first\(\), routing\.end\(\),/for_all_rows(routing.first(), routing.first(),/'
plants asan-ubsan vectors '^vectors$' "a block is as old as its newest row" src/prefix/landing.cc \
    's/any \? std::min\(b\.tag, tag\)/any ? std::max(b.tag, tag)/'
plants asan-ubsan vectors '^vectors$' "what a key has is overlooked" src/prefix/landing.cc 's/if \(s_\.slot_keys\(\)\) return;/return;/'
plants asan-ubsan vectors '^vectors$' "a cell that a shared block got is not there" src/rows/merge.cc \
    's/shape\.set_valid\(to, l\);//'
plants asan-ubsan vectors '^vectors$' "the boundary of two calls is a row late" src/sequence/join.cc \
    's/const uint64_t boundary = rows_\.kept - 1;/const uint64_t boundary = rows_.kept;/'
plants asan-ubsan api '^api[.]' "a page that a request has is charged again" src/capture/issue.cc \
    's/end_page - first_page - has_own/end_page - first_page - 0 * has_own/'
plants asan-ubsan api '^api[.]' "rows anywhere are charged two pages" src/capture/issue.cc \
    's/(end_page - first_page - has_own), span\.rows/\1, 2/'
plants asan-ubsan api '^api[.]' "the most memory in use is not noted" src/rows/pages.cc \
    's/^ *note_peak\(used \+ bytes\);//'
plants asan-ubsan store '^store[.]' "a block that goes is paid for" src/prefix/store.cc \
    's/^( *)pool_->unreserve\(block_bytes_\);/\1;/'
# The package.
plants python - bindings/python/tests/test_routing.py "a slice of a routing begins elsewhere" \
    bindings/python/src/routecap/_routing.py 's/return self\.slice\(self\.first \+ start,/return self.slice(start,/'

say "planted: $((planted - missed)) of $planted faults were noticed"
[ "$missed" = 0 ]
