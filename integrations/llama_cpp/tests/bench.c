/*
 * What capture costs in llama.cpp, per token: the same work in three contexts of one model, one
 * after another in every repetition.
 *
 * usage: bench LIBROUTECAP MODEL.gguf [REPETITIONS [THREADS]]
 *
 *   plain      no callback: the engine runs its graph in one go
 *   callback   the tap, on a disabled capturer: the engine asks about every tensor, and stops
 *              behind each layer's router
 *   routecap   the tap, capturing
 *
 * Prints one JSON object per line, times in microseconds per token: the median over the
 * repetitions, and for the latter two the median of what they add to the plain context in the same
 * repetition, on the wall's clock and in CPU time of the whole process, routecap's thread included.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "support.h"
#include "tap.h"

enum { PLAIN, CALLBACK, ROUTECAP, MODES };
enum { SEQUENCES = 8, BATCH = 512, TOKENS = 128, MAX_REPETITIONS = 1000 };

static const char *const mode_names[MODES] = {"plain", "callback", "routecap"};
static const struct workload {
    const char *name;
    int sequences, rows, forwards; /* rows of each sequence in a forward */
} workloads[] = {
    {"prefill_512", 1, 512, 1}, {"decode_1", 1, 1, TOKENS}, {"decode_8", 8, 1, TOKENS}};
enum { WORKLOADS = sizeof workloads / sizeof workloads[0] };

static struct tap taps[MODES];

static double clock_us(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static struct llama_context *context_new(struct llama_model *model, const routecap_api *api,
                                         int mode, int threads) {
    struct tap *tap = &taps[mode];
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = 2048;
    params.n_batch = params.n_ubatch = BATCH;
    params.n_seq_max = SEQUENCES;
    params.kv_unified = true;
    params.n_threads = params.n_threads_batch = threads;
    if (mode != PLAIN && !tap_attach(tap, api, &params)) die("%s", tap->error);
    struct llama_context *context = llama_init_from_model(model, params);
    if (context == NULL) die("no context");
    if (mode == PLAIN) return context;
    routecap_config config;
    if (!tap_discover(tap, context, &config)) die("%s", tap->error);
    if (mode == CALLBACK) config.role = ROUTECAP_ROLE_DISABLED;
    if (!tap_start(tap, &config)) die("%s", tap->error);
    return context;
}

static void work(struct llama_context *context, struct tap *tap, const struct workload *load,
                 struct llama_batch *batch) {
    for (int s = 0; s < load->sequences && tap != NULL; s++)
        if (!tap_open(tap, s)) die("%s", tap->error);
    for (int f = 0; f < load->forwards; f++) {
        batch->n_tokens = 0;
        for (int s = 0; s < load->sequences; s++)
            for (int r = 0; r < load->rows; r++) {
                int position = f * load->rows + r;
                add_token(batch, (position * 37 + s * 11) % 256, position, s, r == load->rows - 1);
            }
        if (tap != NULL && !tap_begin(tap, batch)) die("%s", tap->error);
        if (llama_decode(context, *batch) != 0) die("llama_decode failed");
        if (tap != NULL && !tap_issue(tap)) die("%s", tap->error);
        llama_synchronize(context);
    }
    for (int s = 0; s < load->sequences && tap == &taps[ROUTECAP]; s++)
        if (!tap_end(tap, s, NULL)) die("%s", tap->error);
    llama_memory_clear(llama_get_memory(context), false);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, by_size);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

int main(int argc, char **argv) {
    if (argc < 3) die("usage: bench LIBROUTECAP MODEL.gguf [REPETITIONS [THREADS]]");
    const int repetitions = argc > 3 ? atoi(argv[3]) : 31, threads = argc > 4 ? atoi(argv[4]) : 1;
    if (repetitions < 1 || repetitions > MAX_REPETITIONS || threads < 1)
        die("1 to %d repetitions, and a thread at least", MAX_REPETITIONS);
    const routecap_api *api = load_routecap(argv[1]);
    struct llama_model *model = load_model(argv[2]);
    struct llama_context *contexts[MODES];
    for (int mode = 0; mode < MODES; mode++)
        contexts[mode] = context_new(model, api, mode, threads);
    struct llama_batch batch = llama_batch_init(BATCH, 0, 1);
    char description[128];
    llama_model_desc(model, description, sizeof description);

    for (int w = 0; w < WORKLOADS; w++) {
        static double wall[MODES][MAX_REPETITIONS], cpu[MODES][MAX_REPETITIONS],
            added[MAX_REPETITIONS];
        const int tokens = workloads[w].sequences * workloads[w].rows * workloads[w].forwards;
        for (int r = -1; r < repetitions; r++) /* the first one warms up */
            for (int m = 0; m < MODES; m++) {
                int mode = (m + r + MODES) % MODES; /* each comes first as often as the others */
                double wall_start = clock_us(CLOCK_MONOTONIC),
                       cpu_start = clock_us(CLOCK_PROCESS_CPUTIME_ID);
                work(contexts[mode], mode == PLAIN ? NULL : &taps[mode], &workloads[w], &batch);
                if (r < 0) continue;
                wall[mode][r] = (clock_us(CLOCK_MONOTONIC) - wall_start) / tokens;
                cpu[mode][r] = (clock_us(CLOCK_PROCESS_CPUTIME_ID) - cpu_start) / tokens;
            }
        for (int mode = MODES - 1; mode >= 0;
             mode--) { /* plain last: its median sorts what the others are compared with */
            printf(
                "{\"engine\": \"llama.cpp\", \"model\": \"%s\", \"workload\": \"%s\", \"mode\": \"%s\", ",
                description, workloads[w].name, mode_names[mode]);
            printf("\"threads\": %d, \"repetitions\": %d, ", threads, repetitions);
            for (int r = 0; r < repetitions; r++) added[r] = wall[mode][r] - wall[PLAIN][r];
            printf("\"added_us\": %.2f, ", median(added, repetitions));
            for (int r = 0; r < repetitions; r++) added[r] = cpu[mode][r] - cpu[PLAIN][r];
            printf("\"added_cpu_us\": %.2f, ", median(added, repetitions));
            printf("\"us\": %.2f, \"cpu_us\": %.2f}\n", median(wall[mode], repetitions),
                   median(cpu[mode], repetitions));
        }
    }

    llama_batch_free(batch);
    for (int mode = 0; mode < MODES; mode++) {
        llama_free(contexts[mode]);
        if (mode != PLAIN) tap_stop(&taps[mode]);
    }
    llama_model_free(model);
    return 0;
}
