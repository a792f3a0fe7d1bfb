// An event count, on which one thread waits: the worker. Notifying takes no lock.
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

class EventCount {
public:
    using Clock = std::chrono::steady_clock;

    // How many events there were. A thread that reads this before it looks for work, and passes it
    // to wait() or wait_until(), misses none.
    uint32_t events() const { return events_.load(std::memory_order_seq_cst); }

    // One thread waits for an event, unless there was one since `seen`. It yields a few times
    // first, so that an event meanwhile need not wake it. It uses the futex directly, because
    // std::atomic's wait differs between C++ runtimes, and in libc++ the engine's thread would wait
    // for the worker.
    void wait(uint32_t seen) {
        for (int look = 0; look < kLooks && events() == seen; look++) std::this_thread::yield();
        waiting_.store(true, std::memory_order_seq_cst);
        while (events() == seen) futex(FUTEX_WAIT_PRIVATE, seen);
        waiting_.store(false, std::memory_order_relaxed);
    }
    // Waits while a step is in flight: until the given time, or until an urgent event. Others do
    // not end it.
    void wait_until(uint32_t seen, Clock::time_point until) {
        const Lock lock(mutex_);
        urgent_ = false;
        timed_.store(true, std::memory_order_seq_cst);
        for (bool wait = events() == seen; wait && !urgent_;)
            wait = urgently_.wait_until(mutex_, until);
        timed_.store(false, std::memory_order_relaxed);
    }

    // Says that there is something to do.
    void notify() {
        events_.fetch_add(1, std::memory_order_seq_cst);
        if (waiting_.load(std::memory_order_seq_cst)) futex(FUTEX_WAKE_PRIVATE, 1);
    }
    // Says that a thread waits for it, so it must be done at once.
    void notify_urgent() {
        notify();
        if (!timed_.load(std::memory_order_seq_cst)) return;
        {
            const Lock lock(mutex_);
            urgent_ = true;
        }
        urgently_.notify_one();
    }

private:
    static constexpr int kLooks = 4;

    void futex(int what, uint32_t value) {
        static_assert(sizeof events_ == sizeof value);
        syscall(SYS_futex, &events_, what, value, nullptr);
    }

    std::atomic<uint32_t> events_{0};
    std::atomic<bool> waiting_{false}, timed_{false};
    Mutex mutex_;
    ConditionVariable urgently_;
    bool urgent_ GUARDED_BY(mutex_) = false;
};

}  // namespace routecap
