#include "capture/received.h"

#include "base/status.h"

namespace routecap {

namespace {

int32_t wrong(const char *what, uint64_t is) {
    return report(ROUTECAP_ERR_ARGUMENT, "received.%s is %llu", what, ull(is));
}
int32_t null(const char *what) {
    return report(ROUTECAP_ERR_ARGUMENT, "received.%s is NULL", what);
}

int32_t check_dispatch(const routecap_received &r) {
    constexpr uint32_t kMaxRanks = 1024;
    if ((r.flags & ~(ROUTECAP_RECEIVED_EXPANDED | ROUTECAP_RECEIVED_GLOBAL)) != 0)
        return wrong("flags", r.flags);
    if (r.ranks == 0 || r.ranks > kMaxRanks) return wrong("ranks", r.ranks);
    if (r.rank >= r.ranks) return wrong("rank", r.rank);
    if (r.experts == 0 || r.experts > ROUTECAP_MAX_EXPERTS) return wrong("experts", r.experts);
    if (r.k == 0 || r.k > ROUTECAP_MAX_K) return wrong("k", r.k);
    if (r.tokens_per_rank == 0 || uint64_t{r.ranks} * r.tokens_per_rank > ROUTECAP_MAX_RECEIVED)
        return wrong("tokens_per_rank", r.tokens_per_rank);
    if (r.experts % r.ranks != 0)
        return report(ROUTECAP_ERR_SHAPE_MISMATCH, "%u experts on %u ranks", r.experts, r.ranks);
    if (r.dtype != ROUTECAP_DTYPE_I32 && r.dtype != ROUTECAP_DTYPE_I64)
        return report(ROUTECAP_ERR_DTYPE, "dtype %d is not I32 or I64", r.dtype);
    if (r.executed == nullptr) return null("executed");
    if (r.counts == nullptr) return null("counts");
    return ROUTECAP_OK;
}

}  // namespace

int32_t check_received(routecap_received &r) {
    if (int32_t s = check_dispatch(r); s < 0) return s;
    const bool expanded = (r.flags & ROUTECAP_RECEIVED_EXPANDED) != 0;
    if (expanded && (r.flags & ROUTECAP_RECEIVED_GLOBAL) != 0) return wrong("flags", r.flags);
    if (r.expanded_rows > INT32_MAX || (!expanded && r.expanded_rows != 0))
        return wrong("expanded_rows", r.expanded_rows);
    if (!expanded && r.expert_alignment != 0) return wrong("expert_alignment", r.expert_alignment);
    if (r.rows > r.ranks * r.tokens_per_rank)
        return report(ROUTECAP_ERR_SHAPE_MISMATCH, "%u rows of %u ranks with %u tokens each",
                      r.rows, r.ranks, r.tokens_per_rank);
    if (expanded && r.ids != nullptr)
        return report(ROUTECAP_ERR_ARGUMENT, "received.ids is set, and expanded rows have none");
    if (!expanded && r.expert_ends != nullptr)
        return report(ROUTECAP_ERR_ARGUMENT, "received.expert_ends is set without EXPANDED");
    if (r.rows > 0 && r.metadata == nullptr) return null("metadata");
    if (r.rows > 0 && !expanded && r.ids == nullptr) return null("ids");
    if (r.rows > 0 && expanded && r.expert_ends == nullptr) return null("expert_ends");
    if (r.expert_alignment == 0) r.expert_alignment = 1;
    return ROUTECAP_OK;
}

int32_t check_chosen(const routecap_received &r) {
    if (int32_t s = check_dispatch(r); s < 0) return s;
    if (r.tokens > r.tokens_per_rank)
        return report(ROUTECAP_ERR_SHAPE_MISMATCH, "%u tokens of at most %u", r.tokens,
                      r.tokens_per_rank);
    if (r.tokens > 0 && r.topk_ids == nullptr) return null("topk_ids");
    return ROUTECAP_OK;
}

}  // namespace routecap
