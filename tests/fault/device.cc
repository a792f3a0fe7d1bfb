// A device that fails: calls of the driver that return errors one after another, a device that is
// lost with steps in flight, a driver that is too old. On the fake driver, which does as it is
// told.
#include <dlfcn.h>
#include <rig.h>

#include "fake_cuda.h"

using namespace rig;

namespace {

const fake_cuda &fake() {
    static const fake_cuda *const control = [] {
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        return reinterpret_cast<decltype(&fake_cuda_control)>(
            dlsym(library, "fake_cuda_control"))();
    }();
    return *control;
}

routecap_config config_of(int32_t device = 0) {
    routecap_config config;
    EXPECT_STATUS(ROUTECAP_OK, routecap_config_init(&config, sizeof config));
    config.backend = ROUTECAP_BACKEND_CUDA;
    config.device = device;
    config.layers = 4, config.k = 2, config.experts = 16, config.rows = 32;
    return config;
}

fake_cuda_live live() {
    fake_cuda_live now;
    fake().live(&now);
    return now;
}

constexpr int kInvalidValue = 1, kOutOfMemory = 2;  // CUresult

// Issue makes this call: one launch, or several others where kernels do not reach host memory.
class IssueCalling {
public:
    explicit IssueCalling(const std::string &call) { set(call == "cuLaunchKernel"); }
    ~IssueCalling() { set(true); }

private:
    static void set(bool maps_host) { fake().set_attribute(19, maps_host); }
};

routecap_issue_options with_positions(const void *positions) {
    routecap_issue_options options{};
    options.struct_size = sizeof options;
    options.positions = positions;
    options.positions_dtype = ROUTECAP_DTYPE_I32;
    return options;
}

// Issues a step whose rows are lost, because a call of the driver failed.
routecap_step lose(Rig &rig, const char *call, const routecap_span &span,
                   const routecap_issue_options *options = nullptr) {
    routecap_step step = 0;
    EXPECT_STATUS(ROUTECAP_LOST, routecap_step_issue(rig.capturer(), &span, sizeof span, 1, options,
                                                     nullptr, &step, rig.stream()));
    EXPECT_NE(std::string(routecap_last_error()).find(call), std::string::npos)
        << routecap_last_error();
    return step;
}

}  // namespace

// Run with FAKE_CUDA_VERSION below what the build needs.
TEST(OldDriver, is_refused_and_named) {
    routecap_backend info{};
    info.struct_size = sizeof info;
    EXPECT_STATUS(ROUTECAP_OK, routecap_backend_info(ROUTECAP_BACKEND_CUDA, &info));
    EXPECT_EQ(info.available, 0);
    const routecap_config config = config_of();
    routecap_capturer *capturer = nullptr;
    EXPECT_STATUS(ROUTECAP_ERR_DRIVER_TOO_OLD, routecap_capturer_create(&config, &capturer));
    EXPECT_EQ(capturer, nullptr);
    EXPECT_NE(std::string(routecap_last_error()).find("12.2"), std::string::npos)
        << routecap_last_error();
}

// Whatever call of create fails, it says which, and leaves nothing behind.
TEST(FailingDevice, create_fails_cleanly_at_every_call) {
    const routecap_config config = config_of();
    routecap_capturer *capturer = nullptr;
    ASSERT_STATUS(ROUTECAP_OK, routecap_capturer_create(&config, &capturer));
    routecap_capturer_destroy(capturer);
    const fake_cuda_live before = live();
    int failures = 0;
    for (const int error : {kInvalidValue, kOutOfMemory})
        for (uint64_t n = 1;; n++) {
            fake().fail_any(n, error);
            const int32_t status = routecap_capturer_create(&config, &capturer);
            fake().reset();
            if (status == ROUTECAP_OK) {
                // A call whose failure does not matter, or none of its calls.
                routecap_capturer_destroy(capturer);
                if (n > 100) break;
                continue;
            }
            failures++;
            EXPECT_TRUE(status == ROUTECAP_ERR_DEVICE || status == ROUTECAP_ERR_DEVICE_LOST ||
                        status == ROUTECAP_ERR_NO_MEMORY)
                << n << ": " << routecap_last_error();
            EXPECT_EQ(capturer, nullptr);
            const fake_cuda_live now = live();
            EXPECT_EQ(now.device_allocations, before.device_allocations) << n;
            EXPECT_EQ(now.host_allocations, before.host_allocations) << n;
            EXPECT_EQ(now.streams, before.streams) << n;
            EXPECT_EQ(now.events, before.events) << n;
        }
    EXPECT_GT(failures, 20);
    EXPECT_EQ(fake().violations(), 0u) << fake().violation_text();
}

