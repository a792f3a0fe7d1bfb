/*
 * routecap, chapter 10: the store.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * An engine that takes a prefix from its cache does not compute it, so there is nothing to capture.
 * A store keeps the rows that were captured when the prefix was computed, for as long as the cache
 * has the prefix, and longer.
 *
 *   block        `block_rows` consecutive rows under a key: the unit in which a store keeps rows
 *   key          `key_bytes` bytes that name a block: the engine's own block hash, a digest of the
 *                token ids (routecap_key_chain), or the number of a cache slot
 *   publish      hand rows of a request to the store
 *   adopt        fill rows of a request from the store
 *   hole         a row that an adopt did not find: missing, with a reason
 *   generation   a number of the caller's for the weights: it grows when they change. Each step is
 *                tagged with it (routecap_issue_options.tag)
 *
 * Most programs need these six functions:
 *
 *   routecap_store_create       once, in the shape of the capturer
 *   routecap_request_publish    when the engine has filled blocks of its cache
 *   routecap_request_adopt      when the engine takes blocks from its cache
 *   routecap_store_advance      when the weights change
 *   routecap_store_stats        for the operator
 *   routecap_store_free         at the end
 *
 * The rest of the chapter: batch forms, keys from token ids, asking (contains), keeping (retain,
 * release), slots of a cache (move, evict), blocks as bytes (export, import), and a store that
 * several processes share.
 *
 *     routecap_store_config config;
 *     routecap_store_config_init(&config, sizeof config);
 *     config.block_rows = 16; config.key_bytes = 32; config.budget_bytes = 1 << 30;
 *     routecap_store_create(&config, &capturer_config, &store);
 *
 *     routecap_request_adopt(capturer, request, store, 0, hashes, hits, version, &adopted);
 *     ... forward passes and issues of what was not in the cache ...
 *     routecap_request_publish(capturer, request, store, first, hashes, filled, version);
 *
 * ------------------------------------------------------------------------------------------------
 * Rules for all of them
 * ------------------------------------------------------------------------------------------------
 * Shape. A store has one shape: layers, layer map, experts, k, id space and the provenance of each
 * layer. Each pipeline stage has a store of its own, under the same keys.
 *
 * Blocks never change. If a later publish brings cells that a block lacks, a new block with these
 * cells takes the key. Whoever adopted the old block keeps what it got.
 *
 * Content keys. Without ROUTECAP_STORE_SLOT_KEYS a key stands for its tokens. The first valid value
 * of a cell is final. A second publish with other ids changes nothing and is counted
 * (blocks_mismatched). It means that the key lacks something that decides the routing, such as an
 * adapter, or that the model is not deterministic.
 *
 * Slot keys. With ROUTECAP_STORE_SLOT_KEYS a key is a place in a cache, which is used again. A
 * later publish replaces the block under its key. When the cache moves or frees places, the caller
 * calls routecap_store_move or routecap_store_evict.
 *
 * Order. A block is there from the call of publish on, whether its rows have landed or not. An
 * adopt finds what was published before it, and no later block. Two requests of one step may share
 * a block: publish and then adopt, both after the issue. The adopter's rows are then in flight
 * until that step has landed, and missing if they never land. For another capturer a block in
 * flight is not there yet. A publish under a content key that is there adds its cells once its rows
 * have landed.
 *
 * What is published. Rows are published as they were issued before the call. What is cut, finished
 * or closed behind it, while they are in flight, changes nothing. A block with drafts waits until
 * they are settled, and so do the blocks behind it in the same call; until then they are not there.
 * Drafts that were cut or rejected are not published. If a row was replaced before it was
 * published, the later row is published.
 *
 * Holes. A row of a block that is not there is missing in the adopter, for one of three reasons:
 *   - ROUTECAP_MISSING_STALE: the store has the block, of older weights only, or had it in flight.
 *   - ROUTECAP_MISSING_EVICTED: the store had the block and dropped it. A store remembers the last
 *     65,536 blocks that it dropped.
 *   - ROUTECAP_MISSING_NOT_PUBLISHED: everything else, also rows that a block lacks.
 *
 * Generations. The generation of a row is its tag. A store is at one generation: rows with a lower
 * tag are stale. Publish and adopt name the tag of the caller's steps. A block with a stale row is
 * refused when its rows land, and so is what lands after the store has advanced beyond the
 * publisher's tag. Both are counted (blocks_stale). Whoever adopted the block in flight has a STALE
 * hole. A landed block with a stale row is not found. Rows that were attached or adopted keep their
 * tags, and every store judges them by these.
 *
 * So tag each step with the generation, advance the store to it before its first step is published,
 * and never use a number again for other weights. Engines that share a store may change weights at
 * different moments: the first advances the store, and the others find and publish nothing until
 * they have the new weights too.
 *
 * Memory. A store is bounded by bytes. Blocks that were published, adopted or released longest ago
 * are dropped first. Retained ones stay. A page counts in one budget: in the capturer's until rows
 * of it are published, then in the store's, until nobody has it. The worker thread shares pages. It
 * copies a block once, if more than a quarter of the block's page is not published with it. Nothing
 * is copied on the thread that calls publish or adopt. A publish for which there is no room is
 * counted (blocks_refused).
 *
 * Threads. All calls may be made by any thread at any time, except during routecap_store_free.
 * Requests and routings that have rows of a store may outlive it. A store may outlive its
 * capturers.
 *
 * A disabled or mirroring capturer publishes and adopts nothing, and returns ROUTECAP_OK.
 */
