/*
 * routecap, chapter 10: the store, for engines with a prefix cache. To have rows of cached
 * prefixes, publish them when the engine computes a prefix, and adopt them when it takes the prefix
 * from its cache.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * A prefix is the first tokens of a sequence. An engine does not compute a prefix that it takes
 * from its KV cache, so there is nothing to capture. A store keeps the rows that were captured when
 * the prefix was computed. It keeps them as long as its budget allows, which can be longer than the
 * cache keeps the prefix. It gives rows only to requests; to save routings for a trainer, see
 * serialized.h.
 *
 *   block        `block_rows` consecutive rows under a key: the unit in which a store keeps rows
 *   key          `key_bytes` bytes that name a block: the engine's own block hash, a digest of the
 *                token ids (routecap_key_chain), or the number of a cache slot (a token's place in
 *                the engine's KV cache)
 *   publish      give rows of a request to the store
 *   adopt        fill rows of a request from the store
 *   hole         a row that an adopt asked for and the store did not have: missing, with a reason
 *   generation   the caller's number for the model's weights, which grows when they change. The
 *                caller sets it as the tag of each step (routecap_issue_options.tag)
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
 *     routecap_store_config config;
 *     routecap_store_config_init(&config, sizeof config);
 *     config.block_rows = 16; config.key_bytes = 32; config.budget_bytes = 1 << 30;
 *     routecap_store_create(&config, &capturer_config, &store);
 *
 *     // hashes: a key for each block of the prompt; the first `hits` blocks were in the cache
 *     routecap_request_adopt(capturer, request, store, 0, hashes, hits, version, &adopted);
 *     ... forward passes and issues of the tokens that were not in the cache ...
 *     routecap_request_publish(capturer, request, store, hits * 16, hashes + hits * 32, filled,
 *                              version);
 *
 * ------------------------------------------------------------------------------------------------
 * In detail
 * ------------------------------------------------------------------------------------------------
 * The rest of the chapter: batch forms, keys from token ids, asking for keys (contains), keeping
 * blocks (retain, release), and dropping them (evict).
 *
 * Recipes:
 *   - Chunked prefill: after each chunk, publish the blocks that the chunk filled. If no other
 *     request needs them earlier, publish all blocks of the prompt in one call after its last
 *     chunk, so that their pages are shared and not copied.
 *   - A prefix whose rows the store has dropped: adopt tells how many rows come before the first
 *     block that it did not find. Let the engine compute the tokens from there on, so that their
 *     rows fill the holes. A block that was found may lack rows too; routecap_request_coverage
 *     lists these.
 *   - Drafts: publish a block once its drafts are settled.
 *   - Preemption: if you keep the request's handle, its rows stay, and there is nothing to adopt.
 *     If you close the request, publish its full blocks first. Adopt them into the new request when
 *     the engine resumes the sequence from its cache.
 *   - Abort: publish the full blocks that the engine keeps in its cache, then close the request.
 *     Rows in flight are published too, once they have landed.
 *   - Weight updates: see "Generations" below.
 *   - Data parallel ranks: give each rank a store of its own, as each has a cache of its own. A
 *     store is of one process; rows of another process come as a routing, as with prefill and
 *     decode below.
 *   - Pipeline stages: each stage has a store of its own, because its layers differ. Use the same
 *     keys on all stages.
 *   - Prefill and decode on two machines: on the first, adopt the blocks into a request, finish it
 *     and serialise the routing (serialized.h); send the bytes along with the KV cache. On the
 *     second, deserialise the routing, attach it to a request, and publish the blocks.
 *   - An engine without block hashes: make keys with routecap_key_chain.
 *   - An engine that knows the cache slot of each token: create the store with
 *     ROUTECAP_STORE_SLOT_KEYS and block_rows 1, and use the numbers of the cache slots as keys.
 *
 * ------------------------------------------------------------------------------------------------
 * Rules for all calls
 * ------------------------------------------------------------------------------------------------
 * Shape. A store has one shape: layers and all that routecap_config says of them, k, experts, id
 * space and weights_dtype. Only a capturer of the same shape can publish to it and adopt from it.
 * Only the provenance of a layer may differ: captured rows may go where the layer is RECOMPUTED.
 *
 * Blocks never change. If a later publish brings cells that a block lacks, the store makes a new
 * block with these cells, and the new block takes the key. Requests that adopted the old block keep
 * its rows.
 *
 * Content keys. Without ROUTECAP_STORE_SLOT_KEYS a key stands for its tokens. The first valid value
 * of a cell is final. If a second publish has different ids for a valid cell, the cell keeps its
 * ids, and the store counts the block (blocks_mismatched). There are two causes: the key leaves out
 * something that the choice of experts depends on, such as an adapter, or the model is not
 * deterministic.
 *
 * Slot keys. With ROUTECAP_STORE_SLOT_KEYS a key stands for a cache slot, which the engine uses
 * again for other tokens. A later publish replaces the block under its key. When the engine frees
 * or moves cache slots, call routecap_store_evict for them.
 *
 * Order. A block is in the store as soon as publish returns, even before its rows have landed. An
 * adopt finds blocks that were published before it, and no later ones. Usually you adopt before the
 * pass. If two requests of one step share a block that one of them computes, publish it for that
 * request after the issue, then adopt it for the other. Until the publisher's steps before the
 * publish have landed, the adopter's rows are in flight too, and wait for no other step; if they
 * never land, they are missing. Other capturers find a block only
 * after it has landed. If a content key already has a block, the cells of a second publish are
 * added under that key once they have landed.
 *
 * Which rows are published. Publish takes the rows that were issued before the call. A later
 * truncate, finish or close does not change what is published, even if the rows are in flight.
 * Until the store has them, they cannot be taken (ROUTECAP_EXTRACT_TAKE).
 *
 * Holes. If the store does not have a block, the adopter's rows of that block are missing. If a
 * block lacks rows, these rows are missing too. The store gives one of three reasons. (For rows
 * that are REFUSED, see routecap_request_adopt.)
 *   - ROUTECAP_MISSING_STALE: the block has landed in the store, but a row of it, or the adopter,
 *     is of an older generation than the store; or the adopter found the block in flight, and it
 *     turned out to be stale.
 *   - ROUTECAP_MISSING_EVICTED: the store had the block and dropped it. A store remembers the last
 *     65,536 blocks that it dropped.
 *   - ROUTECAP_MISSING_NOT_PUBLISHED: all other cases, including rows that a block lacks.
 *
 * Generations. The generation of a row is its tag. A store is at one generation, and rows with a
 * lower tag are stale. In publish and adopt, the caller gives the tag of its own steps.
 *   - When a block lands, the store refuses it if one of its rows is stale, or if the store has
 *     advanced beyond the publisher's tag in the meantime. It counts the block (blocks_stale). A
 *     request that adopted the block in flight then has a STALE hole.
 *   - An adopt does not find a landed block if one of its rows has become stale.
 *   - Rows that were attached or adopted keep their tags. If they are published later, these tags
 *     decide whether they are stale.
 *
 * So when the weights change, do three things. Tag each step with the new generation. Advance the
 * store to it before the first of these steps is published. Never use the number again for other
 * weights. Engines that share a store may change weights at different moments: the first engine
 * advances the store, and the others find and publish nothing until they have the new weights too.
 *
 * Memory. The memory of a store is limited by its budget. If there is no room, the store drops the
 * least recently used blocks first: publish, adopt and release count as use. It keeps retained
 * blocks. If there is still no room, it refuses the published block and counts it (blocks_refused).
 *
 * Publish and adopt copy no rows on the calling thread. The worker thread of the publishing
 * capturer shares a page with the store if one publish covers at least three quarters of the page's
 * rows (routecap_memory.page_rows), or if the store shares that page already. Otherwise it copies
 * the block, once. It also copies a block that has missing cells. A shared page counts in one
 * budget only: in the capturer's until the store shares it, then in the store's, until no block,
 * request or routing uses it.
 *
 * Threads. Any thread may make any call at any time before routecap_store_free. Requests and
 * routings that have rows of a store may outlive the store. A store may outlive its capturers.
 *
 * A disabled or mirroring capturer publishes nothing and adopts nothing, and returns ROUTECAP_OK.
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

#define ROUTECAP_STORE_SLOT_KEYS 1u /* keys stand for cache slots; without this flag they stand for
                                       content */
