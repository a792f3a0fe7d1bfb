// Why whole rows are missing: LOST, REFUSED and TAKEN, wherever rows are read, and which reason
// stays where two meet.
#include <rig.h>

using namespace rig;

namespace {

constexpr int32_t kAbsent = ROUTECAP_MISSING_ABSENT, kUnwritten = ROUTECAP_MISSING_UNWRITTEN,
                  kLost = ROUTECAP_MISSING_LOST, kRefused = ROUTECAP_MISSING_REFUSED,
                  kTaken = ROUTECAP_MISSING_TAKEN;

// Of each row: 0 if it has a valid cell, otherwise the one reason of all its cells.
using Reasons = std::vector<int32_t>;

Reasons operator+(Reasons a, const Reasons &b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

Reasons by_view(const routecap_routing *routing) {
    const routecap_view view = view_of(routing);
    Reasons reasons;
    for (size_t i = 0; i < view.segment_count; i++) {
        const auto &s = *reinterpret_cast<const routecap_segment *>(
            reinterpret_cast<const char *>(view.segments) + i * view.segment_size);
        if (s.ids != nullptr) {
            EXPECT_EQ(s.reason, 0);
        }
        for (uint64_t r = 0; r < s.rows; r++) {
            int32_t reason = s.ids == nullptr ? s.reason : -1;
            for (uint32_t l = 0; s.ids != nullptr && l < view.layers; l++) {
                if (s.validity == nullptr ||
                    (s.validity[r * view.validity_bytes + l / 8] >> l % 8 & 1) != 0) {
                    reason = 0;
                    break;
                }
                const size_t at = (r * view.layers + l) * view.k;
                const int32_t says = view.dtype == ROUTECAP_DTYPE_U8
                                         ? static_cast<const uint8_t *>(s.ids)[at]
                                         : static_cast<const int16_t *>(s.ids)[at];
                EXPECT_TRUE(reason == -1 || reason == says)
                    << "cells of one row are missing for the reasons " << reason << " and " << says;
                reason = says;
            }
            reasons.push_back(reason);
        }
    }
    return reasons;
}

Reasons by_blocks(const routecap_coverage &coverage, const std::vector<routecap_missing> &blocks) {
    Reasons reasons(coverage.rows, 0);
    for (uint64_t i = 0; i < coverage.blocks; i++)
        for (uint64_t r = 0; r < blocks[i].rows; r++)
            if (blocks[i].layers == coverage.layers)
                reasons[blocks[i].first + r - coverage.first] = blocks[i].reason;
    return reasons;
}

// A view, coverage, and the serialised form say the same of a routing.
void expect_reasons(const routecap_routing *routing, const Reasons &expected) {
    EXPECT_EQ(by_view(routing), expected);
    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    std::vector<routecap_missing> blocks(1000);
    EXPECT_GE(routecap_routing_coverage(routing, &coverage, blocks.data(), sizeof blocks[0],
                                        blocks.size()),
              0);
    EXPECT_EQ(by_blocks(coverage, blocks), expected);
    uint64_t bytes = 0;
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                  routecap_routing_serialize(routing, 0, nullptr, 0, &bytes));
    std::vector<uint8_t> data(bytes);
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_routing_serialize(routing, 0, data.data(), data.size(), nullptr));
    routecap_routing *back = nullptr;
    EXPECT_GE(routecap_routing_deserialize(data.data(), data.size(), 0, nullptr, nullptr, &back),
              0);
    if (back != nullptr) {
        EXPECT_EQ(by_view(back), expected) << "from bytes";
    }
    routecap_routing_free(back);
}

// And so does a request, read in every way that leaves it as it is.
void expect_reasons(const Rig &rig, routecap_request request, const Reasons &expected,
                    bool copies = true) {
    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    std::vector<routecap_missing> blocks(1000);
    EXPECT_GE(routecap_request_coverage(rig.capturer(), request, 0, ROUTECAP_ROWS_ALL, &coverage,
                                        blocks.data(), sizeof blocks[0], blocks.size()),
              0);
    EXPECT_EQ(by_blocks(coverage, blocks), expected);
    for (const int32_t mode : {ROUTECAP_EXTRACT_SHARE, ROUTECAP_EXTRACT_COPY}) {
        if (mode == ROUTECAP_EXTRACT_COPY && !copies) continue;
        routecap_routing *routing = nullptr;
        ASSERT_GE(routecap_request_extract(rig.capturer(), request, 0, ROUTECAP_ROWS_ALL, mode, 0,
                                           &routing),
                  0)
            << routecap_last_error();
        expect_reasons(RoutingPtr(routing).get(), expected);
    }
}

