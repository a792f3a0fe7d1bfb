/*
 * What engines built on llama.cpp do with batches and sequences, one situation after another, and
 * that routecap has every row of each.
 *
 * usage: scenarios LIBROUTECAP MODEL.gguf DENSE_MODEL.gguf
 *
 * Each function below drives llama.cpp into one situation, with the calls of tap.h beside those of
 * llama.cpp, and in the end every row of every request is compared with the oracle: ids copied
 * straight from the engine's tensors. One line is printed for each; exit status 1 on any
 * difference.
 */
#include <ggml.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"
#include "support.h"
#include "tap.h"

enum { SEQUENCES = 4, CONTEXT = 1024, BATCH = 128, WINDOW = 64 };

static const routecap_api *api;
static struct llama_model *model;
static int failures;

/* ---- A context with a tap and an oracle ---------------------------------------------------- */

struct shape {
    bool split; /* kv_unified = false: a part of the memory for each sequence */
    int micro_batch, context;
};

struct session {
    struct llama_context *context;
    llama_memory_t memory;
    struct llama_batch batch;
    routecap_config config;
    struct tap tap;
    struct oracle oracle;
    int version[SEQUENCES];                     /* which tokens a sequence has from now on */
    uint64_t rows, cells, missing, differences; /* of the sequences that have ended */
    bool failed;
};

static void expect(struct session *session, bool condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "not so: %s (%s)\n", what, session->tap.error);
    session->failed = true;
}

static struct llama_context_params parameters(struct shape shape) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)(shape.context > 0 ? shape.context : CONTEXT);
    params.n_batch = BATCH;
    params.n_ubatch = (uint32_t)(shape.micro_batch > 0 ? shape.micro_batch : BATCH);
    params.n_seq_max = SEQUENCES;
    params.kv_unified = !shape.split;
    params.n_threads = params.n_threads_batch = 1;
    return params;
}

static struct session *session_new(struct shape shape) {
    struct session *session = calloc(1, sizeof *session);
    if (session == NULL) die("out of memory");
    struct llama_context_params params = parameters(shape);
    if (!tap_attach(&session->tap, api, &params)) die("%s", session->tap.error);
    oracle_attach(&session->oracle, &session->tap, &params);
    session->context = llama_init_from_model(model, params);
    if (session->context == NULL) die("no context");
    session->memory = llama_get_memory(session->context);
    session->batch = llama_batch_init(BATCH, 0, SEQUENCES);
    if (!tap_discover(&session->tap, session->context, &session->config))
        die("%s", session->tap.error);
    return session;
}

static void start(struct session *session) {
    if (!tap_start(&session->tap, &session->config)) die("%s", session->tap.error);
    oracle_start(&session->oracle, &session->config);
}

static struct session *session_open(struct shape shape, int sequences) {
    struct session *session = session_new(shape);
    start(session);
    for (int s = 0; s < sequences; s++)
        expect(session, tap_open(&session->tap, s), "a sequence opens");
    return session;
}

/* Tokens of a batch all differ, as the oracle needs it, if no sequence has more than WINDOW of them
 * in it. */
static llama_token token_of(const struct session *session, llama_seq_id sequence, int position) {
    return (sequence * WINDOW + (position + 13 * session->version[sequence]) % WINDOW) * 37 %
           (SEQUENCES * WINDOW);
}

static void add(struct session *session, llama_seq_id sequence, int position, bool logits) {
    add_token(&session->batch, token_of(session, sequence, position), position, sequence, logits);
}

/* Adds positions [from, to) of a sequence, all with logits. */
static void add_all(struct session *session, llama_seq_id sequence, int from, int to) {
    for (int position = from; position < to; position++) add(session, sequence, position, true);
}

/* One forward pass over what was added: how every engine captures. */
static void forward(struct session *session) {
    oracle_begin(&session->oracle, &session->batch);
    expect(session, tap_begin(&session->tap, &session->batch), "the forward begins");
    expect(session, llama_decode(session->context, session->batch) == 0, "llama_decode runs");
    expect(session, tap_issue(&session->tap), "the forward is issued");
    session->batch.n_tokens = 0;
}

