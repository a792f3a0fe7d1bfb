// route on a device: a warp chooses the experts of a row. Lane l has V experts, from l * V on, so
// that of lanes with equal keys the first has the expert that comes first. The order of experts is
// that of Route::item.
//
// A step of few rows has few warps, whose code is in no cache when they start. So all loads are
// issued at once, and there are few branches. A block is one warp and does one row, so that the
// compiler knows that its lanes do not diverge, and computes only what that row needs.
#pragma once

#include "route.h"

namespace routecap::kernels {

template <uint32_t V, int32_t Score>
class RouteWarp {
    using Body = Route<V, Score>;

public:
    // In shared memory: place(V * 32) keys, and an id for each lane.
    __device__ RouteWarp(const Body &body, uint32_t *keys, int32_t *chosen)
        : body_(body), keys_(keys), chosen_(chosen), lane_(threadIdx.x) {}

    // The whole warp does row i of the source.
    __device__ void row(uint32_t i) {
        // Independent loads are all issued before the first is waited for.
        const Control words = *body_.control;
        const bool reads = !body_.hashes() || body_.needs_sum(),
                   adds = body_.router.bias != nullptr;
        uint32_t logits[V], bias[V];
        if (reads)
            fetch(body_.logits.logits, body_.logits.dtype, body_.at(i, 0),
                  body_.logits.column_stride, logits);
        if (adds) fetch(body_.router.bias, body_.router.bias_dtype, 0, 1, bias);
        const int64_t to = body_.logits.to.target(i);
        const bool inside = body_.logits.to.inside();
        void *cell = cell_of(to);
        uint64_t was = inside ? column_of(cell) : 0;
        if (!body_.logits.to.live(i)) return;
        const bool begun = to >= 0 && to < static_cast<int64_t>(words.rows());
        if (!begun && to != Placement::kNone && lane_ == 0) count(&body_.control->dropped, 1);
        if (!begun && body_.logits.weights == nullptr) return;
        if (begun && !inside) was = column_of(cell);

        if (reads) convert(logits, body_.logits.dtype, x_);
        if (adds) convert(bias, body_.router.bias_dtype, bias_);
        float largest = -INFINITY, sum = 0.0f;
        if (body_.needs_sum()) add_up(largest, sum);
        const int32_t first = choose_first(i, largest, sum);
        // Whether the cell is this row's turns out while the other columns are chosen.
        const bool free = __all_sync(kAll, (lane_ >= body_.k) | is_poison(was));
        Claim claimed{0, 1};
        if (begun && free && first != kNobody)
            with_cell(cell, [&](auto *ids) {
                using T = std::remove_reference_t<decltype(*ids)>;
                claimed = claim(ids, static_cast<T>(first), body_.k);
            });
        if (!body_.hashes()) {
#pragma unroll 1
            for (uint32_t c = 1; c < body_.k; c++) take(c);
        }
        __syncwarp();
        const int32_t id = chosen_[lane_];
        if (body_.logits.weights != nullptr) weigh(i, id, largest, sum);
        if (!begun) return;
        const bool mine = __any_sync(kAll, claimed.succeeded());
        if (mine && lane_ > 0 && lane_ < body_.k)
            with_cell(cell, [&](auto *ids) {
                ids[lane_] = static_cast<std::remove_reference_t<decltype(*ids)>>(id);
            });
        if (!mine && lane_ == 0) count(&body_.control->conflicts, 1);
    }

private:
    static constexpr uint32_t kAll = 0xffffffffu;
    static constexpr int32_t kNobody = INT32_MIN;

    __device__ static float add_lanes(float value) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
        return value;
    }
    __device__ uint32_t expert(uint32_t v) const { return lane_ * V + v; }
    __device__ bool exists(uint32_t v) const { return expert(v) < body_.logits.experts; }

