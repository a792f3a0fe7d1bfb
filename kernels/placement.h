// Shared by record and route: the sink row of each source row, and the rule that the first write to
// a cell wins.
#pragma once

#include "body.h"

namespace routecap::kernels {

// Row i of a source goes to sink row first_row + *row_base + i, or row_index[i]. Pointers may be
// nullptr.
struct Placement {
    uint32_t rows;
    uint32_t first_row;
    const int32_t *live_rows;
    const int32_t *row_base;
    const int32_t *row_index;

    ROUTECAP_BODY bool live(uint32_t i) const {
        return live_rows == nullptr || static_cast<int64_t>(i) < *live_rows;
    }

    // The sink row of a live row, begun or not; kNone if the caller gave it none, kOutside if it
    // would be negative.
    ROUTECAP_BODY int64_t target(uint32_t i) const {
        if (row_index != nullptr) return row_index[i] < 0 ? kNone : row_index[i];
        const int64_t row = static_cast<int64_t>(first_row) + static_cast<int64_t>(i) +
                            (row_base != nullptr ? *row_base : 0);
        return row < 0 ? kOutside : row;
    }
    // Whether the host can tell that every target is a row of the sink.
    ROUTECAP_BODY bool inside() const { return row_index == nullptr && row_base == nullptr; }

    // Whether a target may be written. Counts a target that was not begun as dropped.
    ROUTECAP_BODY static bool begun(int64_t row, Control *control) {
        if (row >= 0 && row < static_cast<int64_t>(control->rows())) return true;
        if (row != kNone) count(&control->dropped, 1);
        return false;
    }

    static constexpr int64_t kNone = -1, kOutside = -2;
};

// Whether a cell with these ids has not been written yet.
template <class T, uint32_t K>
ROUTECAP_BODY bool all_poison(const Ids<T, K> &ids, uint32_t k) {
    bool poison = true;
    for (uint32_t c = 0; c < columns<K>(k); c++) poison &= ids[c] == kPoison<T>;
    return poison;
}

// Claims a cell by writing its first id, if that is still poison. If two rows are written to one
// cell at once, a compare-and-swap lets only one succeed. On a device the answer takes a while;
// only the code that asks for it waits.
struct Claim {
    uint64_t was;
    uint64_t poison;
    ROUTECAP_BODY bool succeeded() const { return was == poison; }
};
template <class T>
ROUTECAP_BODY Claim claim(T *cell, T id, uint32_t k) {
    using Bits = std::conditional_t<sizeof(T) == 2, uint16_t,
                                    std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
    constexpr Bits poison = static_cast<Bits>(kPoison<T>);
#if defined(__CUDA_ARCH__)
    using Word =
        std::conditional_t<sizeof(T) == 2, unsigned short,
                           std::conditional_t<sizeof(T) == 4, unsigned, unsigned long long>>;
    if constexpr (sizeof(T) == 2) {
        // The device compares words of 32 bits: those of two ids of the cell at once, others in two
        // steps.
        if (k > 1 && reinterpret_cast<uintptr_t>(cell) % 4 == 0) {
            constexpr uint32_t both = static_cast<uint32_t>(kPoison<int32_t>);
            return {atomicCAS(reinterpret_cast<unsigned *>(cell), both,
                              (both & 0xffff0000u) | static_cast<Bits>(id)),
                    both};
        }
    }
    return {
        atomicCAS(reinterpret_cast<Word *>(cell), static_cast<Word>(poison), static_cast<Word>(id)),
        poison};
#else
    static_cast<void>(k);
    const Claim claim{static_cast<Bits>(*cell), poison};
    if (claim.succeeded()) *cell = id;
    return claim;
#endif
}

}  // namespace routecap::kernels
