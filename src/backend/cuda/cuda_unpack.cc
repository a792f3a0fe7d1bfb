// Unpacks a plan on a device.
#include <algorithm>
#include <atomic>

#include "backend/backends.h"
#include "backend/cuda/current_context.h"
#include "base/process.h"
#include "base/status.h"

namespace routecap {
namespace {

using namespace cuda;

constexpr uint32_t kThreads = 128;  // of a block
constexpr uint32_t kBlocksPerMultiprocessor = 16;
constexpr int32_t kDevices = 64;  // devices for which it is noted that the kernels are loaded

// Returns from a function that returns a status, if a call of the driver failed.
#define ROUTECAP_TRY(name, ...)                                                     \
    if (const CUresult result = driver().name(__VA_ARGS__); result != CUDA_SUCCESS) \
    return driver().failed(result, "cu" #name)

// The device's primary context. It is retained only during the call: the caller keeps it alive,
// because the caller's memory and streams belong to it.
class PrimaryContext {
public:
    ~PrimaryContext() {
        if (context_ != nullptr) driver().DevicePrimaryCtxRelease(device_);
    }
    int32_t retain(int32_t device) {
        ROUTECAP_TRY(DeviceGet, &device_, device);
        ROUTECAP_TRY(DevicePrimaryCtxRetain, &context_, device_);
        return ROUTECAP_OK;
    }
    CUdevice device() const { return device_; }
    CUcontext context() const { return context_; }

private:
    CUdevice device_ = 0;
    CUcontext context_ = nullptr;
};

template <uint32_t K>
int32_t launch(const kernels::Unpack<K> &body, uint32_t blocks, CUstream stream) {
    void *parameters[] = {const_cast<kernels::Unpack<K> *>(&body)};
    ROUTECAP_TRY(LaunchKernel,
                 reinterpret_cast<CUfunction>(driver().kernel_of<kernels::Unpack<K>>()), blocks, 1,
                 1, kThreads, 1, 1, 0, stream, parameters, nullptr);
    return ROUTECAP_OK;
}

// Loads the kernels by a launch on a stream of its own, because loading within a graph capture
// would fail.
int32_t load_kernels() {
    const Uncaptured uncaptured;
    CUstream stream = nullptr;
    ROUTECAP_TRY(StreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    int32_t status = ROUTECAP_OK;
#define ROUTECAP_EMPTY(K) \
    if (status == ROUTECAP_OK) status = launch(kernels::Unpack<K>{}, 1, stream);
    ROUTECAP_COLUMNS(ROUTECAP_EMPTY)
#undef ROUTECAP_EMPTY
    driver().StreamDestroy(stream);
    return status;
}

}  // namespace

int32_t cuda_unpack(int32_t device, const UnpackWork &work, routecap_stream stream) {
    const Driver &d = driver();
    if (d.status < 0) return report(d.status, "%s", d.detail);
    if (d.process != process_generation())
        return report(ROUTECAP_ERR_FORKED,
                      "the CUDA driver was loaded before fork(); it works in the parent only");
    if (device < 0 || device >= d.devices)
        return report(ROUTECAP_ERR_ARGUMENT, "target.device is %d of %d", device, d.devices);
    PrimaryContext primary;
    if (int32_t s = primary.retain(device); s < 0) return s;
    const Current current(primary.context());
    static std::atomic<bool> loaded[kDevices];
    if (device >= kDevices || !loaded[device].load(std::memory_order_acquire)) {
        if (int32_t s = load_kernels(); s < 0) return s;
        if (device < kDevices) loaded[device].store(true, std::memory_order_release);
    }
    const uint64_t cells = uint64_t{work.shape.rows} * work.shape.layers;
    if (cells == 0) return ROUTECAP_OK;
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    ROUTECAP_TRY(StreamGetCaptureInfo, stream, &capturing, nullptr, nullptr, nullptr, nullptr,
                 nullptr);
    int multiprocessors = 1;
    ROUTECAP_TRY(DeviceGetAttribute, &multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                 primary.device());
    ROUTECAP_TRY(MemcpyHtoDAsync, reinterpret_cast<CUdeviceptr>(work.scratch), work.packed,
                 capturing == CU_STREAM_CAPTURE_STATUS_NONE ? work.bytes : work.most_bytes, stream);
    const auto blocks = static_cast<uint32_t>(
        std::clamp<uint64_t>((cells + kThreads - 1) / kThreads, 1,
                             static_cast<uint64_t>(multiprocessors) * kBlocksPerMultiprocessor));
    int32_t status = ROUTECAP_OK;
    kernels::with_columns(work.shape.kernel_k(), [&]<uint32_t K>() {
        status = launch(kernels::Unpack<K>{static_cast<const uint8_t *>(work.scratch), work.dst,
                                           work.classes, work.shape},
                        blocks, stream);
    });
    return status;
}

}  // namespace routecap
