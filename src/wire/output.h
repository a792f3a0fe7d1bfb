// A message as it is written: text as it is, bytes as they are or in base64.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/status.h"
#include "wire/base64.h"

namespace routecap::wire {

// Writes to a caller's memory, and never beyond its end, however much it is given.
class Output {
public:
    // `size`: of `to`, and of the message. base64: of the bytes, not of the text.
    Output(uint8_t *to, uint64_t size, bool base64) : to_(to), size_(size), base64_(base64) {}

    void text(std::string_view text) { put(text.data(), text.size()); }
    void bytes(const uint8_t *bytes, size_t n) {
        if (!base64_) return put(bytes, n);
        // Encodes into a buffer first, because the codec may write a little beyond its result.
        for (size_t taken = 0; n > 0; bytes += taken, n -= taken) {
            taken = std::min<size_t>(n, kAtOnce);
            uint8_t text[kAtOnce / 3 * 4 + 64];
            put(text, encoder_.encode(bytes, taken, text));
        }
    }
    // The end of the bytes.
    void finish() {
        uint8_t text[4];
        if (base64_) put(text, encoder_.finish(text));
    }

    // Bytes that were given, whether or not there was room for them.
    uint64_t written() const { return written_; }
    // An error if the message does not have the announced size. That happens only if the routing
    // lies in memory of the caller, who changed it after the size was measured.
    int32_t status() const {
        if (written_ == size_) return ROUTECAP_OK;
        return report(ROUTECAP_ERR_FORMAT, "a message of %llu bytes became one of %llu meanwhile",
                      ull(size_), ull(written_));
    }

private:
    static constexpr size_t kAtOnce = 12288;

    void put(const void *from, size_t n) {
        const uint64_t at = written_;
        written_ += n;
        if (n > 0 && written_ <= size_) std::memcpy(to_ + at, from, n);
    }

    uint8_t *const to_;
    const uint64_t size_;
    const bool base64_;
    uint64_t written_ = 0;
    Base64Encoder encoder_;
};

}  // namespace routecap::wire