#ifndef ROUTECAP_STORE_H
#define ROUTECAP_STORE_H

#include "capture.h"
#include "reading.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ================================================================================================
 * Life of a store
 * ============================================================================================== */

/* A store. */
typedef struct routecap_store routecap_store;

#define ROUTECAP_STORE_SLOT_KEYS 1u /* keys are places in a cache; without it they stand for
                                       content */
typedef uint32_t routecap_store_flags; /* any of ROUTECAP_STORE_* */

#define ROUTECAP_MAX_BLOCK_ROWS 4096
#define ROUTECAP_MIN_KEY_BYTES 8
#define ROUTECAP_MAX_KEY_BYTES 64

/* What a store is. */
typedef struct routecap_store_config {
    uint32_t struct_size;
    routecap_store_flags flags; /* ROUTECAP_STORE_*; default none */
    uint32_t block_rows;        /* rows of a block, 1..ROUTECAP_MAX_BLOCK_ROWS; default 16 */
    uint32_t key_bytes;         /* bytes of a key, ROUTECAP_MIN_KEY_BYTES..ROUTECAP_MAX_KEY_BYTES;
                                   default 32 */
    uint64_t budget_bytes;      /* limit of its memory, in bytes; default 1 GiB. At least two pages
                                   (routecap_memory.page_bytes) or two blocks, whichever is more */
    uint64_t generation;        /* the one that it begins at */
} routecap_store_config;

/**
 * Fill a configuration with the defaults.
 *
 * @param[out] config      The configuration.
 * @param[in] struct_size  sizeof(routecap_store_config) of the caller, in bytes.
 */
ROUTECAP_API routecap_status routecap_store_config_init(routecap_store_config *config,
                                                        size_t struct_size);

/**
 * Create a store in the memory of this process.
 *
 * @param[in] config  The configuration.
 * @param[in] shape   A capturer's configuration, whose layers, k, experts, id space, layer_map,
 *                    layer_experts and layer_provenance the store takes. Nothing else of it is
 *                    looked at. The arrays are copied.
 * @param[out] store  The store, to be freed with routecap_store_free; NULL on error.
 * @return ROUTECAP_OK.
 */
ROUTECAP_API routecap_status routecap_store_create(const routecap_store_config *config,
                                                   const routecap_config *shape,
                                                   routecap_store **store);

