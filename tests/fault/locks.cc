// What happens while a lock of the library is held: no call of the driver is made, and no release
// callback runs. Over the workload of the fault loops, and where issue and begin do work of the
// worker.
//
// A mutex is the library's if its code took it, whoever wrote that code; what is inside the driver
// is the driver's.
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <rig.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <string>
#include <utility>

#include "fake_cuda.h"
#include "faults.h"
#include "workload.h"

namespace {

// ---- The watch -----------------------------------------------------------------------------

struct AddressRange {
    std::atomic<uintptr_t> begin{0}, end{0};
    bool has(const void *address) const {
        const auto at = reinterpret_cast<uintptr_t>(address);
        return at >= begin && at < end;
    }
};
AddressRange library;  // the code of libroutecap

// The library's locks that this thread holds.
constexpr size_t kMostHeld = 16;
struct Held {
    const void *lock = nullptr, *by = nullptr;  // and where it was taken
};
thread_local std::array<Held, kMostHeld> held{};

std::atomic<bool> watching{false};
std::atomic<uint64_t> locks_seen{0}, calls_seen{0}, wrong{0};
const fake_cuda *driver = nullptr;

// Where it happened: each place once.
constexpr int kDepth = 16, kMostTold = 12;
struct Told {
    const char *what;
    void *stack[kDepth];
    int depth;
    void *locks[kMostHeld];  // where those that are held were taken
    int count;
    bool operator==(const Told &) const = default;
};
std::array<Told, kMostTold> told{};
std::atomic<uint32_t> places{0};
std::atomic_flag telling;

bool holds_any() {
    return std::any_of(held.begin(), held.end(),
                       [](const Held &each) { return each.lock != nullptr; });
}

void took(const void *lock, const void *caller) {
    if (!library.has(caller)) return;
    locks_seen++;
    for (Held &each : held)
        if (each.lock == nullptr) {
            each = {lock, caller};
            return;
        }
    std::abort();
}
// By whomever: the last thing a function does may be a jump to this.
void gave(const void *lock) {
    for (Held &each : held)
        if (each.lock == lock) {
            each = {};
            return;
        }
}

// Something that must not be done with a lock held.
void does(const char *what) {
    if (!watching.load(std::memory_order_relaxed) || !holds_any()) return;
    Told now{what, {}, 0, {}, 0};
    for (const Held &each : held)
        if (each.lock != nullptr) now.locks[now.count++] = const_cast<void *>(each.by);
    now.depth = backtrace(now.stack, kDepth);
    while (telling.test_and_set()) {}
    const auto end = told.begin() + places;
    if (places < kMostTold && std::find(told.begin(), end, now) == end) told[places++] = now;
    telling.clear();
    wrong++;
}

template <class Function>
Function *next(std::atomic<Function *> &known, const char *name) {
    Function *found = known.load(std::memory_order_relaxed);
    if (found == nullptr)
        known.store(found = reinterpret_cast<Function *>(dlsym(RTLD_NEXT, name)),
                    std::memory_order_relaxed);
    return found;
}

}  // namespace

