// Publishing and adopting: what another request computed is there, and what is not says why.
#include <thread>

#include "shelf.h"

using namespace rig;

namespace {

constexpr int32_t kEvicted = ROUTECAP_MISSING_EVICTED, kStale = ROUTECAP_MISSING_STALE,
                  kNever = ROUTECAP_MISSING_NOT_PUBLISHED;
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

// vLLM serves 656 of 3,585 prompt rows of a small run from its prefix cache: each is a hole in
// what it captures.
TEST(Prefix, computed_by_one_request_is_there_for_the_next) {
    Rig rig;
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open();
    rig.land(rig.step({{a, {1, 0, 16}}}));
    shelf.publish(rig, a, 0, {10, 11, 12, 13});
    EXPECT_EQ(4u, shelf.settled(rig).blocks_published);

    const routecap_adoption found = shelf.adopt(rig, b, 0, {10, 11, 12});
    EXPECT_EQ(12u, found.rows);
    EXPECT_EQ(3u, found.found);
    rig.land(rig.step({{b, {1, 12, 4}}}));
    rig.expect(b, 0, routed_rows(rig.shape(), 1, 0, 16));
    EXPECT_EQ(3u, shelf.counts().blocks_adopted);
}

TEST(Prefix, that_is_in_flight_is_pending_in_the_adopter) {
    Rig rig({.held = true});
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open();
    rig.step({{a, {1, 0, 8}}});
    shelf.publish(rig, a, 0, {10, 11});
    EXPECT_EQ((Reasons{0, 0, kNever}), shelf.contains({10, 11, 12}));
    EXPECT_EQ(2u, shelf.counts().blocks_in_flight);
    EXPECT_EQ(8u, shelf.adopt(rig, b, 0, {10, 11}).rows);
    rig.extract(b, 0, 8, ROUTECAP_ERR_NOT_READY);
    rig.expect_length(b, 8);
    rig.open_gate();
    rig.expect(b, 0, routed_rows(rig.shape(), 1, 0, 8));
}

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

TEST(Prefix, may_begin_anywhere_and_lie_anywhere) {
    Rig rig({.shape = {.rows = 128}});
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open();
    rig.land(rig.step({{a, {1, 0, 100}}}));
    shelf.publish(rig, a, 3, from_to(0, 24));
    shelf.settled(rig);
    shelf.adopt(rig, b, 3, from_to(0, 24));
    rig.expect(b, 0, missing_rows(rig.shape(), 3) + routed_rows(rig.shape(), 1, 3, 99));
}

TEST(Hole, says_whether_its_block_went_or_never_was) {
    Rig rig;
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open();
    rig.land(rig.step({{a, {1, 0, 8}}}));
    shelf.publish(rig, a, 0, {10, 11});
    shelf.settled(rig);
    shelf.evict({10});
    const routecap_adoption found = shelf.adopt(rig, b, 0, {10, 11, 12});
    EXPECT_EQ(0u, found.rows);
    EXPECT_EQ(1u, found.found);
    EXPECT_EQ(1u, found.evicted);
    EXPECT_EQ(1u, found.not_published);
    EXPECT_EQ((Reasons{kEvicted, kEvicted, kEvicted, kEvicted, 0, 0, 0, 0, kNever, kNever, kNever,
                       kNever}),
              why(rig, b, 0, 12));
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

TEST(Drafts, are_published_when_they_are_settled) {
    Rig rig({.held = true});
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open(), c = rig.open();
    rig.land(rig.step({{a, {1, 0, 3}}}));
    const routecap_step step = rig.step({{a, {1, 3, 5}}}, ROUTECAP_SPAN_SPECULATIVE);
    shelf.publish(rig, a, 0, {10, 11});
    EXPECT_EQ(0u, shelf.adopt(rig, b, 0, {10}).found);
    rig.land(step);
    EXPECT_EQ((Reasons{kNever}), shelf.contains({10}));
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), a, step, nullptr, 3));
    shelf.settled(rig);
    EXPECT_EQ((Reasons{0, 0}), shelf.contains({10, 11}));
    shelf.adopt(rig, c, 0, {10, 11});
    rig.open_gate();
    rig.expect(c, 0, routed_rows(rig.shape(), 1, 0, 6) + missing_rows(rig.shape(), 2));
    EXPECT_EQ((Reasons{kNever, kNever}), why(rig, c, 6, 2));
    EXPECT_EQ((Reasons{kNever, kNever, kNever, kNever}), why(rig, b, 0, 4));
}

