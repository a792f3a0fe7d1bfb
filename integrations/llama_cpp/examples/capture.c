/*
 * Routing of a mixture-of-experts model running in llama.cpp, captured through the engine's own
 * public callback (tap.h).
 *
 * usage: capture LIBROUTECAP MODEL.gguf [--prune] [--save FOLDER] [--trace FILE] TEXT:BYTES...
 *
 * The first BYTES bytes of each TEXT are one prompt; all prompts are prefilled in one batch, which
 * the engine splits into micro-batches, and then each is continued token by token. routecap is
 * loaded by dlopen. Every row it gives back is compared with ids copied straight from the engine's
 * tensors (oracle.h).
 *
 * With --prune only the last token of each prompt wants logits, as in serving: the engine then
 * computes only those rows of the last layer, and routecap has to report all others of that layer
 * as missing.
 *
 * With --save each request leaves two files in FOLDER: its routing in the serialised form,
 * request-N.routecap, and its text, request-N.json, with the step that computed each token: the
 * number of the call of llama_decode.
 *
 * With --trace a callback of its own, which knows nothing of routecap, writes what the engine
 * chooses to FILE, as it chooses: a line "STEP LAYER ID..." for each row of a layer.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ggml-backend.h>
#include <ggml.h>

#include "oracle.h"
#include "support.h"
#include "tap.h"

enum {
    MAX_SEQUENCES = ORACLE_SEQUENCES,
    MAX_BATCH = 512,
    MICRO_BATCH = 48,
    CONTEXT = ORACLE_ROWS,
    GENERATE = 24,
    SHOWN_ROWS = 2,
    SHOWN_BLOCKS = 4
};

/* ---- A trace without routecap ---------------------------------------------------------------- */

static struct {
    FILE *file;
    int step; /* -1: what runs now is not of the requests */
    ggml_backend_sched_eval_callback inner;
    void *user;
} trace = {.step = -1};

static bool write_choice(struct ggml_tensor *tensor, bool ask, void *unused) {
    int layer;
    (void)unused;
    if (!ask && trace.step >= 0 && sscanf(tensor->name, "ffn_moe_topk-%d", &layer) == 1)
        for (int64_t row = 0; row < tensor->ne[1]; row++) {
            const int32_t *ids =
                (const int32_t *)((const char *)tensor->data + (size_t)row * tensor->nb[1]);
            fprintf(trace.file, "%d %d", trace.step, layer);
            for (int64_t c = 0; c < tensor->ne[0]; c++) fprintf(trace.file, " %d", ids[c]);
            fputc('\n', trace.file);
        }
    return trace.inner(tensor, ask, trace.user);
}

/* Takes the callback's place in the parameters, and passes every call on. */
static void trace_to(const char *path, struct llama_context_params *params) {
    trace.file = fopen(path, "w");
    if (trace.file == NULL) die("%s cannot be written", path);
    trace.inner = params->cb_eval;
    trace.user = params->cb_eval_user_data;
    params->cb_eval = write_choice;
}

/* ---- Results ------------------------------------------------------------------------------- */

/* The ids of one row of a view's segment and a layer, widened; NULL if that cell is not valid. */
static const uint32_t *cell_of(const routecap_view *view, const routecap_segment *segment,
                               uint64_t row, uint32_t layer) {
    static uint32_t ids[ROUTECAP_MAX_K];
    if (segment->ids == NULL) return NULL;
    if (segment->validity != NULL &&
        (segment->validity[row * view->row_stride + layer / 8] >> layer % 8 & 1) == 0)
        return NULL;
    const void *of_row = (const uint8_t *)segment->ids + row * view->row_stride;
    for (uint32_t c = 0; c < view->k; c++) {
        size_t at = (size_t)layer * view->k + c;
        ids[c] = view->dtype == ROUTECAP_DTYPE_U8 ? ((const uint8_t *)of_row)[at]
                                                  : ((const uint16_t *)of_row)[at];
    }
    return ids;
}

/* Prints a request's routing and adds its experts to load [layers][experts], by the segments of its
 * view: without a copy. */
