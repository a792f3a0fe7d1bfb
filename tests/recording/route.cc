// What the provenance of routecap_layer_route means for readers, on every backend. What it chooses
// is in the vectors (routes.json) and, at large, in route.py.
#include <rig.h>

#include <cmath>

using namespace rig;

namespace {

constexpr int32_t kRecomputed = ROUTECAP_PROVENANCE_RECOMPUTED;

routecap_router router_of(int32_t method) {
    routecap_router router;
    EXPECT_STATUS(ROUTECAP_OK, routecap_router_init(&router, sizeof router, method));
    return router;
}

}  // namespace

// Who reads strictly gets what was captured, unless he takes what was recomputed.
TEST(Route, provenance_is_seen_and_refused) {
    Rig rig({.shape = {.layers = 3, .k = 2, .experts = 16, .rows = 8},
             .layer_provenance = {0, kRecomputed, 0}});
    const routecap_request r = rig.open(), other = rig.open();
    std::vector<float> logits(4 * 16);  // of each row the third expert, then the first
    for (size_t row = 0; row < 4; row++) logits[row * 16 + 3] = 2, logits[row * 16 + 1] = 1;
    const routecap_router router = router_of(ROUTECAP_METHOD_TOPK);
    rig.forward([&] {
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(8));
        routecap_logits l{};
        l.struct_size = sizeof l;
        l.dtype = ROUTECAP_DTYPE_F32;
        l.logits = rig.device().upload(logits.data(), logits.size() * 4);
        l.rows = 4;
        rig.record_tokens(0, {{1, 0, 4}});
        rig.record_tokens(2, {{1, 0, 3}});
        EXPECT_STATUS(ROUTECAP_ERR_STATE,
                      routecap_layer_route(rig.capturer(), 0, &router, &l, rig.stream()));
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_layer_route(rig.capturer(), 1, &router, &l, rig.stream()));
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    });
    rig.land(rig.issue({Rig::span(r, 0, 0, 4)}));
    Rows expected = routed_rows(rig.shape(), 1, 0, 4);
    for (Row &row : expected) row[1] = std::vector<int64_t>{3, 1};
    expected[3][2] = std::nullopt;
    rig.expect(r, 0, expected);

    const RoutingPtr routing(rig.extract(r, 0, 4, ROUTECAP_INCOMPLETE));
    const routecap_view view = view_of(routing.get());
    EXPECT_EQ(view.layer_provenance[0], ROUTECAP_PROVENANCE_CAPTURED);
    EXPECT_EQ(view.layer_provenance[1], ROUTECAP_PROVENANCE_RECOMPUTED);
    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    EXPECT_STATUS(ROUTECAP_INCOMPLETE,
                  routecap_routing_coverage(routing.get(), &coverage, nullptr, 0, 0));
    EXPECT_EQ(coverage.cells_recomputed, 4u);
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_request_coverage(rig.capturer(), r, 0, 3, &coverage, nullptr, 0, 0));
    EXPECT_EQ(coverage.cells_recomputed, 3u);

    const auto copy = [&](uint32_t first_layer, uint32_t layers, uint32_t flags) {
        routecap_copy_options options;
        EXPECT_STATUS(ROUTECAP_OK, routecap_copy_options_init(&options, sizeof options));
        options.dtype = ROUTECAP_DTYPE_I32;
        options.flags = flags;
        options.first_layer = first_layer;
        options.layers = layers;
        int32_t ids[3 * 3 * 2];
        return routecap_request_extract_into(rig.capturer(), r, 0, 3, &options, ids, sizeof ids,
                                             nullptr, 0, nullptr);
    };
    EXPECT_STATUS(ROUTECAP_ERR_RECOMPUTED, copy(0, 0, ROUTECAP_READ_STRICT));
    EXPECT_STATUS(ROUTECAP_OK, copy(0, 1, ROUTECAP_READ_STRICT));
    EXPECT_STATUS(ROUTECAP_OK, copy(2, 1, ROUTECAP_READ_STRICT));
    EXPECT_STATUS(ROUTECAP_OK, copy(0, 0, ROUTECAP_READ_STRICT | ROUTECAP_READ_ALLOW_RECOMPUTED));

    // It travels: into a request of a capturer that captures this layer such rows do not go, the
    // other way round they do.
    Rig captures({.shape = rig.shape()});
    const routecap_request c = captures.open();
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH,
                  routecap_request_attach(captures.capturer(), c, routing.get(), 3));
    captures.land(captures.step({{c, {1, 0, 3}}}));
    const RoutingPtr captured(captures.extract(c, 0, 3, ROUTECAP_OK));
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_attach(rig.capturer(), other, captured.get(), 3));
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_request_coverage(rig.capturer(), other, 0, 3, &coverage, nullptr, 0, 0));
    EXPECT_EQ(coverage.cells_recomputed, 3u);
}

