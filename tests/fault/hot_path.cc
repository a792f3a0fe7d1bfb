// What the calls of an engine's inner loop cost the thread that makes them: which calls of the
// driver, how many heap allocations, how many mutexes. None of it grows with rows or requests. The
// numbers are those of a capturer that has seen steps of this size before: its first ones grow
// buffers that stay.
//
// On the host backend, and on a real driver, only allocations and mutexes are counted. With a
// sanitizer, which replaces both itself, that is compiled out, and only calls of the driver are
// checked.
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <rig.h>
#include <unwind.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <string_view>
#include <thread>
#include <utility>

#include "fake_cuda.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define HOT_PATH_COUNTS 0
#else
#define HOT_PATH_COUNTS 1
#endif

namespace {

// ---- Counting ------------------------------------------------------------------------------

struct Counted {
    uint64_t allocations = 0, locks = 0;
};
thread_local Counted *counted = nullptr;  // where this thread counts now

struct AddressRange {
    uintptr_t begin = 0, end = 0;
};
AddressRange driver_code;  // of libcuda.so.1; what happens in there is the driver's

_Unwind_Reason_Code look_at_frame(_Unwind_Context *context, void *in_driver) {
    const uintptr_t at = _Unwind_GetIP(context);
    if (at < driver_code.begin || at >= driver_code.end) return _URC_NO_REASON;
    *static_cast<bool *>(in_driver) = true;
    return _URC_END_OF_STACK;
}

[[maybe_unused]] void count(uint64_t Counted::*what) {
    if (counted == nullptr) return;
    Counted &to = *std::exchange(counted, nullptr);  // looking at the stack may take a mutex
    bool in_driver = false;
    if (driver_code.end != 0) _Unwind_Backtrace(look_at_frame, &in_driver);
    if (!in_driver) (to.*what)++;
    counted = &to;
}

#if HOT_PATH_COUNTS
bool may_allocate() {
    count(&Counted::allocations);
    return true;
}

using LockFunction = int (*)(pthread_mutex_t *);
int real(std::atomic<LockFunction> &function, const char *name, pthread_mutex_t *mutex) {
    LockFunction found = function.load(std::memory_order_relaxed);
    if (found == nullptr)
        function.store(found = reinterpret_cast<LockFunction>(dlsym(RTLD_NEXT, name)),
                       std::memory_order_relaxed);
    const int result = found(mutex);
    if (result == 0) count(&Counted::locks);
    return result;
}
std::atomic<LockFunction> real_lock{nullptr}, real_trylock{nullptr};
#endif

}  // namespace

#if HOT_PATH_COUNTS
#include <replace_new.h>

// Every mutex of the process is taken through these two. Only those that were got are counted: who
// finds one taken may look again.
extern "C" int pthread_mutex_lock(pthread_mutex_t *mutex) noexcept {
    return real(real_lock, "pthread_mutex_lock", mutex);
}
extern "C" int pthread_mutex_trylock(pthread_mutex_t *mutex) noexcept {
    return real(real_trylock, "pthread_mutex_trylock", mutex);
}
#endif

