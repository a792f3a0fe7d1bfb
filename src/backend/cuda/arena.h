// The device memory of one capturer, in one piece. Graphs that were captured with it retain it: it
// lives as long as any of them.
#pragma once

#include <atomic>
#include <cstddef>

#include "backend/cuda/driver.h"

namespace routecap::cuda {

class Arena {
public:
    // Needs the context to be current. `arena` starts with one reference.
    static CUresult create(CUdevice device, CUcontext context, size_t bytes, Arena **arena);
    Arena(const Arena &) = delete;

    CUdeviceptr at(size_t offset) const { return memory_ + offset; }
    template <class T>
    T *pointer(size_t offset) const {
        return reinterpret_cast<T *>(memory_ + offset);
    }

    // The graph takes a reference, given back when it and everything instantiated from it are
    // destroyed.
    CUresult retain_by(CUgraph graph);
    void release();

    // Frees what has no references any more: the last one may be given back where the driver must
    // not be called.
    static void collect();

private:
    Arena(CUdevice device, CUcontext context, CUdeviceptr memory)
        : device_(device), context_(context), memory_(memory) {}

    const CUdevice device_;
    const CUcontext context_;
    const CUdeviceptr memory_;
    std::atomic<uint32_t> references_{1};
    Arena *next_ = nullptr;  // of those without references
};

}  // namespace routecap::cuda
