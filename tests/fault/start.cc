// What fails before there is a capturer: a driver that is too old, lacks a function, or does not
// start; memory and threads that are refused to create. Each in a process of its own, because a
// process loads the driver once. On the fake driver; NoDriver with a libcuda.so.1 that is none.
#include <pthread.h>
#include <rig.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <set>
#include <sstream>
#include <string>

#include "faults.h"

namespace {

using namespace rig;

// Runs f in a child, which fails if an expectation in it does, it crashes, or it takes a minute.
// Returns what it wrote.
template <class F>
std::string in_child(F f) {
    int pipes[2];
    EXPECT_EQ(pipe(pipes), 0);
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        const std::string text = f();
        if (write(pipes[1], text.data(), text.size()) < 0) _exit(2);
        std::fflush(nullptr);
        _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    close(pipes[1]);
    std::string text;
    char part[4096];
    for (ssize_t n; (n = read(pipes[0], part, sizeof part)) > 0;)
        text.append(part, static_cast<size_t>(n));
    close(pipes[0]);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "how the child ended";
    return text;
}

routecap_config config_of(int32_t backend, int32_t role = ROUTECAP_ROLE_OWNER) {
    routecap_config config;
    EXPECT_STATUS(ROUTECAP_OK, routecap_config_init(&config, sizeof config));
    config.backend = backend;
    config.role = role;
    config.layers = 3, config.k = 2, config.experts = 16, config.rows = 16;
    return config;
}

int32_t create(int32_t backend, int32_t role = ROUTECAP_ROLE_OWNER) {
    const routecap_config config = config_of(backend, role);
    auto *capturer = reinterpret_cast<routecap_capturer *>(8);
    const int32_t status = faults::inside(
        "routecap_capturer_create", [&] { return routecap_capturer_create(&config, &capturer); });
    EXPECT_EQ(capturer != nullptr, status == ROUTECAP_OK);
    EXPECT_TRUE(status == ROUTECAP_OK || *routecap_last_error() != 0);
    routecap_capturer_destroy(capturer);
    return status;
}

void expect_unavailable(const std::string &because) {
    routecap_backend info{};
    info.struct_size = sizeof info;
    EXPECT_STATUS(ROUTECAP_OK, routecap_backend_info(ROUTECAP_BACKEND_CUDA, &info));
    EXPECT_EQ(info.available, 0);
    EXPECT_NE(std::string(info.detail).find(because), std::string::npos) << info.detail;
    EXPECT_NE(std::string(routecap_last_error()).find(because), std::string::npos)
        << routecap_last_error();
    EXPECT_STATUS(ROUTECAP_OK, create(ROUTECAP_BACKEND_HOST));
}

// The fake driver holds what it did, and was called in no wrong way.
void expect_same(const fake_cuda_live &before) {
    faults::expect_same(before);
    EXPECT_EQ(faults::fake()->violations(), 0u) << faults::fake()->violation_text();
}

constexpr int kOutOfMemory = 2, kNotPermitted = 800, kInvalidValue = 1;  // CUresult

class Start : public testing::Test {
protected:
    void SetUp() override { faults::fake(); }
};

}  // namespace

TEST_F(Start, every_function_that_the_driver_lacks_is_named) {
    const std::string asked = in_child([] {
        EXPECT_STATUS(ROUTECAP_OK, create(ROUTECAP_BACKEND_CUDA));
        return std::string(faults::fake()->asked());
    });
    size_t functions = 0;
    std::istringstream names(asked);
    for (std::string name; names >> name; functions++)
        in_child([&] {
            faults::fake()->hide(name.c_str());
            EXPECT_STATUS(ROUTECAP_ERR_DRIVER_TOO_OLD, create(ROUTECAP_BACKEND_CUDA));
            expect_unavailable(name);
            return "";
        });
    std::printf("functions that the driver lacked: %zu\n", functions);
    EXPECT_GT(functions, 30u);
}

TEST_F(Start, a_driver_is_old_enough_or_refused) {
    const std::string said = in_child([] {
        faults::fake()->set_version(9000);
        EXPECT_STATUS(ROUTECAP_ERR_DRIVER_TOO_OLD, create(ROUTECAP_BACKEND_CUDA));
        return std::string(routecap_last_error());
    });
    int major = 0, minor = 0;
    const size_t at = said.find("needs ");
    ASSERT_NE(at, std::string::npos) << said;
    ASSERT_EQ(std::sscanf(said.c_str() + at, "needs %d.%d", &major, &minor), 2) << said;
    const int needed = major * 1000 + minor * 10;
    for (const int version :
         {0, 2000, 11080, 12000, 12020, needed - 10, needed, needed + 10, needed + 1000})
        in_child([&] {
            faults::fake()->set_version(version);
            EXPECT_STATUS(version < needed ? ROUTECAP_ERR_DRIVER_TOO_OLD : ROUTECAP_OK,
                          create(ROUTECAP_BACKEND_CUDA));
            if (version < needed)
                expect_unavailable(std::to_string(major) + "." + std::to_string(minor));
            return "";
        });
}

