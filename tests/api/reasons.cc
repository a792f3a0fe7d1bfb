// Why cells are missing: reasons of whole rows and of cells, and what becomes of them when rows
// come together.
#include <rig.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "../support/declared.h"

using namespace rig;

namespace {

constexpr int32_t kAbsent = ROUTECAP_MISSING_ABSENT, kLost = ROUTECAP_MISSING_LOST,
                  kTaken = ROUTECAP_MISSING_TAKEN, kUnwritten = ROUTECAP_MISSING_UNWRITTEN,
                  kOutOfRange = ROUTECAP_MISSING_OUT_OF_RANGE,
                  kDuplicate = ROUTECAP_MISSING_DUPLICATE, kRefused = ROUTECAP_MISSING_REFUSED,
                  kStale = ROUTECAP_MISSING_STALE;
constexpr int32_t kValid = 0, kUnknown = std::size(kBestFirst) + 1;

int32_t better(int32_t a, int32_t b) {
    if (a == kValid || b == kValid) return kValid;
    return *std::find_if(std::begin(kBestFirst), std::end(kBestFirst),
                         [&](int32_t r) { return r == a || r == b; });
}

// A cell is kValid or a reason. A row is its cells, or one reason: then it is not there.
struct Known {
    std::vector<int32_t> cells;
    int32_t reason = kAbsent;
    Known(std::vector<int32_t> c) : cells(std::move(c)) {}
    Known(int32_t r) : reason(r) {}
};
using Layers = std::vector<int32_t>;

// Without a validity plane or tags.
routecap_segment segment_of(uint64_t first, uint64_t rows, const void *ids, int32_t reason,
                            uint32_t reserved = 0) {
    return {.first = first,
            .rows = rows,
            .ids = ids,
            .validity = nullptr,
            .tags = nullptr,
            .tag = 0,
            .reason = reason,
            .reserved = reserved};
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
// As its coverage has it, as its view has it and as its serialised form has it.
Cells cells_of(const routecap_routing *routing) {
    routecap_coverage coverage{.struct_size = sizeof coverage};
    EXPECT_GE(routecap_routing_coverage(routing, &coverage, nullptr, 0, 0), 0);
    std::vector<routecap_missing> blocks(coverage.blocks);
    EXPECT_GE(routecap_routing_coverage(routing, &coverage, blocks.data(), sizeof blocks[0],
                                        blocks.size()),
              0);
    const Cells cells = cells_of(coverage.first, coverage.rows, coverage.layers, blocks);

    const routecap_view view = view_of(routing);
    for (size_t s = 0; s < view.segment_count; s++) {
        const routecap_segment &segment = view.segments[s];
        EXPECT_EQ(segment.reserved, 0u);
        if (segment.ids != nullptr) {
            EXPECT_EQ(segment.reason, 0);
        }
        for (uint64_t r = 0; r < segment.rows; r++)
            for (uint32_t l = 0; l < view.layers; l++) {
                const bool valid =
                    segment.ids != nullptr &&
                    (segment.validity == nullptr ||
                     (segment.validity[r * view.validity_bytes + l / 8] >> l % 8 & 1) != 0);
                const int32_t says =
                    segment.ids == nullptr ? segment.reason
                    : valid
                        ? kValid
                        : static_cast<const uint8_t *>(segment.ids)[(r * view.layers + l) * view.k];
                EXPECT_EQ(says, cells[segment.first - view.first + r][l]);
            }
    }
    return cells;
}
std::vector<uint8_t> serialized(const routecap_routing *routing) {
    uint64_t needed = 0;
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                  routecap_routing_serialize(routing, 0, nullptr, 0, &needed));
    std::vector<uint8_t> bytes(needed);
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_routing_serialize(routing, 0, bytes.data(), needed, nullptr));
    return bytes;
}
RoutingPtr deserialized(const std::vector<uint8_t> &bytes, int32_t expected) {
    routecap_routing *routing = nullptr;
    EXPECT_STATUS(expected, routecap_routing_deserialize(bytes.data(), bytes.size(), 0, nullptr,
                                                         nullptr, &routing));
    return RoutingPtr(routing);
}
int32_t merge(const std::vector<const routecap_routing *> &parts, RoutingPtr &merged) {
    routecap_routing *routing = nullptr;
    const int32_t status = routecap_routing_merge(parts.data(), parts.size(), 0, &routing);
    merged.reset(routing);
    return status;
}
Cells cells_of(Rig &rig, routecap_request request) {
    routecap_coverage coverage{.struct_size = sizeof coverage};
    std::vector<routecap_missing> blocks(64);
    EXPECT_GE(routecap_request_coverage(rig.capturer(), request, 0, ROUTECAP_ROWS_ALL, &coverage,
                                        blocks.data(), sizeof blocks[0], blocks.size()),
              0)
        << routecap_last_error();
    blocks.resize(coverage.blocks);
    return cells_of(0, coverage.rows, coverage.layers, blocks);
}

}  // namespace

