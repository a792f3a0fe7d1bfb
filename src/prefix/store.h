// What is behind a store's handle, wherever its blocks are: in this process (local_store.h) or in
// memory of several processes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/shape.h"
#include "routecap.h"
#include "rows/row_store.h"

namespace routecap {

struct StoreConfig {
    ShapePtr shape;
    uint32_t flags;
    uint32_t block_rows;
    uint32_t key_bytes;
    uint64_t budget_bytes;
    uint64_t generation;

    bool slot_keys() const { return (flags & ROUTECAP_STORE_SLOT_KEYS) != 0; }
};
// Checks what a caller gave.
int32_t read_store_config(const routecap_store_config *config, const routecap_config *shape,
                          StoreConfig &out);

// Keys as callers give them: `count` of key_bytes bytes.
struct Keys {
    const uint8_t *bytes;
    size_t count;
    size_t key_bytes;

    const uint8_t *operator[](size_t i) const { return bytes + i * key_bytes; }
    Keys part(size_t first, size_t n) const { return {(*this)[first], n, key_bytes}; }
};

// What was published, on its way to the worker: it gets rows of a request once they have landed.
class Publication {
public:
    virtual ~Publication() = default;  // if land() was not called, no row will come
    // The filing thread calls this once, without a mutex. `rows` are those of [first, end) that are
    // there; the others will not come. The pages of the segments may be kept.
    virtual void land(std::span<const Segment> rows) noexcept = 0;

    uint64_t first = 0, end = 0;  // positions in the request

    // It is in the log: land() is called once step `after` was filed. Nobody can adopt its blocks
    // before, as an operation that comes earlier in the log would find no rows.
    void handed_over(uint64_t after) { after_.store(after, std::memory_order_release); }
    bool is_handed_over() const { return after() != kNever; }
    uint64_t after() const { return after_.load(std::memory_order_acquire); }

private:
    static constexpr uint64_t kNever = UINT64_MAX;
    std::atomic<uint64_t> after_{kNever};
};

// What an adopt found, on its way to the worker.
class Adoption {
public:
    virtual ~Adoption() = default;
    // By whoever files, once: the rows as segments in order, those that are not there with their
    // reason. What has to be copied counts in the pool, the capturer's. Throws without memory.
    virtual std::vector<Segment> take(PagePool &pool) = 0;
};

// Every function may be called by any thread. Those that return a status are described in
// routecap.h, and report it.
class Store {
public:
    virtual ~Store() = default;

    const StoreConfig &config() const { return config_; }
    bool slot_keys() const { return config_.slot_keys(); }
    // That it is at.
    virtual uint64_t generation() const = 0;

    // Notes the keys. The publication is to get rows of [first, first + count * block_rows), from
    // whoever files; `owner` is its capturer, whose adopters may wait for rows in flight. Null
    // where there is nothing to be done.
    virtual int32_t publish(Keys keys, uint64_t first, uint64_t generation, const void *owner,
                            std::shared_ptr<Publication> &publication) = 0;
    // Looks for the keys. Rows may be in flight: step `after` must have been filed before they are
    // taken. UINT64_MAX: every step that was issued by now.
    virtual int32_t adopt(Keys keys, uint64_t first, uint64_t generation, const void *owner,
                          routecap_adoption &found, uint64_t &after,
                          std::unique_ptr<Adoption> &adoption) = 0;

    virtual int32_t contains(Keys keys, uint64_t generation, int32_t *reasons,
                             uint64_t *leading) = 0;
    virtual int32_t retain(Keys keys, int32_t *reasons) = 0;
    virtual int32_t release(Keys keys) = 0;
    virtual int32_t evict(Keys keys, uint64_t *evicted) = 0;
    virtual int32_t advance(uint64_t generation) = 0;
    virtual void counts(routecap_store_counts &counts) = 0;
    // Of these counts what the log hears of; quick.
    struct Refusals {
        uint64_t refused, mismatched;
    };
    virtual Refusals refusals() = 0;

    // What the log hears of it, where no mutex is held: that it is there, and which blocks it has
    // refused since that was told, once a second at most.
    void log_creation() const;
    void tell_refusals();

protected:
    explicit Store(StoreConfig config) : config_(std::move(config)) {}

    // Refuses a generation that it has not advanced to.
    int32_t check_generation(uint64_t generation) const;
    // Adds to what an adopt found what it hears of key i.
    void note_key(size_t i, int32_t reason, routecap_adoption &found) const;
    // No block of a publication was new enough: what its newest row's tag is, or its caller's.
    void note_stale(uint64_t tag, uint64_t generation);

    const StoreConfig config_;

private:
    // How many blocks were told, and in which second.
    struct Told {
        std::atomic<uint64_t> times{0};
        std::atomic<int64_t> second{0};
    };
    Told told_refused_, told_mismatched_, told_stale_;
    // Publications of which nothing was new enough, and the last of them.
    std::atomic<uint64_t> stale_{0}, stale_tag_{0}, stale_generation_{0};
};

using StorePtr = std::shared_ptr<Store>;

}  // namespace routecap
