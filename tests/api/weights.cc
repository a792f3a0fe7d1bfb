// Weights follow their ids: through merges, slices, sequences, stores and plans. Each weight is a
// function of its expert, position, layer and the routing it came from, and the order of the ids of
// a cell tells which routing that was. So wherever a weight ends up, the ids beside it say what it
// must be.
#include <rig.h>

#include <algorithm>
#include <cstring>
#include <random>

using namespace rig;

namespace {

constexpr uint32_t kLayers = 11, kColumns = 3, kExperts = 40;

// bfloat16 bits that are no NaN.
uint16_t weight_of(bool second, int64_t id, uint64_t position, int32_t layer) {
    uint64_t x = static_cast<uint64_t>(id) * 0x9e3779b97f4a7c15u ^ position * 0xc2b2ae3d27d4eb4fu ^
                 static_cast<uint64_t>(layer) * 0x165667b19e3779f9u ^
                 (second ? 0x27d4eb2f165667c5u : 0);
    x ^= x >> 29, x *= 0xbf58476d1ce4e5b9u, x ^= x >> 32;
    return static_cast<uint16_t>(x & 0x7eff);
}

// A routing of rows [first, first + rows) with some layers. Cells are missing, or without weights,
// at random. `second` has ids in descending order.
RoutingPtr make(std::mt19937_64 &random, bool second, uint64_t first, uint64_t rows,
                const std::vector<int32_t> &map, uint32_t missing_of = 6) {
    const auto layers = static_cast<uint32_t>(map.size());
    const uint32_t validity_bytes = (layers + 7) / 8;
    std::vector<uint8_t> ids(rows * layers * kColumns), validity(rows * validity_bytes),
        there(rows * validity_bytes);
    std::vector<uint16_t> weights(rows * layers * kColumns, 0x7fff);
    for (uint64_t r = 0; r < rows; r++)
        for (uint32_t l = 0; l < layers; l++) {
            uint8_t *cell = &ids[(r * layers + l) * kColumns];
            std::mt19937 chosen(
                static_cast<uint32_t>((first + r) * 64 + static_cast<uint32_t>(map[l])));
            std::set<uint8_t> set;
            while (set.size() < kColumns) set.insert(static_cast<uint8_t>(chosen() % kExperts));
            std::copy(set.begin(), set.end(), cell);
            if (second) std::reverse(cell, cell + kColumns);
            if (random() % missing_of == 0) continue;
            validity[r * validity_bytes + l / 8] |= static_cast<uint8_t>(1u << l % 8);
            if (random() % 5 == 0) continue;
            there[r * validity_bytes + l / 8] |= static_cast<uint8_t>(1u << l % 8);
            for (uint32_t c = 0; c < kColumns; c++)
                weights[(r * layers + l) * kColumns + c] =
                    weight_of(second, cell[c], first + r, map[l]);
        }
    for (uint64_t r = 0; r < rows; r++)  // a reason in place of the ids
        for (uint32_t l = 0; l < layers; l++)
            if ((validity[r * validity_bytes + l / 8] >> l % 8 & 1) == 0)
                ids[(r * layers + l) * kColumns] = ROUTECAP_MISSING_UNWRITTEN;
    routecap_segment segment{};
    segment.first = first, segment.rows = rows, segment.ids = ids.data();
    segment.validity = validity.data();
    segment.weights = weights.data(), segment.weights_validity = there.data();
    routecap_view view{};
    view.struct_size = sizeof view;
    view.dtype = ROUTECAP_DTYPE_U8, view.layers = layers, view.k = kColumns;
    view.experts = kExperts, view.first = first, view.rows = rows;
    view.layer_map = map.data(), view.weights_dtype = ROUTECAP_DTYPE_BF16;
    view.segments = &segment, view.segment_size = sizeof segment, view.segment_count = 1;
    routecap_routing *made = nullptr;
    EXPECT_GE(routecap_routing_import(&view, 0, nullptr, nullptr, &made), 0)
        << routecap_last_error();
    return RoutingPtr(made);
}

// Whether a cell's weights are those of its ids, and how many cells have weights.
uint64_t expect_weights(const routecap_routing *routing) {
    const routecap_view view = view_of(routing);
    EXPECT_EQ(view.weights_dtype, ROUTECAP_DTYPE_BF16);
    uint64_t weighted = 0;
    for (size_t i = 0; i < view.segment_count; i++) {
        const routecap_segment &s = view.segments[i];
        for (uint64_t r = 0; r < s.rows && s.ids != nullptr; r++)
            for (uint32_t l = 0; l < view.layers; l++) {
                const auto bit = [&](const uint8_t *bits) {
                    return bits == nullptr || (bits[r * view.row_stride + l / 8] >> l % 8 & 1) != 0;
                };
                const auto *ids = static_cast<const uint8_t *>(s.ids) + r * view.row_stride +
                                  size_t{l} * kColumns;
                const auto *weights =
                    reinterpret_cast<const uint16_t *>(static_cast<const uint8_t *>(s.weights) +
                                                       r * view.row_stride) +
                    size_t{l} * kColumns;
                if (!bit(s.weights_validity)) {
                    for (uint32_t c = 0; c < kColumns; c++) EXPECT_EQ(weights[c], 0);
                    continue;
                }
                weighted++;
                EXPECT_TRUE(bit(s.validity));
                for (uint32_t c = 0; c < kColumns; c++)
                    EXPECT_EQ(weights[c],
                              weight_of(ids[0] > ids[1], ids[c], s.first + r, view.layer_map[l]))
                        << "row " << s.first + r << " layer " << l << " column " << c;
            }
    }
    return weighted;
}

std::vector<int32_t> all_layers() {
    std::vector<int32_t> map(kLayers);
    for (uint32_t l = 0; l < kLayers; l++) map[l] = static_cast<int32_t>(2 * l);
    return map;
}
std::vector<int32_t> some_layers(std::mt19937_64 &random) {
    std::vector<int32_t> map;
    for (const int32_t l : all_layers())
        if (random() % 2 == 0) map.push_back(l);
    return map.empty() ? std::vector<int32_t>{4} : map;
}

}  // namespace

