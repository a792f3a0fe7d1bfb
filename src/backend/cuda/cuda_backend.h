// The CUDA backend: the sink is device memory, and the work of begin, record and snapshot is
// enqueued on the engine's streams or captured into its graphs. A stream of its own copies each
// step to pinned memory.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/config.h"

namespace routecap {

int32_t make_cuda_backend(const Config &config, std::unique_ptr<Backend> &backend);
BackendInfo cuda_backend_info();

DeviceMemory cuda_memory_of(const Config &config);

}  // namespace routecap
