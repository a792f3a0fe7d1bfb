// Joins two messages of one sequence without reading their ids.
#pragma once

#include <cstddef>
#include <cstdint>

#include "routecap.h"

namespace routecap::wire {

int32_t splice(int32_t format, const void *head, size_t head_bytes,
               const routecap_wire_hint *head_hint, const void *tail, size_t tail_bytes,
               const routecap_wire_hint *tail_hint, uint64_t row, void *dst, size_t dst_bytes,
               uint64_t *needed);

}  // namespace routecap::wire
