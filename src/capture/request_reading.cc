// Reading requests. Rows are gathered under the lock of their RowStore, in time that grows with
// pages; copying and scanning come after it.
#include "base/status.h"
#include "base/structs.h"
#include "capture/capturer.h"
#include "routing/copy_out.h"
#include "routing/coverage.h"

namespace routecap {
namespace {

int32_t refuse_reading() {
    return report(ROUTECAP_ERR_DISABLED, "this capturer is disabled or a mirror: it has no rows");
}

// Of rows [first, first + rows): whether a reading that is strict may have them, reported. Others
// may.
int32_t check_strict(const Shape &shape, uint64_t first, uint64_t rows,
                     const std::vector<Segment> &segments, Strictness strictness) {
    if (!strictness.complete) return ROUTECAP_OK;
    if (reading_status(shape, first, rows, segments) != ROUTECAP_OK)
        return report(
            ROUTECAP_ERR_INCOMPLETE,
            "cells are missing in rows [%llu,%llu) and the reading is strict; coverage names them",
            ull(first), ull(first + rows));
    return check_provenance(shape, 0, shape.layers, rows, strictness);
}

}  // namespace

// ---- Find, check, collect, take -------------------------------------------------------------

// One call of read(), and what it has found so far.
struct Capturer::Reading {
    const routecap_request handle;
    const uint64_t first, rows;
    const bool take;
    const Strictness strictness;
    RowStore &store;

