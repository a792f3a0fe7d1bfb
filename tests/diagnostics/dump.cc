// The dump of a capturer: valid JSON by a parser of other hands, with the numbers of a model, on
// any thread and whatever hangs.
#include <rig.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <thread>

using namespace rig;
using nlohmann::json;

namespace {

json dump(const routecap_capturer *capturer, uint32_t requests = 1000) {
    uint64_t needed = 0;
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                  routecap_capturer_dump(capturer, requests, nullptr, 0, &needed));
    std::string text(needed, '?');
    uint64_t written = 0;
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_capturer_dump(capturer, requests, text.data(), text.size(), &written));
    EXPECT_LE(written, needed);
    EXPECT_EQ(text.find_first_not_of('?', written), std::string::npos) << "written beyond its end";
    return json::parse(text.begin(), text.begin() + static_cast<ptrdiff_t>(written));
}

}  // namespace

// After each of many random calls the dump says what the model knows.
TEST(Dump, has_the_numbers_of_the_model_in_the_middle_of_random_operations) {
    std::mt19937 random(7);
    for (int round = 0; round < 10; round++) {
        Rig rig({.slots = 16, .held = true});
        struct Request {
            uint64_t rows = 0;
            uint64_t step = 0;  // the newest in flight
            uint64_t drafts = 0;
        };
        std::map<routecap_request, Request> requests;
        std::map<routecap_step, uint64_t> in_flight;  // and their rows
        uint64_t issued = 0;
        const auto any = [&] {
            return std::next(requests.begin(), static_cast<long>(random() % requests.size()));
        };
        for (int i = 0; i < 150; i++) {
            switch (requests.empty() ? 0 : random() % 6) {
                case 0: requests[rig.open()]; break;
                case 1:
                case 2:
                case 3: {
                    if (in_flight.size() >= 12) break;
                    const auto [handle, unused] = *any();
                    Request &r = requests[handle];
                    const auto rows = static_cast<uint32_t>(1 + random() % 8);
                    const bool draft = r.drafts == 0 && random() % 4 == 0;
                    rig.run({{1, r.rows, rows}});
                    const routecap_step step = rig.issue({Rig::span(
                        handle, r.rows, 0, rows, draft ? ROUTECAP_SPAN_SPECULATIVE : 0u)});
                    (draft ? r.drafts : r.rows) += rows;
                    r.step = step;
                    in_flight[step] = rows;
                    issued++;
                    break;
                }
                case 4: {
                    const auto at = any();
                    rig.close(at->first);
                    requests.erase(at);
                    break;
                }
                default:
                    rig.open_gate();
                    in_flight.clear();
                    for (auto &[handle, r] : requests) r.step = 0;
            }
            const json d = dump(rig.capturer());
            const routecap_stats stats = rig.stats();
            EXPECT_EQ(d["counters"]["steps_issued"], issued);
            EXPECT_EQ(d["counters"]["steps_in_flight"], in_flight.size());
            EXPECT_EQ(d["counters"]["rows_delivered"], stats.rows_delivered);
            EXPECT_EQ(d["counters"]["rows_late"], stats.rows_late);
            EXPECT_EQ(d["memory"]["bytes_in_use"], stats.bytes_in_use);
            ASSERT_EQ(d["steps"].size(), in_flight.size());
            for (const json &step : d["steps"]) {
                ASSERT_TRUE(in_flight.contains(step["step"]));
                EXPECT_EQ(step["rows"], in_flight[step["step"]]);
            }
            ASSERT_EQ(d["requests"].size(), requests.size());
            for (const json &request : d["requests"]) {
                ASSERT_TRUE(requests.contains(request["request"]));
                const Request &r = requests[request["request"]];
                EXPECT_EQ(request["rows"], r.rows);
                EXPECT_EQ(request["drafts"], r.drafts);
                EXPECT_EQ(request["step_in_flight"], r.step);
            }
            ASSERT_FALSE(HasFailure()) << d.dump(1);
        }
    }
}

TEST(Dump, says_what_the_capturer_is) {
    Rig rig({.shape = {.layers = 3, .k = 2, .experts = 9, .rows = 40}, .slots = 5});
    rig.land(rig.step({{rig.open(), {1, 0, 1}}}));  // the worker runs
    const json d = dump(rig.capturer());
    EXPECT_EQ(d["role"], "owner");
    EXPECT_EQ(d["config"]["layers"], 3);
    EXPECT_EQ(d["config"]["experts"], 9);
    EXPECT_EQ(d["config"]["rows"], 40);
    EXPECT_EQ(d["config"]["slots"], 5);
    const routecap_memory memory = memory_of(rig.shape());
    EXPECT_EQ(d["memory"]["row_bytes"], memory.row_bytes);
    EXPECT_EQ(d["memory"]["page_bytes"], memory.page_bytes);
    EXPECT_GT(d["worker"]["thread"], 0);
    const Rig mirror({.role = ROUTECAP_ROLE_MIRROR}), disabled({.role = ROUTECAP_ROLE_DISABLED});
    EXPECT_EQ(dump(mirror.capturer())["role"], "mirror");
    EXPECT_FALSE(dump(mirror.capturer()).contains("steps"));
    EXPECT_EQ(dump(disabled.capturer())["role"], "disabled");
    EXPECT_FALSE(dump(disabled.capturer()).contains("config"));
}

