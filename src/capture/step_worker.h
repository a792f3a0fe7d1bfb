// The step worker files the steps that have landed and applies operations to requests, one thread
// at a time, in the order of the log.
//
// The engine's thread appends to the log and goes on; the worker thread takes entries from it. A
// step waits until it has landed. An operation waits only for the steps that were issued with its
// request before, so that no request waits for another's step. Three kinds of calls may file
// in the worker's place: begin, if on the host as many steps are in flight as may be; issue, if the
// budget is exhausted; and reads, which apply the operations of their request.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "base/completion.h"
#include "base/counters.h"
#include "base/event_count.h"
#include "capture/fault_reporter.h"
#include "capture/filing_lock.h"
#include "capture/forward_check.h"
#include "capture/poll_schedule.h"
#include "capture/registry.h"
#include "capture/steps.h"
#include "load/load_counter.h"

namespace routecap {

class StepWorker {
public:
    // `number` is the capturer's; `load` is null unless the load is counted.
    StepWorker(uint64_t number, Registry &registry, StoragePtr storage, Backend &backend,
               Steps &steps, Counters &counters, LoadCounter *load);

    // In checked mode, before start(): who hears of slips that the device saw.
    void set_check(ForwardCheck *check) { check_ = check; }
    // Starts the worker thread; with manual progress, threads that wait do its work.
    int32_t start(bool manual);
    // Files everything that was issued, then stops. No call may follow.
    void stop();
    bool manual() const { return manual_; }

    // To be called without the mutex, after something was appended.
    void wake() { events_.notify(); }
    // The same for a thread that waits for what the worker will do.
    void call() { events_.notify_urgent(); }

    // Files and applies all that is ready. True if nothing is left.
    bool progress();
    // The same on the engine's thread, until one step was filed. It may wait until the worker has
    // filed one.
    void file_one_step();
    // Applies the operations that wait for no step. It may wait until the worker has filed one.
    void apply_operations() { file_until(Until::operations_applied); }
    // Applies what gives memory back. With manual progress it files no step.
    void reclaim();
    // Calls f() while nobody files. On any thread.
    template <class F>
    auto between_steps(F f) {
        const FilingGuard filing(filing_);
        return f();
    }

private:
    enum class Until { all_applied, step_filed, operations_applied };

    void work();
    const Step *oldest() REQUIRES(filing_);
    void report_faults(Lines &lines, bool end) REQUIRES(filing_);
    bool file_until(Until until);
    bool apply_ready(Until until) REQUIRES(filing_);
    bool take_log() REQUIRES(filing_);
    bool apply(LogEntry &entry) REQUIRES(filing_);
    bool finish(Finish &finish) REQUIRES(filing_);
    void release_early(LogEntry &entry) REQUIRES(filing_);
    void file_step(int32_t slot) REQUIRES(filing_);
    void file_span(const Step &step, StepSpan &span, const SlotContents &contents, bool failed,
                   RowOutcomes &filed) REQUIRES(filing_);
    struct LandedSpan;
    uint64_t place(const LandedSpan &landed, uint32_t r, RowOutcomes &filed) REQUIRES(filing_);
    void miss_span(const LandedSpan &landed, int32_t reason, uint64_t &missed, RowOutcomes &filed)
        REQUIRES(filing_);
    void file_drafts(const LandedSpan &landed, RowOutcomes &filed) REQUIRES(filing_);
    void file_settled(const LandedSpan &landed, RowOutcomes &filed) REQUIRES(filing_);
    void tally(const uint8_t *row) REQUIRES(filing_);
    void finish_tally(uint64_t step, int32_t slip) REQUIRES(filing_);
    void count(const RowOutcomes &filed);
    void count_settled(const RowOutcomes &filed);

    const uint64_t number_;
    Registry &registry_;
    const StoragePtr storage_;
    const Shape *const shape_;
    ForwardCheck *check_ = nullptr;
    Backend &backend_;
    Steps &steps_;
    Counters &counters_;
    LoadCounter *const load_;
    EventCount events_;
    std::atomic<bool> stop_{false};
    bool manual_ = false;
    std::thread worker_;

    FilingLock filing_;  // no thread takes it while it holds a mutex
    // Lenders' pages, to be freed without the lock, by the worker thread if there is one.
    DeferredPages released_;
    // What was taken from the log, in order: first the entries that waited before.
    std::vector<LogEntry> pending_ GUARDED_BY(filing_), taken_ GUARDED_BY(filing_);
    PollSchedule schedule_ GUARDED_BY(filing_);
    FaultReporter reporter_ GUARDED_BY(filing_);
    bool slept_ GUARDED_BY(filing_) = false;  // the worker slept while the next step landed
    struct Tally {
        uint64_t unwritten, out_of_range, duplicate;
        uint64_t missing() const { return unwritten + out_of_range + duplicate; }
    };
    std::vector<Tally> tallies_ GUARDED_BY(filing_);   // of the step being filed, per layer
    uint32_t refused_at_end_ GUARDED_BY(filing_) = 0;  // times that memory was refused since stop
    uint64_t tallied_ GUARDED_BY(filing_) = 0;         // rows of it
    bool any_missing_ GUARDED_BY(filing_) = false;
};

}  // namespace routecap
