/*
 * Captures the routing of llama-server, which is not changed: LD_PRELOAD puts this library before
 * libllama. It passes each call of the server on and notes what the call does to a sequence, that
 * is to a slot of the server. tap.c captures the forward passes. README.md says how to use it.
 *
 * Which request is a row's? A request carries its id in a list of strings that the server hands to
 * llama_sampler_init_dry. That sampler becomes part of a chain, and the chain samples from the
 * logits of a row of the batch, which belongs to a sequence: so the id is that sequence's. The
 * server calls llama_set_sampler with a sequence when its request ends. Then the rows of the
 * sequence are written, those too that an earlier request left in the server's prompt cache.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tap.h"

/* The function that the server would have called: the next one of the name of the caller. */
#define NEXT(function)                            \
    static __typeof__(&function) next_##function; \
    if (next_##function == NULL) *(void **)&next_##function = next(#function)

/* Every function that is taken from the server here. By another name it would not be, and rows of
 * a sequence that it changes would be those of other tokens. */
static const char *const functions[] = {
    "ggml_backend_sched_set_eval_callback",
    "llama_decode",
    "llama_free",
    "llama_get_logits_ith",
    "llama_memory_clear",
    "llama_memory_seq_add",
    "llama_memory_seq_cp",
    "llama_memory_seq_div",
    "llama_memory_seq_keep",
    "llama_memory_seq_rm",
    "llama_sampler_apply",
    "llama_sampler_chain_add",
    "llama_sampler_free",
    "llama_sampler_init_dry",
    "llama_set_sampler",
    "llama_state_load_file",
    "llama_state_seq_load_file",
    "llama_state_seq_set_data",
    "llama_state_seq_set_data_ext",
    "llama_state_set_data",
};

static const char other_way[] = "its tokens moved to other positions in a way that is not known";
static const char prefix[] = "routecap:"; /* what a string begins with that is an id */
enum { ID_BYTES = 129, CHAINS = 1024 };   /* with the zero at the end; at most so many at once */

static struct tap tap;
static struct llama_context *captured; /* the context whose forward passes are captured, */
static struct llama_context *refused;  /* or the one that could not be */
static ggml_backend_sched_eval_callback callback;

/* A sequence of the captured context. */
static struct sequence {
    llama_token *tokens; /* [capacity] by row; -1: not known, as the row was not captured */
    size_t rows, capacity;
    llama_pos removed_from, removed_to; /* a hole, before the tokens behind it move into it */
    bool moved;                         /* positions are not row numbers any more */
    const char *no_rows;                /* why the request that runs gets none, or NULL */
    char id[ID_BYTES];                  /* of the request that runs, once it has sampled */
} sequences[TAP_MAX_SEQUENCES];

/* The samplers of requests with an id. */
static struct {
    const struct llama_sampler *chain;
    char id[ID_BYTES];
} chains[CHAINS];

/* All calls that matter come from the thread that decodes; other threads have their own. */
static __thread struct {
    const struct llama_sampler *sampler; /* the last one that was made with an id */
    char id[ID_BYTES];
    llama_seq_id sequence; /* whose logits were read last, or -1 */
    bool decoding;         /* in llama_decode of the captured context */
} own = {.sequence = -1};

static struct {
    llama_seq_id *of; /* [capacity] the sequence of each row of the last batch */
    int rows, capacity;
} batch_rows;

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
    static char last[512];
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (strcmp(text, last) == 0) return; /* what every step says is said once */
    memcpy(last, text, sizeof last);
    fprintf(stderr, "routecap: %s\n", text);
}

/* The next function of this name, which somebody has called. */
static void *next(const char *function) {
    void *found = dlsym(RTLD_NEXT, function);
    if (found != NULL) return found;
    say("there is no %s behind this library: start a llama-server that loads libllama", function);
    abort();
}

/* ---- Files --------------------------------------------------------------------------------- */

