#include "log.h"

#include <stdio.h>
#include <unistd.h>

// A line is shorter than what a pipe takes at once, so that lines of several threads do not mix.
void routecap_go_log(void *context, int32_t level, const char *text) {
    routecap_go_pipe *pipe = context;
    char line[600];
    const unsigned left_out = __atomic_exchange_n(&pipe->left_out, 0, __ATOMIC_RELAXED);
    const int n = snprintf(line, sizeof line, "%d %u %s\n", (int)level, left_out, text);
    if (n > 0 && write(pipe->descriptor, line, (size_t)n) == n) return;
    __atomic_fetch_add(&pipe->left_out, left_out + 1, __ATOMIC_RELAXED);
}
