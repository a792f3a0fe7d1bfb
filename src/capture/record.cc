// Recording: where ids come into the sink by a call, and the probe that looks at what came.
// Arguments are checked here; the work is the backend's.
#include "backend/sink.h"
#include "base/status.h"
#include "base/structs.h"
#include "capture/forward_path.h"
#include "capture/probe.h"
#include "capture/received.h"
#include "capture/routing_method.h"

namespace routecap {

// ---- Where rows go --------------------------------------------------------------------------

int32_t ForwardPath::check_placement(const kernels::Placement &to) const {
    if (to.rows > config_.rows ||
        (to.row_index == nullptr && to.first_row > config_.rows - to.rows))
        return report(ROUTECAP_ERR_CAPACITY, "rows [%u,%llu) of a sink of %u", to.first_row,
                      ull(to.first_row) + to.rows, config_.rows);
    return ROUTECAP_OK;
}

// A layer that can be written, in rows that were not written before as far as the host knows.
int32_t ForwardPath::check_layer(uint32_t layer, const kernels::Placement &to,
                                 bool capturing) const {
    if (int32_t s = check_exists(layer); s < 0) return s;
    if (backend_->sink().layers()[layer].ids == nullptr)
        return report(ROUTECAP_ERR_STATE, "layer %u has no sink yet", layer);
    const Recorded &recorded = recorded_[layer];
    if (!known(to, capturing) || recorded.begin != begins_) return ROUTECAP_OK;
    for (const auto &[first, end] : recorded.rows)
        if (std::max(first, to.first_row) < std::min(end, to.first_row + to.rows))
            return report(
                ROUTECAP_ERR_CONFLICT,
                "rows [%u,%u) of layer %u were recorded in this step already, at least in part",
                to.first_row, to.first_row + to.rows, layer);
    return ROUTECAP_OK;
}

// In checked mode: that a step was begun with these rows, and that the device can read where they
// go.
int32_t ForwardPath::check_forward(const kernels::Placement &to) const {
    if (!check_) return ROUTECAP_OK;
    if (int32_t s = check_->check_memory(
            {{to.live_rows, "live_rows"}, {to.row_base, "row_base"}, {to.row_index, "row_index"}});
        s < 0)
        return s;
    return check_->before_write(to);
}

// Whether the host knows which rows of which step are written.
bool ForwardPath::known(const kernels::Placement &to, bool capturing) const {
    return begun_ && !capturing && to.row_index == nullptr && to.live_rows == nullptr &&
           to.row_base == nullptr;
}

// Before the launch, so that nothing fails after it.
void ForwardPath::make_room(uint32_t layer) {
    auto &rows = recorded_[layer].rows;
    if (rows.size() == rows.capacity()) rows.reserve(2 * rows.size() + 4);
}

void ForwardPath::note_recorded(uint32_t layer, const kernels::Placement &to,
                                bool capturing) noexcept {
    if (!known(to, capturing)) return;
    Recorded &recorded = recorded_[layer];
    if (recorded.begin != begins_) {
        recorded.begin = begins_;
        recorded.rows.clear();
    }
    if (!recorded.rows.empty() && recorded.rows.back().second == to.first_row)
        recorded.rows.back().second = to.first_row + to.rows;
    else
        recorded.rows.emplace_back(to.first_row, to.first_row + to.rows);
}

// ---- Ids ------------------------------------------------------------------------------------

// The widest of the layers that a source is for, which must all allow what it says.
int32_t ForwardPath::check_columns(const routecap_source &s, std::span<const RecordedLayer> layers,
                                   uint32_t &k) const {
    const Shape &shape = *config_.shape;
    k = 1;
    const uint32_t k_source = s.k_source != 0 ? s.k_source : shape.k;
    bool may_be_fewer = layers.empty();
    for (const RecordedLayer &l : layers) {
        if (int32_t status = check_exists(l.layer); status < 0) return status;
        const kernels::CellRule &rule = shape.rules[l.layer];
        k = std::max<uint32_t>(k, rule.k);
        if (k_source < rule.k)
            return report(ROUTECAP_ERR_SHAPE_MISMATCH,
                          "the source has %u columns, a row of layer %u %u", k_source, l.layer,
                          rule.k);
        may_be_fewer |= rule.least < rule.k;
    }
    if (s.none != 0 && !may_be_fewer)
        return report(ROUTECAP_ERR_ARGUMENT,
                      "source.none is %d, and every token has %u experts in layer %u: see "
                      "config.layer_min_k",
                      s.none, shape.rules[layers[0].layer].k, layers[0].layer);
    return ROUTECAP_OK;
}

int32_t ForwardPath::check_source(const routecap_source &s, std::span<const RecordedLayer> layers,
                                  kernels::Source &source, uint32_t &k) const {
    const uint32_t element = source_element_bytes(s.dtype);
    if (element == 0) return report(ROUTECAP_ERR_DTYPE, "dtype %d is not a source's", s.dtype);
    const uint32_t k_source = s.k_source != 0 ? s.k_source : config_.shape->k;
    if (int32_t status = check_columns(s, layers, k); status < 0) return status;
    if ((s.flags & ~(ROUTECAP_SOURCE_OVERLAP | ROUTECAP_SOURCE_WHOLE_STEP)) != 0)
        return report(ROUTECAP_ERR_ARGUMENT, "source.flags is %u", s.flags);
    const int64_t row_stride = s.row_stride != 0 ? s.row_stride : k_source,
                  column_stride = s.column_stride != 0 ? s.column_stride : 1;
    const bool dense = s.row_stride == 0 && s.column_stride == 0;
    if (int32_t status = check_stated_bytes(
            s.ids_bytes,
            {{{{1, 0}, {s.rows, row_stride}, {dense ? k_source : k, column_stride}}}, element},
            dense, "source.ids_bytes",
            "state k_source if rows have more ids than k, as with fused shared experts; otherwise "
            "check rows and dtype");
        status < 0)
        return status;
    const bool is_unsigned = s.dtype == ROUTECAP_DTYPE_U32;
    source = {.row_stride = row_stride,
              .column_stride = column_stride,
              .dtype = s.dtype,
              .offset = s.offset,
              .table_size = s.table_size,
              .none = is_unsigned ? int64_t{static_cast<uint32_t>(s.none)} : s.none,
              .to = {s.rows, s.first_row, s.live_rows, s.row_base, s.row_index}};
    return check_placement(source.to);
}

int32_t ForwardPath::check_weights(const routecap_source &s, std::span<const RecordedLayer> layers,
                                   uint32_t k, RecordSource &source) const {
    const int32_t wanted = config_.shape->weights_dtype;
    const bool in_ids = s.dtype == ROUTECAP_DTYPE_ID16_BF16 && wanted == ROUTECAP_DTYPE_BF16;
    const bool given =
        layers.empty() ? s.weights_dtype != 0  // no layer lacks them
                       : std::any_of(layers.begin(), layers.end(),
                                     [](const RecordedLayer &l) { return l.weights != nullptr; });
    if (given != (s.weights_dtype != 0) || (given && s.weights_dtype != wanted))
        return report(ROUTECAP_ERR_DTYPE,
                      "source.weights_dtype is %d, %s weights are given, and the capturer's are %d",
                      s.weights_dtype, given ? "and" : "no", wanted);
    source.weighted = given || in_ids;
    if (!given) {
        source.weights = {0, in_ids};
        return ROUTECAP_OK;
    }
    const uint32_t k_source = s.k_source != 0 ? s.k_source : config_.shape->k;
    const int64_t row_stride = s.weights_row_stride != 0 ? s.weights_row_stride : k_source;
    if (row_stride < 0)
        return report(ROUTECAP_ERR_ARGUMENT, "source.weights_row_stride is %lld",
                      static_cast<long long>(row_stride));
    const bool dense = s.weights_row_stride == 0;
    source.weights = {row_stride, 0};
    return check_stated_bytes(
        s.weights_bytes,
        {{{{1, 0}, {s.rows, row_stride}, {dense ? k_source : k, 1}}}, config_.shape->weight_bytes},
        dense, "source.weights_bytes", "check k_source, rows and weights_dtype");
}

int32_t ForwardPath::record(uint32_t layer, const routecap_source *source, routecap_stream stream) {
    if (disabled()) return ROUTECAP_OK;
    routecap_source s;
    if (int32_t status = read_struct(s, source, "source"); status < 0) return status;
    if ((s.flags & ROUTECAP_SOURCE_WHOLE_STEP) != 0)
        return report(ROUTECAP_ERR_ARGUMENT,
                      "source.flags has WHOLE_STEP: a whole step is recorded by "
                      "routecap_layers_record");
    const RecordedLayer one{layer, s.ids, s.table, s.weights};
    return record(s, std::span(&one, 1), stream);
}

int32_t ForwardPath::record_layers(const routecap_source *source,
                                   const routecap_layer_source *layers, size_t layer_size,
                                   size_t count, routecap_stream stream) {
    if (disabled()) return ROUTECAP_OK;
    routecap_source s;
    if (int32_t status = read_struct(s, source, "source"); status < 0) return status;
    if (int32_t status = check_array(layers, count, layer_size, sizeof *layers, "layers");
        status < 0)
        return status;
    if (s.ids != nullptr || s.table != nullptr || s.weights != nullptr)
        return report(ROUTECAP_ERR_ARGUMENT,
                      "source.ids, table or weights is set: each layer has its own");
    if (count > config_.shape->layers)
        return report(ROUTECAP_ERR_UNKNOWN_LAYER, "%zu layers of %u", count, config_.shape->layers);
    listed_.clear();
    seen_.assign(config_.shape->layers, false);
    for (size_t i = 0; i < count; i++) {
        routecap_layer_source l;
        if (int32_t status = read_struct(l, &at(layers, layer_size, i), layer_size, "layers");
            status < 0)
            return status;
        if (l.reserved != 0)
            return report(ROUTECAP_ERR_ARGUMENT, "layers[%zu].reserved is %u", i, l.reserved);
        if (l.layer < seen_.size() && seen_[l.layer])
            return report(ROUTECAP_ERR_ARGUMENT, "layer %u is there twice", l.layer);
        if (l.layer < seen_.size()) seen_[l.layer] = true;
        listed_.push_back({l.layer, l.ids, l.table, l.weights});
    }
    return record(s, listed_, stream);
}

int32_t ForwardPath::record(const routecap_source &s, std::span<const RecordedLayer> layers,
                            routecap_stream stream) {
    bool capturing = false;
    if (int32_t status = backend_->enter(stream, capturing); status < 0) return status;
    RecordSource source;
    uint32_t k = 0;
    if (int32_t status = check_source(s, layers, source.ids, k); status < 0) return status;
    if (int32_t status = check_weights(s, layers, k, source); status < 0) return status;
    const bool whole = (s.flags & ROUTECAP_SOURCE_WHOLE_STEP) != 0;
    if (whole && (s.first_row != 0 || s.live_rows != nullptr || s.row_base != nullptr ||
                  s.row_index != nullptr || (s.flags & ROUTECAP_SOURCE_OVERLAP) != 0))
        return report(ROUTECAP_ERR_ARGUMENT,
                      "a whole step has its source rows from sink row 0 on: set no first_row, "
                      "live_rows, row_base, row_index or OVERLAP with WHOLE_STEP");
    for (const RecordedLayer &l : layers) {
        if (s.rows > 0 && l.ids == nullptr)
            return report(ROUTECAP_ERR_ARGUMENT, "the ids of layer %u are NULL", l.layer);
        if (l.weights != nullptr && !whole && l.layer < config_.shape->layers &&
            backend_->sink().weights()[l.layer].weights == nullptr)
            return report(ROUTECAP_ERR_STATE, "layer %u has no sink for weights", l.layer);
        if (l.weights != nullptr &&
            reinterpret_cast<uintptr_t>(l.weights) % config_.shape->weight_bytes != 0)
            return report(ROUTECAP_ERR_ARGUMENT,
                          "the weights of layer %u are not aligned to %u bytes", l.layer,
                          config_.shape->weight_bytes);
        if ((l.table == nullptr) != (s.table_size == 0))
            return report(ROUTECAP_ERR_ARGUMENT, "the table of layer %u is %s with table_size %u",
                          l.layer, l.table == nullptr ? "NULL" : "set", s.table_size);
        // No row of a whole step was recorded before.
        if (int32_t status = check_layer(l.layer, source.ids.to, capturing || whole); status < 0)
            return status;
    }
    for (const RecordedLayer &l : check_ ? layers : std::span<const RecordedLayer>())
        if (int32_t s =
                check_->check_memory({{l.ids, "ids"}, {l.table, "table"}, {l.weights, "weights"}});
            s < 0)
            return s;
    if (whole) return whole_step(source, layers, stream);
    if (int32_t status = check_forward(source.ids.to); status < 0) return status;
    if (s.rows == 0 || layers.empty()) return ROUTECAP_OK;
    for (const RecordedLayer &l : layers) make_room(l.layer);
    if (int32_t status =
            backend_->record(source, layers, (s.flags & ROUTECAP_SOURCE_OVERLAP) != 0, stream);
        status < 0)
        return status;
    for (const RecordedLayer &l : layers) note_recorded(l.layer, source.ids.to, capturing);
    return ROUTECAP_OK;
}

int32_t ForwardPath::whole_step(const RecordSource &source, std::span<const RecordedLayer> layers,
                                routecap_stream stream) {
    if (int32_t s = prepare_begin(); s < 0) return s;
    if (int32_t s = backend_->whole_step(source, layers, stream); s < 0) return s;
    begins_++;
    begun_ = false;
    if (check_) {
        check_->begun(source.ids.to.rows);
        check_->snapshot_taken();
    }
    return ROUTECAP_OK;
}

// ---- Logits ---------------------------------------------------------------------------------

// `hashed`: the router chooses by a table of tokens, and needs logits for weights alone.
static int32_t check_logits(const routecap_logits &l, bool hashed, uint32_t k) {
    if (l.logits != nullptr ? !is_float(l.dtype) : l.dtype != 0 && !is_float(l.dtype))
        return report(ROUTECAP_ERR_DTYPE, "logits.dtype is %d", l.dtype);
    if (l.rows > 0 && l.logits == nullptr && (!hashed || l.weights != nullptr))
        return report(ROUTECAP_ERR_ARGUMENT, "logits.logits is NULL");
    if (hashed && l.rows > 0 && l.tokens == nullptr)
        return report(ROUTECAP_ERR_ARGUMENT,
                      "logits.tokens is NULL, and the router has a hash_table");
    if (l.tokens != nullptr && l.tokens_dtype != ROUTECAP_DTYPE_I32 &&
        l.tokens_dtype != ROUTECAP_DTYPE_I64)
        return report(ROUTECAP_ERR_DTYPE, "logits.tokens_dtype is %d", l.tokens_dtype);
    if (l.weights != nullptr && l.weights_stride != 0 && l.weights_stride < static_cast<int64_t>(k))
        return report(ROUTECAP_ERR_ARGUMENT, "logits.weights_stride is %lld",
                      static_cast<long long>(l.weights_stride));
    return ROUTECAP_OK;
}

int32_t ForwardPath::route(uint32_t layer, const routecap_router *router,
                           const routecap_logits *logits, routecap_stream stream) {
    if (disabled()) return ROUTECAP_OK;
    routecap_router r;
    routecap_logits l;
    if (int32_t status = read_struct(r, router, "router"); status < 0) return status;
    if (int32_t status = read_struct(l, logits, "logits"); status < 0) return status;
    bool capturing = false;
    if (int32_t status = backend_->enter(stream, capturing); status < 0) return status;
    const Shape &shape = *config_.shape;
    if (int32_t status = check_exists(layer); status < 0) return status;
    if (!shape.is_recomputed(layer))
        return report(ROUTECAP_ERR_STATE,
                      "layer %u is not one that config.layer_provenance calls recomputed", layer);
    const kernels::CellRule &rule = shape.rules[layer];
    const uint32_t experts = l.experts != 0 ? l.experts : rule.experts;
    if (experts < rule.k || experts > rule.experts || experts > ROUTECAP_MAX_ROUTED_EXPERTS)
        return report(ROUTECAP_ERR_ARGUMENT, "%u columns of logits, for a layer of %u experts",
                      experts, uint32_t{rule.experts});
    kernels::Router checked;
    if (int32_t status = check_router(r, rule.k, experts, checked); status < 0) return status;
    if (int32_t status = check_logits(l, r.hash_table != nullptr, rule.k); status < 0)
        return status;
    const kernels::Logits from{.logits = l.logits,
                               .row_stride = l.row_stride != 0 ? l.row_stride : experts,
                               .column_stride = l.column_stride != 0 ? l.column_stride : 1,
                               .dtype = l.dtype,
                               .experts = experts,
                               .to = {l.rows, l.first_row, l.live_rows, l.row_base, l.row_index},
                               .tokens = l.tokens,
                               .tokens_dtype = l.tokens_dtype,
                               .weights = l.weights,
                               .weights_stride = l.weights_stride != 0 ? l.weights_stride : rule.k};
    if (int32_t status = check_placement(from.to); status < 0) return status;
    if (int32_t status = check_layer(layer, from.to, capturing); status < 0) return status;
    if (check_)
        if (int32_t status = check_->check_memory({{l.logits, "logits.logits"},
                                                   {l.tokens, "logits.tokens"},
                                                   {l.weights, "logits.weights"},
                                                   {r.bias, "router.bias"},
                                                   {r.hash_table, "router.hash_table"}});
            status < 0)
            return status;
    if (int32_t status = check_forward(from.to); status < 0) return status;
    if (l.rows == 0) return ROUTECAP_OK;
    make_room(layer);
    if (int32_t status = backend_->route(layer, checked, from, stream); status < 0) return status;
    note_recorded(layer, from.to, capturing);
    return ROUTECAP_OK;
}

// ---- A dispatch -----------------------------------------------------------------------------

int32_t ForwardPath::read_received(const routecap_received *received, routecap_stream stream) {
    if (disabled()) return ROUTECAP_OK;
    routecap_received r;
    if (int32_t s = read_struct(r, received, "received"); s < 0) return s;
    bool capturing = false;
    if (int32_t s = backend_->enter(stream, capturing); s < 0) return s;
    if (int32_t s = check_received(r); s < 0) return s;
    if (check_)
        if (int32_t s = check_->check_memory({{r.live_rows, "received.live_rows"},
                                              {r.metadata, "received.metadata"},
                                              {r.ids, "received.ids"},
                                              {r.expert_ends, "received.expert_ends"},
                                              {r.executed, "received.executed"},
                                              {r.counts, "received.counts"}});
            s < 0)
            return s;
    return backend_->read_received(r, stream);
}

int32_t ForwardPath::compare_received(const routecap_received *received, routecap_stream stream) {
    if (disabled()) return ROUTECAP_OK;
    routecap_received r;
    if (int32_t s = read_struct(r, received, "received"); s < 0) return s;
    bool capturing = false;
    if (int32_t s = backend_->enter(stream, capturing); s < 0) return s;
    if (int32_t s = check_chosen(r); s < 0) return s;
    if (check_)
        if (int32_t s = check_->check_memory({{r.topk_ids, "received.topk_ids"},
                                              {r.executed, "received.executed"},
                                              {r.counts, "received.counts"}});
            s < 0)
            return s;
    return backend_->compare_received(r, stream);
}

// ---- The probe ------------------------------------------------------------------------------

int32_t ForwardPath::probe(uint32_t rows, routecap_layer_probe *layers, size_t layer_size,
                           size_t count, routecap_stream stream) {
    if (int32_t s = check_array(layers, count, layer_size, sizeof *layers, "layers"); s < 0)
        return s;
    const Shape *shape = config_.shape.get();
    if (disabled()) {
        for (size_t l = 0; l < count; l++)
            write_bytes(&at(layers, layer_size, l), layer_size, routecap_layer_probe{});
        return ROUTECAP_OK;
    }
    if (int32_t s = enter_outside_capture(stream); s < 0) return s;
    if (count > shape->layers)
        return report(ROUTECAP_ERR_UNKNOWN_LAYER, "%zu layers of %u", count, shape->layers);
    uint32_t begun = 0;
    if (int32_t s = backend_->wait_for(stream, begun); s < 0) return s;
    if (begun == 0) return report(ROUTECAP_ERR_STATE, "no row is begun");
    if (rows > begun) return report(ROUTECAP_ERR_CAPACITY, "%u rows of %u begun", rows, begun);
    Probe probe;
    std::vector<routecap_layer_probe> results(count);
    std::vector<unsigned char> ids(size_t{rows} * shape->k * backend_->sink().widest());
    uint32_t found = 0;
    for (uint32_t l = 0; l < count; l++) {
        const kernels::SinkLayer &sink = backend_->sink().layers()[l];
        if (sink.ids == nullptr) {
            results[l] = probe.without_sink(rows);
        } else {
            if (int32_t s = backend_->read_layer(l, rows, ids.data()); s < 0) return s;
            results[l] = probe.layer(
                std::span(ids).first(size_t{rows} * sink.rule.k * sink_element_bytes(sink.dtype)),
                sink.dtype, rows, sink.rule);
        }
        found |= results[l].found;
    }
    for (size_t l = 0; l < count; l++)
        write_bytes(&at(layers, layer_size, l), layer_size, results[l]);
    return found == 0 ? ROUTECAP_OK
                      : report(ROUTECAP_PARTIAL, "layers look odd: see `found` of each");
}

}  // namespace routecap
