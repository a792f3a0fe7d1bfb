// A routing: rows that were read out. Immutable once it is ready, reference-counted, independent of request and capturer.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "landing.h"
#include "pages.h"
#include "process.h"
#include "routecap.h"
#include "rows.h"
#include "shape.h"

namespace routecap {

class Routing {
public:
    // Not ready: fill() gives it its rows.
    Routing(ShapePtr shape, std::shared_ptr<PagePool> pool) : Routing(std::move(shape), std::move(pool), nullptr, 0, 0) {}
    // Ready.
    Routing(ShapePtr shape, std::shared_ptr<PagePool> pool, uint64_t first, uint64_t rows, std::vector<Segment> segments);
    // Pending: of a request that was finished; filled by whoever files its last step, which is `after`. It begins at 0 and will have
    // `expected_rows` rows, or fewer where positions come from the device.
    Routing(ShapePtr shape, std::shared_ptr<PagePool> pool, std::shared_ptr<Landing> landing, uint64_t after, uint64_t expected_rows);
    void fill(uint64_t first, uint64_t rows, std::vector<Segment> segments) noexcept;

    // The process it was made in.
    uint32_t process() const { return process_; }
    void retain() const { references_.fetch_add(1, std::memory_order_relaxed); }
    void release() const;

    bool ready() const { return ready_.load(std::memory_order_acquire); }
    // Of a pending routing, before and after it is ready.
    const Landing *landing() const { return landing_.get(); }
    uint64_t after() const { return after_; }
    uint64_t expected_end() const { return ready() ? end() : expected_rows_; }

    // The rest is for routings that are ready, but wait.
    int32_t wait(int64_t timeout_ns) const;
    int32_t status() const { return reading_status_; }
    uint64_t first() const { return first_; }
    uint64_t end() const { return first_ + rows_; }
    const Shape &shape() const { return *shape_; }
    std::span<const Segment> segments() const { return segments_; }

    void view(routecap_view *view) const;
    int32_t coverage(routecap_coverage *coverage, routecap_missing *missing, size_t missing_size, size_t capacity) const;
    Routing *slice(uint64_t first, uint64_t rows) const;
    // One array with all rows. Null if the budget refuses it.
    Routing *copy() const;

private:
    ~Routing() = default;

    const ShapePtr shape_;
    const std::shared_ptr<PagePool> pool_;
    const std::shared_ptr<Landing> landing_;
    const uint64_t after_ = 0, expected_rows_ = 0;
    const uint32_t process_ = process_generation();
    mutable std::atomic<uint32_t> references_{1};
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

// Unites routings by layer and position.
int32_t merge(std::span<const Routing *const> routings, Routing **merged);

}  // namespace routecap
