// Keys of blocks: as callers give them, and content keys, which are digests of token ids, each with
// all that comes before it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace routecap {

// `count` of key_bytes bytes.
struct Keys {
    const uint8_t *bytes;
    size_t count;
    size_t key_bytes;

    const uint8_t *operator[](size_t i) const { return bytes + i * key_bytes; }
};

// Described in routecap.h.
int32_t key_chain(const void *seed, size_t seed_bytes, const int32_t *tokens, size_t count,
                  uint32_t block_rows, uint32_t key_bytes, void *keys, size_t keys_bytes);

}  // namespace routecap
