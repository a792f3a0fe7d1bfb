// What the fake driver is made of, and the one mutex that guards it. The first lines of
// fake_cuda.cc say what it is.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "fake_cuda.h"

namespace fake {

using Lock = std::unique_lock<std::mutex>;

struct Stream;
struct Graph;
struct Exec;
struct Capture;

// A primary context from its first retain to its last release.
struct Context {
    int device;
    uint32_t references = 1;
    bool destroyed = false;
    Stream *legacy = nullptr;
    std::map<std::thread::id, Stream *> per_thread = {};
};

struct Kernel {
    std::string name;
    size_t bytes;  // of its one parameter
    void (*run)(const void *params, void *user);
    void *user;
    unsigned max_threads;  // of a block
    // One of kernels/list.h: its body counts without atomics, so that two of them never run at
    // once.
    bool of_library;
    // Whose address is its CUfunction; that of the kernel itself is its CUkernel.
    char function = 0;
};

// What an operation does when its turn comes.
struct Work {
    enum class Kind { kNothing, kKernel, kCopy, kSet, kWrite, kWait, kHost };
    Kind kind = Kind::kNothing;
    const Kernel *kernel = nullptr;
    // A copy of the kernel's parameter, or of pageable memory to copy from.
    std::shared_ptr<const std::byte[]> data;
    void *to = nullptr;
    const void *from = nullptr;  // kCopy, kWait
    size_t bytes = 0;
    uint64_t value = 0;  // kSet: what every `width` bytes become; kWrite, kWait: the word
    uint32_t width = 1;
    bool any_to = false;      // `to` may be memory that the driver does not know
    bool any_from = false;    // likewise
    CUhostFn host = nullptr;  // kHost
    void *user = nullptr;
};

// One operation in a stream.
struct Op {
    uint64_t number;  // in order of enqueueing
    Stream *stream;
    Work work;
    // What must have completed, beside what is before it in its stream.
    std::vector<std::shared_ptr<Op>> waits;
    std::shared_ptr<Exec> exec;  // that this is a node of
    bool done = false;
};
using OpPtr = std::shared_ptr<Op>;

struct Node {
    Graph *graph;
    size_t number;  // in order of adding
    Work work;
    bool captured;             // from a stream, not added by name
    std::vector<Node *> from;  // the nodes that it depends on, each once
};
using Nodes = std::vector<Node *>;

// Handles of destroyed objects stay known, so that their use is seen.
struct Stream {
    enum class Type { kLegacy, kThread, kCreated };
    Context *context;
    Type type;
    bool blocking;  // waits for the legacy stream, and that for it
    bool destroyed = false;
    enum class Held { kAsAll, kHeld, kReleased } held = Held::kAsAll;
    std::deque<OpPtr> queue;
    bool busy = false;  // the front of the queue is running
    OpPtr tail;         // the operation enqueued last
    std::shared_ptr<Capture> capture;
    Nodes dependencies;             // of the next node that is captured
    std::vector<CUgraphNode> told;  // what cuStreamGetCaptureInfo returned last
    std::vector<CUgraphEdgeData> edges;
};

struct Event {
    Context *context;
    bool destroyed = false;
    OpPtr record = nullptr;  // the most recent one, if that was not captured
    // In which it was recorded most recently, and what was behind it there.
    std::shared_ptr<Capture> capture = nullptr;
    Nodes captured = {};
};

struct UserObject {
    CUhostFn destroy;
    void *user;
    uint64_t references;  // of the creator and of all graphs
    uint64_t creators;    // of those, the creator's
};

// References of a graph to user objects.
using Retained = std::unordered_map<UserObject *, uint64_t>;

struct Graph {
    std::vector<std::unique_ptr<Node>> nodes;
    Retained retained;
    bool capturing = false;
};

// A graph as it was when it was instantiated. Nodes are in the order in which they run, and name
// each other by that.
struct Exec {
    ~Exec();
    struct Item {
        Work work;
        std::vector<size_t> from;
        bool leaf;
    };
    Context *context;
    std::vector<Item> items;  // in order of adding
    Retained retained;
    OpPtr last;  // launches of one executable graph run one after another
};

struct Capture {
    uint64_t id;
    Graph *graph;
    Stream *origin;
    CUstreamCaptureMode mode;
    std::thread::id thread;
    std::vector<Stream *> streams;
    bool invalid = false;
    bool ended = false;
};

struct Allocation {
    size_t bytes;
    bool host;
    int device;
    Context *context;
    bool managed = false;
};

// What a call needs of the state in which it finds the driver.
enum Needs : unsigned {
    kNothing = 0,
    kContext = 1,    // a current context
    kUnsafe = 2,     // no capture that forbids calls which might wait
    kWhenLost = 4,   // works on a lost device
    kBeforeInit = 8  // works before cuInit
};

inline const CUstream kNoStream = reinterpret_cast<CUstream>(~uintptr_t{0});

struct CallInfo {
    const char *name;
    unsigned needs = kContext;
    CUstream stream = kNoStream;  // for the trace
    const char *detail = "";
};

struct Failure {
    std::string name;  // empty: any
    uint64_t in;       // calls until then
    CUresult result;
    bool stays;
    bool loses_device = false;
};

// Everything. Members are guarded by `mutex`; functions are called with it held.
struct State {
    State();

