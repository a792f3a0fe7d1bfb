#include "routing/import.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "base/status.h"
#include "base/structs.h"
#include "kernels/weights.h"
#include "routing/distinct.h"

namespace routecap {
namespace {

constexpr uint64_t kMaxPageRows = 1u << 30;  // rows of a page are counted in 32 bits

// ---- Checking ---------------------------------------------------------------------------------

// Reports the first valid cell that is not as its layer's rule says.
template <class Id, uint32_t K>
int32_t check_cells(const Shape &shape, const uint8_t *row, uint64_t position) {
    for (uint32_t l = 0; l < shape.layers; l++) {
        if (!shape.valid(row, l)) continue;
        const kernels::CellRule &rule = shape.rules[l];
        const auto *ids = reinterpret_cast<const Id *>(shape.cell(row, l));
        const uint32_t used = K != 0 ? K : shape.count_ids(ids, l);
        bool good = true;
        for (uint32_t c = 0; c < used; c++) good &= ids[c] < rule.experts;
        for (uint32_t c = used; c < shape.k; c++) good &= ids[c] == kernels::kUnused<Id>;
        if (good && kernels::distinct<Id, K>(ids, used)) continue;
        return report(ROUTECAP_ERR_FORMAT,
                      "row %llu, layer %u is said to be valid and is not %u to %u distinct experts "
                      "in [0,%u)",
                      ull(position), l, uint32_t{rule.least}, uint32_t{rule.k},
                      uint32_t{rule.experts});
    }
    return ROUTECAP_OK;
}

class RowCheck {
public:
    RowCheck(const Shape &shape, bool trusted)
        : shape_(shape),
          trusted_(trusted),
          alike_(shape.uniform && std::all_of(shape.rules.begin(), shape.rules.end(),
                                              [&](const kernels::CellRule &rule) {
                                                  return rule == shape.rules[0];
                                              })),
          distinct_(shape.k, shape.experts) {
        if (shape.weight_bytes != 0) return;
        usual_ = shape.full;
        usual_.resize(shape.stride - shape.validity_begin);
    }

    // Sets run.complete if the rows are it.
    int32_t check(ImportedRun &run) {
        bool all = true;
        const uint8_t *source = run.records;
        if (run.copy != nullptr) run.records = run.copy;
        const uint8_t *row = run.records;
        for (uint64_t r = 0; r < run.rows; r++, row += shape_.stride) {
            if (r % kRowsSummed == 0)
                if (int32_t s = begin_rows(run, source, r); s < 0) return s;
            const bool usual = is_usual(row), full = usual || shape_.row_full(row);
            all &= full;
            if (int32_t s = usual ? ROUTECAP_OK : check_bits(row, run.first + r, full); s < 0)
                return s;
            if (int32_t s = check_row(row, run.first + r, full); s < 0) return s;
        }
        if (run.complete && !all)
            return report(ROUTECAP_ERR_FORMAT, "a row of [%llu,+%llu) is not complete, as was said",
                          ull(run.first), ull(run.rows));
        run.complete = all;
        return ROUTECAP_OK;
    }

private:
    // Copies the rows from row r on that are looked at next, and checks their sums. To copy all
    // rows first takes 1.2 times as long where they do not fit into the cache (1,024 of 48 x 8).
    int32_t begin_rows(const ImportedRun &run, const uint8_t *source, uint64_t r) const {
        const uint64_t n = std::min<uint64_t>(run.rows - r, kRowsSummed);
        if (run.copy != nullptr)
            std::memcpy(run.copy + r * shape_.stride, source + r * shape_.stride,
                        n * shape_.stride);
        if (run.checks == nullptr) return ROUTECAP_OK;
        uint32_t expected[kRowsSummed], sums[kRowsSummed];
        std::memcpy(expected, run.checks + r * sizeof expected[0], n * sizeof expected[0]);
        crc32c_of_rows(run.records + r * shape_.stride, shape_.stride, run.first + r, n, sums);
        for (uint64_t i = 0; i < n; i++)
            if (sums[i] != expected[i])
                return report(ROUTECAP_ERR_FORMAT,
                              "row %llu is not what was written: its check differs",
                              ull(run.first + r + i));
        return ROUTECAP_OK;
    }