typedef uint32_t routecap_store_flags; /* @any_of(ROUTECAP_STORE_*) */

#define ROUTECAP_MAX_BLOCK_ROWS 4096 /* @number */
#define ROUTECAP_MIN_KEY_BYTES 8     /* @number */
#define ROUTECAP_MAX_KEY_BYTES 64    /* @number */

/* The kind and the size of a store. */
typedef struct routecap_store_config {
    uint32_t struct_size;
    routecap_store_flags flags; /* ROUTECAP_STORE_*; default none */
    uint32_t block_rows;        /* rows of a block, 1..ROUTECAP_MAX_BLOCK_ROWS; default 16 */
    uint32_t key_bytes;         /* bytes of a key, ROUTECAP_MIN_KEY_BYTES..ROUTECAP_MAX_KEY_BYTES;
                                   default 32 */
    uint64_t budget_bytes;      /* limit of its memory, in bytes; default 1 GiB. At least two pages
                                   (routecap_memory.page_bytes) or two blocks, whichever is more,
                                   and what two blocks take besides their rows, such as keys. If it
                                   is less, the text of the error names the least that is allowed */
    uint64_t generation;        /* the generation at which the store begins */
} routecap_store_config;

/**
 * Fill a configuration with the defaults.
 *
 * @param[out] config      The configuration.
 * @param[in] struct_size  sizeof(routecap_store_config) of the caller, in bytes.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_store_config_init(routecap_store_config *config, size_t struct_size);

/**
 * Create a store in the memory of this process.
 *
 * @param[in] config  The configuration.
 * @param[in] shape   A capturer's configuration. The store takes its layers, k, experts, id_space,
 *                    weights_dtype and all arrays whose names begin with layer_, and ignores all
 *                    other fields. The arrays are copied.
 * @param[out] store  The store, to be freed with routecap_store_free; NULL on error.
 * @return ROUTECAP_OK.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_store_create(const routecap_store_config *config, const routecap_config *shape,
                      routecap_store **store);

/**
 * Free a store.
 *
 * Blocks that were published and have not landed are dropped. Requests keep the rows that they
 * adopted.
 *
 * @param[in] store  The store; may be NULL.
 * @thread(any)
 */
