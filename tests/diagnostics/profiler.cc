// A profiler as NVTX loads one (NVTX_INJECTION64_PATH): it keeps what ranges it sees, which the
// test asks for.
#include <nvtx3/nvToolsExt.h>

#include <mutex>
#include <string>

namespace {

std::mutex mutex;
std::string seen;
thread_local int depth = 0;

nvtxDomainHandle_t create(const char *name) {
    static int domain;
    return std::string(name) == "routecap" ? reinterpret_cast<nvtxDomainHandle_t>(&domain)
                                           : nullptr;
}
int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *range) {
    if (domain == nullptr) return 0;
    const std::lock_guard lock(mutex);
    seen += std::string(static_cast<size_t>(depth), '>') + range->message.ascii + "\n";
    return depth++;
}
int pop(nvtxDomainHandle_t domain) { return domain != nullptr ? --depth : 0; }

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get_table) {
    const auto *callbacks =
        static_cast<const NvtxExportTableCallbacks *>(get_table(NVTX_ETID_CALLBACKS));
    NvtxFunctionTable functions = nullptr;
    unsigned int count = 0;
    if (callbacks == nullptr ||
        !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &functions, &count))
        return 0;
    const auto put = [&](unsigned int which, auto function) {
        *functions[which] = reinterpret_cast<NvtxFunctionPointer>(function);
    };
    put(NVTX_CBID_CORE2_DomainCreateA, create);
    put(NVTX_CBID_CORE2_DomainRangePushEx, push);
    put(NVTX_CBID_CORE2_DomainRangePop, pop);
    return 1;
}

// What was seen, one range a line, with a > for each around it; valid until it is asked again.
extern "C" __attribute__((visibility("default"))) const char *profiler_saw() {
    static std::string result;
    const std::lock_guard lock(mutex);
    result = seen;
    return result.c_str();
}
