// Filing: everything that happens to rows after they were issued, done by one thread at a time in order of issue.
//
// The engine's thread appends to a log and goes on; the worker thread takes entries from it. A step waits until it has landed; an operation on a
// request waits only for the steps that were issued with that request before it, so that no request waits for another's step.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <variant>
#include <vector>

#include "backend.h"
#include "counters.h"
#include "forward_check.h"
#include "landing.h"
#include "mutex.h"
#include "routing.h"
#include "rows.h"
#include "steps.h"

namespace routecap {

// The rows of a request, and the routing that they become when it is finished: made together, so that finishing allocates nothing. It lives as
// long as there are references to the routing. An open request has two, which are its user's and its filer's once it is finished, so that
// finishing counts nothing either: a locked instruction there would wait for every line that was written before.
struct Captured {
    RowStore rows;
    alignas(64) Routing routing;  // the engine's thread writes it while a worker files rows

    Captured(const ContextPtr &context, RowStore::Policy policy, bool compare) : rows(context, policy, compare), routing(context, this, 2) {}
};
template <uint32_t references>
struct CapturedRelease {
    void operator()(const Captured *captured) const { captured->routing.release(references); }
};
using CapturedPtr = std::unique_ptr<Captured, CapturedRelease<1>>;
using OpenPtr = std::unique_ptr<Captured, CapturedRelease<2>>;  // an open request's

// What can be in the log. Pointers to a RowStore are valid until the Finish or Close of its request was applied.
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
    uint64_t pages;  // that the request no longer counts
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
struct Finish {
    CapturedPtr captured;
    uint64_t end;
    bool all;  // the routing ends where the rows do
};
struct Close {
    OpenPtr captured;
};

struct LogEntry {
    uint64_t after;  // the step that must have been filed before
    std::variant<FileStep, Settle, Truncate, Fork, Attach, Finish, Close> what;

    template <class What>
    LogEntry(uint64_t a, What w) : after(a), what(std::in_place_type<What>, std::move(w)) {}
};

class Filing {
public:
    // `mutex` is the capturer's: it guards the log.
    Filing(QuickMutex &mutex, ContextPtr context, Backend &backend, Steps &steps, Counters &counters);

    // Starts the worker thread, or lets whoever waits do its work.
    // FORWARD: in checked mode, before start().
    void set_check(ForwardCheck *check) { check_ = check; }
    int32_t start(bool manual);
    // Files everything that was issued, then stops. No call may follow.
    void stop();
    bool manual() const { return manual_; }

    // With the mutex held. Room is made first, so that append cannot fail.
    void make_room(size_t entries = 1) {
        if (log_.size() + entries > log_.capacity()) log_.reserve(std::max(2 * log_.capacity(), log_.size() + entries));
    }
    // Starts fetching where the entries go that come after the next `ahead`: a worker's core has it.
    void prefetch_log(size_t ahead) const {
        if (log_.size() + ahead < log_.capacity()) __builtin_prefetch(log_.data() + log_.size() + ahead, 1);
    }
    template <class What>
    void append(uint64_t after, What what) {
        log_.emplace_back(after, std::move(what));
    }
    // After the mutex was released, where something was appended.
    void wake() {
        signal_.fetch_add(1, std::memory_order_release);
        signal_.notify_one();
    }

    // Applies what can be applied. True if nothing is left.
    bool progress();

private:
    void work();
    bool apply(LogEntry &entry);
    void fetch_waiting();
    void file(int32_t slot);
    Filed file(Step &step, StepSpan &span, const SlotContents &contents);
    void tally(const uint8_t *ids, const uint8_t *validity);
    void finish_tally();
    void count(const Filed &filed);
    RowSource source(uint8_t *slot, uint32_t row) const;

    QuickMutex &mutex_;
    const ContextPtr context_;
    const Shape *const shape_;
    ForwardCheck *check_ = nullptr;
    Backend &backend_;
    Steps &steps_;
    Counters &counters_;
    std::vector<LogEntry> log_;  // guarded by mutex_
    std::atomic<int32_t> signal_{0};
    std::atomic<bool> stop_{false};
    bool manual_ = false;
    std::thread worker_;
    bool short_of_memory_ = false;  // the last look at the log ended early

    // Only whoever files touches these.
    std::vector<LogEntry> pending_;
    uint64_t newest_ = 0;   // the last step that was issued
    uint32_t looks_ = 0;    // since then
    uint64_t fetched_ = 0;  // the last step whose rows' places were fetched before it landed
    std::vector<uint64_t> unwritten_, invalid_;  // of the step being filed, per layer
    uint32_t refused_at_end_ = 0;                // times that memory was refused since stop
    uint64_t tallied_ = 0;                       // rows of it
    bool any_missing_ = false;
};

}  // namespace routecap