TEST(WeightsFollowTheirIds, when_routings_are_merged_and_divided) {
    for (int seed = 0; seed < draws(100); seed++) {
        std::mt19937_64 random(static_cast<uint64_t>(seed));
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::vector<RoutingPtr> parts;
        std::vector<const routecap_routing *> list;
        for (uint64_t n = 0, count = 2 + random() % 3; n < count; n++) {
            parts.push_back(make(random, random() % 2 == 0, random() % 20, 1 + random() % 30,
                                 some_layers(random), 2));
            list.push_back(parts.back().get());
        }
        routecap_routing *made = nullptr;
        ASSERT_GE(routecap_routing_merge(list.data(), list.size(), 0, &made), 0)
            << routecap_last_error();
        const RoutingPtr merged(made);
        EXPECT_GT(expect_weights(made), 0u);
        const routecap_view view = view_of(made);
        ASSERT_STATUS(ROUTECAP_OK,
                      routecap_routing_slice(merged.get(), view.first + random() % view.rows,
                                             ROUTECAP_ROWS_ALL, &made));
        expect_weights(RoutingPtr(made).get());
    }
}

TEST(WeightsFollowTheirIds, through_the_turns_of_a_sequence) {
    for (const auto policy : {ROUTECAP_APPEND_KEEP, ROUTECAP_APPEND_NEWEST})
        for (int seed = 0; seed < draws(60); seed++) {
            std::mt19937_64 random(static_cast<uint64_t>(seed));
            SCOPED_TRACE("seed " + std::to_string(seed));
            const std::vector<int32_t> map = all_layers();
            routecap_sequence_config config{};
            config.struct_size = sizeof config;
            config.layers = kLayers, config.k = kColumns, config.experts = kExperts;
            config.layer_map = map.data(), config.weights_dtype = ROUTECAP_DTYPE_BF16;
            routecap_sequence *sequence = nullptr;
            ASSERT_STATUS(ROUTECAP_OK, routecap_sequence_create(&config, &sequence));
            std::vector<int32_t> tokens;
            uint64_t weighted = 0;
            for (int turn = 0; turn < 5; turn++) {
                for (uint64_t n = 2 + random() % 9; n > 0; n--) tokens.push_back(1);
                const uint64_t first = random() % tokens.size();
                const RoutingPtr rows =
                    make(random, turn % 2 == 1, first, tokens.size() - first, map);
                routecap_append_options options{};
                options.struct_size = sizeof options;
                options.policy = policy;
                ASSERT_GE(routecap_sequence_append(sequence, tokens.data(), 0, tokens.size(),
                                                   rows.get(), &options, nullptr),
                          0)
                    << routecap_last_error();
                routecap_routing *made = nullptr;
                ASSERT_GE(routecap_sequence_routing(sequence, &made), 0);
                weighted += expect_weights(RoutingPtr(made).get());
            }
            EXPECT_GT(weighted, 0u);
            routecap_sequence_free(sequence);
        }
}

