// What wakes the worker thread. Ringing takes no lock.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace routecap {

class Bell {
public:
    using Clock = std::chrono::steady_clock;

    // How often it rang. Who reads this before looking for work, and passes it to sleep() or
    // doze(), misses nothing.
    uint32_t rings() const { return rings_.load(std::memory_order_seq_cst); }

    // One thread sleeps until it rings, unless it rang since `seen`.
    void sleep(uint32_t seen) { rings_.wait(seen, std::memory_order_seq_cst); }
    // The same while there is work that only time brings on: until then, or until somebody calls.
    // Ringing does not end it.
    void doze(uint32_t seen, Clock::time_point until) {
        std::unique_lock lock(mutex_);
        called_ = false;
        dozing_.store(true, std::memory_order_seq_cst);
        if (rings() == seen) calls_.wait_until(lock, until, [this] { return called_; });
        dozing_.store(false, std::memory_order_relaxed);
    }

    // There is something to do.
    void ring() {
        rings_.fetch_add(1, std::memory_order_seq_cst);
        rings_.notify_one();
    }
    // And somebody waits for it.
    void call() {
        ring();
        if (!dozing_.load(std::memory_order_seq_cst)) return;
        {
            std::lock_guard lock(mutex_);
            called_ = true;
        }
        calls_.notify_one();
    }

private:
    std::atomic<uint32_t> rings_{0};
    std::atomic<bool> dozing_{false};
    std::mutex mutex_;  // guards called_
    std::condition_variable calls_;
    bool called_ = false;
};

}  // namespace routecap
