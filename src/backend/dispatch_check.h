// Checks the tensors of one expert-parallel dispatch, and makes the element body that reads them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dispatch_check.h"
#include "routecap.h"

namespace routecap {

// Merges the tables of `count` ranks, as routecap_received_merge.
int32_t merge_received(const int32_t *const *executed, size_t count, size_t cells, int32_t *merged);

// The defaults of `r` must be filled in already.
int32_t check_received(const routecap_received &r);

// Calls launch(body) with the element body for a checked `r`.
template <class F>
int32_t with_received(const routecap_received &r, F launch) {
    const uint32_t local = r.experts / r.ranks;
    const kernels::Dispatch from{.rows = r.rows,
                                 .live_rows = r.live_rows,
                                 .metadata = r.metadata,
                                 .sources = r.ranks * r.tokens_per_rank,
                                 .k = r.k,
                                 .experts = r.experts,
                                 .first_expert = r.rank * local,
                                 .local_experts = local,
                                 .executed = r.executed,
                                 .ignored = r.ignored};
    if ((r.flags & ROUTECAP_RECEIVED_EXPANDED) != 0)
        return launch(kernels::ReceivedExpanded{from, r.expert_ends, r.expert_alignment,
                                                r.expanded_rows, r.dtype, r.global_ids});
    const bool global = (r.flags & ROUTECAP_RECEIVED_GLOBAL) != 0;
    return launch(
        kernels::Received{from, global ? 0 : from.first_expert, r.dtype, r.ids, r.global_ids});
}

}  // namespace routecap