TEST(FailingDevice, where_kernels_reach_no_host_memory_none_is_given_it) {
    const IssueCalling calling("cuMemsetD32Async");
    fake().trace_start(1);
    {
        Rig rig;
        rig.land(rig.step({{rig.open(), {1, 0, 4}}}));
    }
    EXPECT_EQ(std::string(fake().trace()).find("routecap_deliver"), std::string::npos);
    fake().trace_stop();
}

// A call of the forward path that fails says so and changes nothing: made again, it works.
TEST(FailingDevice, a_forward_goes_on_after_a_failed_launch) {
    Rig rig;
    const routecap_request r = rig.open();
    fake().fail("cuLaunchKernel", 1, kInvalidValue);
    EXPECT_STATUS(ROUTECAP_ERR_DEVICE, rig.begin(4));
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(4));
    fake().fail("cuLaunchKernel", 1, kInvalidValue);
    EXPECT_STATUS(ROUTECAP_ERR_DEVICE, rig.record(0, {{1, 2}, {1, 2}, {1, 2}, {1, 2}}));
    rig.record_all({{1, 0, 4}});
    fake().fail("cuLaunchKernel", 1, kInvalidValue);
    EXPECT_STATUS(ROUTECAP_ERR_DEVICE, rig.snapshot());
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    rig.land(rig.issue({Rig::span(r, 0, 0, 4)}));
    rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 4));
}

// Where issue fails halfway the rows of its step are missing, never those of another, and the next
// steps are what they would have been.
TEST(FailingDevice, an_issue_that_fails_halfway_loses_its_rows_only) {
    for (const char *call : {"cuLaunchKernel", "cuMemsetD32Async", "cuEventRecord",
                             "cuStreamWaitEvent", "cuMemcpyDtoHAsync", "cuStreamWriteValue64"}) {
        SCOPED_TRACE(call);
        const IssueCalling calling(call);
        Rig rig;
        const routecap_request r = rig.open();
        rig.land(rig.step({{r, {1, 0, 4}}}));
        rig.run({{1, 4, 4}});
        fake().fail(call, 1, kInvalidValue);
        rig.land(lose(rig, call, Rig::span(r, 4, 0, 4)), ROUTECAP_LOST);
        for (uint64_t position = 8; position < 24; position += 4)
            rig.land(rig.step({{r, {1, position, 4}}}));
        rig.expect(r, 0,
                   routed_rows(rig.shape(), 1, 0, 4) + missing_rows(rig.shape(), 4) +
                       routed_rows(rig.shape(), 1, 8, 24));
        EXPECT_EQ(rig.stats().rows_in_flight, 0u);
    }
}

// One pointer that is wrong costs its step.
TEST(FailingDevice, positions_that_are_no_memory_of_the_device_lose_the_rows_of_their_step_only) {
    for (const char *call : {"cuLaunchKernel", "cuMemcpyAsync"}) {
        SCOPED_TRACE(call);
        const IssueCalling calling(call);
        Rig rig;
        const routecap_request r = rig.open();
        rig.run({{1, 0, 4}});
        const int32_t positions[] = {0, 1, 2, 3};
        routecap_issue_options options = with_positions(positions);
        routecap_span span = Rig::span(r, 0, 0, 4, ROUTECAP_SPAN_DEVICE_POSITIONS);
        span.position_end = 4;
        rig.land(lose(rig, "cuMemcpyAsync", span, &options), ROUTECAP_LOST);
        EXPECT_EQ(fake().violations(), 1u) << fake().violation_text();
        fake().forget_violations();
        for (uint64_t position = 4; position < 12; position += 4)
            rig.land(rig.step({{r, {1, position, 4}}}));
        rig.expect(r, 0, missing_rows(rig.shape(), 4) + routed_rows(rig.shape(), 1, 4, 12));
    }
}

// A copy reads what a kernel might not: memory of another device, and words that lie at any
// address.
TEST(FailingDevice, positions_that_only_a_copy_can_read_are_copied) {
    fake().set_devices(2);
    for (const bool elsewhere : {true, false}) {
        SCOPED_TRACE(elsewhere);
        Rig rig;
        const routecap_request r = rig.open();
        rig.run({{1, 0, 4}});
        const int32_t values[] = {0, 1, 2, 3};
        auto *memory = static_cast<unsigned char *>(rig.device().allocate(64));
        unsigned char *positions = memory + (elsewhere ? 0 : 2);
        rig.device().write(positions, values, sizeof values);
        rig.device().synchronize();
        if (elsewhere) {
            ASSERT_EQ(fake().mark_device(memory, 1), 1);
        }
        routecap_issue_options options = with_positions(positions);
        routecap_span span = Rig::span(r, 0, 0, 4, ROUTECAP_SPAN_DEVICE_POSITIONS);
        span.position_end = 4;
        const uint64_t copies = fake().count("cuMemcpyAsync");
        routecap_step step = 0;
        EXPECT_STATUS(ROUTECAP_OK, routecap_step_issue(rig.capturer(), &span, sizeof span, 1,
                                                       &options, nullptr, &step, rig.stream()));
        EXPECT_EQ(fake().count("cuMemcpyAsync"), copies + 1);
        rig.land(step);
        rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 4));
    }
    EXPECT_EQ(fake().violations(), 0u) << fake().violation_text();
    fake().reset();
}