namespace {

using namespace rig;

// The fake driver, if that is what is there. Found before anything is counted.
const fake_cuda *fake() {
    static const fake_cuda *const found = []() -> const fake_cuda * {
        void *library = on_cuda() ? dlopen("libcuda.so.1", RTLD_NOW) : nullptr;
        if (library == nullptr) return nullptr;
        Dl_info info{};
        if (dladdr(dlsym(library, "cuInit"), &info) != 0) {
            driver_code.begin = reinterpret_cast<uintptr_t>(info.dli_fbase);
            dl_iterate_phdr(
                [](dl_phdr_info *object, size_t, void *) {
                    for (int i = 0; i < object->dlpi_phnum; i++) {
                        const auto &part = object->dlpi_phdr[i];
                        const uintptr_t begin = object->dlpi_addr + part.p_vaddr;
                        if (object->dlpi_addr == driver_code.begin && part.p_type == PT_LOAD)
                            driver_code.end = begin + part.p_memsz;
                    }
                    return 0;
                },
                nullptr);
        }
        const auto control =
            reinterpret_cast<decltype(&fake_cuda_control)>(dlsym(library, "fake_cuda_control"));
        return control != nullptr ? control() : nullptr;
    }();
    return found;
}

// ---- What a call may cost ------------------------------------------------------------------

struct Cost {
    // Calls in their order, as the fake driver's trace has them: stream 1 is the engine's, stream 2
    // the library's own.
    std::string driver;
    uint64_t allocations = 0, locks = 0;
};

// Runs `call`, which returns `expected`.
template <class Call>
Cost cost(int32_t expected, Call call) {
    Counted counts;
    if (fake() != nullptr) fake()->trace_start(0);
    counted = &counts;
    const int32_t status = call();
    counted = nullptr;
    Cost cost{"", counts.allocations, counts.locks};
    if (fake() != nullptr) {
        fake()->trace_stop();
        for (const char *c = fake()->trace(); *c != 0; c++) {
            if (*c != '\n')
                cost.driver += *c;
            else if (c[1] != 0)
                cost.driver += ", ";
        }
    }
    EXPECT_STATUS(expected, status);
    return cost;
}

#define EXPECT_COST(expected, actual) expect_cost(__LINE__, expected, actual)
void expect_cost(int line, const Cost &expected, const Cost &actual) {
    SCOPED_TRACE("line " + std::to_string(line));
    if (fake() != nullptr) {
        EXPECT_EQ(expected.driver, actual.driver);
    }
    if (HOT_PATH_COUNTS) {
        EXPECT_EQ(expected.allocations, actual.allocations);
        EXPECT_EQ(expected.locks, actual.locks);
    }
}

// Every call that takes a stream first asks whether that is being captured, and whether the
// device's context is current. The rest is the work itself. Nothing waits, asks how far work is, or
// takes memory.
#define ENTER "cuCtxGetCurrent, cuStreamGetCaptureInfo 1"

// None of the three takes a lock.
const Cost kBegin{ENTER ", cuLaunchKernel 1 routecap_begin", 0, 0};
const Cost kRecord{ENTER ", cuLaunchKernel 1 routecap_record_2", 0, 0};
const Cost kSnapshot{ENTER ", cuLaunchKernel 1 routecap_snapshot8_2", 0, 0};
// Under the registry's mutex hand over the spans, and under that of the steps' results give out the
// ticket. Then one launch names the slot of the next forward and brings this one's rows. Of a large
// step only the name comes on the engine's stream; behind that, on the library's, the rows are
// copied and said to have arrived.
#define NAME "cuMemsetD32Async 1, cuEventRecord 1"
#define DELIVER "cuLaunchKernel 1 routecap_deliver"
#define COPY "cuStreamWaitEvent 2, cuMemcpyDtoHAsync 2, cuStreamWriteValue64 2"
const Cost kIssue{ENTER ", " DELIVER, 0, 2};
const Cost kLargeIssue{ENTER ", " NAME ", " COPY, 0, 2};
// In a graph each capture first retains the memory that its kernels use, and a snapshot becomes a
// node that nothing waits for.
#define RETAIN "cuUserObjectCreate, cuGraphRetainUserObject"
const Cost kCapturedFirst{ENTER ", " RETAIN ", cuLaunchKernel 1 routecap_begin", 0, 0};
const Cost kCapturedAgain{
    ENTER ", cuStreamUpdateCaptureDependencies 1, cuLaunchKernel 1 routecap_begin", 0, 0};
const Cost kCapturedSnapshot{
    ENTER ", cuStreamGetCaptureInfo 1, cuGraphAddKernelNode routecap_snapshot8_2", 0, 0};
const Cost kRefused{ENTER, 0, 0};
// The rest touches no driver. extract looks the request up, locks its rows, and looks again under
// that lock, once more with room for the segments; it makes a routing and one array of segments,
// whose size, but not whose number, depends on pages. poll of a step locks what became of the last
// steps; poll of a routing and stats only read.
const Cost kAccept{"", 0, 1};
const Cost kFinish{"", 0, 1};
const Cost kExtract{"", 2, 3};
const Cost kPoll{"", 0, 1};
const Cost kNothing{"", 0, 0};

// ---- An engine -----------------------------------------------------------------------------

constexpr uint32_t kLayers = 4, kColumns = 2, kRows = 1 << 16;
// Every slot and both halves of the log have seen a step of this size.
constexpr uint32_t kWarmUps = 4;

struct Load {
    uint32_t rows, requests;
    uint32_t open;  // requests, those without rows in these steps included
};

class Engine {
public:
    Engine(const Load &load, bool worker, uint32_t slots = 2)
        : load_(load),
          worker_(worker),
          each_(load.rows / load.requests),
          rig_({.shape = {.layers = kLayers, .k = kColumns, .experts = 16, .rows = kRows},
                .slots = slots,
                .held = !worker}) {
        std::vector<int32_t> ids;
        for (uint32_t r = 0; r < load.rows; r++)
            ids.insert(ids.end(), {static_cast<int32_t>(r % 15), static_cast<int32_t>(r % 15) + 1});
        void *device_ids = rig_.device().allocate(ids.size() * sizeof ids[0]);
        rig_.device().write(device_ids, ids.data(), ids.size() * sizeof ids[0]);
        rig_.device().synchronize();
        source_.struct_size = sizeof source_;
        source_.dtype = ROUTECAP_DTYPE_I32;
        source_.ids = device_ids;
        source_.rows = load.rows;
        others_.resize(load.open - load.requests);
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_request_open(capturer(), nullptr, others_.data(), others_.size()));
        open();
    }
    ~Engine() {
        release();
        if (step_ != 0) {
            EXPECT_GE(routecap_step_finalize(capturer(), step_, -1, nullptr), 0);
        }
    }

