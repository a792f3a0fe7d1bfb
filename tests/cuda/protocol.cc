// The step protocol under fire, on the CUDA backend: graphs that are replayed, mixed and outlive
// their capturer, forwards that are never issued, micro-batches on two streams, captures beside
// readers, and no call that waits for the device. Exact ids and exact missing cells in each.
#include <rig.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <set>
#include <thread>
#include <utility>

using namespace rig;

namespace {

routecap_source source_of(const void *ids, uint32_t rows, uint32_t first_row = 0,
                          const int32_t *live_rows = nullptr) {
    routecap_source source{};
    source.struct_size = sizeof source;
    source.dtype = ROUTECAP_DTYPE_I32;
    source.ids = ids;
    source.rows = rows;
    source.first_row = first_row;
    source.live_rows = live_rows;
    return source;
}

// For a capturer that ends before its device does.
routecap_config config_of(const Shape &shape) {
    routecap_config config;
    EXPECT_STATUS(ROUTECAP_OK, routecap_config_init(&config, sizeof config));
    config.backend = ROUTECAP_BACKEND_CUDA;
    config.layers = shape.layers, config.k = shape.k, config.experts = shape.experts,
    config.rows = shape.rows;
    return config;
}

// An engine's static buffers: what a graph records from, filled anew before each replay.
class Engine {
public:
    explicit Engine(const Options &options = {}) : rig(options) {
        for (uint32_t l = 0; l < rig.shape().layers; l++)
            ids_.push_back(static_cast<int32_t *>(
                rig.device().allocate(size_t{rig.shape().rows} * rig.shape().k * 4)));
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
                    for (int64_t id : routed(rig.shape(), t.seed, t.position + i, l))
                        ids.push_back(static_cast<int32_t>(id));
            rig.device().write(ids_[l], ids.data(), ids.size() * 4);
        }
        rig.device().write(live_, &rows, 4);
    }
    void record(uint32_t layer, uint32_t rows, routecap_stream stream, uint32_t first = 0,
                bool live = false) {
        const routecap_source source = source_of(ids(layer) + size_t{first} * rig.shape().k, rows,
                                                 first, live ? live_ : nullptr);
        EXPECT_STATUS(ROUTECAP_OK, routecap_layer_record(rig.capturer(), layer, &source, stream));
    }
    const int32_t *ids(uint32_t layer) const { return ids_[layer]; }
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

Rows rows_of(const Engine &engine, uint64_t seed, uint64_t first, uint64_t end) {
    return routed_rows(engine.rig.shape(), seed, first, end);
}

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
        expected = expected +
                   (begun ? rows_of(e, 1, position, position + 4) : missing_rows(e.rig.shape(), 4));
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

// Two forwards in one graph: the second begin waits until the first snapshot has read the sink;
// only the second can be issued.
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
    const std::array<routecap_stream, 3> streams = {device.stream(), device.make_stream(),
                                                    device.make_stream()};
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
        ASSERT_STATUS(ROUTECAP_OK, routecap_step_issue(e.rig.capturer(), &span, sizeof span, 1,
                                                       nullptr, nullptr, &last, stream));
        e.rig.land(last);  // before the next ids overwrite these
    }
    e.rig.expect(r, 0, rows_of(e, 1, 0, 120));
}

// Also where as many steps were in flight as may be when the last was issued.
TEST(Protocol,
     a_begin_on_another_stream_waits_for_the_last_step_also_if_that_was_the_last_of_slots) {
    Engine e({.slots = 2, .held = true});
    const routecap_stream other = e.rig.device().make_stream();
    const routecap_request r = e.rig.open();
    const auto step = [&](uint64_t position, routecap_stream stream) {
        EXPECT_STATUS(ROUTECAP_OK, routecap_step_begin(e.rig.capturer(), 4, stream));
        for (uint32_t l = 0; l < e.rig.shape().layers; l++) {
            const routecap_source source = source_of(e.ids(l) + position * e.rig.shape().k, 4);
            EXPECT_STATUS(ROUTECAP_OK, routecap_layer_record(e.rig.capturer(), l, &source, stream));
        }
        EXPECT_STATUS(ROUTECAP_OK, routecap_step_snapshot(e.rig.capturer(), stream));
        const routecap_span span = Rig::span(r, position, 0, 4);
        EXPECT_STATUS(ROUTECAP_OK, routecap_step_issue(e.rig.capturer(), &span, sizeof span, 1,
                                                       nullptr, nullptr, nullptr, stream));
    };
    e.feed({{1, 0, 12}});
    step(0, e.rig.stream());
    e.rig.device().synchronize();
    e.rig.device().close_gate();
    step(4, e.rig.stream());  // while the first is still to be filed
    e.rig.land(1);
    step(8, other);
    e.rig.device().open_gate();
    e.rig.land(3);
    e.rig.expect(r, 0, rows_of(e, 1, 0, 12));
}

