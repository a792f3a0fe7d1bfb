// The lines that an operator gets: where they go, which there are, and that they hold nobody up.
#include <dirent.h>
#include <rig.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <regex>
#include <string>
#include <thread>
#include <vector>

using namespace rig;

namespace {

// A hook that keeps what it is given, and may wait.
class Heard {
public:
    struct Line {
        int32_t level;
        std::string text;
        std::thread::id thread;
    };
    explicit Heard(int32_t level) {
        EXPECT_STATUS(ROUTECAP_OK, routecap_set_log(hear, this, level));
    }
    ~Heard() {
        open();
        EXPECT_STATUS(ROUTECAP_OK, routecap_set_log(nullptr, nullptr, 0));
    }
    Heard(const Heard &) = delete;

    std::vector<Line> lines() {
        const std::lock_guard lock(mutex_);
        return lines_;
    }
    // Those that have all of a text.
    std::vector<Line> with(const std::string &part) {
        std::vector<Line> found;
        for (Line &line : lines())
            if (line.text.find(part) != std::string::npos) found.push_back(line);
        return found;
    }
    // The first numbers of such lines, added up.
    uint64_t sum(const std::string &part) {
        uint64_t sum = 0;
        for (const Line &line : with(part))
            sum += std::strtoull(line.text.c_str() + line.text.find(": ") + 2, nullptr, 10);
        return sum;
    }
    // Lines wait in the hook until it is opened.
    void shut() {
        const std::lock_guard lock(mutex_);
        shut_ = true;
    }
    void open() {
        const std::lock_guard lock(mutex_);
        shut_ = false;
        changed_.notify_all();
    }
    bool wait_until_inside() {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, std::chrono::seconds(20), [this] { return inside_ > 0; });
    }

private:
    static void hear(void *context, int32_t level, const char *text) {
        Heard &self = *static_cast<Heard *>(context);
        std::unique_lock lock(self.mutex_);
        self.inside_++;
        self.changed_.notify_all();
        self.changed_.wait(lock, [&] { return !self.shut_; });
        self.inside_--;
        self.lines_.push_back({level, text, std::this_thread::get_id()});
    }
    std::mutex mutex_;
    std::condition_variable changed_;
    bool shut_ = false;
    int inside_ = 0;
    std::vector<Line> lines_;
};

// Steps whose rows nobody takes away: all but the first are lost.
void lose_steps(Rig &rig, int count) {
    const routecap_request r = rig.open();
    for (int i = 0; i < count; i++) {
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(1));
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
        const routecap_span span = Rig::span(r, static_cast<uint64_t>(i), 0, 1);
        EXPECT_GE(routecap_step_issue(rig.capturer(), &span, sizeof span, 1, nullptr, nullptr,
                                      nullptr, rig.stream()),
                  0);
    }
    rig.close(r);
}

constexpr Options kLosing{.slots = 1, .flags = ROUTECAP_CONFIG_MAY_LOSE, .held = true};

}  // namespace

TEST(Log, says_which_capturers_were_made_and_destroyed_and_nothing_of_healthy_steps) {
    Heard heard(ROUTECAP_LOG_DEBUG);
    {
        Rig rig({.slots = 8});
        const routecap_request r = rig.open();
        for (uint64_t p = 0; p < 50; p++) rig.land(rig.step({{r, {1, p, 1}}}));
    }
    ASSERT_EQ(heard.lines().size(), 2u);
    EXPECT_NE(heard.lines()[0].text.find("4 layers, k 2 of 16 experts, 32 rows, 8 slots"),
              std::string::npos);
    EXPECT_NE(heard.lines()[1].text.find("destroyed: 50 steps, 0 of them lost; 50 rows, 50 of"),
              std::string::npos);
    for (const Heard::Line &line : heard.lines()) EXPECT_EQ(line.level, ROUTECAP_LOG_INFO);
}

// A fault in each step: one line at once, and in the end a second one with all that was left out.
TEST(Log, a_fault_in_each_step_gives_few_lines_that_count_them_all) {
    Heard heard(ROUTECAP_LOG_WARNING);
    uint64_t lost = 0;  // 49 of 50, or 50 where a device has not copied yet
    {
        Rig rig(kLosing);
        for (int i = 0; i < 20; i++) {
            lose_steps(rig, 50);
            EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_progress(rig.capturer()));
        }
        lost = rig.stats().steps_lost;
    }
    EXPECT_GE(lost, 980u);
    const auto lines = heard.with("steps lost");
    EXPECT_GE(lines.size(), 2u);
    EXPECT_LE(lines.size(), 12u);  // one a second, were it as slow as that
    EXPECT_EQ(heard.sum("steps lost"), lost);
    EXPECT_NE(lines.back().text.find(std::to_string(lost) +
                                     " in all: too many were in flight; slots is 1"),
              std::string::npos);
}

