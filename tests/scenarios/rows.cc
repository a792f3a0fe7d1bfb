// Who is which row: counts, positions, prefixes, drafts, preemption, ends.
#include <rig.h>

using namespace rig;

// S tokens have S-1 rows, unless the last one was forwarded.
TEST(Scenario, F06_last_row) {
    Rig rig;
    const auto split = [&](routecap_request request, uint64_t rows, uint64_t prompt_rows,
                           uint64_t generated_rows) {
        const RoutingPtr routing(rig.finish(request, ROUTECAP_ROWS_ALL));
        EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(routing.get(), -1));
        expect_routing(routing.get(), rig.shape(), 0, routed_rows(rig.shape(), 1, 0, rows));
        routecap_routing *prompt = nullptr, *generated = nullptr;
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_routing_split(routing.get(), 7, 3, &prompt, &generated));
        const RoutingPtr first(prompt), second(generated);
        expect_routing(prompt, rig.shape(), 0, routed_rows(rig.shape(), 1, 0, prompt_rows));
        expect_routing(generated, rig.shape(), 7,
                       routed_rows(rig.shape(), 1, 7, 7 + generated_rows));
    };
    const routecap_request three = rig.open(), none = rig.open();
    for (auto [position, count] : {std::pair{0u, 7u}, {7u, 1u}, {8u, 1u}})
        rig.land(rig.step({{three, {1, position, count}}}));
    rig.extract(three, 9, 1, ROUTECAP_ERR_OUT_OF_RANGE);
    EXPECT_NE(std::string(routecap_last_error()).find("[9,10)"), std::string::npos)
        << routecap_last_error();
    split(three, 9, 7, 2);
    rig.land(rig.step({{none, {1, 0, 7}}}));
    split(none, 7, 7, 0);
}

// The scheduler's state lagged a step behind, so rows could land one position off.
TEST(Scenario, F07_positions_from_lagging_state) {
    Rig rig({.flags = ROUTECAP_CONFIG_COMPARE, .held = true});
    const routecap_request request = rig.open();
    rig.land(rig.step({{request, {1, 0, 20}}}));
    for (uint64_t position : {20, 21, 22}) rig.step({{request, {1, position, 1}}});
    rig.open_gate();
    rig.step({{request, {1, 24, 1}}});                    // 23 is skipped
    const auto last = rig.step({{request, {2, 22, 1}}});  // 22 again, with other ids
    rig.land(last);
    rig.expect(request, 0,
               routed_rows(rig.shape(), 1, 0, 23) + missing_rows(rig.shape(), 1) +
                   routed_rows(rig.shape(), 1, 24, 25));
    EXPECT_EQ(rig.stats().rows_overlapped, 1u);
    EXPECT_EQ(rig.stats().rows_mismatched, 1u);
}

// Rows of cached positions stayed zero; with chunked prefill, rows went missing now and then.
TEST(Scenario, F08_prefix_hit_in_chunked_prefill) {
    Rig rig({.shape = {.rows = 64}});
    const routecap_request a = rig.open(), b = rig.open(), c = rig.open();
    uint64_t decoded = 0;
    for (auto [first, end] : {std::pair{48u, 80u}, {80u, 96u}, {96u, 100u}}) {
        std::vector<std::pair<routecap_request, Tokens>> batch{
            {a, {1, first, end - first}}, {b, {2, decoded, 1}}, {c, {3, decoded, 1}}};
        std::rotate(batch.begin(), batch.begin() + static_cast<ptrdiff_t>(decoded), batch.end());
        rig.land(rig.step(batch));
        decoded++;
    }
    rig.expect(a, 0, missing_rows(rig.shape(), 48) + routed_rows(rig.shape(), 1, 48, 100));
    rig.expect(a, 48, routed_rows(rig.shape(), 1, 48, 100));
    rig.expect(b, 0, routed_rows(rig.shape(), 2, 0, 3));
    rig.expect(c, 0, routed_rows(rig.shape(), 3, 0, 3));
}

