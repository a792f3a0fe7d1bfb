#include "capture/routing_method.h"

#include <cmath>

#include "base/status.h"

namespace routecap {

int32_t init_router(routecap_router &router, int32_t method) {
    constexpr uint32_t kRenormalize = ROUTECAP_ROUTER_RENORMALIZE,
                       kLogits = ROUTECAP_ROUTER_RANK_LOGITS;
    router = {};
    router.scale = 1;
    const auto is = [&](int32_t score, uint32_t flags, int32_t group_score = ROUTECAP_GROUP_MAX) {
        router.score = score;
        router.flags = flags;
        router.group_score = group_score;
        return ROUTECAP_OK;
    };
    switch (method) {
        case ROUTECAP_METHOD_SOFTMAX: return is(ROUTECAP_SCORE_SOFTMAX, 0);
        case ROUTECAP_METHOD_SOFTMAX_RENORMALIZE: return is(ROUTECAP_SCORE_SOFTMAX, kRenormalize);
        case ROUTECAP_METHOD_TOPK_SOFTMAX:
            return is(ROUTECAP_SCORE_SOFTMAX, kLogits | kRenormalize);
        case ROUTECAP_METHOD_TOPK: return is(ROUTECAP_SCORE_LOGIT, 0);
        case ROUTECAP_METHOD_TOPK_SIGMOID: return is(ROUTECAP_SCORE_SIGMOID, kLogits);
        case ROUTECAP_METHOD_SIGMOID: return is(ROUTECAP_SCORE_SIGMOID, 0);
        case ROUTECAP_METHOD_DEEPSEEK_V2: return is(ROUTECAP_SCORE_SOFTMAX, 0);
        case ROUTECAP_METHOD_ERNIE:
            router.floor = 1e-12f;
            return is(ROUTECAP_SCORE_SOFTMAX, kRenormalize | ROUTECAP_ROUTER_FLOOR_MAX);
        case ROUTECAP_METHOD_SIGMOID_RENORMALIZE: break;
        case ROUTECAP_METHOD_DEEPSEEK_V3: break;
        case ROUTECAP_METHOD_DEEPSEEK_V4: break;
        default: return report(ROUTECAP_ERR_ARGUMENT, "method %d is none", method);
    }
    router.floor = 1e-20f;
    if (method == ROUTECAP_METHOD_DEEPSEEK_V4)
        return is(ROUTECAP_SCORE_SQRT_SOFTPLUS, kRenormalize);
    return is(ROUTECAP_SCORE_SIGMOID, kRenormalize, ROUTECAP_GROUP_TOP2);
}

int32_t check_router(const routecap_router &r, uint32_t k, uint32_t experts,
                     kernels::Router &router) {
    constexpr uint32_t kFlags = ROUTECAP_ROUTER_RANK_LOGITS | ROUTECAP_ROUTER_RENORMALIZE |
                                ROUTECAP_ROUTER_FLOOR_MAX | ROUTECAP_ROUTER_SIGMOID_TANH |
                                ROUTECAP_ROUTER_GROUPS_ZERO;
    if (r.score < ROUTECAP_SCORE_LOGIT || !kernels::is_score(r.score) ||
        r.group_score < ROUTECAP_GROUP_MAX || r.group_score > ROUTECAP_GROUP_TOP2_DISTINCT ||
        (r.flags & ~kFlags) != 0)
        return report(ROUTECAP_ERR_ARGUMENT, "router: score %d, group_score %d, flags %u", r.score,
                      r.group_score, r.flags);
    const uint32_t groups = r.groups > 1 ? r.groups : 1, kept = groups > 1 ? r.groups_kept : 1;
    if (groups > ROUTECAP_MAX_GROUPS || experts % groups != 0)
        return report(ROUTECAP_ERR_ARGUMENT, "%u groups of %u experts", groups, experts);
    if (kept < 1 || kept > groups || experts / groups * kept < k)
        return report(ROUTECAP_ERR_ARGUMENT, "%u groups of %u are kept, of %u experts each", kept,
                      groups, experts / groups);
    if (!std::isfinite(r.scale) || !std::isfinite(r.floor))
        return report(ROUTECAP_ERR_ARGUMENT, "router.scale or router.floor is not a number");
    if (r.bias != nullptr && !is_float(r.bias_dtype))
        return report(ROUTECAP_ERR_DTYPE, "router.bias_dtype is %d", r.bias_dtype);
    if ((r.hash_table == nullptr) != (r.hash_tokens == 0))
        return report(ROUTECAP_ERR_ARGUMENT, "router.hash_table is %s with %u tokens",
                      r.hash_table == nullptr ? "NULL" : "set", r.hash_tokens);
    router = {.score = r.score,
              .group_score = r.group_score,
              .flags = r.flags,
              .groups = groups,
              .groups_kept = kept,
              .group_size = experts / groups,
              .scale = r.scale != 0 ? r.scale : 1.0f,
              .floor = r.floor,
              .bias = r.bias,
              .bias_dtype = r.bias_dtype,
              .hash_tokens = r.hash_tokens,
              .hash_table = r.hash_table};
    return ROUTECAP_OK;
}

}  // namespace routecap
