// The step protocol under fire, on the CUDA backend: graphs that are replayed, mixed and outlive their capturer, forwards that are never issued,
// micro-batches on two streams, captures beside readers, and no call that waits for the device. Exact ids and exact missing cells in each.
#include <rig.h>

#include <array>
#include <chrono>
#include <thread>

using namespace rig;

namespace {

// An engine's static buffers: what a graph records from, filled anew before each replay.
class Engine {
public:
    explicit Engine(const Options &options = {}) : rig(options) {
        for (uint32_t l = 0; l < rig.shape().layers; l++)
            ids_.push_back(static_cast<int32_t *>(rig.device().allocate(size_t{rig.shape().rows} * rig.shape().k * 4)));
        live_ = static_cast<int32_t *>(rig.device().allocate(4));
    }

    // The tokens that the next forward routes, from row 0 on.
    void feed(const std::vector<Tokens> &batch) {
        int32_t rows = 0;
        for (const Tokens &t : batch) rows += static_cast<int32_t>(t.count);
        for (uint32_t l = 0; l < rig.shape().layers; l++) {
            std::vector<int32_t> ids;
            for (const Tokens &t : batch)
                for (uint32_t i = 0; i < t.count; i++)
                    for (int64_t id : routed(rig.shape(), t.seed, t.position + i, l)) ids.push_back(static_cast<int32_t>(id));
            rig.device().write(ids_[l], ids.data(), ids.size() * 4);
        }
        rig.device().write(live_, &rows, 4);
    }
    void record(uint32_t layer, uint32_t rows, routecap_stream stream, uint32_t first = 0, bool live = false) {
        routecap_source source{};
        source.struct_size = sizeof source;
        source.dtype = ROUTECAP_DTYPE_I32;
        source.ids = ids_[layer] + size_t{first} * rig.shape().k;
        source.rows = rows;
        source.first_row = first;
        source.live_rows = live ? live_ : nullptr;
        EXPECT_STATUS(ROUTECAP_OK, routecap_layer_record(rig.capturer(), layer, &source, stream));
    }
    void record_all(uint32_t rows, bool live = false) {
        for (uint32_t l = 0; l < rig.shape().layers; l++) record(l, rows, rig.stream(), 0, live);
    }
    void forward(uint32_t rows, bool live = false, bool snapshot = true) {
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(rows));
        record_all(rows, live);
        if (snapshot) {
            EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
        }
    }
    Device::Graph graph(uint32_t rows, bool live = false, bool snapshot = true) {
        return rig.device().capture([&] { forward(rows, live, snapshot); });
    }

    // A forward pass of these tokens.
    void replay(const Device::Graph &graph, const std::vector<Tokens> &batch) {
        feed(batch);
        graph.replay(rig.stream());
    }

    Rig rig;

private:
    std::vector<int32_t *> ids_;
    int32_t *live_;
};

Rows rows_of(const Engine &engine, uint64_t seed, uint64_t first, uint64_t end) { return routed_rows(engine.rig.shape(), seed, first, end); }

}  // namespace

TEST(Protocol, replays_that_are_not_issued_leave_nothing) {
    Engine e;
    const auto graph = e.graph(8);
    const routecap_request r = e.rig.open();
    for (uint64_t position = 0; position < 40; position += 8) {
        for (uint64_t warm_up = 0; warm_up < position / 8; warm_up++) {
            e.replay(graph, {{99, warm_up, 8}});
        }
        e.replay(graph, {{1, position, 8}});
        e.rig.issue({Rig::span(r, position, 0, 8)});
    }
    e.rig.land(5);
    e.rig.expect(r, 0, rows_of(e, 1, 0, 40));
    EXPECT_EQ(e.rig.stats().rows_delivered, 40u);
}