// The rows of a large step are on their way when a call fails. They come when the slot has another
// step, whose positions lie where those rows did.
TEST(FailingDevice, rows_that_come_for_a_lost_step_are_in_no_others_way) {
    fake().set_execution(FAKE_CUDA_LAZY);
    {
        Rig rig({.shape = {.rows = 1 << 16}, .slots = 2, .flags = ROUTECAP_CONFIG_MANUAL_PROGRESS});
        const routecap_request large = rig.open();
        rig.run({{1, 0, 1 << 16}});
        fake().fail("cuStreamWriteValue64", 1, kInvalidValue);
        rig.land(lose(rig, "cuStreamWriteValue64", Rig::span(large, 0, 0, 1 << 16)), ROUTECAP_LOST);
        // One step in the other slot, then one in the same; of the first only what it needs is done.
        const int32_t positions[] = {0, 2, 1, 3};
        const routecap_issue_options options = with_positions(positions);
        for (uint64_t n = 0; n < 2; n++) {
            const routecap_request other = rig.open();
            rig.run({{n, 0, 1}, {n, 2, 1}, {n, 1, 1}, {n, 3, 1}});
            routecap_span span = Rig::span(other, 0, 0, 4, ROUTECAP_SPAN_DEVICE_POSITIONS);
            span.position_end = ROUTECAP_MAX_POSITION;
            const routecap_step step = rig.issue({span}, ROUTECAP_OK, nullptr, &options);
            rig.device().synchronize();
            if (n == 1) fake().step(1000);
            rig.land(step);
            rig.expect(other, 0, routed_rows(rig.shape(), n, 0, 4));
        }
        EXPECT_EQ(rig.stats().rows_unplaced, 0u);
    }
    fake().reset();
}

// A stream may wait for a step that has landed long ago, if it has other work before. The capturer
// can go meanwhile.
TEST(FailingDevice, no_stream_looks_at_page_locked_memory_of_a_capturer_that_has_gone) {
    fake().set_execution(FAKE_CUDA_LAZY);
    {
        Rig rig;
        const routecap_request r = rig.open();
        rig.run({{1, 0, 4}});
        const routecap_step step = rig.issue({Rig::span(r, 0, 0, 4)});
        rig.device().synchronize();
        rig.land(step);
        const uint64_t waits = fake().count("cuStreamWaitValue64");
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_step_begin(rig.capturer(), 4, rig.device().make_stream()));
        EXPECT_EQ(fake().count("cuStreamWaitValue64"), waits + 1);
    }
    EXPECT_EQ(fake().violations(), 0u) << fake().violation_text();
    fake().reset();
}

// A slot that could not be named leaves the device with the old name. What it then runs writes into
// the slot of the step before, which must not be read any more, and into no slot that the host
// expects; it is lost with the text of what failed. The next naming mends it.
TEST(FailingDevice, forwards_under_a_name_that_could_not_be_changed_are_missing_and_no_other_is) {
    for (const char *call : {"cuLaunchKernel", "cuMemsetD32Async", "cuEventRecord"})
        for (const int order : {FAKE_CUDA_OLDEST, FAKE_CUDA_NEWEST}) {
            SCOPED_TRACE(call);
            const IssueCalling calling(call);
            fake().set_execution(FAKE_CUDA_LAZY);
            fake().set_order(order, 0);
            Rig rig({.slots = 8});
            std::vector<Device::Graph> graphs;
            for (uint64_t seed = 0; seed < 6; seed++)
                graphs.push_back(rig.device().capture([&] {
                    EXPECT_STATUS(ROUTECAP_OK, rig.begin(4));
                    rig.record_all({{seed, 0, 4}});
                    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
                }));
            std::vector<routecap_request> requests;
            for (uint64_t seed = 0; seed < 6; seed++) {
                requests.push_back(rig.open());
                graphs[seed].replay(rig.stream());
                const routecap_span span = Rig::span(requests[seed], 0, 0, 4);
                if (seed == 2) fake().fail(call, 1, kInvalidValue);
                if (seed == 2 || seed == 3)
                    lose(rig, call, span);
                else
                    rig.issue({span});
            }
            fake().step(1000);
            for (routecap_step step = 1; step <= 6; step++)
                rig.land(step, step == 3 || step == 4 ? ROUTECAP_LOST : ROUTECAP_OK);
            for (uint64_t seed = 0; seed < 6; seed++) {
                SCOPED_TRACE(seed);
                const bool lost = seed == 2 || seed == 3;
                rig.expect(
                    requests[seed], 0,
                    lost ? missing_rows(rig.shape(), 4) : routed_rows(rig.shape(), seed, 0, 4));
            }
            fake().reset();
        }
}

