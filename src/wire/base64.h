// base64, with the fastest codec that the processor supports.
#pragma once

#include <cstddef>
#include <cstdint>

// Renames the third party's symbols for this build, then includes its header.
#include "third_party/base64/config.h"
#include "third_party/base64/include/libbase64.h"

namespace routecap::wire {

// Bytes of room that decoding `n` characters needs, with those that the fastest codec writes beyond
// its result.
constexpr size_t base64_room(size_t n) { return n / 4 * 3 + 64; }
// Decodes `n` characters, whole groups, into base64_room(n) bytes. Returns the number of bytes, or
// -1 if a character is not base64 or follows the padding.
int64_t decode_base64(const uint8_t *text, size_t n, uint8_t *to);

// For base64_stream_encode.
base64_state base64_encoder();

constexpr uint64_t base64_size(uint64_t bytes) { return (bytes + 2) / 3 * 4; }
// Bytes that a text of whole groups decodes to, by its padding.
uint64_t base64_decoded_size(const uint8_t *text, uint64_t n);

}  // namespace routecap::wire