// ---- Merge ----------------------------------------------------------------------------------

// A rank that has other layers made every reason of the first one ABSENT.
TEST(Reasons, of_pipeline_ranks_are_kept_in_a_merge) {
    const RoutingPtr
        a = routing_of({0, 1}, 0, {{{kValid, kValid}}, {{kOutOfRange, kOutOfRange}}, kLost}),
        b = routing_of({2, 3}, 0,
                       {{{kValid, kUnwritten}}, {{kValid, kValid}}, {{kValid, kDuplicate}}, kLost});
    for (const bool swapped : {false, true}) {
        RoutingPtr merged;
        ASSERT_STATUS(ROUTECAP_INCOMPLETE,
                      merge({swapped ? b.get() : a.get(), swapped ? a.get() : b.get()}, merged));
        EXPECT_EQ(cells_of(merged.get()), (Cells{{kValid, kValid, kValid, kUnwritten},
                                                 {kOutOfRange, kOutOfRange, kValid, kValid},
                                                 {kLost, kLost, kValid, kDuplicate},
                                                 {kAbsent, kAbsent, kLost, kLost}}));
    }
}

TEST(Reasons, in_a_merge_are_the_best_that_any_routing_with_the_layer_has_in_every_order) {
    std::mt19937 random(1);
    const auto any = [&](const auto &of) { return of[random() % std::size(of)]; };
    for (int round = 0; round < 400; round++) {
        const bool same_layers = random() % 3 == 0;
        std::vector<RoutingPtr> routings;
        std::map<int32_t, std::vector<int32_t>> expected;  // by decoder layer, then row
        constexpr uint64_t kRows = 12;
        for (int i = 0; i < 3; i++) {
            Layers map;
            for (int32_t l = 0; l < 4; l++)
                if (same_layers || random() % 2 == 0) map.push_back(l);
            if (map.empty()) map.push_back(1);
            const uint64_t first = random() % 4;
            std::vector<Known> rows;
            for (uint64_t r = first; r < kRows; r++) {
                Known row(any(kOfRows));
                if (random() % 2 == 0) {
                    for (size_t l = 0; l < map.size(); l++)
                        row.cells.push_back(random() % 3 == 0   ? any(kBestFirst)
                                            : random() % 2 == 0 ? kValid
                                                                : row.reason);
                }
                for (size_t l = 0; l < map.size(); l++) {
                    std::vector<int32_t> &of_layer =
                        expected.try_emplace(map[l], kRows, kAbsent).first->second;
                    of_layer[r] =
                        better(of_layer[r], row.cells.empty() ? row.reason : row.cells[l]);
                }
                rows.push_back(std::move(row));
            }
            routings.push_back(routing_of(map, first, rows));
        }
        std::vector<int> order{0, 1, 2};
        std::vector<uint8_t> bytes;
        do {
            RoutingPtr merged;
            ASSERT_GE(merge({routings[order[0]].get(), routings[order[1]].get(),
                             routings[order[2]].get()},
                            merged),
                      0)
                << routecap_last_error();
            const Cells cells = cells_of(merged.get());
            const uint64_t first = kRows - cells.size();
            for (size_t r = 0; r < cells.size(); r++) {
                size_t l = 0;
                for (const auto &[index, of_layer] : expected)
                    ASSERT_EQ(cells[r][l++], of_layer[first + r])
                        << "round " << round << ", row " << first + r << ", layer " << index;
            }
            if (bytes.empty()) bytes = serialized(merged.get());
            ASSERT_EQ(serialized(merged.get()), bytes)
                << "the order of the routings made a difference";
        } while (std::next_permutation(order.begin(), order.end()));
    }
}

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
    ASSERT_STATUS(ROUTECAP_NOT_CAPTURED, merge({a.get(), b.get()}, merged));
    EXPECT_EQ(reasons(merged.get()),
              (decltype(reasons(nullptr)){
                  {0, 1, false, kLost}, {1, 2, false, kTaken}, {3, rows - 3, false, kLost}}));
    ASSERT_STATUS(ROUTECAP_NOT_CAPTURED, merge({a.get(), c.get()}, merged));
    EXPECT_EQ(reasons(merged.get()), (decltype(reasons(nullptr)){{0, rows, false, kLost}}));
    // Where layers lack a row for different reasons it needs memory, which nobody has for so many.
    ASSERT_STATUS(ROUTECAP_ERR_NO_MEMORY, merge({a.get(), d.get()}, merged));
    routecap_routing *few = nullptr;
    ASSERT_STATUS(ROUTECAP_OK, routecap_routing_slice(a.get(), 0, 3, &few));
    const RoutingPtr slice(few);
    routecap_routing *others = nullptr;
    ASSERT_STATUS(ROUTECAP_OK, routecap_routing_slice(d.get(), 0, 3, &others));
    const RoutingPtr other(others);
    ASSERT_STATUS(ROUTECAP_NOT_CAPTURED, merge({slice.get(), other.get()}, merged));
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
        ASSERT_STATUS(ROUTECAP_INCOMPLETE, merge({a.get(), other->get()}, merged));
        EXPECT_EQ(address(merged.get()), address(a.get()));
        EXPECT_EQ(cells_of(merged.get()), cells_of(a.get()));
    }
    RoutingPtr merged;
    ASSERT_STATUS(ROUTECAP_INCOMPLETE, merge({a.get(), duplicate.get()}, merged));
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
    ASSERT_STATUS(ROUTECAP_INCOMPLETE, merge({gap.get(), between.get()}, merged));
    EXPECT_EQ(cells_of(merged.get()), (Cells{{kValid, kValid}, {kLost, kLost}, {kValid, kValid}}));
    EXPECT_EQ(address(merged.get()), address(gap.get()));
    EXPECT_EQ(rig.bytes_in_use(), before);
}

