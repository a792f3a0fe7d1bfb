// routecap_layer_route on every backend: exact ids of small routers whose winners are known, inside
// and outside graphs, and what their provenance means for readers. The mathematics at large are
// judged in route.py.
#include <rig.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

using namespace rig;

namespace {

constexpr int32_t kRecomputed = ROUTECAP_PROVENANCE_RECOMPUTED;

routecap_router router_of(int32_t method) {
    routecap_router router;
    EXPECT_STATUS(ROUTECAP_OK, routecap_router_init(&router, sizeof router, method));
    return router;
}

// Logits with differences that no rounding hides: a permutation of multiples of 1/8 in every row.
std::vector<float> permuted(uint32_t rows, uint32_t experts, std::mt19937_64 &random) {
    std::vector<float> logits;
    std::vector<uint32_t> order(experts);
    std::iota(order.begin(), order.end(), 0u);
    for (uint32_t r = 0; r < rows; r++) {
        std::shuffle(order.begin(), order.end(), random);
        for (uint32_t e = 0; e < experts; e++)
            logits.push_back((static_cast<float>(order[e]) - static_cast<float>(experts) / 2) / 8);
    }
    return logits;
}

// The k experts with the largest keys, lower ids first among equals.
std::vector<int64_t> best(const std::vector<float> &keys, uint32_t k) {
    std::vector<int64_t> ids(keys.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) {
        return keys[static_cast<size_t>(a)] > keys[static_cast<size_t>(b)];
    });
    ids.resize(k);
    return ids;
}

routecap_logits logits_of(Rig &rig, const std::vector<float> &logits, uint32_t rows) {
    routecap_logits l{};
    l.struct_size = sizeof l;
    l.dtype = ROUTECAP_DTYPE_F32;
    l.logits = rig.device().upload(logits.data(), logits.size() * 4);
    l.rows = rows;
    return l;
}

}  // namespace

TEST(Route, the_largest_logits_win) {
    std::mt19937_64 random(1);
    for (auto [experts, k] : {std::pair{8u, 2u},
                              {32u, 1u},
                              {60u, 4u},
                              {64u, 6u},
                              {128u, 8u},
                              {160u, 6u},
                              {256u, 8u},
                              {512u, 10u},
                              {512u, 22u},
                              {896u, 16u},
                              {1024u, 32u}})
        for (uint32_t rows : {1u, 5u, 70u}) {
            Rig rig({.shape = {.layers = 2, .k = k, .experts = experts, .rows = 70},
                     .layer_provenance = {kRecomputed, kRecomputed}});
            const std::vector<float> first = permuted(rows, experts, random),
                                     second = permuted(rows, experts, random);
            rig.forward([&] {
                EXPECT_STATUS(ROUTECAP_OK, rig.begin(rows));
                for (uint32_t l = 0; l < 2; l++) {
                    const routecap_logits logits = logits_of(rig, l == 0 ? first : second, rows);
                    const routecap_router router = router_of(l == 0 ? ROUTECAP_METHOD_TOPK_SOFTMAX
                                                                    : ROUTECAP_METHOD_TOPK_SIGMOID);
                    EXPECT_STATUS(ROUTECAP_OK, routecap_layer_route(rig.capturer(), l, &router,
                                                                    &logits, rig.stream()));
                }
                EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
            });
            const routecap_request r = rig.open();
            rig.land(rig.issue({Rig::span(r, 0, 0, rows)}));
            Rows expected;
            for (uint32_t i = 0; i < rows; i++) {
                const auto row = [&, n = experts](const std::vector<float> &logits) {
                    return std::vector<float>(logits.begin() + i * n, logits.begin() + (i + 1) * n);
                };
                expected.push_back({best(row(first), k), best(row(second), k)});
            }
            rig.expect(r, 0, expected);
        }
}

