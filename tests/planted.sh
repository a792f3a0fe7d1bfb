#!/usr/bin/env bash
# Plants faults, one at a time, and says which suite of run.sh notices each, and by which tests.
#
#     planted.sh [PATTERN]
#
# In the project's root, without changes, after `bash tests/run.sh tsan asan-ubsan python`, whose
# builds it goes on with. PATTERN: only faults whose program and description, with a colon between
# them, match: '^fewer:' has those of one program. Of a suite each fault has the tests of one program,
# which is a minute instead of five. Tests that fail without a fault prove nothing, so these run first.
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
    case $1 in
        asan-ubsan) folder=$build/asan_part options=(-LE '^slow$') ;;  # as that suite has it
        tests) folder=$build/asan_part ;;  # which has the slow ones too, without a sanitizer
    esac
    # shellcheck disable=SC2086 # some have two targets
    cmake --build "$folder" -j "$jobs" --target $2 > "$log" 2>&1 || { cat "$log"; return 2; }
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
    [[ "$target: $description" =~ $pattern ]] || return
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
    's/if \(number >= at\.rule\.experts\) number -= at\.rule\.experts;//'
plants asan-ubsan wire '^wire[.]' "half a row between two pieces of base64 is lost" src/wire/decoder.cc \
    's/rest -= taken, at \+= most;/rest = 0, at += most;/'
plants asan-ubsan vectors '^vectors$' "a reserved field may be anything" src/routing/serialized.cc \
    's/if \(header\.reserved != 0\)/if (header.reserved > 255)/'
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
    's/std::min\(to_tag, from_tag\)/std::max(to_tag, from_tag)/'
plants asan-ubsan vectors '^vectors$' "drafts beyond a cut stay" src/capture/requests.cc \
    's/draft->cut = std::min\(draft->cut, rows\);/draft->cut = draft->cut;/'
plants asan-ubsan vectors '^vectors$' "a mask by layers is a row too narrow" src/routing/copy_out.cc \
    's/(\.mask_layer_stride = row_major \? 1 : static_cast<int64_t>\(rows\))/\1 - 1/'
plants asan-ubsan vectors '^vectors$' "rows behind the last segment are not in the form" src/routing/serialized.cc \
    's/for_all_rows\(routing\.first\(\), routing\.end\(\),/for_all_rows(routing.first(), routing.first(),/'
plants asan-ubsan vectors '^vectors$' "a block is as old as its newest row" src/prefix/landing.cc \
    's/any \? std::min\(b\.tag, tag\)/any ? std::max(b.tag, tag)/'
plants asan-ubsan vectors '^vectors$' "what a key has is overlooked" src/prefix/landing.cc 's/if \(s_\.slot_keys\(\)\) return;/return;/'
plants asan-ubsan vectors '^vectors$' "a cell that a shared block got is not there" src/base/shape.h \
    's/^        set_valid\(to, layer\);//'
plants asan-ubsan vectors '^vectors$' "the boundary of two calls is a row late" src/sequence/join.cc \
    's/const uint64_t boundary = rows_\.kept - 1;/const uint64_t boundary = rows_.kept;/'
plants asan-ubsan api '^api[.]' "a page that a request has is charged again" src/capture/issue.cc \
    's/end_page - first_page - has_own/end_page - first_page - 0 * has_own/'
plants asan-ubsan api '^api[.]' "a draft that was accepted and cut in flight counts for no length" src/rows/row_store.cc \
    's/if \(position < std::min\(draft\.cut, kPast\)\) progress\.filing_places\(position \+ 1\);//'
plants asan-ubsan api '^api[.]' "nothing is freed before the steps in flight have landed" src/capture/step_worker.cc \
    's/if \(!ready\) release_early\(entry\);//'
plants asan-ubsan api '^api[.]' "rows in a page that was taken are charged nothing" src/capture/reader.cc \
    's/if \(take\) request\.own_page = Request::kNone;//'
plants tests api '^api[.]Promises' "rows that a child has are written without a charge" src/capture/requests.cc \
    's/^( *)parent\.share\(rows\);//'
plants asan-ubsan api '^api[.]' "rows anywhere are charged two pages" src/capture/issue.cc \
    's/(end_page - first_page - has_own), span\.rows/\1, 2/'
