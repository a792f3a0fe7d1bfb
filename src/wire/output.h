// A message as it is written: text as it is, bytes as they are or in base64.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "wire/base64.h"

namespace routecap::wire {

class Output {
public:
    // base64: of the bytes, not of the text.
    Output(uint8_t *to, bool base64) : at_(to), base64_(base64) {}

    void text(std::string_view text) {
        if (text.empty()) return;
        std::memcpy(at_, text.data(), text.size());
        at_ += text.size();
    }
    void bytes(const uint8_t *bytes, size_t n) {
        if (n == 0) return;
        if (!base64_) {
            std::memcpy(at_, bytes, n);
            at_ += n;
            return;
        }
        // By way of a buffer: it may write a little beyond what it encodes to.
        for (size_t taken = 0; n > 0; bytes += taken, n -= taken) {
            taken = std::min<size_t>(n, kAtOnce);
            uint8_t text[kAtOnce / 3 * 4 + 64];
            const size_t characters = encoder_.encode(bytes, taken, text);
            std::memcpy(at_, text, characters);
            at_ += characters;
        }
    }
    // The end of the bytes.
    void finish() {
        if (base64_) at_ += encoder_.finish(at_);
    }

private:
    static constexpr size_t kAtOnce = 12288;
    uint8_t *at_;
    const bool base64_;
    Base64Encoder encoder_;
};

}  // namespace routecap::wire