/* Ends a sequence, of `rows` rows, and compares all of them. */
static void end(struct session *session, llama_seq_id sequence, int rows) {
    routecap_routing *routing = NULL;
    expect(session, tap_end(&session->tap, sequence, &routing), "the sequence ends");
    if (routing == NULL) return;
    if (api->routing_wait(routing, -1) < 0) die("%s", api->last_error());
    struct verdict verdict = oracle_compare(&session->oracle, sequence, routing);
    api->routing_free(routing);
    expect(session, verdict.rows == (uint64_t)rows,
           "a request has as many rows as its sequence had tokens");
    session->rows += verdict.rows;
    session->cells += verdict.cells;
    session->missing += verdict.missing;
    session->differences += verdict.differences;
}

/* Prints a situation's line: what it proves if it has not failed. `missing`: cells that the engine
 * did not compute, or was not asked to show. */
static void session_close(struct session *session, const char *situation, uint64_t missing,
                          const char *proof) {
    expect(session, session->differences == 0, "routecap has what the engine chose");
    expect(session, session->missing == missing, "as many cells are missing as expected");
    printf("%s  %-18s %4" PRIu64 " rows, %4" PRIu64 " cells, %3" PRIu64 " missing, %" PRIu64
           " differences: %s\n",
           session->failed ? "FAILED" : "passed", situation, session->rows, session->cells,
           session->missing, session->differences, proof);
    fflush(stdout);
    failures += session->failed;
    llama_batch_free(session->batch);
    llama_free(session->context);
    tap_stop(&session->tap);
    oracle_stop(&session->oracle);
    free(session);
}

/* ---- Batches ------------------------------------------------------------------------------- */

/* A top-k tensor is a view into all experts sorted by weight: its rows do not follow one another.
 * One row alone looks contiguous. */
static void strided_views(void) {
    struct session *session = session_open((struct shape){0}, 1);
    add_all(session, 0, 0, 40);
    forward(session);
    for (int position = 40; position < 50; position++) {
        add(session, 0, position, true);
        forward(session);
    }
    end(session, 0, 50);
    expect(session, session->oracle.stride == (int)session->config.experts,
           "rows of a top-k are `experts` ids apart");
    session_close(session, "strided views", 0,
                  "ids are read where the engine left them, k of every `experts`");
}

/* Prompts of different length in one batch, then token by token, as a server does it. Nobody wants
 * sequence 3, and it costs no row. */
static void several_sequences(void) {
    struct session *session = session_open((struct shape){0}, 3);
    const int prompt[SEQUENCES] = {50, 31, 7, 12};
    for (int s = 0; s < SEQUENCES; s++) add_all(session, s, 0, prompt[s]);
    forward(session);
    for (int i = 0; i < 8; i++) {
        for (int s = 0; s < SEQUENCES; s++) add(session, s, prompt[s] + i, true);
        forward(session);
    }
    for (int s = 0; s < 3; s++) end(session, s, prompt[s] + 8);
    expect(session, !tap_end(&session->tap, 3, NULL),
           "a sequence that was not opened has no request");
    session_close(session, "several sequences", 0,
                  "each row in its own request; a sequence that nobody opened is let pass");
}

/* A prefix that is computed once for two sequences: each of its rows belongs to both. */
static void shared_tokens(void) {
    struct session *session = session_open((struct shape){0}, 2);
    for (int position = 0; position < 30; position++) {
        add(session, 0, position, true);
        session->batch.n_seq_id[position] = 2;
        session->batch.seq_id[position][1] = 1;
    }
    add_all(session, 0, 30, 40);
    add_all(session, 1, 30, 45);
    forward(session);
    end(session, 0, 40);
    end(session, 1, 45);
    session_close(session, "shared tokens", 0,
                  "one token in two sequences is a row of both requests");
}

static void micro_batches(void) {
    struct session *session = session_open((struct shape){.micro_batch = 7}, 2);
    add_all(session, 0, 0, 60);
    add_all(session, 1, 0, 45);
    forward(session);
    expect(session, session->oracle.micro_batches == 15, "105 rows are 15 micro-batches");
    add_all(session, 1, 45, 85);
    forward(session);
    end(session, 0, 60);
    end(session, 1, 85);
    session_close(session, "micro-batches", 0, "a batch of 105 rows, run 7 by 7, is one step");
}

