// What an operator hears, on a clock of the test's: each kind once a second, and a step that does
// not land.
#include "capture/fault_reporter.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

using namespace routecap;
using namespace std::chrono_literals;

namespace {

class Watching : public testing::Test {
protected:
    void SetUp() override {
        set_log(
            [](void *to, int32_t, const char *text) {
                static_cast<std::vector<std::string> *>(to)->emplace_back(text);
            },
            &told_, ROUTECAP_LOG_INFO);
    }
    void TearDown() override { set_log(nullptr, nullptr, 0); }

    // The lines that are reported at this time.
    std::vector<std::string> report_at(FaultReporter::Clock::duration at, uint64_t oldest = 0,
                                       FaultReporter::Clock::duration issued = 0s,
                                       bool end = false) {
        told_.clear();
        Lines lines;
        reporter.report(start_ + at, oldest, start_ + issued, lines, end);
        lines.tell();
        return told_;
    }
    bool has(const std::vector<std::string> &lines, const std::string &part) {
        return lines.size() == 1 && lines[0].find(part) != std::string::npos;
    }

    std::vector<std::string> told_;
    const FaultReporter::Clock::time_point start_ = FaultReporter::Clock::now();
    const ShapePtr shape_ = [] {
        ShapePtr shape;
        ShapeSource source{};
        source.layers = 2, source.k = 1, source.experts = 4;
        make_shape(source, "shape", shape);
        return shape;
    }();
    Counters counters{2};
    std::shared_ptr<PagePool> pool_ = PagePool::create(shape_, 1 << 20);
    FaultReporter reporter{3, 4, *shape_, counters, *pool_};
};

}  // namespace

TEST_F(Watching, a_kind_is_told_once_a_second_with_all_that_happened) {
    EXPECT_TRUE(report_at(0s).empty());
    counters.steps_lost++;
    EXPECT_TRUE(has(report_at(1s),
                    "capturer 3: 1 steps lost, 1 in all: too many were in flight; slots is 4"));
    counters.steps_lost += 5;
    EXPECT_TRUE(report_at(1900ms).empty());
    counters.steps_lost += 2;
    EXPECT_TRUE(has(report_at(2s), "7 steps lost, 8 in all"));
    // Another kind does not wait for this one.
    counters.rows_refused += 3;
    EXPECT_TRUE(has(report_at(2100ms), "3 rows refused for memory, 3 in all"));
    counters.steps_lost++;
    EXPECT_TRUE(report_at(2200ms).empty());
    EXPECT_TRUE(has(report_at(2300ms, 0, 0s, true), "1 steps lost, 9 in all"));  // at the end
}

TEST_F(Watching, why_steps_are_lost_is_told_apart) {
    counters.steps_lost += 3;
    reporter.failed("cuMemcpyDtoHAsync returned CUDA_ERROR_X");
    const auto lines = report_at(0s);
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_NE(lines[0].find("2 steps lost, 2 in all: too many were in flight"), std::string::npos);
    EXPECT_NE(lines[1].find("1 steps lost, 1 in all: cuMemcpyDtoHAsync returned"),
              std::string::npos);
}

TEST_F(Watching, a_step_that_does_not_land_is_told_when_its_age_doubles) {
    counters.steps_issued += 2;
    EXPECT_TRUE(report_at(9s, 17).empty());
    EXPECT_TRUE(
        has(report_at(12s, 17), "step 17 was issued 12 s ago and has not landed; 2 steps are"));
    EXPECT_TRUE(report_at(23s, 17).empty());
    EXPECT_TRUE(has(report_at(24s, 17), "step 17 was issued 24 s ago"));
    EXPECT_TRUE(report_at(25s, 18, 20s).empty());
    EXPECT_TRUE(has(report_at(31s, 18, 20s), "step 18 was issued 11 s ago"));
    EXPECT_TRUE(report_at(90s).empty());
}

TEST_F(Watching, the_worker_is_behind_if_it_files_all_slots_at_once) {
    reporter.round(3);
    EXPECT_TRUE(report_at(0s).empty());
    reporter.round(4);
    EXPECT_TRUE(has(report_at(1s),
                    "1 times the worker found as many steps landed as may be in flight, "
                    "1 in all: slots is 4"));
}
