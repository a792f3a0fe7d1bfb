// Wakes the worker thread. Ringing takes no lock.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "base/mutex.h"

namespace routecap {

class Bell {
public:
    using Clock = std::chrono::steady_clock;

    // How often it rang. A thread that reads this before it looks for work, and passes it to
    // sleep() or doze(), misses no ring.
    uint32_t rings() const { return rings_.load(std::memory_order_seq_cst); }

    // One thread sleeps until it rings, unless it rang since `seen`. It yields a few times first,
    // so that a ring meanwhile need not wake it. It uses the futex directly, because std::atomic's
    // wait differs between C++ runtimes, and in libc++ the engine's thread would wait for the
    // worker.
    void sleep(uint32_t seen) {
        for (int look = 0; look < kLooks && rings() == seen; look++) std::this_thread::yield();
        sleeping_.store(true, std::memory_order_seq_cst);
        while (rings() == seen) futex(FUTEX_WAIT_PRIVATE, seen);
        sleeping_.store(false, std::memory_order_relaxed);
    }
    // Sleeps while a step is in flight: until the given time, or until a thread calls. Ringing does
    // not end it.
    void doze(uint32_t seen, Clock::time_point until) {
        const Lock lock(mutex_);
        called_ = false;
        dozing_.store(true, std::memory_order_seq_cst);
        for (bool wait = rings() == seen; wait && !called_;)
            wait = calls_.wait_until(mutex_, until);
        dozing_.store(false, std::memory_order_relaxed);
    }

    // Says that there is something to do.
    void ring() {
        rings_.fetch_add(1, std::memory_order_seq_cst);
        if (sleeping_.load(std::memory_order_seq_cst)) futex(FUTEX_WAKE_PRIVATE, 1);
    }
    // Says that a thread waits for it, so the worker must not doze.
    void call() {
        ring();
        if (!dozing_.load(std::memory_order_seq_cst)) return;
        {
            const Lock lock(mutex_);
            called_ = true;
        }
        calls_.notify_one();
    }

private:
    static constexpr int kLooks = 4;

    void futex(int what, uint32_t value) {
        static_assert(sizeof rings_ == sizeof value);
        syscall(SYS_futex, &rings_, what, value, nullptr);
    }

    std::atomic<uint32_t> rings_{0};
    std::atomic<bool> sleeping_{false}, dozing_{false};
    Mutex mutex_;
    ConditionVariable calls_;
    bool called_ GUARDED_BY(mutex_) = false;
};

}  // namespace routecap