TEST(Log, what_was_left_out_is_told_at_the_end) {
    Heard heard(ROUTECAP_LOG_WARNING);
    {
        Rig rig({.slots = 2});
        const routecap_request r = rig.open();
        for (uint64_t p = 0; p < 3; p++) {  // in which nobody writes layer 3
            EXPECT_STATUS(ROUTECAP_OK, rig.begin(1));
            for (uint32_t l = 0; l < 3; l++) rig.record_tokens(l, {{1, p, 1}});
            EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
            rig.land(rig.issue({Rig::span(r, p, 0, 1)}));
        }
    }
    EXPECT_EQ(heard.sum("silent layers"), 3u);
    EXPECT_NE(heard.with("silent layers").back().text.find("1 layers from layer 3 on"),
              std::string::npos);
}

// It named captured layers, and `routecap show`, `routecap top` and metrics those of the decoder.
TEST(Log, names_layers_as_the_decoder_counts_them) {
    Heard heard(ROUTECAP_LOG_WARNING);
    {
        Rig rig({.layer_map = {3, 4, 6, 7}});
        const routecap_request r = rig.open();
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(1));
        for (uint32_t l = 0; l < 2; l++) rig.record_tokens(l, {{1, 0, 1}});
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
        rig.land(rig.issue({Rig::span(r, 0, 0, 1)}));
    }
    ASSERT_EQ(heard.with("silent layers").size(), 1u);
    EXPECT_NE(heard.with("silent layers")[0].text.find(
                  "2 layers from layer 6 (captured layer 2) on had no valid cell"),
              std::string::npos)
        << heard.with("silent layers")[0].text;
}

// Without a snapshot every layer is silent, whatever was recorded.
TEST(Log, says_what_was_left_out_of_a_pass_whose_layers_are_all_silent) {
    for (const bool begun : {true, false}) {
        Heard heard(ROUTECAP_LOG_WARNING);
        {
            Rig rig;
            const routecap_request r = rig.open();
            if (begun) {
                EXPECT_STATUS(ROUTECAP_OK, rig.begin(1));
                for (uint32_t l = 0; l < 4; l++) rig.record_tokens(l, {{1, 0, 1}});
            } else {
                EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
            }
            rig.land(rig.issue({Rig::span(r, 0, 0, 1)}));
        }
        ASSERT_EQ(heard.with("silent layers").size(), 1u);
        const std::string text = heard.with("silent layers")[0].text;
        EXPECT_NE(
            text.find(begun ? "4 layers from layer 0 on had no valid cell: no snapshot was"
                            : "4 layers from layer 0 on had no valid cell: no step was begun"),
            std::string::npos)
            << text;
    }
}

TEST(Log, says_what_the_budget_refused) {
    Heard heard(ROUTECAP_LOG_WARNING);
    {
        Rig rig({.budget_bytes = memory_of(Shape{}).page_bytes});
        const routecap_request r = rig.open(), other = rig.open();
        rig.run({{1, 0, 1}, {2, 0, 1}});
        rig.issue({Rig::span(r, 0, 0, 1), Rig::span(other, 0, 1, 1)}, ROUTECAP_PARTIAL);
        rig.open_gate();
    }
    EXPECT_EQ(heard.sum("rows refused for memory"), 1u);
}

// Steps that nobody tagged: after an update nothing was stored any more, and nothing said so.
TEST(Log, says_that_what_was_published_is_of_older_weights) {
    Heard heard(ROUTECAP_LOG_WARNING);
    Rig rig;
    routecap_store_config config;
    ASSERT_STATUS(ROUTECAP_OK, routecap_store_config_init(&config, sizeof config));
    config.block_rows = 1, config.key_bytes = 8, config.generation = 3;
    routecap_config shape{};
    shape.struct_size = sizeof shape;
    shape.layers = Shape{}.layers, shape.k = Shape{}.k, shape.experts = Shape{}.experts;
    routecap_store *store = nullptr;
    ASSERT_STATUS(ROUTECAP_OK, routecap_store_create(&config, &shape, &store));
    const routecap_request r = rig.open();
    const uint64_t key = 7;
    rig.land(rig.step({{r, {1, 0, 1}}}));
    for (int i = 0; i < 2; i++) {
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_request_publish(rig.capturer(), r, store, 0, &key, 1, 3));
        rig.bytes_in_use();  // it has landed
    }
    routecap_store_free(store);
    const auto lines = heard.with("their tag is 0, and the store is at generation 3");
    EXPECT_GE(lines.size(), 1u);
}

