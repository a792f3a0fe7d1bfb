/*
 * routecap, chapter 9: one conversation out of many calls.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * An agent makes many calls of one conversation. Each call brings token ids and a routing, of all
 * tokens again or of the new ones. A sequence puts the routings together by the token ids, so that
 * each token has the row with which it was computed, once.
 *
 *     routecap_sequence_config config = {sizeof config};      // what the model is
 *     config.layers = 48; config.k = 8; config.experts = 128;
 *     routecap_sequence_create(&config, &sequence);
 *
 *     for each call:                                          // prompt and answer, from token 0 on
 *         routecap_sequence_append(sequence, tokens, 0, count, routing, NULL, &report);
 *     routecap_sequence_routing(sequence, &routing);          // rows of the whole conversation
 *
 * ------------------------------------------------------------------------------------------------
 * S tokens have S-1 rows
 * ------------------------------------------------------------------------------------------------
 * Row i is the routing of the pass in which token i was the input, and from which token i+1 was
 * sampled. The last token of a call was not input yet. So a call of S tokens brings rows 0 to S-2,
 * and a sequence of S tokens has these rows. What stands in the place of row S-1 in the call's
 * routing is never taken: some servers send a filler or a copy there. The next call has the token
 * as input, and its row S-1 fills the place: the *boundary row*.
 *
 * ------------------------------------------------------------------------------------------------
 * What append does
 * ------------------------------------------------------------------------------------------------
 * It compares the call's token ids with those of the sequence, where both have one.
 *
 *   all are equal       The sequence grows by the call's further tokens. If the call ends before
 *                       the sequence does, nothing is cut: routecap_sequence_truncate does that.
 *   token d differs     Tokens from d on and rows from d on are cut, and the call's take their
 *                       place. Rows 0 to d-1 stay: token d was no input to them.
 *
 * Then the call's rows come in, cell by cell. A cell that the sequence lacks is filled: holes, the
 * boundary row, new rows. Where both have a cell, ids are compared as sets, and the policy decides
 * which stays. A row that neither has is missing. Of two reasons the one that stands first in the
 * list of reading.h stays. A layer that is recomputed in a routing is recomputed in the sequence.
 *
 * Engines compute known tokens again (a re-prefill), and then route some of them differently. By
 * default a row stays that of the call that sampled the next token, because that token's
 * probability was computed with it.
 *
 * ------------------------------------------------------------------------------------------------
 * Threads, waiting and memory
 * ------------------------------------------------------------------------------------------------
 * One thread at a time may be in a call on one sequence. Different sequences are independent, also
 * a sequence and its forks. Routings are freely shared, as routing.h says. No call waits, and none
 * needs a capturer or a device.
 *
 * A sequence shares the pages of a routing that it uses for the most part, and copies rows out of
 * others, so that no large routing is kept for a few rows. Forks share the rows of their parent. A
 * page of a capturer counts in its budget too until the last routing and sequence let go of it.
 */
#ifndef ROUTECAP_SEQUENCE_H
#define ROUTECAP_SEQUENCE_H

#include "routing.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One conversation: its token ids and their rows. */
typedef struct routecap_sequence routecap_sequence;

/* ================================================================================================
 * Making and freeing
 * ============================================================================================== */

/* What a sequence holds. The arrays are copied. */
typedef struct routecap_sequence_config {
    uint32_t struct_size;
    uint32_t layers;       /* captured (MoE) layers, 1 to ROUTECAP_MAX_LAYERS. Required */
    uint32_t k;            /* experts per token, 1 to ROUTECAP_MAX_K. Required */
    uint32_t experts;      /* ids are in [0, experts). Required unless layer_experts is set */
    int32_t id_space;      /* ROUTECAP_ID_SPACE_*; default LOGICAL */
    uint32_t reserved;     /* 0 */
    uint64_t budget_bytes; /* the most memory for rows and tokens, in bytes, of the sequence and all
                              its forks together; 0: no limit */
    const int32_t *layer_map;      /* [layers] index of each captured layer in the decoder, strictly
                                      ascending; default 0..layers-1 */
    const uint32_t *layer_experts; /* [layers] experts of each layer, where they differ; default
                                      `experts` for all */
} routecap_sequence_config;

