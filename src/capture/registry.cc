#include "capture/registry.h"

#include "base/status.h"

namespace routecap {

int32_t Registry::refuse_unknown(routecap_request handle) {
    return report(ROUTECAP_ERR_UNKNOWN_REQUEST, "request %016llx is not open here", ull(handle));
}

}  // namespace routecap
