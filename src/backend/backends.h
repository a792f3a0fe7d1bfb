// Which backends this build has.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/config.h"

namespace routecap {

// The backend of this configuration, or the status that says why there is none.
int32_t make_backend(const Config &config, std::unique_ptr<Backend> &backend);

DeviceMemory device_memory_of(const Config &config);
BackendInfo backend_info(int32_t backend);
bool built_with_cuda();

// The host backend: the sink is host memory, and the work of a stream is done before each call
// returns.
std::unique_ptr<Backend> make_host_backend(const Config &config);

// The CUDA backend, in a build with CUDA: the sink is device memory, and the work of begin, record
// and snapshot is enqueued on the engine's streams or captured into its graphs. A stream of its own
// copies each step to pinned memory.
int32_t make_cuda_backend(const Config &config, std::unique_ptr<Backend> &backend);
BackendInfo cuda_backend_info();
DeviceMemory cuda_memory_of(const Config &config);

}  // namespace routecap
