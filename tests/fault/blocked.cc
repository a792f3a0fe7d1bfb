// Who waits for whom. A driver's call that stalls, or a release callback that does, holds up the
// thread that is in it, and nobody else.
//
// Release.* on any backend, Driver.* on the fake driver.
#include <rig.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>

#include "fake_cuda.h"
#include "faults.h"

using namespace rig;

namespace {

// After so long a call that should return is taken to be held up.
constexpr std::chrono::seconds kPatience{20};

void rest() { std::this_thread::sleep_for(std::chrono::microseconds(100)); }

// A capturer with requests in all states, for threads that have nothing to do with the engine's.
class Others {
public:
    explicit Others(Rig &rig) : rig_(rig) {
        for (routecap_request *r : {&read_, &cut_, &taken_, &finished_, &drafting_})
            *r = rig.open();
        std::vector<std::pair<routecap_request, Tokens>> batch;
        for (const routecap_request r : {read_, cut_, taken_, finished_})
            batch.push_back({r, {1, 0, 4}});
        landed_ = rig.step(batch);
        rig.land(landed_);
        drafts_ = rig.step({{drafting_, {1, 0, 4}}}, ROUTECAP_SPAN_SPECULATIVE);
        rig.land(drafts_);
        held_.reset(rig.extract(read_, 0, 4, ROUTECAP_OK));
    }

