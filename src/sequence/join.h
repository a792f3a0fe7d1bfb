// The rows of a sequence and those of a call put together, cell by cell.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sequence/own_rows.h"

namespace routecap {

// Positions [first, end).
struct RowRange {
    uint64_t first = 0, end = 0;
    bool has(uint64_t position) const { return position >= first && position < end; }
    bool operator==(const RowRange &) const = default;
};

// What is put together.
struct JoinedRows {
    std::span<const Segment> sequence;  // its rows before `kept` stay
    uint64_t kept;
    std::span<const Segment> call;
    RowRange taken;      // of the call's rows
    RowRange preferred;  // where a cell of the call's wins
};

// What became of it.
struct Joined {
    uint64_t first = 0;  // rows before it are the sequence's, as they were
    std::vector<Segment> segments;
    std::vector<RowRange> of_call;  // rows that are the call's now
    // As in routecap_append_report.
    uint64_t overlap = 0, differed = 0, first_differed = ROUTECAP_ROWS_ALL;
    uint64_t took = 0, boundary = 0, filled = 0, replaced = 0;
};

// Shares the sequence's rows and copies the call's. Returns false if the budget refuses; throws if
// the system has no memory.
bool join(const Storage &storage, const JoinedRows &rows, OwnRows &own, Joined &joined);

// Number of rows that are complete.
uint64_t complete_rows(const Shape &shape, const Segment &segment);

}  // namespace routecap
