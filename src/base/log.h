// Lines for an operator: to the hook of routecap_set_log or, without one, to stderr as ROUTECAP_LOG
// says. Nothing here allocates or takes a mutex; who tells a line holds none.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "routecap.h"

namespace routecap {

// The lines that are told; negative: nobody has asked the environment yet.
extern std::atomic<int32_t> log_level;
int32_t ask_log_level() noexcept;

// Whether lines of this level go anywhere.
inline bool logs(int32_t level) noexcept {
    const int32_t told = log_level.load(std::memory_order_relaxed);
    return level <= (told < 0 ? ask_log_level() : told);
}

// Tells one line.
[[gnu::format(printf, 2, 3)]] void tell(int32_t level, const char *format, ...) noexcept;

// Tells that a call returned an error, with its text. A few times a second for each status.
void tell_refusal(int32_t status, const char *call) noexcept;

// Lines that are made where nothing may be told, to be told later.
class Lines {
public:
    [[gnu::format(printf, 3, 4)]] void add(int32_t level, const char *format, ...) noexcept;
    void tell() const noexcept;
    bool empty() const noexcept { return count_ == 0; }

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
// In a child of fork(), whose only thread tells nothing at that moment.
void forget_tellers() noexcept;

}  // namespace routecap
