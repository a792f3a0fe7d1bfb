// Requests: positions from the device, reading what has landed, batches, shared sink rows, sizes.
#include <rig.h>

#include <algorithm>
#include <random>

using namespace rig;

namespace {

routecap_issue_options with_positions(const std::vector<int32_t> &positions) {
    routecap_issue_options options{};
    options.struct_size = sizeof options;
    options.positions = positions.data();
    options.positions_dtype = ROUTECAP_DTYPE_I32;
    return options;
}

routecap_span device_span(routecap_request r, uint64_t first, uint64_t end, uint32_t sink_row,
                          uint32_t rows, uint32_t flags = 0) {
    routecap_span s = Rig::span(r, first, sink_row, rows, flags | ROUTECAP_SPAN_DEVICE_POSITIONS);
    s.position_end = end;
    return s;
}

}  // namespace

// With asynchronous scheduling the host knows a range, and the device the position.
TEST(DevicePositions, count_with_their_bound_until_they_land) {
    Rig rig({.held = true});
    const routecap_request r = rig.open();
    rig.land(rig.step({{r, {1, 0, 5}}}));
    const std::vector<int32_t> positions = {7, 8};
    const routecap_issue_options options = with_positions(positions);
    rig.run({{1, 7, 2}});
    rig.issue({device_span(r, 5, 10, 0, 2)}, ROUTECAP_OK, nullptr, &options);
    rig.expect_length(r, 10);
    rig.extract(r, 4, 2, ROUTECAP_ERR_NOT_READY);
    rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 5));
    rig.open_gate();
    rig.expect_length(r, 9);
    rig.expect(r, 0,
               routed_rows(rig.shape(), 1, 0, 5) + missing_rows(rig.shape(), 2) +
                   routed_rows(rig.shape(), 1, 7, 9));
    rig.extract(r, 9, 1, ROUTECAP_ERR_OUT_OF_RANGE);

    EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), r, 8));
    rig.expect_length(r, 8);
    rig.open_gate();
    rig.expect_length(r, 8);
    const RoutingPtr routing(rig.finish(r, ROUTECAP_ROWS_ALL));
    rig.open_gate();
    expect_routing(routing.get(), rig.shape(), 0,
                   routed_rows(rig.shape(), 1, 0, 5) + missing_rows(rig.shape(), 2) +
                       routed_rows(rig.shape(), 1, 7, 8));
}

TEST(DevicePositions, outside_their_bounds_are_dropped_and_counted) {
    Rig rig;
    const routecap_request r = rig.open();
    const std::vector<int32_t> positions = {4, -1, 12, 5, 2000000000, 3};
    const routecap_issue_options options = with_positions(positions);
    rig.forward([&] {
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(6));
        rig.record_all({{1, 4, 1}, {2, 0, 2}, {1, 5, 1}, {2, 0, 1}, {1, 3, 1}});
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    });
    rig.land(rig.issue({device_span(r, 3, 12, 0, 6)}, ROUTECAP_OK, nullptr, &options));
    rig.expect(r, 0, missing_rows(rig.shape(), 3) + routed_rows(rig.shape(), 1, 3, 6));
    EXPECT_EQ(rig.stats().rows_unplaced, 3u);
    EXPECT_EQ(rig.stats().rows_delivered, 3u);
}

// One span for a whole tree: as many rows as it has nodes, in fewer positions.
// A bound says where the rows may be, and how many pages they can take follows from their number.
TEST(DevicePositions, a_wide_bound_takes_no_more_of_the_budget) {
    Rig rig({.budget_bytes = 1 << 20});
    const routecap_request r = rig.open();
    const std::vector<int32_t> positions = {5, 900000};
    const routecap_issue_options options = with_positions(positions);
    rig.run({{1, 5, 1}, {1, 900000, 1}});
    rig.land(rig.issue({device_span(r, 0, 1000000, 0, 2)}, ROUTECAP_OK, nullptr, &options));
    for (const uint64_t at : {5u, 900000u}) {
        const RoutingPtr routing(rig.extract(r, at, 1, ROUTECAP_OK));
        expect_routing(routing.get(), rig.shape(), at, routed_rows(rig.shape(), 1, at, at + 1));
    }
}

