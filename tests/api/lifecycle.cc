// Life of capturers: many of them, and processes that fork.
#include <rig.h>

#include <sys/wait.h>
#include <unistd.h>

#include <mutex>
#include <set>
#include <thread>

using namespace rig;

TEST(Lifecycle, create_and_destroy_many) {
    for (int i = 0; i < 2000; i++)
        Rig rig({.shape = {.rows = 1 + static_cast<uint32_t>(i % 7)}, .held = i % 2 == 0});
}

TEST(Lifecycle, several_capturers_at_once) {
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 4; t++)
        threads.emplace_back([t] {
            for (int i = 0; i < 50; i++) {
                Rig rig;
                const routecap_request r = rig.open();
                rig.land(rig.step({{r, {t, 0, 20}}}));
                rig.expect(r, 0, routed_rows(rig.shape(), t, 0, 20));
            }
        });
    for (auto &thread : threads) thread.join();
}

TEST(Lifecycle, no_two_requests_of_a_process_have_one_handle) {
    std::mutex mutex;
    std::set<routecap_request> all;
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; t++)
        threads.emplace_back([&] {
            for (int i = 0; i < 20; i++) {
                Rig rig({.max_requests = 8});
                for (int round = 0; round < 20; round++) {
                    routecap_request several[4] = {};
                    EXPECT_STATUS(ROUTECAP_OK,
                                  routecap_request_open(rig.capturer(), nullptr, several, 4));
                    const std::lock_guard lock(mutex);
                    for (const routecap_request r : several) {
                        EXPECT_TRUE(all.insert(r).second) << "a handle was given out twice";
                        rig.close(r);
                    }
                }
            }
        });
    for (auto &thread : threads) thread.join();
    EXPECT_EQ(all.size(), 3u * 20 * 20 * 4);
    EXPECT_EQ(all.count(0), 0u);
}

// A forked child has neither the worker nor the locks: its calls say so and its frees do nothing.
// The parent is not disturbed.
TEST(Lifecycle, forked_child) {
    Rig rig;
    const routecap_request r = rig.open();
    rig.land(rig.step({{r, {1, 0, 4}}}));
    routecap_routing *routing = rig.extract(r, 0, 4, ROUTECAP_OK);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        routecap_stats stats{};
        stats.struct_size = sizeof stats;
        routecap_routing *none = nullptr;
        bool ok = routecap_capturer_stats(rig.capturer(), &stats) == ROUTECAP_ERR_FORKED;
        ok &= routecap_step_begin(rig.capturer(), 1, rig.stream()) == ROUTECAP_ERR_FORKED;
        ok &= routecap_request_extract(rig.capturer(), r, 0, 4, 0, 0, &none) == ROUTECAP_ERR_FORKED;
        ok &= routecap_routing_poll(routing) == ROUTECAP_ERR_FORKED;
        ok &= routecap_routing_retain(routing) == ROUTECAP_ERR_FORKED;
        routecap_routing_free(routing);
        routecap_capturer_destroy(rig.capturer());
        if (on_cuda()) {  // the driver works in the parent only
            routecap_config config;
            routecap_capturer *own = nullptr;
            ok &= routecap_config_init(&config, sizeof config) == ROUTECAP_OK;
            config.backend = ROUTECAP_BACKEND_CUDA;
            config.layers = 1, config.k = 1, config.experts = 4, config.rows = 4;
            ok &= routecap_capturer_create(&config, &own) == ROUTECAP_ERR_FORKED;
        } else {
#ifdef __SANITIZE_THREAD__  // which does not support threads started after a fork
            Rig own({.held = true});
#else
            Rig own;
#endif
            // A child's own capturer works.
            const routecap_request mine = own.open();
            own.land(own.step({{mine, {1, 0, 4}}}));
            own.expect(mine, 0, routed_rows(own.shape(), 1, 0, 4));
        }
        _exit(ok && !testing::Test::HasFailure() ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    expect_routing(routing, rig.shape(), 0, routed_rows(rig.shape(), 1, 0, 4));
    routecap_routing_free(routing);
    rig.land(rig.step({{r, {1, 4, 4}}}));
    rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 8));
}
