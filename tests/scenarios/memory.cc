// Memory and lifetime: budgets, aborts, destroy, and a capturer that is off.
#include <rig.h>

using namespace rig;

// Memory followed everything ever seen, or the longest possible.
TEST(Scenario, F27_memory_is_bounded) {
    constexpr uint64_t kBudget = 64 << 20;
    Rig rig({.shape = {.layers = 58, .k = 8, .experts = 256, .rows = 64}, .budget_bytes = kBudget});
    const uint64_t before = rig.bytes_in_use();
    EXPECT_EQ(before, 0u);
    for (int i = 0; i < 100000; i += 4) {
        routecap_request r[4];
        ASSERT_STATUS(ROUTECAP_OK, routecap_request_open(rig.capturer(), nullptr, r, 4));
        EXPECT_STATUS(ROUTECAP_OK, routecap_step_begin(rig.capturer(), 4, rig.stream()));
        EXPECT_STATUS(ROUTECAP_OK, routecap_step_snapshot(rig.capturer(), rig.stream()));
        std::vector<routecap_span> spans;
        for (uint32_t j = 0; j < 4; j++) spans.push_back(Rig::span(r[j], 0, j, 1));
        routecap_step step = 0;
        const int32_t status = routecap_step_issue(rig.capturer(), spans.data(), sizeof spans[0], 4,
                                                   nullptr, nullptr, &step, rig.stream());
        ASSERT_TRUE(status == ROUTECAP_OK || status == ROUTECAP_LOST);
        ASSERT_STATUS(ROUTECAP_OK, routecap_request_close_batch(rig.capturer(), r, nullptr, 4));
    }
    EXPECT_EQ(rig.bytes_in_use(), before);
    EXPECT_LE(rig.stats().bytes_peak, kBudget);

    const routecap_request far = rig.open();
    rig.land(rig.step({{far, {1, 900000, 64}}}));
    routecap_config config;
    ASSERT_STATUS(ROUTECAP_OK, routecap_config_init(&config, sizeof config));
    config.backend = backend();
    config.layers = 58, config.k = 8, config.experts = 256, config.rows = 64;
    routecap_memory memory{};
    memory.struct_size = sizeof memory;
    ASSERT_STATUS(ROUTECAP_OK, routecap_config_memory(&config, &memory));
    const uint64_t pages = (900063 / memory.page_rows) - (900000 / memory.page_rows) + 1;
    EXPECT_EQ(rig.stats().bytes_in_use, pages * memory.page_bytes);  // its own pages only
    rig.expect(far, 900000, routed_rows(rig.shape(), 1, 900000, 900064));
    const RoutingPtr all(rig.extract(far, 0, 900064, ROUTECAP_INCOMPLETE));
    EXPECT_EQ(view_of(all.get()).rows, 900064u);
}

