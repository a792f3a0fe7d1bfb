// The budget of a store: what it holds, who pays for a page, and what goes first.
#include <atomic>
#include <thread>

#include "shelf.h"

using namespace rig;

namespace {

using Reasons = std::vector<int32_t>;

// Pages of few rows: 2 layers of 16 ids of two bytes, so that a page of 64 KiB has 256 rows.
const Shape kShape{.layers = 8, .k = 8, .experts = 16, .rows = 512};

uint64_t page_bytes() { return memory_of(kShape).page_bytes; }
uint32_t page_rows() { return memory_of(kShape).page_rows; }

}  // namespace

// A page is charged to one budget: the capturer's until it is published, then the store's.
TEST(Budget, of_a_page_moves_from_the_capturer_to_the_store) {
    Rig rig({.shape = kShape});
    Shelf shelf(kShape, {.block_rows = 16});
    const routecap_request a = rig.open();
    const uint32_t rows = page_rows();
    rig.land(rig.step({{a, {1, 0, rows}}}));
    const uint64_t before = rig.bytes_in_use();
    EXPECT_EQ(page_bytes(), before);
    shelf.publish(rig, a, 0, from_to(0, rows / 16));
    const routecap_store_counts counts = shelf.settled(rig);
    EXPECT_EQ(0u, rig.bytes_in_use());
    EXPECT_EQ(0u, counts.rows_copied);
    EXPECT_GE(counts.bytes_in_use, page_bytes());
    EXPECT_LE(counts.bytes_in_use, page_bytes() + rows / 16 * 64);

    // Nobody has it any more once its blocks and its request are gone.
    rig.close(a);
    rig.bytes_in_use();
    EXPECT_GE(shelf.counts().bytes_in_use, page_bytes());
    shelf.evict(from_to(0, rows / 16));
    EXPECT_EQ(0u, shelf.counts().bytes_in_use);
    EXPECT_EQ(0u, rig.bytes_in_use());
}

TEST(Budget, counts_a_page_until_nobody_has_it) {
    Rig rig({.shape = kShape});
    Shelf shelf(kShape, {.block_rows = 16});
    const routecap_request a = rig.open();
    rig.land(rig.step({{a, {1, 0, page_rows()}}}));
    shelf.publish(rig, a, 0, from_to(0, page_rows() / 16));
    shelf.settled(rig);
    RoutingPtr routing(rig.finish(a, page_rows()));
    rig.bytes_in_use();
    shelf.evict(from_to(0, page_rows() / 16));
    EXPECT_EQ(page_bytes(), shelf.counts().bytes_in_use);
    expect_routing(routing.get(), kShape, 0, routed_rows(kShape, 1, 0, page_rows()));
    routing.reset();
    EXPECT_EQ(0u, shelf.counts().bytes_in_use);
}

// Of a page of which more than a quarter would be dead the block is copied, once.
TEST(Budget, does_not_pay_for_a_page_of_which_little_is_published) {
    Rig rig({.shape = kShape});
    Shelf shelf(kShape, {.block_rows = 16});
    const routecap_request a = rig.open(), b = rig.open();
    rig.land(rig.step({{a, {1, 0, page_rows()}}}));
    const size_t few = page_rows() / 16 * 3 / 4 - 1;
    shelf.publish(rig, a, 0, from_to(0, few));
    EXPECT_EQ(few * 16, shelf.settled(rig).rows_copied);
    EXPECT_EQ(page_bytes(), rig.bytes_in_use());
    rig.close(a);
    shelf.adopt(rig, b, 0, from_to(0, few));
    rig.expect(b, 0, routed_rows(kShape, 1, 0, few * 16));
}

TEST(Budget, takes_the_oldest_first_and_never_what_is_retained) {
    Rig rig({.shape = kShape});
    Shelf shelf(kShape, {.block_rows = 64, .budget_bytes = 3 * page_bytes()});
    const routecap_request a = rig.open(), b = rig.open();
    const auto publish = [&](uint64_t number) {
        EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), a, 0));
        rig.land(rig.step({{a, {number, 0, 64}}}));
        shelf.publish(rig, a, 0, {number});
        shelf.settled(rig);
    };
    uint64_t fit = 0;
    while (shelf.counts().blocks_evicted == 0) publish(fit++);
    fit--;  // one had to go
    ASSERT_GE(fit, 4u);
    EXPECT_EQ((Reasons{kEvicted, 0}), shelf.contains({0, 1}));

    shelf.retain({1});
    shelf.adopt(rig, b, 0, {2});
    rig.close(b);
    shelf.settled(rig);
    publish(100);
    EXPECT_EQ((Reasons{0, 0, kEvicted, 0}), shelf.contains({1, 2, 3, 4}));
    shelf.release({1});  // which makes it the newest
    publish(101);
    EXPECT_EQ((Reasons{0, 0, kEvicted}), shelf.contains({1, 2, 4}));
    EXPECT_LE(shelf.counts().bytes_peak, 3 * page_bytes());
}

