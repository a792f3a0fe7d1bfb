// begin: poison the rows that this forward may write, and arm their number.
//
// sink (L, N, K): rows [0, rows) of every layer become poison. An item is one cell; consecutive items are consecutive rows of one layer.
#pragma once

#include "slot.h"

namespace routecap::kernels {

struct Begin {
    const SinkLayer *layers;
    uint32_t layer_count;
    uint32_t k;
    uint32_t rows;
    Control *control;
    uint8_t *const *slots;
    SlotLayout layout;

    ROUTECAP_BODY uint64_t items() const { return static_cast<uint64_t>(layer_count) * rows; }

    ROUTECAP_BODY void item(uint64_t i) const {
        const SinkLayer &layer = layers[i / rows];
        if (layer.ids == nullptr) return;
        with_row(layer, static_cast<int64_t>(i % rows), [this](auto *ids) {
            for (uint32_t c = 0; c < k; c++) ids[c] = kPoison<std::remove_reference_t<decltype(*ids)>>;
        });
    }

    // Once per launch, in no order with the items: the snapshot comes later on the stream.
    ROUTECAP_BODY void once() const {
        control->armed = rows;
        control->conflicts = 0;
        control->dropped = 0;
        if (control->slot != kNoSlot) layout.header(slots[control->slot])->covered = 0;
    }
};

}  // namespace routecap::kernels