    Rig &rig() { return rig_; }
    routecap_capturer *capturer() { return rig_.capturer(); }
    routecap_step step() const { return step_; }

    // Calls, and what they cost.
    Cost begin(routecap_stream stream) {
        return cost(ROUTECAP_OK,
                    [&] { return routecap_step_begin(capturer(), load_.rows, stream); });
    }
    Cost record(uint32_t layer, routecap_stream stream) {
        return cost(ROUTECAP_OK,
                    [&] { return routecap_layer_record(capturer(), layer, &source_, stream); });
    }
    Cost snapshot(routecap_stream stream) {
        return cost(ROUTECAP_OK, [&] { return routecap_step_snapshot(capturer(), stream); });
    }
    Cost issue(uint64_t position, uint32_t flags, int32_t expected = ROUTECAP_OK,
               const routecap_issue_options *options = nullptr) {
        std::vector<routecap_span> spans;
        for (uint32_t i = 0; i < load_.requests; i++) {
            spans.push_back(Rig::span(requests_[i], position, i * each_, each_, flags));
            if ((flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0)
                spans.back().position_end = position + each_;
        }
        return issue(spans, expected, options);
    }
    Cost issue(const std::vector<routecap_span> &spans, int32_t expected = ROUTECAP_OK,
               const routecap_issue_options *options = nullptr) {
        std::vector<int32_t> status(spans.size(), -1);
        return cost(expected, [&] {
            return routecap_step_issue(capturer(), spans.data(), sizeof(routecap_span),
                                       spans.size(), options, status.data(), &step_, rig_.stream());
        });
    }
    Cost poll(int32_t expected) {
        return cost(expected, [&] { return routecap_step_poll(capturer(), step_); });
    }
    Cost stats() {
        routecap_stats s{};
        s.struct_size = sizeof s;
        return cost(ROUTECAP_OK, [&] { return routecap_capturer_stats(capturer(), &s); });
    }

    void forward() {
        begin(rig_.stream());
        for (uint32_t l = 0; l < kLayers; l++) record(l, rig_.stream());
        snapshot(rig_.stream());
    }
    // The device does nothing in between: what waits for it does not come back.
    void hold() {
        if (fake() != nullptr) fake()->hold();
    }
    void release() {
        if (fake() != nullptr) fake()->release();
    }
    void land() {
        release();
        rig_.land(step_);
    }

    // Three steps of every request, the last one of drafts that are accepted, and the end of them
    // all. Checked unless it is to warm up.
    void round(bool check) {
        const auto expect = [&](int line, const Cost &expected, const Cost &actual) {
            if (check) expect_cost(line, expected, actual);
        };
        const auto eager = [&](uint64_t position, uint32_t flags) {
            hold();
            expect(__LINE__, kBegin, begin(rig_.stream()));
            for (uint32_t l = 0; l < kLayers; l++)
                expect(__LINE__, kRecord, record(l, rig_.stream()));
            expect(__LINE__, kSnapshot, snapshot(rig_.stream()));
            expect(__LINE__, kIssue, issue(position, flags));
        };
        eager(0, 0);  // into new pages
        if (!worker_) expect(__LINE__, kNothing, poll(ROUTECAP_PENDING));
        land();
        expect(__LINE__, kPoll, poll(ROUTECAP_OK));
        eager(0, 0);  // into pages that the requests have
        expect(__LINE__, kNothing, stats());
        land();

        for (const uint64_t rows : {uint64_t{1}, uint64_t{each_}, uint64_t{ROUTECAP_ROWS_ALL},
                                    uint64_t{ROUTECAP_ROWS_LANDED}}) {
            routecap_routing *shared = nullptr;
            const auto extract = [&] {
                return routecap_request_extract(capturer(), requests_[0], 0, rows,
                                                ROUTECAP_EXTRACT_SHARE, 0, &shared);
            };
            expect(__LINE__, kExtract, cost(ROUTECAP_OK, extract));
            const RoutingPtr owner(shared);
            expect(__LINE__, kNothing,
                   cost(ROUTECAP_OK, [&] { return routecap_routing_poll(shared); }));
        }

        eager(each_, ROUTECAP_SPAN_SPECULATIVE);
        std::vector<routecap_accept_item> accepted(requests_.size());
        for (size_t i = 0; i < accepted.size(); i++)
            accepted[i] = {requests_[i], step_, nullptr, each_, -1, 0};
        expect(__LINE__, kAccept, cost(ROUTECAP_OK, [&] {
                   return routecap_request_accept_batch(capturer(), accepted.data(),
                                                        sizeof accepted[0], accepted.size());
               }));
        std::vector<routecap_finish_item> finished(requests_.size());
        for (size_t i = 0; i < finished.size(); i++)
            finished[i] = {requests_[i], 2 * uint64_t{each_}, nullptr, -1, 0};
        expect(__LINE__, kFinish, cost(ROUTECAP_OK, [&] {
                   return routecap_request_finish_batch(capturer(), finished.data(),
                                                        sizeof finished[0], finished.size());
               }));
        if (!worker_)
            expect(__LINE__, kNothing, cost(ROUTECAP_PENDING, [&] {
                       return routecap_routing_poll(finished[0].routing);
                   }));
        land();
        for (const routecap_finish_item &item : finished)
            EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(item.routing, -1));
        expect(__LINE__, kNothing,
               cost(ROUTECAP_OK, [&] { return routecap_routing_poll(finished[0].routing); }));
        expect(__LINE__, kNothing, stats());
        for (const routecap_finish_item &item : finished) routecap_routing_free(item.routing);
        open();
    }

private:
    void open() {
        requests_.resize(load_.requests);
        EXPECT_STATUS(ROUTECAP_OK, routecap_request_open(capturer(), nullptr, requests_.data(),
                                                         requests_.size()));
    }

