// Routings: slices, merges, copies of every dtype and layout, lifetime, and attaching them to
// requests.
#include <rig.h>

#include <cstring>

using namespace rig;

namespace {

// A routing of rows [first, end), of layers that a map names.
RoutingPtr routing_of(const Shape &shape, uint64_t seed, uint64_t first, uint64_t end,
                      std::vector<int32_t> map = {}, uint32_t silent = UINT32_MAX) {
    Rig rig({.shape = shape, .layer_map = std::move(map)});
    const routecap_request r = rig.open();
    for (uint64_t p = first; p < end; p += shape.rows) {
        const auto rows = static_cast<uint32_t>(std::min<uint64_t>(shape.rows, end - p));
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(rows));
        for (uint32_t l = 0; l < shape.layers; l++)
            if (l != silent) rig.record_tokens(l, {{seed, p, rows}});
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
        rig.land(rig.issue({Rig::span(r, p, 0, rows)}));
    }
    routecap_routing *routing = nullptr;
    EXPECT_GE(routecap_request_extract(rig.capturer(), r, first, end - first,
                                       ROUTECAP_EXTRACT_SHARE, 0, &routing),
              0);
    return RoutingPtr(routing);  // outlives the capturer
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

// Under pipeline parallelism each rank has its own layers; what was not merged carried zeros for
// the others.
TEST(Scenario, F20_pipeline_stages_merge) {
    const Shape half{.layers = 24, .k = 4, .experts = 64, .rows = 16};
    const Shape whole{.layers = 48, .k = 4, .experts = 64, .rows = 16};
    const RoutingPtr one = routing_of(half, 1, 0, 16, layers(0, 24)),
                     two = routing_of(half, 2, 0, 16, layers(24, 48)),
                     two_short = routing_of(half, 2, 0, 15, layers(24, 48)),
                     overlapping = routing_of(half, 3, 0, 16, layers(23, 47));
    const auto expected = [&](uint64_t rows_of_two) {
        Rows rows(16, Row(48));
        for (uint64_t p = 0; p < 16; p++)
            for (uint32_t l = 0; l < 48; l++)
                if (l < 24)
                    rows[p][l] = routed(half, 1, p, l);
                else if (p < rows_of_two)
                    rows[p][l] = routed(half, 2, p, l - 24);
        return rows;
    };
    RoutingPtr merged;
    EXPECT_STATUS(ROUTECAP_OK, merge({one.get(), two.get()}, merged));
    expect_routing(merged.get(), whole, 0, expected(16));
    EXPECT_EQ(view_of(merged.get()).layer_map[47], 47);
    EXPECT_STATUS(ROUTECAP_OK, merge({two.get(), one.get()}, merged));
    expect_routing(merged.get(), whole, 0, expected(16));
    EXPECT_STATUS(ROUTECAP_INCOMPLETE, merge({two_short.get(), one.get()}, merged));
    expect_routing(merged.get(), whole, 0, expected(15));
    EXPECT_STATUS(ROUTECAP_ERR_CONFLICT, merge({one.get(), overlapping.get()}, merged));
    const routecap_routing *parts[] = {one.get(), two.get()};
    auto *refused = reinterpret_cast<routecap_routing *>(8);
    // A flag of a later version.
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_routing_merge(parts, 2, 1, &refused));
    EXPECT_EQ(refused, nullptr);
    // The same cells are no conflict.
    EXPECT_STATUS(ROUTECAP_OK, merge({one.get(), one.get()}, merged));
    expect_routing(merged.get(), half, 0, contents(one.get(), half));
}

