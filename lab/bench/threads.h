// What passes between an engine's thread and one that files rows costs something whatever the
// library. Here that and nothing else, so that the library's times can be held against it.
#pragma once

#include <routecap.h>

#if defined(__linux__)
#include <sys/prctl.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace bench {

// From the engine's thread: of each request a line of its own is looked up and changed at issue,
// accept and finish, and one line is written that the other thread has read last. A draft is
// remembered from issue to accept in a second line of its request. Nothing is decided and no memory
// asked for.
class Handover {
public:
    explicit Handover(uint32_t requests)
        : own_(requests),
          drafts_(requests),
          spans_(requests),
          accepts_(requests),
          ends_(requests),
          filer_([this] { file(); }) {}
    ~Handover() {
        given_.store(UINT32_MAX, std::memory_order_release);
        filer_.join();
    }
    void issue(const std::vector<routecap_span> &spans, bool drafts) {
        for (size_t i = 0; i < own_.size(); i++) {
            ahead(i, spans_);
            const routecap_span &span = spans[i];
            if (drafts) {
                if (i + kAhead < own_.size()) __builtin_prefetch(&drafts_[i + kAhead], 1);
                drafts_[i] = {span.position, span.position + span.rows, span.rows};
            }
            own_[i] = {span.request, span.position + span.rows, own_[i].words[2] + 1};
            spans_[i] = {span.request, span.position, span.rows, span.sink_row, own_[i].words[2]};
        }
        give();
    }
    void accept(const std::vector<routecap_accept_item> &items) {
        for (size_t i = 0; i < own_.size(); i++) {
            ahead(i, accepts_);
            if (i + kAhead < own_.size()) __builtin_prefetch(&drafts_[i + kAhead], 1);
            own_[i].words[1] = std::min(drafts_[i].words[0] + items[i].count, drafts_[i].words[1]);
            drafts_[i].words[2] = 0;
            accepts_[i] = {items[i].request, items[i].step, items[i].count, own_[i].words[1]};
        }
        give();
    }
    void finish(std::vector<routecap_finish_item> &items) {
        for (size_t i = 0; i < own_.size(); i++) {
            ahead(i, ends_);
            items[i].routing = reinterpret_cast<routecap_routing *>(&own_[i]);
            own_[i].words[0] += 1;
            ends_[i] = {items[i].request, items[i].rows, own_[i].words[1]};
        }
        give();
    }
    // Until the other thread has read it all.
    void wait() const {
        while (taken_.load(std::memory_order_acquire) != given_.load(std::memory_order_relaxed))
            std::this_thread::yield();
    }

private:
    struct alignas(64) Line {
        uint64_t words[8];
    };
    using Lines = std::vector<Line>;
    static constexpr size_t kAhead = 16;
    void ahead(size_t i, Lines &lines) {
        if (i + kAhead >= lines.size()) return;
        __builtin_prefetch(&own_[i + kAhead], 1);
        __builtin_prefetch(&lines[i + kAhead], 1);
    }
    void give() { given_.fetch_add(1, std::memory_order_release); }
    void file() {
        for (uint32_t seen = 0;;) {
            const uint32_t given = given_.load(std::memory_order_acquire);
            if (given == UINT32_MAX) return;
            if (given == seen) {
                std::this_thread::sleep_for(std::chrono::microseconds(5));
                continue;
            }
            uint64_t sum = 0;
            for (const Lines *lines : {&spans_, &accepts_, &ends_})
                for (const Line &line : *lines) sum += line.words[0];
            asm volatile("" : : "r"(sum));
            taken_.store(seen = given, std::memory_order_release);
        }
    }

    Lines own_, drafts_, spans_, accepts_, ends_;
    std::atomic<uint32_t> given_{0}, taken_{0};
    std::thread filer_;
};

// To the reader: a thread looks every 5 to 20 us whether a step's rows have come, and copies each
// to where its request's rows are. Nothing is checked, and the memory is there.
class Filer {
public:
    // Step s has come when *arrived is s. Its rows are at `from`, those of each request together.
    Filer(const uint64_t *arrived, const uint8_t *from, size_t row_bytes, uint32_t rows,
          uint32_t requests)
        : arrived_(arrived),
          from_(from),
          share_bytes_(rows / requests * row_bytes),
          seen_(*arrived) {
        const size_t steps = std::max<size_t>(kPageBytes / share_bytes_, 1);
        for (uint32_t i = 0; i < requests; i++) requests_.emplace_back(steps * share_bytes_, 1);
        filed_ = seen_;
        filer_ = std::thread([this] { file(); });
    }
    ~Filer() {
        stop_.store(true, std::memory_order_relaxed);
        filer_.join();
    }
    bool filed(uint64_t step) const { return filed_.load(std::memory_order_acquire) == step; }

private:
    static constexpr size_t kPageBytes = 64 << 10;
    void file() {
        using std::chrono::nanoseconds;
        constexpr nanoseconds kFirst{5'000}, kLongest{20'000};
        nanoseconds pause = kFirst;
#if defined(__linux__)
        prctl(PR_SET_TIMERSLACK, 1000);
#endif
        while (!stop_.load(std::memory_order_relaxed)) {
            const uint64_t now = __atomic_load_n(arrived_, __ATOMIC_ACQUIRE);
            if (now == seen_) {
                std::this_thread::sleep_for(pause);
                pause = std::min(pause + pause / 4, kLongest);
                continue;
            }
            seen_ = now;
            for (size_t i = 0; i < requests_.size(); i++) {
                constexpr size_t kAhead = 6, kMost = 1024;
                if (i + kAhead < requests_.size())
                    for (size_t b = 0; b < std::min(share_bytes_, kMost); b += 64)
                        __builtin_prefetch(place(i + kAhead) + b, 1);
                std::memcpy(place(i), from_ + i * share_bytes_, share_bytes_);
            }
            filed_.store(now, std::memory_order_release);
            pause = kFirst;
        }
    }
    uint8_t *place(size_t request) {
        return requests_[request].data() + seen_ * share_bytes_ % requests_[request].size();
    }

    const uint64_t *arrived_;
    const uint8_t *from_;
    const size_t share_bytes_;
    std::vector<std::vector<uint8_t>> requests_;
    uint64_t seen_;
    std::atomic<uint64_t> filed_{0};
    std::atomic<bool> stop_{false};
    std::thread filer_;
};

}  // namespace bench