// What cannot be captured refuses, and the capture goes on; in every mode, with readers and the
// worker running beside it.
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
            EXPECT_GE(routecap_request_extract(e.rig.capturer(), r, 0, ROUTECAP_ROWS_LANDED,
                                               ROUTECAP_EXTRACT_COPY, 0, &routing),
                      0);
            routecap_routing_free(routing);
            routecap_stats stats{};
            stats.struct_size = sizeof stats;
            EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_stats(e.rig.capturer(), &stats));
            EXPECT_GE(routecap_step_poll(e.rig.capturer(), 1), 0);
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
                    EXPECT_STATUS(ROUTECAP_ERR_CAPTURING,
                                  routecap_step_issue(e.rig.capturer(), &span, sizeof span, 1,
                                                      nullptr, nullptr, nullptr, e.rig.stream()));
                    EXPECT_STATUS(ROUTECAP_ERR_CAPTURING,
                                  routecap_step_discard(e.rig.capturer(), e.rig.stream()));
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
        const routecap_config config = config_of({.layers = 3, .k = 4, .experts = 64, .rows = 64});
        routecap_capturer *capturer = nullptr;
        ASSERT_STATUS(ROUTECAP_OK, routecap_capturer_create(&config, &capturer));
        auto *ids = static_cast<int32_t *>(device.allocate(64 * 4 * 4, 1));
        const auto graph = device.capture([&] {
            EXPECT_STATUS(ROUTECAP_OK, routecap_step_begin(capturer, 64, device.stream()));
            const routecap_source source = source_of(ids, 64);
            for (uint32_t l = 0; l < 3; l++)
                EXPECT_STATUS(ROUTECAP_OK,
                              routecap_layer_record(capturer, l, &source, device.stream()));
            EXPECT_STATUS(ROUTECAP_OK, routecap_step_snapshot(capturer, device.stream()));
        });
        graph.replay(device.stream());
        routecap_capturer_destroy(capturer);
        for (int replay = 0; replay < 5; replay++) graph.replay(device.stream());
        device.synchronize();
    }
}

// ---- Waiting for the device ----------------------------------------------------------------

namespace {

// The library's functions, and which of them were called through this.
class Functions {
public:
    template <class Function>
    Function get(size_t offset, Function routecap_api::*function) {
        called_.insert(offset);
        return table_->*function;
    }
    // Each that the header has, but those of three chapters, which are given no capturer.
    void expect_all_called() const {
        constexpr std::pair<size_t, size_t> kApart[] = {
            {offsetof(routecap_api, wire_describe), offsetof(routecap_api, wire_encode)},
            {offsetof(routecap_api, sequence_create), offsetof(routecap_api, sequence_deserialize)},
            {offsetof(routecap_api, plan_config_init), offsetof(routecap_api, plan_unpack)}};
        for (size_t offset = offsetof(routecap_api, version); offset < sizeof(routecap_api);
             offset += sizeof(void (*)()))
            EXPECT_TRUE(called_.contains(offset) ||
                        std::any_of(std::begin(kApart), std::end(kApart),
                                    [&](const auto &chapter) {
                                        return chapter.first <= offset && offset <= chapter.second;
                                    }))
                << "entry " << (offset - offsetof(routecap_api, version)) / sizeof(void (*)())
                << " of the function table has no place in this test";
    }

private:
    const routecap_api *const table_ =
        routecap_get_api(ROUTECAP_VERSION_MAJOR, ROUTECAP_VERSION_MINOR);
    std::set<size_t> called_;
};
#define GET(name) functions.get(offsetof(routecap_api, name), &routecap_api::name)
#define EXPECT_CALL(expected, name, ...) EXPECT_STATUS(expected, GET(name)(__VA_ARGS__))

// A call on a thread of its own.
class Waiting {
public:
    explicit Waiting(std::function<void()> call)
        : thread_([this, call = std::move(call)] {
              started_ = true;
              call();
              returned_ = true;
          }) {}
    ~Waiting() { thread_.join(); }
    Waiting(const Waiting &) = delete;