TEST(Merge, layers_between_layers_and_wider_ids) {
    Rig narrow({.shape = {.layers = 2, .k = 2, .experts = 16},
                .layer_map = {1, 5},
                .layer_experts = {16, 16}});
    Rig wide({.shape = {.layers = 2, .k = 2, .experts = 300},
              .layer_map = {3, 5},
              .layer_experts = {300, 16}});
    RoutingPtr parts[2];
    for (int i = 0; i < 2; i++) {
        Rig &rig = i == 0 ? narrow : wide;
        const routecap_request r = rig.open();
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(1));
        EXPECT_STATUS(ROUTECAP_OK, rig.record(0, {{i == 0 ? 7 : 299, i == 0 ? 9 : 256}}));
        if (i == 0) {
            EXPECT_STATUS(ROUTECAP_OK, rig.record(1, {{15, 0}}));
        }
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
        rig.land(rig.issue({Rig::span(r, 3, 0, 1)}));
        parts[i].reset(rig.finish(r, 4));
        EXPECT_STATUS(ROUTECAP_INCOMPLETE, routecap_routing_wait(parts[i].get(), -1));
    }
    RoutingPtr merged;
    EXPECT_STATUS(ROUTECAP_INCOMPLETE, merge({parts[0].get(), parts[1].get()}, merged));
    const Shape united{.layers = 3, .k = 2, .experts = 300};
    Rows expected = missing_rows(united, 4);
    expected[3] = {Cell({7, 9}), Cell({299, 256}), Cell({15, 0})};
    expect_routing(merged.get(), united, 0, expected);
    EXPECT_EQ(view_of(merged.get()).dtype, ROUTECAP_DTYPE_I16);
    EXPECT_EQ(view_of(merged.get()).layer_experts[1], 300u);
}

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

TEST(Merge, shapes_that_do_not_fit) {
    const RoutingPtr a = routing_of({.layers = 2, .k = 2, .experts = 16}, 1, 0, 4);
    RoutingPtr merged;
    for (const Shape &other :
         {Shape{.layers = 2, .k = 3, .experts = 16}, Shape{.layers = 2, .k = 2, .experts = 17}}) {
        const RoutingPtr b = routing_of(other, 1, 4, 8);
        EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, merge({a.get(), b.get()}, merged));
    }
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, merge({}, merged));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, merge({a.get(), nullptr}, merged));
    EXPECT_STATUS(ROUTECAP_OK, merge({a.get()}, merged));
}

TEST(Merge, more_layers_than_a_routing_can_have_are_refused) {
    constexpr int32_t most = ROUTECAP_MAX_LAYERS;
    const Shape shape{.layers = most / 2, .k = 1, .experts = 4, .rows = 1};
    const RoutingPtr low = routing_of(shape, 1, 0, 1, layers(0, most / 2)),
                     high = routing_of(shape, 1, 0, 1, layers(most / 2, most)),
                     beyond = routing_of(shape, 1, 0, 1, layers(most / 2 + 1, most + 1));
    RoutingPtr merged;
    EXPECT_STATUS(ROUTECAP_OK, merge({low.get(), high.get()}, merged));
    EXPECT_EQ(view_of(merged.get()).layers, static_cast<uint32_t>(most));
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH,
                  merge({low.get(), high.get(), beyond.get()}, merged));
}

// Sequence-parallel ranks hold different rows; a stream's pieces follow one another. Gaps stay
// missing.
TEST(Merge, rows_with_gaps_across_many_pages) {
    const Shape shape{.layers = 4, .k = 2, .experts = 16, .rows = 256};
    const RoutingPtr a = routing_of(shape, 1, 0, 700), b = routing_of(shape, 1, 900, 1300),
                     c = routing_of(shape, 1, 650, 800, {}, 2);
    RoutingPtr merged;
    EXPECT_STATUS(ROUTECAP_INCOMPLETE, merge({b.get(), a.get(), c.get()}, merged));
    Rows expected = routed_rows(shape, 1, 0, 800);
    for (uint64_t p = 700; p < 800; p++) expected[p][2].reset();
    expect_routing(merged.get(), shape, 0,
                   expected + missing_rows(shape, 100) + routed_rows(shape, 1, 900, 1300));
}

