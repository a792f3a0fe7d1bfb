#!/usr/bin/env bash
# Proves the fuzz targets: breaks the library in copies, one way each, and expects the target to
# notice with its corpus and inputs drawn at random.
#
#   prove.sh [COMPILER [PATTERN]]     PATTERN: only breaks whose description matches
set -u
cd "$(dirname "$0")/../.."
compiler=${1:-c++} pattern=${2:-.}
targets=(serialized operations wire sequence)
tree=$PWD/build/fuzz_proof
log=$tree/log
rm -rf "$tree/"{src,kernels,include,tests}
mkdir -p "$tree" && cp -r CMakeLists.txt pkgconfig src kernels include tests LICENSE "$tree" &&
    cmake -S "$tree" -B "$tree/build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=Debug \
        -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DROUTECAP_CUDA=OFF -DROUTECAP_TESTS=ON > "$log" || { cat "$log"; exit 2; }

broken=0 missed=0
# built TARGET...: the fuzz targets, with the library as it is in the copy.
built() { cmake --build "$tree/build" -j "$(nproc)" --target "${@/#/fuzz_}" > "$log" 2>&1; }
# notices TARGET: whether the target fails. One that does not end has noticed nothing.
notices() {
    local status
    timeout 900 "$tree/build/tests/fuzz/fuzz_$1" --generated 6000 "tests/fuzz/corpus/$1.inputs" > "$log" 2>&1
    status=$?
    [ $status != 124 ] || { echo "fuzz: $1 took more than 15 minutes"; exit 2; }
    [ $status != 0 ]
}
# breaks TARGET DESCRIPTION FILE SED_SCRIPT: the script must change its file.
breaks() {
    local target=$1 description=$2 file=$3 script=$4
    [[ $description =~ $pattern ]] || return
    sed -i -E "$script" "$tree/$file"
    cmp -s "$file" "$tree/$file" && { echo "fuzz: could not apply to $file: $description"; exit 2; }
    built "$target" || { cat "$log"; echo "fuzz: this break does not compile: $description"; exit 2; }
    broken=$((broken + 1))
    if notices "$target" 2> /dev/null; then
        echo "caught: $description: $(grep -a -m 1 -E 'difference|ERROR|terminate' "$log" | cut -c1-110)"
    else
        missed=$((missed + 1))
        echo "MISSED: $description"
    fi
    cp "$file" "$tree/$file"
}

built "${targets[@]}" || { cat "$log"; echo "fuzz: the targets do not compile"; exit 2; }
for target in "${targets[@]}"; do
    notices "$target" 2> /dev/null && { cat "$log"; echo "fuzz: $target fails with the library as it is"; exit 1; }
done

# The lines of the table at the top of src/capture/step_worker.cc: what a call does to the rows before
# it, and who meets whom.
breaks operations "rows of a lost step are refused" src/capture/issue.cc \
    's/issue\.lost \? ROUTECAP_MISSING_LOST :/false ? ROUTECAP_MISSING_LOST :/'
breaks operations "all drafts are kept" src/rows/row_store.cc \
    's/const bool keep = kept\.empty\(\) \? index < keep_first/const bool keep = kept.empty() ? index <= keep_first/'
breaks operations "a truncate is forgotten" src/capture/requests.cc \
    's/^( *)(state_->registry\.append\(request\.after\(\), Truncate\{)/\1if (rows % 4 != 3) \2/'
breaks operations "a child has a row too few" src/rows/row_store.cc \
    's/const uint64_t entry_end = std::min\(entry\.end, end\);/const uint64_t entry_end = std::min(entry.end, end - 1);/'
breaks operations "drafts are published before they are settled" src/capture/prefixes.cc \
    's/std::min\(d->cut, d->position_end\) > item\.first/std::min(d->cut, d->position_end) > item.first + 2/'
breaks operations "an adopter waits for every step" src/capture/prefixes.cc \
    's/inherit\(after\)/inherit(state_->steps.issued())/'
