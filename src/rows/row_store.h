// The rows of one request that have landed: a table of pages, the rule that the first write wins,
// and drafts that wait to be accepted.
//
// Written by whoever files (one thread at a time), read and taken from by readers; `mutex` is for
// these two, and held for one page's rows at a time. What an operation needs is allocated under it,
// before anything changes. Pages that are dropped are freed after it: that may call a lender.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "rows/charge.h"
#include "rows/missing_rows.h"
#include "rows/new_cells.h"
#include "rows/publication.h"
#include "rows/storage.h"

namespace routecap {

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

// A note of the engine's thread: these rows of a request are not there, and why. Newest first.
struct MissingNote {
    uint64_t first, end;
    int32_t reason;
    MissingNote *next;
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

class RowStore {
public:
    enum class Policy { keep, replace };

    RowStore(const StoragePtr &storage, Policy policy, bool compare)
        : storage_(storage),
          shape_(storage->shape.get()),
          pool_(storage->pool.get()),
          policy_(policy),
          compare_(compare) {}
    RowStore(const RowStore &) = delete;
    RowStore &operator=(const RowStore &) = delete;
    ~RowStore() { clear(); }

    Policy policy() const { return policy_; }
    void set_policy(Policy policy) { policy_ = policy; }  // before anybody else knows it

    // Starts fetching what filing a row will touch, for whoever files, without `mutex`: first this
    // object; then, once it is there, the row's place in the page that was written last.
    void prefetch_table() const {
        __builtin_prefetch(&mutex, 1);
        __builtin_prefetch(&entries_, 1);
    }
    void prefetch_row(uint64_t position) const;

    Mutex mutex;

    // ---- Filing, by one thread at a time, without `mutex`. Nothing here throws: without
    // memory rows are refused.

    // Files rows that issue accepted, at consecutive positions, and adds what became of them. What
    // they need comes out of their charge. Where rows were lent or taken since, they may need more:
    // that is taken above the budget too.
    void file_rows(uint64_t position, const RowSource &source, uint64_t rows, uint64_t tag,
                   Charge &charge, RowOutcomes &filed, Counting counting = {});
    // The same for other rows: what they need the budget must have.
    RowOutcomes file_from_budget(uint64_t position, RowSource source, uint64_t rows, uint64_t tag) {
        return file(position, source, rows, {.tag = tag, .policy = policy_});
    }

    // Keeps rows of a step until they are settled, in memory of page_bytes(rows) that is already
    // reserved. They are the rows from first_index on of the step's drafts for this request. Rows
    // from `covered` on have no ids. A row at kDropped was counted elsewhere and is not kept; one
    // at kCut was cut, and one at kPast lies beyond the end of its request. The charge is for their
    // settling. Of a step whose copy failed they are `lost`. False without memory; what was
    // reserved is then given back.
    bool file_draft(uint64_t step, uint64_t first_index, std::vector<uint64_t> positions,
                    uint64_t covered, RowSource source, uint64_t tag, Phase phase, Charge charge,
                    bool lost);
    static constexpr uint64_t kDropped = UINT64_MAX, kCut = UINT64_MAX - 1, kPast = UINT64_MAX - 2;

    // Files the kept drafts of a step and rejects the others. `kept` are ascending indices; without
    // them the first keep_first are kept.
    RowOutcomes settle(uint64_t step, std::span<const uint32_t> kept, uint64_t keep_first,
                       NewCells *counted);
    // Ends all others: those at and after `end` are late, as those that were cut are, and the rest
    // is rejected.
    RowOutcomes drop_drafts(uint64_t end);

    // Rows at and after `end` are gone.
    void drop(uint64_t end);
    // The same, and drafts are cut.
    void truncate(uint64_t end);

    // Rows [0, end) of another request become rows of this empty one, without a copy.
    void fork(RowStore &parent, uint64_t end);

