// record, snapshot and whole step of a capturer that captures weights beside the ids. Weights are
// copied as integers of two or four bytes (W). They follow the ids: they are recorded by who claims
// the cell, and are there only where the ids are valid and no weight is NaN. A begun row has all
// bits set, which is NaN in every type.
#pragma once

#include "begin.h"
#include "record.h"
#include "whole_step.h"

namespace routecap::kernels {

constexpr unsigned char kWeightPoisonByte = 0xff;

// The weights of a layer's sink: rows of rule.k, row_stride elements apart.
struct WeightSink {
    void *weights;  // nullptr: the layer has none
    int64_t row_stride;
};

// Where the weights of a source are, beside those pointers that layers have each.
struct WeightSource {
    int64_t row_stride;  // in elements
    uint32_t in_ids;     // 1: they are the lower halves of ids of ROUTECAP_DTYPE_ID16_BF16
};

// What tells a NaN: its bits without the sign are above those of an infinity.
struct NanRule {
    uint32_t mask, infinity;

    NanRule() = default;
    constexpr explicit NanRule(int32_t dtype)
        : mask(dtype == ROUTECAP_DTYPE_F32 ? 0x7fffffffu : 0x7fffu),
          infinity(dtype == ROUTECAP_DTYPE_F32    ? 0x7f800000u
                   : dtype == ROUTECAP_DTYPE_BF16 ? 0x7f80u
                                                  : 0x7c00u) {}
    ROUTECAP_BODY constexpr bool is_nan(uint32_t bits) const { return (bits & mask) > infinity; }
};

// The weights of one cell in a source: `from` of its layer, or in the ids.
template <class W, uint32_t K>
ROUTECAP_BODY void read_weights(const WeightSource &source, const Source &ids_of, const void *from,
                                const void *ids, uint32_t row, uint32_t width, Ids<W, K> &to) {
    if (source.in_ids != 0) {
        const auto *packed =
            static_cast<const uint32_t *>(ids) + static_cast<int64_t>(row) * ids_of.row_stride;
        for (uint32_t c = 0; c < columns<K>(width); c++)
            to[c] = static_cast<W>(packed[static_cast<int64_t>(c) * ids_of.column_stride] & 0xffff);
    } else {
        load(to, static_cast<const W *>(from) + static_cast<int64_t>(row) * source.row_stride,
             width);
    }
}

// begin, which also makes the weights NaN. Planes of weights follow those of ids.
struct BeginWeights {
    Begin begin;
    const WeightSink *sinks;
    uint32_t weight_bytes;

    ROUTECAP_BODY uint32_t outer() const { return 2 * begin.layer_count; }
    ROUTECAP_BODY uint32_t inner() const { return begin.items; }

    ROUTECAP_BODY void item(uint32_t l, uint32_t i) const {
        if (l < begin.layer_count) return begin.item(l, i);
        const WeightSink sink = sinks[l - begin.layer_count];
        if (sink.weights == nullptr) return;
        const uint32_t bytes = begin.layers[l - begin.layer_count].rule.k * weight_bytes;
        for (uint32_t row = i; row < begin.rows; row += begin.items) {
            auto *to = static_cast<uint16_t *>(sink.weights) +
                       static_cast<int64_t>(row) * sink.row_stride * (weight_bytes / 2);
            for (uint32_t b = 0; b < bytes / 2; b++) to[b] = 0xffff;
        }
    }
    ROUTECAP_BODY void once() const { begin.once(); }
};

// Up to L layers.
template <uint32_t K, uint32_t L, class W>
struct RecordWeights {
    Record<K, L> record;
    WeightSource source;
    WeightSink sinks[L];
    const void *weights[L];  // nullptr: of this layer only ids, unless they are in them

    ROUTECAP_BODY uint32_t outer() const { return record.outer(); }
    ROUTECAP_BODY uint32_t inner() const { return record.inner(); }

