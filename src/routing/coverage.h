// Which cells of a range of rows are missing, as blocks.
#pragma once

#include <cstdint>
#include <span>

#include "base/shape.h"
#include "routecap.h"
#include "rows/row_store.h"

namespace routecap {

// Calls f(segment) for all rows [first, end), in order: rows in no segment are in one of their own,
// without a page.
template <class F>
void for_all_rows(uint64_t first, uint64_t end, std::span<const Segment> segments, F f) {
    const auto absent_until = [&](uint64_t to) {
        if (first < to) f(Segment::not_there(first, to - first, ROUTECAP_MISSING_ABSENT));
    };
    for (const Segment &segment : segments) {
        absent_until(segment.first);
        f(segment);
        first = segment.end();
    }
    absent_until(end);
}

// Where blocks of missing cells are written: the first `capacity` of them, of `size` bytes each.
struct MissingBlocks {
    routecap_missing *missing = nullptr;
    size_t size = 0, capacity = 0;
};
// Counts the missing cells of rows [first, first + rows) of `length`. Rows that no segment has are
// missing.
routecap_coverage cover(const Shape &shape, uint64_t first, uint64_t rows, uint64_t length,
                        std::span<const Segment> segments, const MissingBlocks &to = {});

// The status of a coverage, with its line of text.
int32_t report_missing(const routecap_coverage &coverage);

// Reads the flags of a call that reads; unknown ones are an error.
struct Strictness {
    bool complete;  // no cell may be missing
    bool captured;  // none may be recomputed
};
int32_t read_flags(uint32_t flags, Strictness &strictness);
// Refuses rows with a recomputed layer in [first_layer, end_layer), if the strictness says so.
int32_t check_provenance(const Shape &shape, uint32_t first_layer, uint32_t end_layer,
                         uint64_t rows, Strictness strictness);

// The status of reading these rows, with its line of text.
int32_t reading_status(const Shape &shape, uint64_t first, uint64_t rows,
                       std::span<const Segment> segments) noexcept;

}  // namespace routecap
