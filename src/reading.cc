// Reading requests. Rows are gathered under the lock of their RowStore, in time that grows with pages; copying and scanning come after it.
#include "capturer.h"
#include "copy.h"
#include "coverage.h"
#include "status.h"
#include "structs.h"

namespace routecap {
namespace {

int32_t refuse_reading() { return report(ROUTECAP_ERR_DISABLED, "this capturer is disabled or a mirror: it has no rows"); }

}  // namespace

// Finds the rows of a range, after checking that they exist, have landed and are as strict reading wants them. With `take` they leave the request.
int32_t Capturer::read(routecap_request handle, uint64_t first, uint64_t rows, bool take, Strictness strictness, Range &range,
                       std::vector<Segment> &segments) {
    CapturedPtr captured;
    uint64_t operations = 0;  // to wait for
    {
        std::lock_guard lock(capture_->mutex);
        Request *request = nullptr;
        if (int32_t s = find(handle, &request); s < 0) return s;
        request->captured->routing.retain();
        captured.reset(request->captured.get());
        if (!capture_->filing.manual() && request->behind(capture_->steps)) operations = request->operations;
    }
    RowStore &store = captured->rows;
    // What was handed over before and waits for no step is applied in the worker's next round; only without memory does that take longer.
    constexpr int64_t kPatience = 100'000'000;
    if (operations > 0) capture_->landing.wait(kPatience, [&] { return store.applied.load(std::memory_order_acquire) >= operations; });
    // With this lock held nothing is filed into the request, so what is found in flight below is what is not in the store.
    std::lock_guard store_lock(store.mutex);
    std::unique_lock lock(capture_->mutex);
    Request *request = nullptr;
    if (int32_t s = find(handle, &request); s < 0) return s;

    const uint64_t length = request->length_now(capture_->steps);
    uint64_t in_flight = UINT64_MAX;  // the first row at or after `first` that is
    const auto not_landed = [&](uint64_t from, uint64_t to) {
        if (std::max(from, first) < to) in_flight = std::min(in_flight, std::max(from, first));
    };
    request->for_each_in_flight(capture_->steps, [&](const StepSpan &span, uint64_t) {
        if (!span.speculative) not_landed(span.position, std::min(span.position_end, std::atomic_ref(const_cast<uint64_t &>(span.cut)).load()));
    });
    if (request->changing(first, UINT64_MAX)) not_landed(request->changing_first, request->changing_end);
    not_landed(request->cut_not_applied(), UINT64_MAX);
    if (take && request->lending()) not_landed(0, request->lending_end);

    if (first > length) return report(ROUTECAP_ERR_OUT_OF_RANGE, "row %llu: the request has %llu rows", ull(first), ull(length));
    if (rows == ROUTECAP_ROWS_LANDED) rows = std::min(in_flight, length) - first;
    if (rows == ROUTECAP_ROWS_ALL) rows = length - first;
    if (rows > length - first)
        return report(ROUTECAP_ERR_OUT_OF_RANGE, "rows [%llu,%llu) do not exist: the request has %llu rows", ull(std::max(first, length)),
                      rows > UINT64_MAX - first ? ull(UINT64_MAX) : ull(first + rows), ull(length));
    const uint64_t end = first + rows;
    if (in_flight < end) return report(ROUTECAP_ERR_NOT_READY, "row %llu is in flight", ull(in_flight));
    range = {first, rows, length};
    if (!take || strictness.complete) {
        lock.unlock();
        segments = store.share(first, end);
        if (strictness.complete && reading_status(*config_.shape, first, rows, segments) != ROUTECAP_OK)
            return report(ROUTECAP_ERR_INCOMPLETE, "cells are missing in rows [%llu,%llu) and the reading is strict; coverage names them", ull(first),
                          ull(end));
        if (int32_t status = check_provenance(*config_.shape, 0, config_.shape->layers, rows, strictness); status < 0) return status;
        if (!take) return ROUTECAP_OK;
        segments = {};
        lock.lock();
        if (int32_t s = find(handle, &request); s < 0) return s;
    }
    uint64_t gone_first = 0, gone_end = 0;
    if (rows > 0 && !store.take(first, end, segments, gone_first, gone_end))
        return report(ROUTECAP_ERR_NO_MEMORY, "taking rows [%llu,%llu) needs a page more than the budget has", ull(first), ull(end));
    forget_pages(*request, gone_first, gone_end, store);
    return ROUTECAP_OK;
}

// Pages that left the table are promised no longer, but those that rows in flight will need again. Without memory to note it, the request finds out
// when it asks for a page.
void Capturer::forget_pages(Request &request, uint64_t first, uint64_t end, RowStore &store) noexcept try {
    if (first >= end) return;
    request.changed = true;
    request.pages.remove(first, end);
    const uint64_t page_rows = config_.shape->page_rows;
    PagePool &pool = capture_->pool;
    request.for_each_in_flight(capture_->steps, [&](const StepSpan &span, uint64_t) {
        const uint64_t from = std::max(first, span.position / page_rows), to = std::min(end, (span.position_end - 1) / page_rows + 1);
        if (from >= to) return;
        const uint64_t pages = request.pages.absent(from, to);
        if (pages == 0 || !pool.reserve(pages * pool.page_bytes())) return;
        store.promise(pages);
        request.pages.add(from, to);
    });
} catch (const std::bad_alloc &) {
}

int32_t Capturer::coverage(routecap_request request, uint64_t first, uint64_t rows, routecap_coverage *coverage, routecap_missing *missing,
                           size_t missing_size, size_t capacity) {
    if (!owner()) return refuse_reading();
    if (int32_t s = check_output(coverage, "coverage"); s < 0) return s;
    if (int32_t s = check_array(missing, capacity, missing_size, sizeof(routecap_missing), "missing"); s < 0) return s;
    Range range{};
    std::vector<Segment> segments;
    if (int32_t s = read(request, first, rows, false, {}, range, segments); s < 0) return s;
    routecap_coverage c{};
    c.length = range.length;
    cover(*config_.shape, range.first, range.rows, segments, c, missing, missing_size, capacity);
    write_struct(coverage, c);
    return report_missing(c);
}

int32_t Capturer::read_routing(routecap_request request, uint64_t first, uint64_t rows, int32_t mode, uint32_t flags, Routing **routing) {
    if (mode != ROUTECAP_EXTRACT_SHARE && mode != ROUTECAP_EXTRACT_TAKE && mode != ROUTECAP_EXTRACT_COPY)
        return report(ROUTECAP_ERR_ARGUMENT, "mode is %d", mode);
    Strictness strictness{};
    if (int32_t s = read_flags(flags, strictness); s < 0) return s;
    Range range{};
    std::vector<Segment> segments;
    std::unique_ptr<Routing, RoutingRelease> result(new Routing(capture_->context));  // first, so that rows taken have a place
    if (int32_t s = read(request, first, rows, mode == ROUTECAP_EXTRACT_TAKE, strictness, range, segments); s < 0) return s;
    result->fill(range.first, range.rows, std::move(segments));
    if (mode == ROUTECAP_EXTRACT_COPY) {
        result.reset(result->copy());
        if (!result) return report(ROUTECAP_ERR_NO_MEMORY, "a copy of %llu rows is more than the budget has left", ull(range.rows));
    }
    *routing = result.release();
    return (*routing)->status();
}

int32_t Capturer::extract(routecap_request request, uint64_t first, uint64_t rows, int32_t mode, uint32_t flags, Routing **routing) {
    return owner() ? read_routing(request, first, rows, mode, flags, routing) : refuse_reading();
}

int32_t Capturer::extract_batch(routecap_extract_item *items, size_t item_size, size_t count) {
    if (!owner()) return refuse_reading();
    if (int32_t s = check_items(items, count, item_size, "items"); s < 0) return s;
    bool ok = true;
    for (size_t i = 0; i < count; i++) {
        routecap_extract_item &item = at(items, item_size, i);
        try {
            item.status = item.reserved == 0 ? read_routing(item.request, item.first, item.rows, item.mode, item.flags,
                                                            reinterpret_cast<Routing **>(&item.routing))
                                             : refuse_reserved(item.reserved);
        } catch (const std::bad_alloc &) {
            item.status = ROUTECAP_ERR_NO_MEMORY;
        }
        ok &= item.status == ROUTECAP_OK;
    }
    return ok ? ROUTECAP_OK : report(ROUTECAP_PARTIAL, "some items are not complete: see the status of each");
}

int32_t Capturer::extract_into(routecap_request request, uint64_t first, uint64_t rows, const routecap_copy_options *options, void *dst,
                               size_t dst_bytes, uint8_t *mask, size_t mask_bytes, uint64_t *needed) {
    if (!owner()) return refuse_reading();
    Range range{};
    std::vector<Segment> segments;
    if (int32_t s = read(request, first, rows, false, {}, range, segments); s < 0) return s;
    CopyPlan plan;
    if (int32_t s = plan_copy(*config_.shape, range.rows, options, dst, dst_bytes, mask, mask_bytes, needed, plan); s < 0) return s;
    const RoutingPtr routing(new Routing(capture_->context, range.first, range.rows, std::move(segments)));
    return copy_out(*routing, plan, dst, mask);
}

}  // namespace routecap
