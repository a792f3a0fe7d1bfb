// The thread that waits for copies to arrive, one after another in the order in which they were started. It is the only one that waits for the
// device, so that whoever files can go on meanwhile with what needs no device.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>

#include "routecap.h"

namespace routecap::cuda {

class Waiter {
public:
    ~Waiter() { stop(); }

    // Calls arrive(slot) for each slot that is pushed: it waits. Throws std::system_error without a thread.
    void start(std::function<void(int32_t)> arrive) {
        thread_ = std::thread([this, arrive = std::move(arrive)] {
            for (uint32_t taken = 0;; taken++) {
                pushed_.wait(taken, std::memory_order_acquire);
                const int32_t slot = slots_[taken % slots_.size()];
                if (slot == kStop) return;
                arrive(slot);
            }
        });
    }
    // From one thread at a time. Does not wait: there is room for every slot.
    void push(int32_t slot) {
        const uint32_t n = pushed_.load(std::memory_order_relaxed);
        slots_[n % slots_.size()] = slot;
        pushed_.store(n + 1, std::memory_order_release);
        pushed_.notify_one();
    }
    // After everything pushed has arrived.
    void stop() {
        if (!thread_.joinable()) return;
        push(kStop);
        thread_.join();
    }

private:
    static constexpr int32_t kStop = -2;
    std::array<int32_t, 2 * ROUTECAP_MAX_SLOTS> slots_;  // a ring
    std::atomic<uint32_t> pushed_{0};
    std::thread thread_;
};

}  // namespace routecap::cuda
