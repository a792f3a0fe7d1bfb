// A CUDA driver that writes down what is called and leaves the work to another driver, a real one
// or the fake: a libcuda.so.1 in a folder of its own.
//
//   TRACE_CUDA_FILE    the file to write; without it nothing is written
//   TRACE_CUDA_DRIVER  the file of the driver that does the work, with its path; by default the
//   system's
//
// A line is written when a call returns: the function's name, its arguments, "->" and what it made
// or found, or its error. Of the arguments it has those that two drivers have in common: numbers,
// names of kernels, and streams, events and executable graphs by number in the order in which they
// appear. Addresses are left out, and so is what a device answers about itself. trace_cuda.h says
// whose calls are written.
#include "trace_cuda.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <type_traits>

#include "src/backend/cuda/driver.h"

#define TRACE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// ---- The driver that does the work -------------------------------------------------------------

// By its path: by its name alone this library would be found.
void *load_driver() {
    const char *given = std::getenv("TRACE_CUDA_DRIVER");
    for (const char *file :
         {given != nullptr ? given : "/usr/local/nvidia/lib64/libcuda.so.1",
          "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
          "/usr/lib64/libcuda.so.1"}) {
        if (void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL); library != nullptr) return library;
        if (file == given) break;
    }
    std::fprintf(stderr, "the tracing driver finds no driver; set TRACE_CUDA_DRIVER: %s\n",
                 dlerror());
    std::abort();
}

PFN_cuGetProcAddress_v12000 driver_lookup() {
    static const auto found =
        reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(load_driver(), "cuGetProcAddress_v2"));
    return found;
}

std::string error_name(CUresult result) {
    static const auto get_name = [] {
        void *address = nullptr;
        driver_lookup()("cuGetErrorName", &address, 6000, 0, nullptr);
        return reinterpret_cast<PFN_cuGetErrorName_v6000>(address);
    }();
    const char *name = nullptr;
    return get_name(result, &name) == CUDA_SUCCESS ? name : std::to_string(result);
}

// ---- The trace ---------------------------------------------------------------------------------

// Guards all that follows. It is not held during the call that is traced.
std::mutex mutex;

std::optional<std::thread::id> traced;  // the thread whose calls are written
std::set<std::string> elsewhere;

// Numbers of handles. An address may be used again for something new.
class Numbers {
public:
    std::string add(const void *handle) { return std::to_string(of_[handle] = ++last_); }
    std::string of(const void *handle) {
        const auto it = of_.find(handle);
        return it == of_.end() ? add(handle) : std::to_string(it->second);
    }

private:
    std::map<const void *, int> of_;
    int last_ = 0;
};
Numbers streams, events, graphs;
std::map<const void *, std::string> kernels;

void write(const std::string &line) {
    static std::FILE *const file = [] {
        const char *name = std::getenv("TRACE_CUDA_FILE");
        std::FILE *opened = name == nullptr ? nullptr : std::fopen(name, "w");
        if (name != nullptr && opened == nullptr) std::perror(name), std::abort();
        if (opened != nullptr) std::setvbuf(opened, nullptr, _IOLBF, BUFSIZ);
        return opened;
    }();
    if (file != nullptr) std::fprintf(file, "%s\n", line.c_str());
}

// ---- Arguments ---------------------------------------------------------------------------------

std::string text_of(CUstreamCaptureMode mode) {
    constexpr const char *kNames[] = {"global", "thread", "relaxed"};
    return kNames[mode];
}
std::string text_of(CUstreamCaptureStatus status) {
    constexpr const char *kNames[] = {"none", "active", "invalidated"};
    return kNames[status];
}
std::string text_of(CUstream stream) {
    if (stream == nullptr || stream == CU_STREAM_LEGACY) return "stream legacy";
    return stream == CU_STREAM_PER_THREAD ? "stream thread" : "stream " + streams.of(stream);
}
std::string text_of(CUevent event) { return "event " + events.of(event); }
std::string text_of(CUgraphExec graph) { return "graph " + graphs.of(graph); }
std::string text_of(CUfunction kernel) {
    const auto it = kernels.find(kernel);
    return it == kernels.end() ? "?" : it->second;
}
std::string text_of(CUresult result) { return error_name(result); }
std::string text_of(const char *name) { return name; }
std::string text_of(CUstreamCaptureMode *mode) { return text_of(*mode); }
std::string text_of(const CUlaunchConfig *config) {
    return std::to_string(config->gridDimX) + " " + std::to_string(config->blockDimX) + " " +
           std::to_string(config->numAttrs) + " " + text_of(config->hStream);
}
std::string text_of(const CUDA_KERNEL_NODE_PARAMS *node) {
    return text_of(reinterpret_cast<CUfunction>(node->kern)) + " " +
           std::to_string(node->gridDimX) + " " + std::to_string(node->blockDimX);
}
template <class Argument>
std::string text_of(Argument argument) {
    constexpr bool kAddress = std::is_pointer_v<Argument> || std::is_same_v<Argument, CUdeviceptr>;
    if constexpr (kAddress)
        return "";
    else
        return std::to_string(static_cast<long long>(argument));
}

