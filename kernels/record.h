// record: copy the ids of one layer from wherever a router left them into the sink.
//
// source (rows, k_source) with strides, any integer type -> sink row of the layer (k). An item is one source row.
// A cell that is not poison was written before and stays. An id that is none becomes kInvalidId: the snapshot calls its cell out of range.
#pragma once

#include "body.h"

namespace routecap::kernels {

// Where ids come from and which sink rows they go to: a checked routecap_source.
struct Source {
    const void *ids;
    int64_t row_stride;
    int64_t column_stride;
    int32_t dtype;
    uint32_t rows;
    const int32_t *live_rows;  // or nullptr: all rows are live
    const int32_t *row_base;   // or nullptr: added to first_row
    const int32_t *row_index;  // or nullptr: sink rows first_row, first_row + 1, ...
    uint32_t first_row;
    int32_t offset;
    const int32_t *table;  // or nullptr
    uint32_t table_size;
};

template <uint32_t K>
struct Record {
    Source source;
    uint32_t k;
    SinkLayer sink;
    Control *control;

    ROUTECAP_BODY uint32_t outer() const { return 1; }
    ROUTECAP_BODY uint32_t inner() const { return source.rows; }

    // The id that a number in the source stands for, or kInvalidId.
    ROUTECAP_BODY int32_t id(int64_t id) const {
        if (source.table != nullptr) {
            if (id < 0 || id >= static_cast<int64_t>(source.table_size)) return kInvalidId;
            id = source.table[id];
        }
        if (id < -static_cast<int64_t>(UINT32_MAX) || id > static_cast<int64_t>(UINT32_MAX)) return kInvalidId;
        id += source.offset;
        return id < 0 || id >= static_cast<int64_t>(sink.experts) ? kInvalidId : static_cast<int32_t>(id);
    }

    // Source row `row`, of elements S >> shift.
    template <class S, int shift = 0, class T>
    ROUTECAP_BODY void convert(uint32_t row, Ids<T, K> &out) const {
        const S *from = static_cast<const S *>(source.ids) + static_cast<int64_t>(row) * source.row_stride;
        for (uint32_t c = 0; c < columns<K>(k); c++)
            out[c] = static_cast<T>(id(static_cast<int64_t>(from[static_cast<int64_t>(c) * source.column_stride] >> shift)));
    }

    // Writes the first id of a cell if that is poison still: of two rows recorded at once into one cell, one finds that it is not.
    template <class T>
    ROUTECAP_BODY static bool claim(T *cell, T id) {
#if defined(__CUDA_ARCH__)
        using Word = std::conditional_t<sizeof(T) == 2, unsigned short, std::conditional_t<sizeof(T) == 4, unsigned int, unsigned long long>>;
        const Word poison = static_cast<Word>(kPoison<T>);
        return atomicCAS(reinterpret_cast<Word *>(cell), poison, static_cast<Word>(id)) == poison;
#else
        if (*cell != kPoison<T>) return false;
        *cell = id;
        return true;
#endif
    }

    ROUTECAP_BODY void item(uint32_t, uint32_t i) const {
        if (source.live_rows != nullptr && static_cast<int64_t>(i) >= *source.live_rows) return;
        int64_t row = static_cast<int64_t>(source.first_row) + static_cast<int64_t>(i);
        if (source.row_base != nullptr) row += *source.row_base;
        if (source.row_index != nullptr) {
            row = source.row_index[i];
            if (row < 0) return;
        }
        if (row < 0 || row >= static_cast<int64_t>(control->rows())) {
            count(&control->dropped, 1);
            return;
        }
        with_row(sink, row, [this, i](auto *cell) {
            using T = std::remove_reference_t<decltype(*cell)>;
            Ids<T, K> out{};
            load(out, cell, k);
            bool poison = true;
            for (uint32_t c = 0; c < columns<K>(k); c++) poison &= out[c] == kPoison<T>;
            if (poison) {
                switch (source.dtype) {
                    case ROUTECAP_DTYPE_I16: convert<int16_t>(i, out); break;
                    case ROUTECAP_DTYPE_I32: convert<int32_t>(i, out); break;
                    case ROUTECAP_DTYPE_U32: convert<uint32_t>(i, out); break;
                    case ROUTECAP_DTYPE_I64: convert<int64_t>(i, out); break;
                    default: convert<int32_t, 16>(i, out); break;  // id << 16 | bfloat16 weight
                }
            }
            if (poison && claim(cell, out[0]))
                store(cell, out, k);
            else
                count(&control->conflicts, 1);
        });
    }
};

}  // namespace routecap::kernels
