// Open requests: what the engine's thread knows of each, and the handles that name them. Guarded by
// the registry's mutex.
//
// Rows that landed are in the request's RowStore. Here is what has to be answered before they land:
// length, the page that needs no charge, drafts to accept, what is in flight.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "base/assume.h"
#include "capture/pending_operations.h"
#include "capture/steps.h"
#include "routecap.h"
#include "routing/routing.h"

namespace routecap {

// What an open request captures: its rows, and the routing that they become when it is finished.
// Made together, so that finishing allocates nothing. It lives as long as there are references to
// the routing. An open request has two, of which finishing gives one to the caller and one to the
// log: to count the second one then costs 20 % of finishing 1,024 (in pairs, cold caches).
struct RequestData final : Routing {
    // From a cache line on: otherwise filing 1,024 rows takes 1.3 times as long (cold caches).
    alignas(64) RowStore rows;
    RequestData(const StoragePtr &storage, bool replace, bool compare)
        : Routing(storage, 2), rows(storage, replace, compare) {}
};
template <uint32_t references>
struct RequestDataRelease {
    void operator()(const RequestData *data) const { data->release(references); }
};
using RequestDataPtr = std::unique_ptr<RequestData, RequestDataRelease<1>>;
using OpenRequestPtr = std::unique_ptr<RequestData, RequestDataRelease<2>>;

// Speculative rows that wait to be accepted: one cache line.
struct alignas(64) DraftSpan {
    DraftSpan *next;  // the one before it in order of issue
    Ticket step;
    uint64_t position;
    uint64_t position_end;
    uint64_t cut;          // rows at and after were cut since
    uint32_t first_index;  // of its first row among the request's drafts of that step
    uint32_t rows;
    uint8_t device_positions;
    uint8_t missing;  // they were lost or refused

    // One past the highest position that row `index` may have, for the request's length; 0 if it
    // was cut.
    uint64_t end_of(uint64_t index) const {
        if (device_positions) return position < cut ? std::min(cut, position_end) : 0;
        const uint64_t at = position + (index - first_index);
        return at < cut ? at + 1 : 0;
    }
    // The same for the first `count` of its rows.
    uint64_t end_of_first(uint64_t count) const {
        if (count == 0 || position >= cut) return 0;
        return std::min(cut, device_positions ? position_end : position + count);
    }
};

// Memory for drafts. What was given back is used again.
class Drafts {
public:
    // Makes room for so many more. Throws without memory.
    void make_room(size_t count) {
        while (free_count_ < count) {
            chunks_.push_back(std::make_unique<DraftSpan[]>(kChunk));
            for (size_t i = 0; i < kChunk; i++) give(&chunks_.back()[i]);
        }
    }
    // There must be room. The caller makes the draft in it.
    DraftSpan *take() noexcept {
        ROUTECAP_ASSUME(free_count_ > 0);
        free_count_--;
        return std::exchange(free_, free_->next);
    }
    // Returns the next one of the draft's list.
    DraftSpan *give(DraftSpan *draft) noexcept {
        free_count_++;
        return std::exchange(draft->next, std::exchange(free_, draft));
    }

private:
    static constexpr size_t kChunk = 1024;
    std::vector<std::unique_ptr<DraftSpan[]>> chunks_;  // addresses of drafts do not change
    DraftSpan *free_ = nullptr;
    size_t free_count_ = 0;
};

// The part of a request that most requests do not need. It has cache lines of its own, so that a
// finish need not touch them.
struct alignas(64) Rare {
    // One past the highest position of a row that was neither refused nor lost; UINT64_MAX if that
    // is the length.
    uint64_t written_end = UINT64_MAX;
    Ticket inherited_after = Ticket::none;  // see Request::after()
    // Operations behind number missed_from, up to missed_until, only say why rows are missing.
    uint64_t missed_from = 0, missed_until = 0;
    PendingNotes<Change> changes;  // but for the newest, Request::newest_change
    PendingNotes<Cut> cuts;
    PendingNotes<Lending> lendings;

