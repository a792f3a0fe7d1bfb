// Which cells of a range of rows are missing, as blocks.
#pragma once

#include <cstdint>
#include <span>

#include "routecap.h"
#include "rows.h"
#include "shape.h"

namespace routecap {

// Counts the missing cells of rows [first, first + rows), of which `segments` are there, and writes the first `capacity` blocks of them, each
// into missing_size bytes. Sets all of `coverage` but struct_size and length.
void cover(const Shape &shape, uint64_t first, uint64_t rows, std::span<const Segment> segments, routecap_coverage &coverage,
           routecap_missing *missing, size_t missing_size, size_t capacity);

// The status of a coverage, with its line of text.
int32_t report_missing(const routecap_coverage &coverage);

// The status of reading these rows, with its line of text.
int32_t reading_status(const Shape &shape, uint64_t first, uint64_t rows, std::span<const Segment> segments) noexcept;

}  // namespace routecap