TEST(DevicePositions, a_tree_in_one_span) {
    Rig rig;
    const routecap_request r = rig.open();
    const std::vector<int32_t> positions = {0, 1, 1, 2, 2, 2};
    const routecap_issue_options options = with_positions(positions);
    rig.forward([&] {
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(6));
        rig.record_all({{1, 0, 1}, {1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {2, 2, 1}, {3, 2, 1}});
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    });
    const routecap_step step = rig.issue({device_span(r, 0, 3, 0, 6, ROUTECAP_SPAN_SPECULATIVE)},
                                         ROUTECAP_OK, nullptr, &options);
    const uint32_t path[] = {0, 2, 4};
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), r, step, path, 3));
    const RoutingPtr routing(rig.finish(r, ROUTECAP_ROWS_ALL));
    EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(routing.get(), -1));
    expect_routing(routing.get(), rig.shape(), 0,
                   routed_rows(rig.shape(), 1, 0, 1) + routed_rows(rig.shape(), 2, 1, 3));
}

TEST(Reading, what_has_landed_of_a_running_request) {
    Rig rig({.held = true});
    const routecap_request r = rig.open();
    rig.land(rig.step({{r, {1, 0, 5}}}));
    rig.step({{r, {1, 5, 3}}});
    rig.extract(r, 0, ROUTECAP_ROWS_ALL, ROUTECAP_ERR_NOT_READY);
    const RoutingPtr landed(rig.extract(r, 2, ROUTECAP_ROWS_LANDED, ROUTECAP_OK));
    expect_routing(landed.get(), rig.shape(), 2, routed_rows(rig.shape(), 1, 2, 5));
    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_coverage(rig.capturer(), r, 0, ROUTECAP_ROWS_LANDED,
                                                         &coverage, nullptr, 0, 0));
    EXPECT_EQ(coverage.rows, 5u);
    EXPECT_EQ(coverage.length, 8u);
    const RoutingPtr none(rig.extract(r, 6, ROUTECAP_ROWS_LANDED, ROUTECAP_OK));
    EXPECT_EQ(view_of(none.get()).rows, 0u);
    int32_t ids[5 * 4 * 2];
    routecap_copy_options options;
    routecap_copy_options_init(&options, sizeof options);
    options.dtype = ROUTECAP_DTYPE_I32;
    uint64_t needed = 0;
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_request_extract_into(rig.capturer(), r, 0, ROUTECAP_ROWS_LANDED,
                                                &options, ids, sizeof ids, nullptr, 0, &needed));
    EXPECT_EQ(needed, sizeof ids);
}

TEST(Reading, strict_takes_nothing_of_what_is_incomplete) {
    Rig rig;
    const routecap_request r = rig.open();
    rig.land(rig.step({{r, {1, 2, 4}}}));
    routecap_routing *routing = nullptr;
    EXPECT_STATUS(ROUTECAP_ERR_INCOMPLETE,
                  routecap_request_extract(rig.capturer(), r, 0, 6, ROUTECAP_EXTRACT_TAKE,
                                           ROUTECAP_READ_STRICT, &routing));
    EXPECT_EQ(routing, nullptr);
    ASSERT_STATUS(ROUTECAP_OK,
                  routecap_request_extract(rig.capturer(), r, 2, 4, ROUTECAP_EXTRACT_TAKE,
                                           ROUTECAP_READ_STRICT, &routing));
    expect_routing(RoutingPtr(routing).get(), rig.shape(), 2, routed_rows(rig.shape(), 1, 2, 6));
    rig.expect(r, 0, missing_rows(rig.shape(), 6));
}

// One token in several sequences.
TEST(Spans, share_a_sink_row) {
    Rig rig;
    const routecap_request a = rig.open(), b = rig.open(), c = rig.open();
    rig.run({{1, 0, 4}});
    rig.land(rig.issue({Rig::span(a, 0, 0, 4), Rig::span(b, 10, 1, 2), Rig::span(c, 0, 3, 1),
                        Rig::span(c, 5, 3, 1)}));
    rig.expect(a, 0, routed_rows(rig.shape(), 1, 0, 4));
    rig.expect(b, 10, routed_rows(rig.shape(), 1, 1, 3));
    rig.expect(c, 0,
               routed_rows(rig.shape(), 1, 3, 4) + missing_rows(rig.shape(), 4) +
                   routed_rows(rig.shape(), 1, 3, 4));
}

