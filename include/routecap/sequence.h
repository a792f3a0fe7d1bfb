/*
 * routecap, chapter 9: sequences. To train on a conversation of many turns, append each turn to a
 * sequence.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * An agent holds one conversation in many turns: requests to a server. Each turn returns token ids
 * and a routing, either of all tokens again or of the new tokens only. A trainer needs exactly one
 * row for each token but the last. If the next token was generated, this must be the row of the
 * pass that sampled it. A sequence compares the token ids of the turns and joins their routings
 * accordingly.
 *
 *     routecap_sequence_config config = {sizeof config};      // what the model is
 *     config.layers = 48; config.k = 8; config.experts = 128;
 *     routecap_sequence_create(&config, &sequence);
 *
 *     for each turn:                                          // tokens: prompt and answer
 *         routecap_sequence_append(sequence, tokens, 0, count, answer,   // answer: its routing
 *                                  NULL, &report);
 *         routecap_routing_free(answer);
 *     routecap_sequence_routing(sequence, &routing);          // rows of the whole conversation
 *
 * ------------------------------------------------------------------------------------------------
 * In detail: S tokens have S-1 rows
 * ------------------------------------------------------------------------------------------------
 * Row i is that of the pass that had token i as input. If token i+1 was generated, it was sampled
 * from this pass. The last token of a turn has not been an input yet, so a turn of S tokens brings
 * rows 0 to S-2, and a sequence of S tokens has rows 0 to S-2. If the turn's routing has a row S-1,
 * append ignores it: some servers send filler or a copy there. The next turn has that token as
 * input, and brings its row. This is the *boundary row* between the two turns.
 *
 * ------------------------------------------------------------------------------------------------
 * In detail: what append does
 * ------------------------------------------------------------------------------------------------
 * First it compares the turn's token ids with those of the sequence, at all positions that both
 * have.
 *
 *   all are equal       The turn's further tokens are added to the sequence. A turn that is shorter
 *                       than the sequence cuts nothing; to cut, use routecap_sequence_truncate.
 *   token d differs     Tokens and rows from d on are cut, and those of the turn take their place.
 *                       Rows 0 to d-1 stay, because they were computed without token d.
 *
 * Then it adds the turn's rows, cell by cell. A cell that the sequence lacks is taken from the
 * turn: in a new row, in the boundary row, or in an earlier gap. If both have a cell, append
 * compares the ids as sets, and the policy decides which cell stays. A row that neither has is
 * missing. If both have a reason for a missing cell, the sequence keeps the one with the higher
 * `@rank` in reading.h. A layer that is RECOMPUTED in any turn is RECOMPUTED in the sequence.
 *
 * Engines often compute known tokens again (a re-prefill), and then route some of them differently.
 * By default the row of the turn that sampled the next token stays, because that token's
 * probability was computed with it.
 *
 * ------------------------------------------------------------------------------------------------
 * Recipes
 * ------------------------------------------------------------------------------------------------
 *   - An aborted turn that is retried: append both, in order. Set prompt_tokens of
 *     routecap_append_options on the retry. The row before the first token that the retry adds or
 *     replaces is then taken from the retry, because the retry sampled that token.
 *   - An answer that was edited, or rendered differently: append the next turn as it is. Tokens and
 *     rows from the first token that differs are replaced.
 *   - New weights between turns: set routecap_append_options.tag to the version.
 *     routecap_sequence_spans then says which rows each version computed. If weights change within
 *     a turn, the spans cannot tell: use the tags of the rows (routecap_segment), if the engine
 *     tags its steps. No call leaves rows out by their tag.
 *   - Several answers to one prompt: append the prompt's tokens with the routing of one answer, and
 *     fork the sequence for each answer (routecap_sequence_fork). Append each answer, from token 0
 *     on, to its own fork.
 *   - A turn whose routing was lost: append its tokens with routing NULL. A later turn that
 *     computes these tokens again fills the rows.
 *
 * ------------------------------------------------------------------------------------------------
 * Threads, waiting and memory
 * ------------------------------------------------------------------------------------------------
 * Only one thread at a time may use a sequence. Different sequences are independent, including a
 * sequence and its forks. A routing may be shared among threads and sequences. No function waits,
 * and none needs a capturer or a device.
 *
 * A sequence copies the rows that it takes from a routing, and keeps nothing of the routing alive.
 * Forks share the rows of their parent.
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
    uint32_t layers;            /* captured (MoE) layers, 1 to ROUTECAP_MAX_LAYERS. Required */
    uint32_t k;                 /* experts per token, 1 to ROUTECAP_MAX_K. Required */
    uint32_t experts;           /* ids are in [0, experts). Required unless layer_experts is set */
    routecap_id_space id_space; /* ROUTECAP_ID_SPACE_*; default LOGICAL */
    routecap_dtype weights_dtype; /* of its weights, as in routecap_config: that of all routings
                                     that are appended; default 0: without weights */
    uint64_t budget_bytes;      /* the most memory that the rows and tokens of the sequence and all
                                   its forks may take together, in bytes; 0: no limit */
    const int32_t *layer_map;      /* [layers] index of each captured layer in the decoder, strictly
                                      ascending unless layer_visit is set; default 0..layers-1 */
    const uint32_t *layer_experts; /* [layers] number of experts of each layer, if they differ;
                                      default `experts` for all */
    const uint32_t *layer_k;       /* [layers] as in routecap_config */
    const uint32_t *layer_min_k;   /* [layers] as in routecap_config */
    const uint32_t *layer_visit;   /* [layers] as in routecap_config */
} routecap_sequence_config;

