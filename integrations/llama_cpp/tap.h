/*
 * Captures the routing of a mixture-of-experts model that runs in llama.cpp, through the engine's
 * own public callback: no patch. Take tap.h and tap.c as they are. They need the headers of
 * llama.cpp, ggml and routecap, and of routecap nothing but its function table, so it can be loaded
 * by dlopen.
 *
 *     tap_attach(&tap, api, &params);       before llama_init_from_model(model, params)
 *     tap_discover(&tap, context, &config); after it: what there is to capture; then change config
 *     tap_start(&tap, &config);
 *
 *     tap_open(&tap, sequence);             every sequence to be captured, before its first token
 *
 *     tap_begin(&tap, &batch);              every forward pass
 *     if (llama_decode(context, batch) == 0) tap_issue(&tap); else tap_discard(&tap);
 *
 *     tap_end(&tap, sequence, &routing);    the end of a sequence; before that, read it by
 *                                           tap.requests[sequence]
 *
 * What changes llama.cpp's memory has a call beside it; m is llama_get_memory(context), s a
 * sequence:
 *
 *     the tail is dropped: rejected drafts, an edited prompt
 *         llama_memory_seq_rm(m, s, p, -1)             tap_rollback(&tap, s, p)
 *     dropped for good
 *         llama_memory_seq_rm(m, s, -1, -1)            tap_end(&tap, s, NULL)
 *     preempted: computed again later, and the first rows stay
 *         llama_memory_seq_rm(m, s, -1, -1)            nothing
 *     several samples of one prompt
 *         llama_memory_seq_cp(m, s, to, -1, p)         tap_copy(&tap, s, to, p)
 *     a full context: rows keep their number, though their tokens move to other positions
 *         llama_memory_seq_rm(m, s, p, p + n) and
 *         llama_memory_seq_add(m, s, p + n, -1, -n)    tap_shift(&tap, s, n)
 *
 * (llama_memory_seq_rm returns false where a memory cannot drop that: then leave the call beside it
 * out, too.)
 *
 * A function returns false if it could not do its work, and tap.error says why. The engine can go
 * on: rows are then missing, never wrong. All are called on the thread that calls llama_decode;
 * what reads routecap may be called on any.
 *
 * Limits: the model's layers run on the CPU; batches are of tokens, not of embeddings; models with
 * recurrent layers, which run the rows of several sequences in yet another order, are refused when
 * they do so.
 */
#ifndef TAP_H
#define TAP_H

#include <stdbool.h>
#include <stdint.h>

#include <llama.h>
#include <routecap.h>

enum { TAP_MAX_LAYERS = ROUTECAP_MAX_LAYERS, TAP_MAX_SEQUENCES = 256 };

struct tap {
    const routecap_api *api;
    routecap_capturer *capturer;                  /* from tap_start to tap_stop */
    routecap_request requests[TAP_MAX_SEQUENCES]; /* by sequence; 0 where none is captured */
    char error[256];                              /* why the last call that returned false did */

    /* The rest is the tap's own. What the engine runs: */
    int state;
    int streams;       /* parts of the engine's memory, each one sequence's; 1 if all share it */
    uint32_t max_rows; /* of a batch */
    int32_t k, experts, layers;
    int32_t layer_map[TAP_MAX_LAYERS]; /* decoder layer of each layer that has experts */
    int32_t layer_of[TAP_MAX_LAYERS];  /* captured layer of a decoder layer, or -1 */
    int64_t shift[TAP_MAX_SEQUENCES];  /* row of a token, less its position */
    /* The forward pass that is running: */
    struct llama_batch batch;
    /* The weights whose rows a micro-batch's tokens select first of all. */
    const struct ggml_tensor *embedding;
    /* Of the current micro-batch, in the order in which the engine runs the batch's rows. */
    uint32_t first_row, rows;
    uint32_t outputs; /* rows of the micro-batch that want logits, */
    void *memory;     /* of these five, [max_rows] each: */
    int64_t *output, *token, *position,
        *cell; /* which they are; and of every row run so far its token, position and memory cell */
    int32_t *index; /* sink rows of those that want logits */
    int64_t cells;  /* in the engine's memory, all streams' */
    routecap_span *spans;
    size_t span_capacity;
    routecap_step step; /* the last one issued */
    uint32_t slots;
};

/**
 * Make the engine call the tap: sets cb_eval and cb_eval_user_data, so `tap` must stay where it is
 * as long as the context exists. A callback that is set already is refused; to have both, set your
 * own afterwards and pass every call on.
 */
bool tap_attach(struct tap *tap, const routecap_api *api, struct llama_context_params *params);

/**
 * Run one token through a new context and look at what the engine chooses: which decoder layers
 * have experts, how many, and how many of them run. The memory of sequence 0 is empty before and
 * after. Fails if no layer has experts.
 *
 * @param config  Filled: host backend, as many rows as a batch may have. Points into the tap.
 */
bool tap_discover(struct tap *tap, struct llama_context *context, routecap_config *config);

/**
 * Create the capturer. A configuration that does not fit the model and the context is refused:
 * layers without experts, another k or number of experts, fewer rows than a batch may have. Some of
 * the layers that have experts are enough.
 */
bool tap_start(struct tap *tap, const routecap_config *config);

/** Destroy the capturer and free what the tap holds. The context may go on without it. Routings
 * stay valid. */
void tap_stop(struct tap *tap);

bool tap_open(struct tap *tap, llama_seq_id sequence);
/** @param routing  Receives the sequence's rows, to be waited for and freed as
 * routecap_request_finish says; NULL: they are dropped. */
bool tap_end(struct tap *tap, llama_seq_id sequence, routecap_routing **routing);

/**
 * Begin and end the capture of one llama_decode. The batch's arrays must not change in between;
 * tokens of sequences that are not open are let pass. What llama_decode runs outside of them (a
 * warm-up) is not captured and costs next to nothing.
 */
bool tap_begin(struct tap *tap, const struct llama_batch *batch);
bool tap_issue(struct tap *tap);
void tap_discard(struct tap *tap);

bool tap_rollback(struct tap *tap, llama_seq_id sequence, llama_pos position);
/** @param end  One past the last position to copy; -1: all. `to` must not be open. */
bool tap_copy(struct tap *tap, llama_seq_id from, llama_seq_id to, llama_pos end);
/** Positions that are named from now on must be behind the tokens that were removed. */
bool tap_shift(struct tap *tap, llama_seq_id sequence, llama_pos removed);

#endif
