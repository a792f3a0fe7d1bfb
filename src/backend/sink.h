// Where each layer's ids are written: memory of the library or of the engine, at addresses that
// never change.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/shape.h"
#include "kernels/weights.h"
#include "routecap.h"

namespace routecap {

// 2, 4 or 8; 0 if a sink cannot have this dtype.
constexpr uint32_t sink_element_bytes(int32_t dtype) {
    return dtype == ROUTECAP_DTYPE_I16   ? 2
           : dtype == ROUTECAP_DTYPE_I32 ? 4
           : dtype == ROUTECAP_DTYPE_I64 ? 8
                                         : 0;
}

// The same for a source: 2, 4 or 8.
constexpr uint32_t source_element_bytes(int32_t dtype) {
    return dtype == ROUTECAP_DTYPE_U32 || dtype == ROUTECAP_DTYPE_ID16_BF16
               ? 4
               : sink_element_bytes(dtype);
}

// Ids in a caller's memory: the counts and strides of its dimensions, the outermost first.
struct Extent {
    struct Dimension {
        uint64_t count;
        int64_t stride;  // in elements
    };
    std::array<Dimension, 3> dimensions;
    uint32_t element_bytes;

    // From the first element to the end of the last one that is reached, at most UINT64_MAX.
    uint64_t bytes() const;
};
// Refuses the length that a caller states of its memory, unless it is 0. Without strides of the
// caller's own (`dense`) it must be exact. `what` and `advice` go into the text.
int32_t check_stated_bytes(uint64_t stated, const Extent &ids, bool dense, const char *what,
                           const char *advice);

// The sinks of a shape's layers in memory that only one call reads.
struct ArrivedLayers {
    std::vector<kernels::SinkLayer> layers;
    std::vector<kernels::WeightSink> weights;  // none if no weights are captured
};
int32_t layers_of(const routecap_sink &sink, const Shape &shape, ArrivedLayers &to);

// Distance from one layer to the next in the library's own sink. It is never a power of two,
// because then the cells of a row in all layers would compete for the same cache lines.
constexpr size_t sink_layer_bytes(uint32_t rows, uint32_t k, int32_t dtype) {
    return (size_t{rows} * k * sink_element_bytes(dtype) + 63) / 64 * 64 + 64;
}

// Of the library's own sink: of all layers together.
inline size_t sink_bytes(uint32_t rows, const Shape &shape, int32_t dtype) {
    return shape.layers * sink_layer_bytes(rows, shape.k, dtype);
}
// The same of weights.
inline size_t weight_layer_bytes(uint32_t rows, const Shape &shape) {
    return shape.weight_bytes == 0
               ? 0
               : (size_t{rows} * shape.weights_cell_bytes() + 63) / 64 * 64 + 64;
}

inline size_t weights_bytes(uint32_t rows, const Shape &shape) {
    return shape.layers * weight_layer_bytes(rows, shape);
}

class Sink {
public:
    // `ids` has layers * sink_layer_bytes bytes, each layer with rows of its own k, and `weights`
    // layers * weight_layer_bytes. nullptr: each layer must be bound before it is used, or has no
    // weights. The shape outlives the sink.
    Sink(const Shape &shape, uint32_t rows, int32_t dtype, void *ids, void *weights);

    int32_t bind(uint32_t first_layer, uint32_t layers, const routecap_sink &sink);
    // Describes a layer. If the layer has an address, it is fixed from now on.
    routecap_sink give_out(uint32_t layer);
    // Fixes the addresses of all layers: from now on a layer can only be bound to the same memory
    // again.
    void seal();
    bool sealed() const { return sealed_; }

    std::span<const kernels::SinkLayer> layers() const { return layers_; }
    // One for each layer, of weights; none if no weights are captured.
    std::span<const kernels::WeightSink> weights() const { return weights_; }
    // The layers for a kernel. `copy` is a copy of layers() in memory that the kernel can read. A
    // kernel that was captured into a graph before the sink was sealed reads the copy, because
    // layers may have been bound since.
    kernels::SinkTable table(const kernels::SinkLayer *copy) const {
        return {copy, layers_[0], layer_bytes_};
    }
    // Bytes of the widest id of any layer.
    uint32_t widest() const;
    // The most items that begin() has in any layer.
    uint32_t begin_items(uint32_t rows) const {
        return kernels::begin_items(rows, shape_.k, widest());
    }

private:
    const uint32_t rows_;
    const Shape &shape_;
    std::vector<kernels::SinkLayer> layers_;
    std::vector<kernels::WeightSink> weights_;
    std::vector<uint8_t> fixed_;  // per layer: bound or given out
    bool sealed_ = false;
    // Once sealed: the distance from each layer to the next, if all layers are alike and equally
    // far apart; otherwise 0.
    int64_t layer_bytes_ = 0;
};

}  // namespace routecap
