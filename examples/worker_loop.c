/*
 * The worker loop of a GPU engine: asynchronous scheduling, chunked prefill, drafts, preemption.
 *
 * The engine is imitated: a "model" whose routers choose experts by a formula, a "device" that
 * samples, and a scheduler that plans step t+1 before it knows what step t sampled. What is
 * routecap's here is what an engine writes. The program runs on the host backend, so the stream is
 * NULL and device memory is host memory; with CUDA, begin, the routers and snapshot are what the
 * engine captures into its graph.
 *
 * Every row that comes out is compared with the formula.
 */
#include <routecap.h>

#include <stdio.h>
#include <stdlib.h>

enum {
    LAYERS = 6,
    K = 4,
    EXPERTS = 64,
    MAX_TOKENS = 48,
    SEQUENCES = 5,
    CHUNK = 24,
    DRAFTS = 2,
    SLOTS = 4
};

static int32_t check(int32_t status, const char *call) {
    if (status < 0 || status == ROUTECAP_PARTIAL ||
        status == ROUTECAP_LOST) { /* none of which may happen here */
        fprintf(stderr, "%s: %s: %s\n", call, routecap_status_name(status), routecap_last_error());
        exit(1);
    }
    return status;
}
#define CHECK(call) check((call), #call)

/* ---- The engine --------------------------------------------------------------------------- */

struct sequence {
    uint32_t seed;    /* stands for its tokens */
    uint32_t prompt;  /* tokens */
    uint32_t rows;    /* of the sequence: one fewer than its tokens, for the last is never input */
    int preempt;      /* the scheduler will preempt it once */
    uint32_t to_fill; /* tokens that are certain and have to be computed before decoding goes on */
    uint32_t filled;
    uint32_t known;      /* position after the last step whose outcome the host knows */
    int deciding;        /* the step in flight has drafts whose outcome the host does not know */
    int32_t next_on_gpu; /* position after the last step, known to the device only */
    routecap_request request;
    routecap_routing *routing; /* once it is finished */
};

/* What the router of `layer` chooses for the token at `position`: k distinct ids. */
static int16_t routed(uint32_t seed, int64_t position, uint32_t layer, uint32_t column) {
    return (int16_t)((seed * 7u + (uint32_t)position * 13u + layer * 29u + column * 5u) % EXPERTS);
}

/* How many of the drafts after the token at `position` turn out to be right. */
static int32_t drafts_kept(const struct sequence *s, int32_t position) {
    return (int32_t)((s->seed + (uint32_t)position) % (DRAFTS + 1));
}

/* One forward pass on the device. Fused kernels write their ids straight into the sink, so capture
 * adds no kernel to a layer. */
static void forward(routecap_capturer *capturer, const routecap_sink *sinks,
                    struct sequence *const *owner, const int32_t *positions, uint32_t tokens,
                    routecap_stream stream) {
    CHECK(routecap_step_begin(capturer, tokens, stream));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        int16_t *ids =
            sinks[layer].ids; /* the library's sink has 16-bit ids unless configured otherwise */
        for (uint32_t row = 0; row < tokens; row++)
            for (uint32_t column = 0; column < K; column++)
                ids[row * sinks[layer].row_stride + column] =
                    routed(owner[row]->seed, positions[row], layer, column);
    }
    CHECK(routecap_step_snapshot(capturer, stream));
}

/* ---- The loop ----------------------------------------------------------------------------- */

