// The list of kernels: one for each element body. Bodies that depend on k have one kernel for each
// k of common models.
#pragma once

#include "begin.h"
#include "deliver.h"
#include "dispatch_check.h"
#include "record.h"
#include "route.h"
#include "snapshot.h"
#include "unpack.h"
#include "weights.h"
#include "whole_step.h"

// F(k) for each k that has kernels of its own, and F(0) for all other k.
#define ROUTECAP_COLUMNS(F) F(0) F(1) F(2) F(4) F(6) F(8) F(10) F(16) F(22)

// F(k) for each k that has kernels of its own with weights, and F(0) for all other k.
#define ROUTECAP_WEIGHT_COLUMNS(F) F(0) F(4) F(8)

// How many layers one launch can record with weights: its parameters are at most 4,096 bytes.
#define ROUTECAP_WEIGHTED_LAYERS 32

// How many layers one launch can record, and F(v) for each number of experts that a lane may have
// to route.
#define ROUTECAP_RECORD_LAYERS 64
#define ROUTECAP_LANE_EXPERTS(F) F(4) F(8) F(16) F(32)

// F(name, body) for each kernel.
#define ROUTECAP_KERNELS(F)                                      \
    F(routecap_begin, Begin)                                     \
    ROUTECAP_COLUMN_KERNELS(F, routecap_record_, RecordOne)      \
    ROUTECAP_COLUMN_KERNELS(F, routecap_records_, RecordMany)    \
    ROUTECAP_COLUMN_KERNELS(F, routecap_snapshot8_, Snapshot8)   \
    ROUTECAP_COLUMN_KERNELS(F, routecap_snapshot16_, Snapshot16) \
    ROUTECAP_COLUMN_KERNELS(F, routecap_whole8_, WholeStep8)     \
    ROUTECAP_COLUMN_KERNELS(F, routecap_whole16_, WholeStep16)   \
    F(routecap_begin_weights, BeginWeights)                      \
    ROUTECAP_WEIGHT_KERNELS(F, 2)                                \
    ROUTECAP_WEIGHT_KERNELS(F, 4)                                \
    F(routecap_deliver, Deliver)                                 \
    ROUTECAP_SCORES(ROUTECAP_ROUTE_KERNELS, F)                   \
    F(routecap_received_rows, Received)                          \
    F(routecap_received_expanded, ReceivedExpanded)              \
    F(routecap_received_chosen, Chosen)                          \
    ROUTECAP_COLUMN_KERNELS(F, routecap_unpack_, Unpack)
