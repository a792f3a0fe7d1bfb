/* Around the loop of a GPU engine in docs/guides/own_loop.md, which leaves its model to its reader.
 * */
#include <routecap.h>
#include <stdio.h>
#include <stdlib.h>

enum { PASSES = 1000, ROWS = 3, LAYERS = 48, K = 8 };

static void check(int32_t status) {
    if (status < 0) fprintf(stderr, "%s\n", routecap_last_error()), exit(1);
}

int main(void) {
    int32_t topk_ids[ROWS * K];
    for (int i = 0; i < ROWS * K; i++) topk_ids[i] = i;
    routecap_config config;
    if (routecap_config_init(&config, sizeof config) != ROUTECAP_OK) return 1;
    config.backend = ROUTECAP_BACKEND_HOST;
    config.layers = LAYERS, config.k = K, config.experts = 128, config.rows = 8192;
    routecap_capturer *capturer;
    routecap_request request;
    if (routecap_capturer_create(&config, &capturer) != ROUTECAP_OK) return 1;
    if (routecap_request_open(capturer, NULL, &request, 1) != ROUTECAP_OK) return 1;

    routecap_span spans[1] = {{.request = request, .rows = ROWS}};
    const uint32_t rows = ROWS;
    const size_t n = 1;
    routecap_stream stream = NULL;
    routecap_step step = 0;
    for (int pass = 0; pass < PASSES; pass++, spans[0].position += ROWS) {
        /* BLOCK */
    }
    if (routecap_step_finalize(capturer, step, -1, NULL) < 0) return 1;
    routecap_stats stats = {.struct_size = sizeof stats};
    if (routecap_capturer_stats(capturer, &stats) != ROUTECAP_OK) return 1;
    printf("%llu rows, %llu steps lost\n", (unsigned long long)stats.rows_delivered,
           (unsigned long long)stats.steps_lost);
    routecap_capturer_destroy(capturer);
    return 0;
}
