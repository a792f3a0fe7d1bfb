// The bytes of a row that is there. It is one record, the same in a slot, in a page, in a block of
// a store, in a sequence and in a file:
//
//   | ids: layers x k, of one or two bytes | validity: one bit per layer | zeros up to the stride |
//
// and with weights, of two or four bytes each:
//
//   | ids | validity | validity of weights | zeros | weights: layers x k | zeros up to the stride |
//
// Ids come first, because kernels choose the width of their stores by address: the stride is a
// multiple of the largest power of two that divides a cell, at most 16, and of a weight. Since
// padding is zero, rows whose cells have equal bytes are equal bytes. A cell that is missing has
// its reason in its first id. Behind that imported rows keep what they had, which nobody reads:
// those that are lent cannot be written, so serialising has to clear it anyway.
#pragma once

#include "body.h"

namespace routecap::kernels {

// Whether all bytes of [from, to) are padding.
inline bool all_zero(const uint8_t *from, const uint8_t *to) {
    uint8_t any = 0;
    for (; from < to; from++) any |= *from;
    return any == 0;
}

struct RowLayout {
    uint32_t layers;
    uint32_t k;
    uint32_t id_bytes;        // 1 or 2
    uint32_t cell_bytes;      // k ids
    uint32_t validity_begin;  // behind the ids of all layers
    uint32_t validity_bytes;  // bit l % 8 of byte l / 8 is that of layer l
    uint32_t weight_bytes;    // 0: there are none; otherwise 2 or 4
    uint32_t weights_begin;   // where they begin
    uint32_t stride;          // from one row to the next

    RowLayout() = default;
    constexpr RowLayout(uint32_t layers_, uint32_t k_, uint32_t id_bytes_, uint32_t weight_bytes_)
        : layers(layers_),
          k(k_),
          id_bytes(id_bytes_),
          cell_bytes(k_ * id_bytes_),
          validity_begin(layers_ * cell_bytes),
          validity_bytes((layers_ + 7) / 8),
          weight_bytes(weight_bytes_),
          weights_begin(weight_bytes_ == 0
                            ? validity_begin + validity_bytes
                            : round_up(validity_begin + 2 * validity_bytes, weight_bytes_)),
          stride(round_up(bytes(), alignment())) {}

    // Of rows, if the first one has it.
    ROUTECAP_BODY constexpr uint32_t alignment() const {
        const uint32_t of_cell = cell_bytes & (~cell_bytes + 1);
        const uint32_t least = of_cell < 16 ? of_cell : 16;
        return least > weight_bytes ? least : weight_bytes;
    }
    // Without the padding at the end.
    ROUTECAP_BODY constexpr uint32_t bytes() const {
        return weights_begin + layers * k * weight_bytes;
    }

    ROUTECAP_BODY uint8_t *cell(uint8_t *row, uint32_t layer) const {
        return row + static_cast<size_t>(layer) * cell_bytes;
    }
    ROUTECAP_BODY const uint8_t *cell(const uint8_t *row, uint32_t layer) const {
        return row + static_cast<size_t>(layer) * cell_bytes;
    }
    ROUTECAP_BODY uint8_t *validity(uint8_t *row) const { return row + validity_begin; }
    ROUTECAP_BODY const uint8_t *validity(const uint8_t *row) const { return row + validity_begin; }
    // Writes a byte of the validity, and with the last one the padding behind it. With weights
    // set_weights_validity writes the padding.
    ROUTECAP_BODY void set_validity(uint8_t *row, uint32_t byte, uint8_t value) const {
        validity(row)[byte] = value;
        if (byte + 1 == validity_bytes && weight_bytes == 0)
            clear(row, validity_begin + validity_bytes, stride);
    }

    // The same of weights, where there are any.
    ROUTECAP_BODY constexpr uint32_t weights_cell_bytes() const { return k * weight_bytes; }
    ROUTECAP_BODY uint8_t *weights(uint8_t *row, uint32_t layer) const {
        return row + weights_begin + static_cast<size_t>(layer) * k * weight_bytes;
    }
    ROUTECAP_BODY const uint8_t *weights(const uint8_t *row, uint32_t layer) const {
        return row + weights_begin + static_cast<size_t>(layer) * k * weight_bytes;
    }
    ROUTECAP_BODY uint8_t *weights_validity(uint8_t *row) const {
        return row + validity_begin + validity_bytes;
    }
    ROUTECAP_BODY const uint8_t *weights_validity(const uint8_t *row) const {
        return row + validity_begin + validity_bytes;
    }
    ROUTECAP_BODY void set_weights_validity(uint8_t *row, uint32_t byte, uint8_t value) const {
        weights_validity(row)[byte] = value;
        if (byte + 1 != validity_bytes) return;
        clear(row, validity_begin + 2 * validity_bytes, weights_begin);
        clear(row, bytes(), stride);
    }

    // Whatever is neither an id, nor validity, nor a weight.
    bool padding_is_zero(const uint8_t *row) const {
        const uint32_t bits = weight_bytes == 0 ? validity_bytes : 2 * validity_bytes;
        return all_zero(row + validity_begin + bits, row + weights_begin) &&
               all_zero(row + bytes(), row + stride);
    }
    // Zeros in the place of everything behind the ids.
    void clear_behind_ids(uint8_t *row) const { clear(row, validity_begin, stride); }

private:
    static constexpr uint32_t round_up(uint32_t n, uint32_t to) { return (n + to - 1) / to * to; }
    ROUTECAP_BODY static void clear(uint8_t *row, uint32_t from, uint32_t to) {
        for (uint32_t b = from; b < to; b++) row[b] = 0;
    }
};

}  // namespace routecap::kernels
