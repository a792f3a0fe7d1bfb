// Silent zeros and stale rows: layers that do not write, engines that do not finalize, rows that
// belong to nobody.
#include <rig.h>

using namespace rig;

// A kernel that routes internally exposed no ids, so one layer's hook never ran and its rows were
// zeros.
TEST(Scenario, F01_router_inside_a_fused_kernel) {
    Rig rig({.shape = {.layers = 4, .k = 8, .experts = 64, .rows = 16}});
    const routecap_request other = rig.open(), request = rig.open();
    rig.land(rig.step({{other, {1, 0, 16}}}));  // older contents of the sink, all layers

    rig.forward([&] {
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(16));
        for (uint32_t layer : {0u, 1u, 3u}) rig.record_tokens(layer, {{2, 0, 16}});
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    });
    rig.land(rig.issue({Rig::span(request, 0, 0, 16)}));

    Rows expected = routed_rows(rig.shape(), 2, 0, 16);
    for (Row &row : expected) row[2].reset();
    rig.expect(request, 0, expected);
    const auto layers = rig.layer_stats();
    EXPECT_EQ(layers[2].rows_written, 16u);  // of the older step
    EXPECT_EQ(layers[2].unwritten, 16u);
    EXPECT_EQ(layers[2].silent_steps, 1u);
    for (uint32_t l : {0u, 1u, 3u}) {
        EXPECT_EQ(layers[l].rows_written, 32u);
        EXPECT_EQ(layers[l].silent_steps, 0u);
    }
    EXPECT_EQ(rig.stats().silent_layers, 1u);
    EXPECT_EQ(rig.stats().cells_unwritten, 16u);
}

// The same for bound sinks, of every width: the fused kernels write layers 0, 1 and 3 themselves.
TEST(Scenario, F01_bound_layers_of_every_width) {
    for (int32_t dtype : {ROUTECAP_DTYPE_I16, ROUTECAP_DTYPE_I32, ROUTECAP_DTYPE_I64}) {
        Rig rig({.shape = {.layers = 4, .k = 8, .experts = 64, .rows = 16}, .sink_dtype = dtype});
        const routecap_request request = rig.open();
        rig.forward([&] {
            EXPECT_STATUS(ROUTECAP_OK, rig.begin(16));
            for (uint32_t layer : {0u, 1u, 3u}) {
                routecap_sink sink{};
                sink.struct_size = sizeof sink;
                EXPECT_STATUS(ROUTECAP_OK, routecap_sink_layer(rig.capturer(), layer, &sink));
                EXPECT_EQ(sink.dtype, dtype);
                EXPECT_EQ(sink.row_stride, 8);
                const auto write = [&]<class T>(T) {
                    std::vector<T> ids;
                    for (uint32_t row = 0; row < 16; row++)
                        for (int64_t id : routed(rig.shape(), 2, row, layer))
                            ids.push_back(static_cast<T>(id));
                    rig.device().write(sink.ids, ids.data(), ids.size() * sizeof(T));
                };
                if (dtype == ROUTECAP_DTYPE_I16) write(int16_t{});
                if (dtype == ROUTECAP_DTYPE_I32) write(int32_t{});
                if (dtype == ROUTECAP_DTYPE_I64) write(int64_t{});
            }
            EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
        });
        rig.land(rig.issue({Rig::span(request, 0, 0, 16)}));
        Rows expected = routed_rows(rig.shape(), 2, 0, 16);
        for (Row &row : expected) row[2].reset();
        rig.expect(request, 0, expected);
        EXPECT_EQ(rig.layer_stats()[2].rows_written, 0u);
    }
}

// An exception handler swallowed a configuration error: the answer was a well-formed array of
// zeros.
TEST(Scenario, F02_total_silence) {
    Rig rig({.shape = {.layers = 40, .k = 8, .experts = 256, .rows = 256}});
    const routecap_request request = rig.open();
    uint64_t position = 0;
    bool first = true;
    for (uint32_t rows : {200u, 200u, 146u}) {
        rig.forward([&] {
            EXPECT_STATUS(ROUTECAP_OK, rig.begin(rows));
            EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
        });
        rig.land(rig.issue({Rig::span(request, position, 0, rows)}));
        position += rows;
        if (first) {  // an engine can stop at start-up
            EXPECT_EQ(rig.stats().silent_layers, 40u);
            for (const auto &layer : rig.layer_stats()) EXPECT_EQ(layer.silent_steps, 1u);
            first = false;
        }
    }
    const RoutingPtr routing(rig.extract(request, 0, 546, ROUTECAP_NOT_CAPTURED));
    expect_routing(routing.get(), rig.shape(), 0, missing_rows(rig.shape(), 546));
    const routecap_stats stats = rig.stats();
    EXPECT_EQ(stats.rows_missing, 546u);
    EXPECT_EQ(stats.rows_delivered, 0u);
    EXPECT_EQ(stats.cells_unwritten, 546u * 40);

    // Distinct from disabled, and from no such request.
    Rig off({.role = ROUTECAP_ROLE_DISABLED});
    off.extract(request, 0, 546, ROUTECAP_ERR_DISABLED);
    rig.close(request);
    rig.extract(request, 0, 546, ROUTECAP_ERR_UNKNOWN_REQUEST);
}

