// Why rows are not there: the runs against a plain map, and what they become among rows that are
// there.
#include "rows/missing_rows.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "rows/page_entry.h"

#include "../support/declared.h"

namespace {

using namespace routecap;

using Reasons = std::map<uint64_t, int32_t>;      // by position
constexpr size_t kKept = std::size(kOfRows) - 1;  // the last is ABSENT, which nobody keeps
constexpr uint64_t kEnd = 40;

void add(Reasons &reasons, uint64_t first, uint64_t end, int32_t reason) {
    for (uint64_t p = first; p < end; p++)
        if (reason_rank(reason) > reason_rank(reasons[p])) reasons[p] = reason;
}
void expect_equal(const MissingRows &rows, Reasons reasons, uint64_t first, uint64_t end) {
    std::erase_if(reasons, [](const auto &row) { return row.second == 0; });
    Reasons found;
    size_t runs = 0;
    uint64_t last = first;
    int32_t reason = 0;
    rows.for_each(first, end, [&](uint64_t from, uint64_t to, int32_t r) {
        ASSERT_LT(from, to);
        ASSERT_LE(last, from);
        ASSERT_TRUE(from != last || r != reason || runs == 0) << "two runs where one would do";
        for (uint64_t p = from; p < to; p++) found[p] = r;
        last = to, reason = r, runs++;
    });
    std::erase_if(reasons, [&](const auto &row) { return row.first < first || row.first >= end; });
    ASSERT_EQ(found, reasons);
    if (first == 0 && end == kEnd) {
        ASSERT_EQ(runs, rows.runs());
        ASSERT_EQ(rows.empty(), runs == 0);
    }
}

}  // namespace

TEST(MissingRows, agree_with_a_map) {
    std::mt19937_64 random(1);
    for (int round = 0; round < 500; round++) {
        MissingRows rows;
        Reasons reasons;
        for (int i = 0; i < 40; i++) {
            const uint64_t first = random() % kEnd, end = std::min(kEnd, first + random() % 12);
            if (random() % 8 == 0) {
                rows.cut(end);
                reasons.erase(reasons.lower_bound(end), reasons.end());
            } else {
                const int32_t reason = kOfRows[random() % kKept];
                rows.add(first, end, reason);
                add(reasons, first, end, reason);
            }
            ASSERT_NO_FATAL_FAILURE(expect_equal(rows, reasons, 0, kEnd));
            ASSERT_NO_FATAL_FAILURE(expect_equal(rows, reasons, first, end));
        }
    }
}

TEST(MissingRows, of_others_are_added_as_if_one_by_one) {
    std::mt19937_64 random(4);
    for (int round = 0; round < 1000; round++) {
        MissingRows rows, other;
        Reasons reasons;
        for (uint64_t i = 0, n = random() % 20; i < n; i++) {
            const uint64_t first = random() % kEnd, end = std::min(kEnd, first + random() % 5);
            const int32_t reason = kOfRows[random() % kKept];
            (random() % 2 == 0 ? rows : other).add(first, end, reason);
            add(reasons, first, end, reason);
        }
        rows.add(other);
        ASSERT_NO_FATAL_FAILURE(expect_equal(rows, reasons, 0, kEnd));
        const uint64_t first = random() % kEnd, end = first + random() % kEnd;
        ASSERT_NO_FATAL_FAILURE(
            expect_equal(rows.part(first, end), reasons, first, std::min(end, kEnd)));
    }
}

TEST(MissingRows, absent_is_no_reason_to_remember) {
    MissingRows rows;
    rows.add(0, 8, ROUTECAP_MISSING_ABSENT);
    rows.add(4, 4, ROUTECAP_MISSING_LOST);
    EXPECT_TRUE(rows.empty());
}

namespace {

// Rows of two layers in pages: there, there in part, or not there for a reason of their own.
struct WithMissing : testing::Test {
    const ShapePtr shape = std::make_shared<const Shape>(
        1, ROUTECAP_ID_SPACE_LOGICAL, std::vector<int32_t>{0, 1}, std::vector<uint32_t>{8, 8},
        std::vector<int32_t>{ROUTECAP_PROVENANCE_CAPTURED, ROUTECAP_PROVENANCE_CAPTURED});
    const std::shared_ptr<PagePool> pool = PagePool::unlimited(shape);