TEST(Drafts, before_a_block_do_not_hold_it_up) {
    Rig rig({.held = true});
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open();
    rig.step({{a, {1, 0, 4}}}, ROUTECAP_SPAN_SPECULATIVE);
    rig.step({{a, {1, 4, 4}}});
    shelf.publish(rig, a, 4, {11});
    EXPECT_EQ(1u, shelf.adopt(rig, b, 4, {11}).found);
    rig.open_gate();
    rig.expect(b, 4, routed_rows(rig.shape(), 1, 4, 4));
}

// A shared store had it in neither place while the worker brought it from one to the other.
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

// vLLM: rejected drafts leave a gap in the block that the next step fills.
TEST(Drafts, that_were_rejected_are_filled_by_a_later_publish) {
    Rig rig;
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open();
    const routecap_step step = rig.step({{a, {1, 0, 4}}}, ROUTECAP_SPAN_SPECULATIVE);
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), a, step, nullptr, 2));
    shelf.publish(rig, a, 0, {10});
    shelf.settled(rig);
    rig.land(rig.step({{a, {2, 2, 2}}}));
    shelf.publish(rig, a, 0, {10});
    EXPECT_EQ(2u, shelf.settled(rig).blocks_published);
    shelf.adopt(rig, b, 0, {10});
    rig.expect(b, 0, routed_rows(rig.shape(), 1, 0, 2) + routed_rows(rig.shape(), 2, 2, 4));
    EXPECT_EQ(0u, shelf.counts().blocks_mismatched);
}

TEST(Rows, that_are_cut_in_flight_are_published_as_they_were) {
    Rig rig({.held = true});
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open();
    rig.step({{a, {1, 0, 8}}});
    shelf.publish(rig, a, 0, {10, 11});
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), a, 6));
    rig.step({{a, {2, 6, 2}}});
    shelf.adopt(rig, b, 0, {10, 11});
    rig.open_gate();
    rig.expect(b, 0, routed_rows(rig.shape(), 1, 0, 8));
    rig.expect(a, 0, routed_rows(rig.shape(), 1, 0, 6) + routed_rows(rig.shape(), 2, 6, 8));
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

// A preempted or aborted request: its blocks are in the cache, whatever becomes of it.
TEST(Rows, of_a_request_that_ends_in_flight_are_published) {
    Rig rig({.held = true});
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open(), c = rig.open();
    rig.step({{a, {1, 0, 8}}, {c, {2, 0, 4}}});
    shelf.publish(rig, a, 0, {10, 11});
    shelf.publish(rig, c, 0, {12});
    rig.close(a);
    const RoutingPtr routing(rig.finish(c, 4));
    shelf.adopt(rig, b, 0, {10, 11, 12});
    rig.open_gate();
    rig.expect(b, 0, routed_rows(rig.shape(), 1, 0, 8) + routed_rows(rig.shape(), 2, 0, 4));
}

