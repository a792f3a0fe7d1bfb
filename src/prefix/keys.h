// Content keys: digests of token ids, each with all that comes before it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace routecap {

// Described in routecap.h.
int32_t key_chain(const void *seed, size_t seed_bytes, const int32_t *tokens, size_t count,
                  uint32_t block_rows, uint32_t key_bytes, void *keys, size_t keys_bytes);

}  // namespace routecap
