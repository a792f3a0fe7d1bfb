/*
 * What one call costs from C: the measure for the bindings, whose programs print the same lines for
 * the same work. Prints one JSON object per operation, {"name": ..., "ns": median}; bindings.py
 * compares them.
 *
 * The shape is that of DeepSeek-V3: 58 layers, 8 of 256 experts, on the host backend.
 */
#define _POSIX_C_SOURCE 200809L
#include <routecap.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    LAYERS = 58,
    K = 8,
    EXPERTS = 256,
    ROWS = 1024,
    BATCH = 256,
    WARM_UP = 50,
    REPETITIONS = 300,
    MANY = 100
};

static int32_t ids[ROWS][K]; /* of every layer */
static int32_t copied[ROWS][LAYERS][K];
static double samples[REPETITIONS];

static void check(int32_t status) {
    if (status < 0) {
        fprintf(stderr, "%s: %s\n", routecap_status_name(status), routecap_last_error());
        exit(1);
    }
}

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *name) {
    qsort(samples, REPETITIONS, sizeof samples[0], ascending);
    printf("{\"name\": \"%s\", \"ns\": %.1f}\n", name, samples[REPETITIONS / 2]);
    fflush(stdout);
}

/* Measures the statements, `count` of them at a time for what is short. */
#define MEASURE(name, count, ...)                                                    \
    do {                                                                             \
        for (int repetition = -WARM_UP; repetition < REPETITIONS; repetition++) {    \
            const double start = now_ns();                                           \
            for (int i = 0; i < (count); i++) {                                      \
                __VA_ARGS__                                                          \
            }                                                                        \
            if (repetition >= 0) samples[repetition] = (now_ns() - start) / (count); \
        }                                                                            \
        report(name);                                                                \
    } while (0)

static void forward(routecap_capturer *capturer, uint32_t rows) {
    static routecap_layer_source layers[LAYERS];
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        layers[layer] = (routecap_layer_source){.layer = layer, .ids = ids};
    const routecap_source source = {
        .struct_size = sizeof source, .dtype = ROUTECAP_DTYPE_I32, .rows = rows};
    check(routecap_step_begin(capturer, rows, NULL));
    check(routecap_layers_record(capturer, &source, layers, sizeof layers[0], LAYERS, NULL));
    check(routecap_step_snapshot(capturer, NULL));
}

/* One row each of 256 requests. */
static void spans_of(routecap_span *spans, const routecap_request *requests, uint64_t position,
                     uint32_t flags) {
    for (uint32_t i = 0; i < BATCH; i++)
        spans[i] = (routecap_span){
            .request = requests[i], .position = position, .sink_row = i, .rows = 1, .flags = flags};
}

static void measure_issue(routecap_capturer *capturer) {
    static routecap_span spans[BATCH];
    static routecap_request requests[BATCH];
    check(routecap_request_open(capturer, NULL, requests, BATCH));
    for (int repetition = -WARM_UP; repetition < REPETITIONS; repetition++) {
        routecap_step step;
        forward(capturer, BATCH);
        spans_of(spans, requests, (uint64_t)(repetition + WARM_UP), 0);
        const double start = now_ns();
        check(
            routecap_step_issue(capturer, spans, sizeof spans[0], BATCH, NULL, NULL, &step, NULL));
        if (repetition >= 0) samples[repetition] = now_ns() - start;
        check(routecap_step_finalize(capturer, step, -1, NULL));
    }
    report("issue_256");
    check(routecap_request_close_batch(capturer, requests, NULL, BATCH));
}

