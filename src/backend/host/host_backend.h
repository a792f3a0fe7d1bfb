// The host backend: the sink is host memory, and the work of a stream is done before each call
// returns.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/config.h"

namespace routecap {

std::unique_ptr<Backend> make_host_backend(const Config &config);

}  // namespace routecap
