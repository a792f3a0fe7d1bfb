// How a micro-batch is laid out and divided, in integers: which token each row of a rank is. Knows
// nothing of experts and ids.
#pragma once

#include <cstdint>
#include <vector>

#include "routecap.h"

namespace routecap {

struct PlanLayout {
    uint64_t rows = 0;                                 // of this rank
    uint64_t total = 0;                                // of all ranks that divide the micro-batch
    uint64_t width = 0;                                // columns of this rank, of padded layouts
    uint64_t needed = 0, not_needed = 0, padding = 0;  // of `rows`
    std::vector<uint64_t> lengths;                     // of the samples
    std::vector<routecap_plan_run> runs;               // in the order of samples and their columns
    std::vector<routecap_plan_range> ranges;
};

// Reads the layout from a configuration.
int32_t make_layout(const routecap_plan_config &config, PlanLayout &layout);

}  // namespace routecap
