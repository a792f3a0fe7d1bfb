#include "backend/backends.h"

#include "base/status.h"

namespace routecap {

int32_t make_backend(const Config &config, std::unique_ptr<Backend> &backend) {
    if (config.backend == ROUTECAP_BACKEND_HOST)
        return backend = make_host_backend(config), ROUTECAP_OK;
#if ROUTECAP_CUDA
    return make_cuda_backend(config, backend);
#else
    return report(ROUTECAP_ERR_NO_BACKEND, "%s", backend_info(config.backend).detail);
#endif
}

bool built_with_cuda() {
#if ROUTECAP_CUDA
    return true;
#else
    return false;
#endif
}

DeviceMemory device_memory_of(const Config &config) {
#if ROUTECAP_CUDA
    if (config.backend == ROUTECAP_BACKEND_CUDA) return cuda_memory_of(config);
#endif
    static_cast<void>(config);
    return {0, 0};
}

BackendInfo backend_info(int32_t backend) {
    if (backend == ROUTECAP_BACKEND_HOST) return {true, 0, "host memory, no streams"};
    if (backend != ROUTECAP_BACKEND_CUDA)
        return {false, 0, "this library does not know such a backend"};
#if ROUTECAP_CUDA
    return cuda_backend_info();
#else
    return {false, 0, "this library was built without CUDA"};
#endif
}

}  // namespace routecap
