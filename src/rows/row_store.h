// The rows of one request that have landed: a table of pages, the drafts that wait to be accepted,
// and the reasons of rows that are missing.
//
// One thread at a time files rows, and readers share or take them. `mutex` separates the two. The
// filing thread holds it for the rows of one page at a time. An operation allocates what it needs
// under it, before it changes anything. Pages are freed after it is released, because freeing a
// lender's page calls the lender.
//
// The reasons are two lists. Those in `missing_` belong to positions: a reader sees them only where
// no row is there, such as where a step was lost. Those in `attached_` came with rows of others, by
// attach or adopt, and meet rows of the request as rows meet: they apply to single cells of a row
// that is there, too. One list could not tell which reasons do.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "rows/missing_rows.h"
#include "rows/page_entry.h"
#include "rows/two_sides.h"

namespace routecap {

class RowStore {
public:
    Mutex mutex;

private:
    // The members are in the order of use: filing touches two cache lines of them, and three where
    // there are drafts.
    using Entries = std::vector<PageEntry>;
    Entries entries_ GUARDED_BY(mutex);  // by index; only the filing thread adds entries
    const Shape *const shape_;
    PagePool *const pool_;
    const bool replace_;
    const bool compare_;
    // Where rows were filed last. Only prefetch_row() uses these; what they name may be gone.
    const PageEntry *filed_entry_ = nullptr;
    const Page *filed_page_ = nullptr;
    const StoragePtr storage_;

public:
    Progress progress;

private:
    struct Draft {
        Ticket step;
        uint64_t first_index;
        PageRef page;  // null if no row is left to file
        std::vector<uint64_t> positions;
        // Rows at and after these are cut: by any truncate that was called before they landed, and
        // by those that were applied.
        uint64_t late, cut;
        uint32_t charge;  // pages
        Phase phase;
        int32_t missing = 0;      // why the rows will never come, or 0: they are provisional
        uint64_t bounds_end = 0;  // as in MissedDraft
    };
    // Only the filing thread uses these. Drafts are in order of filing.
    std::vector<Draft> drafts_;
    // Why rows are missing; and those of these reasons that came with the rows of others, which
    // apply to single cells too.
    MissingRows missing_ GUARDED_BY(mutex), attached_ GUARDED_BY(mutex);

public:
    // `replace`: a row replaces what is there; `compare`: it is compared with that.
    RowStore(const StoragePtr &storage, bool replace, bool compare)
        : shape_(storage->shape.get()),
          pool_(storage->pool.get()),
          replace_(replace),
          compare_(compare),
          storage_(storage) {}
    RowStore(const RowStore &) = delete;
    RowStore &operator=(const RowStore &) = delete;
    ~RowStore() { clear(); }

    bool replaces() const { return replace_; }

    // Requests and pages lie all over memory, so the filing thread begins to fetch them some spans
    // ahead: first this object, then the place of a row in the page that rows were filed into last.
    // Without either, filing 1,024 rows takes 2.2 times as long (cold caches).
    void prefetch(bool drafts) const UNCHECKED_THREADS {  // takes the addresses of members alone
        __builtin_prefetch(&mutex, 1);
        __builtin_prefetch(&shape_, 1);
        if (drafts) __builtin_prefetch(&drafts_, 1);
    }
    void prefetch_row(uint64_t position) const;

    // ---- Filing: for one thread at a time, which does not hold `mutex`. Without memory rows are
    // refused, and nothing throws unless its comment says so.

    // Files rows that issue accepted, at consecutive positions. Their charge pays for pages. If
    // readers shared or took rows since, filing may need more than the charge. It then takes the
    // rest even if the budget has no room, because the rows were accepted.
    // Adds to `filed` how they ended.
    void file_rows(uint64_t position, const uint8_t *source, uint64_t rows, Tag tag,
                   uint32_t &charge, RowOutcomes &filed, LoadCounter *load = nullptr,
                   Phase phase = Phase::none) {
        file(position, source, rows, {tag, replace_, compare_, &charge, load, phase}, filed);
    }
    // The same for rows that no issue accepted: they are refused if the budget has no room.
    RowOutcomes file_from_budget(uint64_t position, const uint8_t *source, uint64_t rows, Tag tag) {
        RowOutcomes filed;
        file(position, source, rows, {tag, replace_, compare_}, filed);
        return filed;
    }

