// What happens while a lock of the library is held: nothing that may take long. No call of the
// driver is made, no release callback runs; and no memory is taken or given back with any but a
// plain mutex, as that of a request's rows is. Over the workload of the fault loops, and where issue
// and begin do work of the worker.
//
// A mutex is the library's if its code took it, whoever wrote that code; what is inside the driver
// is the driver's. It is a QuickMutex, and no plain one, if whoever takes it tries that first.
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <rig.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>

#include "fake_cuda.h"
#include "faults.h"
#include "workload.h"

// What glibc's own functions are called beside their names.
extern "C" {
void *__libc_malloc(size_t) noexcept;
void *__libc_calloc(size_t, size_t) noexcept;
void *__libc_realloc(void *, size_t) noexcept;
void *__libc_memalign(size_t, size_t) noexcept;
void __libc_free(void *) noexcept;
}

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

// The library's locks that this thread holds. Nothing here allocates.
constexpr size_t kMostHeld = 16;
struct Held {
    const void *lock = nullptr, *by = nullptr;  // and where it was taken
    bool plain = false;
};
thread_local std::array<Held, kMostHeld> held{};
thread_local const void *tried = nullptr;  // in vain, last
thread_local bool looking = false;         // what the watch does itself is nothing to it

std::atomic<bool> watching{false};
std::atomic<uint64_t> plain_seen{0}, others_seen{0}, memory_seen{0}, calls_seen{0}, wrong{0};
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

// What memory may be taken with does not count for that.
enum class Which { all, not_plain };
bool holds(Which which) {
    return std::any_of(held.begin(), held.end(), [which](const Held &each) {
        return each.lock != nullptr && (which == Which::all || !each.plain);
    });
}

