/*
 * Routing of a mixture-of-experts model running in llama.cpp, captured through the engine's own public callback.
 *
 * usage: capture LIBROUTECAP MODEL.gguf [--prune] TEXT:BYTES...
 *
 * The first BYTES bytes of each TEXT are one prompt; all prompts are prefilled in one batch, which the engine splits into micro-batches, and then each is
 * continued token by token. llama.cpp calls on_tensor() for each tensor of its graph. Two kinds matter:
 *   - asked about GET_ROWS of the token ids: a new micro-batch begins, its rows follow those of the one before;
 *   - after "ffn_moe_topk-<layer>": the experts chosen, as a strided view into all experts sorted by weight.
 * routecap is loaded by dlopen. Every row it gives back is compared with ids copied straight from the engine's tensors.
 *
 * With --prune only the last token of each prompt wants logits, as in serving: the engine then computes only those rows of the last layer, and
 * routecap has to report all others of that layer as missing.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ggml-backend.h>
#include <ggml.h>
#include <llama.h>
#include <routecap.h>

enum { MAX_SEQUENCES = 8, MAX_BATCH = 512, MICRO_BATCH = 48, CONTEXT = 2048, GENERATE = 24, MAX_LAYERS = 64, MAX_K = 32 };

static const routecap_api *api;

static int32_t check(int32_t status, const char *what) {
    if (status < 0 || status == ROUTECAP_PARTIAL || status == ROUTECAP_LOST) {
        fprintf(stderr, "%s: %s: %s\n", what, api->status_name(status), api->last_error());
        exit(1);
    }
    return status;
}

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

/* ---- The tap ------------------------------------------------------------------------------- */

/* What the engine chose, copied without routecap: the oracle. Of one sequence, [CONTEXT][layer][k], -1 where it computed nothing. */
typedef int32_t oracle_row[MAX_LAYERS][MAX_K];

struct tap {
    routecap_capturer *capturer;
    int layers, k;
    int layer_of[MAX_LAYERS]; /* captured layer of a decoder layer, -1 for a dense one */
    int first_row, rows;      /* of the current micro-batch, in the batch */
    int32_t outputs[MAX_BATCH];
    int64_t output_count; /* rows of the micro-batch that want logits, where the engine prunes to them; otherwise 0 */
    const int *sequence, *position; /* of each row of the batch */
    oracle_row *oracle[MAX_SEQUENCES];
};

static void copy_out(const struct ggml_tensor *tensor, void *to, size_t bytes) {
    if (bytes > ggml_nbytes(tensor)) fail("a tensor is smaller than expected");
    ggml_backend_tensor_get(tensor, to, 0, bytes);
}

static void record(struct tap *tap, const struct ggml_tensor *topk) {
    int layer = tap->layer_of[atoi(topk->name + strlen("ffn_moe_topk-"))];
    int64_t rows = topk->ne[1], stride = (int64_t)(topk->nb[1] / sizeof(int32_t));
    if (layer < 0 || topk->type != GGML_TYPE_I32 || topk->ne[0] != tap->k || rows > MAX_BATCH) fail("an unexpected top-k tensor");
    bool pruned = tap->output_count > 0 && rows == tap->output_count && rows < tap->rows;

    /* The tensor is a view: its rows are far apart. On the CPU its memory can be read where it is. */
    int32_t index[MAX_BATCH];
    for (int64_t r = 0; r < rows; r++) index[r] = tap->first_row + (pruned ? tap->outputs[r] : (int32_t)r);
    routecap_source source = {.struct_size = sizeof source, .dtype = ROUTECAP_DTYPE_I32, .ids = topk->data, .row_stride = stride,
                              .rows = (uint32_t)rows, .first_row = (uint32_t)tap->first_row, .row_index = pruned ? index : NULL};
    check(api->layer_record(tap->capturer, (uint32_t)layer, &source, NULL), "layer_record");

    for (int64_t r = 0; r < rows; r++)
        memcpy(tap->oracle[tap->sequence[index[r]]][tap->position[index[r]]][layer], (const int32_t *)topk->data + r * stride, (size_t)tap->k * 4);
}

