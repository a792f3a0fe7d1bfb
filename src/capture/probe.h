// What a probe makes of the ids that lie in a layer's sink.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/body.h"
#include "routecap.h"

namespace routecap {

// Layers are given one after another: each is compared with the one before.
class Probe {
public:
    // `ids` is rows * rule.k ids of a sink's dtype, as they lie there.
    routecap_layer_probe layer(std::span<const unsigned char> ids, int32_t dtype, uint32_t rows,
                               const kernels::CellRule &rule);
    routecap_layer_probe without_sink(uint32_t rows);

private:
    std::vector<int64_t> before_;  // the ids of the layer before
};

}  // namespace routecap
