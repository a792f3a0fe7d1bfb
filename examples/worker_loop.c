/*
 * The worker loop of a GPU engine: asynchronous scheduling, chunked prefill, drafts, preemption.
 * The engine is imitated: routers choose experts by a formula, and a step is planned before it is
 * known what the one before sampled. On the host backend streams are NULL and device memory is host
 * memory; with CUDA, begin, the routers and snapshot are what the engine captures into its graph.
 */
#include <routecap.h>

#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 6, K = 4, EXPERTS = 64, MAX_TOKENS = 48, CHUNK = 24, DRAFTS = 2, SLOTS = 4, N = 4 };

static int32_t check(int32_t status, const char *call) {
    if (status >= 0 && status != ROUTECAP_PARTIAL && status != ROUTECAP_LOST) return status;
    fprintf(stderr, "%s: %s: %s\n", call, routecap_status_name(status), routecap_last_error());
    exit(1);
}
#define CHECK(call) check((call), #call)

struct sequence {
    uint32_t seed, preempt;   /* the seed stands for its tokens; where it will be preempted once */
    uint32_t rows;            /* one fewer than its tokens, for the last is never input */
    uint32_t to_fill, filled; /* tokens to compute before decoding goes on; how many of them were */
    uint32_t known;           /* position after the last step whose outcome the host knows */
    int drafted, deciding;    /* this step has drafts; the one in flight has, not decided yet */
    int32_t next_on_gpu;      /* position after the last step, known to the device only */
    routecap_request request;
    routecap_routing *routing; /* once it is finished */
};

struct batch {
    struct sequence *owner[MAX_TOKENS];
    int32_t positions[MAX_TOKENS]; /* on the device */
    routecap_span spans[N];
    uint32_t tokens, span_count;
};

/* What the router of `layer` chooses for the token at `position`: k distinct ids. */
static int16_t routed(uint32_t seed, uint32_t position, uint32_t layer, uint32_t column) {
    return (int16_t)((seed * 7u + position * 13u + layer * 29u + column * 5u) % EXPERTS);
}

/* The token at `position`, and how many of the drafts after it turn out to be right. */
static uint32_t sampled(const struct sequence *s, uint32_t position) {
    return 1 + (s->seed + position) % (DRAFTS + 1);
}

/* The rows of a sequence in the next step, behind those that the batch has. */
static void schedule(struct batch *batch, struct sequence *s) {
    const uint32_t room = MAX_TOKENS - batch->tokens, left = s->to_fill - s->filled;
    routecap_span span = {.request = s->request, .sink_row = batch->tokens};
    int32_t position = s->next_on_gpu;
    if (left > 0) { /* a chunk of the prompt: its positions are known */
        span.rows = left < CHUNK ? left : CHUNK;
        if (span.rows > room) span.rows = room;
        span.position = s->filled, position = (int32_t)s->filled;
        s->known = s->filled += (uint32_t)span.rows, s->next_on_gpu = (int32_t)s->filled;
    } else if (1 + DRAFTS <= room) { /* the last token and drafts: the device knows where they go */
        const uint64_t ahead = s->deciding ? 1 + DRAFTS : 0; /* at most, by the step in flight */
        span.rows = 1 + DRAFTS, span.position = s->known + (ahead ? 1 : 0);
        span.position_end = s->known + ahead + span.rows;
        span.flags = ROUTECAP_SPAN_DEVICE_POSITIONS | ROUTECAP_SPAN_SPECULATIVE;
        s->drafted = 1;
    }
    if (span.rows > 0) batch->spans[batch->span_count++] = span;
    for (; span.rows > 0; span.rows--, batch->tokens++)
        batch->owner[batch->tokens] = s, batch->positions[batch->tokens] = position++;
}

/* Fused kernels write their ids straight into the sink, so capture adds no kernel to a layer. */
static void forward(routecap_capturer *capturer, const struct batch *batch) {
    CHECK(routecap_step_begin(capturer, batch->tokens, NULL));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        routecap_sink sink = {.struct_size = sizeof sink}; /* an engine asks for it once */
        CHECK(routecap_sink_layer(capturer, layer, &sink));
        for (uint32_t row = 0; row < batch->tokens; row++)
            for (uint32_t column = 0; column < K; column++)
                ((int16_t *)sink.ids)[row * sink.row_stride + column] =
                    routed(batch->owner[row]->seed, (uint32_t)batch->positions[row], layer, column);
    }
    CHECK(routecap_step_snapshot(capturer, NULL));
}