// Beyond the budget rows are refused, counted and missing; nothing already captured is lost, and no
// other request suffers.
TEST(Scenario, F27_exhaustion) {
    const Shape shape{.layers = 4, .k = 2, .experts = 16, .rows = 512};
    routecap_config config;
    ASSERT_STATUS(ROUTECAP_OK, routecap_config_init(&config, sizeof config));
    config.backend = backend();
    config.layers = shape.layers, config.k = shape.k, config.experts = shape.experts,
    config.rows = shape.rows;
    routecap_memory memory{};
    memory.struct_size = sizeof memory;
    ASSERT_STATUS(ROUTECAP_OK, routecap_config_memory(&config, &memory));
    const uint32_t page = memory.page_rows;

    Rig rig({.shape = shape, .budget_bytes = 3 * memory.page_bytes});
    const routecap_request a = rig.open(), b = rig.open();
    rig.land(rig.step({{a, {1, 0, page}}, {b, {2, 0, 10}}}));  // one page each
    EXPECT_EQ(rig.stats().bytes_in_use, 2 * memory.page_bytes);
    rig.land(rig.step({{a, {1, page, page}}}));  // the third
    rig.run({{1, 2 * page, 5}, {2, 10, 5}});
    std::vector<int32_t> status;
    rig.land(rig.issue({Rig::span(a, 2 * page, 0, 5), Rig::span(b, 10, 5, 5)}, ROUTECAP_PARTIAL,
                       &status));
    EXPECT_EQ(status, (std::vector<int32_t>{ROUTECAP_ERR_NO_MEMORY, ROUTECAP_OK}));
    EXPECT_EQ(rig.stats().rows_refused, 5u);
    EXPECT_EQ(rig.stats().bytes_in_use, 3 * memory.page_bytes);
    EXPECT_EQ(rig.stats().bytes_peak, 3 * memory.page_bytes);
    rig.expect(a, 0, routed_rows(shape, 1, 0, 2 * page) + missing_rows(shape, 5));
    rig.expect(b, 0, routed_rows(shape, 2, 0, 15));

    // What a caller holds counts; what it frees is there again.
    RoutingPtr held(rig.extract(a, 0, page, ROUTECAP_OK, ROUTECAP_EXTRACT_TAKE));
    rig.run({{1, 2 * page, 5}});
    rig.issue({Rig::span(a, 2 * page, 0, 5)}, ROUTECAP_PARTIAL);
    held.reset();
    rig.land(rig.step({{a, {1, 2 * page, 5}}}));
    rig.expect(a, 0, missing_rows(shape, page) + routed_rows(shape, 1, page, 2 * page + 5));

    // A copy is refused whole.
    rig.extract(a, page, page, ROUTECAP_ERR_NO_MEMORY, ROUTECAP_EXTRACT_COPY);
}

// Buffers of finished requests leaked; a second free went wrong; teardown raced with the last copy.
TEST(Scenario, F28_aborts_and_destroy) {
    {
        Rig rig({.shape = {.rows = 64}, .slots = 64, .held = true});
        for (int round = 0; round < 20; round++) {
            std::vector<routecap_request> requests;
            for (int i = 0; i < 50; i++) {
                requests.push_back(rig.open());
                rig.step({{requests.back(), {1, 0, 1}}});
            }
            for (routecap_request r : requests) rig.close(r);
            for (routecap_request r : requests)
                EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_REQUEST,
                              routecap_request_close(rig.capturer(), r));
            rig.open_gate();
        }
        EXPECT_EQ(rig.stats().rows_late, 1000u);
        EXPECT_EQ(rig.stats().bytes_in_use, 0u);
        EXPECT_EQ(rig.stats().requests_open, 0u);
        EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_REQUEST,
                      routecap_request_close(rig.capturer(), 0x123456789));
        EXPECT_STATUS(ROUTECAP_OK, routecap_request_close(rig.capturer(), 0));
    }
    {
        RoutingPtr routing;
        {
            Rig rig({.held = true});
            const routecap_request r = rig.open();
            rig.step({{r, {1, 0, 4}}});
            rig.step({{r, {1, 4, 4}}});
            routing.reset(rig.finish(r, 8));
            EXPECT_STATUS(ROUTECAP_PENDING, routecap_step_poll(rig.capturer(), 2));
        }  // destroyed with two copies in flight
        EXPECT_STATUS(ROUTECAP_OK, routecap_routing_poll(routing.get()));
        expect_routing(routing.get(), Shape{}, 0, routed_rows(Shape{}, 1, 0, 8));
    }
    routecap_capturer_destroy(nullptr);
    routecap_routing_free(nullptr);
}

