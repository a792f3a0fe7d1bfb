#include "backend/dispatch_check.h"

#include <algorithm>

#include "base/status.h"
#include "base/structs.h"

namespace routecap {

int32_t check_received(const routecap_received &r) {
    constexpr uint32_t kMaxRanks = 1024;
    const bool expanded = (r.flags & ROUTECAP_RECEIVED_EXPANDED) != 0,
               global = (r.flags & ROUTECAP_RECEIVED_GLOBAL) != 0;
    const uint64_t sources = uint64_t{r.ranks} * r.tokens_per_rank;
    const auto wrong = [](const char *what, uint64_t is) {
        return report(ROUTECAP_ERR_ARGUMENT, "received.%s is %llu", what, ull(is));
    };
    if ((r.flags & ~(ROUTECAP_RECEIVED_EXPANDED | ROUTECAP_RECEIVED_GLOBAL)) != 0 ||
        (expanded && global))
        return wrong("flags", r.flags);
    if (r.ranks == 0 || r.ranks > kMaxRanks) return wrong("ranks", r.ranks);
    if (r.rank >= r.ranks) return wrong("rank", r.rank);
    if (r.experts > ROUTECAP_MAX_EXPERTS) return wrong("experts", r.experts);
    if (r.k > ROUTECAP_MAX_K) return wrong("k", r.k);
    if (r.tokens_per_rank == 0 || sources > ROUTECAP_MAX_RECEIVED)
        return wrong("tokens_per_rank", r.tokens_per_rank);
    if (r.expanded_rows > INT32_MAX || (!expanded && r.expanded_rows != 0))
        return wrong("expanded_rows", r.expanded_rows);
    if (!expanded && r.expert_alignment > 1) return wrong("expert_alignment", r.expert_alignment);
    if (r.reserved != 0) return wrong("reserved", r.reserved);
    if (r.experts % r.ranks != 0)
        return report(ROUTECAP_ERR_SHAPE_MISMATCH, "%u experts on %u ranks", r.experts, r.ranks);
    if (r.rows > sources)
        return report(ROUTECAP_ERR_SHAPE_MISMATCH, "%u rows of %u ranks with %u tokens each",
                      r.rows, r.ranks, r.tokens_per_rank);
    if (r.dtype != ROUTECAP_DTYPE_I32 && r.dtype != ROUTECAP_DTYPE_I64)
        return report(ROUTECAP_ERR_DTYPE, "dtype %d is not I32 or I64", r.dtype);
    const auto null = [](const char *what) {
        return report(ROUTECAP_ERR_ARGUMENT, "received.%s is NULL", what);
    };
    if (r.global_ids == nullptr && r.executed == nullptr && (r.rows > 0 || r.expanded_rows > 0))
        return report(ROUTECAP_ERR_ARGUMENT, "neither global_ids nor executed is wanted");
    if (r.metadata == nullptr && r.executed != nullptr && r.rows > 0) return null("metadata");
    if (expanded && r.ids != nullptr)
        return report(ROUTECAP_ERR_ARGUMENT, "received.ids is set, and expanded rows have none");
    if (!expanded && r.expert_ends != nullptr)
        return report(ROUTECAP_ERR_ARGUMENT, "received.expert_ends is set without EXPANDED");
    if (!expanded && r.ids == nullptr && r.rows > 0) return null("ids");
    if (expanded && r.expert_ends == nullptr && (r.rows > 0 || r.expanded_rows > 0))
        return null("expert_ends");
    return ROUTECAP_OK;
}

int32_t merge_received(const int32_t *const *executed, size_t count, size_t cells,
                       int32_t *merged) {
    if (executed == nullptr || count == 0) return report(ROUTECAP_ERR_ARGUMENT, "nothing to merge");
    if (int32_t s = check_count(count, sizeof *executed, "executed"); s < 0) return s;
    if (int32_t s = check_count(cells, sizeof *merged, "merged"); s < 0) return s;
    for (size_t t = 0; t < count; t++)
        if (executed[t] == nullptr && cells > 0)
            return report(ROUTECAP_ERR_ARGUMENT, "executed[%zu] is NULL", t);
    if (merged == nullptr && cells > 0) return report(ROUTECAP_ERR_ARGUMENT, "merged is NULL");
    const auto highest = [&](size_t cell) {
        int32_t id = kernels::kNotExecuted;
        for (size_t t = 0; t < count; t++) id = std::max(id, executed[t][cell]);
        return id;
    };
    for (size_t cell = 0; cell < cells; cell++) {
        const int32_t id = highest(cell);
        for (size_t t = 0; t < count; t++)
            if (executed[t][cell] >= 0 && executed[t][cell] != id)
                return report(ROUTECAP_ERR_CONFLICT,
                              "two ranks have different ids for one column of a token");
    }
    // `merged` may be one of the tables, so it is written last.
    for (size_t cell = 0; cell < cells; cell++) merged[cell] = highest(cell);
    return ROUTECAP_OK;
}

}  // namespace routecap