TEST(Steps, without_spans_land_at_once) {
    Rig rig({.slots = 1, .held = true});
    const routecap_request r = rig.open();
    for (int i = 0; i < 3; i++) {
        rig.run({{1, 0, 4}});
        EXPECT_STATUS(ROUTECAP_OK, routecap_step_poll(rig.capturer(), rig.issue({})));
    }
    rig.step({{r, {1, 0, 4}}});
    rig.open_gate();
    rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 4));
    EXPECT_EQ(rig.stats().steps_landed, 4u);
}

// Warm-up and profiling runs that are never issued are harmless.
TEST(Steps, discarded_forwards) {
    Rig rig;
    const routecap_request r = rig.open();
    for (int i = 0; i < 5; i++) rig.run({{9, 0, 32}});
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_discard(rig.capturer(), rig.stream()));
    rig.land(rig.issue({Rig::span(r, 0, 0, 2)}));  // there is no forward to take
    rig.run({{9, 0, 32}});
    rig.land(rig.step({{r, {1, 2, 4}}}));
    rig.expect(r, 0, missing_rows(rig.shape(), 2) + routed_rows(rig.shape(), 1, 2, 6));
}

TEST(Steps, snapshot_made_by_issue) {
    Rig rig;
    const routecap_request r = rig.open();
    routecap_issue_options options{};
    options.struct_size = sizeof options;
    options.snapshot = ROUTECAP_SNAPSHOT_MAKE;
    for (uint64_t p : {0u, 4u}) {
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(4));
        rig.record_all({{1, p, 4}});
        rig.land(rig.issue({Rig::span(r, p, 0, 4)}, ROUTECAP_OK, nullptr, &options));
    }
    rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 8));
}

TEST(Steps, one_of_many_spans_is_lost_and_no_other) {
    constexpr uint32_t n = 32;
    Rig rig({.shape = {.layers = 2, .k = 2, .experts = 16, .rows = n},
             .slots = 1,
             .flags = ROUTECAP_CONFIG_MAY_LOSE,
             .held = true});
    routecap_request r[n];
    ASSERT_STATUS(ROUTECAP_OK, routecap_request_open(rig.capturer(), nullptr, r, n));
    std::vector<routecap_span> first, lost;
    for (uint32_t i = 0; i < n; i++)
        first.push_back(Rig::span(r[i], 0, i, 1)), lost.push_back(Rig::span(r[i], 1, i, 1));
    rig.run({{1, 0, n}});
    rig.issue(first);
    rig.run({{2, 0, n}});
    rig.issue(lost, ROUTECAP_LOST);
    rig.open_gate();
    for (uint32_t i = 0; i < n; i++) rig.expect(r[i], 0, {routed_row(rig.shape(), 1, i), Row(2)});
}

// Where all slots hold steps begin files the oldest, and only that one, whether or not there is a
// worker.
TEST(Steps, none_is_lost_on_the_host) {
    if (on_cuda()) GTEST_SKIP() << "on the host backend only";
    for (const uint32_t slots : {1u, 2u, 4u})
        for (const bool manual : {true, false}) {
            Rig rig({.slots = slots, .held = manual});
            const routecap_request r = rig.open();
            for (uint64_t i = 0; i < 200; i++) {
                rig.run({{1, i, 1}});
                if (manual) {
                    EXPECT_EQ(rig.stats().steps_landed, i < slots ? 0 : i + 1 - slots);
                }
                const routecap_span span = Rig::span(r, i, 0, 1);
                ASSERT_STATUS(ROUTECAP_OK,
                              routecap_step_issue(rig.capturer(), &span, sizeof span, 1, nullptr,
                                                  nullptr, nullptr, nullptr));
            }
            rig.open_gate();
            rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 200));
            EXPECT_EQ(rig.stats().steps_lost, 0u);
        }
}

TEST(Steps, tickets_are_numbered) {
    Rig rig;
    const routecap_request r = rig.open();
    for (uint64_t i = 1; i <= 2500; i++) {
        const routecap_step step = rig.step({{r, {1, i, 1}}});
        EXPECT_EQ(step, i);
        rig.land(step);
    }
    for (routecap_step step : {1u, 1000u, 2500u})
        EXPECT_STATUS(ROUTECAP_OK, routecap_step_poll(rig.capturer(), step));
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_STEP, routecap_step_poll(rig.capturer(), 2501));
}

