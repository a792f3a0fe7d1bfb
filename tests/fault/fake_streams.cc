// The fake driver's streams and events, and the scheduler that runs what was enqueued.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "fake_state.h"

namespace fake {
namespace {

constexpr int kDeviceThreads = 4;

// Kernels of the library count without atomics on the host: one of them at a time.
std::mutex &kernel_mutex() {
    static auto *const mutex = new std::mutex;
    return *mutex;
}

void perform(const Work &work) {
    switch (work.kind) {
        case Work::Kind::kNothing:
        case Work::Kind::kWait: return;
        case Work::Kind::kCopy:
            if (work.bytes != 0) std::memmove(work.to, work.from, work.bytes);
            return;
        case Work::Kind::kSet:
            for (size_t b = 0; b < work.bytes; b += work.width)
                std::memcpy(static_cast<std::byte *>(work.to) + b, &work.value, work.width);
            return;
        case Work::Kind::kWrite:
            std::atomic_ref(*static_cast<uint64_t *>(work.to))
                .store(work.value, std::memory_order_release);
            return;
        case Work::Kind::kHost: work.host(work.user); return;
        case Work::Kind::kKernel: {
            Lock lock(kernel_mutex(), std::defer_lock);
            if (work.kernel->of_library) lock.lock();
            work.kernel->run(work.data.get(), work.kernel->user);
        }
    }
}

// What must run for ops to complete, ops included.
void add_needed(const OpPtr &op, std::unordered_set<const Op *> &needed) {
    if (op->done || needed.contains(op.get())) return;
    for (const OpPtr &before : op->stream->queue) {
        if (!before->done && needed.insert(before.get()).second)
            for (const OpPtr &other : before->waits) add_needed(other, needed);
        if (before == op) return;
    }
}

std::unordered_set<const Op *> needed_for(const std::vector<OpPtr> &ops) {
    std::unordered_set<const Op *> needed;
    for (const OpPtr &op : ops)
        if (op != nullptr) add_needed(op, needed);
    return needed;
}

bool all_done(const std::vector<OpPtr> &ops) {
    return std::all_of(ops.begin(), ops.end(),
                       [](const OpPtr &op) { return op == nullptr || op->done; });
}

// ---- Streams -----------------------------------------------------------------------------------

CUresult StreamCreate(CUstream *out, unsigned flags) {
    return call({"cuStreamCreate"}, [&](State &s, Lock &) {
        if (out == nullptr || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0)
            return CUDA_ERROR_INVALID_VALUE;
        *out = reinterpret_cast<CUstream>(
            s.make_stream(current(), Stream::Type::kCreated, flags == CU_STREAM_DEFAULT));
        return CUDA_SUCCESS;
    });
}

CUresult StreamDestroy(CUstream handle) {
    return call({"cuStreamDestroy", kNothing, handle}, [&](State &s, Lock &) {
        if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
            return CUDA_ERROR_INVALID_HANDLE;
        Stream *stream;
        if (const CUresult r = s.find_stream(handle, stream); r != CUDA_SUCCESS) return r;
        if (const auto capture = stream->capture; capture != nullptr && capture->origin == stream) {
            s.invalidate(*capture, "cuStreamDestroy of the stream on which it began");
            s.end_capture(*capture);
        }
        stream->destroyed = true;
        return CUDA_SUCCESS;
    });
}

// Whether a stream may be asked whether its work is done.
CUresult check_asking(State &s, const Stream &stream, const char *call) {
    if (stream.capture != nullptr) {
        s.invalidate(*stream.capture, call);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (const CUresult r = s.check_legacy(stream, call); r != CUDA_SUCCESS) return r;
    return s.check_safe(call);
}

CUresult StreamSynchronize(CUstream handle) {
    return call({"cuStreamSynchronize", kNothing, handle}, [&](State &s, Lock &lock) {
        Stream *stream;
        if (const CUresult r = s.find_stream(handle, stream); r != CUDA_SUCCESS) return r;
        if (const CUresult r = check_asking(s, *stream, "cuStreamSynchronize"); r != CUDA_SUCCESS)
            return r;
        return s.wait(lock, s.tails(*stream));
    });
}

CUresult StreamQuery(CUstream handle) {
    return call({"cuStreamQuery", kNothing, handle}, [&](State &s, Lock &lock) {
        Stream *stream;
        if (const CUresult r = s.find_stream(handle, stream); r != CUDA_SUCCESS) return r;
        if (const CUresult r = check_asking(s, *stream, "cuStreamQuery"); r != CUDA_SUCCESS)
            return r;
        return s.completed(lock, s.tails(*stream)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    });
}

CUresult CtxSynchronize() {
    return call({"cuCtxSynchronize"}, [&](State &s, Lock &lock) {
        bool captured = false;
        for (const auto &capture : s.captures) {
            if (capture->origin->context != current()) continue;
            s.invalidate(*capture, "cuCtxSynchronize");
            captured = true;
        }
        if (captured) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        return s.wait(lock, s.tails(*current()));
    });
}

CUresult StreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags) {
    return call({"cuStreamWaitEvent", kNothing, handle}, [&](State &s, Lock &) {
        Stream *stream;
        Event *event;
        if (const CUresult r = s.find_stream(handle, stream); r != CUDA_SUCCESS) return r;
        if (const CUresult r = s.find_event(event_handle, event); r != CUDA_SUCCESS) return r;
        if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
        if (const CUresult r = s.check_legacy(*stream, "cuStreamWaitEvent"); r != CUDA_SUCCESS)
            return r;
        if (event->capture != nullptr || stream->capture != nullptr)
            return s.wait_captured(*stream, *event);
        if (event->record != nullptr) s.enqueue(*stream, {}, {event->record});
        return CUDA_SUCCESS;
    });
}

CUresult LaunchHostFunc(CUstream handle, CUhostFn function, void *user) {
    return call({"cuLaunchHostFunc", kNothing, handle}, [&](State &s, Lock &) {
        Stream *stream;
        if (const CUresult r = s.find_stream(handle, stream); r != CUDA_SUCCESS) return r;
        if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
        Work work;
        work.kind = Work::Kind::kHost;
        work.host = function;
        work.user = user;
        return s.submit(*stream, std::move(work), "cuLaunchHostFunc");
    });
}

// ---- Events ------------------------------------------------------------------------------------

CUresult EventCreate(CUevent *out, unsigned flags) {
    return call({"cuEventCreate"}, [&](State &s, Lock &) {
        constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
        if (out == nullptr || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
        auto event = std::make_unique<Event>(Event{current()});
        *out = reinterpret_cast<CUevent>(event.get());
        s.events[event.get()] = std::move(event);
        return CUDA_SUCCESS;
    });
}

CUresult EventDestroy(CUevent handle) {
    return call({"cuEventDestroy", kNothing}, [&](State &s, Lock &) {
        Event *event;
        if (const CUresult r = s.find_event(handle, event); r != CUDA_SUCCESS) return r;
        *event = Event{event->context, true};
        return CUDA_SUCCESS;
    });
}

CUresult EventRecord(CUevent handle, CUstream stream_handle) {
    return call({"cuEventRecord", kNothing, stream_handle}, [&](State &s, Lock &) {
        Stream *stream;
        Event *event;
        if (const CUresult r = s.find_stream(stream_handle, stream); r != CUDA_SUCCESS) return r;
        if (const CUresult r = s.find_event(handle, event); r != CUDA_SUCCESS) return r;
        if (event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
        if (const CUresult r = s.check_legacy(*stream, "cuEventRecord"); r != CUDA_SUCCESS)
            return r;
        if (stream->capture != nullptr) {
            if (stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
            event->record = nullptr;
            event->capture = stream->capture;
            event->captured = stream->dependencies;
            return CUDA_SUCCESS;
        }
        event->capture = nullptr;
        event->captured.clear();
        event->record = s.enqueue(*stream, {});
        return CUDA_SUCCESS;
    });
}

}  // namespace

void delay() {
    const int limit = state().longest_delay;
    if (limit == 0) return;
    thread_local std::minstd_rand random(
        static_cast<unsigned>(std::hash<std::thread::id>{}(std::this_thread::get_id())));
    if (random() % 4 == 0)
        std::this_thread::sleep_for(
            std::chrono::microseconds(random() % static_cast<unsigned>(limit)));
}

Stream *State::make_stream(Context *context, Stream::Type type, bool blocking) {
    auto stream = std::make_unique<Stream>();
    stream->context = context;
    stream->type = type;
    stream->blocking = blocking;
    Stream *const made = stream.get();
    streams[made] = std::move(stream);
    return made;
}

CUresult State::find_stream(CUstream handle, Stream *&stream) {
    Context *const context = current();
    if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
        if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
        if (handle == CU_STREAM_PER_THREAD) {
            Stream *&own = context->per_thread[std::this_thread::get_id()];
            if (own == nullptr) own = make_stream(context, Stream::Type::kThread, true);
            stream = own;
        } else {
            stream = context->legacy;
        }
        return CUDA_SUCCESS;
    }
    const auto it = streams.find(handle);
    if (it == streams.end() || it->second->destroyed) {
        violation("%p is %s stream", static_cast<const void *>(handle),
                  it == streams.end() ? "no" : "a destroyed");
        return CUDA_ERROR_INVALID_HANDLE;
    }
    stream = it->second.get();
    return stream->context->destroyed ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

CUresult State::find_event(CUevent handle, Event *&event) {
    const auto it = events.find(handle);
    if (it == events.end() || it->second->destroyed) {
        violation("%p is %s event", static_cast<const void *>(handle),
                  it == events.end() ? "no" : "a destroyed");
        return CUDA_ERROR_INVALID_HANDLE;
    }
    event = it->second.get();
    return event->context->destroyed ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

// Work in the legacy stream comes after all earlier work in blocking streams of its context, and
// before all later work there.
OpPtr State::enqueue(Stream &stream, Work work, std::vector<OpPtr> waits) {
    const auto add = [&](const OpPtr &op) {
        if (op != nullptr && !op->done) waits.push_back(op);
    };
    if (stream.type == Stream::Type::kLegacy) {
        for (const Stream *other : working)
            if (other->context == stream.context && other->blocking) add(other->tail);
    } else if (stream.blocking) {
        add(stream.context->legacy->tail);
    }
    auto op =
        std::make_shared<Op>(Op{operations++, &stream, std::move(work), std::move(waits), nullptr});
    if (stream.queue.empty()) working.push_back(&stream);
    stream.queue.push_back(op);
    stream.tail = op;
    if (execution == FAKE_CUDA_THREADS) changed.notify_all();
    return op;
}

// Adds work to a stream or, if that is being captured, to its graph.
CUresult State::submit(Stream &stream, Work work, const char *call) {
    if (const CUresult r = check_legacy(stream, call); r != CUDA_SUCCESS) return r;
    if (stream.capture == nullptr) {
        enqueue(stream, std::move(work));
        return CUDA_SUCCESS;
    }
    if (work.kind == Work::Kind::kWrite) {
        invalidate(*stream.capture, call);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return add_captured(stream, std::move(work));
}

bool State::can_run(const Stream &stream, bool whatever_is_held) const {
    if (lost || stream.busy || stream.queue.empty()) return false;
    if (!whatever_is_held && stream.held != Stream::Held::kReleased &&
        (held || stream.held == Stream::Held::kHeld))
        return false;
    return all_done(stream.queue.front()->waits);
}

size_t State::run(Lock &lock, size_t limit, const Stream *only, bool whatever_is_held,
                  const std::unordered_set<const Op *> *needed) {
    size_t count = 0;
    std::vector<Stream *> ready;
    for (; count < limit; count++) {
        ready.clear();
        for (Stream *stream : working)
            if ((only == nullptr || stream == only) && can_run(*stream, whatever_is_held) &&
                (needed == nullptr || needed->contains(stream->queue.front().get())))
                ready.push_back(stream);
        if (ready.empty()) return count;
        const auto older = [](const Stream *a, const Stream *b) {
            return a->queue.front()->number < b->queue.front()->number;
        };
        Stream *const stream =
            order == FAKE_CUDA_OLDEST   ? *std::min_element(ready.begin(), ready.end(), older)
            : order == FAKE_CUDA_NEWEST ? *std::max_element(ready.begin(), ready.end(), older)
                                        : ready[random() % ready.size()];
        const OpPtr op = stream->queue.front();
        if (check(op->work, "when its turn came")) {
            stream->busy = true;
            const bool on_its_own_thread = execution == FAKE_CUDA_THREADS;
            outside(lock, "a kernel or host function", [&] {
                if (on_its_own_thread) delay();
                perform(op->work);
            });
            stream->busy = false;
        }
        stream->queue.pop_front();
        if (stream->queue.empty()) std::erase(working, stream);
        op->done = true;
        op->work = {};
        op->waits.clear();
        op->exec.reset();
        changed.notify_all();
    }
    return count;
}

CUresult State::wait(Lock &lock, const std::vector<OpPtr> &ops) {
    for (;;) {
        if (lost) return CUDA_ERROR_LAUNCH_FAILED;
        if (all_done(ops)) return CUDA_SUCCESS;
        if (execution == FAKE_CUDA_LAZY) {
            const auto needed = needed_for(ops);
            if (run(lock, 1, nullptr, false, &needed) != 0) continue;
        } else if (execution == FAKE_CUDA_AT_ONCE && run(lock, SIZE_MAX) != 0) {
            // What this very call has enqueued.
            continue;
        }
        changed.wait(lock);
    }
}

bool State::completed(Lock &lock, const std::vector<OpPtr> &ops) {
    if (all_done(ops)) return true;
    if (execution == FAKE_CUDA_LAZY) {
        const auto needed = needed_for(ops);
        run(lock, 1, nullptr, false, &needed);
    }
    return false;
}

std::vector<OpPtr> State::tails(const Stream &stream) const {
    std::vector<OpPtr> all{stream.tail};
    if (stream.type == Stream::Type::kLegacy) {
        for (const Stream *other : working)
            if (other->context == stream.context && other->blocking) all.push_back(other->tail);
    }
    return all;
}

std::vector<OpPtr> State::tails(const Context &context) const {
    std::vector<OpPtr> all;
    for (const Stream *stream : working)
        if (stream->context == &context) all.push_back(stream->tail);
    return all;
}

void State::set_execution(Lock &lock, int how) {
    execution = how;
    changed.notify_all();
    while (how == FAKE_CUDA_THREADS && device_threads < kDeviceThreads) {
        device_threads++;
        std::thread([this] {
            Lock own(mutex);
            while (execution == FAKE_CUDA_THREADS) {
                const size_t count = run(own, SIZE_MAX);
                leave(own);
                if (count == 0 && execution == FAKE_CUDA_THREADS) changed.wait(own);
            }
            device_threads--;
            changed.notify_all();
        }).detach();
    }
    if (how != FAKE_CUDA_THREADS && t_inside == nullptr)
        changed.wait(lock, [this] { return device_threads == 0; });
}

void add_stream_functions(std::vector<Function> &to) {
    FAKE_ADD(to, StreamCreate, 2000, StreamCreate);
    FAKE_ADD(to, StreamDestroy, 4000, StreamDestroy);
    FAKE_ADD(to, StreamSynchronize, 2000, StreamSynchronize);
    FAKE_ADD(to, StreamQuery, 2000, StreamQuery);
    FAKE_ADD(to, StreamWaitEvent, 3020, StreamWaitEvent);
    FAKE_ADD(to, CtxSynchronize, 2000, CtxSynchronize);
    FAKE_ADD(to, LaunchHostFunc, 10000, LaunchHostFunc);
    FAKE_ADD(to, EventCreate, 2000, EventCreate);
    FAKE_ADD(to, EventDestroy, 4000, EventDestroy);
    FAKE_ADD(to, EventRecord, 2000, EventRecord);
}

}  // namespace fake
