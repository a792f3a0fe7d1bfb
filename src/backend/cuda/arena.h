// The device memory of one capturer, in one piece. Each graph that was captured with it holds a
// reference, so the memory lives as long as any of these graphs.
#pragma once

#include <atomic>
#include <cstddef>

#include "backend/cuda/driver.h"

namespace routecap::cuda {

class Arena {
public:
    // The context must be current. The arena starts with one reference.
    static CUresult create(CUdevice device, CUcontext context, size_t bytes, Arena **arena);
    Arena(const Arena &) = delete;

    CUdeviceptr at(size_t offset) const { return memory_ + offset; }
    template <class T>
    T *pointer(size_t offset) const {
        return reinterpret_cast<T *>(memory_ + offset);
    }

    // Gives the graph a reference. The driver releases it when the graph and everything
    // instantiated from it are destroyed.
    CUresult retain_by(CUgraph graph);
    void release();

    // Frees the arenas without references. release() cannot free them itself, because the driver
    // may call it where no other call of the driver is allowed.
    static void collect();

private:
    Arena(CUdevice device, CUcontext context, CUdeviceptr memory)
        : device_(device), context_(context), memory_(memory) {}

    const CUdevice device_;
    const CUcontext context_;
    const CUdeviceptr memory_;
    std::atomic<uint32_t> references_{1};
    Arena *next_ = nullptr;  // list of arenas without references
};

}  // namespace routecap::cuda