TEST(Protocol, graphs_of_different_sizes_and_eager_steps_in_turn) {
    Engine e({.slots = 3});
    const auto large = e.graph(24), small = e.graph(3);
    const routecap_request r = e.rig.open();
    uint64_t position = 0;
    for (int i = 0; i < 30; i++) {
        const uint32_t rows = i % 3 == 0 ? 24 : i % 3 == 1 ? 3 : 10;
        e.feed({{1, position, rows}});
        if (i % 3 == 0) large.replay(e.rig.stream());
        if (i % 3 == 1) small.replay(e.rig.stream());
        if (i % 3 == 2) e.forward(10);
        e.rig.issue({Rig::span(r, position, 0, rows)});
        position += rows;
    }
    e.rig.land(30);
    e.rig.expect(r, 0, rows_of(e, 1, 0, position));
    EXPECT_EQ(e.rig.stats().steps_lost, 0u);
}

TEST(Protocol, rows_beyond_a_smaller_replay_are_missing_not_those_of_a_larger) {
    Engine e;
    const auto large = e.graph(24), small = e.graph(3);
    const routecap_request r = e.rig.open();
    e.replay(large, {{7, 0, 24}});
    e.replay(small, {{1, 0, 3}});
    e.rig.land(e.rig.issue({Rig::span(r, 0, 0, 24)}));
    e.rig.expect(r, 0, rows_of(e, 1, 0, 3) + missing_rows(e.rig.shape(), 21));
}

TEST(Protocol, begin_captured_and_snapshot_made_by_issue) {
    Engine e;
    const auto graph = e.graph(6, false, false);
    const routecap_request r = e.rig.open();
    routecap_issue_options options{};
    options.struct_size = sizeof options;
    options.snapshot = ROUTECAP_SNAPSHOT_MAKE;
    for (uint64_t position = 0; position < 18; position += 6) {
        e.replay(graph, {{1, position, 6}});
        e.rig.land(e.rig.issue({Rig::span(r, position, 0, 6)}, ROUTECAP_OK, nullptr, &options));
    }
    e.rig.expect(r, 0, rows_of(e, 1, 0, 18));
}

TEST(Protocol, a_second_snapshot_makes_the_rows_missing) {
    Engine e;
    const auto graph = e.rig.device().capture([&] {
        e.forward(4);
        EXPECT_STATUS(ROUTECAP_OK, e.rig.snapshot());
    });
    const auto good = e.graph(4);
    const routecap_request r = e.rig.open();
    e.replay(graph, {{1, 0, 4}});
    e.rig.issue({Rig::span(r, 0, 0, 4)});
    e.replay(good, {{1, 4, 4}});
    e.rig.land(e.rig.issue({Rig::span(r, 4, 0, 4)}));
    e.rig.expect(r, 0, missing_rows(e.rig.shape(), 4) + rows_of(e, 1, 4, 8));
}

TEST(Protocol, a_replay_without_begin_is_missing) {
    Engine e;
    const auto whole = e.graph(4);
    const auto headless = e.rig.device().capture([&] {
        e.record_all(4);
        EXPECT_STATUS(ROUTECAP_OK, e.rig.snapshot());
    });
    const routecap_request r = e.rig.open();
    uint64_t position = 0;
    Rows expected;
    for (bool begun : {true, false, true, false, false, true}) {
        e.replay(begun ? whole : headless, {{1, position, 4}});
        e.rig.issue({Rig::span(r, position, 0, 4)});
        expected = expected + (begun ? rows_of(e, 1, position, position + 4) : missing_rows(e.rig.shape(), 4));
        position += 4;
    }
    e.rig.land(6);
    e.rig.expect(r, 0, expected);
}

TEST(Protocol, discard_after_a_replay) {
    Engine e;
    const auto graph = e.graph(4);
    const routecap_request r = e.rig.open();
    e.replay(graph, {{9, 0, 4}});
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_discard(e.rig.capturer(), e.rig.stream()));
    e.rig.land(e.rig.issue({Rig::span(r, 0, 0, 4)}));
    e.replay(graph, {{1, 4, 4}});
    e.rig.land(e.rig.issue({Rig::span(r, 4, 0, 4)}));
    e.rig.expect(r, 0, missing_rows(e.rig.shape(), 4) + rows_of(e, 1, 4, 8));
}

