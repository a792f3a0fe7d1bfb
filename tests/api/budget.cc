// The budget, to the byte: what requests, routings, drafts and spans take from it and give back.
#include <rig.h>

using namespace rig;

namespace {

// 128 rows to a page.
const Shape kShape{.layers = 58, .k = 8, .experts = 256, .rows = 512};

const routecap_memory kMemory = memory_of(kShape);
const uint64_t kPage = kMemory.page_bytes;
const uint32_t kRows = kMemory.page_rows;

class Budget : public testing::Test {
protected:
    explicit Budget(uint64_t pages = 4)
        : rig({.shape = kShape, .budget_bytes = pages * kPage, .held = true}) {}

    // Runs and issues, lands, and gives the pages in use; a fraction means other memory.
    double step(routecap_request r, uint64_t seed, uint64_t position, uint32_t rows,
                int32_t expected = ROUTECAP_OK, uint32_t flags = 0, uint64_t tag = 0) {
        rig.run({{seed, position, rows}});
        routecap_issue_options options{};
        options.struct_size = sizeof options;
        options.tag = tag;
        last = rig.issue({Rig::span(r, position, 0, rows, flags)}, expected, nullptr, &options);
        rig.open_gate();
        return pages();
    }
    // The same with a layer that is silent: 0.
    void step_without_a_layer(routecap_request r, uint64_t seed, uint64_t position, uint32_t rows,
                              int32_t expected = ROUTECAP_OK) {
        rig.forward([&] {
            EXPECT_STATUS(ROUTECAP_OK, rig.begin(rows));
            for (uint32_t l = 1; l < kShape.layers; l++)
                rig.record_tokens(l, {{seed, position, rows}});
            EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
        });
        rig.issue({Rig::span(r, position, 0, rows)}, expected);
        rig.open_gate();
    }
    double pages() const {
        return static_cast<double>(rig.stats().bytes_in_use) / static_cast<double>(kPage);
    }

    Rig rig;
    routecap_step last = 0;
};

}  // namespace

TEST_F(Budget, a_page_is_at_most_64_KiB_and_nearly_all_rows) {
    EXPECT_EQ(kRows, 128u);
    EXPECT_EQ(kMemory.row_bytes, 58u * 8 + 8);
    EXPECT_LE(kPage, 65536u);
    EXPECT_LE(static_cast<double>(kPage), 1.02 * static_cast<double>(kRows * kMemory.row_bytes));
}

TEST_F(Budget, of_less_than_a_page_is_refused) {
    routecap_config config;
    ASSERT_STATUS(ROUTECAP_OK, routecap_config_init(&config, sizeof config));
    config.backend = backend();
    config.layers = kShape.layers, config.k = kShape.k, config.experts = kShape.experts,
    config.rows = kShape.rows;
    for (const uint64_t bytes : {kPage, kPage - 1}) {
        config.budget_bytes = bytes;
        routecap_capturer *capturer = nullptr;
        EXPECT_STATUS(bytes == kPage ? ROUTECAP_OK : ROUTECAP_ERR_ARGUMENT,
                      routecap_capturer_create(&config, &capturer));
        routecap_capturer_destroy(capturer);
    }
}

TEST_F(Budget, growth_takes_one_page_at_a_time) {
    const routecap_request r = rig.open();
    EXPECT_EQ(pages(), 0);
    EXPECT_EQ(step(r, 1, 0, 1), 1);
    EXPECT_EQ(step(r, 1, 1, kRows - 1), 1);
    EXPECT_EQ(step(r, 1, kRows, 1), 2);
    EXPECT_EQ(step(r, 1, 0, kRows + 1), 2);  // the same positions again
    EXPECT_EQ(step(r, 1, 3 * kRows, 1), 3);
    EXPECT_EQ(step(r, 1, 2 * kRows, 1), 4);
    EXPECT_EQ(step(r, 1, 4 * kRows, 1, ROUTECAP_PARTIAL), 4);
    rig.close(r);
    rig.open_gate();
    EXPECT_EQ(pages(), 0);
    EXPECT_EQ(rig.stats().bytes_peak, 4 * kPage);
}