// Groups by their top two, bias for the choice and not for the weights, ties to the lower id.
TEST(Route, groups_bias_and_ties) {
    Rig rig({.shape = {.layers = 1, .k = 3, .experts = 16, .rows = 4},
             .layer_provenance = {kRecomputed}});
    std::vector<float> logits(4 * 16, -4.0f), bias(16, 0.0f), weights(4 * 5, -7.0f);
    const auto set = [&](uint32_t row, std::initializer_list<std::pair<uint32_t, float>> values) {
        for (auto [e, x] : values) logits[row * 16 + e] = x;
    };
    // Group 0 has the best expert, groups 1 and 2 the best pairs.
    set(0, {{0, 3}, {5, 1}, {6, 1}, {9, 1}, {10, 1}});
    set(1, {{1, 2}, {2, 2}, {3, 2}, {13, 2}, {14, 2}, {15, 2}});          // all equal
    for (uint32_t e = 0; e < 16; e++) logits[2 * 16 + e] = 1;             // all equal, everywhere
    set(3, {{4, NAN}, {5, NAN}, {6, INFINITY}, {7, 2}, {8, -INFINITY}});  // no numbers
    bias[12] = 0.0f;
    auto *out = static_cast<float *>(rig.device().allocate(weights.size() * 4));
    rig.device().write(out, weights.data(), weights.size() * 4);
    rig.forward([&] {
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(4));
        routecap_logits l = logits_of(rig, logits, 4);
        l.weights = out;
        l.weights_stride = 5;
        routecap_router router = router_of(ROUTECAP_METHOD_DEEPSEEK_V3);
        router.groups = 4;
        router.groups_kept = 2;
        router.scale = 2.5f;
        router.bias = rig.device().upload(bias.data(), bias.size() * 4);
        router.bias_dtype = ROUTECAP_DTYPE_F32;
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_layer_route(rig.capturer(), 0, &router, &l, rig.stream()));
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    });
    const routecap_request r = rig.open();
    rig.land(rig.issue({Rig::span(r, 0, 0, 4)}));
    using Ids = std::vector<int64_t>;
    rig.expect(r, 0, {{Ids{5, 6, 9}}, {Ids{1, 2, 3}}, {Ids{0, 1, 2}}, {Ids{6, 7, 0}}});
    rig.device().read(weights.data(), out, weights.size() * 4);
    for (uint32_t row = 0; row < 4; row++) {
        EXPECT_NEAR(weights[row * 5] + weights[row * 5 + 1] + weights[row * 5 + 2], 2.5f, 1e-5)
            << row;
        EXPECT_EQ(weights[row * 5 + 3], -7.0f);
        EXPECT_EQ(weights[row * 5 + 4], -7.0f);
    }
    EXPECT_NEAR(weights[0], 2.5f / 3, 1e-5);
}

TEST(Route, hash_layers) {
    Rig rig({.shape = {.layers = 1, .k = 2, .experts = 8, .rows = 6},
             .layer_provenance = {kRecomputed}});
    // Five tokens; the second and the last have an id that is none.
    const std::vector<int32_t> table = {0, 1, 2, -1, 4, 5, 7, 6, 1, 8};
    const std::vector<int64_t> tokens = {3, 0, 4, 5, -1, 1};
    rig.forward([&] {
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(6));
        routecap_logits l{};
        l.struct_size = sizeof l;
        l.rows = 6;
        l.tokens = rig.device().upload(tokens.data(), tokens.size() * 8);
        l.tokens_dtype = ROUTECAP_DTYPE_I64;
        routecap_router router = router_of(ROUTECAP_METHOD_DEEPSEEK_V4);
        router.hash_table =
            static_cast<const int32_t *>(rig.device().upload(table.data(), table.size() * 4));
        router.hash_tokens = 5;
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_layer_route(rig.capturer(), 0, &router, &l, rig.stream()));
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    });
    const routecap_request r = rig.open();
    rig.land(rig.issue({Rig::span(r, 0, 0, 6)}));
    using Ids = std::vector<int64_t>;
    rig.expect(
        r, 0,
        {{Ids{7, 6}}, {Ids{0, 1}}, {std::nullopt}, {std::nullopt}, {std::nullopt}, {std::nullopt}});
    EXPECT_EQ(rig.stats().cells_out_of_range, 4u);
}

