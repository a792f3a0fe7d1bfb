// Where each layer's ids are written: memory of the library or of the engine, at addresses that
// never change.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/body.h"
#include "routecap.h"

namespace routecap {

// 2, 4 or 8; 0 if a sink cannot have this dtype.
constexpr uint32_t sink_element_bytes(int32_t dtype) {
    return dtype == ROUTECAP_DTYPE_I16   ? 2
           : dtype == ROUTECAP_DTYPE_I32 ? 4
           : dtype == ROUTECAP_DTYPE_I64 ? 8
                                         : 0;
}

// From one layer to the next in the library's own sink. Never a power of two: a row's cells in all
// layers must not compete for the same cache lines.
constexpr size_t sink_layer_bytes(uint32_t rows, uint32_t k, int32_t dtype) {
    return (size_t{rows} * k * sink_element_bytes(dtype) + 63) / 64 * 64 + 64;
}

class Sink {
public:
    // `ids` is room for layers * sink_layer_bytes, or nullptr: every layer has yet to be bound.
    Sink(std::span<const uint32_t> layer_experts, uint32_t rows, uint32_t k, int32_t dtype,
         void *ids);

    int32_t bind(uint32_t first_layer, uint32_t layers, const routecap_sink &sink);
    // Describes a layer and fixes its address, if it has one.
    routecap_sink give_out(uint32_t layer);
    // From now on nothing can be bound but what is bound already.
    void seal();
    bool sealed() const { return sealed_; }

    std::span<const kernels::SinkLayer> layers() const { return layers_; }
    // For a kernel, where `copy` is one of layers(). Until the sink is sealed it may change, and
    // what was captured into a graph looks at the copy.
    kernels::SinkTable table(const kernels::SinkLayer *copy) const {
        return {copy, layers_[0], layer_bytes_};
    }
    // Bytes of an id in the layer that has the widest.
    uint32_t widest() const;

private:
    const uint32_t rows_, k_;
    std::vector<kernels::SinkLayer> layers_;
    std::vector<uint8_t> fixed_;  // per layer: bound or given out
    bool sealed_ = false;
    // Once sealed, from each layer to the next, if all are alike and equally far apart.
    int64_t layer_bytes_ = 0;
};

}  // namespace routecap
