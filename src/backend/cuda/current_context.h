// Guards around calls of the driver. Current makes the device's primary context current. Uncaptured
// permits calls that the driver forbids while another thread captures a graph. Both restore the
// state of the calling thread.
#pragma once

#include "backend/cuda/driver.h"

namespace routecap::cuda {

class Current {
public:
    // `known`: an earlier Current in the same call of the library has found the context current.
    explicit Current(CUcontext context, bool known = false) {
        if (known) return;
        CUcontext now = nullptr;
        found_ = driver().CtxGetCurrent(&now) == CUDA_SUCCESS && now == context;
        if (found_) return;
        pushed_ = driver().CtxPushCurrent(context) == CUDA_SUCCESS;
    }
    bool found() const { return found_; }  // it was current before
    ~Current() {
        CUcontext popped = nullptr;
        if (pushed_) driver().CtxPopCurrent(&popped);
    }
    Current(const Current &) = delete;

private:
    bool found_ = false, pushed_ = false;
};

class Uncaptured {
public:
    Uncaptured() : exchanged_(driver().ThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS) {}
    ~Uncaptured() {
        if (exchanged_) driver().ThreadExchangeStreamCaptureMode(&mode_);
    }
    Uncaptured(const Uncaptured &) = delete;

private:
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool exchanged_;
};

}  // namespace routecap::cuda
