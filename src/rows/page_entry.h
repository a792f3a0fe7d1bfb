// One page of a request's table: which of its rows belong to the request, which of these other
// holders may see, and what filing a row into it does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "load/phase.h"
#include "routecap.h"
#include "rows/pages.h"

namespace routecap {

// How many rows ended in which way. Each row is in one of the first eight counts.
struct RowOutcomes {
    uint64_t delivered = 0;
    uint64_t missing = 0;
    uint64_t refused = 0;
    uint64_t rejected = 0;
    uint64_t late = 0;
    uint64_t unplaced = 0;
    uint64_t lost = 0;  // their step's copy failed
    uint64_t provisional = 0;
    uint64_t overlapped = 0;  // of the delivered
    uint64_t mismatched = 0;  // of the overlapped

    RowOutcomes &operator+=(const RowOutcomes &o) {
        delivered += o.delivered, missing += o.missing, refused += o.refused,
            rejected += o.rejected;
        late += o.late, unplaced += o.unplaced, lost += o.lost, provisional += o.provisional;
        overlapped += o.overlapped, mismatched += o.mismatched;
        return *this;
    }
};

class LoadCounter;

// What holds for all rows of a call.
struct Filing {
    Tag tag;
    bool replace = false;  // a row replaces what is there; otherwise the first write stays
    bool compare = false;  // rows that meet others are compared with them
    // Pages that are paid for, of rows that were accepted; others ask the budget.
    uint32_t *charge = nullptr;
    LoadCounter *load = nullptr;  // of cells that become valid; null: nobody counts
    Phase phase = Phase::none;

    bool counts() const { return load != nullptr && phase != Phase::none; }
};

// Consecutive rows in one page that a holder may read; or, without a page, consecutive rows that
// are missing for one reason. Rows in the gaps of a list of segments are ABSENT.
struct Segment {
    PageRef page;
    uint32_t page_row;
    uint64_t first;  // position
    uint64_t rows;
    bool complete;       // true only if no cell is missing
    int32_t reason = 0;  // without a page: a reason of whole rows (is_row_reason), not ABSENT

    static Segment not_there(uint64_t first, uint64_t rows, int32_t reason) {
        return {PageRef(), 0, first, rows, false, reason};
    }

    uint64_t end() const { return first + rows; }
    // Rows [from, to) of it.
    Segment part(uint64_t from, uint64_t to) const {
        return {page,     page ? static_cast<uint32_t>(page_row + (from - first)) : 0,
                from,     to - from,
                complete, reason};
    }
    const uint8_t *row(uint64_t n = 0) const { return page->row(page_row + n); }
    Tag tag(uint64_t n) const { return page->tag(page_row + n); }
};

// Positions [index * page_rows, (index + 1) * page_rows) of a request.
struct PageEntry {
    const Shape *shape;
    uint64_t index;
    uint64_t origin;  // position of the page's row 0
    uint64_t first;   // the request's rows are [first, end); other rows of the page do not count
    uint64_t end;
    PageRef page;
    bool own = false;  // this table made the page, so it may write rows that were not lent
    // Rows before this other holders may see, as long as the page has other holders.
    uint64_t lent_end = 0;
    uint32_t incomplete = 0;  // rows of [first, end) that lack a cell

    bool complete() const { return incomplete == 0; }
    uint32_t row(uint64_t position) const { return static_cast<uint32_t>(position - origin); }
    uint8_t *at(uint64_t position) const { return page->row(row(position)); }
    // Counts the rows of [from, to) that lack a cell.
    uint32_t count_incomplete(uint64_t from, uint64_t to) const;
    // Only rows of [from, to) still count.
    void narrow(uint64_t from, uint64_t to);

    // ---- Lending

    Segment segment(PageRef of, uint64_t from, uint64_t to) const {
        return {std::move(of), row(from), from, to - from, complete()};
    }
    // Notes that other holders will see rows before `to`.
    void note_lent(uint64_t to);
    // Whether rows at and after `from` may be written in place.
    bool writable(uint64_t from);

    // ---- Filing, of rows whose positions belong to this page

    // Whether they go into a copy of the page, because other holders may see what they change.
    bool needs_copy(uint64_t position, const uint8_t *source, uint64_t rows, const Filing &filing);
    // Files the rows at `source`, and adds how they ended to `filed`.
    void file(uint64_t position, const uint8_t *source, uint64_t rows, const Filing &filing,
              RowOutcomes &filed);
    // Copies the rows into the page `to`.
    PageEntry copy(PageRef to) const;
    // Makes rows of [first, end) ABSENT.
    void clear(uint64_t from, uint64_t to);

private:
    bool changes(uint64_t position, const uint8_t *source, const Filing &filing) const;
    void file_onto(uint64_t position, const uint8_t *source, const Filing &filing,
                   RowOutcomes &filed);
    void add(uint64_t position, const uint8_t *source, uint64_t rows, const Filing &filing,
             RowOutcomes &filed);
    void add_absent(uint64_t from, uint64_t to);
};

}  // namespace routecap
