// The shape of what one capturer captures: layers, experts, and how one row lies in memory.
// Immutable, shared by everything that holds rows.
#pragma once

#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <vector>

#include "base/declared.h"
#include "kernels/row_layout.h"
#include "routecap.h"

namespace routecap {

// How reasons compare, by their @rank in the header. If two rows lack a cell, the cell
// gets the reason with the higher rank. Element 0 stands for no reason.
struct ReasonRule {
    int32_t rank;
    bool of_cells;  // the others are of whole rows that are not there
};
constexpr ReasonRule kReasons[] = {{0, true},
#define ROUTECAP_RULE(name, rank, of_cells) {rank, of_cells},
                                   ROUTECAP_REASONS(ROUTECAP_RULE)
#undef ROUTECAP_RULE
};
constexpr bool known_reason(int32_t reason) {
    return reason > 0 && reason < static_cast<int32_t>(std::size(kReasons));
}
constexpr int32_t reason_rank(int32_t reason) {
    return known_reason(reason) ? kReasons[reason].rank : 0;
}
// Of two reasons why a cell is missing the one that stands: of one rank, that of `to`.
constexpr int32_t higher_reason(int32_t to, int32_t from) {
    return reason_rank(from) > reason_rank(to) ? from : to;
}
constexpr bool is_row_reason(int32_t reason) {
    return known_reason(reason) && !kReasons[reason].of_cells;
}

// Of ids and their validity: a page has no more of them, unless one row does.
constexpr size_t kPageBytes = size_t{64} * 1024;
// A page has at most this many rows, so that a short request of a small model takes little memory.
constexpr uint32_t kPageRows = 256;
constexpr uint32_t kMostRowBytes = 4096;  // of a row with weights

// A captured layer as people read it: "7", or "7 (captured layer 3)".
struct LayerName {
    char text[48];
};

// Layers by the columns of a caller's arrays, all of one length.
struct Layers {
    std::vector<int32_t> map;     // the index in the decoder
    std::vector<uint32_t> visit;  // how often the decoder was there before, where it loops
    std::vector<uint32_t> experts;
    std::vector<uint32_t> k;      // the most experts of a cell
    std::vector<uint32_t> least;  // and the fewest
    std::vector<int32_t> provenance;

    size_t size() const { return map.size(); }
    // Appends layer l of others.
    void add(const Layers &from, size_t l);
    // What names a layer in every shape: they ascend by it.
    std::pair<int32_t, uint32_t> key(size_t l) const { return {map[l], visit[l]}; }
    // The layer with this key, or size().
    size_t find(std::pair<int32_t, uint32_t> key) const;
};

// Bytes of a weight: 2 or 4; 0 if weights cannot have this dtype.
constexpr uint32_t weight_element_bytes(int32_t dtype) {
    return dtype == ROUTECAP_DTYPE_F32                                   ? 4
           : dtype == ROUTECAP_DTYPE_F16 || dtype == ROUTECAP_DTYPE_BF16 ? 2
                                                                         : 0;
}

struct Shape : kernels::RowLayout {
    int32_t id_space;
    int32_t weights_dtype;  // 0: there are none
    Layers of;

    // Derived.
    uint32_t experts;  // the most of any layer
    bool uniform;      // every cell has k experts
    std::vector<kernels::CellRule> rules;
    uint32_t page_shift;        // log2 of page_rows
    uint32_t page_rows;         // a power of two
    std::vector<uint8_t> full;  // the validity of a row without a missing cell
    uint32_t recomputed_layers;
    std::vector<uint8_t> recomputed;  // these layers, as in a row's validity

    Shape(uint32_t k_, int32_t id_space_, int32_t weights_dtype_, Layers layers_)
        : RowLayout(static_cast<uint32_t>(layers_.size()), k_, id_bytes_for(k_, layers_),
                    weight_element_bytes(weights_dtype_)),
          id_space(id_space_),
          weights_dtype(weights_dtype_),
          of(std::move(layers_)) {
        experts = 0;
        uniform = is_uniform(k_, of);
        for (uint32_t l = 0; l < layers; l++) {
            experts = of.experts[l] > experts ? of.experts[l] : experts;
            rules.push_back({static_cast<uint16_t>(of.experts[l]), static_cast<uint8_t>(of.k[l]),
                             static_cast<uint8_t>(of.least[l])});
        }
        page_shift = 0;
        while (2u << page_shift <= kPageRows &&
               (size_t{2} << page_shift) * (validity_begin + validity_bytes) <= kPageBytes)
            page_shift++;
        page_rows = 1u << page_shift;
        full.assign(validity_bytes, 0xff);
        if (layers % 8 != 0) full.back() = static_cast<uint8_t>((1u << layers % 8) - 1);
        recomputed_layers = 0;
        recomputed.assign(validity_bytes, 0);
        for (uint32_t l = 0; l < layers; l++) {
            if (!is_recomputed(l)) continue;
            recomputed_layers++;
            set_bit(recomputed.data(), l);
        }
    }

