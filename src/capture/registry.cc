#include "capture/registry.h"

#include "base/status.h"

namespace routecap {

[[gnu::noinline]] static int32_t refuse_unknown(routecap_request handle) {
    return report(ROUTECAP_ERR_UNKNOWN_REQUEST, "request %016llx is not open here", ull(handle));
}

int32_t Registry::find(routecap_request handle, Request **request) {
    *request = requests.find(handle);
    return *request != nullptr ? ROUTECAP_OK : refuse_unknown(handle);
}

}  // namespace routecap
