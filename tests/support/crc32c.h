// CRC32C as its definition has it, bit by bit: what the library's is held against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// Of the first bytes, of which the four at `zeros` count as 0.
inline uint32_t crc32c(const std::vector<uint8_t> &data, size_t bytes,
                       size_t zeros = SIZE_MAX - 4) {
    uint32_t crc = ~uint32_t{0};
    for (size_t at = 0; at < bytes; at++) {
        crc ^= at - zeros < 4 ? 0 : data[at];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82f63b78 : 0);
    }
    return ~crc;
}
inline uint32_t crc32c(const std::vector<uint8_t> &data) { return crc32c(data, data.size()); }