/* Called twice for each tensor: before it is computed, to ask whether it is of interest, and after, if it is. */
static bool on_tensor(struct ggml_tensor *tensor, bool ask, void *user) {
    struct tap *tap = user;
    bool topk = strncmp(tensor->name, "ffn_moe_topk-", strlen("ffn_moe_topk-")) == 0;
    if (!ask) {
        if (topk) record(tap, tensor);
        return true;
    }
    const struct ggml_tensor *input = tensor->op == GGML_OP_GET_ROWS ? tensor->src[1] : NULL;
    if (input != NULL && strncmp(input->name, "inp_tokens", strlen("inp_tokens")) == 0) {
        tap->first_row += tap->rows;
        tap->rows = (int)input->ne[0];
        tap->output_count = 0;
    } else if (input != NULL && strstr(input->name, "out_ids") != NULL) { /* inputs are reused later: copy them now */
        tap->output_count = input->ne[0] <= MAX_BATCH ? input->ne[0] : 0;
        copy_out(input, tap->outputs, (size_t)tap->output_count * sizeof(int32_t));
    }
    return topk;
}

/* ---- The engine ---------------------------------------------------------------------------- */

static void quiet(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static int metadata(const struct llama_model *model, const char *key, int otherwise) {
    char architecture[64], name[128], value[64];
    if (llama_model_meta_val_str(model, "general.architecture", architecture, sizeof architecture) < 0) fail("the model has no architecture");
    snprintf(name, sizeof name, "%s.%s", architecture, key);
    return llama_model_meta_val_str(model, name, value, sizeof value) < 0 ? otherwise : atoi(value);
}

static void add(struct llama_batch *batch, int token, int position, int sequence, bool logits) {
    int i = batch->n_tokens++;
    batch->token[i] = token;
    batch->pos[i] = position;
    batch->n_seq_id[i] = 1;
    batch->seq_id[i][0] = sequence;
    batch->logits[i] = logits;
}

static int best_token(const float *logits, int tokens) {
    int best = 0;
    for (int t = 1; t < tokens; t++) best = logits[t] > logits[best] ? t : best;
    return best;
}

/* ---- Results ------------------------------------------------------------------------------- */

static uint64_t show(const struct tap *tap, const routecap_routing *routing, int sequence, int prompt, int32_t status) {
    routecap_view view = {.struct_size = sizeof view};
    routecap_coverage coverage = {.struct_size = sizeof coverage};
    routecap_missing missing[4];
    check(api->routing_view(routing, &view), "routing_view");
    check(api->routing_coverage(routing, &coverage, missing, sizeof missing[0], 4), "routing_coverage");
    printf("request %d: %llu rows x %u layers x %u experts, %d of the prompt; %llu rows complete; %s\n", sequence, (unsigned long long)view.rows,
           view.layers, view.k, prompt, (unsigned long long)coverage.rows_complete, api->status_name(status));
    for (uint64_t b = 0; b < coverage.blocks && b < 4; b++)
        printf("  missing: rows [%llu,%llu) of decoder layers %d to %d\n", (unsigned long long)missing[b].first,
               (unsigned long long)(missing[b].first + missing[b].rows), view.layer_map[missing[b].first_layer],
               view.layer_map[missing[b].first_layer + missing[b].layers - 1]);

    size_t cells = (size_t)view.rows * view.layers;
    int32_t *ids = malloc(cells * view.k * sizeof *ids + 1);
    uint8_t *valid = malloc(cells + 1);
    routecap_copy_options copy;
    if (ids == NULL || valid == NULL) fail("out of memory");
    check(api->copy_options_init(&copy, sizeof copy), "copy_options_init");
    copy.dtype = ROUTECAP_DTYPE_I32;
    check(api->routing_copy_to(routing, &copy, ids, cells * view.k * sizeof *ids, valid, cells, NULL), "routing_copy_to");

    uint64_t differences = 0;
    for (uint64_t row = 0; row < view.rows; row++) {
        if (row < 2) printf("  row %llu:", (unsigned long long)row);
        for (uint32_t layer = 0; layer < view.layers; layer++) {
            size_t cell = (size_t)row * view.layers + layer;
            const int32_t *expected = tap->oracle[sequence][row][layer];
            differences += valid[cell] != (expected[0] >= 0);
            for (uint32_t c = 0; c < view.k && valid[cell]; c++) differences += ids[cell * view.k + c] != expected[c];
            if (row >= 2) continue;
            printf(" [");
            for (uint32_t c = 0; c < view.k; c++) printf(valid[cell] ? "%s%d" : "%s.", c > 0 ? " " : "", (int)ids[cell * view.k + c]);
            printf("]");
        }
        if (row < 2) printf("\n");
    }
    free(ids);
    free(valid);
    return differences;
}

/* Adds a routing's experts to load [layers][experts], by the segments of its view: without a copy. */
static void add_load(const routecap_routing *routing, uint64_t *load) {
    routecap_view view = {.struct_size = sizeof view};
    check(api->routing_view(routing, &view), "routing_view");
    for (size_t i = 0; i < view.segment_count; i++) {
        const routecap_segment *s = (const routecap_segment *)((const char *)view.segments + i * view.segment_size);
        for (uint64_t r = 0; r < s->rows && s->ids != NULL; r++)
            for (uint32_t layer = 0; layer < view.layers; layer++) {
                if (s->validity != NULL && (s->validity[r * view.validity_bytes + layer / 8] >> layer % 8 & 1) == 0) continue;
                for (uint32_t c = 0; c < view.k; c++) {
                    size_t at = (size_t)((r * view.layers + layer) * view.k + c);
                    load[layer * view.experts + (view.dtype == ROUTECAP_DTYPE_U8 ? ((const uint8_t *)s->ids)[at] : ((const uint16_t *)s->ids)[at])]++;
                }
            }
    }
}

static void show_load(const struct tap *tap, const uint64_t *load, int experts) {
    printf("load of the experts, each layer's as a share of its busiest (0 to 9):\n");
    for (int decoder_layer = 0; decoder_layer < MAX_LAYERS; decoder_layer++) {
        int layer = tap->layer_of[decoder_layer];
        if (layer < 0) continue;
        uint64_t most = 1, total = 0;
        for (int e = 0; e < experts; e++) {
            uint64_t n = load[layer * experts + e];
            most = n > most ? n : most;
            total += n;
        }
        printf("  layer %2d  ", decoder_layer);
        for (int e = 0; e < experts; e++) printf("%d", (int)(load[layer * experts + e] * 9 / most));
        printf("  busiest %.2f times the mean\n", (double)most * experts / (double)(total > 0 ? total : 1));
    }
}

/* -------------------------------------------------------------------------------------------- */

int main(int argc, char **argv) {
    if (argc < 4) fail("usage: capture LIBROUTECAP MODEL.gguf [--prune] TEXT:BYTES...");
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) fail(dlerror());
    const routecap_api *(*get_api)(uint32_t, uint32_t) = NULL;
    *(void **)&get_api = dlsym(library, "routecap_get_api");
    api = get_api != NULL ? get_api(ROUTECAP_VERSION_MAJOR, ROUTECAP_VERSION_MINOR) : NULL;
    if (api == NULL) fail("this library cannot stand in for the version of the header");
    bool prune = strcmp(argv[3], "--prune") == 0;
    int first_text = prune ? 4 : 3;

    /* The engine. */
    struct tap tap = {.layers = 0};
    llama_log_set(quiet, NULL);
    ggml_backend_load_all_from_path(getenv("GGML_BACKEND_DIR"));
    llama_backend_init();
    struct llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers = 0;
    struct llama_model *model = llama_model_load_from_file(argv[2], model_params);
    if (model == NULL) fail("the model does not load");
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = CONTEXT;
    params.n_batch = MAX_BATCH;
    params.n_ubatch = MICRO_BATCH;
    params.n_seq_max = MAX_SEQUENCES;
    params.kv_unified = true; /* keeps the order of the batch */
    params.n_threads = params.n_threads_batch = 2;
    params.cb_eval = on_tensor;
    params.cb_eval_user_data = &tap;
    struct llama_context *context = llama_init_from_model(model, params);
    if (context == NULL) fail("no context");

    /* Which decoder layers have experts. */
    int32_t layer_map[MAX_LAYERS];
    int experts = metadata(model, "expert_count", 0), dense = metadata(model, "leading_dense_block_count", 0);
    tap.k = metadata(model, "expert_used_count", 0);
    if (llama_model_n_layer(model) > MAX_LAYERS || tap.k > MAX_K || experts == 0) fail("not a model for this program");
    for (int layer = 0; layer < MAX_LAYERS; layer++) {
        bool routed = layer >= dense && layer < llama_model_n_layer(model);
        tap.layer_of[layer] = routed ? tap.layers : -1;
        if (routed) layer_map[tap.layers++] = layer;
    }

    /* The capturer. */
    routecap_config config;
    check(api->config_init(&config, sizeof config), "config_init");
    config.backend = ROUTECAP_BACKEND_HOST;
    config.layers = (uint32_t)tap.layers;
    config.k = (uint32_t)tap.k;
    config.experts = (uint32_t)experts;
    config.rows = MAX_BATCH;
    config.layer_map = layer_map;
    check(api->capturer_create(&config, &tap.capturer), "capturer_create");

    /* The prompts: bytes of real text. */
    int sequences = argc - first_text, prompt[MAX_SEQUENCES], length[MAX_SEQUENCES], next[MAX_SEQUENCES];
    static unsigned char text[MAX_SEQUENCES][CONTEXT];
    routecap_request requests[MAX_SEQUENCES];
    if (sequences > MAX_SEQUENCES) fail("too many texts");
    for (int s = 0; s < sequences; s++) {
        char *colon = strrchr(argv[first_text + s], ':');
        if (colon == NULL) fail("a text is FILE:BYTES");
        *colon = '\0';
        FILE *file = fopen(argv[first_text + s], "rb");
        int bytes = atoi(colon + 1);
        if (file == NULL || bytes < 1 || bytes > CONTEXT - GENERATE) fail("a text cannot be read");
        prompt[s] = (int)fread(text[s], 1, (size_t)bytes, file);
        if (prompt[s] < 1) fail("a text is empty");
        length[s] = 0;
        fclose(file);
        tap.oracle[s] = malloc(sizeof(oracle_row) * CONTEXT);
        if (tap.oracle[s] == NULL) fail("out of memory");
        memset(tap.oracle[s], 0xff, sizeof(oracle_row) * CONTEXT);
    }
    check(api->request_open(tap.capturer, NULL, requests, (size_t)sequences), "request_open");

    /* Prefill, then decode: around each call of the engine begin and issue. */
    struct llama_batch batch = llama_batch_init(MAX_BATCH, 0, 1);
    int tokens = llama_vocab_n_tokens(llama_model_get_vocab(model));
    int calls = 0, generated = 0;
    while (generated < GENERATE) {
        int sequence[MAX_BATCH], position[MAX_BATCH], logits_at[MAX_SEQUENCES];
        routecap_span spans[MAX_SEQUENCES];
        size_t span_count = 0;
        batch.n_tokens = 0;
        bool prefilling = false;
        for (int s = 0; s < sequences; s++) prefilling |= length[s] < prompt[s];
        for (int s = 0; s < sequences; s++) {
            int rows = prefilling ? prompt[s] - length[s] : 1;
            if (rows > MAX_BATCH - batch.n_tokens) rows = MAX_BATCH - batch.n_tokens;
            logits_at[s] = -1;
            if (rows == 0) continue;
            spans[span_count++] = (routecap_span){.request = requests[s], .position = (uint64_t)length[s], .sink_row = (uint32_t)batch.n_tokens,
                                                  .rows = (uint32_t)rows};
            for (int r = 0; r < rows; r++, length[s]++) {
                bool last = length[s] + 1 >= prompt[s];
                sequence[batch.n_tokens] = s;
                position[batch.n_tokens] = length[s];
                if (last) logits_at[s] = batch.n_tokens;
                add(&batch, prefilling ? text[s][length[s]] : next[s], length[s], s, last || !prune);
            }
        }

        tap.first_row = tap.rows = 0;
        tap.sequence = sequence;
        tap.position = position;
        const routecap_issue_options options = {.struct_size = sizeof options, .snapshot = ROUTECAP_SNAPSHOT_MAKE};
        check(api->step_begin(tap.capturer, (uint32_t)batch.n_tokens, NULL), "step_begin");
        if (llama_decode(context, batch) != 0) fail("llama_decode failed");
        llama_synchronize(context);
        if (tap.first_row + tap.rows != batch.n_tokens) fail("the micro-batches do not add up to the batch");
        check(api->step_issue(tap.capturer, spans, sizeof spans[0], span_count, &options, NULL, NULL, NULL), "step_issue");
        calls++;

        bool all = true;
        for (int s = 0; s < sequences; s++) {
            all &= length[s] >= prompt[s];
            if (logits_at[s] >= 0) next[s] = best_token(llama_get_logits_ith(context, logits_at[s]), tokens);
        }
        generated += all;
    }

    /* Every request's end: the last token generated was never input. */
    uint64_t differences = 0, rows = 0, *load = calloc((size_t)tap.layers * (size_t)experts, sizeof *load);
    if (load == NULL) fail("out of memory");
    for (int s = 0; s < sequences; s++) {
        routecap_routing *routing = NULL;
        check(api->request_finish(tap.capturer, requests[s], (uint64_t)length[s], &routing), "request_finish");
        int32_t status = check(api->routing_wait(routing, -1), "routing_wait");
        differences += show(&tap, routing, s, prompt[s], status);
        differences += status != (prune ? ROUTECAP_INCOMPLETE : ROUTECAP_OK);
        rows += (uint64_t)length[s];
        add_load(routing, load);
        api->routing_free(routing);
        free(tap.oracle[s]);
    }
    show_load(&tap, load, experts);
    printf("%d calls of llama_decode, %llu rows, %llu differences from the engine's own tensors\n", calls, (unsigned long long)rows,
           (unsigned long long)differences);

    free(load);
    api->capturer_destroy(tap.capturer);
    llama_batch_free(batch);
    llama_free(context);
    llama_model_free(model);
    llama_backend_free();
    return differences != 0;
}
