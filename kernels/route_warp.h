// route on a device: a warp chooses the experts of a row. Expert e is lane e % 32's value e / 32; keys stay in registers, but for the scores of groups,
// which read them from shared memory. The order of experts is that of Route::item.
#pragma once

#include "route.h"

namespace routecap::kernels {

constexpr uint32_t kWarps = 4;  // of a block

template <uint32_t V>
class RouteWarp {
public:
    __device__ RouteWarp(const Route<V> &body, uint32_t *shared) : body_(body), shared_(shared), lane_(threadIdx.x % 32) {}

    // The whole warp does row i of the source.
    __device__ void row(uint32_t i) {
        if (!body_.logits.from.live(i)) return;
        int64_t to = 0;
        if (lane_ == 0) to = body_.logits.from.row(i, body_.control);  // counts
        to = __shfl_sync(kAll, to, 0);
        if (to < 0 && body_.logits.weights == nullptr) return;
        const bool hashed = body_.router.hash_table != nullptr;
        float largest = -INFINITY, sum = 0.0f;
        if (!hashed || body_.needs_sum()) load(i, largest, sum);
        const int32_t id = hashed ? look_up(i) : choose(largest, sum);
        if (body_.logits.weights != nullptr) weigh(i, id, largest, sum);
        if (to >= 0) write(to, id);
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
    // A place in shared memory for each expert, so that lanes which walk through groups of 32 do not wait for one another.
    __device__ static uint32_t place(uint32_t e) { return e + e / 32; }

    __device__ void load(uint32_t i, float &largest, float &sum) {
        numbers_ = 0;
#pragma unroll
        for (uint32_t v = 0; v < V; v++) {
            bool number = false;
            x_[v] = exists(v) ? body_.logit(i, expert(v), number) : -INFINITY;
            numbers_ |= static_cast<uint32_t>(number) << v;
        }
        if (!body_.needs_sum()) return;
#pragma unroll
        for (uint32_t v = 0; v < V; v++) largest = fmaxf(largest, x_[v]);
        largest = reduce(largest, true);
#pragma unroll
        for (uint32_t v = 0; v < V; v++) sum += exists(v) ? body_.exponential(x_[v], largest) : 0.0f;
        sum = reduce(sum, false);
    }

    __device__ int32_t look_up(uint32_t i) const {
        const int32_t *from = body_.hashed(i);
        return from == nullptr || lane_ >= body_.k ? kInvalidId : body_.checked(from[lane_]);
    }

    // Lane c gets the expert of column c.
    __device__ int32_t choose(float largest, float sum) {
#pragma unroll
        for (uint32_t v = 0; v < V; v++)
            key_[v] = exists(v) ? body_.key(x_[v], (numbers_ >> v & 1) != 0, expert(v), largest, sum) : kNotAKey;
        if (body_.router.groups > 1) drop_groups();
        int32_t id = kInvalidId;
        for (uint32_t c = 0; c < body_.k; c++) {
            uint32_t best = kNotAKey, at = 0;
#pragma unroll
            for (uint32_t v = 0; v < V; v++)
                if (key_[v] > best) best = key_[v], at = v;
            const uint32_t most = __reduce_max_sync(kAll, best);
            const uint32_t winner = __reduce_min_sync(kAll, best == most ? expert(at) : UINT32_MAX);
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
        const uint32_t score = lane_ < groups ? body_.group([&](uint32_t e) { return shared_[place(lane_ * size + e)]; }) : kNotAKey;
        uint32_t better = 0;
        for (uint32_t h = 0; h < groups; h++) {
            const uint32_t other = __shfl_sync(kAll, score, static_cast<int>(h));
            better += other > score || (other == score && h < lane_);
        }
        const uint32_t kept = __ballot_sync(kAll, lane_ < groups && better < body_.router.groups_kept);
        const uint32_t dropped = body_.dropped_key();
#pragma unroll
        for (uint32_t v = 0; v < V; v++)
            if (exists(v) && (kept >> expert(v) / size & 1) == 0) key_[v] = dropped;
    }

    __device__ void weigh(uint32_t i, int32_t id, float largest, float sum) const {
        const bool column = lane_ < body_.k;
        const float score = column ? body_.chosen_score(i, id, largest, sum) : 0.0f;
        const float total = reduce(score, false);
        if (column) body_.logits.weights[static_cast<int64_t>(i) * body_.logits.weights_stride + lane_] = body_.weight(score, total);
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
    float x_[V];
    uint32_t key_[V];
    uint32_t numbers_ = 0;  // which of them are
};

template <uint32_t V>
__device__ inline void run(const Route<V> &body) {
    __shared__ uint32_t shared[kWarps][V * 33];
    RouteWarp<V> warp(body, shared[threadIdx.x / 32]);
    for (uint32_t i = blockIdx.x * kWarps + threadIdx.x / 32; i < body.inner(); i += gridDim.x * kWarps) warp.row(i);
}

}  // namespace routecap::kernels
