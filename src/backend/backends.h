// Which backends this build has.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "base/shape.h"
#include "kernels/unpack.h"

namespace routecap {

struct BackendConfig {
    ShapePtr shape;
    int32_t backend;  // ROUTECAP_BACKEND_*
    int32_t device;
    uint32_t rows;
    uint32_t slots;  // 0: the backend of a mirror, which takes no steps
    int32_t sink_dtype;
    bool external_sink;
    bool checked;
    uint64_t first_epoch;  // of slots' names (kernels/body.h)
};

// The backend of this configuration, or the status that says why there is none.
int32_t make_backend(const BackendConfig &config, std::unique_ptr<Backend> &backend);

DeviceMemory device_memory_of(const BackendConfig &config);
BackendInfo backend_info(int32_t backend);
bool built_with_cuda();

// The host backend: the sink is host memory, and the work of a stream is done before each call
// returns.
std::unique_ptr<Backend> make_host_backend(const BackendConfig &config);

// The CUDA backend: the sink is device memory, and the work of begin, record and snapshot is
// enqueued on the engine's streams or captured into its graphs. A stream of its own copies each
// step to pinned memory. Without CUDA in the build there is none.
int32_t make_cuda_backend(const BackendConfig &config, std::unique_ptr<Backend> &backend);
BackendInfo cuda_backend_info();
DeviceMemory cuda_memory_of(const BackendConfig &config);

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
