// What threads wait on until work in flight has landed. Shared by a capturer and its pending
// routings, which may outlive it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

#include "base/mutex.h"

namespace routecap {

class Completion {
public:
    // Waits until ready() is true; false after timeout_ns nanoseconds (negative: no limit). The
    // thread that makes it true calls notify() afterwards.
    template <class Ready>
    bool wait(int64_t timeout_ns, Ready ready) {
        using Clock = std::chrono::steady_clock;
        constexpr auto kForever = std::chrono::hours(24 * 365);
        const auto limit =
            Clock::now() + (timeout_ns < 0 ? kForever
                                           : std::min<Clock::duration>(
                                                 std::chrono::nanoseconds(timeout_ns), kForever));
        if (ready()) return true;
        const Waiting waiting(waiting_);
        for (;;) {
            if (ready()) return true;
            const bool manual = progress();
            if (manual && ready()) return true;
            if (Clock::now() >= limit) return false;
            if (manual) {
                std::this_thread::sleep_for(std::chrono::microseconds(20));
                continue;
            }
            const Lock lock(mutex_);
            while (!ready())
                if (!landed_.wait_until(mutex_, limit)) return ready();
            return true;
        }
    }

    // Whether a thread waits. A thread that begins to wait is visible here before it calls for
    // progress.
    bool awaited() const { return waiting_.load(std::memory_order_acquire) != 0; }

    void notify() {
        { const Lock lock(mutex_); }
        landed_.notify_all();
    }

    // Sets what a waiting thread does for progress, for the capturer's life. Without a worker
    // thread it does the work itself and returns true; otherwise it calls the worker and returns
    // false.
    void set_progress(std::function<bool()> progress) {
        const Lock lock(progress_mutex_);
        while (users_ > 0) unused_.wait(progress_mutex_);
        progress_ = std::move(progress);
    }
    bool progress() {
        const std::function<bool()> *work = nullptr;
        {
            const Lock lock(progress_mutex_);
            if (!progress_) return false;
            users_++;
            work = &progress_;
        }
        const bool worked = (*work)();
        const Lock lock(progress_mutex_);
        if (--users_ == 0) unused_.notify_all();
        return worked;
    }

private:
    struct Waiting {
        std::atomic<uint32_t> &threads;
        explicit Waiting(std::atomic<uint32_t> &n) : threads(n) { threads.fetch_add(1); }
        ~Waiting() { threads.fetch_sub(1); }
    };

    Mutex mutex_;  // guards no data: notify() cannot fall between ready() and the wait
    ConditionVariable landed_;
    std::atomic<uint32_t> waiting_{0};
    Mutex progress_mutex_;
    ConditionVariable unused_;
    uint32_t users_ GUARDED_BY(progress_mutex_) = 0;
    // Replaced only when no thread runs it: users_ counts those.
    std::function<bool()> progress_ GUARDED_BY(progress_mutex_);
};

}  // namespace routecap
