// The fake driver's capture of streams into graphs, executable graphs, and the user objects that
// graphs keep.
#include <algorithm>
#include <cstring>

#include "fake_state.h"

namespace fake {
namespace {

Graph *find_graph(State &s, CUgraph handle) {
    const auto it = s.graphs.find(handle);
    return it == s.graphs.end() ? nullptr : it->second.get();
}

Node *add_node(State &s, Graph &graph, Work work, bool captured, const Nodes &from) {
    auto node =
        std::make_unique<Node>(Node{&graph, graph.nodes.size(), std::move(work), captured, from});
    s.nodes.insert(node.get());
    return graph.nodes.emplace_back(std::move(node)).get();
}

void destroy_graph(State &s, Graph &graph) {
    for (const auto &node : graph.nodes) s.nodes.erase(node.get());
    s.release(graph.retained);
    s.graphs.erase(&graph);
}

// The nodes that handles name, if they are of the graph and none is named twice.
bool nodes_of(const State &s, const Graph &graph, const CUgraphNode *handles, size_t count,
              Nodes &out) {
    if (count != 0 && handles == nullptr) return false;
    for (size_t i = 0; i < count; i++) {
        if (!s.nodes.contains(handles[i])) return false;
        auto *node = reinterpret_cast<Node *>(handles[i]);
        if (node->graph != &graph || std::find(out.begin(), out.end(), node) != out.end())
            return false;
        out.push_back(node);
    }
    return true;
}

void unite(Nodes &to, const Nodes &more) {
    for (Node *node : more)
        if (std::find(to.begin(), to.end(), node) == to.end()) to.push_back(node);
}

bool has_blocking_stream(const Capture &capture, const Context *context) {
    return std::any_of(capture.streams.begin(), capture.streams.end(), [&](const Stream *stream) {
        return stream->blocking && stream->context == context;
    });
}

// ---- Capture -----------------------------------------------------------------------------------

bool is_mode(CUstreamCaptureMode mode) {
    return mode >= CU_STREAM_CAPTURE_MODE_GLOBAL && mode <= CU_STREAM_CAPTURE_MODE_RELAXED;
}

CUresult StreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
    return call({"cuStreamBeginCapture", kNothing, handle}, [&](State &s, Lock &) {
        Stream *stream;
        if (const CUresult r = s.find_stream(handle, stream); r != CUDA_SUCCESS) return r;
        if (!is_mode(mode)) return CUDA_ERROR_INVALID_VALUE;
        if (stream->type == Stream::Type::kLegacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
        auto graph = std::make_unique<Graph>();
        graph->capturing = true;
        const Capture capture{
            ++s.capture_ids, graph.get(), stream, mode, std::this_thread::get_id(), {stream}};
        stream->capture = std::make_shared<Capture>(capture);
        stream->dependencies.clear();
        s.captures.push_back(stream->capture);
        s.graphs[graph.get()] = std::move(graph);
        return CUDA_SUCCESS;
    });
}

// Whether everything that other streams captured is behind what the first one did last. Nodes that
// were added by name need not be.
bool joined(const Capture &capture) {
    std::unordered_set<const Node *> behind;
    Nodes look = capture.origin->dependencies;
    while (!look.empty()) {
        const Node *node = look.back();
        look.pop_back();
        if (behind.insert(node).second)
            look.insert(look.end(), node->from.begin(), node->from.end());
    }
    for (const Stream *stream : capture.streams)
        for (const Node *node : stream->dependencies)
            if (node->captured && !behind.contains(node)) return false;
    return true;
}

CUresult StreamEndCapture(CUstream handle, CUgraph *out) {
    return call({"cuStreamEndCapture", kNothing, handle}, [&](State &s, Lock &) {
        Stream *stream;
        if (const CUresult r = s.find_stream(handle, stream); r != CUDA_SUCCESS) return r;
        if (out != nullptr) *out = nullptr;
        const std::shared_ptr<Capture> capture = stream->capture;
        if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
        if (capture->origin != stream) {
            s.invalidate(*capture,
                         "cuStreamEndCapture on another stream than that of cuStreamBeginCapture");
            return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
        }
        const bool wrong_thread = capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
                                  capture->thread != std::this_thread::get_id();
        const CUresult result = wrong_thread        ? CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
                                : capture->invalid  ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                : !joined(*capture) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                                                    : CUDA_SUCCESS;
        if (result != CUDA_SUCCESS) capture->invalid = true;
        s.end_capture(*capture);
        if (result == CUDA_SUCCESS && out != nullptr)
            *out = reinterpret_cast<CUgraph>(capture->graph);
        return result;
    });
}

CUstreamCaptureStatus status_of(const Stream &stream) {
    return stream.capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE
           : stream.capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                     : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

// Asking is no use: the legacy stream answers that it cannot be used, and the capture goes on.
CUresult find_to_ask(State &s, CUstream handle, Stream *&stream) {
    if (const CUresult r = s.find_stream(handle, stream); r != CUDA_SUCCESS) return r;
    if (stream->type == Stream::Type::kLegacy)
        for (const auto &capture : s.captures)
            if (has_blocking_stream(*capture, stream->context))
                return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    return CUDA_SUCCESS;
}

CUresult StreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                              CUgraph *graph, const CUgraphNode **dependencies,
                              const CUgraphEdgeData **edges, size_t *count) {
    return call({"cuStreamGetCaptureInfo", kNothing, handle}, [&](State &s, Lock &) {
        Stream *stream;
        if (const CUresult r = find_to_ask(s, handle, stream); r != CUDA_SUCCESS) return r;
        if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
        *status = status_of(*stream);
        if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
        stream->told.clear();
        for (Node *node : stream->dependencies)
            stream->told.push_back(reinterpret_cast<CUgraphNode>(node));
        stream->edges.assign(stream->told.size(), CUgraphEdgeData{});
        if (id != nullptr) *id = stream->capture->id;
        if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(stream->capture->graph);
        if (dependencies != nullptr) *dependencies = stream->told.data();
        if (edges != nullptr) *edges = stream->edges.data();
        if (count != nullptr) *count = stream->told.size();
        return CUDA_SUCCESS;
    });
}

CUresult StreamUpdateCaptureDependencies(CUstream handle, CUgraphNode *dependencies,
                                         const CUgraphEdgeData *, size_t count, unsigned flags) {
    return call({"cuStreamUpdateCaptureDependencies", kNothing, handle}, [&](State &s, Lock &) {
        Stream *stream;
        if (const CUresult r = s.find_stream(handle, stream); r != CUDA_SUCCESS) return r;
        if (stream->capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
        if (stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        if (flags != CU_STREAM_ADD_CAPTURE_DEPENDENCIES &&
            flags != CU_STREAM_SET_CAPTURE_DEPENDENCIES)
            return CUDA_ERROR_INVALID_VALUE;
        Nodes nodes;
        if (!nodes_of(s, *stream->capture->graph, dependencies, count, nodes))
            return CUDA_ERROR_INVALID_VALUE;
        if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) stream->dependencies.clear();
        unite(stream->dependencies, nodes);
        return CUDA_SUCCESS;
    });
}

CUresult ThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    return call({"cuThreadExchangeStreamCaptureMode", kWhenLost}, [&](State &, Lock &) {
        if (mode == nullptr || !is_mode(*mode)) return CUDA_ERROR_INVALID_VALUE;
        *mode = std::exchange(t_mode, *mode);
        return CUDA_SUCCESS;
    });
}

// ---- Kernels -----------------------------------------------------------------------------------

using Dimensions = unsigned[3];

bool can_launch(const Kernel &kernel, const Dimensions &grid, const Dimensions &block) {
    const uint64_t threads = uint64_t{block[0]} * block[1] * block[2];
    return grid[0] != 0 && grid[1] != 0 && grid[2] != 0 && threads != 0 &&
           threads <= kernel.max_threads;
}

CUresult kernel_work(State &s, const void *handle, const Dimensions &grid, const Dimensions &block,
                     void **parameters, void **extra, Work &work) {
    const Kernel *kernel = s.find_kernel(handle);
    if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (!can_launch(*kernel, grid, block)) return CUDA_ERROR_INVALID_VALUE;
    if (extra != nullptr ||
        (kernel->bytes != 0 && (parameters == nullptr || parameters[0] == nullptr)))
        return CUDA_ERROR_INVALID_VALUE;
    auto data = std::make_shared<std::byte[]>(kernel->bytes);
    if (kernel->bytes != 0) std::memcpy(data.get(), parameters[0], kernel->bytes);
    work.kind = Work::Kind::kKernel;
    work.kernel = kernel;
    work.data = std::move(data);
    s.blocks[kernel->name] = uint64_t{grid[0]} * grid[1] * grid[2];
    return CUDA_SUCCESS;
}

const char *name_of(const void *handle) {
    State &s = state();
    Lock lock(s.mutex);
    const Kernel *kernel = s.find_kernel(handle);
    return kernel == nullptr ? "?" : kernel->name.c_str();
}

CUresult launch(const char *name, CUfunction function, const Dimensions &grid,
                const Dimensions &block, CUstream handle, void **parameters, void **extra) {
    return call({name, kNothing, handle, name_of(function)}, [&](State &s, Lock &) {
        Stream *stream;
        if (const CUresult r = s.find_stream(handle, stream); r != CUDA_SUCCESS) return r;
        Work work;
        const Kernel *const kernel = s.find_kernel(function);
        if (kernel != nullptr && !can_launch(*kernel, grid, block) && stream->capture != nullptr)
            s.invalidate(*stream->capture, "a launch with a grid or block that cannot be");
        if (const CUresult r = kernel_work(s, function, grid, block, parameters, extra, work);
            r != CUDA_SUCCESS)
            return r;
        return s.submit(*stream, std::move(work), name);
    });
}

CUresult LaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                      unsigned by, unsigned bz, unsigned, CUstream handle, void **parameters,
                      void **extra) {
    return launch("cuLaunchKernel", function, {gx, gy, gz}, {bx, by, bz}, handle, parameters,
                  extra);
}

// The one attribute it knows lets a kernel start before the one before it has finished; here none
// does.
CUresult LaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
                        void **extra) {
    if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
            return CUDA_ERROR_INVALID_VALUE;
    return launch("cuLaunchKernelEx", function,
                  {config->gridDimX, config->gridDimY, config->gridDimZ},
                  {config->blockDimX, config->blockDimY, config->blockDimZ}, config->hStream,
                  parameters, extra);
}

