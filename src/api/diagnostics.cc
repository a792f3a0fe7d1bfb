// The log hook.
#include "api/call.h"

using namespace routecap;

routecap_status routecap_set_log(routecap_log log, void *context, routecap_log_level level) {
    return set_log(log, context, level);
}