// A begin files the oldest step, whose rows are still to be counted.
TEST(Dump, has_no_step_whose_load_alone_is_to_be_counted) {
    if (on_cuda()) GTEST_SKIP() << "on the host backend only";
    Rig rig({.slots = 2, .flags = ROUTECAP_CONFIG_LOAD, .held = true});
    const routecap_request request = rig.open();
    for (uint64_t p = 0; p < 3; p++) rig.step({{request, {1, p, 1}}});
    const json d = dump(rig.capturer());
    EXPECT_EQ(d["counters"]["steps_in_flight"], 2);
    std::set<uint64_t> steps;
    for (const json &step : d["steps"]) steps.insert(step["step"].get<uint64_t>());
    EXPECT_EQ(steps, (std::set<uint64_t>{2, 3}));
}

TEST(Dump, fits_what_was_asked_for_though_requests_come_meanwhile) {
    Rig rig({.held = true});
    uint64_t needed = 0;
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                  routecap_capturer_dump(rig.capturer(), 500, nullptr, 0, &needed));
    std::vector<routecap_request> many(500);
    ASSERT_STATUS(ROUTECAP_OK,
                  routecap_request_open(rig.capturer(), nullptr, many.data(), many.size()));
    rig.step({{many[400], {1, 0, 1}}});
    std::string text(needed, ' ');
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_capturer_dump(rig.capturer(), 500, text.data(), text.size(), nullptr));
    EXPECT_TRUE(json::accept(text));
    EXPECT_EQ(json::parse(text)["counters"]["requests_open"], 500);
    // With fewer than there are, those that something is on its way for.
    const json d = dump(rig.capturer(), 10);
    ASSERT_EQ(d["requests"].size(), 1u);
    EXPECT_EQ(d["requests"][0]["request"], many[400]);
    EXPECT_EQ(dump(rig.capturer(), 500)["requests"].size(), 500u);
    // Too small: nothing is written.
    std::string small(1000, '?');
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                  routecap_capturer_dump(rig.capturer(), 10, small.data(), small.size(), &needed));
    EXPECT_EQ(small, std::string(1000, '?'));
}

TEST(Dump, can_be_made_while_the_worker_hangs_in_a_callback) {
    static std::mutex mutex;
    static std::condition_variable changed;
    static bool reached, open;
    reached = open = false;
    const auto release = [](void *) {
        std::unique_lock lock(mutex);
        reached = true;
        changed.notify_all();
        changed.wait(lock, [] { return open; });
    };
    Rig rig;
    static const uint8_t ids[4 * 4 * 2] = {1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2,
                                           1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2};
    routecap_segment segment{};
    segment.rows = 4, segment.ids = ids;
    routecap_view view{};
    view.struct_size = sizeof view;
    view.dtype = ROUTECAP_DTYPE_U8;
    view.layers = 4, view.k = 2, view.experts = 16, view.rows = 4;
    view.segments = &segment, view.segment_size = sizeof segment, view.segment_count = 1;
    routecap_routing *lent = nullptr;
    ASSERT_STATUS(ROUTECAP_OK, routecap_routing_import(&view, 0, release, nullptr, &lent));
    const routecap_request r = rig.open();
    ASSERT_STATUS(ROUTECAP_OK, routecap_request_attach(rig.capturer(), r, lent, ROUTECAP_ROWS_ALL));
    rig.open_gate();
    routecap_routing_free(lent);
    rig.close(r);
    {
        std::unique_lock lock(mutex);
        ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(20), [] { return reached; }));
    }
    auto made = std::async(std::launch::async, [&] { return dump(rig.capturer()); });
    const bool returned = made.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
    EXPECT_TRUE(returned);
    {
        const std::lock_guard lock(mutex);
        open = true;
        changed.notify_all();
    }
    EXPECT_EQ(made.get()["worker"]["doing"], "releasing");
}

TEST(Dump, can_be_made_by_any_thread_while_steps_run) {
    Rig rig({.slots = 4});
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; i++)
        threads.emplace_back([&] {
            while (!stop) {
                const json d = dump(rig.capturer());
                EXPECT_LE(d["steps"].size(), 4u);
                EXPECT_LE(d["counters"]["rows_delivered"], d["counters"]["rows_issued"]);
            }
        });
    for (int i = 0; i < 300; i++) {
        const routecap_request r = rig.open();
        for (uint64_t p = 0; p < 4; p++) rig.step({{r, {1, p, 1}}});
        rig.close(r);
    }
    stop = true;
    for (std::thread &thread : threads) thread.join();
}
