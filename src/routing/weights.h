// Writing the weights of cells into a caller's memory, in their own type or widened to F32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/shape.h"

namespace routecap {

// Whether weights of the shape can be written as this dtype.
int32_t check_weights_dtype(const Shape &shape, int32_t dtype);

class WeightWriter {
public:
    // `dtype` passes check_weights_dtype. Missing weights are written as `missing`.
    WeightWriter(const Shape &shape, int32_t dtype, float missing);

    // Writes the k weights of a cell at element `at` of dst, or k missing ones if row is NULL or
    // the cell has none. Returns whether it has.
    bool cell(void *dst, int64_t at, const uint8_t *row, uint32_t layer) const;

private:
    const Shape &shape_;
    const uint32_t element_;  // bytes of what is written
    const bool widens_;
    uint32_t missing_;  // its bits
};

}  // namespace routecap
