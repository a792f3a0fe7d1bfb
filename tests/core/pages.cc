// Memory for rows: what is used again, what goes back to the system, and what the budget allows of
// both.
#include "rows/pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

namespace {

using namespace routecap;

ShapePtr shape_of(uint32_t layers, uint32_t k) {
    ShapeSource source{};
    source.layers = layers, source.k = k, source.experts = 256;
    ShapePtr shape;
    make_shape(source, "shape", shape);
    return shape;
}

struct Pages : testing::Test {
    ShapePtr shape = shape_of(58, 8);

    PageRef make(PagePool &pool) {
        if (!pool.reserve(pool.page_bytes())) return PageRef();
        PageRef page = pool.make(*shape, shape->page_rows);
        if (page) std::memset(page->row(0), 7, size_t{shape->page_rows} * shape->stride);
        return page;
    }
    std::vector<PageRef> make(PagePool &pool, size_t count) {
        std::vector<PageRef> pages;
        for (size_t i = 0; i < count; i++) pages.push_back(make(pool));
        return pages;
    }
    // The blocks that pages are in, by their number, and how much of these the system has memory
    // for.
    static std::set<uintptr_t> blocks_of(const std::vector<PageRef> &pages) {
        std::set<uintptr_t> blocks;
        for (const PageRef &page : pages)
            blocks.insert(reinterpret_cast<uintptr_t>(page.get()) / kBlock);
        return blocks;
    }
    static size_t resident_bytes(const std::set<uintptr_t> &blocks) {
        const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        size_t resident = 0;
        for (const uintptr_t block : blocks) {
            std::vector<unsigned char> in_memory(kBlock / size);
            // The addresses are gone.
            if (mincore(reinterpret_cast<void *>(block * kBlock), kBlock, in_memory.data()) != 0)
                continue;
            for (const unsigned char c : in_memory) resident += (c & 1) * size;
        }
        return resident;
    }
    static constexpr size_t kBlock = 2 << 20;
};

TEST_F(Pages, are_used_again) {
    const auto pool = PagePool::create(shape, uint64_t{1} << 30);
    std::vector<PageRef> pages = make(*pool, 500);
    const std::set<uintptr_t> first = blocks_of(pages);
    EXPECT_EQ(first.size(), 15u);
    EXPECT_EQ(pool->used(), 500 * pool->page_bytes());
    pages.clear();
    EXPECT_EQ(pool->used(), 0u);
    EXPECT_EQ(blocks_of(make(*pool, 500)), first);
}

TEST_F(Pages, beyond_what_is_kept_go_back_to_the_system) {
    for (const ShapePtr &of : {shape_of(58, 8), shape_of(4, 2)}) {
        // Small pages as well as large ones.
        shape = of;
        const auto pool = PagePool::create(shape, uint64_t{1} << 30);
        const size_t count = (size_t{160} << 20) / pool->page_bytes();
        std::vector<PageRef> pages = make(*pool, count);
        const std::set<uintptr_t> blocks = blocks_of(pages);
        EXPECT_GT(resident_bytes(blocks), size_t{155} << 20);
        std::shuffle(pages.begin(), pages.end(), std::mt19937(1));
        pages.clear();
        EXPECT_LE(resident_bytes(blocks), size_t{66} << 20) << "of 160 MiB 64 are kept";
        EXPECT_GE(resident_bytes(blocks), size_t{60} << 20);
        pages = make(*pool, count);
        EXPECT_TRUE(pages.back());
        EXPECT_EQ(pages.back()->row(3)[5], 7);
    }
}

TEST_F(Pages, that_are_kept_make_room_within_the_budget) {
    const auto pool =
        PagePool::create(shape, 1000 * PagePool::page_bytes(*shape, shape->page_rows));
    std::vector<PageRef> pages = make(*pool, 900);
    const std::set<uintptr_t> blocks = blocks_of(pages);
    pages.clear();
    const uint32_t rows = 800 * shape->page_rows;
    ASSERT_TRUE(pool->reserve(PagePool::page_bytes(*shape, rows)));
    EXPECT_GT(resident_bytes(blocks), 850 * pool->page_bytes());
    const PageRef large = pool->make(*shape, rows);
    ASSERT_TRUE(large);
    EXPECT_LT(resident_bytes(blocks), 200 * pool->page_bytes());
    EXPECT_EQ(make(*pool, 150).size(), 150u);
}

TEST_F(Pages, end_at_the_budget_whatever_the_size_of_a_block) {
    for (const size_t budget : {1, 2, 33, 34, 35, 100}) {
        const auto pool =
            PagePool::create(shape, budget * PagePool::page_bytes(*shape, shape->page_rows) + 5);
        for (int i = 0; i < 2; i++) {
            const std::vector<PageRef> pages = make(*pool, budget + 1);
            for (size_t p = 0; p < budget; p++) EXPECT_TRUE(pages[p]);
            EXPECT_FALSE(pages[budget]);
        }
    }
}

TEST_F(Pages, that_are_lent_are_not_used_again) {
    const auto lender = std::make_shared<const int>(0);
    std::vector<uint8_t> rows(size_t{shape->page_rows} * shape->stride);
    const auto pool = PagePool::create(shape, uint64_t{1} << 30);
    const void *lent = pool->borrow(shape->page_rows, rows.data(), nullptr, Tag{5}, lender).get();
    EXPECT_EQ(lender.use_count(), 1);
    const PageRef page = make(*pool);
    EXPECT_NE(page.get(), lent);
}

TEST_F(Pages, outlive_what_made_them) {
    auto pool = PagePool::create(shape, uint64_t{1} << 30);
    const PageRef page = make(*pool);
    pool.reset();
    EXPECT_EQ(page->row(1)[0], 7);
}

}  // namespace