class Why : public testing::Test {
protected:
    Rig rig{{.slots = 1, .flags = ROUTECAP_CONFIG_MAY_LOSE, .held = true}};

    void step(routecap_request r, uint64_t position, uint32_t rows, uint32_t flags = 0) {
        rig.run({{1, position, rows}});
        last = rig.issue({Rig::span(r, position, 0, rows, flags)});
        rig.open_gate();
        rig.name_slot_again();
    }
    // Of a step for which there is no slot, because another is in flight.
    void lose(const std::vector<routecap_span> &spans,
              const routecap_issue_options *options = nullptr) {
        const routecap_request other = rig.open();
        rig.run({{9, 0, 1}});
        rig.issue({Rig::span(other, 0, 0, 1)});
        rig.run({{1, 0, 20}});
        last = rig.issue(spans, ROUTECAP_LOST, nullptr, options);
        EXPECT_STATUS(ROUTECAP_LOST, routecap_step_poll(rig.capturer(), last));
        rig.close(other);
        rig.open_gate();
        rig.name_slot_again();
    }
    void lose(routecap_request r, uint64_t position, uint32_t rows, uint32_t flags = 0) {
        lose({Rig::span(r, position, 0, rows, flags)});
    }
    // A request with five rows of which the middle three were lost.
    routecap_request with_lost_rows() {
        const routecap_request r = rig.open();
        step(r, 0, 1);
        lose(r, 1, 3);
        step(r, 4, 1);
        return r;
    }

    routecap_step last = 0;
};

}  // namespace

TEST_F(Why, rows_of_a_lost_step_are_lost) {
    const routecap_request r = with_lost_rows();
    expect_reasons(rig, r, {0, kLost, kLost, kLost, 0});
    const RoutingPtr routing(rig.finish(r, ROUTECAP_ROWS_ALL));
    rig.open_gate();
    expect_reasons(routing.get(), {0, kLost, kLost, kLost, 0});
}

TEST_F(Why, a_lost_step_says_why) {
    const routecap_request other = rig.open(), r = rig.open();
    rig.run({{9, 0, 1}});
    rig.issue({Rig::span(other, 0, 0, 1)});
    rig.run({{1, 0, 1}});
    const routecap_span span = Rig::span(r, 0, 0, 1);
    routecap_step lost = 0;
    ASSERT_STATUS(ROUTECAP_LOST, routecap_step_issue(rig.capturer(), &span, sizeof span, 1, nullptr,
                                                     nullptr, &lost, rig.stream()));
    EXPECT_NE(std::string(routecap_last_error()).find("slot"), std::string::npos)
        << routecap_last_error();
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_STEP, routecap_step_poll(rig.capturer(), lost + 1));
    EXPECT_STATUS(ROUTECAP_LOST, routecap_step_poll(rig.capturer(), lost));
    EXPECT_NE(std::string(routecap_last_error()).find("slot"), std::string::npos)
        << routecap_last_error();
}

TEST_F(Why, a_lost_row_that_is_issued_again_is_there) {
    const routecap_request r = with_lost_rows();
    step(r, 2, 1);
    expect_reasons(rig, r, {0, kLost, 0, kLost, 0});
    lose(r, 0, 5);  // and what is there stays there
    expect_reasons(rig, r, {0, kLost, 0, kLost, 0});
}

TEST_F(Why, rows_whose_cells_were_not_written_are_there) {
    const routecap_request r = with_lost_rows();
    rig.forward([&] {
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(1));
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    });
    rig.issue({Rig::span(r, 1, 0, 1)});
    rig.open_gate();
    rig.name_slot_again();
    expect_reasons(rig, r, {0, kUnwritten, kLost, kLost, 0});
    lose(r, 1, 2);
    expect_reasons(rig, r, {0, kUnwritten, kLost, kLost, 0});
}

TEST_F(Why, truncate_forgets_why) {
    const routecap_request r = with_lost_rows();
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), r, 2));
    rig.open_gate();
    step(r, 4, 1);
    expect_reasons(rig, r, {0, kLost, kAbsent, kAbsent, 0});
}

// A step that is lost after a truncate was called is not forgotten with what came before, whenever
// the truncate is applied.
TEST_F(Why, what_is_lost_after_a_truncate_is_remembered) {
    const routecap_request r = rig.open();
    rig.run({{1, 0, 5}});
    rig.issue({Rig::span(r, 0, 0, 5)});
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), r, 2));
    rig.run({{1, 2, 2}});
    rig.issue({Rig::span(r, 2, 0, 2)}, ROUTECAP_LOST);
    rig.open_gate();
    expect_reasons(rig, r, {0, 0, kLost, kLost});
}