TEST(Rows, that_were_lost_are_missing_in_the_block_until_somebody_has_them) {
    Rig rig;
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open(), c = rig.open(), d = rig.open();
    rig.land(rig.step({{a, {1, 0, 2}}}));
    rig.land(rig.step({{a, {1, 3, 1}}}));
    shelf.publish(rig, a, 0, {10});
    shelf.settled(rig);
    shelf.adopt(rig, b, 0, {10});
    EXPECT_EQ((Reasons{0, 0, kNever, 0}), why(rig, b, 0, 4));
    rig.land(rig.step({{c, {1, 0, 4}}}));
    shelf.publish(rig, c, 0, {10});
    shelf.settled(rig);
    shelf.adopt(rig, d, 0, {10});
    rig.expect(d, 0, routed_rows(rig.shape(), 1, 0, 4));
    EXPECT_EQ((Reasons{0, 0, kNever, 0}), why(rig, b, 0, 4));  // a block never changes
}

TEST(Publish, of_rows_that_never_landed_leaves_nothing) {
    Rig rig;
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open();
    rig.land(rig.step({{a, {1, 8, 1}}}));
    shelf.publish(rig, a, 0, {10});
    const routecap_store_counts counts = shelf.settled(rig);
    EXPECT_EQ(1u, counts.blocks_empty);
    EXPECT_EQ(0u, counts.blocks);
    EXPECT_EQ((Reasons{kNever}), shelf.contains({10}));
}

TEST(Publish, beyond_what_was_issued_is_refused) {
    Rig rig;
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open();
    rig.land(rig.step({{a, {1, 0, 7}}}));
    shelf.publish(rig, a, 0, {10, 11}, ROUTECAP_ERR_OUT_OF_RANGE);
    shelf.publish(rig, a, ROUTECAP_MAX_POSITION, {10}, ROUTECAP_ERR_OUT_OF_RANGE);
    shelf.publish(rig, a, 0, {10});
    EXPECT_EQ(1u, shelf.settled(rig).blocks);
}

TEST(Publish, under_a_key_of_other_content_is_counted_and_changes_nothing) {
    Rig rig;
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open(), c = rig.open();
    rig.land(rig.step({{a, {1, 0, 4}}, {b, {2, 0, 4}}}));
    shelf.publish(rig, a, 0, {10});
    shelf.publish(rig, a, 0, {10});
    shelf.publish(rig, b, 0, {10});
    const routecap_store_counts counts = shelf.settled(rig);
    EXPECT_EQ(1u, counts.blocks_published);
    EXPECT_EQ(2u, counts.blocks_repeated);
    EXPECT_EQ(1u, counts.blocks_mismatched);
    shelf.adopt(rig, c, 0, {10});
    rig.expect(c, 0, routed_rows(rig.shape(), 1, 0, 4));
}

TEST(Adopt, keeps_what_the_request_has) {
    Rig rig;
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open();
    rig.land(rig.step({{a, {1, 0, 8}}, {b, {2, 2, 4}}}));
    shelf.publish(rig, a, 0, {10, 11});
    shelf.adopt(rig, b, 0, {10, 11});
    rig.expect(b, 0,
               routed_rows(rig.shape(), 1, 0, 2) + routed_rows(rig.shape(), 2, 2, 6) +
                   routed_rows(rig.shape(), 1, 6, 8));
}

// ---- Slots ----------------------------------------------------------------------------------

// SGLang keys rows by cache slot, and uses slots again: a row of the last owner is another's.
// Another capturer's rows land first, so that those which were adopted in flight add nothing.
TEST(Adopt, of_the_slower_of_two_publishers_has_its_rows) {
    Rig slower({.held = true}), faster;
    Shelf shelf(slower.shape());
    const routecap_request a = slower.open(), b = faster.open(), c = slower.open();
    slower.step({{a, {1, 0, 4}}});
    shelf.publish(slower, a, 0, {10});
    EXPECT_EQ(1u, shelf.adopt(slower, c, 0, {10}).found);
    faster.land(faster.step({{b, {1, 0, 4}}}));
    shelf.publish(faster, b, 0, {10});
    EXPECT_EQ(1u, shelf.settled(faster).blocks_published);
    slower.open_gate();
    slower.expect(c, 0, routed_rows(slower.shape(), 1, 0, 4));
    EXPECT_EQ(1u, shelf.counts().blocks_repeated);
}