// An eager begin is a naming too.
TEST(FailingDevice, begin_names_the_slot_where_issue_could_not) {
    const IssueCalling calling("cuMemsetD32Async");
    Rig rig;
    const routecap_request r = rig.open();
    rig.run({{1, 0, 4}});
    fake().fail_from("cuMemsetD32Async", 1, kInvalidValue);
    rig.land(lose(rig, "cuMemsetD32Async", Rig::span(r, 0, 0, 4)), ROUTECAP_LOST);
    EXPECT_STATUS(ROUTECAP_ERR_DEVICE, rig.begin(4));
    EXPECT_NE(std::string(routecap_last_error()).find("cuMemsetD32Async"), std::string::npos)
        << routecap_last_error();
    fake().forget_failures();
    rig.land(rig.step({{r, {1, 4, 4}}}));
    rig.expect(r, 0, missing_rows(rig.shape(), 4) + routed_rows(rig.shape(), 1, 4, 8));
}

// Whoever finds the device lost later hears of the first error.
TEST(FailingDevice, a_lost_device_says_what_lost_it) {
    Rig rig;
    fake().fail("cuLaunchKernel", 1, 700);
    EXPECT_STATUS(ROUTECAP_ERR_DEVICE_LOST, rig.begin(4));
    const std::string first = routecap_last_error();
    EXPECT_NE(first.find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << first;
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_STEP, routecap_step_poll(rig.capturer(), 7));
    EXPECT_STATUS(ROUTECAP_ERR_DEVICE_LOST, rig.snapshot());
    EXPECT_EQ(routecap_last_error(), first);
}

// A device that is lost with steps in flight: they land, missing; what had landed can be read;
// nothing waits for ever.
TEST(FailingDevice, a_lost_device_ends_nothing_but_the_capture) {
    {
        Rig rig;
        const routecap_request r = rig.open(), other = rig.open();
        rig.land(rig.step({{r, {1, 0, 4}}}));
        fake().hold();
        rig.run({{1, 4, 8}});
        const routecap_step step = rig.issue(
            {Rig::span(r, 4, 0, 4), Rig::span(other, 0, 4, 4, ROUTECAP_SPAN_SPECULATIVE)});
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_request_accept(rig.capturer(), other, step, nullptr, 4));
        const RoutingPtr finished(rig.finish(other, ROUTECAP_ROWS_ALL));
        EXPECT_STATUS(ROUTECAP_PENDING, routecap_step_poll(rig.capturer(), step));
        fake().lose_device();
        rig.land(step, ROUTECAP_LOST);
        EXPECT_STATUS(ROUTECAP_NOT_CAPTURED, routecap_routing_wait(finished.get(), -1));
        rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 4) + missing_rows(rig.shape(), 4));
        EXPECT_STATUS(ROUTECAP_ERR_DEVICE_LOST,
                      routecap_step_begin(rig.capturer(), 4, rig.stream()));
        const routecap_span span = Rig::span(r, 8, 0, 1);
        EXPECT_STATUS(ROUTECAP_ERR_DEVICE_LOST,
                      routecap_step_issue(rig.capturer(), &span, sizeof span, 1, nullptr, nullptr,
                                          nullptr, rig.stream()));
        const RoutingPtr rest(rig.finish(r, ROUTECAP_ROWS_ALL));
        EXPECT_STATUS(ROUTECAP_INCOMPLETE, routecap_routing_wait(rest.get(), -1));
        fake().reset();  // for the rig's own end
    }
}

