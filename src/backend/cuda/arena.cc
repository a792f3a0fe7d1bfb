#include "backend/cuda/arena.h"

#include <new>

#include "backend/cuda/current_context.h"

namespace routecap::cuda {
namespace {

std::atomic<Arena *> unreferenced{nullptr};

}  // namespace

CUresult Arena::create(CUdevice device, CUcontext context, size_t bytes, Arena **arena) {
    collect();
    CUdeviceptr memory = 0;
    CUcontext retained = nullptr;
    if (CUresult r = driver().MemAlloc(&memory, bytes); r != CUDA_SUCCESS) return r;
    Arena *made = driver().DevicePrimaryCtxRetain(&retained, device) == CUDA_SUCCESS
                      ? new (std::nothrow) Arena(device, context, memory)
                      : nullptr;
    if (made == nullptr) {
        if (retained != nullptr) driver().DevicePrimaryCtxRelease(device);
        driver().MemFree(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *arena = made;
    return CUDA_SUCCESS;
}

CUresult Arena::retain_by(CUgraph graph) {
    CUuserObject object = nullptr;
    const auto give_back = [](void *arena) { static_cast<Arena *>(arena)->release(); };
    references_.fetch_add(1, std::memory_order_relaxed);
    if (CUresult r = driver().UserObjectCreate(&object, this, give_back, 1,
                                               CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
        r != CUDA_SUCCESS) {
        release();
        return r;
    }
    const CUresult r = driver().GraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
    if (r != CUDA_SUCCESS) driver().UserObjectRelease(object, 1);
    return r;
}

void Arena::release() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    next_ = unreferenced.load(std::memory_order_relaxed);
    while (!unreferenced.compare_exchange_weak(next_, this, std::memory_order_release,
                                               std::memory_order_relaxed)) {}
}

void Arena::collect() {
    Arena *arena = unreferenced.exchange(nullptr, std::memory_order_acquire);
    while (arena != nullptr) {
        Arena *next = arena->next_;
        {
            const Current current(arena->context_);
            const Uncaptured uncaptured;
            driver().MemFree(arena->memory_);
        }
        driver().DevicePrimaryCtxRelease(arena->device_);
        delete arena;
        arena = next;
    }
}

}  // namespace routecap::cuda
