// Publishing and adopting: what another request computed is there, and what is not says why.
#include <thread>

#include "shelf.h"

using namespace rig;

namespace {

constexpr int32_t kStale = ROUTECAP_MISSING_STALE;
using Reasons = std::vector<int32_t>;

routecap_issue_options with_tag(uint64_t tag) {
    routecap_issue_options options{};
    options.struct_size = sizeof options;
    options.tag = tag;
    return options;
}

// A step of one request, with a tag.
routecap_step tagged(Rig &rig, uint64_t tag, routecap_request request, Tokens tokens) {
    const routecap_issue_options options = with_tag(tag);
    rig.run({tokens});
    return rig.issue({Rig::span(request, tokens.position, 0, tokens.count)}, ROUTECAP_OK, nullptr,
                     &options);
}

}  // namespace

// Two requests of one step: the second has a prefix hit on what the first computes in that step.
TEST(Prefix, of_one_step_is_shared_within_it) {
    Rig rig({.held = true});
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open();
    rig.step({{a, {1, 0, 8}}, {b, {1, 4, 4}}});
    shelf.publish(rig, a, 0, {10});
    EXPECT_EQ(1u, shelf.adopt(rig, b, 0, {10}).found);
    const RoutingPtr routing(rig.finish(b, 8));
    rig.open_gate();
    expect_routing(routing.get(), rig.shape(), 0, routed_rows(rig.shape(), 1, 0, 8));
}

TEST(Hole, says_evicted_for_the_last_65536_keys_that_went) {
    Rig rig;
    Shelf shelf(rig.shape(), {.block_rows = 1});
    const routecap_request a = rig.open();
    rig.land(rig.step({{a, {1, 0, 1}}}));
    const auto come_and_go = [&](uint64_t first, uint64_t end) {
        const Numbers numbers = from_to(first, end);
        std::vector<routecap_publish_item> items;
        const std::vector<uint8_t> keys = shelf.keys(numbers);
        for (size_t i = 0; i < numbers.size(); i++) items.push_back({a, 0, &keys[8 * i], 1, 0, 0});
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_request_publish_batch(rig.capturer(), shelf.get(), items.data(),
                                                     sizeof items[0], items.size(), 0));
        shelf.settled(rig);
        shelf.evict(numbers);
    };
    for (uint64_t n = 0; n < 65536; n += 8192) come_and_go(n, n + 8192);
    EXPECT_EQ((Reasons{kEvicted, kEvicted}), shelf.contains({0, 65535}));
    come_and_go(65536, 65537);
    EXPECT_EQ((Reasons{kNever, kEvicted, kEvicted}), shelf.contains({0, 1, 65536}));
}

// ---- What is published ----------------------------------------------------------------------

TEST(Rows, that_were_published_are_there_all_the_while_they_land) {
    Rig rig;
    Shelf shelf(rig.shape());
    for (uint64_t n = 0; n < 300; n++) {
        const routecap_request a = rig.open();
        const routecap_step step = rig.step({{a, {1, 0, 4}}});
        shelf.publish(rig, a, 0, {n});
        for (int look = 0; look < 300; look++) ASSERT_EQ(shelf.contains({n}).front(), 0) << n;
        rig.land(step);
        rig.close(a);
    }
}

// What they replace is of other tokens.
TEST(Rows, that_replace_others_and_are_cut_in_flight_are_published) {
    for (const bool ends : {false, true}) {
        Rig rig({.held = true});
        Shelf shelf(rig.shape());
        const routecap_request a = rig.open(ROUTECAP_POLICY_REPLACE), b = rig.open();
        rig.land(rig.step({{a, {1, 0, 8}}}));
        rig.step({{a, {2, 4, 4}}});
        shelf.publish(rig, a, 0, {10, 11});
        RoutingPtr routing;
        if (ends)
            routing.reset(rig.finish(a, 4));
        else
            EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), a, 4));
        shelf.adopt(rig, b, 0, {10, 11});
        rig.open_gate();
        rig.expect(b, 0, routed_rows(rig.shape(), 1, 0, 4) + routed_rows(rig.shape(), 2, 4, 8));
        if (!ends) rig.expect(a, 0, routed_rows(rig.shape(), 1, 0, 4));
    }
}

// ---- Slots ----------------------------------------------------------------------------------