    const Load load_;
    const bool worker_;
    const uint32_t each_;
    Rig rig_;
    routecap_source source_{};
    std::vector<routecap_request> requests_, others_;
    routecap_step step_ = 0;
};

class HotPath : public testing::Test {
protected:
    HotPath() {
        if (fake() == nullptr) return;
        fake()->reset();
        fake()->set_execution(FAKE_CUDA_AT_ONCE);
    }
    ~HotPath() override {
        if (fake() == nullptr) return;
        EXPECT_EQ(fake()->violations(), 0u) << fake()->violation_text();
        fake()->reset();
    }
};
// What only the fake driver can tell.
class HotPathDriver : public HotPath {
protected:
    void SetUp() override {
        if (fake() == nullptr) GTEST_SKIP() << "needs the fake CUDA driver";
    }
};

constexpr Load kFew{8, 8, 8};

}  // namespace

// What follows expects zeros, which would be cheap to get by counting nothing.
TEST_F(HotPath, counting_counts) {
    std::mutex mutex;
    const Cost here = cost(ROUTECAP_OK, [&] {
        const std::lock_guard lock(mutex);
        if (std::unique_ptr<int[]> memory(new int[100]()); memory[99] != 0) return ROUTECAP_PENDING;
        return ROUTECAP_OK;
    });
    EXPECT_COST((Cost{"", 1, 1}), here);

    Rig rig;
    routecap_request request = 0;
    const Cost open = cost(
        ROUTECAP_OK, [&] { return routecap_request_open(rig.capturer(), nullptr, &request, 1); });
    EXPECT_GE(open.locks, HOT_PATH_COUNTS ? 1u : 0u);
    EXPECT_GE(open.allocations, HOT_PATH_COUNTS ? 1u : 0u);
    EXPECT_EQ(open.driver, "");
    rig.close(request);
}

