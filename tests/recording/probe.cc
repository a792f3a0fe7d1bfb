// routecap_capturer_probe where the vectors (probes.json) do not reach.
#include <rig.h>

using namespace rig;

namespace {

std::vector<routecap_layer_probe> probe(Rig &rig, uint32_t rows, int32_t expected) {
    std::vector<routecap_layer_probe> layers(rig.shape().layers);
    EXPECT_STATUS(expected, routecap_capturer_probe(rig.capturer(), rows, layers.data(),
                                                    sizeof layers[0], layers.size(), rig.stream()));
    return layers;
}

}  // namespace

TEST(Probe, a_layer_written_in_part) {
    Rig rig({.shape = {.layers = 1, .k = 4, .experts = 20, .rows = 8},
             .sink_dtype = ROUTECAP_DTYPE_I32});
    routecap_sink sink{};
    sink.struct_size = sizeof sink;
    EXPECT_STATUS(ROUTECAP_OK, routecap_sink_layer(rig.capturer(), 0, &sink));
    const int32_t ids[] = {5, 6};
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(2));
    rig.device().write(sink.ids, ids, sizeof ids);  // two columns of the first row
    const auto layers = probe(rig, 2, ROUTECAP_PARTIAL);
    EXPECT_EQ(layers[0].found, ROUTECAP_PROBE_INCOMPLETE);
    EXPECT_EQ(layers[0].rows_incomplete, 1u);
    EXPECT_EQ(layers[0].rows_unwritten, 1u);
}

TEST(Probe, adopted_rows_that_are_apart) {
    Rig rig({.shape = {.layers = 2, .k = 2, .experts = 20, .rows = 8},
             .flags = ROUTECAP_CONFIG_EXTERNAL_SINK});
    auto *memory = static_cast<int64_t *>(rig.device().allocate(8 * 5 * 8));
    routecap_sink sink{};
    sink.struct_size = sizeof sink;
    sink.dtype = ROUTECAP_DTYPE_I64;
    sink.ids = memory;
    sink.rows = 8;
    sink.k = 2;
    sink.row_stride = 5;
    EXPECT_STATUS(ROUTECAP_OK, routecap_sink_bind(rig.capturer(), 0, 1, &sink));
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(3));
    EXPECT_STATUS(ROUTECAP_OK, rig.record(0, {{1, 2}, {3, 4}, {17, 6}}));
    const auto layers = probe(rig, 3, ROUTECAP_PARTIAL);
    EXPECT_EQ(layers[0].found, 0u);
    EXPECT_EQ(layers[0].rows_written, 3u);
    EXPECT_EQ(layers[0].highest, 17);
    EXPECT_EQ(layers[1].found, ROUTECAP_PROBE_SILENT);  // it has no sink
}

TEST(Probe, refusals) {
    Rig rig({.shape = {.layers = 2, .k = 2, .experts = 20, .rows = 8}});
    probe(rig, 1, ROUTECAP_ERR_STATE);
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(3));
    probe(rig, 4, ROUTECAP_ERR_CAPACITY);
    routecap_layer_probe layers[3];
    EXPECT_STATUS(
        ROUTECAP_ERR_UNKNOWN_LAYER,
        routecap_capturer_probe(rig.capturer(), 1, layers, sizeof layers[0], 3, rig.stream()));
    EXPECT_STATUS(
        ROUTECAP_ERR_ARGUMENT,
        routecap_capturer_probe(rig.capturer(), 1, nullptr, sizeof layers[0], 1, rig.stream()));
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE,
                  routecap_capturer_probe(rig.capturer(), 1, layers, 8, 1, rig.stream()));
    rig.record_all({{1, 0, 3}});
    probe(rig, 3, ROUTECAP_OK);
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_discard(rig.capturer(), rig.stream()));
    probe(rig, 3, ROUTECAP_ERR_STATE);
}
