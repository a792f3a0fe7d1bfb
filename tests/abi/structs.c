/*
 * A program whose structs have other sizes than the library's: larger ones, as a later header has
 * them, with what this library does not know 0 or not, and smaller ones, as no header ever had them.
 *
 *     structs LIBRARY       ends with one line that counts
 */
#include <dlfcn.h>
#include <routecap.h>
#include <stdio.h>
#include <string.h>

static int passed, failed;
static void check(int holds, const char *what, const char *of) {
    holds ? passed++ : failed++;
    if (!holds) printf("does not hold: %s, of %s\n", what, of);
}
#define CHECK(expression) check((expression) != 0, #expression, __func__)

static const routecap_api *api;
static routecap_capturer *capturer;
static routecap_request request;
static routecap_routing *routing;      /* of four rows */
static unsigned char serialized[4096]; /* the same, as bytes */
static uint64_t serialized_bytes;

static const uint8_t ids[4][2][2] = {
    {{1, 2}, {3, 4}}, {{5, 6}, {7, 8}}, {{9, 10}, {11, 12}}, {{13, 14}, {15, 0}}};

/* ---- Structs that the caller fills, and arrays of such -----------------------------------------
 */

/* Calls with a struct, or one element, of `size` bytes. */
typedef int32_t (*call_with)(void *structure, size_t size);

enum { kNewest = 768 }; /* bytes of the largest that is tried */

/* What a library does with a struct that it reads. `prefixed`: the struct begins with its own size.
 */
static void check_input(const char *name, call_with call, const void *structure, size_t size,
                        int prefixed) {
    union {
        uint64_t align;
        unsigned char bytes[kNewest];
    } grown;
    const struct {
        size_t size;
        size_t set; /* byte that is not 0; 0: none */
        int32_t status;
    } tries[] = {
        {size, 0, 0},
        {size + 8, 0, 0},
        {kNewest, 0, 0},
        {size + 8, size, ROUTECAP_ERR_STRUCT_SIZE},
        {kNewest, kNewest - 1, ROUTECAP_ERR_STRUCT_SIZE},
        {size - 8, 0,
         ROUTECAP_ERR_STRUCT_SIZE}, /* nothing has grown yet: no smaller one was ever published */
        {4, 0, ROUTECAP_ERR_STRUCT_SIZE}};
    for (size_t t = 0; t < sizeof tries / sizeof tries[0]; t++) {
        const uint32_t prefix = (uint32_t)tries[t].size;
        memset(&grown, 0, sizeof grown);
        memcpy(&grown, structure, size);
        if (prefixed) memcpy(&grown, &prefix, sizeof prefix);
        if (tries[t].set != 0) grown.bytes[tries[t].set] = 1;
        const int32_t status = call(&grown, tries[t].size);
        const int as_expected = tries[t].status == 0 ? status >= 0 : status == tries[t].status;
        if (!as_expected)
            printf("%s of %zu bytes: %s, %s\n", name, tries[t].size, api->status_name(status),
                   api->last_error());
        check(as_expected, "a struct of another size", name);
    }
}

static int32_t create(void *config, size_t size) {
    (void)size;
    routecap_capturer *made = NULL;
    const int32_t status = api->capturer_create(config, &made);
    api->capturer_destroy(made);
    return status;
}
static int32_t memory_of(void *config, size_t size) {
    (void)size;
    routecap_memory memory = {.struct_size = sizeof memory};
    return api->config_memory(config, &memory);
}
static int32_t bind(void *sink, size_t size) {
    return (void)size, api->sink_bind(capturer, 1, 1, sink);
}
static int32_t record(void *source, size_t size) {
    (void)size;
    CHECK(api->step_begin(capturer, 4, NULL) == ROUTECAP_OK);
    return api->layer_record(capturer, 0, source, NULL);
}
static int16_t sources[4][2];
static int32_t record_layers(void *layer, size_t size) {
    const routecap_source source = {
        .struct_size = sizeof source, .dtype = ROUTECAP_DTYPE_I16, .rows = 4};
    CHECK(api->step_begin(capturer, 4, NULL) == ROUTECAP_OK);
    return api->layers_record(capturer, &source, layer, size, 1, NULL);
}
static float logits[4][16];
static const routecap_logits known_logits = {
    .struct_size = sizeof known_logits, .dtype = ROUTECAP_DTYPE_F32, .logits = logits, .rows = 4};
