// Ranks and layouts: row bases, sinks that are too small, micro-batches.
#include <rig.h>

#include <algorithm>

using namespace rig;

// Capture compared the row count with data-parallel totals and guessed.
TEST(Scenario, F21_layout_is_not_guessed) {
    Rig rig({.shape = {.rows = 12}});
    const routecap_request r = rig.open(), s = rig.open();
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(12));
    // Gathered from three ranks; ours is the second.
    rig.record_all({{1, 0, 4}, {2, 0, 4}, {3, 0, 4}});
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    rig.land(rig.issue({Rig::span(r, 0, 4, 4)}));
    rig.expect(r, 0, routed_rows(rig.shape(), 2, 0, 4));

    EXPECT_STATUS(ROUTECAP_OK, rig.begin(6));
    rig.record_all({{4, 3, 3}}, 3);  // only rows 3..5 are recorded
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    rig.land(rig.issue({Rig::span(s, 0, 0, 6)}));
    rig.expect(s, 0, missing_rows(rig.shape(), 3) + routed_rows(rig.shape(), 4, 3, 6));
}

// The same where row base and live count are numbers in device memory.
TEST(Scenario, F21_base_and_live_count_from_the_device) {
    Rig rig({.shape = {.layers = 1, .rows = 12}});
    const routecap_request r = rig.open();
    const std::vector<int32_t> ids = {1, 2, 3, 4, 5, 6, 7, 8};
    for (auto [base, live, first, end] :
         {std::tuple{4, 3, 4, 7}, {2, 99, 2, 6}, {10, 4, 10, 12}, {-3, 4, 0, 1}, {0, -5, 0, 0}}) {
        const int32_t device_base = base, device_live = live;
        routecap_source source{};
        source.struct_size = sizeof source;
        source.dtype = ROUTECAP_DTYPE_I32;
        source.ids = ids.data();
        source.rows = 4;
        source.row_base = &device_base;
        source.live_rows = &device_live;
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(12));
        EXPECT_STATUS(ROUTECAP_OK, rig.record(0, source));
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
        rig.land(rig.issue({Rig::span(r, 0, 0, 12)}));
        Rows expected = missing_rows(rig.shape(), 12);
        for (int row = first; row < end; row++) {
            const auto at = static_cast<size_t>(row - base) * 2;
            expected[static_cast<size_t>(row)][0] = {ids[at], ids[at + 1]};
        }
        rig.expect(r, 0, expected);
        EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), r, 0));
    }
    EXPECT_EQ(rig.stats().rows_dropped, 2u + 3u);  // outside the sink, at either end
}

// Buffers were sized by a per-rank limit while the kernel saw the gathered batch.
TEST(Scenario, F22_batch_larger_than_the_sink) {
    constexpr uint32_t kRows = 8192, kGuard = 64;
    Rig rig({.shape = {.layers = 2, .k = 2, .experts = 16, .rows = kRows},
             .flags = ROUTECAP_CONFIG_EXTERNAL_SINK});
    constexpr size_t kElements = kRows * 2 + 2 * kGuard;
    int16_t *memory[2];
    for (uint32_t l = 0; l < 2; l++) {
        routecap_sink sink{};
        sink.struct_size = sizeof sink;
        sink.dtype = ROUTECAP_DTYPE_I16;
        memory[l] = static_cast<int16_t *>(rig.device().allocate(kElements * 2, 0x5a));
        sink.ids = memory[l] + kGuard;
        sink.rows = kRows;
        sink.k = 2;
        ASSERT_STATUS(ROUTECAP_OK, routecap_sink_bind(rig.capturer(), l, 1, &sink));
    }
    const auto guards_intact = [&] {
        return std::all_of(std::begin(memory), std::end(memory), [&](const int16_t *on_device) {
            std::vector<int16_t> m(kElements);
            rig.device().read(m.data(), on_device, m.size() * 2);
            return std::all_of(m.begin(), m.begin() + kGuard,
                               [](int16_t v) { return v == 0x5a5a; }) &&
                   std::all_of(m.end() - kGuard, m.end(), [](int16_t v) { return v == 0x5a5a; });
        });
    };
    const routecap_request r = rig.open();
    EXPECT_STATUS(ROUTECAP_ERR_CAPACITY, rig.begin(kRows + 1));
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(kRows));
    EXPECT_STATUS(ROUTECAP_ERR_CAPACITY,
                  rig.record(0, std::vector<std::vector<int64_t>>(16384, {1, 2})));
    EXPECT_STATUS(ROUTECAP_ERR_CAPACITY,
                  rig.record(0, std::vector<std::vector<int64_t>>(10, {1, 2}), 8190));
    EXPECT_STATUS(ROUTECAP_OK, rig.record(0, std::vector<std::vector<int64_t>>(2, {1, 2}), 8190));
    const std::vector<int32_t> ids(20, 3),
        index = {8191, 8192, 8193, 9000, 1 << 30, -1, 0, 1, 2, 3};
    routecap_source source{};
    source.struct_size = sizeof source;
    source.dtype = ROUTECAP_DTYPE_I32;
    source.ids = ids.data();
    source.rows = 10;
    source.row_index = index.data();
    EXPECT_STATUS(ROUTECAP_OK, rig.record(1, source));  // what is outside is dropped
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    rig.issue({Rig::span(r, 0, 8191, 2)}, ROUTECAP_ERR_CAPACITY);
    rig.expect_length(r, 0);
    EXPECT_EQ(rig.stats().steps_issued, 0u);
    EXPECT_TRUE(guards_intact());

    rig.land(rig.step({{r, {1, 0, 5}}}));  // the next correct step works
    rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 5));
    EXPECT_TRUE(guards_intact());
}

// Two micro-batches of one step; a buffer always written from row 0 keeps the later one only.
TEST(Scenario, F23_two_micro_batches) {
    Rig rig({.shape = {.layers = 2, .k = 2, .experts = 16, .rows = 10}});
    const routecap_request r = rig.open();
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(10));
    for (uint32_t layer : {0u, 1u}) {  // interleaved: nothing depends on a current layer
        rig.record_tokens(layer, {{1, 0, 6}}, 0);
        rig.record_tokens(layer, {{1, 6, 4}}, 6);
    }
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    rig.land(rig.issue({Rig::span(r, 0, 0, 10)}));
    rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 10));

    EXPECT_STATUS(ROUTECAP_OK, rig.begin(10));
    rig.record_tokens(0, {{1, 10, 6}}, 0);
    // Both use base 0.
    EXPECT_STATUS(ROUTECAP_ERR_CONFLICT,
                  rig.record(0, std::vector<std::vector<int64_t>>(4, {1, 2}), 0));
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    rig.land(rig.issue({Rig::span(r, 10, 0, 6)}));
    Rows expected = routed_rows(rig.shape(), 1, 10, 16);
    for (Row &row : expected) row[1].reset();
    rig.expect(r, 10, expected);
}