    // Long enough for a call that does not wait to return.
    void expect_waiting() const {
        while (!started_) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        EXPECT_FALSE(returned_);
    }

private:
    std::atomic<bool> started_{false}, returned_{false};
    std::thread thread_;  // the last, which uses the others
};

constexpr int64_t kShortly = 5'000'000;  // nanoseconds

// Those that look at no request and no routing.
void call_the_others(Functions &functions) {
    EXPECT_EQ(GET(version)(), routecap_version());
    EXPECT_STREQ(GET(status_name)(ROUTECAP_OK), "ROUTECAP_OK");
    EXPECT_NE(GET(last_error)(), nullptr);
    routecap_backend info{};
    info.struct_size = sizeof info;
    EXPECT_CALL(ROUTECAP_OK, backend_info, ROUTECAP_BACKEND_CUDA, &info);
    routecap_config config;
    EXPECT_CALL(ROUTECAP_OK, config_init, &config, sizeof config);
    config = config_of({});
    routecap_memory memory{};
    memory.struct_size = sizeof memory;
    EXPECT_CALL(ROUTECAP_OK, config_memory, &config, &memory);
}

// Blocks of a request with 16 rows that have landed.
void call_stores(Functions &functions, Engine &e, const routecap_config &shape,
                 routecap_request landed) {
    routecap_capturer *const capturer = e.rig.capturer();
    routecap_store_config config;
    EXPECT_CALL(ROUTECAP_OK, store_config_init, &config, sizeof config);
    config.block_rows = 4, config.key_bytes = 8, config.budget_bytes = 1 << 22;
    routecap_store *store = nullptr;
    EXPECT_CALL(ROUTECAP_OK, store_create, &config, &shape, &store);
    const std::vector<int32_t> tokens(16, 5);
    uint64_t keys[4], leading = 0;
    EXPECT_CALL(ROUTECAP_OK, key_chain, nullptr, 0, tokens.data(), tokens.size(), 4, 8, keys,
                sizeof keys);
    EXPECT_CALL(ROUTECAP_OK, request_publish, capturer, landed, store, 0, keys, 3, 0);
    routecap_publish_item published{landed, 12, &keys[3], 1, 0, 0};
    EXPECT_CALL(ROUTECAP_OK, request_publish_batch, capturer, store, &published, sizeof published,
                1, 0);
    routecap_adoption found{};
    found.struct_size = sizeof found;
    EXPECT_CALL(ROUTECAP_OK, request_adopt, capturer, e.rig.open(), store, 0, keys, 4, 0, &found);
    EXPECT_EQ(found.rows, 16u);
    routecap_adopt_item adopted{};
    adopted.request = e.rig.open(), adopted.keys = keys, adopted.count = 4;
    EXPECT_CALL(ROUTECAP_OK, request_adopt_batch, capturer, store, &adopted, sizeof adopted, 1, 0);
    EXPECT_CALL(ROUTECAP_OK, store_contains, store, keys, 4, 0, nullptr, &leading);
    EXPECT_EQ(leading, 4u);
    EXPECT_CALL(ROUTECAP_OK, store_retain, store, keys, 1, nullptr);
    EXPECT_CALL(ROUTECAP_OK, store_release, store, keys, 1);
    routecap_store_counts counts{};
    counts.struct_size = sizeof counts;
    EXPECT_CALL(ROUTECAP_OK, store_stats, store, &counts);
    EXPECT_CALL(ROUTECAP_OK, store_evict, store, keys, 4, nullptr);
    EXPECT_CALL(ROUTECAP_OK, store_advance, store, 1);
    GET(store_free)(store);
}

// What has landed before can be read, whatever is in flight.
void read_landed(Functions &functions, Engine &e, routecap_request request,
                 routecap_request in_flight) {
    routecap_capturer *const capturer = e.rig.capturer();
    const Rows rows = rows_of(e, 1, 0, 16);
    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    EXPECT_CALL(ROUTECAP_OK, request_coverage, capturer, request, 0, 16, &coverage, nullptr, 0, 0);
    EXPECT_EQ(coverage.rows_complete, 16u);
    EXPECT_CALL(ROUTECAP_ERR_NOT_READY, request_coverage, capturer, in_flight, 0, ROUTECAP_ROWS_ALL,
                &coverage, nullptr, 0, 0);
    routecap_routing *extracted = nullptr;
    EXPECT_CALL(ROUTECAP_OK, request_extract, capturer, request, 0, 16, ROUTECAP_EXTRACT_COPY, 0,
                &extracted);
    routecap_extract_item items[] = {
        {request, 0, 16, ROUTECAP_EXTRACT_SHARE, 0, nullptr, 0, 0},
        {in_flight, 0, ROUTECAP_ROWS_ALL, ROUTECAP_EXTRACT_SHARE, 0, nullptr, 0, 0}};
    EXPECT_CALL(ROUTECAP_PARTIAL, request_extract_batch, capturer, items, sizeof items[0], 2);
    EXPECT_STATUS(ROUTECAP_OK, items[0].status);
    EXPECT_STATUS(ROUTECAP_ERR_NOT_READY, items[1].status);
    for (const routecap_routing *routing : {extracted, items[0].routing})
        expect_routing(routing, e.rig.shape(), 0, rows);

    routecap_copy_options options;
    EXPECT_CALL(ROUTECAP_OK, copy_options_init, &options, sizeof options);
    options.dtype = ROUTECAP_DTYPE_I32;
    uint64_t bytes = 0;
    EXPECT_CALL(ROUTECAP_ERR_BUFFER_TOO_SMALL, request_extract_into, capturer, request, 0, 16,
                &options, nullptr, 0, nullptr, 0, &bytes);
    std::vector<unsigned char> memory(bytes);
    EXPECT_CALL(ROUTECAP_OK, request_extract_into, capturer, request, 0, 16, &options,
                memory.data(), bytes, nullptr, 0, nullptr);
    std::vector<unsigned char> same(bytes);
    EXPECT_CALL(ROUTECAP_OK, routing_copy_to, extracted, &options, same.data(), bytes, nullptr, 0,
                nullptr);
    EXPECT_EQ(memory, same);
    EXPECT_CALL(ROUTECAP_ERR_DTYPE, routing_copy_weights, extracted, &options, same.data(), bytes,
                nullptr, 0, nullptr);  // it has none

    routecap_view view{};
    view.struct_size = sizeof view;
    EXPECT_CALL(ROUTECAP_OK, routing_poll, extracted);
    EXPECT_CALL(ROUTECAP_OK, routing_view, extracted, &view);
    EXPECT_CALL(ROUTECAP_OK, routing_coverage, extracted, &coverage, nullptr, 0, 0);
    routecap_routing *parts[2] = {}, *slice = nullptr, *merged = nullptr;
    EXPECT_CALL(ROUTECAP_OK, routing_split, extracted, 8, ROUTECAP_ROWS_ALL, &parts[0], &parts[1]);
    EXPECT_CALL(ROUTECAP_OK, routing_slice, extracted, 4, 4, &slice);
    EXPECT_CALL(ROUTECAP_OK, routing_merge, parts, 2, 0, &merged);
    EXPECT_CALL(ROUTECAP_OK, routing_retain, merged);

    uint64_t needed = 0;
    EXPECT_CALL(ROUTECAP_ERR_BUFFER_TOO_SMALL, routing_serialize, merged, nullptr, 0, &needed);
    std::vector<unsigned char> serialized(needed);
    EXPECT_CALL(ROUTECAP_OK, routing_serialize, merged, serialized.data(), needed, nullptr);
    routecap_serialized header{};
    header.struct_size = sizeof header;
    EXPECT_CALL(ROUTECAP_OK, serialized_info, serialized.data(), needed, &header);
    std::vector<unsigned char> spliced(2 * header.header_bytes + 128);
    routecap_splice splice{};
    splice.struct_size = sizeof splice;
    routecap_piece pieces[ROUTECAP_MAX_PIECES];
    EXPECT_CALL(ROUTECAP_OK, serialized_splice, serialized.data(), needed, serialized.data(),
                needed, 8, spliced.data(), spliced.size(), pieces, sizeof pieces[0],
                std::size(pieces), &splice);
    EXPECT_CALL(ROUTECAP_OK, serialized_slice, serialized.data(), needed, 4, 4, spliced.data(),
                spliced.size(), pieces, sizeof pieces[0], std::size(pieces), &splice);
    routecap_routing *deserialized = nullptr, *imported = nullptr;
    EXPECT_CALL(ROUTECAP_OK, routing_deserialize, serialized.data(), needed, 0, nullptr, nullptr,
                &deserialized);
    EXPECT_CALL(ROUTECAP_OK, routing_import, &view, 0, nullptr, nullptr, &imported);
    for (const routecap_routing *routing : {merged, deserialized, imported})
        expect_routing(routing, e.rig.shape(), 0, rows);
    for (routecap_routing *routing : {extracted, items[0].routing, parts[0], parts[1], slice,
                                      merged, merged, deserialized, imported})
        GET(routing_free)(routing);
}

// With everything on the device held back, every function of the library returns but the four that
// are documented to wait, and those do not.
void expect_only_four_to_wait(bool held) {
    Functions functions;
    Engine e({.shape = {.rows = 16},
              .layer_provenance = {0, 0, 0, ROUTECAP_PROVENANCE_RECOMPUTED},
              .held = held});
    Device &device = e.rig.device();
    routecap_capturer *const capturer = e.rig.capturer();
    const routecap_stream stream = e.rig.stream();
    const uint32_t last_layer = e.rig.shape().layers - 1;

    // Made before: the driver may wait where it gives out memory.
    routecap_config config = config_of(e.rig.shape());
    config.flags = held ? ROUTECAP_CONFIG_MANUAL_PROGRESS : 0;
    routecap_capturer *other = nullptr;
    EXPECT_CALL(ROUTECAP_OK, capturer_create, &config, &other);
    void *memory = device.allocate(4096);
    const routecap_request landed = e.rig.open();
    e.feed({{1, 0, 16}});
    e.forward(16);
    e.rig.land(e.rig.issue({Rig::span(landed, 0, 0, 16)}));
    device.synchronize();
    device.close_gate();
    call_the_others(functions);

    // Two rows of each of eight requests; the first two of drafts.
    std::array<routecap_request, 8> r;
    EXPECT_CALL(ROUTECAP_OK, request_open, capturer, nullptr, r.data(), r.size());
    EXPECT_CALL(ROUTECAP_OK, step_begin, capturer, 16, stream);
    const routecap_source source = source_of(e.ids(0), 16), many = source_of(nullptr, 16);
    EXPECT_CALL(ROUTECAP_OK, layer_record, capturer, 0, &source, stream);
    std::vector<routecap_layer_source> layers;
    for (uint32_t l = 1; l <= last_layer; l++) layers.push_back({l, 0, e.ids(l), nullptr});
    EXPECT_CALL(ROUTECAP_OK, layers_record, capturer, &many, layers.data(), sizeof layers[0],
                layers.size(), stream);
    EXPECT_CALL(ROUTECAP_OK, step_snapshot, capturer, stream);
    std::vector<routecap_span> spans;
    for (uint32_t i = 0; i < r.size(); i++)
        spans.push_back(Rig::span(r[i], 0, 2 * i, 2, i < 2 ? ROUTECAP_SPAN_SPECULATIVE : 0));
    routecap_step step = 0;
    EXPECT_CALL(ROUTECAP_OK, step_issue, capturer, spans.data(), sizeof spans[0], spans.size(),
                nullptr, nullptr, &step, stream);
    EXPECT_CALL(ROUTECAP_PENDING, step_poll, capturer, step);

    // What changes requests, while their rows are in flight.
    EXPECT_CALL(ROUTECAP_OK, request_accept, capturer, r[0], step, nullptr, 1);
    routecap_accept_item accepted{r[1], step, nullptr, 2, 0, 0};
    EXPECT_CALL(ROUTECAP_OK, request_accept_batch, capturer, &accepted, sizeof accepted, 1);
    EXPECT_CALL(ROUTECAP_OK, request_truncate, capturer, r[2], 1);
    routecap_request child = 0;
    EXPECT_CALL(ROUTECAP_OK, request_fork, capturer, r[3], ROUTECAP_ROWS_ALL, &child);
    const RoutingPtr prefix(e.rig.extract(landed, 0, 2, ROUTECAP_OK));
    EXPECT_CALL(ROUTECAP_OK, request_attach, capturer, r[4], prefix.get(), ROUTECAP_ROWS_ALL);
    routecap_routing *finished = nullptr;
    EXPECT_CALL(ROUTECAP_OK, request_finish, capturer, r[5], ROUTECAP_ROWS_ALL, &finished);
    routecap_finish_item finish{r[6], ROUTECAP_ROWS_ALL, nullptr, 0, 0};
    EXPECT_CALL(ROUTECAP_OK, request_finish_batch, capturer, &finish, sizeof finish, 1);
    const RoutingPtr pending(finished), pending_too(finish.routing);
    EXPECT_CALL(ROUTECAP_OK, request_close, capturer, r[7]);
    const routecap_request empty = e.rig.open();
    EXPECT_CALL(ROUTECAP_OK, request_close_batch, capturer, &empty, nullptr, 1);

    EXPECT_CALL(ROUTECAP_PENDING, routing_poll, pending.get());
    routecap_view view{};
    view.struct_size = sizeof view;
    EXPECT_CALL(ROUTECAP_ERR_NOT_READY, routing_view, pending.get(), &view);
    read_landed(functions, e, landed, r[3]);
    const int32_t provenance[] = {0, 0, 0, ROUTECAP_PROVENANCE_RECOMPUTED};
    routecap_config rows_of_stores = config_of(e.rig.shape());
    rows_of_stores.layer_provenance = provenance;
    call_stores(functions, e, rows_of_stores, landed);
    routecap_stats stats{};
    stats.struct_size = sizeof stats;
    EXPECT_CALL(ROUTECAP_OK, capturer_stats, capturer, &stats);
    EXPECT_EQ(stats.steps_in_flight, 1u);
    routecap_layer_stats layer_stats;
    EXPECT_CALL(ROUTECAP_OK, capturer_layer_stats, capturer, &layer_stats, sizeof layer_stats, 1);
    routecap_load load{};
    load.struct_size = sizeof load;
    EXPECT_CALL(ROUTECAP_ERR_ARGUMENT, capturer_load, capturer, &load, nullptr, 0);
    EXPECT_CALL(ROUTECAP_OK, set_log, nullptr, nullptr, 0);
    EXPECT_CALL(ROUTECAP_OK, capturer_progress, capturer);
    routecap_sink sink{};
    sink.struct_size = sizeof sink;
    EXPECT_CALL(ROUTECAP_OK, sink_layer, capturer, 0, &sink);
    EXPECT_CALL(ROUTECAP_OK, sink_bind, capturer, 0, 1, &sink);  // what is bound already

    // Another forward, which is forgotten.
    EXPECT_CALL(ROUTECAP_OK, step_begin, capturer, 16, stream);
    routecap_router router;
    EXPECT_CALL(ROUTECAP_OK, router_init, &router, sizeof router, ROUTECAP_METHOD_SOFTMAX);
    routecap_logits logits{};
    logits.struct_size = sizeof logits;
    logits.dtype = ROUTECAP_DTYPE_F32;
    logits.logits = memory;
    logits.rows = 16;
    EXPECT_CALL(ROUTECAP_OK, layer_route, capturer, last_layer, &router, &logits, stream);
    routecap_received received{};
    received.struct_size = sizeof received;
    received.ranks = 1;
    received.experts = 16;
    received.k = 2;
    received.tokens_per_rank = 16;
    received.dtype = ROUTECAP_DTYPE_I32;
    received.executed = static_cast<int32_t *>(memory);
    received.counts = static_cast<routecap_received_counts *>(memory);
    EXPECT_CALL(ROUTECAP_OK, received_read, capturer, &received, stream);
    EXPECT_CALL(ROUTECAP_OK, received_compare, capturer, &received, stream);
    EXPECT_CALL(ROUTECAP_OK, step_discard, capturer, stream);
    EXPECT_CALL(ROUTECAP_OK, step_arrive, capturer, step, nullptr);  // its rows come by themselves

    // The four wait: as long as they are told to, or until the gate opens.
    EXPECT_CALL(ROUTECAP_PENDING, step_finalize, capturer, step, kShortly, nullptr);
    EXPECT_CALL(ROUTECAP_PENDING, routing_wait, pending.get(), kShortly);
    EXPECT_CALL(ROUTECAP_OK, step_begin, capturer, 16, stream);
    {
        const auto probe = GET(capturer_probe);
        const Waiting probing([&] {
            routecap_layer_probe found;
            EXPECT_STATUS(ROUTECAP_PARTIAL, probe(capturer, 16, &found, sizeof found, 1, stream));
            EXPECT_EQ(found.found, ROUTECAP_PROBE_SILENT);
        });
        const Waiting finalizing([&] {
            EXPECT_STATUS(ROUTECAP_OK, routecap_step_finalize(capturer, step, -1, nullptr));
        });
        const Waiting waiting(
            [&] { EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(pending.get(), -1)); });
        for (const Waiting *w : {&probing, &finalizing, &waiting}) w->expect_waiting();
        device.open_gate();
    }
    const auto expect_rows = [&](routecap_request request, uint64_t first, uint64_t end) {
        e.rig.expect(request, 0, rows_of(e, 1, first, end));
    };
    e.rig.land(step);
    expect_rows(r[0], 0, 1);
    expect_rows(r[1], 2, 4);
    expect_rows(r[2], 4, 5);
    expect_rows(r[3], 6, 8);
    expect_rows(child, 6, 8);
    expect_rows(r[4], 8, 10);
    expect_routing(pending.get(), e.rig.shape(), 0, rows_of(e, 1, 10, 12));
    EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(pending_too.get(), -1));
    expect_routing(pending_too.get(), e.rig.shape(), 0, rows_of(e, 1, 12, 14));

    // The end of a capturer with a step in flight.
    routecap_request request = 0;
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_open(other, nullptr, &request, 1));
    device.close_gate();
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_begin(other, 16, stream));
    for (uint32_t l = 0; l <= last_layer; l++) {
        const routecap_source ids = source_of(e.ids(l), 16);
        EXPECT_STATUS(ROUTECAP_OK, routecap_layer_record(other, l, &ids, stream));
    }
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_snapshot(other, stream));
    const routecap_span span = Rig::span(request, 0, 0, 16);
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_issue(other, &span, sizeof span, 1, nullptr, nullptr,
                                                   nullptr, stream));
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_request_finish(other, request, ROUTECAP_ROWS_ALL, &finished));
    const RoutingPtr outliving(finished);
    {
        const auto destroy = GET(capturer_destroy);
        const Waiting waiting(
            [&] { EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(outliving.get(), -1)); });
        const Waiting destroying([&] {
            destroy(other);
            EXPECT_STATUS(ROUTECAP_OK, routecap_routing_poll(outliving.get()));
        });
        for (const Waiting *w : {&waiting, &destroying}) w->expect_waiting();
        device.open_gate();
    }
    expect_routing(outliving.get(), e.rig.shape(), 0, rows_of(e, 1, 0, 16));
    functions.expect_all_called();
}

}  // namespace

