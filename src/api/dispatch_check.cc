// Reading what a rank received in an expert-parallel dispatch.
#include "backend/dispatch_check.h"
#include "api/call.h"

using namespace routecap;

routecap_status routecap_received_read(routecap_capturer *capturer, uint32_t layer,
                                       const routecap_received *received, routecap_stream stream) {
    return on_forward_path(
        capturer, [&](Capturer &c) { return c.forward.read_received(layer, received, stream); });
}

routecap_status routecap_received_merge(const int32_t *const *executed, size_t count, size_t cells,
                                        int32_t *merged) {
    return merge_received(executed, count, cells, merged);
}