// What spans in flight are charged counts as used.
TEST_F(Budget, charges_count_before_rows_land) {
    const routecap_request a = rig.open(), b = rig.open();
    rig.run({{1, 0, 512}});
    rig.issue({Rig::span(a, 0, 0, 512)});
    EXPECT_EQ(pages(), 4);
    rig.run({{1, 0, 1}});
    std::vector<int32_t> status;
    rig.issue({Rig::span(b, 0, 0, 1)}, ROUTECAP_PARTIAL, &status);
    EXPECT_EQ(status[0], ROUTECAP_ERR_NO_MEMORY);
    rig.close(a);  // its rows will be dropped, and the charge goes back
    EXPECT_EQ(pages(), 4);
    rig.open_gate();
    EXPECT_EQ(pages(), 0);
    EXPECT_EQ(step(b, 1, 1, 1), 1);
    rig.expect(b, 0, missing_rows(kShape, 1) + routed_rows(kShape, 1, 1, 2));
}

TEST_F(Budget, truncate_gives_pages_and_charges_back) {
    const routecap_request r = rig.open();
    EXPECT_EQ(step(r, 1, 0, 300), 3);
    rig.run({{1, 300, 212}});
    rig.issue({Rig::span(r, 300, 0, 212)});
    EXPECT_EQ(pages(), 4);
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), r, 130));
    rig.open_gate();
    EXPECT_EQ(pages(), 2);
    EXPECT_EQ(rig.stats().rows_late, 212u);
    EXPECT_EQ(step(r, 2, 130, 1), 2);  // the page that was cut is used again
    EXPECT_EQ(step(r, 2, 131, 381), 4);
    rig.expect(r, 0, routed_rows(kShape, 1, 0, 130) + routed_rows(kShape, 2, 130, 512));
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), r, 0));
    rig.open_gate();
    EXPECT_EQ(pages(), 0);
}

TEST_F(Budget, taken_pages_count_until_the_routing_is_freed) {
    const routecap_request r = rig.open();
    EXPECT_EQ(step(r, 1, 0, 2 * kRows + 10), 3);
    RoutingPtr first(rig.extract(r, 0, kRows + 5, ROUTECAP_OK, ROUTECAP_EXTRACT_TAKE));
    EXPECT_EQ(pages(), 3);  // the second page is in both
    first.reset();
    EXPECT_EQ(pages(), 2);
    EXPECT_EQ(step(r, 2, 0, kRows), 3);  // page 0 again
    RoutingPtr rest(
        rig.extract(r, 0, ROUTECAP_ROWS_ALL, ROUTECAP_INCOMPLETE, ROUTECAP_EXTRACT_TAKE));
    rest.reset();
    EXPECT_EQ(pages(), 0);
    EXPECT_EQ(step(r, 1, 2 * kRows + 10, 1), 1);  // the tail page was taken whole: a new one
    rig.expect(r, 2 * kRows,
               missing_rows(kShape, 10) + routed_rows(kShape, 1, 2 * kRows + 10, 2 * kRows + 11));
    rig.close(r);
    rig.open_gate();
    EXPECT_EQ(pages(), 0);
}

// Rows in flight into a page that is taken meanwhile find a page.
TEST_F(Budget, take_with_rows_in_flight) {
    const routecap_request r = rig.open();
    EXPECT_EQ(step(r, 1, 0, 10), 1);
    rig.run({{1, 10, 1}});
    rig.issue({Rig::span(r, 10, 0, 1)});
    RoutingPtr taken(rig.extract(r, 0, 10, ROUTECAP_OK, ROUTECAP_EXTRACT_TAKE));
    EXPECT_EQ(pages(), 1);
    rig.open_gate();
    EXPECT_EQ(pages(), 2);
    taken.reset();
    EXPECT_EQ(pages(), 1);
    rig.expect(r, 10, routed_rows(kShape, 1, 10, 11));
    EXPECT_EQ(step(r, 1, 11, 1), 1);
    rig.close(r);
    rig.open_gate();
    EXPECT_EQ(pages(), 0);
}

