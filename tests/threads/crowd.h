// Threads that do one thing over and over while a test goes on.
#pragma once

#include <atomic>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

// Runs threads until they are told to stop.
class Threads {
public:
    ~Threads() { stop(); }
    template <class F>
    void repeat(F f) {
        threads_.emplace_back([this, f, seed = threads_.size()]() mutable {
            std::mt19937_64 random(seed);
            for (; !stop_.load(std::memory_order_relaxed); turns_++) f(random);
        });
    }
    // How often it was done, by all together.
    uint64_t turns() const { return turns_; }
    void stop() {
        stop_ = true;
        for (auto &t : threads_) t.join();
        threads_.clear();
    }

private:
    std::atomic<bool> stop_{false};
    std::atomic<uint64_t> turns_{0};
    std::vector<std::thread> threads_;
};
