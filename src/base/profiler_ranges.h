// What is seen from outside while it runs: ranges for a profiler (NVTX), and probes for a tracer
// (USDT). Both are headers at build time and nothing at run time. Without a profiler a range is one
// look at a word; a probe is one instruction that does nothing.
#pragma once

#include <atomic>

#ifndef ROUTECAP_TRACED  // or a file would know of other ranges than the rest
#error "CMakeLists.txt lists the files that include profiler_ranges.h"
#endif
#if ROUTECAP_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace routecap {

#if ROUTECAP_NVTX
// Null: there is no profiler, or nobody has asked yet.
extern std::atomic<nvtxDomainHandle_t> profiler;
// Asks once. It may load the profiler, so that no call of the forward path should be the first.
void ask_for_profiler();

// What this thread does while it lives.
class ProfilerRange {
public:
    explicit ProfilerRange(const char *name) : in_(profiler.load(std::memory_order_relaxed)) {
        if (in_ != nullptr) [[unlikely]]
            begin(name);
    }
    ~ProfilerRange() {
        if (in_ != nullptr) [[unlikely]]
            nvtxDomainRangePop(in_);
    }
    ProfilerRange(const ProfilerRange &) = delete;

private:
    void begin(const char *name) const;
    const nvtxDomainHandle_t in_;
};
#else
inline void ask_for_profiler() {}
class ProfilerRange {
public:
    explicit ProfilerRange(const char *) {}
    ~ProfilerRange() {}
    ProfilerRange(const ProfilerRange &) = delete;
};
#endif

}  // namespace routecap

#if ROUTECAP_USDT
#define SDT_USE_VARIADIC 1
#include <sys/sdt.h>
#define ROUTECAP_PROBE(name, ...) STAP_PROBEV(routecap, name, __VA_ARGS__)
#else
#define ROUTECAP_PROBE(name, ...) static_cast<void>(0)
#endif