breaks operations "what a store is to get is taken" src/capture/reader.cc 's/^( *)if \(take\)$/\1if (false)/'
breaks operations "finish cuts a row too many" src/capture/requests.cc \
    's/all \? length : rows, all\}/all ? length : rows - (rows > 3), all}/'
breaks operations "drafts of a closed request are provisional for ever" src/capture/step_worker.cc \
    's/count_settled\(rows\.drop_drafts\(0\)\);/rows.drop_drafts(0);/'
breaks operations "what was cut waits for the call before" src/capture/request_table.h \
    's/^( *)newest_change\.end = std::min\(newest_change\.end, end\);//'
breaks operations "calls that wait hold up what is between them" src/capture/request_table.h \
    's/\(\(newest\.after == change\.after && newest\.touches\(change\)\)/((newest.number != 0)/'
breaks operations "a truncate leaves what is in flight" src/capture/requests.cc \
    's/^( *)cut_in_flight\(request, rows\);/\1if (rows % 4 != 3) cut_in_flight(request, rows);/'
breaks operations "late rows are filed" src/capture/step_worker.cc 's/position >= landed\.cut\) \{/position >= landed.cut + 1) {/'
breaks operations "rows in flight that a child is to have are late" src/capture/requests.cc \
    's/if \(request\.has_rare\) from = .*;//'
breaks operations "what is cut after a fork is filed for it" src/capture/request_table.h \
    's/if \(step <= lending\.step\) end = /end = /'
breaks operations "a draft that was cut counts when it is accepted" src/capture/requests.cc \
    's/draft->cut = std::min\(draft->cut, rows\);/draft->cut = draft->cut;/'
breaks operations "a row that is cut in flight counts for no length" src/capture/step_worker.cc \
    's/if \(from_device\) span\.rows->progress\.filing_places\(landed\.cut\);//'
breaks operations "a truncate forgets what it cut of the length" src/rows/row_store.cc \
    's/progress\.filing_truncates\(end\);//'
breaks operations "a device may place rows anywhere" src/capture/step_worker.cc \
    's/if \(from_device && \(position < span\.position .*/if (false) {/'
breaks operations "drafts behind the end of a finished request are late" src/capture/requests.cc \
    's/if \(finished && span\.speculative\)/if (false)/'
# The rest.
breaks operations "everything is reported missing" src/rows/page_entry.cc \
    's/^( *)page->set_tags\(row\(position\), rows, filing\.tag\);/&\n\1std::memset(shape->validity(at(position)), 0, shape->validity_bytes);/'
breaks operations "rows of another are taken" src/capture/step_worker.cc \
    's|layout\.at\(contents\.slot, s\.sink_row\)|layout.at(contents.slot, s.sink_row / 2 * 2)|'
breaks operations "a span's status is lost" src/capture/issue.cc \
    's/if \(status != nullptr\) status\[i\] = s;/if (status != nullptr \&\& i != 1) status[i] = s;/'
breaks operations "a tag is lost" src/rows/pages.h \
    's/std::fill_n\(tags \+ first, n, number/std::fill_n(tags + first, n - (n > 1), number/'
breaks operations "the policy is not looked at" src/rows/page_entry.cc \
    's/if \(filing\.replace \&\& /if (false \&\& /'
breaks operations "the second write wins" src/rows/merge.cc \
    's/if \(shape\.valid\(to, l\)\) continue;//'
breaks operations "overlapping rows are not counted" src/rows/page_entry.cc \
    's/filed\.overlapped \+= meeting\.overlap;/filed.overlapped += meeting.overlap \&\& !empty \&\& differ(*shape, to, source);/'
breaks operations "rows in flight can be read" src/capture/reader.cc \
    's/if \(in_flight < first \+ rows\)/if (in_flight + 1 < first + rows)/'
breaks operations "a routing changes when its request does" src/rows/page_entry.cc \
    's/return own && from >= lent_end;/return own;/'
breaks operations "a conflict is overlooked" src/base/shape.cc \
    's/std::all_of\(x, x \+ n,/std::any_of(x, x + n,/'