// ---- Requests -------------------------------------------------------------------------------

TEST(Reasons, of_a_row_that_is_issued_again_are_the_better_of_both) {
    for (const int32_t policy : {ROUTECAP_POLICY_KEEP, ROUTECAP_POLICY_REPLACE}) {
        Rig rig({.shape = {.layers = 4}});
        const routecap_request r = rig.open(policy);
        // By layer; none: the layer is not written.
        const auto issue = [&](const std::vector<std::vector<int64_t>> &ids) {
            EXPECT_STATUS(ROUTECAP_OK, rig.begin(1));
            for (uint32_t l = 0; l < 4; l++)
                if (!ids[l].empty()) {
                    EXPECT_STATUS(ROUTECAP_OK, rig.record(l, {ids[l]}));
                }
            EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
            rig.land(rig.issue({Rig::span(r, 0, 0, 1)}));
        };
        issue({{}, {16, 1}, {1, 1}, {}});
        EXPECT_EQ(cells_of(rig, r), (Cells{{kUnwritten, kOutOfRange, kDuplicate, kUnwritten}}));
        issue({{16, 1}, {}, {16, 1}, {}});
        EXPECT_EQ(cells_of(rig, r), (Cells{{kOutOfRange, kOutOfRange, kDuplicate, kUnwritten}}));
        issue({{1, 2}, {}, {16, 1}, {}});  // the first with a valid cell
        const bool keep = policy == ROUTECAP_POLICY_KEEP;
        EXPECT_EQ(cells_of(rig, r), keep ? (Cells{{kValid, kOutOfRange, kDuplicate, kUnwritten}})
                                         : (Cells{{kValid, kUnwritten, kOutOfRange, kUnwritten}}));
        issue({{}, {1, 1}, {}, {3, 4}});
        EXPECT_EQ(cells_of(rig, r), keep ? (Cells{{kValid, kDuplicate, kDuplicate, kValid}})
                                         : (Cells{{kUnwritten, kDuplicate, kUnwritten, kValid}}));
    }
}

