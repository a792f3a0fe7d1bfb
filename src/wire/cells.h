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
    uint64_t first = 0;
    uint64_t rows = 0;       // where they are known: is_known(rows)
    bool rows_said = false;  // by the bytes; otherwise by the hint
    uint64_t row_bytes = 0;  // in the message

    static bool is_known(uint64_t rows) { return rows != UINT64_MAX; }
    // Reports that the message has a different number of rows.
    int32_t wrong_rows() const {
        return rows_said ? ROUTECAP_ERR_FORMAT : ROUTECAP_ERR_SHAPE_MISMATCH;
    }
};
// Combines what the message and the hint say. They must not contradict each other, and together
// they must be complete.
int32_t make_layout(const Format &format, const MessageFacts &said, const Hint &hint,
                    ArrayLayout &layout);

// Destination of rows: narrow ids, laid out as in a routing, and validity.
class RowSink {
public:
    virtual ~RowSink() = default;
    struct Room {
        uint8_t *ids;
        uint8_t *validity;
        uint64_t rows;
    };
    // Returns room for at least one and at most `wanted` rows, or null after reporting an error.
    virtual int32_t room(uint64_t wanted, Room &room) = 0;
    // Tells how many of these rows were written. An error means that they could not be stored.
    virtual int32_t wrote(uint64_t rows, bool complete) = 0;
};

class Cells {
public:
    Cells(const ArrayLayout &layout, RowSink &to)
        : layout_(layout), to_(to), distinct_(layout.shape->k, layout.shape->experts) {}

    // Reads the next bytes of the array, however many.
    int32_t write(const uint8_t *bytes, uint64_t n);
    // Ends the array.
    int32_t finish();

    uint64_t rows() const { return rows_; }
    // What was counted.
    void report_to(routecap_wire_report &report) const;

private:
    template <class Id, uint32_t K>
    int32_t write_rows(const uint8_t *bytes, uint64_t rows);
    int32_t write_rows(const uint8_t *bytes, uint64_t rows);
    template <class T, class Id, uint32_t K>
    bool write_complete(const uint8_t *bytes, uint64_t rows, Id *ids, uint8_t *validity);
    template <class Id, uint32_t K>
    void note_complete(const Id *ids, uint8_t *validity);
    template <class T, class Id, uint32_t K>
    bool write_row(const uint8_t *row, Id *ids, uint8_t *validity);
    template <class T, class Id, uint32_t K>
    void judge_row(const uint8_t *row, Id *ids, uint8_t *validity);
    template <class T>
    void look_at_left_out(const uint8_t *row);

    const ArrayLayout &layout_;
    RowSink &to_;
    Distinct distinct_;
    uint64_t rows_ = 0;
    std::vector<uint8_t> rest_;  // of a row that is not complete
    std::vector<uint8_t> last_;  // row
    routecap_wire_report counts_{};
    int64_t largest_ = -1;
    std::vector<bool> seen_;    // [layers] has a valid cell
    uint32_t unseen_ = 0;       // layers that have none so far
    std::vector<bool> in_use_;  // [left_out]
};

}  // namespace routecap::wire