    // The first row of which the RowStore may still have what was cut.
    uint64_t first_cut(uint64_t applied) const {
        uint64_t first = UINT64_MAX;
        cuts.for_each(applied, [&](const Cut &cut) { first = std::min(first, cut.rows); });
        return first;
    }
    // Where the rows of a step in flight are cut.
    uint64_t cut_of(Ticket step, uint64_t applied) const {
        uint64_t first = UINT64_MAX;
        cuts.for_each(applied, [&](const Cut &cut) {
            if (step <= cut.step) first = std::min(first, cut.rows);
        });
        return first;
    }
    // Rows of a step in flight that others are to get are before this.
    uint64_t lent_end(Ticket step, uint64_t applied) const {
        uint64_t end = 0;
        lendings.for_each(applied, [&](const Lending &lending) {
            if (step <= lending.step) end = std::max(end, lending.end);
        });
        return end;
    }
};

struct alignas(64) Request {
    // The first cache line has all that issuing settled rows with known positions needs.
    routecap_request handle = 0;  // 0: the request is not open
    uint32_t check = 0;           // number of the last issue that looked at this request
    // That last span for it. In a request that is not open: the next one that is not.
    uint32_t check_last = 0;
    OpenRequestPtr data;
    uint64_t length = 0;            // without spans that have device positions
    SpanLink newest;                // the newest span in flight; each links to the one before
    bool device_positions = false;  // some span had device positions
    // Whether the second line, and whether rare_, may differ from those of a new request.
    bool changed = false, has_rare = false;
    // The newest page that the request's own rows are in, or will be. No page, once rows were cut
    // or taken. Spans in this page are charged nothing for it.
    uint64_t own_page = kNone;
    static constexpr uint64_t kNone = UINT64_MAX;

    // The second line has what drafts and operations need too.
    DraftSpan *drafts = nullptr;  // the newest first
    // One past the highest position that a draft or a row with a device position may have.
    uint64_t flagged_end = 0;
    uint64_t shared_end_ = 0;
    uint64_t operations = 0;  // that were handed over: the number of the last one
    // Mostly there is one at a time. Where there are more the others are in rare_.
    Change newest_change;

    RowStore *rows() const { return &data->rows; }

    const Rare &rare() const { return rare_; }
    Rare &change_rare() {
        changed = has_rare = true;
        return rare_;
    }

    // The step that must be filed before an operation on this request is applied.
    Ticket after() const {
        return has_rare ? std::max(newest.step, rare_.inherited_after) : newest.step;
    }
    // One past the highest position that was issued.
    uint64_t issued_end() const { return changed ? std::max(length, flagged_end) : length; }

    // Counts an operation.
    void note_operation() noexcept {
        changed = true;
        operations++;
    }
    // The operation counted last adds or changes rows [first, end) once it is applied. Rows between
    // this range and others are not held up. Without memory to tell them apart they are.
    void note_change(uint64_t first, uint64_t end) noexcept {
        if (first >= end) return;
        const Change change{first, end, operations, after()};
        Change &newest = newest_change;
        const uint64_t applied = newest.number != 0 ? this->applied() : 0;
        if (applied >= newest.number)
            newest = change;
        else if ((newest.after == change.after && newest.touches(change)) || !note_older(applied))
            newest.join(change);
        else
            newest = change;
    }
    // Counts an operation that only says why rows [first, end) are missing.
    void note_missing(uint64_t first, uint64_t end) noexcept {
        Rare &rare = change_rare();
        if (rare.missed_until != operations) rare.missed_from = operations;
        note_operation();
        note_change(first, end);
        rare.missed_until = operations;
    }
    // Counts one that cuts rows at and after `end`. There must be room for the note.
    void note_cut(uint64_t end) noexcept {
        note_operation();
        newest_change.end = std::min(newest_change.end, end);
        Rare &rare = change_rare();
        rare.changes.for_each([end](Change &change) { change.end = std::min(change.end, end); });
        rare.cuts.add({end, newest.step, operations, after()});
    }
    // Counts one that gives rows to those who wanted them. There must be room for the note.
    void note_lending(uint64_t first, uint64_t end) noexcept {
        note_operation();
        change_rare().lendings.add({first, end, newest.step, operations, after()});
    }
    uint64_t applied() const { return rows()->progress.engine_applied(); }
    // Nothing that was handed over waits to be applied, but for why rows are missing.
    bool settled() const {
        if (!changed) return true;
        const bool missed = has_rare && rare_.missed_until == operations;
        return applied() >= (missed ? rare_.missed_from : operations);
    }
    // Calls f(change) for each range of rows that is to be changed.
    template <class F>
    void for_each_change(uint64_t applied, F f) const {
        if (applied < newest_change.number) f(newest_change);
        if (has_rare) rare_.changes.for_each(applied, f);
    }
    // The number of the last operation that must be applied before rows are read, and that no step
    // in flight holds up; 0 if there is none.
    uint64_t ready_operations(const Steps &steps) const {
        if (!changed) return 0;
        const uint64_t applied = this->applied();
        uint64_t ready = 0;
        const auto look = [&](const auto &note) {
            if (!steps.in_flight(note.after)) ready = std::max(ready, note.number);
        };
        for_each_change(applied, look);
        if (!has_rare) return ready;
        rare_.cuts.for_each(applied, look);
        rare_.lendings.for_each(applied, look);
        return ready;
    }

