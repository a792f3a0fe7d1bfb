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
#include <vector>

#include "backend/backend.h"
#include "base/bell.h"
#include "base/completion.h"
#include "base/counters.h"
#include "capture/forward_check.h"
#include "capture/load_counter.h"
#include "capture/registry.h"
#include "capture/rhythm.h"
#include "capture/steps.h"
#include "capture/turn.h"
#include "capture/watch.h"
#include "prefix/store.h"

namespace routecap {

class StepWorker {
public:
    // `number` is the capturer's.
    StepWorker(uint64_t number, Registry &registry, StoragePtr storage, Backend &backend,
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
    // Calls f() while nobody files. On any thread.
    template <class F>
    auto between_steps(F f) {
        const TakenTurn turn(turn_);
        return f();
    }

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
    const Step *oldest() REQUIRES(turn_);
    void watch(Lines &lines, bool end) REQUIRES(turn_);
    void doze_until_told(uint32_t rings);
    void tell(const Lines &lines);
    bool with_turn(Until until);
    bool apply_ready(Until until) REQUIRES(turn_);
    void take_log() REQUIRES(turn_);
    bool apply(LogEntry &entry) REQUIRES(turn_);
    void release_early(LogEntry &entry) REQUIRES(turn_);
    void file_step(int32_t slot) REQUIRES(turn_);
    RowOutcomes file_span(const Step &step, StepSpan &span, const SlotContents &contents,
                          bool failed) REQUIRES(turn_);
    void tally(const uint8_t *ids, const uint8_t *validity) REQUIRES(turn_);
    void finish_tally(uint64_t step, int32_t slip) REQUIRES(turn_);
    void count(const RowOutcomes &filed);
    void count_settled(const RowOutcomes &filed);
    RowSource source(uint8_t *slot, uint32_t row) const;

    const uint64_t number_;
    Registry &registry_;
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
    Log::Block *pending_ GUARDED_BY(turn_) = nullptr;  // what was taken from the log, in order
    Rhythm rhythm_ GUARDED_BY(turn_);
    Watch watch_ GUARDED_BY(turn_);
    bool dozed_ GUARDED_BY(turn_) = false;  // until now, for the next step
    struct Tally {
        uint64_t unwritten, out_of_range, duplicate;
        uint64_t missing() const { return unwritten + out_of_range + duplicate; }
    };
    std::vector<Tally> tallies_ GUARDED_BY(turn_);   // of the step being filed, per layer
    uint32_t refused_at_end_ GUARDED_BY(turn_) = 0;  // times that memory was refused since stop
    uint64_t tallied_ GUARDED_BY(turn_) = 0;         // rows of it
    bool any_missing_ GUARDED_BY(turn_) = false;
};

}  // namespace routecap
