// Copies packed ids of a plan to a device and unpacks them there: one copy and one kernel.
#pragma once

#include <cstdint>

#include "kernels/unpack.h"
#include "routecap.h"

namespace routecap {

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