    // The weights are read before the cell is claimed, so that the latencies overlap.
    ROUTECAP_BODY void item(uint32_t l, uint32_t i) const {
        const uint32_t n = L == 1 ? 0 : l;
        const LayerIds &layer = record.layers[n];
        const uint32_t k = record.width(layer);
        Ids<W, K> cell{};
        const bool has = sinks[n].weights != nullptr &&
                         (weights[n] != nullptr || source.in_ids != 0) && record.source.to.live(i);
        if (has) read_weights(source, record.source, weights[n], layer.ids, i, k, cell);
        const int64_t row = record.put(l, i);
        if (has && row >= 0)
            store(static_cast<W *>(sinks[n].weights) + row * sinks[n].row_stride, cell, k);
    }
};

// Puts the weights of a cell into its record. `valid` says whether the cell has ids, and `there`
// whether weights were found. They are zeros where they are not there, and in columns without an
// expert. A cell without experts lacks none. What of the cell is valid.
template <class Id, uint32_t K, class W>
ROUTECAP_BODY uint32_t put_weights(const Snapshot<Id, K> &snapshot, const NanRule &nan,
                                   const CellRule &rule, uint8_t *to, uint32_t row, uint32_t layer,
                                   const Ids<Id, K> &ids, bool valid, bool there, Ids<W, K> &cell) {
    const uint32_t used = valid ? snapshot.used(ids, rule) : 0;
    there = valid && (there || used == 0);
    for (uint32_t c = 0; c < used; c++) there &= !nan.is_nan(cell[c]);
    for (uint32_t c = 0; c < columns<K>(snapshot.k); c++)
        if (!there || c >= used) cell[c] = 0;
    const RowLayout &layout = snapshot.layout.row;
    store(reinterpret_cast<W *>(layout.weights(snapshot.layout.at(to, row), layer)), cell,
          snapshot.k);
    return (valid ? kIdsValid : 0) | (there ? kWeightsValid : 0);
}

template <class Id, uint32_t K>
ROUTECAP_BODY void set_both_validities(const Snapshot<Id, K> &snapshot, uint8_t *to, uint32_t row,
                                       uint32_t g, uint32_t ids, uint32_t weights) {
    snapshot.set_validity(to, row, g, ids, weights);
    snapshot.layout.row.set_weights_validity(snapshot.layout.at(to, row), g,
                                             static_cast<uint8_t>(weights));
}

template <class Id, uint32_t K, class W>
struct SnapshotWeights : Snapshot<Id, K> {
    static constexpr bool kWeights = true;
    struct Sinks {
        SinkLayer ids;
        WeightSink weights;
    };

    const WeightSink *sinks;
    NanRule nan;

    ROUTECAP_BODY uint32_t cell(uint8_t *to, uint32_t row, uint32_t layer, const Sinks &of) const {
        Ids<W, K> weights{};
        const bool there = of.weights.weights != nullptr;
        if (there)
            load(weights,
                 static_cast<const W *>(of.weights.weights) +
                     static_cast<int64_t>(row) * of.weights.row_stride,
                 columns<K>(of.ids.rule.k));
        Ids<Id, K> ids;
        const bool valid = this->take_ids(to, row, layer, of.ids, ids);
        return put_weights(*this, nan, of.ids.rule, to, row, layer, ids, valid, there, weights);
    }
    ROUTECAP_BODY uint32_t cell(uint8_t *to, uint32_t row, uint32_t layer) const {
        return cell(to, row, layer, sink(layer));
    }
    ROUTECAP_BODY Sinks sink(uint32_t layer) const { return {this->layers[layer], sinks[layer]}; }
    ROUTECAP_BODY void set_validity(uint8_t *to, uint32_t row, uint32_t g, uint32_t ids,
                                    uint32_t weights) const {
        set_both_validities<Id, K>(*this, to, row, g, ids, weights);
    }
    ROUTECAP_BODY void item(uint32_t row, uint32_t g) const {
        fill_eight(*this, this->layer_count, row, g);
    }
};

template <class Id, uint32_t K, class W>
struct WholeStepWeights : WholeStep<Id, K> {
    static constexpr bool kWeights = true;

    WeightSource source;
    NanRule nan;
    const void *weights[kWholeStepLayers];  // nullptr: of this layer only ids

    ROUTECAP_BODY uint32_t cell(uint8_t *to, uint32_t row, uint32_t layer) const {
        const CellRule rule = this->rules[layer];
        const void *from = this->ids[layer];
        Ids<W, K> found{};
        const bool there = from != nullptr && (weights[layer] != nullptr || source.in_ids != 0);
        if (there)
            read_weights(source, this->record.source, weights[layer], from, row, rule.k, found);
        Ids<Id, K> ids;
        const bool valid = this->take_ids(to, row, layer, ids);
        return put_weights(this->snapshot, nan, rule, to, row, layer, ids, valid, there, found);
    }
    ROUTECAP_BODY void set_validity(uint8_t *to, uint32_t row, uint32_t g, uint32_t ids,
                                    uint32_t of_weights) const {
        set_both_validities(this->snapshot, to, row, g, ids, of_weights);
    }
    ROUTECAP_BODY void item(uint32_t row, uint32_t g) const {
        fill_eight(*this, this->layer_count(), row, g);
    }
};

}  // namespace routecap::kernels