static int32_t route(void *router, size_t size) {
    (void)size;
    CHECK(api->step_begin(capturer, 4, NULL) == ROUTECAP_OK);
    return api->layer_route(capturer, 1, router, &known_logits, NULL);
}
static int32_t route_logits(void *l, size_t size) {
    (void)size;
    routecap_router router;
    CHECK(api->router_init(&router, sizeof router, ROUTECAP_METHOD_SOFTMAX) == ROUTECAP_OK);
    CHECK(api->step_begin(capturer, 4, NULL) == ROUTECAP_OK);
    return api->layer_route(capturer, 1, &router, l, NULL);
}
static int32_t received(void *r, size_t size) {
    return (void)size, api->received_read(capturer, r, NULL);
}
static int32_t issue_span(void *span, size_t size) {
    routecap_step step = 0;
    const int32_t status = api->step_issue(capturer, span, size, 1, NULL, NULL, &step, NULL);
    if (step != 0) CHECK(api->step_finalize(capturer, step, -1, NULL) >= 0);
    return status;
}
static int32_t issue_options(void *options, size_t size) {
    (void)size;
    routecap_step step = 0;
    const int32_t status = api->step_issue(capturer, NULL, 0, 0, options, NULL, &step, NULL);
    CHECK((step != 0) == (status >= 0));
    return status;
}
static int32_t open_request(void *options, size_t size) {
    (void)size;
    routecap_request opened = 0;
    const int32_t status = api->request_open(capturer, options, &opened, 1);
    if (status >= 0) CHECK(api->request_close(capturer, opened) == ROUTECAP_OK);
    return status;
}
static int32_t accept_item(void *item, size_t size) {
    return api->request_accept_batch(capturer, item, size, 1);
}
static int32_t extract_item(void *item, size_t size) {
    const int32_t status = api->request_extract_batch(capturer, item, size, 1);
    if (status >= 0) api->routing_free(((routecap_extract_item *)item)->routing);
    return status;
}
static int32_t finish_item(void *item, size_t size) {
    return api->request_finish_batch(capturer, item, size, 1);
}
static int32_t copy(void *options, size_t size) {
    (void)size;
    int32_t copied[4][2][2];
    return api->routing_copy_to(routing, options, copied, sizeof copied, NULL, 0, NULL);
}
static int32_t import(void *view, size_t size) {
    (void)size;
    routecap_routing *made = NULL;
    const int32_t status = api->routing_import(view, 0, NULL, NULL, &made);
    api->routing_free(made);
    return status;
}
static int32_t import_segment(void *segment, size_t size) {
    routecap_view view = {.struct_size = sizeof view};
    CHECK(api->routing_view(routing, &view) == ROUTECAP_OK);
    view.segments = segment;
    view.segment_size = size;
    return import(&view, sizeof view);
}

