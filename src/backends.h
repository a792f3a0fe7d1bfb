// Which backends this build has.
#pragma once

#include <memory>

#include "backend.h"
#include "config.h"

namespace routecap {

// The backend of this configuration, or the status that says why there is none.
int32_t make_backend(const Config &config, std::unique_ptr<Backend> &backend);

// Whether a backend can be used, and one line about it in static storage.
struct BackendInfo {
    bool available;
    int32_t devices;
    const char *detail;
};
BackendInfo backend_info(int32_t backend);

}  // namespace routecap