int main(void) {
    routecap_stream stream = NULL;
    routecap_config config;
    CHECK(routecap_config_init(&config, sizeof config));
    config.backend = ROUTECAP_BACKEND_HOST;
    config.layers = LAYERS;
    config.k = K;
    config.experts = EXPERTS;
    config.rows = MAX_TOKENS;
    config.slots = SLOTS;
    routecap_capturer *capturer = NULL;
    CHECK(routecap_capturer_create(&config, &capturer));

    routecap_sink sinks[LAYERS]; /* where the fused kernels write */
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        sinks[layer].struct_size = sizeof sinks[layer];
        CHECK(routecap_sink_layer(capturer, layer, &sinks[layer]));
    }

    struct sequence sequences[SEQUENCES] = {{.seed = 1, .prompt = 61, .rows = 69},
                                            {.seed = 2, .prompt = 5, .rows = 34, .preempt = 1},
                                            {.seed = 3, .prompt = 17, .rows = 17},
                                            {.seed = 4, .prompt = 100, .rows = 119},
                                            {.seed = 5, .prompt = 33, .rows = 44}};
    for (int i = 0; i < SEQUENCES; i++) {
        sequences[i].to_fill = sequences[i].prompt;
        CHECK(routecap_request_open(capturer, NULL, &sequences[i].request, 1));
    }

    int running = SEQUENCES;
    routecap_step step = 0;
    int32_t positions[MAX_TOKENS]; /* on the device */
    for (uint32_t iteration = 0; running > 0; iteration++) {
        /* Schedule a step without knowing what the previous one sampled. */
        struct sequence *owner[MAX_TOKENS], *decided[SEQUENCES];
        routecap_span spans[2 * SEQUENCES];
        uint32_t tokens = 0, span_count = 0, decided_count = 0;
        for (int n = 0; n < SEQUENCES; n++) {
            struct sequence *s =
                &sequences[(n + iteration) %
                           SEQUENCES]; /* the order in the batch changes from step to step */
            if (s->routing != NULL) continue;
            if (s->deciding) decided[decided_count++] = s;
            if (s->filled < s->to_fill) { /* a chunk of the prompt: its positions are known */
                uint32_t rows = s->to_fill - s->filled < CHUNK ? s->to_fill - s->filled : CHUNK;
                if (rows > MAX_TOKENS - tokens) rows = MAX_TOKENS - tokens;
                if (rows == 0) continue;
                spans[span_count++] = (routecap_span){
                    .request = s->request, .position = s->filled, .sink_row = tokens, .rows = rows};
                for (uint32_t r = 0; r < rows; r++, tokens++)
                    owner[tokens] = s, positions[tokens] = (int32_t)(s->filled + r);
                s->filled += rows;
                s->known = s->filled;
                s->next_on_gpu = (int32_t)s->filled;
            } else if (tokens + 1 + DRAFTS <= MAX_TOKENS) {
                /* The last token and drafts. Where they go, only the device knows while earlier
                 * drafts are being decided. */
                uint64_t first = s->known + (s->deciding ? 1u : 0u),
                         last = s->known + (s->deciding ? 1u + DRAFTS : 0u);
                spans[span_count++] = (routecap_span){.request = s->request,
                                                      .position = first,
                                                      .position_end = last + 1,
                                                      .sink_row = tokens,
                                                      .rows = 1,
                                                      .flags = ROUTECAP_SPAN_DEVICE_POSITIONS};
                spans[span_count++] = (routecap_span){
                    .request = s->request,
                    .position = first + 1,
                    .position_end = last + 1 + DRAFTS,
                    .sink_row = tokens + 1,
                    .rows = DRAFTS,
                    .flags = ROUTECAP_SPAN_DEVICE_POSITIONS | ROUTECAP_SPAN_SPECULATIVE};
                for (int32_t r = 0; r < 1 + DRAFTS; r++, tokens++)
                    owner[tokens] = s, positions[tokens] = s->next_on_gpu + r; /* on the device */
            }
        }

        forward(capturer, sinks, owner, positions, tokens, stream);

        /* Throttle as an engine does by itself: steps beyond the slots would be lost. This
         * imitation computes nothing and runs away otherwise. */
        routecap_step previous = step;
        if (previous >= SLOTS - 1)
            CHECK(routecap_step_finalize(capturer, previous - (SLOTS - 2), -1, NULL));
        routecap_issue_options options = {.struct_size = sizeof options,
                                          .tag = 42 /* the weights' version */,
                                          .positions = positions,
                                          .positions_dtype = ROUTECAP_DTYPE_I32};
        CHECK(routecap_step_issue(capturer, spans, sizeof spans[0], span_count, &options, NULL,
                                  &step, stream));

        /* Meanwhile the outcome of the previous step's drafts has arrived. */
        routecap_accept_item accepts[SEQUENCES];
        for (uint32_t i = 0; i < decided_count; i++) {
            struct sequence *s = decided[i];
            uint64_t kept = (uint64_t)drafts_kept(s, (int32_t)s->known);
            accepts[i] =
                (routecap_accept_item){.request = s->request, .step = previous, .count = kept};
            s->known += 1 + (uint32_t)kept;
            s->deciding = 0;
        }
        if (decided_count > 0)
            CHECK(
                routecap_request_accept_batch(capturer, accepts, sizeof accepts[0], decided_count));

        for (uint32_t i = 0; i < span_count; i++) { /* the device samples, and goes on from there */
            struct sequence *s = owner[spans[i].sink_row];
            if (spans[i].flags != ROUTECAP_SPAN_DEVICE_POSITIONS) continue;
            s->next_on_gpu += 1 + drafts_kept(s, s->next_on_gpu);
            s->deciding = 1;
        }
        for (int i = 0; i < SEQUENCES; i++) {
            struct sequence *s = &sequences[i];
            if (s->routing != NULL) continue;
            if (s->known >= s->rows) {
                /* Done. The step in flight ran ahead for nothing: what it adds beyond the
                 * sequence's rows is cut, what was drafted is dropped. */
                CHECK(routecap_request_finish(capturer, s->request, s->rows, &s->routing));
                running--;
            } else if (s->preempt && s->known >= s->prompt + 6) {
                /* Preempted: its cache is gone and all its tokens are computed again, but they were
                 * sampled under the rows captured first, which stay. (To drop them:
                 * routecap_request_truncate(capturer, s->request, 0).) The drafts in flight will
                 * not be wanted. */
                s->preempt = 0;
                s->to_fill = s->known, s->filled = 0;
                if (s->deciding)
                    CHECK(routecap_request_accept(capturer, s->request, step, NULL, 0));
                s->deciding = 0;
            }
        }
    }

    /* Elsewhere, on any thread, at any time later: the routings. */
    uint64_t wrong = 0;
    static int16_t ids[128][LAYERS][K];
    for (int i = 0; i < SEQUENCES; i++) {
        const struct sequence *s = &sequences[i];
        int32_t status = CHECK(routecap_routing_wait(s->routing, -1));
        routecap_copy_options copy;
        CHECK(routecap_copy_options_init(&copy, sizeof copy));
        copy.dtype = ROUTECAP_DTYPE_I16;
        CHECK(routecap_routing_copy_to(s->routing, &copy, ids, sizeof ids, NULL, 0,
                                       NULL)); /* missing cells would be -1 */
        for (uint32_t row = 0; row < s->rows; row++)
            for (uint32_t layer = 0; layer < LAYERS; layer++)
                for (uint32_t column = 0; column < K; column++)
                    wrong += ids[row][layer][column] != routed(s->seed, row, layer, column);

        routecap_routing *prompt = NULL, *generated = NULL;
        CHECK(
            routecap_routing_split(s->routing, s->prompt, ROUTECAP_ROWS_ALL, &prompt, &generated));
        routecap_view view[2] = {{.struct_size = sizeof view[0]}, {.struct_size = sizeof view[0]}};
        CHECK(routecap_routing_view(prompt, &view[0]));
        CHECK(routecap_routing_view(generated, &view[1]));
        printf(
            "sequence %d: %llu rows of the prompt and %llu generated, %u layers, %u experts per token: %s\n",
            i, (unsigned long long)view[0].rows, (unsigned long long)view[1].rows, view[0].layers,
            view[0].k, routecap_status_name(status));
        wrong += status != ROUTECAP_OK;
        routecap_routing_free(prompt);
        routecap_routing_free(generated);
        routecap_routing_free(s->routing);
    }

    routecap_stats stats = {.struct_size = sizeof stats};
    CHECK(routecap_capturer_stats(capturer, &stats));
    printf(
        "%llu steps, %llu lost; %llu rows delivered, of which %llu again after a preemption; %llu drafts rejected; %llu differences\n",
        (unsigned long long)stats.steps_issued, (unsigned long long)stats.steps_lost,
        (unsigned long long)stats.rows_delivered, (unsigned long long)stats.rows_overlapped,
        (unsigned long long)stats.rows_rejected, (unsigned long long)wrong);
    routecap_capturer_destroy(capturer);
    return wrong != 0;
}
