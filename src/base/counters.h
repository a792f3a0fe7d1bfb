// A capturer's counters. The engine's thread and the filing thread write them, any thread reads
// them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/declared.h"

namespace routecap {

// A thread that reads a counter also sees everything that was counted before the value that it
// read. So it must read effects before causes, and never sees an effect without its cause.
class Counter {
public:
    void operator+=(uint64_t n) {
        if (n != 0) value_.fetch_add(n, std::memory_order_release);
    }
    void operator-=(uint64_t n) { value_.fetch_sub(n, std::memory_order_release); }
    void operator++(int) { value_.fetch_add(1, std::memory_order_release); }
    void set(uint64_t n) { value_.store(n, std::memory_order_release); }
    operator uint64_t() const { return value_.load(std::memory_order_acquire); }

private:
    std::atomic<uint64_t> value_{0};
};

struct LayerCounters {
    Counter unwritten, out_of_range, duplicate, silent_steps;
};

struct Counters {
#define COUNTER(field) Counter field;
    ROUTECAP_COUNTERS(COUNTER)
#undef COUNTER
    Counter rows_landed;  // rows whose cells were counted per layer
    std::unique_ptr<LayerCounters[]> layers;

    explicit Counters(uint32_t layer_count) : layers(new LayerCounters[layer_count]) {}
};

}  // namespace routecap
