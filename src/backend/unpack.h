// Brings what a plan has packed to where its ids go: one copy and one kernel.
#pragma once

#include <cstdint>

#include "kernels/unpack.h"
#include "routecap.h"

namespace routecap {

struct UnpackWork {
    const void *packed;   // in host memory
    uint64_t bytes;       // of what it holds now
    uint64_t most_bytes;  // that it may hold when what is captured now is replayed
    void *scratch;        // of the device, as large
    void *dst;
    uint8_t *classes;  // or nullptr
    kernels::PackedShape shape;
};

int32_t unpack(int32_t backend, int32_t device, const UnpackWork &work, routecap_stream stream);

}  // namespace routecap