ROUTECAP_API void routecap_store_free(routecap_store *store);

/* The blocks of a store now, and its counters since it was created. */
typedef struct routecap_store_counts {
    uint32_t struct_size;
    uint32_t block_rows;        /* rows of a block */
    uint32_t key_bytes;         /* bytes of a key */
    routecap_store_flags flags; /* ROUTECAP_STORE_* */
    uint64_t generation;        /* the generation that the store is at */
    uint64_t blocks;            /* blocks in the store, those in flight and stale ones included */
    uint64_t blocks_in_flight;  /* of these: published, and not landed yet */
    uint64_t blocks_retained;   /* of these: retained by at least one caller */
    uint64_t bytes_in_use;      /* of the budget */
    uint64_t bytes_peak;        /* the highest bytes_in_use so far */
    uint64_t bytes_budget;      /* the limit of bytes_in_use */
    /* Since the store was created. Each block in a publish or an adopt is counted once, in one of
     * these seven. */
    uint64_t blocks_published;  /* landed under their key, or added cells that a block lacked */
    uint64_t blocks_repeated;   /* published again, with no new cells */
    uint64_t blocks_empty;      /* published without a row that landed */
    uint64_t blocks_refused;    /* there was no room */
    uint64_t blocks_stale;      /* a row of it, or its publisher, was of an older generation */
    uint64_t blocks_adopted;    /* found by adopt */
    uint64_t blocks_absent;     /* not found by adopt */
    /* Since the store was created, independently of the seven. */
    uint64_t blocks_mismatched; /* published again with different ids in a valid cell */
    uint64_t blocks_replaced;   /* replaced by a later publish under the same slot key */
    uint64_t blocks_evicted;    /* dropped for room, or by routecap_store_evict */
    uint64_t rows_copied;       /* rows that were copied, because their page was not shared */
} routecap_store_counts;

/**
 * Read the counters of a store.
 *
 * @param[in] store    The store.
 * @param[out] counts  The counters.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_store_stats(const routecap_store *store, routecap_store_counts *counts);

/**
 * Advance a store to a generation: rows with a lower tag are stale from then on.
 *
 * No adopt finds a stale block any more, so nothing uses it again, and it is dropped before blocks
 * that were used since. A retained block stays until it is released. Nothing happens if the store
 * is already at this generation or at a later one.
 *
 * @param[in] store       The store.
 * @param[in] generation  The new generation.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_store_advance(routecap_store *store, uint64_t generation);

/* ================================================================================================
 * Publishing and adopting
 * ============================================================================================== */