    // The lane's elements of an array, as they are in memory: those of 16 bits in pairs. Those that
    // do not exist are any.
    __device__ void fetch(const void *array, int32_t dtype, int64_t first, int64_t stride,
                          uint32_t (&to)[V]) const {
        const uint32_t shift = dtype == ROUTECAP_DTYPE_F32 ? 2 : 1;
        const uint8_t *row = static_cast<const uint8_t *>(array) + (first << shift);
        // As many as there are if they have 16 bits, and half of them otherwise.
        using Word = std::conditional_t<V >= 8, uint4, uint2>;
        constexpr uint32_t words = V * 2 / sizeof(Word);
        union {
            Word as_words[words * 2];
            uint32_t numbers[V];
        };
        if (stride == 1 && body_.logits.experts % V == 0 &&
            reinterpret_cast<uintptr_t>(row) % sizeof(Word) == 0) [[likely]] {
            const auto *from =
                reinterpret_cast<const Word *>(row + (exists(0) ? expert(0) << shift : 0));
#pragma unroll
            for (uint32_t w = 0; w < words * 2; w++)
                if (w < words || shift == 2) as_words[w] = from[w];
        } else {
            uint32_t each[V];
            fetch_each(row, shift, stride, expert(0), body_.logits.experts, each);
#pragma unroll
            for (uint32_t v = 0; v < V; v++) numbers[v] = each[v];
        }
#pragma unroll
        for (uint32_t v = 0; v < V; v++) to[v] = numbers[v];
    }
    // The rare paths are separate functions, so that they do not lengthen the common one.
    __device__ __noinline__ static void fetch_each(const uint8_t *row, uint32_t shift,
                                                   int64_t stride, uint32_t first, uint32_t experts,
                                                   uint32_t *to) {
        for (uint32_t v = 0; v < V; v++) {
            const int64_t at = first + v < experts ? (first + v) * stride : 0;
            if (shift == 2)
                to[v] = reinterpret_cast<const uint32_t *>(row)[at];
            else
                reinterpret_cast<uint16_t *>(to)[v] = reinterpret_cast<const uint16_t *>(row)[at];
        }
    }
    __device__ void convert(const uint32_t (&from)[V], int32_t dtype, float (&to)[V]) const {
        if (dtype == ROUTECAP_DTYPE_F32) {
#pragma unroll
            for (uint32_t v = 0; v < V; v++) to[v] = bits_as<float>(from[v]);
            return;
        }
        const bool bfloat = dtype == ROUTECAP_DTYPE_BF16;
#pragma unroll
        for (uint32_t v = 0; v < V; v++) {
            const auto bits = static_cast<uint16_t>(from[v / 2] >> 16 * (v % 2));
            const float half = float_of_half(bits);
            to[v] = bfloat ? float_of_bfloat(bits) : half;
        }
    }

    // The cell of a row of the sink, which is none where that is negative.
    __device__ void *cell_of(int64_t row) const {
        const uint32_t shift = body_.sink.dtype == ROUTECAP_DTYPE_I16   ? 1
                               : body_.sink.dtype == ROUTECAP_DTYPE_I32 ? 2
                                                                        : 3;
        return static_cast<uint8_t *>(body_.sink.ids) + (row * body_.sink.row_stride << shift);
    }
    template <class F>
    __device__ void with_cell(void *cell, F f) const {
        with_ids(cell, body_.sink.dtype, f);
    }
    // The bits of the lane's column of a cell, as they are: whoever compares them waits for them.
    __device__ uint64_t column_of(void *cell) const {
        uint64_t bits = 0;
        if (lane_ < body_.k)
            with_cell(cell, [&](auto *ids) {
                bits = static_cast<std::make_unsigned_t<std::remove_reference_t<decltype(*ids)>>>(
                    ids[lane_]);
            });
        return bits;
    }
    // Whether nobody wrote it.
    __device__ bool is_poison(uint64_t bits) const {
        constexpr auto all = static_cast<uint64_t>(kPoison<int64_t>);
        const int32_t dtype = body_.sink.dtype;
        return bits == (dtype == ROUTECAP_DTYPE_I16   ? all & 0xffff
                        : dtype == ROUTECAP_DTYPE_I32 ? all & 0xffffffff
                                                      : all);
    }

    __device__ void add_up(float &largest, float &sum) const {
#pragma unroll
        for (uint32_t v = 0; v < V; v++)
            largest = fmaxf(largest, exists(v) ? body_.counted(x_[v]) : -INFINITY);
        largest = key_of(__reduce_max_sync(kAll, ordered(largest)));
#pragma unroll
        for (uint32_t v = 0; v < V; v++) {
            const float power = body_.exponential(body_.counted(x_[v]), largest);
            sum += exists(v) ? power : 0.0f;
        }
        sum = add_lanes(sum);
    }

    // The id of column 0 in one lane, and kNobody in the others.
    __device__ int32_t choose_first(uint32_t i, float largest, float sum) {
        if (body_.hashes()) {
            const int32_t *from = body_.hashed(i);
            const bool none = from == nullptr || lane_ >= body_.k;
            chosen_[lane_] = none ? kInvalidId : body_.checked(from[lane_]);
            return lane_ == 0 ? chosen_[0] : kNobody;
        }
        body_.with_score(true, [&]<int32_t kind>() {
#pragma unroll
            for (uint32_t v = 0; v < V; v++) {
                const uint32_t key = Body::template key<kind>(x_[v], bias_[v], largest, sum);
                key_[v] = exists(v) ? key : kNotAKey;
            }
        });
        if (body_.router.groups > 1) drop_groups();
        return take(0);
    }

    // of(First), ... of(First + N - 1) as f makes one of two, in pairs.
    template <uint32_t First = 0, uint32_t N = V, class Of, class F>
    __device__ static auto pairwise(Of of, F f) {
        if constexpr (N == 1)
            return of(First);
        else
            return f(pairwise<First, N / 2>(of, f), pairwise<First + N / 2, N / 2>(of, f));
    }