TEST(Batches, report_every_item) {
    Rig rig;
    routecap_request r[3];
    ASSERT_STATUS(ROUTECAP_OK, routecap_request_open(rig.capturer(), nullptr, r, 3));
    const routecap_step step = rig.step({{r[0], {1, 0, 4}}, {r[1], {2, 0, 4}}, {r[2], {3, 0, 4}}},
                                        ROUTECAP_SPAN_SPECULATIVE);
    const uint32_t rows[] = {1, 3};
    routecap_accept_item accepts[4] = {
        {.request = r[0], .step = step, .rows = nullptr, .count = 3, .status = 9, .reserved = 0},
        {.request = r[1], .step = step, .rows = rows, .count = 2, .status = 9, .reserved = 0},
        {.request = r[2], .step = step, .rows = nullptr, .count = 5, .status = 9, .reserved = 0},
        {.request = 77, .step = step, .rows = nullptr, .count = 0, .status = 9, .reserved = 0}};
    EXPECT_STATUS(ROUTECAP_PARTIAL,
                  routecap_request_accept_batch(rig.capturer(), accepts, sizeof accepts[0], 4));
    EXPECT_EQ(accepts[0].status, ROUTECAP_OK);
    EXPECT_EQ(accepts[1].status, ROUTECAP_OK);
    EXPECT_EQ(accepts[2].status, ROUTECAP_ERR_OUT_OF_RANGE);
    EXPECT_EQ(accepts[3].status, ROUTECAP_ERR_UNKNOWN_REQUEST);
    rig.land(rig.step({{r[0], {1, 3, 1}}}));

    const auto extract = [](routecap_request request, uint64_t extracted) {
        return routecap_extract_item{.request = request,
                                     .first = 0,
                                     .rows = extracted,
                                     .mode = 0,
                                     .flags = 0,
                                     .routing = nullptr,
                                     .status = 9,
                                     .reserved = 0};
    };
    routecap_extract_item extracts[3] = {extract(r[0], ROUTECAP_ROWS_ALL), extract(r[1], 4),
                                         extract(r[2], 1)};
    EXPECT_STATUS(ROUTECAP_PARTIAL,
                  routecap_request_extract_batch(rig.capturer(), extracts, sizeof extracts[0], 3));
    EXPECT_EQ(extracts[0].status, ROUTECAP_OK);
    EXPECT_EQ(extracts[1].status, ROUTECAP_INCOMPLETE);
    EXPECT_EQ(extracts[2].status, ROUTECAP_ERR_OUT_OF_RANGE);
    EXPECT_EQ(extracts[2].routing, nullptr);
    expect_routing(RoutingPtr(extracts[0].routing).get(), rig.shape(), 0,
                   routed_rows(rig.shape(), 1, 0, 4));
    Rows second = missing_rows(rig.shape(), 4);
    second[1] = routed_row(rig.shape(), 2, 1), second[3] = routed_row(rig.shape(), 2, 3);
    expect_routing(RoutingPtr(extracts[1].routing).get(), rig.shape(), 0, second);

    routecap_finish_item finishes[2] = {
        {.request = r[0], .rows = 4, .routing = nullptr, .status = 9, .reserved = 0},
        {.request = 5,
         .rows = 4,
         .routing = reinterpret_cast<routecap_routing *>(8),
         .status = 9,
         .reserved = 0}};
    EXPECT_STATUS(ROUTECAP_PARTIAL,
                  routecap_request_finish_batch(rig.capturer(), finishes, sizeof finishes[0], 2));
    EXPECT_EQ(finishes[0].status, ROUTECAP_OK);
    EXPECT_EQ(finishes[1].status, ROUTECAP_ERR_UNKNOWN_REQUEST);
    EXPECT_EQ(finishes[1].routing, nullptr);
    EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(finishes[0].routing, -1));
    routecap_routing_free(finishes[0].routing);

    // What is reserved is refused while nothing is kept there, item by item.
    accepts[0].reserved = extracts[1].reserved = finishes[0].reserved = 1;
    extracts[1].routing = nullptr;
    EXPECT_STATUS(ROUTECAP_PARTIAL,
                  routecap_request_accept_batch(rig.capturer(), accepts, sizeof accepts[0], 1));
    EXPECT_STATUS(ROUTECAP_PARTIAL, routecap_request_extract_batch(rig.capturer(), extracts + 1,
                                                                   sizeof extracts[0], 1));
    finishes[0].request = r[1];
    EXPECT_STATUS(ROUTECAP_PARTIAL,
                  routecap_request_finish_batch(rig.capturer(), finishes, sizeof finishes[0], 1));
    for (const int32_t refused : {accepts[0].status, extracts[1].status, finishes[0].status})
        EXPECT_EQ(refused, ROUTECAP_ERR_ARGUMENT);
    EXPECT_EQ(extracts[1].routing, nullptr);
    EXPECT_EQ(finishes[0].routing, nullptr);
    EXPECT_EQ(rig.stats().requests_open, 2u);

    const routecap_request closing[3] = {r[0], r[1], 0};
    int32_t status[3];
    EXPECT_STATUS(ROUTECAP_PARTIAL,
                  routecap_request_close_batch(rig.capturer(), closing, status, 3));
    EXPECT_EQ(status[0], ROUTECAP_ERR_UNKNOWN_REQUEST);
    EXPECT_EQ(status[1] | status[2], ROUTECAP_OK);
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_close_batch(rig.capturer(), &r[2], nullptr, 1));
}