/**
 * Make an empty sequence.
 *
 * @param[in] config     The shape of its rows, and its budget.
 * @param[out] sequence  The sequence, to be freed with routecap_sequence_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_ERR_ARGUMENT (a field outside its range; the text names it);
 *         ROUTECAP_ERR_DTYPE (weights_dtype).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_sequence_create(const routecap_sequence_config *config, routecap_sequence **sequence);

/**
 * Free a sequence. Its forks, and the routings that were read from it, stay valid. In a forked
 * child process the call does nothing.
 *
 * @param[in] sequence  The sequence; may be NULL.
 * @thread(sequence)
 */
ROUTECAP_API void routecap_sequence_free(routecap_sequence *sequence);

/* ================================================================================================
 * Appending
 * ============================================================================================== */

/* Policies: which cell stays if the sequence and the turn both have one. */
#define ROUTECAP_APPEND_KEEP 0   /* the cell of the sequence, because its turn sampled the next
                                    token */
#define ROUTECAP_APPEND_NEWEST 1 /* the cell of the turn */
#define ROUTECAP_APPEND_EQUAL 2  /* either: they must be the same set of ids, and the tokens that
                                    both have must be equal. Otherwise append fails with
                                    ROUTECAP_ERR_CONFLICT */
typedef int32_t routecap_append_policy; /* @one_of(ROUTECAP_APPEND_*) */

/* What the caller knows about a turn besides its tokens and rows. */
typedef struct routecap_append_options {
    uint32_t struct_size;
    routecap_append_policy policy; /* ROUTECAP_APPEND_*; default KEEP */
    uint64_t prompt_tokens;        /* number of tokens, from token 0 on, that were the turn's
                                      prompt; the turn sampled the others. 0: not known. With KEEP,
                                      let p be the position of the first token that the turn adds or
                                      replaces. If p is prompt_tokens or more, the turn sampled that
                                      token, and row p-1 is taken from the turn even if the sequence
                                      has it */
    uint64_t call;                 /* number of the turn, for routecap_sequence_spans; 0: one more
                                      than the highest so far. If the parts of one turn arrive
                                      separately, give all of them the same number */
    uint64_t tag;                  /* tag of the turn, for routecap_sequence_spans, such as the
                                      version of the weights. It does not change the tags of the
                                      rows themselves */
    uint32_t origin;               /* a number of the caller's choice, for routecap_sequence_spans,
                                      such as the number of the engine */
    uint32_t flags;                /* 0 */
} routecap_append_options;

