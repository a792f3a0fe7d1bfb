// Turns the ids of a message into rows: checks them cell by cell, narrows them, and stores them.
#pragma once

#include <cstdint>
#include <vector>

#include "base/shape.h"
#include "routecap.h"
#include "routing/distinct.h"
#include "wire/format.h"
#include "wire/message.h"

namespace routecap::wire {

// A checked hint that owns its arrays.
struct Hint {
    routecap_wire_hint values{};
    std::vector<int32_t> layer_map;
    std::vector<uint32_t> layer_experts;
};
// `format` says whether it may be NULL.
int32_t read_hint(const routecap_wire_hint *theirs, int32_t format, Hint &hint);

// The layout of a message, which is known before its first id is read.
struct ArrayLayout {
    ShapePtr shape;
    const Dtype *dtype = nullptr;
    uint32_t columns = 0;
    std::vector<uint32_t> column;    // [layers] of each captured layer
    std::vector<uint32_t> left_out;  // columns that are none
    uint64_t first = 0, rows = 0;
    uint64_t row_bytes = 0;  // in the message
};
// Combines what the message and the hint say with the size of the array, in bytes. They must not
// contradict each other, and together they must be complete.
int32_t make_layout(const Format &format, const MessageFacts &said, const Hint &hint, uint64_t size,
                    ArrayLayout &layout);

class Cells {
public:
    // `records` has room for all rows of the message.
    Cells(const ArrayLayout &layout, uint8_t *records);

    // Reads the next rows of the array.
    int32_t write(const uint8_t *bytes, uint64_t rows);

    uint64_t rows() const { return rows_; }
    // Of cells, columns and rows: what was counted.
    routecap_wire_report counted() const;

private:
    template <class Id, uint32_t K>
    void write_rows(const uint8_t *bytes, uint64_t rows);
    template <class T, class Id, uint32_t K>
    void write_rows_of(const uint8_t *bytes, uint64_t rows);
    template <class T, class Id, uint32_t K>
    bool write_complete(const uint8_t *bytes, uint8_t *row);
    template <class T, class Id, uint32_t K>
    void judge_row(const uint8_t *bytes, uint8_t *row);
    template <class T>
    void look_at_left_out(const uint8_t *row);

    // Layers whose columns are adjacent, with the same number of experts.
    struct Stretch {
        uint32_t first, layers;
    };

    const ArrayLayout &layout_;
    uint8_t *const records_;
    Distinct distinct_;
    std::vector<Stretch> stretches_;
    uint64_t rows_ = 0;
    std::vector<uint8_t> last_;  // row
    routecap_wire_report counts_{};
    int64_t largest_ = -1;
    std::vector<bool> seen_;    // [layers] has a valid cell
    uint32_t unseen_;           // layers that have none so far
    std::vector<bool> in_use_;  // [left_out]
};

}  // namespace routecap::wire