// What is to come is fetched ahead of the item at hand: a handle of no request must not be followed
// there.
TEST(Batches, handles_of_no_request_stand_anywhere_among_others) {
    constexpr uint32_t n = 60;
    Rig rig({.shape = {.layers = 2, .k = 2, .experts = 16, .rows = n}});
    routecap_request r[n];
    ASSERT_STATUS(ROUTECAP_OK, routecap_request_open(rig.capturer(), nullptr, r, n));
    const auto is_open = [](uint32_t i) { return i % 3 == 2; };
    std::vector<routecap_span> spans;
    routecap_finish_item items[n]{};
    for (uint32_t i = 0; i < n; i++) {
        if (i % 3 == 0) rig.close(r[i]);
        if (i % 3 == 1) r[i] |= 0xfffff000;
        spans.push_back(Rig::span(r[i], 0, i, 1));
        items[i].request = r[i], items[i].rows = 1;
    }
    rig.run({{1, 0, n}});
    std::vector<int32_t> status;
    rig.issue(spans, ROUTECAP_PARTIAL, &status);
    EXPECT_STATUS(ROUTECAP_PARTIAL,
                  routecap_request_finish_batch(rig.capturer(), items, sizeof *items, n));
    for (uint32_t i = 0; i < n; i++) {
        EXPECT_EQ(status[i], is_open(i) ? ROUTECAP_OK : ROUTECAP_ERR_UNKNOWN_REQUEST) << i;
        EXPECT_EQ(items[i].status, status[i]) << i;
        const RoutingPtr routing(items[i].routing);
        if (!is_open(i)) continue;
        EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(routing.get(), -1));
        expect_routing(routing.get(), rig.shape(), 0, {routed_row(rig.shape(), 1, i)});
    }
}

// ---- Sizes of real models -------------------------------------------------------------------

TEST(Sizes, shapes_of_real_models) {
    for (auto [layers, k, experts] : {std::tuple{92u, 16u, 896u},
                                      {24u, 1u, 128u},
                                      {40u, 22u, 512u},
                                      {23u, 5u, 64u},
                                      {58u, 8u, 256u},
                                      {1u, 32u, 32u},
                                      {1024u, 1u, 1u},
                                      {7u, 32u, 32768u}}) {
        SCOPED_TRACE(std::to_string(layers) + "," + std::to_string(k) + "," +
                     std::to_string(experts));
        const Shape shape{.layers = layers, .k = k, .experts = experts, .rows = 40};
        Rig rig({.shape = shape});
        const routecap_request r = rig.open();
        for (uint64_t p = 0; p < 320; p += 40) rig.land(rig.step({{r, {1, p, 40}}}));
        rig.expect(r, 250, routed_rows(shape, 1, 250, 320));
        const RoutingPtr all(rig.finish(r, 320));
        EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(all.get(), -1));
    }
}

