// What calls on a request do to each other. A later change makes this table larger. The model of
// the fuzz targets has each line but the last two, of which tests/api/budget.cc counts every byte.
// Each is broken in tests/fuzz/prove.sh or tests/planted.sh.
//
// An operation takes effect, for callers, when it is called. Here it is applied: in the order of
// the log, once the request's steps before it were filed (Request::after). Of another request it
// awaits those from which it takes rows: of the parent of a fork, of the publisher of an adopted
// block in flight, of the request of a pending routing that is attached. Rows that are held up
// cannot be read until then.
//
//   call             does to rows of earlier steps, landed or not    holds up
//   ---------------  ----------------------------------------------  --------------------------
//   lost or refused  notes why they are missing                      its span; of drafts nothing
//   accept           files the kept drafts, as if issued now;        each kept row; with device
//                    rejects the others of that step                 positions: their bounds
//   truncate(n)      drops rows from n on                            rows from n on
//   fork(n)          gives the child rows [0, n), but no drafts      the child's; the parent's
//                                                                    from take alone
//   publish          gives a store rows [first, end)                 these, from take alone
//   attach, adopt    fill missing cells of rows [first, end)         [first, end)
//   take             moves rows away at once: it is not in the log   nothing
//   finish(n)        makes a routing of [0, n), and drops drafts     the routing
//   close            drops rows and drafts                           nothing
//
//   meeting            what becomes of it
//   -----------------  -------------------------------------------------------------------------
//   truncate(n) after  An operation before it changes no row from n on, and so holds up none.
//     others
//   truncate and rows  They are late when they land, and nobody has them. Those before the end of
//     in flight        a fork or a publish that still waits, of their step or a later one, are
//                      filed, lent, and then dropped.
//   accept, then       The draft counts for the length up to n. In flight it is late; landed, it
//     truncate(n)      is filed and dropped.
//   truncate(n), then  The draft is late if it is kept, and otherwise rejected. It never counts
//     accept           for the length.
//   device positions   Until the span has landed (drafts: until accept is applied) its bounds
//                      count for the length, as far as they are not cut. Then the real positions
//                      do: that of a row that was cut in flight as if it had landed before, up to
//                      n. Rows outside the bounds count for nothing, lost rows with their bounds.
//   fork or publish,   take is refused as long as the other waits, which would not find the
//     then take        rows.
//   finish(n) and      Of settled rows, those from n on are late. Drafts that nobody accepted are
//     rows in flight   rejected, or late if a truncate had cut them.
//   early release      truncate and close free rows that landed before the steps in flight have,
//                      if no earlier operation waits but to say why rows are missing.
//   charges            A span's goes back when it is filed; of drafts, when they are settled,
//                      dropped or all cut. After a truncate or a take, the next span is charged
//                      for its page again; after a fork, a publish or a share, spans are that
//                      write rows which were lent. attach and adopt are not charged: their copies
//                      are refused where there is no room.
#include "capture/step_worker.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <new>
#include <system_error>
#include <type_traits>

#include "base/status.h"
#if defined(__linux__)
#include <pthread.h>
#include <sys/prctl.h>
#endif

