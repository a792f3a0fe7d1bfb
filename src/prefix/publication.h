// What was published in one call, on its way to whoever files: it gets rows of a request once they
// have landed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "prefix/block_table.h"
#include "rows/pages.h"
#include "rows/row_store.h"

namespace routecap {

class Store;

// Rows of a block somewhere in a page, or why there are none.
struct BlockRows {
    PageRef page;
    uint32_t row = 0;
    bool complete = false;
    int32_t reason = ROUTECAP_MISSING_NOT_PUBLISHED;
};

class Publication final : public std::enable_shared_from_this<Publication> {
public:
    // Of the rows from `first` on, which fill `blocks`, by this capturer.
    Publication(std::shared_ptr<Store> store, const void *capturer, uint64_t first, size_t blocks,
                uint64_t generation);
    ~Publication();  // if land() was not called, no row will come

    const uint64_t first, end;  // positions in the request

    // Whoever files calls this once, without a mutex. `rows` are those of [first, end) that are
    // there; the others will not come. The pages of the segments may be kept.
    void land(std::span<const Segment> rows) noexcept;
    // What became of a block, for those who adopted it in flight. After land(), by whoever files.
    const BlockRows &landed(uint32_t block) const { return landed_[block]; }

    // It is in the log: land() is called once step `after` was filed. Nobody can adopt its blocks
    // before, as an operation that comes earlier in the log would find no rows.
    void handed_over(Ticket after) { after_.store(after, std::memory_order_release); }
    bool is_handed_over() const { return after() != kNever; }
    Ticket after() const { return after_.load(std::memory_order_acquire); }

private:
    friend class Store;
    friend class Landing;
    static constexpr Ticket kNever{UINT64_MAX};

    const std::shared_ptr<Store> store_;
    const void *const capturer_;
    const uint64_t generation_;
    uint32_t number_ = 0;                 // in the store's publications_
    std::vector<BlockTable::Id> blocks_;  // 0: there were too many
    std::vector<BlockRows> landed_;
    std::atomic<Ticket> after_{kNever};
};

}  // namespace routecap
