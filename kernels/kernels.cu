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

// A snapshot has a thread for every cell: the eight of a byte of validity are neighbours in a warp.
// What a thread needs of the layers' table it reads while the control words are still on their way.
// (To fetch the ids then too costs 4 us with 1024 rows, and gains nothing with 64.)
template <class Id, uint32_t K>
__device__ inline void run(const Snapshot<Id, K> &body) {
    const uint32_t cells = body.inner() * 8, lane = threadIdx.x % 32;
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    SinkLayer sink = body.layers[min(i % cells, body.layer_count - 1)];
    const uint32_t items = body.outer() * cells;
    uint8_t *to = items > 0 ? body.slot() : nullptr;
    for (uint32_t first = i - lane; first < items;
         first += gridDim.x * blockDim.x, i = first + lane) {
        const uint32_t row = i / cells, layer = i % cells;
        if (i >= gridDim.x * blockDim.x) sink = body.layers[min(layer, body.layer_count - 1)];
        const bool valid = i < items && layer < body.layer_count && body.cell(to, row, layer, sink);
        const uint32_t all = __ballot_sync(0xffffffffu, valid);
        if (i < items && layer % 8 == 0) body.set_validity(to, row, layer / 8, all >> lane);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) body.once();
}

template <class Id, uint32_t K, class W>
__device__ inline void run(const SnapshotWeights<Id, K, W> &body) {
    const Snapshot<Id, K> &snapshot = body.snapshot;
    const uint32_t cells = body.inner() * 8, lane = threadIdx.x % 32;
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    const uint32_t items = body.outer() * cells;
    uint8_t *to = items > 0 ? snapshot.slot() : nullptr;
    for (uint32_t first = i - lane; first < items;
         first += gridDim.x * blockDim.x, i = first + lane) {
        const uint32_t row = i / cells, layer = i % cells;
        bool valid = false, there = false;
        if (i < items && layer < snapshot.layer_count)
            valid = body.cell(to, row, layer, snapshot.layers[layer], body.sinks[layer], there);
        const uint32_t all = __ballot_sync(0xffffffffu, valid),
                       weighted = __ballot_sync(0xffffffffu, there);
        if (i < items && layer % 8 == 0)
            body.set_validity(to, row, layer / 8, all >> lane, weighted >> lane);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) body.once();
}

// As a snapshot's. Eight layers have their own row of blocks, and so a block reads the parameters of
// eight layers only.
template <class Id, uint32_t K>
__device__ inline void run(const WholeStep<Id, K> &body) {
    const uint32_t items = body.outer() * 8, lane = threadIdx.x % 32, group = blockIdx.y;
    const uint32_t layer = group * 8 + lane % 8;
    uint8_t *to = items > 0 ? body.snapshot.slot() : nullptr;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i - lane < items;
         i += gridDim.x * blockDim.x) {
        const uint32_t row = i / 8;
        const bool valid =
            i < items && layer < body.snapshot.layer_count && body.cell(to, row, layer);
        const uint32_t all = __ballot_sync(0xffffffffu, valid);
        if (i < items && lane % 8 == 0) body.snapshot.set_validity(to, row, group, all >> lane);
    }
    if (blockIdx.x == 0 && group == 0 && threadIdx.x == 0) body.once();
}

template <class Id, uint32_t K, class W>
__device__ inline void run(const WholeStepWeights<Id, K, W> &body) {
    const uint32_t items = body.outer() * 8, lane = threadIdx.x % 32, group = blockIdx.y;
    const uint32_t layer = group * 8 + lane % 8;
    uint8_t *to = items > 0 ? body.step.snapshot.slot() : nullptr;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i - lane < items;
         i += gridDim.x * blockDim.x) {
        const uint32_t row = i / 8;
        bool valid = false, there = false;
        if (i < items && layer < body.step.snapshot.layer_count)
            valid = body.cell(to, row, layer, there);
        const uint32_t all = __ballot_sync(0xffffffffu, valid),
                       weighted = __ballot_sync(0xffffffffu, there);
        if (i < items && lane % 8 == 0)
            body.set_validity(to, row, group, all >> lane, weighted >> lane);
    }
    if (blockIdx.x == 0 && group == 0 && threadIdx.x == 0) body.once();
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
