#include "backend/cuda/driver.h"

#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <memory>
#include <new>

#include "base/process.h"
#include "base/status.h"
#include "routecap.h"

// The fatbin of kernels/kernels.cu.
asm(R"(
    .section .rodata
    .balign 64
    .local routecap_fatbin
routecap_fatbin:
    .incbin ")" ROUTECAP_FATBIN R"("
    .previous
)");
extern "C" __attribute__((visibility("hidden"))) const unsigned char routecap_fatbin[];

namespace routecap::cuda {
namespace {

[[gnu::format(printf, 3, 4)]] int32_t refuse(Driver &d, int32_t status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    std::vsnprintf(d.detail, sizeof d.detail, format, args);
    va_end(args);
    return status;
}

// Throws std::bad_alloc if the host or the device has no memory. The driver is then not marked as
// unusable, because the next attempt may succeed.
int32_t load(Driver &d) {
    const auto started = [](CUresult r) {
        if (r == CUDA_ERROR_OUT_OF_MEMORY) throw std::bad_alloc();
        return r == CUDA_SUCCESS;
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
        return refuse(d, ROUTECAP_ERR_NO_BACKEND,
                      "there is no CUDA driver (libcuda.so.1) on this machine");
    const auto get_address =
        reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(library, "cuGetProcAddress_v2"));
    const auto get_version =
        reinterpret_cast<PFN_cuDriverGetVersion_v2020>(dlsym(library, "cuDriverGetVersion"));
    if (get_version != nullptr) get_version(&d.version);
    if (get_address == nullptr || d.version < kOldestDriver)
        return refuse(d, ROUTECAP_ERR_DRIVER_TOO_OLD,
                      "the driver is of CUDA %d.%d, this build needs %d.%d or newer",
                      d.version / 1000, d.version % 1000 / 10, kOldestDriver / 1000,
                      kOldestDriver % 1000 / 10);
    const auto find = [&](const char *name, int version, auto &function) {
        void *address = nullptr;
        const CUresult r =
            get_address(name, &address, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, nullptr);
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
        if (r == CUDA_SUCCESS && address != nullptr) return true;
        refuse(d, 0, "the driver has no %s of CUDA %d.%d", name, version / 1000,
               version % 1000 / 10);
        return false;
    };
#define ROUTECAP_FIND(name, version) \
    if (!find("cu" #name, version, d.name)) return ROUTECAP_ERR_DRIVER_TOO_OLD;
    ROUTECAP_DRIVER_FUNCTIONS(ROUTECAP_FIND)
#undef ROUTECAP_FIND
    const auto name_of = [&](CUresult r) {
        const char *name = nullptr;
        return d.GetErrorName(r, &name) == CUDA_SUCCESS ? name : "unknown error";
    };
    if (CUresult r = d.Init(0); !started(r))
        return refuse(d, ROUTECAP_ERR_NO_BACKEND, "the CUDA driver does not start: %s", name_of(r));
    if (CUresult r = d.DeviceGetCount(&d.devices); !started(r) || d.devices == 0)
        return refuse(d, ROUTECAP_ERR_NO_BACKEND, "the CUDA driver finds no device");

    CUlibrary kernels = nullptr;
    CUresult r =
        d.LibraryLoadData(&kernels, routecap_fatbin, nullptr, nullptr, 0, nullptr, nullptr, 0);
#define ROUTECAP_GET(name, Body) \
    if (r == CUDA_SUCCESS)       \
        r = d.LibraryGetKernel(&d.kernel[static_cast<int>(KernelName::name)], kernels, #name);
    ROUTECAP_KERNELS(ROUTECAP_GET)
#undef ROUTECAP_GET
    if (!started(r))
        return refuse(d, ROUTECAP_ERR_NO_BACKEND, "the kernels cannot be loaded: %s", name_of(r));
    return refuse(d, ROUTECAP_OK, "CUDA %d.%d, %d device%s", d.version / 1000,
                  d.version % 1000 / 10, d.devices, d.devices == 1 ? "" : "s");
}

}  // namespace

const Driver &driver() {
    static const Driver *const loaded = [] {
        auto d = std::make_unique<Driver>();
        d->process = process_generation();
        d->status = load(*d);
        return d.release();
    }();
    return *loaded;
}

int32_t Driver::failed(CUresult result, const char *call) const {
    const char *name = nullptr;
    if (GetErrorName(result, &name) != CUDA_SUCCESS) name = "unknown error";
    switch (result) {
        case CUDA_ERROR_ILLEGAL_ADDRESS:
        case CUDA_ERROR_ILLEGAL_INSTRUCTION:
        case CUDA_ERROR_MISALIGNED_ADDRESS:
        case CUDA_ERROR_INVALID_ADDRESS_SPACE:
        case CUDA_ERROR_INVALID_PC:
        case CUDA_ERROR_HARDWARE_STACK_ERROR:
        case CUDA_ERROR_LAUNCH_FAILED:
        case CUDA_ERROR_LAUNCH_TIMEOUT:
        case CUDA_ERROR_ASSERT:
        case CUDA_ERROR_ECC_UNCORRECTABLE:
        case CUDA_ERROR_CONTEXT_IS_DESTROYED:
        case CUDA_ERROR_DEINITIALIZED:
        case CUDA_ERROR_DEVICE_UNAVAILABLE:
            return report(ROUTECAP_ERR_DEVICE_LOST, "the device is lost: %s returned %s", call,
                          name);
        case CUDA_ERROR_OUT_OF_MEMORY:
            return report(ROUTECAP_ERR_NO_MEMORY, "%s returned %s", call, name);
        case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
            return report(
                ROUTECAP_ERR_CAPTURING,
                "%s returned %s: another stream's capture forbids the use of the legacy stream",
                call, name);
        default: return report(ROUTECAP_ERR_DEVICE, "%s returned %s", call, name);
    }
}

}  // namespace routecap::cuda
