// route: choose the experts of one layer from its router's logits, into the sink.
//
// logits (rows, experts) with strides, of 16 or 32 bits -> sink row of the layer (k), and the
// weights if they are wanted. An item is one row. On the host a row is done by the functions below
// one expert after another; on a device by a warp (kernels.cu), with the same functions for what
// decides: scores, keys, groups and the order of experts.
#pragma once

#include <math.h>

#include "placement.h"
#include "routecap/record.h"

namespace routecap::kernels {

// A checked routecap_router.
struct Router {
    int32_t score;
    int32_t group_score;
    uint32_t flags;
    uint32_t groups;  // 1: none
    uint32_t groups_kept;
    uint32_t group_size;
    float scale;
    float floor;
    const void *bias;  // or nullptr
    int32_t bias_dtype;
    uint32_t hash_tokens;
    const int32_t *hash_table;  // or nullptr
};

// A checked routecap_logits.
struct Logits {
    const void *logits;
    int64_t row_stride;
    int64_t column_stride;
    int32_t dtype;
    uint32_t experts;
    Placement to;
    const void *tokens;
    int32_t tokens_dtype;
    float *weights;  // or nullptr
    int64_t weights_stride;
};

// The same bits as another type.
template <class To, class From>
ROUTECAP_BODY To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

ROUTECAP_BODY float float_of_half(uint16_t half) {
#if defined(__CUDA_ARCH__)
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(half));
    return f;
#else
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, exponent = half >> 10 & 31,
                   fraction = half & 0x3ff;
    if (exponent == 31) return bits_as<float>(sign | 0x7f800000 | fraction << 13);
    if (exponent != 0) return bits_as<float>(sign | (exponent + 112) << 23 | fraction << 13);
    const float subnormal = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -subnormal : subnormal;
#endif
}

ROUTECAP_BODY float float_of_bfloat(uint16_t bits) {
    return bits_as<float>(static_cast<uint32_t>(bits) << 16);
}

// Element `at` of an array of floating-point numbers.
ROUTECAP_BODY float element(const void *array, int32_t dtype, int64_t at) {
    if (dtype == ROUTECAP_DTYPE_F32) return static_cast<const float *>(array)[at];
    const uint16_t bits = static_cast<const uint16_t *>(array)[at];
    return dtype == ROUTECAP_DTYPE_BF16 ? float_of_bfloat(bits) : float_of_half(bits);
}

// a / b for b of at least 1, rounded as the operator rounds. The operator has a branch on a device,
// and a warp that scores several experts would do them one after another.
ROUTECAP_BODY float quotient(float a, float b) {
#if defined(__CUDA_ARCH__)
    float guess;
    asm("rcp.approx.f32 %0, %1;" : "=f"(guess) : "f"(b));
    const float inverse = fmaf(fmaf(-b, guess, 1.0f), guess, guess);
    const float near = a * inverse, exact = fmaf(fmaf(-b, near, a), inverse, near);
    return b > 0x1p126f ? a * guess : exact;  // there the steps are of no use
#else
    return a / b;
#endif
}

