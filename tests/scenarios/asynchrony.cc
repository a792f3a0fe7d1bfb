// Asynchrony: the next step during the copy, calls that block, addresses that move.
#include <rig.h>

using namespace rig;

// Async scheduling let the next forward overwrite the buffer while its copy still ran.
TEST(Scenario, F24_next_step_during_the_copy) {
    Rig rig({.shape = {.layers = 16, .k = 8, .experts = 256, .rows = 64}});
    const routecap_request a = rig.open(), b = rig.open();
    for (uint64_t i = 0; i < 1000; i++) {
        const routecap_step first = rig.step({{a, {2 * i, 0, 64}}});
        const routecap_step second = rig.step({{b, {2 * i + 1, 0, 64}}});
        rig.land(second);
        rig.land(first);
        for (auto [request, seed] : {std::pair{a, 2 * i}, {b, 2 * i + 1}}) {
            const RoutingPtr routing(
                rig.extract(request, 0, 64, ROUTECAP_OK, ROUTECAP_EXTRACT_TAKE));
            ASSERT_EQ(contents(routing.get(), rig.shape()), routed_rows(rig.shape(), seed, 0, 64));
        }
    }
    EXPECT_EQ(rig.stats().rows_delivered, 128000u);
    EXPECT_EQ(rig.stats().rows_overlapped, 0u);
}

// A call that waits for the device stalls the engine. While nothing can land, every call of the
// forward path still returns, as many steps as may be in flight are kept, and those beyond are lost,
// visibly.
TEST(Scenario, F25_no_call_waits_for_landing) {
    Rig rig({.shape = {.layers = 8, .rows = 64},
             .slots = 3,
             .flags = ROUTECAP_CONFIG_MAY_LOSE,
             .held = true});
    const routecap_request r = rig.open();
    std::vector<routecap_step> steps;
    for (uint64_t i = 0; i < 3; i++) steps.push_back(rig.step({{r, {1, 5 * i, 5}}}));
    rig.run({{1, 15, 5}});
    std::vector<int32_t> status;
    const routecap_step lost = rig.issue({Rig::span(r, 15, 0, 5)}, ROUTECAP_LOST, &status);
    EXPECT_EQ(status, std::vector<int32_t>{ROUTECAP_OK});
    EXPECT_STATUS(ROUTECAP_LOST, routecap_step_poll(rig.capturer(), lost));  // landed at once
    for (routecap_step step : steps)
        EXPECT_STATUS(ROUTECAP_PENDING, routecap_step_poll(rig.capturer(), step));
    EXPECT_STATUS(ROUTECAP_LOST, routecap_step_finalize(rig.capturer(), lost, -1, nullptr));
    rig.extract(r, 0, 20, ROUTECAP_ERR_NOT_READY);
    rig.expect_length(r, 20);

    rig.open_gate();
    rig.land(lost, ROUTECAP_LOST);
    rig.land(rig.step({{r, {1, 20, 5}}}));  // no further step is lost
    rig.expect(r, 0,
               routed_rows(rig.shape(), 1, 0, 15) + missing_rows(rig.shape(), 5) +
                   routed_rows(rig.shape(), 1, 20, 25));
    const routecap_stats stats = rig.stats();
    EXPECT_EQ(stats.steps_lost, 1u);
    EXPECT_EQ(stats.rows_lost, 5u);
    EXPECT_EQ(stats.steps_issued, 5u);
    EXPECT_EQ(stats.steps_landed, 5u);
}

// Drafts of a lost step are accepted like others: they count, and are missing.
TEST(Scenario, F25_drafts_of_a_lost_step) {
    Rig rig({.slots = 1, .flags = ROUTECAP_CONFIG_MAY_LOSE, .held = true});
    const routecap_request r = rig.open();
    rig.step({{r, {1, 0, 4}}});
    rig.run({{1, 4, 4}});
    const routecap_step lost =
        rig.issue({Rig::span(r, 4, 0, 4, ROUTECAP_SPAN_SPECULATIVE)}, ROUTECAP_LOST);
    EXPECT_STATUS(ROUTECAP_ERR_OUT_OF_RANGE,
                  routecap_request_accept(rig.capturer(), r, lost, nullptr, 5));
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), r, lost, nullptr, 3));
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_STEP,
                  routecap_request_accept(rig.capturer(), r, lost, nullptr, 1));
    rig.expect_length(r, 7);
    rig.open_gate();
    rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 4) + missing_rows(rig.shape(), 3));
}

// The capturer was created once per graph mode, so older graphs wrote into a dead buffer.
TEST(Scenario, F26_addresses_never_change) {
    Rig rig({.shape = {.layers = 2, .k = 2, .experts = 16, .rows = 8}});
    const auto address = [&](uint32_t layer) {
        routecap_sink sink{};
        sink.struct_size = sizeof sink;
        EXPECT_STATUS(ROUTECAP_OK, routecap_sink_layer(rig.capturer(), layer, &sink));
        return sink;
    };
    const routecap_sink first = address(0);
    auto *other = static_cast<int16_t *>(rig.device().allocate(32 * 2));
    routecap_sink sink{};
    sink.struct_size = sizeof sink;
    sink.dtype = ROUTECAP_DTYPE_I16;
    sink.ids = other;
    sink.rows = 8;
    sink.k = 2;
    // It was given out.
    EXPECT_STATUS(ROUTECAP_ERR_STATE, routecap_sink_bind(rig.capturer(), 0, 1, &sink));
    EXPECT_STATUS(ROUTECAP_OK, routecap_sink_bind(rig.capturer(), 1, 1, &sink));
    EXPECT_STATUS(ROUTECAP_OK, routecap_sink_bind(rig.capturer(), 1, 1, &sink));  // the same again
    EXPECT_EQ(address(1).ids, other);

    // What a graph captured then and one captured later write is the same memory.
    const routecap_request r = rig.open();
    for (uint64_t replay = 0; replay < 4; replay++) {
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(2));
        for (uint32_t layer : {0u, 1u})
            for (uint32_t row = 0; row < 2; row++) {
                const std::vector<int64_t> ids = routed(rig.shape(), 1, replay * 2 + row, layer);
                const int16_t narrow[] = {static_cast<int16_t>(ids[0]),
                                          static_cast<int16_t>(ids[1])};
                rig.device().write(static_cast<int16_t *>(layer == 0 ? first.ids : other) + row * 2,
                                   narrow, sizeof narrow);
            }
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
        rig.land(rig.issue({Rig::span(r, replay * 2, 0, 2)}));
        EXPECT_EQ(address(0).ids, first.ids);
    }
    rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 8));
    sink.ids = other + 2;
    EXPECT_STATUS(ROUTECAP_ERR_STATE, routecap_sink_bind(rig.capturer(), 1, 1, &sink));
}
