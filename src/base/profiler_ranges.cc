#include "base/profiler_ranges.h"

#if ROUTECAP_NVTX

namespace routecap {

constinit std::atomic<nvtxDomainHandle_t> profiler{nullptr};

void ask_for_profiler() {
    static const nvtxDomainHandle_t found = nvtxDomainCreateA("routecap");
    profiler.store(found, std::memory_order_relaxed);
}

void ProfilerRange::begin(const char *name) const {
    nvtxEventAttributes_t range{};
    range.version = NVTX_VERSION;
    range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    range.messageType = NVTX_MESSAGE_TYPE_ASCII;
    range.message.ascii = name;
    nvtxDomainRangePushEx(in_, &range);
}

}  // namespace routecap

#endif