/*
 * What one append did. routecap_sequence_report fills it with the sums over all appends; a field
 * that is not a sum says so.
 *
 * A row is there if at least one of its cells is valid.
 */
typedef struct routecap_append_report {
    uint32_t struct_size;
    uint32_t reserved;       /* 0 */
    uint64_t call;           /* number of the turn. Over all appends: the highest */
    uint64_t tokens;         /* tokens of the sequence now */
    uint64_t tokens_common;  /* number of tokens, from token 0 on, in which the turn and the
                                sequence agree. Tokens before token_start count as agreeing. Over
                                all appends: that of the last append */
    uint64_t tokens_cut;     /* tokens of the sequence that were cut */
    uint64_t rows_cut;       /* rows that were there and were cut with these tokens */
    uint64_t rows_overlap;   /* rows with at least one cell that both the turn and the sequence
                                had */
    uint64_t rows_differed;  /* rows of rows_overlap with different ids in such a cell: the engine
                                routed differently, or the rows belong to different tokens */
    uint64_t first_differed; /* position of the first row in rows_differed; ROUTECAP_ROWS_ALL: there
                                is none. Over all appends: the lowest */
    uint64_t rows_taken;     /* rows in which the sequence took at least one cell from the turn */
    uint64_t rows_boundary;  /* boundary rows in which the turn filled a missing cell: 0 or 1 per
                                append */
    uint64_t rows_filled;    /* rows before the boundary row in which the turn filled a gap */
    uint64_t rows_replaced;  /* rows of rows_taken in which a cell of the turn replaced one of the
                                sequence */
    uint64_t rows_beyond;    /* rows of the turn's routing at or after its last token, which are
                                ignored */
    uint64_t rows_missing;   /* rows that have at least one missing cell in the sequence now */
    uint64_t bytes;          /* memory now, in bytes, for the rows and tokens of the sequence, its
                                forks, and the routings read from any of them */
} routecap_append_report;

