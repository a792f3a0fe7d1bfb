// Which thread may file. It locks no data: the thread that has the turn may allocate and take its
// time, and only threads that want to do the same work wait for it.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/mutex.h"

namespace routecap {

class ROUTECAP_CAPABILITY("turn") Turn {
public:
    // Urgent threads go first.
    void take(bool urgent) ACQUIRE() {
        const Lock lock(mutex_);
        if (urgent) urgent_.fetch_add(1, std::memory_order_relaxed);
        while (taken_ || (!urgent && wanted())) given_.wait(mutex_);
        if (urgent) urgent_.fetch_sub(1, std::memory_order_relaxed);
        taken_ = true;
    }
    void give() RELEASE() {
        {
            const Lock lock(mutex_);
            taken_ = false;
        }
        given_.notify_all();
    }
    // Whether an urgent thread waits. Then the thread that has the turn should give it soon.
    bool wanted() const { return urgent_.load(std::memory_order_relaxed) > 0; }

private:
    Mutex mutex_;  // held for a few instructions
    ConditionVariable given_;
    bool taken_ GUARDED_BY(mutex_) = false;
    std::atomic<uint32_t> urgent_{0};
};

class ROUTECAP_SCOPED_CAPABILITY TakenTurn {
public:
    explicit TakenTurn(Turn &turn, bool urgent = false) ACQUIRE(turn) : turn_(turn) {
        turn_.take(urgent);
    }
    ~TakenTurn() RELEASE() { turn_.give(); }
    TakenTurn(const TakenTurn &) = delete;

private:
    Turn &turn_;
};

}  // namespace routecap