static void inputs(const routecap_config *config) {
    check_input("routecap_config", create, config, sizeof *config, 1);
    check_input("routecap_config, for its memory", memory_of, config, sizeof *config, 1);
    static int32_t memory[8][2];
    const routecap_sink sink = {
        .struct_size = sizeof sink, .dtype = ROUTECAP_DTYPE_I32, .ids = memory, .rows = 8, .k = 2};
    check_input("routecap_sink", bind, &sink, sizeof sink, 1);
    const routecap_source source = {
        .struct_size = sizeof source, .dtype = ROUTECAP_DTYPE_I16, .ids = sources, .rows = 4};
    check_input("routecap_source", record, &source, sizeof source, 1);
    const routecap_layer_source layer = {.layer = 0, .ids = sources};
    check_input("routecap_layer_source", record_layers, &layer, sizeof layer, 0);
    routecap_router router;
    CHECK(api->router_init(&router, sizeof router, ROUTECAP_METHOD_TOPK) == ROUTECAP_OK);
    check_input("routecap_router", route, &router, sizeof router, 1);
    check_input("routecap_logits", route_logits, &known_logits, sizeof known_logits, 1);
    static int32_t executed[2][2];
    static routecap_received_counts counts;
    const routecap_received dispatch = {.struct_size = sizeof dispatch,
                                        .ranks = 1,
                                        .experts = 4,
                                        .k = 2,
                                        .tokens_per_rank = 2,
                                        .dtype = ROUTECAP_DTYPE_I32,
                                        .executed = executed[0],
                                        .counts = &counts};
    check_input("routecap_received", received, &dispatch, sizeof dispatch, 1);
    const routecap_span span = {.request = request, .position = 4, .rows = 1};
    check_input("routecap_span", issue_span, &span, sizeof span, 0);
    const routecap_issue_options options = {.struct_size = sizeof options, .tag = 3};
    check_input("routecap_issue_options", issue_options, &options, sizeof options, 1);
    const routecap_open_options open_options = {.struct_size = sizeof open_options,
                                                .policy = ROUTECAP_POLICY_REPLACE};
    union {
        routecap_open_options options;
        unsigned char bytes[16];
    } padded = {.options = open_options};
    check_input("routecap_open_options", open_request, &padded, sizeof open_options, 1);
    const routecap_accept_item accept = {.request = request, .step = 1};
    check_input("routecap_accept_item", accept_item, &accept, sizeof accept, 0);
    const routecap_extract_item extract = {
        .request = request, .rows = 2, .mode = ROUTECAP_EXTRACT_COPY};
    check_input("routecap_extract_item", extract_item, &extract, sizeof extract, 0);
    const routecap_finish_item finish = {.request = 0, .rows = 2};
    check_input("routecap_finish_item", finish_item, &finish, sizeof finish, 0);
    routecap_copy_options copied;
    CHECK(api->copy_options_init(&copied, sizeof copied) == ROUTECAP_OK);
    copied.dtype = ROUTECAP_DTYPE_I32;
    check_input("routecap_copy_options", copy, &copied, sizeof copied, 1);
    routecap_view view = {.struct_size = sizeof view};
    CHECK(api->routing_view(routing, &view) == ROUTECAP_OK);
    check_input("routecap_view", import, &view, sizeof view, 1);
    CHECK(view.segment_count == 1);
    check_input("routecap_segment", import_segment, view.segments, sizeof(routecap_segment), 0);
    const routecap_segment lost = {.rows = 4, .reason = ROUTECAP_MISSING_LOST};
    check_input("routecap_segment, without rows", import_segment, &lost, sizeof lost, 0);
}

/* ---- Structs that the library fills ------------------------------------------------------------
 */

/* What a library does with a struct that it fills. */
static void check_output(const char *name, call_with call, size_t size, int prefixed) {
    union {
        uint64_t align;
        unsigned char bytes[kNewest + 8];
    } small, grown;
    memset(&small, 0xee, sizeof small);
    memset(&grown, 0xee, sizeof grown);
    uint32_t prefix = (uint32_t)size;
    if (prefixed) memcpy(&small, &prefix, sizeof prefix);
    check(call(&small, size) >= 0, "the size of this header", name);
    check(small.bytes[size] == 0xee, "nothing is written behind it", name);
    prefix = kNewest;
    if (prefixed) memcpy(&grown, &prefix, sizeof prefix);
    check(call(&grown, kNewest) >= 0, "a larger one", name);
    const size_t skip = prefixed ? sizeof prefix : 0;
    check(memcmp(small.bytes + skip, grown.bytes + skip, size - skip) == 0,
          "has the same in what is known", name);
    if (prefixed)
        check(memcmp(grown.bytes, &prefix, sizeof prefix) == 0, "and the size that its caller gave",
              name);
    size_t zeros = size;
    while (zeros < kNewest && grown.bytes[zeros] == 0) zeros++;
    check(zeros == kNewest && grown.bytes[kNewest] == 0xee,
          "zeros in what is not, and nothing behind", name);
    prefix = 4;
    if (prefixed) memcpy(&grown, &prefix, sizeof prefix);
    check(call(&grown, 4) == ROUTECAP_ERR_STRUCT_SIZE,
          "a smaller one than was ever published is refused", name);
}

