// What wakes the worker thread. Ringing costs one atomic addition unless the worker has to be woken.
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

    // How often it rang. Who reads this before looking for work, and passes it to sleep(), misses nothing.
    uint64_t rings() const { return rings_.load(std::memory_order_seq_cst); }

    // One thread sleeps: until it is woken or `until` comes; not at all if it rang since `seen`.
    void sleep(uint64_t seen) { sleep(seen, kAsleep, [this](auto &lock, auto woken) { changed_.wait(lock, woken); }); }
    // The same while there is work that only time brings on: nobody but call() ends it early.
    void doze(uint64_t seen, Clock::time_point until) {
        sleep(seen, kDozing, [this, until](auto &lock, auto woken) { changed_.wait_until(lock, until, woken); });
    }

    // There is something to do: wakes who sleeps, and leaves who dozes.
    void ring() { wake(kAsleep); }
    // Somebody waits for it: wakes who dozes, too.
    void call() { wake(kDozing); }

private:
    static constexpr int kAwake = 0, kDozing = 1, kAsleep = 2;

    template <class Wait>
    void sleep(uint64_t seen, int state, Wait wait) {
        std::unique_lock lock(mutex_);
        state_.store(state, std::memory_order_seq_cst);
        if (rings() == seen) wait(lock, [this] { return state_.load(std::memory_order_relaxed) == kAwake; });
        state_.store(kAwake, std::memory_order_relaxed);
    }
    void wake(int least) {
        rings_.fetch_add(1, std::memory_order_seq_cst);
        if (state_.load(std::memory_order_seq_cst) < least) return;
        {
            std::lock_guard lock(mutex_);
            state_.store(kAwake, std::memory_order_relaxed);
        }
        changed_.notify_one();
    }

    std::mutex mutex_;  // held between setting state_ and waiting, and by who wakes
    std::condition_variable changed_;
    std::atomic<int> state_{kAwake};
    std::atomic<uint64_t> rings_{0};
};

}  // namespace routecap