    // Rows of segments before `end` become rows of this request where it has none. Asks the budget
    // for what it needs.
    RowOutcomes attach(std::span<const Segment> segments, uint64_t end);

    // Rows are missing, and so are the cells that a row of [first, end) lacks, for a reason at
    // least as good as here. Throws without memory.
    RowOutcomes attach_missing(const MissingRows &missing, uint64_t first, uint64_t end);

    // Hands over the rows that a publication wants and that are there; where drafts belong there,
    // once these are settled or cut.
    void publish(std::shared_ptr<Publication> publication) noexcept;
    // The same for what has waited and is settled by now; or all, where nothing else will come.
    void publish_settled(bool all) noexcept;
    bool waited_for() const { return !waiting_.empty(); }

    // Rows that will not come, and why. Without memory nobody knows why.
    void note_missing(uint64_t first, uint64_t end, int32_t reason) noexcept;

    // All rows of [first, end) as segments, with what is known of those that are not there, also
    // from the engine's notes. They may leave the table, which can only be cleared then. Throws
    // without memory; nothing has changed then.
    std::vector<Segment> take_all(uint64_t first, uint64_t end, const MissingNote *notes = nullptr);

    // Gives everything back.
    void clear();
    void give_back(Charge &charge);

    // ---- Reading, with `mutex`. Throws without memory; nothing has changed then.

    // One past the last row before `end` that is there; 0 if there is none.
    uint64_t last_before(uint64_t end) REQUIRES(mutex);
    // The rows of [first, end), which stay.
    std::vector<Segment> share(uint64_t first, uint64_t end) REQUIRES(mutex);
    // What is known of rows that are not there.
    std::shared_ptr<const MissingRows> missing() const REQUIRES(mutex) { return missing_; }

    // The rows of [first, end) leave. False, and they stay, if rows on both sides of them need a
    // page of their own and the budget has none.
    bool take(uint64_t first, uint64_t end, std::vector<Segment> &segments) REQUIRES(mutex);

    // One past the highest position whose row came where the host did not know it would: from the
    // device, or from a draft. Read without `mutex`.
    std::atomic<uint64_t> placed_end{0};
    void placed(uint64_t end) {
        if (end > placed_end.load(std::memory_order_relaxed))
            placed_end.store(end, std::memory_order_release);
    }
    // How many operations on the request were applied. Read without `mutex`.
    std::atomic<uint64_t> applied{0};

private:
    // Positions [index * page_rows, (index + 1) * page_rows): what of them is visible, and in which
    // page.
    struct Entry {
        uint64_t index;
        uint64_t origin;  // position of the page's row 0
        uint64_t first;   // visible rows; what the page holds outside is nobody's
        uint64_t end;
        PageRef page;
        bool own = false;  // made by this table, so it may write what was not lent
        // Visible or once visible rows that others may see, while the page is not unique.
        uint64_t lent_first = 0;
        uint64_t lent_end = 0;
        // Rows of the whole page without a missing cell, visible or not; page_rows: every row of it
        // is complete.
        uint32_t full_rows = 0;
        uint32_t row(uint64_t position) const { return static_cast<uint32_t>(position - origin); }
    };
    using Entries = std::vector<Entry>;
    struct Draft {
        uint64_t step;
        uint64_t first_index;
        PageRef page;  // none if no row is left
        std::vector<uint64_t> positions;
        Charge charge;
        Phase phase;
        bool lost;
    };

    // What holds for all rows of a call.
    struct Filing {
        uint64_t tag;
        Policy policy;
        Counting counting{};
        Charge *charge = nullptr;  // of rows that were accepted; others have none
    };

    // What filing rows into one page takes, apart from these.
    struct Needs {
        bool page = false;  // a new one, or one for a copy
        bool tags = false;
    };
    struct Means {
        PageRef page;  // what was replaced, after it was used
        std::unique_ptr<uint64_t[]> tags;
    };

