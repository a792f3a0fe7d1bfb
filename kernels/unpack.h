// unpack: widen and transpose the ids that a trainer's rank has uploaded, and fill the other cells.
//
// packed (a header, a word per row, validity, ids [data rows][L][K] of one or two bytes) -> dst
// [T][L][K] or [L][T][K] of one to eight bytes, and one class per cell. An item is one cell, in the
// order of dst, so that the cells which neighbouring threads write are neighbours. What is read is
// an eighth of it, and stays in the caches from one layer to the next.
#pragma once

#include "body.h"
#include "routecap/plan.h"

namespace routecap::kernels {

// The expert of number r in [0, experts) of what is filled, which goes through all experts before
// one comes again: expert-parallel ranks take turns, where each has as many experts.
ROUTECAP_BODY uint32_t balanced(uint32_t r, uint32_t experts, uint32_t ranks) {
    return experts % ranks != 0 ? r : r % ranks * (experts / ranks) + r / ranks;
}

// How to fill cells without captured ids.
struct Filler {
    int32_t fill;  // ROUTECAP_PLAN_FILL_*
    int32_t lost;  // ROUTECAP_PLAN_LOST_*
    int64_t fill_value, lost_value;
    int64_t none_value;  // of columns without an expert
    uint32_t ranks;      // that share the experts
    uint32_t reserved;

    // The number of the first expert in filled row p of the layer with this decoder index. The
    // numbers of the other experts follow it.
    ROUTECAP_BODY uint32_t number(uint64_t p, int32_t layer, uint32_t experts, uint32_t k) const {
        return static_cast<uint32_t>((p + static_cast<uint64_t>(layer) * ranks) * k % experts);
    }
};

// One layer of a plan.
struct PlanLayer {
    int32_t index;  // in the decoder
    CellRule rule;
};

// A row of a plan in one word: its class (VALID, PADDING or NOT_NEEDED), and its index among the
// packed rows if it is VALID, or else among the filled rows.
struct RowWord {
    uint32_t word;

    static constexpr uint32_t kMask = (1u << 30) - 1;
    RowWord() = default;
    constexpr RowWord(uint32_t row_class, uint32_t n) : word(row_class << 30 | n) {}
    ROUTECAP_BODY constexpr uint32_t row_class() const { return word >> 30; }
    ROUTECAP_BODY constexpr uint32_t n() const { return word & kMask; }
};
static_assert(ROUTECAP_MAX_PLAN_ROWS - 1 <= RowWord::kMask);

// The shape of what is unpacked.
struct PackedShape {
    uint32_t rows;
    uint32_t layers;
    uint32_t k;
    uint32_t uniform;  // 1: every cell has k experts
    uint32_t experts;  // the most of any layer
    int32_t dtype;
    int32_t order;
    uint32_t reserved;

    ROUTECAP_BODY bool operator==(const PackedShape &o) const {
        return rows == o.rows && layers == o.layers && k == o.k && uniform == o.uniform &&
               experts == o.experts && dtype == o.dtype && order == o.order;
    }
    ROUTECAP_BODY uint32_t kernel_k() const { return uniform != 0 ? k : 0; }
};

// The header of the uploaded bytes. Offsets are from its first byte. A table of PlanLayer follows
// it.
struct PackedHeader {
    uint64_t magic;
    uint64_t row_words;  // offset of [rows] RowWord
    uint64_t validity;   // offset of [data rows][validity_bytes]; 0: every cell is valid
    uint64_t ids;        // offset of [data rows][layers][k]
    uint64_t bytes;      // of everything
    Filler filler;
    PackedShape shape;
    uint32_t id_bytes;  // 1 or 2
    uint32_t validity_bytes;

    static constexpr uint64_t kMagic = 0x6e616c7070636572;
    ROUTECAP_BODY const PlanLayer *layers() const {
        return reinterpret_cast<const PlanLayer *>(this + 1);
    }
};
static_assert(sizeof(PackedHeader) % 8 == 0);

template <uint32_t K>
struct Unpack {
    const uint8_t *packed;
    void *dst;
    uint8_t *classes;  // or nullptr
    PackedShape shape;

    ROUTECAP_BODY bool by_layer() const { return shape.order == ROUTECAP_ORDER_LAYER_MAJOR; }
    ROUTECAP_BODY uint32_t outer() const { return by_layer() ? shape.layers : shape.rows; }
    ROUTECAP_BODY uint32_t inner() const { return by_layer() ? shape.rows : shape.layers; }

