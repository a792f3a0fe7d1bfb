// How often each expert was chosen.
#include "api/call.h"

using namespace routecap;

routecap_status routecap_capturer_load(const routecap_capturer *capturer, const uint64_t *tag,
                                       routecap_load *load, uint64_t *counts, size_t count) {
    return with(capturer, [&](Capturer &c) { return c.load(tag, load, counts, count); });
}

routecap_status routecap_capturer_load_tags(const routecap_capturer *capturer, uint64_t *tags,
                                            size_t capacity, uint64_t *count) {
    return with(capturer, [&](Capturer &c) { return c.load_tags(tags, capacity, count); });
}
