// record: copy the ids of one layer from wherever a router left them into the sink.
//
// source (rows, k_source) with strides, any integer type -> sink row of the layer (k). An item is one source row.
// A cell that is not poison was written before and stays. An id that is none becomes kInvalidId: the snapshot calls its cell out of range.
#pragma once

#include "body.h"

namespace routecap::kernels {

template <uint32_t K>
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

    ROUTECAP_BODY uint32_t outer() const { return 1; }
    ROUTECAP_BODY uint32_t inner() const { return rows; }

    // The id that a number in the source stands for, or kInvalidId.
    ROUTECAP_BODY int32_t id(int64_t id) const {
        if (table != nullptr) {
            if (id < 0 || id >= static_cast<int64_t>(table_size)) return kInvalidId;
            id = table[id];
        }
        if (id < -static_cast<int64_t>(UINT32_MAX) || id > static_cast<int64_t>(UINT32_MAX)) return kInvalidId;
        id += offset;
        return id < 0 || id >= static_cast<int64_t>(sink.experts) ? kInvalidId : static_cast<int32_t>(id);
    }

    // Source row `row`, of elements S >> shift, to a cell.
    template <class S, int shift = 0, class T>
    ROUTECAP_BODY void convert(uint32_t row, T *cell) const {
        const S *from = static_cast<const S *>(ids) + static_cast<int64_t>(row) * row_stride;
        for (uint32_t c = 0; c < columns<K>(k); c++) cell[c] = static_cast<T>(id(static_cast<int64_t>(from[static_cast<int64_t>(c) * column_stride] >> shift)));
    }

    ROUTECAP_BODY void item(uint32_t, uint32_t i) const {
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
            bool poison = true;
            for (uint32_t c = 0; c < columns<K>(k); c++) poison &= cell[c] == kPoison<T>;
            if (!poison) {
                count(&control->conflicts, 1);
                return;
            }
            switch (dtype) {
                case ROUTECAP_DTYPE_I16: convert<int16_t>(i, cell); break;
                case ROUTECAP_DTYPE_I32: convert<int32_t>(i, cell); break;
                case ROUTECAP_DTYPE_U32: convert<uint32_t>(i, cell); break;
                case ROUTECAP_DTYPE_I64: convert<int64_t>(i, cell); break;
                default: convert<int32_t, 16>(i, cell); break;  // id << 16 | bfloat16 weight
            }
        });
    }
};

}  // namespace routecap::kernels
