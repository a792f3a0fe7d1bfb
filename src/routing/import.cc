#include "routing/import.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "base/status.h"
#include "base/structs.h"
#include "kernels/snapshot.h"
#include "routing/distinct.h"

namespace routecap {
namespace {

constexpr uint64_t kBytesAtOnce = 16384;
constexpr uint64_t kMaxPageRows = 1u << 30;  // rows of a page are counted in 32 bits

// Reports the first valid cell that is not k distinct experts of its layer.
template <class Id, uint32_t K>
int32_t check_cells(const Shape &shape, const routecap_segment &segment) {
    const auto *ids = static_cast<const Id *>(segment.ids);
    for (uint64_t r = 0; r < segment.rows; r++) {
        const uint8_t *validity = segment.validity != nullptr
                                      ? segment.validity + r * shape.validity_bytes
                                      : shape.full.data();
        for (uint32_t l = 0; l < shape.layers; l++, ids += shape.k) {
            if (!Shape::valid(validity, l)) continue;
            bool in_range = true;
            for (uint32_t c = 0; c < kernels::columns<K>(shape.k); c++)
                in_range &= ids[c] < shape.layer_experts[l];
            if (in_range && kernels::distinct<Id, K>(ids, shape.k)) continue;
            return report(ROUTECAP_ERR_FORMAT,
                          "row %llu, layer %u is said to be valid and is not %u distinct experts "
                          "in [0,%u)",
                          ull(segment.first + r), l, shape.k, shape.layer_experts[l]);
        }
    }
    return ROUTECAP_OK;
}

// Whether all cells of rows without missing cells are valid. This is the usual case, and is checked
// at the speed of memory. False also if the check does not apply.
template <class Id>
bool all_good(const Shape &shape, const routecap_segment &segment) {
    if (segment.validity != nullptr) return false;
    for (const uint32_t experts : shape.layer_experts)
        if (experts != shape.experts) return false;
    Distinct distinct(shape.k, shape.experts);
    const auto *ids = static_cast<const Id *>(segment.ids);
    // Small pieces, so that a second pass over them finds them in the processor's cache.
    const uint64_t at_once = kBytesAtOnce / shape.ids_bytes + 1;
    for (uint64_t r = 0; r < segment.rows; r += at_once) {
        const uint64_t cells = std::min(at_once, segment.rows - r) * shape.layers,
                       n = cells * shape.k;
        Id most = 0;
        for (uint64_t i = 0; i < n; i++) most = std::max(most, ids[i]);
        if (most >= shape.experts || !distinct.all(ids, cells)) return false;
        ids += n;
    }
    return true;
}

int32_t check_ids(const Shape &shape, const routecap_segment &segment) {
    const bool narrow = shape.id_bytes == 1;
    if (narrow ? all_good<uint8_t>(shape, segment) : all_good<uint16_t>(shape, segment))
        return ROUTECAP_OK;
    return with_k(shape.k, [&]<uint32_t K>() {
        return narrow ? check_cells<uint8_t, K>(shape, segment)
                      : check_cells<uint16_t, K>(shape, segment);
    });
}

int32_t check_validity(const Shape &shape, const routecap_segment &segment) {
    if (segment.validity == nullptr || shape.full.back() == 0xff) return ROUTECAP_OK;
    for (uint64_t r = 0; r < segment.rows; r++)
        if ((segment.validity[(r + 1) * shape.validity_bytes - 1] & ~shape.full.back()) != 0)
            return report(ROUTECAP_ERR_FORMAT,
                          "row %llu has validity of layers beyond the last, %u",
                          ull(segment.first + r), shape.layers - 1);
    return ROUTECAP_OK;
}

int32_t check_rows(const Shape &shape, const routecap_segment &segment, const uint8_t *checks) {
    for (uint64_t r = 0; r < segment.rows; r++) {
        uint32_t expected;
        std::memcpy(&expected, checks + r * sizeof expected, sizeof expected);
        if (row_check(shape, segment, r) != expected)
            return report(ROUTECAP_ERR_FORMAT,
                          "row %llu is not what was written: its check differs",
                          ull(segment.first + r));
    }
    return ROUTECAP_OK;
}

// Copies the arrays of the segments into one piece of memory, and makes the segments point there.
std::shared_ptr<const void> copy_arrays(const Shape &shape,
                                        std::vector<routecap_segment> &segments) {
    const auto bytes_of = [&](const routecap_segment &s) {
        return (s.tags != nullptr ? s.rows * sizeof *s.tags : 0) +
               (s.ids != nullptr ? (s.rows * shape.ids_bytes + 7) / 8 * 8 : 0) +
               (s.validity != nullptr ? (s.rows * shape.validity_bytes + 7) / 8 * 8 : 0);
    };
    size_t bytes = 0;
    for (const routecap_segment &s : segments) bytes += bytes_of(s);
    const std::shared_ptr<uint64_t[]> memory(new uint64_t[bytes / 8]);
    auto *at = reinterpret_cast<uint8_t *>(memory.get());
    const auto put = [&](auto *&array, size_t size) {
        if (array == nullptr) return;
        std::memcpy(at, array, size);
        array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(at);
        at += (size + 7) / 8 * 8;
    };
    for (routecap_segment &s : segments) {
        put(s.tags, s.rows * sizeof *s.tags);
        put(s.ids, s.rows * shape.ids_bytes);
        put(s.validity, s.rows * shape.validity_bytes);
    }
    return memory;
}

}  // namespace

uint32_t row_check(const Shape &shape, const routecap_segment &segment, uint64_t row) {
    const uint64_t position = segment.first + row;
    uint32_t check = crc32c_of(&position, sizeof position);
    check = crc32c_of(static_cast<const uint8_t *>(segment.ids) + row * shape.ids_bytes,
                      shape.ids_bytes, check);
    if (segment.tags != nullptr) check = crc32c_of(segment.tags + row, sizeof(uint64_t), check);
    if (segment.validity == nullptr) return check;
    return crc32c_of(segment.validity + row * shape.validity_bytes, shape.validity_bytes, check);
}

bool ids_are_valid(const Shape &shape, const routecap_segment &segment) {
    return check_ids(shape, segment) == ROUTECAP_OK;
}

int32_t import_rows(ImportedRows rows, uint32_t flags, routecap_release release, void *context,
                    Routing **routing) {
    if ((flags & ~ROUTECAP_IMPORT_TRUSTED) != 0)
        return report(ROUTECAP_ERR_ARGUMENT, "flags is %u", flags);
    const Shape &shape = *rows.shape;
    const auto lender = std::make_shared<Lender>(release, context);
    // The copy is made before the check, because no caller can change it meanwhile, and it is
    // aligned.
    const std::shared_ptr<const void> memory =
        release != nullptr ? lender : copy_arrays(shape, rows.segments);
    for (size_t i = 0; i < rows.segments.size(); i++) {
        const routecap_segment &segment = rows.segments[i];
        if (segment.ids == nullptr) continue;
        if (!rows.checks.empty())
            if (int32_t s = check_rows(shape, segment, rows.checks[i]); s < 0) return s;
        if (int32_t s = check_validity(shape, segment); s < 0) return s;
        if ((flags & ROUTECAP_IMPORT_TRUSTED) == 0)
            if (int32_t s = check_ids(shape, segment); s < 0) return s;
    }
    const auto pool = PagePool::plain(rows.shape, UINT64_MAX);
    std::vector<Segment> segments;
    for (const routecap_segment &s : rows.segments) {
        const auto *ids = static_cast<const uint8_t *>(s.ids);
        if (ids == nullptr) segments.push_back(Segment::not_there(s.first, s.rows, s.reason));
        for (uint64_t from = 0; ids != nullptr && from < s.rows; from += kMaxPageRows) {
            const auto n = static_cast<uint32_t>(std::min(s.rows - from, kMaxPageRows));
            segments.push_back(
                {pool->borrow(
                     n, ids + from * shape.ids_bytes,
                     s.validity != nullptr ? s.validity + from * shape.validity_bytes : nullptr,
                     s.tags != nullptr ? s.tags + from : nullptr, s.tag, memory),
                 0, s.first + from, n, s.validity == nullptr});
        }
    }
    *routing = new Routing(
        std::make_shared<const Storage>(rows.shape, pool, std::make_shared<Completion>()),
        rows.first, rows.rows, std::move(segments));
    lender->arm();
    return (*routing)->status();
}

int32_t import_view(const routecap_view *view, uint32_t flags, routecap_release release,
                    void *context, Routing **routing) {
    routecap_view v;
    if (int32_t s = read_struct(v, view, "view"); s < 0) return s;
    ImportedRows rows{nullptr, v.first, v.rows, {}, {}};
    const ShapeSource source{
        v.layers, v.k, v.experts, v.id_space, v.layer_map, v.layer_experts, v.layer_provenance};
    if (int32_t s = make_shape(source, "view", rows.shape); s < 0) return s;
    const Shape &shape = *rows.shape;
    if (v.dtype != shape.dtype())
        return report(ROUTECAP_ERR_DTYPE, "view.dtype is %d; ids of %u experts have %d", v.dtype,
                      shape.experts, shape.dtype());
    if (v.validity_bytes != 0 && v.validity_bytes != shape.validity_bytes)
        return report(ROUTECAP_ERR_ARGUMENT, "view.validity_bytes is %u for %u layers",
                      v.validity_bytes, shape.layers);
    if (v.first > ROUTECAP_MAX_POSITION || v.rows > ROUTECAP_MAX_POSITION - v.first)
        return report(ROUTECAP_ERR_ARGUMENT, "rows [%llu,+%llu) are beyond the highest position",
                      ull(v.first), ull(v.rows));
    if (int32_t s = check_array(v.segments, v.segment_count, v.segment_size,
                                sizeof(routecap_segment), "view.segments");
        s < 0)
        return s;

    const uint64_t end = v.first + v.rows;
    uint64_t position = v.first;
    for (size_t i = 0; i < v.segment_count; i++) {
        routecap_segment segment;
        if (int32_t s = read_struct(segment, &at(v.segments, v.segment_size, i), v.segment_size,
                                    "view.segments");
            s < 0)
            return s;
        if (segment.first < position || segment.first > end || segment.rows > end - segment.first)
            return report(ROUTECAP_ERR_ARGUMENT,
                          "view.segments[%zu] has rows [%llu,+%llu), outside [%llu,%llu)", i,
                          ull(segment.first), ull(segment.rows), ull(position), ull(end));
        if (segment.ids == nullptr && (segment.validity != nullptr || segment.tags != nullptr))
            return report(ROUTECAP_ERR_ARGUMENT,
                          "view.segments[%zu] has no ids, but validity or tags", i);
        if (reinterpret_cast<uintptr_t>(segment.ids) % shape.id_bytes != 0 ||
            reinterpret_cast<uintptr_t>(segment.tags) % sizeof(uint64_t) != 0)
            return report(
                ROUTECAP_ERR_ARGUMENT,
                "view.segments[%zu] has ids or tags that are not aligned to their elements", i);
        if (segment.reserved != 0)
            return report(ROUTECAP_ERR_ARGUMENT, "view.segments[%zu].reserved is %u", i,
                          segment.reserved);
        if (segment.reason != 0 && (segment.ids != nullptr || !is_row_reason(segment.reason)))
            return report(ROUTECAP_ERR_ARGUMENT, "view.segments[%zu] has %s and reason %d", i,
                          segment.ids != nullptr ? "ids" : "no ids", segment.reason);
        position = segment.first + segment.rows;
        const bool known = segment.ids != nullptr ||
                           (segment.reason != 0 && segment.reason != ROUTECAP_MISSING_ABSENT);
        if (known && segment.rows > 0) rows.segments.push_back(segment);
    }
    return import_rows(std::move(rows), flags, release, context, routing);
}

}  // namespace routecap
