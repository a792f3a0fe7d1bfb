// The step worker: everything that happens to rows after they were issued, done by one thread at a
// time in order of issue.
//
// The engine's thread appends to a log and goes on; the worker thread takes entries from it. A step
// waits until it has landed; an operation on a request waits only for the steps that were issued
// with that request before it, so that no request waits for another's step. Two calls of the
// engine's thread may take the worker's turn: begin, where no slot is free on the host backend, and
// issue, where the budget is exhausted.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <variant>
#include <vector>

#include "backend/backend.h"
#include "base/bell.h"
#include "base/completion.h"
#include "base/counters.h"
#include "base/mutex.h"
#include "base/node_pool.h"
#include "capture/forward_check.h"
#include "capture/load_counter.h"
#include "capture/operation_log.h"
#include "capture/rhythm.h"
#include "capture/steps.h"
#include "capture/turn.h"
#include "capture/watch.h"
#include "routing/request_data.h"
#include "store/store.h"

namespace routecap {

// What can be in the log. Pointers to a RowStore are valid until the Finish or Close of its request
// was applied.
struct FileStep {
    int32_t slot;
};
struct Settle {
    RowStore *rows;
    uint64_t step;
    uint64_t keep_first;
    std::unique_ptr<std::vector<uint32_t>> kept;  // or null: the first keep_first
};
struct Truncate {
    RowStore *rows;
    uint64_t end;
    // Nothing that was handed over before changes the request's rows: what is there can go before
    // the steps in flight have landed.
    bool alone;
};
struct Fork {
    RowStore *parent;
    RowStore *child;
    uint64_t end;
};
struct Attach {
    RowStore *rows;
    RoutingPtr routing;
    uint64_t end;
};
struct Publish {
    RowStore *rows;
    std::shared_ptr<Publication> publication;
};
struct Adopt {
    RowStore *rows;
    std::unique_ptr<Adoption> adoption;
    uint64_t end;
};
struct Finish {
    RequestDataPtr data;
    uint64_t end;
    MissingNote *missing;  // nodes of the step worker's
    bool all;              // the routing ends where the rows do
};
struct Close {
    OpenRequestPtr data;
    bool alone;  // as in Truncate
};

struct LogEntry {
    uint64_t after;  // the step that must have been filed before
    std::variant<FileStep, Settle, Truncate, Fork, Attach, Publish, Adopt, Finish, Close> what;

    template <class What>
    LogEntry(uint64_t a, What &&w)
        : after(a), what(std::in_place_type<What>, std::forward<What>(w)) {}
};

class StepWorker {
public:
    using Log = OperationLog<LogEntry>;

    // `mutex` is the capturer's, of this number: it guards the log and the nodes.
    StepWorker(uint64_t number, QuickMutex &mutex, StoragePtr storage, Backend &backend,
               Steps &steps, Counters &counters);

    // In checked mode, before start(): who hears of slips that the device saw.
    void set_check(ForwardCheck *check) { check_ = check; }
    // Before start(): who counts the load.
    void set_load(LoadCounter *load) { load_ = load; }
    // Starts the worker thread, or lets whoever waits do its work.
    int32_t start(bool manual);
    // Files everything that was issued, then stops. No call may follow.
    void stop();
    bool manual() const { return manual_; }

    // The log and the nodes, with the mutex held.
    Log log;
    Nodes nodes;

    // After the mutex was released, where something was appended.
    void wake() { bell_.ring(); }
    // For who waits for what a worker would do.
    void call() { bell_.call(); }

    // Applies what can be applied. True if nothing is left.
    bool progress();
    // The same on the engine's thread, up to the first step: files one if one has landed. It may
    // wait until the worker has filed one.
    void file_one_step();
    // What waits for no step is applied. It may wait until the worker has filed one.
    void apply_operations() { with_turn(Until::operations_applied); }
    // And without a step, where there is no worker thread that files them: what has ended gives
    // back its memory.
    void reclaim();
    // Everything that has landed is counted, and handed over to who reads the load. On any thread.
    void hand_over_load();

    // For whoever looks from outside: what the worker thread does, and since when on Rhythm::Clock;
    // the step that is being filed by anybody, or 0; and how many entries were taken from the log
    // and wait.
    enum class Doing : uint8_t { starting, sleeping, dozing, filing, releasing, logging };
    struct State {
        Doing doing;
        Rhythm::Clock::time_point since;
        int32_t thread;  // the system's number of it
        uint64_t filing, taken;
    };
    State state() const;

private:
    enum class Until { all_applied, step_filed, operations_applied };

    void work();
    void does(Doing doing);
    const Step *oldest() const;
    void watch(Lines &lines, bool end);
    void doze_until_told(uint32_t rings);
    void tell(const Lines &lines);
    bool with_turn(Until until);
    bool apply_ready(Until until);
    void take_log();
    bool apply(LogEntry &entry);
    void release_early(LogEntry &entry);
    void file_step(int32_t slot);
    void count_load();
    void file_span(Step &step, uint32_t index, const SlotContents &contents, bool failed,
                   RowOutcomes &filed);
    RowOutcomes file_special(Step &step, uint32_t index, const SlotContents &contents, bool failed,
                             uint64_t cut, Charge charge);
    void tally(const uint8_t *ids, const uint8_t *validity);
    void finish_tally(uint64_t step, int32_t slip);
    void count(const RowOutcomes &filed);
    void count_settled(const RowOutcomes &filed);
    RowSource source(uint8_t *slot, uint32_t row) const;

    const uint64_t number_;
    QuickMutex &mutex_;
    const StoragePtr storage_;
    const Shape *const shape_;
    ForwardCheck *check_ = nullptr;
    LoadCounter *load_ = nullptr;
    Backend &backend_;
    Steps &steps_;
    Counters &counters_;
    Bell bell_;
    std::atomic<bool> stop_{false};
    bool manual_ = false;
    std::thread worker_;

    std::atomic<Doing> doing_{Doing::starting};
    std::atomic<Rhythm::Clock::rep> since_{0};
    std::atomic<int32_t> thread_{0};
    std::atomic<uint64_t> filing_{0}, waiting_{0};

    Turn turn_;  // whoever has it files; never taken while a mutex is held
    // Of lenders: freed without any mutex, by the worker if there is one.
    DeferredPages released_;
    // What follows belongs to whoever has the turn.
    Log::Block *taken_ = nullptr;  // of the log, not yet in pending_
    std::vector<LogEntry> pending_;
    MissingNote *used_notes_ = nullptr;  // to be given back with the log's mutex
    bool short_of_memory_ = false;       // the last look at the log ended early
    Rhythm rhythm_;
    Watch watch_;
    bool dozed_ = false;  // until now, for the next step
    struct Tally {
        uint64_t unwritten, out_of_range, duplicate;
        uint64_t missing() const { return unwritten + out_of_range + duplicate; }
    };
    std::vector<Tally> tallies_;            // of the step being filed, per layer
    int32_t uncounted_ = kernels::kNoSlot;  // the slot that holds rows whose load is to be counted
    uint32_t refused_at_end_ = 0;           // times that memory was refused since stop
    uint64_t tallied_ = 0;                  // rows of it
    bool any_missing_ = false;
};

}  // namespace routecap
