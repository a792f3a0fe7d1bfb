#include "filing.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <system_error>
#include <type_traits>

#include "status.h"
#if defined(__linux__)
#include <sys/prctl.h>
#endif

namespace routecap {

Filing::Filing(QuickMutex &mutex, ContextPtr context, Backend &backend, Steps &steps, Counters &counters)
    : mutex_(mutex),
      context_(std::move(context)),
      shape_(context_->shape.get()),
      backend_(backend),
      steps_(steps),
      counters_(counters),
      unwritten_(shape_->layers, 0),
      invalid_(shape_->layers, 0) {
    log_.reserve(1024);
    pending_.reserve(1024);
}

int32_t Filing::start(bool manual) {
    manual_ = manual;
    if (manual) {
        context_->landing->set_progress([this] { progress(); });
        return ROUTECAP_OK;
    }
    try {
        worker_ = std::thread([this] { work(); });
    } catch (const std::system_error &error) {
        return report(ROUTECAP_ERR_THREAD, "the worker thread could not be started: %s", error.what());
    }
    return ROUTECAP_OK;
}

void Filing::stop() {
    stop_.store(true, std::memory_order_release);
    if (manual_) {
        context_->landing->set_progress({});
        while (!progress()) std::this_thread::yield();
    } else if (worker_.joinable()) {
        wake();
        worker_.join();
    }
}

// While a step is in flight the worker looks again and again, less often the longer it takes; then it costs nothing to wake it, and no driver's lock
// is touched to see what has landed. With nothing to do it sleeps until something is appended.
void Filing::work() {
    using std::chrono::nanoseconds;
    constexpr nanoseconds kFirst{5'000}, kLongest{20'000};
    nanoseconds pause = kFirst;
#if defined(__linux__)
    prctl(PR_SET_TIMERSLACK, 1000);  // of pauses, in nanoseconds; the default is longer than they are
#endif
    for (;;) {
        const int32_t seen = signal_.load(std::memory_order_acquire);
        const bool stop = stop_.load(std::memory_order_acquire);
        const uint64_t filed = counters_.steps_landed;
        if (progress()) {
            if (stop) return;
            signal_.wait(seen, std::memory_order_acquire);
            pause = kFirst;
            continue;
        }
        fetch_waiting();
        pause = filed != counters_.steps_landed ? kFirst : std::min(pause + pause / 4, kLongest);
        std::this_thread::sleep_for(pause);
    }
}

bool Filing::progress() {
    short_of_memory_ = false;
    try {
        std::lock_guard lock(mutex_);
        if (pending_.empty()) {
            pending_.swap(log_);
        } else {
            pending_.insert(pending_.end(), std::move_iterator(log_.begin()), std::move_iterator(log_.end()));
            log_.clear();
        }
    } catch (const std::bad_alloc &) {
        short_of_memory_ = true;  // with what is pending already
    }

    uint64_t blocked = UINT64_MAX;  // the first step that has not landed
    bool applied = false;
    auto kept = pending_.begin();
    for (LogEntry &entry : pending_) {
        const FileStep *step = std::get_if<FileStep>(&entry.what);
        const bool ready = step != nullptr ? blocked == UINT64_MAX && backend_.landed(step->slot) : entry.after < blocked;
        if (ready && apply(entry)) {
            applied = true;
            continue;
        }
        if (ready) blocked = 0, short_of_memory_ = true;
        if (step != nullptr) blocked = std::min(blocked, steps_.step(step->slot).ticket);
        if (&*kept != &entry) *kept = std::move(entry);
        ++kept;
    }
    pending_.erase(kept, pending_.end());
    if (applied) context_->landing->notify();
    return pending_.empty() && !short_of_memory_;
}

// False if there was no memory for it, and nothing has changed. Only a Finish needs any: everything else refuses rows instead.
bool Filing::apply(LogEntry &entry) {
    const auto applied = [](RowStore &rows) { rows.applied.fetch_add(1, std::memory_order_release); };
    const auto settled = [&](const Filed &filed) {
        counters_.rows_provisional -= filed.delivered + filed.missing + filed.refused + filed.rejected;
        count(filed);
    };
    return std::visit(
        [&]<class What>(What &what) {
            if constexpr (std::is_same_v<What, FileStep>) {
                file(what.slot);
            } else if constexpr (std::is_same_v<What, Settle>) {
                std::lock_guard lock(what.rows->mutex);
                settled(what.rows->settle(what.step, what.kept ? std::span<const uint32_t>(*what.kept) : std::span<const uint32_t>(), what.keep_first));
                applied(*what.rows);
            } else if constexpr (std::is_same_v<What, Truncate>) {
                std::lock_guard lock(what.rows->mutex);
                what.rows->truncate(what.end, what.pages);
                applied(*what.rows);
            } else if constexpr (std::is_same_v<What, Fork>) {
                std::scoped_lock lock(what.parent->mutex, what.child->mutex);
                what.child->fork(*what.parent, what.end);
                applied(*what.child);
                applied(*what.parent);
            } else if constexpr (std::is_same_v<What, Attach>) {
                std::lock_guard lock(what.rows->mutex);
                what.rows->attach(what.routing->segments(), what.end);
                applied(*what.rows);
            } else if constexpr (std::is_same_v<What, Finish>) {
                RowStore &rows = what.captured->rows;
                std::vector<Segment> segments;
                uint64_t end = what.end, gone_first = 0, gone_end = 0;
                try {
                    std::lock_guard lock(rows.mutex);
                    if (what.all) end = std::max(end, rows.placed_end.load(std::memory_order_relaxed));
                    rows.take(0, end, segments, gone_first, gone_end);
                    settled(rows.reject_drafts());
                    rows.clear();
                } catch (const std::bad_alloc &) {
                    constexpr uint32_t kPatience = 100;  // at the capturer's end, which must not wait for memory for ever
                    if (!stop_.load(std::memory_order_relaxed) || ++refused_at_end_ < kPatience) return false;
                    std::lock_guard lock(rows.mutex);
                    segments.clear();
                    settled(rows.reject_drafts());
                    rows.clear();
                }
                what.captured->routing.fill(0, end, std::move(segments));
            } else if constexpr (std::is_same_v<What, Close>) {
                RowStore &rows = what.captured->rows;
                std::lock_guard lock(rows.mutex);
                settled(rows.reject_drafts());
                rows.clear();
            }
            return true;
        },
        entry.what);
}

void Filing::count(const Filed &filed) {
    counters_.rows_delivered += filed.delivered;
    counters_.rows_missing += filed.missing;
    counters_.rows_refused += filed.refused;
    counters_.rows_rejected += filed.rejected;
    counters_.rows_late += filed.late;
    counters_.rows_unplaced += filed.unplaced;
    counters_.rows_provisional += filed.provisional;
    counters_.rows_overlapped += filed.overlapped;
    counters_.rows_mismatched += filed.mismatched;
}

// ---- A step ---------------------------------------------------------------------------------

// What a span's rows go through is in no cache. First the object is fetched that says where they go, and kAhead spans later their place in a page.
constexpr uint32_t kAhead = 6;

static void fetch_object(const Step &step, uint32_t span) {
    if (span < step.span_count) step.spans[span].rows->prefetch();
}
static void fetch_place(const Step &step, uint32_t span) {
    if (span >= step.span_count) return;
    const StepSpan &s = step.spans[span];
    const std::unique_lock lock(s.rows->mutex, std::try_to_lock);
    if (lock) s.rows->prefetch(s.position);
}

// While steps have not landed there is time for it; not at once, because the engine's thread still uses some of it when it has issued a step.
void Filing::fetch_waiting() {
    constexpr uint32_t kLooks = 8;  // about 100 us
    const uint64_t newest = steps_.issued();
    if (newest != newest_) newest_ = newest, looks_ = 0;
    if (++looks_ != kLooks) return;
    for (const LogEntry &entry : pending_) {
        const FileStep *what = std::get_if<FileStep>(&entry.what);
        if (what == nullptr) continue;
        const Step &step = steps_.step(what->slot);
        if (step.ticket <= fetched_) continue;
        if (backend_.landed(what->slot)) return;
        for (uint32_t i = 0; i < step.span_count + kAhead; i++) {
            fetch_object(step, i);
            if (i >= kAhead) fetch_place(step, i - kAhead);
        }
    }
    fetched_ = newest;
}

void Filing::file(int32_t slot) {
    Step &step = steps_.step(slot);
    const SlotContents contents = backend_.contents(slot);
    const bool fetched = step.ticket <= fetched_;
    Filed filed;
    for (uint32_t i = 0; i < step.span_count; i++) {
        if (!fetched) fetch_object(step, i + 2 * kAhead), fetch_place(step, i + kAhead);
        filed += file(step, step.spans[i], contents);
    }
    counters_.rows_in_flight -= step.rows;
    count(filed);
    finish_tally();
    counters_.cells_conflicting += contents.conflicts;
    counters_.rows_dropped += contents.dropped;
    counters_.steps_landed++;
    const bool lost = backend_.failure(slot) != nullptr;
    const int32_t slip = check_ != nullptr && !lost
                             ? ForwardCheck::slip_of(contents, step.rows_copied)
                             : ROUTECAP_OK;
    if (check_ != nullptr) check_->found(step.ticket, slip);
    steps_.filed(slot, contents.conflicts, lost, slip);
}

RowSource Filing::source(uint8_t *slot, uint32_t row) const {
    const kernels::SlotLayout &layout = backend_.layout();
    return {layout.ids(slot, row), layout.validity(slot, row), static_cast<ptrdiff_t>(layout.ids_bytes),
            -static_cast<ptrdiff_t>(layout.validity_bytes)};
}

// The position of a sink row that came from the device; a negative one is outside all bounds.
static uint64_t position_of(const uint8_t *positions, int32_t dtype, uint32_t row) {
    if (dtype == ROUTECAP_DTYPE_I32) return static_cast<uint64_t>(int64_t{reinterpret_cast<const int32_t *>(positions)[row]});
    return static_cast<uint64_t>(reinterpret_cast<const int64_t *>(positions)[row]);
}

Filed Filing::file(Step &step, StepSpan &span, const SlotContents &contents) {
    const uint64_t cut = std::atomic_ref(span.cut).load(std::memory_order_acquire);
    const RowSource rows = source(contents.slot, span.sink_row);
    const uint8_t *device = span.device_positions ? backend_.layout().positions(contents.slot, step.rows_copied) : nullptr;
    const uint32_t covered = std::clamp(contents.covered, span.sink_row, span.sink_row + span.count) - span.sink_row;

    Filed filed;
    // Where row r goes; kDropped if it goes nowhere, which is counted.
    const auto place = [&](uint32_t r) {
        const uint64_t position = device == nullptr ? span.position + r : position_of(device, step.positions_dtype, span.sink_row + r);
        if (device != nullptr && (position < span.position || position >= span.position_end)) {
            filed.unplaced++;
        } else if (position >= cut) {
            filed.late++;
        } else {
            if (r < covered)
                tally(rows.from(r).ids, rows.from(r).validity);
            else
                tally(nullptr, nullptr);
            return position;
        }
        return RowStore::kDropped;
    };

    std::lock_guard lock(span.rows->mutex);
    span.rows->promise(span.pages);
    if (span.speculative) {
        std::vector<uint64_t> positions;
        try {
            positions.resize(span.count);
        } catch (const std::bad_alloc &) {
            context_->pool->unreserve(PagePool::page_bytes(*shape_, span.count));
            filed.refused = span.count;
            return filed;
        }
        uint64_t kept = 0;
        for (uint32_t r = 0; r < span.count; r++) kept += (positions[r] = place(r)) != RowStore::kDropped;
        if (kept == 0) {
            context_->pool->unreserve(PagePool::page_bytes(*shape_, span.count));
        } else if (span.rows->file_draft(step.ticket, span.draft_index, std::move(positions), covered, rows, step.tag)) {
            filed.provisional = kept;
        } else {
            filed.refused = kept;
        }
        return filed;
    }
    // Runs of rows at consecutive positions.
    uint32_t start = 0, n = 0;
    uint64_t first = 0;
    const auto flush = [&] {
        if (n == 0) return;
        if (start < covered)
            filed += span.rows->file(first, rows.from(start), n, step.tag);
        else
            filed.missing += n;
        if (device != nullptr) span.rows->placed(first + n);
        n = 0;
    };
    for (uint32_t r = 0; r < span.count; r++) {
        const uint64_t position = place(r);
        if (n == 0 || position != first + n || (r < covered) != (start < covered)) {
            flush();
            start = r, first = position;
        }
        n += position != RowStore::kDropped;
    }
    flush();
    return filed;
}

// ---- What the rows of a step lack -----------------------------------------------------------

// Counts one landed row; without ids, one that the snapshot did not cover.
void Filing::tally(const uint8_t *ids, const uint8_t *validity) {
    tallied_++;
    if (validity != nullptr && shape_->row_full(validity)) return;
    any_missing_ = true;
    for (uint32_t l = 0; l < shape_->layers; l++) {
        if (validity != nullptr && Shape::valid(validity, l)) continue;
        invalid_[l]++;
        const int32_t reason = ids != nullptr ? shape_->reason(ids, l) : ROUTECAP_MISSING_UNWRITTEN;
        if (reason == ROUTECAP_MISSING_OUT_OF_RANGE) {
            counters_.layers[l].out_of_range++;
        } else if (reason == ROUTECAP_MISSING_DUPLICATE) {
            counters_.layers[l].duplicate++;
        } else {
            counters_.layers[l].unwritten++;
            unwritten_[l]++;
        }
    }
}

void Filing::finish_tally() {
    if (tallied_ == 0) return;
    counters_.rows_landed += tallied_;
    uint64_t silent = 0;
    if (any_missing_) {
        for (uint32_t l = 0; l < shape_->layers; l++) {
            if (unwritten_[l] == tallied_) counters_.layers[l].silent_steps++;
            silent += invalid_[l] == tallied_;
        }
        std::fill(unwritten_.begin(), unwritten_.end(), 0);
        std::fill(invalid_.begin(), invalid_.end(), 0);
    }
    counters_.silent_layers.set(silent);
    tallied_ = 0;
    any_missing_ = false;
}

}  // namespace routecap