namespace routecap {

using std::chrono::nanoseconds;

StepWorker::StepWorker(uint64_t number, Registry &registry, StoragePtr storage, Backend &backend,
                       Steps &steps, Counters &counters, LoadCounter *load)
    : number_(number),
      registry_(registry),
      storage_(std::move(storage)),
      shape_(storage_->shape.get()),
      backend_(backend),
      steps_(steps),
      counters_(counters),
      load_(load),
      reporter_(number, steps.most_in_flight(), *shape_, counters, *storage_->pool),
      tallies_(shape_->layers, Tally{}) {
    pending_.reserve(Registry::kRoom);
    taken_.reserve(Registry::kRoom);
}

int32_t StepWorker::start(bool manual) {
    manual_ = manual;
    if (manual) {
        storage_->completion->set_progress([this] { return progress(), true; });
        return ROUTECAP_OK;
    }
    try {
        worker_ = std::thread([this] { work(); });
    } catch (const std::system_error &error) {
        return report(ROUTECAP_ERR_THREAD, "the worker thread could not be started: %s",
                      error.what());
    }
    storage_->completion->set_progress([this] { return call(), false; });
    return ROUTECAP_OK;
}

void StepWorker::stop() {
    stop_.store(true, std::memory_order_release);
    if (manual_) {
        storage_->completion->set_progress({});
        while (!progress()) std::this_thread::yield();
    } else if (worker_.joinable()) {
        call();
        worker_.join();
        storage_->completion->set_progress({});
    }
    Lines lines;
    {
        const FilingGuard filing(filing_);
        report_faults(lines, true);
    }
    lines.tell();
}

// The oldest step that waits to be filed, or null.
const Step *StepWorker::oldest() {
    for (const LogEntry &entry : pending_)
        if (const FileStep *step = std::get_if<FileStep>(&entry.what); step != nullptr)
            return &steps_.step(step->slot);
    return nullptr;
}

// With the filing lock, or when no thread files any more.
void StepWorker::report_faults(Lines &lines, bool end) {
    if (!logs(ROUTECAP_LOG_WARNING)) return;
    const Step *step = oldest();
    reporter_.report(FaultReporter::Clock::now(), step != nullptr ? number(step->ticket) : 0,
                     step != nullptr ? step->issued_at : FaultReporter::Clock::time_point{}, lines,
                     end);
}

// With nothing to do the worker waits until something is appended. While a step is in flight it
// sleeps until shortly before that can have landed, then looks again and again, less often the
// longer it takes: no lock of the driver is touched to see what has landed.
void StepWorker::work() {
    constexpr nanoseconds kFirst{5'000}, kLongest{20'000}, kWorthSleeping{50'000};
    nanoseconds pause = kFirst;
#if defined(__linux__)
    char name[16];
    std::snprintf(name, sizeof name, "routecap.%llu", ull(number_));
    pthread_setname_np(pthread_self(), name);
    // Of pauses, in nanoseconds; the default is longer than they are.
    prctl(PR_SET_TIMERSLACK, 1000);
#endif
    for (;;) {
        const uint32_t seen = events_.events();
        const bool stop = stop_.load(std::memory_order_acquire);
        const uint64_t filed = counters_.steps_landed;
        if (progress()) {
            if (stop) return;
            events_.wait(seen);
            pause = kFirst;
            continue;
        }
        const bool some = filed != counters_.steps_landed;
        const bool awaited = storage_->completion->awaited();
        const auto now = PollSchedule::Clock::now();
        PollSchedule::Clock::time_point look{};
        {
            const FilingGuard filing(filing_);
            if (const Step *step = oldest(); step != nullptr)
                look = schedule_.next_poll(step->issued_at, now, awaited);
            slept_ = !stop && look > now + kWorthSleeping;
        }
        if (look > now + kWorthSleeping && !stop) {
            events_.wait_until(seen, look);
            pause = kLongest;
            continue;
        }
        pause = some ? kFirst : std::min(pause + pause / 4, kLongest);
        std::this_thread::sleep_for(pause);
    }
}

bool StepWorker::progress() {
    bool done = false;
    do {
        Lines lines;
        {
            DeferredPages::Scope later(released_);
            const FilingGuard filing(filing_);
            done = apply_ready(Until::all_applied);
            report_faults(lines, false);
        }
        lines.tell();
    } while (!done && filing_.is_urgent());
    released_.free();
    return done;
}

void StepWorker::file_one_step() { file_until(Until::step_filed); }

void StepWorker::reclaim() { file_until(manual_ ? Until::operations_applied : Until::all_applied); }

bool StepWorker::file_until(Until until) {
    bool done = false;
    {
        DeferredPages::Scope later(released_);
        const FilingGuard filing(filing_, true);
        done = apply_ready(until);
    }
    if (manual_)
        released_.free();
    else if (!released_.empty())
        events_.notify_urgent();
    return done;
}

// Takes over what was appended. False if there is no memory for all of it, and some stays.
bool StepWorker::take_log() {
    if (taken_.empty()) {
        const Lock lock(registry_.mutex);
        try {
            taken_.reserve(registry_.log.capacity());  // so that it need not grow again there
        } catch (const std::bad_alloc &) {
            if (registry_.promised > 0) return false;
        }
        taken_.swap(registry_.log);
    }
    if (pending_.empty()) {
        pending_.swap(taken_);
        return true;
    }
    try {
        reserve_amortized(pending_, pending_.size() + taken_.size());
    } catch (const std::bad_alloc &) {
        return false;
    }
    std::move(taken_.begin(), taken_.end(), std::back_inserter(pending_));
    taken_.clear();
    return true;
}

// With the filing lock. Applies what can be applied, in order; true if nothing is left.
bool StepWorker::apply_ready(Until until) {
    constexpr Ticket kLast{UINT64_MAX};
    const bool all_taken = take_log();
    Ticket blocked = kLast;  // the first step that has not landed
    bool applied = false, enough = false;
    uint32_t filed = 0;
    auto kept = pending_.begin(), at = kept;  // entries before `kept` stay
    for (; at != pending_.end() && !enough; ++at) {
        LogEntry &entry = *at;
        const FileStep *what = std::get_if<FileStep>(&entry.what);
        const bool ready = what != nullptr ? until != Until::operations_applied &&
                                                 blocked == kLast && backend_.landed(what->slot)
                                           : entry.after < blocked;
        if (ready && apply(entry)) {
            applied = true;
            entry.what = FileStep{};  // lets go of what it had, which is in the caches now
            filed += what != nullptr;
            const bool yield = until == Until::all_applied && filing_.is_urgent();
            enough = yield || (until == Until::step_filed && what != nullptr);
            continue;
        }
        if (ready) blocked = Ticket::none;  // without memory
        if (what != nullptr) blocked = std::min(blocked, steps_.step(what->slot).ticket);
        if (!ready) release_early(entry);
        if (kept != at) *kept = std::move(entry);
        ++kept;
    }
    pending_.erase(kept, at);
    reporter_.round(filed);
    if (applied) storage_->completion->notify();
    return all_taken && pending_.empty();
}

// Frees rows that a request gives up before the steps in flight have landed. The rows of these
// steps are cut.
void StepWorker::release_early(LogEntry &entry) {
    if (Close *close = std::get_if<Close>(&entry.what); close != nullptr && close->alone) {
        close->data->rows.drop(0);
    } else if (Truncate *truncate = std::get_if<Truncate>(&entry.what);
               truncate != nullptr && truncate->alone) {
        truncate->rows->drop(truncate->end);
    }
}

// Makes the routing of a request. False if there was no memory for it.
bool StepWorker::finish(Finish &finish) {
    RowStore &rows = finish.data->rows;
    const uint64_t end =
        finish.all ? std::max(finish.end, rows.progress.filing_placed()) : finish.end;
    std::vector<Segment> segments;
    try {
        const Lock lock(rows.mutex);
        segments = rows.share(0, end);
    } catch (const std::bad_alloc &) {
        // At the capturer's end, which must not wait for memory for ever.
        constexpr uint32_t kPatience = 100;
        if (!stop_.load(std::memory_order_relaxed) || ++refused_at_end_ < kPatience) return false;
    }
    count_settled(rows.drop_drafts(UINT64_MAX));
    rows.clear();
    finish.data->fill(0, end, std::move(segments));
    return true;
}

// False if there was no memory for it, and nothing has changed. Only a Finish needs any: everything
// else refuses rows instead.
bool StepWorker::apply(LogEntry &entry) {
    return std::visit(
        [&]<class What>(What &what) REQUIRES(filing_) {
            if constexpr (std::is_same_v<What, FileStep>) {
                file_step(what.slot);
            } else if constexpr (std::is_same_v<What, Miss>) {
                if (what.step == Ticket::none)
                    what.rows->note_missing(what.position, what.end, what.reason);
                else
                    what.rows->miss_draft({.step = what.step,
                                           .first_index = what.first_index,
                                           .position = what.position,
                                           .rows = what.drafts,
                                           .bounds_end = what.device_positions ? what.end : 0,
                                           .reason = what.reason});
            } else if constexpr (std::is_same_v<What, Settle>) {
                count_settled(what.rows->settle(
                    what.step,
                    what.kept ? std::span<const uint32_t>(*what.kept) : std::span<const uint32_t>(),
                    what.keep_first, load_));
            } else if constexpr (std::is_same_v<What, Truncate>) {
                what.rows->truncate(what.end);
            } else if constexpr (std::is_same_v<What, Fork>) {
                what.child->fork(*what.parent, what.end);
                what.child->progress.filing_applies();
                what.parent->progress.filing_applies();
            } else if constexpr (std::is_same_v<What, Attach>) {
                what.rows->attach(what.routing->segments(), what.end);
            } else if constexpr (std::is_same_v<What, Publish>) {
                const Publication &wants = *what.publication;
                std::vector<Segment> rows;
                try {
                    const Lock lock(what.rows->mutex);
                    rows = what.rows->lend(wants.first, wants.end);
                } catch (const std::bad_alloc &) {}
                what.publication->land(rows);
            } else if constexpr (std::is_same_v<What, Adopt>) {
                try {
                    what.rows->attach(what.adoption->take(), what.end);
                } catch (const std::bad_alloc &) {}  // its rows are missing
            } else if constexpr (std::is_same_v<What, Finish>) {
                return finish(what);
            } else if constexpr (std::is_same_v<What, Close>) {
                RowStore &rows = what.data->rows;
                count_settled(rows.drop_drafts(0));
                rows.clear();
            }
            if constexpr (requires { what.rows; }) what.rows->progress.filing_applies();
            return true;
        },
        entry.what);
}

void StepWorker::count(const RowOutcomes &filed) {
    counters_.rows_delivered += filed.delivered;
    counters_.rows_missing += filed.missing;
    counters_.rows_refused += filed.refused;
    counters_.rows_rejected += filed.rejected;
    counters_.rows_late += filed.late;
    counters_.rows_unplaced += filed.unplaced;
    counters_.rows_lost += filed.lost;
    counters_.rows_provisional += filed.provisional;
    counters_.rows_overlapped += filed.overlapped;
    counters_.rows_mismatched += filed.mismatched;
}

// Of drafts that were provisional until now.
void StepWorker::count_settled(const RowOutcomes &filed) {
    counters_.rows_provisional -=
        filed.delivered + filed.missing + filed.refused + filed.rejected + filed.late;
    count(filed);
}

// ---- A step ---------------------------------------------------------------------------------

void StepWorker::file_step(int32_t slot) {
    Step &step = steps_.step(slot);
    schedule_.landed(step.issued_at, PollSchedule::Clock::now(), std::exchange(slept_, false));
    const SlotContents contents = backend_.contents(slot);
    const char *failure = backend_.failure(slot);
    if (load_ != nullptr && failure == nullptr) load_->add_step(number(step.ticket));
    RowOutcomes filed;
    for (uint32_t i = 0; i < step.span_count; i++) {
        constexpr uint32_t kAhead = 8;
        if (i + 2 * kAhead < step.span_count) {
            const StepSpan &far = step.spans[i + 2 * kAhead];
            far.rows->prefetch(far.speculative);
        }
        if (i + kAhead < step.span_count) {
            const StepSpan &next = step.spans[i + kAhead];
            next.rows->prefetch_row(next.position);
        }
        file_span(step, step.spans[i], contents, failure != nullptr, filed);
    }
    counters_.rows_in_flight -= step.rows;
    count(filed);
    const int32_t seen = failure == nullptr ? ForwardCheck::slip_of(contents, step.rows_copied)
                                            : int32_t{ROUTECAP_OK};
    finish_tally(number(step.ticket), contents.covered == 0 ? seen : int32_t{ROUTECAP_OK});
    counters_.cells_conflicting += contents.conflicts;
    counters_.rows_dropped += contents.dropped;
    if (failure != nullptr) counters_.steps_lost++, reporter_.failed(failure);
    counters_.steps_landed++;
    const int32_t slip = check_ != nullptr ? seen : int32_t{ROUTECAP_OK};
    if (check_ != nullptr) check_->found(number(step.ticket), slip);
    if (slip != ROUTECAP_OK) reporter_.slipped(number(step.ticket), slip);
    steps_.filed(slot, contents.conflicts, failure, slip);
}

// The position of a sink row that came from the device; a negative one is outside all bounds.
static uint64_t position_of(const uint8_t *positions, int32_t dtype, uint32_t row) {
    if (dtype == ROUTECAP_DTYPE_I32)
        return static_cast<uint64_t>(int64_t{reinterpret_cast<const int32_t *>(positions)[row]});
    return static_cast<uint64_t>(reinterpret_cast<const int64_t *>(positions)[row]);
}

// A span that has landed: where its rows are, and which of them have a place.
struct StepWorker::LandedSpan {
    const Step &step;
    StepSpan &span;
    const uint8_t *const rows;
    const uint32_t stride;
    const uint64_t cut, ended;
    const uint8_t *const positions;  // of the device, or null
    const uint32_t covered;          // rows that have ids

    LandedSpan(const kernels::SlotLayout &layout, const Step &of, StepSpan &s,
               const SlotContents &contents)
        : step(of),
          span(s),
          rows(layout.at(contents.slot, s.sink_row)),
          stride(layout.row.stride),
          cut(s.cut.filing_cut()),
          ended(s.cut.filing_ended()),
          positions(s.device_positions ? layout.positions(contents.slot, of.rows_copied) : nullptr),
          covered(std::clamp(contents.covered, s.sink_row, s.sink_row + s.count) - s.sink_row) {}

    const uint8_t *row(uint32_t r) const { return rows + size_t{r} * stride; }
    uint64_t position(uint32_t r) const {
        return positions == nullptr
                   ? span.position + r
                   : position_of(positions, step.positions_dtype, span.sink_row + r);
    }
};

// The position of row r; or kPast or kDropped (row_store.h). Counts rows that are unplaced, and
// rows that are late unless they are drafts.
inline uint64_t StepWorker::place(const LandedSpan &landed, uint32_t r, RowOutcomes &filed) {
    const StepSpan &span = landed.span;
    const bool from_device = landed.positions != nullptr;
    const uint64_t position = landed.position(r);
    if (from_device && (position < span.position || position >= span.position_end)) {
        filed.unplaced++;
        return RowStore::kDropped;
    }
    if (position >= landed.cut) {
        if (span.speculative) return position;
        filed.late++;
        // As if it had been there when it was cut.
        if (from_device) span.rows->progress.filing_places(landed.cut);
        return RowStore::kDropped;
    }
    if (position >= landed.ended) return RowStore::kPast;
    tally(r < landed.covered ? landed.row(r) : nullptr);
    return position;
}

// Notes that the rows of a span will not come, and counts them in `missed`.
void StepWorker::miss_span(const LandedSpan &landed, int32_t reason, uint64_t &missed,
                           RowOutcomes &filed) {
    const StepSpan &span = landed.span;
    const bool from_device = landed.positions != nullptr;
    // Of device positions all within the bounds are missing.
    const uint64_t end = std::min(span.position_end, landed.cut),
                   missing = from_device ? span.count : end - std::min(span.position, end);
    missed += missing;
    filed.late += span.count - missing;
    uint32_t charge = span.charge;
    span.rows->give_back(charge);
    if (span.speculative) {
        storage_->pool->unreserve(PagePool::page_bytes(*shape_, span.count));
        span.rows->miss_draft({.step = landed.step.ticket,
                               .first_index = span.draft_index,
                               .position = span.position,
                               .rows = span.count,
                               .bounds_end = from_device ? end : 0,
                               .reason = reason});
    } else {
        span.rows->note_missing(span.position, end, reason);
        if (from_device) span.rows->progress.filing_places(end);
    }
}

void StepWorker::file_drafts(const LandedSpan &landed, RowOutcomes &filed) {
    const StepSpan &span = landed.span;
    std::vector<uint64_t> positions;
    try {
        positions.resize(span.count);
    } catch (const std::bad_alloc &) {
        return miss_span(landed, ROUTECAP_MISSING_REFUSED, filed.refused, filed);
    }
    uint64_t kept = 0;
    for (uint32_t r = 0; r < span.count; r++)
        kept += (positions[r] = place(landed, r, filed)) != RowStore::kDropped;
    if (span.rows->file_draft(landed.step.ticket, span.draft_index, std::move(positions),
                              landed.cut, landed.covered, landed.rows, landed.step.tag, span.phase,
                              span.charge))
        filed.provisional += kept;
    else
        filed.refused += kept;
}

// Files runs of rows at consecutive positions.
void StepWorker::file_settled(const LandedSpan &landed, RowOutcomes &filed) {
    const StepSpan &span = landed.span;
    const uint32_t covered = landed.covered;
    uint32_t charge = span.charge, start = 0, n = 0;
    uint64_t first = 0;
    const auto flush = [&] {
        if (n == 0) return;
        if (start < covered)
            span.rows->file_rows(first, landed.row(start), n, landed.step.tag, charge, filed, load_,
                                 span.phase);
        else
            filed.missing += n;
        if (landed.positions != nullptr) span.rows->progress.filing_places(first + n);
        n = 0;
    };
    for (uint32_t r = 0; r < span.count; r++) {
        const uint64_t position = place(landed, r, filed);
        if (n == 0 || position != first + n || (r < covered) != (start < covered)) {
            flush();
            start = r, first = position;
        }
        n += position < RowStore::kPast;
    }
    flush();
    span.rows->give_back(charge);
}

void StepWorker::file_span(const Step &step, StepSpan &span, const SlotContents &contents,
                           bool failed, RowOutcomes &filed) {
    const LandedSpan landed(backend_.layout(), step, span, contents);
    if (failed)
        miss_span(landed, ROUTECAP_MISSING_LOST, filed.lost, filed);
    else if (span.speculative)
        file_drafts(landed, filed);
    else
        file_settled(landed, filed);
}

// ---- What the rows of a step lack -----------------------------------------------------------

// Counts one landed row, or null: one that the snapshot did not cover.
void StepWorker::tally(const uint8_t *row) {
    tallied_++;
    if (row != nullptr && shape_->row_full(row)) return;
    any_missing_ = true;
    for (uint32_t l = 0; l < shape_->layers; l++) {
        if (row != nullptr && shape_->valid(row, l)) continue;
        const int32_t reason = row != nullptr ? shape_->reason(row, l) : ROUTECAP_MISSING_UNWRITTEN;
        Tally &t = tallies_[l];
        (reason == ROUTECAP_MISSING_OUT_OF_RANGE ? t.out_of_range
         : reason == ROUTECAP_MISSING_DUPLICATE  ? t.duplicate
                                                 : t.unwritten)++;
    }
}

// Adds what the step lacks to the counters, which are atomic, so once a step. `slip` says why the
// step has no rows at all, if it has none.
void StepWorker::finish_tally(uint64_t step, int32_t slip) {
    if (tallied_ == 0) return;
    counters_.rows_landed += tallied_;
    uint32_t silent = 0, first_silent = 0;
    for (uint32_t l = 0; l < shape_->layers && any_missing_; l++) {
        Tally &t = tallies_[l];
        LayerCounters &layer = counters_.layers[l];
        layer.unwritten += t.unwritten;
        layer.out_of_range += t.out_of_range;
        layer.duplicate += t.duplicate;
        if (t.unwritten == tallied_) layer.silent_steps++;
        if (t.missing() == tallied_ && silent++ == 0) first_silent = l;
        if (t.out_of_range + t.duplicate > 0) reporter_.bad_ids(t.out_of_range, t.duplicate, l);
        t = {};
    }
    if (silent > 0) reporter_.silent(step, silent, first_silent, slip);
    counters_.silent_layers.set(silent);
    tallied_ = 0;
    any_missing_ = false;
}

}  // namespace routecap
