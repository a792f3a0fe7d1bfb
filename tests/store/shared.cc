// A store that several processes share, through the public functions: capturers in two processes,
// one of which is killed; memory that runs out; a child of fork().
#include <sys/wait.h>

#include <csignal>

#include "shelf.h"

namespace {

using namespace rig;

// Whether a child of fork() can work here: ThreadSanitizer does not follow it, nor does CUDA.
bool forks() {
#if defined(__SANITIZE_THREAD__)
    return false;
#else
    const char *const backend = std::getenv("ROUTECAP_TEST_BACKEND");
    return backend == nullptr || std::string(backend) != "cuda";
#endif
}

constexpr uint32_t kBlockRows = 4;
constexpr uint64_t kBudget = 1 << 20;

// A shared store of the rig's shape; `descriptor` -1: creates it.
struct Shared {
    Shared(const Shape &shape, int32_t &descriptor, uint32_t block_rows = kBlockRows) {
        routecap_store_config config;
        EXPECT_STATUS(ROUTECAP_OK, routecap_store_config_init(&config, sizeof config));
        config.block_rows = block_rows, config.key_bytes = 8, config.budget_bytes = kBudget;
        const routecap_config of = config_of(shape);
        status = descriptor < 0 ? routecap_store_create_shared(&config, &of, &descriptor, &store)
                                : routecap_store_open_shared(&config, &of, descriptor, &store);
    }
    ~Shared() { routecap_store_free(store); }
    Shared(const Shared &) = delete;

    void publish(Rig &rig, routecap_request request, uint64_t first, const Numbers &keys) {
        EXPECT_STATUS(ROUTECAP_OK, routecap_request_publish(rig.capturer(), request, store, first,
                                                            keys.data(), keys.size(), 0));
    }
    routecap_adoption adopt(Rig &rig, routecap_request request, const Numbers &keys) {
        routecap_adoption adoption{};
        adoption.struct_size = sizeof adoption;
        EXPECT_STATUS(ROUTECAP_OK, routecap_request_adopt(rig.capturer(), request, store, 0,
                                                          keys.data(), keys.size(), 0, &adoption));
        return adoption;
    }

    routecap_store *store = nullptr;
    int32_t status;
};

TEST(SharedStore, has_for_one_process_what_another_published_which_is_dead_by_now) {
    if (!forks()) GTEST_SKIP() << "no forks under ThreadSanitizer, nor on CUDA";
    int pipes[2];
    ASSERT_EQ(pipe(pipes), 0);
    int32_t descriptor = -1;
    const Options options;
    Shared store(options.shape, descriptor);
    ASSERT_STATUS(ROUTECAP_OK, store.status);
    const pid_t child = fork();
    if (child == 0) {
        Rig rig(options);
        Shared own(rig.shape(), descriptor);
        const routecap_request a = rig.open();
        rig.land(rig.step({{a, {1, 0, 8}}}));
        own.publish(rig, a, 0, {10, 11});
        rig.bytes_in_use();
        const char done = own.status == ROUTECAP_OK ? 'y' : 'n';
        if (write(pipes[1], &done, 1) == 1) pause();
        _exit(1);
    }
    char done = 0;
    ASSERT_EQ(read(pipes[0], &done, 1), 1);
    ASSERT_EQ(done, 'y');
    kill(child, SIGKILL);
    int status;
    waitpid(child, &status, 0);

    Rig rig(options);
    const routecap_request b = rig.open();
    EXPECT_EQ(2u, store.adopt(rig, b, {10, 11, 12}).found);
    rig.expect(b, 0, routed_rows(rig.shape(), 1, 0, 8));
    routecap_store_counts counts{};
    counts.struct_size = sizeof counts;
    ASSERT_STATUS(ROUTECAP_OK, routecap_store_stats(store.store, &counts));
    EXPECT_EQ(2u, counts.blocks_published);
    close(pipes[0]);
    close(pipes[1]);
    close(descriptor);
}

TEST(SharedStore, of_before_a_fork_is_not_the_childs_who_opens_it_anew) {
    if (!forks()) GTEST_SKIP() << "no forks under ThreadSanitizer, nor on CUDA";
    int32_t descriptor = -1;
    const Options options;
    Shared store(options.shape, descriptor);
    const pid_t child = fork();
    if (child == 0) {
        const uint64_t key = 1;
        if (routecap_store_evict(store.store, &key, 1, nullptr) != ROUTECAP_ERR_FORKED) _exit(2);
        routecap_store_free(store.store);  // does nothing
        Shared own(options.shape, descriptor);
        _exit(own.status == ROUTECAP_OK ? 0 : 3);
    }
    int status;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    const uint64_t key = 1;
    uint64_t evicted = 9;
    EXPECT_STATUS(ROUTECAP_OK, routecap_store_evict(store.store, &key, 1, &evicted));
    EXPECT_EQ(evicted, 0u);
    close(descriptor);
}

TEST(SharedStore, is_refused_where_it_does_not_fit_and_the_handle_is_null) {
    int32_t descriptor = -1;
    const Options options;
    const Shared store(options.shape, descriptor);
    const Shared other(options.shape, descriptor, 8);
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, other.status);
    EXPECT_EQ(other.store, nullptr);
    routecap_store_config config{};
    config.struct_size = sizeof config;
    const routecap_config of = config_of(options.shape);
    routecap_store *none = nullptr;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_store_create_shared(&config, &of, nullptr, &none));
    EXPECT_STATUS(ROUTECAP_ERR_FORMAT, routecap_store_open_shared(&config, &of, 987654, &none));
    config.budget_bytes = 10;
    int32_t unused = -1;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_store_create_shared(&config, &of, &unused, &none));
    EXPECT_EQ(unused, -1);
    config.budget_bytes = kBudget;
    config.flags = ROUTECAP_STORE_SLOT_KEYS;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_store_create_shared(&config, &of, &unused, &none));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_store_open_shared(&config, &of, descriptor, &none));
    close(descriptor);
}

TEST(SharedStore, retains_nothing_and_says_so) {
    int32_t descriptor = -1;
    const Options options;
    const Shared store(options.shape, descriptor);
    const uint64_t key = 1;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_store_retain(store.store, &key, 1, nullptr));
    EXPECT_STREQ("a shared store retains no blocks", routecap_last_error());
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_store_release(store.store, &key, 1));
    close(descriptor);
}

}  // namespace