TEST(Protocol, live_counts_that_change_between_replays) {
    Engine e;
    const auto graph = e.graph(16, true);
    const routecap_request r = e.rig.open();
    uint64_t position = 0;
    for (uint32_t rows : {16u, 1u, 7u, 0u, 12u}) {
        e.replay(graph, {{1, position, rows}});
        std::vector<routecap_span> spans;
        if (rows > 0) spans.push_back(Rig::span(r, position, 0, rows));
        e.rig.issue(spans);
        position += rows;
    }
    const routecap_request padding = e.rig.open();
    e.replay(graph, {{1, 0, 5}});
    e.rig.land(e.rig.issue({Rig::span(padding, 0, 0, 16)}));
    e.rig.expect(r, 0, rows_of(e, 1, 0, position));
    e.rig.expect(padding, 0, rows_of(e, 1, 0, 5) + missing_rows(e.rig.shape(), 11));
}

TEST(Protocol, micro_batches_on_two_streams) {
    for (bool captured : {false, true}) {
        Engine e;
        Device &device = e.rig.device();
        const routecap_stream other = device.make_stream();
        const auto pass = [&] {
            EXPECT_STATUS(ROUTECAP_OK, e.rig.begin(20));
            device.fork(other);
            for (uint32_t l = 0; l < e.rig.shape().layers; l++) {
                e.record(l, 12, device.stream());
                e.record(l, 8, other, 12);
            }
            device.join(other);
            EXPECT_STATUS(ROUTECAP_OK, e.rig.snapshot());
        };
        const routecap_request r = e.rig.open();
        for (uint64_t position = 0; position < 60; position += 20) {
            e.feed({{1, position, 20}});
            if (captured)
                device.capture(pass).replay(device.stream());
            else
                pass();
            e.rig.issue({Rig::span(r, position, 0, 20)});
        }
        e.rig.land(3);
        e.rig.expect(r, 0, rows_of(e, 1, 0, 60));
        EXPECT_EQ(e.rig.stats().cells_conflicting, 0u);
    }
}

// Two forwards in one graph: the second begin waits until the first snapshot has read the sink; only the second can be issued.
TEST(Protocol, two_forwards_in_one_graph) {
    Engine e;
    const auto graph = e.rig.device().capture([&] {
        e.forward(4);
        e.forward(8);
    });
    const routecap_request r = e.rig.open();
    for (uint64_t position = 0; position < 16; position += 8) {
        e.replay(graph, {{1, position, 8}});
        e.rig.issue({Rig::span(r, position, 0, 8)});
    }
    e.rig.land(2);
    e.rig.expect(r, 0, rows_of(e, 1, 0, 16));
}

// The engine changes streams between steps without ordering them itself.
TEST(Protocol, steps_on_changing_streams) {
    Engine e({.slots = 8});
    Device &device = e.rig.device();
    const std::array<routecap_stream, 3> streams = {device.stream(), device.make_stream(), device.make_stream()};
    const routecap_request r = e.rig.open();
    routecap_step last = 0;
    for (uint64_t i = 0; i < 30; i++) {
        const routecap_stream stream = streams[i % 3];
        if (i >= 3) e.rig.land(last - 2);
        e.feed({{1, i * 4, 4}});
        device.synchronize();  // of the ids, which are this test's business
        ASSERT_STATUS(ROUTECAP_OK, routecap_step_begin(e.rig.capturer(), 4, stream));
        for (uint32_t l = 0; l < e.rig.shape().layers; l++) e.record(l, 4, stream);
        ASSERT_STATUS(ROUTECAP_OK, routecap_step_snapshot(e.rig.capturer(), stream));
        const routecap_span span = Rig::span(r, i * 4, 0, 4);
        ASSERT_STATUS(ROUTECAP_OK, routecap_step_issue(e.rig.capturer(), &span, sizeof span, 1, nullptr, nullptr, &last, stream));
        e.rig.land(last);  // before the next ids overwrite these
    }
    e.rig.expect(r, 0, rows_of(e, 1, 0, 120));
}

