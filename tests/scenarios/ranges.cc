// Ranges: truncation, empty suffixes, deltas, sizes.
#include <rig.h>

using namespace rig;

// Tokens were truncated and routing was not; a start equal to the prompt's length killed the
// engine; deltas carried everything.
TEST(Scenario, F30_ranges) {
    Rig rig;
    const routecap_request r = rig.open();
    rig.land(rig.step({{r, {1, 0, 30}}}));
    const Rows all = routed_rows(rig.shape(), 1, 0, 30);
    for (int32_t mode : {ROUTECAP_EXTRACT_SHARE, ROUTECAP_EXTRACT_COPY, ROUTECAP_EXTRACT_TAKE}) {
        SCOPED_TRACE(mode);
        rig.extract(r, 25, 15, ROUTECAP_ERR_OUT_OF_RANGE, mode);
        EXPECT_NE(std::string(routecap_last_error()).find("[30,40)"), std::string::npos)
            << routecap_last_error();
        const RoutingPtr first(rig.extract(r, 0, 19, ROUTECAP_OK, mode)),
            none(rig.extract(r, 19, 0, ROUTECAP_OK, mode)),
            rest(rig.extract(r, 19, 11, ROUTECAP_OK, mode)),
            end(rig.extract(r, 30, ROUTECAP_ROWS_ALL, ROUTECAP_OK, mode));
        expect_routing(first.get(), rig.shape(), 0, routed_rows(rig.shape(), 1, 0, 19));
        expect_routing(none.get(), rig.shape(), 19, {});
        expect_routing(rest.get(), rig.shape(), 19, routed_rows(rig.shape(), 1, 19, 30));
        expect_routing(end.get(), rig.shape(), 30, {});
        EXPECT_EQ(contents(first.get(), rig.shape()) + contents(none.get(), rig.shape()) +
                      contents(rest.get(), rig.shape()),
                  all);

        // The pieces concatenate to the whole.
        const routecap_routing *pieces[] = {rest.get(), first.get(), none.get()};
        routecap_routing *merged = nullptr;
        ASSERT_STATUS(ROUTECAP_OK, routecap_routing_merge(pieces, 3, 0, &merged));
        const RoutingPtr whole(merged);
        expect_routing(whole.get(), rig.shape(), 0, all);
    }
    rig.expect(r, 0, missing_rows(rig.shape(), 30));  // all were taken
}

// Payloads that pass transport limits: sizes are exact, and only the requested range is touched.
TEST(Scenario, F34_large_payload_and_exact_sizes) {
    const Shape shape{.layers = 48, .k = 8, .experts = 128, .rows = 8192};
    Rig rig({.shape = shape});
    const routecap_request r = rig.open();
    constexpr uint64_t kRows = 16384;
    for (uint64_t p = 0; p < kRows; p += 8192) rig.land(rig.step({{r, {1, p, 8192}}}));
    const RoutingPtr all(rig.extract(r, 0, kRows, ROUTECAP_OK));
    routecap_copy_options options;
    ASSERT_STATUS(ROUTECAP_OK, routecap_copy_options_init(&options, sizeof options));
    options.dtype = ROUTECAP_DTYPE_U8;
    uint64_t needed = 0;
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                  routecap_routing_copy_to(all.get(), &options, nullptr, 0, nullptr, 0, &needed));
    EXPECT_EQ(needed, kRows * 48 * 8);
    std::vector<uint8_t> ids(needed, 0xee);
    EXPECT_STATUS(
        ROUTECAP_ERR_BUFFER_TOO_SMALL,
        routecap_routing_copy_to(all.get(), &options, ids.data(), needed - 1, nullptr, 0, &needed));
    EXPECT_EQ(ids, std::vector<uint8_t>(needed, 0xee));  // nothing was written
    EXPECT_STATUS(ROUTECAP_OK, routecap_routing_copy_to(all.get(), &options, ids.data(), needed,
                                                        nullptr, 0, &needed));
    for (uint64_t p : {uint64_t{0}, uint64_t{9000}, kRows - 1})
        for (uint32_t l = 0; l < 48; l++)
            for (uint32_t c = 0; c < 8; c++)
                ASSERT_EQ(ids[(p * 48 + l) * 8 + c], routed(shape, 1, p, l)[c]);

    routecap_routing *slice = nullptr;
    ASSERT_STATUS(ROUTECAP_OK, routecap_routing_slice(all.get(), 15000, 64, &slice));
    const RoutingPtr part(slice);
    options.first_layer = 10;
    options.layers = 2;
    std::vector<uint8_t> few(64 * 2 * 8);
    EXPECT_STATUS(ROUTECAP_OK, routecap_routing_copy_to(slice, &options, few.data(), few.size(),
                                                        nullptr, 0, &needed));
    EXPECT_EQ(needed, few.size());
    for (uint64_t p = 0; p < 64; p++)
        for (uint32_t l = 0; l < 2; l++)
            for (uint32_t c = 0; c < 8; c++)
                ASSERT_EQ(few[(p * 2 + l) * 8 + c], routed(shape, 1, 15000 + p, 10 + l)[c]);
}
