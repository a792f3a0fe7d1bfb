// The functions of the headers that the model answers, as they are in the library, and which calls
// of the vectors those are. The model knows what becomes of rows. It does not know what is refused
// before anything is done, nor memory: a budget is never reached.
#include "author.h"

#include <routecap.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <sstream>
#include <utility>

#include "../fuzz/model.h"
#include "../fuzz/reader.h"
#include "../fuzz/sequence_model.h"

using namespace model;

// ---- The library's objects -----------------------------------------------------------------

namespace {

std::string text;      // of the last call
bool is_lost = false;  // the header leaves open what was done
routecap_request last_request = 0;

int32_t answer(int32_t status) {
    text = routecap_status_name(status);
    return status;
}

// Rows of a step that was issued before they were there.
struct Coming {
    std::vector<routecap_span> spans;
    const void *positions;
    int32_t dtype;
};

int64_t element(const void *memory, int32_t dtype, size_t at) {
    switch (dtype) {
        case ROUTECAP_DTYPE_U8: return static_cast<const uint8_t *>(memory)[at];
        case ROUTECAP_DTYPE_I16: return static_cast<const int16_t *>(memory)[at];
        case ROUTECAP_DTYPE_I64: return static_cast<const int64_t *>(memory)[at];
        default: return static_cast<const int32_t *>(memory)[at];
    }
}
std::vector<uint32_t> bits(const void *weights, int32_t dtype, size_t at, size_t count) {
    const size_t size = element_bytes(dtype);
    std::vector<uint32_t> all(count);
    for (size_t i = 0; i < count; i++)
        std::memcpy(&all[i], static_cast<const uint8_t *>(weights) + (at + i) * size, size);
    return all;
}
bool unwritten(int64_t id, int32_t dtype) {  // bytes 0x80
    const auto bytes = static_cast<int64_t>(0x8080808080808080);
    return id == (dtype == ROUTECAP_DTYPE_I64   ? bytes
                  : dtype == ROUTECAP_DTYPE_I16 ? static_cast<int16_t>(bytes)
                                                : static_cast<int32_t>(bytes));
}
uint64_t key(const void *keys, size_t at, size_t bytes) {  // one number for each
    static std::map<std::string, uint64_t> numbers;
    const std::string name(static_cast<const char *>(keys) + at * bytes, bytes);
    return numbers.emplace(name, numbers.size()).first->second;
}

}  // namespace

struct routecap_capturer {
    ShapePtr shape;
    Sink sink;
    Capturer model;
    bool files_in_begin;
    int32_t sink_dtype;
    bool begun = false;  // a step: the addresses of sinks are fixed
    std::map<uint64_t, RequestPtr> requests{};
    std::map<uint64_t, Coming> coming{};
    // Of a layer, for a router's own writes: the engine's, or the library's.
    struct Memory {
        int32_t dtype;
        int64_t row_stride;
        uint8_t *ids, *weights;  // weights: nullptr if there is no place for them
        std::vector<uint8_t> own_ids{}, own_weights{};
        bool same(const Memory &o) const {
            return dtype == o.dtype && row_stride == o.row_stride && ids == o.ids &&
                   weights == o.weights;
        }
    };
    std::map<uint32_t, Memory> memory{};

    // The layer's; nullptr if it has none yet.
    const Memory *memory_of(uint32_t layer) {
        const uint32_t k = shape->layers[layer].k;
        if (memory.count(layer) > 0) return &memory.at(layer);
        if (!sink.has_memory(layer)) return nullptr;
        Memory &of = memory[layer] = {sink_dtype, k, nullptr, nullptr};
        of.own_ids.resize(sink.rows() * k * element_bytes(sink_dtype), 0x80);
        of.ids = of.own_ids.data();
        if (shape->weights == 0) return &of;
        of.own_weights.resize(sink.rows() * k * element_bytes(shape->weights), 0xff);
        of.weights = of.own_weights.data();
        return &of;
    }
    // What routers have written since the last call. What they do not write are no ids, and NaN.
    void look() {
        for (auto &[layer, of] : memory)
            for (uint32_t row = 0; row < sink.rows(); row++) {
                const uint32_t k = shape->layers[layer].k;
                const auto at = static_cast<size_t>(row * of.row_stride);
                std::vector<int64_t> ids;
                for (uint32_t c = 0; c < k; c++) ids.push_back(element(of.ids, of.dtype, at + c));
                std::optional<std::vector<uint32_t>> weights;
                if (of.weights != nullptr) weights = bits(of.weights, shape->weights, at, k);
                if (std::none_of(ids.begin(), ids.end(), [&, dtype = of.dtype](int64_t id) {
                        return unwritten(id, dtype);
                    }))
                    sink.write(layer, row, std::move(ids), std::move(weights));
                const size_t size = element_bytes(of.dtype), weight = element_bytes(shape->weights);
                std::fill_n(of.ids + at * size, k * size, uint8_t{0x80});
                if (of.weights != nullptr)
                    std::fill_n(of.weights + at * weight, k * weight, uint8_t{0xff});
            }
    }
    RequestPtr open(uint64_t request) const {
        const auto found = requests.find(request);
        return found == requests.end() ? nullptr : found->second;
    }
    uint64_t add(RequestPtr r) { return requests[++last_request] = std::move(r), last_request; }
    // The first step whose rows have not arrived.
    uint64_t first() const { return coming.empty() ? UINT64_MAX : coming.begin()->first; }
};
struct routecap_store {
    StorePtr model;
    uint32_t key_bytes;
    ShapePtr shape;
};
struct routecap_sequence {
    Sequence model;
};
struct routecap_routing {
    RoutingPtr model;
    int references = 1;
    std::vector<std::vector<uint8_t>> memory{};  // of each row, as it is serialised
    std::vector<routecap_segment> segments{};
    std::vector<int32_t> map{}, provenance{};
    std::vector<uint32_t> experts{}, k{}, least{}, visit{};
};
static std::map<const Capturer *, routecap_capturer *> owners;

static int32_t give(int32_t status, RoutingPtr routing, routecap_routing **made) {
    *made = status < 0 ? nullptr : new routecap_routing{std::move(routing)};
    return answer(status);
}
// Of a configuration, or of the view of a routing.
template <class T>
static ShapePtr shape_of(const T &c, int32_t id_space, const int32_t *provenance) {
    auto shape = std::make_shared<Shape>(Shape{{}, c.k, id_space, c.weights_dtype});
    for (uint32_t l = 0; l < c.layers; l++) {
        const uint32_t k = c.layer_k != nullptr ? c.layer_k[l] : c.k;
        shape->layers.push_back({c.layer_map != nullptr ? c.layer_map[l] : static_cast<int32_t>(l),
                                 c.layer_experts != nullptr ? c.layer_experts[l] : c.experts,
                                 provenance != nullptr ? provenance[l] : 0, k,
                                 c.layer_min_k != nullptr ? c.layer_min_k[l] : k,
                                 c.layer_visit != nullptr ? c.layer_visit[l] : 0});
    }
    return shape;
}
static bool no_weights(int32_t dtype) { return dtype != 0 && !of_weights(dtype); }
// Weights that are given have the dtype of all, and those that are not have none.
static bool fits_not(const Shape &shape, const void *weights, int32_t dtype) {
    return weights != nullptr ? dtype == 0 || dtype != shape.weights : dtype != 0;
}
static int32_t of_batch(bool all) { return answer(all ? ROUTECAP_OK : ROUTECAP_PARTIAL); }