// The page went with the routing, which still holds it: a row behind it wants another.
TEST_F(Budget, a_row_behind_what_was_taken_is_charged_a_page) {
    const routecap_request r = rig.open(), s = rig.open();
    EXPECT_EQ(step(r, 1, 0, 10), 1);
    RoutingPtr taken(rig.extract(r, 0, 10, ROUTECAP_OK, ROUTECAP_EXTRACT_TAKE));
    EXPECT_EQ(step(s, 1, 0, 3 * kRows), 4);
    EXPECT_EQ(step(r, 1, 10, 1, ROUTECAP_PARTIAL), 4);
    EXPECT_EQ(rig.stats().rows_refused, 1u);
    taken.reset();
    EXPECT_EQ(step(r, 1, 11, 1), 4);
}

// Rows stay on both sides of what is taken: they need a page of their own, or nothing is taken.
TEST_F(Budget, take_from_the_middle_of_a_page) {
    const routecap_request r = rig.open();
    EXPECT_EQ(step(r, 1, 0, 20), 1);
    const RoutingPtr taken(rig.extract(r, 5, 5, ROUTECAP_OK, ROUTECAP_EXTRACT_TAKE));
    EXPECT_EQ(pages(), 2);
    rig.expect(
        r, 0,
        routed_rows(kShape, 1, 0, 5) + missing_rows(kShape, 5) + routed_rows(kShape, 1, 10, 20));
    EXPECT_EQ(step(r, 1, kRows, 2 * kRows), 4);
    rig.extract(r, 12, 2, ROUTECAP_ERR_NO_MEMORY, ROUTECAP_EXTRACT_TAKE);
    rig.expect(r, 10,
               routed_rows(kShape, 1, 10, 20) + missing_rows(kShape, kRows - 20) +
                   routed_rows(kShape, 1, kRows, 3 * kRows));
    expect_routing(taken.get(), kShape, 5, routed_rows(kShape, 1, 5, 10));
}

// A page that a routing holds is copied before a hole in it is filled. Without memory for that
// issue refuses the rows, and the routing never changes.
TEST_F(Budget, holes_in_shared_pages) {
    const routecap_request r = rig.open();
    step(r, 1, 0, 5);
    EXPECT_EQ(step(r, 1, 10, 5), 1);
    const Rows before =
        routed_rows(kShape, 1, 0, 5) + missing_rows(kShape, 5) + routed_rows(kShape, 1, 10, 15);
    RoutingPtr shared(rig.extract(r, 0, 15, ROUTECAP_INCOMPLETE));
    EXPECT_EQ(pages(), 1);
    EXPECT_EQ(step(r, 1, 15, 5), 1);  // behind what is shared: in place
    EXPECT_EQ(step(r, 1, 5, 5), 2);   // in the hole: on a copy
    rig.expect(r, 0, routed_rows(kShape, 1, 0, 20));
    expect_routing(shared.get(), kShape, 0, before);
    shared.reset();
    EXPECT_EQ(pages(), 1);

    const routecap_request s = rig.open();
    step(s, 1, 0, 5);
    step(s, 1, 10, 5);
    EXPECT_EQ(step(r, 1, kRows, 2 * kRows), 4);
    shared.reset(rig.extract(s, 0, 15, ROUTECAP_INCOMPLETE));
    EXPECT_EQ(step(s, 1, 5, 5, ROUTECAP_PARTIAL), 4);
    EXPECT_EQ(rig.stats().rows_refused, 5u);
    rig.expect(s, 0, before);
    expect_routing(shared.get(), kShape, 0, before);
    // Rows that were lent once are charged a copy, also when nobody has them any more.
    shared.reset();
    EXPECT_EQ(step(s, 1, 5, 5, ROUTECAP_PARTIAL), 4);
    rig.close(r);
    EXPECT_EQ(step(s, 1, 5, 5), 1);
    rig.expect(s, 0, routed_rows(kShape, 1, 0, 15));
}

