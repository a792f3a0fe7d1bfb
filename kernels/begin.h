// begin: poison the rows that this forward may write, and arm their number.
//
// sink (L, N, K): rows [0, rows) of every layer become poison. An item is one cell, a layer's rows one after another.
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

    ROUTECAP_BODY uint32_t outer() const { return layer_count; }
    ROUTECAP_BODY uint32_t inner() const { return rows; }

    ROUTECAP_BODY void item(uint32_t l, uint32_t row) const {
        const SinkLayer &layer = layers[l];
        if (layer.ids == nullptr) return;
        with_row(layer, row, [this](auto *ids) { fill(reinterpret_cast<unsigned char *>(ids), k * sizeof *ids); });
    }

    // Once per launch, in no order with the items: the snapshot comes later on the stream.
    ROUTECAP_BODY void once() const {
        const Named named = control->named;
        control->begun = named;
        control->armed = rows;
        control->finished = 0;
        control->conflicts = 0;
        control->dropped = 0;
        if (named.slot != kNoSlot) *layout.header(slots[named.slot]) = {named.epoch, 0, 0, 0};
    }

private:
    // A cell is aligned to its elements, of two bytes at least, and often to more.
    ROUTECAP_BODY static void fill(unsigned char *to, uint32_t bytes) {
#if defined(__CUDA_ARCH__)
        const auto run = [&]<class Word>(Word word) {
            for (uint32_t b = 0; b < bytes; b += sizeof word) *reinterpret_cast<Word *>(to + b) = word;
        };
        constexpr uint32_t p = 0x80808080;
        const uint32_t aligned = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(to)) | bytes;
        if (aligned % 16 == 0)
            run(uint4{p, p, p, p});
        else if (aligned % 4 == 0)
            run(p);
        else
            run(static_cast<uint16_t>(p));
#else
        memset(to, kPoisonByte, bytes);
#endif
    }
};

}  // namespace routecap::kernels