breaks operations "an id twice is valid" kernels/snapshot.h \
    's/if \(in_range && distinct<Id, K>\(out\.id, used\)\) return 0;/if (in_range) return 0;/'
breaks operations "what was there is counted again" src/load/load_counter.cc \
    's/ \|\| \(known != nullptr \&\& shape_->valid\(known, l\)\)\) continue;/) continue;/'
breaks operations "drafts that prefill are decode" src/capture/step_worker.cc 's/landed\.step\.tag, span\.phase,/landed.step.tag, Phase::decode,/'
breaks operations "rows of older weights are published" src/prefix/landing.cc 's/else if \(number\(b\.tag\) < p_\.generation_\)/else if (false)/'
breaks operations "rows of older weights stay" src/prefix/store.cc \
    's/return generation == 0 \|\| number\(pages_\.least_tag\(block\.place\)\) >= generation;/return true;/'
breaks operations "a row is as old as its first cell" src/rows/merge.cc 's/std::min\(to_tag, from_tag\)/from_tag/'
breaks operations "old weights are compared with new ones" src/prefix/landing.cc \
    's/const bool stale = b\.outcome == Outcome::stale \|\| .*;/const bool stale = b.outcome == Outcome::stale;/'
breaks operations "a block is retained once too often" src/prefix/store.cc 's/if \(block\.retained\+\+ > 0\) return;/if (block.retained++ > 1) return;/'
breaks operations "a shared sink row is counted twice" src/capture/issue.cc \
    's/std::popcount\(again & ~word\.again\)/std::popcount(again)/'
breaks operations "one of two spans may share a sink row" src/capture/issue.cc \
    's/word\.alone \|= shared\(span\) \? 0 : rows;//'
breaks serialized "ids of foreign bytes are not looked at" src/routing/import.cc \
    's/if \(good && kernels::distinct<Id, K>\(ids, used\)\) continue;/continue;/'
breaks serialized "padding may be anything" kernels/row_layout.h 's/^    return any == 0;/    return any <= 255;/'
breaks serialized "a reserved field may be anything" src/routing/serialized.cc \
    's/if \(header\.reserved != 0\)/if (header.reserved > 255)/'
breaks wire "one id too many is an expert" src/wire/cells.cc 's/in_range &= plain < bound</in_range \&= plain <= bound</'
breaks wire "a cell of zeros is an expert" src/wire/cells.cc \
    's/if \(!distinct_\.all\(ids, shape\.layers\)\)/if (ids[0] != 0 \&\& !distinct_.all(ids, shape.layers))/'
breaks wire "a piece of a few bytes is lost" src/wire/decoder.cc 's/kept_\.insert\(kept_\.end\(\), at, at \+ bytes\);/if (bytes > 2) kept_.insert(kept_.end(), at, at + bytes);/'
breaks sequence "a row in the place of the last token's is taken" src/sequence/sequence.cc 's/return end > 0 \? end - 1 : 0;/return end;/'
breaks sequence "rows stay one token too long where tokens differ" src/sequence/sequence.cc 's/const uint64_t kept = call\.diverges \? call\.common :/const uint64_t kept = call.diverges ? call.common + 1 :/'
breaks sequence "the newest row stays" src/sequence/join.cc 's/const Side \&winner = preferred \? now : old/const Side \&winner = !preferred ? now : old/'
breaks sequence "a page's next rows are written over those before" src/sequence/own_rows.cc 's/^( *)used_ \+= n;/\1used_ += n \/ 2;/'
breaks sequence "digests are not looked at" src/sequence/token_digests.cc 's/if \(digest != digests\[i\]\) return/if (false) return/'
breaks sequence "spans may name rows that are not there" src/sequence/sequence.cc 's/if \(named != joined\.of_call\)/if (false)/'
breaks serialized "a slice begins a row late" src/routing/serialized.cc 's/select\(ROUTECAP_PIECE_HEAD, whole, first,/select(ROUTECAP_PIECE_HEAD, whole, first + (first > begin),/'

echo "fuzz: $((broken - missed)) of $broken deliberate breaks were caught"
[ "$missed" = 0 ]
