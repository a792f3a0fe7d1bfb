// The rows of one request that have landed: a table of pages, the rule that the first write wins, and drafts that wait to be accepted.
//
// Written by whoever files (one thread at a time), read and taken from by readers; `mutex` is for these two. The engine's thread never takes it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "context.h"
#include "missing_rows.h"

namespace routecap {

// Rows to be filed, one after another in memory. Validity may run backwards, as it does in a slot.
struct RowSource {
    const uint8_t *ids;
    const uint8_t *validity;
    ptrdiff_t ids_stride;
    ptrdiff_t validity_stride;

    RowSource from(uint64_t row) const {
        const auto n = static_cast<ptrdiff_t>(row);
        return {ids + n * ids_stride, validity + n * validity_stride, ids_stride, validity_stride};
    }
};

// What became of rows. A row is delivered, missing (no valid cell), refused (no memory), rejected (a draft), late, without a place, or provisional (a
// draft that waits).
struct Filed {
    uint64_t delivered = 0;
    uint64_t missing = 0;
    uint64_t refused = 0;
    uint64_t rejected = 0;
    uint64_t late = 0;
    uint64_t unplaced = 0;
    uint64_t provisional = 0;
    uint64_t overlapped = 0;  // of the delivered
    uint64_t mismatched = 0;  // of the overlapped

    Filed &operator+=(const Filed &o) {
        delivered += o.delivered, missing += o.missing, refused += o.refused, rejected += o.rejected;
        late += o.late, unplaced += o.unplaced, provisional += o.provisional;
        overlapped += o.overlapped, mismatched += o.mismatched;
        return *this;
    }
};

// Rows next to one another in one page, lent to a reader; or, without a page, rows that are not there for a known reason. Where a list of segments
// has a gap, rows are ABSENT.
struct Segment {
    PageRef page;
    uint32_t page_row;
    uint64_t first;  // position
    uint64_t rows;
    bool complete;       // no cell is missing; false if that is not known
    int32_t reason = 0;  // without a page: a row reason but ABSENT (is_row_reason)

    static Segment not_there(uint64_t first, uint64_t rows, int32_t reason) { return {PageRef(), 0, first, rows, false, reason}; }

    uint64_t end() const { return first + rows; }
    // Rows [from, to) of it.
    Segment part(uint64_t from, uint64_t to) const {
        return {page, page ? static_cast<uint32_t>(page_row + (from - first)) : 0, from, to - from, complete, reason};
    }
    const uint8_t *ids(uint64_t row = 0) const { return page->ids(page_row + row); }
    const uint8_t *validity(uint64_t row = 0) const { return page->validity(page_row + row); }
    uint64_t tag(uint64_t row) const { return page->tag_of(page_row + row); }
};

class RowStore {
public:
    enum class Policy { keep, replace };

    RowStore(const ContextPtr &context, Policy policy, bool compare)
        : context_(context), shape_(context->shape.get()), pool_(context->pool.get()), policy_(policy), compare_(compare) {}
    RowStore(const RowStore &) = delete;
    RowStore &operator=(const RowStore &) = delete;
    ~RowStore() { clear(); }

    Policy policy() const { return policy_; }

    // Starts fetching what filing a row will touch: first this object, without `mutex`; then the row's place in its page.
    void prefetch() const {
        __builtin_prefetch(&mutex, 1);
        __builtin_prefetch(&entries_, 1);
    }
    void prefetch(uint64_t position);

    // Everything else needs `mutex`, unless it says otherwise.
    std::mutex mutex;

    // ---- Filing. Nothing here throws: without memory rows are refused.

    // Hands over the reservation of so many pages; rows filed later use it up before they ask the budget.
    void promise(uint64_t pages) { promised_pages_ += pages; }

    // Files rows at consecutive positions.
    Filed file(uint64_t position, RowSource source, uint64_t rows, uint64_t tag) { return file(position, source, rows, tag, policy_); }

    // Keeps rows of a step until they are settled, in memory of page_bytes(rows) that is already reserved. They are the rows from first_index on
    // of the step's drafts for this request. Rows from `covered` on have no ids. A row at kDropped was counted elsewhere and is not kept.
    // False without memory.
    bool file_draft(uint64_t step, uint64_t first_index, std::vector<uint64_t> positions, uint64_t covered, RowSource source, uint64_t tag);
    static constexpr uint64_t kDropped = UINT64_MAX;