TEST_F(Why, a_fork_inherits_why) {
    const routecap_request r = with_lost_rows();
    routecap_request child = 0;
    ASSERT_STATUS(ROUTECAP_OK, routecap_request_fork(rig.capturer(), r, 3, &child));
    rig.open_gate();
    expect_reasons(rig, child, {0, kLost, kLost});
    step(child, 4, 1);
    expect_reasons(rig, child, {0, kLost, kLost, kAbsent, 0});
    lose(r, 5, 1);
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), r, 0));
    rig.open_gate();
    // What becomes of the parent is nothing to it.
    expect_reasons(rig, child, {0, kLost, kLost, kAbsent, 0});
}

TEST_F(Why, rows_that_were_taken_are_taken) {
    const routecap_request r = with_lost_rows();
    const RoutingPtr routing(rig.extract(r, 0, 3, ROUTECAP_INCOMPLETE, ROUTECAP_EXTRACT_TAKE));
    expect_reasons(routing.get(), {0, kLost, kLost});
    expect_reasons(rig, r, {kTaken, kLost, kLost, kLost, 0});  // only what was there can be taken
    const RoutingPtr again(
        rig.extract(r, 0, ROUTECAP_ROWS_ALL, ROUTECAP_INCOMPLETE, ROUTECAP_EXTRACT_TAKE));
    expect_reasons(again.get(), {kTaken, kLost, kLost, kLost, 0});
    expect_reasons(rig, r, {kTaken, kLost, kLost, kLost, kTaken});
    step(r, 0, 1);
    expect_reasons(rig, r, {0, kLost, kLost, kLost, kTaken});
    const RoutingPtr finished(rig.finish(r, 7));
    rig.open_gate();
    expect_reasons(finished.get(), {0, kLost, kLost, kLost, kTaken, kAbsent, kAbsent});
}

// From the middle of a page, so that rows stay on both sides.
TEST_F(Why, rows_taken_from_the_middle_are_taken) {
    const routecap_request r = rig.open();
    step(r, 0, 6);
    const RoutingPtr routing(rig.extract(r, 2, 2, ROUTECAP_OK, ROUTECAP_EXTRACT_TAKE));
    expect_reasons(rig, r, {0, 0, kTaken, kTaken, 0, 0});
    lose(r, 0, 6);
    expect_reasons(rig, r, {0, 0, kTaken, kTaken, 0, 0});
}

// A copy is one array, in which rows that are not there have a place. They are not there all the
// same.
TEST_F(Why, rows_that_are_not_there_cannot_be_taken_from_a_copy) {
    const routecap_request r = with_lost_rows(), other = rig.open();
    const RoutingPtr copy(rig.extract(r, 0, 5, ROUTECAP_INCOMPLETE, ROUTECAP_EXTRACT_COPY));
    ASSERT_STATUS(ROUTECAP_OK,
                  routecap_request_attach(rig.capturer(), other, copy.get(), ROUTECAP_ROWS_ALL));
    rig.open_gate();
    expect_reasons(rig, other, {0, kLost, kLost, kLost, 0});
    const RoutingPtr taken(rig.extract(other, 0, 5, ROUTECAP_INCOMPLETE, ROUTECAP_EXTRACT_TAKE));
    expect_reasons(taken.get(), {0, kLost, kLost, kLost, 0});
    expect_reasons(rig, other, {kTaken, kLost, kLost, kLost, kTaken});
}

// Of two reasons the one that stands first in the header's list stays, whichever was there first.
TEST_F(Why, attach_brings_why) {
    const routecap_request r = with_lost_rows(), other = rig.open();
    RoutingPtr(rig.extract(r, 0, 1, ROUTECAP_OK, ROUTECAP_EXTRACT_TAKE));
    const RoutingPtr routing(rig.extract(r, 0, ROUTECAP_ROWS_ALL, ROUTECAP_INCOMPLETE));
    expect_reasons(routing.get(), {kTaken, kLost, kLost, kLost, 0});
    lose(other, 0, 1);
    step(other, 1, 1);
    step(other, 2, 1);
    RoutingPtr(rig.extract(other, 2, 1, ROUTECAP_OK, ROUTECAP_EXTRACT_TAKE));
    expect_reasons(rig, other, {kLost, 0, kTaken});
    ASSERT_STATUS(ROUTECAP_OK, routecap_request_attach(rig.capturer(), other, routing.get(), 4));
    rig.open_gate();
    expect_reasons(rig, other, {kTaken, 0, kTaken, kLost});
}

