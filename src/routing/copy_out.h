// Writing a routing's ids into the caller's memory: dtype, layout, fill and mask.
#pragma once

#include <cstddef>
#include <cstdint>

#include "routecap.h"
#include "routing/coverage.h"
#include "routing/routing.h"

namespace routecap {

// A checked request to copy `rows` rows, for which dst and mask are large enough.
struct CopyPlan {
    uint64_t rows;
    int32_t dtype;
    Strictness strictness;
    uint32_t first_layer, layers;
    int64_t row_stride, layer_stride;            // elements
    int64_t mask_row_stride, mask_layer_stride;  // bytes
    int64_t fill, none;
};

// Reads and checks the options. On success dst and mask are large enough; *needed is set where it
// is known, also on errors.
int32_t plan_copy(const Shape &shape, uint64_t rows, const routecap_copy_options *options,
                  const void *dst, size_t dst_bytes, const uint8_t *mask, size_t mask_bytes,
                  uint64_t *needed, CopyPlan &plan);

// The same of weights: the options' fill and none are not used.
int32_t plan_copy_weights(const Shape &shape, uint64_t rows, const routecap_copy_options *options,
                          const void *dst, size_t dst_bytes, const uint8_t *mask, size_t mask_bytes,
                          uint64_t *needed, CopyPlan &plan);
int32_t copy_out_weights(const Routing &routing, const CopyPlan &plan, void *dst, uint8_t *mask);

// Copies; nothing is written if the plan is strict and a cell is missing or recomputed.
int32_t copy_out(const Routing &routing, const CopyPlan &plan, void *dst, uint8_t *mask);

// Copies rows [first, first + rows) to row `row` of the plan and the rows after it. Rows that no
// segment has are missing. All ids that reach a caller's dst and mask are written here. Rows beyond
// the plan are refused, and nothing is written.
int32_t copy_rows(const Shape &shape, const CopyPlan &plan, uint64_t first,
                  std::span<const Segment> segments, uint64_t rows, uint64_t row, void *dst,
                  uint8_t *mask);

}  // namespace routecap
