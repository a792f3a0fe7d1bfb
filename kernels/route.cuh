// route on a device: a warp chooses the experts of a row. Expert e is lane e % 32's value e / 32;
// keys stay in registers, but for the scores of groups, which read them from shared memory. The
// order of experts is that of Route::item.
#pragma once

#include "route.h"

namespace routecap::kernels {

constexpr uint32_t kWarps = 4;  // of a block

template <uint32_t V>
class RouteWarp {
public:
    __device__ RouteWarp(const Route<V> &body, uint32_t *shared)
        : body_(body), shared_(shared), lane_(threadIdx.x % 32) {}

    // The whole warp does row i of the source.
    __device__ void row(uint32_t i) {
        if (!body_.logits.to.live(i)) return;
        const int64_t to = body_.logits.to.target(i);
        bool begun = false;
        if (lane_ == 0) begun = body_.logits.to.begun(to, body_.control);  // counts
        const bool hashed = body_.router.hash_table != nullptr;
        float largest = -INFINITY, sum = 0.0f;
        if (!hashed || body_.needs_sum()) load(i, largest, sum);
        begun = __shfl_sync(kAll, begun, 0);
        if (!begun && body_.logits.weights == nullptr) return;
        const int32_t id = hashed ? look_up(i) : choose(largest, sum);
        if (body_.logits.weights != nullptr) weigh(i, id, largest, sum);
        if (begun) write(to, id);
    }

private:
    static constexpr uint32_t kAll = 0xffffffffu;

    __device__ static float reduce(float value, bool largest) {
        for (int step = 16; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(kAll, value, step);
            value = largest ? fmaxf(value, other) : value + other;
        }
        return value;
    }
    __device__ uint32_t expert(uint32_t v) const { return v * 32 + lane_; }
    __device__ bool exists(uint32_t v) const { return expert(v) < body_.logits.experts; }
    // A place in shared memory for each expert, so that lanes which walk through groups of 32 do
    // not wait for one another.
    __device__ static uint32_t place(uint32_t e) { return e + e / 32; }

    // The lane's elements of an array, all on their way at once.
    __device__ void read(const void *array, int32_t dtype, int64_t first, int64_t stride,
                         float (&to)[V]) const {
        const auto each = [&](auto element) {
#pragma unroll
            for (uint32_t v = 0; v < V; v++)
                to[v] = element(first + (exists(v) ? static_cast<int64_t>(expert(v)) : 0) * stride);
        };
        if (dtype == ROUTECAP_DTYPE_F32)
            each([array](int64_t at) { return element(array, ROUTECAP_DTYPE_F32, at); });
        else if (dtype == ROUTECAP_DTYPE_BF16)
            each([array](int64_t at) { return element(array, ROUTECAP_DTYPE_BF16, at); });
        else
            each([array](int64_t at) { return element(array, ROUTECAP_DTYPE_F16, at); });
    }

    __device__ void load(uint32_t i, float &largest, float &sum) {
        read(body_.logits.logits, body_.logits.dtype, body_.at(i, 0), body_.logits.column_stride,
             x_);
        if (body_.router.bias != nullptr) {
            read(body_.router.bias, body_.router.bias_dtype, 0, 1, bias_);
        } else {
#pragma unroll
            for (uint32_t v = 0; v < V; v++) bias_[v] = 0.0f;
        }
        if (!body_.needs_sum()) return;
#pragma unroll
        for (uint32_t v = 0; v < V; v++)
            largest = fmaxf(largest, exists(v) ? body_.counted(x_[v]) : -INFINITY);
        largest = reduce(largest, true);
#pragma unroll
        for (uint32_t v = 0; v < V; v++)
            sum += exists(v) ? body_.exponential(body_.counted(x_[v]), largest) : 0.0f;
        sum = reduce(sum, false);
    }

    __device__ int32_t look_up(uint32_t i) const {
        const int32_t *from = body_.hashed(i);
        return from == nullptr || lane_ >= body_.k ? kInvalidId : body_.checked(from[lane_]);
    }

    // The best of of(First), ... of(First + N - 1), in pairs.
    template <uint32_t First = 0, uint32_t N = V, class Of, class Best>
    __device__ static uint32_t pairwise(Of of, Best best) {
        if constexpr (N == 1)
            return of(First);
        else
            return best(pairwise<First, N / 2>(of, best), pairwise<First + N / 2, N / 2>(of, best));
    }

