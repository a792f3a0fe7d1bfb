// A reader of the serialised form, written from the header: what the bytes hold, or that they are
// none of it.
#pragma once

#include <optional>

#include "model.h"

namespace reader {

using Data = std::vector<uint8_t>;

constexpr char kMagic[] = "RCAPROWS";

// To compare: rows that are not there take no bytes, so that there can be any number.
constexpr uint64_t kMostRows = 4096;

// What the fixed part of the header says, and what follows from it. None if that cannot be.
struct Fixed {
    uint64_t bytes, first, rows, runs, present, layers, k, dtype, id_space, stride, weights;
    uint64_t checks, header_bytes;
};
std::optional<Fixed> fixed(const Data &data);

struct Run {
    uint64_t rows, tag, flags, reason;
};
enum : uint64_t { kPresent = 1, kComplete = 2 };

// The header with its tables. None if it is not one.
struct Header {
    Fixed f;
    std::shared_ptr<model::Shape> shape = std::make_shared<model::Shape>();
    std::vector<Run> runs;
};
std::optional<Header> header(const Data &data);

// The routing; trusted: ids are not judged.
std::optional<model::Routing> parse(const Data &data, bool trusted);

}  // namespace reader