// Rejected drafts were kept and trimmed only at the end; other engines refused drafting.
TEST(Scenario, F09_rejected_drafts) {
    for (bool early : {false, true}) {  // the second span issued before the first is accepted
        SCOPED_TRACE(early);
        Rig rig;
        const routecap_request r = rig.open();
        rig.land(rig.step({{r, {1, 0, 10}}}));
        const auto first = rig.step({{r, {2, 10, 4}}}, ROUTECAP_SPAN_SPECULATIVE);
        rig.land(first);
        rig.expect_length(r, 10);
        routecap_step second = 0;
        const auto issue_second = [&] {
            second = rig.step({{r, {3, 12, 4}}}, ROUTECAP_SPAN_SPECULATIVE);
        };
        if (early) issue_second();
        EXPECT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), r, first, nullptr, 2));
        rig.expect_length(r, 12);
        rig.extract(r, 12, 1, ROUTECAP_ERR_OUT_OF_RANGE);
        rig.extract(r, 13, 1, ROUTECAP_ERR_OUT_OF_RANGE);
        if (!early) issue_second();
        rig.land(second);
        EXPECT_STATUS(ROUTECAP_ERR_OUT_OF_RANGE,
                      routecap_request_accept(rig.capturer(), r, second, nullptr, 5));
        rig.expect_length(r, 12);
        EXPECT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), r, second, nullptr, 4));
        // Settled once.
        EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_STEP,
                      routecap_request_accept(rig.capturer(), r, second, nullptr, 1));
        EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_STEP,
                      routecap_request_accept(rig.capturer(), r, first, nullptr, 1));
        const RoutingPtr routing(rig.finish(r, ROUTECAP_ROWS_ALL));
        EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(routing.get(), -1));
        expect_routing(routing.get(), rig.shape(), 0,
                       routed_rows(rig.shape(), 1, 0, 10) + routed_rows(rig.shape(), 2, 10, 12) +
                           routed_rows(rig.shape(), 3, 12, 16));
        EXPECT_EQ(rig.stats().rows_rejected, 2u);
        EXPECT_EQ(rig.stats().rows_provisional, 0u);
        EXPECT_EQ(rig.bytes_in_use(), rig.stats().bytes_in_use);
    }
}

// A tree: two draft rows at position 11, the second accepted by list.
TEST(Scenario, F09_tree_of_drafts) {
    Rig rig;
    const routecap_request r = rig.open();
    rig.land(rig.step({{r, {1, 0, 10}}}));
    rig.run({{2, 10, 2}, {3, 11, 2}});  // 10 -> 11 -> end, 10 -> 11' -> 12'
    const auto step = rig.issue({Rig::span(r, 10, 0, 2, ROUTECAP_SPAN_SPECULATIVE),
                                 Rig::span(r, 11, 2, 2, ROUTECAP_SPAN_SPECULATIVE)});
    const uint32_t path[] = {0, 2, 3}, beyond[] = {0, 4}, twice[] = {0, 0};
    EXPECT_STATUS(ROUTECAP_ERR_OUT_OF_RANGE,
                  routecap_request_accept(rig.capturer(), r, step, beyond, 2));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_request_accept(rig.capturer(), r, step, twice, 2));
    rig.expect_length(r, 10);
    // Perhaps before it landed.
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), r, step, path, 3));
    rig.expect_length(r, 13);
    const RoutingPtr routing(rig.finish(r, 13));
    EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(routing.get(), -1));
    expect_routing(routing.get(), rig.shape(), 0,
                   routed_rows(rig.shape(), 1, 0, 10) + Rows{routed_row(rig.shape(), 2, 10)} +
                       routed_rows(rig.shape(), 3, 11, 13));
    EXPECT_EQ(rig.stats().rows_rejected, 1u);
}

// The filled length only grew, so rows from before a preemption stayed visible.
TEST(Scenario, F10_preempted_request) {
    Rig rig({.shape = {.rows = 64}});
    const routecap_request first = rig.open();
    rig.land(rig.step({{first, {1, 0, 40}}}));
    rig.expect(first, 0, routed_rows(rig.shape(), 1, 0, 40));
    rig.close(first);
    const routecap_request second = rig.open();  // the same sequence, its second life
    EXPECT_NE(first, second);
    rig.land(rig.step({{second, {2, 0, 16}}}));
    rig.expect(second, 0, routed_rows(rig.shape(), 2, 0, 16));
    rig.extract(second, 16, 1, ROUTECAP_ERR_OUT_OF_RANGE);
    rig.extract(first, 0, 1, ROUTECAP_ERR_UNKNOWN_REQUEST);
}

