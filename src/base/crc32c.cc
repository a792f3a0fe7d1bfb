#include "base/crc32c.h"

#include <cstring>

#include "third_party/crc32c/include/crc32c/crc32c_config.h"

#include "third_party/crc32c/include/crc32c/crc32c.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <nmmintrin.h>
#include <wmmintrin.h>
#endif

namespace routecap {
namespace {

#ifdef __x86_64__
constexpr size_t kAtOnce = 4;

bool has_instructions() {
    uint32_t a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_SSE4_2) != 0 && (c & bit_PCLMUL) != 0;
}

// x^n modulo the polynomial. As in all of CRC32C the highest bit is the coefficient of x^0.
constexpr uint64_t power(uint32_t n) {
    uint32_t value = 1u << 31;
    for (; n > 0; n--) value = value >> 1 ^ ((value & 1) != 0 ? 0x82f63b78 : 0);
    return value;
}

// Moves 16 bytes to the place of the next 16: the first 8 of them by 192 bits, the others by 128.
// In a product of two, whose bits are reversed, 33 more than these are in their place.
[[gnu::always_inline, gnu::target("sse4.2,pclmul")]] inline __m128i folded(__m128i sum) {
    constexpr uint64_t kFirst = power(192 - 33), kOther = power(128 - 33);
    const __m128i by = _mm_set_epi64x(kOther, kFirst);
    return _mm_xor_si128(_mm_clmulepi64_si128(sum, by, 0x00), _mm_clmulepi64_si128(sum, by, 0x11));
}
template <class T>
[[gnu::always_inline]] inline T load(const uint8_t *from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

// Of kAtOnce rows of 8 bytes or more. Each of its instructions waits for the one before of the same
// row, and not for those of the others. Beside one row at a time, by the crc32 instruction alone,
// this takes 0.45 times as long with rows of 392 bytes, and 0.27 times with rows of 22 (an EPYC of
// the first generation, whose crc32 takes 3 cycles for 8 bytes even where nothing waits).
[[gnu::target("sse4.2,crc32,pclmul")]] void of_rows_at_once(const uint8_t *rows, size_t bytes,
                                                            uint64_t position, uint32_t *to) {
    __m128i sums[kAtOnce];
    for (size_t r = 0; r < kAtOnce; r++)
        sums[r] = _mm_set_epi64x(load<int64_t>(rows + r * bytes),
                                 static_cast<int64_t>((position + r) ^ UINT32_MAX));
    size_t at = 8;
    for (; at + 16 <= bytes; at += 16)
        for (size_t r = 0; r < kAtOnce; r++)
            sums[r] = _mm_xor_si128(folded(sums[r]), load<__m128i>(rows + r * bytes + at));
    uint64_t rest[kAtOnce];
    for (size_t r = 0; r < kAtOnce; r++)
        rest[r] = _mm_crc32_u64(_mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(sums[r]))),
                                static_cast<uint64_t>(_mm_extract_epi64(sums[r], 1)));
    for (size_t r = 0; r < kAtOnce; r++) {
        const uint8_t *from = rows + r * bytes + at;
        if (at + 8 <= bytes) rest[r] = _mm_crc32_u64(rest[r], load<uint64_t>(from)), from += 8;
        auto sum = static_cast<uint32_t>(rest[r]);
        if ((bytes & 4) != 0) sum = _mm_crc32_u32(sum, load<uint32_t>(from)), from += 4;
        if ((bytes & 2) != 0) sum = _mm_crc32_u16(sum, load<uint16_t>(from)), from += 2;
        if ((bytes & 1) != 0) sum = _mm_crc32_u8(sum, *from);
        to[r] = ~sum;
    }
}
#endif

}  // namespace

uint32_t crc32c_of(const void *data, size_t bytes, uint32_t before) {
    return ::crc32c::Extend(before, static_cast<const uint8_t *>(data), bytes);
}

uint32_t crc32c_without(const uint8_t *data, size_t bytes, size_t at) {
    constexpr uint32_t kZero = 0;
    const uint32_t before = crc32c_of(&kZero, sizeof kZero, crc32c_of(data, at));
    return crc32c_of(data + at + sizeof kZero, bytes - at - sizeof kZero, before);
}

void crc32c_of_rows(const uint8_t *rows, size_t bytes, uint64_t position, size_t n,
                    uint32_t *sums) {
    size_t r = 0;
#ifdef __x86_64__
    static const bool instructions = has_instructions();
    for (; instructions && bytes >= 8 && r + kAtOnce <= n; r += kAtOnce)
        of_rows_at_once(rows + r * bytes, bytes, position + r, sums + r);
#endif
    for (; r < n; r++) {
        const uint64_t before = position + r;
        sums[r] = crc32c_of(rows + r * bytes, bytes, crc32c_of(&before, sizeof before));
    }
}

}  // namespace routecap