// The host does not know which rows an index names: the device keeps what was written first.
TEST(Route, a_cell_that_has_ids_keeps_them_and_the_conflict_is_counted) {
    Rig rig({.shape = {.layers = 1, .k = 2, .experts = 8, .rows = 4},
             .layer_provenance = {kRecomputed}});
    const std::vector<float> logits = {0, 0, 0, 2, 0, 1, 0, 0};
    const int32_t index = 2;
    rig.forward([&] {
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(4));
        EXPECT_STATUS(ROUTECAP_OK, rig.record(0, {{6, 7}}, 2));
        routecap_logits l{};
        l.struct_size = sizeof l;
        l.dtype = ROUTECAP_DTYPE_F32;
        l.logits = rig.device().upload(logits.data(), logits.size() * 4);
        l.rows = 1;
        l.row_index = static_cast<const int32_t *>(rig.device().upload(&index, 4));
        const routecap_router router = router_of(ROUTECAP_METHOD_TOPK);
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_layer_route(rig.capturer(), 0, &router, &l, rig.stream()));
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    });
    const routecap_request r = rig.open();
    const routecap_step step = rig.issue({Rig::span(r, 0, 2, 1)});
    uint64_t conflicting = 0;
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_finalize(rig.capturer(), step, -1, &conflicting));
    EXPECT_EQ(conflicting, 1u);
    rig.expect(r, 0, {{std::vector<int64_t>{6, 7}}});
}

// Those that no vector can make; the others are in routes.json.
TEST(Route, refusals) {
    Rig rig({.shape = {.layers = 2, .k = 2, .experts = 2000, .rows = 8},
             .layer_experts = {24, 2000},
             .layer_provenance = {kRecomputed, kRecomputed}});
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(8));
    const std::vector<float> x(2000);
    const void *device = rig.device().upload(x.data(), x.size() * 4);
    const auto route = [&](auto change, uint32_t layer = 0) {
        routecap_router router = router_of(ROUTECAP_METHOD_DEEPSEEK_V3);
        routecap_logits logits{};
        logits.struct_size = sizeof logits;
        logits.dtype = ROUTECAP_DTYPE_F32;
        logits.logits = device;
        logits.rows = 1;
        change(router, logits);
        return routecap_layer_route(rig.capturer(), layer, &router, &logits, rig.stream());
    };
    const auto same = [](auto &, auto &) {};
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, route(same, 1));  // more experts than can be routed
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE, route([](auto &r, auto &) { r.struct_size = 8; }));
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE, route([](auto &, auto &l) { l.struct_size = 8; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, route([](auto &r, auto &) { r.scale = NAN; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, route([](auto &r, auto &) { r.floor = INFINITY; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, route([](auto &, auto &l) { l.logits = nullptr; }));
    const auto hashed = [&](auto &r, auto &l) {
        r = router_of(ROUTECAP_METHOD_DEEPSEEK_V4);
        r.hash_table = static_cast<const int32_t *>(device), r.hash_tokens = 8;
        l.logits = nullptr, l.dtype = 0;
        l.tokens = device, l.tokens_dtype = ROUTECAP_DTYPE_I32;
    };
    EXPECT_STATUS(ROUTECAP_OK, route([&](auto &r, auto &l) { hashed(r, l), l.first_row = 7; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  route([&](auto &r, auto &l) { hashed(r, l), l.tokens = nullptr; }));
    EXPECT_STATUS(ROUTECAP_ERR_DTYPE,
                  route([&](auto &r, auto &l) { hashed(r, l), l.dtype = ROUTECAP_DTYPE_I32; }));
    auto *weights = static_cast<float *>(rig.device().allocate(8));
    // Of no logits.
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  route([&](auto &r, auto &l) { hashed(r, l), l.weights = weights; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  route([&](auto &, auto &l) { l.weights = weights, l.weights_stride = 1; }));
    EXPECT_STATUS(ROUTECAP_OK, route([](auto &, auto &l) { l.rows = 0; }));
    routecap_router router;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_router_init(&router, sizeof router, 12));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_router_init(nullptr, sizeof router, 1));
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE, routecap_router_init(&router, 8, 1));
    const int32_t strange[] = {2, 0};
    routecap_config config;
    EXPECT_STATUS(ROUTECAP_OK, routecap_config_init(&config, sizeof config));
    config.backend = backend();
    config.layers = 2, config.k = 2, config.experts = 8, config.rows = 1;
    config.layer_provenance = strange;
    routecap_capturer *capturer = nullptr;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_capturer_create(&config, &capturer));
}