TEST(Slice, ranges_and_lifetime) {
    const Shape shape{.rows = 64};
    RoutingPtr whole = routing_of(shape, 1, 10, 600);
    routecap_routing *slice = nullptr;
    EXPECT_STATUS(ROUTECAP_ERR_OUT_OF_RANGE, routecap_routing_slice(whole.get(), 9, 5, &slice));
    EXPECT_STATUS(ROUTECAP_ERR_OUT_OF_RANGE, routecap_routing_slice(whole.get(), 601, 0, &slice));
    EXPECT_STATUS(ROUTECAP_ERR_OUT_OF_RANGE, routecap_routing_slice(whole.get(), 590, 11, &slice));
    EXPECT_STATUS(ROUTECAP_ERR_OUT_OF_RANGE,
                  routecap_routing_slice(whole.get(), 590, UINT64_MAX - 100, &slice));
    EXPECT_EQ(slice, nullptr);
    ASSERT_STATUS(ROUTECAP_OK, routecap_routing_slice(whole.get(), 250, 300, &slice));
    const RoutingPtr owner(slice);
    EXPECT_STATUS(ROUTECAP_OK, routecap_routing_retain(slice));
    whole.reset();
    routecap_routing_free(slice);  // one of two references
    expect_routing(slice, shape, 250, routed_rows(shape, 1, 250, 550));
    routecap_routing *end = nullptr;
    ASSERT_STATUS(ROUTECAP_OK, routecap_routing_slice(slice, 550, ROUTECAP_ROWS_ALL, &end));
    expect_routing(RoutingPtr(end).get(), shape, 550, {});
}

// ---- Copies ---------------------------------------------------------------------------------

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

TEST(Copy, every_dtype_and_stride) {
    const Shape shape{.layers = 3, .k = 2, .experts = 200, .rows = 16};
    const RoutingPtr routing = routing_of(shape, 1, 0, 5, {}, 1);
    const auto check = [&](auto element, int32_t dtype) {
        using T = decltype(element);
        for (bool layer_major : {false, true})
            for (uint32_t first_layer : {0u, 1u})
                for (int64_t pad : {0, 3}) {
                    SCOPED_TRACE(std::to_string(dtype) + (layer_major ? " layers first" : ""));
                    const uint32_t n = 3 - first_layer;
                    routecap_copy_options o;
                    ASSERT_STATUS(ROUTECAP_OK, routecap_copy_options_init(&o, sizeof o));
                    o.dtype = dtype;
                    o.order = layer_major ? ROUTECAP_ORDER_LAYER_MAJOR : ROUTECAP_ORDER_ROW_MAJOR;
                    o.first_layer = first_layer;
                    const int64_t inner = 2 + pad, outer = inner * (layer_major ? 5 : n) + pad;
                    if (pad != 0)
                        (layer_major ? o.row_stride : o.layer_stride) = inner,
                                                      (layer_major ? o.layer_stride
                                                                   : o.row_stride) = outer;
                    o.fill = 255;
                    if (dtype == ROUTECAP_DTYPE_I16 || dtype == ROUTECAP_DTYPE_I32 ||
                        dtype == ROUTECAP_DTYPE_I64)
                        o.fill = -7;
                    uint64_t needed = 0;
                    ASSERT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                                  routecap_routing_copy_to(routing.get(), &o, nullptr, 0, nullptr,
                                                           0, &needed));
                    const auto last = static_cast<uint64_t>((layer_major ? n - 1 : 4) * outer +
                                                            (layer_major ? 4 : n - 1) * inner + 2);
                    ASSERT_EQ(needed, last * sizeof(T));
                    std::vector<T> ids(last + 1, static_cast<T>(99));
                    ASSERT_STATUS(ROUTECAP_INCOMPLETE,
                                  routecap_routing_copy_to(routing.get(), &o, ids.data(), needed,
                                                           nullptr, 0, nullptr));
                    EXPECT_EQ(ids.back(), static_cast<T>(99));
                    for (uint32_t r = 0; r < 5; r++)
                        for (uint32_t l = 0; l < n; l++)
                            for (uint32_t c = 0; c < 2; c++) {
                                const auto at =
                                    static_cast<size_t>((layer_major ? l : r) * outer +
                                                        (layer_major ? r : l) * inner + c);
                                EXPECT_EQ(
                                    ids[at],
                                    static_cast<T>(l + first_layer == 1
                                                       ? o.fill
                                                       : routed(shape, 1, r, l + first_layer)[c]));
                            }
                }
    };
    check(uint8_t{}, ROUTECAP_DTYPE_U8);
    check(int16_t{}, ROUTECAP_DTYPE_I16);
    check(uint16_t{}, ROUTECAP_DTYPE_U16);
    check(int32_t{}, ROUTECAP_DTYPE_I32);
    check(uint32_t{}, ROUTECAP_DTYPE_U32);
    check(int64_t{}, ROUTECAP_DTYPE_I64);
}