/**
 * Make an empty sequence.
 *
 * @param[in] config     The shape of its rows, and its budget.
 * @param[out] sequence  The sequence, to be freed with routecap_sequence_free; NULL on error.
 * @return ROUTECAP_OK.
 */
ROUTECAP_API int32_t routecap_sequence_create(const routecap_sequence_config *config,
                                              routecap_sequence **sequence);

/**
 * Free a sequence. Routings that it gave out and its forks stay as they are. In a forked child
 * process it does nothing.
 *
 * @param[in] sequence  The sequence; may be NULL.
 */
ROUTECAP_API void routecap_sequence_free(routecap_sequence *sequence);

/* ================================================================================================
 * Appending
 * ============================================================================================== */

/* Which cell stays where the sequence and the call both have one. */
#define ROUTECAP_APPEND_KEEP 0   /* the sequence's, of the call that sampled the next token */
#define ROUTECAP_APPEND_NEWEST 1 /* the call's */
#define ROUTECAP_APPEND_EQUAL 2  /* both must be the same set of ids, and all tokens that both have
                                    must be equal; otherwise ROUTECAP_ERR_CONFLICT */

/* What is known of a call beside its tokens and rows. */
typedef struct routecap_append_options {
    uint32_t struct_size;
    int32_t policy;         /* ROUTECAP_APPEND_*; default KEEP */
    uint64_t prompt_tokens; /* how many tokens of the sequence, from token 0 on, were the call's
                               prompt. It sampled the others. 0: not known. It matters with KEEP: if
                               the call sampled the first new token, the row before that token is
                               the call's, even if the sequence has that row */
    uint64_t call;          /* the call's number in the spans; 0: one more than the highest so far.
                               Parts of one call that arrive one by one share a number */
    uint64_t tag;           /* of the call's spans: the version of the weights, for instance. The
                               rows keep the tags that they have in their routing */
    uint32_t origin;        /* of the call's spans, a number of the caller's: which engine, say */
    uint32_t flags;         /* 0 */
} routecap_append_options;

/*
 * What one append did; from routecap_sequence_report, what all appends together did ("of all").
 *
 * A row is there if a cell of it is valid. Rows are those of the sequence, except rows_beyond.
 */
typedef struct routecap_append_report {
    uint32_t struct_size;
    uint32_t reserved;       /* 0 */
    uint64_t call;           /* its number; of all: the highest */
    uint64_t tokens;         /* of the sequence now */
    uint64_t tokens_common;  /* the call's tokens are the sequence's up to here: the position of the
                                first that differs, or the lower of both ends. Of all: of the last
                                append */
    uint64_t tokens_cut;     /* tokens of the sequence that were cut */
    uint64_t rows_cut;       /* rows that were there and were cut with them */
    uint64_t rows_overlap;   /* rows of which both had a cell */
    uint64_t rows_differed;  /* of these: rows with other ids in such a cell. Drift of the engine;
                                or rows that belong to other tokens */
    uint64_t first_differed; /* position of the first of these; ROUTECAP_ROWS_ALL: there is none */
    uint64_t rows_taken;     /* rows of which the sequence took a cell of the call's */
    uint64_t rows_boundary;  /* of these: boundary rows, 0 or 1 per append */
    uint64_t rows_filled;    /* of these: rows before the boundary row that lacked such a cell */
    uint64_t rows_replaced;  /* of these: rows in which a cell of the call's took the place of
                                another */
    uint64_t rows_beyond;    /* rows of the call's routing at or behind its last token: not taken */
    uint64_t rows_missing;   /* rows of the sequence now of which a cell is missing */
    uint64_t bytes;          /* memory for rows and tokens now, in bytes, of the sequence, all its
                                forks, and routings that they gave out */
} routecap_append_report;

