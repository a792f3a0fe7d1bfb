// begin: poison the rows that this forward may write, and arm their number.
//
// sink (L, N, K): rows [0, rows) of every layer become poison. An item is one cell, a layer's rows one after another.
#pragma once

#include "slot.h"

namespace routecap::kernels {

template <uint32_t K>
struct Begin {
    const SinkLayer *layers;
    uint32_t layer_count;
    uint32_t k;
    uint32_t rows;
    Control *control;
    uint8_t *const *slots;
    SlotLayout layout;

    ROUTECAP_BODY uint32_t outer() const { return layer_count; }
    ROUTECAP_BODY uint32_t inner() const { return rows; }

    ROUTECAP_BODY void item(uint32_t l, uint32_t row) const {
        const SinkLayer &layer = layers[l];
        if (layer.ids == nullptr) return;
        with_row(layer, row, [this](auto *ids) {
            for (uint32_t c = 0; c < columns<K>(k); c++) ids[c] = kPoison<std::remove_reference_t<decltype(*ids)>>;
        });
    }

    // Once per launch, in no order with the items: the snapshot comes later on the stream.
    ROUTECAP_BODY void once() const {
        control->armed = rows;
        control->conflicts = 0;
        control->dropped = 0;
        if (control->slot != kNoSlot) *layout.header(slots[control->slot]) = SlotHeader{};
    }
};

}  // namespace routecap::kernels
