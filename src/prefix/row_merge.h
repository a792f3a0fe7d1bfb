// A row of a block meets the same row of another publisher.
#pragma once

#include "base/shape.h"

namespace routecap {

// Cells that a row lacks come from another, and its tag becomes the least of those whose cells it
// has. Of two reasons for a cell that both lack the higher stands. A row that is not there adds
// nothing.
void merge_row(const Shape &shape, uint8_t *to_ids, uint8_t *to_validity, uint64_t &to_tag,
               const uint8_t *from_ids, const uint8_t *from_validity, uint64_t from_tag);

}  // namespace routecap