TEST(WeightsFollowTheirIds, into_the_layout_of_a_trainers_rank) {
    for (int seed = 0; seed < draws(60); seed++) {
        std::mt19937_64 random(static_cast<uint64_t>(seed));
        SCOPED_TRACE("seed " + std::to_string(seed));
        const std::vector<int32_t> map = all_layers();
        std::vector<int32_t> wanted;
        for (const int32_t l : map)
            if (random() % 3 != 0) wanted.push_back(l);
        if (wanted.empty()) wanted.push_back(map[1]);
        const std::vector<uint64_t> lengths{5 + random() % 20, 2 + random() % 9};
        std::vector<RoutingPtr> routings;
        std::vector<routecap_plan_source> sources;
        for (uint64_t s = 0; s < 2; s++) {
            routings.push_back(make(random, random() % 2 == 0, 0, lengths[s] - 1, map));
            sources.push_back({s, routings.back().get()});
        }
        routecap_plan_config config{};
        ASSERT_STATUS(ROUTECAP_OK, routecap_plan_config_init(&config, sizeof config));
        config.samples = 2, config.lengths = lengths.data();
        config.layers = static_cast<uint32_t>(wanted.size()), config.layer_map = wanted.data();
        config.k = kColumns, config.experts = kExperts, config.dtype = ROUTECAP_DTYPE_I32;
        config.order = seed % 2 == 0 ? ROUTECAP_ORDER_ROW_MAJOR : ROUTECAP_ORDER_LAYER_MAJOR;
        config.context = ROUTECAP_PLAN_CONTEXT_ZIGZAG, config.context_size = 2;
        config.context_rank = static_cast<uint32_t>(seed / 2 % 2);
        config.align = 4;
        routecap_plan *plan = nullptr;
        ASSERT_STATUS(ROUTECAP_OK, routecap_plan_create(&config, &plan)) << routecap_last_error();
        routecap_plan_shape shape{};
        shape.struct_size = sizeof shape;
        ASSERT_STATUS(ROUTECAP_OK, routecap_plan_describe(plan, &shape));
        const uint64_t cells = shape.rows * shape.layers;
        std::vector<int32_t> ids(cells * kColumns);
        std::vector<uint16_t> weights(cells * kColumns);
        std::vector<float> wide(cells * kColumns);
        std::vector<uint8_t> classes(cells);
        ASSERT_GE(routecap_plan_gather(plan, sources.data(), sizeof sources[0], 2, ids.data(),
                                       ids.size() * 4, classes.data(), cells, nullptr),
                  0);
        uint64_t missing = 0, found = 0;
        const int32_t status = routecap_plan_gather_weights(
            plan, sources.data(), sizeof sources[0], 2, ROUTECAP_DTYPE_BF16, -1.0f, weights.data(),
            weights.size() * 2, &missing);
        ASSERT_STATUS(missing == 0 ? ROUTECAP_OK : ROUTECAP_INCOMPLETE, status);
        ASSERT_STATUS(status, routecap_plan_gather_weights(plan, sources.data(), sizeof sources[0],
                                                           2, ROUTECAP_DTYPE_F32, -1.0f,
                                                           wide.data(), wide.size() * 4, nullptr));
        // Positions of the rows, by the same plan.
        std::vector<std::vector<uint64_t>> positions(2);
        for (size_t s = 0; s < 2; s++)
            for (uint64_t p = 0; p < lengths[s]; p++) positions[s].push_back(p);
        const void *values[] = {positions[0].data(), positions[1].data()};
        const uint64_t nowhere = UINT64_MAX;
        std::vector<uint64_t> where(shape.rows);
        ASSERT_STATUS(ROUTECAP_OK,
                      routecap_plan_gather_values(plan, values, sizeof(uint64_t), &nowhere,
                                                  where.data(), where.size() * 8));
        for (uint64_t r = 0; r < shape.rows; r++)
            for (uint32_t l = 0; l < shape.layers; l++) {
                const uint64_t at =
                    seed % 2 == 0 ? r * shape.layers + l : uint64_t{l} * shape.rows + r;
                const int32_t *cell = &ids[at * kColumns];
                const uint16_t *of = &weights[at * kColumns];
                const uint8_t what = classes[at];
                bool lost = what == ROUTECAP_PLAN_CLASS_LOST;
                if (what == ROUTECAP_PLAN_CLASS_VALID) lost = of[0] == 0xbf80;  // -1
                found += lost;
                for (uint32_t c = 0; c < kColumns; c++) {
                    const uint16_t expected =
                        lost ? 0xbf80
                        : what != ROUTECAP_PLAN_CLASS_VALID
                            ? 0
                            : weight_of(cell[0] > cell[1], cell[c], where[r], wanted[l]);
                    ASSERT_EQ(of[c], expected) << r << " " << l << " " << c;
                    const uint32_t bits = uint32_t{expected} << 16;
                    ASSERT_EQ(std::memcmp(&wide[at * kColumns + c], &bits, 4), 0);
                }
            }
        EXPECT_EQ(found, missing);
        routecap_plan_free(plan);
    }
}

