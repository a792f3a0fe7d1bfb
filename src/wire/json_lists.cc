#include "wire/json_lists.h"

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "wire/text.h"

namespace routecap::wire {
namespace {

constexpr size_t kIdsAtOnce = 2048;
constexpr uint64_t kLargestNumber = 999'999'999'999'999'999;
constexpr char kNotLists[] = "this is not a list of integers";

// Whether these words come next, with blanks or without.
bool take_words(Text &text, std::initializer_list<std::string_view> words) {
    return std::all_of(words.begin(), words.end(),
                       [&](std::string_view word) { return text.spaces(), text.take(word); });
}

// A list of one item or more.
template <class Item>
int32_t read_list(Text &text, Item read_item) {
    text.spaces();
    if (!text.take('[')) return text.refuse(kNotLists);
    do {
        if (int32_t s = read_item(); s < 0) return s;
        text.spaces();
    } while (text.take(','));
    return text.take(']') ? ROUTECAP_OK : text.refuse(kNotLists);
}

// Adds the ids of a row.
int32_t read_row(Text &text, uint32_t &columns, uint32_t &k, std::vector<int64_t> &ids) {
    uint32_t in_row = 0;
    const auto read_cell = [&] {
        uint32_t in_cell = 0;
        const auto read_id = [&] {
            text.spaces();
            const bool negative = text.take('-');
            uint64_t number = 0;
            if (!text.number(kLargestNumber, number)) return text.refuse(kNotLists);
            ids.push_back(negative ? -static_cast<int64_t>(number) : static_cast<int64_t>(number));
            return ++in_cell <= ROUTECAP_MAX_K ? ROUTECAP_OK
                                               : text.refuse("a cell has too many ids");
        };
        if (int32_t s = read_list(text, read_id); s < 0) return s;
        if (k == 0) k = in_cell;
        if (in_cell != k)
            return text.refuse("a cell and the first cell differ in their number of ids");
        return ++in_row <= ROUTECAP_MAX_LAYERS ? ROUTECAP_OK
                                               : text.refuse("a row has too many cells");
    };
    if (int32_t s = read_list(text, read_cell); s < 0) return s;
    if (columns == 0) columns = in_row;
    return in_row == columns
               ? ROUTECAP_OK
               : text.refuse("a row and the first row differ in their number of cells");
}

}  // namespace

int32_t read_lists(const uint8_t *bytes, uint64_t n, const BeginLists &begin,
                   const GiveRows &give) {
    Text text(bytes, n);
    if (!take_words(text, {"["})) return text.refuse(kNotLists);
    text.spaces();
    const bool wrapped = text.peek() == '"';
    if (wrapped && !take_words(text, {"\"ndarray\"", ",", "{", "\"data\"", ":", "["}))
        return text.refuse(kNotLists);
    uint32_t columns = 0, k = 0;
    std::vector<int64_t> ids;
    text.spaces();
    for (bool more = text.peek() != ']'; more; more = text.take(',')) {
        const bool first = columns == 0;
        if (int32_t s = read_row(text, columns, k, ids); s < 0) return s;
        const uint64_t row_ids = uint64_t{columns} * k;
        if (first) {
            // Each row and each cell has a bracket, and each id a digit and what follows it.
            const auto brackets =
                static_cast<uint64_t>(std::count(bytes, bytes + n, '[')) - (wrapped ? 2 : 1);
            const uint64_t rows = brackets / (1 + columns);
            if (rows > n / (2 * row_ids)) return text.refuse(kNotLists);
            if (int32_t s = begin(rows, columns, k); s < 0) return s;
        }
        text.spaces();
        if (text.peek() == ',' && ids.size() < kIdsAtOnce) continue;
        if (int32_t s = give(ids.data(), ids.size() / row_ids); s < 0) return s;
        ids.clear();
    }
    if (!text.take(']')) return text.refuse("the list has no end");
    std::string_view dtype;
    if (wrapped && !(take_words(text, {",", "\"dtype\"", ":", "\""}) && text.until('"', dtype) &&
                     take_words(text, {"}", "]"})))
        return text.refuse("the list has no end");
    text.spaces();
    return text.at_end() ? ROUTECAP_OK : text.refuse("there is text after the list");
}

}  // namespace routecap::wire