    // Rows before `end`, whose positions the host knows, are issued or accepted. Where nothing was,
    // they will be in a page of the request's own.
    void extend(uint64_t end, uint32_t page_shift) {
        const uint64_t written = has_rare ? std::min(length, rare_.written_end) : length;
        length = std::max(length, end);
        if (end <= written) return;
        own_page = (end - 1) >> page_shift;
        if (has_rare) rare_.written_end = std::max(rare_.written_end, end);
    }
    // Rows before `end` were refused or lost.
    void extend_missing(uint64_t end) {
        if (end <= length) return;
        Rare &rare = change_rare();
        rare.written_end = std::min(rare.written_end, length);
        length = end;
    }
    // Rows before `end` come from elsewhere.
    void extend_attached(uint64_t end) {
        length = std::max(length, end);
        if (has_rare) rare_.written_end = std::max(rare_.written_end, end);
    }
    // Operations wait for this step too.
    void inherit(Ticket step) {
        if (step == Ticket::none) return;
        Rare &rare = change_rare();
        rare.inherited_after = std::max(rare.inherited_after, step);
    }
    // Rows before this may have been lent to others: whoever writes them needs a page for a copy.
    uint64_t shared_end() const { return changed ? shared_end_ : 0; }
    void share(uint64_t end) {
        changed = true;
        shared_end_ = std::max(shared_end_, end);
    }

    // Calls f(span, step) for each span in flight.
    template <class F>
    void for_each_in_flight(Steps &steps, F f) const {
        for (SpanLink link = newest; link.step != Ticket::none && steps.in_flight(link.step);) {
            Step &step = steps.step(link.slot);
            StepSpan &span = step.spans[link.span];
            f(span, link.step);
            link = span.previous;
        }
    }

    uint64_t length_now(Steps &steps) const {
        if (!device_positions) return length;
        uint64_t end = std::max(length, placed_end());
        const uint64_t applied = this->applied();
        for_each_change(applied, [&](const Change &c) { end = std::max(end, c.end); });
        for_each_in_flight(steps, [&](StepSpan &span, Ticket step) {
            if (!span.device_positions || span.speculative) return;
            end = std::max(end, std::min(span.position_end, rare().cut_of(step, applied)));
        });
        return std::max(end, placed_end());  // again: what was in flight may have landed in between
    }

private:
    uint64_t placed_end() const {
        const uint64_t cut = rare().first_cut(applied());
        return std::min(cut, rows()->progress.engine_placed());
    }

    // Makes the newest change one of the older ones. False without memory.
    bool note_older(uint64_t applied) noexcept try {
        PendingNotes<Change> &changes = change_rare().changes;
        changes.make_room(applied);
        changes.add(newest_change);
        return true;
    } catch (const std::bad_alloc &) {
        return false;
    }

    Rare rare_;  // as in a new request, unless has_rare
    friend class RequestTable;
};

static_assert(sizeof(Request) == size_t{2} * 64 + sizeof(Rare));

// A handle is a serial number, of which a process gives out each once, above an index: no two
// requests of a process ever have the same.
class Serials {
public:
    static constexpr int kIndexBits = 24;
    static constexpr uint64_t kLast = (uint64_t{1} << (64 - kIndexBits)) - 1;

