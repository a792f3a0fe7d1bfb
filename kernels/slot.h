// The memory layout of a slot, which holds one step's rows between the sink and the pages.
//
// Row t's ids grow upwards from the middle and its validity downwards, so that any number of rows,
// with the header between them, is one contiguous range, and one copy brings it to the host:
//
//   | ... validity row 1 | validity row 0 | SlotHeader | ids row 0 | ids row 1 | ... | positions |
//                                         ^ slot + offset
//
// Positions, where a step has them, follow the last row that is copied, aligned to 16 bytes, in the
// type in which they came. Whole words of 16 bytes can be copied on either side of them.
#pragma once

#include <stddef.h>

#include "body.h"

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
    uint32_t rows;            // of the sink
    uint32_t validity_bytes;  // per row: one bit per layer
    uint32_t ids_bytes;       // per row: layers * k ids
    size_t offset;            // of the header

    SlotLayout() = default;
    constexpr SlotLayout(uint32_t sink_rows, uint32_t row_validity_bytes, uint32_t row_ids_bytes)
        : rows(sink_rows),
          validity_bytes(row_validity_bytes),
          ids_bytes(row_ids_bytes),
          offset((static_cast<size_t>(sink_rows) * row_validity_bytes + 63) / 64 * 64) {}

    ROUTECAP_BODY SlotHeader *header(uint8_t *slot) const {
        return reinterpret_cast<SlotHeader *>(slot + offset);
    }
    ROUTECAP_BODY uint8_t *ids(uint8_t *slot, size_t row) const {
        return slot + offset + sizeof(SlotHeader) + row * ids_bytes;
    }
    ROUTECAP_BODY uint8_t *validity(uint8_t *slot, size_t row) const {
        return slot + offset - (row + 1) * validity_bytes;
    }
    ROUTECAP_BODY uint8_t *positions(uint8_t *slot, size_t rows_copied) const {
        return slot + (offset + sizeof(SlotHeader) + rows_copied * ids_bytes + 15) / 16 * 16;
    }
    // Size of a slot with every row and every position: from one slot to the next.
    ROUTECAP_BODY constexpr size_t bytes() const {
        return ((offset + sizeof(SlotHeader) + static_cast<size_t>(rows) * ids_bytes + 15) / 16 *
                    16 +
                static_cast<size_t>(rows) * 8 + 255) /
               256 * 256;
    }
    ROUTECAP_BODY uint8_t *slot(uint8_t *slots, int32_t n) const {
        return slots + static_cast<size_t>(n) * bytes();
    }
};

}  // namespace routecap::kernels
