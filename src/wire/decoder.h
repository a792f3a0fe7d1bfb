// Decoding: turns a message of any format, whole or in pieces, into rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "routecap.h"
#include "routing/routing.h"
#include "wire/base64.h"
#include "wire/cells.h"
#include "wire/lists.h"

namespace routecap::wire {

// Reads one message and puts its rows where `rows_for` says when their layout is known.
class Reader {
public:
    Reader(int32_t format, Hint hint) : format_(find_format(format)), hint_(std::move(hint)) {}
    Reader(const Reader &) = delete;
    Reader &operator=(const Reader &) = delete;
    virtual ~Reader() = default;

    int32_t write(const uint8_t *bytes, uint64_t n);
    // Reads a whole message: `write` and `finish` in one.
    int32_t read(const uint8_t *bytes, uint64_t n);
    int32_t finish();
    void report_to(routecap_wire_report *report) const;

    const ArrayLayout &layout() const { return layout_; }
    bool strict() const { return (hint_.values.flags & ROUTECAP_WIRE_HINT_STRICT) != 0; }

protected:
    // Called once the layout is known; returns where rows go. `ready` rows have fully arrived.
    virtual int32_t rows_for(const ArrayLayout &layout, uint64_t ready, RowSink *&rows) = 0;

    const Format *format_;
    Hint hint_;

private:
    int32_t begin(uint64_t ready);
    int32_t measure(const uint8_t *body, uint64_t n);
    int32_t body(const uint8_t *bytes, uint64_t n);
    int32_t payload(const uint8_t *bytes, uint64_t n);
    int32_t elements(const uint8_t *bytes, uint64_t n);

    MessageFacts said_;
    ArrayLayout layout_;
    std::vector<uint8_t> head_;  // what is there of it
    bool in_body_ = false;
    std::optional<uint64_t> body_size_;  // of the payload, .npy head included, where it is known
    std::optional<Base64Decoder> base64_;
    std::optional<Cells> cells_;
    std::optional<Lists> lists_;
    uint64_t bytes_ = 0;
};

int32_t decode(const void *data, size_t bytes, int32_t format, const routecap_wire_hint *hint,
               routecap_wire_report *report, Routing **routing);

// A message that arrives piece by piece.
class Decoder {
public:
    Decoder(int32_t format, Hint hint) : format_(format), hint_(std::move(hint)) {}
    int32_t write(const void *data, size_t bytes);
    int32_t finish(routecap_wire_report *report, Routing **routing);

private:
    int32_t take(const uint8_t *bytes, uint64_t n);
    int32_t decode_kept(routecap_wire_report *report, Routing **routing);
    int32_t fail(int32_t status);

    int32_t format_;
    Hint hint_;
    std::shared_ptr<Reader> reader_;  // set once the format is known, if it can be read in pieces
    std::vector<uint8_t> kept_;       // what cannot be read yet
    int32_t error_ = ROUTECAP_OK;
    std::string text_;  // of the error
    bool finished_ = false;
};

}  // namespace routecap::wire
