// Checked mode where graphs are replayed: the host does not know what a replay did, so the step
// itself says it once it has landed. Part of the protocol's suite.
#include <rig.h>

#include <cstdlib>
#include <optional>
#include <string>

using namespace rig;

namespace {

class CheckedGraphs : public testing::Test {
protected:
    void SetUp() override { unsetenv("ROUTECAP_CHECKED"); }
};

constexpr Shape kShape{.layers = 3, .k = 2, .experts = 16, .rows = 32};

// A pass that is captured without one of its parts.
struct Parts {
    uint32_t begun = 4;
    bool records = true;
    int snapshots = 1;
};
Device::Graph capture(Rig &rig, const Parts &parts = {}) {
    return rig.device().capture([&] {
        if (parts.begun > 0) {
            EXPECT_STATUS(ROUTECAP_OK, rig.begin(parts.begun));
        }
        if (parts.records) rig.record_all({{1, 0, 4}});
        for (int i = 0; i < parts.snapshots; i++) EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    });
}

int32_t issue(Rig &rig, const routecap_span &span, routecap_step &step, int32_t snapshot) {
    routecap_issue_options options{};
    options.struct_size = sizeof options;
    options.snapshot = snapshot;
    return routecap_step_issue(rig.capturer(), &span, sizeof span, 1, &options, nullptr, &step,
                               rig.stream());
}

// Replays graphs, issues what they did, and expects the step, the next issue and nothing else to
// say that there was this slip. Unless the capturer is checked, they do not.
void expect_slip(Rig &rig, bool checked, int32_t slip,
                 const std::vector<const Device::Graph *> &graphs, uint32_t span_rows = 4,
                 int32_t snapshot = ROUTECAP_SNAPSHOT_TAKEN) {
    const Device::Graph whole = capture(rig);
    const routecap_request request = rig.open();
    for (const Device::Graph *graph : graphs) graph->replay(rig.stream());
    routecap_step step = 0;
    EXPECT_STATUS(ROUTECAP_OK, issue(rig, Rig::span(request, 0, 0, span_rows), step, snapshot));
    rig.land(step, checked ? slip : ROUTECAP_OK);
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_poll(rig.capturer(), step));

    whole.replay(rig.stream());
    routecap_step next = 0;
    const routecap_span span = Rig::span(request, 32, 0, 4);
    if (checked && slip != ROUTECAP_OK) {
        EXPECT_STATUS(slip, issue(rig, span, next, ROUTECAP_SNAPSHOT_TAKEN));
        EXPECT_EQ(next, 0u);
        EXPECT_NE(std::string(routecap_last_error()).find("step " + std::to_string(step)),
                  std::string::npos);
    }
    EXPECT_STATUS(ROUTECAP_OK, issue(rig, span, next, ROUTECAP_SNAPSHOT_TAKEN));
    rig.land(next);
    rig.expect(request, 32, routed_rows(rig.shape(), 1, 0, 4));
}

}  // namespace

TEST_F(CheckedGraphs, a_replay_without_a_begin_is_told) {
    for (const bool checked : {true, false}) {
        Rig rig({.shape = kShape, .flags = checked ? ROUTECAP_CONFIG_CHECKED : 0});
        const auto headless = capture(rig, {.begun = 0});
        expect_slip(rig, checked, ROUTECAP_ERR_NOT_BEGUN, {&headless});
        expect_slip(rig, checked, ROUTECAP_ERR_NOT_BEGUN, {});  // nor any replay at all
        expect_slip(rig, checked, ROUTECAP_ERR_NOT_BEGUN, {}, 4, ROUTECAP_SNAPSHOT_MAKE);
    }
}

TEST_F(CheckedGraphs, a_replay_without_a_snapshot_is_told_unless_issue_makes_it) {
    for (const bool checked : {true, false}) {
        Rig rig({.shape = kShape, .flags = checked ? ROUTECAP_CONFIG_CHECKED : 0});
        const auto unread = capture(rig, {.snapshots = 0});
        expect_slip(rig, checked, ROUTECAP_ERR_NOT_SNAPSHOT, {&unread});
        expect_slip(rig, checked, ROUTECAP_OK, {&unread}, 4, ROUTECAP_SNAPSHOT_MAKE);
    }
}

