// base64 in pieces, by the fastest codec that the processor has.
#pragma once

#include <cstddef>
#include <cstdint>

// Its names for our build, and then it.
#include "third_party/base64/config.h"
#include "third_party/base64/include/libbase64.h"

namespace routecap::wire {

// Memory for what `n` characters decode to: bytes of a group that was begun before, and what the
// fastest codec writes beyond them.
constexpr size_t base64_room(size_t n) { return n / 4 * 3 + 64; }

class Base64Decoder {
public:
    Base64Decoder();
    // Decodes `n` characters into base64_room(n) bytes. Returns how many bytes they are, or -1:
    // there is a character that is not of base64, or one behind the padding.
    int64_t decode(const uint8_t *text, size_t n, uint8_t *to);
    // Whether the text may end here.
    bool complete() const { return state_.bytes == 0 && characters_ % 4 == 0; }
    uint64_t characters() const { return characters_; }

private:
    base64_state state_{};
    uint64_t characters_ = 0;
};

class Base64Encoder {
public:
    Base64Encoder();
    // Encodes `n` bytes to at most n / 3 * 4 + 8 characters, and returns how many.
    size_t encode(const uint8_t *bytes, size_t n, uint8_t *to);
    // The rest: at most 4 characters.
    size_t finish(uint8_t *to);

private:
    base64_state state_{};
};

constexpr uint64_t base64_size(uint64_t bytes) { return (bytes + 2) / 3 * 4; }
// Of a text of whole groups, by its padding.
uint64_t base64_decoded_size(const uint8_t *text, uint64_t n);

}  // namespace routecap::wire