TEST_F(HotPath, costs_the_same_whatever_the_load) {
    for (const Load &load : {Load{1, 1, 1}, Load{64, 64, 64}, Load{256, 256, 256}, Load{4096, 1, 1},
                             Load{4096, 4096, 4096}, Load{1, 1, 4096}, Load{64, 64, 4096}}) {
        SCOPED_TRACE(testing::Message() << load.rows << " rows of " << load.requests
                                        << " requests, " << load.open << " open");
        Engine engine(load, false);
        for (uint32_t i = 0; i < kWarmUps; i++) engine.round(false);
        for (uint32_t i = 0; i < 2; i++) engine.round(true);
    }
}

// The worker takes the registry's mutex as well: the engine's thread takes it as often as without.
TEST_F(HotPath, costs_the_same_with_a_worker_thread) {
    for (const Load &load : {Load{1, 1, 1}, Load{256, 256, 256}}) {
        Engine engine(load, true);
        for (uint32_t i = 0; i < kWarmUps; i++) engine.round(false);
        for (uint32_t i = 0; i < 20; i++) engine.round(true);
    }
}

TEST_F(HotPathDriver, the_same_in_every_capture) {
    for (const Load &load : {Load{1, 1, 1}, Load{256, 256, 256}, Load{4096, 1, 1}}) {
        Engine engine(load, false);
        for (uint32_t i = 0; i < kWarmUps; i++) engine.round(false);
        for (int capture = 0; capture < 2; capture++) {
            const Device::Graph graph = engine.rig().device().capture(
                [&] {
                    const routecap_stream stream = engine.rig().stream();
                    for (const Cost &begin : {kCapturedFirst, kCapturedAgain, kCapturedAgain}) {
                        EXPECT_COST(begin, engine.begin(stream));
                        for (uint32_t l = 0; l < kLayers; l++)
                            EXPECT_COST(kRecord, engine.record(l, stream));
                        EXPECT_COST(kCapturedSnapshot, engine.snapshot(stream));
                    }
                    EXPECT_COST(kRefused, engine.issue(0, 0, ROUTECAP_ERR_CAPTURING));
                },
                0);
            for (int replay = 0; replay < 2; replay++) {
                graph.replay(engine.rig().stream());
                EXPECT_COST(kIssue, engine.issue(0, 0));
                engine.land();
            }
        }
    }
}

