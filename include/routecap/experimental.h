/*
 * routecap, chapter 16, experimental: a store that several processes share.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * Few programs need these functions. A later version may replace one of them: see "The ABI" in
 * base.h. They are declared only if ROUTECAP_EXPERIMENTAL is defined before routecap.h is included.
 * Their entries in the function table are always there.
 *
 *   routecap_store_create_shared  a store for this process and those that get its descriptor
 *   routecap_store_open_shared    open such a store, or a store in a file
 */
#ifndef ROUTECAP_EXPERIMENTAL_H
#define ROUTECAP_EXPERIMENTAL_H

#include "store.h"

#ifdef ROUTECAP_EXPERIMENTAL

#ifdef __cplusplus
extern "C" {
#endif

/* ================================================================================================
 * A store of several processes
 * ============================================================================================== */

/**
 * Create a store that several processes of one machine share. Each other process opens it by its
 * descriptor.
 *
 * Limits. A shared store has content keys only: ROUTECAP_STORE_SLOT_KEYS is an error. It retains no
 * blocks: routecap_store_retain and routecap_store_release return ROUTECAP_ERR_ARGUMENT.
 *
 * Memory. The call takes all memory of the store: the budget for blocks, and about 1.2 MB more. The
 * store takes no more later.
 *
 * Blocks. Other processes find a block once it is complete. For a publish, the worker thread copies
 * the rows into the store. For an adopt, it copies them into memory that counts in the capturer's
 * budget, and checks them: a block that another process left half done is missing. If a block is
 * dropped between an adopt and that copy, it is EVICTED for the adopter too. The counts are those
 * of all processes together, except blocks_in_flight.
 *
 * Room. If there is no room, the store goes round its blocks, and drops the first that is of an
 * older generation, or that nobody published or adopted since it came by last. In a store of more
 * than 32 blocks this may happen while evicted blocks have left room elsewhere. bytes_peak is the
 * highest bytes_in_use that a call of routecap_store_stats has seen.
 *
 * Lock. To publish blocks, a process must hold the store's lock. All else works without it. The
 * worker thread waits for the lock for up to one second. A process may fail to get it, for example
 * because another process was stopped while it held the lock. Then its blocks are not published
 * (blocks_refused).
 *
 * Death. A process may die at any moment without holding up the others.
 *
 * Trust. A process that writes into the memory by other means can make rows missing by accident,
 * and wrong on purpose. Pass the descriptor only to processes that you trust.
 *
 * @param[in] config       The configuration.
 * @param[in] shape        As in routecap_store_create.
 * @param[out] descriptor  A file descriptor of anonymous memory, which can neither shrink nor grow.
 *                         The caller owns it, and may close it after the call. A forked child
 *                         inherits it; to another program, pass it over a UNIX socket, because exec
 *                         closes it.
 * @param[out] store       The store, to be freed with routecap_store_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_ERR_ARGUMENT (also for ROUTECAP_STORE_SLOT_KEYS);
 *         ROUTECAP_ERR_NO_BACKEND (this system has no such memory, or no /proc).
 */
ROUTECAP_API routecap_status routecap_store_create_shared(const routecap_store_config *config,
                                                          const routecap_config *shape,
                                                          int32_t *descriptor,
                                                          routecap_store **store);

/**
 * Open a store that several processes share. If the descriptor is that of an empty file, create the
 * store in the file. Processes can then find the store by the name of the file, such as a name in
 * /dev/shm.
 *
 * When the store is created in a file, the file takes all memory of the store. If anyone truncates
 * the file, every process that has it open is killed (SIGBUS). A store does not survive a reboot.
 *
 * If several processes find the file empty, one of them makes the store. The others wait as long as
 * the file grows, and return if it has not grown for three seconds. If a process dies while it
 * makes the store, the next process that opens the file makes it.
 *
 * A file with a name must belong to this user or to root, because its owner could make rows wrong.
 * So open the file with O_NOFOLLOW, and create it with mode 0600.
 *
 * @param[in] config      The configuration. block_rows and key_bytes must be those that the store
 *                        was created with. budget_bytes and generation matter only if the file is
 *                        empty.
 * @param[in] shape       The shape that the store was created with.
 * @param[in] descriptor  A descriptor of routecap_store_create_shared, or of a file opened for
 *                        reading and writing. The caller still owns it, and may close it after the
 *                        call.
 * @param[out] store      The store, to be freed with routecap_store_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_ERR_FORMAT (no store, a store of another version or another boot,
 *         or a damaged one); ROUTECAP_ERR_ARGUMENT (also for ROUTECAP_STORE_SLOT_KEYS, or if the
 *         file belongs to another user); ROUTECAP_ERR_SHAPE_MISMATCH (a different shape, block_rows
 *         or key_bytes); ROUTECAP_ERR_NOT_READY (another process is making the store, and makes no
 *         progress); ROUTECAP_ERR_NO_MEMORY (also if the disk is full); ROUTECAP_ERR_NO_BACKEND
 *         (this system has no /proc).
 */
ROUTECAP_API routecap_status routecap_store_open_shared(const routecap_store_config *config,
                                                        const routecap_config *shape,
                                                        int32_t descriptor, routecap_store **store);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_EXPERIMENTAL */

#endif /* ROUTECAP_EXPERIMENTAL_H */