/* Writes FOLDER/ID.KIND, which appears whole. If it is there already, replaces it or fails. */
static bool write_file(const char *id, const char *kind, const void *data, size_t bytes,
                       bool replace) {
    char path[4096], draft[4200];
    snprintf(path, sizeof path, "%s/%s.%s", getenv("ROUTECAP_LLAMA_ROWS"), id, kind);
    snprintf(draft, sizeof draft, "%s.%d", path, (int)getpid());
    int file = open(draft, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    bool written = file >= 0;
    for (size_t at = 0; written && at < bytes;) {
        ssize_t count = write(file, (const char *)data + at, bytes - at);
        written = count > 0;
        at += written ? (size_t)count : 0;
    }
    if (file >= 0) written &= close(file) == 0;
    written = written && (replace ? rename(draft, path) : link(draft, path)) == 0;
    if (!written) say("%s: %s", path, strerror(errno));
    unlink(draft);
    return written;
}

/* Writes ID.json, which says that the request has ended: its tokens by row, or why there are no
 * rows. */
static void write_end(const char *id, const struct sequence *sequence, const char *error) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL) return;
    if (error != NULL) {
        fprintf(out, "{\"error\": \"%s\"}\n", error);
    } else {
        fprintf(out, "{\"tokens\": [");
        for (size_t row = 0; row < sequence->rows; row++)
            fprintf(out, row > 0 ? ", %d" : "%d", (int)sequence->tokens[row]);
        fprintf(out, "]}\n");
    }
    static const char used[] = "{\"error\": \"files of this id were there already\"}\n";
    if (fclose(out) == 0 && !write_file(id, "json", text, bytes, error != NULL))
        write_file(id, "json", used, sizeof used - 1, true);
    free(text);
}

static bool write_rows(const char *id, routecap_request request) {
    routecap_routing *routing = NULL;
    uint64_t bytes = 0;
    const bool landed = /* rows of the last step */
        tap.step == 0 || tap.api->step_finalize(tap.capturer, tap.step, -1, NULL) >= 0;
    if (!landed || tap.api->request_extract(tap.capturer, request, 0, ROUTECAP_ROWS_ALL,
                                            ROUTECAP_EXTRACT_SHARE, 0, &routing) < 0) {
        say("%s: %s", id, tap.api->last_error());
        return false;
    }
    const bool sized =
        tap.api->routing_serialize(routing, NULL, 0, &bytes) == ROUTECAP_ERR_BUFFER_TOO_SMALL;
    void *data = malloc(bytes);
    bool done = sized && data != NULL &&
                tap.api->routing_serialize(routing, data, bytes, NULL) == ROUTECAP_OK;
    if (!done) say("%s: %s", id, data != NULL ? tap.api->last_error() : "out of memory");
    done = done && write_file(id, "routecap", data, bytes, false);
    free(data);
    tap.api->routing_free(routing);
    return done;
}

/* ---- Sequences ----------------------------------------------------------------------------- */

static bool is_captured(const struct llama_context *context) {
    return context != NULL && context == captured;
}
static bool is_captured_memory(llama_memory_t memory) {
    return captured != NULL && memory == llama_get_memory(captured);
}

/* Drops what is known of the sequence: its rows will be missing. */
static void forget(llama_seq_id s) {
    if (tap.requests[s] != 0) tap_end(&tap, s, NULL);
    struct sequence *sequence = &sequences[s];
    if (sequence->moved && sequence->id[0] != '\0') sequence->no_rows = other_way;
    sequence->rows = 0;
    sequence->moved = false;
    sequence->removed_from = sequence->removed_to = -1;
}
/* forget, for sequence s or for all if it is negative. */
static void forget_any(llama_seq_id s) {
    for (llama_seq_id i = 0; i < TAP_MAX_SEQUENCES; i++)
        if (s < 0 || i == s) forget(i);
}

/* Drops the rows of the sequence from a position on. */
static void cut(llama_seq_id s, llama_pos position) {
    const int64_t row = position + tap.shift[s];
    if (tap.requests[s] == 0 || row >= (int64_t)sequences[s].rows) return;
    if (row <= 0 || !tap_rollback(&tap, s, position))
        forget(s);
    else
        sequences[s].rows = (size_t)row;
}