extern "C" {

#define LOCK(name, Lock)                                          \
    int name(Lock *lock) noexcept {                               \
        static std::atomic<int (*)(Lock *)> real{nullptr};        \
        const int result = next(real, #name)(lock);               \
        if (result == 0) took(lock, __builtin_return_address(0)); \
        return result;                                            \
    }
#define UNLOCK(name, Lock)                                 \
    int name(Lock *lock) noexcept {                        \
        static std::atomic<int (*)(Lock *)> real{nullptr}; \
        gave(lock);                                        \
        return next(real, #name)(lock);                    \
    }
LOCK(pthread_mutex_lock, pthread_mutex_t)
LOCK(pthread_mutex_trylock, pthread_mutex_t)
UNLOCK(pthread_mutex_unlock, pthread_mutex_t)
LOCK(pthread_rwlock_rdlock, pthread_rwlock_t)
LOCK(pthread_rwlock_wrlock, pthread_rwlock_t)
LOCK(pthread_rwlock_tryrdlock, pthread_rwlock_t)
LOCK(pthread_rwlock_trywrlock, pthread_rwlock_t)
UNLOCK(pthread_rwlock_unlock, pthread_rwlock_t)

}  // extern "C"

namespace {

using namespace rig;

class Locks : public testing::Test {
protected:
    void SetUp() override {
        driver = faults::fake();
        Dl_info info{};
        ASSERT_NE(dladdr(reinterpret_cast<const void *>(&routecap_version), &info), 0);
        library.begin = reinterpret_cast<uintptr_t>(info.dli_fbase);
        dl_iterate_phdr(
            [](dl_phdr_info *object, size_t, void *) {
                for (int i = 0; i < object->dlpi_phnum; i++)
                    if (object->dlpi_addr == library.begin &&
                        object->dlpi_phdr[i].p_type == PT_LOAD)
                        library.end = object->dlpi_addr + object->dlpi_phdr[i].p_vaddr +
                                      object->dlpi_phdr[i].p_memsz;
                return 0;
            },
            nullptr);
        Dl_info own{};
        ASSERT_NE(dladdr(reinterpret_cast<const void *>(&pthread_mutex_lock), &own), 0);
        ASSERT_NE(own.dli_fbase, info.dli_fbase)
            << "needs the shared library: a static one's locks look like the test's";
        void *nothing[1];
        backtrace(nothing, 1);  // loads what it needs
        if (driver != nullptr) driver->watch(on_call);
        locks_seen = calls_seen = wrong = places = 0;
        watching = true;
    }
    void TearDown() override {
        watching = false;
        if (driver != nullptr) driver->watch(nullptr);
    }
    static void on_call(const char *name) {
        calls_seen++;
        does(name);
    }
    // That much was seen, and none of it with a lock held.
    static void expect_none(uint64_t at_least) {
        watching = false;
        EXPECT_GT(locks_seen, at_least);
        if (on_cuda()) {
            EXPECT_GT(calls_seen, at_least);
        }
        EXPECT_EQ(wrong, 0u) << "times something was done with a lock of the library held";
        for (uint32_t i = 0; i < places; i++) {
            std::fprintf(stderr, "%s, from\n", told[i].what);
            backtrace_symbols_fd(told[i].stack, told[i].depth, STDERR_FILENO);
            std::fprintf(stderr, "with what was taken at\n");
            backtrace_symbols_fd(told[i].locks, told[i].count, STDERR_FILENO);
        }
        std::printf("%llu locks, %llu calls of the driver\n",
                    static_cast<unsigned long long>(locks_seen),
                    static_cast<unsigned long long>(calls_seen));
    }
};

}  // namespace

TEST_F(Locks, that_are_held_are_noticed) {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    const auto *library_code = reinterpret_cast<const void *>(library.begin.load());
    took(&mutex, library_code);  // as if the library had
    does("a release callback");
    if (driver != nullptr) on_call("cuLaunchKernel");
    gave(&mutex);
    does("a release callback");
    watching = false;
    EXPECT_EQ(locks_seen, 1u);
    EXPECT_EQ(wrong, 1u + (driver != nullptr));
}

TEST_F(Locks, are_not_held_while_the_driver_is_called) {
    if (driver == nullptr) GTEST_SKIP() << "there is no driver";
    for (const bool manual : {false, true}) {
        faults::Workload workload(manual, true);
        faults::start({});
        workload.run();
        faults::stop();
    }
    expect_none(100);
}

// Where the budget is exhausted issue does work of the worker, and so does begin on the host where
// as many steps are in flight as may be.
TEST_F(Locks, are_not_held_where_issue_and_begin_do_work_of_the_worker) {
    if (driver == nullptr) GTEST_SKIP() << "there is no driver";
    const Shape shape{.layers = 2, .k = 2, .experts = 64, .rows = 512};
    routecap_config config;
    ASSERT_STATUS(ROUTECAP_OK, routecap_config_init(&config, sizeof config));
    config.backend = backend();
    config.layers = shape.layers, config.k = shape.k, config.experts = shape.experts,
    config.rows = shape.rows;
    routecap_memory m{};
    m.struct_size = sizeof m;
    ASSERT_STATUS(ROUTECAP_OK, routecap_config_memory(&config, &m));
    for (const bool manual : {false, true}) {
        Rig rig({.shape = shape, .slots = 2, .budget_bytes = 2 * m.page_bytes, .held = manual});
        uint64_t accepted = 0;
        for (int turn = 0; turn < 100; turn++) {
            const routecap_request r = rig.open();
            EXPECT_STATUS(ROUTECAP_OK, rig.begin(2 * m.page_rows));
            EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
            const routecap_span span = Rig::span(r, 0, 0, 2 * m.page_rows);
            routecap_step step = 0;
            int32_t status = 0;
            EXPECT_GE(routecap_step_issue(rig.capturer(), &span, sizeof span, 1, nullptr, &status,
                                          &step, rig.stream()),
                      0);
            accepted += status == ROUTECAP_OK;
            rig.close(r);
            if (manual && turn % 3 == 0) rig.open_gate();
        }
        EXPECT_GT(accepted, 0u);
    }
    expect_none(100);
}

TEST_F(Locks, are_not_held_while_a_release_callback_runs) {
    static std::atomic<uint64_t> released, with_a_lock;
    released = with_a_lock = 0;
    const auto release = [](void *) {
        released++;
        with_a_lock += holds_any();
        does("a release callback");
    };
    static const Records rows = [] {
        std::vector<uint8_t> all;
        for (int row = 0; row < 8; row++)
            for (uint8_t layer = 0; layer < 4; layer++) all.insert(all.end(), {1, 2});
        return Records(all, 4, 2);
    }();
    uint64_t lent = 0;
    for (const bool manual : {false, true}) {
        Rig rig({.held = manual});
        for (int turn = 0; turn < 60; turn++) {
            routecap_segment segment{};
            segment.rows = 8;
            routecap_view view{};
            view.struct_size = sizeof view;
            view.dtype = ROUTECAP_DTYPE_U8;
            view.layers = 4, view.k = 2, view.experts = 16, view.rows = 8;
            view.first = segment.first = turn % 6 == 5 ? 4 : 0;
            view.segments = &segment, view.segment_size = sizeof segment, view.segment_count = 1;
            rows.lend(view, segment);
            routecap_routing *routing = nullptr;
            ASSERT_STATUS(ROUTECAP_OK,
                          routecap_routing_import(&view, 0, release, nullptr, &routing));
            lent++;
            RoutingPtr owner(routing);
            const routecap_request r = rig.open();
            ASSERT_STATUS(ROUTECAP_OK,
                          routecap_request_attach(rig.capturer(), r, routing, ROUTECAP_ROWS_ALL));
            // A row that another layer wrote meets the page, which is copied then.
            if (turn / 6 % 2 == 0) rig.land(rig.step({{r, {1, 4, 8}}}));
            switch (turn % 6) {
                case 0: rig.close(r); break;
                case 1:
                    EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), r, 0));
                    break;
                case 2: RoutingPtr(rig.finish(r, 4)); break;
                case 3: {
                    routecap_routing *taken = nullptr;
                    EXPECT_GE(routecap_request_extract(rig.capturer(), r, 0, ROUTECAP_ROWS_LANDED,
                                                       ROUTECAP_EXTRACT_TAKE, 0, &taken),
                              0);
                    routecap_routing_free(taken);
                    break;
                }
                case 4: {
                    routecap_request child = 0;
                    EXPECT_STATUS(ROUTECAP_OK, routecap_request_fork(rig.capturer(), r,
                                                                     ROUTECAP_ROWS_ALL, &child));
                    rig.close(r);
                    rig.close(child);
                    break;
                }
                // The page is left without a row, and rows around it are taken.
                default: {
                    EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), r, 2));
                    owner.reset();
                    rig.land(rig.step({{r, {1, memory_of({}).page_rows, 1}}}));
                    routecap_routing *taken = nullptr;
                    EXPECT_STATUS(ROUTECAP_INCOMPLETE,
                                  routecap_request_extract(rig.capturer(), r, 0, ROUTECAP_ROWS_ALL,
                                                           ROUTECAP_EXTRACT_TAKE, 0, &taken));
                    routecap_routing_free(taken);
                    rig.close(r);
                    break;
                }
            }
        }
    }
    EXPECT_EQ(released, lent);
    EXPECT_EQ(with_a_lock, 0u);
    expect_none(50);
}