/* With a part of the memory for each sequence, micro-batches take equally many rows of each: in
 * another order than the batch has them. */
static void reordered_batches(void) {
    struct session *session = session_open((struct shape){.split = true, .micro_batch = 16}, 3);
    const int length[] = {40, 23, 31};
    for (int position = 0; position < 40; position++)
        for (int s = 2; s >= 0; s--)
            if (position < length[s]) add(session, s, position, true);
    forward(session);
    expect(session, session->oracle.reordered > 10, "the engine has changed the order");
    for (int s = 0; s < 3; s += 2)
        add_all(session, s, length[s], length[s] + 5); /* sequence 1 pauses */
    forward(session);
    end(session, 0, 45);
    end(session, 1, 23);
    end(session, 2, 36);
    session_close(
        session, "reordered batches", 0,
        "rows are known by their cell in the engine's memory, and checked by token and position");
}

/* Only the last token of a prompt wants logits, as in serving: the engine spares the other rows of
 * the last layer. Some micro-batches have none. */
static void pruned(bool split, const char *situation) {
    struct session *session = session_open((struct shape){.split = split, .micro_batch = 12}, 3);
    const int prompt[] = {40, 25, 9};
    for (int s = 0; s < 3; s++)
        for (int position = 0; position < prompt[s]; position++)
            add(session, s, position, position == prompt[s] - 1);
    add(session, 1, 25, true);
    forward(session);
    for (int s = 0; s < 3; s++) end(session, s, prompt[s] + (s == 1));
    const uint64_t spared = session->oracle.spared;
    expect(session, spared == 40 + 25 + 9 - 3 || spared == 0,
           "all rows that want no logits are spared, or none");
    session_close(
        session, situation, spared,
        spared > 0
            ? "the last layer goes through the engine's index list; rows that it spares are missing"
            : "this model's last layer runs all rows, and they are here");
}
static void pruned_last_layer(void) { pruned(false, "pruned last layer"); }
static void pruned_reordered(void) { pruned(true, "pruned, reordered"); }

/* llama_batch_get_one leaves positions, sequences and logits to the engine. */
static void bare_batches(void) {
    struct session *session = session_open((struct shape){.micro_batch = 20}, 1);
    for (int length = 0; length < 60; length += 30) {
        for (int position = length; position < length + 30; position++)
            add(session, 0, position, position == length + 29);
        oracle_begin(&session->oracle, &session->batch);
        struct llama_batch bare = llama_batch_get_one(session->batch.token, 30);
        expect(session, tap_begin(&session->tap, &bare), "a bare batch begins");
        expect(session, llama_decode(session->context, bare) == 0, "llama_decode runs");
        expect(session, tap_issue(&session->tap), "a bare batch is issued");
        session->batch.n_tokens = 0;
    }
    end(session, 0, 60);
    session_close(session, "bare batches", session->oracle.spared,
                  "positions that the engine chose are read from its graph");
}

/* Only what lies between begin and issue is captured. */
static void not_captured(void) {
    struct session *session = session_open((struct shape){0}, 1);
    oracle_begin(&session->oracle, NULL);
    add_all(session, 0, 0, 10);
    expect(session, llama_decode(session->context, session->batch) == 0, "llama_decode runs");
    session->batch.n_tokens = 0;
    add_all(session, 0, 10, 30);
    forward(session);
    end(session, 0, 30);
    session_close(session, "not captured", 10 * (uint64_t)session->config.layers,
                  "forget a call, and rows are missing, not wrong");
}

/* The tap asks for no tensor of the other layers, so they cost nothing. */
static void some_layers(void) {
    struct session *session = session_new((struct shape){.micro_batch = 16});
    const int32_t layer_map[] = {session->config.layer_map[1], session->config.layer_map[3]};
    session->config.layers = 2;
    session->config.layer_map = layer_map;
    start(session);
    expect(session, tap_open(&session->tap, 0), "a sequence opens");
    add_all(session, 0, 0, 50);
    forward(session);
    end(session, 0, 50);
    expect(session, session->oracle.topks == 2 * 4 && session->cells == 2 * 50,
           "two layers of 50 rows are shown, in four micro-batches");
    session_close(session, "some layers", 0,
                  "two layers of the model are captured, the others are not even asked for");
}

