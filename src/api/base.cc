// The version of the library, the names of statuses, and the text of the last error.
#include "base/status.h"
#include "routecap.h"

using namespace routecap;

uint32_t routecap_version(void) {
    return ROUTECAP_VERSION_MAJOR * 10000 + ROUTECAP_VERSION_MINOR * 100 + ROUTECAP_VERSION_PATCH;
}

const char *routecap_status_name(routecap_status status) { return status_name(status); }

const char *routecap_last_error(void) { return last_error(); }