/**
 * Free a store.
 *
 * What was published and has not landed is dropped. What was adopted stays with its requests.
 *
 * @param[in] store  The store; NULL is allowed and ignored.
 */
ROUTECAP_API void routecap_store_free(routecap_store *store);

/* What a store has, and what it has done since it was created. */
typedef struct routecap_store_counts {
    uint32_t struct_size;
    uint32_t block_rows;        /* rows of a block */
    uint32_t key_bytes;         /* bytes of a key */
    routecap_store_flags flags; /* ROUTECAP_STORE_* */
    uint64_t generation;        /* the one that the store is at */
    uint64_t blocks;            /* that are there, those in flight and stale ones included */
    uint64_t blocks_in_flight;  /* of these: published, and not landed yet */
    uint64_t blocks_retained;   /* of these: those that somebody retains */
    uint64_t bytes_in_use;      /* of the budget */
    uint64_t bytes_peak;        /* the highest bytes_in_use so far */
    uint64_t bytes_budget;      /* the limit of bytes_in_use */
    /* Since the store was created. Each block that a publish, an import or an adopt names counts
     * once, in one of these seven. */
    uint64_t blocks_published;  /* landed under their key, or filled cells that a block lacked */
    uint64_t blocks_repeated;   /* published again, with nothing new */
    uint64_t blocks_empty;      /* published without a row that landed */
    uint64_t blocks_refused;    /* there was no room, or no turn in a shared store */
    uint64_t blocks_stale;      /* published with a row, or by a caller, of an older generation */
    uint64_t blocks_adopted;    /* found by adopt */
    uint64_t blocks_absent;     /* not found by adopt */
    /* What became of blocks since the store was created. */
    uint64_t blocks_mismatched; /* published again with other ids in a cell that was there */
    uint64_t blocks_replaced;   /* a later publish took their slot key */
    uint64_t blocks_evicted;    /* went for room, or by routecap_store_evict */
    uint64_t blocks_imported;   /* brought by routecap_store_import, whatever became of them */
    uint64_t rows_copied;       /* rows that were copied, because their page was not shared */
} routecap_store_counts;

/**
 * Read the counters of a store.
 *
 * @param[in] store    The store.
 * @param[out] counts  The counters.
 */
ROUTECAP_API routecap_status routecap_store_stats(const routecap_store *store,
                                                  routecap_store_counts *counts);

/**
 * Advance a store to a generation: rows with a lower tag are stale from then on.
 *
 * Stale blocks are not used any more, so they go first when room is needed. Nothing happens if the
 * store is at this generation already, or at a later one.
 *
 * @param[in] store       The store.
 * @param[in] generation  The new generation.
 */
ROUTECAP_API routecap_status routecap_store_advance(routecap_store *store, uint64_t generation);

/* ================================================================================================
 * Publishing and adopting
 * ============================================================================================== */

/**
 * Publish rows of a request: `count` blocks, one after another in the request.
 *
 * The call notes the keys and returns. The worker thread publishes the rows when they have landed,
 * and drafts when they are settled. If a finish or close ends the request before that, its drafts
 * are dropped, and the blocks get the rows that were settled.
 *
 * @param[in] capturer    The capturer.
 * @param[in] request     The request.
 * @param[in] store       The store.
 * @param[in] first       Position of the first row of the first block.
 * @param[in] keys        [count, key_bytes] the keys, each once.
 * @param[in] count       How many blocks. Their rows may lie beyond the request's length, as drafts
 *                        do, but not beyond what was issued.
 * @param[in] generation  The tag of the caller's steps. If it is lower than the store's generation,
 *                        nothing is published.
 * @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_SHAPE_MISMATCH (also if a layer
 *         is recomputed here and captured in the store); ROUTECAP_ERR_OUT_OF_RANGE;
 *         ROUTECAP_ERR_STATE (a generation that the store has not advanced to).
 */