/* With no thread in the library nothing lands before somebody waits for it: more steps than may
 * be in flight, and none is lost. */
static void more_steps_than_slots(void) {
    struct session *session = session_new((struct shape){0});
    session->config.flags = ROUTECAP_CONFIG_MANUAL_PROGRESS;
    session->config.slots = 2;
    start(session);
    expect(session, tap_open(&session->tap, 0), "a sequence opens");
    for (int position = 0; position < 12; position++) {
        add(session, 0, position, true);
        forward(session);
    }
    end(session, 0, 12);
    session_close(session, "more than slots", 0,
                  "the tap waits for an old step before it begins, so no step is lost");
}

/* ---- Memory -------------------------------------------------------------------------------- */

/* Drafts: four tokens are tried at a time, two of them are accepted, and others take the place of
 * the rest. */
static void rollback(void) {
    struct session *session = session_open((struct shape){.micro_batch = 16}, 2);
    add_all(session, 0, 0, 30);
    add_all(session, 1, 0, 20);
    forward(session);
    int length = 30;
    for (int round = 0; round < 5; round++) {
        add_all(session, 0, length, length + 4);
        add(session, 1, 20 + round, true);
        forward(session);
        length += 2;
        llama_memory_seq_rm(session->memory, 0, length, -1);
        expect(session, tap_rollback(&session->tap, 0, length), "a rollback");
        oracle_forget(&session->oracle, 0, length);
        session->version[0]++;
    }
    end(session, 0, length);
    end(session, 1, 25);
    session_close(session, "rollback", 0,
                  "rows of rejected tokens are gone, those of the tokens in their place are kept");
}

/* Preempted: the memory is taken away and computed again, in other batches. The rows that were
 * captured first stay. */
static void recomputed(void) {
    struct session *session = session_open((struct shape){0}, 2);
    add_all(session, 0, 0, 40);
    add_all(session, 1, 0, 40);
    forward(session);
    llama_memory_seq_rm(session->memory, 0, -1, -1);
    add_all(session, 0, 0, 25);
    add(session, 1, 40, true);
    forward(session);
    add_all(session, 0, 25, 50);
    forward(session);
    end(session, 0, 50);
    end(session, 1, 41);
    routecap_stats stats = {.struct_size = sizeof stats};
    if (api->capturer_stats(session->tap.capturer, &stats) < 0) die("%s", api->last_error());
    expect(session, stats.rows_overlapped == 40, "40 rows were delivered a second time");
    session_close(
        session, "recomputed", 0,
        "a sequence that is prefilled again keeps its first rows, and 40 are counted as overlapping");
}

/* Removed for good, and its number given to another sequence. */
static void removed(void) {
    struct session *session = session_open((struct shape){0}, 1);
    add_all(session, 0, 0, 40);
    forward(session);
    llama_memory_seq_rm(session->memory, 0, -1, -1);
    expect(session, tap_end(&session->tap, 0, NULL), "an abort");
    oracle_forget(&session->oracle, 0, 0);
    session->version[0]++;
    expect(session, tap_open(&session->tap, 0), "the number is free");
    add_all(session, 0, 0, 35);
    forward(session);
    end(session, 0, 35);
    session_close(session, "removed", 0,
                  "nothing of an aborted sequence is found in the next one of its number");
}

/* Several samples of one prompt: the engine shares the cells of its memory, routecap the pages of
 * its rows. */
static void copied(void) {
    struct session *session = session_open((struct shape){.micro_batch = 16}, 1);
    add_all(session, 0, 0, 40);
    forward(session);
    llama_memory_seq_cp(session->memory, 0, 1, -1, -1);
    expect(session, tap_copy(&session->tap, 0, 1, -1), "a copy");
    oracle_copy(&session->oracle, 0, 1, 40);
    llama_memory_seq_cp(session->memory, 0, 2, -1, 25);
    expect(session, tap_copy(&session->tap, 0, 2, 25), "a copy of the beginning");
    oracle_copy(&session->oracle, 0, 2, 25);
    add_all(session, 0, 40, 50);
    add_all(session, 1, 40, 55);
    add_all(session, 2, 25, 45);
    forward(session);
    end(session, 0, 50);
    end(session, 1, 55);
    end(session, 2, 45);
    session_close(session, "copied", 0,
                  "copies begin with their parent's rows and go on with their own");
}

