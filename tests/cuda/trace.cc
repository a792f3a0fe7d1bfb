// Which calls of the driver a capturer makes in its life: they are written down by the tracing
// driver (tests/fault/trace_cuda.cc), which is in LD_LIBRARY_PATH. On a GPU that gave
// trace_h200.txt; with the fake driver behind it CI gets the same, or the fake is none to test
// with. On a machine with a GPU, after the tests were built with CUDA:
//
//   LD_LIBRARY_PATH=build/tests/tracing TRACE_CUDA_FILE=tests/cuda/trace_h200.txt build/tests/trace
//
// "# step_issue" in a trace stands before the calls that routecap_step_issue makes on the engine's
// thread, with its status if that is not ROUTECAP_OK; "# engine: ..." before the engine's own. What
// is written does not depend on time: a step has landed before anything else looks for a free slot,
// and no memory that a graph keeps alive is given back before the end. Of the worker's calls, whose
// number depends on time, only the names are written.
#include <dlfcn.h>
#include <routecap.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "../fault/trace_cuda.h"
#include "src/backend/cuda/driver.h"

namespace {

[[noreturn]] void fail(const std::string &what, const char *how) {
    std::fprintf(stderr, "%s: %s\n", what.c_str(), how);
    std::exit(1);
}

// ---- The driver, as the engine sees it ---------------------------------------------------------

struct Driver {
#define MEMBER(name, version) PFN_cu##name##_v##version name = nullptr;
    ROUTECAP_DRIVER_FUNCTIONS(MEMBER)
    TRACE_ENGINE_FUNCTIONS(MEMBER)
#undef MEMBER
    decltype(&trace_cuda_note) note;
    decltype(&trace_cuda_elsewhere) elsewhere;
};

const Driver &driver() {
    static const Driver loaded = [] {
        Driver d;
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        if (library == nullptr) fail("libcuda.so.1", dlerror());
        d.note = reinterpret_cast<decltype(d.note)>(dlsym(library, "trace_cuda_note"));
        d.elsewhere =
            reinterpret_cast<decltype(d.elsewhere)>(dlsym(library, "trace_cuda_elsewhere"));
        if (d.note == nullptr || d.elsewhere == nullptr)
            fail("libcuda.so.1", "is not the tracing driver");
        const auto get_address =
            reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(library, "cuGetProcAddress_v2"));
        const auto find = [&](auto &function, const char *name, int version) {
            void *address = nullptr;
            if (get_address(name, &address, version, 0, nullptr) != CUDA_SUCCESS ||
                address == nullptr)
                fail(name, "not found");
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
        };
#define FIND(name, version) find(d.name, "cu" #name, version);
        ROUTECAP_DRIVER_FUNCTIONS(FIND)
        TRACE_ENGINE_FUNCTIONS(FIND)
#undef FIND
        return d;
    }();
    return loaded;
}

void require(CUresult result, const char *call) {
    const char *name = nullptr;
    if (result != CUDA_SUCCESS)
        fail(call, driver().GetErrorName(result, &name) == CUDA_SUCCESS ? name : "failed");
}
#define CU(name, ...) require(driver().name(__VA_ARGS__), "cu" #name)

// ---- What is written beside the calls ----------------------------------------------------------

void note(const std::string &text) { driver().note(("# " + text).c_str()); }

void expect(const std::string &call, int32_t expected, int32_t status) {
    if (status != expected)
        fail(call + " returned " + routecap_status_name(status), routecap_last_error());
}