    // The best expert that is left, the first of several, becomes that of column c. The lane that
    // has it gets it, and the others kNobody.
    __device__ int32_t take(uint32_t c) {
        const uint32_t best = pairwise([&](uint32_t v) { return key_[v]; },
                                       [](uint32_t a, uint32_t b) { return max(a, b); });
        const uint32_t most = __reduce_max_sync(kAll, best);
        uint32_t at = V;
#pragma unroll
        for (uint32_t v = V; v > 0; v--) at = key_[v - 1] == best ? v - 1 : at;
        const uint32_t equal = __ballot_sync(kAll, best == most);
        const bool wins = best == most && (equal & ((1u << lane_) - 1)) == 0;
        const uint32_t taken = wins ? at : V;
#pragma unroll
        for (uint32_t v = 0; v < V; v++) key_[v] = v == taken ? kNotAKey : key_[v];
        const auto id = static_cast<int32_t>(expert(at));
        // Were it stored by its array, the array's address would be read in each turn of the loop.
        if (wins)
            asm volatile("st.shared.s32 [%0], %1;" ::"r"(chosen_address_ + c * 4), "r"(id)
                         : "memory");
        return wins ? id : kNobody;
    }

    // Groups of whole lanes, a power of two of them, are compared from lane to lane, others by way
    // of shared memory.
    __device__ void drop_groups() {
        const uint32_t size = body_.router.group_size, lanes = size / V;
        if (size % V == 0 && (lanes & (lanes - 1)) == 0 && !body_.distinct()) [[likely]]
            return drop_groups_of(lanes);
#pragma unroll
        for (uint32_t v = 0; v < V; v++) keys_[place(expert(v))] = key_[v];
        drop_groups_in_memory(body_, keys_);
#pragma unroll
        for (uint32_t v = 0; v < V; v++) key_[v] = keys_[place(expert(v))];
    }
    __device__ void drop_groups_of(uint32_t lanes) {
        using Best = typename Body::Best;
        const auto merge = [](const Best &a, const Best &b) {
            return Best{max(a.first, b.first), max(min(a.first, b.first), max(a.second, b.second))};
        };
        Best best = pairwise([&](uint32_t v) { return Best{key_[v], kNotAKey}; }, merge);
#pragma unroll 1
        for (uint32_t step = 1; step < lanes; step *= 2)
            best = merge(best, {__shfl_xor_sync(kAll, best.first, step),
                                __shfl_xor_sync(kAll, best.second, step)});
        const uint32_t dropped = body_.dropped_key();
        const bool keep = kept(body_, body_.group_score(best), lanes);
#pragma unroll
        for (uint32_t v = 0; v < V; v++) key_[v] = keep | !exists(v) ? key_[v] : dropped;
    }
    __device__ __noinline__ static void drop_groups_in_memory(const Body &body, uint32_t *keys) {
        const uint32_t size = body.router.group_size, lane = threadIdx.x;
        __syncwarp();
        typename Body::Best best;
        const uint32_t first = lane * size, end = lane < body.router.groups ? first + size : first;
#pragma unroll 4
        for (uint32_t e = first; e < end; e++) best.add(keys[place(e)], body.distinct());
        if (!kept(body, body.group_score(best), 1))
            for (uint32_t e = first; e < end; e++) keys[place(e)] = body.dropped_key();
        __syncwarp();
    }
    // Whether the lane's group is one of the best. A group has so many lanes, and each of them has
    // its score.
    __device__ static bool kept(const Body &body, uint32_t score, uint32_t lanes) {
        const uint32_t lane = threadIdx.x;
        uint32_t better = 0;
#pragma unroll 1
        for (uint32_t first = 0; first < 32; first += 8 * lanes) {
#pragma unroll
            for (uint32_t g = 0; g < 8; g++) {
                const uint32_t from = first + g * lanes;
                const uint32_t other = __shfl_sync(kAll, score, static_cast<int>(from % 32));
                const bool before = from + lanes <= lane;
                better += (from < 32) & ((other > score) | ((other == score) & before));
            }
        }
        return better < body.router.groups_kept;
    }
    // A place in shared memory for each expert, so that lanes that walk through groups of 32 do not
    // wait for one another.
    __device__ static uint32_t place(uint32_t e) { return e + e / 32; }

    __device__ void weigh(uint32_t i, int32_t id, float largest, float sum) const {
        const bool column = lane_ < body_.k;
        const float score = column ? body_.chosen_score(i, id, largest, sum) : 0.0f;
        const float total = add_lanes(score);
        if (column)
            body_.logits.weights[static_cast<int64_t>(i) * body_.logits.weights_stride + lane_] =
                body_.weight(score, total);
    }

    const Body &body_;
    uint32_t *const keys_;
    int32_t *const chosen_;
    const uint32_t chosen_address_ = static_cast<uint32_t>(__cvta_generic_to_shared(chosen_));
    const uint32_t lane_;
    float x_[V], bias_[V] = {};
    uint32_t key_[V];
};

template <uint32_t V, int32_t Score>
__device__ inline void run(const Route<V, Score> &body) {
    __shared__ uint32_t keys[V * 33];
    __shared__ int32_t chosen[32];
    if (blockIdx.x < body.inner()) RouteWarp<V, Score>(body, keys, chosen).row(blockIdx.x);
}

}  // namespace routecap::kernels