// Infinity, numbers below the smallest normal one, and no number: the last is below all others.
TEST(Route, halves_of_every_kind_are_ranked) {
    Rig rig({.shape = {.layers = 1, .k = 3, .experts = 8, .rows = 2},
             .layer_provenance = {kRecomputed}});
    // NaN, -1, tiny, inf, 1, -inf, -tiny, -2 tiny.
    const uint16_t logits[2][8] = {
        {0x7e00, 0xbc00, 0x0001, 0x7c00, 0x3c00, 0xfc00, 0x8001, 0x8002},
        // Three numbers above -inf.
        {0x7e00, 0xbc00, 0x7e00, 0xfc00, 0x7e00, 0x7e00, 0x8001, 0x8002}};
    rig.forward([&] {
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(2));
        routecap_logits l{};
        l.struct_size = sizeof l;
        l.dtype = ROUTECAP_DTYPE_F16;
        l.logits = rig.device().upload(logits, sizeof logits);
        l.rows = 2;
        const routecap_router router = router_of(ROUTECAP_METHOD_TOPK);
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_layer_route(rig.capturer(), 0, &router, &l, rig.stream()));
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    });
    const routecap_request r = rig.open();
    rig.land(rig.issue({Rig::span(r, 0, 0, 2)}));
    using Ids = std::vector<int64_t>;
    rig.expect(r, 0, {{Ids{3, 4, 2}}, {Ids{6, 7, 1}}});
}

// Rows go where record would put them: live counts, index lists, rows written before.
TEST(Route, rows_are_placed_as_by_record) {
    std::mt19937_64 random(3);
    Rig rig({.shape = {.layers = 1, .k = 2, .experts = 40, .rows = 12},
             .layer_provenance = {kRecomputed}});
    const std::vector<float> logits = permuted(6, 40, random);
    const std::vector<int32_t> index = {7, -1, 2, 11, 30, 4};
    const int32_t live = 5;
    rig.forward([&] {
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(12));
        EXPECT_STATUS(ROUTECAP_OK, rig.record(0, {{8, 9}}, 2));  // first, so it stays
        routecap_logits l = logits_of(rig, logits, 6);
        l.row_index =
            static_cast<const int32_t *>(rig.device().upload(index.data(), index.size() * 4));
        l.live_rows = static_cast<const int32_t *>(rig.device().upload(&live, 4));
        const routecap_router router = router_of(ROUTECAP_METHOD_TOPK);
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_layer_route(rig.capturer(), 0, &router, &l, rig.stream()));
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    });
    const routecap_request r = rig.open();
    const routecap_step step = rig.issue({Rig::span(r, 0, 0, 12)});
    uint64_t conflicting = 0;
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_finalize(rig.capturer(), step, -1, &conflicting));
    EXPECT_EQ(conflicting, 1u);
    Rows expected = missing_rows(rig.shape(), 12);
    for (size_t i : {size_t{0}, size_t{3}})
        expected[static_cast<size_t>(index[i])][0] =
            best(std::vector<float>(logits.begin() + static_cast<ptrdiff_t>(i) * 40,
                                    logits.begin() + static_cast<ptrdiff_t>(i + 1) * 40),
                 2);
    expected[2][0] = std::vector<int64_t>{8, 9};
    rig.expect(r, 0, expected);
    EXPECT_EQ(rig.stats().rows_dropped, 1u);
}