static const routecap_config *known_config;
static int32_t out_memory(void *memory, size_t size) {
    return (void)size, api->config_memory(known_config, memory);
}
static int32_t out_stats(void *stats, size_t size) {
    return (void)size, api->capturer_stats(capturer, stats);
}
static int32_t out_layer_stats(void *stats, size_t size) {
    return api->capturer_layer_stats(capturer, stats, size, 1);
}
static int32_t out_backend(void *info, size_t size) {
    return (void)size, api->backend_info(ROUTECAP_BACKEND_HOST, info);
}
static int32_t out_sink(void *sink, size_t size) {
    return (void)size, api->sink_layer(capturer, 0, sink);
}
static int32_t out_probe(void *probe, size_t size) {
    CHECK(api->step_begin(capturer, 4, NULL) == ROUTECAP_OK);
    return api->capturer_probe(capturer, 4, probe, size, 1, NULL);
}
static int32_t out_coverage(void *coverage, size_t size) {
    return (void)size, api->request_coverage(capturer, request, 0, 4, coverage, NULL, 0, 0);
}
static int32_t out_missing(void *missing, size_t size) {
    routecap_coverage coverage = {.struct_size = sizeof coverage};
    return api->request_coverage(capturer, request, 0, ROUTECAP_ROWS_ALL, &coverage, missing, size,
                                 1);
}
static int32_t out_view(void *view, size_t size) {
    return (void)size, api->routing_view(routing, view);
}
static int32_t out_serialized(void *info, size_t size) {
    return (void)size, api->serialized_info(serialized, serialized_bytes, info);
}
static int32_t out_splice(void *splice, size_t size) {
    static unsigned char header[2048];
    routecap_piece pieces[ROUTECAP_MAX_PIECES];
    (void)size;
    return api->serialized_splice(serialized, serialized_bytes, serialized, serialized_bytes, 2,
                                  header, sizeof header, pieces, sizeof pieces[0],
                                  ROUTECAP_MAX_PIECES, splice);
}
static int32_t out_config(void *config, size_t size) { return api->config_init(config, size); }
static int32_t out_router(void *router, size_t size) {
    return api->router_init(router, size, ROUTECAP_METHOD_DEEPSEEK_V3);
}
static int32_t out_options(void *options, size_t size) {
    return api->copy_options_init(options, size);
}

static void outputs(void) {
    check_output("routecap_memory", out_memory, sizeof(routecap_memory), 1);
    check_output("routecap_stats", out_stats, sizeof(routecap_stats), 1);
    check_output("routecap_layer_stats", out_layer_stats, sizeof(routecap_layer_stats), 0);
    check_output("routecap_backend", out_backend, sizeof(routecap_backend), 1);
    check_output("routecap_sink", out_sink, sizeof(routecap_sink), 1);
    check_output("routecap_layer_probe", out_probe, sizeof(routecap_layer_probe), 0);
    check_output("routecap_coverage", out_coverage, sizeof(routecap_coverage), 1);
    check_output("routecap_missing", out_missing, sizeof(routecap_missing), 0);
    check_output("routecap_view", out_view, sizeof(routecap_view), 1);
    check_output("routecap_serialized", out_serialized, sizeof(routecap_serialized), 1);
    check_output("routecap_splice", out_splice, sizeof(routecap_splice), 1);
    check_output("routecap_config", out_config, sizeof(routecap_config), 1);
    check_output("routecap_router", out_router, sizeof(routecap_router), 1);
    check_output("routecap_copy_options", out_options, sizeof(routecap_copy_options), 1);
}