/* The request that ran in the sequence has ended: delivers its rows. */
static void end_request(llama_seq_id s) {
    struct sequence *sequence = &sequences[s];
    if (sequence->id[0] != '\0') {
        const char *error = sequence->no_rows;
        if (error == NULL && tap.requests[s] == 0) error = "no row of this request was captured";
        if (error == NULL && !write_rows(sequence->id, tap.requests[s]))
            error = "the rows could not be written: the server's log says why";
        write_end(sequence->id, sequence, error);
    }
    sequence->id[0] = '\0';
    sequence->no_rows = NULL;
    /* The rows of the next request are numbered by position, and these are not any more. */
    if (sequence->moved || sequence->removed_to >= 0) forget(s);
}

/* A chain with this id has sampled from the sequence's logits. */
static void name_request(llama_seq_id s, const char *id) {
    struct sequence *sequence = &sequences[s];
    if (strcmp(sequence->id, id) == 0) return;
    static const char several[] =
        "several requests have this id, or one request asks for several answers";
    if (sequence->id[0] != '\0') sequence->no_rows = "another request sampled in its slot";
    for (llama_seq_id i = 0; i < TAP_MAX_SEQUENCES; i++)
        if (i != s && strcmp(sequences[i].id, id) == 0)
            sequences[i].no_rows = sequence->no_rows = several;
    strcpy(sequence->id, id);
}

/* Notes a token that was run, and the row that it has. */
static void note(llama_seq_id s, llama_pos position, llama_token token) {
    struct sequence *sequence = &sequences[s];
    const int64_t row = position + tap.shift[s];
    if (row < 0) return;
    if ((size_t)row >= sequence->capacity) {
        size_t capacity = 2 * (size_t)row + 256;
        llama_token *tokens = realloc(sequence->tokens, capacity * sizeof *tokens);
        if (tokens == NULL) return forget(s);
        sequence->tokens = tokens;
        sequence->capacity = capacity;
    }
    while (sequence->rows < (size_t)row) sequence->tokens[sequence->rows++] = -1;
    sequence->tokens[row] = token;
    if (sequence->rows == (size_t)row) sequence->rows++;
}

/* ---- The forward pass ---------------------------------------------------------------------- */

/* libllama calls this for each graph that it builds, with the callback that the server has set. */
void ggml_backend_sched_set_eval_callback(ggml_backend_sched_t sched,
                                          ggml_backend_sched_eval_callback theirs, void *user) {
    NEXT(ggml_backend_sched_set_eval_callback);
    if (own.decoding && theirs == NULL)
        next_ggml_backend_sched_set_eval_callback(sched, callback, &tap);
    else
        next_ggml_backend_sched_set_eval_callback(sched, theirs, user);
    if (own.decoding && theirs != NULL) say("the server has a callback of its own: no rows");
}

static void refuse(struct llama_context *context, const char *why) {
    say("nothing is captured: %s", why);
    captured = NULL;
    refused = context;
}

/* Starts to capture a context, in which nothing has run yet. */
static void capture(struct llama_context *context) {
    routecap_config config;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
        if (dlsym(RTLD_NEXT, functions[i]) == NULL) {
            char why[128];
            snprintf(why, sizeof why, "this llama.cpp has no %s: take the version of the guide",
                     functions[i]);
            return refuse(context, why);
        }
    llama_memory_t memory = llama_get_memory(context);
    const uint32_t most = llama_n_seq_max(context);
    if (getenv("ROUTECAP_LLAMA_ROWS") == NULL)
        return refuse(context, "ROUTECAP_LLAMA_ROWS names no folder");
    if (memory == NULL) return refuse(context, "the model keeps no memory of its tokens");
    for (uint32_t s = 0; s < most; s++)
        if (llama_memory_seq_pos_max(memory, (llama_seq_id)s) >= 0)
            return refuse(context, "the server has run requests before it prepared its slots");
    /* The callback is set by ggml_backend_sched_set_eval_callback: of these parameters the tap
     * reads how the memory is divided. */
    struct llama_context_params params = {
        .n_seq_max = most, .kv_unified = llama_n_ctx_seq(context) == llama_n_ctx(context)};
    const routecap_api *api = routecap_get_api(ROUTECAP_VERSION_MAJOR, ROUTECAP_VERSION_MINOR);
    if (api == NULL) return refuse(context, "libroutecap is older than this library");
    tap_attach(&tap, api, &params);
    callback = params.cb_eval;
    captured = context;
    own.decoding = true;
    bool found = tap_discover(&tap, context, &config);
    own.decoding = false;
    if (!found || !tap_start(&tap, &config)) return refuse(context, tap.error);
    forget_any(-1);
    say("captures %u layers, %u of %u experts", config.layers, config.k, config.experts);
}

