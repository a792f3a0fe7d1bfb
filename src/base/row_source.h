// Rows somewhere in memory, to be read.
#pragma once

#include <cstddef>
#include <cstdint>

namespace routecap {

// They lie at equal distances. The distance of validity may be negative, because a slot has the
// validity of its rows in reverse order.
struct RowSource {
    const uint8_t *ids;
    const uint8_t *validity;
    ptrdiff_t ids_stride;
    ptrdiff_t validity_stride;

    const uint8_t *ids_of(uint64_t row) const {
        return ids + static_cast<ptrdiff_t>(row) * ids_stride;
    }
    const uint8_t *validity_of(uint64_t row) const {
        return validity + static_cast<ptrdiff_t>(row) * validity_stride;
    }
    RowSource from(uint64_t row) const {
        return {ids_of(row), validity_of(row), ids_stride, validity_stride};
    }
};

}  // namespace routecap