TEST_F(CheckedGraphs, snapshots_of_two_replays_are_told) {
    for (const bool checked : {true, false}) {
        Rig rig({.shape = kShape, .flags = checked ? ROUTECAP_CONFIG_CHECKED : 0});
        const auto whole = capture(rig), again = capture(rig, {.begun = 0, .records = false});
        expect_slip(rig, checked, ROUTECAP_ERR_SNAPSHOT_TWICE, {&whole, &again});
        expect_slip(rig, checked, ROUTECAP_ERR_SNAPSHOT_TWICE, {&whole}, 4, ROUTECAP_SNAPSHOT_MAKE);
        expect_slip(rig, checked, ROUTECAP_OK, {&whole, &whole});  // the second begins anew
    }
}

TEST_F(CheckedGraphs, rows_beyond_those_that_a_replay_begins_are_told) {
    for (const bool checked : {true, false}) {
        Rig rig({.shape = kShape, .flags = checked ? ROUTECAP_CONFIG_CHECKED : 0});
        const auto begins_three = capture(rig, {.begun = 3, .records = false, .snapshots = 0});
        const auto records_four = capture(rig, {.begun = 0}), whole = capture(rig);
        expect_slip(rig, checked, ROUTECAP_ERR_ROWS_NOT_BEGUN, {&begins_three, &records_four}, 3);
        expect_slip(rig, checked, ROUTECAP_ERR_ROWS_NOT_BEGUN, {&whole}, 5);
        expect_slip(rig, checked, ROUTECAP_OK, {&whole}, 4);
    }
}

// Of several slips the first is said by the next issue; each step says its own.
TEST_F(CheckedGraphs, the_next_issue_tells_of_the_first_step_that_slipped) {
    Rig rig({.shape = kShape, .slots = 8, .flags = ROUTECAP_CONFIG_CHECKED, .held = true});
    const auto whole = capture(rig), headless = capture(rig, {.begun = 0}),
               unread = capture(rig, {.snapshots = 0});
    const routecap_request request = rig.open();
    routecap_step steps[3] = {}, next = 0;
    const Device::Graph *graphs[] = {&whole, &unread, &headless};
    for (int i = 0; i < 3; i++) {
        graphs[i]->replay(rig.stream());
        EXPECT_STATUS(ROUTECAP_OK,
                      issue(rig, Rig::span(request, 4 * static_cast<uint64_t>(i), 0, 4), steps[i],
                            ROUTECAP_SNAPSHOT_TAKEN));
    }
    rig.land(steps[2], ROUTECAP_ERR_NOT_BEGUN);
    rig.land(steps[1], ROUTECAP_ERR_NOT_SNAPSHOT);
    rig.land(steps[0]);
    whole.replay(rig.stream());
    EXPECT_STATUS(ROUTECAP_ERR_NOT_SNAPSHOT,
                  issue(rig, Rig::span(request, 12, 0, 4), next, ROUTECAP_SNAPSHOT_TAKEN));
    EXPECT_NE(std::string(routecap_last_error()).find("step 2"), std::string::npos)
        << routecap_last_error();
    EXPECT_STATUS(ROUTECAP_OK,
                  issue(rig, Rig::span(request, 12, 0, 4), next, ROUTECAP_SNAPSHOT_TAKEN));
    rig.land(next);
    rig.expect(request, 0,
               routed_rows(rig.shape(), 1, 0, 4) + missing_rows(rig.shape(), 8) +
                   routed_rows(rig.shape(), 1, 0, 4));
}

