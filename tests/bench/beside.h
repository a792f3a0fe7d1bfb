// What goes on beside an engine's thread: another one that makes calls of its own, and the
// capturer's worker.
#pragma once

#include <routecap.h>

#include <dirent.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>

#include "check.h"
#include "measure.h"

namespace bench {

// A thread that opens and closes requests, accepts drafts and reads the counters, until it is asked
// for the longest that each of these calls took.
class Bystander {
public:
    static constexpr std::array<const char *, 4> kCalls{"open", "close", "accept", "stats"};
    using Longest = std::array<double, kCalls.size()>;  // us

    // `drafts` is a request of which a step may have drafts; `step` the last that was issued.
    Bystander(routecap_capturer *capturer, routecap_request drafts,
              const std::atomic<routecap_step> &step)
        : capturer_(capturer), drafts_(drafts), step_(step), thread_([this] { call(); }) {
        while (rounds_.load() == 0) std::this_thread::yield();
    }
    ~Bystander() { stop(); }
    // With the calls that are not back yet.
    Longest stop() {
        stop_.store(true);
        if (thread_.joinable()) thread_.join();
        return longest_;
    }

private:
    void call() {
        while (!stop_.load()) {
            routecap_request request = 0;
            routecap_stats stats{};
            stats.struct_size = sizeof stats;
            timed(0, [&] { return routecap_request_open(capturer_, nullptr, &request, 1); });
            timed(1, [&] { return routecap_request_close(capturer_, request); });
            const int32_t accepted = timed(2, [&] {
                return routecap_request_accept(capturer_, drafts_, step_.load(), nullptr, 1);
            });
            timed(3, [&] { return routecap_capturer_stats(capturer_, &stats); });
            if (accepted != ROUTECAP_OK && accepted != ROUTECAP_ERR_UNKNOWN_STEP)
                fail("accept", accepted);
            rounds_.fetch_add(1);
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
    }
    template <class F>
    int32_t timed(size_t call, F f) {
        const double start = wall_us();
        const int32_t status = f();
        longest_[call] = std::max(longest_[call], wall_us() - start);
        if (status < 0 && call != 2) fail(kCalls[call], status);
        return status;
    }
    routecap_capturer *const capturer_;
    const routecap_request drafts_;
    const std::atomic<routecap_step> &step_;
    Longest longest_{};
    std::atomic<bool> stop_{false};
    std::atomic<uint64_t> rounds_{0};
    std::thread thread_;
};

// The thread that a capturer starts, found by what threads there are before and after.
class Worker {
public:
    static std::set<int> threads() {
        std::set<int> ids;
        DIR *folder = opendir("/proc/self/task");
        if (folder == nullptr) fail("there is no /proc/self/task");
        while (const dirent *entry = readdir(folder))
            if (const int id = std::atoi(entry->d_name); id > 0) ids.insert(id);
        closedir(folder);
        return ids;
    }
    explicit Worker(const std::set<int> &before) {
        std::set<int> now = threads();
        std::erase_if(now, [&](int id) { return before.contains(id); });
        if (now.size() != 1)
            fail(std::to_string(now.size()) + " threads were started, and not the worker alone");
        // Its CPU time, as Linux names it.
        clock_ = static_cast<clockid_t>(~static_cast<unsigned>(*now.begin()) << 3 | 6u);
        cpu_us();
    }
    double cpu_us() const {
        timespec t{};
        if (clock_gettime(clock_, &t) != 0) fail("the CPU time of another thread cannot be read");
        return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
    }

private:
    clockid_t clock_;
};

}  // namespace bench