ROUTECAP_API routecap_status routecap_request_publish(routecap_capturer *capturer,
                                                      routecap_request request,
                                                      routecap_store *store, uint64_t first,
                                                      const void *keys, size_t count,
                                                      uint64_t generation);

/* What an adopt found. */
typedef struct routecap_adoption {
    uint32_t struct_size;
    uint32_t reserved;      /* 0 */
    uint64_t rows;          /* rows from `first` up to the first block that was not found */
    uint64_t found;         /* blocks that were found */
    uint64_t evicted;       /* blocks that are missing for this reason */
    uint64_t not_published; /* blocks that are missing for this reason */
    uint64_t stale;         /* blocks that are missing for this reason */
} routecap_adoption;

/**
 * Add rows of a store to a request: `count` blocks, one after another in the request. They are the
 * positions that an engine took from its cache and did not compute.
 *
 * Every block that is there fills its rows; rows of the others are missing. The request's length
 * becomes the end of the last block if it was less. Cells that the request has are kept, also with
 * ROUTECAP_POLICY_REPLACE. Where rows line up with pages, pages are shared. Elsewhere the worker
 * thread copies rows; they are missing (REFUSED) if the capturer's budget has no room.
 *
 * @param[in] capturer    The capturer.
 * @param[in] request     The request.
 * @param[in] store       The store.
 * @param[in] first       Position of the first row of the first block.
 * @param[in] keys        [count, key_bytes] the keys.
 * @param[in] count       How many blocks.
 * @param[in] generation  The tag of the caller's steps. If it is lower than the store's generation,
 *                        blocks that are there are STALE.
 * @param[out] adoption   What was found; may be NULL.
 * @return ROUTECAP_OK, also if nothing was found; ROUTECAP_ERR_UNKNOWN_REQUEST;
 *         ROUTECAP_ERR_SHAPE_MISMATCH (also if a layer is recomputed in the store and captured
 *         here); ROUTECAP_ERR_OUT_OF_RANGE (beyond ROUTECAP_MAX_POSITION); ROUTECAP_ERR_STATE (a
 *         generation that the store has not advanced to).
 */
ROUTECAP_API routecap_status routecap_request_adopt(routecap_capturer *capturer,
                                                    routecap_request request, routecap_store *store,
                                                    uint64_t first, const void *keys, size_t count,
                                                    uint64_t generation,
                                                    routecap_adoption *adoption);

/* One call of routecap_request_publish: its parameters, and its status. */
typedef struct routecap_publish_item {
    routecap_request request;
    uint64_t first;
    const void *keys; /* [count, key_bytes] */
    uint64_t count;
    routecap_status status; /* receives the status of this item */
    int32_t reserved;       /* 0 */
} routecap_publish_item;

/**
 * Publish rows of many requests in one call: those whose blocks filled in this step.
 *
 * @param[in] capturer    The capturer.
 * @param[in] store       The store.
 * @param[in,out] items   [count] elements of item_size bytes.
 * @param[in] item_size   sizeof(routecap_publish_item) of the caller, in bytes.
 * @param[in] count       How many items; 0 returns at once.
 * @param[in] generation  As in routecap_request_publish.
 * @return ROUTECAP_OK; ROUTECAP_PARTIAL; ROUTECAP_ERR_SHAPE_MISMATCH; ROUTECAP_ERR_STATE.
 */
ROUTECAP_API routecap_status routecap_request_publish_batch(routecap_capturer *capturer,
                                                            routecap_store *store,
                                                            routecap_publish_item *items,
                                                            size_t item_size, size_t count,
                                                            uint64_t generation);

/* One call of routecap_request_adopt: its parameters, what it found, and its status. */
typedef struct routecap_adopt_item {
    routecap_request request;
    uint64_t first;
    const void *keys; /* [count, key_bytes] */
    uint64_t count;
    /* These five receive what routecap_adoption has under the same names. */
    uint64_t rows;
    uint64_t found;
    uint64_t evicted;
    uint64_t not_published;
    uint64_t stale;
    routecap_status status; /* receives the status of this item */
    int32_t reserved;       /* 0 */
} routecap_adopt_item;

