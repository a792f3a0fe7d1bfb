/*
 * An engine on a device that routecap has no backend for. The engine copies the ids of each step to
 * host memory itself, and the host backend files them off the engine's thread.
 *
 * The order of the calls is the order of the rows: a request that is finished before a step of it
 * is issued lacks the rows of that step. So one thread, the filer, makes all calls that have an
 * order, from one queue. The engine's thread puts steps and ends of requests there, and goes on. It
 * waits only if all slots hold steps that are not filed yet.
 *
 * The device is imitated by a thread. Its memory is filled with -1 at the start of each step: what
 * a layer does not write is missing then, and never what an earlier step left there.
 */
#include <routecap.h>

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, K = 2, EXPERTS = 16, REQUESTS = 3, STEPS = 100, SLOTS = 3, FORGOTTEN = 7 };

typedef int16_t step_ids[REQUESTS][LAYERS][K];

static step_ids slots[SLOTS];   /* page-locked memory, in a real engine */
static sem_t launched, arrived; /* steps on the device, and copies that have arrived */
static sem_t queued, slots_free;

static int16_t routed(int request, int position, int layer, int column) {
    return (int16_t)((request * 5 + position * 3 + layer * 7 + column * 8) % EXPERTS);
}

/* ---- The device: a stream of steps, each followed by its copy and an event ----------------- */

static void *device(void *unused) {
    static step_ids memory;
    for (int step = 0; step < STEPS; step++) {
        sem_wait(&launched);
        memset(memory, 0xff, sizeof memory);
        for (int row = 0; row < REQUESTS; row++)
            for (int layer = 0; layer < LAYERS; layer++)
                for (int column = 0; column < K; column++)
                    if (step != FORGOTTEN || layer != 2) /* a bug of the engine */
                        memory[row][layer][column] = routed(row, step, layer, column);
        memcpy(slots[step % SLOTS], memory, sizeof memory);
        sem_post(&arrived);
    }
    return unused;
}

/* ---- The filer: everything that has an order ----------------------------------------------- */

struct item {
    int step; /* or -1: the end of a request */
    int request;
};
static struct item queue[STEPS + REQUESTS];
static routecap_capturer *capturer;
static routecap_request requests[REQUESTS];
static routecap_routing *routings[REQUESTS];

static void check(int32_t status, const char *what) {
    if (status < 0) {
        fprintf(stderr, "%s: %s\n", what, routecap_last_error());
        exit(1);
    }
}

static void file_step(int step) {
    routecap_source source = {.struct_size = sizeof source,
                              .dtype = ROUTECAP_DTYPE_I16,
                              .rows = REQUESTS,
                              .row_stride = LAYERS * K};
    routecap_layer_source layers[LAYERS] = {{0}};
    routecap_span spans[REQUESTS] = {{0}};
    const routecap_issue_options options = {.struct_size = sizeof options,
                                            .snapshot = ROUTECAP_SNAPSHOT_MAKE};
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        layers[layer].layer = layer;
        layers[layer].ids = slots[step % SLOTS][0][layer];
    }
    for (uint32_t row = 0; row < REQUESTS; row++) {
        spans[row].request = requests[row];
        spans[row].position = (uint64_t)step;
        spans[row].sink_row = row;
        spans[row].rows = 1;
    }
    check(routecap_step_begin(capturer, REQUESTS, NULL), "begin");
    check(routecap_layers_record(capturer, &source, layers, sizeof *layers, LAYERS, NULL),
          "record");
    check(routecap_step_issue(capturer, spans, sizeof *spans, REQUESTS, &options, NULL, NULL, NULL),
          "issue");
}

static void *filer(void *unused) {
    for (int i = 0; i < STEPS + REQUESTS; i++) {
        sem_wait(&queued);
        if (queue[i].step >= 0) {
            sem_wait(&arrived); /* steps arrive in the order in which they were launched */
            file_step(queue[i].step);
            sem_post(&slots_free); /* the rows are copied */
        } else {
            int r = queue[i].request;
            check(routecap_request_finish(capturer, requests[r], STEPS, &routings[r]), "finish");
        }
    }
    return unused;
}

/* ---- The engine's thread ------------------------------------------------------------------- */

int main(void) {
    routecap_config config;
    check(routecap_config_init(&config, sizeof config), "config");
    config.backend = ROUTECAP_BACKEND_HOST;
    config.layers = LAYERS;
    config.k = K;
    config.experts = EXPERTS;
    config.rows = REQUESTS;
    check(routecap_capturer_create(&config, &capturer), "create");
    check(routecap_request_open(capturer, NULL, requests, REQUESTS), "open");
    sem_init(&launched, 0, 0);
    sem_init(&arrived, 0, 0);
    sem_init(&queued, 0, 0);
    sem_init(&slots_free, 0, SLOTS);
    pthread_t threads[2];
    if (pthread_create(&threads[0], NULL, device, NULL) != 0 ||
        pthread_create(&threads[1], NULL, filer, NULL) != 0)
        return 1;

    for (int i = 0; i < STEPS + REQUESTS; i++) {
        if (i < STEPS) {
            sem_wait(&slots_free);
            sem_post(&launched); /* the device computes step i into slot i % SLOTS */
            queue[i].step = i;
        } else {
            queue[i].step = -1; /* its steps are in flight: the engine does not wait for them */
            queue[i].request = i - STEPS;
        }
        sem_post(&queued);
    }
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);

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
    routecap_capturer_destroy(capturer);
    printf("%d rows, %d differences from what the device computed\n", REQUESTS * STEPS,
           differences);
    return differences != 0;
}
