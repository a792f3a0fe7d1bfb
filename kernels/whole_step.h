// whole step: begin, record and snapshot of a forward pass whose ids are all in memory, in one
// launch and without the sink.
//
// source of each layer (rows, k_source) -> slot, as snapshot.h lays it out. An item is one row of
// eight layers.
#pragma once

#include "record.h"
#include "snapshot.h"

namespace routecap::kernels {

constexpr uint32_t kWholeStepLayers = 64;

template <class Id, uint32_t K>
struct WholeStep {
    static constexpr bool kWeights = false;

    Record<K, 1> record;  // of no layer: how ids are read
    Snapshot<Id, K> snapshot;
    // Of each layer. Those of eight layers are in one line of the cache of parameters each, for a
    // block waits for line after line.
    const void *ids[kWholeStepLayers];  // nullptr: not recorded
    const int32_t *tables[kWholeStepLayers];
    CellRule rules[kWholeStepLayers];

    ROUTECAP_BODY uint32_t rows() const { return record.source.to.rows; }
    ROUTECAP_BODY uint32_t outer() const {
        return snapshot.control->named.slot() == kNoSlot ? 0 : rows();
    }
    ROUTECAP_BODY uint32_t inner() const { return snapshot.groups(); }

    ROUTECAP_BODY uint32_t layer_count() const { return snapshot.layer_count; }
    ROUTECAP_BODY uint8_t *slot() const { return snapshot.slot(); }

    // One cell, and its ids to `out`. Whether they are valid.
    ROUTECAP_BODY bool take_ids(uint8_t *to, uint32_t row, uint32_t layer, Ids<Id, K> &out) const {
        uint8_t reason = ROUTECAP_MISSING_UNWRITTEN;
        if (ids[layer] != nullptr) {
            const LayerIds from{ids[layer],
                                record.source.table_size == 0 ? nullptr : tables[layer],
                                {nullptr, 0, 0, rules[layer]}};
            int64_t numbers[K != 0 ? K : ROUTECAP_MAX_K];
            record.read(from, row, numbers);
            Ids<int32_t, K> found;
            for (uint32_t c = 0; c < record.width(from); c++)
                found[c] = record.id(from, numbers[c]);
            reason = snapshot.narrow(found.id, rules[layer], out);
        }
        return snapshot.put(to, row, layer, reason, out);
    }

    // One cell. What of it is valid.
    ROUTECAP_BODY uint32_t cell(uint8_t *to, uint32_t row, uint32_t layer) const {
        Ids<Id, K> out;
        return take_ids(to, row, layer, out) ? kIdsValid : 0;
    }

    ROUTECAP_BODY void set_validity(uint8_t *to, uint32_t row, uint32_t g, uint32_t ids,
                                    uint32_t weights) const {
        snapshot.set_validity(to, row, g, ids, weights);
    }
    ROUTECAP_BODY void item(uint32_t row, uint32_t g) const {
        fill_eight(*this, layer_count(), row, g);
    }

    // Once per launch, in no order with the items. Nothing more can be recorded in this step.
    ROUTECAP_BODY void once() const {
        Control *control = snapshot.control;
        const Named named = control->named;
        control->begun = named;
        control->armed = 0;
        control->conflicts = 0;
        control->dropped = 0;
        if (named.slot() != kNoSlot)
            *snapshot.layout.header(snapshot.slot()) = {named.epoch(), 1, 1, rows(), 0, 0, 0};
    }
};

}  // namespace routecap::kernels