TEST_F(Why, attach_of_a_pending_routing_brings_why) {
    const routecap_request r = with_lost_rows(), other = rig.open();
    rig.run({{1, 5, 1}});
    rig.issue({Rig::span(r, 5, 0, 1)});
    const RoutingPtr pending(rig.finish(r, 6));
    ASSERT_STATUS(ROUTECAP_PENDING, routecap_routing_poll(pending.get()));
    ASSERT_STATUS(ROUTECAP_OK,
                  routecap_request_attach(rig.capturer(), other, pending.get(), ROUTECAP_ROWS_ALL));
    rig.open_gate();
    rig.name_slot_again();
    expect_reasons(rig, other, {0, kLost, kLost, kLost, 0, 0});
}

// Drafts that are lost have no place until they are accepted.
TEST_F(Why, lost_drafts_are_lost_once_they_are_accepted) {
    const routecap_request r = rig.open();
    step(r, 0, 1);
    lose(r, 1, 4, ROUTECAP_SPAN_SPECULATIVE);
    rig.expect_length(r, 1);
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), r, last, nullptr, 2));
    EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_progress(rig.capturer()));
    expect_reasons(rig, r, {0, kLost, kLost});
    lose(r, 3, 4, ROUTECAP_SPAN_SPECULATIVE);
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), r, last, nullptr, 0));
    EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_progress(rig.capturer()));
    expect_reasons(rig, r, {0, kLost, kLost});
}

// Where a lost step's rows were to go is not known, but that they are somewhere within the bounds.
TEST_F(Why, bounds_of_a_lost_step_are_lost) {
    const routecap_request r = rig.open();
    const std::vector<int64_t> positions{1, 2};
    routecap_issue_options options{};
    options.struct_size = sizeof options;
    options.positions = positions.data();
    options.positions_dtype = ROUTECAP_DTYPE_I64;
    routecap_span span = Rig::span(r, 1, 0, 2, ROUTECAP_SPAN_DEVICE_POSITIONS);
    span.position_end = 4;
    lose({span}, &options);
    step(r, 0, 1);
    step(r, 4, 1);
    expect_reasons(rig, r, {0, kLost, kLost, kLost, 0});
}

TEST_F(Why, a_merge_keeps_the_reason_that_stands_first) {
    const routecap_request a = with_lost_rows(), b = rig.open();
    step(b, 0, 3);
    RoutingPtr(rig.extract(b, 1, 1, ROUTECAP_OK, ROUTECAP_EXTRACT_TAKE));
    const RoutingPtr x(rig.extract(a, 0, 5, ROUTECAP_INCOMPLETE)),
        y(rig.extract(b, 0, 3, ROUTECAP_INCOMPLETE));
    const std::vector<std::vector<const routecap_routing *>> orders{{x.get(), y.get()},
                                                                    {y.get(), x.get()}};
    for (const auto &both : orders) {
        routecap_routing *merged = nullptr;
        EXPECT_STATUS(ROUTECAP_INCOMPLETE, routecap_routing_merge(both.data(), 2, 0, &merged));
        expect_reasons(RoutingPtr(merged).get(), {0, kTaken, 0, kLost, 0});
    }
}

// ---- Without memory ------------------------------------------------------------------------

namespace {

class WhyRefused : public testing::Test {
protected:
    static constexpr Shape kShape{.rows = 600};
    const uint64_t rows = memory_of(kShape).page_rows;
    Rig rig{{.shape = kShape, .budget_bytes = memory_of(kShape).page_bytes, .held = true}};

    void step(routecap_request r, uint64_t position, uint32_t count, int32_t expected,
              uint32_t flags = 0) {
        rig.run({{1, position, count}});
        last = rig.issue({Rig::span(r, position, 0, count, flags)}, expected);
        rig.open_gate();
    }
    routecap_step last = 0;
};

}  // namespace

TEST_F(WhyRefused, rows_that_issue_refuses_are_refused) {
    const routecap_request r = rig.open();
    step(r, rows - 2, 2, ROUTECAP_OK);
    step(r, rows, 3, ROUTECAP_PARTIAL);
    const Reasons tail{0, 0, kRefused, kRefused, kRefused};
    expect_reasons(rig, r, Reasons(rows - 2, kAbsent) + tail, false);
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), r, rows + 1));
    rig.open_gate();
    expect_reasons(rig, r, Reasons(rows - 2, kAbsent) + Reasons{0, 0, kRefused}, false);

    // Once there is memory they can be there.
    RoutingPtr(rig.extract(r, 0, rows, ROUTECAP_INCOMPLETE, ROUTECAP_EXTRACT_TAKE));
    step(r, rows, 1, ROUTECAP_OK);
    expect_reasons(rig, r, Reasons(rows - 2, kAbsent) + Reasons{kTaken, kTaken, 0}, false);
    const RoutingPtr finished(rig.finish(r, rows + 2));
    rig.open_gate();
    expect_reasons(finished.get(),
                   Reasons(rows - 2, kAbsent) + Reasons{kTaken, kTaken, 0, kAbsent});
}

