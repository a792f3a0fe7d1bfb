// The hash of a block's key.
//
// It is a sum of products of 128 bits (NH, as in UMAC, over words of eight bytes): of two words
// each, after keys were mixed into them that no other pair has. What comes of it is mixed as in
// XXH64. No product waits for another, so it takes no longer than reading the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace routecap {

class KeyHash {
public:
    static uint64_t of(const uint8_t *key, size_t bytes) {
        KeyHash hash;
        size_t at = 0;
        for (; at + 8 * kKeys <= bytes; at += 8 * kKeys, hash.next_key())
#pragma GCC unroll 4
            for (size_t k = 0; k < kKeys; k += 2)
                hash.add_pair(word(key + at + 8 * k), word(key + at + 8 * k + 8), k);
        for (; at + 16 <= bytes; at += 16, hash.next_key())
            hash.add_pair(word(key + at), word(key + at + 8), 0);
        if (at + 8 <= bytes)
            hash.add_pair(word(key + at), word_of(key + at + 8, bytes - at - 8), 0);
        else if (at < bytes)
            hash.add_pair(word_of(key + at, bytes - at), 0, 0);
        return mix(static_cast<uint64_t>(hash.sum_) ^ static_cast<uint64_t>(hash.sum_ >> 64));
    }
    static constexpr uint64_t mix(uint64_t hash) {
        hash = (hash ^ hash >> 33) * kPrime2;
        hash = (hash ^ hash >> 29) * kPrime3;
        return hash ^ hash >> 32;
    }

private:
    __extension__ using Wide = unsigned __int128;
    static constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87, kPrime2 = 0xC2B2AE3D27D4EB4F,
                              kPrime3 = 0x165667B19E3779F9, kPrime5 = 0x27D4EB2F165667C5;
    static constexpr size_t kKeys = 8;
    static constexpr uint64_t key(size_t k) { return mix((k + 1) * kPrime1); }

    static uint64_t word(const uint8_t *from) {
        uint64_t word;
        std::memcpy(&word, from, sizeof word);
        return word;
    }
    // The first n < 8 bytes of a word.
    static uint64_t word_of(const uint8_t *from, size_t n) {
        uint64_t word = 0;
        for (size_t i = 0; i < n; i++) word |= uint64_t{from[i]} << 8 * i;
        return word;
    }
    void add_pair(uint64_t first, uint64_t second, size_t k) {
        sum_ += Wide{(first + key_) ^ key(k)} * ((second + key_) ^ key(k + 1));
    }
    void next_key() { key_ = key_ * kPrime3 + kPrime2; }

    uint64_t key_ = kPrime5;
    Wide sum_ = 0;
};

}  // namespace routecap