TEST(Budget, that_is_full_of_retained_blocks_refuses_others) {
    Rig rig({.shape = kShape});
    Shelf shelf(kShape, {.block_rows = 64, .budget_bytes = 3 * page_bytes()});
    const routecap_request a = rig.open();
    for (uint64_t n = 0; shelf.counts().blocks_refused == 0; n++) {
        ASSERT_LT(n, 100u);
        EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), a, 0));
        rig.land(rig.step({{a, {n, 0, 64}}}));
        shelf.publish(rig, a, 0, {n});
        shelf.settled(rig);
        shelf.retain({n});
        EXPECT_EQ(shelf.counts().blocks_refused == 0 ? 0 : kNever, shelf.contains({n})[0]);
    }
    EXPECT_EQ(0u, shelf.counts().blocks_evicted);
    EXPECT_LE(shelf.counts().bytes_in_use, 3 * page_bytes());
}

// The slots of blocks that went are used again, but not while somebody has the page.
TEST(Budget, uses_slots_again_and_never_under_a_reader) {
    Rig rig({.shape = kShape});
    Shelf shelf(kShape, {.block_rows = 1, .flags = ROUTECAP_STORE_SLOT_KEYS});
    const routecap_request a = rig.open();
    rig.land(rig.step({{a, {1, 0, 8}}}));
    shelf.publish(rig, a, 0, from_to(0, 8));
    const uint64_t bytes = shelf.settled(rig).bytes_in_use;
    const routecap_request reader = rig.open();
    shelf.adopt(rig, reader, 0, from_to(0, 8));
    rig.expect(reader, 0, routed_rows(kShape, 1, 0, 8));
    for (uint64_t seed = 2; seed < 200; seed++) {
        const routecap_request b = rig.open();
        rig.land(rig.step({{b, {seed, 0, 8}}}));
        shelf.publish(rig, b, 0, from_to(0, 8));
        shelf.settled(rig);
        rig.close(b);
    }
    rig.expect(reader, 0, routed_rows(kShape, 1, 0, 8));
    EXPECT_LE(shelf.counts().bytes_in_use, bytes + 2 * page_bytes());
    EXPECT_EQ(8u, shelf.counts().blocks);
}

// The table of blocks took address space for a budget that no machine has, and got none.
TEST(Budget, may_be_all_the_memory_that_there_is) {
    Rig rig({.shape = kShape});
    Shelf shelf(kShape, {.block_rows = 1, .budget_bytes = UINT64_MAX});
    const routecap_request a = rig.open(), reader = rig.open();
    rig.land(rig.step({{a, {1, 0, 8}}}));
    shelf.publish(rig, a, 0, from_to(0, 8));
    EXPECT_EQ(8u, shelf.settled(rig).blocks);
    EXPECT_EQ(UINT64_MAX, shelf.counts().bytes_budget);
    EXPECT_EQ(8u, shelf.adopt(rig, reader, 0, from_to(0, 8)).found);
    rig.expect(reader, 0, routed_rows(kShape, 1, 0, 8));
}

// Calls of every kind from several threads while an engine runs.
TEST(Threads, may_use_one_store_together) {
    Rig rig({.shape = {.rows = 64}});
    Shelf shelf(rig.shape(), {.budget_bytes = 1 << 20});
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    const auto go_on = [&](auto call) {
        threads.emplace_back([&, call] {
            for (uint64_t n = 0; !stop; n++) call(n % 40);
        });
    };
    go_on([&](uint64_t n) { shelf.contains(from_to(n, n + 4)); });
    go_on([&](uint64_t n) {
        shelf.retain({n}), shelf.release({n});
        shelf.counts();
    });
    go_on([&](uint64_t n) {
        if (n == 0) shelf.evict(from_to(0, 10));
        std::this_thread::yield();
    });
    go_on([&](uint64_t n) {
        const routecap_request b = rig.open();
        shelf.adopt(rig, b, 0, from_to(n / 4 * 4, n / 4 * 4 + 4));
        const RoutingPtr routing(rig.finish(b, 16));
        ASSERT_GE(routecap_routing_wait(routing.get(), -1), 0);
        const Rows rows = contents(routing.get(), rig.shape());
        for (size_t r = 0; r < rows.size(); r++)
            for (uint32_t l = 0; l < rig.shape().layers; l++) {
                if (!rows[r][l]) continue;
                ASSERT_EQ(*rows[r][l], routed(rig.shape(), n / 4, r, l));
            }
    });
    for (uint64_t i = 0; i < 300; i++) {
        const routecap_request a = rig.open();
        const routecap_step step = rig.step({{a, {i % 10, 0, 16}}});
        shelf.publish(rig, a, 0, from_to(i % 10 * 4, i % 10 * 4 + 4));
        if (i % 3 == 0) rig.land(step);
        rig.close(a);
    }
    stop = true;
    for (std::thread &thread : threads) thread.join();
    EXPECT_EQ(0u, shelf.settled(rig).blocks_mismatched);
}