plants asan-ubsan api '^api[.]' "the most memory in use is not noted" src/rows/pages.cc \
    's/^ *note_peak\(used \+ bytes\);//'
plants asan-ubsan store '^store[.]' "a block that goes is paid for" src/prefix/store.cc \
    's/^( *)pool_->unreserve\(block_bytes_\);/\1;/'
# Cells that need not have k experts, and layers that are visited again.
fewer() { plants asan-ubsan fewer '^fewer[.]' "$@"; }
fewer "a cell may have fewer experts than the least" src/base/shape.h \
    's/while \(n > rules\[layer\]\.least \&\& /while (n > 0 \&\& /'
fewer "a shape is uniform whatever the least" src/base/shape.h 's/layers\.k\[l\] != k \|\| layers\.least\[l\] != k/layers.k[l] != k/'
fewer "a byte holds 256 experts and the mark of none" src/base/shape.h 's/is_uniform\(k, layers\) \? 256 : 255/256/'
fewer "layers have no visits" src/base/shape.h 's/return \{map\[l\], visit\[l\]\}/return {map[l], 0}/'
fewer "columns without an expert are not marked in a record" kernels/snapshot.h \
    's/c < k; c\+\+\) out\[c\] = kUnused<Id>;/c < k; c++) out[c] = 0;/'
fewer "the snapshot asks for no least" kernels/snapshot.h 's/while \(used > rule\.least \&\& /while (used > 0 \&\& /'
fewer "the snapshot looks for distinct ids in all columns" kernels/snapshot.h \
    's/distinct<Id, K>\(out\.id, used\)/distinct<Id, K>(out.id, width)/'
fewer "a source does not say that no expert was chosen" kernels/record.h 's/return kNoExpert;/return kInvalidId;/'
fewer "what a source says of no expert goes through its table" kernels/record.h \
    's/if \(K == 0 \&\& source\.none != 0 \&\& id == source\.none\)/if (K == 0 \&\& layer.table == nullptr \&\& source.none != 0 \&\& id == source.none)/'
fewer "the none of a source is signed in all dtypes" src/capture/record.cc 's/is_unsigned = s\.dtype == /is_unsigned = 0 == /'
fewer "a source says that no expert was chosen where one must be" src/capture/record.cc \
    's/s\.none != 0 \&\& !may_be_fewer/false/'
fewer "a sink that is given out has the k of all layers" src/backend/sink.cc 's/\.k = l\.rule\.k,/.k = shape_.k,/'
fewer "a sink is bound with the k of all layers" src/backend/sink.cc 's/k = layers_\[first_layer\].rule\.k;/k = shape_.k;/'
fewer "logits choose k experts in each layer" src/backend/host/host_backend.cc 's/logits, sink\.rule\.k, sink,/logits, shape_->k, sink,/'
fewer "columns without an expert are counted in the load" src/load/load_counter.cc \
    's/used = shape_->count\(rows, l\);/used = shape_->of.k[l];/'
fewer "a copy fills columns without an expert" src/routing/copy_out.cc 's/there \? plan\.none : plan\.fill/plan.fill/'
fewer "a missing cell of a copy looks like one without experts" src/routing/copy_out.cc \
    's/if \(!shape\.uniform \&\& mask == nullptr \&\& written ==/if (shape.experts == 0 \&\& written ==/'
fewer "a column without an expert looks like one in a copy" src/routing/copy_out.cc 's/limit\.written\(o\.none\) < shape\.experts/shape.experts == 0/'
fewer "an array has experts behind the last" src/routing/import.cc 's/good \&= ids\[c\] == kernels::kUnused<Id>;/;/'
fewer "a wider routing has zeros without an expert" src/routing/routing.cc 's/(used\} \* to_\.id_bytes, )0xff,/\10,/'
fewer "cells of different counts are the same" src/base/shape.cc 's/return n == count_ids\(y, layer\) \&\&/return/'
fewer "layers of different rules are merged" src/routing/routing.cc \
    's/if \(s\.rules\[l\] != layer\.of->rules\[layer\.layer\]\) return nullptr;//'
