// Checked mode: a slip in the order of calls is an error at the call that makes it, which then
// changes nothing. Without the flag the same calls are forgiven, and rows are missing.
#include <rig.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>

using namespace rig;

namespace {

class Checked : public testing::Test {
protected:
    void SetUp() override { unsetenv("ROUTECAP_CHECKED"); }
};

uint32_t flags(bool checked) { return checked ? ROUTECAP_CONFIG_CHECKED : 0; }
int32_t if_checked(bool checked, int32_t slip) { return checked ? slip : ROUTECAP_OK; }

const std::vector<std::vector<int64_t>> kFourRows(4, {1, 2});
constexpr Shape kSmall{.layers = 4, .k = 2, .experts = 16, .rows = 32};

int32_t issue(Rig &rig, const routecap_span &span, int32_t snapshot = ROUTECAP_SNAPSHOT_TAKEN) {
    routecap_issue_options options{};
    options.struct_size = sizeof options;
    options.snapshot = snapshot;
    routecap_step step = 0;
    const int32_t status = routecap_step_issue(rig.capturer(), &span, sizeof span, 1, &options,
                                               nullptr, &step, rig.stream());
    EXPECT_EQ(step != 0, status >= 0);
    if (step != 0) rig.land(step);
    return status;
}

// All rows of a pass that goes as it should; in graphs, if the suite is.
void expect_that_the_next_step_works(Rig &rig) {
    const routecap_request request = rig.open();
    rig.land(rig.step({{request, {7, 0, 5}}}));
    rig.expect(request, 0, routed_rows(rig.shape(), 7, 0, 5));
}

}  // namespace

TEST_F(Checked, rows_routed_without_a_begin_are_refused) {
    for (const bool checked : {true, false}) {
        Rig rig({.shape = {.layers = 1, .k = 2, .experts = 16, .rows = 8},
                 .flags = flags(checked),
                 .layer_provenance = {ROUTECAP_PROVENANCE_RECOMPUTED}});
        routecap_router router;
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_router_init(&router, sizeof router, ROUTECAP_METHOD_TOPK));
        routecap_logits logits{};
        logits.struct_size = sizeof logits;
        logits.dtype = ROUTECAP_DTYPE_F32;
        logits.logits = rig.device().allocate(16 * 4 * 4);
        logits.rows = 4;
        const auto route = [&] {
            return routecap_layer_route(rig.capturer(), 0, &router, &logits, rig.stream());
        };
        EXPECT_STATUS(if_checked(checked, ROUTECAP_ERR_NOT_BEGUN), route());
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(3));
        EXPECT_STATUS(if_checked(checked, ROUTECAP_ERR_ROWS_NOT_BEGUN), route());
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(4));
        EXPECT_STATUS(ROUTECAP_OK, route());
    }
}

// Where the rows go is known where the work is done: the step says it once it has landed, and the
// next issue says it too.
TEST_F(Checked, rows_that_the_device_placed_beyond_those_begun_are_told_when_the_step_has_landed) {
    for (const bool checked : {true, false})
        for (const bool indexed : {true, false}) {
            Rig rig({.shape = kSmall, .flags = flags(checked)});
            const routecap_request request = rig.open();
            expect_that_the_next_step_works(rig);
            const int32_t ids[] = {1, 2, 3, 4}, base = 3, index[] = {31, 0};
            routecap_source source{};
            source.struct_size = sizeof source;
            source.dtype = ROUTECAP_DTYPE_I32;
            source.ids = ids;
            source.rows = 2;
            (indexed ? source.row_index : source.row_base) = indexed ? index : &base;
            rig.forward([&] {
                EXPECT_STATUS(ROUTECAP_OK, rig.begin(4));
                EXPECT_STATUS(ROUTECAP_OK, rig.record(0, source));
                EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
            });
            const routecap_step step = rig.issue({Rig::span(request, 0, 0, 4)});
            const int32_t slip = if_checked(checked, ROUTECAP_ERR_ROWS_NOT_BEGUN);
            const std::string named = "step " + std::to_string(step);
            rig.land(step, slip);
            if (checked) {
                EXPECT_NE(std::string(routecap_last_error()).find(named), std::string::npos);
            }
            rig.land(step, slip);
            EXPECT_STATUS(ROUTECAP_OK, routecap_step_poll(rig.capturer(), step));
            EXPECT_EQ(rig.stats().rows_dropped, 1u);

            rig.run({{1, 4, 4}});
            if (checked) {
                EXPECT_STATUS(slip, issue(rig, Rig::span(request, 4, 0, 4)));
                EXPECT_NE(std::string(routecap_last_error()).find(named), std::string::npos);
            }
            EXPECT_STATUS(ROUTECAP_OK, issue(rig, Rig::span(request, 4, 0, 4)));
            expect_that_the_next_step_works(rig);
        }
}

