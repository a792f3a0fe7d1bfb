#ifndef ROUTECAP_GO_LOG_H
#define ROUTECAP_GO_LOG_H

#include <stdint.h>

// Where lines go: a pipe that does not block, and how many did not fit since one did.
typedef struct routecap_go_pipe {
    int descriptor;
    unsigned left_out;  // only accessed atomically
} routecap_go_pipe;

// The routecap_log of all loggers: writes a line into the pipe. On any thread.
void routecap_go_log(void *pipe, int32_t level, const char *text);

#endif