/**
 * Add a call: its tokens and its rows. "What append does" above has the rules.
 *
 * Give all tokens of the call, from token 0 on, if you have them: only tokens that are given are
 * compared. A call with token_start > 0 vouches for the tokens before it. Its routing may begin
 * anywhere. It usually begins before token_start, with the boundary row.
 *
 * Time goes with the call's tokens and rows, at about the speed of memory.
 *
 * @param[in,out] sequence  The sequence.
 * @param[in] tokens        [count] token ids; may be NULL if count is 0.
 * @param[in] token_start   Position of tokens[0]: at most the sequence's number of tokens.
 * @param[in] count         How many tokens; 0 is allowed, for rows of tokens that are known.
 * @param[in] routing       The call's rows, at their own positions. NULL: it brought none. It stays
 *                          the caller's.
 * @param[in] options       What is known of the call; NULL: the defaults.
 * @param[out] report       What was done, filled on success; may be NULL.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (cells of the sequence are missing now);
 *         ROUTECAP_ERR_OUT_OF_RANGE (token_start or prompt_tokens beyond what there is, tokens
 *         beyond ROUTECAP_MAX_POSITION, or no number left for the call);
 *         ROUTECAP_ERR_SHAPE_MISMATCH (layers, k, experts or id space differ);
 *         ROUTECAP_ERR_CONFLICT (EQUAL); ROUTECAP_ERR_NOT_READY;
 *         ROUTECAP_ERR_STATE (the sequence does not know its tokens, see
 *         routecap_sequence_deserialize); ROUTECAP_ERR_NO_MEMORY (the budget: it must hold the old
 *         and the new rows until the call ends). Nothing has changed on an error.
 */
ROUTECAP_API int32_t routecap_sequence_append(routecap_sequence *sequence, const int32_t *tokens,
                                              uint64_t token_start, uint64_t count,
                                              const routecap_routing *routing,
                                              const routecap_append_options *options,
                                              routecap_append_report *report);

/**
 * Cut a sequence: keep its first tokens, and rows 0 to tokens-1.
 *
 * The row of the last token stays too, but no reader sees it until another token follows. Nothing
 * happens if the sequence is not longer.
 *
 * @param[in,out] sequence  The sequence.
 * @param[in] tokens        How many tokens stay.
 * @return ROUTECAP_OK; ROUTECAP_ERR_STATE (the sequence does not know its tokens, and `tokens` is
 *         not a multiple of ROUTECAP_DIGEST_TOKENS).
 */
ROUTECAP_API int32_t routecap_sequence_truncate(routecap_sequence *sequence, uint64_t tokens);

/**
 * Make a sequence that begins as another: several samples of one prompt, a branch of a
 * conversation. Rows are shared, not copied.
 *
 * @param[in] sequence  The parent. The sums of its reports become the child's.
 * @param[in] tokens    How many tokens the child begins with, at most the parent's; it is cut there
 *                      as by routecap_sequence_truncate. ROUTECAP_ROWS_ALL: all.
 * @param[out] child    The new sequence, to be freed with routecap_sequence_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_ERR_OUT_OF_RANGE; ROUTECAP_ERR_STATE (as
 *         routecap_sequence_truncate).
 */
ROUTECAP_API int32_t routecap_sequence_fork(const routecap_sequence *sequence, uint64_t tokens,
                                            routecap_sequence **child);

/* ================================================================================================
 * Reading
 * ============================================================================================== */

/**
 * Get the rows of the whole conversation: S-1 rows from position 0 on, for S tokens. Pages are
 * shared. The routing does not change with the sequence.
 *
 * @param[in] sequence  The sequence.
 * @param[out] routing  The routing, to be freed with routecap_routing_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED (a routing whose cells are all
 *         missing).
 */
ROUTECAP_API int32_t routecap_sequence_routing(const routecap_sequence *sequence,
                                               routecap_routing **routing);

/* Consecutive rows that came from one call. */
typedef struct routecap_sequence_span {
    uint64_t first;    /* position of the first row */
    uint64_t rows;     /* how many */
    uint64_t call;     /* number of the call */
    uint64_t tag;      /* of the call, as its routecap_append_options had it */
    uint32_t origin;   /* likewise */
    uint32_t reserved; /* 0 */
} routecap_sequence_span;

/**
 * Say which rows came from which call.
 *
 * Spans ascend and are as long as possible. A row that is not there is in none. A row with cells of
 * several calls belongs to the first of these calls. If cells of a later call have taken the place
 * of others in it, it belongs to that call.
 *
 * @param[in] sequence   The sequence.
 * @param[out] spans     [capacity] elements of span_size bytes: the first spans; may be NULL if
 *                       capacity is 0.
 * @param[in] span_size  sizeof(routecap_sequence_span) of the caller, in bytes.
 * @param[in] capacity   How many spans there is room for.
 * @param[out] count     How many there are.
 * @return ROUTECAP_OK.
 */