/* With a part of the memory for each sequence a copy moves data, in the next forward pass. */
static void copied_between_parts(void) {
    struct session *session = session_open((struct shape){.split = true, .micro_batch = 16}, 1);
    add_all(session, 0, 0, 40);
    forward(session);
    llama_memory_seq_cp(session->memory, 0, 2, -1, -1);
    expect(session, tap_copy(&session->tap, 0, 2, -1), "a copy");
    oracle_copy(&session->oracle, 0, 2, 40);
    add_all(session, 0, 40, 50);
    add_all(session, 2, 40, 55);
    forward(session);
    end(session, 0, 50);
    end(session, 2, 55);
    session_close(session, "copied, split", 0,
                  "the same where every sequence has memory of its own");
}

/* A full context: tokens 4 to 19 are thrown away, those behind move down, and positions are used
 * again that older rows had. */
static void shifted(void) {
    struct session *session = session_open((struct shape){0}, 1);
    const bool can = llama_memory_can_shift(session->memory);
    add_all(session, 0, 0, 50);
    forward(session);
    if (can) {
        llama_memory_seq_rm(session->memory, 0, 4, 20);
        llama_memory_seq_add(session->memory, 0, 20, -1, -16);
        expect(session, tap_shift(&session->tap, 0, 16), "a shift");
        session->oracle.shift[0] = 16;
        add_all(session, 0, 34, 60);
        forward(session);
        llama_memory_seq_rm(session->memory, 0, 45, -1);
        expect(session, tap_rollback(&session->tap, 0, 45), "a rollback behind a shift");
        oracle_forget(&session->oracle, 0, 45 + 16);
    }
    end(session, 0, can ? 61 : 50);
    session_close(session, "shifted", 0,
                  can ? "rows keep their number when their tokens move to other positions"
                      : "the memory of this model cannot be shifted");
}

/* No room in the engine's memory: llama_decode has changed nothing, and the forward is discarded.
 * */
static void no_room(void) {
    struct session *session = session_open((struct shape){.context = 256}, 2);
    for (int length = 0; length < 200; length += 50) {
        add_all(session, 0, length, length + 50);
        forward(session);
    }
    add_all(session, 1, 0, 60);
    oracle_begin(&session->oracle, &session->batch);
    expect(session, tap_begin(&session->tap, &session->batch), "the forward begins");
    expect(session, llama_decode(session->context, session->batch) == 1,
           "llama_decode finds no room");
    tap_discard(&session->tap);
    llama_memory_seq_rm(session->memory, 0, 150, -1);
    expect(session, tap_rollback(&session->tap, 0, 150), "a rollback");
    oracle_forget(&session->oracle, 0, 150);
    forward(session); /* the same batch once more */
    end(session, 0, 150);
    end(session, 1, 60);
    session_close(session, "no room", 0,
                  "a forward that failed is discarded, and succeeds when there is room");
}

/* ---- Wrong use ----------------------------------------------------------------------------- */

/* The call has failed, with a text that says `what`. */
static void refused(struct session *session, bool done, const char *what) {
    if (!done && strstr(session->tap.error, what) != NULL) return;
    fprintf(stderr, "not refused with \"%s\": \"%s\"\n", what, session->tap.error);
    session->failed = true;
}

static void wrong_configurations(void) {
    struct session *session = session_new((struct shape){.micro_batch = 16});
    struct tap *tap = &session->tap;
    routecap_config config;
    refused(session, tap_begin(tap, &session->batch), "not started");
    config = session->config, config.k++;
    refused(session, tap_start(tap, &config),
            "the model runs 4 experts per token, the capturer's k is 5");
    config = session->config, config.experts *= 2;
    refused(session, tap_start(tap, &config),
            "the model's layers have 32 experts, the capturer's 64");
    config = session->config, config.rows = 16; /* enough for a micro-batch, but not for a batch */
    refused(session, tap_start(tap, &config),
            "a batch may have 128 rows (n_batch), the capturer has 16");
    config = session->config, config.layers = 7, config.layer_map = NULL;
    refused(session, tap_start(tap, &config), "which has no experts");
    config = session->config, config.budget_bytes = 1;
    refused(session, tap_start(tap, &config), "ROUTECAP_ERR_");
    start(session);
    refused(session, tap_start(tap, &session->config), "has a capturer");
    session_close(
        session, "wrong capturers", 0,
        "another k, other experts, layers without experts, too few rows: refused with a text");
}