TEST_F(Budget, a_fork_shares_and_pays_for_what_it_writes) {
    const routecap_request r = rig.open();
    EXPECT_EQ(step(r, 1, 0, kRows + 10), 2);
    routecap_request child = 0;
    ASSERT_STATUS(ROUTECAP_OK, routecap_request_fork(rig.capturer(), r, kRows + 10, &child));
    rig.open_gate();
    EXPECT_EQ(pages(), 2);
    EXPECT_EQ(step(child, 2, kRows + 10, 1), 3);
    EXPECT_EQ(step(child, 2, kRows + 11, 1), 3);
    EXPECT_EQ(step(r, 3, kRows + 10, 1), 3);
    rig.expect(
        child, 0,
        routed_rows(kShape, 1, 0, kRows + 10) + routed_rows(kShape, 2, kRows + 10, kRows + 12));
    rig.expect(
        r, 0,
        routed_rows(kShape, 1, 0, kRows + 10) + routed_rows(kShape, 3, kRows + 10, kRows + 11));
    rig.close(r);
    rig.open_gate();
    EXPECT_EQ(pages(), 2);
    rig.expect(
        child, 0,
        routed_rows(kShape, 1, 0, kRows + 10) + routed_rows(kShape, 2, kRows + 10, kRows + 12));
    rig.close(child);
    rig.open_gate();
    EXPECT_EQ(pages(), 0);
}

// Drafts lie in memory of their own, of their own size.
TEST_F(Budget, drafts) {
    const routecap_request r = rig.open();
    EXPECT_EQ(step(r, 1, 0, kRows - 1), 1);
    const double with_drafts = step(r, 1, kRows - 1, 4, ROUTECAP_OK, ROUTECAP_SPAN_SPECULATIVE);
    EXPECT_GT(with_drafts, 2);  // they may need a second page, which they are charged
    EXPECT_LT(with_drafts, 2.05);
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), r, last, nullptr, 1));
    rig.open_gate();
    EXPECT_EQ(pages(), 1);  // the one that was accepted did not
    EXPECT_EQ(step(r, 1, kRows, 5), 2);
    EXPECT_GT(step(r, 1, kRows + 5, 4, ROUTECAP_OK, ROUTECAP_SPAN_SPECULATIVE), 2);
    rig.close(r);
    rig.open_gate();
    EXPECT_EQ(pages(), 0);
    EXPECT_EQ(rig.stats().rows_rejected, 3u);  // by accept
    EXPECT_EQ(rig.stats().rows_late, 4u);      // closed before they were settled
    EXPECT_EQ(rig.stats().rows_provisional, 0u);
}

// Drafts are accepted although their page was lent since: its copy goes above the budget, and back
// under it with the routing or the child.
TEST_F(Budget, drafts_in_a_page_that_was_lent_since_are_never_refused) {
    for (const bool fork : {false, true}) {
        SCOPED_TRACE(fork ? "fork" : "share");
        Rig tight({.shape = kShape, .budget_bytes = 2 * kPage, .held = true});
        const routecap_request r = tight.open();
        routecap_issue_options options{};
        options.struct_size = sizeof options;
        const auto issue = [&](uint64_t position, uint64_t tag, uint32_t flags = 0) {
            options.tag = tag;
            tight.run({{1, position, 4}});
            const routecap_step step =
                tight.issue({Rig::span(r, position, 0, 4, flags)}, ROUTECAP_OK, nullptr, &options);
            tight.open_gate();
            return step;
        };
        issue(0, 1);
        const routecap_step drafts = issue(4, 1, ROUTECAP_SPAN_SPECULATIVE);
        issue(8, 2);
        RoutingPtr lent;
        routecap_request child = 0;
        if (fork)
            ASSERT_STATUS(ROUTECAP_OK, routecap_request_fork(tight.capturer(), r, 12, &child));
        else
            lent.reset(tight.extract(r, 0, 12, ROUTECAP_INCOMPLETE));
        tight.open_gate();
        const uint64_t before = tight.stats().bytes_in_use;
        EXPECT_LT(2 * kPage - before, kPage);  // it has no room for a copy
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_request_accept(tight.capturer(), r, drafts, nullptr, 4));
        tight.open_gate();
        EXPECT_EQ(tight.stats().rows_refused, 0u);
        EXPECT_EQ(tight.stats().bytes_in_use, 2 * kPage);
        tight.expect(r, 0, routed_rows(kShape, 1, 0, 12));
        lent.reset();
        if (fork) tight.close(child);
        tight.open_gate();
        EXPECT_EQ(tight.stats().bytes_in_use, kPage);
    }
}

