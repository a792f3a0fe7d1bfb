#include "routing/routing.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/status.h"
#include "base/structs.h"
#include "routing/coverage.h"
#include "rows/merge.h"

namespace routecap {

void Routing::fill(uint64_t first, uint64_t rows, std::vector<Segment> segments) noexcept {
    first_ = first;
    rows_ = rows;
    segments_ = std::move(segments);
    reading_status_ = reading_status(shape(), first_, rows_, segments_);
    ready_.store(true, std::memory_order_release);
}

void Routing::release(uint32_t references) const {
    if (references_.fetch_sub(references, std::memory_order_acq_rel) == references) delete this;
}

int32_t Routing::wait(int64_t timeout_ns) const {
    if (!ready()) storage_->completion->wait(timeout_ns, [this] { return ready(); });
    return poll();
}

int32_t Routing::poll() const {
    if (!ready()) return ROUTECAP_PENDING;
    // Runs again only to set the text of the status.
    return reading_status_ == ROUTECAP_OK ? ROUTECAP_OK
                                          : reading_status(shape(), first_, rows_, segments_);
}

void Routing::view(routecap_view *view) const {
    std::call_once(viewed_, [this] {
        std::vector<routecap_segment> all;
        all.reserve(segments_.size());
        for_all_rows(first_, end(), segments_, [&](const Segment &s) {
            routecap_segment &out = all.emplace_back();
            out.first = s.first, out.rows = s.rows, out.reason = s.reason;
            if (!s.page) return;
            out.ids = s.row();
            if (reading_status_ != ROUTECAP_OK && !s.complete)
                out.validity = shape().validity(s.row());
            if (s.page->tag_step == 0)
                out.tag = number(s.tag(0));
            else
                out.tags = s.page->tags + s.page_row;
            if (shape().weight_bytes == 0) return;
            out.weights = shape().weights(s.row(), 0);
            out.weights_validity = shape().weights_validity(s.row());
        });
        view_ = std::move(all);
    });
    routecap_view v{};
    v.dtype = shape().dtype();
    v.layers = shape().layers;
    v.k = shape().k;
    v.experts = shape().experts;
    v.validity_bytes = shape().validity_bytes;
    v.row_stride = shape().stride;
    v.id_space = shape().id_space;
    v.complete = reading_status_ == ROUTECAP_OK;
    v.first = first_;
    v.rows = rows_;
    v.layer_map = shape().of.map.data();
    v.layer_experts = shape().of.experts.data();
    v.layer_provenance = shape().of.provenance.data();
    v.layer_k = shape().of.k.data();
    v.layer_min_k = shape().of.least.data();
    v.layer_visit = shape().of.visit.data();
    v.weights_dtype = shape().weights_dtype;
    v.segments = view_.data();
    v.segment_size = sizeof(routecap_segment);
    v.segment_count = view_.size();
    write_struct(view, v);
}

int32_t Routing::coverage(routecap_coverage *coverage, routecap_missing *missing,
                          size_t missing_size, size_t capacity) const {
    const routecap_coverage c =
        cover(shape(), first_, rows_, end(), segments_, {missing, missing_size, capacity});
    write_struct(coverage, c);
    return report_missing(c);
}

routecap_coverage Routing::counted() const {
    return cover(shape(), first_, rows_, end(), segments_);
}

Routing *Routing::slice(uint64_t first, uint64_t rows) const {
    const uint64_t end = first + rows;
    std::vector<Segment> part;
    for (const Segment &s : segments_) {
        const uint64_t from = std::max(s.first, first), to = std::min(s.end(), end);
        if (from < to) part.push_back(s.part(from, to));
    }
    return new Routing(storage_, first, rows, std::move(part));
}

Routing *Routing::copy() const {
    if (rows_ == 0) return slice(first_, 0);
    PagePool &pool = *storage_->pool;
    if (rows_ > UINT32_MAX || !pool.reserve(PagePool::page_bytes(shape(), rows_))) return nullptr;
    PageRef page = pool.make(shape(), static_cast<uint32_t>(rows_));
    if (!page) return nullptr;

    for_all_rows(first_, end(), segments_, [&](const Segment &s) {
        const size_t row = s.first - first_;
        if (!s.page) {
            for (uint64_t r = 0; r < s.rows; r++)
                shape().make_missing(page->row(row + r), s.reason);
            return page->set_tags(row, s.rows, Tag::none);
        }
        page->copy_rows(row, *s.page.get(), s.page_row, s.rows);
    });
    std::vector<Segment> one;
    one.push_back({std::move(page), 0, first_, rows_, reading_status_ == ROUTECAP_OK});
    return new Routing(storage_, first_, rows_, std::move(one));
}

// ---- Merge ----------------------------------------------------------------------------------

namespace {

// The shape of a merge: the layers of all routings, by their keys. A layer that is recomputed in
// any routing is recomputed. Null if the routings contradict one another.
ShapePtr united_shape(std::span<const Routing *const> routings) {
    struct Layer {
        const Shape *of;
        uint32_t layer;
        bool recomputed;
    };
    const Shape &a = routings.front()->shape();
    std::map<std::pair<int32_t, uint32_t>, Layer> found;
    for (const Routing *routing : routings) {
        const Shape &s = routing->shape();
        if (s.k != a.k || s.id_space != a.id_space || s.weights_dtype != a.weights_dtype)
            return nullptr;
        for (uint32_t l = 0; l < s.layers; l++) {
            Layer &layer = found.emplace(s.of.key(l), Layer{&s, l, false}).first->second;
            if (s.rules[l] != layer.of->rules[layer.layer]) return nullptr;
            layer.recomputed |= s.is_recomputed(l);
        }
    }
    Layers layers;
    for (const auto &[key, layer] : found) {
        layers.add(layer.of->of, layer.layer);
        if (layer.recomputed) layers.provenance.back() = ROUTECAP_PROVENANCE_RECOMPUTED;
    }
    return std::make_shared<const Shape>(a.k, a.id_space, a.weights_dtype, std::move(layers));
}

// Converts a row to a shape that has all layers of the row's own shape, and may have more.
class ToMergedShape {
public:
    ToMergedShape(const Shape &from, const Shape &to) : from_(from), to_(to), row_(to.stride) {
        for (uint32_t l = 0; l < from.layers; l++)
            layer_.push_back(static_cast<uint32_t>(to.of.find(from.of.key(l))));
    }