// A key as an integer of the same order. Above kNotAKey, which is no key's.
constexpr uint32_t kNotAKey = 0;
ROUTECAP_BODY uint32_t ordered(float key) {
    if (key != key) key = -INFINITY;
    const uint32_t bits = bits_as<uint32_t>(key + 0.0f);  // one zero
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
ROUTECAP_BODY float key_of(uint32_t order) {
    return bits_as<float>(order >> 31 != 0 ? order & 0x7fffffffu : ~order);
}

// How experts score: a ROUTECAP_SCORE_*, kSigmoidTanh, or in a kernel for all of them kAnyScore.
constexpr int32_t kSigmoidTanh = -1, kAnyScore = -2;
// G(F, name, Name, score) for each score. Its kernels have the name, and their bodies the Name.
#define ROUTECAP_SCORES(G, F)                      \
    G(F, logit, Logit, ROUTECAP_SCORE_LOGIT)       \
    G(F, softmax, Softmax, ROUTECAP_SCORE_SOFTMAX) \
    G(F, sigmoid, Sigmoid, ROUTECAP_SCORE_SIGMOID) \
    G(F, sigmoid_tanh, SigmoidTanh, kSigmoidTanh)  \
    G(F, sqrt_softplus, SqrtSoftplus, ROUTECAP_SCORE_SQRT_SOFTPLUS)
constexpr bool is_score(int32_t score) {
#define ROUTECAP_IS(F, name, Name, one) score == one ||
    return ROUTECAP_SCORES(ROUTECAP_IS, ) false;
#undef ROUTECAP_IS
}
ROUTECAP_BODY int32_t score_of(const Router &router) {
    return (router.flags & ROUTECAP_ROUTER_SIGMOID_TANH) != 0 &&
                   router.score == ROUTECAP_SCORE_SIGMOID
               ? kSigmoidTanh
               : router.score;
}

// V: how many experts a lane of a warp has, at least experts / 32. Score: what score_of(router) is.
template <uint32_t V, int32_t Score>
struct Route {
    Router router;
    Logits logits;
    uint32_t k;
    SinkLayer sink;
    Control *control;

    ROUTECAP_BODY uint32_t outer() const { return 1; }
    ROUTECAP_BODY uint32_t inner() const { return logits.to.rows; }

    ROUTECAP_BODY int64_t at(uint32_t row, uint32_t expert) const {
        return static_cast<int64_t>(row) * logits.row_stride +
               static_cast<int64_t>(expert) * logits.column_stride;
    }
    // The logit that is scored: NaN counts as minus infinity.
    ROUTECAP_BODY static float counted(float x) { return x == x ? x : -INFINITY; }
    ROUTECAP_BODY float logit(uint32_t row, uint32_t expert) const {
        return element(logits.logits, logits.dtype, at(row, expert));
    }

    // exp(x - largest), a term of softmax's sum.
    ROUTECAP_BODY static float exponential(float x, float largest) {
        const float power = expf(x - largest);
        return isinf(largest) ? (x == largest ? 1.0f : 0.0f) : power;
    }

    // A score from a logit; softmax's with the largest logit and the sum of exponentials.
    template <int32_t kind>
    ROUTECAP_BODY static float score_from(float x, float largest, float sum) {
        switch (kind) {
            case ROUTECAP_SCORE_SOFTMAX: return quotient(exponential(x, largest), sum);
            case ROUTECAP_SCORE_SIGMOID: return quotient(1.0f, 1.0f + expf(-x));
            case kSigmoidTanh: return 0.5f * tanhf(0.5f * x) + 0.5f;
            case ROUTECAP_SCORE_SQRT_SOFTPLUS: return sqrtf(x > 20.0f ? x : log1pf(expf(x)));
            default: return x;
        }
    }
    ROUTECAP_BODY int32_t score() const { return Score != kAnyScore ? Score : score_of(router); }
    // Calls f.operator()<kind>(): the score by which experts rank, or by which they weigh. Once
    // for many experts, for there is much code behind it. False if there is no such score.
    template <class F>
    ROUTECAP_BODY bool with_score(bool to_rank, F f) const {
        switch (to_rank && ranks_logits() ? ROUTECAP_SCORE_LOGIT : score()) {
#define ROUTECAP_CASE(F, name, Name, score) \
    case score: f.template operator()<score>(); return true;
            ROUTECAP_SCORES(ROUTECAP_CASE, )
#undef ROUTECAP_CASE
            default: return false;
        }
    }
    ROUTECAP_BODY bool ranks_logits() const {
        return (router.flags & ROUTECAP_ROUTER_RANK_LOGITS) != 0 || score() == ROUTECAP_SCORE_LOGIT;
    }

    // The key of an expert, from its logit as it is and its bias.
    template <int32_t kind>
    ROUTECAP_BODY static uint32_t key(float x, float bias, float largest, float sum) {
        const float biased = score_from<kind>(x, largest, sum) + bias;
        return ordered(x == x ? biased : -INFINITY);
    }
    ROUTECAP_BODY float bias(uint32_t expert) const {
        return router.bias == nullptr ? 0.0f : element(router.bias, router.bias_dtype, expert);
    }

    // The two largest keys of a group, or of a part of it.
    struct Best {
        uint32_t first = kNotAKey, second = kNotAKey;

        ROUTECAP_BODY void add(uint32_t key, bool distinct) {
            const uint32_t less = key < first ? key : first;
            first = key > first ? key : first;
            if (less > second && !(distinct && less == first)) second = less;
        }
    };
    ROUTECAP_BODY bool distinct() const {
        return router.group_score == ROUTECAP_GROUP_TOP2_DISTINCT;
    }
    // The score of a group.
    ROUTECAP_BODY uint32_t group_score(const Best &best) const {
        const bool alone = router.group_score == ROUTECAP_GROUP_MAX || best.second == kNotAKey;
        const uint32_t both = ordered(key_of(best.first) + key_of(best.second));
        return alone ? best.first : both;
    }
    // The key of an expert whose group is not kept.
    ROUTECAP_BODY uint32_t dropped_key() const {
        return (router.flags & ROUTECAP_ROUTER_GROUPS_ZERO) != 0 ? ordered(0.0f) : kNotAKey;
    }

    // Whether a table of ids by token takes the place of keys.
    ROUTECAP_BODY bool hashes() const { return router.hash_table != nullptr; }
    // The row of the hash table that holds a row's ids, or nullptr.
    ROUTECAP_BODY const int32_t *hashed(uint32_t row) const {
        const int64_t token = logits.tokens_dtype == ROUTECAP_DTYPE_I32
                                  ? static_cast<const int32_t *>(logits.tokens)[row]
                                  : static_cast<const int64_t *>(logits.tokens)[row];
        return token < 0 || token >= static_cast<int64_t>(router.hash_tokens)
                   ? nullptr
                   : router.hash_table + token * k;
    }
    ROUTECAP_BODY int32_t checked(int64_t id) const {
        return id < 0 || id >= static_cast<int64_t>(logits.experts) ? kInvalidId
                                                                    : static_cast<int32_t>(id);
    }

    // The weight of a score, given the sum of the chosen.
    ROUTECAP_BODY float weight(float score, float sum) const {
        if ((router.flags & ROUTECAP_ROUTER_RENORMALIZE) != 0)
            score /= (router.flags & ROUTECAP_ROUTER_FLOOR_MAX) != 0 ? fmaxf(sum, router.floor)
                                                                     : sum + router.floor;
        return score * router.scale;
    }
    // The unnormalised weight of an id. If weights are divided by their sum, softmax's sum cancels,
    // except in the floor.
    ROUTECAP_BODY float chosen_score(uint32_t row, int32_t id, float largest, float sum) const {
        float score = 0.0f;
        if (id >= 0)
            with_score(false, [&]<int32_t kind>() {
                score =
                    score_from<kind>(counted(logit(row, static_cast<uint32_t>(id))), largest, sum);
            });
        return score;
    }
    ROUTECAP_BODY bool needs_sum() const {
        return score() == ROUTECAP_SCORE_SOFTMAX &&
               (logits.weights != nullptr || (!hashes() && !ranks_logits()));
    }

#if !defined(__CUDA_ARCH__)
    void item(uint32_t, uint32_t i) const {
        if (!logits.to.live(i)) return;
        const int64_t row = logits.to.target(i);
        const bool begun = logits.to.begun(row, control);
        if (!begun && logits.weights == nullptr) return;
        int32_t ids[ROUTECAP_MAX_K];
        float largest = -INFINITY, sum = 0.0f;
        if (needs_sum()) {
            for (uint32_t e = 0; e < logits.experts; e++)
                largest = fmaxf(largest, counted(logit(i, e)));
            for (uint32_t e = 0; e < logits.experts; e++)
                sum += exponential(counted(logit(i, e)), largest);
        }
        if (hashes()) {
            const int32_t *from = hashed(i);
            for (uint32_t c = 0; c < k; c++)
                ids[c] = from == nullptr ? kInvalidId : checked(from[c]);
        } else {
            choose(i, largest, sum, ids);
        }
        if (logits.weights != nullptr) {
            float scores[ROUTECAP_MAX_K], total = 0.0f;
            for (uint32_t c = 0; c < k; c++)
                total += scores[c] = chosen_score(i, ids[c], largest, sum);
            for (uint32_t c = 0; c < k; c++)
                logits.weights[static_cast<int64_t>(i) * logits.weights_stride + c] =
                    weight(scores[c], total);
        }
        if (!begun) return;
        with_row(sink, row, [&](auto *cell) {
            using T = std::remove_reference_t<decltype(*cell)>;
            Ids<T, 0> was;
            load(was, cell, k);
            if (all_poison(was, k))
                for (uint32_t c = 0; c < k; c++) cell[c] = static_cast<T>(ids[c]);
            else
                count(&control->conflicts, 1);
        });
    }

private:
    void choose(uint32_t row, float largest, float sum, int32_t *ids) const {
        uint32_t keys[ROUTECAP_MAX_ROUTED_EXPERTS];
        const bool known = with_score(true, [&]<int32_t kind>() {
            for (uint32_t e = 0; e < logits.experts; e++)
                keys[e] = key<kind>(logit(row, e), bias(e), largest, sum);
        });
        if (!known) {
            for (uint32_t c = 0; c < k; c++) ids[c] = kInvalidId;
            return;
        }
        if (router.groups > 1) {
            uint32_t groups[ROUTECAP_MAX_GROUPS];
            for (uint32_t g = 0; g < router.groups; g++) {
                Best best;
                for (uint32_t e = 0; e < router.group_size; e++)
                    best.add(keys[g * router.group_size + e], distinct());
                groups[g] = group_score(best);
            }
            for (uint32_t g = 0; g < router.groups; g++) {
                uint32_t better = 0;
                for (uint32_t h = 0; h < router.groups; h++)
                    better += groups[h] > groups[g] || (groups[h] == groups[g] && h < g);
                for (uint32_t e = 0; better >= router.groups_kept && e < router.group_size; e++)
                    keys[g * router.group_size + e] = dropped_key();
            }
        }
        for (uint32_t c = 0; c < k; c++) {
            uint32_t best = 0;
            for (uint32_t e = 1; e < logits.experts; e++)
                if (keys[e] > keys[best]) best = e;
            keys[best] = kNotAKey;
            ids[c] = static_cast<int32_t>(best);
        }
    }
#endif
};

}  // namespace routecap::kernels