    // Keeps draft rows of a step until settle(). They take page_bytes(rows) of the budget, which
    // the caller has reserved. first_index is the number of the first row among the step's drafts
    // of this request. Rows at and after `late` were cut in flight. Rows from `covered` on have no
    // ids. Instead of a position a row may have kDropped (it was counted elsewhere and is not kept)
    // or kPast (it lies beyond the end of its request). settle() files the rows out of `charge`.
    // Returns false without memory, and gives back what was reserved; the rows are refused then.
    bool file_draft(Ticket step, uint64_t first_index, std::vector<uint64_t> positions,
                    uint64_t late, uint64_t covered, const uint8_t *source, Tag tag, Phase phase,
                    uint32_t charge);
    static constexpr uint64_t kDropped = UINT64_MAX, kPast = UINT64_MAX - 1;
    // The same for drafts that were lost or refused, for this reason, and counted. They are at
    // consecutive positions. If bounds_end is not 0 the device has the positions: each row may be
    // anywhere in [position, bounds_end).
    struct MissedDraft {
        Ticket step;
        uint64_t first_index, position, rows, bounds_end;
        int32_t reason;
    };
    void miss_draft(const MissedDraft &missed) noexcept;

    // Files the drafts of a step that are kept, and rejects the others. `kept` has the numbers of
    // those drafts, ascending. If it is empty, the first keep_first drafts are kept.
    RowOutcomes settle(Ticket step, std::span<const uint32_t> kept, uint64_t keep_first,
                       LoadCounter *load);
    // Ends all drafts, because their request ends. Drafts at and after `end`, and drafts that were
    // cut, count as late; the others count as rejected.
    RowOutcomes drop_drafts(uint64_t end);

    // Removes the rows at and after `end`.
    void drop(uint64_t end);
    // The same, and cuts drafts there.
    void truncate(uint64_t end);

    // Makes rows [0, end) of another request rows of this one too, which has none. They share
    // pages.
    void fork(RowStore &parent, uint64_t end);

    // Adds the rows of segments before `end` where this request has none. Rows are refused if the
    // budget has no room for them.
    RowOutcomes attach(std::span<const Segment> segments, uint64_t end);
    // Adds reasons that came with the rows of others. They apply to rows that are not there, and to
    // the cells that a row of [first, end) lacks. Throws without memory.
    RowOutcomes attach_missing(const MissingRows &missing, uint64_t first, uint64_t end);

    // Notes why rows will not come. Without memory the reason is forgotten, and they are ABSENT.
    void note_missing(uint64_t first, uint64_t end, int32_t reason) noexcept;

    // Frees the pages and gives back the charges of drafts.
    void clear();
    // Of a charge, the pages that were not needed.
    void give_back(uint32_t &charge);

    // ---- Reading, with `mutex`. Throws without memory, before anything has changed.

    // One past the last row before `end` that is there, or 0.
    uint64_t last_before(uint64_t end) REQUIRES(mutex);
    // The rows of [first, end) that are there. The request keeps them.
    std::vector<Segment> lend(uint64_t first, uint64_t end) REQUIRES(mutex);
    // The same, and the reasons of those that are missing.
    std::vector<Segment> share(uint64_t first, uint64_t end) REQUIRES(mutex);
    // The same, but the rows leave the request, which notes that they are TAKEN. If rows remain on
    // both sides of them in one page, these need another page. Returns false, and changes nothing,
    // if the budget has none.
    bool take(uint64_t first, uint64_t end, std::vector<Segment> &segments) REQUIRES(mutex);

private:
    void file(uint64_t position, const uint8_t *source, uint64_t rows, const Filing &filing,
              RowOutcomes &filed);
    bool file_in_page(uint64_t index, uint64_t position, const uint8_t *source, uint64_t rows,
                      const Filing &filing, PageRef &replaced, RowOutcomes &filed) REQUIRES(mutex);
    PageRef pay(uint32_t *charge);
    bool make_room() noexcept REQUIRES(mutex);
    PageEntry &add_entry(uint64_t index, PageRef page) REQUIRES(mutex);
    RowOutcomes attach_segment(const Segment &segment, uint64_t end);
    Entries::iterator at_or_after(uint64_t index) REQUIRES(mutex);
    std::span<PageEntry> entries(uint64_t first, uint64_t end) REQUIRES(mutex);
};

}  // namespace routecap