TEST_F(Budget, drafts_beyond_it_are_refused_and_can_be_accepted) {
    const routecap_request r = rig.open();
    EXPECT_EQ(step(r, 1, 0, 4 * kRows), 4);
    rig.run({{1, 4 * kRows, 4}});
    std::vector<int32_t> status;
    const routecap_step refused = rig.issue(
        {Rig::span(r, 4 * kRows, 0, 4, ROUTECAP_SPAN_SPECULATIVE)}, ROUTECAP_PARTIAL, &status);
    EXPECT_EQ(status[0], ROUTECAP_ERR_NO_MEMORY);
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), r, refused, nullptr, 3));
    EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_progress(rig.capturer()));
    rig.expect_length(r, 4 * kRows + 3);
    rig.expect(r, 4 * kRows - 1,
               routed_rows(kShape, 1, 4 * kRows - 1, 4 * kRows) + missing_rows(kShape, 3));
}

// The rows that were refused wait for the step before them, the memory of the request does not.
TEST_F(Budget, a_request_with_refused_rows_gives_back_its_memory_before_its_steps_land) {
    const routecap_request r = rig.open(), other = rig.open();
    EXPECT_EQ(step(r, 1, 0, 4 * kRows), 4);
    rig.run({{1, 4 * kRows - 1, 1}});
    rig.issue({Rig::span(r, 4 * kRows - 1, 0, 1)});
    rig.run({{1, 4 * kRows, 4}});
    rig.issue({Rig::span(r, 4 * kRows, 0, 4)}, ROUTECAP_PARTIAL);
    rig.close(r);
    rig.run({{2, 0, 2 * kRows}});
    rig.issue({Rig::span(other, 0, 0, 2 * kRows)});
    rig.open_gate();
    EXPECT_EQ(pages(), 2);
    EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_progress(rig.capturer()));
    rig.expect(other, 0, routed_rows(kShape, 2, 0, 2 * kRows));
}

// A page has room for a tag of each row from the start, so rows of another tag are charged nothing:
// neither where their request has a page, nor where a step in flight will make it.
TEST_F(Budget, rows_of_another_tag_need_no_room_of_their_own) {
    const routecap_request r = rig.open(), other = rig.open();
    EXPECT_EQ(step(other, 2, 0, 3 * kRows), 3);
    routecap_issue_options options{};
    options.struct_size = sizeof options;
    for (const uint64_t tag : {77, 78}) {
        options.tag = tag;
        rig.run({{1, (tag - 77) * 5, 5}});
        rig.issue({Rig::span(r, (tag - 77) * 5, 0, 5)}, ROUTECAP_OK, nullptr, &options);
    }
    rig.open_gate();
    EXPECT_EQ(pages(), 4);
    EXPECT_EQ(step(r, 1, 10, 1, ROUTECAP_OK, 0, 79), 4);
    rig.close(other);
    rig.open_gate();
    const RoutingPtr routing(rig.extract(r, 0, 11, ROUTECAP_OK)),
        copy(rig.extract(r, 0, 11, ROUTECAP_OK, ROUTECAP_EXTRACT_COPY));
    for (const routecap_routing *each : {routing.get(), copy.get()}) {
        const routecap_segment &segment = view_of(each).segments[0];
        for (uint64_t row = 0; row < 11; row++) EXPECT_EQ(segment.tags[row], 77 + row / 5);
    }
    rig.close(r);
    rig.open_gate();
    EXPECT_EQ(rig.stats().rows_refused, 0u);
}