    bool file_next(uint64_t position, const RowSource &source, uint64_t rows, const Filing &filing,
                   RowOutcomes &filed);
    void note_new(const RowSource &source, uint64_t rows, const Filing &filing,
                  RowOutcomes &filed) const;
    RowOutcomes file(uint64_t position, RowSource source, uint64_t rows, const Filing &filing);
    bool file_in_page(uint64_t index, uint64_t position, RowSource source, uint64_t rows,
                      const Filing &filing, Means &means, RowOutcomes &filed) REQUIRES(mutex);
    Needs needs(Entry &entry, uint64_t position, RowSource source, uint64_t rows,
                const Filing &filing);
    bool pay(Needs needs, const Filing &filing, Means &means);
    bool make_room() noexcept REQUIRES(mutex);
    Entry &add_entry(uint64_t index, PageRef page) REQUIRES(mutex);
    RowOutcomes attach_segment(const Segment &segment, uint64_t end);
    void append(Entry &entry, uint64_t position, RowSource source, uint64_t rows, uint64_t tag,
                Means &means);
    // What filing one row at a position that has one does.
    struct Meeting {
        bool nothing_new;
        bool overlap = false, mismatch = false;
        bool whole = false;   // the new row goes in the old one's place
        bool retags = false;  // the row gets its tag
        bool writes = false;  // it changes the row
    };
    bool better(uint32_t layer, const uint8_t *ids, const uint8_t *validity,
                RowSource source) const;
    Meeting meet(const Entry &entry, uint64_t position, RowSource source,
                 const Filing &filing) const;
    void merge(Entry &entry, uint64_t position, RowSource row, const Filing &filing, Means &means,
               RowOutcomes &filed);
    Entries::iterator at_or_after(uint64_t index) REQUIRES(mutex);
    bool writable(Entry &entry, uint64_t first, uint64_t end);
    void make_writable(Entry &entry, Means &means);
    Entry copy_of(const Entry &entry, PageRef page, std::unique_ptr<uint64_t[]> &tags);
    bool needs_tags(const Entry &entry, uint64_t tag) const;
    void tag_rows(Entry &entry, uint64_t position, uint64_t rows, uint64_t tag,
                  std::unique_ptr<uint64_t[]> &tags);
    void put(Entry &entry, uint64_t position, const RowSource &source, uint64_t rows);
    void clear_rows(Entry &entry, uint64_t first, uint64_t end);
    void lend(Entry &entry, uint64_t first, uint64_t end, std::vector<Segment> &segments);
    void note_lent(Entry &entry, uint64_t first, uint64_t end);
    // What is known of rows that are not there, for whoever files.
    std::shared_ptr<const MissingRows> known_missing() {
        const Lock lock(mutex);
        return missing_;
    }
    void cut_missing(uint64_t end) noexcept;
    template <class Change>
    void change_missing(Change change) noexcept;
    Segment segment(const Entry &entry, PageRef page, uint64_t first, uint64_t end) const {
        return {std::move(page), entry.row(first), first, end - first,
                entry.full_rows == shape_->page_rows};
    }
    void publish_now(Publication &publication) noexcept;
    bool has_drafts(uint64_t first, uint64_t end) const;

    const StoragePtr storage_;
    const Shape *const shape_;
    PagePool *const pool_;
    Policy policy_;
    const bool compare_;
    Entries entries_ GUARDED_BY(mutex);  // ascending by index; only whoever files makes it longer
    // What rows were filed into last, for prefetch_row, which does not look at it: it may be gone.
    std::atomic<const Entry *> last_entry_{nullptr};
    std::atomic<const Page *> last_page_{nullptr};
    // null: nothing is known; only whoever files replaces it.
    std::shared_ptr<const MissingRows> missing_ GUARDED_BY(mutex);
    std::vector<Draft> drafts_;  // in order of filing; only whoever files looks at them
    // Wait for drafts to be settled; likewise.
    std::vector<std::shared_ptr<Publication>> waiting_;
};

}  // namespace routecap