TEST(Slots, are_not_of_who_had_them_before_if_nothing_lands) {
    Rig rig;
    Shelf shelf(rig.shape(), {.block_rows = 1, .flags = ROUTECAP_STORE_SLOT_KEYS});
    const routecap_request a = rig.open(), b = rig.open(), c = rig.open();
    rig.land(rig.step({{a, {1, 0, 4}}}));
    shelf.publish(rig, a, 0, {5, 6, 7, 8});
    shelf.settled(rig);
    rig.step({{b, {2, 0, 1}}});
    shelf.adopt(rig, b, 1, {9});  // nobody published it, so b has a hole there
    shelf.publish(rig, b, 0, {5, 6});
    shelf.settled(rig);
    EXPECT_EQ((Reasons{0, kNever, 0, 0}), shelf.contains({5, 6, 7, 8}));
    shelf.adopt(rig, c, 0, {5, 6, 7, 8});
    EXPECT_EQ((Reasons{0, kNever, 0, 0}), why(rig, c, 0, 4));
    EXPECT_EQ(2u, shelf.counts().blocks_replaced);
}

// ---- Generations ----------------------------------------------------------------------------

// Part of such an adopt was found, and part was stale.
TEST(Generation, ends_before_an_adopt_or_after_it) {
    Rig rig;
    Shelf shelf(rig.shape(), {.block_rows = 1});
    const Numbers numbers = from_to(0, 1024);
    for (uint64_t round = 0; round < 20; round++) {
        const routecap_request a = rig.open(), b = rig.open();
        shelf.generation = round;
        rig.land(tagged(rig, round, a, {1, 0, 4}));
        std::vector<routecap_publish_item> items;
        const std::vector<uint8_t> keys = shelf.keys(numbers);
        for (size_t i = 0; i < numbers.size(); i++) items.push_back({a, 0, &keys[8 * i], 1, 0, 0});
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_request_publish_batch(rig.capturer(), shelf.get(), items.data(),
                                                     sizeof items[0], items.size(), round));
        shelf.settled(rig);
        std::thread other(
            [&] { EXPECT_STATUS(ROUTECAP_OK, routecap_store_advance(shelf.get(), round + 1)); });
        routecap_adoption found{};
        found.struct_size = sizeof found;
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_request_adopt(rig.capturer(), b, shelf.get(), 0, keys.data(),
                                             numbers.size(), round, &found));
        other.join();
        EXPECT_EQ(numbers.size(), found.found + found.stale);
        EXPECT_EQ(0u, found.found * found.stale) << found.found << " found";
        rig.close(a);
        rig.close(b);
    }
}

TEST(Generation, may_end_thousands_of_times) {
    Rig rig;
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open();
    rig.land(rig.step({{a, {1, 0, 4}}}));
    shelf.publish(rig, a, 0, {10});
    shelf.settled(rig);
    for (uint64_t g = 1; g <= 5000; g++) {
        shelf.advance(g);
        ASSERT_EQ((Reasons{kStale}), shelf.contains({10})) << g;
    }
    const routecap_request b = rig.open();
    rig.land(tagged(rig, 5000, b, {2, 0, 4}));
    shelf.publish(rig, b, 0, {10});
    shelf.settled(rig);
    EXPECT_EQ((Reasons{0}), shelf.contains({10}));
}

// ---- Several capturers, and ends ------------------------------------------------------------

TEST(Store, may_end_before_its_rows_and_after_its_capturers) {
    Shape shape;
    RoutingPtr routing;
    {
        auto rig = std::make_unique<Rig>(Options{.held = true});
        Shelf shelf(shape);
        const routecap_request a = rig->open(), b = rig->open();
        rig->step({{a, {1, 0, 8}}});
        shelf.publish(*rig, a, 0, {10, 11});
        shelf.adopt(*rig, b, 0, {10, 11});
        routing.reset(rig->finish(b, 8));
        shelf.free();
        rig->open_gate();
        expect_routing(routing.get(), shape, 0, routed_rows(shape, 1, 0, 8));
    }
    expect_routing(routing.get(), shape, 0, routed_rows(shape, 1, 0, 8));

    Shelf shelf(shape);
    {
        Rig rig;
        const routecap_request a = rig.open();
        rig.land(rig.step({{a, {1, 0, 8}}}));
        shelf.publish(rig, a, 0, {10, 11});
    }
    Rig rig;
    const routecap_request b = rig.open();
    shelf.adopt(rig, b, 0, {10, 11});
    rig.expect(b, 0, routed_rows(shape, 1, 0, 8));
}
