#include "backend/sink.h"

#include <algorithm>

#include "base/status.h"
#include "base/structs.h"

namespace routecap {

uint64_t Extent::bytes() const {
    uint64_t last = 0;
    for (const Dimension &d : dimensions) {
        if (d.count == 0) return 0;
        uint64_t reach = 0;
        if (d.stride > 0 &&
            (__builtin_mul_overflow(d.count - 1, static_cast<uint64_t>(d.stride), &reach) ||
             __builtin_add_overflow(last, reach, &last)))
            return UINT64_MAX;
    }
    return last < UINT64_MAX / element_bytes ? (last + 1) * element_bytes : UINT64_MAX;
}

int32_t check_stated_bytes(uint64_t stated, const Extent &of, bool dense, const char *what,
                           const char *advice) {
    const uint64_t bytes = stated != 0 ? of.bytes() : 0;
    if (dense ? stated == bytes || stated == 0 : stated >= bytes) return ROUTECAP_OK;
    const auto &[layers, rows, columns] = of.dimensions;
    return report(ROUTECAP_ERR_SHAPE_MISMATCH,
                  "%s is %llu, and %llu x %llu rows of %llu elements of %u bytes %s %llu: %s", what,
                  ull(stated), ull(layers.count), ull(rows.count), ull(columns.count),
                  of.element_bytes, dense ? "are" : "with these strides need", ull(bytes), advice);
}

namespace {

// Null stays null.
void *behind(void *memory, int64_t bytes) {
    return memory != nullptr ? static_cast<uint8_t *>(memory) + bytes : nullptr;
}

// In elements, with those that a caller left out.
struct Strides {
    int64_t row, layer;
};

// False if they lead farther than any memory: what is computed of others overflows nowhere.
bool strides_of(const routecap_sink &sink, Strides &strides) {
    constexpr int64_t kFar = int64_t{1} << 40;
    strides.row = sink.row_stride != 0 ? sink.row_stride : sink.k;
    if (strides.row < 0 || strides.row > kFar) return false;
    strides.layer = sink.layer_stride != 0 ? sink.layer_stride : strides.row * sink.rows;
    return strides.layer <= kFar * 1024;
}

// The lengths that a sink states, and what it says of weights.
int32_t check_memory(const routecap_sink &sink, const Strides &strides, uint32_t layers,
                     const Shape &shape) {
    const bool dense = sink.row_stride == 0 && sink.layer_stride == 0;
    Extent extent{{{{layers, strides.layer}, {sink.rows, strides.row}, {sink.k, 1}}},
                  sink_element_bytes(sink.dtype)};
    if (int32_t s = check_stated_bytes(sink.ids_bytes, extent, dense, "ids_bytes of the sink",
                                       "check rows, strides and dtype");
        s < 0)
        return s;
    if (sink.reserved != 0) return refuse_reserved(static_cast<int32_t>(sink.reserved));
    const bool given = sink.weights != nullptr;
    if (given != (sink.weights_dtype != 0) || (given && sink.weights_dtype != shape.weights_dtype))
        return report(ROUTECAP_ERR_DTYPE,
                      "weights_dtype of the sink is %d, %s weights are given, and the capturer's "
                      "are %d",
                      sink.weights_dtype, given ? "and" : "no", shape.weights_dtype);
    if (!given) return ROUTECAP_OK;
    extent.element_bytes = shape.weight_bytes;
    if (reinterpret_cast<uintptr_t>(sink.weights) % shape.weight_bytes != 0)
        return report(ROUTECAP_ERR_ARGUMENT, "weights is not aligned to %u bytes",
                      shape.weight_bytes);
    return check_stated_bytes(sink.weights_bytes, extent, dense, "weights_bytes of the sink",
                              "check rows, strides and weights_dtype");
}

}  // namespace

Sink::Sink(const Shape &shape, uint32_t rows, int32_t dtype, void *ids, void *weights)
    : rows_(rows),
      shape_(shape),
      layers_(shape.layers),
      weights_(shape.weight_bytes != 0 ? shape.layers : 0),
      fixed_(shape.layers, 0) {
    const auto layer_bytes = static_cast<int64_t>(sink_layer_bytes(rows, shape.k, dtype)),
               of_weights = static_cast<int64_t>(weight_layer_bytes(rows, shape));
    for (uint32_t l = 0; l < shape.layers; l++) {
        layers_[l] = {behind(ids, l * layer_bytes), shape.rules[l].k, dtype, shape.rules[l]};
        if (!weights_.empty()) weights_[l] = {behind(weights, l * of_weights), shape.rules[l].k};
    }
}

int32_t Sink::bind(uint32_t first_layer, uint32_t layers, const routecap_sink &sink) {
    if (first_layer >= layers_.size() || layers > layers_.size() - first_layer)
        return report(ROUTECAP_ERR_UNKNOWN_LAYER, "layers [%u,%u) of %zu", first_layer,
                      first_layer + layers, layers_.size());
    const uint32_t element = sink_element_bytes(sink.dtype);
    if (element == 0) return report(ROUTECAP_ERR_DTYPE, "dtype %d is not a sink's", sink.dtype);
    if (sink.ids == nullptr || layers == 0)
        return report(ROUTECAP_ERR_ARGUMENT, "nothing to bind: ids is NULL or layers is 0");
    if (reinterpret_cast<uintptr_t>(sink.ids) % element != 0)
        return report(ROUTECAP_ERR_ARGUMENT, "ids is not aligned to %u bytes", element);
    Strides strides{};
    const uint32_t k = layers_[first_layer].rule.k;
    if (!strides_of(sink, strides) || sink.rows < rows_ || sink.k != k || strides.row < k ||
        (layers > 1 && strides.layer < strides.row * (int64_t{rows_} - 1) + k))
        return report(ROUTECAP_ERR_SHAPE_MISMATCH,
                      "%u rows of %u, strides %lld and %lld, for a sink of %u rows of %u",
                      sink.rows, sink.k, static_cast<long long>(strides.row),
                      static_cast<long long>(strides.layer), rows_, k);
    for (uint32_t l = first_layer; l < first_layer + layers; l++)
        if (layers_[l].rule.k != k)
            return report(
                ROUTECAP_ERR_SHAPE_MISMATCH,
                "layer %u has rows of %u, and layer %u of %u: bind them by calls of their "
                "own",
                first_layer, k, l, layers_[l].rule.k);
    if (int32_t s = check_memory(sink, strides, layers, shape_); s < 0) return s;
    const auto bound = [&](uint32_t l) {
        return kernels::SinkLayer{behind(sink.ids, (l - first_layer) * strides.layer * element),
                                  strides.row, sink.dtype, layers_[l].rule};
    };
    const auto weights_of = [&](uint32_t l) {
        return kernels::WeightSink{
            behind(sink.weights, (l - first_layer) * strides.layer * shape_.weight_bytes),
            strides.row};
    };
    for (uint32_t l = first_layer; l < first_layer + layers; l++) {
        const kernels::SinkLayer now = layers_[l], then = bound(l);
        const bool same = now.ids == then.ids && now.row_stride == then.row_stride &&
                          now.dtype == then.dtype &&
                          (weights_.empty() || weights_[l].weights == weights_of(l).weights);
        if ((sealed_ || fixed_[l] != 0) && !same)
            return report(ROUTECAP_ERR_STATE,
                          "the address of layer %u is fixed: it was bound, given out or begun", l);
    }
    for (uint32_t l = first_layer; l < first_layer + layers; l++) {
        layers_[l] = bound(l), fixed_[l] = 1;
        if (!weights_.empty()) weights_[l] = weights_of(l);
    }
    return ROUTECAP_OK;
}

int32_t layers_of(const routecap_sink &sink, const Shape &shape, ArrivedLayers &to) {
    const int64_t element = sink_element_bytes(sink.dtype);
    if (element == 0) return report(ROUTECAP_ERR_DTYPE, "dtype %d is not a sink's", sink.dtype);
    if (sink.k != shape.k)
        return report(ROUTECAP_ERR_SHAPE_MISMATCH, "rows of %u, and k is %u", sink.k, shape.k);
    if ((sink.ids == nullptr && sink.rows > 0) ||
        reinterpret_cast<uintptr_t>(sink.ids) % static_cast<uintptr_t>(element) != 0)
        return report(ROUTECAP_ERR_ARGUMENT, "ids is NULL, or not aligned to %lld bytes",
                      static_cast<long long>(element));
    Strides strides{};
    if (!strides_of(sink, strides) || strides.row < sink.k ||
        (sink.layer_stride != 0 && strides.layer < sink.k))
        return report(ROUTECAP_ERR_SHAPE_MISMATCH, "strides of %lld and %lld, and k is %u",
                      static_cast<long long>(sink.row_stride),
                      static_cast<long long>(sink.layer_stride), shape.k);
    if (int32_t s = check_memory(sink, strides, shape.layers, shape); s < 0) return s;
    for (uint32_t l = 0; l < shape.layers; l++) {
        to.layers.push_back({behind(sink.ids, l * strides.layer * element), strides.row, sink.dtype,
                             shape.rules[l]});
        if (shape.weight_bytes != 0)
            to.weights.push_back(
                {behind(sink.weights, l * strides.layer * shape.weight_bytes), strides.row});
    }
    return ROUTECAP_OK;
}

void Sink::seal() {
    if (sealed_) return;
    sealed_ = true;
    const auto at = [&](size_t l) { return reinterpret_cast<intptr_t>(layers_[l].ids); };
    const kernels::SinkLayer &first = layers_[0];
    const int64_t layer_bytes = layers_.size() > 1 ? at(1) - at(0) : 1;
    for (size_t l = 0; l < layers_.size(); l++) {
        const kernels::SinkLayer &layer = layers_[l];
        if (layer.ids == nullptr || at(l) != at(0) + static_cast<int64_t>(l) * layer_bytes ||
            layer.row_stride != first.row_stride || layer.dtype != first.dtype ||
            layer.rule != first.rule)
            return;
    }
    layer_bytes_ = layer_bytes;
}

uint32_t Sink::widest() const {
    uint32_t bytes = 0;
    for (const kernels::SinkLayer &layer : layers_)
        bytes = std::max(bytes, sink_element_bytes(layer.dtype));
    return bytes;
}

routecap_sink Sink::give_out(uint32_t layer) {
    const kernels::SinkLayer &l = layers_[layer];
    if (l.ids != nullptr) fixed_[layer] = 1;
    void *weights = weights_.empty() ? nullptr : weights_[layer].weights;
    return {.struct_size = 0,
            .dtype = l.dtype,
            .ids = l.ids,
            .rows = rows_,
            .k = l.rule.k,
            .row_stride = l.row_stride,
            .layer_stride = 0,
            .ids_bytes = 0,
            .weights_dtype = weights != nullptr ? shape_.weights_dtype : 0,
            .reserved = 0,
            .weights = weights,
            .weights_bytes = 0};
}

}  // namespace routecap
