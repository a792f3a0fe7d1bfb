/*
 * What the engine really chose: ids copied straight from its tensors, by sequence and row, without
 * routecap and without the tap's way to tell whose a row is. Here a row that runs is known by its
 * token, as the first one of the batch with that token which has not run yet: that is right if all
 * tokens of a batch differ, or if the engine runs the batch in its order. Rows that the last layer
 * spares are known by their want of no logits.
 */
#ifndef ORACLE_H
#define ORACLE_H

#include "tap.h"

enum { ORACLE_SEQUENCES = 8, ORACLE_ROWS = 2048 };

struct oracle {
    ggml_backend_sched_eval_callback
        inner;             /* the tap's callback, which is called for every tensor */
    const struct tap *tap; /* for its callback, and for which layer is which */
    size_t layers, k;
    int32_t
        *ids; /* [ORACLE_SEQUENCES][ORACLE_ROWS][layers][k] id + 1; 0: the engine chose nothing */
    int shift[ORACLE_SEQUENCES]; /* row of a token, less its position */
    const struct llama_batch *batch;
    bool *ran; /* [rows of the batch] */
    int *row;  /* [rows of the micro-batch] in the batch */
    int rows;
    int micro_batches, topks; /* seen: how many of each; */
    int reordered;            /* rows that ran after a later one of the batch; */
    int stride;               /* ids from one row of a top-k to the next; */
    uint64_t spared; /* and rows that the last layer did not run, because they want no logits */
};

/* A comparison of a routing with the oracle. */
struct verdict {
    uint64_t rows, cells,
        missing;          /* of the routing: its rows, its valid cells and those that are not */
    uint64_t differences; /* cells that differ, be it in one id or in being there */
};

/** Take the callback's place in the parameters, after tap_attach. */
void oracle_attach(struct oracle *oracle, const struct tap *tap,
                   struct llama_context_params *params);
void oracle_start(struct oracle *oracle, const routecap_config *config); /* after tap_start */
void oracle_stop(struct oracle *oracle);

/** @param batch  With all its arrays, also if the engine is given fewer. NULL: what runs now is not
 * looked at. */
void oracle_begin(struct oracle *oracle, const struct llama_batch *batch);

/** Forget a sequence from a row on. What is not forgotten stays when it is computed again. */
void oracle_forget(struct oracle *oracle, llama_seq_id sequence, int row);
void oracle_copy(struct oracle *oracle, llama_seq_id from, llama_seq_id to, int rows);

struct verdict oracle_compare(const struct oracle *oracle, llama_seq_id sequence,
                              const routecap_routing *routing);

#endif