    // Every call that waits for no step, on this thread; its name is in `now` meanwhile.
    void call_everything(std::atomic<const char *> &now) {
        routecap_capturer *const capturer = rig_.capturer();
        // What was called a moment ago may still have to be applied, by whoever is held up.
        const auto reads = [&](const char *name, int32_t status) {
            EXPECT_TRUE(status == ROUTECAP_OK || status == ROUTECAP_INCOMPLETE ||
                        status == ROUTECAP_NOT_CAPTURED || status == ROUTECAP_ERR_NOT_READY)
                << name << ": " << Status{status} << ": " << routecap_last_error();
        };
#define CALL(function, ...) (now = #function, function(__VA_ARGS__))
        routecap_request opened[3] = {};
        EXPECT_STATUS(ROUTECAP_OK, CALL(routecap_request_open, capturer, nullptr, opened, 3));
        EXPECT_STATUS(ROUTECAP_OK, CALL(routecap_request_attach, capturer, opened[0], held_.get(),
                                        ROUTECAP_ROWS_ALL));
        EXPECT_STATUS(ROUTECAP_OK,
                      CALL(routecap_request_accept, capturer, drafting_, drafts_, nullptr, 2));
        routecap_accept_item accepted{drafting_, drafts_, nullptr, 0, 0, 0};
        EXPECT_STATUS(ROUTECAP_PARTIAL,
                      CALL(routecap_request_accept_batch, capturer, &accepted, sizeof accepted, 1));
        EXPECT_STATUS(ROUTECAP_OK, CALL(routecap_request_truncate, capturer, cut_, 2));
        routecap_request child = 0;
        EXPECT_STATUS(ROUTECAP_OK, CALL(routecap_request_fork, capturer, read_, 3, &child));

        routecap_coverage coverage{};
        coverage.struct_size = sizeof coverage;
        routecap_routing *routing = nullptr;
        reads("coverage", CALL(routecap_request_coverage, capturer, read_, 0, ROUTECAP_ROWS_ALL,
                               &coverage, nullptr, 0, 0));
        for (const int32_t mode : {ROUTECAP_EXTRACT_SHARE, ROUTECAP_EXTRACT_COPY}) {
            reads("extract", CALL(routecap_request_extract, capturer, read_, 0, ROUTECAP_ROWS_ALL,
                                  mode, 0, &routing));
            CALL(routecap_routing_free, routing);
        }
        reads("extract", CALL(routecap_request_extract, capturer, cut_, 0, ROUTECAP_ROWS_ALL,
                              ROUTECAP_EXTRACT_SHARE, 0, &routing));
        CALL(routecap_routing_free, routing);
        if (freed_ != 0) {
            reads("coverage", CALL(routecap_request_coverage, capturer, freed_, 0, 0, &coverage,
                                   nullptr, 0, 0));
            reads("extract", CALL(routecap_request_extract, capturer, freed_, 0,
                                  ROUTECAP_ROWS_LANDED, ROUTECAP_EXTRACT_SHARE, 0, &routing));
            CALL(routecap_routing_free, std::exchange(routing, nullptr));
            EXPECT_STATUS(ROUTECAP_OK,
                          CALL(routecap_request_attach, capturer, freed_, held_.get(), 2));
            EXPECT_STATUS(ROUTECAP_OK, CALL(routecap_request_truncate, capturer, freed_, 1));
            EXPECT_STATUS(ROUTECAP_OK, CALL(routecap_request_close, capturer, freed_));
        }
        reads("take", CALL(routecap_request_extract, capturer, taken_, 1, 2, ROUTECAP_EXTRACT_TAKE,
                           0, &routing));
        CALL(routecap_routing_free, routing);
        routecap_extract_item item{read_, 0, 4, ROUTECAP_EXTRACT_SHARE, 0, nullptr, 0, 0};
        EXPECT_GE(CALL(routecap_request_extract_batch, capturer, &item, sizeof item, 1), 0);
        CALL(routecap_routing_free, item.routing);
        routecap_copy_options options;
        EXPECT_STATUS(ROUTECAP_OK, CALL(routecap_copy_options_init, &options, sizeof options));
        options.dtype = ROUTECAP_DTYPE_I32;
        std::vector<int32_t> ids(4 * rig_.shape().layers * rig_.shape().k);
        reads("extract_into", CALL(routecap_request_extract_into, capturer, read_, 0, 4, &options,
                                   ids.data(), ids.size() * 4, nullptr, 0, nullptr));

        EXPECT_STATUS(ROUTECAP_OK, CALL(routecap_step_poll, capturer, landed_));
        routecap_stats stats{};
        stats.struct_size = sizeof stats;
        EXPECT_STATUS(ROUTECAP_OK, CALL(routecap_capturer_stats, capturer, &stats));
        std::vector<routecap_layer_stats> layers(rig_.shape().layers);
        EXPECT_STATUS(ROUTECAP_OK, CALL(routecap_capturer_layer_stats, capturer, layers.data(),
                                        sizeof layers[0], layers.size()));

        EXPECT_STATUS(ROUTECAP_OK, CALL(routecap_request_finish, capturer, finished_, 4, &routing));
        EXPECT_GE(CALL(routecap_routing_poll, routing), 0);
        CALL(routecap_routing_free, routing);
        routecap_finish_item finish{child, ROUTECAP_ROWS_ALL, nullptr, 0, 0};
        EXPECT_STATUS(ROUTECAP_OK,
                      CALL(routecap_request_finish_batch, capturer, &finish, sizeof finish, 1));
        CALL(routecap_routing_free, finish.routing);
        EXPECT_STATUS(ROUTECAP_OK, CALL(routecap_request_close, capturer, opened[0]));
        EXPECT_STATUS(ROUTECAP_OK,
                      CALL(routecap_request_close_batch, capturer, opened + 1, nullptr, 2));

        routecap_routing *parts[2] = {};
        EXPECT_STATUS(ROUTECAP_OK, CALL(routecap_routing_split, held_.get(), 2, ROUTECAP_ROWS_ALL,
                                        &parts[0], &parts[1]));
        EXPECT_STATUS(ROUTECAP_OK, CALL(routecap_routing_merge, parts, 2, 0, &routing));
        for (routecap_routing *each : {routing, parts[0], parts[1]})
            CALL(routecap_routing_free, each);
#undef CALL
    }

    // A request that is still open, of which something is being freed: what is read of it need not
    // be ready.
    void call_everything_on(routecap_request r) { freed_ = r; }

