// snapshot: narrow the rows begun to one byte or two per id, check every cell, and lay them out row
// by row in the slot that the slot word names.
//
// sink (L, N, K) -> slot: a record per row (row_layout.h). An item is one row of eight layers: one
// byte of validity, 8 * K ids. Items of a row follow one another, so the ids written are
// contiguous. The sink is only read. A cell is valid if its ids are in range, distinct, and as many
// as the layer's rule says; otherwise its first id is the reason (ROUTECAP_MISSING_*) and the others
// are zero. Where K is not 0, all layers have exactly K.
#pragma once

#include "routecap/reading.h"
#include "slot.h"

namespace routecap::kernels {

// Whether k ids are all different. Where they fill one word, each rotation compares k pairs at
// once.
template <class Id, uint32_t K>
ROUTECAP_BODY bool distinct(const Id *ids, uint32_t k) {
    if constexpr (K > 1 && sizeof(Id) * K <= 8 && (K & (K - 1)) == 0) {
        constexpr uint32_t lane = 8 * sizeof(Id), bits = lane * K;
        constexpr uint64_t word = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits % 64) - 1;
        constexpr uint64_t ones = word / ((uint64_t{1} << lane) - 1), high = ones << (lane - 1);
        uint64_t v = 0;
        for (uint32_t c = 0; c < K; c++) v |= static_cast<uint64_t>(ids[c]) << lane * c;
        uint64_t equal = 0;
        for (uint32_t r = 1; r <= K / 2; r++) {
            // A lane of zeros: two equal ids.
            const uint64_t x = v ^ ((v << lane * r | v >> (bits - lane * r)) & word);
            equal |= (x - ones) & ~x & high;
        }
        return equal == 0;
    } else {
        bool all = true;
        for (uint32_t c = 1; c < columns<K>(k); c++)
            for (uint32_t b = 0; b < c; b++) all &= ids[b] != ids[c];
        return all;
    }
}

// What is valid of a cell: bits.
constexpr uint32_t kIdsValid = 1, kWeightsValid = 2;

// The cells of eight layers and their validity: on the host, an item of every body that fills a
// slot. On a device eight threads do this.
template <class Body>
ROUTECAP_BODY void fill_eight(const Body &body, uint32_t layer_count, uint32_t row, uint32_t g) {
    uint8_t *to = body.slot();
    uint32_t ids = 0, weights = 0;
    for (uint32_t l = g * 8; l < g * 8 + 8 && l < layer_count; l++) {
        const uint32_t valid = body.cell(to, row, l);
        ids |= static_cast<uint32_t>((valid & kIdsValid) != 0) << l % 8;
        weights |= static_cast<uint32_t>((valid & kWeightsValid) != 0) << l % 8;
    }
    body.set_validity(to, row, g, ids, weights);
}

template <class Id, uint32_t K>
struct Snapshot {
    static constexpr bool kWeights = false;

    SinkTable layers;
    uint32_t layer_count;
    uint32_t k;
    Control *control;
    uint8_t *slots;
    SlotLayout layout;

    ROUTECAP_BODY uint32_t groups() const { return layout.row.validity_bytes; }
    ROUTECAP_BODY uint32_t live() const {
        return control->named.slot() == kNoSlot ? 0 : control->rows();
    }
    ROUTECAP_BODY uint32_t outer() const { return live(); }
    ROUTECAP_BODY uint32_t inner() const { return groups(); }