    Range range{};
    std::vector<Segment> segments{};
    std::vector<MissingNote> notes{};              // of the request
    std::shared_ptr<const MissingRows> missing{};  // and of its rows
    RowStore::Split split{};                       // memory for a page that the take divides
    bool splits = false, split_tags = false;       // it does, and the page has a tag for each row
    size_t segment_room = 0, note_room = 0, nodes = 0;  // what was too little
};

// Finds the rows of a range, after checking that they exist, have landed and are as strict reading
// wants them. With `take` they leave the request.
int32_t Capturer::read(routecap_request handle, uint64_t first, uint64_t rows, bool take,
                       Strictness strictness, Range &range, std::vector<Segment> &segments) {
    RequestDataPtr data;
    if (int32_t s = find_to_read(handle, data); s < 0) return s;
    Reading reading{.handle = handle,
                    .first = first,
                    .rows = rows,
                    .take = take,
                    .strictness = strictness,
                    .store = data->rows};
    int32_t status = ROUTECAP_PENDING;
    try {
        while (status == ROUTECAP_PENDING) {
            // There was too little room, which is made without a lock.
            reading.segments.reserve(reading.segment_room);
            reading.notes.reserve(reading.note_room);
            status = collect(reading);
            if (status == ROUTECAP_PENDING && reading.splits) status = make_split(reading);
            if (reading.nodes > 0) lock_with({.nodes = reading.nodes});
        }
    } catch (const std::bad_alloc &) {
        status = ROUTECAP_ERR_NO_MEMORY;
        report(status, "the system has no memory left");
    }
    if (reading.split.blank != nullptr) {  // it was not needed in the end
        PagePool &pool = capture_->pool;
        const Shape &shape = *config_.shape;
        pool.give_blank(shape, shape.page_rows, reading.split.blank);
        pool.unreserve(pool.page_bytes());
    }
    if (reading.split.tags != nullptr)
        capture_->pool.unreserve(PagePool::tag_bytes(config_.shape->page_rows));
    if (status < 0) return status;

    range = reading.range;
    MissingRows noted;
    for (const MissingNote &note : reading.notes)
        noted.add(std::max(note.first, range.first), std::min(note.end, range.end()), note.reason);
    if (take) note_taken(reading);
    segments = std::move(reading.segments);
    if (reading.missing != nullptr || !noted.empty())
        segments = with_missing(*config_.shape, std::move(segments), noted, reading.missing.get(),
                                range.first, range.end());
    return take ? ROUTECAP_OK
                : check_strict(*config_.shape, range.first, range.rows, segments, strictness);
}

// Finds the request's rows. What was handed over before and waits for no step is applied first, by
// the worker or here: the worker may be in a hook or a release callback, which may wait for a lock
// that this thread has. Without memory it stays, and its rows are in flight.
int32_t Capturer::find_to_read(routecap_request handle, RequestDataPtr &data) {
    bool behind = false;
    {
        std::lock_guard lock(capture_->mutex);
        Request *request = nullptr;
        if (int32_t s = find(handle, &request); s < 0) return s;
        request->data->routing.retain();
        data.reset(request->data.get());
        behind = !capture_->worker.manual() && request->has_ready_operations(capture_->steps);
    }
    if (behind) capture_->worker.apply_operations();
    return ROUTECAP_OK;
}

// With the store's mutex and the capturer's: nothing is filed into the request, so what is found in
// flight is what is not in the store.
int32_t Capturer::check_readable(Request &request, uint64_t first, uint64_t rows, bool take,
                                 Range &range) {
    const uint64_t length = request.length_now(capture_->steps);
    uint64_t in_flight = UINT64_MAX;  // the first row at or after `first` that is
    const auto not_landed = [&](uint64_t from, uint64_t to) {
        if (std::max(from, first) < to) in_flight = std::min(in_flight, std::max(from, first));
    };
    request.for_each_in_flight(
        capture_->steps, [&](const StepSpan &span, const SpanExtra *, uint64_t) {
            if (!span.speculative)
                not_landed(span.position,
                           std::min(span.position_end,
                                    std::atomic_ref(const_cast<uint64_t &>(span.cut)).load()));
        });
    const uint64_t applied = request.applied();
    const PendingOperations::Range pending = request.pending.pending_rows(applied);
    not_landed(pending.first, pending.end);
    not_landed(request.rare().bounds.cut(applied), UINT64_MAX);
    if (take) not_landed(0, request.rare().bounds.forked_end(applied));

    if (first > length)
        return report(ROUTECAP_ERR_OUT_OF_RANGE, "row %llu: the request has %llu rows", ull(first),
                      ull(length));
    if (rows == ROUTECAP_ROWS_LANDED) rows = std::min(in_flight, length) - first;
    if (rows == ROUTECAP_ROWS_ALL) rows = length - first;
    if (rows > length - first)
        return report(ROUTECAP_ERR_OUT_OF_RANGE,
                      "rows [%llu,%llu) do not exist: the request has %llu rows",
                      ull(std::max(first, length)),
                      rows > UINT64_MAX - first ? ull(UINT64_MAX) : ull(first + rows), ull(length));
    if (in_flight < first + rows)
        return report(ROUTECAP_ERR_NOT_READY, "row %llu is in flight", ull(in_flight));
    range = {first, rows, length};
    return ROUTECAP_OK;
}

// Looks at the request and its rows at one instant. ROUTECAP_PENDING if there is too little room
// for them, which it has noted.
int32_t Capturer::collect(Reading &reading) {
    std::lock_guard store_lock(reading.store.mutex);
    Range &range = reading.range;
    {
        std::lock_guard lock(capture_->mutex);
        Request *request = nullptr;
        if (int32_t s = find(reading.handle, &request); s < 0) return s;
        if (int32_t s = check_readable(*request, reading.first, reading.rows, reading.take, range);
            s < 0)
            return s;
        reading.notes.clear();
        size_t notes = 0;
        for (const MissingNote *note = request->rare().missing; note != nullptr;
             note = note->next) {
            if (note->first >= range.end() || note->end <= range.first) continue;
            if (++notes <= reading.notes.capacity()) reading.notes.push_back(*note);
        }
        if (notes > reading.notes.capacity()) return reading.note_room = notes, ROUTECAP_PENDING;
        if (!reading.take) {
            Intervals needed;
            if (int32_t s = promise_pages(reading, *request, nullptr, needed); s != ROUTECAP_OK)
                return s;
            needed.clear(capture_->worker.nodes);
        }
    }
    reading.segments.clear();
    reading.segment_room = reading.store.count(range.first, range.end());
    if (reading.segment_room > reading.segments.capacity()) return ROUTECAP_PENDING;
    reading.missing = reading.store.missing();
    if (reading.take) return take(reading);
    reading.store.share(range.first, range.end(), reading.segments);
    return ROUTECAP_OK;
}

// With the store's mutex.
int32_t Capturer::take(Reading &reading) {
    const Range &range = reading.range;
    if (range.rows == 0) return ROUTECAP_OK;
    if (reading.strictness.complete) {
        reading.store.share(range.first, range.end(), reading.segments);
        const int32_t status = check_strict(*config_.shape, range.first, range.rows,
                                            reading.segments, reading.strictness);
        reading.segments.clear();
        if (status < 0) return status;
    }
    const RowStore::TakePlan plan = reading.store.plan_take(range.first, range.end());
    reading.splits = plan.splits;
    reading.split_tags = plan.splits && reading.store.has_tags(range.first);
    if (plan.splits &&
        (reading.split.blank == nullptr || (reading.split_tags && reading.split.tags == nullptr)))
        return ROUTECAP_PENDING;
    Intervals needed;
    {
        std::lock_guard lock(capture_->mutex);
        Request *request = nullptr;
        if (int32_t s = find(reading.handle, &request); s < 0) return s;
        if (int32_t s = promise_pages(reading, *request, &plan, needed); s != ROUTECAP_OK) return s;
    }
    reading.store.take(range.first, range.end(), plan, needed, reading.segments, reading.split);
    std::lock_guard lock(capture_->mutex);
    needed.clear(capture_->worker.nodes);
    return ROUTECAP_OK;
}

// Memory for a page that is divided, without a lock.
int32_t Capturer::make_split(Reading &reading) {
    const Shape &shape = *config_.shape;
    PagePool &pool = capture_->pool;
    const uint64_t tags = PagePool::tag_bytes(shape.page_rows);
    const auto refuse = [&] {
        return report(ROUTECAP_ERR_NO_MEMORY,
                      "taking rows [%llu,%llu) needs a page more than the budget has",
                      ull(reading.range.first), ull(reading.range.end()));
    };
    if (reading.split_tags && reading.split.tags == nullptr) {
        if (!pool.reserve(tags)) return refuse();
        reading.split.tags.reset(new (std::nothrow) uint64_t[shape.page_rows]);
        if (reading.split.tags == nullptr) return pool.unreserve(tags), refuse();
    }
    if (reading.split.blank != nullptr) return ROUTECAP_PENDING;
    if (!pool.reserve(pool.page_bytes())) return refuse();
    reading.split.blank = pool.blank(shape, shape.page_rows);
    if (reading.split.blank == nullptr) return pool.unreserve(pool.page_bytes()), refuse();
    return ROUTECAP_PENDING;
}

// The rows of the range are about to be lent, or taken as planned. Rows that were handed over
// before and are still to be filed may then need another page: it is promised to them now, at the
// indices `needed`, or nothing changes. With both mutexes; `needed` is to be cleared with the
// capturer's.
int32_t Capturer::promise_pages(Reading &reading, Request &request, const RowStore::TakePlan *plan,
                                Intervals &needed) {
    const Range &range = reading.range;
    if (range.rows == 0) return ROUTECAP_OK;
    Nodes &nodes = capture_->worker.nodes;
    RowStore &store = reading.store;
    const uint64_t page_rows = config_.shape->page_rows;
    size_t most_nodes = 4;
    request.for_each_in_flight(
        capture_->steps, [&](const StepSpan &, const SpanExtra *, uint64_t) { most_nodes += 2; });
    for (const DraftSpan *d = request.drafts; d != nullptr; d = d->next) most_nodes += 2;
    if (most_nodes > nodes.free()) return reading.nodes = most_nodes, ROUTECAP_PENDING;

    const auto may_write = [&](uint64_t from, uint64_t to) {
        const uint64_t begin = std::max(from, range.first) / page_rows;
        const uint64_t end = std::min((to - 1) / page_rows, (range.end() - 1) / page_rows) + 1;
        uint64_t first = end, last = 0;
        for (uint64_t i = begin; i < end; i++)
            if (store.will_need_page(i, range.first, range.end(), plan, from, to))
                first = std::min(first, i), last = i;
        if (first < end) needed.add(first, last + 1, nodes);
    };
    const uint32_t page_shift = config_.shape->page_shift;
    request.for_each_in_flight(
        capture_->steps, [&](const StepSpan &span, const SpanExtra *, uint64_t) {
            if (span.speculative == 0 &&
                !wide_bounds(span.position, span.position_end, span.count, page_shift))
                may_write(span.position, span.position_end);
        });
    for (const DraftSpan *d = request.drafts; d != nullptr; d = d->next)
        if (d->position < d->cut && !wide_bounds(d->position, d->position_end, d->rows, page_shift))
            may_write(d->position, std::min(d->position_end, d->cut));
    const PendingOperations::Range pending = request.pending.pending_rows(request.applied());
    if (pending.first < pending.end) may_write(pending.first, pending.end);
    uint64_t pages = 0;
    needed.for_each(
        [&](const Intervals::Interval &i) { pages += store.unpromised(i.begin, i.end); });
    if (pages > 0 && !capture_->pool.reserve(pages * capture_->pool.page_bytes())) {
        needed.clear(nodes);
        return report(
            ROUTECAP_ERR_NO_MEMORY,
            "reading rows [%llu,%llu) needs a page more than the budget has: rows that are still to come belong beside them",
            ull(range.first), ull(range.end()));
    }
    needed.for_each([&](const Intervals::Interval &i) { store.promise(i.begin, i.end); });

    const auto [seen_first, seen_end] = store.bounds(range.first, range.end());
    request.share(seen_first, seen_end);
    if (plan == nullptr) return ROUTECAP_OK;
    request.change_rare().share_pages(page_rows);
    uint64_t gone = plan->gone_first;
    const auto forget = [&](uint64_t end) {
        if (request.pages.remove(gone, std::min(end, plan->gone_end), nodes) > 0)
            request.changed = true;
    };
    needed.for_each(
        [&](const Intervals::Interval &i) { forget(i.begin), gone = std::max(gone, i.end); });
    forget(plan->gone_end);
    return ROUTECAP_OK;
}

// The rows that were taken are with whoever took them. Without memory nobody knows.
void Capturer::note_taken(const Reading &reading) noexcept try {
    // Rows that were there, and what their page said of others; one for rows next to one another.
    std::vector<MissingNote> taken;
    const auto add = [&](uint64_t first, uint64_t rows, int32_t reason) {
        if (!taken.empty() && taken.back().end == first && taken.back().reason == reason)
            taken.back().end += rows;
        else if (reason != ROUTECAP_MISSING_ABSENT)
            taken.push_back({first, first + rows, reason, nullptr});
    };
    for (const Segment &segment : reading.segments) {
        if (segment.complete) {
            add(segment.first, segment.rows, ROUTECAP_MISSING_TAKEN);
            continue;
        }
        for (uint64_t r = 0; r < segment.rows; r++) {
            const int32_t reason = config_.shape->row_reason(segment.ids(r), segment.validity(r));
            add(segment.first + r, 1, reason == 0 ? ROUTECAP_MISSING_TAKEN : reason);
        }
    }
    if (taken.empty()) return;
    const auto lock = lock_with({.nodes = taken.size()});
    Request *request = capture_->requests.find(reading.handle);
    for (const MissingNote &note : taken)
        if (request != nullptr)
            request->note_missing(note.first, note.end, note.reason, capture_->worker.nodes);
} catch (const std::bad_alloc &) {}

int32_t Capturer::coverage(routecap_request request, uint64_t first, uint64_t rows,
                           routecap_coverage *coverage, routecap_missing *missing,
                           size_t missing_size, size_t capacity) {
    if (!owner()) return refuse_reading();
    if (int32_t s = check_output(coverage, "coverage"); s < 0) return s;
    if (int32_t s =
            check_array(missing, capacity, missing_size, sizeof(routecap_missing), "missing");
        s < 0)
        return s;
    Range range{};
    std::vector<Segment> segments;
    if (int32_t s = read(request, first, rows, false, {}, range, segments); s < 0) return s;
    routecap_coverage c{};
    c.length = range.length;
    cover(*config_.shape, range.first, range.rows, segments, c, missing, missing_size, capacity);
    write_struct(coverage, c);
    return report_missing(c);
}

int32_t Capturer::read_routing(routecap_request request, uint64_t first, uint64_t rows,
                               int32_t mode, uint32_t flags, Routing **routing) {
    if (mode != ROUTECAP_EXTRACT_SHARE && mode != ROUTECAP_EXTRACT_TAKE &&
        mode != ROUTECAP_EXTRACT_COPY)
        return report(ROUTECAP_ERR_ARGUMENT, "mode is %d", mode);
    Strictness strictness{};
    if (int32_t s = read_flags(flags, strictness); s < 0) return s;
    Range range{};
    std::vector<Segment> segments;
    // First, so that rows taken have a place.
    std::unique_ptr<Routing, RoutingRelease> result(new Routing(capture_->storage));
    if (int32_t s =
            read(request, first, rows, mode == ROUTECAP_EXTRACT_TAKE, strictness, range, segments);
        s < 0)
        return s;
    result->fill(range.first, range.rows, std::move(segments));
    if (mode == ROUTECAP_EXTRACT_COPY) {
        result.reset(result->copy());
        if (!result)
            return report(ROUTECAP_ERR_NO_MEMORY,
                          "a copy of %llu rows is more than the budget has left", ull(range.rows));
    }
    *routing = result.release();
    return (*routing)->status();
}

int32_t Capturer::extract(routecap_request request, uint64_t first, uint64_t rows, int32_t mode,
                          uint32_t flags, Routing **routing) {
    return owner() ? read_routing(request, first, rows, mode, flags, routing) : refuse_reading();
}

int32_t Capturer::extract_batch(routecap_extract_item *items, size_t item_size, size_t count) {
    if (!owner()) return refuse_reading();
    if (int32_t s = check_items(items, count, item_size, "items"); s < 0) return s;
    bool ok = true;
    for (size_t i = 0; i < count; i++) {
        routecap_extract_item &item = at(items, item_size, i);
        try {
            item.status =
                item.reserved == 0
                    ? read_routing(item.request, item.first, item.rows, item.mode, item.flags,
                                   reinterpret_cast<Routing **>(&item.routing))
                    : refuse_reserved(item.reserved);
        } catch (const std::bad_alloc &) {
            item.status = ROUTECAP_ERR_NO_MEMORY;
        }
        ok &= item.status == ROUTECAP_OK;
    }
    return ok ? ROUTECAP_OK
              : report(ROUTECAP_PARTIAL, "some items are not complete: see the status of each");
}

int32_t Capturer::extract_into(routecap_request request, uint64_t first, uint64_t rows,
                               const routecap_copy_options *options, void *dst, size_t dst_bytes,
                               uint8_t *mask, size_t mask_bytes, uint64_t *needed) {
    if (!owner()) return refuse_reading();
    Range range{};
    std::vector<Segment> segments;
    if (int32_t s = read(request, first, rows, false, {}, range, segments); s < 0) return s;
    CopyPlan plan;
    if (int32_t s = plan_copy(*config_.shape, range.rows, options, dst, dst_bytes, mask, mask_bytes,
                              needed, plan);
        s < 0)
        return s;
    const RoutingPtr routing(
        new Routing(capture_->storage, range.first, range.rows, std::move(segments)));
    return copy_out(*routing, plan, dst, mask);
}

}  // namespace routecap
