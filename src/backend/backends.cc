#include "backend/backends.h"

#include "base/status.h"

namespace routecap {

#if ROUTECAP_CUDA
bool built_with_cuda() { return true; }
#else
bool built_with_cuda() { return false; }

int32_t make_cuda_backend(const BackendConfig &, std::unique_ptr<Backend> &) {
    return report(ROUTECAP_ERR_NO_BACKEND, "%s", cuda_backend_info().detail);
}
BackendInfo cuda_backend_info() { return {false, 0, "this library was built without CUDA"}; }
DeviceMemory cuda_memory_of(const BackendConfig &) { return {0, 0}; }
int32_t cuda_unpack(int32_t, const UnpackWork &, routecap_stream) {
    return report(ROUTECAP_ERR_NO_BACKEND, "%s", cuda_backend_info().detail);
}
#endif

int32_t make_backend(const BackendConfig &config, std::unique_ptr<Backend> &backend) {
    if (config.backend == ROUTECAP_BACKEND_CUDA) return make_cuda_backend(config, backend);
    return backend = make_host_backend(config), ROUTECAP_OK;
}

DeviceMemory device_memory_of(const BackendConfig &config) {
    return config.backend == ROUTECAP_BACKEND_CUDA ? cuda_memory_of(config) : DeviceMemory{0, 0};
}

BackendInfo backend_info(int32_t backend) {
    if (backend == ROUTECAP_BACKEND_HOST) return {true, 0, "host memory, no streams"};
    if (backend == ROUTECAP_BACKEND_CUDA) return cuda_backend_info();
    return {false, 0, "this library does not know such a backend"};
}

}  // namespace routecap