// Missing cells must not pass for routing.
TEST(Copy, fills_that_are_experts_need_a_mask_or_strict) {
    const Shape shape{.layers = 2, .k = 1, .experts = 256, .rows = 4};
    const RoutingPtr part = routing_of(shape, 1, 0, 2, {}, 1), whole = routing_of(shape, 1, 0, 2);
    uint8_t ids[8], mask[4];
    routecap_copy_options o;
    ASSERT_STATUS(ROUTECAP_OK, routecap_copy_options_init(&o, sizeof o));
    o.dtype = ROUTECAP_DTYPE_U8;
    // -1 is 255, an expert.
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_routing_copy_to(part.get(), &o, ids, 4, nullptr, 0, nullptr));
    EXPECT_STATUS(ROUTECAP_INCOMPLETE,
                  routecap_routing_copy_to(part.get(), &o, ids, 4, mask, 4, nullptr));
    // And not what the call before said.
    EXPECT_NE(std::strstr(routecap_last_error(), "missing"), nullptr);
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                  routecap_routing_copy_to(part.get(), &o, ids, 4, mask, 3, nullptr));
    o.flags = ROUTECAP_READ_STRICT;
    EXPECT_STATUS(ROUTECAP_ERR_INCOMPLETE,
                  routecap_routing_copy_to(part.get(), &o, ids, 4, nullptr, 0, nullptr));
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_routing_copy_to(whole.get(), &o, ids, 4, nullptr, 0, nullptr));
    o.layers = 1;  // the layer that is there
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_routing_copy_to(part.get(), &o, ids, 2, nullptr, 0, nullptr));
    o.first_layer = 1;
    EXPECT_STATUS(ROUTECAP_ERR_INCOMPLETE,
                  routecap_routing_copy_to(part.get(), &o, ids, 2, nullptr, 0, nullptr));
    o.flags = 0;
    EXPECT_STATUS(ROUTECAP_NOT_CAPTURED,
                  routecap_routing_copy_to(part.get(), &o, ids, 2, mask, 2, nullptr));
    EXPECT_EQ(mask[0] | mask[1], 0);
    o.fill = 256;
    EXPECT_STATUS(ROUTECAP_ERR_DTYPE,
                  routecap_routing_copy_to(part.get(), &o, ids, 2, mask, 2, nullptr));
    o.dtype = ROUTECAP_DTYPE_I16;
    o.fill = 0;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_routing_copy_to(part.get(), &o, ids, 4, nullptr, 0, nullptr));
    o.fill = 256;
    EXPECT_STATUS(ROUTECAP_NOT_CAPTURED,
                  routecap_routing_copy_to(part.get(), &o, ids, 4, nullptr, 0, nullptr));
}

