// The device's form of every kernel in list.h: a grid-stride loop over the items of an element body.
#include "list.h"

namespace routecap::kernels {

// The rest of a kernel: what is done once, by one thread.
__device__ inline void finish(const Begin &body) {
    if (blockIdx.x == 0 && threadIdx.x == 0) body.once();
}
template <uint32_t K>
__device__ inline void finish(const Record<K> &) {}
// After all items: the block that finds itself to be the last does it.
template <class Id, uint32_t K>
__device__ inline void finish(const Snapshot<Id, K> &body) {
    __syncthreads();
    if (threadIdx.x != 0) return;
    __threadfence();
    if (atomicAdd(&body.control->finished, 1u) != gridDim.x - 1) return;
    body.control->finished = 0;
    body.after();
}

template <class Body>
__device__ inline void run(const Body &body) {
    const uint32_t inner = body.inner(), items = body.outer() * inner;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < items; i += gridDim.x * blockDim.x) body.item(i / inner, i % inner);
    finish(body);
}

}  // namespace routecap::kernels

#define ROUTECAP_DEFINE(name, Body) \
    extern "C" __global__ void __launch_bounds__(128) name(const __grid_constant__ routecap::kernels::Body body) { run(body); }
ROUTECAP_KERNELS(ROUTECAP_DEFINE)