    // Narrow ids of a cell, widened. `from` is aligned to an id.
    template <class Id, class T>
    ROUTECAP_BODY void widen(T *to, const uint8_t *from, const PackedHeader &header,
                             uint32_t layer) const {
        Ids<Id, K> narrow;
        Ids<T, K> wide;
        load(narrow, reinterpret_cast<const Id *>(from), shape.k);
        for (uint32_t c = 0; c < columns<K>(shape.k); c++) wide[c] = static_cast<T>(narrow[c]);
        if constexpr (K == 0) {
            const CellRule rule = header.layers()[layer].rule;
            for (uint32_t c = shape.k; c > rule.least && narrow[c - 1] == kUnused<Id>; c--)
                wide[c - 1] = static_cast<T>(header.filler.none_value);
        }
        store(to, wide, shape.k);
    }

    template <class T>
    ROUTECAP_BODY void value(T *to, int64_t value) const {
        Ids<T, K> ids;
        for (uint32_t c = 0; c < columns<K>(shape.k); c++) ids[c] = static_cast<T>(value);
        store(to, ids, shape.k);
    }

    template <class T>
    ROUTECAP_BODY void balance(T *to, const Filler &filler, uint64_t p, const PlanLayer &at) const {
        const uint32_t used = columns<K>(at.rule.k), experts = at.rule.experts;
        uint32_t r = filler.number(p, at.index, experts, used);
        Ids<T, K> ids;
        for (uint32_t c = 0; c < used; c++) {
            ids[c] = static_cast<T>(balanced(r, experts, filler.ranks));
            if (++r == experts) r = 0;
        }
        if constexpr (K == 0)
            for (uint32_t c = used; c < shape.k; c++) ids[c] = static_cast<T>(filler.none_value);
        store(to, ids, shape.k);
    }

    // Writes the ids of one cell and returns its class.
    template <class T>
    ROUTECAP_BODY uint8_t cell(T *to, uint32_t row, uint32_t layer) const {
        const PackedHeader &header = *reinterpret_cast<const PackedHeader *>(packed);
        // The replay of a graph that was captured for a different shape.
        if (header.magic != PackedHeader::kMagic || !(header.shape == shape)) {
            value(to, -1);
            return ROUTECAP_PLAN_CLASS_LOST;
        }
        const RowWord word = reinterpret_cast<const RowWord *>(packed + header.row_words)[row];
        const Filler &filler = header.filler;
        if (word.row_class() != ROUTECAP_PLAN_CLASS_VALID) {
            if (filler.fill == ROUTECAP_PLAN_FILL_VALUE) {
                value(to, filler.fill_value);
            } else {
                balance(to, filler, word.n(), header.layers()[layer]);
            }
            return static_cast<uint8_t>(word.row_class());
        }
        const uint64_t data_row = word.n();
        bool valid = true;
        if (header.validity != 0)
            valid = (packed[header.validity + data_row * header.validity_bytes + layer / 8] >>
                         layer % 8 &
                     1) != 0;
        if (!valid && filler.lost == ROUTECAP_PLAN_LOST_MARK) {
            value(to, filler.lost_value);
            return ROUTECAP_PLAN_CLASS_LOST;
        }
        const uint64_t at = (data_row * shape.layers + layer) * columns<K>(shape.k);
        if (header.id_bytes == 1)
            widen<uint8_t>(to, packed + header.ids + at, header, layer);
        else
            widen<uint16_t>(to, packed + header.ids + at * 2, header, layer);
        return valid ? ROUTECAP_PLAN_CLASS_VALID : ROUTECAP_PLAN_CLASS_LOST;
    }

    ROUTECAP_BODY void item(uint32_t o, uint32_t i) const {
        const uint64_t n = static_cast<uint64_t>(o) * inner() + i, at = n * columns<K>(shape.k);
        const uint32_t row = by_layer() ? i : o, layer = by_layer() ? o : i;
        uint8_t what;
        switch (shape.dtype) {
            case ROUTECAP_DTYPE_U8:
                what = cell(static_cast<uint8_t *>(dst) + at, row, layer);
                break;
            case ROUTECAP_DTYPE_I16:
            case ROUTECAP_DTYPE_U16:
                what = cell(static_cast<uint16_t *>(dst) + at, row, layer);
                break;
            case ROUTECAP_DTYPE_I32:
            case ROUTECAP_DTYPE_U32:
                what = cell(static_cast<uint32_t *>(dst) + at, row, layer);
                break;
            case ROUTECAP_DTYPE_I64:
                what = cell(static_cast<uint64_t *>(dst) + at, row, layer);
                break;
            default: what = ROUTECAP_PLAN_CLASS_LOST; break;  // nothing is written
        }
        if (classes != nullptr) classes[n] = what;
    }
};

}  // namespace routecap::kernels