    // Whether a row, of those without weights, lacks no cell and has zeros behind its validity. To
    // ask both at once is worth 11 % of deserialising trusted rows of 48 x 8, and 5 % of others.
    bool is_usual(const uint8_t *row) const {
        return !usual_.empty() &&
               std::memcmp(shape_.validity(row), usual_.data(), usual_.size()) == 0;
    }
    int32_t check_bits(const uint8_t *row, uint64_t position, bool full) const {
        if (!full && (shape_.validity(row)[shape_.validity_bytes - 1] & ~shape_.full.back()) != 0)
            return report(ROUTECAP_ERR_FORMAT,
                          "row %llu has validity of layers beyond the last, %u", ull(position),
                          shape_.layers - 1);
        if (!shape_.padding_is_zero(row))
            return report(ROUTECAP_ERR_FORMAT, "the padding of row %llu is not zero",
                          ull(position));
        return ROUTECAP_OK;
    }
    int32_t check_row(const uint8_t *row, uint64_t position, bool full) {
        if (shape_.weight_bytes != 0)
            if (int32_t s = check_weights(row, position); s < 0) return s;
        if (trusted_) return ROUTECAP_OK;
        const bool narrow = shape_.id_bytes == 1;
        if (full && (narrow ? all_good<uint8_t>(row) : all_good<uint16_t>(row))) return ROUTECAP_OK;
        return with_k(shape_.kernel_k(), [&]<uint32_t K>() {
            return narrow ? check_cells<uint8_t, K>(shape_, row, position)
                          : check_cells<uint16_t, K>(shape_, row, position);
        });
    }

    // Weights are there only where ids are, are no NaN, and are 0 where they are not there and in
    // columns without an expert.
    int32_t check_weights(const uint8_t *row, uint64_t position) const {
        const kernels::NanRule nan(shape_.weights_dtype);
        for (uint32_t b = 0; b < shape_.validity_bytes; b++)
            if ((shape_.weights_validity(row)[b] & ~shape_.validity(row)[b]) != 0)
                return report(ROUTECAP_ERR_FORMAT,
                              "row %llu has weights of a layer whose ids it does not have",
                              ull(position));
        const bool wide = shape_.weight_bytes == 4;
        if (shape_.uniform &&
            std::memcmp(shape_.weights_validity(row), shape_.full.data(), shape_.validity_bytes) ==
                0 &&
            (wide ? none_is_nan<uint32_t>(row, nan) : none_is_nan<uint16_t>(row, nan)))
            return ROUTECAP_OK;
        for (uint32_t l = 0; l < shape_.layers; l++) {
            const uint8_t *weights = shape_.weights(row, l);
            const uint32_t used = shape_.weighted(row, l) ? shape_.count(row, l) : 0;
            bool good = kernels::all_zero(weights + used * shape_.weight_bytes,
                                          weights + shape_.weights_cell_bytes());
            for (uint32_t c = 0; c < used; c++) {
                uint32_t bits = 0;
                std::memcpy(&bits, weights + size_t{c} * shape_.weight_bytes, shape_.weight_bytes);
                good &= !nan.is_nan(bits);
            }
            if (!good)
                return report(
                    ROUTECAP_ERR_FORMAT,
                    "row %llu, layer %u has a weight that is NaN, or one of no expert that "
                    "is not 0",
                    ull(position), l);
        }
        return ROUTECAP_OK;
    }

    // The usual case, at the speed of memory.
    template <class W>
    bool none_is_nan(const uint8_t *row, const kernels::NanRule &nan) const {
        const auto *weights = reinterpret_cast<const W *>(shape_.weights(row, 0));
        const auto mask = static_cast<W>(nan.mask);
        W most = 0;
        for (uint32_t i = 0; i < shape_.layers * shape_.k; i++)
            most = std::max(most, static_cast<W>(weights[i] & mask));
        return most <= nan.infinity;
    }

