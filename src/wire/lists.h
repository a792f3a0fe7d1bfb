// Nested lists of integers in JSON, in pieces.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "routecap.h"

namespace routecap::wire {

// [[[id, ..k], ..columns], ..rows], or that within ["ndarray", {"data": .., "dtype": "int16"}], as
// Megatron-Core has it.
class Lists {
public:
    // Called after the first row has shown columns and k, before any ids are delivered.
    using Begin = std::function<int32_t(uint32_t columns, uint32_t k)>;
    // Called with the ids of whole rows.
    using Give = std::function<int32_t(const int64_t *ids, uint64_t n)>;

    int32_t write(const uint8_t *text, uint64_t n, const Begin &begin, const Give &give);
    // Ends the text: all brackets must be closed. Delivers the remaining ids.
    int32_t finish(const Give &give);

private:
    int32_t close_list(uint64_t at, const Begin &begin, const Give &give);
    int32_t end_number(uint64_t at);
    int32_t read_around(uint8_t c, uint64_t at);

    // The previous token; initially as if it were a comma.
    enum class After { open, comma, value, number } after_ = After::comma;
    uint32_t depth_ = 0;
    bool done_ = false;
    enum class Around { nothing, before, within, behind } around_ = Around::nothing;
    const char *expected_ = "";  // of what is around the lists: what comes next
    bool negative_ = false, digits_ = false;
    uint64_t number_ = 0;
    uint64_t read_ = 0;  // characters
    uint32_t columns_ = 0, k_ = 0;
    uint32_t in_cell_ = 0, in_row_ = 0;
    std::vector<int64_t> ids_;
};

}  // namespace routecap::wire