TEST_F(Start, a_driver_without_devices_is_no_backend) {
    in_child([] {
        faults::fake()->set_devices(0);
        EXPECT_STATUS(ROUTECAP_ERR_NO_BACKEND, create(ROUTECAP_BACKEND_CUDA));
        expect_unavailable("");
        return "";
    });
}

// Whatever fails while the driver is loaded, and whatever fails in create, has a documented status.
TEST_F(Start, every_call_of_the_first_create_fails) {
    int failed = 0;
    for (uint64_t n = 1;; n++) {
        const std::string end = in_child([&] {
            const int result = n % 3 == 0 ? kInvalidValue : kOutOfMemory;
            faults::start({.what = faults::Plan::What::call,
                           .nth = n,
                           .from_then_on = n % 2 == 0,
                           .result = result});
            const int32_t status = create(ROUTECAP_BACKEND_CUDA);
            faults::stop();
            const std::set<int32_t> documented{ROUTECAP_OK, ROUTECAP_ERR_NO_BACKEND,
                                               ROUTECAP_ERR_DRIVER_TOO_OLD, ROUTECAP_ERR_DEVICE,
                                               ROUTECAP_ERR_NO_MEMORY};
            EXPECT_TRUE(documented.contains(status)) << n << ": " << routecap_last_error();
            EXPECT_STATUS(ROUTECAP_OK, create(ROUTECAP_BACKEND_HOST));
            return std::string(faults::injected() == 0 ? "untouched" : "");
        });
        if (end == "untouched" || HasFailure()) break;
        failed++;
    }
    std::printf("calls of the first create that failed: %d\n", failed);
    EXPECT_GT(failed, 40);
}

// Memory that was short once, while the driver was loaded, is no reason to be without it for ever.
TEST_F(Start, every_allocation_of_the_first_create_fails) {
    int failed = 0;
    for (uint64_t n = 1;; n++) {
        const std::string end = in_child([&] {
            faults::start({.what = faults::Plan::What::allocation, .nth = n});
            const int32_t status = create(ROUTECAP_BACKEND_CUDA);
            faults::stop();
            EXPECT_TRUE(status == ROUTECAP_OK || status == ROUTECAP_ERR_NO_MEMORY)
                << n << ": " << routecap_last_error();
            EXPECT_STATUS(ROUTECAP_OK, create(ROUTECAP_BACKEND_CUDA));
            return std::string(faults::injected() == 0 ? "untouched" : "");
        });
        if (end == "untouched" || HasFailure()) break;
        failed++;
    }
    EXPECT_GT(failed, 10);
}

// A thread that cannot start: its stack would be larger than the address space.
TEST_F(Start, a_worker_thread_is_refused) {
    in_child([] {
        EXPECT_STATUS(ROUTECAP_OK, create(ROUTECAP_BACKEND_CUDA));
        const fake_cuda_live before = faults::live();
        pthread_attr_t usual, huge;
        pthread_getattr_default_np(&usual);
        pthread_attr_init(&huge);
        EXPECT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 50), 0);
        EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
        for (const int32_t backend : {ROUTECAP_BACKEND_HOST, ROUTECAP_BACKEND_CUDA}) {
            EXPECT_STATUS(ROUTECAP_ERR_THREAD, create(backend));
            EXPECT_STATUS(ROUTECAP_OK, create(backend, ROUTECAP_ROLE_MIRROR));  // it has none
        }
        pthread_setattr_default_np(&usual);
        EXPECT_STATUS(ROUTECAP_OK, create(ROUTECAP_BACKEND_HOST));
        EXPECT_STATUS(ROUTECAP_OK, create(ROUTECAP_BACKEND_CUDA));
        expect_same(before);
        return "";
    });
}

TEST_F(Start, memory_of_either_kind_is_refused) {
    for (const char *function : {"cuMemHostAlloc", "cuMemAlloc"})
        for (const auto &[result, status] : {std::pair(kOutOfMemory, ROUTECAP_ERR_NO_MEMORY),
                                             {kNotPermitted, ROUTECAP_ERR_DEVICE}})
            in_child([&, result = result, status = status] {
                EXPECT_STATUS(ROUTECAP_OK, create(ROUTECAP_BACKEND_CUDA));
                const fake_cuda_live before = faults::live();
                faults::fake()->fail_from(function, 1, result);
                EXPECT_STATUS(status, create(ROUTECAP_BACKEND_CUDA));
                EXPECT_NE(std::string(routecap_last_error()).find(function), std::string::npos)
                    << routecap_last_error();
                faults::fake()->forget_failures();
                EXPECT_STATUS(ROUTECAP_OK, create(ROUTECAP_BACKEND_CUDA));
                expect_same(before);
                return "";
            });
}

// A library of that name which is no driver.
TEST(NoDriver, a_library_of_the_name_is_refused) {
    const int32_t status = create(ROUTECAP_BACKEND_CUDA);
    EXPECT_TRUE(status == ROUTECAP_ERR_DRIVER_TOO_OLD || status == ROUTECAP_ERR_NO_BACKEND)
        << Status{status};
    expect_unavailable("driver");
}