    // Narrows one cell. Returns 0 if it is valid, otherwise the reason.
    template <class T>
    ROUTECAP_BODY uint8_t narrow(const T *cell, const CellRule &rule, Ids<Id, K> &out) const {
        using Unsigned = std::make_unsigned_t<T>;
        const uint32_t width = columns<K>(rule.k);
        Ids<T, K> ids;
        load(ids, cell, width);
        uint32_t used = width;
        if constexpr (K == 0)
            while (used > rule.least && ids[used - 1] == static_cast<T>(kNoExpert)) used--;
        bool in_range = true;
        for (uint32_t c = 0; c < used; c++) {
            // Poison, kInvalidId and kNoExpert are not.
            in_range &= static_cast<Unsigned>(ids[c]) < static_cast<Unsigned>(rule.experts);
            out[c] = static_cast<Id>(ids[c]);
        }
        if constexpr (K == 0)
            for (uint32_t c = used; c < k; c++) out[c] = kUnused<Id>;
        if (in_range && distinct<Id, K>(out.id, used)) return 0;
        bool unwritten = false;
        for (uint32_t c = 0; c < width; c++) unwritten |= ids[c] == kPoison<T>;
        return unwritten   ? ROUTECAP_MISSING_UNWRITTEN
               : !in_range ? ROUTECAP_MISSING_OUT_OF_RANGE
                           : ROUTECAP_MISSING_DUPLICATE;
    }

    // The slot to fill, where there are rows.
    ROUTECAP_BODY uint8_t *slot() const { return layout.slot(slots, control->named.slot()); }

    // How many columns of a narrowed cell have an expert.
    ROUTECAP_BODY static uint32_t used(const Ids<Id, K> &ids, const CellRule &rule) {
        uint32_t n = columns<K>(rule.k);
        if constexpr (K == 0)
            while (n > rule.least && ids[n - 1] == kUnused<Id>) n--;
        return n;
    }

    // One cell, from its layer's sink to the slot, and its ids to `out`. Whether they are valid.
    ROUTECAP_BODY bool take_ids(uint8_t *to, uint32_t row, uint32_t layer, const SinkLayer &sink,
                                Ids<Id, K> &out) const {
        uint8_t reason = ROUTECAP_MISSING_UNWRITTEN;
        if (sink.ids != nullptr)
            with_row(sink, row, [&](auto *ids) { reason = narrow(ids, sink.rule, out); });
        return put(to, row, layer, reason, out);
    }
    // One cell. What of it is valid.
    ROUTECAP_BODY uint32_t cell(uint8_t *to, uint32_t row, uint32_t layer,
                                const SinkLayer &sink) const {
        Ids<Id, K> out;
        return take_ids(to, row, layer, sink, out) ? kIdsValid : 0;
    }
    ROUTECAP_BODY uint32_t cell(uint8_t *to, uint32_t row, uint32_t layer) const {
        return cell(to, row, layer, sink(layer));
    }
    ROUTECAP_BODY SinkLayer sink(uint32_t layer) const { return layers[layer]; }

    // Writes a cell that is valid if there is no reason.
    ROUTECAP_BODY bool put(uint8_t *to, uint32_t row, uint32_t layer, uint8_t reason,
                           Ids<Id, K> &out) const {
        if (reason != 0)
            for (uint32_t c = 0; c < columns<K>(k); c++) out[c] = c == 0 ? reason : 0;
        store(
            reinterpret_cast<Id *>(layout.at(to, row)) + static_cast<size_t>(layer) * columns<K>(k),
            out, k);
        return reason == 0;
    }

    ROUTECAP_BODY void set_validity(uint8_t *to, uint32_t row, uint32_t g, uint32_t ids,
                                    uint32_t /*weights*/) const {
        layout.row.set_validity(layout.at(to, row), g, static_cast<uint8_t>(ids));
    }
    ROUTECAP_BODY void item(uint32_t row, uint32_t g) const {
        fill_eight(*this, layer_count, row, g);
    }

    // Once per launch, in no order with the items: the slot covers what was armed, unless this is a
    // second snapshot of one begin.
    ROUTECAP_BODY void once() const {
        const Named named = control->named;
        if (named.slot() != kNoSlot) {
            SlotHeader *header = layout.header(slot());
            SlotHeader now = *header;
            if (now.epoch != named.epoch()) now = {named.epoch(), 0, 0, 0, 0, 0, 0};
            now.covered = now.snapshots++ == 0 ? live() : 0;
            now.conflicts += control->conflicts;
            now.dropped += control->dropped;
            *header = now;
        }
        control->conflicts = 0;
        control->dropped = 0;
    }
};

}  // namespace routecap::kernels
