#include "backend/unpack.h"

#include "backend/backends.h"
#include "base/status.h"
#include "kernels/list.h"
#if ROUTECAP_CUDA
#include "backend/cuda/cuda_unpack.h"
#endif

namespace routecap {
namespace {

int32_t unpack_on_host(const UnpackWork &work, routecap_stream stream) {
    if (stream != nullptr)
        return report(ROUTECAP_ERR_ARGUMENT, "the host backend has no streams: pass NULL");
    kernels::with_columns(work.shape.k, [&]<uint32_t K>() {
        const kernels::Unpack<K> body{static_cast<const uint8_t *>(work.packed), work.dst,
                                      work.classes, work.shape};
        for (uint32_t o = 0; o < body.outer(); o++)
            for (uint32_t i = 0; i < body.inner(); i++) body.item(o, i);
    });
    return ROUTECAP_OK;
}

}  // namespace

int32_t unpack(int32_t backend, int32_t device, const UnpackWork &work, routecap_stream stream) {
    if (backend == ROUTECAP_BACKEND_HOST) return unpack_on_host(work, stream);
#if ROUTECAP_CUDA
    if (backend == ROUTECAP_BACKEND_CUDA) return cuda_unpack(device, work, stream);
#endif
    static_cast<void>(device);
    return report(
        backend == ROUTECAP_BACKEND_CUDA ? ROUTECAP_ERR_NO_BACKEND : ROUTECAP_ERR_ARGUMENT,
        "target.backend is %d: %s", backend, backend_info(backend).detail);
}

}  // namespace routecap
