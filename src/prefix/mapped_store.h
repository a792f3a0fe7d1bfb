// A store that several processes share: blocks in mapped memory (mapped_blocks.h), and in this
// process what was published and has not landed.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "prefix/adopted_rows.h"
#include "prefix/mapped_blocks.h"
#include "prefix/store.h"

namespace routecap {

class MappedStore final : public Store, public std::enable_shared_from_this<MappedStore> {
public:
    // As MappedBlocks::create and open.
    static int32_t create(StoreConfig config, int32_t &descriptor, StorePtr &store);
    static int32_t open(StoreConfig config, int32_t descriptor, StorePtr &store);

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
    uint64_t generation() const override { return blocks_->generation(); }

private:
    class Published;
    class Adopted;
    // A block in flight: among those whose keys have one hash, the latest first.
    struct Flight {
        Flight *next;
        Published *publication;
        uint32_t index;
        bool wanted;  // nobody has dropped it since
    };

    MappedStore(StoreConfig config, std::unique_ptr<MappedBlocks> blocks);

    // With flights_mutex_.
    Flight *&flights(const uint8_t *key) REQUIRES(flights_mutex_);
    void list(Flight &flight) REQUIRES(flights_mutex_);
    void unlist(Flight &flight) REQUIRES(flights_mutex_);
    // The next that is wanted of a key.
    Flight *flight(const uint8_t *key, const Flight *after = nullptr) REQUIRES(flights_mutex_);
    // The flight by which a key is there.
    Flight *awaited(const uint8_t *key, uint64_t generation) REQUIRES(flights_mutex_);
    // Nobody wants what is in flight of a key. Whether there was some.
    bool drop_flights(const uint8_t *key) REQUIRES(flights_mutex_);
    // Calls f(i) for each key, with the mutex, if there are any flights.
    template <class F>
    void for_each(Keys keys, F f);

    // A page of so many rows with blocks that were found; none without memory in the pool.
    PageRef copy_page(const uint8_t *keys, uint64_t generation,
                      std::span<MappedBlocks::Found> found, PagePool &pool) const;

    const std::unique_ptr<MappedBlocks> blocks_;

    // It also keeps a publication from being dropped while it lands. Held for a few blocks at a
    // time, and taken before the mutex of the blocks.
    QuickMutex flights_mutex_;
    std::vector<Flight *> flights_ GUARDED_BY(flights_mutex_);  // by hash
    std::atomic<uint64_t> in_flight_{0};
};

}  // namespace routecap
