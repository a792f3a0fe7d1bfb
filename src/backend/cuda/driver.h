// The CUDA driver: its functions, found at run time, and the kernels of this library loaded into
// it. No CUDA library is linked.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstdint>
#include <type_traits>

#include "kernels/list.h"

namespace routecap::cuda {

// Every function of the driver that is used: F(name without cu, version of its signature). None is
// newer than kOldestDriver.
#define ROUTECAP_DRIVER_FUNCTIONS(F)          \
    F(Init, 2000)                             \
    F(DriverGetVersion, 2020)                 \
    F(GetErrorName, 6000)                     \
    F(DeviceGetCount, 2000)                   \
    F(DeviceGet, 2000)                        \
    F(DeviceGetAttribute, 2000)               \
    F(DevicePrimaryCtxRetain, 7000)           \
    F(DevicePrimaryCtxRelease, 11000)         \
    F(CtxGetCurrent, 4000)                    \
    F(CtxPushCurrent, 4000)                   \
    F(CtxPopCurrent, 4000)                    \
    F(ThreadExchangeStreamCaptureMode, 10010) \
    F(LibraryLoadData, 12000)                 \
    F(LibraryGetKernel, 12000)                \
    F(PointerGetAttributes, 7000)             \
    F(MemAlloc, 3020)                         \
    F(MemFree, 3020)                          \
    F(MemHostAlloc, 2020)                     \
    F(MemFreeHost, 2000)                      \
    F(MemsetD8Async, 3020)                    \
    F(MemsetD32Async, 3020)                   \
    F(MemcpyAsync, 4000)                      \
    F(MemcpyDtoHAsync, 3020)                  \
    F(MemcpyHtoDAsync, 3020)                  \
    F(StreamCreate, 2000)                     \
    F(StreamDestroy, 4000)                    \
    F(StreamSynchronize, 2000)                \
    F(StreamQuery, 2000)                      \
    F(StreamWaitEvent, 3020)                  \
    F(StreamWaitValue64, 11070)               \
    F(StreamWriteValue64, 11070)              \
    F(StreamGetCaptureInfo, 12030)            \
    F(StreamUpdateCaptureDependencies, 12030) \
    F(EventCreate, 2000)                      \
    F(EventDestroy, 4000)                     \
    F(EventRecord, 2000)                      \
    F(LaunchKernel, 4000)                     \
    F(LaunchKernelEx, 11060)                  \
    F(GraphAddKernelNode, 12000)              \
    F(GraphRetainUserObject, 11030)           \
    F(UserObjectCreate, 11030)                \
    F(UserObjectRelease, 11030)

// Binaries of a toolkit need a driver of its series; the signatures above need 12.3.
constexpr int kOldestDriver =
    CUDA_VERSION / 1000 * 1000 > 12030 ? CUDA_VERSION / 1000 * 1000 : 12030;

// The kernels of list.h, in their order.
enum class KernelName {
#define ROUTECAP_NAME(name, Body) name,
    ROUTECAP_KERNELS(ROUTECAP_NAME)
#undef ROUTECAP_NAME
        count
};
template <class Body>
constexpr KernelName kName = KernelName::count;
#define ROUTECAP_NAME(name, Body) \
    template <>                   \
    inline constexpr KernelName kName<kernels::Body> = KernelName::name;
ROUTECAP_KERNELS(ROUTECAP_NAME)
#undef ROUTECAP_NAME

// Loaded once in a process and never unloaded, because graphs that use the kernels may outlive
// their capturer. Members have the names of the driver's functions without `cu`.
struct Driver {
#define ROUTECAP_MEMBER(name, version) PFN_cu##name##_v##version name = nullptr;
    ROUTECAP_DRIVER_FUNCTIONS(ROUTECAP_MEMBER)
#undef ROUTECAP_MEMBER
    CUkernel kernel[static_cast<int>(KernelName::count)] = {};
    int version = 0;  // 1000 * major + 10 * minor
    int devices = 0;
    // The process that loaded it (process.h): the driver does not work in its children.
    uint32_t process = 0;

    // ROUTECAP_OK, or why there is none: ROUTECAP_ERR_NO_BACKEND or _DRIVER_TOO_OLD.
    int32_t status;
    char detail[256];  // one line about it

    template <class Body>
    CUkernel kernel_of() const {
        static_assert(kName<Body> != KernelName::count);
        return kernel[static_cast<int>(kName<Body>)];
    }
    // Reports a call that failed and returns its status: ROUTECAP_ERR_DEVICE, or _DEVICE_LOST where
    // nothing on the device will work any more.
    int32_t failed(CUresult result, const char *call) const;
};

// Loads the driver when it is first asked for.
const Driver &driver();

}  // namespace routecap::cuda
