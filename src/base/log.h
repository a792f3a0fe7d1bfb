// Lines for an operator. They go to the hook of routecap_set_log; without a hook they go to stderr,
// as ROUTECAP_LOG says. Nothing here allocates or takes a mutex. A thread that tells a line must
// hold no mutex, because the hook may wait for one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "routecap.h"

namespace routecap {

// The highest level that is told. Negative: the environment has not been read yet.
extern std::atomic<int32_t> log_level;
int32_t ask_log_level() noexcept;

// Whether lines of this level go anywhere.
inline bool logs(int32_t level) noexcept {
    const int32_t told = log_level.load(std::memory_order_relaxed);
    return level <= (told < 0 ? ask_log_level() : told);
}

// Tells one line.
[[gnu::format(printf, 2, 3)]] void tell(int32_t level, const char *format, ...) noexcept;

// Tells that a call returned an error, with the text of the error. For each status it tells at most
// five lines a second.
void tell_refusal(int32_t status, const char *call) noexcept;

// Collects lines where a mutex or the filing lock is held, so that they can be told afterwards.
class Lines {
public:
    [[gnu::format(printf, 3, 4)]] void add(int32_t level, const char *format, ...) noexcept;
    void tell() const noexcept;

private:
    struct Line {
        int32_t level;
        char text[320];
    };
    static constexpr uint32_t kMost = 16;
    Line lines_[kMost];  // the first count_ of them
    uint32_t count_ = 0;
};

// routecap_set_log.
int32_t set_log(routecap_log log, void *context, int32_t level) noexcept;
// For a child of fork(): forgets threads of the parent that were telling a line when it forked.
// They do not exist in the child, and set_log would wait for them.
void forget_tellers() noexcept;

}  // namespace routecap
