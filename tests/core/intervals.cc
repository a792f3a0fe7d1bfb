// The set of intervals, against a plain set; every node that it took is given back.
#include "base/intervals.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

TEST(Intervals, agree_with_a_set) {
    std::mt19937_64 random(1);
    for (int round = 0; round < 200; round++) {
        routecap::Nodes nodes;
        routecap::Nodes::More more = routecap::Nodes::make(routecap::Nodes::kChunk, {});
        nodes.add(more);
        const size_t all = nodes.free();
        routecap::Intervals intervals;
        std::set<uint64_t> numbers;
        for (int i = 0; i < 60; i++) {
            const uint64_t begin = random() % 50, end = begin + random() % 12;
            uint64_t absent = end - begin;
            for (uint64_t n = begin; n < end; n++) absent -= numbers.count(n);
            ASSERT_EQ(intervals.absent(begin, end), absent);
            if (random() % 3 != 0) {
                intervals.add(begin, end, nodes);
                for (uint64_t n = begin; n < end; n++) numbers.insert(n);
            } else {
                const uint64_t to = random() % 4 == 0 ? UINT64_MAX : end;
                uint64_t removed = 0;
                for (auto n = numbers.lower_bound(begin); n != numbers.end() && *n < to;
                     n = numbers.erase(n))
                    removed++;
                ASSERT_EQ(intervals.remove(begin, to, nodes), removed);
            }
            ASSERT_EQ(intervals.nodes(), all - nodes.free());
        }
        intervals.clear(nodes);
        ASSERT_EQ(nodes.free(), all);
    }
}
