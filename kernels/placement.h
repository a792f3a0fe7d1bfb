// Which rows of the sink the rows of a source go to, and the rule that the first write of a cell
// wins: what record and route share.
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

    // The sink row of a live row, begun or not; kNone if it is to have none, kOutside if it would
    // be below the first.
    ROUTECAP_BODY int64_t target(uint32_t i) const {
        if (row_index != nullptr) return row_index[i] < 0 ? kNone : row_index[i];
        const int64_t row = static_cast<int64_t>(first_row) + static_cast<int64_t>(i) +
                            (row_base != nullptr ? *row_base : 0);
        return row < 0 ? kOutside : row;
    }
    // Whether every target is a row of the sink, as the host knows.
    ROUTECAP_BODY bool inside() const { return row_index == nullptr && row_base == nullptr; }

    // Whether a target may be written. One that is not begun is counted.
    ROUTECAP_BODY static bool begun(int64_t row, Control *control) {
        if (row >= 0 && row < static_cast<int64_t>(control->rows())) return true;
        if (row != kNone) count(&control->dropped, 1);
        return false;
    }

    static constexpr int64_t kNone = -1, kOutside = -2;
};

// Whether nobody wrote a cell that held these ids.
template <class T, uint32_t K>
ROUTECAP_BODY bool all_poison(const Ids<T, K> &ids, uint32_t k) {
    bool poison = true;
    for (uint32_t c = 0; c < columns<K>(k); c++) poison &= ids[c] == kPoison<T>;
    return poison;
}

// Writes the first id of a cell if that is poison still: of two rows written at once into one cell,
// one finds that it is not.
template <class T>
ROUTECAP_BODY bool claim(T *cell, T id) {
#if defined(__CUDA_ARCH__)
    using Word =
        std::conditional_t<sizeof(T) == 2, unsigned short,
                           std::conditional_t<sizeof(T) == 4, unsigned int, unsigned long long>>;
    const Word poison = static_cast<Word>(kPoison<T>);
    return atomicCAS(reinterpret_cast<Word *>(cell), poison, static_cast<Word>(id)) == poison;
#else
    if (*cell != kPoison<T>) return false;
    *cell = id;
    return true;
#endif
}

}  // namespace routecap::kernels