/**
 * Add the tokens and rows of one turn, by the rules in "What append does" above.
 *
 * Give all tokens of the turn, from token 0 on, if you have them, because only given tokens are
 * compared. With token_start > 0 you vouch that the tokens before it are those of the sequence. The
 * routing may begin at any position. Usually it begins one row before token_start, with the
 * boundary row.
 *
 * The time is about that of copying the turn's tokens and rows.
 *
 * @param[in,out] sequence  The sequence.
 * @param[in] tokens        [count] token ids; may be NULL if count is 0.
 * @param[in] token_start   Position of tokens[0]; at most the sequence's number of tokens.
 * @param[in] count         How many tokens; 0 to add rows of tokens that the sequence already has.
 * @param[in] routing       The turn's rows, by their positions; NULL if it brought none. The caller
 *                          still owns its reference, and may free it after the call.
 * @param[in] options       What you know about the turn; NULL: the defaults.
 * @param[out] report       What was done, filled on success; may be NULL.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (the sequence now has missing cells);
 *         ROUTECAP_ERR_OUT_OF_RANGE (token_start beyond the sequence, prompt_tokens beyond the
 *         turn, tokens beyond ROUTECAP_MAX_POSITION, or no higher number left for `call`);
 *         ROUTECAP_ERR_SHAPE_MISMATCH (anything of routecap_sequence_config but budget_bytes
 *         differs in the routing); ROUTECAP_ERR_CONFLICT (EQUAL); ROUTECAP_ERR_NOT_READY;
 *         ROUTECAP_ERR_STATE (the sequence does not know its tokens, and the call does not give all
 *         of them; see routecap_sequence_deserialize); ROUTECAP_ERR_NO_MEMORY (also the budget,
 *         which must have room for the old and the new rows until append returns).
 * @thread(sequence)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_sequence_append(routecap_sequence *sequence, const int32_t *tokens, uint64_t token_start,
                         uint64_t count, const routecap_routing *routing,
                         const routecap_append_options *options, routecap_append_report *report);

/**
 * Cut a sequence: keep its first `tokens` tokens and rows 0 to tokens-1.
 *
 * Row tokens-1, that of the last token, is kept in memory, and becomes readable when another token
 * follows. A sequence that is not longer than `tokens` stays as it is.
 *
 * @param[in,out] sequence  The sequence.
 * @param[in] tokens        How many tokens to keep.
 * @return ROUTECAP_OK; ROUTECAP_ERR_STATE (the sequence does not know its tokens, and `tokens` is
 *         not a multiple of ROUTECAP_DIGEST_TOKENS).
 * @thread(sequence)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_sequence_truncate(routecap_sequence *sequence, uint64_t tokens);

/**
 * Fork a sequence: make a new one that begins with the same tokens and rows. Use it for several
 * samples of one prompt, or a branch of a conversation. Rows are shared, not copied.
 *
 * @param[in] sequence  The parent. The child's report starts with the parent's sums.
 * @param[in] tokens    How many tokens the child begins with, at most the parent's. The child is
 *                      cut there as in routecap_sequence_truncate. ROUTECAP_ROWS_ALL: all.
 * @param[out] child    The new sequence, to be freed with routecap_sequence_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_ERR_OUT_OF_RANGE; ROUTECAP_ERR_STATE (as
 *         routecap_sequence_truncate).
 * @thread(sequence)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_sequence_fork(const routecap_sequence *sequence, uint64_t tokens,
                       routecap_sequence **child);

/* ================================================================================================
 * Reading
 * ============================================================================================== */

/**
 * Get the rows of the whole conversation: for S tokens, rows 0 to S-2. Pages are shared, not
 * copied. Later appends do not change the routing.
 *
 * @param[in] sequence  The sequence.
 * @param[out] routing  The routing, to be freed with routecap_routing_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED (all cells are missing).
 * @thread(sequence)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_sequence_routing(const routecap_sequence *sequence, routecap_routing **routing);

/* Consecutive rows that came from one turn. */
typedef struct routecap_sequence_span {
    uint64_t first;    /* position of the first row */
    uint64_t rows;     /* how many */
    uint64_t call;     /* number of the turn */
    uint64_t tag;      /* tag of the turn, from its routecap_append_options */
    uint32_t origin;   /* origin of the turn, likewise */
    uint32_t reserved; /* 0 */
} routecap_sequence_span;

/**
 * List which rows came from which turn.
 *
 * Spans are in ascending order and as long as possible. A row without a valid cell is in no span. A
 * row with cells of several turns belongs to the first of them. If turns replaced cells in it, it
 * belongs to the last turn that did.
 *
 * @param[in] sequence   The sequence.
 * @param[out] spans     [capacity] elements of span_size bytes: the first spans; may be NULL if
 *                       capacity is 0.
 * @param[in] span_size  sizeof(routecap_sequence_span) of the caller, in bytes.
 * @param[in] capacity   How many spans there is room for.
 * @param[out] count     How many there are.
 * @return ROUTECAP_OK.
 * @thread(sequence)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_sequence_spans(const routecap_sequence *sequence, routecap_sequence_span *spans,
                        size_t span_size, size_t capacity, uint64_t *count);

/**
 * Read the token ids of a sequence.
 *
 * @param[in] sequence  The sequence.
 * @param[in] first     Position of the first token, at most the sequence's number of tokens.
 * @param[out] tokens   [capacity] the ids; may be NULL if capacity is 0.
 * @param[in] capacity  How many ids there is room for.
 * @param[out] count    How many tokens the sequence has from `first` on; at most `capacity` are
 *                      written.
 * @return ROUTECAP_OK; ROUTECAP_ERR_OUT_OF_RANGE; ROUTECAP_ERR_STATE (the sequence does not know
 *         its tokens).
 * @thread(sequence)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_sequence_tokens(const routecap_sequence *sequence, uint64_t first, int32_t *tokens,
                         size_t capacity, uint64_t *count);

/**
 * Get the sums of the reports of all appends, since the sequence was created or deserialised.
 *
 * @param[in] sequence  The sequence.
 * @param[out] report   The sums, and the state of the sequence now.
 * @return ROUTECAP_OK.
 * @thread(sequence)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_sequence_report(const routecap_sequence *sequence, routecap_append_report *report);

/* ================================================================================================
 * Sequences as bytes
 * ============================================================================================== */

