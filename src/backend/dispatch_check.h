// Checks the tensors of one expert-parallel dispatch, and makes the element bodies that read them.
#pragma once

#include <cstdint>

#include "kernels/dispatch_check.h"
#include "routecap.h"

namespace routecap {

// Whether the fields that routecap_received_read, or routecap_received_compare, uses are sound. An
// expert_alignment of 0 becomes 1.
int32_t check_received(routecap_received &r);
int32_t check_chosen(const routecap_received &r);

// Calls launch(body) with the element body that reads a checked `r`.
template <class F>
int32_t with_received(const routecap_received &r, F launch) {
    const uint32_t local = r.experts / r.ranks;
    const kernels::Dispatch from{.rows = r.rows,
                                 .live_rows = r.live_rows,
                                 .metadata = r.metadata,
                                 .sources = r.ranks * r.tokens_per_rank,
                                 .k = r.k,
                                 .first_expert = r.rank * local,
                                 .local_experts = local,
                                 .executed = r.executed,
                                 .ignored = &r.counts->ignored};
    if ((r.flags & ROUTECAP_RECEIVED_EXPANDED) != 0)
        return launch(
            kernels::ReceivedExpanded{from, r.expert_ends, r.expert_alignment, r.expanded_rows});
    const bool global = (r.flags & ROUTECAP_RECEIVED_GLOBAL) != 0;
    return launch(kernels::Received{from, global ? 0 : from.first_expert, global, r.dtype, r.ids});
}

// The element body that compares a checked `r`.
inline kernels::Chosen chosen(const routecap_received &r) {
    const uint64_t own = uint64_t{r.rank} * r.tokens_per_rank * r.k;
    return {.executed = r.executed + own,
            .rows = r.tokens_per_rank,
            .k = r.k,
            .tokens = r.tokens,
            .dtype = r.dtype,
            .ids = r.topk_ids,
            .counts = r.counts};
}

}  // namespace routecap