TEST(Reasons, of_attached_rows_are_the_better_of_both_in_every_order) {
    Rig rig({.shape = {.layers = 2, .experts = 64}});
    const RoutingPtr first = routing_of(
                         {0, 1}, 0, {kLost, kLost, kTaken, {{kValid, kStale}}, kRefused, kRefused}),
                     second = routing_of(
                         {0, 1}, 0,
                         {{{kUnwritten, kValid}}, kTaken, kLost, kLost, {{kLost, kLost}}, kAbsent});
    for (const bool swapped : {false, true}) {
        const routecap_request r = rig.open();
        for (const auto *routing : {swapped ? &second : &first, swapped ? &first : &second})
            ASSERT_STATUS(ROUTECAP_OK, routecap_request_attach(rig.capturer(), r, routing->get(),
                                                               ROUTECAP_ROWS_ALL));
        rig.land(rig.step({{r, {1, 6, 1}}}));
        const Cells expected{{kUnwritten, kValid}, {kTaken, kTaken}, {kTaken, kTaken},
                             {kValid, kLost},      {kLost, kLost},   {kRefused, kRefused}};
        Cells all = expected;
        all.push_back({kValid, kValid});
        EXPECT_EQ(cells_of(rig, r), all);

        routecap_request child = 0;
        ASSERT_STATUS(ROUTECAP_OK, routecap_request_fork(rig.capturer(), r, 5, &child));
        ASSERT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), r, 2));
        rig.land(rig.step({{r, {1, 4, 1}}, {child, {1, 6, 1}}}));
        EXPECT_EQ(cells_of(rig, r), (Cells{expected[0],
                                           expected[1],
                                           {kAbsent, kAbsent},
                                           {kAbsent, kAbsent},
                                           {kValid, kValid}}));
        all[5] = {kAbsent, kAbsent};
        EXPECT_EQ(cells_of(rig, child), all);
    }
}

// ---- Reading --------------------------------------------------------------------------------

