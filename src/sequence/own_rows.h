// Rows that a sequence has copied: pages of its own, filled from the front.
#pragma once

#include <cstdint>
#include <vector>

#include "rows/row_store.h"

namespace routecap {

// Adds rows to a list, to its last segment if they continue it.
void push(std::vector<Segment> &segments, Segment rows);

// To add rows atomically, copy this object, add to the copy, and replace the original when all has
// succeeded. Until then no reader sees the added rows. Exactly one sequence may own it.
class OwnRows {
public:
    // Copies rows that are there to `segments`. False if the budget refuses; throws without memory.
    bool copy(const Storage &storage, const Segment &rows, std::vector<Segment> &segments);
    // The same of one row.
    bool add(const Storage &storage, uint64_t position, const uint8_t *row, Tag tag,
             std::vector<Segment> &segments);

private:
    bool make_room(const Storage &storage, uint64_t rows);

    PageRef page_;
    uint32_t used_ = 0;  // rows of it
};

}  // namespace routecap