TEST(WeightsFollowTheirIds, and_routings_with_and_without_do_not_merge) {
    std::mt19937_64 random(1);
    const RoutingPtr with = make(random, false, 0, 5, all_layers());
    routecap_view view = view_of(with.get());
    std::vector<routecap_segment> segments(view.segments, view.segments + view.segment_count);
    for (routecap_segment &s : segments) s.weights = nullptr, s.weights_validity = nullptr;
    view.segments = segments.data(), view.weights_dtype = 0;
    routecap_routing *made = nullptr;
    ASSERT_GE(routecap_routing_import(&view, 0, nullptr, nullptr, &made), 0)
        << routecap_last_error();
    const RoutingPtr without(made);
    const routecap_routing *both[] = {with.get(), without.get()};
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, routecap_routing_merge(both, 2, 0, &made));
}

// Trusted are the ids alone.
TEST(WeightsFollowTheirIds, and_none_are_taken_that_cannot_be) {
    constexpr uint8_t kIds[] = {1, 2, 3, 4, 5, 6};
    const auto take = [&](uint16_t weight, uint8_t validity, uint8_t there, uint32_t flags) {
        const uint16_t weights[] = {1, weight, 3, 4, 5, 6};
        routecap_segment segment{};
        segment.rows = 1, segment.ids = kIds, segment.validity = &validity;
        segment.weights = weights, segment.weights_validity = &there;
        routecap_view view{};
        view.struct_size = sizeof view;
        view.dtype = ROUTECAP_DTYPE_U8, view.layers = 2, view.k = 3, view.experts = 8;
        view.rows = 1, view.weights_dtype = ROUTECAP_DTYPE_F16;
        view.segments = &segment, view.segment_size = sizeof segment, view.segment_count = 1;
        routecap_routing *made = nullptr;
        const int32_t status = routecap_routing_import(&view, flags, nullptr, nullptr, &made);
        routecap_routing_free(made);
        return status;
    };
    for (const uint32_t flags : {0u, ROUTECAP_IMPORT_TRUSTED}) {
        EXPECT_STATUS(ROUTECAP_OK, take(0x7c00, 3, 3, flags));  // an infinity
        EXPECT_STATUS(ROUTECAP_ERR_FORMAT, take(0x7c01, 3, 3, flags));
        EXPECT_STATUS(ROUTECAP_ERR_FORMAT, take(0xffff, 3, 3, flags));
        EXPECT_STATUS(ROUTECAP_OK, take(0xffff, 3, 2, flags));  // beside ids, not said to be there
        EXPECT_STATUS(ROUTECAP_ERR_FORMAT, take(2, 1, 3, flags));  // beside no ids
    }
}
