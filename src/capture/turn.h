// Whose turn it is to file: one thread's at a time. It is no lock on anything: who has the turn may
// take memory and time, and only threads that want to do the same work wait for it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace routecap {

class Turn {
public:
    // Threads that are urgent go first.
    void take(bool urgent) {
        std::unique_lock lock(mutex_);
        if (urgent) urgent_.fetch_add(1, std::memory_order_relaxed);
        given_.wait(lock, [&] { return !taken_ && (urgent || !wanted()); });
        if (urgent) urgent_.fetch_sub(1, std::memory_order_relaxed);
        taken_ = true;
    }
    void give() {
        {
            std::lock_guard lock(mutex_);
            taken_ = false;
        }
        given_.notify_all();
    }
    // Whether an urgent thread waits: who has the turn should give it soon.
    bool wanted() const { return urgent_.load(std::memory_order_relaxed) > 0; }

private:
    std::mutex mutex_;  // guards taken_; held for a few instructions
    std::condition_variable given_;
    bool taken_ = false;
    std::atomic<uint32_t> urgent_{0};
};

class TakenTurn {
public:
    explicit TakenTurn(Turn &turn, bool urgent = false) : turn_(turn) { turn_.take(urgent); }
    ~TakenTurn() { turn_.give(); }
    TakenTurn(const TakenTurn &) = delete;

private:
    Turn &turn_;
};

}  // namespace routecap
