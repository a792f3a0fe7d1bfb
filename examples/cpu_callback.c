/*
 * A CPU engine that calls back after every router, with the library loaded by dlopen: no link, no
 * build dependency but the header.
 *
 * The engine is imitated by decode() below: it computes a batch in micro-batches, layer by layer,
 * and shows the top-k tensor of each layer to a callback, as a strided view into a wider tensor.
 * The callback knows nothing about requests; who owns which row is said once, at issue. In the last
 * layer the engine computes only the rows whose output it needs, as real engines do.
 */
#include <routecap.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    LAYERS = 4,
    FIRST_MOE = 1,
    MOE_LAYERS = LAYERS - FIRST_MOE,
    K = 2,
    EXPERTS = 16,
    BATCH = 12,
    MICRO_BATCH = 5
};

/* ---- The engine --------------------------------------------------------------------------- */

struct topk_tensor {          /* what a callback gets to see */
    int layer;                /* counts the dense layers too */
    const int32_t *data;      /* row r, column c is data[r * row_stride + c] */
    int64_t rows, row_stride; /* a view of [rows, EXPERTS] */
    const int32_t
        *out_rows; /* last layer: which rows of the micro-batch these are; otherwise NULL */
};
typedef void (*callback)(void *user, const struct topk_tensor *topk);

struct batch {
    int tokens;
    int sequence[BATCH], position[BATCH], wants_output[BATCH];
};

static int32_t routed(int sequence, int position, int layer, int column) {
    return (sequence * 5 + position * 3 + layer * 7 + column * 8) % EXPERTS;
}

static void decode(const struct batch *batch, callback on_topk, void *user,
                   void (*on_micro_batch)(void *user, int first, int rows)) {
    for (int first = 0; first < batch->tokens; first += MICRO_BATCH) {
        int rows = batch->tokens - first < MICRO_BATCH ? batch->tokens - first : MICRO_BATCH;
        on_micro_batch(user, first, rows);
        for (int layer = FIRST_MOE; layer < LAYERS; layer++) {
            int32_t argsort[MICRO_BATCH][EXPERTS] = {{0}}, out_rows[MICRO_BATCH];
            int present = 0;
            for (int r = 0; r < rows; r++) {
                if (layer == LAYERS - 1 && !batch->wants_output[first + r]) continue;
                for (int c = 0; c < K; c++)
                    argsort[present][c] =
                        routed(batch->sequence[first + r], batch->position[first + r], layer, c);
                out_rows[present++] = r;
            }
            struct topk_tensor topk = {layer, &argsort[0][0], present, EXPERTS,
                                       layer == LAYERS - 1 ? out_rows : NULL};
            if (present > 0) on_topk(user, &topk);
        }
    }
}

/* ---- The tap ------------------------------------------------------------------------------- */

struct tap {
    const routecap_api *api;
    routecap_capturer *capturer;
    int first_row; /* sink row of the current micro-batch's row 0 */
};

static void check(const struct tap *tap, int32_t status, const char *what) {
    if (status < 0) {
        fprintf(stderr, "%s: %s: %s\n", what, tap->api->status_name(status),
                tap->api->last_error());
        exit(1);
    }
}

static void on_micro_batch(void *user, int first, int rows) {
    (void)rows;
    ((struct tap *)user)->first_row = first;
}

static void on_topk(void *user, const struct topk_tensor *topk) {
    struct tap *tap = user;
    routecap_source source = {.struct_size = sizeof source,
                              .dtype = ROUTECAP_DTYPE_I32,
                              .ids = topk->data,
                              .rows = (uint64_t)topk->rows,
                              .row_stride = topk->row_stride,
                              .first_row = (uint32_t)tap->first_row};
    int32_t index[MICRO_BATCH];   /* with CUDA this would have to be device memory */
    if (topk->out_rows != NULL) { /* the pruned last layer: only these rows */
        for (int64_t r = 0; r < topk->rows; r++) index[r] = tap->first_row + topk->out_rows[r];
        source.row_index = index;
    }
    check(tap,
          tap->api->layer_record(tap->capturer, (uint32_t)(topk->layer - FIRST_MOE), &source, NULL),
          "layer_record");
}