namespace {

// A routing of rows that are not there gives a request no page: rows that are issued in their place
// have pages of their own.
class Nothing : public Budget {
protected:
    Nothing() {
        routecap_view view{};
        view.struct_size = sizeof view;
        view.dtype = ROUTECAP_DTYPE_U8;
        view.layers = kShape.layers, view.k = kShape.k, view.experts = kShape.experts,
        view.rows = 2 * kRows;
        view.segment_size = sizeof(routecap_segment);
        routecap_routing *nothing = nullptr;
        EXPECT_STATUS(ROUTECAP_NOT_CAPTURED,
                      routecap_routing_import(&view, 0, nullptr, nullptr, &nothing));
        const RoutingPtr owner(nothing);
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_request_attach(rig.capturer(), a, nothing, ROUTECAP_ROWS_ALL));
    }
    void fill() {
        rig.run({{1, 0, 2 * kRows}, {2, 0, 2 * kRows}});
        rig.issue({Rig::span(a, 0, 0, 2 * kRows), Rig::span(b, 0, 2 * kRows, 2 * kRows)});
        rig.run({{2, 2 * kRows, 1}});
        rig.issue({Rig::span(b, 2 * kRows, 0, 1)}, ROUTECAP_PARTIAL);
        rig.open_gate();
        EXPECT_EQ(rig.stats().rows_refused, 1u);
        EXPECT_EQ(rig.stats().rows_delivered, 4u * kRows);
        EXPECT_EQ(pages(), 4);
        rig.expect(a, 0, routed_rows(kShape, 1, 0, 2 * kRows));
    }
    routecap_request a = rig.open(), b = rig.open();
};

}  // namespace

TEST_F(Nothing, that_is_attached_has_no_pages) {
    rig.open_gate();
    fill();
}
TEST_F(Nothing, that_is_to_be_attached_has_no_pages) { fill(); }

// Positions that only the device knows may fall into as many pages as there are rows. What turns
// out not to be needed goes back.
TEST_F(Budget, wide_bounds_of_device_positions_have_a_page_for_each_row) {
    const routecap_request r = rig.open(), other = rig.open();
    std::vector<int64_t> positions;
    routecap_issue_options options{};
    options.struct_size = sizeof options;
    options.positions_dtype = ROUTECAP_DTYPE_I64;
    const auto issue = [&](std::vector<int64_t> at, int32_t expected) {
        positions = std::move(at);
        options.positions = positions.data();
        rig.run({{1, 0, static_cast<uint32_t>(positions.size())}});
        routecap_span span = Rig::span(r, 0, 0, static_cast<uint32_t>(positions.size()),
                                       ROUTECAP_SPAN_DEVICE_POSITIONS);
        span.position_end = 100 * kRows;
        std::vector<int32_t> status;
        rig.issue({span}, expected, &status, &options);
        EXPECT_STATUS(expected == ROUTECAP_OK ? ROUTECAP_OK : ROUTECAP_ERR_NO_MEMORY, status[0]);
    };
    EXPECT_EQ(step(other, 2, 0, 2 * kRows), 2);
    issue({0, 50 * kRows, 90 * kRows}, ROUTECAP_PARTIAL);  // three rows, and two pages
    issue({0, 50 * kRows}, ROUTECAP_OK);
    EXPECT_EQ(pages(), 4);
    rig.open_gate();
    EXPECT_EQ(rig.stats().rows_refused, 3u);
    EXPECT_EQ(rig.stats().rows_delivered, 2u * kRows + 2);
    rig.close(r);
    rig.open_gate();

    const routecap_request s = rig.open();
    rig.run({{1, 0, 2}});
    positions = {7, 8};
    options.positions = positions.data();
    routecap_span span = Rig::span(s, 0, 0, 2, ROUTECAP_SPAN_DEVICE_POSITIONS);
    span.position_end = 100 * kRows;
    rig.issue({span}, ROUTECAP_OK, nullptr, &options);
    EXPECT_EQ(pages(), 4);
    rig.open_gate();
    EXPECT_EQ(pages(), 3);  // both were in one
}

