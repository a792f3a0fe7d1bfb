// What reasons cost where routings are merged. Which one stands is in the vectors
// (tests/vectors/reasons.json) and in the model of tests/fuzz.
#include <rig.h>

#include <algorithm>

using namespace rig;

namespace {

constexpr int32_t kAbsent = ROUTECAP_MISSING_ABSENT, kLost = ROUTECAP_MISSING_LOST,
                  kTaken = ROUTECAP_MISSING_TAKEN, kUnwritten = ROUTECAP_MISSING_UNWRITTEN,
                  kOutOfRange = ROUTECAP_MISSING_OUT_OF_RANGE,
                  kDuplicate = ROUTECAP_MISSING_DUPLICATE, kValid = 0;

// A cell is kValid or a reason. A row is its cells, or one reason: then it is not there.
struct Known {
    std::vector<int32_t> cells;
    int32_t reason = kAbsent;
    Known(std::vector<int32_t> c) : cells(std::move(c)) {}
    Known(int32_t r) : reason(r) {}
};
using Layers = std::vector<int32_t>;

// Without a validity plane or tags.
routecap_segment segment_of(uint64_t first, uint64_t rows, const void *ids, int32_t reason) {
    return {.first = first,
            .rows = rows,
            .ids = ids,
            .validity = nullptr,
            .tags = nullptr,
            .tag = 0,
            .reason = reason,
            .reserved = 0};
}

// A routing of rows from `first` on; each valid cell has the ids of its position and decoder layer.
RoutingPtr routing_of(const Layers &map, uint64_t first, const std::vector<Known> &rows) {
    constexpr uint32_t k = 2;
    std::vector<std::vector<uint8_t>> ids(rows.size()), validity(rows.size());
    std::vector<routecap_segment> segments;
    for (size_t r = 0; r < rows.size(); r++) {
        const bool there = !rows[r].cells.empty();
        if (there) ids[r].resize(map.size() * k), validity[r].resize((map.size() + 7) / 8);
        for (size_t l = 0; l < rows[r].cells.size(); l++) {
            if (rows[r].cells[l] == kValid) {
                validity[r][l / 8] = static_cast<uint8_t>(validity[r][l / 8] | 1u << l % 8);
                for (uint32_t c = 0; c < k; c++)
                    ids[r][l * k + c] = static_cast<uint8_t>(
                        (first + r + static_cast<uint64_t>(map[l]) * 7) % 32 * 2 + c);
            } else {
                ids[r][l * k] = static_cast<uint8_t>(rows[r].cells[l]);
            }
        }
        segments.push_back(
            segment_of(first + r, 1, there ? ids[r].data() : nullptr, there ? 0 : rows[r].reason));
        if (there) segments.back().validity = validity[r].data();
    }
    routecap_view view{};
    view.struct_size = sizeof view, view.dtype = ROUTECAP_DTYPE_U8,
    view.layers = static_cast<uint32_t>(map.size()), view.k = k, view.experts = 64;
    view.first = first, view.rows = rows.size(), view.layer_map = map.data();
    view.segments = segments.data(), view.segment_size = sizeof(routecap_segment),
    view.segment_count = segments.size();
    routecap_routing *routing = nullptr;
    EXPECT_GE(routecap_routing_import(&view, 0, nullptr, nullptr, &routing), 0)
        << routecap_last_error();
    return RoutingPtr(routing);
}

using Cells = std::vector<std::vector<int32_t>>;  // by row and layer: kValid or a reason

Cells cells_of(uint64_t first, uint64_t rows, uint32_t layers,
               const std::vector<routecap_missing> &blocks) {
    Cells cells(rows, std::vector<int32_t>(layers, kValid));
    for (const routecap_missing &block : blocks)
        for (uint64_t r = 0; r < block.rows; r++)
            for (uint32_t l = 0; l < block.layers; l++)
                cells.at(block.first - first + r).at(block.first_layer + l) = block.reason;
    return cells;
}
Cells cells_of(const routecap_routing *routing) {
    routecap_coverage coverage{.struct_size = sizeof coverage};
    EXPECT_GE(routecap_routing_coverage(routing, &coverage, nullptr, 0, 0), 0);
    std::vector<routecap_missing> blocks(coverage.blocks);
    EXPECT_GE(routecap_routing_coverage(routing, &coverage, blocks.data(), sizeof blocks[0],
                                        blocks.size()),
              0);
    return cells_of(coverage.first, coverage.rows, coverage.layers, blocks);
}
int32_t merge_of(const std::vector<const routecap_routing *> &parts, RoutingPtr &merged) {
    routecap_routing *routing = nullptr;
    const int32_t status = routecap_routing_merge(parts.data(), parts.size(), 0, &routing);
    merged.reset(routing);
    return status;
}

}  // namespace