int32_t llama_decode(struct llama_context *context, struct llama_batch batch) {
    NEXT(llama_decode);
    if (!is_captured(context) || own.decoding) return next_llama_decode(context, batch);
    own.sequence = -1;
    batch_rows.rows = 0;
    for (int row = 0; row < batch.n_tokens && batch.seq_id != NULL; row++) {
        if (row == batch_rows.capacity) {
            int capacity = 2 * row + 512;
            llama_seq_id *of = realloc(batch_rows.of, (size_t)capacity * sizeof *of);
            if (of == NULL) break;
            batch_rows.of = of;
            batch_rows.capacity = capacity;
        }
        batch_rows.of[batch_rows.rows++] = batch.n_seq_id[row] == 1 ? batch.seq_id[row][0] : -1;
        for (int i = 0; i < batch.n_seq_id[row]; i++) {
            llama_seq_id s = batch.seq_id[row][i];
            if (s < TAP_MAX_SEQUENCES && tap.requests[s] == 0 && !tap_open(&tap, s))
                say("%s", tap.error);
        }
    }

    own.decoding = true;
    bool begun = batch.pos != NULL && tap_begin(&tap, &batch);
    int32_t decoded = next_llama_decode(context, batch);
    own.decoding = false;
    if (begun && decoded != 0) tap_discard(&tap);
    if ((!begun || (decoded == 0 && !tap_issue(&tap))) && tap.error[0] != '\0')
        say("a forward pass is not captured: %s", tap.error);
    for (int row = 0; row < batch.n_tokens && begun && decoded == 0; row++)
        for (int i = 0; batch.seq_id != NULL && i < batch.n_seq_id[row]; i++)
            if (batch.seq_id[row][i] < TAP_MAX_SEQUENCES)
                note(batch.seq_id[row][i], batch.pos[row], batch.token[row]);
    return decoded;
}

void llama_free(struct llama_context *context) {
    NEXT(llama_free);
    const bool stop = is_captured(context);
    if (stop) {
        for (llama_seq_id s = 0; s < TAP_MAX_SEQUENCES; s++) sequences[s].id[0] = '\0';
        forget_any(-1);
        captured = NULL;
    }
    if (context == refused) refused = NULL;
    next_llama_free(context);
    if (stop) tap_stop(&tap);
}

/* ---- Whose sampler samples whose logits ---------------------------------------------------- */

static bool is_id(const char *id) {
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const size_t length = strlen(id);
    return length > 0 && length < ID_BYTES && id[0] != '.' && strspn(id, allowed) == length;
}

struct llama_sampler *llama_sampler_init_dry(const struct llama_vocab *vocab, float multiplier,
                                             float base, int32_t allowed_length,
                                             int32_t penalty_last_n, const char **breakers,
                                             size_t count) {
    NEXT(llama_sampler_init_dry);
    const char **kept = malloc((count + 1) * sizeof *kept); /* the sampler gets the others */
    size_t others = 0;
    own.id[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        if (strncmp(breakers[i], prefix, sizeof prefix - 1) != 0) {
            if (kept != NULL) kept[others++] = breakers[i];
            continue;
        }
        const char *id = breakers[i] + sizeof prefix - 1;
        if (is_id(id) && captured == NULL && refused == NULL)
            say("%s gets no rows: the server has not called llama_set_sampler for its slots", id);
        else if (is_id(id))
            strcpy(own.id, id);
        else
            say("an id has 1 to %d letters, digits, '.', '_' and '-', and no '.' in front",
                ID_BYTES - 1);
    }
    struct llama_sampler *sampler =
        next_llama_sampler_init_dry(vocab, multiplier, base, allowed_length, penalty_last_n,
                                    kept != NULL ? kept : breakers, kept != NULL ? others : count);
    free(kept);
    own.sampler = own.id[0] != '\0' ? sampler : NULL;
    return sampler;
}