    // Files the kept drafts of a step and rejects the others. `kept` are ascending indices; without them the first keep_first are kept.
    Filed settle(uint64_t step, std::span<const uint32_t> kept, uint64_t keep_first);
    Filed reject_drafts();

    // Rows at and after `end` are gone. Of the pages that the caller counted for them, so many were promised or in use.
    void truncate(uint64_t end, uint64_t pages);

    // Rows [0, end) of another request become rows of this empty one, without a copy.
    void fork(RowStore &parent, uint64_t end);

    // Rows of segments before `end` become rows of this request where it has none.
    Filed attach(std::span<const Segment> segments, uint64_t end);

    // Rows are missing, and so are the cells that a row of [first, end) lacks, for a reason at least as good as here. Throws without memory.
    Filed attach(const MissingRows &missing, uint64_t first, uint64_t end);

    // Gives everything back.
    void clear();

    // ---- Reading

    // The rows of [first, end) that are there, in order, and those that attached segments say to be missing.
    std::vector<Segment> share(uint64_t first, uint64_t end);

    // The same, and they leave. Sets [gone_first, gone_end) to the pages of the range that are no longer in the table.
    // False if a page was needed and refused; nothing has changed then.
    bool take(uint64_t first, uint64_t end, std::vector<Segment> &segments, uint64_t &gone_first, uint64_t &gone_end);

    // One past the highest position whose row came where the host did not know it would: from the device, or from a draft. Read without `mutex`.
    std::atomic<uint64_t> placed_end{0};
    void placed(uint64_t end) {
        if (end > placed_end.load(std::memory_order_relaxed)) placed_end.store(end, std::memory_order_release);
    }
    // How many operations on the request were applied. Read without `mutex`.
    std::atomic<uint64_t> applied{0};

private:
    // Positions [index * page_rows, (index + 1) * page_rows): what of them is visible, and in which page.
    struct Entry {
        uint64_t index;
        uint64_t origin;  // position of the page's row 0
        uint64_t first;   // visible rows; what the page holds outside is nobody's
        uint64_t end;
        PageRef page;
        bool own;             // made by this table, so it may write what was not lent
        uint64_t lent_first;  // visible or once visible rows that others may see, while the page is not unique
        uint64_t lent_end;
        uint32_t full_rows;  // rows of the whole page without a missing cell, visible or not; page_rows: every row of it is complete
        uint32_t row(uint64_t position) const { return static_cast<uint32_t>(position - origin); }
    };
    struct Draft {
        uint64_t step;
        uint64_t first_index;
        PageRef page;
        std::vector<uint64_t> positions;
    };
    static constexpr uint64_t kCut = UINT64_MAX - 1;  // position of a draft that a truncate cut

    Filed file(uint64_t position, RowSource source, uint64_t rows, uint64_t tag, Policy policy);
    void file_in_page(uint64_t index, uint64_t position, RowSource source, uint64_t rows, uint64_t tag, Policy policy, Filed &filed);
    bool append(Entry &entry, uint64_t position, RowSource source, uint64_t rows, uint64_t tag);
    void merge(Entry &entry, uint64_t position, RowSource row, uint64_t tag, Policy policy, Filed &filed);
    std::vector<Entry>::iterator at_or_after(uint64_t index);
    PageRef new_page();
    bool make_writable(Entry &entry, uint64_t first, uint64_t end);
    bool copy_page(Entry &entry);
    bool tag_rows(Entry &entry, uint64_t position, uint64_t rows, uint64_t tag);
    void put(Entry &entry, uint64_t position, RowSource source, uint64_t rows);
    void clear(Entry &entry, uint64_t first, uint64_t end);
    void lend(Entry &entry, uint64_t first, uint64_t end, std::vector<Segment> &segments);
    void note_lent(Entry &entry, uint64_t first, uint64_t end);
    Segment segment(const Entry &entry, PageRef page, uint64_t first, uint64_t end) const {
        return {std::move(page), entry.row(first), first, end - first, entry.full_rows == shape_->page_rows};
    }
    bool same_ids(const uint8_t *a, const uint8_t *b) const;

    const ContextPtr context_;
    const Shape *const shape_;
    PagePool *const pool_;
    const Policy policy_;
    const bool compare_;
    uint64_t promised_pages_ = 0;  // reserved for this request and not yet made
    std::vector<Entry> entries_;   // ascending by index
    std::vector<Draft> drafts_;    // in order of filing
    MissingRows missing_;          // as attached segments say
};

}  // namespace routecap
