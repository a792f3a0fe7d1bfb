// Statuses as text, and the one line about the last failure that each thread keeps.
#pragma once

#include <cstdint>

namespace routecap {

// Keeps one line of text for routecap_last_error and returns `status`, so that a refusal is one
// statement.
[[gnu::format(printf, 2, 3)]] int32_t report(int32_t status, const char *format, ...) noexcept;

// A number as %llu takes it.
constexpr unsigned long long ull(uint64_t n) { return n; }

const char *last_error() noexcept;

// Keeps this thread's line while it lives, and restores it at its end.
class KeptError {
public:
    KeptError() noexcept;
    ~KeptError();
    KeptError(const KeptError &) = delete;

private:
    char text_[256];
};
const char *status_name(int32_t status) noexcept;

}  // namespace routecap