/**
 * Add rows of a store to many requests in one call: those that an engine admits in this step.
 *
 * @param[in] capturer    The capturer.
 * @param[in] store       The store.
 * @param[in,out] items   [count] elements of item_size bytes.
 * @param[in] item_size   sizeof(routecap_adopt_item) of the caller, in bytes.
 * @param[in] count       How many items; 0 returns at once.
 * @param[in] generation  As in routecap_request_adopt.
 * @return ROUTECAP_OK; ROUTECAP_PARTIAL; ROUTECAP_ERR_SHAPE_MISMATCH; ROUTECAP_ERR_STATE.
 */
ROUTECAP_API routecap_status routecap_request_adopt_batch(routecap_capturer *capturer,
                                                          routecap_store *store,
                                                          routecap_adopt_item *items,
                                                          size_t item_size, size_t count,
                                                          uint64_t generation);

/* ================================================================================================
 * Keys
 * ============================================================================================== */

/**
 * Make content keys from token ids: one for each whole block, which stands for all tokens up to the
 * block's end.
 *
 * The key of a block is a BLAKE2b digest (RFC 7693, unkeyed) of key_bytes bytes. It is the digest
 * of what comes before the block, followed by the block's tokens as little-endian 32-bit integers.
 * The seed comes before the first block; the key of the block before it comes before any other
 * block. So the chain goes on if the last key is passed as the seed of the next call. The
 * personalisation is the 8 bytes "routecap", then block_rows and 0 as little-endian 32-bit
 * integers.
 *
 * @param[in] seed         [seed_bytes] what else decides the rows: the model, its weights, an
 *                         adapter, a session. May be NULL if seed_bytes is 0.
 * @param[in] seed_bytes   Size of seed, in bytes.
 * @param[in] tokens       [count] the token ids.
 * @param[in] count        How many tokens. Those behind the last whole block have no key.
 * @param[in] block_rows   Rows of a block, 1..ROUTECAP_MAX_BLOCK_ROWS.
 * @param[in] key_bytes    Bytes of a key, ROUTECAP_MIN_KEY_BYTES..ROUTECAP_MAX_KEY_BYTES.
 * @param[out] keys        [count / block_rows, key_bytes] the keys.
 * @param[in] keys_bytes   Size of keys, in bytes.
 * @return ROUTECAP_OK; ROUTECAP_ERR_BUFFER_TOO_SMALL.
 */
ROUTECAP_API routecap_status routecap_key_chain(const void *seed, size_t seed_bytes,
                                                const int32_t *tokens, size_t count,
                                                uint32_t block_rows, uint32_t key_bytes, void *keys,
                                                size_t keys_bytes);

/**
 * Say which keys an adopt of this generation would find now.
 *
 * The answer holds at this moment. A block that is found may go before it is adopted, unless it is
 * retained. Blocks in flight are found.
 *
 * @param[in] store       The store.
 * @param[in] keys        [count, key_bytes] the keys.
 * @param[in] count       How many keys.
 * @param[in] generation  The tag of the caller's steps.
 * @param[out] reasons    [count] 0 for a block that is there, otherwise ROUTECAP_MISSING_*; may be
 *                        NULL.
 * @param[out] leading    How many keys before the first that is not there; may be NULL.
 * @return ROUTECAP_OK; ROUTECAP_ERR_STATE (a generation that the store has not advanced to).
 */
ROUTECAP_API routecap_status routecap_store_contains(routecap_store *store, const void *keys,
                                                     size_t count, uint64_t generation,
                                                     routecap_reason *reasons, uint64_t *leading);