/* One batch is begun, and another one is run. */
static void mismatch(struct session *session, const struct llama_batch *begun,
                     const struct llama_batch *run, const char *what) {
    oracle_begin(&session->oracle, NULL);
    expect(session, tap_begin(&session->tap, begun), "the forward begins");
    expect(session, llama_decode(session->context, *run) == 0, "llama_decode runs");
    refused(session, tap_issue(&session->tap), what);
    llama_memory_seq_rm(session->memory, 0, -1, -1);
}

static void silent(enum ggml_log_level level, const char *text, void *user) {
    (void)level, (void)text, (void)user;
}

static void wrong_calls(void) {
    struct session *session = session_open((struct shape){.split = true}, 1);
    struct tap *tap = &session->tap;
    refused(session, tap_issue(tap), "no forward pass");
    refused(session, tap_open(tap, -1), "does not exist");
    refused(session, tap_open(tap, 0), "captured already");
    refused(session, tap_copy(tap, 0, 0, -1), "captured already");
    refused(session, tap_copy(tap, 0, 1, 5), "ROUTECAP_ERR_OUT_OF_RANGE");
    refused(session, tap_rollback(tap, 2, 0), "not being captured");
    struct llama_batch other = session->batch;
    other.n_tokens = BATCH + 1;
    refused(session, tap_begin(tap, &other), "129 tokens in a batch of at most 128");
    other.n_tokens = 1, other.token = NULL;
    refused(session, tap_begin(tap, &other), "embeddings");
    refused(session, tap_issue(tap), "embeddings");

    /* A part of the memory for each sequence has no place for a token of two: the engine refuses.
     * */
    add(session, 0, 0, true);
    session->batch.n_seq_id[0] = 2;
    session->batch.seq_id[0][1] = 1;
    expect(session, tap_begin(tap, &session->batch), "the forward begins");
    llama_log_set(silent, NULL);
    expect(session, llama_decode(session->context, session->batch) != 0, "llama_decode refuses");
    tap_discard(tap);
    session->batch.n_tokens = 0;

    /* What is begun is not what runs: nothing of that is captured, and the next forward is whole
     * again. */
    add_all(session, 0, 0, 8);
    other = session->batch;
    other.n_tokens = 5;
    mismatch(session, &other, &session->batch, "the engine runs more rows than the batch has");
    mismatch(session, &session->batch, &other, "the engine ran 5 of the batch's 8 rows");
    llama_token tokens[8] = {250};
    other = session->batch;
    other.token = tokens;
    mismatch(session, &session->batch, &other,
             "in an order that this tap does not know (at row 0)");
    session->batch.n_tokens = 0;
    add_all(session, 0, 0, 20);
    forward(session);
    end(session, 0, 20);
    session_close(session, "wrong calls", 0,
                  "each is refused with a text, and what follows is captured");
}

/* A callback between the engine and the tap, by which a tensor has another name. */
static struct renaming {
    struct tap *tap;
    bool (*callback)(struct ggml_tensor *, bool, void *);
    const char *from, *to;
} renaming;

static bool rename_tensor(struct ggml_tensor *tensor, bool ask, void *user) {
    struct renaming *by = user;
    struct ggml_tensor *named[] = {tensor, tensor->src[0], tensor->src[1], tensor->src[2]};
    char names[4][GGML_MAX_NAME];
    for (int i = 0; i < 4; i++) {
        if (named[i] == NULL) continue;
        memcpy(names[i], named[i]->name, sizeof names[i]);
        if (strncmp(named[i]->name, by->from, strlen(by->from)) == 0) {
            char name[GGML_MAX_NAME];
            snprintf(name, sizeof name, "%s%.30s", by->to, names[i] + strlen(by->from));
            ggml_set_name(named[i], name);
        }
    }
    bool answer = by->callback(tensor, ask, by->tap);
    for (int i = 3; i >= 0; i--) /* the first one last: it may be there twice */
        if (named[i] != NULL) memcpy(named[i]->name, names[i], sizeof names[i]);
    return answer;
}

