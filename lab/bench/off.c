/*
 * The calls of a step and its filing, for off.py to count their instructions: off [log] [load]
 *
 * 256 rows of as many requests, 4 layers, 8 of 256 experts, on the host backend and without a
 * worker thread. log: a hook takes every line. load: the load of the experts is counted.
 */
#include <routecap.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, K = 8, EXPERTS = 256, ROWS = 256, STEPS = 100 };

static int32_t ids[ROWS][K];

static void check(int32_t status) {
    if (status < 0) {
        fprintf(stderr, "%s: %s\n", routecap_status_name(status), routecap_last_error());
        exit(1);
    }
}

static void hear(void *lines, int32_t level, const char *text) {
    (void)level, (void)text;
    ++*(int *)lines;
}

int main(int argc, char **argv) {
    int log = 0, load = 0, lines = 0;
    for (int i = 1; i < argc; i++)
        log |= strcmp(argv[i], "log") == 0, load |= strcmp(argv[i], "load") == 0;
    if (log) check(routecap_set_log(hear, &lines, ROUTECAP_LOG_DEBUG));
    routecap_config config;
    check(routecap_config_init(&config, sizeof config));
    config.backend = ROUTECAP_BACKEND_HOST;
    config.layers = LAYERS, config.k = K, config.experts = EXPERTS, config.rows = ROWS;
    config.flags = ROUTECAP_CONFIG_MANUAL_PROGRESS | (load ? ROUTECAP_CONFIG_LOAD : 0u);
    routecap_capturer *capturer;
    check(routecap_capturer_create(&config, &capturer));
    for (int row = 0; row < ROWS; row++)
        for (int c = 0; c < K; c++) ids[row][c] = (row * 13 + c * 31) % EXPERTS;

    routecap_request requests[ROWS];
    check(routecap_request_open(capturer, NULL, requests, ROWS));
    routecap_span spans[ROWS] = {{0}};
    for (uint32_t i = 0; i < ROWS; i++)
        spans[i].request = requests[i], spans[i].sink_row = i, spans[i].rows = 1;
    const routecap_source source = {
        .struct_size = sizeof source, .dtype = ROUTECAP_DTYPE_I32, .ids = ids, .rows = ROWS};
    for (int step = 0; step < STEPS; step++) {
        check(routecap_step_begin(capturer, ROWS, NULL));
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            check(routecap_layer_record(capturer, layer, &source, NULL));
        check(routecap_step_snapshot(capturer, NULL));
        check(routecap_step_issue(capturer, spans, sizeof spans[0], ROWS, NULL, NULL, NULL, NULL));
        check(routecap_capturer_progress(capturer));
        for (uint32_t i = 0; i < ROWS; i++) spans[i].position++;
    }
    routecap_finish_item items[ROWS];
    memset(items, 0, sizeof items);
    for (uint32_t i = 0; i < ROWS; i++)
        items[i].request = requests[i], items[i].rows = ROUTECAP_ROWS_ALL;
    check(routecap_request_finish_batch(capturer, items, sizeof items[0], ROWS));
    for (uint32_t i = 0; i < ROWS; i++) routecap_routing_free(items[i].routing);
    routecap_capturer_destroy(capturer);
    return log && lines == 0; /* it has said what was made */
}