// What one capture holds the host knows: its calls are refused, and the capture goes on.
TEST_F(CheckedGraphs, what_cannot_be_right_at_any_replay_is_refused_while_it_is_captured) {
    for (const bool checked : {true, false}) {
        Rig rig({.shape = kShape, .flags = checked ? ROUTECAP_CONFIG_CHECKED : 0});
        const auto graph = rig.device().capture([&] {
            EXPECT_STATUS(ROUTECAP_OK, rig.begin(4));
            rig.record_all({{1, 0, 4}});
            EXPECT_STATUS(checked ? ROUTECAP_ERR_ROWS_NOT_BEGUN : ROUTECAP_OK,
                          rig.record(0, {{1, 2}}, 4));
            EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
            EXPECT_STATUS(checked ? ROUTECAP_ERR_SNAPSHOT_TWICE : ROUTECAP_OK, rig.snapshot());
        });
        const routecap_request request = rig.open();
        graph.replay(rig.stream());
        rig.land(rig.issue({Rig::span(request, 0, 0, 4)}));
        rig.expect(request, 0,
                   checked ? routed_rows(rig.shape(), 1, 0, 4) : missing_rows(rig.shape(), 4));
    }
}

// A begin in line that was never issued, and then a replay: the last begin is the replay's, which
// the host cannot know.
TEST_F(CheckedGraphs, a_replay_after_a_forward_in_line_that_was_not_issued_is_in_order) {
    Rig rig({.shape = kShape, .flags = ROUTECAP_CONFIG_CHECKED});
    const auto whole = capture(rig);
    const routecap_request request = rig.open();
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(2));
    whole.replay(rig.stream());
    rig.land(rig.issue({Rig::span(request, 0, 0, 4)}));
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(2));
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    whole.replay(rig.stream());
    rig.land(rig.issue({Rig::span(request, 4, 0, 4)}));
    whole.replay(rig.stream());
    rig.land(rig.issue({Rig::span(request, 8, 0, 4)}));
    rig.expect(request, 0,
               routed_rows(rig.shape(), 1, 0, 4) + routed_rows(rig.shape(), 1, 0, 4) +
                   routed_rows(rig.shape(), 1, 0, 4));
}

// A graph may hold the snapshot alone, or the records.
TEST_F(CheckedGraphs, parts_of_a_forward_in_graphs_and_parts_in_line_are_in_order) {
    Rig rig({.shape = kShape, .flags = ROUTECAP_CONFIG_CHECKED});
    const auto records = capture(rig, {.begun = 0, .snapshots = 0}),
               tail = capture(rig, {.begun = 0});
    const routecap_request request = rig.open();
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(4));
    records.replay(rig.stream());
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    rig.land(rig.issue({Rig::span(request, 0, 0, 4)}));
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(4));
    tail.replay(rig.stream());
    rig.land(rig.issue({Rig::span(request, 4, 0, 4)}));
    rig.expect(request, 0, routed_rows(rig.shape(), 1, 0, 4) + routed_rows(rig.shape(), 1, 0, 4));
}

