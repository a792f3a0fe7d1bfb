// The function table.
#include "base/declared.h"
#include "base/status.h"
#include "routecap.h"

const routecap_api *routecap_get_api(uint32_t major, uint32_t minor) {
    static const routecap_api api = {.size = sizeof(routecap_api),
                                     .major = ROUTECAP_VERSION_MAJOR,
                                     .minor = ROUTECAP_VERSION_MINOR,
#define ROUTECAP_ENTRY(name) .name = routecap_##name,
                                     ROUTECAP_FUNCTIONS(ROUTECAP_ENTRY)
#undef ROUTECAP_ENTRY
    };
    if (major == ROUTECAP_VERSION_MAJOR && minor <= ROUTECAP_VERSION_MINOR) return &api;
    routecap::report(ROUTECAP_ERR_ARGUMENT, "version %u.%u was asked for; this library has %u.%u",
                     major, minor, ROUTECAP_VERSION_MAJOR, ROUTECAP_VERSION_MINOR);
    return nullptr;
}