// ---- Graphs ------------------------------------------------------------------------------------

CUresult GraphAddKernelNode(CUgraphNode *out, CUgraph handle, const CUgraphNode *dependencies,
                            size_t count, const CUDA_KERNEL_NODE_PARAMS_v2 *params) {
    const void *const kernel = params == nullptr         ? nullptr
                               : params->func != nullptr ? static_cast<const void *>(params->func)
                                                         : static_cast<const void *>(params->kern);
    return call(
        {"cuGraphAddKernelNode", kNothing, kNoStream, name_of(kernel)}, [&](State &s, Lock &) {
            Graph *graph = find_graph(s, handle);
            Nodes from;
            if (out == nullptr || graph == nullptr || params == nullptr ||
                !nodes_of(s, *graph, dependencies, count, from))
                return CUDA_ERROR_INVALID_VALUE;
            if (params->func == nullptr && params->ctx == nullptr && current() == nullptr)
                return CUDA_ERROR_INVALID_CONTEXT;
            // A CUkernel is none here.
            if (params->func != nullptr && !s.is_function(params->func))
                return CUDA_ERROR_INVALID_HANDLE;
            Work work;
            const Dimensions grid{params->gridDimX, params->gridDimY, params->gridDimZ};
            const Dimensions block{params->blockDimX, params->blockDimY, params->blockDimZ};
            if (const CUresult r =
                    kernel_work(s, kernel, grid, block, params->kernelParams, params->extra, work);
                r != CUDA_SUCCESS)
                return r;
            *out = reinterpret_cast<CUgraphNode>(add_node(s, *graph, std::move(work), false, from));
            return CUDA_SUCCESS;
        });
}