TEST(Slots, are_of_whoever_published_them_last) {
    Rig rig({.held = true});
    Shelf shelf(rig.shape(), {.block_rows = 1, .flags = ROUTECAP_STORE_SLOT_KEYS});
    const routecap_request a = rig.open(), b = rig.open(), before = rig.open(), after = rig.open();
    rig.step({{a, {1, 0, 4}}});
    shelf.publish(rig, a, 0, {5, 6, 7, 8});
    shelf.adopt(rig, before, 0, {5, 6, 7, 8});
    rig.step({{b, {2, 0, 4}}});
    shelf.publish(rig, b, 0, {7, 8, 9, 10});
    shelf.adopt(rig, after, 0, {5, 6, 7, 8});
    rig.open_gate();
    rig.expect(before, 0, routed_rows(rig.shape(), 1, 0, 4));
    rig.expect(after, 0, routed_rows(rig.shape(), 1, 0, 2) + routed_rows(rig.shape(), 2, 0, 2));
    EXPECT_EQ(2u, shelf.settled(rig).blocks_replaced);
}

// A shared store had the rows of the slot's last owner until others landed, and kept them where
// none did.
TEST(Slots, are_not_of_who_had_them_before_if_nothing_lands) {
    Rig rig;
    Shelf shelf(rig.shape(), {.block_rows = 1, .flags = ROUTECAP_STORE_SLOT_KEYS});
    const routecap_request a = rig.open(), b = rig.open(), c = rig.open();
    rig.land(rig.step({{a, {1, 0, 4}}}));
    shelf.publish(rig, a, 0, {5, 6, 7, 8});
    shelf.settled(rig);
    const routecap_step drafts = rig.step({{b, {2, 0, 2}}}, ROUTECAP_SPAN_SPECULATIVE);
    shelf.publish(rig, b, 0, {5, 6});
    EXPECT_EQ((Reasons{kNever, kNever, 0, 0}), shelf.contains({5, 6, 7, 8}));
    shelf.adopt(rig, c, 0, {5, 6, 7, 8});
    EXPECT_EQ((Reasons{kNever, kNever, 0, 0}), why(rig, c, 0, 4));
    shelf.exported({5, 6, 7, 8}, ROUTECAP_INCOMPLETE);
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), b, drafts, nullptr, 1));
    shelf.settled(rig);
    EXPECT_EQ((Reasons{0, kNever, 0, 0}), shelf.contains({5, 6, 7, 8}));
    EXPECT_EQ(2u, shelf.counts().blocks_replaced);
}

// SGLang's HiCache and vLLM 0.26 move slots; nothing there told the capturer.
TEST(Slots, that_move_take_their_rows_along) {
    Rig rig;
    Shelf shelf(rig.shape(), {.block_rows = 1, .flags = ROUTECAP_STORE_SLOT_KEYS});
    const routecap_request a = rig.open(), b = rig.open();
    rig.land(rig.step({{a, {1, 0, 4}}}));
    shelf.publish(rig, a, 0, {0, 1, 2, 3});
    shelf.settled(rig);
    shelf.move({0, 1, 2, 9}, {1, 2, 0, 3});  // three turn, and nobody knows what 9 was
    shelf.adopt(rig, b, 0, {1, 2, 0, 3});
    EXPECT_EQ((Reasons{0, 0, 0, kEvicted}), why(rig, b, 0, 4));
    rig.expect(b, 0, routed_rows(rig.shape(), 1, 0, 3) + missing_rows(rig.shape(), 1));
    shelf.move({1}, {40});
    EXPECT_EQ((Reasons{kEvicted, 0}), shelf.contains({1, 40}));

    Shelf content(rig.shape());
    EXPECT_STATUS(ROUTECAP_ERR_STATE, routecap_store_move(content.get(), content.keys({1}).data(),
                                                          content.keys({2}).data(), 1));
}

// ---- Generations ----------------------------------------------------------------------------