ROUTECAP_API int32_t routecap_sequence_spans(const routecap_sequence *sequence,
                                             routecap_sequence_span *spans, size_t span_size,
                                             size_t capacity, uint64_t *count);

/**
 * Get token ids of a sequence.
 *
 * @param[in] sequence  The sequence.
 * @param[in] first     Position of the first token, at most the sequence's number of tokens.
 * @param[out] tokens   [capacity] the ids; may be NULL if capacity is 0.
 * @param[in] capacity  How many ids there is room for.
 * @param[out] count    How many there are from `first` on; at most `capacity` of them are written.
 * @return ROUTECAP_OK; ROUTECAP_ERR_OUT_OF_RANGE; ROUTECAP_ERR_STATE (the sequence does not know
 *         its tokens).
 */
ROUTECAP_API int32_t routecap_sequence_tokens(const routecap_sequence *sequence, uint64_t first,
                                              int32_t *tokens, size_t capacity, uint64_t *count);

/**
 * Say what all appends together did: the sums of their reports, since the sequence was created or
 * deserialised.
 *
 * @param[in] sequence  The sequence.
 * @param[out] report   The sums, and what the sequence is now.
 * @return ROUTECAP_OK.
 */
ROUTECAP_API int32_t routecap_sequence_report(const routecap_sequence *sequence,
                                              routecap_append_report *report);

/* ================================================================================================
 * Sequences as bytes
 * ============================================================================================== */

/*
 * A digest stands for this many tokens and all before them. A sequence that was made from bytes
 * without tokens learns its tokens from the next append, and compares their digests.
 */
#define ROUTECAP_DIGEST_TOKENS 64

/* Flag of routecap_sequence_serialize. */
#define ROUTECAP_SEQUENCE_WITH_TOKENS 1u /* the tokens themselves, 4 bytes each, not only digests */

/**
 * Write a sequence as bytes: its rows in the serialised form of serialized.h, its spans, and
 * digests of its tokens. docs/format.md describes the bytes. Equal sequences give equal bytes. The
 * sums of reports are not in them.
 *
 * @param[in] sequence   The sequence.
 * @param[in] flags      0 or ROUTECAP_SEQUENCE_WITH_TOKENS.
 * @param[out] dst       [dst_bytes] the bytes. NULL with dst_bytes 0 asks for the size, which
 *                       returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param[in] dst_bytes  Size of dst, in bytes.
 * @param[out] needed    How many bytes it takes, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too; may be
 *                       NULL.
 * @return ROUTECAP_OK, also if cells are missing; ROUTECAP_ERR_BUFFER_TOO_SMALL (nothing is
 *         written); ROUTECAP_ERR_STATE (WITH_TOKENS, and the sequence does not know its tokens).
 */
ROUTECAP_API int32_t routecap_sequence_serialize(const routecap_sequence *sequence, uint32_t flags,
                                                 void *dst, size_t dst_bytes, uint64_t *needed);

/**
 * Make a sequence from such bytes. Nothing in them is trusted: ids are checked as
 * routecap_routing_deserialize checks them, tokens by their digests, and spans by the rows.
 *
 * Without its tokens a sequence can be read, serialised, and cut or forked at multiples of
 * ROUTECAP_DIGEST_TOKENS. The next append must give all tokens from 0 on, at least as many as the
 * sequence has. The sequence then knows its tokens. It compares digests, one for each block of
 * ROUTECAP_DIGEST_TOKENS tokens, and cuts what it has from the first block on that differs.
 *
 * @param[in] data          [bytes] the bytes. They are copied.
 * @param[in] bytes         How many: exactly those of one sequence.
 * @param[in] budget_bytes  As in routecap_sequence_config.
 * @param[out] sequence     The sequence, to be freed with routecap_sequence_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_ERR_FORMAT (the text says what is wrong); ROUTECAP_ERR_NO_MEMORY
 *         (also the budget).
 */
ROUTECAP_API int32_t routecap_sequence_deserialize(const void *data, size_t bytes,
                                                   uint64_t budget_bytes,
                                                   routecap_sequence **sequence);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_SEQUENCE_H */
