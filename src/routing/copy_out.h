// Writing a routing's ids or weights into the caller's memory: dtype, layout, fill and mask.
#pragma once

#include <cstddef>
#include <cstdint>

#include "routecap.h"
#include "routing/routing.h"

namespace routecap {

// Where they go. *needed is set where it is known, also on errors.
struct CopyTarget {
    const routecap_copy_options *options;
    void *dst;
    size_t dst_bytes;
    uint8_t *mask;
    size_t mask_bytes;
    uint64_t *needed;
};

// Nothing is written if the options are strict and a cell is missing or recomputed.
int32_t copy_out(const Routing &routing, const CopyTarget &to);
// The same of weights: the options' fill and none are not used.
int32_t copy_out_weights(const Routing &routing, const CopyTarget &to);

}  // namespace routecap