// miles and NeMo-RL: a prefix cache that was poisoned across weight updates was served silently.
TEST(Generation, that_is_over_is_gone_for_adopters) {
    Rig rig;
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open(), c = rig.open();
    rig.land(rig.step({{a, {1, 0, 4}}}));
    shelf.publish(rig, a, 0, {10});
    shelf.settled(rig);
    shelf.adopt(rig, b, 0, {10});
    shelf.advance(3);
    EXPECT_EQ(1u, shelf.adopt(rig, c, 0, {10, 11}).stale);
    EXPECT_EQ((Reasons{kStale, kStale, kStale, kStale, kNever, kNever, kNever, kNever}),
              why(rig, c, 0, 8));
    rig.expect(b, 0, routed_rows(rig.shape(), 1, 0, 4));
    shelf.advance(2);
    EXPECT_EQ(3u, shelf.counts().generation);
    shelf.generation = 4;
    shelf.publish(rig, a, 0, {10}, ROUTECAP_ERR_STATE);
    shelf.adopt(rig, a, 0, {10}, ROUTECAP_ERR_STATE);
}

TEST(Generation, of_a_row_is_its_tag) {
    Rig rig;
    Shelf shelf(rig.shape()), other(rig.shape());
    const routecap_request a = rig.open(), b = rig.open();
    rig.land(rig.step({{a, {1, 0, 6}}}));
    shelf.advance(1);
    rig.land(tagged(rig, 5, a, {1, 6, 6}));
    shelf.publish(rig, a, 0, {10, 11, 12});
    other.publish(rig, a, 0, {10, 11, 12});
    EXPECT_EQ(2u, shelf.settled(rig).blocks_stale);
    EXPECT_EQ((Reasons{kNever, kNever, 0}), shelf.contains({10, 11, 12}));
    EXPECT_EQ(0u, other.settled(rig).blocks_stale);
    other.adopt(rig, b, 0, {10, 11, 12});
    rig.expect(b, 0, routed_rows(rig.shape(), 1, 0, 12));
    const RoutingPtr routing(rig.extract(b, 0, 12, ROUTECAP_OK));
    const routecap_view view = view_of(routing.get());
    for (uint64_t s = 0; s < view.segment_count; s++)
        for (uint64_t r = 0; r < view.segments[s].rows; r++) {
            const routecap_segment &segment = view.segments[s];
            EXPECT_EQ(segment.first + r >= 6 ? 5u : 0u,
                      segment.tags != nullptr ? segment.tags[r] : segment.tag);
        }
    // Computed again with new weights they can be published.
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), a, 0));
    rig.land(tagged(rig, 1, a, {3, 0, 8}));
    shelf.publish(rig, a, 0, {10, 11});
    EXPECT_EQ(2u, shelf.settled(rig).blocks_stale);
    EXPECT_EQ((Reasons{0, 0, 0}), shelf.contains({10, 11, 12}));
    shelf.advance(5);
    EXPECT_EQ((Reasons{kStale, kStale, 0}), shelf.contains({10, 11, 12}));
}

TEST(Generation, of_rows_from_a_routing_or_a_parent_is_their_tag) {
    Rig rig;
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open();
    rig.land(rig.step({{a, {1, 0, 4}}}));
    rig.land(tagged(rig, 1, a, {1, 4, 4}));
    shelf.advance(1);
    routecap_request child = 0;
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_fork(rig.capturer(), a, 8, &child));
    shelf.publish(rig, child, 0, {10, 11});
    const RoutingPtr routing(rig.extract(a, 0, 8, ROUTECAP_OK));
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_attach(rig.capturer(), b, routing.get(), 8));
    shelf.publish(rig, b, 0, {20, 21});
    EXPECT_EQ(2u, shelf.settled(rig).blocks_stale);
    EXPECT_EQ((Reasons{kNever, 0, kNever, 0}), shelf.contains({10, 11, 20, 21}));
}