// What more a call does, and when.
TEST_F(HotPathDriver, special_cases_cost_one_thing_each) {
    Engine engine(kFew, false);
    for (uint32_t i = 0; i < kWarmUps; i++) engine.round(false);
    const routecap_stream stream = engine.rig().stream();

    // Without rows to file only the name is new.
    engine.forward();
    EXPECT_COST((Cost{ENTER ", " NAME, 0, 2}), engine.issue({}));

    // Issue makes the snapshot, between two looks at the spans.
    engine.begin(stream);
    routecap_issue_options options{};
    options.struct_size = sizeof options;
    options.snapshot = ROUTECAP_SNAPSHOT_MAKE;
    EXPECT_COST((Cost{ENTER ", cuLaunchKernel 1 routecap_snapshot8_2, " DELIVER, 0, 3}),
                engine.issue(0, 0, ROUTECAP_OK, &options));
    engine.land();

    // Whether the driver knows where positions are is asked once.
    const std::vector<int64_t> zeros(8, 0);
    void *positions = engine.rig().device().allocate(zeros.size() * sizeof zeros[0]);
    options.snapshot = ROUTECAP_SNAPSHOT_TAKEN;
    options.positions = positions;
    options.positions_dtype = ROUTECAP_DTYPE_I64;
    for (const char *asked : {", cuPointerGetAttributes, ", ", "}) {
        engine.forward();
        EXPECT_COST((Cost{std::string(ENTER) + asked + DELIVER, 0, 2}),
                    engine.issue(0, ROUTECAP_SPAN_DEVICE_POSITIONS, ROUTECAP_OK, &options));
        engine.land();
    }

    // A begin on another stream than the last step's is ordered behind it, once.
    const auto behind = [&](const std::string &wait) {
        const routecap_stream other = engine.rig().device().make_stream();
        const Cost cost{ENTER ", " + wait + " 1, cuLaunchKernel 1 routecap_begin", 0, 0};
        EXPECT_COST(cost, engine.begin(other));
        EXPECT_COST(kBegin, engine.begin(other));
        EXPECT_COST(cost, engine.begin(stream));
    };
    behind("cuStreamWaitValue64");
    engine.snapshot(stream);
    engine.issue({});
    behind("cuStreamWaitEvent");
}

// Once an issue has taken the snapshot it needs no memory, whatever came into the log or was taken
// from it in the meantime: if it failed then, another snapshot would find no row.
TEST_F(HotPathDriver, an_issue_has_its_memory_before_its_snapshot) {
    static std::function<void()> meanwhile;
    // More than the log has room for from the start, and what exceeds that to which it grows then.
    constexpr uint32_t kSpans = 300, kMost = 260;
    for (const bool progress : {false, true})
        for (uint32_t closed = 0; closed <= kMost; closed += 10) {
            SCOPED_TRACE(closed);
            Rig rig({.shape = {.layers = kLayers, .k = kColumns, .experts = 16, .rows = kSpans},
                     .held = true});
            std::vector<routecap_request> requests(kMost + 1);
            EXPECT_STATUS(ROUTECAP_OK, routecap_request_open(rig.capturer(), nullptr,
                                                             requests.data(), requests.size()));
            EXPECT_STATUS(ROUTECAP_OK, rig.begin(kSpans));
            std::vector<routecap_span> spans;
            for (uint32_t row = 0; row < kSpans; row++)
                spans.push_back(Rig::span(requests[kMost], row, row, 1));
            const routecap_issue_options options{.struct_size = sizeof options,
                                                 .snapshot = ROUTECAP_SNAPSHOT_MAKE};
            meanwhile = [&] {
                Counted &to = *std::exchange(counted, nullptr);
                for (uint32_t i = 0; i < closed; i++) rig.close(requests[i]);
                if (progress) {
                    EXPECT_GE(routecap_capturer_progress(rig.capturer()), 0);
                }
                to = {};
                counted = &to;
            };
            fake()->watch([](const char *call) {
                if (meanwhile != nullptr && call == std::string_view("cuLaunchKernel"))
                    std::exchange(meanwhile, nullptr)();
            });
            const Cost issue = cost(ROUTECAP_OK, [&] {
                return routecap_step_issue(rig.capturer(), spans.data(), sizeof spans[0],
                                           spans.size(), &options, nullptr, nullptr, rig.stream());
            });
            fake()->watch(nullptr);
            EXPECT_EQ(meanwhile, nullptr);
            EXPECT_EQ(issue.allocations, 0u);
        }
}

