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

}  // namespace routecap