// Ages were kept beside the rows: rows that were adopted just before an advance passed for rows of
// the new weights.
TEST(Generation, of_adopted_rows_does_not_change_with_the_store) {
    Rig rig;
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open();
    rig.land(rig.step({{a, {1, 0, 8}}}));
    shelf.publish(rig, a, 0, {10, 11});
    shelf.settled(rig);
    EXPECT_EQ(2u, shelf.adopt(rig, b, 0, {10, 11}).found);
    shelf.advance(1);
    shelf.publish(rig, b, 0, {10, 12});
    EXPECT_EQ(2u, shelf.settled(rig).blocks_stale);
    EXPECT_EQ((Reasons{kNever}), shelf.contains({12}));
}

// Two stages or engines in one process, each with its store, which advance at different moments.
TEST(Generation, of_rows_of_one_store_is_theirs_in_another) {
    Rig rig;
    Shelf first(rig.shape()), second(rig.shape());
    const routecap_request a = rig.open(), b = rig.open(), c = rig.open();
    rig.land(rig.step({{a, {1, 0, 4}}}));
    first.publish(rig, a, 0, {10});
    first.settled(rig);
    second.advance(1);
    EXPECT_EQ(1u, first.adopt(rig, b, 0, {10}).found);
    first.advance(1);
    second.publish(rig, b, 0, {10});
    EXPECT_EQ(1u, second.settled(rig).blocks_stale);
    EXPECT_EQ((Reasons{kNever}), second.contains({10}));
    rig.land(tagged(rig, 1, c, {1, 0, 4}));
    second.publish(rig, c, 0, {10});
    EXPECT_EQ(0u, second.settled(rig).blocks_stale - 1);
    EXPECT_EQ((Reasons{0}), second.contains({10}));
}

TEST(Generation, that_ends_in_flight_drops_what_lands_late) {
    Rig rig({.held = true});
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open();
    rig.step({{a, {1, 0, 4}}});
    shelf.publish(rig, a, 0, {10});
    shelf.adopt(rig, b, 0, {10});
    shelf.advance(1);
    rig.open_gate();
    EXPECT_EQ(1u, shelf.settled(rig).blocks_stale);
    EXPECT_EQ(0u, shelf.counts().blocks);
    rig.expect(a, 0, routed_rows(rig.shape(), 1, 0, 4));
    EXPECT_EQ((Reasons{kStale, kStale, kStale, kStale}), why(rig, b, 0, 4));
}

// Steps that nobody tagged are found out when their rows land.
TEST(Generation, of_rows_in_flight_is_told_when_they_land) {
    Rig rig({.held = true});
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open();
    shelf.advance(1);
    rig.step({{a, {1, 0, 4}}});
    tagged(rig, 1, a, {1, 4, 4});
    shelf.publish(rig, a, 0, {10, 11});
    EXPECT_EQ(2u, shelf.adopt(rig, b, 0, {10, 11}).found);
    rig.open_gate();
    EXPECT_EQ(1u, shelf.settled(rig).blocks_stale);
    EXPECT_EQ((Reasons{kNever, 0}), shelf.contains({10, 11}));
    EXPECT_EQ((Reasons{kStale, kStale, kStale, kStale, 0, 0, 0, 0}), why(rig, b, 0, 8));
}

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
        EXPECT_STATUS(ROUTECAP_OK, routecap_request_publish_batch(rig.capturer(), shelf.get(),
                                                                  items.data(), sizeof items[0],
                                                                  items.size(), round));
        shelf.settled(rig);
        std::thread other([&] { routecap_store_advance(shelf.get(), round + 1); });
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

TEST(Hole, of_a_stale_block_that_went_says_evicted) {
    Rig rig;
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open();
    rig.land(rig.step({{a, {1, 0, 4}}}));
    shelf.publish(rig, a, 0, {10});
    shelf.settled(rig);
    shelf.advance(1);
    EXPECT_EQ((Reasons{kStale}), shelf.contains({10}));
    shelf.evict({10});
    EXPECT_EQ(0u, shelf.counts().blocks);
    EXPECT_EQ((Reasons{kEvicted}), shelf.contains({10}));
}

