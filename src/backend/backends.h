// Which backends this build has.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/config.h"
#include "kernels/unpack.h"

namespace routecap {

// The backend of this configuration, or the status that says why there is none.
int32_t make_backend(const Config &config, std::unique_ptr<Backend> &backend);

DeviceMemory device_memory_of(const Config &config);
BackendInfo backend_info(int32_t backend);
bool built_with_cuda();

// The host backend: the sink is host memory, and the work of a stream is done before each call
// returns.
std::unique_ptr<Backend> make_host_backend(const Config &config);

// The CUDA backend: the sink is device memory, and the work of begin, record and snapshot is
// enqueued on the engine's streams or captured into its graphs. A stream of its own copies each
// step to pinned memory. Without CUDA in the build there is none.
int32_t make_cuda_backend(const Config &config, std::unique_ptr<Backend> &backend);
BackendInfo cuda_backend_info();
DeviceMemory cuda_memory_of(const Config &config);

// Copies packed ids of a plan to a CUDA device and unpacks them there: one copy and one kernel.
struct UnpackWork {
    const void *packed;   // in host memory
    uint64_t bytes;       // in use now
    uint64_t most_bytes;  // in use at most, when a graph captured now is replayed
    void *scratch;        // on the device, most_bytes
    void *dst;
    uint8_t *classes;  // or nullptr
    kernels::PackedShape shape;
};
int32_t cuda_unpack(int32_t device, const UnpackWork &work, routecap_stream stream);

}  // namespace routecap
