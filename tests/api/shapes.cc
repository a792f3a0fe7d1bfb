// A slip of shape is an error, or rows are missing: never is there a row that no router chose. As a
// program sees it that states what it knows, through the public header alone.
#include <gtest/gtest.h>
#include <routecap.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr uint32_t kLayers = 2, kExperts = 64;

const std::array<std::string, 15> kSlips = {"smaller k",   "larger k",   "fewer rows", "more rows",
                                            "columns",     "stride",     "sink row",   "one shared",
                                            "span beyond", "prefix sum", "type",       "layer",
                                            "begun",       "table",      "short copy"};

struct Drawn {
    std::mt19937_64 numbers{49};
    uint32_t below(uint32_t end) { return static_cast<uint32_t>(numbers() % end); }
};

routecap_capturer *capturer_of(uint32_t k) {
    routecap_config config;
    EXPECT_EQ(ROUTECAP_OK, routecap_config_init(&config, sizeof config));
    config.backend = ROUTECAP_BACKEND_HOST;
    config.layers = kLayers;
    config.k = k;
    config.experts = kExperts;
    config.rows = 32;
    routecap_capturer *capturer = nullptr;
    EXPECT_EQ(ROUTECAP_OK, routecap_capturer_create(&config, &capturer)) << routecap_last_error();
    return capturer;
}

// A pass of two requests with one slip: whether that was refused.
bool slipped(Drawn &drawn, const std::string &slip) {
    const uint32_t k = 2 + drawn.below(5), rows = 2 + drawn.below(4), more = 1 + drawn.below(2);
    std::vector<int32_t> chosen;
    for (uint32_t row = 0; row < 2 * rows; row++) {
        std::vector<int32_t> all(kExperts);
        std::iota(all.begin(), all.end(), 0);
        for (uint32_t column = 0; column < k; column++) {
            const auto at = all.begin() + drawn.below(static_cast<uint32_t>(all.size()));
            chosen.push_back(*at);
            all.erase(at);
        }
    }
    const std::vector<int64_t> wide(chosen.begin(), chosen.end());
    const std::array<int32_t, 3> sums = {0, static_cast<int32_t>(rows),
                                         static_cast<int32_t>(2 * rows)};
    std::vector<int32_t> table(kExperts / 2);  // of the ids that there are
    std::iota(table.begin(), table.end(), 0);

    routecap_source source{};
    source.struct_size = sizeof source;
    source.dtype = ROUTECAP_DTYPE_I32;
    source.ids = chosen.data();
    source.ids_bytes = chosen.size() * sizeof(int32_t);
    source.rows = 2 * rows;
    std::array<routecap_span, 2> spans{};
    spans[0].rows = spans[1].rows = spans[1].sink_row = rows;
    uint32_t own_k = k, begun = 2 * rows, shift = 0;
    if (slip == "smaller k") own_k = k > more ? k - more : 1;
    if (slip == "larger k") own_k = k + more;
    if (slip == "fewer rows") source.rows -= more;
    if (slip == "more rows") source.rows += more;
    if (slip == "columns") source.k_source = k + more;
    if (slip == "stride") source.row_stride = k + more;
    if (slip == "sink row" || slip == "one shared") spans[1].sink_row = 0;
    if (slip == "one shared") spans[0].flags = ROUTECAP_SPAN_SHARED;
    if (slip == "span beyond") spans[1].rows += more;
    if (slip == "prefix sum") source.live_rows = sums.data();
    if (slip == "layer") shift = 1;
    if (slip == "begun") begun -= more;
    if (slip == "type") {
        source.ids = wide.data();
        source.ids_bytes = wide.size() * sizeof(int64_t);
    }
    if (slip == "table") {
        source.table = table.data();
        source.table_size = static_cast<uint32_t>(table.size());
    }

    routecap_capturer *capturer = capturer_of(own_k);
    std::array<routecap_request, 2> requests{};
    EXPECT_EQ(ROUTECAP_OK, routecap_request_open(capturer, nullptr, requests.data(), 2));
    spans[0].request = requests[0];
    spans[1].request = requests[1];
    routecap_step step = 0;
    bool refused = routecap_step_begin(capturer, begun, nullptr) < 0;
    for (uint32_t layer = 0; layer < kLayers && !refused; layer++)
        refused = routecap_layer_record(capturer, layer + shift, &source, nullptr) < 0;
    refused = refused || routecap_step_snapshot(capturer, nullptr) < 0 ||
              routecap_step_issue(capturer, spans.data(), sizeof spans[0], spans.size(), nullptr,
                                  nullptr, &step, nullptr) < 0;
    for (uint32_t i = 0; i < 2 && !refused; i++) {
        const size_t count = spans[i].rows;  // more than there are, if that is the slip
        routecap_routing *routing = nullptr;
        EXPECT_EQ(ROUTECAP_OK, routecap_request_finish(capturer, requests[i], count, &routing));
        const int32_t ready = routecap_routing_wait(routing, -1);
        routecap_copy_options options;
        EXPECT_EQ(ROUTECAP_OK, routecap_copy_options_init(&options, sizeof options));
        options.dtype = ROUTECAP_DTYPE_I32;
        std::vector<int32_t> ids(count * kLayers * own_k);
        const size_t bytes = ids.size() * sizeof(int32_t) - (slip == "short copy" ? 4 : 0);
        if (routecap_routing_copy_to(routing, &options, ids.data(), bytes, nullptr, 0, nullptr) <
            0) {
            refused = true;
        } else {
            for (size_t cell = 0; cell < count * kLayers; cell++) {
                const auto got = ids.begin() + static_cast<ptrdiff_t>(cell * own_k);
                if (*got == -1) continue;
                const size_t row = i * rows + cell / kLayers;
                if (row >= 2 * rows) {
                    ADD_FAILURE() << slip << ": there is no row " << row;
                    continue;
                }
                const auto want = chosen.begin() + static_cast<ptrdiff_t>(row * k);
                EXPECT_TRUE(own_k == k && std::equal(got, got + own_k, want)) << slip;
            }
            EXPECT_TRUE(i == 0 || ready != ROUTECAP_OK) << slip << ": nothing is missing";
        }
        routecap_routing_free(routing);
    }
    routecap_capturer_destroy(capturer);
    return refused;
}

}  // namespace

// A capturer of another k, a sink row that was forgotten, ids of 64 bits said to be of 32: each of
// these once gave complete rows that no router chose.
TEST(Shapes, of_a_hundred_slips_none_gives_a_row_that_nobody_chose) {
    Drawn drawn;
    std::array<bool, kSlips.size()> seen{};
    uint32_t refused = 0;
    for (uint32_t i = 0; i < 100; i++) {
        const uint32_t slip = drawn.below(kSlips.size());
        seen[slip] = true;
        refused += slipped(drawn, kSlips[slip]);
    }
    EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](bool one) { return one; }));
    EXPECT_GT(refused, 60u);
}