// The page in which a forked child goes on is the parent's too: it takes a copy, which issue asks
// for.
TEST_F(Budget, a_forked_child_has_room_for_its_copy_or_is_refused_by_issue) {
    const routecap_request r = rig.open(), other = rig.open();
    EXPECT_EQ(step(r, 1, 0, 10), 1);
    EXPECT_EQ(step(other, 2, 0, 3 * kRows), 4);
    routecap_request child = 0;
    ASSERT_STATUS(ROUTECAP_OK, routecap_request_fork(rig.capturer(), r, 5, &child));
    EXPECT_EQ(step(child, 3, 5, 5, ROUTECAP_PARTIAL), 4);
    EXPECT_EQ(rig.stats().rows_refused, 5u);
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), other, 2 * kRows));
    EXPECT_EQ(step(child, 3, 5, 5), 4);
    rig.expect(child, 0, routed_rows(kShape, 1, 0, 5) + routed_rows(kShape, 3, 5, 10));
    rig.expect(r, 0, routed_rows(kShape, 1, 0, 10));
    EXPECT_EQ(rig.stats().rows_refused, 5u);
}

// The page that holds a lent row is copied before any of the rows is written, with their tags.
TEST_F(Budget, rows_with_a_second_tag_replace_others_beside_a_row_that_was_lent) {
    const routecap_request r = rig.open(ROUTECAP_POLICY_REPLACE);
    EXPECT_EQ(step(r, 1, 0, 20), 1);
    const RoutingPtr lent(rig.extract(r, 8, 1, ROUTECAP_OK));
    EXPECT_EQ(step(r, 2, 5, 10, ROUTECAP_OK, 0, 1), 2);
    rig.expect(r, 0,
               routed_rows(kShape, 1, 0, 5) + routed_rows(kShape, 2, 5, 15) +
                   routed_rows(kShape, 1, 15, 20));
    expect_routing(lent.get(), kShape, 8, routed_rows(kShape, 1, 8, 9));
    const RoutingPtr routing(rig.extract(r, 0, 20, ROUTECAP_OK));
    for (uint64_t row = 0; row < 20; row++)
        EXPECT_EQ(view_of(routing.get()).segments[0].tags[row], row >= 5 && row < 15);
}

// No routing may be called complete because other rows of its page were written twice.
TEST_F(Budget, replaced_rows_do_not_complete_a_page) {
    const routecap_request r = rig.open(ROUTECAP_POLICY_REPLACE);
    step(r, 1, 0, kRows - 1);
    step(r, 2, 0, 1);
    rig.run({{1, kRows - 1, 1}});
    step_without_a_layer(r, 1, kRows - 1, 1);  // the page's last row
    Rows expected = routed_rows(kShape, 2, 0, 1) + routed_rows(kShape, 1, 1, kRows);
    expected.back()[0].reset();
    rig.expect(r, 0, expected);
    // And once that cell comes, it is.
    EXPECT_EQ(step(r, 1, kRows - 1, 1), 1);
    expected.back()[0] = routed(kShape, 1, kRows - 1, 0);
    rig.expect(r, 0, expected);
}

// The same where rows are to be replaced: those that are there stay, whole.
TEST_F(Budget, rows_that_find_no_memory_replace_nothing) {
    const routecap_request r = rig.open(ROUTECAP_POLICY_REPLACE);
    step(r, 1, 0, 5, ROUTECAP_OK, 0, 100);
    EXPECT_EQ(step(rig.open(), 1, 0, 3 * kRows), 4);
    const RoutingPtr shared(rig.extract(r, 0, 5, ROUTECAP_OK));
    step_without_a_layer(r, 2, 1, 2, ROUTECAP_PARTIAL);
    EXPECT_EQ(rig.stats().rows_refused, 2u);
    EXPECT_EQ(rig.stats().rows_in_flight, 0u);
    rig.expect(r, 0, routed_rows(kShape, 1, 0, 5));
}

TEST_F(Budget, a_copy_takes_its_own_size) {
    const routecap_request r = rig.open();
    EXPECT_EQ(step(r, 1, 0, 100), 1);
    const RoutingPtr copy(rig.extract(r, 0, 100, ROUTECAP_OK, ROUTECAP_EXTRACT_COPY));
    EXPECT_NEAR(pages(), 1 + 100.0 / 128, 0.02);
    EXPECT_EQ(view_of(copy.get()).segment_count, 1u);
}