    const uint8_t *row(const uint8_t *row) {
        to_.make_missing(row_.data(), ROUTECAP_MISSING_ABSENT);
        for (uint32_t l = 0; l < from_.layers; l++) {
            const uint8_t *cell = from_.cell(row, l);
            uint8_t *out = to_.cell(row_.data(), layer_[l]);
            const bool valid = from_.valid(row, l);
            const uint32_t used = valid ? from_.count(row, l) : to_.k;
            std::memset(out, 0, to_.cell_bytes);
            for (uint32_t c = 0; c < used; c++)
                std::memcpy(out + size_t{c} * to_.id_bytes, cell + size_t{c} * from_.id_bytes,
                            from_.id_bytes);
            std::memset(out + size_t{used} * to_.id_bytes, 0xff,
                        size_t{to_.k - used} * to_.id_bytes);
            if (valid) to_.set_valid(row_.data(), layer_[l]);
            if (!from_.weighted(row, l)) continue;
            std::memcpy(to_.weights(row_.data(), layer_[l]), from_.weights(row, l),
                        to_.weights_cell_bytes());
            to_.set_weighted(row_.data(), layer_[l]);
        }
        return row_.data();
    }
    // A row that is not there.
    const uint8_t *missing(int32_t reason) {
        to_.make_missing(row_.data(), ROUTECAP_MISSING_ABSENT);
        for (uint32_t l : layer_) to_.mark(row_.data(), l, reason);
        return row_.data();
    }

private:
    const Shape &from_, &to_;
    std::vector<uint32_t> layer_;
    std::vector<uint8_t> row_;
};

// Files the rows that no routing has, with their reasons. The routings have different layers, so
// the cells of one row may be missing for different reasons. Such a row needs memory for its
// reasons.
RowOutcomes merge_missing(std::span<const Routing *const> routings,
                          std::vector<ToMergedShape> &to_merged, const Shape &shape,
                          RowStore &rows) {
    // All rows between two of these positions have the same reasons.
    std::vector<uint64_t> edges;
    uint64_t present = 0;
    for (const Routing *routing : routings)
        for (const Segment &s : routing->segments()) {
            if (s.page)
                present += s.rows;
            else
                edges.push_back(s.first), edges.push_back(s.end());
        }
    std::sort(edges.begin(), edges.end());
    edges.erase(std::unique(edges.begin(), edges.end()), edges.end());

    // A few untrusted bytes may claim more missing rows than fit into memory. So besides the rows
    // that are there, the result may have at most this many bytes of rows.
    constexpr uint64_t kMost = 1 << 30;
    const uint64_t most = present + kMost / shape.stride;
    RowOutcomes filed;
    uint64_t written = 0;
    MissingRows missing;
    std::vector<uint8_t> row(shape.stride);
    std::vector<size_t> next(routings.size());
    for (size_t e = 1; e < edges.size(); e++) {
        const uint64_t first = edges[e - 1], end = edges[e];
        shape.make_missing(row.data(), ROUTECAP_MISSING_ABSENT);
        for (size_t i = 0; i < routings.size(); i++) {
            const std::span<const Segment> segments = routings[i]->segments();
            while (next[i] < segments.size() && segments[next[i]].end() <= first) next[i]++;
            if (next[i] == segments.size() || segments[next[i]].page ||
                segments[next[i]].first > first)
                continue;
            (void)merge(shape, row.data(), Tag::none,
                        to_merged[i].missing(segments[next[i]].reason), Tag::none);
        }
        if (const int32_t reason = shape.row_reason(row.data()); reason != 0) {
            missing.add(first, end, reason);
            continue;
        }
        written += end - first;
        if (written > most) return {.refused = written};
        for (uint64_t p = first; p < end; p++)
            filed += rows.file_from_budget(p, row.data(), 1, Tag::none);
    }
    return filed += rows.attach_missing(missing, 0, UINT64_MAX);
}

}  // namespace

int32_t merge(std::span<const Routing *const> routings, Routing **merged) {
    const ShapePtr shape = united_shape(routings);
    if (shape == nullptr)
        return report(ROUTECAP_ERR_SHAPE_MISMATCH,
                      "k, the id space or the experts of a layer differ");
    if (shape->layers > ROUTECAP_MAX_LAYERS)
        return report(ROUTECAP_ERR_SHAPE_MISMATCH, "%u layers in all, more than %d", shape->layers,
                      ROUTECAP_MAX_LAYERS);

    // The result reaches from the first row of any routing to the last. A routing without rows does
    // not extend it.
    uint64_t first = UINT64_MAX, end = 0;
    for (const Routing *routing : routings)
        if (routing->rows_ > 0)
            first = std::min(first, routing->first()), end = std::max(end, routing->end());
    if (first > end) first = end = routings.front()->first();

    const Storage &first_context = *routings.front()->storage_;
    const auto storage =
        std::make_shared<const Storage>(shape, first_context.pool, first_context.completion);
    RowStore rows(storage, false, true);
    RowOutcomes filed;
    std::vector<ToMergedShape> to_merged;
    to_merged.reserve(routings.size());
    for (const Routing *routing : routings) to_merged.emplace_back(routing->shape(), *shape);
    // Rows that are there are filed first. A row that is not there has no meaningful tag, and must
    // not set the tag of a row that another routing has.
    for (const bool there : {true, false})
        for (size_t i = 0; i < routings.size(); i++) {
            const Shape &narrow = routings[i]->shape();
            if (narrow.same_rows(*shape)) {
                if (there) filed += rows.attach(routings[i]->segments(), end);
                continue;
            }
            for (const Segment &s : routings[i]->segments())
                for (uint64_t r = 0; s.page && r < s.rows; r++)
                    if (there == (narrow.row_reason(s.row(r)) == 0))
                        filed += rows.file_from_budget(s.first + r, to_merged[i].row(s.row(r)), 1,
                                                       there ? s.tag(r) : Tag::none);
        }
    filed += merge_missing(routings, to_merged, *shape, rows);
    if (filed.refused > 0)
        return report(ROUTECAP_ERR_NO_MEMORY, "the merged rows exceed the budget");
    if (filed.mismatched > 0)
        return report(ROUTECAP_ERR_CONFLICT,
                      "%llu rows have different experts in a layer that two routings have",
                      ull(filed.mismatched));
    std::vector<Segment> segments;
    {
        const Lock lock(rows.mutex);
        segments = rows.share(first, end);
    }
    *merged = new Routing(storage, first, end - first, std::move(segments));
    return (*merged)->status();
}

}  // namespace routecap