    // Another thread makes all these calls; false if one of them does not return before `let_go` is
    // called.
    bool return_before(const char *what, const std::function<void()> &let_go) {
        std::atomic<const char *> now{"nothing"};
        auto calls = std::async(std::launch::async, [&] { call_everything(now); });
        const bool returned = calls.wait_for(kPatience) == std::future_status::ready;
        EXPECT_TRUE(returned) << now.load() << " is held up by " << what;
        let_go();
        calls.get();
        return returned;
    }

private:
    Rig &rig_;
    routecap_request read_, cut_, taken_, finished_, drafting_;
    routecap_step landed_ = 0, drafts_ = 0;
    RoutingPtr held_;
    routecap_request freed_ = 0;
};

}  // namespace

// ---- The driver ----------------------------------------------------------------------------

namespace {

// A call of the engine, which its thread makes with everything before it done.
struct EngineCall {
    const char *name;
    std::function<void(Rig &)> prepare;
    std::function<void(Rig &, routecap_request)> make;
};

void *positions = nullptr;  // on the device

const EngineCall kCalls[] = {
    {"begin", [](Rig &) {},
     [](Rig &rig, routecap_request) { EXPECT_STATUS(ROUTECAP_OK, rig.begin(8)); }},
    {"snapshot",
     [](Rig &rig) {
         EXPECT_STATUS(ROUTECAP_OK, rig.begin(8));
         rig.record_all({{1, 0, 8}});
     },
     [](Rig &rig, routecap_request) { EXPECT_STATUS(ROUTECAP_OK, rig.snapshot()); }},
    {"issue",
     [](Rig &rig) {
         rig.run({{1, 0, 8}});
     },
     [](Rig &rig, routecap_request r) {
         const routecap_span spans[] = {Rig::span(r, 0, 0, 6),
                                        Rig::span(r, 6, 6, 2, ROUTECAP_SPAN_SPECULATIVE)};
         EXPECT_STATUS(ROUTECAP_OK, routecap_step_issue(rig.capturer(), spans, sizeof spans[0], 2,
                                                        nullptr, nullptr, nullptr, rig.stream()));
     }},
    {"issue that makes the snapshot, with positions",
     [](Rig &rig) {
         const int64_t known[] = {0, 1, 2, 3, 4, 5, 6, 7};
         positions = rig.device().allocate(sizeof known);
         rig.device().write(positions, known, sizeof known);
         EXPECT_STATUS(ROUTECAP_OK, rig.begin(8));
         rig.record_all({{1, 0, 8}});
     },
     [](Rig &rig, routecap_request r) {
         routecap_issue_options options{};
         options.struct_size = sizeof options;
         options.snapshot = ROUTECAP_SNAPSHOT_MAKE;
         options.positions = positions;
         options.positions_dtype = ROUTECAP_DTYPE_I64;
         routecap_span span = Rig::span(r, 0, 0, 8, ROUTECAP_SPAN_DEVICE_POSITIONS);
         span.position_end = 8;
         EXPECT_STATUS(ROUTECAP_OK, routecap_step_issue(rig.capturer(), &span, sizeof span, 1,
                                                        &options, nullptr, nullptr, rig.stream()));
     }},
    {"discard",
     [](Rig &rig) {
         rig.run({{1, 0, 8}});
     },
     [](Rig &rig, routecap_request) {
         EXPECT_STATUS(ROUTECAP_OK, routecap_step_discard(rig.capturer(), rig.stream()));
     }},
};

}  // namespace

