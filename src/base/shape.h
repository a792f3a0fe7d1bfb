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
constexpr bool is_row_reason(int32_t reason) {
    return known_reason(reason) && !kReasons[reason].of_cells;
}

constexpr size_t kPageBytes = size_t{64} * 1024;  // a page is no larger, unless one row is
// A page has at most this many rows, so that a short request of a small model takes little memory.
constexpr uint32_t kPageRows = 256;

// A captured layer as people read it: "7", or "7 (captured layer 3)".
struct LayerName {
    char text[48];
};

struct Shape : kernels::RowLayout {
    int32_t id_space;
    std::vector<int32_t> layer_map;
    std::vector<uint32_t> layer_experts;
    std::vector<int32_t> layer_provenance;

    // Derived.
    uint32_t experts;           // the most of any layer
    uint32_t page_shift;        // log2 of page_rows
    uint32_t page_rows;         // a power of two
    std::vector<uint8_t> full;  // the validity of a row without a missing cell
    uint32_t recomputed_layers;
    std::vector<uint8_t> recomputed;  // these layers, as in a row's validity

    Shape(uint32_t k_, int32_t id_space_, std::vector<int32_t> map,
          std::vector<uint32_t> layer_experts_, std::vector<int32_t> layer_provenance_)
        : RowLayout(static_cast<uint32_t>(map.size()), k_, id_bytes_for(layer_experts_)),
          id_space(id_space_),
          layer_map(std::move(map)),
          layer_experts(std::move(layer_experts_)),
          layer_provenance(std::move(layer_provenance_)) {
        experts = 0;
        for (uint32_t e : layer_experts) experts = e > experts ? e : experts;
        page_shift = 0;
        while (2u << page_shift <= kPageRows && (size_t{2} << page_shift) * bytes() <= kPageBytes)
            page_shift++;
        page_rows = 1u << page_shift;
        full.assign(validity_bytes, 0xff);
        if (layers % 8 != 0) full.back() = static_cast<uint8_t>((1u << layers % 8) - 1);
        recomputed_layers = 0;
        recomputed.assign(validity_bytes, 0);
        for (uint32_t l = 0; l < layers; l++) {
            if (!is_recomputed(l)) continue;
            recomputed_layers++;
            recomputed[l / 8] = static_cast<uint8_t>(recomputed[l / 8] | 1u << l % 8);
        }
    }

    bool is_recomputed(uint32_t layer) const {
        return layer_provenance[layer] == ROUTECAP_PROVENANCE_RECOMPUTED;
    }
    // By the number of experts and never by the data.
    static uint32_t id_bytes_for(const std::vector<uint32_t> &layer_experts) {
        for (const uint32_t e : layer_experts)
            if (e > 256) return 2;
        return 1;
    }
    int32_t dtype() const { return id_bytes == 1 ? ROUTECAP_DTYPE_U8 : ROUTECAP_DTYPE_I16; }

    // ---- Cells of a row

    bool valid(const uint8_t *row, uint32_t layer) const {
        return (validity(row)[layer / 8] >> layer % 8 & 1) != 0;
    }
    void set_valid(uint8_t *row, uint32_t layer) const {
        uint8_t &byte = validity(row)[layer / 8];
        byte = static_cast<uint8_t>(byte | 1u << layer % 8);
    }
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
        return k == other.k && id_space == other.id_space && layer_map == other.layer_map &&
               layer_experts == other.layer_experts;
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
// for `experts` in every layer, and for CAPTURED in every layer.
struct ShapeSource {
    uint32_t layers, k, experts;
    int32_t id_space;
    const int32_t *layer_map;
    const uint32_t *layer_experts;
    const int32_t *layer_provenance;
};
// Checks a description and makes the shape. `what` names the description in the text of an error.
int32_t make_shape(const ShapeSource &source, const char *what, ShapePtr &shape);
// Checks that one number of a description is in [low, high].
int32_t check_between(const char *what, const char *name, uint64_t value, uint64_t low,
                      uint64_t high);

}  // namespace routecap
