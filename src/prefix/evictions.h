// The keys of the last 65,536 blocks that went.
//
// A key has two buckets of 16 cells, and is in the emptier one: a bucket has 8 of the last 65,536
// on average and practically never 16. A cell has 32 bits of the key's hash, and the number of the
// eviction, by which it ages. Two keys with the same bits in one bucket pass for each other, about
// once in 10^8 questions: the reason of a hole is then another.
#pragma once

#include <array>
#include <cstdint>

#include "prefix/key_hash.h"
#include "prefix/zeroed_array.h"

namespace routecap {

class Evictions {
public:
    void add(uint64_t hash) {
        const uint32_t number = next_++;
        uint32_t fewest = kCells + 1;
        uint64_t *place = nullptr;
        for (uint64_t *bucket : buckets(hash)) {
            uint32_t live = 0, most = 0;
            uint64_t *oldest = bucket;
            for (uint32_t i = 0; i < kCells; i++) {
                const uint64_t cell = bucket[i];
                if (print(cell) == print(hash)) fewest = 0, place = &bucket[i];
                const uint32_t age = number - static_cast<uint32_t>(cell);
                live += age <= kLast;
                if (age > most) most = age, oldest = &bucket[i];
            }
            if (live < fewest) fewest = live, place = oldest;
        }
        *place = print(hash) << 32 | number;
    }

    bool has(uint64_t hash) const {
        for (const uint64_t *bucket : buckets(hash))
            for (uint32_t i = 0; i < kCells; i++)
                if (print(bucket[i]) == print(hash) &&
                    next_ - static_cast<uint32_t>(bucket[i]) <= kLast)
                    return true;
        return false;
    }

private:
    static constexpr uint64_t print(uint64_t word) { return word >> 32; }
    std::array<uint64_t *, 2> buckets(uint64_t hash) const {
        const uint64_t other = KeyHash::mix(hash);
        return {&cells_[size_t{hash % kBuckets} * kCells],
                &cells_[size_t{other % kBuckets} * kCells]};
    }

    static constexpr uint32_t kLast = 65536, kBuckets = kLast / 8, kCells = 16;
    const ZeroedArray<uint64_t> cells_ = zeroed_array<uint64_t>(size_t{kBuckets} * kCells);
    // The number of the next eviction. Cells of zeros are too old from the start.
    uint32_t next_ = kLast + 1;
};

}  // namespace routecap