TEST(Protocol, only_finalize_wait_probe_and_destroy_wait_for_the_device) {
    expect_only_four_to_wait(false);
}
TEST(Protocol, only_they_wait_without_a_worker_thread) { expect_only_four_to_wait(true); }

// config.slots steps are in flight whose begins are in a graph; the next is lost, visibly, and the
// one after a landed step is not.
TEST(Protocol, as_many_steps_in_flight_as_slots) {
    Engine e({.shape = {.rows = 8}, .slots = 3, .held = true});
    const auto graph = e.graph(2);
    const routecap_request r = e.rig.open();
    Rows expected;
    for (uint64_t i = 0; i < 12; i++) {
        const bool lost = i % 4 == 3;
        e.replay(graph, {{1, i * 2, 2}});
        e.rig.issue({Rig::span(r, i * 2, 0, 2)}, lost ? ROUTECAP_LOST : ROUTECAP_OK);
        expected =
            expected + (lost ? missing_rows(e.rig.shape(), 2) : rows_of(e, 1, i * 2, i * 2 + 2));
        if (lost) {
            e.rig.open_gate();
        }
    }
    e.rig.expect(r, 0, expected);
    EXPECT_EQ(e.rig.stats().steps_lost, 3u);
}

TEST(Protocol, sinks_that_are_not_the_devices_are_refused) {
    Rig rig({.shape = {.layers = 2, .k = 2, .experts = 16, .rows = 8},
             .flags = ROUTECAP_CONFIG_EXTERNAL_SINK});
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