/*
 * A serialised sequence has a digest (a hash) for each group of ROUTECAP_DIGEST_TOKENS tokens, and
 * one for the rest. Each covers its tokens and all tokens before them. A sequence that was
 * deserialised without tokens gets its tokens from the next append, and checks them against its
 * digests.
 */
#define ROUTECAP_DIGEST_TOKENS 64 /* @number */

/* Flag of routecap_sequence_serialize. */
#define ROUTECAP_SEQUENCE_WITH_TOKENS 1u /* include the tokens themselves, 4 bytes each, and not
                                            only their digests */
typedef uint32_t routecap_sequence_flags; /* @any_of(ROUTECAP_SEQUENCE_*) */

/**
 * Write a sequence as bytes: its rows in the serialised form of serialized.h, its spans, and
 * digests of its tokens. docs/format.md describes the bytes. Equal sequences give equal bytes. The
 * bytes do not contain the sums of the reports. routecap_serialized_slice cannot read the bytes of
 * a sequence: to read a part of the rows later, serialise the routing of routecap_sequence_routing
 * instead.
 *
 * @param[in] sequence   The sequence.
 * @param[in] flags      0 or ROUTECAP_SEQUENCE_WITH_TOKENS.
 * @param[out] dst       [dst_bytes] the bytes. NULL with dst_bytes 0 asks for the size, and the
 *                       call returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param[in] dst_bytes  Size of dst, in bytes.
 * @param[out] needed    How many bytes it takes, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too; may be
 *                       NULL.
 * @return ROUTECAP_OK, also if cells are missing; ROUTECAP_ERR_BUFFER_TOO_SMALL (nothing is
 *         written); ROUTECAP_ERR_STATE (WITH_TOKENS, and the sequence does not know its tokens).
 * @thread(sequence)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_sequence_serialize(const routecap_sequence *sequence, routecap_sequence_flags flags,
                            void *dst, size_t dst_bytes, uint64_t *needed);

/**
 * Make a sequence from such bytes. Nothing in them is trusted: ids are checked as in
 * routecap_routing_deserialize, tokens against their digests, and spans against the rows.
 *
 * A sequence without its tokens can be read, serialised, and cut or forked at multiples of
 * ROUTECAP_DIGEST_TOKENS. The next append must give all tokens from token 0 on, at least as many as
 * the sequence has. Append checks them against the digests, one group of ROUTECAP_DIGEST_TOKENS
 * tokens at a time, and cuts the sequence at the start of the first group that differs. From then
 * on the sequence knows its tokens.
 *
 * @param[in] data          [bytes] the bytes. They are copied.
 * @param[in] bytes         How many: exactly those of one sequence.
 * @param[in] budget_bytes  As in routecap_sequence_config.
 * @param[out] sequence     The sequence, to be freed with routecap_sequence_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_ERR_FORMAT (the text says what is wrong); ROUTECAP_ERR_NO_MEMORY
 *         (also the budget).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_sequence_deserialize(const void *data, size_t bytes, uint64_t budget_bytes,
                              routecap_sequence **sequence);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_SEQUENCE_H */