// Rows of a large step, and its positions, are copied beside the engine's stream.
TEST_F(HotPathDriver, a_large_step_costs_the_same_at_any_size) {
    for (const uint32_t rows : {60000u, kRows}) {
        Engine engine({rows, 1, 1}, false);
        for (uint32_t i = 0; i < kWarmUps; i++) engine.round(false);
        engine.forward();
        EXPECT_COST(kLargeIssue, engine.issue(0, 0));
        engine.land();
        void *positions = engine.rig().device().allocate(rows * sizeof(int64_t));
        engine.forward();
        routecap_issue_options options{};
        options.struct_size = sizeof options;
        options.positions = positions;
        options.positions_dtype = ROUTECAP_DTYPE_I64;
        EXPECT_COST((Cost{ENTER ", cuMemcpyAsync 1, " NAME ", " COPY, 0, 2}),
                    engine.issue(0, ROUTECAP_SPAN_DEVICE_POSITIONS, ROUTECAP_OK, &options));
        engine.land();
    }
}

// However many rows: a launch for each 64 layers recorded at once, one for a layer routed, and one
// for each call that checks a dispatch.
TEST_F(HotPathDriver, taps_cost_a_launch) {
    Rig rig({.shape = {.layers = 130, .k = 2, .experts = 16, .rows = 64},
             .layer_provenance = std::vector<int32_t>(130, ROUTECAP_PROVENANCE_RECOMPUTED)});
    const routecap_stream stream = rig.stream();
    void *memory = rig.device().allocate(1 << 16);
    std::vector<routecap_layer_source> layers;
    for (uint32_t l = 0; l < 130; l++) layers.push_back({l, 0, memory, nullptr});
    const auto record = [&](size_t count, uint32_t rows, uint32_t flags) {
        routecap_source source{};
        source.struct_size = sizeof source;
        source.dtype = ROUTECAP_DTYPE_I32;
        source.rows = rows;
        source.flags = flags;
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(64));
        return cost(ROUTECAP_OK, [&] {
            return routecap_layers_record(rig.capturer(), &source, layers.data(), sizeof layers[0],
                                          count, stream);
        });
    };
    const std::string enter = ENTER ", ", many = "cuLaunchKernel 1 routecap_records_2";
    for (uint32_t rows : {1u, 64u}) {
        EXPECT_COST((Cost{enter + "cuLaunchKernel 1 routecap_record_2", 0, 0}), record(1, rows, 0));
        EXPECT_COST((Cost{enter + "cuLaunchKernelEx 1 routecap_record_2", 0, 0}),
                    record(1, rows, ROUTECAP_SOURCE_OVERLAP));
        EXPECT_COST((Cost{enter + many, 0, 0}), record(64, rows, 0));
        EXPECT_COST(kRefused, record(64, 0, 0));
        EXPECT_COST((Cost{enter + many + ", " + many + ", " + many, 0, 0}), record(130, rows, 0));

        routecap_router router;
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_router_init(&router, sizeof router, ROUTECAP_METHOD_SOFTMAX));
        routecap_logits logits{};
        logits.struct_size = sizeof logits;
        logits.dtype = ROUTECAP_DTYPE_F32;
        logits.logits = memory;
        const auto route = [&](uint32_t of_rows) {
            logits.rows = of_rows;
            return cost(ROUTECAP_OK, [&] {
                return routecap_layer_route(rig.capturer(), 0, &router, &logits, stream);
            });
        };
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(64));
        EXPECT_COST(kRefused, route(0));  // of no tokens nothing is launched
        EXPECT_COST((Cost{enter + "cuLaunchKernel 1 routecap_route_softmax_4", 0, 0}), route(rows));

        routecap_received received{};
        received.struct_size = sizeof received;
        received.ranks = 2;
        received.experts = 16;
        received.k = 2;
        received.tokens_per_rank = 64;
        received.rows = rows;
        received.tokens = rows;
        received.metadata = static_cast<const int32_t *>(memory);
        received.ids = memory;
        received.dtype = ROUTECAP_DTYPE_I32;
        received.topk_ids = memory;
        received.executed = static_cast<int32_t *>(memory) + 4096;
        received.counts = static_cast<routecap_received_counts *>(memory);
        EXPECT_COST((Cost{enter + "cuLaunchKernel 1 routecap_received_rows", 0, 0}),
                    cost(ROUTECAP_OK, [&] {
                        return routecap_received_read(rig.capturer(), &received, stream);
                    }));
        EXPECT_COST((Cost{enter + "cuLaunchKernel 1 routecap_received_chosen", 0, 0}),
                    cost(ROUTECAP_OK, [&] {
                        return routecap_received_compare(rig.capturer(), &received, stream);
                    }));
    }
}

