/*
 * Rows of finished requests, which other processes of this machine fetch.
 *
 * Threads of its own serve them. These never need the interpreter, which an engine may keep busy
 * without end: a thread of Python's got it tens of milliseconds late, several times for each
 * request.
 *
 * A client connects to the outbox's name, in Linux's abstract namespace of local sockets, and
 * writes tickets. For each it reads a signed 64-bit number of bytes and so many bytes: the rows in
 * the serialised form. -1 says that there are none for this ticket.
 */
#ifndef ROUTECAP_PYTHON_OUTBOX_H
#define ROUTECAP_PYTHON_OUTBOX_H

#include <routecap.h>

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OUTBOX_TICKET_BYTES 16

struct outbox;

/* Listens at `name`, without the leading 0. NULL, with errno set, if it cannot. */
struct outbox *outbox_open(const char *name);

/* Rows [first, end) of a routing, once it is ready, are given out once to whoever has the ticket,
   [OUTBOX_TICKET_BYTES]. It takes a reference of its own. Of more than `most` that wait, the oldest
   goes. Returns 0, or an errno. */
int outbox_put(struct outbox *outbox, const uint8_t *ticket, const routecap_routing *routing,
               uint64_t first, uint64_t end, uint64_t most);

/* Ends all connections, and gives up what waits. In a forked child it does nothing. */
void outbox_close(struct outbox *outbox);

#ifdef __cplusplus
}
#endif
#endif