// What a kernel of anybody does wrong shows in the next call of the driver, and from then on in
// all.
TEST(FailingDevice, every_status_after_which_a_context_works_no_more_is_a_loss) {
    // Illegal address and instruction, misaligned address, address space, program counter, stack,
    // launch, timeout, assertion, ECC, destroyed context, deinitialized driver, unavailable device:
    // CUresult
    for (const int status : {700, 715, 716, 717, 718, 714, 719, 702, 710, 214, 709, 4, 46}) {
        SCOPED_TRACE(status);
        Rig rig;
        const routecap_request r = rig.open();
        rig.land(rig.step({{r, {1, 0, 4}}}));
        fake().fail("cuLaunchKernel", 1, status);
        EXPECT_STATUS(ROUTECAP_ERR_DEVICE_LOST, rig.begin(4));
        EXPECT_STATUS(ROUTECAP_ERR_DEVICE_LOST, rig.snapshot());
        routecap_sink sink{};
        sink.struct_size = sizeof sink;
        EXPECT_STATUS(ROUTECAP_OK, routecap_sink_layer(rig.capturer(), 0, &sink));
        EXPECT_STATUS(ROUTECAP_ERR_DEVICE_LOST, routecap_sink_bind(rig.capturer(), 0, 1, &sink));
        rig.expect(r, 0, routed_rows(rig.shape(), 1, 0, 4));
    }
}

TEST(FailingDevice, managed_memory_is_no_sink) {
    Rig rig({.shape = {.layers = 1, .k = 2, .experts = 16, .rows = 8},
             .flags = ROUTECAP_CONFIG_EXTERNAL_SINK});
    routecap_sink sink{};
    sink.struct_size = sizeof sink;
    sink.dtype = ROUTECAP_DTYPE_I32, sink.rows = 8, sink.k = 2;
    sink.ids = rig.device().allocate(64);
    ASSERT_EQ(fake().mark_managed(sink.ids), 1);
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_sink_bind(rig.capturer(), 0, 1, &sink));
}

TEST(FailingDevice, two_devices_in_one_process) {
    fake().set_devices(2);
    routecap_capturer *capturers[2] = {};
    for (int32_t device : {0, 1}) {
        const routecap_config config = config_of(device);
        ASSERT_STATUS(ROUTECAP_OK, routecap_capturer_create(&config, &capturers[device]));
    }
    const routecap_config none = config_of(7);
    routecap_capturer *capturer = nullptr;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_capturer_create(&none, &capturer));
    // Memory of one is not a sink of the other.
    routecap_sink sink{};
    sink.struct_size = sizeof sink;
    EXPECT_STATUS(ROUTECAP_OK, routecap_sink_layer(capturers[0], 0, &sink));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_sink_bind(capturers[1], 0, 1, &sink));
    for (routecap_capturer *c : capturers) routecap_capturer_destroy(c);
    EXPECT_EQ(fake().violations(), 0u) << fake().violation_text();
}

// A snapshot is as fast as its rows are many only if its launch is made for them, whatever was
// begun or captured last. Eight cells a row, 128 a block.
TEST(Launches, a_snapshot_is_launched_for_the_rows_that_it_may_find) {
    Rig rig({.shape = {.layers = 8, .k = 2, .experts = 16, .rows = 1024}});
    const auto blocks = [] { return fake().blocks("routecap_snapshot8_2"); };
    const auto issue = [&](int32_t snapshot) {
        routecap_issue_options options{};
        options.struct_size = sizeof options;
        options.snapshot = snapshot;
        rig.issue({}, ROUTECAP_OK, nullptr, &options);
    };
    const auto graph = [&](uint32_t rows, bool snapshot) {
        return rig.device().capture([&] {
            if (rows > 0) {
                EXPECT_STATUS(ROUTECAP_OK, rig.begin(rows));
            }
            if (snapshot) {
                EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
            }
        });
    };
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(160));
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    EXPECT_EQ(blocks(), 10u);

    // In graphs, captured largest first. A replay of any may come before a snapshot that is in
    // none.
    const auto large = graph(512, true);
    EXPECT_EQ(blocks(), 32u);
    const auto small = graph(16, true);
    EXPECT_EQ(blocks(), 1u);
    const auto unread = graph(800, false), unread_small = graph(16, false);
    unread.replay(rig.stream());
    issue(ROUTECAP_SNAPSHOT_MAKE);
    EXPECT_EQ(blocks(), 50u);
    const auto headless = graph(0, true);
    EXPECT_EQ(blocks(), 50u);

    // A begin in line is known until its step was issued or discarded.
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(32));
    issue(ROUTECAP_SNAPSHOT_MAKE);
    EXPECT_EQ(blocks(), 2u);
    unread.replay(rig.stream());
    issue(ROUTECAP_SNAPSHOT_MAKE);
    EXPECT_EQ(blocks(), 50u);
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(32));
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_discard(rig.capturer(), rig.stream()));
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    EXPECT_EQ(blocks(), 50u);
}