/* ---- A life with it
 * ------------------------------------------------------------------------------ */

int main(int argc, char **argv) {
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (library == NULL) return printf("usage: structs LIBRARY\n"), 2;
    const routecap_api *(*get_api)(uint32_t, uint32_t);
    *(void **)&get_api = dlsym(library, "routecap_get_api");
    api = get_api(ROUTECAP_VERSION_MAJOR, ROUTECAP_VERSION_MINOR);
    if (api == NULL)
        return printf("the library does not stand in for version %d.%d\n", ROUTECAP_VERSION_MAJOR,
                      ROUTECAP_VERSION_MINOR),
               1;
    CHECK(api->size >= sizeof(routecap_api));
    void *entries[(sizeof(routecap_api) - offsetof(routecap_api, version)) / sizeof(void *)];
    memcpy(entries, (const char *)api + offsetof(routecap_api, version), sizeof entries);
    for (size_t e = 0; e < sizeof entries / sizeof entries[0]; e++) CHECK(entries[e] != NULL);
    CHECK(get_api(ROUTECAP_VERSION_MAJOR + 1, 0) == NULL);

    routecap_config config;
    CHECK(api->config_init(&config, sizeof config) == ROUTECAP_OK);
    config.backend = ROUTECAP_BACKEND_HOST;
    config.layers = 2, config.k = 2, config.experts = 16, config.rows = 8;
    known_config = &config;
    const int32_t provenance[2] = {ROUTECAP_PROVENANCE_CAPTURED, ROUTECAP_PROVENANCE_RECOMPUTED};
    config.layer_provenance = provenance;
    CHECK(api->capturer_create(&config, &capturer) == ROUTECAP_OK);
    CHECK(api->request_open(capturer, NULL, &request, 1) == ROUTECAP_OK);

    /* Four rows of any origin, read back in every way. */
    const routecap_segment segment = {.rows = 4, .ids = ids, .tag = 9};
    const routecap_view view = {.struct_size = sizeof view,
                                .dtype = ROUTECAP_DTYPE_U8,
                                .layers = 2,
                                .k = 2,
                                .experts = 16,
                                .rows = 4,
                                .layer_provenance = provenance,
                                .segments = &segment,
                                .segment_size = sizeof segment,
                                .segment_count = 1};
    CHECK(api->routing_import(&view, 0, NULL, NULL, &routing) == ROUTECAP_OK);
    CHECK(api->routing_serialize(routing, serialized, sizeof serialized, &serialized_bytes) ==
          ROUTECAP_OK);
    CHECK(api->request_attach(capturer, request, routing, ROUTECAP_ROWS_ALL) == ROUTECAP_OK);
    uint8_t copied[4][2][2];
    routecap_copy_options options;
    CHECK(api->copy_options_init(&options, sizeof options) == ROUTECAP_OK);
    options.dtype = ROUTECAP_DTYPE_U8;
    CHECK(api->routing_copy_to(routing, &options, copied, sizeof copied, NULL, 0, NULL) ==
          ROUTECAP_OK);
    CHECK(memcmp(copied, ids, sizeof ids) == 0);

    inputs(&config);
    outputs();

    routecap_routing *finished = NULL;
    CHECK(api->request_finish(capturer, request, 4, &finished) == ROUTECAP_OK);
    CHECK(api->routing_wait(finished, -1) == ROUTECAP_OK);
    memset(copied, 0, sizeof copied);
    CHECK(api->routing_copy_to(finished, &options, copied, sizeof copied, NULL, 0, NULL) ==
          ROUTECAP_OK);
    CHECK(memcmp(copied, ids, sizeof ids) == 0);
    api->routing_free(finished);
    api->routing_free(routing);
    api->capturer_destroy(capturer);
    printf("%d checks passed, %d failed\n", passed, failed);
    return failed != 0;
}