    // Lane c gets the expert of column c.
    __device__ int32_t choose(float largest, float sum) {
        body_.with_score(true, [&]<int32_t score>() {
#pragma unroll
            for (uint32_t v = 0; v < V; v++)
                key_[v] = exists(v) ? Route<V>::template key<score>(x_[v], bias_[v], largest, sum)
                                    : kNotAKey;
        });
        if (body_.router.groups > 1) drop_groups();
        int32_t id = kInvalidId;
        for (uint32_t c = 0; c < body_.k; c++) {
            const uint32_t best = pairwise([&](uint32_t v) { return key_[v]; },
                                           [](uint32_t a, uint32_t b) { return max(a, b); });
            const uint32_t most = __reduce_max_sync(kAll, best);
            const uint32_t first =
                pairwise([&](uint32_t v) { return key_[v] == most ? expert(v) : UINT32_MAX; },
                         [](uint32_t a, uint32_t b) { return min(a, b); });
            const uint32_t winner = __reduce_min_sync(kAll, first);
#pragma unroll
            for (uint32_t v = 0; v < V; v++)
                if (expert(v) == winner) key_[v] = kNotAKey;
            if (lane_ == c) id = static_cast<int32_t>(winner);
        }
        return id;
    }

    __device__ void drop_groups() {
        __syncwarp();
#pragma unroll
        for (uint32_t v = 0; v < V; v++)
            if (exists(v)) shared_[place(expert(v))] = key_[v];
        __syncwarp();
        const uint32_t groups = body_.router.groups, size = body_.group_size();
        const uint32_t score =
            lane_ < groups
                ? body_.group([&](uint32_t e) { return shared_[place(lane_ * size + e)]; })
                : kNotAKey;
        uint32_t better = 0;
        for (uint32_t h = 0; h < groups; h++) {
            const uint32_t other = __shfl_sync(kAll, score, static_cast<int>(h));
            better += other > score || (other == score && h < lane_);
        }
        const uint32_t kept =
            __ballot_sync(kAll, lane_ < groups && better < body_.router.groups_kept);
        const uint32_t dropped = body_.dropped_key();
        const float inverse_size = 1.0f / static_cast<float>(size);
#pragma unroll
        for (uint32_t v = 0; v < V; v++) {
            // Expert / size: both are small.
            const auto group =
                static_cast<uint32_t>((static_cast<float>(expert(v)) + 0.5f) * inverse_size);
            if (exists(v) && (kept >> group & 1) == 0) key_[v] = dropped;
        }
    }

    __device__ void weigh(uint32_t i, int32_t id, float largest, float sum) const {
        const bool column = lane_ < body_.k;
        const float score = column ? body_.chosen_score(i, id, largest, sum) : 0.0f;
        const float total = reduce(score, false);
        if (column)
            body_.logits.weights[static_cast<int64_t>(i) * body_.logits.weights_stride + lane_] =
                body_.weight(score, total);
    }

    __device__ void write(int64_t to, int32_t id) const {
        const bool column = lane_ < body_.k;
        with_row(body_.sink, to, [&](auto *cell) {
            using T = std::remove_reference_t<decltype(*cell)>;
            bool mine = __all_sync(kAll, !column || cell[lane_] == kPoison<T>);
            if (mine && lane_ == 0) mine = claim(cell, static_cast<T>(id));
            mine = __shfl_sync(kAll, mine, 0);
            if (mine && column && lane_ > 0) cell[lane_] = static_cast<T>(id);
            if (!mine && lane_ == 0) count(&body_.control->conflicts, 1);
        });
    }

    const Route<V> &body_;
    uint32_t *shared_;
    const uint32_t lane_;
    float x_[V], bias_[V];
    uint32_t key_[V];
};

template <uint32_t V>
__device__ inline void run(const Route<V> &body) {
    __shared__ uint32_t shared[kWarps][V * 33];
    RouteWarp<V> warp(body, shared[threadIdx.x / 32]);
    for (uint32_t i = blockIdx.x * kWarps + threadIdx.x / 32; i < body.inner();
         i += gridDim.x * kWarps)
        warp.row(i);
}

}  // namespace routecap::kernels