    std::mutex mutex;
    std::condition_variable changed;  // an operation completed, or may run now

    // Settings.
    int version = 13000;
    int devices = 2;
    std::map<int, int> attributes;
    int execution = FAKE_CUDA_AT_ONCE, order = FAKE_CUDA_OLDEST;
    std::mt19937_64 random;
    bool held = false;
    bool lost = false;
    int device_threads = 0;  // that run what was enqueued
    bool abort_on_violation = false;
    std::vector<Failure> failures;
    std::set<std::string, std::less<>> hidden;
    std::atomic<int> longest_delay{0};
    std::thread::id gate_thread;
    uint64_t gate_in = 0;  // calls of that thread until the one that waits; 0: none will
    bool at_gate = false;
    std::atomic<void (*)(const char *)> watch{nullptr};

    // What exists.
    bool initialised = false;
    std::map<int, Context *> primary;  // by device
    std::unordered_map<const void *, std::unique_ptr<Context>> contexts;
    std::unordered_map<const void *, std::unique_ptr<Stream>> streams;
    std::vector<Stream *> working;  // those with operations that have not completed
    std::unordered_map<const void *, std::unique_ptr<Event>> events;
    std::unordered_map<const void *, std::unique_ptr<Graph>> graphs;
    std::unordered_set<const void *> nodes;
    std::unordered_map<const void *, std::shared_ptr<Exec>> execs;
    std::unordered_map<const void *, std::unique_ptr<UserObject>> objects;
    std::vector<std::shared_ptr<Capture>> captures;
    std::map<uintptr_t, Allocation> allocations;
    std::deque<Kernel> kernels;
    std::vector<std::pair<CUhostFn, void *>> destructors;  // to be run
    uint64_t operations = 0, capture_ids = 0;

    // What was seen.
    std::map<std::string, uint64_t, std::less<>> counts;
    std::map<std::string, uint64_t, std::less<>>
        blocks;  // of the last launch or node of each kernel
    bool tracing = false, trace_all = false;
    std::thread::id trace_thread;
    std::string trace;
    std::vector<CUstream> trace_streams;
    uint64_t violations = 0;
    std::string violation_text;
    uint64_t failed_calls = 0;
    std::set<std::string, std::less<>> failed, asked;

    // fake_cuda.cc
    CUresult enter(const CallInfo &info);
    void leave(Lock &lock);
    void pass_gate(Lock &lock);
    [[gnu::format(printf, 2, 3)]] void violation(const char *format, ...);
    const Kernel *find_kernel(const void *handle) const;
    bool is_function(const void *handle) const;