void took(const void *lock, const void *caller, bool plain) {
    if (!library.has(caller)) return;
    (plain ? plain_seen : others_seen)++;
    for (Held &each : held)
        if (each.lock == nullptr) {
            each = {lock, caller, plain};
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

// Something that must not be done with such a lock held.
void does(const char *what, Which with = Which::all) {
    if (!watching.load(std::memory_order_relaxed) || !holds(with)) return;
    const bool before = std::exchange(looking, true);
    Told now{what, {}, 0, {}, 0};
    for (const Held &each : held)
        if (each.lock != nullptr) now.locks[now.count++] = const_cast<void *>(each.by);
    now.depth = backtrace(now.stack, kDepth);
    while (telling.test_and_set()) {}
    const auto end = told.begin() + places;
    if (places < kMostTold && std::find(told.begin(), end, now) == end) told[places++] = now;
    telling.clear();
    wrong++;
    looking = before;
}
void memory(const char *what) {
    if (looking || !watching.load(std::memory_order_relaxed)) return;
    looking = true;  // a thread's first question to the driver takes memory
    if (driver == nullptr || driver->inside() == 0) {
        memory_seen++;
        does(what, Which::not_plain);
    }
    looking = false;
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

#define LOCK(name, Lock, plain)                                          \
    int name(Lock *lock) noexcept {                                      \
        static std::atomic<int (*)(Lock *)> real{nullptr};               \
        const int result = next(real, #name)(lock);                      \
        if (result == 0) took(lock, __builtin_return_address(0), plain); \
        tried = result == 0 ? nullptr : lock;                            \
        return result;                                                   \
    }
#define UNLOCK(name, Lock)                                 \
    int name(Lock *lock) noexcept {                        \
        static std::atomic<int (*)(Lock *)> real{nullptr}; \
        gave(lock);                                        \
        return next(real, #name)(lock);                    \
    }
LOCK(pthread_mutex_lock, pthread_mutex_t, tried != lock)
LOCK(pthread_mutex_trylock, pthread_mutex_t, false)
UNLOCK(pthread_mutex_unlock, pthread_mutex_t)
LOCK(pthread_rwlock_rdlock, pthread_rwlock_t, false)
LOCK(pthread_rwlock_wrlock, pthread_rwlock_t, false)
LOCK(pthread_rwlock_tryrdlock, pthread_rwlock_t, false)
LOCK(pthread_rwlock_trywrlock, pthread_rwlock_t, false)
UNLOCK(pthread_rwlock_unlock, pthread_rwlock_t)

void *malloc(size_t bytes) noexcept {
    memory("malloc");
    return __libc_malloc(bytes);
}
void *calloc(size_t count, size_t bytes) noexcept {
    memory("calloc");
    return __libc_calloc(count, bytes);
}
void *realloc(void *from, size_t bytes) noexcept {
    memory("realloc");
    return __libc_realloc(from, bytes);
}
void *aligned_alloc(size_t alignment, size_t bytes) noexcept {
    memory("aligned_alloc");
    return __libc_memalign(alignment, bytes);
}
int posix_memalign(void **to, size_t alignment, size_t bytes) noexcept {
    memory("posix_memalign");
    return (*to = __libc_memalign(alignment, bytes)) != nullptr ? 0 : ENOMEM;
}
void free(void *p) noexcept {
    if (p != nullptr) memory("free");
    __libc_free(p);
}
int madvise(void *p, size_t bytes, int advice) noexcept {
    static std::atomic<int (*)(void *, size_t, int)> real{nullptr};
    memory("madvise");
    return next(real, "madvise")(p, bytes, advice);
}
void *mmap(void *p, size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
    static std::atomic<void *(*)(void *, size_t, int, int, int, off_t)> real{nullptr};
    memory("mmap");
    return next(real, "mmap")(p, bytes, protection, flags, file, offset);
}
int munmap(void *p, size_t bytes) noexcept {
    static std::atomic<int (*)(void *, size_t)> real{nullptr};
    memory("munmap");
    return next(real, "munmap")(p, bytes);
}

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
        plain_seen = others_seen = memory_seen = calls_seen = wrong = places = 0;
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
        EXPECT_GT(plain_seen, at_least);
        EXPECT_GT(others_seen, at_least);
        EXPECT_GT(memory_seen, at_least);
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
        std::printf(
            "%llu plain mutexes, %llu others, %llu times memory, %llu calls of the driver\n",
            static_cast<unsigned long long>(plain_seen),
            static_cast<unsigned long long>(others_seen),
            static_cast<unsigned long long>(memory_seen),
            static_cast<unsigned long long>(calls_seen));
    }
};

}  // namespace

TEST_F(Locks, that_are_held_are_noticed) {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    const auto *library_code = reinterpret_cast<const void *>(library.begin.load());
    for (const bool plain : {false, true}) {
        wrong = 0;
        took(&mutex, library_code, plain);  // as if the library had
        std::free(std::malloc(8));
        const uint64_t seen = wrong;
        does("a release callback");
        if (driver != nullptr) on_call("cuLaunchKernel");
        gave(&mutex);
        delete new int;
        if (plain)
            EXPECT_EQ(seen, 0u);
        else
            EXPECT_GE(seen, 2u);
        EXPECT_EQ(wrong, seen + 1 + (driver != nullptr));
    }
    watching = false;
    EXPECT_EQ(plain_seen, 1u);
    EXPECT_EQ(others_seen, 1u);
}

TEST_F(Locks, are_not_held_while_memory_is_taken_or_given_back_or_the_driver_is_called) {
    for (const bool manual : {false, true}) {
        faults::Workload workload(manual, true);
        faults::start({});
        workload.run();
        faults::stop();
    }
    expect_none(100);
}

// Where the budget is exhausted issue does work of the worker, and so does begin on the host where
// no slot is free.
TEST_F(Locks, are_not_held_where_issue_and_begin_do_work_of_the_worker) {
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
        with_a_lock += holds(Which::all);
        does("a release callback");
    };
    static const std::vector<uint8_t> ids = [] {
        std::vector<uint8_t> all;
        for (int row = 0; row < 8; row++)
            for (uint8_t layer = 0; layer < 4; layer++) all.insert(all.end(), {1, 2});
        return all;
    }();
    uint64_t lent = 0;
    for (const bool manual : {false, true}) {
        Rig rig({.held = manual});
        for (int turn = 0; turn < 60; turn++) {
            routecap_segment segment{};
            segment.rows = 8, segment.ids = ids.data();
            routecap_view view{};
            view.struct_size = sizeof view;
            view.dtype = ROUTECAP_DTYPE_U8;
            view.layers = 4, view.k = 2, view.experts = 16, view.rows = 8;
            view.first = segment.first = turn % 6 == 5 ? 4 : 0;
            view.segments = &segment, view.segment_size = sizeof segment, view.segment_count = 1;
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
                    routecap_request_extract(rig.capturer(), r, 0, ROUTECAP_ROWS_LANDED,
                                             ROUTECAP_EXTRACT_TAKE, 0, &taken);
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