    bool is_recomputed(uint32_t layer) const {
        return of.provenance[layer] == ROUTECAP_PROVENANCE_RECOMPUTED;
    }
    static bool is_uniform(uint32_t k, const Layers &layers) {
        for (size_t l = 0; l < layers.size(); l++)
            if (layers.k[l] != k || layers.least[l] != k) return false;
        return true;
    }
    // By what the layers are and never by the data. The mark of an unused column is no id.
    static uint32_t id_bytes_for(uint32_t k, const Layers &layers) {
        const uint32_t most = is_uniform(k, layers) ? 256 : 255;
        for (const uint32_t e : layers.experts)
            if (e > most) return 2;
        return 1;
    }
    int32_t dtype() const { return id_bytes == 1 ? ROUTECAP_DTYPE_U8 : ROUTECAP_DTYPE_I16; }
    // Which kernels do the cells: those for k columns, or those that look at the rules.
    uint32_t kernel_k() const { return uniform ? k : 0; }

    // ---- Cells of a row

    static bool bit(const uint8_t *bits, uint32_t layer) {
        return (bits[layer / 8] >> layer % 8 & 1) != 0;
    }
    static void set_bit(uint8_t *bits, uint32_t layer) {
        bits[layer / 8] = static_cast<uint8_t>(bits[layer / 8] | 1u << layer % 8);
    }
    bool valid(const uint8_t *row, uint32_t layer) const { return bit(validity(row), layer); }
    void set_valid(uint8_t *row, uint32_t layer) const { set_bit(validity(row), layer); }
    // Compares eight bytes at a time, inline, because it runs for every row.
    bool row_full(const uint8_t *row) const {
        const uint8_t *valid = validity(row);
        uint32_t b = 0;
        for (; b + 8 <= validity_bytes; b += 8)
            if (std::memcmp(valid + b, full.data() + b, 8) != 0) return false;
        for (; b < validity_bytes; b++)
            if (valid[b] != full[b]) return false;
        return true;
    }
    bool row_empty(const uint8_t *row) const {
        const uint8_t *valid = validity(row);
        for (uint32_t b = 0; b < validity_bytes; b++)
            if (valid[b] != 0) return false;
        return true;
    }
    // Valid cells in layers that are recomputed.
    uint32_t count_recomputed(const uint8_t *row) const {
        uint32_t n = 0;
        for (uint32_t b = 0; b < validity_bytes && recomputed_layers > 0; b++)
            n += static_cast<uint32_t>(
                __builtin_popcount(static_cast<uint32_t>(validity(row)[b] & recomputed[b])));
        return n;
    }
    // Whether a cell has weights.
    bool weighted(const uint8_t *row, uint32_t layer) const {
        return weight_bytes != 0 && bit(weights_validity(row), layer);
    }
    void set_weighted(uint8_t *row, uint32_t layer) const { set_bit(weights_validity(row), layer); }
    uint32_t count_weighted(const uint8_t *row, uint32_t first, uint32_t n) const {
        uint32_t count = 0;
        for (uint32_t l = first; l < first + n; l++) count += weighted(row, l);
        return count;
    }
    // Makes a missing cell that of another row, which has it, with its weights.
    void copy_cell(uint8_t *to, const uint8_t *from, uint32_t layer) const {
        std::memcpy(cell(to, layer), cell(from, layer), cell_bytes);
        set_valid(to, layer);
        if (!weighted(from, layer)) return;
        std::memcpy(weights(to, layer), weights(from, layer), weights_cell_bytes());
        set_weighted(to, layer);
    }
    // How many experts a valid cell has. Its other columns come last, and are unused.
    template <class Id>
    uint32_t count_ids(const Id *ids, uint32_t layer) const {
        if (uniform) return k;
        uint32_t n = rules[layer].k;
        while (n > rules[layer].least && ids[n - 1] == kernels::kUnused<Id>) n--;
        return n;
    }
    uint32_t count(const uint8_t *row, uint32_t layer) const {
        if (uniform) return k;
        const uint8_t *ids = cell(row, layer);
        return id_bytes == 1 ? count_ids(ids, layer)
                             : count_ids(reinterpret_cast<const uint16_t *>(ids), layer);
    }
    // The reason of a missing cell is its first id, and its other ids are zero.
    void mark(uint8_t *row, uint32_t layer, int32_t reason) const {
        uint8_t *ids = cell(row, layer);
        std::memset(ids, 0, cell_bytes);
        ids[0] = static_cast<uint8_t>(reason);
    }
    // Imported rows may hold any value in place of a reason; an unknown one is UNWRITTEN.
    int32_t reason(const uint8_t *row, uint32_t layer) const {
        const uint8_t *ids = cell(row, layer);
        const int32_t reason = id_bytes == 1 ? ids[0] : ids[0] | ids[1] << 8;
        return known_reason(reason) ? reason : ROUTECAP_MISSING_UNWRITTEN;
    }
    // Writes a row of which all cells are missing for one reason.
    void make_missing(uint8_t *row, int32_t reason) const {
        std::memset(row, 0, stride);
        for (uint32_t l = 0; l < layers; l++) cell(row, l)[0] = static_cast<uint8_t>(reason);
    }
    // The reason why a whole row is not there: the reason that all its cells have, if it is one for
    // whole rows. 0 if the row is there, even if all its cells are missing.
    int32_t row_reason(const uint8_t *row) const {
        if (!row_empty(row)) return 0;
        const int32_t first = reason(row, 0);
        if (!is_row_reason(first)) return 0;
        for (uint32_t l = 1; l < layers; l++)
            if (reason(row, l) != first) return 0;
        return first;
    }
    // Whether two valid cells have the same experts, in whatever order.
    bool same_cell(const uint8_t *a, const uint8_t *b, uint32_t layer) const;

