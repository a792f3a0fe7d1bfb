#include "backends.h"

#include "host/host_backend.h"
#include "status.h"

namespace routecap {

int32_t make_backend(const Config &config, std::unique_ptr<Backend> &backend) {
    const BackendInfo info = backend_info(config.backend);
    if (!info.available) return report(ROUTECAP_ERR_NO_BACKEND, "%s", info.detail);
    backend = make_host_backend(config);
    return ROUTECAP_OK;
}

BackendInfo backend_info(int32_t backend) {
    if (backend == ROUTECAP_BACKEND_HOST) return {true, 0, "host memory, no streams"};
    return {false, 0, "this library was built without CUDA"};
}

}  // namespace routecap
