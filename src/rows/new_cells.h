// Who counts what the rows of requests hold: hears of each cell that becomes valid by filing.
#pragma once

#include <cstdint>

#include "base/phase.h"
#include "rows/pages.h"

namespace routecap {

struct RowSource;

// Called by whoever files, also with the mutex of a request's rows: nothing here allocates.
class NewCells {
public:
    virtual ~NewCells() = default;
    // Rows of which nothing was there. What the source points to must stay until they are counted.
    virtual void add(const RowSource &rows, uint64_t count, uint64_t tag, Phase phase) noexcept = 0;
    // The valid cells of one row but for those of `known`, another row's validity, which is not
    // looked at later.
    virtual void add_missing(const RowSource &row, const uint8_t *known, uint64_t tag,
                             Phase phase) noexcept = 0;
    // Keeps a page until what was added is counted.
    virtual void hold(PageRef page) noexcept = 0;
};

// Where a row's cells are counted, if they are.
struct Counting {
    NewCells *cells = nullptr;
    Phase phase = Phase::none;
    bool counts() const { return cells != nullptr && phase != Phase::none; }
};

}  // namespace routecap