/**
 * Retain blocks: they stay until they are released, whatever the budget says.
 *
 * A block that was retained twice stays until it is released twice. A later block under the key
 * inherits that. A key that is not there is not retained, so release only those that were.
 *
 * @param[in] store     The store.
 * @param[in] keys      [count, key_bytes] the keys.
 * @param[in] count     How many keys.
 * @param[out] reasons  [count] 0 for a block that is retained now, otherwise ROUTECAP_MISSING_*;
 *                      may be NULL. REFUSED: another process was changing a store that is shared.
 */
ROUTECAP_API routecap_status routecap_store_retain(routecap_store *store, const void *keys,
                                                   size_t count, routecap_reason *reasons);

/**
 * Release blocks that were retained. Keys that nobody retains are left alone.
 *
 * @param[in] store  The store.
 * @param[in] keys   [count, key_bytes] the keys.
 * @param[in] count  How many keys.
 */
ROUTECAP_API routecap_status routecap_store_release(routecap_store *store, const void *keys,
                                                    size_t count);

/**
 * Drop blocks, also retained ones and those in flight. Requests that adopted them keep the rows.
 *
 * @param[in] store     The store.
 * @param[in] keys      [count, key_bytes] the keys; those that are not there are left alone.
 * @param[in] count     How many keys.
 * @param[out] evicted  How many were there; may be NULL.
 */
ROUTECAP_API routecap_status routecap_store_evict(routecap_store *store, const void *keys,
                                                  size_t count, uint64_t *evicted);

/**
 * Follow a cache that moves its slots: the block of from[i] becomes that of to[i], for all i at
 * once.
 *
 * What was under to[i] is evicted, even if there is no block under from[i]. Afterwards from[i] is
 * EVICTED, unless it is also some to[j].
 *
 * @param[in] store  A store of slot keys.
 * @param[in] from   [count, key_bytes] the keys, each once.
 * @param[in] to     [count, key_bytes] the new keys, each once.
 * @param[in] count  How many keys.
 * @return ROUTECAP_OK; ROUTECAP_ERR_STATE (a store of content keys).
 */
ROUTECAP_API routecap_status routecap_store_move(routecap_store *store, const void *from,
                                                 const void *to, size_t count);

/* ================================================================================================
 * Blocks as bytes
 * ============================================================================================== */

/**
 * Write blocks as bytes, to travel beside the KV cache to another machine.
 *
 * Blocks that are not there, not landed or stale are left out. The rows are copied on the calling
 * thread. docs/store.md describes the bytes.
 *
 * @param[in] store       The store.
 * @param[in] keys        [count, key_bytes] the keys.
 * @param[in] count       How many keys.
 * @param[in] generation  The tag of the caller's steps.
 * @param[out] dst        [dst_bytes] the bytes. NULL with dst_bytes 0 asks for the size, which
 *                        returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param[in] dst_bytes   Size of dst, in bytes.
 * @param[out] needed     How many bytes it takes, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too; may be
 *                        NULL.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (some blocks were left out);
 *         ROUTECAP_ERR_BUFFER_TOO_SMALL (nothing is written); ROUTECAP_ERR_STATE (a generation that
 *         the store has not advanced to).
 */
ROUTECAP_API routecap_status routecap_store_export(routecap_store *store, const void *keys,
                                                   size_t count, uint64_t generation, void *dst,
                                                   size_t dst_bytes, uint64_t *needed);

/**
 * Publish blocks that another store exported.
 *
 * Nothing in the bytes is trusted: a cell that claims to be valid and is not k distinct experts of
 * its layer is an error, and nothing is published. Keys and tags are believed. Rows are copied on
 * the calling thread. Stale blocks are counted and not published.
 *
 * @param[in] store    The store.
 * @param[in] data     [bytes] the bytes.
 * @param[in] bytes    How many: exactly those of one export.
 * @param[out] blocks  How many blocks the bytes have; may be NULL.
 * @return ROUTECAP_OK; ROUTECAP_ERR_FORMAT (the text says what is wrong);
 *         ROUTECAP_ERR_SHAPE_MISMATCH (another shape, block_rows or key_bytes); ROUTECAP_ERR_STATE
 *         (a generation that the store has not advanced to).
 */