/**
 * Publish rows of a request: `count` blocks, one after another in the request.
 *
 * The call notes the keys and returns. The worker thread publishes the rows when they have landed.
 * If one of the blocks has drafts that are not settled, the call returns ROUTECAP_ERR_NOT_READY and
 * publishes nothing.
 *
 * @param[in] capturer    The capturer.
 * @param[in] request     The request.
 * @param[in] store       The store.
 * @param[in] first       Position of the first row of the first block.
 * @param[in] keys        [count, key_bytes] the keys, each once.
 * @param[in] count       How many blocks. All of their rows must have been issued.
 * @param[in] generation  The tag of the caller's steps. If it is lower than the store's generation,
 *                        nothing is published.
 * @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_SHAPE_MISMATCH (also if a layer
 *         is recomputed here and captured in the store); ROUTECAP_ERR_OUT_OF_RANGE;
 *         ROUTECAP_ERR_NOT_READY; ROUTECAP_ERR_STATE (a generation that the store has not advanced
 *         to).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_request_publish(routecap_capturer *capturer, routecap_request request,
                         routecap_store *store, uint64_t first, const void *keys, size_t count,
                         uint64_t generation);

/* The result of an adopt. */
typedef struct routecap_adoption {
    uint32_t struct_size;
    uint32_t reserved;      /* 0 */
    uint64_t rows;          /* rows from `first` up to the first block that was not found */
    uint64_t found;         /* blocks that were found */
    uint64_t evicted;       /* blocks that are missing with the reason EVICTED */
    uint64_t not_published; /* blocks that are missing with the reason NOT_PUBLISHED */
    uint64_t stale;         /* blocks that are missing with the reason STALE */
} routecap_adoption;

/**
 * Add rows of a store to a request: `count` blocks, one after another in the request. Use it for
 * the positions that an engine took from its cache and did not compute.
 *
 * Each block that is found fills its rows. The rows of all other blocks are missing. If the
 * request's length was less than the end of the last block, it becomes that end. Cells that the
 * request already has are kept, even with ROUTECAP_POLICY_REPLACE. Where rows line up with pages,
 * the pages are shared. The worker thread copies all other rows; if the capturer's budget has no
 * room for a copy, they are missing (REFUSED). No counter shows that, only the reasons of the
 * missing cells.
 *
 * @param[in] capturer    The capturer.
 * @param[in] request     The request.
 * @param[in] store       The store.
 * @param[in] first       Position of the first row of the first block.
 * @param[in] keys        [count, key_bytes] the keys.
 * @param[in] count       How many blocks.
 * @param[in] generation  The tag of the caller's steps. If it is lower than the store's generation,
 *                        nothing is found: landed blocks are STALE, and blocks in flight
 *                        NOT_PUBLISHED.
 * @param[out] adoption   What was found; may be NULL.
 * @return ROUTECAP_OK, also if nothing was found; ROUTECAP_ERR_UNKNOWN_REQUEST;
 *         ROUTECAP_ERR_SHAPE_MISMATCH (also if a layer is recomputed in the store and captured
 *         here); ROUTECAP_ERR_OUT_OF_RANGE (beyond ROUTECAP_MAX_POSITION); ROUTECAP_ERR_STATE (a
 *         generation that the store has not advanced to).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_request_adopt(routecap_capturer *capturer, routecap_request request, routecap_store *store,
                       uint64_t first, const void *keys, size_t count, uint64_t generation,
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
 * Publish rows of many requests in one call, such as all blocks that were filled in this step.
 *
 * @param[in] capturer    The capturer.
 * @param[in] store       The store.
 * @param[in,out] items   [count] elements of item_size bytes.
 * @param[in] item_size   sizeof(routecap_publish_item) of the caller, in bytes.
 * @param[in] count       How many items; 0 returns at once.
 * @param[in] generation  As in routecap_request_publish.
 * @return ROUTECAP_OK; ROUTECAP_PARTIAL; ROUTECAP_ERR_SHAPE_MISMATCH; ROUTECAP_ERR_STATE.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_request_publish_batch(routecap_capturer *capturer, routecap_store *store,
                               routecap_publish_item *items, size_t item_size, size_t count,
                               uint64_t generation);

/* One call of routecap_request_adopt: its parameters, its result, and its status. */
typedef struct routecap_adopt_item {
    routecap_request request;
    uint64_t first;
    const void *keys; /* [count, key_bytes] */
    uint64_t count;
    /* These five receive the fields of routecap_adoption with the same names. */
    uint64_t rows;
    uint64_t found;
    uint64_t evicted;
    uint64_t not_published;
    uint64_t stale;
    routecap_status status; /* receives the status of this item */
    int32_t reserved;       /* 0 */
} routecap_adopt_item;