static void show(const routecap_routing *routing, int sequence, int prompt, int32_t status,
                 uint64_t *load) {
    routecap_view view = {.struct_size = sizeof view};
    routecap_coverage coverage = {.struct_size = sizeof coverage};
    routecap_missing missing[SHOWN_BLOCKS];
    check(tap.api->routing_view(routing, &view), "routing_view");
    check(tap.api->routing_coverage(routing, &coverage, missing, sizeof missing[0], SHOWN_BLOCKS),
          "routing_coverage");
    printf("request %d: %" PRIu64 " rows x %u layers x %u experts, %d of the prompt; %" PRIu64
           " rows complete; %s\n",
           sequence, view.rows, view.layers, view.k, prompt, coverage.rows_complete,
           tap.api->status_name(status));
    for (uint64_t b = 0; b < coverage.blocks && b < SHOWN_BLOCKS; b++)
        printf("  missing: rows [%" PRIu64 ",%" PRIu64 ") of decoder layers %d to %d\n",
               missing[b].first, missing[b].first + missing[b].rows,
               view.layer_map[missing[b].first_layer],
               view.layer_map[missing[b].first_layer + missing[b].layers - 1]);

    uint64_t row = 0;
    for (size_t i = 0; i < view.segment_count; i++) {
        const routecap_segment *segment =
            (const routecap_segment *)((const char *)view.segments + i * view.segment_size);
        for (uint64_t r = 0; r < segment->rows; r++, row++) {
            if (row < SHOWN_ROWS) printf("  row %" PRIu64 ":", row);
            for (uint32_t layer = 0; layer < view.layers; layer++) {
                const uint32_t *ids = cell_of(&view, segment, r, layer);
                for (uint32_t c = 0; c < view.k && ids != NULL; c++)
                    load[layer * view.experts + ids[c]]++;
                for (uint32_t c = 0; c < view.k && row < SHOWN_ROWS; c++) {
                    printf(c == 0 ? " [" : " ");
                    if (ids != NULL)
                        printf("%u", ids[c]);
                    else
                        printf(".");
                }
                if (row < SHOWN_ROWS) printf("]");
            }
            if (row < SHOWN_ROWS) printf("\n");
        }
    }
}

static void show_load(const uint64_t *load, const routecap_config *config) {
    printf("load of the experts, each layer's as a share of its busiest (0 to 9):\n");
    for (uint32_t layer = 0; layer < config->layers; layer++, load += config->experts) {
        uint64_t most = 1, total = 0;
        for (uint32_t e = 0; e < config->experts; e++) {
            most = load[e] > most ? load[e] : most;
            total += load[e];
        }
        printf("  layer %2d  ", config->layer_map[layer]);
        for (uint32_t e = 0; e < config->experts; e++) printf("%d", (int)(load[e] * 9 / most));
        printf("  busiest %.2f times the mean\n",
               (double)most * config->experts / (double)(total > 0 ? total : 1));
    }
}

/* ---- Files --------------------------------------------------------------------------------- */

/* FOLDER/request-N.KIND, until the next call. */
static const char *path_of(const char *folder, int request, const char *kind) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/request-%d.%s", folder, request, kind);
    return path;
}

/* Tokens as JSON. Each is one byte here; one beyond ASCII is part of a character and stands as
 * U+DC80 to U+DCFF. */
static void write_text(const char *folder, int request, const unsigned char *text, const int *step,
                       int length, int prompt) {
    FILE *file = fopen(path_of(folder, request, "json"), "w");
    if (file == NULL) die("%s cannot be written", path_of(folder, request, "json"));
    fprintf(file, "{\"prompt_tokens\": %d, \"tokens\": [", prompt);
    for (int t = 0; t < length; t++) {
        const bool plain = text[t] >= ' ' && text[t] < 0x7F && text[t] != '"' && text[t] != '\\';
        fprintf(file,
                plain            ? "%s\"%c\""
                : text[t] < 0x80 ? "%s\"\\u%04x\""
                                 : "%s\"\\udc%02x\"",
                t > 0 ? ", " : "", text[t]);
    }
    fprintf(file, "], \"steps\": [");
    for (int t = 0; t < length; t++) fprintf(file, "%s%d", t > 0 ? ", " : "", step[t]);
    fprintf(file, "]}\n");
    if (fclose(file) != 0) die("a text cannot be written");
}

/* ---- The engine ---------------------------------------------------------------------------- */

struct sequence {
    unsigned char text[CONTEXT]; /* the tokens that were run, a byte each */
    int step[CONTEXT];           /* the call of llama_decode that ran each */
    int prompt, length;          /* tokens of the prompt, and tokens that were run */
    llama_token next;
};

static void read_prompt(struct sequence *sequence, char *argument) {
    char *colon = strrchr(argument, ':');
    if (colon == NULL) die("%s is not TEXT:BYTES", argument);
    *colon = '\0';
    FILE *file = fopen(argument, "rb");
    int bytes = atoi(colon + 1);
    if (file == NULL || bytes < 1 || bytes > CONTEXT - GENERATE)
        die("%s cannot be read, or not so much of it", argument);
    sequence->prompt = (int)fread(sequence->text, 1, (size_t)bytes, file);
    if (sequence->prompt < 1) die("%s is empty", argument);
    fclose(file);
}