    // fake_memory.cc
    const Allocation *find(const void *p, size_t bytes, uintptr_t *base = nullptr) const;
    bool check(const Work &work, const char *when);
    void free_memory_of(const Context *context);

    // fake_streams.cc
    Stream *make_stream(Context *context, Stream::Type type, bool blocking);
    CUresult find_stream(CUstream handle, Stream *&stream);
    CUresult find_event(CUevent handle, Event *&event);
    OpPtr enqueue(Stream &stream, Work work, std::vector<OpPtr> waits = {});
    CUresult submit(Stream &stream, Work work, const char *call);
    bool can_run(const Stream &stream, bool whatever_is_held) const;
    // Runs operations that can run, of one stream or of all, or only those needed for others;
    // returns how many.
    size_t run(Lock &lock, size_t limit, const Stream *only = nullptr,
               bool whatever_is_held = false,
               const std::unordered_set<const Op *> *needed = nullptr);
    CUresult wait(Lock &lock, const std::vector<OpPtr> &ops);
    bool completed(Lock &lock, const std::vector<OpPtr> &ops);
    std::vector<OpPtr> tails(const Stream &stream) const;  // what synchronising with it waits for
    std::vector<OpPtr> tails(const Context &context) const;
    void set_execution(Lock &lock, int how);

    // fake_graphs.cc
    void invalidate(Capture &capture, const char *why);
    CUresult check_safe(const char *call);  // of a call marked kUnsafe
    // Of a call that uses this stream.
    CUresult check_legacy(const Stream &stream, const char *call);
    CUresult add_captured(Stream &stream, Work work);
    CUresult wait_captured(Stream &stream, Event &event);
    void release(UserObject *object, uint64_t references);
    void release(const Retained &retained);
    void end_capture(Capture &capture);
};

State &state();

// The calling thread's current contexts, top last; its capture mode; what of the test it is inside,
// if not nullptr.
inline thread_local std::vector<Context *> t_contexts;
inline thread_local CUstreamCaptureMode t_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
inline thread_local const char *t_inside = nullptr;
inline thread_local bool t_exempt = false;  // from failures
inline thread_local bool t_calling = false;

inline Context *current() { return t_contexts.empty() ? nullptr : t_contexts.back(); }

// For as long as this lives the thread is within a call.
class Calling {
public:
    Calling() : before_(std::exchange(t_calling, true)) {}
    ~Calling() { t_calling = before_; }
    Calling(const Calling &) = delete;

private:
    const bool before_;
};

// Sleeps, if tests want that (fake_streams.cc).
void delay();

// Makes a call: what is common to all before and after body(lock).
template <class Body>
CUresult call(const CallInfo &info, Body body) {
    const Calling calling;
    State &s = state();
    if (const auto watch = s.watch.load(std::memory_order_relaxed); watch != nullptr)
        watch(info.name);
    delay();
    Lock lock(s.mutex);
    s.pass_gate(lock);
    CUresult result = s.enter(info);
    if (result == CUDA_SUCCESS) result = body(s, lock);
    s.leave(lock);
    return result;
}

// Runs a callback of the test or of the caller without the mutex.
template <class Callback>
void outside(Lock &lock, const char *what, Callback callback) {
    lock.unlock();
    const char *before = std::exchange(t_inside, what);
    callback();
    t_inside = before;
    lock.lock();
}

// A function of the driver: the version of its signature that is implemented, and where it is.
struct Function {
    const char *name;
    int version;
    void *address;
};
void add_memory_functions(std::vector<Function> &to);
void add_stream_functions(std::vector<Function> &to);
void add_graph_functions(std::vector<Function> &to);

// Adds `function`, of the type that cudaTypedefs.h gives it.
#define FAKE_ADD(to, name, version, function)                                   \
    do {                                                                        \
        const PFN_cu##name##_v##version typed = function;                       \
        (to).push_back({"cu" #name, version, reinterpret_cast<void *>(typed)}); \
    } while (false)

}  // namespace fake
