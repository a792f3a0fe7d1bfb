// Blocks as bytes: written, and read without trust. docs/store.md describes them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "prefix/store.h"

namespace routecap {

int32_t export_blocks(Store &store, Keys keys, uint64_t generation, void *dst, size_t dst_bytes,
                      uint64_t *needed);
int32_t import_blocks(Store &store, const void *data, size_t bytes, uint64_t *blocks);

}  // namespace routecap
