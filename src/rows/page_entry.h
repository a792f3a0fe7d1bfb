// One page of a request's table: which of its rows are visible, which of them others may see, and
// what filing rows into it does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "routecap.h"
#include "rows/pages.h"

namespace routecap {

// Whether the load counts rows as prefill or as decode.
enum class Phase : uint8_t {
    prefill = ROUTECAP_PHASE_PREFILL,
    decode = ROUTECAP_PHASE_DECODE,
    none,  // they are not counted
};

// Rows to be filed, one after another in memory. Validity may run backwards, as it does in a slot.
struct RowSource {
    const uint8_t *ids;
    const uint8_t *validity;
    ptrdiff_t ids_stride;
    ptrdiff_t validity_stride;

    const uint8_t *ids_of(uint64_t row) const {
        return ids + static_cast<ptrdiff_t>(row) * ids_stride;
    }
    const uint8_t *validity_of(uint64_t row) const {
        return validity + static_cast<ptrdiff_t>(row) * validity_stride;
    }
    RowSource from(uint64_t row) const {
        return {ids_of(row), validity_of(row), ids_stride, validity_stride};
    }
};

// What became of rows. A row is delivered, missing (no valid cell), refused (no memory), rejected
// (a draft), late, without a place, or provisional (a draft that waits).
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

// Counts the cells that become valid in requests. Whoever files calls it, also with the mutex of a
// request's rows: it allocates nothing.
class NewCells {
public:
    virtual ~NewCells() = default;
    // The valid cells of rows, but for those that `known`, another row's validity, has already.
    virtual void add(const RowSource &rows, uint64_t count, const uint8_t *known, uint64_t tag,
                     Phase phase) noexcept = 0;
};

// What holds for all rows of a call.
struct Filing {
    uint64_t tag;
    bool replace = false;       // a row replaces what is there; otherwise the first write stays
    bool compare = false;       // rows that meet others are compared with them
    Charge *charge = nullptr;   // of rows that were accepted; others ask the budget
    NewCells *cells = nullptr;  // null: nobody counts
    Phase phase = Phase::none;

    void count(const RowSource &rows, uint64_t n, const uint8_t *known) const {
        if (cells != nullptr && phase != Phase::none) cells->add(rows, n, known, tag, phase);
    }
};

// What filing rows into one page takes.
struct Needs {
    bool page = false;  // a new one, or one for a copy
    bool tags = false;
};
struct Means {
    PageRef page;  // what was replaced, after it was used
    std::unique_ptr<uint64_t[]> tags;
};

// Rows next to one another in one page, lent to a reader; or, without a page, rows that are not
// there for a known reason. Where a list of segments has a gap, rows are ABSENT.
struct Segment {
    PageRef page;
    uint32_t page_row;
    uint64_t first;  // position
    uint64_t rows;
    bool complete;       // no cell is missing; false if that is not known
    int32_t reason = 0;  // without a page: a row reason but ABSENT (is_row_reason)

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
    const uint8_t *ids(uint64_t row = 0) const { return page->ids(page_row + row); }
    const uint8_t *validity(uint64_t row = 0) const { return page->validity(page_row + row); }
    uint64_t tag(uint64_t row) const { return page->tag_of(page_row + row); }
};

// Positions [index * page_rows, (index + 1) * page_rows) of a request.
struct PageEntry {
    const Shape *shape;
    uint64_t index;
    uint64_t origin;  // position of the page's row 0
    uint64_t first;   // visible rows; what the page holds outside is nobody's
    uint64_t end;
    PageRef page;
    bool own = false;  // made by this table, so it may write what was not lent
    // Visible or once visible rows that others may see, while the page is not unique.
    uint64_t lent_first = 0;
    uint64_t lent_end = 0;
    // Rows of the whole page without a missing cell, visible or not.
    uint32_t full_rows = 0;

    bool complete() const { return full_rows == shape->page_rows; }
    uint32_t row(uint64_t position) const { return static_cast<uint32_t>(position - origin); }
    const uint8_t *ids(uint64_t position) const { return page->ids(row(position)); }
    const uint8_t *validity(uint64_t position) const { return page->validity(row(position)); }

    // ---- Lending

    Segment segment(PageRef of, uint64_t from, uint64_t to) const {
        return {std::move(of), row(from), from, to - from, complete()};
    }
    // Before others see these rows. What was lent until now is the table's own again if nobody else
    // has the page.
    void note_lent(uint64_t from, uint64_t to);
    // Whether rows may be written in place.
    bool writable(uint64_t from, uint64_t to);

    // ---- Filing rows that lie in this page

    Needs needs(uint64_t position, RowSource source, uint64_t rows, const Filing &filing);
    // With the means that it needs. Adds what became of the rows.
    void file(uint64_t position, RowSource source, uint64_t rows, const Filing &filing,
              Means &means, RowOutcomes &filed);
    // The same rows in another page. Where they have several tags, `tags` becomes the page's.
    PageEntry copy(PageRef to, std::unique_ptr<uint64_t[]> &tags) const;
    // Rows that were never there.
    void clear_rows(uint64_t from, uint64_t to);

private:
    // What filing one row at a position that has one does.
    struct Meeting {
        bool nothing_new;
        bool overlap = false, mismatch = false;
        bool whole = false;   // the new row goes in the old one's place
        bool retags = false;  // the row gets its tag
        bool writes = false;  // it changes the row
    };
    Meeting meet(uint64_t position, RowSource source, const Filing &filing) const;
    bool better(uint32_t layer, const uint8_t *ids, const uint8_t *validity,
                RowSource source) const;
    void merge(uint64_t position, RowSource source, const Filing &filing, Means &means,
               RowOutcomes &filed);
    void add(uint64_t position, RowSource source, uint64_t rows, const Filing &filing, Means &means,
             RowOutcomes &filed);
    bool needs_tags(uint64_t tag) const;
    void tag_rows(uint64_t position, uint64_t rows, uint64_t tag,
                  std::unique_ptr<uint64_t[]> &tags);
    void put(uint64_t position, const RowSource &source, uint64_t rows);
};

}  // namespace routecap
