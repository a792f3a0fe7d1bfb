#include "wire/base64.h"

namespace routecap::wire {
namespace {

// The first thread that needs the codec chooses it. After that it is only read.
void choose() {
    static const bool chosen = [] {
        base64_state state;
        base64_stream_encode_init(&state, 0);
        return true;
    }();
    static_cast<void>(chosen);
}

}  // namespace

int64_t decode_base64(const uint8_t *text, size_t n, uint8_t *to) {
    choose();
    size_t bytes = 0;
    const bool ok = n == 0 || ::base64_decode(reinterpret_cast<const char *>(text), n,
                                              reinterpret_cast<char *>(to), &bytes, 0) == 1;
    return ok ? static_cast<int64_t>(bytes) : -1;
}

base64_state base64_encoder() {
    choose();
    base64_state state;
    base64_stream_encode_init(&state, 0);
    return state;
}

uint64_t base64_decoded_size(const uint8_t *text, uint64_t n) {
    uint64_t padding = 0;
    while (padding < 2 && padding < n && text[n - 1 - padding] == '=') padding++;
    return n / 4 * 3 - (n >= 4 ? padding : 0);
}

}  // namespace routecap::wire