// The same handle, cut to nothing.
TEST(Scenario, F10_truncated_instead_of_closed) {
    Rig rig({.shape = {.rows = 64}});
    const routecap_request r = rig.open();
    rig.land(rig.step({{r, {1, 0, 40}}}));
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), r, 0));
    rig.expect_length(r, 0);
    rig.land(rig.step({{r, {2, 0, 16}}}));
    rig.expect(r, 0, routed_rows(rig.shape(), 2, 0, 16));
    rig.extract(r, 16, 1, ROUTECAP_ERR_OUT_OF_RANGE);
}

// Retraction kept the tokens while re-prefill rewrote their routes.
TEST(Scenario, F11_recomputed_rows) {
    for (bool replace : {false, true}) {
        SCOPED_TRACE(replace);
        Rig rig({.flags = ROUTECAP_CONFIG_COMPARE});
        const routecap_request r =
            rig.open(replace ? ROUTECAP_POLICY_REPLACE : ROUTECAP_POLICY_KEEP);
        rig.land(rig.step({{r, {1, 0, 30}}}));
        rig.run({{1, 0, 9}, {2, 9, 12}, {1, 21, 9}});  // twelve rows come out differently
        rig.land(rig.issue({Rig::span(r, 0, 0, 30)}));
        rig.land(rig.step({{r, {1, 30, 1}}}));
        Rows expected = routed_rows(rig.shape(), 1, 0, 31);
        for (uint64_t p = 9; replace && p < 21; p++) expected[p] = routed_row(rig.shape(), 2, p);
        rig.expect(r, 0, expected);
        EXPECT_EQ(rig.stats().rows_overlapped, 30u);
        EXPECT_EQ(rig.stats().rows_mismatched, 12u);
        EXPECT_EQ(rig.stats().rows_delivered, 61u);
    }
}

// Equal sets in another order are no drift.
TEST(Scenario, F11_order_is_no_mismatch) {
    Rig rig({.shape = {.layers = 1, .k = 4, .experts = 300}, .flags = ROUTECAP_CONFIG_COMPARE});
    const routecap_request r = rig.open();
    for (auto ids : {std::vector<int64_t>{1, 2, 299, 4}, {4, 299, 2, 1}}) {
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(1));
        EXPECT_STATUS(ROUTECAP_OK, rig.record(0, {ids}));
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
        rig.land(rig.issue({Rig::span(r, 0, 0, 1)}));
    }
    rig.expect(r, 0, {{std::vector<int64_t>{1, 2, 299, 4}}});
    EXPECT_EQ(rig.stats().rows_overlapped, 1u);
    EXPECT_EQ(rig.stats().rows_mismatched, 0u);
}

// The worker inferred who is finishing from the last token, and lost stop strings, aborts and more.
TEST(Scenario, F12_caller_decides_the_end) {
    Rig rig;
    std::vector<routecap_request> r;
    std::vector<std::pair<routecap_request, Tokens>> batch;
    for (uint64_t i = 0; i < 4; i++) r.push_back(rig.open());
    for (uint64_t step = 0; step < 5; step++) {
        batch.clear();
        for (uint64_t i = 0; i < 4; i++) batch.push_back({r[i], {i, step, 1}});
        rig.land(rig.step(batch));
    }
    // At any time.
    for (uint64_t i = 0; i < 4; i++) rig.expect(r[i], 0, routed_rows(rig.shape(), i, 0, 5));
    // Nothing ends unasked.
    EXPECT_EQ(rig.stats().requests_open, 4u);
    const RoutingPtr eos(rig.finish(r[0], 5)), stop_string(rig.finish(r[1], 4));
    rig.close(r[2]);
    rig.land(rig.step({{r[3], {3, 5, 1}}}));
    EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(eos.get(), -1));
    EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(stop_string.get(), -1));
    expect_routing(eos.get(), rig.shape(), 0, routed_rows(rig.shape(), 0, 0, 5));
    expect_routing(stop_string.get(), rig.shape(), 0, routed_rows(rig.shape(), 1, 0, 4));
    rig.expect(r[3], 0, routed_rows(rig.shape(), 3, 0, 6));
    rig.expect(r[3], 0, routed_rows(rig.shape(), 3, 0, 6));
}
