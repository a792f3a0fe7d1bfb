// CRC32C of bytes that come from elsewhere: any change of up to 32 bits in a row is noticed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace routecap {

uint32_t crc32c_of(const void *data, size_t bytes, uint32_t before = 0);

// Of bytes of which the four at `at`, where the sum is written, count as 0.
uint32_t crc32c_without(const uint8_t *data, size_t bytes, size_t at);

// Of each of `n` rows of `bytes` bytes, one after another: sums[r] is that of position + r, in
// eight bytes, and then the row.
void crc32c_of_rows(const uint8_t *rows, size_t bytes, uint64_t position, size_t n, uint32_t *sums);
// Rows that are copied or looked at too are summed so many at a time, while the cache has them.
constexpr size_t kRowsSummed = 16;

}  // namespace routecap