// Makes a call of the library: CALL(step_begin, ROUTECAP_OK, capturer, 8, stream).
#define CALL(name, expected, ...) \
    (note(described(#name, expected)), expect(#name, expected, routecap_##name(__VA_ARGS__)))
std::string described(const char *name, int32_t status) {
    return status == ROUTECAP_OK ? name : std::string(name) + ": " + routecap_status_name(status);
}

// ---- The engine --------------------------------------------------------------------------------

constexpr uint32_t kLayers = 4, kColumns = 2, kExperts = 16, kSinkRows = 32, kRows = 8;
// layers: whose sink is the engine's, and whose ids come from logits.
constexpr uint32_t kAdopted = 0, kRouted = 3;

using Graph = CUgraphExec;

class Engine {
public:
    Engine() {
        note("engine: start");
        CU(Init, 0);
        CU(DevicePrimaryCtxRetain, &context_, 0);
        CU(CtxSetCurrent, context_);
        CU(StreamCreate, &stream, CU_STREAM_NON_BLOCKING);
        CU(StreamCreate, &other, CU_STREAM_NON_BLOCKING);
        CU(StreamCreate, &blocking, CU_STREAM_DEFAULT);
        CU(EventCreate, &event_, CU_EVENT_DISABLE_TIMING);
        std::vector<int32_t> rows;
        for (int32_t r = 0; r < static_cast<int32_t>(kSinkRows); r++)
            rows.insert(rows.end(), {r % 15, r % 15 + 1});
        ids = upload(rows);
        sink = upload(rows);
        logits = upload(std::vector<float>(kSinkRows * kExperts, 1.0f));
        positions = upload(std::vector<int64_t>{16, 17, 18, 19, 20, 21, 22, 23});
        CU(StreamSynchronize, stream);
    }

    // What is enqueued on one stream from now on waits for what is on another.
    void order(CUstream before, CUstream after) {
        note("engine: order");
        CU(EventRecord, event_, before);
        CU(StreamWaitEvent, after, event_, 0);
    }
    template <class Pass>
    Graph capture(const char *what, CUstreamCaptureMode mode, Pass pass) {
        CUgraph graph = nullptr;
        Graph made = nullptr;
        note(std::string("engine: capture ") + what);
        CU(StreamBeginCapture, stream, mode);
        pass();
        note("engine: end of capture");
        CU(StreamEndCapture, stream, &graph);
        CU(GraphInstantiateWithFlags, &made, graph, 0);
        CU(GraphDestroy, graph);
        return made;
    }
    void replay(Graph graph) {
        note("engine: replay");
        CU(GraphLaunch, graph, stream);
    }
    // Its router writes the sink that a capturer has adopted.
    void route(CUstream on) {
        note("engine: route");
        CU(MemcpyAsync, reinterpret_cast<CUdeviceptr>(sink), reinterpret_cast<CUdeviceptr>(ids),
           kRows * kColumns * sizeof *ids, on);
    }
    // Everything on the device has run.
    void synchronize() {
        note("engine: synchronize");
        CU(CtxSynchronize);
    }
    void set_context(bool there) {
        note(there ? "engine: its context again" : "engine: no current context");
        CU(CtxSetCurrent, there ? context_ : nullptr);
    }
    // Nothing that is enqueued after close_gate runs until open_gate.
    void close_gate() {
        note("engine: hold the stream");
        open_ = false;
        CU(
            LaunchHostFunc, stream,
            [](void *open) {
                while (!*static_cast<std::atomic<bool> *>(open))
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
            },
            &open_);
    }
    void open_gate() { open_ = true; }

    CUstream stream = nullptr, other = nullptr, blocking = nullptr;
    int32_t *ids = nullptr, *sink = nullptr;  // [kSinkRows, kColumns]
    float *logits = nullptr;                  // [kSinkRows, kExperts]
    int64_t *positions = nullptr;             // [kRows]

private:
    template <class T>
    T *upload(const std::vector<T> &data) {
        CUdeviceptr memory = 0;
        CU(MemAlloc, &memory, data.size() * sizeof(T));
        CU(MemcpyHtoDAsync, memory, data.data(), data.size() * sizeof(T), stream);
        return reinterpret_cast<T *>(memory);
    }

    CUcontext context_ = nullptr;
    CUevent event_ = nullptr;
    std::atomic<bool> open_{true};
};

// ---- A capturer and its forward passes ---------------------------------------------------------

class Capturer {
public:
    Capturer(Engine &engine, int32_t role, uint32_t slots, uint32_t flags = 0) : engine_(engine) {
        const int32_t provenance[kLayers] = {0, 0, 0, ROUTECAP_PROVENANCE_RECOMPUTED};
        routecap_config config;
        expect("config_init", ROUTECAP_OK, routecap_config_init(&config, sizeof config));
        config.backend = ROUTECAP_BACKEND_CUDA;
        config.role = role;
        config.layers = kLayers;
        config.k = kColumns;
        config.experts = kExperts;
        config.rows = kSinkRows;
        config.slots = slots;
        config.flags = flags;
        config.layer_provenance = provenance;
        CALL(capturer_create, ROUTECAP_OK, &config, &capturer);
    }
    Capturer(const Capturer &) = delete;
    void destroy() {
        note("capturer_destroy");
        routecap_capturer_destroy(capturer);
    }

    void begin(CUstream stream) { CALL(step_begin, ROUTECAP_OK, capturer, kRows, stream); }
    void record(uint32_t layer, CUstream stream, uint32_t flags = 0, uint32_t first = 0,
                uint32_t rows = kRows) {
        const routecap_source source = source_of(engine_.ids, rows, first, flags);
        CALL(layer_record, ROUTECAP_OK, capturer, layer, &source, stream);
    }
    void record_two(CUstream stream) {
        const routecap_source source = source_of(nullptr, kRows, 0, 0);
        const routecap_layer_source layers[] = {{1, 0, engine_.ids, nullptr, nullptr},
                                                {2, 0, engine_.ids, nullptr, nullptr}};
        CALL(layers_record, ROUTECAP_OK, capturer, &source, layers, sizeof layers[0], 2, stream);
    }
    void route(CUstream stream) {
        routecap_router router;
        expect("router_init", ROUTECAP_OK,
               routecap_router_init(&router, sizeof router, ROUTECAP_METHOD_SOFTMAX));
        routecap_logits logits{};
        logits.struct_size = sizeof logits;
        logits.dtype = ROUTECAP_DTYPE_F32;
        logits.logits = engine_.logits;
        logits.rows = kRows;
        CALL(layer_route, ROUTECAP_OK, capturer, kRouted, &router, &logits, stream);
    }
    void snapshot(CUstream stream) { CALL(step_snapshot, ROUTECAP_OK, capturer, stream); }
    // The writes of a forward pass.
    void write(CUstream stream) {
        engine_.route(stream);
        record_two(stream);
        route(stream);
    }
    void forward(CUstream stream) {
        begin(stream);
        write(stream);
        snapshot(stream);
    }

    routecap_request open() {
        routecap_request request = 0;
        CALL(request_open, ROUTECAP_OK, capturer, nullptr, &request, 1);
        return request;
    }
    void issue(CUstream stream, const std::vector<routecap_span> &spans,
               int32_t expected = ROUTECAP_OK, const routecap_issue_options *options = nullptr) {
        CALL(step_issue, expected, capturer, spans.data(), sizeof(routecap_span), spans.size(),
             options, nullptr, &step, stream);
    }
    void land() { CALL(step_finalize, ROUTECAP_OK, capturer, step, -1, nullptr); }
    void discard(CUstream stream) { CALL(step_discard, ROUTECAP_OK, capturer, stream); }

    routecap_capturer *capturer = nullptr;
    routecap_step step = 0;

private:
    static routecap_source source_of(const void *ids, uint32_t rows, uint32_t first,
                                     uint32_t flags) {
        routecap_source source{};
        source.struct_size = sizeof source;
        source.dtype = ROUTECAP_DTYPE_I32;
        source.ids = ids;
        source.rows = rows;
        source.first_row = first;
        source.flags = flags;
        return source;
    }

    Engine &engine_;
};

// All rows of a step are those of one request.
std::vector<routecap_span> rows_of(routecap_request request, uint64_t position,
                                   uint32_t flags = 0) {
    routecap_span span{};
    span.request = request;
    span.position = position;
    span.position_end = (flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0 ? position + kRows : 0;
    span.rows = kRows;
    span.flags = flags;
    return {span};
}

void read(Capturer &c, routecap_request request, uint64_t rows) {
    routecap_routing *routing = nullptr;
    CALL(request_finish, ROUTECAP_OK, c.capturer, request, rows, &routing);
    CALL(routing_wait, ROUTECAP_OK, routing, -1);
    routecap_routing_free(routing);
}

// ---- Its life ----------------------------------------------------------------------------------

void bind(Engine &e, Capturer &c) {
    routecap_sink sink{};
    sink.struct_size = sizeof sink;
    sink.dtype = ROUTECAP_DTYPE_I32;
    sink.rows = kSinkRows;
    sink.k = kColumns;
    std::vector<int32_t> host(kSinkRows * kColumns);
    sink.ids = host.data();
    CALL(sink_bind, ROUTECAP_ERR_ARGUMENT, c.capturer, kAdopted, 1, &sink);
    sink.ids = e.sink;
    CALL(sink_bind, ROUTECAP_OK, c.capturer, kAdopted, 1, &sink);
    routecap_sink given{};
    given.struct_size = sizeof given;
    CALL(sink_layer, ROUTECAP_OK, c.capturer, 1, &given);
}

void eager_steps(Engine &e, Capturer &c) {
    const routecap_request request = c.open();
    c.begin(e.stream);
    e.route(e.stream);
    c.record(1, e.stream);
    c.record(2, e.stream, ROUTECAP_SOURCE_OVERLAP);
    c.route(e.stream);
    routecap_received received{};
    received.struct_size = sizeof received;
    received.ranks = 1;
    received.experts = kExperts;
    received.k = kColumns;
    received.tokens_per_rank = kRows;
    received.dtype = ROUTECAP_DTYPE_I32;
    received.executed = reinterpret_cast<int32_t *>(e.logits) + kSinkRows * kExperts / 2;
    received.counts = reinterpret_cast<routecap_received_counts *>(received.executed + 64);
    CALL(received_read, ROUTECAP_OK, c.capturer, &received, e.stream);
    CALL(received_compare, ROUTECAP_OK, c.capturer, &received, e.stream);
    routecap_layer_probe found[kLayers];
    CALL(capturer_probe, ROUTECAP_PARTIAL, c.capturer, kRows, found, sizeof found[0], kLayers,
         e.stream);
    c.snapshot(e.stream);
    c.issue(e.stream, rows_of(request, 0));
    c.land();

    // Issue makes the snapshot.
    c.begin(e.stream);
    c.write(e.stream);
    routecap_issue_options options{};
    options.struct_size = sizeof options;
    options.snapshot = ROUTECAP_SNAPSHOT_MAKE;
    options.tag = 7;
    c.issue(e.stream, rows_of(request, 8), ROUTECAP_OK, &options);
    c.land();

    // Positions come from the device.
    c.forward(e.stream);
    options.snapshot = ROUTECAP_SNAPSHOT_TAKEN;
    options.positions = e.positions;
    options.positions_dtype = ROUTECAP_DTYPE_I64;
    c.issue(e.stream, rows_of(request, 16, ROUTECAP_SPAN_DEVICE_POSITIONS), ROUTECAP_OK, &options);
    c.land();

    // On another stream, which waits for the last step's; without rows; and forgotten.
    c.forward(e.other);
    c.issue(e.other, rows_of(request, 24));
    c.land();
    c.forward(e.stream);
    c.issue(e.stream, {});
    c.land();
    c.forward(e.stream);
    c.discard(e.stream);

    // Drafts, of which half are accepted.
    c.forward(e.stream);
    c.issue(e.stream, rows_of(request, 32, ROUTECAP_SPAN_SPECULATIVE));
    CALL(request_accept, ROUTECAP_OK, c.capturer, request, c.step, nullptr, kRows / 2);
    c.land();
    read(c, request, 32 + kRows / 2);

    // On a thread that has no context.
    const routecap_request outside = c.open();
    e.set_context(false);
    c.forward(e.stream);
    c.issue(e.stream, rows_of(outside, 0));
    c.land();
    e.set_context(true);
    read(c, outside, kRows);
}

// While the device works the worker asks now and then whether it still does; no other thread does.
void work_in_flight(Engine &e, Capturer &c) {
    const routecap_request request = c.open();
    e.close_gate();
    c.forward(e.stream);
    c.issue(e.stream, rows_of(request, 0));
    CALL(step_poll, ROUTECAP_PENDING, c.capturer, c.step);
    CALL(step_finalize, ROUTECAP_PENDING, c.capturer, c.step, 1'000'000, nullptr);
    while (std::strstr(driver().elsewhere(), "cuStreamQuery") == nullptr)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    e.open_gate();
    c.land();
    read(c, request, kRows);
}

// What refuses to be captured leaves the capture as it was.
void refused_in_capture(Engine &e, Capturer &c, routecap_request request) {
    const auto spans = rows_of(request, 0);
    CALL(step_issue, ROUTECAP_ERR_CAPTURING, c.capturer, spans.data(), sizeof spans[0], 1, nullptr,
         nullptr, nullptr, e.stream);
    CALL(step_discard, ROUTECAP_ERR_CAPTURING, c.capturer, e.stream);
    routecap_layer_probe found[kLayers];
    CALL(capturer_probe, ROUTECAP_ERR_CAPTURING, c.capturer, kRows, found, sizeof found[0], kLayers,
         e.stream);
}

// Returns a graph that is still there.
Graph captured_steps(Engine &e, Capturer &c) {
    const routecap_request request = c.open();
    const Graph in_line = e.capture("in line", CU_STREAM_CAPTURE_MODE_GLOBAL, [&] {
        c.forward(e.stream);
        refused_in_capture(e, c, request);
    });
    const Graph twice = e.capture("two forwards", CU_STREAM_CAPTURE_MODE_GLOBAL, [&] {
        c.forward(e.stream);
        c.forward(e.stream);
    });
    const Graph forked = e.capture("of two streams", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, [&] {
        c.begin(e.stream);
        e.order(e.stream, e.other);
        e.route(e.stream);
        c.record(1, e.stream, 0, 0, kRows / 2);
        c.record(1, e.other, 0, kRows / 2, kRows / 2);
        c.record(2, e.other, ROUTECAP_SOURCE_OVERLAP);
        c.route(e.stream);
        e.order(e.other, e.stream);
        c.snapshot(e.stream);
    });
    const Graph headless =
        e.capture("of a forward whose snapshot issue makes", CU_STREAM_CAPTURE_MODE_RELAXED, [&] {
            c.begin(e.stream);
            c.write(e.stream);
        });

    uint64_t position = 0;
    for (const Graph graph : {in_line, in_line, twice, forked, headless}) {
        routecap_issue_options options{};
        options.struct_size = sizeof options;
        options.snapshot = graph == headless ? ROUTECAP_SNAPSHOT_MAKE : ROUTECAP_SNAPSHOT_TAKEN;
        e.replay(graph);
        c.issue(e.stream, rows_of(request, position), ROUTECAP_OK, &options);
        c.land();
        position += kRows;
    }
    e.replay(in_line);
    c.discard(e.stream);
    c.forward(e.stream);
    c.issue(e.stream, rows_of(request, position));
    c.land();
    read(c, request, position + kRows);

    // The legacy stream cannot be used while a stream that waits for it is captured.
    note("engine: capture on a stream that waits for the legacy stream");
    CUgraph empty = nullptr;
    CU(StreamBeginCapture, e.blocking, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CALL(step_begin, ROUTECAP_ERR_CAPTURING, c.capturer, kRows, nullptr);
    note("engine: end of capture");
    CU(StreamEndCapture, e.blocking, &empty);
    CU(GraphDestroy, empty);
    c.forward(nullptr);
    c.discard(nullptr);
    e.synchronize();
    return in_line;
}

// With one slot, which is free when the step in it has been filed.
void lost_step(Engine &e) {
    Capturer c(e, ROUTECAP_ROLE_OWNER, 1, ROUTECAP_CONFIG_MANUAL_PROGRESS);
    const routecap_request request = c.open();
    c.forward(e.stream);
    c.issue(e.stream, rows_of(request, 0));
    c.forward(e.stream);
    c.issue(e.stream, rows_of(request, 8), ROUTECAP_LOST);
    e.synchronize();
    CALL(capturer_progress, ROUTECAP_OK, c.capturer);
    c.forward(e.stream);
    c.issue(e.stream, rows_of(request, 8));
    e.synchronize();
    CALL(capturer_progress, ROUTECAP_OK, c.capturer);
    c.destroy();
}

// Where no rows are kept: a mirror does on the forward path what its owner does, a disabled
// capturer nothing at all.
void other_roles(Engine &e) {
    for (const int32_t role : {ROUTECAP_ROLE_MIRROR, ROUTECAP_ROLE_DISABLED}) {
        note(role == ROUTECAP_ROLE_MIRROR ? "engine: a mirror" : "engine: a disabled capturer");
        Capturer c(e, role, 2);
        c.forward(e.stream);
        c.issue(e.stream, rows_of(1, 0));
        c.discard(e.stream);
        c.destroy();
    }
}

}  // namespace

int main() {
    note("backend_info");
    routecap_backend info{};
    info.struct_size = sizeof info;
    expect("backend_info", ROUTECAP_OK, routecap_backend_info(ROUTECAP_BACKEND_CUDA, &info));
    if (info.available == 0) fail("the CUDA backend", info.detail);

    Engine e;
    lost_step(e);
    other_roles(e);
    Capturer c(e, ROUTECAP_ROLE_OWNER, 2);
    bind(e, c);
    eager_steps(e, c);
    work_in_flight(e, c);
    const Graph graph = captured_steps(e, c);
    const routecap_request request = c.open();
    e.replay(graph);
    c.issue(e.stream, rows_of(request, 0));
    c.destroy();
    e.replay(graph);  // which keeps alive what it writes
    e.synchronize();
    note(std::string("other threads: ") + driver().elsewhere());
}
