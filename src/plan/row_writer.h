// Writes the rows of a plan into memory: ids of any width, in any order, and classes.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "plan/sources.h"

namespace routecap {

// Where cells go.
struct RowTarget {
    void *ids;
    uint8_t *classes;                   // or nullptr
    uint32_t element_bytes;             // of an id
    uint64_t row_stride, layer_stride;  // in cells, of both; one of them is 1
    int64_t none;                       // in columns without an expert
};

class RowWriter {
public:
    RowWriter(const Plan &plan, const RowTarget &to);
    ~RowWriter();
    RowWriter(const RowWriter &) = delete;

    // Each cell once.
    void write(const Piece &piece);
    // Of padding and of rows that are not needed.
    void fill(const PlanRun &run);

private:
    template <class T>
    void write_lost(const Piece &piece, uint64_t r, size_t layer);
    template <class T, class Id, uint32_t K>
    void copy(const Piece &piece);
    template <class T, class Id>
    void copy_rows(const Piece &piece);
    template <class T, class Id, uint32_t K>
    void copy_layers(const Piece &piece);
    template <class T, class Id, uint32_t K>
    void copy_cells(const Piece &piece);
    template <class T>
    void fill_cells(const PlanRun &run);
    // Writes a filled cell.
    template <class T>
    void write_experts(T *to, uint32_t number, size_t layer);
    // Marks the columns of a copied cell that have no expert.
    template <class T, class Id>
    void mark_unused(T *to, const Id *from, size_t layer);
    void classify(uint64_t row, uint64_t step, uint64_t rows, uint8_t row_class);

    template <class T>
    T *cell(uint64_t row, uint64_t layer) const {
        return static_cast<T *>(to_.ids) +
               (row * to_.row_stride + layer * to_.layer_stride) * plan_.k();
    }
    // Returns the experts of a filled cell: k consecutive elements of the layer's cycle, from the
    // place of the cell's number on.
    template <class T>
    const T *experts_from(uint32_t number, size_t layer) const {
        return reinterpret_cast<const T *>(cycles_[cycle_of_[layer]].data()) + number;
    }

    const Plan &plan_;
    const RowTarget to_;
    const bool past_caches_;
    // For each number of experts that a layer has: all of them in the order in which they are
    // filled in, and the first k again, as wide as the target's.
    std::vector<std::vector<uint8_t>> cycles_;
    std::vector<size_t> cycle_of_;  // [layers]
};

}  // namespace routecap