TEST(Copy, arguments) {
    const Shape shape{.layers = 3, .k = 2, .experts = 16, .rows = 16};
    const RoutingPtr routing = routing_of(shape, 1, 0, 4);
    int32_t ids[64];
    const auto copy = [&](auto change) {
        routecap_copy_options o;
        routecap_copy_options_init(&o, sizeof o);
        o.dtype = ROUTECAP_DTYPE_I32;
        change(o);
        return routecap_routing_copy_to(routing.get(), &o, ids, sizeof ids, nullptr, 0, nullptr);
    };
    EXPECT_STATUS(ROUTECAP_OK, copy([](auto &) {}));
    for (int32_t dtype : {0, -1, ROUTECAP_DTYPE_ID16_BF16, 99})
        EXPECT_STATUS(ROUTECAP_ERR_DTYPE, copy([&](auto &o) { o.dtype = dtype; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, copy([](auto &o) { o.order = 2; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, copy([](auto &o) { o.flags = 4; }));
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_LAYER, copy([](auto &o) { o.first_layer = 3; }));
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_LAYER,
                  copy([](auto &o) { o.first_layer = 2, o.layers = 2; }));
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_LAYER, copy([](auto &o) { o.layers = UINT32_MAX; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, copy([](auto &o) { o.row_stride = -6; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, copy([](auto &o) { o.layer_stride = -2; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, copy([](auto &o) { o.row_stride = 5; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, copy([](auto &o) { o.layer_stride = 1; }));
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL, copy([](auto &o) { o.row_stride = 1000; }));
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL, copy([](auto &o) { o.row_stride = INT64_MAX; }));
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL, copy([](auto &o) {
                      o.layer_stride = INT64_MAX, o.order = ROUTECAP_ORDER_LAYER_MAJOR;
                  }));
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE, copy([](auto &o) { o.struct_size = 8; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_routing_copy_to(routing.get(), nullptr, ids,
                                                                  sizeof ids, nullptr, 0, nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_routing_copy_to(nullptr, nullptr, ids, sizeof ids, nullptr, 0, nullptr));
}

// ---- Attach ---------------------------------------------------------------------------------

TEST(Attach, whole_and_cut_pages_and_own_rows_win) {
    const Shape shape{.rows = 256};
    Rig rig({.shape = shape});
    const routecap_request a = rig.open(), b = rig.open();
    for (uint64_t p = 0; p < 768; p += 256) rig.land(rig.step({{a, {1, p, 256}}}));
    rig.land(rig.step({{b, {2, 300, 10}}}));
    const RoutingPtr routing(rig.finish(a, 700));
    EXPECT_STATUS(ROUTECAP_ERR_OUT_OF_RANGE,
                  routecap_request_attach(rig.capturer(), b, routing.get(), 701));
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_attach(rig.capturer(), b, routing.get(), 600));
    rig.land(rig.step({{b, {2, 600, 1}}}));
    rig.expect(b, 0,
               routed_rows(shape, 1, 0, 300) + routed_rows(shape, 2, 300, 310) +
                   routed_rows(shape, 1, 310, 600) + routed_rows(shape, 2, 600, 601));
    expect_routing(routing.get(), shape, 0, routed_rows(shape, 1, 0, 700));
}

TEST(Attach, from_a_copy_and_from_another_capturer) {
    const Shape shape{.rows = 256};
    RoutingPtr foreign = routing_of(shape, 1, 7, 900);
    Rig rig({.shape = shape});
    const routecap_request b = rig.open();
    ASSERT_STATUS(ROUTECAP_OK,
                  routecap_request_attach(rig.capturer(), b, foreign.get(), ROUTECAP_ROWS_ALL));
    foreign.reset();
    rig.land(rig.step({{b, {1, 900, 100}}}));
    rig.expect(b, 7, routed_rows(shape, 1, 7, 1000));

    // One block across the grid of pages.
    const RoutingPtr copy(rig.extract(b, 7, 993, ROUTECAP_OK, ROUTECAP_EXTRACT_COPY));
    const routecap_request c = rig.open();
    ASSERT_STATUS(ROUTECAP_OK, routecap_request_attach(rig.capturer(), c, copy.get(), 500));
    rig.land(rig.step({{c, {2, 500, 50}}}));
    rig.expect(
        c, 0,
        missing_rows(shape, 7) + routed_rows(shape, 1, 7, 500) + routed_rows(shape, 2, 500, 550));
    expect_routing(copy.get(), shape, 7, routed_rows(shape, 1, 7, 1000));

    const RoutingPtr other = routing_of({.layers = 5, .rows = 256}, 1, 0, 4);
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH,
                  routecap_request_attach(rig.capturer(), c, other.get(), 4));
}

TEST(Attach, a_pending_routing) {
    Rig rig({.held = true}), elsewhere({.held = true});
    const routecap_request a = rig.open(), b = rig.open(), c = elsewhere.open();
    rig.step({{a, {1, 0, 8}}});
    const RoutingPtr pending(rig.finish(a, 8));
    EXPECT_STATUS(ROUTECAP_PENDING, routecap_routing_poll(pending.get()));
    EXPECT_STATUS(ROUTECAP_ERR_NOT_READY,
                  routecap_request_attach(elsewhere.capturer(), c, pending.get(), 8));
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_attach(rig.capturer(), b, pending.get(), 6));
    rig.extract(b, 0, 6, ROUTECAP_ERR_NOT_READY);
    routecap_view view{};
    view.struct_size = sizeof view;
    EXPECT_STATUS(ROUTECAP_ERR_NOT_READY, routecap_routing_view(pending.get(), &view));
    rig.open_gate();
    rig.expect(b, 0, routed_rows(rig.shape(), 1, 0, 6));
}