TEST(Log, an_error_that_a_call_returns_is_told_at_its_level_and_its_text_stays) {
    Heard heard(ROUTECAP_LOG_DEBUG);
    Rig rig;
    for (int i = 0; i < 100; i++) {
        EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_STEP, routecap_step_poll(rig.capturer(), 7));
        EXPECT_STREQ(routecap_last_error(), "step 7 was not issued; the last was 0");
    }
    const auto lines = heard.with("routecap_step_poll: ROUTECAP_ERR_UNKNOWN_STEP: step 7 was");
    EXPECT_GE(lines.size(), 5u);
    EXPECT_LE(lines.size(), 20u);  // five a second
    EXPECT_EQ(lines[0].level, ROUTECAP_LOG_DEBUG);
    routecap_config config;
    ASSERT_STATUS(ROUTECAP_OK, routecap_config_init(&config, sizeof config));
    config.backend = 77;
    routecap_capturer *none = nullptr;
    EXPECT_STATUS(ROUTECAP_ERR_NO_BACKEND, routecap_capturer_create(&config, &none));
    const auto created = heard.with("routecap_capturer_create: ROUTECAP_ERR_NO_BACKEND");
    ASSERT_EQ(created.size(), 1u);
    EXPECT_EQ(created[0].level, ROUTECAP_LOG_ERROR);
}

TEST(Log, a_hook_may_call_the_library_but_not_replace_itself) {
    struct Context {
        routecap_capturer *capturer;
        int calls = 0;
    };
    Rig rig;
    Context context{rig.capturer()};
    const auto hook = [](void *c, int32_t, const char *) {
        Context &self = *static_cast<Context *>(c);
        self.calls++;
        EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_STEP, routecap_step_poll(self.capturer, 9));
        EXPECT_STATUS(ROUTECAP_ERR_STATE, routecap_set_log(nullptr, nullptr, 0));
    };
    ASSERT_STATUS(ROUTECAP_OK, routecap_set_log(hook, &context, ROUTECAP_LOG_DEBUG));
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_REQUEST, routecap_request_close(rig.capturer(), 5));
    EXPECT_NE(std::string(routecap_last_error()).find("request"), std::string::npos);
    ASSERT_STATUS(ROUTECAP_OK, routecap_set_log(nullptr, nullptr, 0));
    EXPECT_EQ(context.calls, 1);
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_set_log(nullptr, nullptr, 5));
}

TEST(Log, whoever_replaces_a_hook_waits_until_nobody_is_in_it) {
    Rig rig;
    std::atomic<bool> replaced{false};
    std::future<void> other, replacing;
    {
        Heard heard(ROUTECAP_LOG_DEBUG);
        heard.shut();
        other = std::async(std::launch::async, [&] {
            EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_REQUEST, routecap_request_close(rig.capturer(), 7));
        });
        ASSERT_TRUE(heard.wait_until_inside());
        replacing = std::async(std::launch::async, [&] {
            EXPECT_STATUS(ROUTECAP_OK, routecap_set_log(nullptr, nullptr, 0));
            replaced = true;
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        EXPECT_FALSE(replaced);
        heard.open();
        replacing.get();
        other.get();
    }
    EXPECT_TRUE(replaced);
}

// The worker hangs in the hook. The engine goes on while steps are lost, and everybody can look.
TEST(Log, a_hook_that_waits_holds_up_the_worker_alone) {
    Heard heard(ROUTECAP_LOG_WARNING);
    Rig rig({.slots = 2, .flags = ROUTECAP_CONFIG_MAY_LOSE});
    heard.shut();
    const routecap_request r = rig.open();
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(1));  // and nobody writes any layer
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    rig.issue({Rig::span(r, 0, 0, 1)});
    ASSERT_TRUE(heard.wait_until_inside());
    auto calls = std::async(std::launch::async, [&] {
        lose_steps(rig, 20);
        return rig.stats().steps_issued;
    });
    ASSERT_EQ(calls.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    EXPECT_EQ(calls.get(), 21u);
    heard.open();
}

// Reading waited 100 ms for the worker, and then said that rows were in flight.
TEST(Reading, goes_on_while_the_worker_waits_in_a_hook) {
    Heard heard(ROUTECAP_LOG_WARNING);
    Rig rig;
    const routecap_request a = rig.open(), b = rig.open(), silent = rig.open();
    rig.land(rig.step({{a, {1, 0, 4}}}));
    const RoutingPtr routing(rig.extract(a, 0, 4, ROUTECAP_OK));
    heard.shut();
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(1));  // and nobody writes any layer
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    rig.issue({Rig::span(silent, 0, 0, 1)});
    ASSERT_TRUE(heard.wait_until_inside());
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_attach(rig.capturer(), b, routing.get(), 4));
    rig.expect(b, 0, routed_rows(rig.shape(), 1, 0, 4));
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), b, 2));
    rig.expect(b, 0, routed_rows(rig.shape(), 1, 0, 2));
    heard.open();
}

