// How often each expert was chosen.
#include "api/call.h"

using namespace routecap;

routecap_status routecap_capturer_load(const routecap_capturer *capturer, routecap_load *load,
                                       uint64_t *counts, size_t count) {
    return with(capturer, [&](Capturer &c) { return c.load(load, counts, count); });
}
