// The rows of one request that have landed: a table of pages, the rule that the first write wins,
// and drafts that wait to be accepted.
//
// Whoever files (one thread at a time) writes it, readers look at it and take from it. `mutex` is
// for these two, and held for one page's rows at a time. What an operation needs is allocated under
// it, before anything changes. Pages that are dropped are freed after it: that may call a lender.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "rows/missing_rows.h"
#include "rows/page_entry.h"
#include "rows/publication.h"

namespace routecap {

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

    Mutex mutex;

    // ---- Filing, by one thread at a time, without `mutex`. Nothing here throws: without
    // memory rows are refused.

    // Files rows that issue accepted, at consecutive positions. What they need comes out of their
    // charge. Where rows were lent or taken since, they may need more: that is taken above the
    // budget too.
    RowOutcomes file_rows(uint64_t position, const RowSource &source, uint64_t rows, uint64_t tag,
                          Charge &charge, NewCells *cells = nullptr, Phase phase = Phase::none) {
        return file(position, source, rows,
                    {tag, policy_ == Policy::replace, compare_, &charge, cells, phase});
    }
    // The same for other rows: what they need the budget must have.
    RowOutcomes file_from_budget(uint64_t position, const RowSource &source, uint64_t rows,
                                 uint64_t tag) {
        return file(position, source, rows, {tag, policy_ == Policy::replace, compare_});
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
    // The same for drafts that never were in flight, and why. They are at consecutive positions; or
    // each anywhere in [position, bounds_end), if that is not 0. They are counted elsewhere.
    void miss_draft(uint64_t step, uint64_t first_index, uint64_t position, uint64_t rows,
                    uint64_t bounds_end, int32_t reason) noexcept;

    // Files the kept drafts of a step and rejects the others. `kept` are ascending indices; without
    // them the first keep_first are kept.
    RowOutcomes settle(uint64_t step, std::span<const uint32_t> kept, uint64_t keep_first,
                       NewCells *cells);
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

    // Gives everything back.
    void clear();
    void give_back(Charge &charge);

    // ---- Reading, with `mutex`. Throws without memory; nothing has changed then.

    // One past the last row before `end` that is there; 0 if there is none.
    uint64_t last_before(uint64_t end) REQUIRES(mutex);
    // The rows of [first, end), which stay, and what is known of those that are not there.
    std::vector<Segment> share(uint64_t first, uint64_t end) REQUIRES(mutex);
    // The same, and the rows leave. From now on they are TAKEN, but for those that have a reason of
    // their own. False, and they stay, if rows on both sides of them need a page of their own and
    // the budget has none.
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
    using Entries = std::vector<PageEntry>;
    struct Draft {
        uint64_t step;
        uint64_t first_index;
        PageRef page;  // none if no row is left
        std::vector<uint64_t> positions;
        Charge charge;
        Phase phase;
        int32_t missing = 0;      // or why they will never be there
        bool counted = true;      // as provisional
        uint64_t bounds_end = 0;  // if missing: see miss_draft
    };

    RowOutcomes file(uint64_t position, RowSource source, uint64_t rows, const Filing &filing);
    bool file_in_page(uint64_t index, uint64_t position, RowSource source, uint64_t rows,
                      const Filing &filing, Means &means, RowOutcomes &filed) REQUIRES(mutex);
    bool pay(Needs needs, const Filing &filing, Means &means);
    bool make_room() noexcept REQUIRES(mutex);
    PageEntry &add_entry(uint64_t index, PageRef page) REQUIRES(mutex);
    RowOutcomes attach_segment(const Segment &segment, uint64_t end);
    Entries::iterator at_or_after(uint64_t index) REQUIRES(mutex);
    std::span<PageEntry> entries(uint64_t first, uint64_t end) REQUIRES(mutex);
    std::vector<Segment> lend(uint64_t first, uint64_t end) REQUIRES(mutex);
    void publish_now(Publication &publication) noexcept;
    bool has_drafts(uint64_t first, uint64_t end) const;

    const StoragePtr storage_;
    const Shape *const shape_;
    PagePool *const pool_;
    Policy policy_;
    const bool compare_;
    Entries entries_ GUARDED_BY(mutex);  // ascending by index; only whoever files makes it longer
    // Why rows are not there; and of that what came with rows of others: it holds for cells too.
    MissingRows missing_ GUARDED_BY(mutex), attached_ GUARDED_BY(mutex);
    std::vector<Draft> drafts_;  // in order of filing; only whoever files looks at them
    // Wait for drafts to be settled; likewise.
    std::vector<std::shared_ptr<Publication>> waiting_;
};

}  // namespace routecap