TEST(Reasons, of_rows_that_are_not_there_reach_every_reader) {
    const std::vector<Known> rows{kLost,
                                  kLost,
                                  {{kValid, kUnwritten}},
                                  kAbsent,
                                  {{kTaken, kTaken}},
                                  kTaken,
                                  {{kValid, kValid}},
                                  kStale};
    const RoutingPtr routing = routing_of({0, 1}, 5, rows);
    const Cells expected{{kLost, kLost},     {kLost, kLost},   {kValid, kUnwritten},
                         {kAbsent, kAbsent}, {kTaken, kTaken}, {kTaken, kTaken},
                         {kValid, kValid},   {kStale, kStale}};
    EXPECT_EQ(cells_of(routing.get()), expected);
    EXPECT_STATUS(ROUTECAP_INCOMPLETE, routecap_routing_poll(routing.get()));
    routecap_coverage coverage{.struct_size = sizeof coverage};
    EXPECT_STATUS(ROUTECAP_INCOMPLETE,
                  routecap_routing_coverage(routing.get(), &coverage, nullptr, 0, 0));
    EXPECT_EQ(coverage.blocks, 5u);
    EXPECT_EQ(coverage.rows_empty, 6u);
    EXPECT_EQ(coverage.rows_partial, 1u);
    EXPECT_EQ(coverage.cells_missing, 13u);

    int16_t ids[8][2][2];
    uint8_t mask[8][2];
    routecap_copy_options options;
    ASSERT_STATUS(ROUTECAP_OK, routecap_copy_options_init(&options, sizeof options));
    options.dtype = ROUTECAP_DTYPE_I16;
    ASSERT_STATUS(ROUTECAP_INCOMPLETE,
                  routecap_routing_copy_to(routing.get(), &options, ids, sizeof ids, mask[0],
                                           sizeof mask, nullptr));
    for (size_t r = 0; r < 8; r++)
        for (size_t l = 0; l < 2; l++) {
            EXPECT_EQ(mask[r][l], expected[r][l] == kValid);
            EXPECT_EQ(ids[r][l][0] == -1 && ids[r][l][1] == -1, expected[r][l] != kValid);
        }

    for (uint64_t cut = 0; cut <= 8; cut++) {
        routecap_routing *low = nullptr, *high = nullptr;
        ASSERT_GE(routecap_routing_split(routing.get(), 5 + cut, 8, &low, &high), 0);
        const RoutingPtr a(low), b(high);
        Cells both = cells_of(low);
        for (const auto &row : cells_of(high)) both.push_back(row);
        EXPECT_EQ(both, expected);
        // And put together again.
        RoutingPtr merged;
        ASSERT_STATUS(ROUTECAP_INCOMPLETE, merge({high, low}, merged));
        EXPECT_EQ(serialized(merged.get()), serialized(routing.get()));
    }

    Rig rig({.shape = {.layers = 2, .experts = 64}});
    const routecap_request r = rig.open();
    ASSERT_STATUS(ROUTECAP_OK,
                  routecap_request_attach(rig.capturer(), r, routing.get(), ROUTECAP_ROWS_ALL));
    rig.land(rig.step({{r, {1, 13, 1}}}));
    for (const int32_t mode : {ROUTECAP_EXTRACT_SHARE, ROUTECAP_EXTRACT_COPY}) {
        const RoutingPtr extracted(rig.extract(r, 5, 8, ROUTECAP_INCOMPLETE, mode));
        EXPECT_EQ(cells_of(extracted.get()), expected);
        EXPECT_EQ(serialized(extracted.get()), serialized(routing.get()));
        if (mode == ROUTECAP_EXTRACT_COPY) {
            EXPECT_EQ(view_of(extracted.get()).segment_count, 1u);
        }
    }
}

// ---- Other memory ---------------------------------------------------------------------------

namespace {

// Run i of a serialised form of two layers.
uint8_t *run_of(std::vector<uint8_t> &bytes, size_t i) { return bytes.data() + 64 + 24 + 24 * i; }
int32_t reason_of(const uint8_t *run) {
    int32_t reason = 0;
    std::memcpy(&reason, run + 20, 4);
    return reason;
}

}  // namespace

TEST(Reasons, are_in_the_serialised_form_a_number_of_each_run_that_is_not_present) {
    // In pages and without them: the form is the same.
    const RoutingPtr routing = routing_of({0, 1}, 0,
                                          {kLost,
                                           {{kLost, kLost}},
                                           {{kAbsent, kAbsent}},
                                           kAbsent,
                                           kTaken,
                                           {{kValid, kValid}},
                                           {{kTaken, kLost}}});
    std::vector<uint8_t> bytes = serialized(routing.get());
    uint64_t runs = 0;
    std::memcpy(&runs, bytes.data() + 40, 8);
    ASSERT_EQ(runs, 5u);
    const uint64_t rows[] = {2, 2, 1, 1, 1};
    const int32_t reasons[] = {kLost, 0, kTaken, 0, 0};
    for (size_t i = 0; i < 5; i++) {
        EXPECT_EQ(run_of(bytes, i)[0], rows[i]);
        EXPECT_EQ(reason_of(run_of(bytes, i)), reasons[i]);
    }
    const RoutingPtr again = deserialized(bytes, ROUTECAP_INCOMPLETE);
    EXPECT_EQ(cells_of(again.get()), cells_of(routing.get()));
    EXPECT_EQ(serialized(again.get()), bytes);

    const auto with_reason = [&](size_t run, int32_t reason) {
        std::vector<uint8_t> damaged = bytes;
        std::memcpy(run_of(damaged, run) + 20, &reason, 4);
        return damaged;
    };
    for (const int32_t reason : {kRefused, kStale, kTaken, 0})
        deserialized(with_reason(0, reason), ROUTECAP_INCOMPLETE);
    for (const int32_t reason : {kAbsent, kUnwritten, kOutOfRange, kDuplicate, kUnknown, -1, 1 << 30})
        deserialized(with_reason(0, reason), ROUTECAP_ERR_FORMAT);
    for (const int32_t reason : {kLost, kAbsent})
        deserialized(with_reason(3, reason), ROUTECAP_ERR_FORMAT);  // rows that are there
}

