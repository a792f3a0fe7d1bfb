// The device's form of every kernel in list.h: a grid-stride loop over the items of an element
// body. That of route is in route.cuh.
#include "list.h"
#include "route.cuh"

namespace routecap::kernels {

// A thread for every item.
template <class Body>
__device__ inline void run(const Body &body) {
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < body.inner();
         i += gridDim.x * blockDim.x)
        body.item(0, i);
}

// The validity of the cells of a warp, of which eight neighbours share a byte: the first of them
// writes it.
template <class Body>
__device__ inline void write_validity(const Body &body, uint8_t *to, uint32_t row, uint32_t group,
                                      bool writes, uint32_t valid) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t ids = __ballot_sync(0xffffffffu, (valid & kIdsValid) != 0);
    uint32_t weights = 0;
    if constexpr (Body::kWeights)
        weights = __ballot_sync(0xffffffffu, (valid & kWeightsValid) != 0);
    if (writes) body.set_validity(to, row, group, ids >> lane, weights >> lane);
}

// A snapshot has a thread for every cell: the eight of a byte of validity are neighbours in a warp.
// What a thread needs of the layers' table it reads while the control words are still on their way.
// (To fetch the ids then too costs 4 us with 1024 rows, and gains nothing with 64.)
template <class Body>
__device__ inline void run_snapshot(const Body &body) {
    const uint32_t cells = body.inner() * 8, lane = threadIdx.x % 32;
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    auto sink = body.sink(min(i % cells, body.layer_count - 1));
    const uint32_t items = body.outer() * cells;
    uint8_t *to = items > 0 ? body.slot() : nullptr;
    for (uint32_t first = i - lane; first < items;
         first += gridDim.x * blockDim.x, i = first + lane) {
        const uint32_t row = i / cells, layer = i % cells;
        if (i >= gridDim.x * blockDim.x) sink = body.sink(min(layer, body.layer_count - 1));
        uint32_t valid = 0;
        if (i < items && layer < body.layer_count) valid = body.cell(to, row, layer, sink);
        write_validity(body, to, row, layer / 8, i < items && layer % 8 == 0, valid);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) body.once();
}
template <class Id, uint32_t K>
__device__ inline void run(const Snapshot<Id, K> &body) {
    run_snapshot(body);
}
template <class Id, uint32_t K, class W>
__device__ inline void run(const SnapshotWeights<Id, K, W> &body) {
    run_snapshot(body);
}

// As a snapshot's. Eight layers have their own row of blocks, and so a block reads the parameters of
// eight layers only.
template <class Body>
__device__ inline void run_whole_step(const Body &body) {
    const uint32_t items = body.outer() * 8, lane = threadIdx.x % 32, group = blockIdx.y;
    const uint32_t layer = group * 8 + lane % 8;
    uint8_t *to = items > 0 ? body.slot() : nullptr;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i - lane < items;
         i += gridDim.x * blockDim.x) {
        const uint32_t row = i / 8;
        uint32_t valid = 0;
        if (i < items && layer < body.layer_count()) valid = body.cell(to, row, layer);
        write_validity(body, to, row, group, i < items && lane % 8 == 0, valid);
    }
    if (blockIdx.x == 0 && group == 0 && threadIdx.x == 0) body.once();
}
template <class Id, uint32_t K>
__device__ inline void run(const WholeStep<Id, K> &body) {
    run_whole_step(body);
}
template <class Id, uint32_t K, class W>
__device__ inline void run(const WholeStepWeights<Id, K, W> &body) {
    run_whole_step(body);
}

// If record is launched as a dependent of the router, it lets the consumer start at once, and reads
// nothing before the router has finished. So a consumer that waits for this kernel also waits for
// the router. Each layer has its own row of blocks, so that a block reads the parameters of one
// layer only: they are in no cache, and a warp would wait for several one after another.
template <uint32_t L, class Body>
__device__ inline void run_record(const Body &body) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < body.inner();
         i += gridDim.x * blockDim.x)
        body.item(L == 1 ? 0 : blockIdx.y, i);
}
template <uint32_t K, uint32_t L>
__device__ inline void run(const Record<K, L> &body) {
    run_record<L>(body);
}
template <uint32_t K, uint32_t L, class W>
__device__ inline void run(const RecordWeights<K, L, W> &body) {
    run_record<L>(body);
}

// Begin delays the step and its code is in no cache, so it is short. Each layer has its own row of
// blocks.
template <class Body>
__device__ inline void run_begin(const Body &body) {
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) body.once();
#pragma unroll 1
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < body.inner();
         i += gridDim.x * blockDim.x)
        body.item(blockIdx.y, i);
}
__device__ inline void run(const Begin &body) { run_begin(body); }
__device__ inline void run(const BeginWeights &body) { run_begin(body); }

// The last block to finish signals the arrival. It has seen that all other blocks have written
// their parts, so its write, which follows a fence, reaches the host after theirs.
__device__ inline void run(const Deliver &body) {
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < body.inner();
         i += gridDim.x * blockDim.x)
        body.item(0, i);
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (gridDim.x > 1) {
        __threadfence();
        if (atomicAdd(&body.control->done, 1u) != gridDim.x - 1) return;
        body.control->done = 0;
    }
    body.last();
}

// A thread for every cell, in the order of what is written.
template <uint32_t K>
__device__ inline void run(const Unpack<K> &body) {
    const uint64_t inner = body.inner(), cells = body.outer() * inner;
    const uint64_t threads = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < cells;
         i += threads)
        body.item(static_cast<uint32_t>(i / inner), static_cast<uint32_t>(i % inner));
}

}  // namespace routecap::kernels

#define ROUTECAP_DEFINE(name, Body)                                  \
    extern "C" __global__ void __launch_bounds__(                    \
        routecap::kernels::Launch<routecap::kernels::Body>::threads) \
        name(const __grid_constant__ routecap::kernels::Body body) { \
        run(body);                                                   \
    }
ROUTECAP_KERNELS(ROUTECAP_DEFINE)