static void measure_whole_requests(routecap_capturer *capturer) {
    static routecap_span spans[BATCH];
    static routecap_request requests[BATCH];
    static routecap_accept_item accepts[BATCH];
    static routecap_finish_item ends[BATCH];
    for (int repetition = -WARM_UP; repetition < REPETITIONS; repetition++) {
        routecap_step step;
        check(routecap_request_open(capturer, NULL, requests, BATCH));
        forward(capturer, BATCH);
        spans_of(spans, requests, 0, ROUTECAP_SPAN_SPECULATIVE);
        const double start = now_ns();
        check(
            routecap_step_issue(capturer, spans, sizeof spans[0], BATCH, NULL, NULL, &step, NULL));
        for (int i = 0; i < BATCH; i++)
            accepts[i] = (routecap_accept_item){.request = requests[i], .step = step, .count = 1};
        check(routecap_request_accept_batch(capturer, accepts, sizeof accepts[0], BATCH));
        for (int i = 0; i < BATCH; i++)
            ends[i] = (routecap_finish_item){.request = requests[i], .rows = 1};
        check(routecap_request_finish_batch(capturer, ends, sizeof ends[0], BATCH));
        if (repetition >= 0) samples[repetition] = now_ns() - start;
        for (int i = 0; i < BATCH; i++) {
            check(routecap_routing_wait(ends[i].routing, -1));
            routecap_routing_free(ends[i].routing);
        }
    }
    report("issue_accept_finish_256");
}

static void measure_reading(routecap_capturer *capturer, routecap_request request) {
    routecap_routing *routing = NULL;
    MEASURE("extract_share", 1,
            check(routecap_request_extract(capturer, request, 0, ROWS, ROUTECAP_EXTRACT_SHARE, 0,
                                           &routing));
            routecap_routing_free(routing););
    check(
        routecap_request_extract(capturer, request, 0, ROWS, ROUTECAP_EXTRACT_SHARE, 0, &routing));

    uint64_t seen = 0;
    MEASURE("view", MANY, routecap_view view = {.struct_size = sizeof view};
            check(routecap_routing_view(routing, &view));
            seen += ((const uint8_t *)view.segments[0].ids)[0];);

    routecap_copy_options options;
    check(routecap_copy_options_init(&options, sizeof options));
    options.dtype = ROUTECAP_DTYPE_I32;
    MEASURE(
        "copy_to", 1,
        check(routecap_routing_copy_to(routing, &options, copied, sizeof copied, NULL, 0, NULL)););
    seen += (uint64_t)copied[ROWS - 1][0][0];

    MEASURE("serialize", 1, uint64_t needed = 0;
            routecap_routing_serialize(routing, 0, NULL, 0, &needed);
            uint8_t *bytes = malloc(needed);
            check(routecap_routing_serialize(routing, 0, bytes, needed, NULL));
            seen += bytes[needed - 1]; free(bytes););
    routecap_routing_free(routing);
    if (seen == 0) fprintf(stderr, "nothing was read\n");
}

int main(void) {
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < K; column++)
            ids[row][column] = (row * 7 + column * 31) % EXPERTS;
    routecap_config config;
    check(routecap_config_init(&config, sizeof config));
    config.backend = ROUTECAP_BACKEND_HOST;
    config.layers = LAYERS, config.k = K, config.experts = EXPERTS, config.rows = ROWS;
    routecap_capturer *capturer = NULL;
    check(routecap_capturer_create(&config, &capturer));

    routecap_request request;
    routecap_step step;
    check(routecap_request_open(capturer, NULL, &request, 1));
    forward(capturer, ROWS);
    const routecap_span span = {.request = request, .rows = ROWS};
    check(routecap_step_issue(capturer, &span, sizeof span, 1, NULL, NULL, &step, NULL));
    check(routecap_step_finalize(capturer, step, -1, NULL));

    MEASURE("poll", MANY, check(routecap_step_poll(capturer, step)););
    routecap_request opened[BATCH];
    MEASURE("open_close", MANY, check(routecap_request_open(capturer, NULL, opened, 1));
            check(routecap_request_close(capturer, opened[0])););
    MEASURE("open_close_256", 1, check(routecap_request_open(capturer, NULL, opened, BATCH));
            check(routecap_request_close_batch(capturer, opened, NULL, BATCH)););
    measure_issue(capturer);
    measure_whole_requests(capturer);
    measure_reading(capturer, request);
    routecap_capturer_destroy(capturer);
    return 0;
}