// Drafts with old weights that land after the key has rows of the new ones: that is no sign of a
// poisoned key.
TEST(Generation, that_is_over_is_not_compared_with_the_next) {
    Rig rig;
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open();
    const routecap_step drafts = rig.step({{a, {1, 0, 4}}}, ROUTECAP_SPAN_SPECULATIVE);
    rig.land(drafts);
    shelf.publish(rig, a, 0, {10});
    shelf.advance(1);
    rig.land(tagged(rig, 1, b, {2, 0, 4}));
    shelf.publish(rig, b, 0, {10});
    EXPECT_EQ(1u, shelf.settled(rig).blocks_published);
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), a, drafts, nullptr, 4));
    const routecap_store_counts counts = shelf.settled(rig);
    EXPECT_EQ(1u, counts.blocks_stale);
    EXPECT_EQ(0u, counts.blocks_mismatched);
    EXPECT_EQ(1u, counts.blocks_published);
}

TEST(Generation, may_end_thousands_of_times) {
    Rig rig;
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open();
    rig.land(rig.step({{a, {1, 0, 4}}}));
    shelf.publish(rig, a, 0, {10});
    shelf.settled(rig);
    shelf.retain({10});
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

TEST(Store, serves_several_capturers_what_has_landed) {
    Rig one({.held = true}), two;
    Shelf shelf(one.shape());
    const routecap_request a = one.open(), b = two.open(), c = two.open();
    one.step({{a, {1, 0, 4}}});
    shelf.publish(one, a, 0, {10});
    EXPECT_EQ(1u, shelf.adopt(two, b, 0, {10}).not_published);
    one.open_gate();
    shelf.settled(one);
    shelf.adopt(two, c, 0, {10});
    two.expect(c, 0, routed_rows(one.shape(), 1, 0, 4));
}

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

TEST(Store, of_another_shape_is_refused) {
    Rig rig;
    Shelf shelf({.layers = 5});
    const routecap_request a = rig.open();
    rig.land(rig.step({{a, {1, 0, 4}}}));
    shelf.publish(rig, a, 0, {10}, ROUTECAP_ERR_SHAPE_MISMATCH);
    shelf.adopt(rig, a, 0, {10}, ROUTECAP_ERR_SHAPE_MISMATCH);
}

TEST(Store, is_left_alone_by_mirrors_and_disabled_capturers) {
    for (const int32_t role : {ROUTECAP_ROLE_MIRROR, ROUTECAP_ROLE_DISABLED}) {
        Rig rig({.role = role});
        Shelf shelf(rig.shape());
        shelf.publish(rig, 0, 0, {10});
        EXPECT_EQ(0u, shelf.adopt(rig, 0, 0, {10}).found);
        EXPECT_EQ(0u, shelf.counts().blocks_absent);
    }
}

// ---- Bytes ----------------------------------------------------------------------------------

TEST(Export, carries_blocks_to_another_store) {
    Rig rig;
    Shelf here(rig.shape()), there(rig.shape());
    const routecap_request a = rig.open(), b = rig.open();
    rig.land(rig.step({{a, {1, 0, 12}}}));
    here.publish(rig, a, 0, {10, 11, 12});
    here.settled(rig);
    const std::vector<uint8_t> bytes = here.exported({10, 99, 12}, ROUTECAP_INCOMPLETE);
    uint64_t blocks = 0;
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_store_import(there.get(), bytes.data(), bytes.size(), &blocks));
    EXPECT_EQ(2u, blocks);
    EXPECT_EQ(2u, there.counts().blocks_imported);
    there.adopt(rig, b, 0, {10, 11, 12});
    rig.expect(b, 0,
               routed_rows(rig.shape(), 1, 0, 4) + missing_rows(rig.shape(), 4) +
                   routed_rows(rig.shape(), 1, 8, 12));

    Shelf other(rig.shape(), {.block_rows = 3}), longer(rig.shape(), {.key_bytes = 16});
    for (Shelf *shelf : {&other, &longer})
        EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH,
                      routecap_store_import(shelf->get(), bytes.data(), bytes.size(), nullptr));
    there.advance(1);
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_store_import(there.get(), bytes.data(), bytes.size(), nullptr));
    EXPECT_EQ(2u, there.counts().blocks_stale);
}

