// The log hook, and the dump of a capturer.
#include "api/call.h"

using namespace routecap;

routecap_status routecap_set_log(routecap_log log, void *context, routecap_log_level level) {
    return set_log(log, context, level);
}

routecap_status routecap_capturer_dump(const routecap_capturer *capturer, uint32_t requests,
                                       void *dst, size_t dst_bytes, uint64_t *needed) {
    return with(capturer, [&](Capturer &c) { return c.dump(requests, dst, dst_bytes, needed); });
}
