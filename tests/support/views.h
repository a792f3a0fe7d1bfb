// Reading the rows of a routecap_view: what a program does that looks at them in place.
#pragma once

#include <routecap.h>

#include <cstdint>
#include <cstring>

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
