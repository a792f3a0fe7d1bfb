// begin: poison the rows that this forward pass may write, and store their number.
//
// sink (L, N, k of the layer): rows [0, rows) of every layer become poison. An item is 16 bytes of a layer whose
// rows follow one another without a gap, and one row of any other.
#pragma once

#include "slot.h"

namespace routecap::kernels {

// The most items that a layer of rows * k ids of `element` bytes can need, whatever its alignment.
constexpr uint32_t begin_items(uint32_t rows, uint32_t k, uint32_t element) {
    const uint32_t chunks = static_cast<uint32_t>((uint64_t{rows} * k * element + 15) / 16) + 1;
    return rows == 0 ? 0 : chunks > rows ? chunks : rows;
}

struct Begin {
    SinkTable layers;
    uint32_t layer_count;
    uint32_t rows;
    uint32_t items;  // of a layer: begin_items() of the widest rows
    Control *control;
    uint8_t *slots;
    SlotLayout layout;

    ROUTECAP_BODY uint32_t outer() const { return layer_count; }
    ROUTECAP_BODY uint32_t inner() const { return items; }

    ROUTECAP_BODY void item(uint32_t l, uint32_t i) const {
        const SinkLayer layer = layers[l];
        if (layer.ids == nullptr) return;
        const uint32_t element = layer.dtype == ROUTECAP_DTYPE_I16   ? 2
                                 : layer.dtype == ROUTECAP_DTYPE_I32 ? 4
                                 : layer.dtype == ROUTECAP_DTYPE_I64 ? 8
                                                                     : 0;  // not a sink's
        const uint32_t k = layer.rule.k;
        unsigned char *ids = static_cast<unsigned char *>(layer.ids);
        if (layer.row_stride != static_cast<int64_t>(k)) {
            if (i < rows)
                fill(ids + static_cast<int64_t>(i) * layer.row_stride * element, k * element);
            return;
        }
        const uint64_t bytes = static_cast<uint64_t>(rows) * k * element,
                       lead = reinterpret_cast<uintptr_t>(ids) % 16;
        const uint64_t at = static_cast<uint64_t>(i) * 16, first = at > lead ? at - lead : 0,
                       end = at + 16 - lead;
        if (first < bytes)
            fill(ids + first, static_cast<uint32_t>((end < bytes ? end : bytes) - first));
    }

    // Runs once per launch, in any order with the items, because the snapshot comes later on the
    // stream.
    ROUTECAP_BODY void once() const {
        const Named named = control->named;
        control->begun = named;
        control->armed = rows;
        control->conflicts = 0;
        control->dropped = 0;
        if (named.slot() != kNoSlot)
            *layout.header(layout.slot(slots, named.slot())) = {named.epoch(), 1, 0, 0, 0, 0, 0};
    }

private:
    // Ids are aligned to two bytes at least, and often to more.
    ROUTECAP_BODY static void fill(unsigned char *to, uint32_t bytes) {
#if defined(__CUDA_ARCH__)
        const auto run = [&]<class Word>(Word word) {
#pragma unroll 1
            for (uint32_t b = 0; b < bytes; b += sizeof word)
                *reinterpret_cast<Word *>(to + b) = word;
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