// Every byte of an export, changed and cut off.
TEST(Export, that_was_damaged_is_refused) {
    Rig rig;
    Shelf here(rig.shape());
    const routecap_request a = rig.open();
    rig.land(rig.step({{a, {1, 0, 6}}}));
    rig.land(rig.step({{a, {1, 7, 1}}}));
    here.publish(rig, a, 0, {10, 11});
    here.settled(rig);
    const std::vector<uint8_t> sound = here.exported({10, 11});
    for (size_t i = 0; i < sound.size(); i++) {
        std::vector<uint8_t> cut(sound.begin(), sound.begin() + static_cast<ptrdiff_t>(i));
        EXPECT_LT(routecap_store_import(here.get(), cut.data(), cut.size(), nullptr), 0);
        for (const uint8_t flip : {0x01, 0x80}) {
            std::vector<uint8_t> bytes = sound;
            bytes[i] ^= flip;
            Shelf there(rig.shape(), {.budget_bytes = 1 << 20});
            const int32_t status =
                routecap_store_import(there.get(), bytes.data(), bytes.size(), nullptr);
            EXPECT_LT(status, 0) << i;
            EXPECT_EQ(0u, there.counts().blocks) << i;
        }
    }
}

// ---- Keys -----------------------------------------------------------------------------------

TEST(Keys, of_tokens_are_these_digests) {
    std::vector<int32_t> tokens;
    for (int32_t t = 0; t < 10; t++) tokens.push_back(1000 * t);
    const auto hex = [](const uint8_t *bytes, size_t n) {
        std::string text;
        for (size_t i = 0; i < n; i++) {
            char byte[3];
            std::snprintf(byte, sizeof byte, "%02x", bytes[i]);
            text += byte;
        }
        return text;
    };
    uint8_t keys[2][16];
    EXPECT_STATUS(ROUTECAP_OK, routecap_key_chain("model@7", 7, tokens.data(), tokens.size(), 4, 16,
                                                  keys, sizeof keys));
    // hashlib.blake2b(b"model@7" + struct.pack("<4i", 0, 1000, 2000, 3000), digest_size=16,
    //                 person=b"routecap" + struct.pack("<2I", 4, 0)), and so on.
    EXPECT_EQ("ec28edeec9e0aed58526b680e4a28efa", hex(keys[0], 16));
    EXPECT_EQ("7c185fba9593cbd9409240660110d76b", hex(keys[1], 16));
    uint8_t second[16];
    EXPECT_STATUS(ROUTECAP_OK, routecap_key_chain(keys[0], 16, tokens.data() + 4, 4, 4, 16, second,
                                                  sizeof second));
    EXPECT_EQ(hex(keys[1], 16), hex(second, 16));
    uint8_t longest[64];
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_key_chain(nullptr, 0, tokens.data(), 1, 1, 64, longest, 64));
    EXPECT_EQ(
        "b34a15b6a7f64d7c1e5db3eec3aaa104e8c2f4d939cb586a82583b213665e6de"
        "0bb60f526993586fe2b141a2d8c934f0cd9c61d65abac496af73174e2b8f4786",
        hex(longest, 64));
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                  routecap_key_chain(nullptr, 0, tokens.data(), 8, 4, 16, keys, 31));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_key_chain(nullptr, 0, tokens.data(), 8, 4, 65, keys, 32));
}
