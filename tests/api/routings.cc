// Routings where the vectors do not reach: what a merge takes of the budget, the most layers, and
// tags of pages that are lent.
#include <rig.h>

using namespace rig;

namespace {

// A routing of one row, of layers that a map names. It outlives its capturer.
RoutingPtr row_of(const Shape &shape, std::vector<int32_t> map) {
    Rig rig({.shape = shape, .layer_map = std::move(map)});
    const routecap_request r = rig.open();
    rig.land(rig.step({{r, {1, 0, 1}}}));
    return RoutingPtr(rig.extract(r, 0, 1, ROUTECAP_OK));
}

int32_t merge(const std::vector<const routecap_routing *> &parts, RoutingPtr &merged) {
    routecap_routing *routing = nullptr;
    const int32_t status = routecap_routing_merge(parts.data(), parts.size(), 0, &routing);
    EXPECT_EQ(routing != nullptr, status >= 0);
    merged.reset(routing);
    return status;
}

std::vector<int32_t> layers(int32_t first, int32_t end) {
    std::vector<int32_t> map;
    for (int32_t l = first; l < end; l++) map.push_back(l);
    return map;
}

}  // namespace

// Pages of the united shape were taken from the budget by the first routing's size and given back
// by their own: the budget ended below zero.
TEST(Merge, of_other_layers_gives_back_what_it_took) {
    const Shape half{.layers = 4, .k = 2, .experts = 16, .rows = 32};
    Rig first({.shape = half, .layer_map = layers(0, 4)}),
        second({.shape = half, .layer_map = layers(4, 8)});
    const routecap_request a = first.open(), b = second.open();
    first.step({{a, {1, 0, 32}}});
    second.step({{b, {2, 0, 32}}});
    const uint64_t before = first.bytes_in_use();
    second.bytes_in_use();
    const RoutingPtr one(first.extract(a, 0, 32, ROUTECAP_OK)),
        two(second.extract(b, 0, 32, ROUTECAP_OK));
    for (int i = 0; i < 3; i++) {
        RoutingPtr merged;
        EXPECT_STATUS(ROUTECAP_OK, merge({one.get(), two.get()}, merged));
        EXPECT_GT(first.bytes_in_use(), before);
        merged.reset();
        EXPECT_EQ(first.bytes_in_use(), before);
    }
}

TEST(Merge, more_layers_than_a_routing_can_have_are_refused) {
    constexpr int32_t most = ROUTECAP_MAX_LAYERS;
    const Shape shape{.layers = most / 2, .k = 1, .experts = 4, .rows = 1};
    const RoutingPtr low = row_of(shape, layers(0, most / 2)),
                     high = row_of(shape, layers(most / 2, most)),
                     beyond = row_of(shape, layers(most / 2 + 1, most + 1));
    RoutingPtr merged;
    EXPECT_STATUS(ROUTECAP_OK, merge({low.get(), high.get()}, merged));
    EXPECT_EQ(view_of(merged.get()).layers, static_cast<uint32_t>(most));
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH,
                  merge({low.get(), high.get(), beyond.get()}, merged));
}

// A page whose rows were all cut from the request may still be lent: what is recorded there next
// must not lend it its tag.
TEST(Slice, tags_stay_when_the_request_is_cut_and_goes_on) {
    Rig rig({.shape = {.rows = 128}});
    const routecap_request r = rig.open();
    const auto record = [&](uint64_t position, uint32_t rows, uint64_t tag) {
        rig.run({{1, position, rows}});
        const routecap_issue_options options{.struct_size = sizeof options, .tag = tag};
        rig.land(rig.issue({Rig::span(r, position, 0, rows)}, ROUTECAP_OK, nullptr, &options));
    };
    record(100, 4, 7);
    const RoutingPtr shared(rig.extract(r, 100, 4, ROUTECAP_OK));
    routecap_request child = 0;
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_fork(rig.capturer(), r, ROUTECAP_ROWS_ALL, &child));
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), r, 50));
    record(50, 3, 99);
    const auto tag_of = [](const routecap_routing *routing) {
        const routecap_segment &segment = view_of(routing).segments[0];
        return segment.tags != nullptr ? segment.tags[0] : segment.tag;
    };
    EXPECT_EQ(tag_of(shared.get()), 7u);
    EXPECT_EQ(tag_of(RoutingPtr(rig.extract(child, 100, 4, ROUTECAP_OK)).get()), 7u);
    EXPECT_EQ(tag_of(RoutingPtr(rig.extract(r, 50, 3, ROUTECAP_OK)).get()), 99u);
}

// Of a routing that has other layers.
TEST(Copy, of_layers_of_which_nothing_was_captured_says_so) {
    Rig rig({.shape = {.layers = 2, .k = 1, .experts = 256, .rows = 4}});
    const routecap_request r = rig.open();
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(2));
    rig.record_tokens(0, {{1, 0, 2}});
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    rig.land(rig.issue({Rig::span(r, 0, 0, 2)}));
    const RoutingPtr routing(rig.extract(r, 0, 2, ROUTECAP_INCOMPLETE));
    uint8_t ids[4], mask[4] = {9, 9, 9, 9};
    routecap_copy_options options;
    EXPECT_STATUS(ROUTECAP_OK, routecap_copy_options_init(&options, sizeof options));
    options.dtype = ROUTECAP_DTYPE_U8;
    EXPECT_STATUS(ROUTECAP_INCOMPLETE,
                  routecap_routing_copy_to(routing.get(), &options, ids, 4, mask, 4, nullptr));
    options.first_layer = options.layers = 1;
    EXPECT_STATUS(ROUTECAP_NOT_CAPTURED,
                  routecap_routing_copy_to(routing.get(), &options, ids, 2, mask, 2, nullptr));
    EXPECT_EQ(mask[0] | mask[1], 0);
}