ROUTECAP_API routecap_status routecap_store_import(routecap_store *store, const void *data,
                                                   size_t bytes, uint64_t *blocks);

/* ================================================================================================
 * Several processes
 * ============================================================================================== */

/**
 * Create a store that several processes of one machine share. Each of them opens it by a
 * descriptor, at most 48 processes at a time.
 *
 * All memory is taken now, and no more later: the budget for blocks, and some 1.2 MB beside it. A
 * block exists for another process once it is complete. The worker thread copies rows in for a
 * publish. For an adopt it copies them out into the capturer's budget, and checks them: what
 * another process left half done is missing. A block that goes between an adopt and that copy is
 * EVICTED, also for the adopter. A process may die at any moment without holding up the others, and
 * what it retained is released. Counts are those of all processes, except blocks_in_flight.
 *
 * One process at a time changes the store; finding, adopting and evicting need no turn. A call
 * tries for some 50 us to get one, and the worker thread waits for a second at most. Without a
 * turn, as when another process is stopped in its own, blocks are not published (blocks_refused),
 * retain says ROUTECAP_MISSING_REFUSED, and move drops the blocks of all its keys. If a process
 * dies in its turn, the order in which blocks go for room begins anew.
 *
 * A process that writes into the memory by other means can make rows missing, and with intent make
 * them wrong: pass the descriptor to processes that you trust.
 *
 * @param[in] config       The configuration.
 * @param[in] shape        As in routecap_store_create.
 * @param[out] descriptor  A file descriptor of memory without a name, which can neither shrink nor
 *                         grow. It is the caller's, and may be inherited, passed over a UNIX
 *                         socket, and closed. It is closed when the process executes another
 *                         program.
 * @param[out] store       The store, to be freed with routecap_store_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_ERR_NO_BACKEND (this system has no such memory, or no /proc).
 */
ROUTECAP_API routecap_status routecap_store_create_shared(const routecap_store_config *config,
                                                          const routecap_config *shape,
                                                          int32_t *descriptor,
                                                          routecap_store **store);

/**
 * Open a store that several processes share. If the descriptor is that of an empty file, create the
 * store in it: so processes find the store by the file's name, in /dev/shm for instance.
 *
 * The file then takes all memory of the store. Whoever truncates it ends the processes that have it
 * open. A store does not outlive a boot of the machine.
 *
 * Of several processes that find the file empty one makes the store, and the others wait for as
 * long as the file grows. If it has not grown for three seconds they return. A process that dies
 * while it makes the store leaves a file in which the next one makes it.
 *
 * A file with a name must belong to this user or to root: its owner could make rows wrong. So open
 * it with O_NOFOLLOW, and make it with mode 0600.
 *
 * @param[in] config      The configuration: block_rows, key_bytes and flags as it was created with.
 *                        budget_bytes and generation are looked at only where the file is empty.
 * @param[in] shape       The shape that it was created with.
 * @param[in] descriptor  Of routecap_store_create_shared, or of a file opened for reading and
 *                        writing. It stays the caller's and may be closed afterwards.
 * @param[out] store      The store, to be freed with routecap_store_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_ERR_FORMAT (no store, one of another version or another boot, or a
 *         damaged one); ROUTECAP_ERR_ARGUMENT (also if the file is another user's);
 *         ROUTECAP_ERR_SHAPE_MISMATCH (another shape, block_rows, key_bytes or flags);
 *         ROUTECAP_ERR_NOT_READY (another process is making it, and gets no further);
 *         ROUTECAP_ERR_NO_MEMORY (also if the disk is full, or 48 processes have it open);
 *         ROUTECAP_ERR_NO_BACKEND (this system has no /proc).
 */
ROUTECAP_API routecap_status routecap_store_open_shared(const routecap_store_config *config,
                                                        const routecap_config *shape,
                                                        int32_t descriptor, routecap_store **store);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_STORE_H */
