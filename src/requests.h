// Open requests: what the engine's thread knows of each, and the handles that name them. Guarded by the capturer's mutex.
//
// Rows that landed are in the request's RowStore. Here is what has to be answered before they land: length, pages promised, drafts to accept,
// what is in flight.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "filing.h"
#include "intervals.h"
#include "routecap.h"
#include "steps.h"

namespace routecap {

// Speculative rows that wait to be accepted.
struct DraftSpan {
    uint64_t step;
    uint64_t first_index;  // of its first row among the request's drafts of that step
    uint64_t rows;
    uint64_t position;
    uint64_t position_end;
    uint64_t cut;  // rows at and after were cut since
    bool device_positions;
    bool filed;  // or will be: neither lost nor refused

    // One past the highest position that row `index` may have, for the request's length; 0 if it was cut.
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

struct alignas(64) Request {
    // All that certain rows need, in the first cache line.
    uint32_t generation = 0;
    bool open = false;
    bool device_positions = false;  // some span had them
    bool changed = false;           // what comes after the first of `pages` may differ from what it is in a new request
    uint32_t check = 0;             // the last issue that looked at this request
    uint32_t check_last = 0;        // and the last of its spans for it
    OpenPtr captured;
    uint64_t length = 0;            // without spans that have device positions
    SpanLink newest;                // the newest span in flight; each links to the one before
    Intervals pages;                // of the RowStore's table, in use or promised

    std::vector<DraftSpan> drafts;
    uint32_t drafts_checked = 0;   // the last issue that had drafts of this request
    uint32_t check_drafts = 0;     // and how many
    uint64_t flagged_end = 0;      // one past the highest position that a draft, or a row with a device position, was issued for
    uint64_t inherited_after = 0;  // see after()

    // Operations handed over, the step that must be filed before the last of them, and the rows that the last ones change: readable when
    // RowStore::applied has come so far.
    uint64_t operations = 0;
    uint64_t operated_after = 0;
    uint64_t changing_first = 0, changing_end = 0, changing_until = 0;

    // Truncates that may not be applied yet, in order: until then the rows that they cut are in the RowStore still.
    struct Cut {
        uint64_t rows;
        uint64_t until;  // operations that are applied once it is
        uint64_t step;   // the last step that it concerns
    };
    std::vector<Cut> cuts;

    // Children that may not have their rows yet: those before lending_end, of steps up to lending_step, until so many operations are applied.
    uint64_t lending_end = 0, lending_step = 0, lending_until = 0;

    RowStore *rows() const { return &captured->rows; }

    // The step that must be filed before an operation on this request is applied.
    uint64_t after() const { return changed ? std::max(newest.step, inherited_after) : newest.step; }
    // One past the highest position that was issued.
    uint64_t issued_end() const { return changed ? std::max(length, flagged_end) : length; }

    // Counts an operation that adds or changes rows [first, end) once it is applied.
    void operate(uint64_t first, uint64_t end) {
        changed = true;
        operations++;
        operated_after = after();
        if (first >= end) return;
        const bool idle = changing_until == 0 || applied() >= changing_until;
        changing_first = idle ? first : std::min(changing_first, first);
        changing_end = idle ? end : std::max(changing_end, end);
        changing_until = operations;
    }
    bool changing(uint64_t first, uint64_t end) const {
        return std::max(first, changing_first) < std::min(end, changing_end) && applied() < changing_until;
    }

    uint64_t applied() const { return rows()->applied.load(std::memory_order_acquire); }
    // Operations that no step in flight holds up.
    bool behind(const Steps &steps) const { return applied() < operations && !steps.in_flight(operated_after); }
    bool lending() const { return applied() < lending_until; }

    // The first row of which the RowStore may still have what was cut.
    uint64_t cut_not_applied() const {
        uint64_t first = UINT64_MAX;
        for (const Cut &cut : cuts)
            if (applied() < cut.until) first = std::min(first, cut.rows);
        return first;
    }

    // Calls f(span, step) for each span in flight.
    template <class F>
    void for_each_in_flight(Steps &steps, F f) const {
        for (SpanLink link = newest; link.step != 0 && steps.in_flight(link.step);) {
            StepSpan &span = steps.step(link.slot).spans[link.span];
            f(span, link.step);
            link = span.previous;
        }
    }

    uint64_t length_now(Steps &steps) const {
        if (!device_positions) return length;
        uint64_t end = std::max(length, placed_end());
        if (applied() < changing_until) end = std::max(end, changing_end);
        for_each_in_flight(steps, [&](StepSpan &span, uint64_t step) {
            if (!span.device_positions || span.speculative) return;
            uint64_t span_end = span.position_end;
            for (const Cut &cut : cuts)
                if (step <= cut.step) span_end = std::min(span_end, cut.rows);
            end = std::max(end, span_end);
        });
        return std::max(end, placed_end());  // again: what was in flight may have landed in between
    }

private:
    uint64_t placed_end() const {
        const uint64_t cut = cut_not_applied();
        return std::min(cut, rows()->placed_end.load(std::memory_order_acquire));
    }
};

class Requests {
public:
    Requests(uint32_t max_requests, uint32_t nonce) : max_requests_(max_requests), nonce_(nonce) {}

    // Makes room for `count` more. False if there would be too many.
    bool reserve(size_t count);
    // Opens one; there must be room.
    routecap_request open(OpenPtr captured);
    void close(Request &request, routecap_request handle);

    // A handle is the generation in the upper 32 bits and one plus the index in the lower. Generations start at the capturer's nonce, so that
    // another capturer's handles are not taken for ours. Null if the handle is not an open request's.
    Request *find(routecap_request handle) {
        Request *r = place(handle);
        return r != nullptr && r->generation == handle >> 32 && r->open ? r : nullptr;
    }

    // How many are open. Any thread may ask.
    uint64_t count() const { return count_.load(std::memory_order_relaxed); }

    // Start fetching, for callers with many handles, because requests lie all over memory: what find will look at, and what a draft will, to be called
    // for the handle kAhead ahead; then what a change or the end of the request will, for the one kAhead / 2 ahead.
    static constexpr uint32_t kAhead = 16;
    void prefetch(routecap_request handle, bool draft) {
        Request *request = place(handle);
        if (request == nullptr) return;
        __builtin_prefetch(request, 1);
        if (draft) __builtin_prefetch(&request->drafts, 1);
    }
    void prefetch_more(routecap_request handle) {
        const Request *request = place(handle);
        if (request == nullptr) return;
        if (request->captured) request->captured->routing.prefetch();
        if (!request->changed) return;
        __builtin_prefetch(&request->drafts, 1);
        __builtin_prefetch(&request->operations, 1);
        __builtin_prefetch(request->drafts.data(), 1);
    }

private:
    static constexpr uint32_t kChunk = 256;
    static uint32_t index_of(routecap_request handle) { return static_cast<uint32_t>(handle) - 1; }
    Request &at(uint32_t index) { return chunks_[index / kChunk][index % kChunk]; }
    // Where a handle's request is, or was, or another's is by now; null if nothing was ever there.
    Request *place(routecap_request handle) {
        const uint32_t index = index_of(handle);
        return index / kChunk < chunks_.size() ? &at(index) : nullptr;
    }

    const uint32_t max_requests_, nonce_;
    std::vector<std::unique_ptr<Request[]>> chunks_;  // addresses of requests do not change
    std::vector<uint32_t> free_;
    std::atomic<uint64_t> count_{0};
};

}  // namespace routecap