// Who reads strictly gets what was captured, unless he takes what was recomputed.
TEST(Route, provenance_is_seen_and_refused) {
    std::mt19937_64 random(4);
    Rig rig({.shape = {.layers = 3, .k = 2, .experts = 16, .rows = 8},
             .layer_provenance = {0, kRecomputed, 0}});
    const routecap_request r = rig.open(), other = rig.open();
    const std::vector<float> logits = permuted(4, 16, random);
    const routecap_router router = router_of(ROUTECAP_METHOD_TOPK);
    rig.forward([&] {
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(8));
        const routecap_logits l = logits_of(rig, logits, 4);
        rig.record_tokens(0, {{1, 0, 4}});
        rig.record_tokens(2, {{1, 0, 3}});
        EXPECT_STATUS(ROUTECAP_ERR_STATE,
                      routecap_layer_route(rig.capturer(), 0, &router, &l, rig.stream()));
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_layer_route(rig.capturer(), 1, &router, &l, rig.stream()));
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    });
    rig.land(rig.issue({Rig::span(r, 0, 0, 4)}));

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

    const auto extract = [&](uint64_t rows, uint32_t flags) {
        routecap_routing *out = nullptr;
        const int32_t status = routecap_request_extract(rig.capturer(), r, 0, rows,
                                                        ROUTECAP_EXTRACT_SHARE, flags, &out);
        routecap_routing_free(out);
        return status;
    };
    EXPECT_STATUS(ROUTECAP_ERR_INCOMPLETE,
                  extract(4, ROUTECAP_READ_STRICT | ROUTECAP_READ_ALLOW_RECOMPUTED));
    EXPECT_STATUS(ROUTECAP_ERR_RECOMPUTED, extract(3, ROUTECAP_READ_STRICT));
    EXPECT_STATUS(ROUTECAP_OK, extract(3, ROUTECAP_READ_STRICT | ROUTECAP_READ_ALLOW_RECOMPUTED));
    EXPECT_STATUS(ROUTECAP_OK, extract(3, ROUTECAP_READ_ALLOW_RECOMPUTED));
    EXPECT_STATUS(ROUTECAP_OK, extract(0, ROUTECAP_READ_STRICT));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, extract(3, 4));

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

// Ranks that each have a layer: what is recomputed on one is recomputed in the union.
TEST(Route, a_union_remembers) {
    const auto rank = [](int32_t layer, int32_t provenance) {
        auto rig =
            std::make_unique<Rig>(Options{.shape = {.layers = 1, .k = 2, .experts = 16, .rows = 4},
                                          .layer_map = {layer},
                                          .layer_provenance = {provenance}});
        const routecap_request r = rig->open();
        rig->land(rig->step({{r, {1, 0, 4}}}));
        return RoutingPtr(rig->finish(r, 4));
    };
    const RoutingPtr a = rank(3, ROUTECAP_PROVENANCE_CAPTURED), b = rank(5, kRecomputed),
                     c = rank(3, kRecomputed);
    for (const auto &[first, second, layers, cells] :
         {std::tuple{&a, &b, 2u, 4u}, {&a, &c, 1u, 4u}}) {
        const routecap_routing *both[] = {first->get(), second->get()};
        for (const routecap_routing *routing : both)
            EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(routing, -1));
        routecap_routing *merged = nullptr;
        ASSERT_STATUS(ROUTECAP_OK, routecap_routing_merge(both, 2, 0, &merged));
        const RoutingPtr owner(merged);
        EXPECT_EQ(view_of(merged).layers, layers);
        EXPECT_EQ(view_of(merged).layer_provenance[layers - 1], ROUTECAP_PROVENANCE_RECOMPUTED);
        routecap_coverage coverage{};
        coverage.struct_size = sizeof coverage;
        EXPECT_STATUS(ROUTECAP_OK, routecap_routing_coverage(merged, &coverage, nullptr, 0, 0));
        EXPECT_EQ(coverage.cells_recomputed, cells);
    }
}