// The same without begin, and without a snapshot: visible, refused nowhere.
TEST(Scenario, F02_forgotten_calls) {
    Rig rig;
    const routecap_request request = rig.open();
    rig.land(rig.step({{request, {1, 0, 4}}}));

    rig.record_all({{2, 4, 4}});  // no begin
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    rig.land(rig.issue({Rig::span(request, 4, 0, 4)}));

    EXPECT_STATUS(ROUTECAP_OK, rig.begin(4));  // no snapshot
    rig.record_all({{3, 8, 4}});
    rig.land(rig.issue({Rig::span(request, 8, 0, 4)}));

    EXPECT_STATUS(ROUTECAP_OK, rig.begin(4));  // two snapshots
    rig.record_all({{4, 12, 4}});
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    rig.land(rig.issue({Rig::span(request, 12, 0, 4)}));

    rig.land(rig.issue({Rig::span(request, 16, 0, 4)}));  // nothing at all

    rig.land(rig.step({{request, {5, 20, 4}}}));  // all is well again
    rig.expect(request, 0,
               routed_rows(rig.shape(), 1, 0, 4) + missing_rows(rig.shape(), 16) +
                   routed_rows(rig.shape(), 5, 20, 24));
    EXPECT_EQ(rig.stats().rows_missing, 16u);
    // Four rows in each of four layers, recorded without a begin.
    EXPECT_EQ(rig.stats().rows_dropped, 16u);
}

// A snapshot after an issue that had none must not cover what the forward before had begun.
TEST(Scenario, F02_issue_disarms) {
    Rig rig;
    const routecap_request request = rig.open();
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(4));
    rig.record_all({{1, 0, 4}});
    rig.land(rig.issue({Rig::span(request, 0, 0, 4)}));  // no snapshot
    // Of the next forward, which forgot its begin.
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    rig.land(rig.issue({Rig::span(request, 4, 0, 4)}));
    rig.expect(request, 0, missing_rows(rig.shape(), 8));
}

// The prefill worker never finalized; every prompt row read as zeros.
TEST(Scenario, F03_prefill_that_nobody_finalized) {
    Rig rig({.shape = {.rows = 64}, .held = true});
    const routecap_request request = rig.open();
    const routecap_step step = rig.step({{request, {1, 0, 64}}});
    EXPECT_STATUS(ROUTECAP_PENDING, routecap_step_poll(rig.capturer(), step));
    rig.extract(request, 0, 64, ROUTECAP_ERR_NOT_READY);
    EXPECT_EQ(rig.stats().rows_in_flight, 64u);
    rig.open_gate();
    rig.land(step);
    rig.expect(request, 0, routed_rows(rig.shape(), 1, 0, 64));
    EXPECT_EQ(rig.stats().rows_in_flight, 0u);

    const uint64_t before = rig.stats().bytes_in_use;
    const routecap_request freed = rig.open();
    rig.step({{freed, {2, 0, 64}}});
    EXPECT_GT(rig.stats().bytes_in_use, before);
    rig.close(freed);
    rig.open_gate();
    EXPECT_EQ(rig.stats().rows_late, 64u);
    EXPECT_EQ(rig.stats().bytes_in_use, before);
}

// Padding rows of a graph kept older ids, and clamping them to slot 0 raced with the real row
// there.
TEST(Scenario, F04_padding_rows_of_a_replay) {
    Rig rig({.shape = {.rows = 8}});
    const routecap_request a = rig.open(), b = rig.open();
    const auto graph = [&](uint64_t seed, uint64_t position) {  // of eight rows, whatever is live
        rig.forward([&] {
            EXPECT_STATUS(ROUTECAP_OK, rig.begin(8));
            rig.record_all({{seed, position, 8}});
            EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
        });
    };
    graph(1, 0);
    rig.land(rig.issue({Rig::span(a, 0, 0, 1), Rig::span(b, 0, 1, 7)}));
    graph(2, 0);
    rig.land(rig.issue({Rig::span(a, 1, 0, 1), Rig::span(b, 7, 1, 4)}));

    rig.expect(a, 0, {routed_row(rig.shape(), 1, 0), routed_row(rig.shape(), 2, 0)});
    rig.expect(b, 0, routed_rows(rig.shape(), 1, 1, 8) + routed_rows(rig.shape(), 2, 1, 5));
    rig.expect_length(a, 2);
    rig.expect_length(b, 11);
    EXPECT_EQ(rig.stats().rows_delivered, 13u);
}

// A host cache tier restored KV into other slots while routing stayed where it was: rows of a
// former owner.
TEST(Scenario, F05_moved_cache) {
    Rig rig({.shape = {.rows = 40}});
    const routecap_request a = rig.open();
    rig.land(rig.step({{a, {1, 0, 32}}}));
    rig.close(a);
    rig.bytes_in_use();
    const routecap_request b = rig.open();
    rig.land(rig.step({{b, {2, 32, 8}}}));  // 32 tokens came from the cache
    rig.expect(b, 0, missing_rows(rig.shape(), 32) + routed_rows(rig.shape(), 2, 32, 40));
    rig.expect(b, 32, routed_rows(rig.shape(), 2, 32, 40));
}

// Who knows the routing of the cached prefix can supply it.
TEST(Scenario, F05_attached_prefix) {
    Rig rig({.shape = {.rows = 40}});
    const routecap_request a = rig.open(), b = rig.open();
    rig.land(rig.step({{a, {1, 0, 40}}}));
    const RoutingPtr routing(rig.finish(a, 40));
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_attach(rig.capturer(), b, routing.get(), 32));
    rig.land(rig.step({{b, {2, 32, 8}}}));
    rig.expect(b, 0, routed_rows(rig.shape(), 1, 0, 32) + routed_rows(rig.shape(), 2, 32, 40));
    expect_routing(routing.get(), rig.shape(), 0, routed_rows(rig.shape(), 1, 0, 40));
}