void llama_sampler_chain_add(struct llama_sampler *chain, struct llama_sampler *sampler) {
    NEXT(llama_sampler_chain_add);
    next_llama_sampler_chain_add(chain, sampler);
    if (sampler == NULL || sampler != own.sampler) return;
    own.sampler = NULL;
    for (int i = 0; i < CHAINS; i++)
        if (chains[i].chain == NULL) {
            chains[i].chain = chain;
            memcpy(chains[i].id, own.id, sizeof own.id);
            return;
        }
    say("more than %d requests at once: %s gets no rows", CHAINS, own.id);
}

void llama_sampler_free(struct llama_sampler *chain) {
    NEXT(llama_sampler_free);
    for (int i = 0; i < CHAINS && chain != NULL; i++)
        if (chains[i].chain == chain) chains[i].chain = NULL;
    next_llama_sampler_free(chain);
}

float *llama_get_logits_ith(struct llama_context *context, int32_t row) {
    NEXT(llama_get_logits_ith);
    own.sequence =
        is_captured(context) && row >= 0 && row < batch_rows.rows ? batch_rows.of[row] : -1;
    return next_llama_get_logits_ith(context, row);
}

void llama_sampler_apply(struct llama_sampler *chain, llama_token_data_array *candidates) {
    NEXT(llama_sampler_apply);
    const llama_seq_id s = chain != NULL ? own.sequence : -1;
    for (int i = 0; i < CHAINS && s >= 0 && s < TAP_MAX_SEQUENCES; i++)
        if (chains[i].chain == chain) {
            name_request(s, chains[i].id);
            own.sequence = -1;
        }
    next_llama_sampler_apply(chain, candidates);
}

/* The server calls this when a slot takes a request, and when its request has ended; and once for
 * each slot when it starts. */
bool llama_set_sampler(struct llama_context *context, llama_seq_id s,
                       struct llama_sampler *sampler) {
    NEXT(llama_set_sampler);
    if (captured == NULL && context != refused && sampler == NULL) capture(context);
    if (is_captured(context) && s >= 0 && s < TAP_MAX_SEQUENCES) end_request(s);
    return next_llama_set_sampler(context, s, sampler);
}

/* ---- What changes the server's memory ------------------------------------------------------ */

static bool known(llama_memory_t memory, llama_seq_id s) {
    return s >= 0 && s < TAP_MAX_SEQUENCES && is_captured_memory(memory) && tap.requests[s] != 0;
}

bool llama_memory_seq_rm(llama_memory_t memory, llama_seq_id s, llama_pos from, llama_pos to) {
    NEXT(llama_memory_seq_rm);
    if (!next_llama_memory_seq_rm(memory, s, from, to)) return false;
    if (s < 0 && is_captured_memory(memory)) forget_any(s);
    if (!known(memory, s)) return true;
    struct sequence *sequence = &sequences[s];
    if (from < 0) from = 0;
    if (to < 0 || to + tap.shift[s] >= (int64_t)sequence->rows)
        cut(s, from);
    else if (sequence->id[0] == '\0' || sequence->removed_to >= 0)
        cut(s, from); /* not in a request that runs: the tokens behind the hole get other rows */
    else if (from < to)
        sequence->removed_from = from, sequence->removed_to = to;
    return true;
}

