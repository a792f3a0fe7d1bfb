// What schedulers of engines do with blocks of a prefix cache: cases that a store for it must get
// right. Others of the kind stand with what they are about: reuse in flight and within a step in
// prefixes.cc, the order of eviction in memory.cc.
#include "shelf.h"

using namespace rig;

namespace {

constexpr int32_t kNever = ROUTECAP_MISSING_NOT_PUBLISHED;
using Reasons = std::vector<int32_t>;

}  // namespace

// The hash of a full block comes with a later step, when the request is further on.
TEST(Scheduler, publishes_a_full_block_when_its_hash_arrives) {
    Rig rig;
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open();
    rig.land(rig.step({{a, {1, 0, 9}}}));
    shelf.publish(rig, a, 0, {10});
    shelf.settled(rig);
    EXPECT_EQ((Reasons{0, kNever}), shelf.contains({10, 11}));
    EXPECT_EQ(4u, shelf.adopt(rig, b, 0, {10, 11}).rows);
    rig.step({{a, {1, 9, 1}}, {b, {1, 4, 1}}});
    shelf.publish(rig, a, 4, {11});
    EXPECT_EQ(8u, shelf.adopt(rig, b, 0, {10, 11}).rows);
    shelf.settled(rig);
    rig.expect(b, 0, routed_rows(rig.shape(), 1, 0, 8));
    EXPECT_EQ(0u, shelf.counts().blocks_mismatched);
}

// Chunks of a prefill end within blocks. A block is published by the step that fills it.
TEST(Scheduler, prefills_in_chunks_that_end_within_blocks) {
    Rig rig({.held = true});
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open();
    rig.step({{a, {1, 0, 6}}});
    shelf.publish(rig, a, 0, {10});
    rig.step({{a, {1, 6, 1}}});
    shelf.publish(rig, a, 4, {11}, ROUTECAP_ERR_OUT_OF_RANGE);  // row 7 was not issued
    rig.step({{a, {1, 7, 5}}});
    shelf.publish(rig, a, 4, {11, 12});
    EXPECT_EQ(12u, shelf.adopt(rig, b, 0, {10, 11, 12}).rows);
    rig.open_gate();
    shelf.settled(rig);
    rig.expect(b, 0, routed_rows(rig.shape(), 1, 0, 12));
}

// Of four drafts one is accepted. The next step begins in the gap that the others leave.
TEST(Scheduler, fills_the_gap_of_rejected_drafts_in_the_next_step) {
    Rig rig({.held = true});
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open();
    rig.step({{a, {1, 0, 4}}});
    const routecap_step drafts = rig.step({{a, {2, 4, 4}}}, ROUTECAP_SPAN_SPECULATIVE);
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), a, drafts, nullptr, 1));
    rig.step({{a, {3, 5, 3}}});
    shelf.publish(rig, a, 0, {10, 11});
    EXPECT_EQ(2u, shelf.adopt(rig, b, 0, {10, 11}).found);
    rig.open_gate();
    shelf.settled(rig);
    rig.expect(b, 0,
               routed_rows(rig.shape(), 1, 0, 4) + routed_rows(rig.shape(), 2, 4, 1) +
                   routed_rows(rig.shape(), 3, 5, 3));
}

// A block is freed in the cache before its rows have landed. They are there then, like others.
TEST(Scheduler, releases_a_block_before_its_rows_have_landed) {
    Rig rig({.held = true});
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), b = rig.open();
    rig.step({{a, {1, 0, 8}}});
    shelf.publish(rig, a, 0, {10, 11});
    shelf.retain({10, 11});
    shelf.release({10, 11, 12});
    rig.close(a);
    rig.open_gate();
    EXPECT_EQ(0u, shelf.settled(rig).blocks_retained);
    EXPECT_EQ(8u, shelf.adopt(rig, b, 0, {10, 11}).rows);
    shelf.settled(rig);
    rig.expect(b, 0, routed_rows(rig.shape(), 1, 0, 8));
}

// A preempted request had emitted six rows. It resumes with the blocks that the cache still has,
// and emits from there on: from within a block.
TEST(Scheduler, resumes_where_it_had_emitted) {
    Rig rig;
    Shelf shelf(rig.shape());
    const routecap_request a = rig.open(), again = rig.open();
    rig.land(rig.step({{a, {1, 0, 10}}}));
    shelf.publish(rig, a, 0, {10, 11});
    const RoutingPtr emitted(rig.finish(a, 6));
    shelf.settled(rig);
    EXPECT_EQ(4u, shelf.adopt(rig, again, 4, {11}).rows);
    rig.land(rig.step({{again, {1, 8, 4}}}));
    const RoutingPtr rest(rig.extract(again, 6, 6, ROUTECAP_OK));
    const routecap_routing *const parts[] = {emitted.get(), rest.get()};
    routecap_routing *whole = nullptr;
    EXPECT_STATUS(ROUTECAP_OK, routecap_routing_merge(parts, 2, 0, &whole));
    const RoutingPtr owner(whole);
    expect_routing(whole, rig.shape(), 0, routed_rows(rig.shape(), 1, 0, 12));
}
