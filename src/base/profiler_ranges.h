// Ranges for a profiler (NVTX) and probes for a tracer (USDT). Both need a header at build time and
// no library at run time. Without a profiler, a range costs one load and one branch. A probe is one
// instruction that does nothing.
#pragma once

#include <atomic>

// The classes below depend on it, so it must be the same for all files that include this one.
#ifndef ROUTECAP_TRACED
#error "CMakeLists.txt lists the files that include profiler_ranges.h"
#endif
#if ROUTECAP_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace routecap {

#if ROUTECAP_NVTX
// Null if there is no profiler, or before ask_for_profiler().
extern std::atomic<nvtxDomainHandle_t> profiler;
// Looks for a profiler once. It may load the profiler's library, so the first call must not be on
// the forward path.
void ask_for_profiler();

// A range on the calling thread, which ends with the object.
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