    LayerName layer_name(uint32_t layer) const;

    // Whether rows of both shapes have the same layout in memory, and ids have the same meaning.
    bool same_rows(const Shape &other) const {
        return k == other.k && id_space == other.id_space && weights_dtype == other.weights_dtype &&
               of.map == other.of.map && of.visit == other.of.visit && rules == other.rules;
    }
    // Whether rows of `other`, with which same_rows() holds, may become rows of this shape. They
    // may not if a layer is recomputed there and captured here: its cells would pass for captured
    // ones.
    bool can_hold(const Shape &other) const {
        for (uint32_t b = 0; b < validity_bytes; b++)
            if ((other.recomputed[b] & ~recomputed[b]) != 0) return false;
        return true;
    }
};

using ShapePtr = std::shared_ptr<const Shape>;

// The shape of rows from both, for which same_rows() holds. A layer that is recomputed in either is
// recomputed in the result.
ShapePtr with_provenance_of_both(const ShapePtr &a, const Shape &b);

// A shape as callers describe it. The arrays have `layers` elements. NULL stands for 0..layers-1,
// for `experts` in every layer, for CAPTURED, for k, for layer_k, and for 0 in every layer.
struct ShapeSource {
    uint32_t layers, k, experts;
    int32_t id_space;
    const int32_t *layer_map;
    const uint32_t *layer_experts;
    const int32_t *layer_provenance;
    const uint32_t *layer_k, *layer_min_k, *layer_visit;
    int32_t weights_dtype;
};
// From a struct of the header that has these fields.
template <class T>
ShapeSource shape_source(const T &from, int32_t id_space, const int32_t *provenance,
                         int32_t weights_dtype) {
    return {.layers = from.layers,
            .k = from.k,
            .experts = from.experts,
            .id_space = id_space,
            .layer_map = from.layer_map,
            .layer_experts = from.layer_experts,
            .layer_provenance = provenance,
            .layer_k = from.layer_k,
            .layer_min_k = from.layer_min_k,
            .layer_visit = from.layer_visit,
            .weights_dtype = weights_dtype};
}
// Checks a description and makes the shape. `what` names the description in the text of an error.
int32_t make_shape(const ShapeSource &source, const char *what, ShapePtr &shape);
// Checks that one number of a description is in [low, high].
int32_t check_between(const char *what, const char *name, uint64_t value, uint64_t low,
                      uint64_t high);

}  // namespace routecap