/* A full context: the tokens behind a hole move into it, and their rows keep their number. */
void llama_memory_seq_add(llama_memory_t memory, llama_seq_id s, llama_pos from, llama_pos to,
                          llama_pos by) {
    NEXT(llama_memory_seq_add);
    next_llama_memory_seq_add(memory, s, from, to, by);
    if (s < 0 && is_captured_memory(memory)) forget_any(s);
    if (!known(memory, s)) return;
    struct sequence *sequence = &sequences[s];
    const llama_pos removed = sequence->removed_to - sequence->removed_from;
    if (sequence->removed_to >= 0 && from == sequence->removed_to && by == -removed &&
        (to < 0 || to + tap.shift[s] >= (int64_t)sequence->rows) && tap_shift(&tap, s, removed)) {
        sequence->moved = true;
        sequence->removed_from = sequence->removed_to = -1;
    } else {
        sequence->no_rows = other_way;
        forget(s);
    }
}

void llama_memory_seq_cp(llama_memory_t memory, llama_seq_id from, llama_seq_id to, llama_pos first,
                         llama_pos end) {
    NEXT(llama_memory_seq_cp);
    next_llama_memory_seq_cp(memory, from, to, first, end);
    if (!is_captured_memory(memory) || from == to || to >= TAP_MAX_SEQUENCES) return;
    forget_any(to);
    if (first > 0 || !known(memory, from) || sequences[from].moved ||
        !tap_copy(&tap, from, to, end < 0 ? -1 : end))
        return;
    const struct sequence *parent = &sequences[from];
    for (size_t row = 0; row < parent->rows && (end < 0 || row < (size_t)end); row++)
        note(to, (llama_pos)row, parent->tokens[row]);
}

void llama_memory_seq_keep(llama_memory_t memory, llama_seq_id s) {
    NEXT(llama_memory_seq_keep);
    next_llama_memory_seq_keep(memory, s);
    for (llama_seq_id i = 0; i < TAP_MAX_SEQUENCES && is_captured_memory(memory); i++)
        if (i != s) forget(i);
}

void llama_memory_seq_div(llama_memory_t memory, llama_seq_id s, llama_pos from, llama_pos to,
                          int by) {
    NEXT(llama_memory_seq_div);
    next_llama_memory_seq_div(memory, s, from, to, by);
    if (is_captured_memory(memory)) forget_any(s);
}

void llama_memory_clear(llama_memory_t memory, bool data) {
    NEXT(llama_memory_clear);
    next_llama_memory_clear(memory, data);
    if (is_captured_memory(memory)) forget_any(-1);
}

/* A state that was saved comes back: nobody knows which rows are its own. A state in part
 * (LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) is a checkpoint of the same tokens, and the server removes
 * those behind it. */
size_t llama_state_seq_set_data_ext(struct llama_context *context, const uint8_t *data,
                                    size_t bytes, llama_seq_id s, llama_state_seq_flags flags) {
    NEXT(llama_state_seq_set_data_ext);
    if (is_captured(context) && (flags & LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) == 0) forget_any(s);
    return next_llama_state_seq_set_data_ext(context, data, bytes, s, flags);
}

size_t llama_state_seq_set_data(struct llama_context *context, const uint8_t *data, size_t bytes,
                                llama_seq_id s) {
    NEXT(llama_state_seq_set_data);
    if (is_captured(context)) forget_any(s);
    return next_llama_state_seq_set_data(context, data, bytes, s);
}

size_t llama_state_seq_load_file(struct llama_context *context, const char *path, llama_seq_id s,
                                 llama_token *tokens, size_t capacity, size_t *count) {
    NEXT(llama_state_seq_load_file);
    if (is_captured(context)) forget_any(s);
    return next_llama_state_seq_load_file(context, path, s, tokens, capacity, count);
}

size_t llama_state_set_data(struct llama_context *context, const uint8_t *data, size_t bytes) {
    NEXT(llama_state_set_data);
    if (is_captured(context)) forget_any(-1);
    return next_llama_state_set_data(context, data, bytes);
}

bool llama_state_load_file(struct llama_context *context, const char *path, llama_token *tokens,
                           size_t capacity, size_t *count) {
    NEXT(llama_state_load_file);
    if (is_captured(context)) forget_any(-1);
    return next_llama_state_load_file(context, path, tokens, capacity, count);
}