TEST(Driver, a_call_that_stalls_holds_up_the_engine_alone) {
    const fake_cuda *const fake = faults::fake();
    ASSERT_NE(fake, nullptr) << "needs the fake driver";
    for (const EngineCall &call : kCalls) {
        uint64_t stalls = 0;
        for (uint64_t nth = 1;; nth++) {
            SCOPED_TRACE(std::string(call.name) + ", its driver call " + std::to_string(nth));
            Rig rig({.slots = 8});
            Others others(rig);
            const routecap_request request = rig.open();
            call.prepare(rig);
            std::atomic<bool> returned{false};
            std::thread engine([&] {
                fake->close_gate(nth);
                call.make(rig, request);
                returned = true;
            });
            while (fake->at_gate() == 0 && !returned) rest();
            const bool stalled = !returned;
            bool went_on = true;
            if (stalled) went_on = others.return_before(call.name, [&] { fake->open_gate(); });
            engine.join();
            fake->open_gate();
            if (!stalled || !went_on) break;
            stalls++;
            // It goes on as if nothing had been.
            const routecap_request after = rig.open();
            rig.land(rig.step({{after, {3, 0, 8}}}));
            rig.expect(after, 0, routed_rows(rig.shape(), 3, 0, 8));
            ASSERT_FALSE(HasFailure());
        }
        EXPECT_GT(stalls, 0u) << call.name << " calls no driver";
    }
    EXPECT_EQ(fake->violations(), 0u) << fake->violation_text();
}

// ---- Release callbacks ---------------------------------------------------------------------

namespace {

// A callback that waits until it is let go.
struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool reached = false, open = false;
    int calls = 0;

    static void release(void *gate) {
        Gate &g = *static_cast<Gate *>(gate);
        std::unique_lock lock(g.mutex);
        g.calls++;
        g.reached = true;
        g.changed.notify_all();
        g.changed.wait(lock, [&] { return g.open; });
    }
    bool wait_until_reached() {
        std::unique_lock lock(mutex);
        return changed.wait_for(lock, kPatience, [this] { return reached; });
    }
    void let_go() {
        const std::lock_guard lock(mutex);
        open = true;
        changed.notify_all();
    }
};

// Four rows of memory of the caller's, as a rig of the default shape has them. It never goes, so
// that nothing depends on when it is released.
class Lent {
public:
    Lent(const Rig &rig, routecap_release release, void *context) {
        const Shape &shape = rig.shape();
        static const Records rows = [&shape] {
            std::vector<uint8_t> all;
            for (uint64_t p = 0; p < 4; p++)
                for (uint32_t l = 0; l < shape.layers; l++)
                    for (const int64_t id : routed(shape, 1, p, l))
                        all.push_back(static_cast<uint8_t>(id));
            return Records(all, shape.layers, shape.k);
        }();
        routecap_segment segment{};
        segment.rows = 4;
        routecap_view view{};
        view.struct_size = sizeof view;
        view.dtype = ROUTECAP_DTYPE_U8;
        view.layers = shape.layers, view.k = shape.k, view.experts = shape.experts, view.rows = 4;
        view.segments = &segment, view.segment_size = sizeof segment, view.segment_count = 1;
        rows.lend(view, segment);
        routecap_routing *routing = nullptr;
        EXPECT_STATUS(ROUTECAP_OK, routecap_routing_import(&view, 0, release, context, &routing));
        routing_.reset(routing);
    }
    const routecap_routing *routing() const { return routing_.get(); }
    void free() { routing_.reset(); }

private:
    RoutingPtr routing_;
};

// What frees rows that a request shares with lent memory.
struct Frees {
    const char *name;
    bool ends;  // the request
    std::function<void(Rig &, routecap_request)> call;
};
const Frees kFrees[] = {
    {"close", true, [](Rig &rig, routecap_request r) { rig.close(r); }},
    {"close_batch", true,
     [](Rig &rig, routecap_request r) {
         EXPECT_STATUS(ROUTECAP_OK, routecap_request_close_batch(rig.capturer(), &r, nullptr, 1));
     }},
    {"truncate", false,
     [](Rig &rig, routecap_request r) {
         EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig.capturer(), r, 0));
     }},
    {"take", false,
     [](Rig &rig, routecap_request r) {
         RoutingPtr(rig.extract(r, 0, 4, ROUTECAP_OK, ROUTECAP_EXTRACT_TAKE));
     }},
    {"finish", true, [](Rig &rig, routecap_request r) { RoutingPtr(rig.finish(r, 4)); }},
    {"finish without the rows", true,
     [](Rig &rig, routecap_request r) { RoutingPtr(rig.finish(r, 0)); }},
};

}  // namespace

