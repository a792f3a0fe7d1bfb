// Requests where the vectors do not reach: large steps and many requests, what takes effect at
// once, how far positions are read, how long tickets are known.
#include <rig.h>

#include <algorithm>
#include <random>

using namespace rig;

namespace {

// Of rows from sink row 0 on, at any positions before `end`.
routecap_span device_span(routecap_request r, uint64_t end, uint32_t rows) {
    routecap_span span = Rig::span(r, 0, 0, rows, ROUTECAP_SPAN_DEVICE_POSITIONS);
    span.position_end = end;
    return span;
}

routecap_issue_options with_positions(const std::vector<int64_t> &positions) {
    routecap_issue_options options{};
    options.struct_size = sizeof options;
    options.positions = positions.data();
    options.positions_dtype = ROUTECAP_DTYPE_I64;
    return options;
}

}  // namespace

// A bound says where the rows may be, and how many pages they can take follows from their number.
TEST(DevicePositions, a_wide_bound_takes_no_more_of_the_budget) {
    Rig rig({.budget_bytes = 1 << 20});
    const routecap_request r = rig.open();
    const std::vector<int64_t> positions = {5, 900000};
    const routecap_issue_options options = with_positions(positions);
    rig.run({{1, 5, 1}, {1, 900000, 1}});
    rig.land(rig.issue({device_span(r, 1000000, 2)}, ROUTECAP_OK, nullptr, &options));
    for (const uint64_t at : {5u, 900000u}) {
        const RoutingPtr routing(rig.extract(r, at, 1, ROUTECAP_OK));
        expect_routing(routing.get(), rig.shape(), at, routed_rows(rig.shape(), 1, at, at + 1));
    }
}

// What cuts a draft in flight came after its accept: until then its row counted for the length.
TEST(DevicePositions, of_a_draft_that_is_accepted_and_then_cut_in_flight_count_up_to_the_cut) {
    Rig rig({.held = true});
    const routecap_request r = rig.open();
    const std::vector<int64_t> positions = {5};
    const routecap_issue_options options = with_positions(positions);
    routecap_span draft = device_span(r, 10, 1);
    draft.flags |= ROUTECAP_SPAN_SPECULATIVE;
    rig.run({{1, 5, 1}});
    const routecap_step step = rig.issue({draft}, ROUTECAP_OK, nullptr, &options);
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), r, step, nullptr, 1));
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), r, 3));
    rig.open_gate();
    rig.expect_length(r, 3);
    EXPECT_EQ(rig.stats().rows_late, 1u);
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

// A slot was room for a step, of which graphs needed one more than eager passes: with two of them one
// step could be in flight or two.
TEST(Steps, as_many_as_config_slots_are_in_flight_and_the_next_is_filed_for_or_lost) {
    enum Way { files, loses, later };
    for (const uint32_t slots : {1u, 2u, 3u, uint32_t{ROUTECAP_MAX_SLOTS}})
        for (const Way way : {files, loses, later}) {
            if (on_cuda() && way != loses) continue;
            SCOPED_TRACE(testing::Message() << slots << " slots, way " << way);
            Rig rig({.slots = slots,
                     .flags = way == loses   ? ROUTECAP_CONFIG_MAY_LOSE
                              : way == later ? ROUTECAP_CONFIG_EXTERNAL_SINK
                                             : 0u,
                     .held = true});
            const routecap_request r = rig.open();
            routecap_issue_options options{};
            options.struct_size = sizeof options;
            options.snapshot = way == later ? ROUTECAP_SNAPSHOT_LATER : ROUTECAP_SNAPSHOT_TAKEN;
            for (uint64_t i = 0; i < slots + 3; i++) {
                const bool beyond = i >= slots;
                if (way != later) rig.run({{1, i, 1}});
                rig.issue({Rig::span(r, i, 0, 1)},
                          beyond && way != files ? ROUTECAP_LOST : ROUTECAP_OK, nullptr, &options);
                const routecap_stats stats = rig.stats();
                EXPECT_EQ(stats.steps_in_flight, std::min<uint64_t>(i + 1, slots));
                EXPECT_EQ(stats.steps_lost, beyond && way != files ? i + 1 - slots : 0);
                EXPECT_EQ(stats.steps_landed, beyond ? i + 1 - slots : 0);
            }
            if (way == later) continue;
            // Where one has landed one more may be issued.
            rig.open_gate();
            rig.run({{1, slots + 3, 1}});
            rig.land(rig.issue({Rig::span(r, slots + 3, 0, 1)}));
            const Rows kept = routed_rows(rig.shape(), 1, 0, slots + (way == files ? 3 : 0));
            const Rows lost = missing_rows(rig.shape(), way == files ? 0 : 3);
            rig.expect(r, 0, kept + lost + routed_rows(rig.shape(), 1, slots + 3, slots + 4));
        }
}

// What it is made of besides is there: the memory of one more slot, and as much for each further.
TEST(Steps, each_that_may_be_in_flight_takes_as_much_memory) {
    const auto bytes = [](uint32_t slots) {
        routecap_config config;
        EXPECT_STATUS(ROUTECAP_OK, routecap_config_init(&config, sizeof config));
        config.backend = ROUTECAP_BACKEND_HOST;
        config.layers = 48, config.k = 8, config.experts = 128, config.rows = 8192;
        config.slots = slots;
        routecap_memory memory{};
        memory.struct_size = sizeof memory;
        EXPECT_STATUS(ROUTECAP_OK, routecap_config_memory(&config, &memory));
        EXPECT_GE(memory.row_bytes, 390u);
        return memory.host_bytes;
    };
    const uint64_t each = bytes(2) - bytes(1);
    EXPECT_GT(each, 8192u * 390);
    EXPECT_EQ(bytes(64) - bytes(1), 63 * each);
    EXPECT_EQ(bytes(0), bytes(2)) << "the default";
    EXPECT_GT(bytes(1), 2 * each) << "the pass that is not issued yet has a slot, too";
}

TEST(Steps, that_are_lost_say_why) {
    Rig rig({.slots = 1, .flags = ROUTECAP_CONFIG_MAY_LOSE, .held = true});
    const routecap_request other = rig.open(), r = rig.open();
    rig.step({{other, {9, 0, 1}}});
    rig.run({{1, 0, 1}});
    const routecap_span span = Rig::span(r, 0, 0, 1);
    const auto names_the_slot = [] {
        EXPECT_NE(std::string(routecap_last_error()).find("slot"), std::string::npos)
            << routecap_last_error();
    };
    routecap_step lost = 0;
    ASSERT_STATUS(ROUTECAP_LOST, routecap_step_issue(rig.capturer(), &span, sizeof span, 1, nullptr,
                                                     nullptr, &lost, rig.stream()));
    names_the_slot();
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_STEP, routecap_step_poll(rig.capturer(), lost + 1));
    EXPECT_STATUS(ROUTECAP_LOST, routecap_step_poll(rig.capturer(), lost));
    names_the_slot();
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
    const routecap_issue_options options = with_positions(positions);
    rig.land(
        rig.issue({device_span(a, 4, 4), Rig::span(b, 0, 4, 20)}, ROUTECAP_OK, nullptr, &options));
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
    for (routecap_span &span : spans) span.flags = ROUTECAP_SPAN_SHARED;
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