CUresult GraphDestroy(CUgraph handle) {
    return call({"cuGraphDestroy", kWhenLost}, [&](State &s, Lock &) {
        Graph *graph = find_graph(s, handle);
        if (graph == nullptr || graph->capturing) {
            s.violation("cuGraphDestroy: %p %s", static_cast<void *>(handle),
                        graph == nullptr ? "is no graph" : "is being captured");
            return CUDA_ERROR_INVALID_VALUE;
        }
        destroy_graph(s, *graph);
        return CUDA_SUCCESS;
    });
}

CUresult GraphInstantiateWithFlags(CUgraphExec *out, CUgraph handle, unsigned long long) {
    return call({"cuGraphInstantiate", kContext | kUnsafe}, [&](State &s, Lock &) {
        Graph *graph = find_graph(s, handle);
        if (out == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
        auto exec = std::make_shared<Exec>();
        exec->context = current();
        for (const auto &node : graph->nodes) {
            Exec::Item &item = exec->items.emplace_back(Exec::Item{node->work, {}, true});
            for (const Node *from : node->from) item.from.push_back(from->number);
        }
        for (const auto &node : graph->nodes)
            for (const Node *from : node->from) exec->items[from->number].leaf = false;
        exec->retained = graph->retained;
        for (const auto &[object, references] : exec->retained) object->references += references;
        *out = reinterpret_cast<CUgraphExec>(exec.get());
        s.execs[exec.get()] = std::move(exec);
        return CUDA_SUCCESS;
    });
}

// The order in which a launch runs the nodes: one that their edges allow, and of those an awkward
// one. Of several ready nodes the one added last comes first; those on which nothing depends come
// after all others.
std::vector<size_t> laid_out(const Exec &exec) {
    std::vector<size_t> missing, ready, laid;
    std::vector<std::vector<size_t>> next(exec.items.size());
    for (size_t i = 0; i < exec.items.size(); i++) {
        missing.push_back(exec.items[i].from.size());
        for (size_t from : exec.items[i].from) next[from].push_back(i);
        if (missing[i] == 0) ready.push_back(i);
    }
    const auto later = [&](size_t a, size_t b) {
        return exec.items[a].leaf != exec.items[b].leaf ? exec.items[a].leaf : a < b;
    };
    while (!ready.empty()) {
        const auto first = std::min_element(ready.begin(), ready.end(),
                                            [&](size_t a, size_t b) { return later(b, a); });
        const size_t i = *first;
        ready.erase(first);
        laid.push_back(i);
        for (size_t n : next[i])
            if (--missing[n] == 0) ready.push_back(n);
    }
    return laid;
}

CUresult GraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    return call({"cuGraphLaunch", kNothing, stream_handle}, [&](State &s, Lock &) {
        Stream *stream;
        if (const CUresult r = s.find_stream(stream_handle, stream); r != CUDA_SUCCESS) return r;
        const auto it = s.execs.find(handle);
        if (it == s.execs.end()) {
            s.violation("cuGraphLaunch: %p is no executable graph", static_cast<void *>(handle));
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (const CUresult r = s.check_legacy(*stream, "cuGraphLaunch"); r != CUDA_SUCCESS)
            return r;
        if (stream->capture != nullptr) {
            s.invalidate(*stream->capture, "cuGraphLaunch into a stream that is being captured");
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
        Exec &exec = *it->second;
        std::vector<OpPtr> waits;
        if (exec.last != nullptr && !exec.last->done) waits.push_back(exec.last);
        exec.last = s.enqueue(*stream, {}, std::move(waits));
        exec.last->exec = it->second;
        for (const size_t i : laid_out(exec)) {
            exec.last = s.enqueue(*stream, exec.items[i].work);
            exec.last->exec = it->second;
        }
        return CUDA_SUCCESS;
    });
}

CUresult GraphExecDestroy(CUgraphExec handle) {
    return call({"cuGraphExecDestroy", kWhenLost}, [&](State &s, Lock &) {
        if (s.execs.erase(handle) == 1) return CUDA_SUCCESS;
        s.violation("cuGraphExecDestroy: %p is no executable graph", static_cast<void *>(handle));
        return CUDA_ERROR_INVALID_VALUE;
    });
}

// ---- User objects ------------------------------------------------------------------------------

UserObject *find_object(State &s, CUuserObject handle, const char *call) {
    const auto it = s.objects.find(handle);
    if (it != s.objects.end()) return it->second.get();
    s.violation("%s: %p is no user object", call, static_cast<void *>(handle));
    return nullptr;
}

CUresult UserObjectCreate(CUuserObject *out, void *user, CUhostFn destroy, unsigned references,
                          unsigned flags) {
    return call({"cuUserObjectCreate", kWhenLost}, [&](State &s, Lock &) {
        if (out == nullptr || destroy == nullptr || references == 0 || references > INT32_MAX ||
            flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
            return CUDA_ERROR_INVALID_VALUE;
        auto object =
            std::make_unique<UserObject>(UserObject{destroy, user, references, references});
        *out = reinterpret_cast<CUuserObject>(object.get());
        s.objects[object.get()] = std::move(object);
        return CUDA_SUCCESS;
    });
}

CUresult UserObjectRelease(CUuserObject handle, unsigned count) {
    return call({"cuUserObjectRelease", kWhenLost}, [&](State &s, Lock &) {
        UserObject *object = find_object(s, handle, "cuUserObjectRelease");
        if (object == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
        if (count > object->creators) {
            s.violation("cuUserObjectRelease of %u references, of which there are %llu", count,
                        static_cast<unsigned long long>(object->creators));
            return CUDA_ERROR_INVALID_VALUE;
        }
        object->creators -= count;
        s.release(object, count);
        return CUDA_SUCCESS;
    });
}

CUresult GraphRetainUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count,
                               unsigned flags) {
    return call({"cuGraphRetainUserObject", kWhenLost}, [&](State &s, Lock &) {
        Graph *graph = find_graph(s, graph_handle);
        UserObject *object = find_object(s, handle, "cuGraphRetainUserObject");
        if (graph == nullptr || object == nullptr || count == 0 ||
            (flags & ~static_cast<unsigned>(CU_GRAPH_USER_OBJECT_MOVE)) != 0)
            return CUDA_ERROR_INVALID_VALUE;
        if (flags == CU_GRAPH_USER_OBJECT_MOVE) {
            if (count > object->creators) {
                s.violation("cuGraphRetainUserObject moves %u references, of which there are %llu",
                            count, static_cast<unsigned long long>(object->creators));
                return CUDA_ERROR_INVALID_VALUE;
            }
            object->creators -= count;
        } else {
            object->references += count;
        }
        graph->retained[object] += count;
        return CUDA_SUCCESS;
    });
}

}  // namespace

Exec::~Exec() { state().release(retained); }

void State::invalidate(Capture &capture, const char *why) {
    if (capture.invalid) return;
    capture.invalid = true;
    violation("the capture is invalidated by %s", why);
}

// Whether a call that might wait, or be ordered with other streams, may be made now; it ends the
// captures that forbid it.
CUresult State::check_safe(const char *name) {
    CUresult result = CUDA_SUCCESS;
    if (t_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return result;
    for (const auto &capture : captures) {
        const bool own = capture->thread == std::this_thread::get_id();
        const bool forbids = own ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
                                 : capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                       t_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (!forbids) continue;
        invalidate(*capture, name);
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

// The legacy stream waits for blocking streams, so that it cannot be used while one is captured.
CUresult State::check_legacy(const Stream &stream, const char *name) {
    if (stream.type != Stream::Type::kLegacy) return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    for (const auto &capture : captures) {
        if (!has_blocking_stream(*capture, stream.context)) continue;
        invalidate(*capture, (std::string(name) + " on the legacy stream").c_str());
        result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    return result;
}

CUresult State::add_captured(Stream &stream, Work work) {
    if (stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    stream.dependencies = {
        add_node(*this, *stream.capture->graph, std::move(work), true, stream.dependencies)};
    return CUDA_SUCCESS;
}

// A stream waits for an event, and one of the two is in a capture.
CUresult State::wait_captured(Stream &stream, Event &event) {
    Capture *const from = event.capture.get(), *const to = stream.capture.get();
    if (to != nullptr && to->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (from == nullptr) {
        if (event.record == nullptr) return CUDA_SUCCESS;
        invalidate(*to, "cuStreamWaitEvent with an event that was recorded outside it");
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (from->ended || from->invalid) {
        if (to != nullptr)
            invalidate(*to, "cuStreamWaitEvent with an event of a capture that is over");
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (stream.type == Stream::Type::kLegacy) {
        invalidate(*from, "cuStreamWaitEvent on the legacy stream");
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (to == nullptr) {
        stream.capture = event.capture;
        stream.dependencies.clear();
        from->streams.push_back(&stream);
    } else if (to != from) {
        invalidate(*to, "cuStreamWaitEvent with an event of another capture");
        invalidate(*from, "cuStreamWaitEvent in another capture");
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    unite(stream.dependencies, event.captured);
    return CUDA_SUCCESS;
}

// The graph stays, unless the capture is invalid. The caller holds a reference to the capture.
void State::end_capture(Capture &capture) {
    capture.ended = true;
    for (Stream *stream : capture.streams) {
        stream->dependencies.clear();
        stream->capture = nullptr;
    }
    std::erase_if(captures, [&](const auto &c) { return c.get() == &capture; });
    capture.graph->capturing = false;
    if (capture.invalid) destroy_graph(*this, *capture.graph);
}

void State::release(UserObject *object, uint64_t references) {
    object->references -= references;
    if (object->references != 0) return;
    destructors.emplace_back(object->destroy, object->user);
    objects.erase(object);
}

void State::release(const Retained &retained) {
    for (const auto &[object, references] : retained) release(object, references);
}

void add_graph_functions(std::vector<Function> &to) {
    FAKE_ADD(to, StreamBeginCapture, 10010, StreamBeginCapture);
    FAKE_ADD(to, StreamEndCapture, 10000, StreamEndCapture);
    FAKE_ADD(to, StreamGetCaptureInfo, 12030, StreamGetCaptureInfo);
    FAKE_ADD(to, StreamUpdateCaptureDependencies, 12030, StreamUpdateCaptureDependencies);
    FAKE_ADD(to, ThreadExchangeStreamCaptureMode, 10010, ThreadExchangeStreamCaptureMode);
    FAKE_ADD(to, LaunchKernel, 4000, LaunchKernel);
    FAKE_ADD(to, LaunchKernelEx, 11060, LaunchKernelEx);
    FAKE_ADD(to, GraphAddKernelNode, 12000, GraphAddKernelNode);
    FAKE_ADD(to, GraphDestroy, 10000, GraphDestroy);
    FAKE_ADD(to, GraphInstantiateWithFlags, 11040, GraphInstantiateWithFlags);
    to.push_back(
        {"cuGraphInstantiate", 12000, reinterpret_cast<void *>(GraphInstantiateWithFlags)});
    FAKE_ADD(to, GraphLaunch, 10000, GraphLaunch);
    FAKE_ADD(to, GraphExecDestroy, 10000, GraphExecDestroy);
    FAKE_ADD(to, UserObjectCreate, 11030, UserObjectCreate);
    FAKE_ADD(to, UserObjectRelease, 11030, UserObjectRelease);
    FAKE_ADD(to, GraphRetainUserObject, 11030, GraphRetainUserObject);
}

}  // namespace fake