    // In a page a row is two cells: 0 is valid, anything else a reason.
    using Cells = std::pair<int32_t, int32_t>;
    Segment segment(uint64_t first, const std::vector<Cells> &rows) {
        pool->reserve(PagePool::page_bytes(*shape, rows.size() + 1));
        PageRef page = pool->make(*shape, static_cast<uint32_t>(rows.size() + 1));
        bool complete = true;
        for (size_t r = 0; r < rows.size(); r++) {
            const auto cells = {rows[r].first, rows[r].second};
            uint32_t l = 0;
            for (int32_t cell : cells) {
                page->ids(r + 1)[l] = static_cast<uint8_t>(cell);
                if (cell == 0)
                    page->validity(r + 1)[0] =
                        static_cast<uint8_t>(page->validity(r + 1)[0] | 1u << l);
                complete &= cell == 0;
                l++;
            }
        }
        return {std::move(page), 1, first, rows.size(), complete};
    }
    // The cells of rows [first, end).
    std::vector<Cells> cells(const std::vector<Segment> &segments, uint64_t first, uint64_t end) {
        std::vector<Cells> all;
        const auto absent_until = [&](uint64_t position) {
            EXPECT_LE(first + all.size(), position) << "segments overlap";
            while (first + all.size() < position)
                all.push_back({ROUTECAP_MISSING_ABSENT, ROUTECAP_MISSING_ABSENT});
        };
        for (const Segment &s : segments) {
            EXPECT_GT(s.rows, 0u);
            absent_until(s.first);
            for (uint64_t r = 0; r < s.rows; r++)
                all.push_back(s.page ? Cells{s.ids(r)[0], s.ids(r)[1]} : Cells{s.reason, s.reason});
        }
        absent_until(end);
        EXPECT_EQ(all.size(), end - first);
        return all;
    }
};

constexpr int32_t kAbsent = ROUTECAP_MISSING_ABSENT, kUnwritten = ROUTECAP_MISSING_UNWRITTEN,
                  kLost = ROUTECAP_MISSING_LOST, kTaken = ROUTECAP_MISSING_TAKEN,
                  kRefused = ROUTECAP_MISSING_REFUSED;

}  // namespace

TEST_F(WithMissing, rows_that_are_there_hide_a_reason_and_others_show_it) {
    MissingRows lost;
    lost.add(1, 9, kLost);
    std::vector<Segment> present;
    present.push_back(segment(2, {{0, 0},
                                  {kAbsent, kAbsent},
                                  {0, kUnwritten},
                                  {kTaken, kTaken},
                                  {kRefused, kRefused},
                                  {kAbsent, kUnwritten}}));
    const auto all = with_missing(*shape, std::move(present), lost, 0, 10);
    const std::vector<Cells> expected{{kAbsent, kAbsent}, {kLost, kLost},        {0, 0},
                                      {kLost, kLost},     {0, kUnwritten},       {kTaken, kTaken},
                                      {kLost, kLost},     {kAbsent, kUnwritten}, {kLost, kLost},
                                      {kAbsent, kAbsent}};
    EXPECT_EQ(cells(all, 0, 10), expected);
}

TEST_F(WithMissing, agrees_with_rows_one_by_one) {
    std::mt19937_64 random(3);
    const auto any_reason = [&] { return kOfRows[random() % kKept]; };
    for (int round = 0; round < 3000; round++) {
        MissingRows known;
        Reasons reasons;
        for (int i = 0; i < 6; i++) {
            const uint64_t first = random() % kEnd, end = std::min(kEnd, first + random() % 12);
            const int32_t reason = any_reason();
            known.add(first, end, reason);
            add(reasons, first, end, reason);
        }
        std::vector<Segment> present;
        uint64_t position = random() % 4;
        while (position < kEnd) {
            std::vector<Cells> rows(std::min(kEnd - position, 1 + random() % 9));
            const bool complete = random() % 3 == 0;
            for (Cells &row : rows) {
                const int32_t reason = random() % 2 == 0 ? any_reason() : kAbsent,
                              cell[] = {0, kUnwritten, kAbsent, any_reason()};
                row = complete            ? Cells{0, 0}
                      : random() % 2 == 0 ? Cells{reason, reason}
                                          : Cells{cell[random() % 4], cell[random() % 4]};
            }
            present.push_back(segment(position, rows));
            position = present.back().end() + random() % 3;
        }
        std::vector<Cells> expected = cells(present, 0, kEnd);
        for (uint64_t p = 0; p < kEnd; p++)
            if (auto &[a, b] = expected[p];
                a == b && is_row_reason(a) && reason_rank(a) < reason_rank(reasons[p]))
                a = b = reasons[p];
        ASSERT_EQ(cells(with_missing(*shape, std::move(present), known, 0, kEnd), 0, kEnd),
                  expected)
            << "round " << round;
    }
}