// Without the flag this is a race.
TEST_F(Checked, a_second_thread_on_the_forward_path_is_refused) {
    Rig rig({.shape = {.layers = 64, .k = 8, .experts = 16, .rows = 4096}, .flags = flags(true)});
    std::atomic<bool> found{false};
    const auto begin_again_and_again = [&] {
        while (!found) {
            const int32_t status = rig.begin(4096);
            if (status == ROUTECAP_OK) continue;
            EXPECT_STATUS(ROUTECAP_ERR_TWO_THREADS, status);
            found = true;
        }
    };
    std::thread other(begin_again_and_again);
    begin_again_and_again();
    other.join();
    expect_that_the_next_step_works(rig);
    std::thread([&] {
        expect_that_the_next_step_works(rig);
    }).join();  // one after another may come
}

TEST_F(Checked, the_environment_turns_it_on) {
    for (const char *value : {"1", "on"}) {
        setenv("ROUTECAP_CHECKED", value, 1);
        EXPECT_STATUS(ROUTECAP_ERR_NOT_BEGUN, Rig({.shape = kSmall}).snapshot()) << value;
    }
    for (const char *value : {"", "0"}) {
        setenv("ROUTECAP_CHECKED", value, 1);
        EXPECT_STATUS(ROUTECAP_OK, Rig({.shape = kSmall}).snapshot()) << value;
    }
    unsetenv("ROUTECAP_CHECKED");
    EXPECT_STATUS(ROUTECAP_OK, Rig({.shape = kSmall}).snapshot());
}

TEST_F(Checked, a_mirror_is_checked_up_to_its_snapshot) {
    for (const bool checked : {true, false}) {
        Rig rig({.shape = kSmall, .flags = flags(checked), .role = ROUTECAP_ROLE_MIRROR});
        const routecap_span span = Rig::span(1, 0, 0, 4);
        EXPECT_STATUS(if_checked(checked, ROUTECAP_ERR_NOT_BEGUN), rig.record(0, kFourRows));
        EXPECT_STATUS(if_checked(checked, ROUTECAP_ERR_NOT_BEGUN), rig.snapshot());
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(4));
        EXPECT_STATUS(ROUTECAP_OK, rig.record(0, kFourRows));
        EXPECT_STATUS(if_checked(checked, ROUTECAP_ERR_ROWS_NOT_BEGUN),
                      rig.record(1, kFourRows, 4));
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
        EXPECT_STATUS(if_checked(checked, ROUTECAP_ERR_SNAPSHOT_TWICE), rig.snapshot());
        for (int times = 0; times < 2; times++)
            EXPECT_STATUS(ROUTECAP_OK,
                          routecap_step_issue(rig.capturer(), &span, sizeof span, 1, nullptr,
                                              nullptr, nullptr, rig.stream()));
        EXPECT_STATUS(if_checked(checked, ROUTECAP_ERR_NOT_BEGUN), rig.snapshot());
    }
}

TEST_F(Checked, a_disabled_capturer_checks_nothing) {
    Rig rig({.shape = kSmall, .flags = flags(true), .role = ROUTECAP_ROLE_DISABLED});
    EXPECT_STATUS(ROUTECAP_OK, rig.record(0, kFourRows));
    for (int times = 0; times < 2; times++) {
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_step_issue(rig.capturer(), nullptr, sizeof(routecap_span), 0,
                                          nullptr, nullptr, nullptr, rig.stream()));
    }
}
