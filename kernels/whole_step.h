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

    // One cell. Whether it is valid.
    ROUTECAP_BODY bool cell(uint8_t *to, uint32_t row, uint32_t layer) const {
        Ids<Id, K> out;
        return cell(to, row, layer, out);
    }
    ROUTECAP_BODY bool cell(uint8_t *to, uint32_t row, uint32_t layer, Ids<Id, K> &out) const {
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

    ROUTECAP_BODY void item(uint32_t row, uint32_t g) const {
        uint8_t *to = snapshot.slot();
        uint32_t valid = 0;
        for (uint32_t l = g * 8; l < g * 8 + 8 && l < snapshot.layer_count; l++)
            valid |= static_cast<uint32_t>(cell(to, row, l)) << l % 8;
        snapshot.set_validity(to, row, g, valid);
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