int main(int argc, char **argv) {
    const char *folder = NULL, *raw = NULL;
    bool prune = false;
    int first_text = 3;
    for (; first_text < argc && argv[first_text][0] == '-'; first_text++) {
        if (strcmp(argv[first_text], "--prune") == 0)
            prune = true;
        else if (strcmp(argv[first_text], "--save") == 0 && first_text + 1 < argc)
            folder = argv[++first_text];
        else if (strcmp(argv[first_text], "--trace") == 0 && first_text + 1 < argc)
            raw = argv[++first_text];
        else
            die("what is %s?", argv[first_text]);
    }
    const int sequences = argc - first_text;
    if (sequences < 1)
        die("usage: capture LIBROUTECAP MODEL.gguf [--prune] [--save FOLDER] [--trace FILE]"
            " TEXT:BYTES...");
    const routecap_api *api = load_routecap(argv[1]);
    struct llama_model *model = load_model(argv[2]);

    /* The tap, before and after the context is made. */
    struct oracle oracle;
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = CONTEXT;
    params.n_batch = MAX_BATCH;
    params.n_ubatch = MICRO_BATCH;
    params.n_seq_max = MAX_SEQUENCES;
    params.kv_unified = true;
    params.n_threads = params.n_threads_batch =
        1; /* several wait for one another by spinning, which a busy machine punishes */
    must(tap_attach(&tap, api, &params));
    oracle_attach(&oracle, &tap, &params);
    if (raw != NULL) trace_to(raw, &params);
    struct llama_context *context = llama_init_from_model(model, params);
    if (context == NULL) die("no context");
    routecap_config config;
    must(tap_discover(&tap, context, &config));
    must(tap_start(&tap, &config));
    oracle_start(&oracle, &config);

    /* The prompts: bytes of real text. */
    static struct sequence all[MAX_SEQUENCES];
    if (sequences > MAX_SEQUENCES) die("at most %d texts", MAX_SEQUENCES);
    for (int s = 0; s < sequences; s++) {
        read_prompt(&all[s], argv[first_text + s]);
        must(tap_open(&tap, s));
    }

    /* Prefill, then decode: around each call of the engine begin and issue. */
    struct llama_batch batch = llama_batch_init(MAX_BATCH, 0, 1);
    const int tokens = llama_vocab_n_tokens(llama_model_get_vocab(model));
    int calls = 0, generated = 0;
    while (generated < GENERATE) {
        int logits_at[MAX_SEQUENCES];
        bool prefilling = false, prefilled = true;
        batch.n_tokens = 0;
        for (int s = 0; s < sequences; s++) prefilling |= all[s].length < all[s].prompt;
        for (int s = 0; s < sequences; s++) {
            struct sequence *q = &all[s];
            int rows = prefilling ? q->prompt - q->length : 1;
            if (rows > MAX_BATCH - batch.n_tokens) rows = MAX_BATCH - batch.n_tokens;
            logits_at[s] = -1;
            for (; rows > 0; rows--, q->length++) {
                bool last = q->length + 1 >= q->prompt;
                if (last) logits_at[s] = batch.n_tokens;
                if (!prefilling) q->text[q->length] = (unsigned char)q->next;
                q->step[q->length] = calls;
                add_token(&batch, prefilling ? q->text[q->length] : q->next, q->length, s,
                          last || !prune);
            }
            prefilled &= q->length >= q->prompt;
        }

        oracle_begin(&oracle, &batch);
        must(tap_begin(&tap, &batch));
        trace.step = calls++;
        if (llama_decode(context, batch) != 0) die("llama_decode failed");
        must(tap_issue(&tap));
        generated += prefilled;
        for (int s = 0; s < sequences; s++)
            if (logits_at[s] >= 0)
                all[s].next = best_token(llama_get_logits_ith(context, logits_at[s]), tokens);
    }

    /* Every request's end: the last token generated was never input. */
    uint64_t differences = 0, rows = 0,
             *load = calloc((size_t)config.layers * config.experts, sizeof *load);
    if (load == NULL) die("out of memory");
    for (int s = 0; s < sequences; s++) {
        routecap_routing *routing;
        must(tap_end(&tap, s, &routing));
        int32_t status = check(api->routing_wait(routing, -1), "routing_wait");
        show(routing, s, all[s].prompt, status, load);
        struct verdict verdict = oracle_compare(&oracle, s, routing);
        const int32_t expected = verdict.missing > 0 ? ROUTECAP_INCOMPLETE : ROUTECAP_OK;
        differences += verdict.differences + (verdict.rows != (uint64_t)all[s].length) +
                       (status != expected) + (!prune && verdict.missing > 0);
        rows += verdict.rows;
        if (folder != NULL) {
            struct bytes bytes = serialized(routing);
            write_file(path_of(folder, s, "routecap"), bytes);
            free(bytes.data);
            write_text(folder, s, all[s].text, all[s].step, all[s].length, all[s].prompt);
        }
        api->routing_free(routing);
    }
    show_load(load, &config);
    printf("%d calls of llama_decode, %" PRIu64 " rows, %" PRIu64
           " differences from the engine's own tensors\n",
           calls, rows, differences);

    if (raw != NULL && fclose(trace.file) != 0) die("the trace cannot be written");
    free(load);
    llama_batch_free(batch);
    llama_free(context);
    tap_stop(&tap);
    oracle_stop(&oracle);
    llama_model_free(model);
    llama_backend_free();
    return differences != 0;
}