fewer "a file has no least" src/routing/serialized.cc 's/shape\.of\.least\[l\], /shape.of.k[l], /'
fewer "a file has no visits" src/routing/serialized.cc 's/shape\.of\.visit\[l\]\};/0};/'
fewer "a plan copies the marks of columns without an expert" src/plan/row_writer.cc 's/if constexpr \(K == 0\) mark_unused\(to, from, l\);//'
fewer "a plan fills k columns in each layer" src/plan/row_writer.cc 's/used = plan_\.layers\(\)\[layer\]\.rule\.k;/used = plan_.k();/'
fewer "a plan counts k experts in each layer" src/plan/row_writer.cc 's/const uint32_t k = at\.rule\.k;/const uint32_t k = plan_.k();/'
fewer "an upload has the marks of columns without an expert" kernels/unpack.h \
    's/(wide\[c - 1\] = static_cast<T>\()header\.filler\.none_value\)/\1narrow[c - 1])/'
fewer "an upload fills k columns in each layer" kernels/unpack.h 's/used = columns<K>\(at\.rule\.k\), /used = columns<K>(shape.k), /'
fewer "a plan takes layers of other rules" src/plan/sources.cc 's/if \(rule != plans\)/if (rule.experts != plans.experts)/'
fewer "a lost cell of a plan looks like one without experts" src/plan/plan.cc 's/\(!ids_->uniform \&\& written == /(false \&\& written == /'
fewer "a scattered cell may have fewer than the least" src/plan/scatter.cc 's/while \(used > rule\.least \&\& /while (used > 0 \&\& /'
fewer "a scattered cell may have more than its layer" src/plan/scatter.cc 's/in_range = used <= rule\.k;/in_range = true;/'
# Weights beside the ids. What becomes of cells is in `api`, and of steps in `recording`.
weights() { plants asan-ubsan recording '^recording[.]Weights' "$@"; }
weights_of_rows() { plants asan-ubsan api '^api[.]WeightsFollowTheirIds' "$@"; }
weights "a weight of the last step stands beside an id of this one" kernels/weights.h 's/ to\[b\] = 0xffff;/;/'
weights "weights are those of who was second" kernels/weights.h \
    's/const int64_t row = record\.put\(l, i\);/record.put(l, i); const int64_t row = record.source.to.target(i);/'
weights "a weight that is no number is delivered" kernels/weights.h 's/there \&= !nan\.is_nan\(cell\[c\]\);/;/'
weights "a cell without ids has weights" kernels/weights.h 's/there = valid \&\& \(there \|\| used == 0\);/there = there || used == 0;/'
weights "columns without an expert keep their weights" kernels/weights.h 's/if \(!there \|\| c >= used\) /if (!there) /'
plants tsan 'recording fake_cuda' '^cuda[.]recording$' "a whole step has the weights of the columns of the layer before" kernels/weights.h \
    's/const CellRule rule = this->rules\[layer\];/const CellRule rule = this->rules[layer - (layer > 0)];/'
weights "a column without an expert is an expert in the load" src/load/load_counter.cc \
    's/used = shape_->count\(rows, l\);/used = shape_->of.k[l];/'
weights_of_rows "weights of bytes are not looked at" src/routing/import.cc \
    's/if \(int32_t s = check_weights\(row, position\); s < 0\) return s;/{}/'
weights_of_rows "a weight of bytes may be no number" src/routing/import.cc 's/good \&= !nan\.is_nan\(bits\);/;/'
weights_of_rows "a cell has the weights of the row that lost" src/rows/merge.cc \
    's/if \(shape\.valid\(to, l\)\) continue;/if (shape.valid(to, l)) { if (shape.weighted(from, l)) std::memcpy(shape.weights(to, l), shape.weights(from, l), shape.weights_cell_bytes()); continue; }/'
plants asan-ubsan vectors '^vectors$' "a cell comes without its weights" src/base/shape.h 's/if \(!weighted\(from, layer\)\) return;/return;/'
weights_of_rows "a wider routing has no weights" src/routing/routing.cc 's/if \(!from_\.weighted\(row, l\)\) continue;/continue;/'
weights_of_rows "a plan has the weights of the row behind" src/plan/gather_weights.cc 's/piece\.at\(r\) :/piece.at(r + (r + 1 < piece.rows)) :/'
# The package.
plants python - bindings/python/tests/test_routing.py "a slice of a routing begins elsewhere" \
    bindings/python/src/routecap/_routing.py 's/return self\.slice\(self\.first \+ start,/return self.slice(start,/'

say "planted: $((planted - missed)) of $planted faults were noticed"
[ "$missed" = 0 ]
