// The checksum of what lies in a file that several processes map, made while it is copied.
//
// It is XXH64 (the xxHash algorithm of 64 bits) over words of eight bytes. Reasons: it is well
// known and of few lines; its four lanes keep the processor's multiplier busy, so that it takes
// no time beside a copy from memory (20 GB/s and more on one core); and a copy of eight bytes at
// a time is what relaxed atomics allow, while vector loads are not atomic. Hardware CRC32C is
// slower unless three streams are joined, and needs a second version for other processors.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace routecap {

using MappedWord = std::atomic<uint64_t>;
static_assert(MappedWord::is_always_lock_free && sizeof(MappedWord) == sizeof(uint64_t));

namespace xxh64 {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87, kPrime2 = 0xC2B2AE3D27D4EB4F,
                   kPrime3 = 0x165667B19E3779F9, kPrime4 = 0x85EBCA77C2B2AE63,
                   kPrime5 = 0x27D4EB2F165667C5;

constexpr uint64_t rotate(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }
constexpr uint64_t round(uint64_t lane, uint64_t word) {
    return rotate(lane + word * kPrime2, 31) * kPrime1;
}
constexpr uint64_t avalanche(uint64_t hash) {
    hash = (hash ^ hash >> 33) * kPrime2;
    hash = (hash ^ hash >> 29) * kPrime3;
    return hash ^ hash >> 32;
}

}  // namespace xxh64

// XXH64 of `count` words; word(i) gives each once, in order.
template <class Word>
[[gnu::always_inline]] inline uint64_t checksum(size_t count, uint64_t seed, Word word) {
    using namespace xxh64;
    size_t i = 0;
    uint64_t hash = seed + kPrime5;
    if (count >= 4) {
        uint64_t a = seed + kPrime1 + kPrime2, b = seed + kPrime2, c = seed, d = seed - kPrime1;
        for (; i + 4 <= count; i += 4) {
            a = round(a, word(i));
            b = round(b, word(i + 1));
            c = round(c, word(i + 2));
            d = round(d, word(i + 3));
        }
        hash = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18);
        for (const uint64_t lane : {a, b, c, d}) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
    }
    hash += count * sizeof(uint64_t);
    for (; i < count; i++) hash = rotate(hash ^ round(0, word(i)), 27) * kPrime1 + kPrime4;
    return avalanche(hash);
}

// Bytes that are no multiple of eight take a last word that is filled with zeros.
constexpr size_t words_of(size_t bytes) { return (bytes + 7) / 8; }

// Copies bytes into mapped memory, or out of it while others may write there, and returns the
// checksum of what was copied.
[[gnu::always_inline]] inline uint64_t copy_in(MappedWord *to, const uint8_t *from, size_t bytes,
                                               uint64_t seed) {
    const auto put = [to](size_t i, uint64_t word) {
        to[i].store(word, std::memory_order_relaxed);
        return word;
    };
    const auto whole = [&](size_t i) {
        uint64_t word;
        std::memcpy(&word, from + 8 * i, 8);
        return put(i, word);
    };
    if (bytes % 8 == 0) return checksum(bytes / 8, seed, whole);
    return checksum(words_of(bytes), seed, [&](size_t i) {
        if (8 * i + 8 <= bytes) return whole(i);
        uint64_t word = 0;
        std::memcpy(&word, from + 8 * i, bytes - 8 * i);
        return put(i, word);
    });
}
[[gnu::always_inline]] inline uint64_t copy_out(uint8_t *to, const MappedWord *from, size_t bytes,
                                                uint64_t seed) {
    const auto whole = [&](size_t i) {
        const uint64_t word = from[i].load(std::memory_order_relaxed);
        std::memcpy(to + 8 * i, &word, 8);
        return word;
    };
    if (bytes % 8 == 0) return checksum(bytes / 8, seed, whole);
    return checksum(words_of(bytes), seed, [&](size_t i) {
        if (8 * i + 8 <= bytes) return whole(i);
        const uint64_t word = from[i].load(std::memory_order_relaxed);
        std::memcpy(to + 8 * i, &word, bytes - 8 * i);
        return word;
    });
}

}  // namespace routecap