TEST(Sizes, four_thousand_live_requests) {
    const Shape shape{.layers = 24, .k = 1, .experts = 128, .rows = 4096};
    Rig rig({.shape = shape});
    std::vector<routecap_request> requests(4096);
    ASSERT_STATUS(ROUTECAP_OK,
                  routecap_request_open(rig.capturer(), nullptr, requests.data(), requests.size()));
    for (uint64_t p = 0; p < 3; p++) {
        std::vector<std::pair<routecap_request, Tokens>> batch;
        for (uint64_t i = 0; i < requests.size(); i++)
            batch.push_back({requests[(i * 7 + p) % 4096], {(i * 7 + p) % 4096, p, 1}});
        rig.land(rig.step(batch));
    }
    for (uint64_t i = 0; i < requests.size(); i += 97)
        rig.expect(requests[i], 0, routed_rows(shape, i, 0, 3));
    std::vector<routecap_finish_item> items(4096);
    for (uint64_t i = 0; i < 4096; i++)
        items[i] = {
            .request = requests[i], .rows = 3, .routing = nullptr, .status = 0, .reserved = 0};
    ASSERT_STATUS(ROUTECAP_OK, routecap_request_finish_batch(rig.capturer(), items.data(),
                                                             sizeof items[0], items.size()));
    for (auto &item : items) {
        EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(item.routing, -1));
        routecap_routing_free(item.routing);
    }
    EXPECT_EQ(rig.bytes_in_use(), 0u);
}

TEST(Sizes, long_request) {
    const Shape shape{.layers = 24, .k = 1, .experts = 128, .rows = 8192};
    Rig rig({.shape = shape});
    const routecap_request r = rig.open();
    for (uint64_t p = 0; p < 131072; p += 8192) rig.land(rig.step({{r, {1, p, 8192}}}));
    rig.expect_length(r, 131072);
    for (uint64_t p : {0u, 65500u, 131000u}) rig.expect(r, p, routed_rows(shape, 1, p, p + 72));
    const RoutingPtr all(rig.finish(r, 131072));
    EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(all.get(), -1));
    EXPECT_EQ(view_of(all.get()).rows, 131072u);
}

// ---- Operations that follow one another before the first has been applied
// -------------------------

TEST(Interplay, rows_cut_by_truncate_are_not_read_again) {
    Rig rig({.held = true});
    const routecap_request r = rig.open();
    rig.step({{r, {1, 0, 20}}});
    rig.open_gate();
    ASSERT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), r, 10));
    rig.step({{r, {2, 15, 5}}});  // raises the length again
    EXPECT_EQ(rig.extract(r, 0, 15, ROUTECAP_ERR_NOT_READY), nullptr);
    rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 10));
    rig.open_gate();
    rig.expect(r, 0,
               routed_rows(rig.shape(), 1, 0, 10) + missing_rows(rig.shape(), 5) +
                   routed_rows(rig.shape(), 2, 15, 20));
}

TEST(Interplay, rows_cut_by_truncate_are_not_read_again_after_a_lost_step) {
    Rig rig({.slots = 1, .flags = ROUTECAP_CONFIG_MAY_LOSE, .held = true});
    const routecap_request r = rig.open(), other = rig.open();
    rig.step({{r, {1, 0, 20}}});
    rig.open_gate();
    rig.name_slot_again();
    rig.step({{other, {3, 0, 1}}});  // takes the only slot
    ASSERT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), r, 10));
    rig.run({{1, 10, 10}});
    rig.issue({Rig::span(r, 10, 0, 10)}, ROUTECAP_LOST);
    EXPECT_EQ(rig.extract(r, 0, 20, ROUTECAP_ERR_NOT_READY), nullptr);
    rig.open_gate();
    rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 10) + missing_rows(rig.shape(), 10));
}

TEST(Interplay, a_child_has_the_rows_in_flight_whatever_becomes_of_its_parent) {
    for (const char *end : {"close", "finish", "truncate"}) {
        SCOPED_TRACE(end);
        Rig rig({.held = true});
        const routecap_request r = rig.open();
        rig.step({{r, {1, 0, 10}}});
        const routecap_step t = rig.step({{r, {1, 10, 4}}}, ROUTECAP_SPAN_SPECULATIVE);
        ASSERT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), r, t, nullptr, 3));
        routecap_request child = 0;
        ASSERT_STATUS(ROUTECAP_OK,
                      routecap_request_fork(rig.capturer(), r, ROUTECAP_ROWS_ALL, &child));
        RoutingPtr finished;
        if (end == std::string("close")) rig.close(r);
        if (end == std::string("finish")) finished.reset(rig.finish(r, 4));
        if (end == std::string("truncate")) {
            ASSERT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), r, 4));
        }
        rig.open_gate();
        rig.expect(child, 0, routed_rows(rig.shape(), 1, 0, 13));
        if (finished)
            expect_routing(finished.get(), rig.shape(), 0, routed_rows(rig.shape(), 1, 0, 4));
        if (end == std::string("truncate")) rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 4));
    }
}