// Without the flag a device that reads such memory may be lost.
TEST_F(CheckedGraphs, memory_that_no_device_can_read_is_refused) {
    Rig rig({.shape = {.layers = 1, .k = 2, .experts = 16, .rows = 8},
             .flags = ROUTECAP_CONFIG_CHECKED,
             .layer_provenance = {ROUTECAP_PROVENANCE_RECOMPUTED}});
    const routecap_request request = rig.open();
    int32_t here[64] = {};
    void *there = rig.device().allocate(sizeof here);
    // Each member of an argument in turn, with the others as they should be.
    const auto refused = [&](const char *name, int32_t status) {
        EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, status);
        EXPECT_NE(std::string(routecap_last_error()).find(name), std::string::npos)
            << routecap_last_error();
    };
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(4));
    {
        routecap_source good{};
        good.struct_size = sizeof good;
        good.dtype = ROUTECAP_DTYPE_I32;
        good.ids = there;
        good.rows = 4;
        const auto record = [&](const routecap_source &s) {
            return routecap_layer_record(rig.capturer(), 0, &s, rig.stream());
        };
        routecap_source s = good;
        s.ids = here, refused("ids", record(s));
        s = good, s.table = here, s.table_size = 16, refused("table", record(s));
        s = good, s.live_rows = here, refused("live_rows", record(s));
        s = good, s.row_base = here, refused("row_base", record(s));
        s = good, s.row_index = here, refused("row_index", record(s));
        s = good, s.ids = nullptr;
        const routecap_layer_source layer{0, 0, here, nullptr};
        refused("ids",
                routecap_layers_record(rig.capturer(), &s, &layer, sizeof layer, 1, rig.stream()));
    }
    {
        routecap_router method;
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_router_init(&method, sizeof method, ROUTECAP_METHOD_TOPK));
        routecap_logits good{};
        good.struct_size = sizeof good;
        good.dtype = ROUTECAP_DTYPE_F32;
        good.logits = there;
        good.rows = 1;
        const auto route = [&](const routecap_router &r, const routecap_logits &l) {
            return routecap_layer_route(rig.capturer(), 0, &r, &l, rig.stream());
        };
        routecap_logits l = good;
        l.logits = here, refused("logits.logits", route(method, l));
        l = good, l.weights = reinterpret_cast<float *>(here),
        refused("logits.weights", route(method, l));
        l = good, l.live_rows = here, refused("live_rows", route(method, l));
        routecap_router r = method;
        r.bias = here, r.bias_dtype = ROUTECAP_DTYPE_F32, refused("router.bias", route(r, good));
        l = good, l.tokens = there, l.tokens_dtype = ROUTECAP_DTYPE_I32;
        r = method, r.hash_table = here, r.hash_tokens = 4,
        refused("router.hash_table", route(r, l));
        r.hash_table = static_cast<int32_t *>(there), l.tokens = here,
        refused("logits.tokens", route(r, l));
    }
    {
        routecap_received good{};
        good.struct_size = sizeof good;
        good.ranks = 1;
        good.experts = 16;
        good.k = 2;
        good.tokens_per_rank = 4;
        good.rows = 2;
        good.tokens = 2;
        good.dtype = ROUTECAP_DTYPE_I32;
        good.metadata = static_cast<int32_t *>(there);
        good.ids = there;
        good.topk_ids = there;
        good.executed = static_cast<int32_t *>(there);
        good.counts = static_cast<routecap_received_counts *>(there);
        const auto read = [&](const routecap_received &r) {
            return routecap_received_read(rig.capturer(), &r, rig.stream());
        };
        const auto compare = [&](const routecap_received &r) {
            return routecap_received_compare(rig.capturer(), &r, rig.stream());
        };
        routecap_received r = good;
        r.live_rows = here, refused("received.live_rows", read(r));
        r = good, r.metadata = here, refused("received.metadata", read(r));
        r = good, r.ids = here, refused("received.ids", read(r));
        r = good, r.topk_ids = here, refused("received.topk_ids", compare(r));
        r = good, r.executed = here, refused("received.executed", read(r));
        refused("received.executed", compare(r));
        r = good, r.counts = reinterpret_cast<routecap_received_counts *>(here);
        refused("received.counts", read(r)), refused("received.counts", compare(r));
        r = good, r.flags = ROUTECAP_RECEIVED_EXPANDED, r.ids = nullptr, r.expert_ends = here;
        refused("received.expert_ends", read(r));
    }
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    routecap_issue_options options{};
    options.struct_size = sizeof options;
    options.positions = here;
    options.positions_dtype = ROUTECAP_DTYPE_I32;
    routecap_span span = Rig::span(request, 0, 0, 4, ROUTECAP_SPAN_DEVICE_POSITIONS);
    span.position_end = 4;
    refused("options.positions", routecap_step_issue(rig.capturer(), &span, sizeof span, 1,
                                                     &options, nullptr, nullptr, rig.stream()));
    options.positions = there;
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_issue(rig.capturer(), &span, sizeof span, 1, &options,
                                                   nullptr, nullptr, rig.stream()));
}