int main(void) {
    routecap_config config;
    routecap_capturer *capturer = NULL;
    CHECK(routecap_config_init(&config, sizeof config));
    config.backend = ROUTECAP_BACKEND_HOST, config.slots = SLOTS, config.rows = MAX_TOKENS;
    config.layers = LAYERS, config.k = K, config.experts = EXPERTS;
    CHECK(routecap_capturer_create(&config, &capturer));
    struct sequence all[N] = {{.seed = 1, .to_fill = 61, .rows = 69},
                              {.seed = 2, .to_fill = 5, .rows = 34, .preempt = 11},
                              {.seed = 3, .to_fill = 17, .rows = 17},
                              {.seed = 4, .to_fill = 100, .rows = 119}};
    for (int n = 0; n < N; n++) CHECK(routecap_request_open(capturer, NULL, &all[n].request, 1));
    routecap_step step = 0;
    for (uint32_t iteration = 0, running = N; running > 0; iteration++) {
        struct batch batch = {.tokens = 0};
        for (uint32_t n = 0; n < N; n++) { /* in another order in each step */
            struct sequence *s = &all[(n + iteration) % N];
            if (s->routing == NULL) schedule(&batch, s);
        }
        forward(capturer, &batch);

        const routecap_step previous = step;
        if (previous >= SLOTS) /* an engine's own pace: steps beyond these would be lost */
            CHECK(routecap_step_finalize(capturer, previous - (SLOTS - 1), -1, NULL));
        const routecap_issue_options options = {.struct_size = sizeof options,
                                                .tag = 42, /* the weights' version */
                                                .positions = batch.positions,
                                                .positions_dtype = ROUTECAP_DTYPE_I32};
        CHECK(routecap_step_issue(capturer, batch.spans, sizeof batch.spans[0], batch.span_count,
                                  &options, NULL, &step, NULL));
        for (struct sequence *s = all; s < all + N; s++) {
            if (s->routing != NULL) continue;
            if (s->deciding) { /* meanwhile the outcome of the previous step's drafts has arrived */
                const uint32_t kept = sampled(s, s->known);
                CHECK(routecap_request_accept(capturer, s->request, previous, NULL, kept));
                s->known += kept;
            }
            s->deciding = s->drafted, s->drafted = 0;
            if (s->deciding) /* the device samples, and goes on from there */
                s->next_on_gpu += (int32_t)sampled(s, (uint32_t)s->next_on_gpu);
            if (s->known >= s->rows) { /* done: what the step in flight adds beyond is cut */
                CHECK(routecap_request_finish(capturer, s->request, s->rows, &s->routing));
                running--;
            } else if (s->preempt > 0 && s->known >= s->preempt) { /* rows that are there stay */
                if (s->deciding) /* the drafts in flight are not wanted */
                    CHECK(routecap_request_accept(capturer, s->request, step, NULL, 0));
                s->to_fill = s->known, s->filled = 0, s->preempt = 0, s->deciding = 0;
            }
        }
    }

    int wrong = 0; /* elsewhere, on any thread, at any time later: the routings */
    for (const struct sequence *s = all; s < all + N; s++) {
        static int16_t ids[128][LAYERS][K];
        wrong += CHECK(routecap_routing_wait(s->routing, -1)) != ROUTECAP_OK;
        const routecap_copy_options copy = {
            .struct_size = sizeof copy, .dtype = ROUTECAP_DTYPE_I16, .fill = -1};
        CHECK(routecap_routing_copy_to(s->routing, &copy, ids, sizeof ids, NULL, 0, NULL));
        for (uint32_t i = 0; i < s->rows * LAYERS * K; i++)
            wrong += (&ids[0][0][0])[i] != routed(s->seed, i / (LAYERS * K), i / K % LAYERS, i % K);
        routecap_routing_free(s->routing);
    }
    printf("%d steps, %d differences from what the engine computed\n", (int)step, wrong);
    routecap_capturer_destroy(capturer);
    return wrong != 0;
}
