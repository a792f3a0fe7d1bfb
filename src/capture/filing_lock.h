// The lock of whoever files, one thread at a time. It guards the step worker's data for as long as
// filing takes: its holder may allocate, copy rows and take mutexes, and only threads that want to
// do the same work wait for it. Urgent threads go first.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/mutex.h"

namespace routecap {

class ROUTECAP_CAPABILITY("lock") FilingLock {
public:
    void acquire(bool urgent) ACQUIRE() {
        const Lock lock(mutex_);
        if (urgent) urgent_.fetch_add(1, std::memory_order_relaxed);
        while (held_ || (!urgent && is_urgent())) released_.wait(mutex_);
        if (urgent) urgent_.fetch_sub(1, std::memory_order_relaxed);
        held_ = true;
    }
    void release() RELEASE() {
        {
            const Lock lock(mutex_);
            held_ = false;
        }
        released_.notify_all();
    }
    // Whether an urgent thread waits. Then the holder should release it soon.
    bool is_urgent() const { return urgent_.load(std::memory_order_relaxed) > 0; }

private:
    Mutex mutex_;  // held for a few instructions
    ConditionVariable released_;
    bool held_ GUARDED_BY(mutex_) = false;
    std::atomic<uint32_t> urgent_{0};
};

class ROUTECAP_SCOPED_CAPABILITY FilingGuard {
public:
    explicit FilingGuard(FilingLock &lock, bool urgent = false) ACQUIRE(lock) : lock_(lock) {
        lock_.acquire(urgent);
    }
    ~FilingGuard() RELEASE() { lock_.release(); }
    FilingGuard(const FilingGuard &) = delete;

private:
    FilingLock &lock_;
};

}  // namespace routecap