TEST(Interplay, rows_a_child_has_yet_to_get_cannot_be_taken) {
    Rig rig({.held = true});
    const routecap_request r = rig.open();
    rig.step({{r, {1, 0, 12}}});
    rig.open_gate();
    routecap_request child = 0;
    ASSERT_STATUS(ROUTECAP_OK, routecap_request_fork(rig.capturer(), r, 10, &child));
    EXPECT_EQ(rig.extract(r, 0, 10, ROUTECAP_ERR_NOT_READY, ROUTECAP_EXTRACT_TAKE), nullptr);
    // The others can.
    rig.expect(r, 10, routed_rows(rig.shape(), 1, 10, 12), ROUTECAP_EXTRACT_TAKE);
    // And these be shared.
    rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 10));
    rig.open_gate();
    rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 10), ROUTECAP_EXTRACT_TAKE);
    rig.expect(child, 0, routed_rows(rig.shape(), 1, 0, 10));
}

// Drafts that were cut do not count for the length when they are accepted.
TEST(Interplay, drafts_that_were_cut_do_not_raise_the_length) {
    Rig rig;
    const routecap_request r = rig.open();
    rig.step({{r, {1, 0, 5}}});
    const routecap_step t = rig.step({{r, {1, 12, 4}}}, ROUTECAP_SPAN_SPECULATIVE);
    ASSERT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), r, 10));
    ASSERT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), r, t, nullptr, 4));
    rig.expect_length(r, 5);
    const routecap_step u = rig.step({{r, {1, 8, 4}}}, ROUTECAP_SPAN_SPECULATIVE);
    ASSERT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), r, 10));
    const uint32_t path[] = {0, 3};
    ASSERT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), r, u, path, 2));
    rig.expect_length(r, 9);
    rig.land(u);
    rig.expect(r, 0,
               routed_rows(rig.shape(), 1, 0, 5) + missing_rows(rig.shape(), 3) +
                   routed_rows(rig.shape(), 1, 8, 9));
}

// A change that no step holds up takes effect at once: who reads after it need not try again.
TEST(Interplay, what_was_changed_can_be_read_at_once) {
    Rig rig;
    for (uint64_t i = 0; i < 50; i++) {
        const routecap_request r = rig.open();
        rig.step({{r, {1, 0, 10}}});
        const routecap_step t = rig.step({{r, {1, 10, 4}}}, ROUTECAP_SPAN_SPECULATIVE);
        rig.land(t);
        ASSERT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), r, t, nullptr, 3));
        rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 13));
        ASSERT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), r, 8));
        rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 8));
        routecap_request child = 0;
        ASSERT_STATUS(ROUTECAP_OK, routecap_request_fork(rig.capturer(), r, 6, &child));
        rig.expect(child, 0, routed_rows(rig.shape(), 1, 0, 6));
        ASSERT_STATUS(ROUTECAP_OK, routecap_request_fork(rig.capturer(), r, 6, &child));
        const RoutingPtr taken(rig.extract(r, 0, 8, ROUTECAP_OK, ROUTECAP_EXTRACT_TAKE));
        expect_routing(taken.get(), rig.shape(), 0, routed_rows(rig.shape(), 1, 0, 8));
        ASSERT_STATUS(ROUTECAP_OK, routecap_request_attach(rig.capturer(), r, taken.get(), 5));
        rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 5));
        rig.close(r);
    }
}

// Positions are read as far as a span with device positions goes, and no further.
TEST(Interplay, positions_are_read_no_further_than_needed) {
    Rig rig;
    const routecap_request a = rig.open(), b = rig.open();
    rig.run({{1, 0, 4}, {2, 0, 20}});
    const std::vector<int64_t> positions = {3, 2, 1, 0};  // exactly these
    routecap_issue_options options{};
    options.struct_size = sizeof options;
    options.positions = positions.data();
    options.positions_dtype = ROUTECAP_DTYPE_I64;
    routecap_span first = Rig::span(a, 0, 0, 4, ROUTECAP_SPAN_DEVICE_POSITIONS);
    first.position_end = 4;
    rig.land(rig.issue({first, Rig::span(b, 0, 4, 20)}, ROUTECAP_OK, nullptr, &options));
    for (uint64_t p = 0; p < 4; p++) rig.expect(a, p, routed_rows(rig.shape(), 1, 3 - p, 4 - p));
    rig.expect(b, 0, routed_rows(rig.shape(), 2, 0, 20));
}

