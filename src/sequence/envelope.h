// The serialised form of a sequence, as docs/format.md specifies it: written, and read without
// trust.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sequence/sequence.h"

namespace routecap {

int32_t serialize(const Sequence &sequence, uint32_t flags, void *dst, size_t dst_bytes,
                  uint64_t *needed);
int32_t deserialize(const void *data, size_t bytes, uint64_t budget_bytes, Sequence **sequence);

}  // namespace routecap