void append(std::string &line, const std::string &word) {
    if (!word.empty()) line += " " + word;
}

// What a call made or found, by each argument and by all.
std::string made(CUstream *stream) { return "stream " + streams.add(*stream); }
std::string made(CUevent *event) { return "event " + events.add(*event); }
std::string made(CUgraphExec *graph) { return "graph " + graphs.add(*graph); }
std::string made(CUstreamCaptureMode *mode) { return text_of(*mode); }
template <class Argument>
std::string made(Argument) {
    return "";
}
template <class... Arguments>
std::string all_made(Arguments... arguments) {
    std::string all;
    (append(all, made(arguments)), ...);
    return all;
}
std::string all_made(CUkernel *kernel, CUlibrary, const char *name) {
    kernels[*kernel] = name;
    return "";
}
std::string all_made(CUstream, CUstreamCaptureStatus *status, cuuint64_t *, CUgraph *,
                     const CUgraphNode **, const CUgraphEdgeData **, size_t *count) {
    return " " + text_of(*status) + (count == nullptr ? "" : " behind " + std::to_string(*count));
}

// ---- Calls -------------------------------------------------------------------------------------

template <class Name, class Function>
struct Call;
template <class Name, class... Arguments>
struct Call<Name, CUresult (*)(Arguments...)> {
    static inline CUresult (*work)(Arguments...) = nullptr;

    static CUresult make(Arguments... arguments) {
        std::string line = Name::kText;
        {
            const std::lock_guard lock(mutex);
            (append(line, text_of(arguments)), ...);
        }
        const CUresult result = work(arguments...);

        const std::lock_guard lock(mutex);
        const std::string outcome =
            result == CUDA_SUCCESS ? all_made(arguments...) : " " + error_name(result);
        if (!outcome.empty()) line += " ->" + outcome;
        if (traced == std::this_thread::get_id())
            write(line);
        else if (traced)
            elsewhere.insert(Name::kText);
        return result;
    }
};

#define TRACE_FUNCTIONS(F) ROUTECAP_DRIVER_FUNCTIONS(F) TRACE_ENGINE_FUNCTIONS(F)

#define TRACE_NAME(name, version)                        \
    struct name {                                        \
        static constexpr const char *kText = "cu" #name; \
    };
namespace names {
TRACE_FUNCTIONS(TRACE_NAME)
}
#undef TRACE_NAME

struct Traced {
    const char *name;
    int version;
    void *call;
    void **work;
};
#define TRACE_CALL(name, version) Call<names::name, PFN_cu##name##_v##version>
#define TRACE_ROW(name, version)                                                     \
    {"cu" #name, version, reinterpret_cast<void *>(TRACE_CALL(name, version)::make), \
     reinterpret_cast<void **>(&TRACE_CALL(name, version)::work)},
const Traced functions[] = {TRACE_FUNCTIONS(TRACE_ROW)};
#undef TRACE_ROW

}  // namespace

TRACE_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **address, int version,
                                          cuuint64_t flags, CUdriverProcAddressQueryResult *found) {
    const CUresult result = driver_lookup()(symbol, address, version, flags, found);
    if (result != CUDA_SUCCESS || address == nullptr || *address == nullptr) return result;
    const std::lock_guard lock(mutex);
    for (const Traced &function : functions) {
        if (std::strcmp(function.name, symbol) != 0 || function.version != version) continue;
        if (*function.work == nullptr) *function.work = *address;
        *address = function.call;
    }
    return result;
}

TRACE_EXPORT CUresult cuDriverGetVersion(int *version) {
    void *address = nullptr;
    const CUresult result = cuGetProcAddress_v2("cuDriverGetVersion", &address, 2020, 0, nullptr);
    return result == CUDA_SUCCESS ? reinterpret_cast<PFN_cuDriverGetVersion_v2020>(address)(version)
                                  : result;
}

TRACE_EXPORT void trace_cuda_note(const char *line) {
    const std::lock_guard lock(mutex);
    if (!traced) traced = std::this_thread::get_id();
    write(line);
}

TRACE_EXPORT const char *trace_cuda_elsewhere() {
    static std::string names;
    const std::lock_guard lock(mutex);
    names.clear();
    for (const std::string &name : elsewhere) names += (names.empty() ? "" : " ") + name;
    return names.c_str();
}
