// snapshot: narrow the rows begun to one byte or two per id, check every cell, and lay them out row by row in the slot that the slot word names.
//
// sink (L, N, K) -> slot: ids [n][L][K] of one or two bytes, one validity bit per cell. An item is one row of eight layers: one byte of
// validity, 8 * K ids. Consecutive items are the groups of one row, so the ids written are contiguous.
// The sink is only read. A cell is valid if its K ids are in range and distinct; otherwise its first id is the reason (ROUTECAP_MISSING_*) and
// the others are zero.
#pragma once

#include "slot.h"

namespace routecap::kernels {

struct Snapshot {
    const SinkLayer *layers;
    uint32_t layer_count;
    uint32_t k;
    uint32_t id_bytes;  // 1 or 2
    uint32_t rows;      // at most so many: the rows of the sink, or those of the begin that belongs to this snapshot
    Control *control;
    uint8_t *const *slots;
    SlotLayout layout;

    ROUTECAP_BODY uint32_t groups() const { return layout.validity_bytes; }
    ROUTECAP_BODY uint32_t live() const { return control->slot == kNoSlot ? 0 : control->armed < rows ? control->armed : rows; }
    ROUTECAP_BODY uint64_t items() const { return static_cast<uint64_t>(live()) * groups(); }

    // Narrows one cell. Returns 0 if it is valid, otherwise the reason.
    template <class Id, class T>
    ROUTECAP_BODY uint8_t narrow(const T *cell, uint32_t experts, Id *out) const {
        bool unwritten = false, in_range = true, distinct = true;
        for (uint32_t c = 0; c < k; c++) {
            unwritten |= cell[c] == kPoison<T>;
            in_range &= cell[c] >= 0 && cell[c] < static_cast<int64_t>(experts);
            out[c] = static_cast<Id>(cell[c]);
        }
        for (uint32_t c = 1; c < k; c++)
            for (uint32_t b = 0; b < c; b++) distinct &= cell[b] != cell[c];
        return unwritten ? ROUTECAP_MISSING_UNWRITTEN : !in_range ? ROUTECAP_MISSING_OUT_OF_RANGE : !distinct ? ROUTECAP_MISSING_DUPLICATE : 0;
    }

    template <class Id>
    ROUTECAP_BODY uint8_t group(int64_t row, uint32_t first, uint32_t end, Id *out) const {
        uint8_t valid = 0;
        for (uint32_t l = first; l < end; l++, out += k) {
            uint8_t reason = ROUTECAP_MISSING_UNWRITTEN;
            if (layers[l].ids != nullptr)
                with_row(layers[l], row, [&](auto *cell) { reason = narrow(cell, layers[l].experts, out); });
            if (reason == 0) {
                valid = static_cast<uint8_t>(valid | 1u << (l - first));
            } else {
                for (uint32_t c = 0; c < k; c++) out[c] = c == 0 ? reason : 0;
            }
        }
        return valid;
    }

    ROUTECAP_BODY void item(uint64_t i) const {
        const uint64_t row = i / groups();
        const uint32_t g = static_cast<uint32_t>(i % groups());
        const uint32_t first = g * 8, end = first + 8 < layer_count ? first + 8 : layer_count;
        uint8_t *slot = slots[control->slot];
        uint8_t *out = layout.ids(slot, row) + static_cast<size_t>(first) * k * id_bytes;
        layout.validity(slot, row)[g] = id_bytes == 1 ? group(static_cast<int64_t>(row), first, end, out)
                                                      : group(static_cast<int64_t>(row), first, end, reinterpret_cast<uint16_t *>(out));
    }

    // Once, after all items have read the control words: the slot covers what was armed; nothing is armed any more.
    ROUTECAP_BODY void after() const {
        if (control->slot != kNoSlot) {
            SlotHeader *header = layout.header(slots[control->slot]);
            header->covered = live();
            header->conflicts = control->conflicts;
            header->dropped = control->dropped;
        }
        control->armed = 0;
    }
};

}  // namespace routecap::kernels