TEST(Route, refusals) {
    Rig rig({.shape = {.layers = 3, .k = 2, .experts = 2000, .rows = 8},
             .layer_experts = {24, 2000, 66},
             .layer_provenance = {kRecomputed, kRecomputed, kRecomputed}});
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
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_LAYER, route(same, 3));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, route(same, 1));  // more experts than can be routed
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE, route([](auto &r, auto &) { r.struct_size = 8; }));
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE, route([](auto &, auto &l) { l.struct_size = 8; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, route([](auto &r, auto &) { r.score = 4; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, route([](auto &r, auto &) { r.score = -1; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, route([](auto &r, auto &) { r.group_score = 3; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, route([](auto &r, auto &) { r.group_score = -1; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, route([](auto &r, auto &) { r.flags = 32; }));
    // 24 experts.
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  route([](auto &r, auto &) { r.groups = 5, r.groups_kept = 2; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  route([](auto &r, auto &) { r.groups = 4, r.groups_kept = 5; }));
    // 66 experts.
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  route([](auto &r, auto &) { r.groups = 33, r.groups_kept = 2; }, 2));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, route([](auto &r, auto &) { r.groups = 4; }));
    // One expert, k is 2.
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  route([](auto &r, auto &) { r.groups = 24, r.groups_kept = 1; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, route([](auto &r, auto &) { r.scale = NAN; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, route([](auto &r, auto &) { r.floor = INFINITY; }));
    EXPECT_STATUS(ROUTECAP_ERR_DTYPE, route([&](auto &r, auto &) { r.bias = device; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, route([](auto &r, auto &) { r.hash_tokens = 3; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, route([&](auto &r, auto &) {
                      r.hash_table = static_cast<const int32_t *>(device);
                  }));
    EXPECT_STATUS(ROUTECAP_ERR_DTYPE, route([](auto &, auto &l) { l.dtype = ROUTECAP_DTYPE_I32; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, route([](auto &, auto &l) { l.logits = nullptr; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, route([](auto &, auto &l) { l.experts = 25; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, route([](auto &, auto &l) { l.experts = 1; }));
    const auto hashed = [&](auto &r, auto &l) {
        r = router_of(ROUTECAP_METHOD_DEEPSEEK_V4);
        r.hash_table = static_cast<const int32_t *>(device), r.hash_tokens = 8;
        l.logits = nullptr, l.dtype = 0;
        l.tokens = device, l.tokens_dtype = ROUTECAP_DTYPE_I32;
    };
    EXPECT_STATUS(ROUTECAP_OK, route([&](auto &r, auto &l) { hashed(r, l), l.first_row = 7; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  route([&](auto &r, auto &l) { hashed(r, l), l.tokens = nullptr; }));
    EXPECT_STATUS(ROUTECAP_ERR_DTYPE, route([&](auto &r, auto &l) {
                      hashed(r, l), l.tokens_dtype = ROUTECAP_DTYPE_I16;
                  }));
    EXPECT_STATUS(ROUTECAP_ERR_DTYPE,
                  route([&](auto &r, auto &l) { hashed(r, l), l.dtype = ROUTECAP_DTYPE_I32; }));
    auto *weights = static_cast<float *>(rig.device().allocate(8));
    // Of no logits.
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  route([&](auto &r, auto &l) { hashed(r, l), l.weights = weights; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  route([&](auto &, auto &l) { l.weights = weights, l.weights_stride = 1; }));
    EXPECT_STATUS(ROUTECAP_ERR_CAPACITY, route([](auto &, auto &l) { l.first_row = 8; }));
    EXPECT_STATUS(ROUTECAP_ERR_CAPACITY, route([](auto &, auto &l) { l.rows = 9; }));
    EXPECT_STATUS(ROUTECAP_OK, route([](auto &, auto &l) { l.rows = 0; }));
    EXPECT_STATUS(ROUTECAP_OK, route(same));
    routecap_router router;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_router_init(&router, sizeof router, 0));
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