TEST(Reasons, go_through_a_splice_and_keep_runs_apart) {
    const RoutingPtr head = routing_of({0, 1}, 0, {{{kValid, kValid}}, kLost, kLost}),
                     tail = routing_of({0, 1}, 2, {kLost, kTaken, {{kValid, kValid}}}),
                     late = routing_of({0, 1}, 4, {kAbsent, kTaken});
    const auto splice = [](const routecap_routing *a, const routecap_routing *b, uint64_t row,
                           uint64_t runs) {
        const std::vector<uint8_t> x = serialized(a), y = serialized(b);
        routecap_splice plan{.struct_size = sizeof plan};
        std::vector<uint8_t> header(4096), whole;
        routecap_piece pieces[ROUTECAP_MAX_PIECES];
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_serialized_splice(x.data(), x.size(), y.data(), y.size(), row,
                                                 header.data(), header.size(), pieces,
                                                 sizeof pieces[0], ROUTECAP_MAX_PIECES, &plan));
        for (uint32_t i = 0; i < plan.pieces; i++) {
            const std::vector<uint8_t> zeros(pieces[i].bytes),
                *sources[] = {&header, &x, &y, &zeros};
            const auto from =
                sources[pieces[i].source]->begin() + static_cast<ptrdiff_t>(pieces[i].offset);
            whole.insert(whole.end(), from, from + static_cast<ptrdiff_t>(pieces[i].bytes));
        }
        uint64_t found = 0;
        std::memcpy(&found, whole.data() + 40, 8);
        EXPECT_EQ(found, runs);
        return deserialized(whole, ROUTECAP_INCOMPLETE);
    };
    EXPECT_EQ(
        cells_of(splice(head.get(), tail.get(), 2, 4).get()),
        (Cells{
            {kValid, kValid}, {kLost, kLost}, {kLost, kLost}, {kTaken, kTaken}, {kValid, kValid}}));
    EXPECT_EQ(cells_of(splice(head.get(), late.get(), 3, 4).get()), (Cells{{kValid, kValid},
                                                                           {kLost, kLost},
                                                                           {kLost, kLost},
                                                                           {kAbsent, kAbsent},
                                                                           {kAbsent, kAbsent},
                                                                           {kTaken, kTaken}}));
}

TEST(Reasons, of_segments_are_checked_on_import) {
    const uint8_t ids[] = {1, 2};
    const auto import = [&](const void *of, int32_t reason, uint32_t reserved = 0) {
        const routecap_segment segment = segment_of(0, 1, of, reason, reserved);
        routecap_view view{};
        view.struct_size = sizeof view, view.dtype = ROUTECAP_DTYPE_U8, view.layers = 1, view.k = 2,
        view.experts = 64;
        view.rows = 1, view.segments = &segment, view.segment_size = sizeof segment,
        view.segment_count = 1;
        routecap_routing *routing = nullptr;
        const int32_t status = routecap_routing_import(&view, 0, nullptr, nullptr, &routing);
        EXPECT_EQ(routing != nullptr, status >= 0);
        const RoutingPtr keep(routing);
        if (of == nullptr && status >= 0) {
            EXPECT_EQ(cells_of(routing), (Cells{{reason == 0 ? kAbsent : reason}}));
        }
        return status;
    };
    EXPECT_STATUS(ROUTECAP_OK, import(ids, 0));
    EXPECT_STATUS(ROUTECAP_NOT_CAPTURED, import(nullptr, 0));
    for (const int32_t reason : kOfRows) {
        EXPECT_STATUS(ROUTECAP_NOT_CAPTURED, import(nullptr, reason));
        EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, import(ids, reason));
    }
    for (const int32_t reason : {kUnwritten, kOutOfRange, kDuplicate, kUnknown, -1})
        EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, import(nullptr, reason));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, import(ids, 0, 1));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, import(nullptr, kLost, 1));
}
