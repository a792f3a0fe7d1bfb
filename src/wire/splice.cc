#include "wire/splice.h"

#include <algorithm>
#include <vector>

#include "base/status.h"
#include "base/structs.h"
#include "routing/serialized.h"
#include "wire/cells.h"
#include "wire/format.h"
#include "wire/lists.h"
#include "wire/message.h"
#include "wire/output.h"

namespace routecap::wire {
namespace {

constexpr size_t kTextAtOnce = 16384;

// One of the two messages.
struct Part {
    MessageFacts said;              // with what the hint has
    const uint8_t *body = nullptr;  // text in base64, or the bytes
    uint64_t size = 0;
    uint64_t skip = 0;  // bytes before the array, .npy's head
    uint64_t row_bytes = 0;

    uint64_t end() const { return said.first + said.rows; }
};

int32_t bad_text() { return report(ROUTECAP_ERR_FORMAT, "the text is not in base64"); }

// Where the array of a message is.
int32_t find_body(const Format &format, const uint8_t *data, size_t n, Part &part) {
    size_t head = 0, size = n;
    part.body = data, part.size = n;
    int32_t s = ROUTECAP_OK;
    if (format.format == ROUTECAP_WIRE_OBJECT) {
        s = read_object(data, n, part.said, head, size);
        part.body = data + head, part.size = size;
    } else if (format.format == ROUTECAP_WIRE_NRLRE1) {
        s = read_nrlre1(data, n, part.said, head);
        part.body = data + head, part.size = n - head;
    } else if (format.format == ROUTECAP_WIRE_NPY) {
        s = read_npy(data, n, part.said, head);
        part.skip = head;
    } else if (format.format == ROUTECAP_WIRE_NPY_BASE64) {
        const size_t text = std::min<size_t>(n, base64_size(kLongestNpyHead));
        std::vector<uint8_t> bytes(base64_room(text));
        const int64_t got = Base64Decoder().decode(data, text, bytes.data());
        if (got < 0) return bad_text();
        s = read_npy(bytes.data(), static_cast<size_t>(got), part.said, head);
        part.skip = head;
    }
    return s == ROUTECAP_PENDING ? report(ROUTECAP_ERR_FORMAT, "the bytes end within their head")
                                 : s;
}

int32_t read_part(const Format &format, const uint8_t *data, size_t n,
                  const routecap_wire_hint *theirs, Part &part) {
    Hint hint;
    if (theirs != nullptr)
        if (int32_t s = read_hint(theirs, format.format, hint); s < 0) return s;
    const routecap_wire_hint &h = hint.values;
    MessageFacts &said = part.said;
    if (format.format == ROUTECAP_WIRE_LISTS) {
        Lists lists;
        const auto nothing = [](auto...) { return ROUTECAP_OK; };
        if (int32_t s = lists.write(data, n, nothing, nothing); s < 0) return s;
        if (int32_t s = lists.finish(nothing); s < 0) return s;
        part.body = data, part.size = n;
        said.columns = lists.columns(), said.k = lists.k(), said.rows = lists.rows(),
        said.first = h.first;
        return ROUTECAP_OK;
    }
    if (int32_t s = find_body(format, data, n, part); s < 0) return s;
    if (!said.has(ROUTECAP_WIRE_FACT_SHAPE)) {
        said.columns = h.columns != 0 ? h.columns : h.layers, said.k = h.k;
        if (said.columns == 0 || said.k == 0)
            return report(ROUTECAP_ERR_ARGUMENT,
                          "%s bytes do not say columns and k; their hint must", format.name);
    }
    if (!said.has(ROUTECAP_WIRE_FACT_FIRST)) said.first = h.first;
    said.dtype = dtype_of(format, said, h);
    part.row_bytes = uint64_t{said.columns} * said.k * find_dtype(said.dtype)->bytes;
    const uint64_t bytes = format.base64 ? base64_decoded_size(part.body, part.size) : part.size;
    if (format.base64 && part.size % 4 != 0) return bad_text();
    const uint64_t rows = bytes < part.skip ? 0 : (bytes - part.skip) / part.row_bytes;
    if (!said.has(ROUTECAP_WIRE_FACT_SHAPE)) said.rows = rows;
    if (rows != said.rows || bytes != part.skip + rows * part.row_bytes)
        return report(ROUTECAP_ERR_FORMAT, "%llu bytes are not %llu rows of %llu", ull(bytes),
                      ull(said.rows), ull(part.row_bytes));
    if (said.rows > ROUTECAP_MAX_POSITION - said.first)
        return report(ROUTECAP_ERR_FORMAT, "rows are beyond the highest position");
    return ROUTECAP_OK;
}

// Rows [from, from + rows) of a part.
int32_t copy_rows(const Format &format, const Part &part, uint64_t from, uint64_t rows,
                  Output &output) {
    const uint64_t begin = part.skip + from * part.row_bytes, size = rows * part.row_bytes;
    if (size == 0) return ROUTECAP_OK;
    if (!format.base64) {
        output.bytes(part.body + begin, size);
        return ROUTECAP_OK;
    }
    Base64Decoder decoder;
    const uint64_t text_end = std::min(part.size, base64_size(begin + size));
    uint64_t skip = begin % 3, left = size;
    uint8_t bytes[base64_room(kTextAtOnce)];
    for (uint64_t at = begin / 3 * 4; left > 0; at += kTextAtOnce) {
        if (at >= text_end) return bad_text();
        const int64_t got =
            decoder.decode(part.body + at, std::min<uint64_t>(kTextAtOnce, text_end - at), bytes);
        if (got < static_cast<int64_t>(skip)) return bad_text();
        const uint64_t n = std::min(left, static_cast<uint64_t>(got) - skip);
        if (n == 0) return bad_text();
        output.bytes(bytes + skip, n);
        left -= n, skip = 0;
    }
    return ROUTECAP_OK;
}

// The text of rows [from, from + rows) of lists that were read before, with the commas between
// them.
std::string_view text_of(const Part &part, uint64_t from, uint64_t rows) {
    const auto *text = reinterpret_cast<const char *>(part.body);
    size_t depth = 0, begin = 0;
    uint64_t row = 0;
    // What is around the lists of Megatron-Core has a bracket of its own.
    for (size_t i = std::string_view(text, part.size).find(':') + 1; i < part.size && rows > 0;
         i++) {
        if (text[i] == '[' && ++depth == 2 && row == from) begin = i;
        if (text[i] == ']' && --depth == 1 && ++row == from + rows)
            return {text + begin, i + 1 - begin};
    }
    return {};
}

int32_t splice_serialized(const void *head, size_t head_bytes, const void *tail, size_t tail_bytes,
                          uint64_t row, uint8_t *dst, size_t dst_bytes, uint64_t *needed) {
    std::vector<uint8_t> header;
    routecap_piece pieces[ROUTECAP_MAX_PIECES];
    routecap_splice plan{};
    plan.struct_size = sizeof plan;
    int32_t s = routecap::splice(head, head_bytes, tail, tail_bytes, row, nullptr, 0, pieces,
                                 sizeof *pieces, ROUTECAP_MAX_PIECES, &plan);
    if (s == ROUTECAP_ERR_BUFFER_TOO_SMALL) {
        header.resize(plan.header_bytes);
        s = routecap::splice(head, head_bytes, tail, tail_bytes, row, header.data(), header.size(),
                             pieces, sizeof *pieces, ROUTECAP_MAX_PIECES, &plan);
    }
    if (s < 0) return s;
    if (needed != nullptr) *needed = plan.bytes;
    if (dst == nullptr || dst_bytes < plan.bytes)
        return report(ROUTECAP_ERR_BUFFER_TOO_SMALL, "the message takes %llu bytes, dst has %zu",
                      ull(plan.bytes), dst_bytes);
    const auto within = [](const routecap_piece &p, size_t bytes) {
        return p.offset <= bytes && p.bytes <= bytes - p.offset;
    };
    for (uint32_t i = 0; i < plan.pieces; i++)
        if ((pieces[i].source == ROUTECAP_PIECE_HEAD && !within(pieces[i], head_bytes)) ||
            (pieces[i].source == ROUTECAP_PIECE_TAIL && !within(pieces[i], tail_bytes)))
            return report(ROUTECAP_ERR_FORMAT, "a message has fewer bytes than its header says");
    Output output(dst, plan.bytes, false);
    for (uint32_t i = 0; i < plan.pieces; i++) {
        const void *from = pieces[i].source == ROUTECAP_PIECE_HEAD   ? head
                           : pieces[i].source == ROUTECAP_PIECE_TAIL ? tail
                                                                     : header.data();
        if (pieces[i].source == ROUTECAP_PIECE_ZERO)
            output.zeros(pieces[i].bytes);
        else
            output.bytes(static_cast<const uint8_t *>(from) + pieces[i].offset, pieces[i].bytes);
    }
    return output.status();
}

}  // namespace

int32_t splice(int32_t format_number, const void *head_data, size_t head_bytes,
               const routecap_wire_hint *head_hint, const void *tail_data, size_t tail_bytes,
               const routecap_wire_hint *tail_hint, uint64_t row, void *dst, size_t dst_bytes,
               uint64_t *needed) {
    if (int32_t s = check_format(format_number); s < 0) return s;
    const uint8_t *head_at = nullptr, *tail_at = nullptr;
    if (int32_t s = check_bytes(head_data, head_bytes, "head", head_at); s < 0) return s;
    if (int32_t s = check_bytes(tail_data, tail_bytes, "tail", tail_at); s < 0) return s;
    if (row > ROUTECAP_MAX_POSITION)
        return report(ROUTECAP_ERR_ARGUMENT, "row %llu is beyond the highest position", ull(row));
    if (format_number == ROUTECAP_WIRE_SERIALIZED)
        return splice_serialized(head_at, head_bytes, tail_at, tail_bytes, row,
                                 static_cast<uint8_t *>(dst), dst_bytes, needed);

    const Format &format = *find_format(format_number);
    Part head, tail;
    if (int32_t s = read_part(format, head_at, head_bytes, head_hint, head); s < 0) return s;
    if (int32_t s = read_part(format, tail_at, tail_bytes, tail_hint, tail); s < 0) return s;
    const bool lists = format_number == ROUTECAP_WIRE_LISTS;
    const bool alike = head.said.columns == tail.said.columns && head.said.k == tail.said.k &&
                       head.said.dtype == tail.said.dtype;
    // Lists without rows have no shape.
    if (!alike && !(lists && (head.said.rows == 0 || tail.said.rows == 0)))
        return report(ROUTECAP_ERR_SHAPE_MISMATCH,
                      "head has %u columns of %u ids of dtype %d, tail %u of %u of %d",
                      head.said.columns, head.said.k, head.said.dtype, tail.said.columns,
                      tail.said.k, tail.said.dtype);

    const uint64_t first = std::min(head.said.first, row),
                   head_end = std::clamp(row, first, std::max(head.end(), first));
    const uint64_t end = std::max(tail.end(), row),
                   tail_first = std::clamp(tail.said.first, row, end);
    if (tail_first > head_end || (head_end > first && head.said.first > first))
        return report(
            ROUTECAP_ERR_OUT_OF_RANGE,
            "head has rows [%llu,%llu), tail [%llu,%llu): at row %llu some are in neither",
            ull(head.said.first), ull(head.end()), ull(tail.said.first), ull(tail.end()), ull(row));
    const uint64_t from_head = head_end - first, from_tail = end - tail_first;

    const auto room = [&](uint64_t size) {
        if (needed != nullptr) *needed = size;
        if (dst != nullptr && dst_bytes >= size) return ROUTECAP_OK;
        return report(ROUTECAP_ERR_BUFFER_TOO_SMALL, "the message takes %llu bytes, dst has %zu",
                      ull(size), dst_bytes);
    };
    if (lists) {
        const std::string_view a = text_of(head, 0, from_head),
                               b = text_of(tail, tail_first - tail.said.first, from_tail);
        const uint64_t size = a.size() + b.size() + 2 + (!a.empty() && !b.empty());
        if (int32_t s = room(size); s < 0) return s;
        Output output(static_cast<uint8_t *>(dst), size, false);
        output.text("[");
        output.text(a);
        if (!a.empty() && !b.empty()) output.text(",");
        output.text(b);
        output.text("]");
        return output.status();
    }
    MessageFacts said = head.said;
    said.first = first, said.rows = from_head + from_tail;
    const Frame around = frame(format, said);
    const uint64_t array = said.rows * head.row_bytes, npy = format.npy ? around.head.size() : 0;
    const uint64_t size = (format.base64 ? base64_size(array + npy) : array + npy) +
                          (format.npy ? 0 : around.head.size()) + around.tail.size();
    if (int32_t s = room(size); s < 0) return s;
    Output output(static_cast<uint8_t *>(dst), size, format.base64);
    if (format.npy)
        output.bytes(reinterpret_cast<const uint8_t *>(around.head.data()), around.head.size());
    else
        output.text(around.head);
    if (int32_t s = copy_rows(format, head, 0, from_head, output); s < 0) return s;
    if (int32_t s = copy_rows(format, tail, tail_first - tail.said.first, from_tail, output); s < 0)
        return s;
    output.finish();
    output.text(around.tail);
    return output.status();
}

}  // namespace routecap::wire