// What cannot be captured refuses, and the capture goes on; in every mode, with readers and the worker running beside it.
TEST(Protocol, captures_of_every_mode_beside_readers) {
    Engine e({.shape = {.rows = 16}, .slots = 8});
    const routecap_request r = e.rig.open();
    e.feed({{1, 0, 16}});
    e.forward(16);
    e.rig.land(e.rig.issue({Rig::span(r, 0, 0, 16)}));
    std::atomic<bool> stop{false};
    std::thread reader([&] {
        while (!stop) {
            routecap_routing *routing = nullptr;
            EXPECT_GE(routecap_request_extract(e.rig.capturer(), r, 0, ROUTECAP_LANDED, ROUTECAP_EXTRACT_COPY, 0, &routing), 0);
            routecap_routing_free(routing);
            routecap_stats stats{};
            stats.struct_size = sizeof stats;
            EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_stats(e.rig.capturer(), &stats));
            routecap_step_poll(e.rig.capturer(), 1);
        }
    });
    uint64_t position = 16;
    for (int round = 0; round < 4; round++)
        for (int mode : {0, 1, 2}) {
            e.feed({{1, position, 16}});
            e.forward(16);  // in flight while the capture goes on
            const routecap_step step = e.rig.issue({Rig::span(r, position, 0, 16)});
            const auto graph = e.rig.device().capture(
                [&] {
                    e.forward(16);
                    const routecap_span span = Rig::span(r, position + 16, 0, 16);
                    EXPECT_STATUS(ROUTECAP_ERR_CAPTURING, routecap_step_issue(e.rig.capturer(), &span, sizeof span, 1, nullptr, nullptr, nullptr,
                                                                              e.rig.stream()));
                    EXPECT_STATUS(ROUTECAP_ERR_CAPTURING, routecap_step_discard(e.rig.capturer(), e.rig.stream()));
                },
                mode);
            e.rig.land(step);
            position += 16;
            e.replay(graph, {{1, position, 16}});
            e.rig.land(e.rig.issue({Rig::span(r, position, 0, 16)}));
            position += 16;
        }
    stop = true;
    reader.join();
    e.rig.expect(r, 0, rows_of(e, 1, 0, position));
}

// A graph may be replayed after the capturer's end; its memory goes with it.
TEST(Protocol, graphs_outlive_the_capturer) {
    for (int i = 0; i < 3; i++) {
        Device device;
        routecap_config config;
        ASSERT_STATUS(ROUTECAP_OK, routecap_config_init(&config, sizeof config));
        config.backend = ROUTECAP_BACKEND_CUDA;
        config.layers = 3, config.k = 4, config.experts = 64, config.rows = 64;
        routecap_capturer *capturer = nullptr;
        ASSERT_STATUS(ROUTECAP_OK, routecap_capturer_create(&config, &capturer));
        auto *ids = static_cast<int32_t *>(device.allocate(64 * 4 * 4, 1));
        const auto graph = device.capture([&] {
            EXPECT_STATUS(ROUTECAP_OK, routecap_step_begin(capturer, 64, device.stream()));
            routecap_source source{};
            source.struct_size = sizeof source;
            source.dtype = ROUTECAP_DTYPE_I32;
            source.ids = ids;
            source.rows = 64;
            for (uint32_t l = 0; l < 3; l++) EXPECT_STATUS(ROUTECAP_OK, routecap_layer_record(capturer, l, &source, device.stream()));
            EXPECT_STATUS(ROUTECAP_OK, routecap_step_snapshot(capturer, device.stream()));
        });
        graph.replay(device.stream());
        routecap_capturer_destroy(capturer);
        for (int replay = 0; replay < 5; replay++) graph.replay(device.stream());
        device.synchronize();
    }
}