// Capture initialisation ran although the feature was disabled, and throughput fell.
TEST(Scenario, F29_off_is_off) {
    Rig rig({.role = ROUTECAP_ROLE_DISABLED});
    routecap_capturer *c = rig.capturer();
    routecap_request r[2] = {7, 7};
    routecap_step step = 7;
    routecap_sink sink{};
    sink.struct_size = sizeof sink;
    const routecap_span span = Rig::span(1, 0, 0, 1);
    routecap_accept_item accept{};
    routecap_finish_item finish{};
    routecap_extract_item extract{};
    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    routecap_routing *routing = reinterpret_cast<routecap_routing *>(8);
    uint64_t conflicting = 7;
    EXPECT_STATUS(ROUTECAP_OK, routecap_sink_bind(c, 0, 1, nullptr));
    EXPECT_STATUS(ROUTECAP_OK, routecap_sink_layer(c, 99, &sink));
    EXPECT_EQ(sink.ids, nullptr);
    EXPECT_STATUS(ROUTECAP_OK, routecap_layer_record(c, 99, nullptr, nullptr));
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_begin(c, UINT32_MAX, nullptr));
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_snapshot(c, nullptr));
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_step_issue(c, &span, sizeof span, 1, nullptr, nullptr, &step, nullptr));
    EXPECT_EQ(step, 0u);
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_discard(c, nullptr));
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_poll(c, step));
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_finalize(c, step, -1, &conflicting));
    EXPECT_EQ(conflicting, 0u);
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_open(c, nullptr, r, 2));
    EXPECT_EQ(r[0] | r[1], 0u);
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_accept(c, 0, 0, nullptr, 3));
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_accept_batch(c, &accept, sizeof accept, 1));
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(c, 0, 0));
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_fork(c, 0, 0, &r[0]));
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_attach(c, 0, nullptr, 0));
    EXPECT_STATUS(ROUTECAP_ERR_DISABLED,
                  routecap_request_coverage(c, 0, 0, 0, &coverage, nullptr, 0, 0));
    EXPECT_STATUS(ROUTECAP_ERR_DISABLED, routecap_request_extract(c, 0, 0, 0, 0, 0, &routing));
    EXPECT_EQ(routing, nullptr);
    EXPECT_STATUS(ROUTECAP_ERR_DISABLED,
                  routecap_request_extract_batch(c, &extract, sizeof extract, 1));
    EXPECT_STATUS(ROUTECAP_ERR_DISABLED, routecap_request_extract_into(c, 0, 0, 0, nullptr, nullptr,
                                                                       0, nullptr, 0, nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_DISABLED, routecap_request_finish(c, 0, 0, &routing));
    EXPECT_STATUS(ROUTECAP_ERR_DISABLED,
                  routecap_request_finish_batch(c, &finish, sizeof finish, 1));
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_close(c, 5));
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_close_batch(c, r, nullptr, 2));
    EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_progress(c));
    const routecap_stats stats = rig.stats();
    EXPECT_EQ(stats.steps_issued | stats.bytes_budget | stats.requests_open, 0u);

    // It needs no memory, whatever else the configuration says.
    routecap_config config;
    ASSERT_STATUS(ROUTECAP_OK, routecap_config_init(&config, sizeof config));
    config.role = ROUTECAP_ROLE_DISABLED;
    routecap_memory memory{};
    memory.struct_size = sizeof memory;
    EXPECT_STATUS(ROUTECAP_OK, routecap_config_memory(&config, &memory));
    EXPECT_EQ(memory.device_bytes | memory.pinned_bytes | memory.host_bytes, 0u);
}

// A tensor-parallel replica makes the same calls on the forward path; its rows go nowhere.
TEST(Scenario, F29_mirror) {
    Rig rig({.role = ROUTECAP_ROLE_MIRROR});
    rig.run({{1, 0, 4}});
    routecap_sink sink{};
    sink.struct_size = sizeof sink;
    EXPECT_STATUS(ROUTECAP_OK, routecap_sink_layer(rig.capturer(), 0, &sink));
    int16_t id = -1;
    rig.device().read(&id, sink.ids, sizeof id);
    EXPECT_EQ(id, routed(rig.shape(), 1, 0, 0)[0]);
    EXPECT_STATUS(ROUTECAP_ERR_CAPACITY, rig.begin(1000));
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_LAYER, rig.record(9, {{1, 2}}));
    routecap_step step = 7;
    const routecap_span span = Rig::span(0, 0, 0, 4);
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_issue(rig.capturer(), &span, sizeof span, 1, nullptr,
                                                   nullptr, &step, rig.stream()));
    EXPECT_EQ(step, 0u);
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_finalize(rig.capturer(), step, -1, nullptr));
    rig.extract(0, 0, 4, ROUTECAP_ERR_DISABLED);
}