// ---- Capturers and steps

int32_t routecap_capturer_create(const routecap_config *c, routecap_capturer **made) {
    *made = nullptr;
    if (no_weights(c->weights_dtype)) return answer(ROUTECAP_ERR_DTYPE);
    const ShapePtr shape = shape_of(*c, c->id_space, c->layer_provenance);
    const bool external = (c->flags & ROUTECAP_CONFIG_EXTERNAL_SINK) != 0;
    *made = new routecap_capturer{shape, Sink(shape, c->rows, external),
                                  Capturer(shape, c->slots != 0 ? c->slots : 2, c->flags,
                                           c->max_requests != 0 ? c->max_requests : 65536),
                                  (c->flags & ROUTECAP_CONFIG_MAY_LOSE) == 0,
                                  c->sink_dtype != 0 ? c->sink_dtype : ROUTECAP_DTYPE_I16};
    owners[&(*made)->model] = *made;
    return answer(ROUTECAP_OK);
}
void routecap_capturer_destroy(routecap_capturer *c) {
    for (const auto &[step, rows] : c->coming) c->model.lose(step);
    c->model.land();
    owners.erase(&c->model);
    delete c;
}
int32_t routecap_capturer_stats(const routecap_capturer *c, routecap_stats *stats) {
    const uint32_t size = stats->struct_size;
    *stats = c->model.stats;
    stats->struct_size = size, stats->steps_in_flight = c->model.in_flight();
    return answer(ROUTECAP_OK);
}
int32_t routecap_capturer_layer_stats(const routecap_capturer *c, routecap_layer_stats *stats,
                                      size_t size, size_t count) {
    for (size_t l = 0; l < count; l++)
        std::memcpy(reinterpret_cast<char *>(stats) + l * size, &c->model.layer_stats[l],
                    sizeof *stats);
    return answer(ROUTECAP_OK);
}
int32_t routecap_capturer_load(const routecap_capturer *c, routecap_load *load, uint64_t *counts,
                               size_t count) {
    const Load &m = c->model.load;
    *load = {load->struct_size,
             static_cast<uint32_t>(c->shape->cells()),
             c->shape->experts(),
             0,
             m.steps,
             m.first_step,
             m.last_step,
             m.rows[0],
             m.rows[1]};
    for (size_t i = 0; i < count; i++) counts[i] = i < m.counts.size() ? m.counts[i] : 0;
    return answer(ROUTECAP_OK);
}
int32_t routecap_capturer_progress(routecap_capturer *c) {
    c->model.land(c->first());
    return answer(ROUTECAP_OK);
}
int32_t routecap_capturer_probe(routecap_capturer *c, uint32_t rows, routecap_layer_probe *layers,
                                size_t, size_t count, routecap_stream) {
    std::vector<routecap_layer_probe> all(count);
    c->look();
    const int32_t status = c->sink.probe(rows, all);
    if (status >= 0) std::copy(all.begin(), all.end(), layers);
    return answer(status);
}
int32_t routecap_step_begin(routecap_capturer *c, uint32_t rows, routecap_stream) {
    c->look();
    const int32_t status = c->sink.begin(rows);
    c->begun |= status == ROUTECAP_OK;
    if (status == ROUTECAP_OK) is_lost |= !c->model.make_room_for_begin(c->files_in_begin);
    return answer(status);
}
static int32_t record(routecap_capturer *c, const routecap_source &source,
                      const std::vector<routecap_layer_source> &layers) {
    c->look();
    const bool whole = (source.flags & ROUTECAP_SOURCE_WHOLE_STEP) != 0;
    if (whole) c->begun |= c->sink.begin(source.rows) == ROUTECAP_OK;
    const int32_t status = c->sink.record(source, layers);
    if (whole) c->sink.snapshot();
    return answer(status);
}
int32_t routecap_layers_record(routecap_capturer *c, const routecap_source *source,
                               const routecap_layer_source *layers, size_t, size_t count,
                               routecap_stream) {
    if (source->ids != nullptr || source->table != nullptr || source->weights != nullptr)
        return answer(ROUTECAP_ERR_ARGUMENT);
    return record(c, *source, {layers, layers + count});
}
int32_t routecap_layer_record(routecap_capturer *c, uint32_t layer, const routecap_source *source,
                              routecap_stream) {
    return record(c, *source, {{layer, 0, source->ids, source->table, source->weights}});
}
int32_t routecap_sink_bind(routecap_capturer *c, uint32_t first, uint32_t layers,
                           const routecap_sink *sink) {
    const Shape &shape = *c->shape;
    if (first >= shape.cells() || layers > shape.cells() - first)
        return answer(ROUTECAP_ERR_UNKNOWN_LAYER);
    if (sink->ids == nullptr) return answer(ROUTECAP_ERR_ARGUMENT);
    const std::set<int32_t> dtypes = {ROUTECAP_DTYPE_I16, ROUTECAP_DTYPE_I32, ROUTECAP_DTYPE_I64};
    if (dtypes.count(sink->dtype) == 0 || fits_not(shape, sink->weights, sink->weights_dtype))
        return answer(ROUTECAP_ERR_DTYPE);
    const int64_t k = sink->k, rows = sink->rows,
                  row_stride = sink->row_stride != 0 ? sink->row_stride : k,
                  layer_stride = sink->layer_stride != 0 ? sink->layer_stride : rows * row_stride;
    bool fits = sink->rows >= c->sink.rows() && row_stride >= k &&
                (layers == 1 || layer_stride >= (rows - 1) * row_stride + k ||
                 (layer_stride >= k && row_stride >= (layers - 1) * layer_stride + k));
    for (uint32_t l = first; l < first + layers; l++) fits &= shape.layers[l].k == sink->k;
    if (!fits) return answer(ROUTECAP_ERR_SHAPE_MISMATCH);
    const auto bound = [&](uint32_t layer) -> routecap_capturer::Memory {
        const auto at = static_cast<size_t>((layer - first) * layer_stride);
        auto *const ids = static_cast<uint8_t *>(sink->ids);
        auto *const weights = static_cast<uint8_t *>(sink->weights);
        return {sink->dtype, row_stride, ids + at * element_bytes(sink->dtype),
                weights != nullptr ? weights + at * element_bytes(shape.weights) : nullptr};
    };
    for (uint32_t l = first; l < first + layers; l++) {
        const auto known = c->memory.find(l);
        if (known != c->memory.end() ? !known->second.same(bound(l)) : c->begun)
            return answer(ROUTECAP_ERR_STATE);
    }
    for (uint32_t l = first; l < first + layers; l++) c->memory[l] = bound(l);
    c->sink.bind(first, layers, sink->weights != nullptr);
    return answer(ROUTECAP_OK);
}
int32_t routecap_sink_layer(routecap_capturer *c, uint32_t layer, routecap_sink *sink) {
    if (layer >= c->shape->cells()) return answer(ROUTECAP_ERR_UNKNOWN_LAYER);
    *sink = {.struct_size = sink->struct_size};
    const auto *memory = c->memory_of(layer);
    if (memory == nullptr) return answer(ROUTECAP_OK);
    sink->dtype = memory->dtype, sink->ids = memory->ids, sink->rows = c->sink.rows();
    sink->k = c->shape->layers[layer].k, sink->row_stride = memory->row_stride;
    sink->weights = memory->weights;
    if (sink->weights != nullptr) sink->weights_dtype = c->shape->weights;
    return answer(ROUTECAP_OK);
}
int32_t routecap_step_snapshot(routecap_capturer *c, routecap_stream) {
    c->look();
    c->sink.snapshot();
    return answer(ROUTECAP_OK);
}
int32_t routecap_step_discard(routecap_capturer *c, routecap_stream) {
    c->sink.take();
    return answer(ROUTECAP_OK);
}
int32_t routecap_step_issue(routecap_capturer *c, const routecap_span *given, size_t, size_t count,
                            const routecap_issue_options *options, int32_t *status,
                            routecap_step *step, routecap_stream) {
    const routecap_issue_options none{}, &o = options != nullptr ? *options : none;
    std::vector<Span> spans;
    for (size_t i = 0; i < count; i++) spans.push_back({c->open(given[i].request), given[i]});
    const bool later = o.snapshot == ROUTECAP_SNAPSHOT_LATER;
    std::vector<int64_t> positions;
    for (const Span &s : spans)
        for (uint32_t row = s.span.sink_row; row < s.span.sink_row + s.span.rows; row++) {
            positions.resize(std::max<size_t>(positions.size(), row + 1));
            if ((s.span.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0 && !later)
                positions[row] = element(o.positions, o.positions_dtype, row);
        }
    c->look();
    if (o.snapshot == ROUTECAP_SNAPSHOT_MAKE) c->sink.snapshot();
    const bool lost = c->model.full() && count > 0;
    const int32_t all = c->model.issue(spans, positions, o.tag, c->sink.take(), lost, *step);
    for (size_t i = 0; i < count && status != nullptr; i++)
        status[i] = spans[i].request != nullptr ? ROUTECAP_OK : ROUTECAP_ERR_UNKNOWN_REQUEST;
    if (later && c->model.poll(*step) == ROUTECAP_PENDING)
        c->coming[*step] = {{given, given + count}, o.positions, o.positions_dtype};
    return answer(all);
}
// Of rows that may still arrive.
static int32_t arrival_refusal(const routecap_capturer &c, const routecap_sink *rows) {
    if (rows == nullptr) return ROUTECAP_OK;
    const std::set<int32_t> dtypes = {ROUTECAP_DTYPE_I16, ROUTECAP_DTYPE_I32, ROUTECAP_DTYPE_I64};
    if (dtypes.count(rows->dtype) == 0 || fits_not(*c.shape, rows->weights, rows->weights_dtype))
        return ROUTECAP_ERR_DTYPE;
    const bool narrow = (rows->row_stride != 0 && rows->row_stride < rows->k) ||
                        (rows->layer_stride != 0 && rows->layer_stride < rows->k);
    return rows->k != c.shape->k || narrow ? ROUTECAP_ERR_SHAPE_MISMATCH : ROUTECAP_OK;
}
int32_t routecap_step_arrive(routecap_capturer *c, routecap_step step, const routecap_sink *rows) {
    const auto found = c->coming.find(step);
    if (found == c->coming.end())
        return answer(c->model.poll(step) < 0 ? ROUTECAP_ERR_UNKNOWN_STEP : ROUTECAP_OK);
    const Coming coming = found->second;
    if (const int32_t refused = arrival_refusal(*c, rows); refused < 0) return answer(refused);
    c->coming.erase(found);
    if (rows == nullptr) {
        for (const routecap_span &s : coming.spans)  // the model loses no drafts
            is_lost |= (s.flags & ROUTECAP_SPAN_SPECULATIVE) != 0;
        return c->model.lose(step), answer(ROUTECAP_OK);
    }
    Sink pass(c->shape, rows->rows);
    pass.begin(rows->rows);
    const uint32_t k = rows->k;
    const int64_t row_stride = rows->row_stride != 0 ? rows->row_stride : k,
                  layer_stride =
                      rows->layer_stride != 0 ? rows->layer_stride : rows->rows * row_stride;
    for (uint32_t l = 0; l < c->shape->cells(); l++)
        for (uint32_t r = 0; r < rows->rows; r++) {
            std::vector<int64_t> ids;
            const auto at = static_cast<size_t>(l * layer_stride + r * row_stride);
            for (uint32_t column = 0; column < c->shape->layers[l].k; column++)
                ids.push_back(element(rows->ids, rows->dtype, at + column));
            std::optional<std::vector<uint32_t>> weights;
            if (rows->weights != nullptr)
                weights = bits(rows->weights, c->shape->weights, at, ids.size());
            const bool none = std::any_of(ids.begin(), ids.end(),
                                          [&](int64_t id) { return unwritten(id, rows->dtype); });
            if (!none) pass.write(l, r, std::move(ids), std::move(weights));
        }
    pass.snapshot();
    std::vector<int64_t> positions;
    for (const routecap_span &s : coming.spans)
        for (uint32_t row = s.sink_row; row < s.sink_row + s.rows; row++) {
            positions.resize(std::max<size_t>(positions.size(), row + 1));
            if ((s.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0)
                positions[row] = element(coming.positions, coming.dtype, row);
        }
    c->model.arrive(step, pass.take().rows, positions);
    return answer(ROUTECAP_OK);
}
int32_t routecap_step_poll(routecap_capturer *c, routecap_step step) {
    return answer(c->model.poll(step));
}
int32_t routecap_step_finalize(routecap_capturer *c, routecap_step step, int64_t,
                               uint64_t *conflicting) {
    if (c->model.poll(step) == ROUTECAP_PENDING) c->model.land(c->first());
    if (conflicting != nullptr && c->model.poll(step) >= 0)
        *conflicting = c->model.conflicting(step);
    return answer(c->model.poll(step));
}

// ---- Requests

int32_t routecap_request_open(routecap_capturer *c, const routecap_open_options *options,
                              routecap_request *requests, size_t count) {
    const bool fits = c->model.room(count);
    for (size_t i = 0; i < count; i++)
        requests[i] = fits ? c->add(c->model.open(options != nullptr ? options->policy : 0)) : 0;
    return answer(fits ? ROUTECAP_OK : ROUTECAP_ERR_TOO_MANY_REQUESTS);
}
#define OPEN(request)                      \
    const RequestPtr r = c->open(request); \
    if (r == nullptr) return answer(ROUTECAP_ERR_UNKNOWN_REQUEST)
int32_t routecap_request_accept(routecap_capturer *c, routecap_request request, routecap_step step,
                                const uint32_t *rows, size_t count) {
    OPEN(request);
    return answer(c->model.accept(r, step, rows, count));
}
int32_t routecap_request_truncate(routecap_capturer *c, routecap_request request, uint64_t rows) {
    OPEN(request);
    c->model.truncate(r, rows);
    return answer(ROUTECAP_OK);
}
int32_t routecap_request_fork(routecap_capturer *c, routecap_request request, uint64_t rows,
                              routecap_request *child) {
    *child = 0;
    OPEN(request);
    RequestPtr young;
    const int32_t status = c->model.fork(r, rows, young);
    if (status >= 0) *child = c->add(young);
    return answer(status);
}
int32_t routecap_request_attach(routecap_capturer *c, routecap_request request,
                                const routecap_routing *routing, uint64_t rows) {
    OPEN(request);
    return answer(c->model.attach(r, routing->model, rows));
}
int32_t routecap_request_finish(routecap_capturer *c, routecap_request request, uint64_t rows,
                                routecap_routing **routing) {
    *routing = nullptr;
    OPEN(request);
    if (rows != ROUTECAP_ROWS_ALL && rows > ROUTECAP_MAX_POSITION)
        return answer(ROUTECAP_ERR_OUT_OF_RANGE);
    c->requests.erase(request);
    return give(ROUTECAP_OK, c->model.finish(r, rows), routing);
}
int32_t routecap_request_close(routecap_capturer *c, routecap_request request) {
    if (request == 0) return answer(ROUTECAP_OK);
    OPEN(request);
    c->requests.erase(request);
    c->model.close(r);
    return answer(ROUTECAP_OK);
}
int32_t routecap_request_coverage(routecap_capturer *c, routecap_request request, uint64_t first,
                                  uint64_t rows, routecap_coverage *coverage,
                                  routecap_missing *missing, size_t, size_t capacity) {
    OPEN(request);
    Routing routing;
    const int32_t status = c->model.read(r, first, rows, false, routing);
    if (status < 0) return answer(status);
    const uint32_t size = coverage->struct_size;
    std::vector<routecap_missing> blocks;
    *coverage = routing.coverage(r->length(), blocks);
    coverage->struct_size = size;
    std::copy_n(blocks.begin(), std::min(capacity, blocks.size()), missing);
    return answer(blocks.empty() ? ROUTECAP_OK : ROUTECAP_INCOMPLETE);
}
int32_t routecap_request_extract(routecap_capturer *c, routecap_request request, uint64_t first,
                                 uint64_t rows, int32_t mode, uint32_t flags,
                                 routecap_routing **routing) {
    *routing = nullptr;
    OPEN(request);
    RoutingPtr extracted;
    const int32_t status = c->model.extract(r, first, rows, mode, flags, extracted);
    return give(status, extracted, routing);
}
static int32_t copy(const Copied &copied, const routecap_copy_options *o, void *dst,
                    size_t dst_bytes, uint8_t *mask, size_t mask_bytes, uint64_t *needed) {
    if (copied.refusal < 0) return answer(copied.refusal);
    if (needed != nullptr) *needed = copied.needed;
    if (copied.needed > dst_bytes || (mask != nullptr && copied.mask_needed > mask_bytes))
        return answer(ROUTECAP_ERR_BUFFER_TOO_SMALL);
    const int32_t status = copied.status(o->flags);
    if (status >= 0) copied.write(*o, static_cast<uint8_t *>(dst), mask);
    return answer(status);
}
int32_t routecap_request_extract_into(routecap_capturer *c, routecap_request request,
                                      uint64_t first, uint64_t rows, const routecap_copy_options *o,
                                      void *dst, size_t dst_bytes, uint8_t *mask, size_t mask_bytes,
                                      uint64_t *needed) {
    OPEN(request);
    Routing routing;
    const int32_t status = c->model.read(r, first, rows, false, routing);
    if (status < 0) return answer(status);
    return copy(copied(*o, mask != nullptr, routing), o, dst, dst_bytes, mask, mask_bytes, needed);
}

// Of each item of a batch, what it would be alone.
int32_t routecap_request_accept_batch(routecap_capturer *c, routecap_accept_item *items, size_t,
                                      size_t count) {
    bool all = true;
    for (size_t i = 0; i < count; i++) {
        auto &[request, step, rows, kept, status, reserved] = items[i];
        all &= (status = routecap_request_accept(c, request, step, rows, kept)) == ROUTECAP_OK;
    }
    return of_batch(all);
}
int32_t routecap_request_extract_batch(routecap_capturer *c, routecap_extract_item *items, size_t,
                                       size_t count) {
    bool all = true;
    for (size_t i = 0; i < count; i++) {
        routecap_extract_item &one = items[i];
        one.status = routecap_request_extract(c, one.request, one.first, one.rows, one.mode,
                                              one.flags, &one.routing);
        all &= one.status == ROUTECAP_OK;
    }
    return of_batch(all);
}
int32_t routecap_request_finish_batch(routecap_capturer *c, routecap_finish_item *items, size_t,
                                      size_t count) {
    bool all = true;
    for (size_t i = 0; i < count; i++) {
        items[i].status =
            routecap_request_finish(c, items[i].request, items[i].rows, &items[i].routing);
        all &= items[i].status == ROUTECAP_OK;
    }
    return of_batch(all);
}
int32_t routecap_request_close_batch(routecap_capturer *c, const routecap_request *requests,
                                     int32_t *status, size_t count) {
    bool all = true;
    for (size_t i = 0; i < count; i++) {
        const int32_t one = routecap_request_close(c, requests[i]);
        if (status != nullptr) status[i] = one;
        all &= one == ROUTECAP_OK;
    }
    return of_batch(all);
}

// ---- Stores

int32_t routecap_store_create(const routecap_store_config *config, const routecap_config *of,
                              routecap_store **store) {
    *store = new routecap_store{std::make_shared<Store>(Store{
                                    .slots = (config->flags & ROUTECAP_STORE_SLOT_KEYS) != 0,
                                    .block_rows = config->block_rows != 0 ? config->block_rows : 16,
                                    .generation = config->generation}),
                                config->key_bytes != 0 ? config->key_bytes : 32,
                                shape_of(*of, of->id_space, of->layer_provenance)};
    return answer(ROUTECAP_OK);
}
void routecap_store_free(routecap_store *store) { delete store; }
int32_t routecap_store_stats(const routecap_store *store, routecap_store_counts *counts) {
    const uint32_t size = counts->struct_size;
    const Store &m = *store->model;
    *counts = m.counts;
    counts->struct_size = size, counts->block_rows = m.block_rows;
    counts->key_bytes = store->key_bytes, counts->generation = m.generation;
    counts->flags = m.slots ? ROUTECAP_STORE_SLOT_KEYS : 0;
    counts->blocks = m.blocks.size(), counts->blocks_in_flight = m.kept().in_flight;
    counts->blocks_retained = m.kept().retained;
    return answer(ROUTECAP_OK);
}
int32_t routecap_store_advance(routecap_store *store, uint64_t generation) {
    store->model->generation = std::max(store->model->generation, generation);
    return answer(ROUTECAP_OK);
}
static std::vector<uint64_t> keys_of(const routecap_store *store, const void *keys, size_t count) {
    std::vector<uint64_t> all;
    for (size_t i = 0; i < count; i++) all.push_back(key(keys, i, store->key_bytes));
    return all;
}
int32_t routecap_store_contains(routecap_store *store, const void *keys, size_t count,
                                uint64_t generation, int32_t *reasons, uint64_t *leading) {
    if (generation > store->model->generation) return answer(ROUTECAP_ERR_STATE);
    uint64_t n = 0;
    for (size_t i = 0; i < count; i++) {
        reasons[i] = store->model->why(key(keys, i, store->key_bytes), generation);
        n += reasons[i] == 0 && n == i;
    }
    if (leading != nullptr) *leading = n;
    return answer(ROUTECAP_OK);
}
int32_t routecap_store_retain(routecap_store *store, const void *keys, size_t count,
                              int32_t *reasons) {
    for (size_t i = 0; i < count; i++)
        reasons[i] = store->model->retain(key(keys, i, store->key_bytes));
    return answer(ROUTECAP_OK);
}
int32_t routecap_store_release(routecap_store *store, const void *keys, size_t count) {
    for (const uint64_t each : keys_of(store, keys, count)) store->model->release(each);
    return answer(ROUTECAP_OK);
}
int32_t routecap_store_evict(routecap_store *store, const void *keys, size_t count,
                             uint64_t *evicted) {
    const uint64_t before = store->model->counts.blocks_evicted;
    for (const uint64_t each : keys_of(store, keys, count)) store->model->evict(each);
    if (evicted != nullptr) *evicted = store->model->counts.blocks_evicted - before;
    return answer(ROUTECAP_OK);
}
int32_t routecap_request_publish(routecap_capturer *c, routecap_request request,
                                 routecap_store *store, uint64_t first, const void *keys,
                                 size_t count, uint64_t generation) {
    OPEN(request);
    if (!store->shape->takes(*c->shape)) return answer(ROUTECAP_ERR_SHAPE_MISMATCH);
    const std::vector<uint64_t> all = keys_of(store, keys, count);
    return answer(c->model.publish(r, store->model, first, all, generation));
}
int32_t routecap_request_adopt(routecap_capturer *c, routecap_request request,
                               routecap_store *store, uint64_t first, const void *keys,
                               size_t count, uint64_t generation, routecap_adoption *found) {
    OPEN(request);
    if (!c->shape->takes(*store->shape)) return answer(ROUTECAP_ERR_SHAPE_MISMATCH);
    if (first > ROUTECAP_MAX_POSITION - count * store->model->block_rows)
        return answer(ROUTECAP_ERR_OUT_OF_RANGE);
    const std::vector<uint64_t> all = keys_of(store, keys, count);
    return answer(c->model.adopt(r, *store->model, first, all, generation, *found));
}
int32_t routecap_request_publish_batch(routecap_capturer *c, routecap_store *store,
                                       routecap_publish_item *items, size_t, size_t count,
                                       uint64_t generation) {
    bool all = true;
    for (size_t i = 0; i < count; i++) {
        items[i].status = routecap_request_publish(c, items[i].request, store, items[i].first,
                                                   items[i].keys, items[i].count, generation);
        all &= items[i].status == ROUTECAP_OK;
    }
    return of_batch(all);
}
int32_t routecap_request_adopt_batch(routecap_capturer *c, routecap_store *store,
                                     routecap_adopt_item *items, size_t, size_t count,
                                     uint64_t generation) {
    bool all = true;
    for (size_t i = 0; i < count; i++) {
        routecap_adopt_item &one = items[i];
        routecap_adoption found{};
        one.status = routecap_request_adopt(c, one.request, store, one.first, one.keys, one.count,
                                            generation, &found);
        one.rows = found.rows, one.found = found.found, one.evicted = found.evicted;
        one.not_published = found.not_published, one.stale = found.stale;
        all &= one.status == ROUTECAP_OK;
    }
    return of_batch(all);
}

// ---- Routings

int32_t routecap_routing_poll(const routecap_routing *r) {
    return answer(r->model->pending != nullptr ? ROUTECAP_PENDING : r->model->status());
}
int32_t routecap_routing_wait(const routecap_routing *r, int64_t) {
    if (r->model->pending != nullptr) {
        routecap_capturer *owner = owners.at(r->model->pending);
        owner->model.land(owner->first());
    }
    return routecap_routing_poll(r);
}
int32_t routecap_routing_retain(const routecap_routing *r) {
    const_cast<routecap_routing *>(r)->references++;
    return answer(ROUTECAP_OK);
}
void routecap_routing_free(routecap_routing *r) {
    if (--r->references == 0) delete r;
}
#define READY(r) \
    if ((r)->model->pending != nullptr) return answer(ROUTECAP_ERR_NOT_READY)
int32_t routecap_routing_coverage(const routecap_routing *r, routecap_coverage *coverage,
                                  routecap_missing *missing, size_t, size_t capacity) {
    READY(r);
    const uint32_t size = coverage->struct_size;
    std::vector<routecap_missing> blocks;
    *coverage = r->model->coverage(r->model->end(), blocks);
    coverage->struct_size = size;
    std::copy_n(blocks.begin(), std::min(capacity, blocks.size()), missing);
    return answer(blocks.empty() ? ROUTECAP_OK : ROUTECAP_INCOMPLETE);
}
// One segment a row.
int32_t routecap_routing_view(const routecap_routing *shared, routecap_view *view) {
    READY(shared);
    auto *r = const_cast<routecap_routing *>(shared);
    const Routing &m = *r->model;
    const Shape &shape = *m.shape;
    r->memory.assign(m.rows, {});
    r->segments.clear(), r->map.clear(), r->provenance.clear(), r->experts.clear();
    r->k.clear(), r->least.clear(), r->visit.clear();
    for (const Layer &layer : shape.layers)
        r->map.push_back(layer.index), r->experts.push_back(layer.experts),
            r->provenance.push_back(layer.provenance), r->k.push_back(layer.k),
            r->least.push_back(layer.least), r->visit.push_back(layer.visit);
    for (uint64_t i = 0; i < m.rows; i++) {
        const RowPtr row = m.at(m.first + i);
        routecap_segment segment{};
        segment.first = m.first + i, segment.rows = 1;
        const bool there = row != nullptr && row->reason() == 0;
        segment.reason = there ? 0 : row != nullptr ? row->reason() : ROUTECAP_MISSING_ABSENT;
        if (there) {
            r->memory[i] = shape.record(*row);
            const uint8_t *const record = r->memory[i].data();
            segment.ids = record, segment.tag = row->tag;
            segment.validity = record + shape.cells() * shape.k * shape.id_bytes();
            if (shape.weights != 0) {
                segment.weights = record + shape.weights_begin();
                segment.weights_validity = segment.validity + (shape.cells() + 7) / 8;
            }
        }
        r->segments.push_back(segment);
    }
    view->dtype = shape.dtype(), view->weights_dtype = shape.weights,
    view->layers = static_cast<uint32_t>(shape.cells());
    view->k = shape.k, view->experts = shape.experts();
    view->validity_bytes = static_cast<uint32_t>((shape.cells() + 7) / 8);
    view->id_space = shape.id_space, view->complete = m.status() == ROUTECAP_OK;
    view->first = m.first, view->rows = m.rows, view->row_stride = shape.stride();
    view->layer_map = r->map.data(), view->layer_experts = r->experts.data();
    view->layer_provenance = r->provenance.data();
    view->layer_k = r->k.data(), view->layer_min_k = r->least.data();
    view->layer_visit = r->visit.data();
    view->segments = r->segments.data(), view->segment_size = sizeof(routecap_segment);
    view->segment_count = r->segments.size();
    return answer(ROUTECAP_OK);
}
int32_t routecap_routing_copy_to(const routecap_routing *r, const routecap_copy_options *o,
                                 void *dst, size_t dst_bytes, uint8_t *mask, size_t mask_bytes,
                                 uint64_t *needed) {
    READY(r);
    return copy(copied(*o, mask != nullptr, *r->model), o, dst, dst_bytes, mask, mask_bytes,
                needed);
}
int32_t routecap_routing_copy_weights(const routecap_routing *r, const routecap_copy_options *o,
                                      void *dst, size_t dst_bytes, uint8_t *mask, size_t mask_bytes,
                                      uint64_t *needed) {
    READY(r);
    return copy(copied_weights(*o, *r->model), o, dst, dst_bytes, mask, mask_bytes, needed);
}
int32_t routecap_routing_split(const routecap_routing *r, uint64_t prompt, uint64_t generated,
                               routecap_routing **a, routecap_routing **b) {
    *a = *b = nullptr;
    READY(r);
    const Routing &m = *r->model;
    const uint64_t middle = std::clamp(prompt, m.first, m.end());
    *a = new routecap_routing{std::make_shared<Routing>(m.part(m.first, middle - m.first))};
    *b = new routecap_routing{
        std::make_shared<Routing>(m.part(middle, std::min(generated, m.end() - middle)))};
    return answer(ROUTECAP_OK);
}
int32_t routecap_routing_slice(const routecap_routing *r, uint64_t first, uint64_t rows,
                               routecap_routing **slice) {
    *slice = nullptr;
    READY(r);
    const Routing &m = *r->model;
    if (first < m.first || first > m.end() || (rows != ROUTECAP_ROWS_ALL && rows > m.end() - first))
        return answer(ROUTECAP_ERR_OUT_OF_RANGE);
    const uint64_t kept = rows == ROUTECAP_ROWS_ALL ? m.end() - first : rows;
    return give(ROUTECAP_OK, std::make_shared<Routing>(m.part(first, kept)), slice);
}
int32_t routecap_routing_merge(const routecap_routing *const *all, size_t count, uint32_t,
                               routecap_routing **merged) {
    std::vector<RoutingPtr> routings;
    for (size_t i = 0; i < count; i++) routings.push_back(all[i]->model);
    RoutingPtr united;
    const int32_t status = model::merge(routings, united);
    return give(status, united, merged);
}
int32_t routecap_routing_serialize(const routecap_routing *r, void *dst, size_t bytes,
                                   uint64_t *needed) {
    READY(r);
    const std::vector<uint8_t> data = r->model->serialize();
    if (needed != nullptr) *needed = data.size();
    if (data.size() > bytes) return answer(ROUTECAP_ERR_BUFFER_TOO_SMALL);
    std::copy(data.begin(), data.end(), static_cast<uint8_t *>(dst));
    return answer(ROUTECAP_OK);
}
int32_t routecap_routing_deserialize(const void *data, size_t bytes, uint32_t flags,
                                     routecap_release release, void *context,
                                     routecap_routing **routing) {
    const auto *from = static_cast<const uint8_t *>(data);
    const auto read = reader::parse({from, from + bytes}, flags == ROUTECAP_IMPORT_TRUSTED);
    if (!read) return give(ROUTECAP_ERR_FORMAT, nullptr, routing);
    if (release != nullptr) release(context);
    return give(read->status(), std::make_shared<Routing>(*read), routing);
}
// A row of a segment, or nullptr if it cannot be.
static RowPtr imported(const routecap_view &v, const Shape &shape, const routecap_segment &s,
                       uint64_t at, bool trusted) {
    const size_t cells = shape.cells(), k = shape.k, bits_of_layers = (cells + 7) / 8;
    const auto row_of = [&](const void *array, size_t bytes) {
        return static_cast<const uint8_t *>(array) +
               at * (v.row_stride != 0 ? v.row_stride : bytes);
    };
    const auto said = [&](const uint8_t *validity, size_t layer) {
        return (row_of(validity, bits_of_layers)[layer / 8] >> layer % 8 & 1) != 0;
    };
    auto row = empty_row(shape, ROUTECAP_MISSING_UNWRITTEN);
    row->tag = s.tags != nullptr ? s.tags[at] : s.tag;
    const uint8_t *ids = row_of(s.ids, cells * k * shape.id_bytes());
    for (size_t bit = cells; bit < bits_of_layers * 8; bit++)
        for (const uint8_t *validity : {s.validity, s.weights_validity})
            if (validity != nullptr && said(validity, bit)) return nullptr;
    for (size_t l = 0; l < cells; l++) {
        const bool valid = s.validity == nullptr || said(s.validity, l);
        std::vector<int64_t> cell;
        for (size_t c = 0; c < k; c++) {
            const auto id = static_cast<uint16_t>(element(ids, v.dtype, l * k + c));
            const bool unused = shape.fewer() && id == shape.in_memory(kUnused);
            cell.push_back(unused ? ROUTECAP_NO_EXPERT : id);
            if (valid) row->ids[l * k + c] = unused ? kUnused : id;
        }
        if (valid && !trusted && judge(cell, shape.layers[l]) != 0) return nullptr;
        // Memory of others may say anything.
        const int64_t reason = element(ids, v.dtype, l * k);
        const bool known = reason >= ROUTECAP_MISSING_ABSENT && reason < 32 &&
                           rank(static_cast<uint8_t>(reason)) > 0;
        if (valid)
            row->missing[l] = 0;
        else if (known)
            row->ids[l * k] = row->missing[l] = static_cast<uint8_t>(reason);
        if (s.weights == nullptr) continue;
        if (s.weights_validity != nullptr ? !said(s.weights_validity, l) : !valid) continue;
        const std::vector<uint32_t> given = bits(
            row_of(s.weights, cells * k * element_bytes(shape.weights)), shape.weights, l * k, k);
        const auto experts = std::find(cell.begin(), cell.end(), ROUTECAP_NO_EXPERT) - cell.begin();
        const auto weights = shape.weigh(static_cast<size_t>(experts), &given);
        if (!valid || !weights) return nullptr;
        row->weights[l] = *weights;
    }
    return row;
}
int32_t routecap_routing_import(const routecap_view *v, uint32_t flags, routecap_release release,
                                void *context, routecap_routing **routing) {
    const ShapePtr shape = shape_of(*v, v->id_space, v->layer_provenance);
    if (no_weights(v->weights_dtype) || v->dtype != shape->dtype())
        return give(ROUTECAP_ERR_DTYPE, nullptr, routing);
    const size_t of_row =
        shape->weights_begin() +
        shape->cells() * shape->k * (shape->weights != 0 ? element_bytes(shape->weights) : 0);
    if (v->row_stride != 0 &&
        (v->row_stride < of_row || v->row_stride % shape->id_bytes() != 0 ||
         (shape->weights != 0 && v->row_stride % element_bytes(shape->weights) != 0)))
        return give(ROUTECAP_ERR_SHAPE_MISMATCH, nullptr, routing);
    auto made = std::make_shared<Routing>(Routing{shape, v->first, v->rows});
    for (size_t i = 0; i < v->segment_count; i++) {
        const routecap_segment &s = v->segments[i];
        for (uint64_t at = 0; at < s.rows; at++) {
            RowPtr &row = made->content[s.first + at];
            row = s.ids != nullptr
                      ? imported(*v, *shape, s, at, (flags & ROUTECAP_IMPORT_TRUSTED) != 0)
                      : empty_row(*shape, static_cast<uint8_t>(
                                              s.reason != 0 ? s.reason : ROUTECAP_MISSING_ABSENT));
            if (row == nullptr) return give(ROUTECAP_ERR_FORMAT, nullptr, routing);
        }
    }
    if (release != nullptr) release(context);
    return give(made->status(), made, routing);
}
int32_t routecap_serialized_info(const void *data, size_t bytes, routecap_serialized *info) {
    if (bytes < ROUTECAP_SERIALIZED_MIN) return answer(ROUTECAP_ERR_BUFFER_TOO_SMALL);
    const auto *from = static_cast<const uint8_t *>(data);
    const auto f = reader::fixed({from, from + bytes});
    if (!f) return answer(ROUTECAP_ERR_FORMAT);
    info->version = 1, info->bytes = f->bytes, info->header_bytes = f->header_bytes;
    info->first = f->first, info->rows = f->rows;
    info->layers = static_cast<uint32_t>(f->layers), info->k = static_cast<uint32_t>(f->k);
    info->dtype = static_cast<int32_t>(f->dtype);
    info->id_space = static_cast<int32_t>(f->id_space);
    info->weights_dtype = static_cast<int32_t>(f->weights);
    return answer(ROUTECAP_OK);
}
int32_t routecap_serialized_splice(const void *head, size_t head_bytes, const void *tail,
                                   size_t tail_bytes, uint64_t row, void *header, size_t capacity,
                                   routecap_piece *pieces, size_t, size_t,
                                   routecap_splice *splice) {
    const auto *a = static_cast<const uint8_t *>(head), *b = static_cast<const uint8_t *>(tail);
    const auto whole_a = reader::parse({a, a + head_bytes}, true),
               whole_b = reader::parse({b, b + tail_bytes}, true);
    if (!whole_a || !whole_b) return answer(ROUTECAP_ERR_FORMAT);
    const RoutingPtr made = model::splice(*whole_a, *whole_b, row);
    if (made == nullptr) return answer(ROUTECAP_ERR_SHAPE_MISMATCH);
    const std::vector<uint8_t> data = made->serialize();
    const uint64_t header_bytes = reader::fixed(data)->header_bytes;
    // The rows of each that are there, from a position to another.
    std::vector<routecap_piece> all = {{0, header_bytes, ROUTECAP_PIECE_HEADER, 0}};
    const auto add = [&](const Routing &of, const uint8_t *bytes, size_t size, uint64_t from,
                         uint64_t end, int32_t source) {
        uint64_t before = 0, rows = 0;
        for (const auto &[position, each] : of.content) {
            before += each->reason() == 0 && position < from;
            rows += each->reason() == 0 && position >= from && position < end;
        }
        const auto f = reader::fixed({bytes, bytes + size});
        if (rows > 0)
            all.push_back({f->header_bytes + before * f->stride, rows * f->stride, source, 0});
    };
    add(*whole_a, a, head_bytes, 0, row, ROUTECAP_PIECE_HEAD);
    add(*whole_b, b, tail_bytes, row, UINT64_MAX, ROUTECAP_PIECE_TAIL);
    splice->pieces = static_cast<uint32_t>(all.size());
    splice->bytes = data.size(), splice->header_bytes = header_bytes;
    if (capacity < header_bytes) return answer(ROUTECAP_ERR_BUFFER_TOO_SMALL);
    std::copy_n(data.begin(), header_bytes, static_cast<uint8_t *>(header));
    std::copy(all.begin(), all.end(), pieces);
    return answer(ROUTECAP_OK);
}

// ---- Sequences

int32_t routecap_sequence_create(const routecap_sequence_config *c, routecap_sequence **sequence) {
    *sequence = nullptr;
    if (no_weights(c->weights_dtype)) return answer(ROUTECAP_ERR_DTYPE);
    *sequence = new routecap_sequence{};
    (*sequence)->model.shape = shape_of(*c, c->id_space, nullptr);
    return answer(ROUTECAP_OK);
}
void routecap_sequence_free(routecap_sequence *sequence) { delete sequence; }
int32_t routecap_sequence_append(routecap_sequence *sequence, const int32_t *tokens,
                                 uint64_t token_start, uint64_t count,
                                 const routecap_routing *routing,
                                 const routecap_append_options *options,
                                 routecap_append_report *report) {
    if (routing != nullptr) READY(routing);
    Append call{
        {tokens, tokens + count}, token_start, routing != nullptr ? routing->model : nullptr};
    if (options != nullptr) call.options = *options;
    const uint32_t size = report->struct_size;
    const int32_t status = model::append(sequence->model, call, *report);
    report->struct_size = size;
    return answer(status);
}
int32_t routecap_sequence_truncate(routecap_sequence *sequence, uint64_t tokens) {
    sequence->model.cut(tokens);
    return answer(ROUTECAP_OK);
}
int32_t routecap_sequence_fork(const routecap_sequence *sequence, uint64_t tokens,
                               routecap_sequence **child) {
    *child = nullptr;
    const uint64_t length = sequence->model.tokens.size();
    if (tokens != ROUTECAP_ROWS_ALL && tokens > length) return answer(ROUTECAP_ERR_OUT_OF_RANGE);
    *child = new routecap_sequence{sequence->model};
    (*child)->model.cut(std::min(tokens, length));
    return answer(ROUTECAP_OK);
}
int32_t routecap_sequence_routing(const routecap_sequence *sequence, routecap_routing **routing) {
    auto all = std::make_shared<Routing>(sequence->model.routing());
    const int32_t status = all->status();
    return give(status, std::move(all), routing);
}
int32_t routecap_sequence_spans(const routecap_sequence *sequence, routecap_sequence_span *spans,
                                size_t, size_t capacity, uint64_t *count) {
    const auto all = sequence->model.spans();
    std::copy_n(all.begin(), std::min(capacity, all.size()), spans);
    if (count != nullptr) *count = all.size();
    return answer(ROUTECAP_OK);
}
int32_t routecap_sequence_tokens(const routecap_sequence *sequence, uint64_t first, int32_t *tokens,
                                 size_t capacity, uint64_t *count) {
    const Tokens &all = sequence->model.tokens;
    if (first > all.size()) return answer(ROUTECAP_ERR_OUT_OF_RANGE);
    const uint64_t left = all.size() - first;
    std::copy_n(all.begin() + static_cast<ptrdiff_t>(first), std::min<uint64_t>(capacity, left),
                tokens);
    if (count != nullptr) *count = left;
    return answer(ROUTECAP_OK);
}
int32_t routecap_sequence_report(const routecap_sequence *sequence,
                                 routecap_append_report *report) {
    const uint32_t size = report->struct_size;
    *report = sequence->model.sums;
    report->struct_size = size, report->tokens = sequence->model.tokens.size();
    report->rows_missing = sequence->model.missing();
    return answer(ROUTECAP_OK);
}
const char *routecap_last_error(void) { return text.c_str(); }

// ---- What the model answers ----------------------------------------------------------------

namespace author {
namespace {

// Refusals that the model decides; a call that is refused otherwise does nothing.
const std::map<std::string, std::set<std::string>> kDecides = {
    {"UNKNOWN_REQUEST", {}},
    {"UNKNOWN_STEP", {}},
    {"OUT_OF_RANGE", {}},
    {"NOT_READY", {}},
    {"INCOMPLETE", {}},
    {"RECOMPUTED", {}},
    {"TOO_MANY_REQUESTS", {}},
    {"BUFFER_TOO_SMALL", {}},
    {"ARGUMENT",
     {"request_extract_into", "routing_copy_to", "routing_copy_weights", "layers_record",
      "sink_bind"}},
    {"DTYPE",
     {"request_extract_into", "routing_copy_to", "routing_copy_weights", "capturer_create",
      "layer_record", "layers_record", "routing_import", "sequence_create", "sink_bind",
      "step_arrive"}},
    {"UNKNOWN_LAYER",
     {"request_extract_into", "routing_copy_to", "routing_copy_weights", "layer_record",
      "layers_record", "sink_bind", "sink_layer", "capturer_probe"}},
    {"CAPACITY", {"step_begin", "layer_record", "layers_record", "capturer_probe"}},
    {"CONFLICT", {"routing_merge", "layer_record", "layers_record", "sequence_append"}},
    {"SHAPE_MISMATCH",
     {"routing_merge", "routing_import", "layer_record", "layers_record", "request_attach",
      "request_publish", "request_adopt", "sequence_append", "serialized_splice", "sink_bind",
      "step_arrive"}},
    {"STATE",
     {"capturer_probe", "layer_record", "layers_record", "sink_bind", "request_publish",
      "request_adopt", "sequence_append", "store_contains"}},
    {"FORMAT", {"routing_deserialize", "routing_import", "serialized_info", "serialized_splice"}},
};
// Calls that the model does not answer, and that do nothing to what it answers.
const std::set<std::string> kAside = {
    "version",
    "get_api",
    "status_name",
    "backend_info",
    "config_init",
    "config_memory",
    "router_init",
    "copy_options_init",
    "sequence_serialize",
    "sequence_deserialize",
    "store_config_init",
    "key_chain",
};
// Those that do: nothing behind them is answered.
const std::set<std::string> kOver = {"layer_route"};
struct Counts {
    size_t calls = 0, answered = 0, vectors = 0, whole = 0;
    std::map<std::string, size_t> left;
} counts;

void names(const json &value, std::set<std::string> &found) {
    if (value.is_string()) found.insert(value.get<std::string>());
    if (value.is_structured())
        for (const json &each : value) names(each, found);
}

}  // namespace

bool lost() { return std::exchange(is_lost, false); }

std::string Vector::reason(const json &call) const {
    const auto name = call["call"].get<std::string>();
    const json &in = call["in"];
    if (!over_.empty()) return over_;
    if (in.contains("budget_pages")) return "a budget";
    const json config = in.value("config", json::object());
    if (name == "capturer_create" && config.value("role", 0) != ROUTECAP_ROLE_OWNER)
        return "a capturer that owns no rows";
    if (name == "capturer_create" && (config.value("flags", 0) & ROUTECAP_CONFIG_CHECKED) != 0)
        return "checked mode";
    if (kOver.count(name) > 0 || kAside.count(name) > 0) return name;
    std::set<std::string> used;
    names(in, used);
    for (const std::string &each : unknown_)
        if (used.count(each) > 0) return "of what was left out";
    if (in.contains("null")) return "NULL";
    const auto status = call.value("status", std::string("ROUTECAP_OK"));
    if (status.rfind("ROUTECAP_ERR_", 0) != 0) return "";
    const auto decided = kDecides.find(status.substr(13));
    if (decided != kDecides.end() && (decided->second.empty() || decided->second.count(name) > 0))
        return "";
    return "refusals that it does not decide";
}

bool Vector::answers(const json &call) {
    if (const bool unsure = lost(); unsure && over_.empty())
        over_ = "a begin that files a step beside changes, or drafts that are lost";
    const std::string why = reason(call);
    counts.calls++;
    counts.answered += why.empty();
    if (why.empty()) return true;
    counts.left[why]++;
    whole_ = false;
    const auto name = call["call"].get<std::string>();
    if (kOver.count(name) > 0 || why == "a budget" || why == "checked mode") over_ = why;
    if (call.contains("out")) names(call["out"], unknown_);
    return false;
}

bool Vector::answered(json call, const json &wrong) {
    if (wrong.contains("status")) call["status"] = wrong["status"];
    return answers(call) && kUnknown.count(wrong["field"]) == 0;
}

Vector::~Vector() { counts.vectors++, counts.whole += whole_; }

std::string summary() {
    std::ostringstream lines;
    lines << "author: the model answers " << counts.answered << " of " << counts.calls
          << " calls, and all of " << counts.whole << " of " << counts.vectors << " vectors\n";
    for (const auto &[why, n] : counts.left)
        lines << "author: " << n << " calls have none: " << why << "\n";
    return lines.str();
}

}  // namespace author
