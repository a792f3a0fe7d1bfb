// A store in the memory of this process. Callers note keys and find blocks; whoever files brings
// rows (land).
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "prefix/adopted_rows.h"
#include "prefix/block_pages.h"
#include "prefix/block_table.h"
#include "prefix/store.h"
#include "rows/pages.h"

namespace routecap {

class LocalStore final : public Store, public std::enable_shared_from_this<LocalStore> {
public:
    static int32_t create(StoreConfig config, StorePtr &store);

    int32_t publish(Keys keys, uint64_t first, uint64_t generation, const void *owner,
                    std::shared_ptr<Publication> &publication) override;
    int32_t adopt(Keys keys, uint64_t first, uint64_t generation, const void *owner,
                  routecap_adoption &found, uint64_t &after,
                  std::unique_ptr<Adoption> &adoption) override;
    int32_t contains(Keys keys, uint64_t generation, int32_t *reasons, uint64_t *leading) override;
    int32_t retain(Keys keys, int32_t *reasons) override;
    int32_t release(Keys keys) override;
    int32_t evict(Keys keys, uint64_t *evicted) override;
    int32_t advance(uint64_t generation) override;
    void counts(routecap_store_counts &counts) override;
    Refusals refusals() override;
    uint64_t generation() const override { return generation_.load(std::memory_order_acquire); }

private:
    using Id = BlockTable::Id;
    using Block = BlockTable::Block;
    using State = BlockTable::State;

    // Rows of a block somewhere in a page, or why there are none.
    struct Rows {
        PageRef page;
        uint32_t row = 0;
        bool complete = false;
        int32_t reason = ROUTECAP_MISSING_NOT_PUBLISHED;
    };
    class Landing;
    class Found;

    // What was published in one call.
    class Published final : public Publication, public std::enable_shared_from_this<Published> {
    public:
        Published(std::shared_ptr<LocalStore> store, size_t count, const void *owner);
        ~Published() override;
        void land(std::span<const Segment> rows) noexcept override;

        const std::shared_ptr<LocalStore> store_;
        const void *const owner_;
        uint64_t generation_ = 0;
        uint32_t number_ = 0;  // in publications_

        std::vector<Id> blocks_;    // 0: there were too many
        std::vector<Rows> landed_;  // for those who adopted them in flight; whoever files has it
    };

    // Those in flight, by the number that their blocks have.
    using Publications = std::map<uint32_t, Published *>;

    explicit LocalStore(StoreConfig config);
    uint64_t length(uint64_t blocks) const { return blocks * config_.block_rows; }

    // The hash of a key, after fetching where it leads to; neither changes, so it needs no mutex.
    // In pairs, with the blocks that are fetched next, this is worth 38 % of looking up 2,048 and
    // 26 % of adopting them (cold caches).
    uint64_t hash_ahead(const uint8_t *key) const UNCHECKED_THREADS {
        const uint64_t hash = table_.hash(key);
        table_.prefetch_bucket(hash);
        return hash;
    }
    // Calls one(i, key, hash) for each key, with the mutex for some at a time.
    template <class One>
    void for_each(Keys keys, std::vector<PageRef> &dropped, One one);

    // With the mutex; pages that are to be freed without it go to `dropped`, which has room.
    using Dropped = std::vector<PageRef>;
    bool current(const Block &block) const REQUIRES(mutex_);
    Rows rows_of(Id id) const REQUIRES(mutex_) {
        return {pages_.page(table_.at(id).place), pages_.at(table_.at(id).place).row,
                table_.at(id).complete != 0};
    }
    // 0 if an adopter of this generation finds it.
    int32_t look(Id id, uint64_t hash, uint64_t generation, const void *owner, bool any_owner) const
        REQUIRES(mutex_);
    void note(Published &publication, size_t i, const uint8_t *key, uint64_t hash, Dropped &dropped)
        REQUIRES(mutex_);
    void link(Id id, uint64_t hash) REQUIRES(mutex_);
    uint16_t unlink(Id id, uint64_t hash) REQUIRES(mutex_);
    void leave(Id id, uint64_t hash, Dropped &dropped) REQUIRES(mutex_);
    void put_in_line(Id id, uint16_t retained) REQUIRES(mutex_);
    void use(Id id) REQUIRES(mutex_);
    void evict(Id id, Dropped &dropped) REQUIRES(mutex_);
    void commit(Id id, uint32_t place, bool complete, const Rows &before, Dropped &dropped)
        REQUIRES(mutex_);
    void give_up(Id id, Dropped &dropped) REQUIRES(mutex_);

    // Without it.
    struct Slot {
        uint32_t place = 0;
        Page *page = nullptr;
        uint32_t row = 0;
    };
    bool evict_oldest();
    bool pay(uint64_t bytes);
    bool add_page(PageRef page, uint32_t blocks, uint32_t &record);
    bool take_slot(uint64_t tag, bool one_tag, Slot &slot);

    const ShapePtr shape_;
    const std::shared_ptr<PagePool> pool_;
    const size_t block_bytes_;  // of the budget, beside its rows
    const uint32_t page_rows_;  // of the store's own pages
    std::atomic<uint64_t> generation_;

    // Held for a few hundred keys at a time, and never while rows are looked at or copied, or
    // memory is taken or freed.
    mutable QuickMutex mutex_;
    BlockTable table_ GUARDED_BY(mutex_);
    BlockPages pages_ GUARDED_BY(mutex_);
    Publications publications_ GUARDED_BY(mutex_);
    uint32_t next_publication_ GUARDED_BY(mutex_) = 0;
    uint64_t blocks_ GUARDED_BY(mutex_) = 0,
                     in_flight_ GUARDED_BY(mutex_) = 0, retained_ GUARDED_BY(mutex_) = 0;
    routecap_store_counts counted_ GUARDED_BY(mutex_){};
};

}  // namespace routecap
