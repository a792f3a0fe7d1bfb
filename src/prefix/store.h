// Rows of prefixes, in blocks under keys. Callers note keys and find blocks; whoever files brings
// rows (Publication::land).
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "prefix/adoption.h"
#include "prefix/block_pages.h"
#include "prefix/block_table.h"
#include "prefix/keys.h"
#include "prefix/publication.h"
#include "prefix/store_config.h"
#include "rows/pages.h"

namespace routecap {

class Store;
using StorePtr = std::shared_ptr<Store>;

// Every function may be called by any thread. Those that return a status are described in
// routecap.h, and report it.
class Store final : public std::enable_shared_from_this<Store> {
public:
    static int32_t create(StoreConfig config, StorePtr &store);

    const StoreConfig &config() const { return config_; }
    // That it is at.
    uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

    // Notes the keys. The publication is to get rows of [first, first + count * block_rows), from
    // whoever files; adopters of the same capturer may wait for rows in flight. Null where there
    // is nothing to be done.
    int32_t publish(Keys keys, uint64_t first, uint64_t generation, const void *capturer,
                    std::shared_ptr<Publication> &publication);
    // Looks for the keys. Rows may be in flight: step `after` must have been filed before they are
    // taken.
    int32_t adopt(Keys keys, uint64_t first, uint64_t generation, const void *capturer,
                  routecap_adoption &found, Ticket &after, std::unique_ptr<Adoption> &adoption);

    int32_t contains(Keys keys, uint64_t generation, int32_t *reasons, uint64_t *leading);
    int32_t retain(Keys keys, int32_t *reasons);
    int32_t release(Keys keys);
    int32_t evict(Keys keys, uint64_t *evicted);
    int32_t advance(uint64_t generation);
    void counts(routecap_store_counts &counts);

    // What the log hears of it, where no mutex is held: that it is there, and which blocks it has
    // refused since that was told, once a second at most.
    void log_creation() const;
    void tell_refusals();

private:
    friend class Publication;  // what it is to bring is noted here
    friend class Landing;
    using Id = BlockTable::Id;
    using Block = BlockTable::Block;
    using State = BlockTable::State;
    // Those in flight, by the number that their blocks have.
    using Publications = std::map<uint32_t, Publication *>;

    explicit Store(StoreConfig config);
    uint64_t length(uint64_t blocks) const { return blocks * config_.block_rows; }
    bool slot_keys() const { return config_.slot_keys(); }

    // Refuses a generation that it has not advanced to.
    int32_t check_generation(uint64_t generation) const;
    // Adds to what an adopt found what it hears of key i.
    void note_key(size_t i, int32_t reason, routecap_adoption &found) const;
    // No block of a publication was new enough: what its newest row's tag is, or its caller's.
    void note_stale(uint64_t tag, uint64_t generation);

    // The hash of a key, after fetching where it leads to; neither changes, so it needs no mutex.
    // Without fetching ahead, looking up 2,048 keys takes 1.8 times as long (cold caches).
    uint64_t hash_ahead(const uint8_t *key) const UNCHECKED_THREADS {
        const uint64_t hash = table_.hash(key);
        table_.prefetch_bucket(hash);
        return hash;
    }
    // Pages that are to be freed without the mutex.
    using Dropped = std::vector<PageRef>;
    // Calls one(i, key, hash) for each key, with the mutex for some at a time.
    template <class One>
    void for_each(Keys keys, Dropped &dropped, One one);

    // With the mutex; `dropped` has room.
    bool current(const Block &block) const REQUIRES(mutex_);
    BlockRows rows_of(Id id) const REQUIRES(mutex_) {
        return {pages_.page(table_.at(id).place), pages_.at(table_.at(id).place).row,
                table_.at(id).complete != 0};
    }
    // 0 if an adopter of this generation finds it.
    int32_t look(Id id, uint64_t hash, uint64_t generation, const void *capturer,
                 bool any_capturer) const REQUIRES(mutex_);
    void note(Publication &publication, size_t i, const uint8_t *key, uint64_t hash,
              Dropped &dropped) REQUIRES(mutex_);
    void link(Id id, uint64_t hash) REQUIRES(mutex_);
    uint16_t unlink(Id id, uint64_t hash) REQUIRES(mutex_);
    void put_in_line(Id id, uint16_t retained) REQUIRES(mutex_);
    void use(Id id) REQUIRES(mutex_);
    void evict(Id id, Dropped &dropped) REQUIRES(mutex_);
    void commit(Id id, uint32_t place, bool complete, const BlockRows &before, Dropped &dropped)
        REQUIRES(mutex_);
    void give_up(Id id, Dropped &dropped) REQUIRES(mutex_);

    // Without it.
    struct BlockSlot {
        uint32_t place = 0;
        Page *page = nullptr;
        uint32_t row = 0;
    };
    bool evict_oldest();
    bool pay(uint64_t bytes);
    bool add_page(PageRef page, uint32_t blocks, uint32_t &entry);
    bool take_slot(BlockSlot &slot);

    const StoreConfig config_;
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

    // How often was told, and in which second.
    struct Told {
        std::atomic<uint64_t> times{0};
        std::atomic<int64_t> second{0};
    };
    Told told_refused_, told_mismatched_, told_stale_;
    // Publications of which nothing was new enough, and the last of them.
    std::atomic<uint64_t> stale_{0}, stale_tag_{0}, stale_generation_{0};
};

}  // namespace routecap
