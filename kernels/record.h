// record: copy the ids of one layer from wherever a router left them into the sink.
//
// source (rows, k_source) with strides, any integer type -> sink row of the layer (k). An item is one source row.
// A cell that is not poison was written before and stays. An id that is none becomes kInvalidId: the snapshot calls its cell out of range.
#pragma once

#include "body.h"

namespace routecap::kernels {

struct Record {
    const void *ids;
    int64_t row_stride;
    int64_t column_stride;
    int32_t dtype;
    uint32_t rows;
    const int32_t *live_rows;  // or nullptr: all rows are live
    const int32_t *row_base;   // or nullptr: added to first_row
    const int32_t *row_index;  // or nullptr: sink rows first_row, first_row + 1, ...
    uint32_t first_row;
    uint32_t k;
    const int32_t *table;  // or nullptr
    uint32_t table_size;
    int32_t offset;
    SinkLayer sink;
    Control *control;

    ROUTECAP_BODY uint64_t items() const { return rows; }

    // The id in the source, before table and offset. Out of int64's range: none of the types.
    ROUTECAP_BODY int64_t load(uint64_t row, uint32_t column) const {
        const int64_t i = static_cast<int64_t>(row) * row_stride + static_cast<int64_t>(column) * column_stride;
        switch (dtype) {
            case ROUTECAP_DTYPE_I16: return static_cast<const int16_t *>(ids)[i];
            case ROUTECAP_DTYPE_I32: return static_cast<const int32_t *>(ids)[i];
            case ROUTECAP_DTYPE_U32: return static_cast<const uint32_t *>(ids)[i];
            case ROUTECAP_DTYPE_I64: return static_cast<const int64_t *>(ids)[i];
            default: return static_cast<const int32_t *>(ids)[i] >> 16;  // id << 16 | bfloat16 weight
        }
    }

    // The logical id, or kInvalidId.
    ROUTECAP_BODY int32_t id(uint64_t row, uint32_t column) const {
        int64_t id = load(row, column);
        if (table != nullptr) {
            if (id < 0 || id >= static_cast<int64_t>(table_size)) return kInvalidId;
            id = table[id];
        }
        if (id < -static_cast<int64_t>(UINT32_MAX) || id > static_cast<int64_t>(UINT32_MAX)) return kInvalidId;
        id += offset;
        return id < 0 || id >= static_cast<int64_t>(sink.experts) ? kInvalidId : static_cast<int32_t>(id);
    }

    ROUTECAP_BODY void item(uint64_t i) const {
        if (live_rows != nullptr && static_cast<int64_t>(i) >= *live_rows) return;
        int64_t row = static_cast<int64_t>(first_row) + static_cast<int64_t>(i);
        if (row_base != nullptr) row += *row_base;
        if (row_index != nullptr) {
            row = row_index[i];
            if (row < 0) return;
        }
        if (row < 0 || row >= static_cast<int64_t>(control->armed)) {
            count(&control->dropped, 1);
            return;
        }
        with_row(sink, row, [this, i](auto *cell) {
            using T = std::remove_reference_t<decltype(*cell)>;
            for (uint32_t c = 0; c < k; c++)
                if (cell[c] != kPoison<T>) {
                    count(&control->conflicts, 1);
                    return;
                }
            for (uint32_t c = 0; c < k; c++) cell[c] = static_cast<T>(id(i, c));
        });
    }
};

}  // namespace routecap::kernels
