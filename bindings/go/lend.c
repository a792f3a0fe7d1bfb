#include "lend.h"

#include <stddef.h>

static routecap_go_loan *over;  // newest first; only accessed atomically

void routecap_go_release(void *context) {
    routecap_go_loan *loan = context;
    loan->next = __atomic_load_n(&over, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&over, &loan->next, loan, 1, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED)) {}
}

routecap_go_loan *routecap_go_collect(void) {
    return __atomic_exchange_n(&over, NULL, __ATOMIC_ACQUIRE);
}
