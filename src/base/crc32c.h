// CRC32C of bytes that come from elsewhere: any change of up to 32 bits in a row is noticed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "third_party/crc32c/include/crc32c/crc32c_config.h"

#include "third_party/crc32c/include/crc32c/crc32c.h"

namespace routecap {

inline uint32_t crc32c_of(const void *data, size_t bytes, uint32_t before = 0) {
    return ::crc32c::Extend(before, static_cast<const uint8_t *>(data), bytes);
}

// Of bytes of which the four at `at`, where the sum is written, count as 0.
inline uint32_t crc32c_without(const uint8_t *data, size_t bytes, size_t at) {
    constexpr uint32_t kZero = 0;
    const uint32_t before = crc32c_of(&kZero, sizeof kZero, crc32c_of(data, at));
    return crc32c_of(data + at + sizeof kZero, bytes - at - sizeof kZero, before);
}

}  // namespace routecap