// What became of a step is known as long as any older one is in flight, and a step that landed
// stays landed.
TEST(Steps, landed_steps_stay_landed_behind_one_in_flight) {
    Rig rig({.slots = 1, .flags = ROUTECAP_CONFIG_MAY_LOSE, .held = true});
    const routecap_request r = rig.open();
    const routecap_step slow = rig.step({{r, {1, 0, 1}}});
    routecap_step first = 0;
    for (int i = 0; i < 1100; i++) {
        rig.run({{1, 1, 1}});
        const routecap_step t = rig.issue({Rig::span(r, 1, 0, 1)}, ROUTECAP_LOST);
        if (i == 0) first = t;
    }
    EXPECT_STATUS(ROUTECAP_PENDING, routecap_step_poll(rig.capturer(), slow));
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_poll(rig.capturer(), first));
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_finalize(rig.capturer(), first, 0, nullptr));
    rig.open_gate();
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_poll(rig.capturer(), slow));
}

// ---- Many spans ----------------------------------------------------------------------------

namespace {

// One step of 32,768 spans of one row each, of one request.
class ManySpans : public testing::Test {
protected:
    static constexpr uint32_t kSpans = 32768;
    Rig rig{{.shape = {.layers = 1, .k = 1, .experts = 4, .rows = kSpans}}};
    const routecap_request request = rig.open();

    ManySpans() {
        for (uint32_t i = 0; i < kSpans; i++) spans.push_back(Rig::span(request, i, i, 1));
    }
    void issue(int32_t expected) {
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(kSpans));
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
        std::vector<int32_t> status(kSpans, 77);
        routecap_step step = 0;
        EXPECT_STATUS(expected, routecap_step_issue(rig.capturer(), spans.data(), sizeof spans[0],
                                                    spans.size(), nullptr, status.data(), &step,
                                                    rig.stream()));
        if (expected < 0) {
            EXPECT_EQ(step, 0u);
            EXPECT_STATUS(ROUTECAP_OK, routecap_step_discard(rig.capturer(), rig.stream()));
            return;
        }
        EXPECT_EQ(std::count(status.begin(), status.end(), ROUTECAP_OK), kSpans);
        rig.land(step);
        EXPECT_EQ(rig.stats().rows_missing, issued += kSpans);
        rig.expect_length(request, spans.size());
    }
    // In the orders in which a request's spans may come.
    void in_any_order(int32_t expected) {
        issue(expected);
        std::reverse(spans.begin(), spans.end());
        issue(expected);
        std::shuffle(spans.begin(), spans.end(), std::mt19937_64(7));
        issue(expected);
    }
    std::vector<routecap_span> spans;
    uint64_t issued = 0;
};

}  // namespace

TEST_F(ManySpans, of_one_request_may_come_in_any_order) { in_any_order(ROUTECAP_OK); }

TEST_F(ManySpans, that_overlap_are_found_in_any_order) {
    spans[100].position = kSpans - 1;
    in_any_order(ROUTECAP_ERR_OVERLAP);
    EXPECT_EQ(rig.stats().rows_issued, 0u);
}

// A long one over the end of which others lie.
TEST_F(ManySpans, that_lie_within_another_are_found_in_any_order) {
    spans[0].rows = 20000;
    for (uint32_t i = 1; i < kSpans; i++) spans[i].position = 20000 + i;
    spans[kSpans / 2].position = 19999;
    in_any_order(ROUTECAP_ERR_OVERLAP);
}

TEST_F(ManySpans, of_drafts_may_overlap) {
    for (routecap_span &span : spans) span.position = 0, span.flags = ROUTECAP_SPAN_SPECULATIVE;
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(kSpans));
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    routecap_step step = 0;
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_step_issue(rig.capturer(), spans.data(), sizeof spans[0], spans.size(),
                                      nullptr, nullptr, &step, rig.stream()));
    const uint32_t kept[] = {kSpans / 2, kSpans - 1};
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), request, step, kept, 2));
    rig.land(step);
    rig.expect_length(request, 1);
}
