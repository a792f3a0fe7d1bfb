// The checksum of what lies in a file that several processes map, made while it is copied.
//
// It is a sum of products of 128 bits (NH, as in UMAC, over words of eight bytes): of two words
// each, after keys were mixed into them that no other pair has. What comes of it is mixed as in
// XXH64.
// Reasons: no product waits for another, so it takes no longer than a copy from memory; it differs
// where any bit or any few do; and a copy of eight bytes at a time is what relaxed atomics allow,
// while vector loads are not atomic. Hardware CRC32C is slower unless three streams are joined, and
// needs a second version for other processors.
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
                   kPrime3 = 0x165667B19E3779F9, kPrime5 = 0x27D4EB2F165667C5;

constexpr uint64_t avalanche(uint64_t hash) {
    hash = (hash ^ hash >> 33) * kPrime2;
    hash = (hash ^ hash >> 29) * kPrime3;
    return hash ^ hash >> 32;
}
}  // namespace xxh64

class WordSum {
public:
    explicit WordSum(uint64_t seed = 0) : key_(seed + xxh64::kPrime5) {}

    // Of `count` words; word(i) gives each once, in order.
    template <class Word>
    [[gnu::always_inline]] void add(size_t count, Word word) {
        size_t i = 0;
        for (; i + kKeys <= count; i += kKeys, next_key())
#pragma GCC unroll 4
            for (size_t k = 0; k < kKeys; k += 2) {
                const uint64_t first = word(i + k);
                add_pair(first, word(i + k + 1), k);
            }
        for (; i + 2 <= count; i += 2, next_key()) {
            const uint64_t first = word(i);
            add_pair(first, word(i + 1), 0);
        }
        if (i < count) add_pair(word(i), 0, 0), next_key();
    }
    uint64_t value() const {
        return xxh64::avalanche(static_cast<uint64_t>(sum_) ^ static_cast<uint64_t>(sum_ >> 64));
    }

private:
    __extension__ using Wide = unsigned __int128;
    static constexpr size_t kKeys = 8;
    static constexpr uint64_t key(size_t k) { return xxh64::avalanche((k + 1) * xxh64::kPrime1); }

    [[gnu::always_inline]] void add_pair(uint64_t first, uint64_t second, size_t k) {
        sum_ += Wide{(first + key_) ^ key(k)} * ((second + key_) ^ key(k + 1));
    }
    void next_key() { key_ = key_ * xxh64::kPrime3 + xxh64::kPrime2; }

    uint64_t key_;
    Wide sum_ = 0;
};

template <class Word>
[[gnu::always_inline]] inline uint64_t checksum(size_t count, uint64_t seed, Word word) {
    WordSum sum(seed);
    sum.add(count, word);
    return sum.value();
}

// Bytes that are no multiple of eight take a last word that is filled with zeros.
constexpr size_t words_of(size_t bytes) { return (bytes + 7) / 8; }

// The first n < 8 bytes of a word.
inline uint64_t load_bytes(const uint8_t *from, size_t n) {
    uint32_t four = 0;
    uint16_t two = 0;
    if ((n & 4) != 0) std::memcpy(&four, from, 4);
    if ((n & 2) != 0) std::memcpy(&two, from + (n & 4), 2);
    const uint64_t one = (n & 1) != 0 ? from[n - 1] : 0;
    return four | uint64_t{two} << 8 * (n & 4) | one << 8 * (n & 6);
}

// Copies bytes into mapped memory, or out of it while others may write there, and adds them to a
// sum.
[[gnu::always_inline]] inline void copy_in(MappedWord *to, const uint8_t *from, size_t bytes,
                                           WordSum &sum) {
    const auto put = [to](size_t i, uint64_t word) {
        to[i].store(word, std::memory_order_relaxed);
        return word;
    };
    sum.add(bytes / 8, [&](size_t i) {
        uint64_t word;
        std::memcpy(&word, from + 8 * i, 8);
        return put(i, word);
    });
    if (const size_t rest = bytes % 8; rest != 0)
        sum.add(1, [&](size_t) { return put(bytes / 8, load_bytes(from + bytes - rest, rest)); });
}
[[gnu::always_inline]] inline void copy_out(uint8_t *to, const MappedWord *from, size_t bytes,
                                            WordSum &sum) {
    sum.add(bytes / 8, [&](size_t i) {
        const uint64_t word = from[i].load(std::memory_order_relaxed);
        std::memcpy(to + 8 * i, &word, 8);
        return word;
    });
    if (const size_t rest = bytes % 8; rest != 0)
        sum.add(1, [&](size_t) {
            const uint64_t word = from[bytes / 8].load(std::memory_order_relaxed);
            for (size_t b = 0; b < rest; b++)
                to[bytes - rest + b] = static_cast<uint8_t>(word >> 8 * b);
            return word;
        });
}

}  // namespace routecap
