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

enum { LAYERS = 4, FIRST_MOE = 1, MOE_LAYERS = 3, K = 2, EXPERTS = 16, BATCH = 12, MICRO = 5 };

/* ---- The engine --------------------------------------------------------------------------- */

struct topk_tensor {          /* what a callback gets to see */
    int layer;                /* counts the dense layers too */
    const int32_t *data;      /* row r, column c is data[r * row_stride + c] */
    int64_t rows, row_stride; /* a view of [rows, EXPERTS] */
    const int32_t *out_rows;  /* last layer: which rows of the micro-batch these are; else NULL */
};
typedef void (*callback)(const struct topk_tensor *topk, int first_row);

struct batch {
    int tokens, sequence[BATCH], position[BATCH], wants_output[BATCH];
};

static int32_t routed(int sequence, int position, int layer, int column) {
    return (sequence * 5 + position * 3 + layer * 7 + column * 8) % EXPERTS;
}

static void decode(const struct batch *batch, callback on_topk) {
    for (int first = 0; first < batch->tokens; first += MICRO) {
        int rows = batch->tokens - first < MICRO ? batch->tokens - first : MICRO;
        for (int layer = FIRST_MOE; layer < LAYERS; layer++) {
            int32_t argsort[MICRO][EXPERTS] = {{0}}, out_rows[MICRO];
            int present = 0, last = layer == LAYERS - 1;
            for (int r = 0; r < rows; r++) {
                if (last && !batch->wants_output[first + r]) continue;
                for (int c = 0; c < K; c++)
                    argsort[present][c] =
                        routed(batch->sequence[first + r], batch->position[first + r], layer, c);
                out_rows[present++] = r;
            }
            struct topk_tensor topk = {layer, argsort[0], present, EXPERTS, last ? out_rows : NULL};
            if (present > 0) on_topk(&topk, first);
        }
    }
}

/* ---- The tap ------------------------------------------------------------------------------- */

static const routecap_api *api;
static routecap_capturer *capturer;

static int32_t check(int32_t status, const char *call) {
    if (status >= 0) return status;
    fprintf(stderr, "%s: %s: %s\n", call, api->status_name(status), api->last_error());
    exit(1);
}
#define CHECK(call) check(api->call, #call)

static void on_topk(const struct topk_tensor *topk, int first_row) {
    int32_t index[MICRO]; /* with CUDA this would have to be device memory */
    routecap_source source = {.struct_size = sizeof source,
                              .dtype = ROUTECAP_DTYPE_I32,
                              .ids = topk->data,
                              .rows = (uint64_t)topk->rows,
                              .row_stride = topk->row_stride,
                              .first_row = (uint32_t)first_row};
    if (topk->out_rows != NULL) { /* the pruned last layer: only these rows */
        for (int64_t r = 0; r < topk->rows; r++) index[r] = first_row + topk->out_rows[r];
        source.row_index = index;
    }
    CHECK(layer_record(capturer, (uint32_t)(topk->layer - FIRST_MOE), &source, NULL));
}

int main(int argc, char **argv) {
    void *library = dlopen(argc > 1 ? argv[1] : "libroutecap.so.1", RTLD_NOW | RTLD_LOCAL);
    const routecap_api *(*get_api)(uint32_t, uint32_t) = NULL;
    if (library != NULL) *(void **)&get_api = dlsym(library, "routecap_get_api");
    if (get_api != NULL) api = get_api(ROUTECAP_VERSION_MAJOR, ROUTECAP_VERSION_MINOR);
    if (api == NULL) {
        fprintf(stderr, "there is no libroutecap that can stand in for version %d.%d: %s\n",
                ROUTECAP_VERSION_MAJOR, ROUTECAP_VERSION_MINOR,
                library ? "another one" : dlerror());
        return 1;
    }

    static const int32_t layer_map[MOE_LAYERS] = {1, 2, 3}; /* decoder layer 0 is dense */
    routecap_config config;
    CHECK(config_init(&config, sizeof config));
    config.backend = ROUTECAP_BACKEND_HOST;
    config.layers = MOE_LAYERS, config.k = K, config.experts = EXPERTS, config.rows = BATCH;
    config.layer_map = layer_map;
    CHECK(capturer_create(&config, &capturer));
    routecap_request requests[2];
    CHECK(request_open(capturer, NULL, requests, 2));

    /* One batch: seven tokens of one sequence, five of another; the last of each wants output. */
    struct batch batch = {.tokens = BATCH};
    for (int i = 0; i < BATCH; i++) {
        batch.sequence[i] = i >= 7, batch.position[i] = i < 7 ? i : i - 7;
        batch.wants_output[i] = i == 6 || i == 11;
    }
    const routecap_span spans[2] = {
        {.request = requests[0], .position = 0, .sink_row = 0, .rows = 7},
        {.request = requests[1], .position = 0, .sink_row = 7, .rows = 5}};

    /* Around each call of the engine: begin, decode, issue. Issue makes the snapshot. */
    const routecap_issue_options options = {.struct_size = sizeof options,
                                            .snapshot = ROUTECAP_SNAPSHOT_MAKE};
    CHECK(step_begin(capturer, BATCH, NULL));
    decode(&batch, on_topk);
    CHECK(step_issue(capturer, spans, sizeof spans[0], 2, &options, NULL, NULL, NULL));
    int differences = 0;
    for (int sequence = 0; sequence < 2; sequence++) {
        const int rows = (int)spans[sequence].rows;
        routecap_routing *routing = NULL;
        CHECK(request_finish(capturer, requests[sequence], (uint64_t)rows, &routing));
        int32_t status = CHECK(routing_wait(routing, -1)); /* INCOMPLETE: not all was computed */
        int32_t ids[7][MOE_LAYERS][K];                     /* -1 where a cell is missing */
        const routecap_copy_options copy = {
            .struct_size = sizeof copy, .dtype = ROUTECAP_DTYPE_I32, .fill = -1};
        CHECK(routing_copy_to(routing, &copy, ids, sizeof ids, NULL, 0, NULL));
        routecap_coverage coverage = {.struct_size = sizeof coverage};
        routecap_missing missing[4];
        CHECK(routing_coverage(routing, &coverage, missing, sizeof missing[0], 4));
        printf("sequence %d: %d rows, %s\n", sequence, rows, api->status_name(status));
        for (uint64_t b = 0; b < coverage.blocks && b < 4; b++)
            printf("  missing: rows [%d,%d) of decoder layer %d, which were not computed\n",
                   (int)missing[b].first, (int)(missing[b].first + missing[b].rows),
                   layer_map[missing[b].first_layer]);
        for (int row = 0; row < rows; row++)
            for (int layer = 0; layer < MOE_LAYERS; layer++)
                for (int column = 0; column < K; column++)
                    differences += ids[row][layer][column] !=
                                   (layer < MOE_LAYERS - 1 || row == rows - 1
                                        ? routed(sequence, row, layer + FIRST_MOE, column)
                                        : -1);
        api->routing_free(routing);
    }
    printf("%d differences from what the engine computed\n", differences);
    api->capturer_destroy(capturer);
    return dlclose(library) != 0 || differences != 0;
}
