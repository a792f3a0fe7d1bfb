#include "wire/cells.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>

#include "base/status.h"
#include "base/structs.h"
#include "kernels/snapshot.h"

namespace routecap::wire {
namespace {

// Elements of a message may begin at any address.
template <class T>
struct Elements {
    typedef T Anywhere __attribute__((aligned(1), may_alias));
    const Anywhere *at;
    explicit Elements(const uint8_t *bytes) : at(reinterpret_cast<const Anywhere *>(bytes)) {}
    T operator[](uint64_t i) const { return at[i]; }
};

int32_t mismatch(const char *what, uint64_t said, uint64_t hinted) {
    return report(ROUTECAP_ERR_SHAPE_MISMATCH, "the bytes have %s %llu, the hint %llu", what,
                  ull(said), ull(hinted));
}

// Upper bound of valid ids, compared as unsigned numbers, so that one comparison refuses negative
// ids too.
template <class T>
uint64_t bound(uint32_t experts) {
    constexpr auto most = static_cast<uint64_t>(std::numeric_limits<T>::max());
    return experts <= most ? experts : most + 1;
}

// The type of the ids if the message does not say it.
int32_t dtype_of(const Format &format, const MessageFacts &said, const routecap_wire_hint &hint) {
    if (format.format == ROUTECAP_WIRE_LISTS) return ROUTECAP_DTYPE_I64;
    if (said.has(ROUTECAP_WIRE_FACT_DTYPE)) return said.dtype;
    if (hint.dtype != 0) return hint.dtype;
    return format.format == ROUTECAP_WIRE_OBJECT ? ROUTECAP_DTYPE_U8 : ROUTECAP_DTYPE_I32;
}

// A number that the message, the hint, or both may state.
template <class T>
int32_t agree(const char *what, bool says, T said, T hinted, T &value) {
    value = says ? said : hinted;
    return says && hinted != 0 && hinted != said ? mismatch(what, said, hinted) : ROUTECAP_OK;
}

}  // namespace

int32_t read_hint(const routecap_wire_hint *theirs, int32_t format, Hint &hint) {
    if (theirs == nullptr && format == ROUTECAP_WIRE_SERIALIZED) return ROUTECAP_OK;
    routecap_wire_hint &h = hint.values;
    if (int32_t s = read_struct(h, theirs, "hint"); s < 0) return s;
    if (h.reserved != 0) return refuse_reserved(static_cast<int32_t>(h.reserved));
    if ((h.flags & ~ROUTECAP_WIRE_HINT_STRICT) != 0)
        return report(ROUTECAP_ERR_ARGUMENT, "hint.flags is %u", h.flags);
    if (h.column_kind < ROUTECAP_WIRE_COLUMNS_FOUND ||
        h.column_kind > ROUTECAP_WIRE_COLUMNS_DECODER)
        return report(ROUTECAP_ERR_ARGUMENT, "hint.column_kind is %d", h.column_kind);
    if (h.dtype != 0 && find_dtype(h.dtype) == nullptr)
        return report(ROUTECAP_ERR_DTYPE, "hint.dtype is %d", h.dtype);
    for (const auto &[name, value, most] : {std::tuple("layers", h.layers, ROUTECAP_MAX_LAYERS),
                                            std::tuple("columns", h.columns, ROUTECAP_MAX_LAYERS),
                                            std::tuple("k", h.k, ROUTECAP_MAX_K)})
        if (int32_t s = check_between("hint", name, value, 0, static_cast<uint64_t>(most)); s < 0)
            return s;
    if (h.first > ROUTECAP_MAX_POSITION || h.rows > ROUTECAP_MAX_POSITION - h.first)
        return report(ROUTECAP_ERR_ARGUMENT,
                      "hint: rows [%llu,+%llu) are beyond the highest position", ull(h.first),
                      ull(h.rows));
    if (h.layers == 0 && (h.layer_map != nullptr || h.layer_experts != nullptr))
        return report(ROUTECAP_ERR_ARGUMENT,
                      "hint.layers is 0, and there is a layer_map or layer_experts");
    if (h.layer_map != nullptr) hint.layer_map.assign(h.layer_map, h.layer_map + h.layers);
    if (h.layer_experts != nullptr)
        hint.layer_experts.assign(h.layer_experts, h.layer_experts + h.layers);
    h.layer_map = h.layer_map != nullptr ? hint.layer_map.data() : nullptr;
    h.layer_experts = h.layer_experts != nullptr ? hint.layer_experts.data() : nullptr;
    return ROUTECAP_OK;
}

// Which column each layer has, and which columns are no layer's.
static int32_t assign_columns(bool decoder, ArrayLayout &layout) {
    std::vector<bool> captured(layout.columns);
    for (uint32_t l = 0; l < layout.shape->layers; l++) {
        const auto column = decoder ? static_cast<uint32_t>(layout.shape->of.map[l]) : l;
        if (column >= layout.columns)
            return report(ROUTECAP_ERR_SHAPE_MISMATCH,
                          "the bytes have %u columns; hint.layer_map[%u] is %u", layout.columns, l,
                          column);
        layout.column.push_back(column);
        captured[column] = true;
    }
    for (uint32_t c = 0; c < layout.columns; c++)
        if (!captured[c]) layout.left_out.push_back(c);
    return ROUTECAP_OK;
}

int32_t make_layout(const Format &format, const MessageFacts &said, const Hint &hint, uint64_t size,
                    ArrayLayout &layout) {
    const routecap_wire_hint &h = hint.values;
    const bool shape = said.has(ROUTECAP_WIRE_FACT_SHAPE);
    uint32_t k = 0;
    if (int32_t s = agree("columns", shape, said.columns, h.columns, layout.columns); s < 0)
        return s;
    if (int32_t s = agree("k", shape, said.k, h.k, k); s < 0) return s;
    if (int32_t s = agree("rows", shape, said.rows, h.rows, layout.rows); s < 0) return s;
    if (int32_t s =
            agree("first", said.has(ROUTECAP_WIRE_FACT_FIRST), said.first, h.first, layout.first);
        s < 0)
        return s;
    layout.dtype = find_dtype(dtype_of(format, said, h));
    if (h.dtype != 0 && h.dtype != layout.dtype->dtype && format.format != ROUTECAP_WIRE_LISTS)
        return mismatch("dtype", static_cast<uint64_t>(layout.dtype->dtype),
                        static_cast<uint64_t>(h.dtype));

    if (layout.columns == 0) layout.columns = h.layers;
    if (layout.columns == 0 || k == 0)
        return report(ROUTECAP_ERR_ARGUMENT, "%s bytes do not say %s; the hint must", format.name,
                      k == 0 ? "k" : "how many layers there are");
    const uint32_t layers = h.layers != 0 ? h.layers : layout.columns;
    const bool decoder = h.column_kind == ROUTECAP_WIRE_COLUMNS_DECODER ||
                         (h.column_kind == ROUTECAP_WIRE_COLUMNS_FOUND && layout.columns > layers);
    if (layout.columns < layers || (!decoder && layout.columns != layers))
        return report(ROUTECAP_ERR_SHAPE_MISMATCH, "the bytes have %u columns, the hint %u layers",
                      layout.columns, layers);
    if (decoder && layout.columns > layers && h.layer_map == nullptr)
        return report(ROUTECAP_ERR_ARGUMENT,
                      "%u columns for %u layers: hint.layer_map must say which these are",
                      layout.columns, layers);
    if (int32_t s = make_shape({layers, k, h.experts, h.id_space, h.layer_map, h.layer_experts,
                                nullptr, nullptr, nullptr, nullptr, 0},
                               "hint", layout.shape);
        s < 0)
        return s;
    if (int32_t s = assign_columns(decoder, layout); s < 0) return s;
    layout.row_bytes = uint64_t{layout.columns} * k * layout.dtype->bytes;
    const uint64_t rows = size / layout.row_bytes, rest = size % layout.row_bytes;
    if ((shape || h.rows != 0) && (rows != layout.rows || rest != 0))
        return report(shape ? ROUTECAP_ERR_FORMAT : ROUTECAP_ERR_SHAPE_MISMATCH,
                      "the array has %llu bytes; %llu rows of %llu bytes were said", ull(size),
                      ull(layout.rows), ull(layout.row_bytes));
    if (rest != 0)
        return report(ROUTECAP_ERR_FORMAT, "%llu bytes are left over after %llu rows of %llu bytes",
                      ull(rest), ull(rows), ull(layout.row_bytes));
    layout.rows = rows;
    if (rows > ROUTECAP_MAX_POSITION - layout.first)
        return report(ROUTECAP_ERR_FORMAT, "rows [%llu,+%llu) are beyond the highest position",
                      ull(layout.first), ull(rows));
    return ROUTECAP_OK;
}

Cells::Cells(const ArrayLayout &layout, uint8_t *records)
    : layout_(layout),
      records_(records),
      distinct_(layout.shape->k, layout.shape->experts),
      seen_(layout.shape->layers),
      unseen_(layout.shape->layers),
      in_use_(layout.left_out.size()) {
    const std::vector<uint32_t> &column = layout.column, &experts = layout.shape->of.experts;
    for (uint32_t l = 0; l < layout.shape->layers; l++)
        if (l > 0 && column[l] == column[l - 1] + 1 && experts[l] == experts[l - 1])
            stretches_.back().layers++;
        else
            stretches_.push_back({l, 1});
}

// ---- One row --------------------------------------------------------------------------------

// Notes which columns that belong to no layer hold k distinct experts.
template <class T>
void Cells::look_at_left_out(const uint8_t *row) {
    const Elements<T> ids(row);
    const uint32_t k = layout_.shape->k;
    for (size_t i = 0; i < layout_.left_out.size(); i++) {
        if (in_use_[i]) continue;
        const uint64_t at = uint64_t{layout_.left_out[i]} * k;
        bool used = k > 1 || ids[at] != 0;  // if k is 1, a zero may be an ordinary id
        for (uint32_t c = 0; c < k && used; c++) {
            used = static_cast<std::make_unsigned_t<T>>(ids[at + c]) <
                   bound<T>(layout_.shape->experts);
            for (uint32_t b = 0; b < c; b++) used &= ids[at + b] != ids[at + c];
        }
        in_use_[i] = used;
        counts_.columns_in_use += used;
    }
}

// Checks a row that has an invalid cell, cell by cell.
template <class T, class Id, uint32_t K>
void Cells::judge_row(const uint8_t *bytes, uint8_t *row) {
    const Shape &shape = *layout_.shape;
    const uint32_t k = kernels::columns<K>(shape.k);
    const Elements<T> wire(bytes);
    uint32_t nothing = 0, zeros = 0, valid_cells = 0;
    shape.clear_behind_ids(row);
    for (uint32_t l = 0; l < shape.layers; l++) {
        const uint64_t at = uint64_t{layout_.column[l]} * k;
        Id *cell = reinterpret_cast<Id *>(shape.cell(row, l));
        bool negative = false, zero = k > 1, in_range = true;
        for (uint32_t c = 0; c < k; c++) {
            const T id = wire[at + c];
            if constexpr (std::is_signed_v<T>) negative |= id < 0;
            zero &= id == 0;
            const auto plain = static_cast<std::make_unsigned_t<T>>(id);
            in_range &= plain < bound<T>(shape.of.experts[l]);
            cell[c] = static_cast<Id>(plain);
        }
        if (in_range && !zero && kernels::distinct<Id, K>(cell, k)) {
            shape.set_valid(row, l);
            largest_ = std::max<int64_t>(largest_, *std::max_element(cell, cell + k));
            valid_cells++;
            if (!seen_[l]) seen_[l] = true, unseen_--;
            continue;
        }
        nothing += negative || zero, zeros += zero;
        uint64_t &count = negative    ? counts_.cells_negative
                          : zero      ? counts_.cells_zero
                          : !in_range ? counts_.cells_out_of_range
                                      : counts_.cells_duplicate;
        count++;
        shape.mark(row, l,
                   negative || zero ? ROUTECAP_MISSING_UNWRITTEN
                   : !in_range      ? ROUTECAP_MISSING_OUT_OF_RANGE
                                    : ROUTECAP_MISSING_DUPLICATE);
    }
    counts_.cells_valid += valid_cells;
    counts_.rows_zero += zeros == shape.layers;
    if (nothing == shape.layers) shape.make_missing(row, ROUTECAP_MISSING_ABSENT);
}

// Narrows adjacent ids, and returns the largest as an unsigned number.
template <class T, class Id>
std::make_unsigned_t<T> narrow(const uint8_t *from, uint64_t n, Id *to) {
    const Elements<T> wire(from);
    std::make_unsigned_t<T> most = 0;
    for (uint64_t i = 0; i < n; i++) {
        const auto id = static_cast<std::make_unsigned_t<T>>(wire[i]);
        most = std::max(most, id);
        to[i] = static_cast<Id>(id);
    }
    return most;
}

// Narrows a row, then looks at it as a whole. Returns false and counts nothing if it is not
// complete.
template <class T, class Id, uint32_t K>
bool Cells::write_complete(const uint8_t *bytes, uint8_t *row) {
    const Shape &shape = *layout_.shape;
    const uint32_t k = kernels::columns<K>(shape.k);
    auto *ids = reinterpret_cast<Id *>(row);
    std::make_unsigned_t<T> largest = 0;
    for (const Stretch &s : stretches_) {
        const auto most = narrow<T>(bytes + uint64_t{layout_.column[s.first]} * k * sizeof(T),
                                    uint64_t{s.layers} * k, ids + uint64_t{s.first} * k);
        if (most >= bound<T>(shape.of.experts[s.first])) return false;
        largest = std::max(largest, most);
    }
    if (!distinct_.all(ids, shape.layers)) return false;
    shape.clear_behind_ids(row);
    std::memcpy(shape.validity(row), shape.full.data(), shape.validity_bytes);
    largest_ = std::max<int64_t>(largest_, static_cast<int64_t>(largest));
    counts_.cells_valid += shape.layers;
    if (unseen_ > 0) seen_.assign(shape.layers, true), unseen_ = 0;
    bool counting = k > 1;
    for (uint64_t i = 0, n = uint64_t{shape.layers} * k; i < n && counting; i++)
        counting = ids[i] == i % k;
    counts_.rows_counting += counting;
    return true;
}

// ---- Rows -----------------------------------------------------------------------------------

template <class T, class Id, uint32_t K>
void Cells::write_rows_of(const uint8_t *bytes, uint64_t rows) {
    const Shape &shape = *layout_.shape;
    const uint8_t *before = last_.empty() ? nullptr : last_.data();
    uint8_t *row = records_ + rows_ * shape.stride;
    for (uint64_t r = 0; r < rows; r++, bytes += layout_.row_bytes, row += shape.stride) {
        const bool full = write_complete<T, Id, K>(bytes, row);
        if (!full) judge_row<T, Id, K>(bytes, row);
        if (before != nullptr && std::memcmp(before, bytes, layout_.row_bytes) == 0)
            counts_.rows_repeated += full || !shape.row_empty(row);
        before = bytes;
        if (counts_.columns_in_use < in_use_.size()) look_at_left_out<T>(bytes);
    }
    last_.assign(before, before + layout_.row_bytes);
}

template <class Id, uint32_t K>
void Cells::write_rows(const uint8_t *bytes, uint64_t rows) {
    switch (layout_.dtype->dtype) {
        case ROUTECAP_DTYPE_U8: return write_rows_of<uint8_t, Id, K>(bytes, rows);
        case ROUTECAP_DTYPE_I8: return write_rows_of<int8_t, Id, K>(bytes, rows);
        case ROUTECAP_DTYPE_U16: return write_rows_of<uint16_t, Id, K>(bytes, rows);
        case ROUTECAP_DTYPE_I16: return write_rows_of<int16_t, Id, K>(bytes, rows);
        case ROUTECAP_DTYPE_U32: return write_rows_of<uint32_t, Id, K>(bytes, rows);
        case ROUTECAP_DTYPE_I32: return write_rows_of<int32_t, Id, K>(bytes, rows);
        case ROUTECAP_DTYPE_U64: return write_rows_of<uint64_t, Id, K>(bytes, rows);
        default: return write_rows_of<int64_t, Id, K>(bytes, rows);
    }
}

int32_t Cells::write(const uint8_t *bytes, uint64_t rows) {
    if (rows > layout_.rows - rows_)
        return report(ROUTECAP_ERR_FORMAT, "there are more than the %llu rows of the array",
                      ull(layout_.rows));
    if (rows == 0) return ROUTECAP_OK;
    with_k(layout_.shape->k, [&]<uint32_t K>() {
        layout_.shape->id_bytes == 1 ? write_rows<uint8_t, K>(bytes, rows)
                                     : write_rows<uint16_t, K>(bytes, rows);
    });
    rows_ += rows;
    return ROUTECAP_OK;
}

routecap_wire_report Cells::counted() const {
    routecap_wire_report report = counts_;
    report.dtype = layout_.dtype->dtype;
    report.columns = layout_.columns;
    report.columns_left_out = static_cast<uint32_t>(layout_.left_out.size());
    report.layers_empty = rows_ > 0 ? unseen_ : 0;
    report.first = layout_.first, report.rows = rows_;
    report.largest_id = largest_;
    return report;
}

}  // namespace routecap::wire