    // `count` numbers in a row: the first of them, or 0 if there are not so many left.
    static uint64_t take(size_t count) {
        uint64_t first = next_.load(std::memory_order_relaxed);
        do {
            if (count > kLast || first > kLast - count + 1) return 0;
        } while (!next_.compare_exchange_weak(first, first + count, std::memory_order_relaxed));
        return first;
    }
    // For tests: the next number.
    static void start_at(uint64_t serial) { next_.store(serial, std::memory_order_relaxed); }

private:
    inline static std::atomic<uint64_t> next_{1};
};

class RequestTable {
public:
    explicit RequestTable(uint32_t max_requests) : max_requests_(max_requests) {}

    Drafts drafts;  // of all requests

    // Whether there can be `count` more.
    bool possible(size_t count) const {
        return count <= max_requests_ - std::min<uint64_t>(max_requests_, this->count());
    }
    // Makes room for `count` more, which must be possible. Throws without memory.
    void make_room(size_t count) {
        while (free_count_ < count) {
            chunks_.push_back(std::make_unique<Request[]>(kChunk));
            const uint32_t first = std::exchange(made_, std::min(made_ + kChunk, max_requests_));
            for (uint32_t i = made_; i-- > first; free_count_++)
                at(i).check_last = std::exchange(free_, i);
        }
    }

    // Opens one; there must be room.
    Request &open(OpenRequestPtr data, uint64_t serial) {
        ROUTECAP_ASSUME(free_count_ > 0);
        const uint32_t index = free_;
        Request &r = at(index);
        free_ = r.check_last;
        free_count_--;
        r.handle = serial << Serials::kIndexBits | index;
        r.check = 0;
        count_.store(count() + 1, std::memory_order_relaxed);
        r.data = std::move(data);
        return r;
    }
    // Ends one, whose data is elsewhere by now.
    void close(Request &r) {
        count_.store(count() - 1, std::memory_order_relaxed);
        const uint32_t index = index_of(r.handle);
        r.handle = 0;
        r.device_positions = false;
        r.length = 0;
        r.newest = {};
        r.own_page = Request::kNone;
        r.check_last = std::exchange(free_, index);
        free_count_++;
        if (!r.changed) return;
        r.changed = false;
        while (r.drafts != nullptr) r.drafts = drafts.give(r.drafts);
        r.flagged_end = r.shared_end_ = r.operations = 0;
        r.newest_change = {};
        if (!r.has_rare) return;
        r.has_rare = false;
        r.rare_ = {};
    }

    // Where a handle's request is, or was, or another's is by now; null if nothing was ever there.
    Request *place(routecap_request handle) {
        const auto index = index_of(handle);
        return index < made_ ? &at(index) : nullptr;
    }
    // Null if it is not open.
    Request *find(routecap_request handle) {
        Request *r = place(handle);
        return r != nullptr && r->handle == handle && handle != 0 ? r : nullptr;
    }

    // How many are open. Any thread may ask.
    uint64_t count() const { return count_.load(std::memory_order_relaxed); }

    // Starts fetching what find() will look at, and what drafts and operations need too: without
    // this second line, issuing 1,024 spans takes 1.8 times as long, and accepting for 1,024
    // requests 1.6 times, where requests have had drafts (cold caches).
    void prefetch(routecap_request handle, bool drafts) {
        if (Request *request = place(handle); request != nullptr) {
            __builtin_prefetch(request, 1);
            if (drafts) __builtin_prefetch(&request->drafts, 1);
        }
    }

private:
    static constexpr uint32_t kChunk = 256;
    Request &at(uint32_t index) { return chunks_[index / kChunk][index % kChunk]; }
    static uint32_t index_of(routecap_request handle) {
        return static_cast<uint32_t>(handle & ((1u << Serials::kIndexBits) - 1));
    }

    const uint32_t max_requests_;
    std::vector<std::unique_ptr<Request[]>> chunks_;  // addresses of requests do not change
    uint32_t made_ = 0;                               // requests in them
    uint32_t free_ = 0;                               // the first that is not open, and
    uint32_t free_count_ = 0;                         // how many there are
    std::atomic<uint64_t> count_{0};
};

}  // namespace routecap