/* A tensor that is not found by its name once gave layers without rows, and a routing that had all
 * of those that it knew of. */
static void other_names(void) {
    static const struct {
        const char *from, *to, *error;
    } cases[] = {
        {"ffn_moe_topk-", "moe_chosen-", "which is not called ffn_moe_topk-<layer>"},
        {"ffn_moe_topk-1", "moe_chosen-1", "which is not called ffn_moe_topk-<layer>"},
        {"ffn_moe_topk-", "ffn_moe_topk-of-", "has no number of a layer"},
        {"inp_tokens", "inp_ids", "has 1 rows, and the micro-batch 0"},
    };
    bool good = true;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static struct tap tap;
        routecap_config config;
        struct llama_context_params params = parameters((struct shape){0});
        if (!tap_attach(&tap, api, &params)) die("%s", tap.error);
        renaming = (struct renaming){&tap, params.cb_eval, cases[i].from, cases[i].to};
        params.cb_eval = rename_tensor;
        params.cb_eval_user_data = &renaming;
        struct llama_context *context = llama_init_from_model(model, params);
        if (context == NULL) die("no context");
        llama_batch batch = llama_batch_get_one(&(llama_token){7}, 1);
        bool issued = tap_discover(&tap, context, &config) && tap_start(&tap, &config) &&
                      tap_open(&tap, 0) && tap_begin(&tap, &batch) &&
                      llama_decode(context, batch) == 0 && tap_issue(&tap);
        if (issued || strstr(tap.error, cases[i].error) == NULL)
            fprintf(stderr, "%s is %s: %s\n", cases[i].from, cases[i].to, tap.error), good = false;
        llama_free(context);
        if (tap.capturer != NULL) tap_stop(&tap);
    }
    printf("%s  %-18s tensors by other names are refused with a text, and nothing is captured\n",
           good ? "passed" : "FAILED", "other names");
    failures += !good;
}

/* A model without experts, and a second tap on one context. */
static void nothing_to_tap(const char *dense_path) {
    static struct tap first, second;
    struct llama_context_params params = parameters((struct shape){0});
    struct llama_model *dense = load_model(dense_path);
    routecap_config config;
    bool good = tap_attach(&first, api, &params);
    good &= !tap_attach(&second, api, &params) &&
            strstr(second.error, "has a callback already") != NULL;
    struct llama_context *context = llama_init_from_model(dense, params);
    if (context == NULL) die("no context");
    good &= !tap_discover(&first, context, &config) && strstr(first.error, "no MoE layers") != NULL;
    good &= !tap_start(&first, &config) && strstr(first.error, "has not found") != NULL;
    struct llama_batch batch = llama_batch_get_one(&(llama_token){7}, 1);
    good &= llama_decode(context, batch) == 0;
    printf(
        "%s  %-18s a model without experts and a second tap on one context are refused with a text; the engine goes on\n",
        good ? "passed" : "FAILED", "nothing to tap");
    failures += !good;
    llama_free(context);
    tap_stop(&first);
    llama_model_free(dense);
}

int main(int argc, char **argv) {
    if (argc != 4) die("usage: scenarios LIBROUTECAP MODEL.gguf DENSE_MODEL.gguf");
    static void (*const situations[])(void) = {
        strided_views,
        several_sequences,
        shared_tokens,
        micro_batches,
        reordered_batches,
        pruned_last_layer,
        pruned_reordered,
        bare_batches,
        not_captured,
        some_layers,
        more_steps_than_slots,
        rollback,
        recomputed,
        removed,
        copied,
        copied_between_parts,
        shifted,
        no_room,
        wrong_configurations,
        wrong_calls,
        other_names,
    };
    const int count = (int)(sizeof situations / sizeof situations[0]) + 1; /* and nothing_to_tap */
    api = load_routecap(argv[1]);
    model = load_model(argv[2]);
    for (int i = 0; i < count - 1; i++) situations[i]();
    nothing_to_tap(argv[3]);
    llama_model_free(model);
    printf("%d situations passed, %d failed\n", count - failures, failures);
    return failures != 0;
}
