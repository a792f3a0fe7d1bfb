// A routing: rows that were read. It is reference-counted, immutable once it is ready, and
// independent of its request and capturer.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "base/process.h"
#include "routecap.h"
#include "rows/row_store.h"

namespace routecap {

class Routing {
public:
    // Makes a routing that is not ready; fill() gives it its rows.
    explicit Routing(StoragePtr storage, uint32_t references = 1)
        : storage_(std::move(storage)), references_(references) {}
    Routing(const Routing &) = delete;
    // Makes a routing that is ready.
    Routing(StoragePtr storage, uint64_t first, uint64_t rows, std::vector<Segment> segments)
        : Routing(std::move(storage)) {
        fill(first, rows, std::move(segments));
    }

    // Becomes the pending routing of a request that was finished. The thread that files `after`,
    // the request's last step, fills it. It begins at 0 and will have `rows` rows, or fewer if
    // positions come from the device.
    void expect(Ticket after, uint64_t rows) {
        after_ = after;
        expected_rows_ = rows;
    }
    void fill(uint64_t first, uint64_t rows, std::vector<Segment> segments) noexcept;

    // The process it was made in.
    uint32_t process() const { return process_; }
    void retain() const { references_.fetch_add(1, std::memory_order_relaxed); }
    void release(uint32_t references = 1) const;

    bool ready() const { return ready_.load(std::memory_order_acquire); }
    // For a routing of a finished request, before and after it is ready.
    const Completion *completion() const { return storage_->completion.get(); }
    Ticket after() const { return after_; }
    uint64_t expected_end() const { return ready() ? end() : expected_rows_; }

    // Except for wait and poll, the following is for routings that are ready.
    int32_t wait(int64_t timeout_ns) const;
    int32_t poll() const;
    int32_t status() const { return reading_status_; }
    uint64_t first() const { return first_; }
    uint64_t end() const { return first_ + rows_; }
    const Shape &shape() const { return *storage_->shape; }
    std::span<const Segment> segments() const { return segments_; }

    void view(routecap_view *view) const;
    int32_t coverage(routecap_coverage *coverage, routecap_missing *missing, size_t missing_size,
                     size_t capacity) const;
    routecap_coverage counted() const;  // the coverage without its blocks
    Routing *slice(uint64_t first, uint64_t rows) const;
    // Copies all rows into one array. Null if the budget has no room.
    Routing *copy() const;

protected:
    virtual ~Routing() = default;  // with its last reference

private:
    const StoragePtr storage_;
    Ticket after_ = Ticket::none;
    uint64_t expected_rows_ = 0;
    const uint32_t process_ = process_generation();
    mutable std::atomic<uint32_t> references_;
    std::atomic<bool> ready_{false};

    uint64_t first_ = 0;
    uint64_t rows_ = 0;
    std::vector<Segment> segments_;
    int32_t reading_status_ = 0;

    mutable std::once_flag viewed_;
    mutable std::vector<routecap_segment> view_;  // made when it is first asked for

    friend int32_t merge(std::span<const Routing *const> routings, Routing **merged);
};

struct RoutingRelease {
    void operator()(const Routing *routing) const { routing->release(); }
};
using RoutingPtr = std::unique_ptr<const Routing, RoutingRelease>;

// Merges routings by layer and position.
int32_t merge(std::span<const Routing *const> routings, Routing **merged);

}  // namespace routecap
