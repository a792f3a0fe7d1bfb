// How a benchmark ends that cannot go on.
#pragma once

#include <routecap.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace bench {

// Ends the program at once, whatever its threads and the device are doing.
[[noreturn]] inline void fail(const std::string &text) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s\n", text.c_str());
    std::_Exit(1);
}
[[noreturn]] inline void fail(const char *call, int32_t status) {
    fail(std::string(call) + ": " + routecap_status_name(status) + ": " + routecap_last_error());
}

// A figure of rows that were lost or skipped would be a figure of something else.
inline void check(int32_t status, const char *call) {
    if (status != ROUTECAP_OK) fail(call, status);
}

}  // namespace bench

#define CHECK(call) bench::check((call), #call)
