// Reading the rows of a routecap_view: what a program does that looks at them in place.
#pragma once

#include <routecap.h>

#include <cstdint>
#include <cstring>
#include <vector>

// Whether the cell of a layer is valid, in row `row` of a segment.
inline bool cell_is_valid(const routecap_view &view, const routecap_segment &segment, uint64_t row,
                          uint64_t layer) {
    if (segment.ids == nullptr || segment.validity == nullptr) return segment.ids != nullptr;
    return (segment.validity[row * view.row_stride + layer / 8] >> layer % 8 & 1) != 0;
}

// Id `column` of that cell.
inline int64_t id_of_cell(const routecap_view &view, const routecap_segment &segment, uint64_t row,
                          uint64_t layer, uint64_t column) {
    const auto *ids = static_cast<const uint8_t *>(segment.ids) + row * view.row_stride;
    const uint64_t at = layer * view.k + column;
    if (view.dtype == ROUTECAP_DTYPE_U8) return ids[at];
    int16_t id = 0;
    std::memcpy(&id, ids + at * sizeof id, sizeof id);
    return id;
}

// How many experts a valid cell has. They come first: every bit of its other columns is set.
inline uint64_t experts_of_cell(const routecap_view &view, const routecap_segment &segment,
                                uint64_t row, uint64_t layer) {
    const int64_t unused = view.dtype == ROUTECAP_DTYPE_U8 ? 255 : -1;
    uint64_t n = view.layer_k[layer];
    while (n > view.layer_min_k[layer] && id_of_cell(view, segment, row, layer, n - 1) == unused)
        n--;
    return n;
}

// Rows of 8-bit ids that lack no cell, as they have to lie to be lent in place (serialized.h).
class Records {
public:
    // ids: [rows, layers, k]
    Records(const std::vector<uint8_t> &ids, uint32_t layers, uint32_t k) : ids_bytes_(layers * k) {
        uint64_t unit = 1;
        while (unit < 16 && k % (2 * unit) == 0) unit *= 2;
        stride_ = (ids_bytes_ + (layers + 7) / 8 + unit - 1) / unit * unit;
        bytes_.resize(ids.size() / ids_bytes_ * stride_);
        for (size_t row = 0; row < ids.size() / ids_bytes_; row++) {
            uint8_t *to = bytes_.data() + row * stride_;
            std::memcpy(to, ids.data() + row * ids_bytes_, ids_bytes_);
            for (uint32_t l = 0; l < layers; l++)
                to[ids_bytes_ + l / 8] = static_cast<uint8_t>(to[ids_bytes_ + l / 8] | 1u << l % 8);
        }
    }
    void lend(routecap_view &view, routecap_segment &segment) const {
        view.row_stride = stride_;
        segment.ids = bytes_.data(), segment.validity = bytes_.data() + ids_bytes_;
    }

private:
    uint64_t ids_bytes_, stride_ = 0;
    std::vector<uint8_t> bytes_;
};