TEST_F(WhyRefused, drafts_that_issue_refuses_are_refused_once_they_are_accepted) {
    const routecap_request r = rig.open();
    step(r, 0, static_cast<uint32_t>(rows), ROUTECAP_OK);
    step(r, rows, 4, ROUTECAP_PARTIAL, ROUTECAP_SPAN_SPECULATIVE);
    rig.expect_length(r, rows);
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), r, last, nullptr, 2));
    EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_progress(rig.capturer()));
    expect_reasons(rig, r, Reasons(rows, 0) + Reasons{kRefused, kRefused}, false);
}

// ---- What a row is counted as --------------------------------------------------------------

namespace {

// The fate of five drafts of one step, of rows 0 to 4.
struct Drafts {
    explicit Drafts(bool lands_first)
        : rig({.held = true}), r(rig.open()), lands_first(lands_first) {
        rig.run({{1, 0, 5}});
        step = rig.issue({Rig::span(r, 0, 0, 5, ROUTECAP_SPAN_SPECULATIVE)});
        if (lands_first) rig.open_gate();
    }
    void accept(size_t count) {
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_request_accept(rig.capturer(), r, step, nullptr, count));
    }
    void truncate(uint64_t rows) {
        EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), r, rows));
    }
    void expect(uint64_t delivered, uint64_t rejected, uint64_t late) {
        rig.open_gate();
        EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_progress(rig.capturer()));
        const routecap_stats s = rig.stats();
        const char *when = lands_first ? "landed before" : "landed after";
        EXPECT_EQ(s.rows_delivered, delivered) << when;
        EXPECT_EQ(s.rows_rejected, rejected) << when;
        EXPECT_EQ(s.rows_late, late) << when;
        EXPECT_EQ(s.rows_provisional + s.rows_in_flight, 5 - delivered - rejected - late) << when;
    }
    Rig rig;
    routecap_request r;
    routecap_step step = 0;
    bool lands_first;
};

}  // namespace

TEST(Counters, a_draft_that_accept_does_not_keep_is_rejected_whatever_cuts_it_after) {
    for (const bool lands_first : {true, false}) {
        Drafts drafts(lands_first);
        drafts.accept(2);
        drafts.truncate(2);
        drafts.expect(2, 3, 0);
        Drafts closed(lands_first);
        closed.accept(0);
        closed.rig.close(closed.r);
        closed.expect(0, 5, 0);
        Drafts finished(lands_first);
        finished.accept(2);
        const RoutingPtr routing(finished.rig.finish(finished.r, 2));
        finished.expect(2, 3, 0);
    }
}

TEST(Counters, a_draft_that_accept_does_not_keep_is_rejected_whatever_cut_it_before) {
    for (const bool lands_first : {true, false}) {
        Drafts drafts(lands_first);
        drafts.truncate(1);
        drafts.accept(3);
        drafts.expect(1, 2, 2);
        Drafts none(lands_first);
        none.truncate(0);
        none.accept(0);
        none.expect(0, 5, 0);
        Drafts between(lands_first);  // its step lands between the two calls
        between.truncate(1);
        between.expect(0, 0, 0);
        between.accept(0);
        between.expect(0, 5, 0);
    }
}

TEST(Counters, a_draft_that_is_never_settled_is_late_if_it_was_cut_and_rejected_if_not) {
    for (const bool lands_first : {true, false}) {
        Drafts closed(lands_first);
        closed.rig.close(closed.r);
        closed.expect(0, 0, 5);
        Drafts cut(lands_first);
        cut.truncate(2);
        cut.rig.close(cut.r);
        cut.expect(0, 0, 5);
        Drafts finished(lands_first);
        const RoutingPtr all(finished.rig.finish(finished.r, ROUTECAP_ROWS_ALL));
        finished.expect(0, 5, 0);
        Drafts both(lands_first);
        both.truncate(2);
        const RoutingPtr none(both.rig.finish(both.r, 0));
        both.expect(0, 2, 3);
    }
}
