#ifndef ROUTECAP_GO_LEND_H
#define ROUTECAP_GO_LEND_H

#include <stdint.h>

// One loan of memory to the library, from the call that lends it until it is collected: see lend.go.
typedef struct routecap_go_loan {
    struct routecap_go_loan *next;
    uint64_t id;
} routecap_go_loan;

// The routecap_release of all loans: notes that one is over. On any thread.
void routecap_go_release(void *loan);
// The loans that are over and were not collected before, as a list.
routecap_go_loan *routecap_go_collect(void);

#endif
