/*
 * An engine on a device that routecap has no backend for. The engine issues each step when it is
 * enqueued, and copies the ids to host memory itself. Whoever sees that a copy has arrived hands it
 * to routecap. The engine's thread waits only if config.slots steps are in flight.
 *
 * The device is imitated by a thread, which runs behind the engine's.
 */
#include <routecap.h>

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, K = 2, EXPERTS = 16, REQUESTS = 3, STEPS = 100, SLOTS = 3, FORGOTTEN = 7 };

typedef int16_t step_ids[REQUESTS][LAYERS][K];

static routecap_capturer *capturer;
static routecap_step tickets[STEPS];
static sem_t launched; /* steps that the device may compute */

static void check(int32_t status, const char *what) {
    if (status < 0) {
        fprintf(stderr, "%s: %s\n", what, routecap_last_error());
        exit(1);
    }
}

static int16_t routed(int request, int position, int layer, int column) {
    return (int16_t)((request * 5 + position * 3 + layer * 7 + column * 8) % EXPERTS);
}

/* ---- The device: a stream of steps, each followed by its copy ------------------------------ */

static void *device(void *unused) {
    static step_ids memory, arrived; /* on the device, and page-locked on the host */
    for (int step = 0; step < STEPS; step++) {
        sem_wait(&launched);
        memset(memory, 0x80, sizeof memory); /* what is not written is missing */
        for (int row = 0; row < REQUESTS; row++)
            for (int layer = 0; layer < LAYERS; layer++)
                for (int column = 0; column < K; column++)
                    if (step != FORGOTTEN || layer != 2) /* a bug of the engine */
                        memory[row][layer][column] = routed(row, step, layer, column);
        memcpy(arrived, memory, sizeof arrived);

        const routecap_sink rows = {.struct_size = sizeof rows,
                                    .dtype = ROUTECAP_DTYPE_I16,
                                    .ids = arrived,
                                    .rows = REQUESTS,
                                    .k = K,
                                    .row_stride = LAYERS * K,
                                    .layer_stride = K};
        check(routecap_step_arrive(capturer, tickets[step], &rows), "arrive");
    }
    return unused;
}

/* ---- The engine's thread ------------------------------------------------------------------- */

int main(void) {
    routecap_config config;
    check(routecap_config_init(&config, sizeof config), "config");
    config.backend = ROUTECAP_BACKEND_HOST;
    config.flags = ROUTECAP_CONFIG_EXTERNAL_SINK;
    config.layers = LAYERS;
    config.k = K;
    config.experts = EXPERTS;
    config.rows = REQUESTS;
    config.slots = SLOTS;
    check(routecap_capturer_create(&config, &capturer), "create");
    routecap_request requests[REQUESTS];
    check(routecap_request_open(capturer, NULL, requests, REQUESTS), "open");
    sem_init(&launched, 0, 0);
    pthread_t thread;
    if (pthread_create(&thread, NULL, device, NULL) != 0) return 1;

    const routecap_issue_options options = {.struct_size = sizeof options,
                                            .snapshot = ROUTECAP_SNAPSHOT_LATER};
    for (int step = 0; step < STEPS; step++) {
        routecap_span spans[REQUESTS] = {{0}};
        for (uint32_t row = 0; row < REQUESTS; row++) {
            spans[row].request = requests[row];
            spans[row].position = (uint64_t)step;
            spans[row].sink_row = row;
            spans[row].rows = 1;
        }
        if (step >= SLOTS) /* so that this one may be in flight */
            check(routecap_step_finalize(capturer, tickets[step - SLOTS], -1, NULL), "wait");
        check(routecap_step_issue(capturer, spans, sizeof *spans, REQUESTS, &options, NULL,
                                  &tickets[step], NULL),
              "issue");
        sem_post(&launched);
    }
    routecap_routing *routings[REQUESTS]; /* its last steps are in flight: the engine goes on */
    for (int r = 0; r < REQUESTS; r++)
        check(routecap_request_finish(capturer, requests[r], STEPS, &routings[r]), "finish");

    int differences = 0;
    routecap_copy_options copy;
    check(routecap_copy_options_init(&copy, sizeof copy), "copy_options");
    copy.dtype = ROUTECAP_DTYPE_I16;
    for (int r = 0; r < REQUESTS; r++) {
        static int16_t ids[STEPS][LAYERS][K];
        static uint8_t valid[STEPS][LAYERS];
        check(routecap_routing_wait(routings[r], -1), "wait"); /* INCOMPLETE: of the bug */
        check(routecap_routing_copy_to(routings[r], &copy, ids, sizeof ids, &valid[0][0],
                                       sizeof valid, NULL),
              "copy");
        for (int step = 0; step < STEPS; step++)
            for (int layer = 0; layer < LAYERS; layer++) {
                int written = step != FORGOTTEN || layer != 2;
                differences += valid[step][layer] != written;
                for (int column = 0; column < K; column++)
                    differences +=
                        ids[step][layer][column] != (written ? routed(r, step, layer, column) : -1);
            }
        routecap_routing_free(routings[r]);
    }
    pthread_join(thread, NULL);
    routecap_capturer_destroy(capturer);
    printf("%d rows, %d differences from what the device computed\n", REQUESTS * STEPS,
           differences);
    return differences != 0;
}