TEST(Log, hooks_come_and_go_while_lines_are_told) {
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; i++)
        threads.emplace_back([&] {
            Rig rig(kLosing);
            while (!stop) {
                lose_steps(rig, 3);
                EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_progress(rig.capturer()));
                EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_STEP, routecap_step_poll(rig.capturer(), 0));
            }
        });
    for (int i = 0; i < 200; i++) {
        std::vector<std::string> mine;  // gone when the hook is
        std::mutex mutex;
        struct Context {
            std::vector<std::string> &lines;
            std::mutex &mutex;
        } context{mine, mutex};
        const auto hook = [](void *c, int32_t, const char *text) {
            const std::lock_guard lock(static_cast<Context *>(c)->mutex);
            static_cast<Context *>(c)->lines.emplace_back(text);
        };
        ASSERT_STATUS(ROUTECAP_OK, routecap_set_log(hook, &context, 1 + i % 4));
        std::this_thread::yield();
        ASSERT_STATUS(ROUTECAP_OK, routecap_set_log(nullptr, nullptr, 0));
    }
    stop = true;
    for (std::thread &thread : threads) thread.join();
}

TEST(Log, the_worker_thread_has_a_name) {
    const Rig rig;
    int named = 0;
    for (int i = 0; i < 30000 && named == 0; i++) {
        DIR *tasks = opendir("/proc/self/task");
        while (const dirent *task = readdir(tasks)) {
            std::string name;
            std::ifstream("/proc/self/task/" + std::string(task->d_name) + "/comm") >> name;
            named += std::regex_match(name, std::regex("routecap\\.[0-9]+"));
        }
        closedir(tasks);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(named, 1);
}

// This program again, with ROUTECAP_LOG: what the tests say on stderr.
namespace {
std::string stderr_with(const std::string &level) {
    const std::string command =
        "ROUTECAP_LOG=" + level + " " + std::filesystem::read_symlink("/proc/self/exe").string() +
        " --gtest_also_run_disabled_tests --gtest_filter=*DISABLED_loses_steps 2>&1 >/dev/null";
    FILE *const from = popen(command.c_str(), "r");
    std::string all;
    for (int c; (c = std::fgetc(from)) != EOF;) all += static_cast<char>(c);
    EXPECT_EQ(pclose(from), 0);
    return all;
}
}  // namespace
TEST(Log, DISABLED_loses_steps) {
    Rig rig(kLosing);
    lose_steps(rig, 5);
}
TEST(Log, without_a_hook_goes_to_stderr_as_the_environment_says) {
    EXPECT_EQ(stderr_with(""), "");
    EXPECT_EQ(stderr_with("error"), "");
    const std::regex line(
        "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{12}Z routecap\\[[0-9]+\\] warning: capturer 1: 4 steps "
        "lost, 4 in all: .*\n(.*\n)*");
    EXPECT_TRUE(std::regex_match(stderr_with("warning"), line)) << stderr_with("warning");
    EXPECT_NE(stderr_with("INFO").find(" info: capturer 1 destroyed"), std::string::npos);
    EXPECT_NE(stderr_with("loud").find("taken for warning"), std::string::npos);
}