    // Whether all cells of a row without missing cells are valid. This is the usual case, and is
    // checked at the speed of memory. False also if the check does not apply.
    template <class Id>
    bool all_good(const uint8_t *row) {
        if (!alike_) return false;
        const auto *ids = reinterpret_cast<const Id *>(row);
        Id most = 0;
        for (uint32_t i = 0; i < shape_.layers * shape_.k; i++) most = std::max(most, ids[i]);
        return most < shape_.experts && distinct_.all(ids, shape_.layers);
    }

    const Shape &shape_;
    const bool trusted_;
    const bool alike_;  // all layers have as many experts, and all cells k of them
    Distinct distinct_;
    std::vector<uint8_t> usual_;  // behind the ids; empty with weights
};

// ---- Arrays -----------------------------------------------------------------------------------

// Where rows lie in a caller's segment.
struct ArrayLayout {
    size_t ids_stride, validity_stride, weights_stride;

    ArrayLayout(const Shape &shape, uint64_t row_stride)
        : ids_stride(row_stride != 0 ? row_stride : shape.validity_begin),
          validity_stride(row_stride != 0 ? row_stride : shape.validity_bytes),
          weights_stride(row_stride != 0 ? row_stride
                                         : shape.layers * size_t{shape.weights_cell_bytes()}) {}
};

// Whether the rows of a segment are records already.
bool are_records(const Shape &shape, const ArrayLayout &layout, const routecap_segment &segment) {
    const auto *row = static_cast<const uint8_t *>(segment.ids);
    return layout.ids_stride == shape.stride && segment.validity != nullptr &&
           segment.validity == shape.validity(row) &&
           (shape.weight_bytes == 0 || (segment.weights == shape.weights(row, 0) &&
                                        segment.weights_validity == shape.weights_validity(row))) &&
           reinterpret_cast<uintptr_t>(segment.ids) % shape.alignment() == 0;
}

// Copies the weights of a row that are there, and leaves zeros for the others.
void copy_weights(const Shape &shape, const ArrayLayout &layout, const routecap_segment &segment,
                  uint64_t r, uint8_t *record) {
    const uint8_t *weights =
        static_cast<const uint8_t *>(segment.weights) + r * layout.weights_stride;
    std::memcpy(shape.weights_validity(record),
                segment.weights_validity != nullptr
                    ? segment.weights_validity + r * layout.validity_stride
                    : shape.validity(record),
                shape.validity_bytes);
    for (uint32_t l = 0; l < shape.layers; l++)
        if (shape.weighted(record, l))
            std::memcpy(shape.weights(record, l), weights + size_t{l} * shape.weights_cell_bytes(),
                        size_t{shape.count(record, l)} * shape.weight_bytes);
}

// Makes records of a caller's arrays.
void copy_arrays(const Shape &shape, const ArrayLayout &layout, const routecap_segment &segment,
                 uint8_t *records) {
    const auto *ids = static_cast<const uint8_t *>(segment.ids);
    for (uint64_t r = 0; r < segment.rows; r++, records += shape.stride) {
        std::memcpy(records, ids + r * layout.ids_stride, shape.validity_begin);
        shape.clear_behind_ids(records);
        std::memcpy(shape.validity(records),
                    segment.validity != nullptr ? segment.validity + r * layout.validity_stride
                                                : shape.full.data(),
                    shape.validity_bytes);
        if (segment.weights != nullptr) copy_weights(shape, layout, segment, r, records);
    }
}

int32_t check_segment(const routecap_segment &segment, const Shape &shape, size_t i,
                      uint64_t position, uint64_t end) {
    if (segment.first < position || segment.first > end || segment.rows > end - segment.first)
        return report(ROUTECAP_ERR_ARGUMENT,
                      "view.segments[%zu] has rows [%llu,+%llu), outside [%llu,%llu)", i,
                      ull(segment.first), ull(segment.rows), ull(position), ull(end));
    if (segment.ids == nullptr && (segment.validity != nullptr || segment.tags != nullptr))
        return report(ROUTECAP_ERR_ARGUMENT, "view.segments[%zu] has no ids, but validity or tags",
                      i);
    if (reinterpret_cast<uintptr_t>(segment.ids) % shape.id_bytes != 0 ||
        reinterpret_cast<uintptr_t>(segment.tags) % sizeof(uint64_t) != 0)
        return report(ROUTECAP_ERR_ARGUMENT,
                      "view.segments[%zu] has ids or tags that are not aligned to their elements",
                      i);
    if ((segment.weights != nullptr || segment.weights_validity != nullptr) &&
        (segment.weights == nullptr || segment.ids == nullptr || shape.weight_bytes == 0 ||
         reinterpret_cast<uintptr_t>(segment.weights) % shape.weight_bytes != 0))
        return report(
            ROUTECAP_ERR_ARGUMENT,
            "view.segments[%zu] has weights without ids or view.weights_dtype, not aligned "
            "to their elements, or only their validity",
            i);
    if (segment.reserved != 0)
        return report(ROUTECAP_ERR_ARGUMENT, "view.segments[%zu].reserved is %u", i,
                      segment.reserved);
    if (segment.reason != 0 && (segment.ids != nullptr || !is_row_reason(segment.reason)))
        return report(ROUTECAP_ERR_ARGUMENT, "view.segments[%zu] has %s and reason %d", i,
                      segment.ids != nullptr ? "ids" : "no ids", segment.reason);
    return ROUTECAP_OK;
}

int32_t check_view(const routecap_view &v, const Shape &shape) {
    if (v.dtype != shape.dtype())
        return report(ROUTECAP_ERR_DTYPE, "view.dtype is %d; ids of %u experts have %d", v.dtype,
                      shape.experts, shape.dtype());
    if (v.validity_bytes != 0 && v.validity_bytes != shape.validity_bytes)
        return report(ROUTECAP_ERR_ARGUMENT, "view.validity_bytes is %u for %u layers",
                      v.validity_bytes, shape.layers);
    if (v.reserved != 0) return refuse_reserved(static_cast<int32_t>(v.reserved));
    const uint32_t step = std::max(shape.id_bytes, shape.weight_bytes);
    if (v.row_stride != 0 && (v.row_stride < shape.bytes() || v.row_stride % step != 0 ||
                              v.row_stride > ROUTECAP_MAX_POSITION))
        return report(ROUTECAP_ERR_SHAPE_MISMATCH,
                      "view.row_stride is %llu, and a row has %u bytes of ids and %u of validity",
                      ull(v.row_stride), shape.validity_begin, shape.validity_bytes);
    if (v.first > ROUTECAP_MAX_POSITION || v.rows > ROUTECAP_MAX_POSITION - v.first)
        return report(ROUTECAP_ERR_ARGUMENT, "rows [%llu,+%llu) are beyond the highest position",
                      ull(v.first), ull(v.rows));
    return check_array(v.segments, v.segment_count, v.segment_size, sizeof(routecap_segment),
                       "view.segments");
}

// The caller's segments that say something.
int32_t read_segments(const routecap_view &v, const Shape &shape,
                      std::vector<routecap_segment> &segments) {
    uint64_t position = v.first;
    for (size_t i = 0; i < v.segment_count; i++) {
        routecap_segment segment;
        if (int32_t s = read_struct(segment, &at(v.segments, v.segment_size, i), v.segment_size,
                                    "view.segments");
            s < 0)
            return s;
        if (int32_t s = check_segment(segment, shape, i, position, v.first + v.rows); s < 0)
            return s;
        position = segment.first + segment.rows;
        const bool known = segment.ids != nullptr ||
                           (segment.reason != 0 && segment.reason != ROUTECAP_MISSING_ABSENT);
        if (known && segment.rows > 0) segments.push_back(segment);
    }
    return ROUTECAP_OK;
}

// What a view's segments become: records in place if all are, and they are lent; otherwise copies.
ImportedRows rows_of(const ShapePtr &shape, const routecap_view &v,
                     const std::vector<routecap_segment> &segments,
                     const std::shared_ptr<Lender> &lender) {
    ImportedRows rows{shape, v.first, v.rows, {}, lender};
    const ArrayLayout layout(*shape, v.row_stride);
    uint64_t present = 0, tagged = 0;
    bool in_place = lender != nullptr;
    for (const routecap_segment &s : segments) {
        present += s.ids != nullptr ? s.rows : 0;
        tagged += s.tags != nullptr ? s.rows : 0;
        in_place &= s.ids == nullptr || are_records(*shape, layout, s);
    }
    uint8_t *records = nullptr;
    uint64_t *tags = nullptr;
    if (!in_place) {
        const std::shared_ptr<uint8_t[]> memory = make_records(*shape, present);
        const std::shared_ptr<uint64_t[]> tag_memory(new uint64_t[tagged]);
        records = memory.get(), tags = tag_memory.get();
        rows.memory = std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(
            memory, tag_memory);
    }
    for (const routecap_segment &s : segments) {
        ImportedRun run{.first = s.first,
                        .rows = s.rows,
                        .records = static_cast<const uint8_t *>(s.ids),
                        .tags = s.tags,
                        .tag = Tag{s.tag},
                        .reason = s.reason};
        if (!in_place && s.ids != nullptr) {
            copy_arrays(*shape, layout, s, records);
            run.records = std::exchange(records, records + s.rows * shape->stride);
        }
        if (!in_place && s.tags != nullptr) {
            std::copy_n(s.tags, s.rows, tags);
            run.tags = std::exchange(tags, tags + s.rows);
        }
        rows.runs.push_back(run);
    }
    return rows;
}

}  // namespace

std::shared_ptr<uint8_t[]> make_records(const Shape &shape, uint64_t rows) {
    return std::shared_ptr<uint8_t[]>(new uint8_t[rows * shape.stride]);
}

int32_t import_rows(ImportedRows rows, uint32_t flags, Routing **routing) {
    if ((flags & ~ROUTECAP_IMPORT_TRUSTED) != 0)
        return report(ROUTECAP_ERR_ARGUMENT, "flags is %u", flags);
    const Shape &shape = *rows.shape;
    RowCheck check(shape, (flags & ROUTECAP_IMPORT_TRUSTED) != 0);
    for (ImportedRun &run : rows.runs)
        if (int32_t s = run.records != nullptr ? check.check(run) : ROUTECAP_OK; s < 0) return s;
    const auto pool = PagePool::plain(rows.shape, UINT64_MAX);
    std::vector<Segment> segments;
    for (const ImportedRun &run : rows.runs) {
        if (run.records == nullptr)
            segments.push_back(Segment::not_there(run.first, run.rows, run.reason));
        for (uint64_t from = 0; run.records != nullptr && from < run.rows; from += kMaxPageRows) {
            const auto n = static_cast<uint32_t>(std::min(run.rows - from, kMaxPageRows));
            segments.push_back({pool->borrow(n, run.records + from * shape.stride,
                                             run.tags != nullptr ? run.tags + from : nullptr,
                                             run.tag, rows.memory),
                                0, run.first + from, n, run.complete});
        }
    }
    *routing = new Routing(
        std::make_shared<const Storage>(rows.shape, pool, std::make_shared<Completion>()),
        rows.first, rows.rows, std::move(segments));
    return (*routing)->status();
}

int32_t import_view(const routecap_view *view, uint32_t flags, routecap_release release,
                    void *context, Routing **routing) {
    routecap_view v;
    if (int32_t s = read_struct(v, view, "view"); s < 0) return s;
    ShapePtr shape;
    if (int32_t s = make_shape(shape_source(v, v.id_space, v.layer_provenance, v.weights_dtype),
                               "view", shape);
        s < 0)
        return s;
    if (int32_t s = check_view(v, *shape); s < 0) return s;
    std::vector<routecap_segment> segments;
    if (int32_t s = read_segments(v, *shape, segments); s < 0) return s;
    const auto lender = release != nullptr ? std::make_shared<Lender>(release, context) : nullptr;
    // With copies the last reference to the lender is this one: it is released on return.
    const int32_t s = import_rows(rows_of(shape, v, segments, lender), flags, routing);
    if (s >= 0 && lender != nullptr) lender->arm();
    return s;
}

}  // namespace routecap
