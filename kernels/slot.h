// The memory layout of a slot, which holds one step's rows between the sink and the pages.
//
//   | SlotHeader | row 0 | row 1 | ... | positions |
//
// Any number of rows, with the header, is one contiguous range, and one copy brings it to the host.
// Positions, where a step has them, follow the last row that is copied, aligned to 16 bytes, in the
// type in which they came. Whole words of 16 bytes can be copied behind them.
#pragma once

#include <stddef.h>

#include "row_layout.h"

namespace routecap::kernels {

struct alignas(64) SlotHeader {
    uint64_t epoch;      // of the naming under which all this was written
    uint32_t begun;      // 1: there was a begin
    uint32_t snapshots;  // since the last begin of this naming
    uint32_t covered;    // rows that the snapshot holds; rows at or beyond are missing
    uint32_t reserved;
    // Control's, added up over the snapshots of this naming since its last begin.
    uint64_t conflicts;
    uint64_t dropped;
};

struct SlotLayout {
    RowLayout row;
    uint32_t rows;  // of the sink

    SlotLayout() = default;
    constexpr SlotLayout(uint32_t sink_rows, const RowLayout &of_row)
        : row(of_row), rows(sink_rows) {}

    ROUTECAP_BODY SlotHeader *header(uint8_t *slot) const {
        return reinterpret_cast<SlotHeader *>(slot);
    }
    // Row n, and so the end of the rows before it.
    ROUTECAP_BODY uint8_t *at(uint8_t *slot, size_t n) const {
        return slot + sizeof(SlotHeader) + n * row.stride;
    }
    ROUTECAP_BODY uint8_t *positions(uint8_t *slot, size_t rows_copied) const {
        return slot + (sizeof(SlotHeader) + rows_copied * row.stride + 15) / 16 * 16;
    }
    // Size of a slot with every row and every position: from one slot to the next.
    ROUTECAP_BODY constexpr size_t bytes() const {
        return ((sizeof(SlotHeader) + static_cast<size_t>(rows) * row.stride + 15) / 16 * 16 +
                static_cast<size_t>(rows) * 8 + 255) /
               256 * 256;
    }
    ROUTECAP_BODY uint8_t *slot(uint8_t *slots, int32_t n) const {
        return slots + static_cast<size_t>(n) * bytes();
    }
};

}  // namespace routecap::kernels
