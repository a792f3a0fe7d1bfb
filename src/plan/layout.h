// How a micro-batch is laid out and divided, in integers: which token each row of a rank is. Knows
// nothing of experts and ids.
#pragma once

#include <cstdint>
#include <vector>

#include "routecap.h"

namespace routecap {

// Local rows that hold consecutive rows of one sample.
struct PlanRun {
    uint64_t sample;  // its number, from 0; `samples` for the padding of align_rank
    // Position of the first row's token in the sample. Of padding: the row's column in the padded
    // sequence, or its place in the padding of align_rank.
    uint64_t first;
    uint64_t rows;
    uint64_t row;   // local row of the first row
    uint64_t step;  // distance between consecutive rows, in local rows: 1, or `samples`
    // Of the first row. Filled: its number p (routecap_plan_config.expert_parallel). VALID: its
    // place in the whole micro-batch.
    uint64_t ordinal;
    int32_t row_class;  // VALID (needed), PADDING or NOT_NEEDED
};

struct PlanLayout {
    uint64_t rows = 0;                                 // of this rank
    uint64_t total = 0;                                // of all ranks that divide the micro-batch
    uint64_t width = 0;                                // columns of this rank, of padded layouts
    uint64_t needed = 0, not_needed = 0, padding = 0;  // of `rows`
    std::vector<uint64_t> lengths;                     // of the samples
    std::vector<PlanRun> runs;                         // in the order of samples and their columns
    std::vector<routecap_plan_range> ranges;
};

// Reads the layout from a configuration.
int32_t make_layout(const routecap_plan_config &config, PlanLayout &layout);

}  // namespace routecap