#define ROUTECAP_COLUMN_KERNELS(F, name, Body) \
    F(name##0, Body<0>)                        \
    F(name##1, Body<1>)                        \
    F(name##2, Body<2>)                        \
    F(name##4, Body<4>)                        \
    F(name##6, Body<6>)                        \
    F(name##8, Body<8>)                        \
    F(name##10, Body<10>)                      \
    F(name##16, Body<16>)                      \
    F(name##22, Body<22>)
#define ROUTECAP_WEIGHT_KERNELS(F, W)                                         \
    ROUTECAP_WEIGHTS_OF(F, routecap_record_w##W##_, RecordOneWeights##W)      \
    ROUTECAP_WEIGHTS_OF(F, routecap_records_w##W##_, RecordManyWeights##W)    \
    ROUTECAP_WEIGHTS_OF(F, routecap_snapshot8_w##W##_, Snapshot8Weights##W)   \
    ROUTECAP_WEIGHTS_OF(F, routecap_snapshot16_w##W##_, Snapshot16Weights##W) \
    ROUTECAP_WEIGHTS_OF(F, routecap_whole8_w##W##_, WholeStep8Weights##W)     \
    ROUTECAP_WEIGHTS_OF(F, routecap_whole16_w##W##_, WholeStep16Weights##W)
#define ROUTECAP_WEIGHTS_OF(F, name, Body) \
    F(name##0, Body<0>)                    \
    F(name##4, Body<4>)                    \
    F(name##8, Body<8>)
#define ROUTECAP_ROUTE_KERNELS(F, name, Name, score) \
    F(routecap_route_##name##_4, Route##Name<4>)     \
    F(routecap_route_##name##_8, Route##Name<8>)     \
    F(routecap_route_##name##_16, Route##Name<16>)   \
    F(routecap_route_##name##_32, Route##Name<32>)

namespace routecap::kernels {

template <uint32_t K>
using RecordOne = Record<K, 1>;
template <uint32_t K>
using RecordMany = Record<K, ROUTECAP_RECORD_LAYERS>;
template <uint32_t K>
using Snapshot8 = Snapshot<uint8_t, K>;
template <uint32_t K>
using Snapshot16 = Snapshot<uint16_t, K>;
template <uint32_t K>
using WholeStep8 = WholeStep<uint8_t, K>;
template <uint32_t K>
using WholeStep16 = WholeStep<uint16_t, K>;

#define ROUTECAP_USING(W, Weight)                                                    \
    template <uint32_t K>                                                            \
    using RecordOneWeights##W = RecordWeights<K, 1, Weight>;                         \
    template <uint32_t K>                                                            \
    using RecordManyWeights##W = RecordWeights<K, ROUTECAP_WEIGHTED_LAYERS, Weight>; \
    template <uint32_t K>                                                            \
    using Snapshot8Weights##W = SnapshotWeights<uint8_t, K, Weight>;                 \
    template <uint32_t K>                                                            \
    using Snapshot16Weights##W = SnapshotWeights<uint16_t, K, Weight>;               \
    template <uint32_t K>                                                            \
    using WholeStep8Weights##W = WholeStepWeights<uint8_t, K, Weight>;               \
    template <uint32_t K>                                                            \
    using WholeStep16Weights##W = WholeStepWeights<uint16_t, K, Weight>;
ROUTECAP_USING(2, uint16_t)
ROUTECAP_USING(4, uint32_t)
#undef ROUTECAP_USING

#define ROUTECAP_USING(F, name, Name, score) \
    template <uint32_t V>                    \
    using Route##Name = Route<V, score>;
ROUTECAP_SCORES(ROUTECAP_USING, )
#undef ROUTECAP_USING

// How a kernel is launched: threads per block, and whether blocks loop if there are more items than
// threads can run at once. A block of route is one warp, which does one row.
template <class Body>
struct Launch {
    static constexpr uint32_t threads = 128;
    static constexpr bool loops = true;
};
template <uint32_t V, int32_t Score>
struct Launch<Route<V, Score>> {
    static constexpr uint32_t threads = 32;
    static constexpr bool loops = false;
};

// Calls f.operator()<K>() with K = k for a k that has kernels of its own, otherwise with 0.
template <class F>
inline void with_columns(uint32_t k, F f) {
    switch (k) {
#define ROUTECAP_CASE(K) \
    case K: return f.template operator()<K>();
        ROUTECAP_COLUMNS(ROUTECAP_CASE)
#undef ROUTECAP_CASE
        default: return f.template operator()<0>();
    }
}

// The same for kernels with weights, and W a weight's type.
template <class W, class F>
inline void with_columns_and(uint32_t k, F f) {
    switch (k) {
#define ROUTECAP_CASE(K) \
    case K: return f.template operator()<K, W>();
        ROUTECAP_WEIGHT_COLUMNS(ROUTECAP_CASE)
#undef ROUTECAP_CASE
        default: return f.template operator()<0, W>();
    }
}
template <class F>
inline void with_weight_columns(uint32_t k, uint32_t weight_bytes, F f) {
    if (weight_bytes == 2)
        with_columns_and<uint16_t>(k, f);
    else
        with_columns_and<uint32_t>(k, f);
}

// Calls f.operator()<V, Score>() for the kernel that routes so many experts by this score. False if
// there is none.
template <uint32_t V, class F>
inline bool with_score(int32_t score, F f) {
    switch (score) {
#define ROUTECAP_CASE(F, name, Name, score) \
    case score: f.template operator()<V, score>(); return true;
        ROUTECAP_SCORES(ROUTECAP_CASE, )
#undef ROUTECAP_CASE
        default: return false;
    }
}
template <class F>
inline bool with_route(uint32_t experts, int32_t score, F f) {
#define ROUTECAP_CASE(V) \
    if (experts <= V * 32) return with_score<V>(score, f);
    ROUTECAP_LANE_EXPERTS(ROUTECAP_CASE)
#undef ROUTECAP_CASE
    return false;
}

}  // namespace routecap::kernels
