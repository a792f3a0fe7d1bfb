// Layers: drafts' layer 0, dense layers, process-wide state.
#include <rig.h>

using namespace rig;

// Target and draft model both own a layer 0, and the later write won.
TEST(Scenario, F17_draft_model_writes_layer_0) {
    Rig rig;
    const routecap_request r = rig.open();
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(10));
    rig.record_all({{1, 0, 10}});
    EXPECT_STATUS(ROUTECAP_ERR_CONFLICT, rig.record(0, std::vector<std::vector<int64_t>>(
                                                           10, routed(rig.shape(), 2, 0, 0))));
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_LAYER, rig.record(4, {{1, 2}}));
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    rig.land(rig.issue({Rig::span(r, 0, 0, 10)}));
    rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 10));
}

// Where the host cannot know the rows, as in a replayed graph, the first is kept and the conflict
// reported at finalize.
TEST(Scenario, F17_conflict_found_on_the_device) {
    Rig rig;
    const routecap_request r = rig.open();
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(10));
    rig.record_all({{1, 0, 10}});
    const std::vector<int32_t> ids = {0, 1, 2, 3, 4, 5};
    const std::vector<int32_t> index = {9, -1, 3};
    routecap_source source{};
    source.struct_size = sizeof source;
    source.dtype = ROUTECAP_DTYPE_I32;
    source.ids = ids.data();
    source.rows = 3;
    source.row_index = index.data();
    EXPECT_STATUS(ROUTECAP_OK, rig.record(0, source));
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    const routecap_step step = rig.issue({Rig::span(r, 0, 0, 10)});
    uint64_t conflicting = 0;
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_finalize(rig.capturer(), step, -1, &conflicting));
    EXPECT_EQ(conflicting, 2u);
    EXPECT_EQ(rig.stats().cells_conflicting, 2u);
    rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 10));
}

// Some payloads carry every decoder layer, others only the MoE ones: silent shifts.
TEST(Scenario, F18_dense_first_model) {
    std::vector<int32_t> map;
    for (int32_t l = 3; l <= 60; l++) map.push_back(l);
    Rig rig({.shape = {.layers = 58, .k = 8, .experts = 256, .rows = 4}, .layer_map = map});
    const routecap_request r = rig.open();
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(4));
    rig.record_tokens(0, {{1, 0, 4}});
    rig.record_tokens(57, {{1, 0, 4}});
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_LAYER, rig.record(58, {{0, 1, 2, 3, 4, 5, 6, 7}}));
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    rig.land(rig.issue({Rig::span(r, 0, 0, 4)}));
    Rows expected = routed_rows(rig.shape(), 1, 0, 4);
    for (Row &row : expected)
        for (uint32_t l = 1; l < 57; l++) row[l].reset();
    rig.expect(r, 0, expected);
    const RoutingPtr routing(rig.extract(r, 0, 4, ROUTECAP_INCOMPLETE));
    const routecap_view view = view_of(routing.get());
    EXPECT_EQ(view.layers, 58u);
    EXPECT_EQ(view.layer_map[0], 3);
    EXPECT_EQ(view.layer_map[57], 60);
}

// Layer numbers came from a class counter, a second initialisation failed, models shared one list.
TEST(Scenario, F19_no_process_wide_state) {
    auto a = std::make_unique<Rig>(Options{.shape = {.layers = 48}});
    Rig b({.shape = {.layers = 16}});
    routecap_sink sink{};
    sink.struct_size = sizeof sink;
    sink.dtype = ROUTECAP_DTYPE_I32;
    sink.ids = b.device().allocate(32 * 2 * 4);
    sink.rows = 32;
    sink.k = 2;
    EXPECT_STATUS(ROUTECAP_OK, routecap_sink_bind(b.capturer(), 0, 1, &sink));
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_LAYER, routecap_sink_bind(b.capturer(), 16, 1, &sink));
    const routecap_request of_a = a->open();
    a.reset();
    a = std::make_unique<Rig>(Options{.shape = {.layers = 48}});
    for (Rig *rig : {a.get(), &b}) {
        const routecap_request r = rig->open();
        rig->land(rig->step({{r, {7, 0, 3}}}));
        rig->expect(r, 0, routed_rows(rig->shape(), 7, 0, 3));
    }
    // Another capturer's handle is nobody's here.
    b.extract(of_a, 0, 0, ROUTECAP_ERR_UNKNOWN_REQUEST);
}