int main(int argc, char **argv) {
    void *library = dlopen(argc > 1 ? argv[1] : "libroutecap.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    const routecap_api *(*get_api)(uint32_t, uint32_t) = NULL;
    *(void **)&get_api = dlsym(library, "routecap_get_api");
    struct tap tap = {.api =
                          get_api ? get_api(ROUTECAP_VERSION_MAJOR, ROUTECAP_VERSION_MINOR) : NULL};
    if (tap.api == NULL) {
        fprintf(stderr, "this libroutecap cannot stand in for version %d.%d\n",
                ROUTECAP_VERSION_MAJOR, ROUTECAP_VERSION_MINOR);
        return 1;
    }

    static const int32_t layer_map[MOE_LAYERS] = {1, 2, 3}; /* decoder layer 0 is dense */
    routecap_config config;
    check(&tap, tap.api->config_init(&config, sizeof config), "config_init");
    config.backend = ROUTECAP_BACKEND_HOST;
    config.layers = MOE_LAYERS;
    config.k = K;
    config.experts = EXPERTS;
    config.rows = BATCH;
    config.layer_map = layer_map;
    check(&tap, tap.api->capturer_create(&config, &tap.capturer), "capturer_create");

    routecap_request requests[2];
    check(&tap, tap.api->request_open(tap.capturer, NULL, requests, 2), "request_open");

    /* One batch: seven tokens of sequence 0, five of sequence 1, each sequence's last token wants
     * output. */
    struct batch batch = {.tokens = BATCH};
    for (int i = 0; i < BATCH; i++) {
        batch.sequence[i] = i >= 7;
        batch.position[i] = i < 7 ? i : i - 7;
        batch.wants_output[i] = i == 6 || i == 11;
    }
    const routecap_span spans[2] = {
        {.request = requests[0], .position = 0, .sink_row = 0, .rows = 7},
        {.request = requests[1], .position = 0, .sink_row = 7, .rows = 5}};

    /* Around each call of the engine: begin, decode, issue. Issue makes the snapshot. */
    const routecap_issue_options options = {.struct_size = sizeof options,
                                            .snapshot = ROUTECAP_SNAPSHOT_MAKE};
    check(&tap, tap.api->step_begin(tap.capturer, BATCH, NULL), "step_begin");
    decode(&batch, on_topk, &tap, on_micro_batch);
    check(&tap,
          tap.api->step_issue(tap.capturer, spans, sizeof spans[0], 2, &options, NULL, NULL, NULL),
          "step_issue");

    int differences = 0;
    for (int sequence = 0; sequence < 2; sequence++) {
        routecap_routing *routing = NULL;
        check(&tap,
              tap.api->request_finish(tap.capturer, requests[sequence], sequence == 0 ? 7 : 5,
                                      &routing),
              "request_finish");
        int32_t status =
            tap.api->routing_wait(routing, -1); /* INCOMPLETE: the engine did not compute all */
        check(&tap, status, "routing_wait");

        int32_t ids[7][MOE_LAYERS][K];
        uint8_t valid[7][MOE_LAYERS];
        routecap_copy_options copy;
        check(&tap, tap.api->copy_options_init(&copy, sizeof copy), "copy_options_init");
        copy.dtype = ROUTECAP_DTYPE_I32;
        check(&tap,
              tap.api->routing_copy_to(routing, &copy, ids, sizeof ids, &valid[0][0], sizeof valid,
                                       NULL),
              "routing_copy_to");

        routecap_coverage coverage = {.struct_size = sizeof coverage};
        routecap_missing missing[4];
        check(&tap, tap.api->routing_coverage(routing, &coverage, missing, sizeof missing[0], 4),
              "routing_coverage");
        printf("sequence %d: %llu rows, %s\n", sequence, (unsigned long long)coverage.rows,
               tap.api->status_name(status));
        for (uint64_t b = 0; b < coverage.blocks && b < 4; b++)
            printf(
                "  missing: rows [%llu,%llu) of decoder layer %d, which the engine did not compute\n",
                (unsigned long long)missing[b].first,
                (unsigned long long)(missing[b].first + missing[b].rows),
                layer_map[missing[b].first_layer]);

        for (int row = 0; row < (int)coverage.rows; row++)
            for (int layer = 0; layer < MOE_LAYERS; layer++) {
                int computed = layer < MOE_LAYERS - 1 || row == (int)coverage.rows - 1;
                differences += valid[row][layer] != computed;
                for (int column = 0; column < K; column++)
                    differences +=
                        ids[row][layer][column] !=
                        (computed ? routed(sequence, row, layer + FIRST_MOE, column) : -1);
            }
        tap.api->routing_free(routing);
    }
    printf("%d differences from what the engine computed\n", differences);

    tap.api->capturer_destroy(tap.capturer);
    dlclose(library);
    return differences != 0;
}
