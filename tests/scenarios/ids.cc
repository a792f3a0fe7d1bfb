// Ids: physical replicas, shared-expert columns, zero experts, widths.
#include <rig.h>

using namespace rig;

namespace {

// Records one layer of one row per id list, and returns what was read.
Rows one_layer(Rig &rig, const routecap_source &source, uint32_t rows) {
    const routecap_request r = rig.open();
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(rows));
    EXPECT_STATUS(ROUTECAP_OK, rig.record(0, source));
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    rig.land(rig.issue({Rig::span(r, 0, 0, rows)}));
    routecap_routing *routing = nullptr;
    EXPECT_GE(
        routecap_request_extract(rig.capturer(), r, 0, rows, ROUTECAP_EXTRACT_SHARE, 0, &routing),
        0);
    const RoutingPtr owner(routing);
    const Rows got = contents(routing, rig.shape());
    expect_routing(routing, rig.shape(), 0, got);
    return got;
}

routecap_source source_of(const void *ids, int32_t dtype, uint32_t rows) {
    routecap_source s{};
    s.struct_size = sizeof s;
    s.dtype = dtype;
    s.ids = ids;
    s.rows = rows;
    return s;
}

}  // namespace

// Ids were taken after the logical-to-physical mapping: replicas appeared as other experts.
TEST(Scenario, F13_physical_ids) {
    Rig rig({.shape = {.layers = 1, .k = 8, .experts = 64, .rows = 9}});
    std::vector<int32_t> physical(72), table(72);
    for (int i = 0; i < 72; i++)
        physical[static_cast<size_t>(i)] = i,
        table[static_cast<size_t>(i)] = i < 64 ? i : (i - 64) * 5;
    routecap_source source = source_of(physical.data(), ROUTECAP_DTYPE_I32, 9);

    Rows expected;
    for (int64_t r = 0; r < 9; r++)
        expected.push_back({r < 8 ? Cell({r * 8, r * 8 + 1, r * 8 + 2, r * 8 + 3, r * 8 + 4,
                                          r * 8 + 5, r * 8 + 6, r * 8 + 7})
                                  : Cell()});
    EXPECT_EQ(one_layer(rig, source, 9), expected);
    EXPECT_EQ(rig.stats().cells_out_of_range, 1u);
    EXPECT_EQ(rig.layer_stats()[0].out_of_range, 1u);

    source.table = table.data();
    source.table_size = 72;
    expected[8] = {Cell({0, 5, 10, 15, 20, 25, 30, 35})};
    EXPECT_EQ(one_layer(rig, source, 9), expected);
    EXPECT_EQ(rig.stats().cells_out_of_range, 1u);

    source.table_size = 70;  // ids outside the table are invalid, not read
    expected[8] = {Cell()};
    EXPECT_EQ(one_layer(rig, source, 9), expected);

    const routecap_request r = rig.open();
    const RoutingPtr routing(rig.extract(r, 0, 0, ROUTECAP_OK));
    EXPECT_EQ(view_of(routing.get()).id_space, ROUTECAP_ID_SPACE_LOGICAL);
}

// Fused shared experts widened the row; a kernel indexed a [T, K] output with stride K+S.
TEST(Scenario, F14_shared_expert_columns) {
    Rig rig({.shape = {.layers = 1, .k = 2, .experts = 8, .rows = 4}});
    const std::vector<int32_t> wide = {1, 2, 8, 9, 3, 4, 8, 9, 5, 6, 8, 9, 7, 0, 8, 9};
    routecap_source source = source_of(wide.data(), ROUTECAP_DTYPE_I32, 4);
    source.k_source = 4;
    const Rows expected{{Cell({1, 2})}, {Cell({3, 4})}, {Cell({5, 6})}, {Cell({7, 0})}};
    EXPECT_EQ(one_layer(rig, source, 4), expected);
    source.k_source = 2;  // the stride alone does as well
    source.row_stride = 4;
    EXPECT_EQ(one_layer(rig, source, 4), expected);
    EXPECT_EQ(rig.stats().cells_out_of_range, 0u);

    source.row_stride = 2;  // the same memory, declared contiguous
    EXPECT_EQ(one_layer(rig, source, 4),
              (Rows{{Cell({1, 2})}, {Cell()}, {Cell({3, 4})}, {Cell()}}));
    EXPECT_EQ(rig.stats().cells_out_of_range, 2u);
}

// Zero experts were overwritten with id 0 before the capture hook ran.
TEST(Scenario, F15_zero_experts) {
    Rig rig({.shape = {.layers = 1, .k = 4, .experts = 12, .rows = 2}});
    const std::vector<int32_t> ids = {3, 9, 11, 0, 3, 0, 0, 0};
    EXPECT_EQ(one_layer(rig, source_of(ids.data(), ROUTECAP_DTYPE_I32, 2), 2),
              (Rows{{Cell({3, 9, 11, 0})}, {Cell()}}));
    EXPECT_EQ(rig.stats().cells_duplicate, 1u);
    EXPECT_EQ(rig.stats().cells_out_of_range, 0u);
}

// A byte wraps above 256 experts; -1 in an unsigned buffer reads 255, which is real when there are
// 256.
TEST(Scenario, F16_width_follows_the_experts) {
    {
        Rig rig({.shape = {.layers = 1, .k = 3, .experts = 512, .rows = 2}});
        const std::vector<int64_t> ids = {255, 256, 511, 65541, 1, 2};
        EXPECT_EQ(one_layer(rig, source_of(ids.data(), ROUTECAP_DTYPE_I64, 2), 2),
                  (Rows{{Cell({255, 256, 511})}, {Cell()}}));

        const routecap_request r = rig.open();
        rig.land(rig.step({{r, {1, 0, 1}}}));
        routecap_copy_options options;
        ASSERT_STATUS(ROUTECAP_OK, routecap_copy_options_init(&options, sizeof options));
        options.dtype = ROUTECAP_DTYPE_U8;
        options.flags = ROUTECAP_READ_STRICT;
        uint8_t bytes[8];
        EXPECT_STATUS(ROUTECAP_ERR_DTYPE,
                      routecap_request_extract_into(rig.capturer(), r, 0, 1, &options, bytes,
                                                    sizeof bytes, nullptr, 0, nullptr));
    }
    Rig rig({.shape = {.layers = 1, .k = 2, .experts = 256, .rows = 2}});
    const std::vector<int16_t> ids = {0, 255, -1, -1};
    EXPECT_EQ(one_layer(rig, source_of(ids.data(), ROUTECAP_DTYPE_I16, 2), 2),
              (Rows{{Cell({0, 255})}, {Cell()}}));
    EXPECT_EQ(rig.stats().cells_out_of_range, 1u);
    EXPECT_EQ(rig.stats().cells_duplicate, 0u);
}
