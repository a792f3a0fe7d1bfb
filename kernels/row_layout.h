// The bytes of a row that is there. It is one record, the same in a slot, in a page, in a block of
// a store, in a sequence and in a file:
//
//   | ids: layers x k, of one or two bytes | validity: one bit per layer | zeros up to the stride |
//
// Ids come first, because kernels choose the width of their stores by address: the stride is a
// multiple of the largest power of two that divides a cell, at most 16. Since padding is zero,
// equal rows have equal bytes.
#pragma once

#include "body.h"

namespace routecap::kernels {

struct RowLayout {
    uint32_t layers;
    uint32_t k;
    uint32_t id_bytes;        // 1 or 2
    uint32_t cell_bytes;      // k ids
    uint32_t ids_bytes;       // of all layers: where the validity begins
    uint32_t validity_bytes;  // bit l % 8 of byte l / 8 is that of layer l
    uint32_t stride;          // from one row to the next

    RowLayout() = default;
    constexpr RowLayout(uint32_t layers_, uint32_t k_, uint32_t id_bytes_)
        : layers(layers_),
          k(k_),
          id_bytes(id_bytes_),
          cell_bytes(k_ * id_bytes_),
          ids_bytes(layers_ * cell_bytes),
          validity_bytes((layers_ + 7) / 8),
          stride(round_up(ids_bytes + validity_bytes, alignment())) {}

    // Of rows, if the first one has it.
    constexpr uint32_t alignment() const {
        const uint32_t of_cell = cell_bytes & (~cell_bytes + 1);
        return of_cell < 16 ? of_cell : 16;
    }
    // Without the padding.
    constexpr uint32_t bytes() const { return ids_bytes + validity_bytes; }

    ROUTECAP_BODY uint8_t *cell(uint8_t *row, uint32_t layer) const {
        return row + static_cast<size_t>(layer) * cell_bytes;
    }
    ROUTECAP_BODY const uint8_t *cell(const uint8_t *row, uint32_t layer) const {
        return row + static_cast<size_t>(layer) * cell_bytes;
    }
    ROUTECAP_BODY uint8_t *validity(uint8_t *row) const { return row + ids_bytes; }
    ROUTECAP_BODY const uint8_t *validity(const uint8_t *row) const { return row + ids_bytes; }
    // Writes a byte of the validity, and with the last one the padding.
    ROUTECAP_BODY void set_validity(uint8_t *row, uint32_t byte, uint8_t value) const {
        uint8_t *to = validity(row);
        to[byte] = value;
        if (byte + 1 == validity_bytes)
            for (uint32_t b = validity_bytes; b < stride - ids_bytes; b++) to[b] = 0;
    }

private:
    static constexpr uint32_t round_up(uint32_t n, uint32_t to) { return (n + to - 1) / to * to; }
};

}  // namespace routecap::kernels
