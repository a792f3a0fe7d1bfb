// Nested lists of integers in JSON.
#pragma once

#include <cstdint>
#include <functional>

namespace routecap::wire {

// Called after the first row has shown columns and k, with the number of rows for which the text
// has brackets, before any ids are delivered.
using BeginLists = std::function<int32_t(uint64_t rows, uint32_t columns, uint32_t k)>;
// Called with the ids of whole rows.
using GiveRows = std::function<int32_t(const int64_t *ids, uint64_t rows)>;

// Reads [[[id, ..k], ..columns], ..rows], or that within ["ndarray", {"data": .., "dtype":
// "int16"}], as Megatron-Core has it. An empty list has no first row.
int32_t read_lists(const uint8_t *text, uint64_t n, const BeginLists &begin, const GiveRows &give);

}  // namespace routecap::wire