TEST_F(HotPathDriver, lost_steps_copy_nothing) {
    Engine engine(kFew, false, 2);
    for (uint32_t i = 0; i < kWarmUps; i++) engine.round(false);
    engine.hold();
    for (int i = 0; i < 2; i++) {
        engine.forward();
        EXPECT_COST(kIssue, engine.issue(0, 0));
    }
    const Cost lost{ENTER ", " NAME, 0, 2};
    engine.forward();
    EXPECT_COST(lost, engine.issue(0, 0, ROUTECAP_LOST));
    EXPECT_COST(kPoll, engine.poll(ROUTECAP_LOST));
    engine.release();
    engine.rig().land(engine.step() - 1);
    EXPECT_COST(kBegin, engine.begin(engine.rig().stream()));
}

// A thread whose context is another, or none, gets it back after every part.
TEST_F(HotPathDriver, a_thread_without_a_context) {
    Engine engine(kFew, false);
    for (uint32_t i = 0; i < kWarmUps; i++) engine.round(false);
    const routecap_stream stream = engine.rig().stream();
    std::thread([&] {
#define PUSH "cuCtxGetCurrent, cuCtxPushCurrent, "
#define POP ", cuCtxPopCurrent"
        const std::string enter = PUSH "cuStreamGetCaptureInfo 1" POP;
        EXPECT_COST((Cost{enter + ", " PUSH "cuLaunchKernel 1 routecap_begin" POP, 0, 0}),
                    engine.begin(stream));
        for (uint32_t l = 0; l < kLayers; l++)
            EXPECT_COST((Cost{enter + ", " PUSH "cuLaunchKernel 1 routecap_record_2" POP, 0, 0}),
                        engine.record(l, stream));
        EXPECT_COST((Cost{enter + ", " PUSH "cuLaunchKernel 1 routecap_snapshot8_2" POP, 0, 0}),
                    engine.snapshot(stream));
        EXPECT_COST((Cost{enter + ", " PUSH DELIVER POP, 0, 2}), engine.issue(0, 0));
    }).join();
    engine.land();
}