// With everything on the device held back, every call returns but those that are documented to wait, and those time out.
TEST(Protocol, no_call_waits_for_the_device) {
    Engine e({.shape = {.rows = 16}, .slots = 4});
    const routecap_request a = e.rig.open(), b = e.rig.open();
    e.feed({{1, 0, 16}});
    e.forward(16);
    e.rig.land(e.rig.issue({Rig::span(a, 0, 0, 16)}));
    e.rig.device().synchronize();

    e.feed({{1, 16, 16}});
    e.rig.device().close_gate();
    e.forward(16);
    const routecap_step step = e.rig.issue({Rig::span(a, 16, 0, 8), Rig::span(b, 0, 8, 8, ROUTECAP_SPAN_SPECULATIVE)});
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_accept(e.rig.capturer(), b, step, nullptr, 4));
    routecap_request child = 0;
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_fork(e.rig.capturer(), a, ROUTECAP_ALL, &child));
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(e.rig.capturer(), a, 20));
    e.rig.expect(a, 0, rows_of(e, 1, 0, 16));  // what has landed before can be read
    e.rig.extract(a, 0, 20, ROUTECAP_ERR_NOT_READY);
    const RoutingPtr finished(e.rig.finish(b, ROUTECAP_ALL));
    EXPECT_STATUS(ROUTECAP_PENDING, routecap_routing_poll(finished.get()));
    EXPECT_STATUS(ROUTECAP_PENDING, routecap_step_poll(e.rig.capturer(), step));
    EXPECT_EQ(e.rig.stats().steps_in_flight, 1u);
    EXPECT_STATUS(ROUTECAP_PENDING, routecap_step_finalize(e.rig.capturer(), step, 5'000'000, nullptr));
    EXPECT_STATUS(ROUTECAP_PENDING, routecap_routing_wait(finished.get(), 5'000'000));
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_discard(e.rig.capturer(), e.rig.stream()));
    e.rig.device().open_gate();

    e.rig.land(step);
    EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(finished.get(), -1));
    Rows expected = rows_of(e, 1, 24, 28);
    expect_routing(finished.get(), e.rig.shape(), 0, expected);
    e.rig.expect(a, 0, rows_of(e, 1, 0, 20));
    const RoutingPtr of_child(e.rig.finish(child, ROUTECAP_ALL));
    EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(of_child.get(), -1));
    expect_routing(of_child.get(), e.rig.shape(), 0, rows_of(e, 1, 0, 24));
}

// As many steps in flight as there are slots; the next is lost, visibly, and the one after a landed step is not.
TEST(Protocol, as_many_steps_in_flight_as_slots) {
    Engine e({.shape = {.rows = 8}, .slots = 3, .held = true});
    const auto graph = e.graph(2);
    const routecap_request r = e.rig.open();
    Rows expected;
    for (uint64_t i = 0; i < 12; i++) {
        const bool lost = i % 4 == 3;
        e.replay(graph, {{1, i * 2, 2}});
        e.rig.issue({Rig::span(r, i * 2, 0, 2)}, lost ? ROUTECAP_LOST : ROUTECAP_OK);
        expected = expected + (lost ? missing_rows(e.rig.shape(), 2) : rows_of(e, 1, i * 2, i * 2 + 2));
        if (lost) {
            e.rig.open_gate();
            EXPECT_STATUS(ROUTECAP_OK, routecap_step_discard(e.rig.capturer(), e.rig.stream()));  // names a slot that is free again
        }
    }
    e.rig.expect(r, 0, expected);
    EXPECT_EQ(e.rig.stats().steps_lost, 3u);
}

TEST(Protocol, sinks_that_are_not_the_devices_are_refused) {
    Rig rig({.shape = {.layers = 2, .k = 2, .experts = 16, .rows = 8}, .flags = ROUTECAP_CONFIG_EXTERNAL_SINK});
    std::vector<int32_t> host(64);
    routecap_sink sink{};
    sink.struct_size = sizeof sink;
    sink.dtype = ROUTECAP_DTYPE_I32;
    sink.ids = host.data();
    sink.rows = 8;
    sink.k = 2;
    EXPECT_LT(routecap_sink_bind(rig.capturer(), 0, 1, &sink), 0);
    sink.ids = const_cast<void *>(rig.device().upload(host.data(), 256));  // page-locked
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_sink_bind(rig.capturer(), 0, 1, &sink));
    sink.ids = rig.device().allocate(256);
    EXPECT_STATUS(ROUTECAP_OK, routecap_sink_bind(rig.capturer(), 0, 2, &sink));
}