// Rows that are missing take no memory as long as one reason is enough.
TEST(Reasons, of_whole_rows_take_no_memory_in_a_merge) {
    const uint64_t rows = ROUTECAP_MAX_POSITION / 2;
    const routecap_segment lost = segment_of(0, rows, nullptr, kLost),
                           taken = segment_of(1, 2, nullptr, kTaken);
    const auto import = [&](const Layers &map, const routecap_segment &segment) {
        routecap_view view{};
        view.struct_size = sizeof view, view.dtype = ROUTECAP_DTYPE_U8,
        view.layers = static_cast<uint32_t>(map.size()), view.k = 2, view.experts = 64;
        view.rows = rows, view.layer_map = map.data(), view.segments = &segment,
        view.segment_size = sizeof segment, view.segment_count = 1;
        routecap_routing *routing = nullptr;
        EXPECT_STATUS(ROUTECAP_NOT_CAPTURED,
                      routecap_routing_import(&view, 0, nullptr, nullptr, &routing));
        return RoutingPtr(routing);
    };
    const auto reasons = [](const routecap_routing *routing) {
        const routecap_view view = view_of(routing);
        std::vector<std::tuple<uint64_t, uint64_t, bool, int32_t>> all;
        for (size_t s = 0; s < view.segment_count; s++)
            all.emplace_back(view.segments[s].first, view.segments[s].rows,
                             view.segments[s].ids != nullptr, view.segments[s].reason);
        return all;
    };
    const RoutingPtr a = import({0, 1}, lost), b = import({0, 1}, taken), c = import({2, 3}, lost),
                     d = import({2, 3}, taken);
    RoutingPtr merged;
    ASSERT_STATUS(ROUTECAP_NOT_CAPTURED, merge_of({a.get(), b.get()}, merged));
    EXPECT_EQ(reasons(merged.get()),
              (decltype(reasons(nullptr)){
                  {0, 1, false, kLost}, {1, 2, false, kTaken}, {3, rows - 3, false, kLost}}));
    ASSERT_STATUS(ROUTECAP_NOT_CAPTURED, merge_of({a.get(), c.get()}, merged));
    EXPECT_EQ(reasons(merged.get()), (decltype(reasons(nullptr)){{0, rows, false, kLost}}));
    // Where layers lack a row for different reasons it needs memory, which nobody has for so many.
    ASSERT_STATUS(ROUTECAP_ERR_NO_MEMORY, merge_of({a.get(), d.get()}, merged));
    routecap_routing *few = nullptr;
    ASSERT_STATUS(ROUTECAP_OK, routecap_routing_slice(a.get(), 0, 3, &few));
    const RoutingPtr slice(few);
    routecap_routing *others = nullptr;
    ASSERT_STATUS(ROUTECAP_OK, routecap_routing_slice(d.get(), 0, 3, &others));
    const RoutingPtr other(others);
    ASSERT_STATUS(ROUTECAP_NOT_CAPTURED, merge_of({slice.get(), other.get()}, merged));
    EXPECT_EQ(cells_of(merged.get()), (Cells{{kLost, kLost, kAbsent, kAbsent},
                                             {kLost, kLost, kTaken, kTaken},
                                             {kLost, kLost, kTaken, kTaken}}));
}

TEST(Reasons, that_change_nothing_leave_pages_where_they_are) {
    const RoutingPtr a = routing_of({0, 1}, 0, {{{kValid, kOutOfRange}}}),
                     unwritten = routing_of({0, 1}, 0, {{{kUnwritten, kUnwritten}}}),
                     lost = routing_of({0, 1}, 0, {kLost}),
                     duplicate = routing_of({0, 1}, 0, {{{kValid, kDuplicate}}});
    const auto address = [](const routecap_routing *routing) {
        return view_of(routing).segments[0].ids;
    };
    for (const auto *other : {&unwritten, &lost}) {
        RoutingPtr merged;
        ASSERT_STATUS(ROUTECAP_INCOMPLETE, merge_of({a.get(), other->get()}, merged));
        EXPECT_EQ(address(merged.get()), address(a.get()));
        EXPECT_EQ(cells_of(merged.get()), cells_of(a.get()));
    }
    RoutingPtr merged;
    ASSERT_STATUS(ROUTECAP_INCOMPLETE, merge_of({a.get(), duplicate.get()}, merged));
    EXPECT_NE(address(merged.get()), address(a.get()));
    EXPECT_EQ(cells_of(merged.get()), (Cells{{kValid, kDuplicate}}));
    EXPECT_EQ(cells_of(a.get()), (Cells{{kValid, kOutOfRange}}));  // a routing does not change

    // A row between others of a page.
    Rig rig({.shape = {.layers = 2, .experts = 64}});
    const routecap_request r = rig.open();
    rig.land(rig.step({{r, {1, 0, 1}}}));
    rig.land(rig.step({{r, {1, 2, 1}}}));
    const RoutingPtr gap(rig.extract(r, 0, 3, ROUTECAP_INCOMPLETE)),
        between = routing_of({0, 1}, 1, {kLost});
    const uint64_t before = rig.bytes_in_use();
    ASSERT_STATUS(ROUTECAP_INCOMPLETE, merge_of({gap.get(), between.get()}, merged));
    EXPECT_EQ(cells_of(merged.get()), (Cells{{kValid, kValid}, {kLost, kLost}, {kValid, kValid}}));
    EXPECT_EQ(address(merged.get()), address(gap.get()));
    EXPECT_EQ(rig.bytes_in_use(), before);
}
