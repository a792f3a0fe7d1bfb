// record: copy the ids of layers from the routers' memory into the sink.
//
// source (rows, k_source) with strides, any integer type -> sink row of the layer (its k). An item
// is one source row of one layer. A cell that is not poison was written before and stays. A number
// that stands for no id becomes kInvalidId: the snapshot calls its cell out of range.
#pragma once

#include "placement.h"

namespace routecap::kernels {

// A checked routecap_source: the layout of the ids, how they are mapped to the capturer's ids, and
// their sink rows.
struct Source {
    int64_t row_stride;
    int64_t column_stride;
    int32_t dtype;
    int32_t offset;
    uint32_t table_size;
    int64_t none;  // the number that says that no expert was chosen; 0: there is none
    Placement to;
};

// A layer's ids, and its table or nullptr.
struct LayerIds {
    const void *ids;
    const int32_t *table;
    SinkLayer sink;
};

// Up to L layers. Where K is 0, each has the k of its rule.
template <uint32_t K, uint32_t L>
struct Record {
    Source source;
    uint32_t layer_count;
    Control *control;
    LayerIds layers[L];

    ROUTECAP_BODY uint32_t outer() const { return L == 1 ? 1 : layer_count; }
    ROUTECAP_BODY uint32_t inner() const { return source.to.rows; }

    ROUTECAP_BODY static uint32_t width(const LayerIds &layer) {
        return columns<K>(layer.sink.rule.k);
    }

    // The id that a number in the source stands for, kNoExpert or kInvalidId.
    ROUTECAP_BODY int32_t id(const LayerIds &layer, int64_t id) const {
        if (K == 0 && source.none != 0 && id == source.none) return kNoExpert;
        if (layer.table != nullptr) {
            if (id < 0 || id >= static_cast<int64_t>(source.table_size)) return kInvalidId;
            id = layer.table[id];
        }
        if (id < -static_cast<int64_t>(UINT32_MAX) || id > static_cast<int64_t>(UINT32_MAX))
            return kInvalidId;
        id += source.offset;
        return id < 0 || id >= static_cast<int64_t>(layer.sink.rule.experts)
                   ? kInvalidId
                   : static_cast<int32_t>(id);
    }

    // The numbers in a source row, of elements S >> shift.
    template <class S, int shift = 0>
    ROUTECAP_BODY void read(const LayerIds &layer, uint32_t row, int64_t *to) const {
        const S *from =
            static_cast<const S *>(layer.ids) + static_cast<int64_t>(row) * source.row_stride;
        for (uint32_t c = 0; c < width(layer); c++)
            to[c] =
                static_cast<int64_t>(from[static_cast<int64_t>(c) * source.column_stride] >> shift);
    }
    ROUTECAP_BODY void read(const LayerIds &layer, uint32_t row, int64_t *to) const {
        switch (source.dtype) {
            case ROUTECAP_DTYPE_I16: return read<int16_t>(layer, row, to);
            case ROUTECAP_DTYPE_I32: return read<int32_t>(layer, row, to);
            case ROUTECAP_DTYPE_U32: return read<uint32_t>(layer, row, to);
            case ROUTECAP_DTYPE_I64: return read<int64_t>(layer, row, to);
            case ROUTECAP_DTYPE_ID16_BF16:  // id << 16 | bfloat16 weight
                return read<int32_t, 16>(layer, row, to);
            default:  // not a source's dtype: the row has no ids
                for (uint32_t c = 0; c < width(layer); c++) to[c] = INT64_MIN;
        }
    }

    ROUTECAP_BODY void item(uint32_t l, uint32_t i) const { put(l, i); }

    // Records one cell. The sink row that it claimed, or -1. On a device the loads of the control
    // words, the cell and the source are issued together, so that their latencies overlap.
    ROUTECAP_BODY int64_t put(uint32_t l, uint32_t i) const {
        if (!source.to.live(i)) return -1;
        const LayerIds &layer = layers[L == 1 ? 0 : l];
        const int64_t row = source.to.target(i);
        const uint32_t k = width(layer);
        int64_t numbers[K != 0 ? K : ROUTECAP_MAX_K] = {};
        if (row >= 0) read(layer, i, numbers);
        bool claimed = false;
        with_row(layer.sink, row, [&](auto *cell) {
            using T = std::remove_reference_t<decltype(*cell)>;
            const bool inside = source.to.inside();
            Ids<T, K> was{}, out{};
            if (inside) load(was, cell, k);
            if (!source.to.begun(row, control)) return;
            if (!inside) load(was, cell, k);
            for (uint32_t c = 0; c < k; c++) out[c] = static_cast<T>(id(layer, numbers[c]));
            claimed = all_poison(was, k) && claim(cell, out[0], k).succeeded();
            if (claimed)
                store(cell, out, k);
            else
                count(&control->conflicts, 1);
        });
        return claimed ? row : -1;
    }
};

}  // namespace routecap::kernels
