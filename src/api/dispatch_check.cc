// Comparing what ran in an expert-parallel dispatch with what was chosen.
#include "api/call.h"

using namespace routecap;

routecap_status routecap_received_read(routecap_capturer *capturer,
                                       const routecap_received *received, routecap_stream stream) {
    return on_forward_path(capturer,
                           [&](Capturer &c) { return c.forward.read_received(received, stream); });
}

routecap_status routecap_received_compare(routecap_capturer *capturer,
                                          const routecap_received *received,
                                          routecap_stream stream) {
    return on_forward_path(
        capturer, [&](Capturer &c) { return c.forward.compare_received(received, stream); });
}