TEST(Release, a_callback_that_blocks_holds_up_its_own_thread_alone) {
    for (const Frees &frees : kFrees)
        for (const bool manual : {false, true}) {
            SCOPED_TRACE(std::string(frees.name) + (manual ? ", without a worker" : ""));
            Rig rig({.slots = 8, .held = manual});
            Others others(rig);
            Gate gate;
            Lent lent(rig, Gate::release, &gate);
            const routecap_request r = rig.open();
            ASSERT_STATUS(ROUTECAP_OK, routecap_request_attach(rig.capturer(), r, lent.routing(),
                                                               ROUTECAP_ROWS_ALL));
            rig.open_gate();
            rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 4));
            lent.free();
            ASSERT_EQ(gate.calls, 0);
            if (!frees.ends) others.call_everything_on(r);
            std::thread freeing([&] {
                frees.call(rig, r);
                if (manual) {
                    EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_progress(rig.capturer()));
                }
            });
            const bool reached = gate.wait_until_reached();
            EXPECT_TRUE(reached) << "the memory was not released";
            if (reached) others.return_before("a release callback", [&] { gate.let_go(); });
            gate.let_go();
            freeing.join();
            EXPECT_EQ(gate.calls, 1);
            // A step lands all the same.
            const routecap_request after = rig.open();
            rig.land(rig.step({{after, {3, 0, 8}}}));
            rig.expect(after, 0, routed_rows(rig.shape(), 3, 0, 8));
            ASSERT_FALSE(HasFailure());
        }
}

// The three calls that may have work of the worker to do: where it hangs in a callback they do
// without it.
TEST(Release, a_callback_that_blocks_holds_up_neither_begin_nor_issue_nor_progress) {
    for (const Frees &frees : kFrees)
        for (const bool manual : {false, true}) {
            SCOPED_TRACE(std::string(frees.name) + (manual ? ", without a worker" : ""));
            routecap_config config;
            ASSERT_STATUS(ROUTECAP_OK, routecap_config_init(&config, sizeof config));
            config.backend = backend();
            const Shape shape;
            config.layers = shape.layers, config.k = shape.k, config.experts = shape.experts,
            config.rows = shape.rows;
            routecap_memory memory{};
            memory.struct_size = sizeof memory;
            ASSERT_STATUS(ROUTECAP_OK, routecap_config_memory(&config, &memory));
            Rig rig({.slots = 1, .budget_bytes = 2 * memory.page_bytes, .held = manual});
            Gate gate;
            Lent lent(rig, Gate::release, &gate);
            const routecap_request r = rig.open();
            ASSERT_STATUS(ROUTECAP_OK, routecap_request_attach(rig.capturer(), r, lent.routing(),
                                                               ROUTECAP_ROWS_ALL));
            rig.open_gate();
            rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 4));
            lent.free();
            std::thread freeing([&] {
                frees.call(rig, r);
                if (manual) {
                    EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_progress(rig.capturer()));
                }
            });
            EXPECT_TRUE(gate.wait_until_reached()) << "the memory was not released";
            std::atomic<int> turn{0};
            auto engine = std::async(std::launch::async, [&] {
                for (; turn < 6; turn++) {
                    // More pages than there are, of requests that have ended.
                    const routecap_request other = rig.open();
                    EXPECT_STATUS(ROUTECAP_OK, rig.begin(1));
                    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
                    const routecap_span span = Rig::span(other, 0, 0, 1);
                    EXPECT_GE(routecap_step_issue(rig.capturer(), &span, sizeof span, 1, nullptr,
                                                  nullptr, nullptr, rig.stream()),
                              0);
                    rig.close(other);
                    EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_progress(rig.capturer()));
                }
            });
            EXPECT_EQ(engine.wait_for(kPatience), std::future_status::ready)
                << "turn " << turn << " is held up";
            gate.let_go();
            engine.get();
            freeing.join();
            ASSERT_FALSE(HasFailure());
        }
}