/**
 * Add rows of a store to many requests in one call, such as all requests that the engine admits in
 * this step.
 *
 * @param[in] capturer    The capturer.
 * @param[in] store       The store.
 * @param[in,out] items   [count] elements of item_size bytes.
 * @param[in] item_size   sizeof(routecap_adopt_item) of the caller, in bytes.
 * @param[in] count       How many items; 0 returns at once.
 * @param[in] generation  As in routecap_request_adopt.
 * @return ROUTECAP_OK; ROUTECAP_PARTIAL; ROUTECAP_ERR_SHAPE_MISMATCH; ROUTECAP_ERR_STATE.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_request_adopt_batch(routecap_capturer *capturer, routecap_store *store,
                             routecap_adopt_item *items, size_t item_size, size_t count,
                             uint64_t generation);

/* ================================================================================================
 * Keys
 * ============================================================================================== */

/**
 * Make content keys from token ids: one key for each whole block. The key stands for all tokens up
 * to the end of its block.
 *
 * A key is a BLAKE2b digest (RFC 7693, unkeyed) of key_bytes bytes. The digest covers two things,
 * one after the other: a prefix, and the block's tokens as little-endian 32-bit integers. For the
 * first block the prefix is the seed. For every other block the prefix is the key of the block
 * before it. To continue a chain, pass its last key as the seed of the next call. The
 * personalisation of the digest is the 8 bytes "routecap", then block_rows and 0 as little-endian
 * 32-bit integers.
 *
 * @param[in] seed         [seed_bytes] everything else that decides the rows: the model, its
 *                         weights, an adapter, a session. May be NULL if seed_bytes is 0.
 * @param[in] seed_bytes   Size of seed, in bytes.
 * @param[in] tokens       [count] the token ids.
 * @param[in] count        How many tokens. Tokens after the last whole block get no key.
 * @param[in] block_rows   Rows of a block, 1..ROUTECAP_MAX_BLOCK_ROWS.
 * @param[in] key_bytes    Bytes of a key, ROUTECAP_MIN_KEY_BYTES..ROUTECAP_MAX_KEY_BYTES.
 * @param[out] keys        [count / block_rows, key_bytes] the keys.
 * @param[in] keys_bytes   Size of keys, in bytes.
 * @return ROUTECAP_OK; ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_key_chain(const void *seed, size_t seed_bytes, const int32_t *tokens, size_t count,
                   uint32_t block_rows, uint32_t key_bytes, void *keys, size_t keys_bytes);

/**
 * Tell which keys an adopt of this generation would find now.
 *
 * The answer holds at this moment only. The store may drop a block before you adopt it, unless the
 * block is retained. Blocks in flight count as found. Until such a block has landed, only the
 * capturer that published it can adopt it.
 *
 * @param[in] store       The store.
 * @param[in] keys        [count, key_bytes] the keys.
 * @param[in] count       How many keys.
 * @param[in] generation  The tag of the caller's steps.
 * @param[out] reasons    [count] 0 for a block that is found, otherwise ROUTECAP_MISSING_*; may be
 *                        NULL.
 * @param[out] leading    How many keys before the first that is not found; may be NULL.
 * @return ROUTECAP_OK; ROUTECAP_ERR_STATE (a generation that the store has not advanced to).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_store_contains(routecap_store *store, const void *keys, size_t count, uint64_t generation,
                        routecap_reason *reasons, uint64_t *leading);

/**
 * Retain blocks: the store keeps them until they are released, whatever the budget says.
 *
 * A block that was retained twice stays until it is released twice. A block that was retained
 * 65,535 times stays for ever. If another block takes the key later, that block is retained as many
 * times as this one was. A key without a block is not retained, so release only the keys that were
 * retained.
 *
 * @param[in] store     The store.
 * @param[in] keys      [count, key_bytes] the keys.
 * @param[in] count     How many keys.
 * @param[out] reasons  [count] 0 for a block that is retained now, otherwise ROUTECAP_MISSING_*;
 *                      may be NULL.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_store_retain(routecap_store *store, const void *keys, size_t count,
                      routecap_reason *reasons);

/**
 * Release blocks that were retained. Keys that nobody retains are ignored.
 *
 * @param[in] store  The store.
 * @param[in] keys   [count, key_bytes] the keys.
 * @param[in] count  How many keys.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_store_release(routecap_store *store, const void *keys, size_t count);

/**
 * Drop blocks, including retained ones and those in flight. Requests that adopted them keep the
 * rows.
 *
 * @param[in] store     The store.
 * @param[in] keys      [count, key_bytes] the keys; keys without a block are ignored.
 * @param[in] count     How many keys.
 * @param[out] evicted  How many keys had a block; may be NULL.
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_store_evict(routecap_store *store, const void *keys, size_t count, uint64_t *evicted);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_STORE_H */
