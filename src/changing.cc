// Opening, changing and ending requests. Each call changes what the engine's side knows at once and appends to the log what filing has to do.
#include <new>

#include "capturer.h"
#include "status.h"
#include "structs.h"

namespace routecap {
int32_t Capturer::find(routecap_request handle, Request **request) {
    *request = capture_->requests.find(handle);
    return *request != nullptr ? ROUTECAP_OK : report(ROUTECAP_ERR_UNKNOWN_REQUEST, "request %016llx is not open here", ull(handle));
}

// ---- Open -----------------------------------------------------------------------------------

routecap_request Capturer::open_one(RowStore::Policy policy) {
    return capture_->requests.open(OpenPtr(new Captured(capture_->context, policy, config_.compare)));
}

int32_t Capturer::open(const routecap_open_options *options, routecap_request *requests, size_t count) {
    if (requests == nullptr && count > 0) return report(ROUTECAP_ERR_ARGUMENT, "requests is NULL");
    if (!owner()) return ROUTECAP_OK;
    routecap_open_options o{};
    if (options != nullptr)
        if (int32_t s = read_struct(o, options, "options"); s < 0) return s;
    if (o.policy != ROUTECAP_POLICY_KEEP && o.policy != ROUTECAP_POLICY_REPLACE)
        return report(ROUTECAP_ERR_ARGUMENT, "options.policy is %d", o.policy);
    const RowStore::Policy policy = o.policy == ROUTECAP_POLICY_KEEP ? RowStore::Policy::keep : RowStore::Policy::replace;

    std::lock_guard lock(capture_->mutex);
    if (!capture_->requests.reserve(count))
        return report(ROUTECAP_ERR_TOO_MANY_REQUESTS, "%zu more than the %llu open, of at most %u", count, ull(capture_->requests.count()),
                      config_.max_requests);
    size_t opened = 0;
    try {
        for (; opened < count; opened++) requests[opened] = open_one(policy);
    } catch (const std::bad_alloc &) {
        for (size_t i = 0; i < opened; i++) capture_->requests.close(*capture_->requests.find(requests[i]), requests[i]);
        std::fill_n(requests, count, routecap_request{0});
        throw;
    }
    return ROUTECAP_OK;
}

// ---- Change ---------------------------------------------------------------------------------

int32_t Capturer::accept_one(const routecap_accept_item &item) {
    Request *request = nullptr;
    if (int32_t s = find(item.request, &request); s < 0) return s;
    uint64_t drafts = 0;
    bool filed = false;
    for (const DraftSpan &d : request->drafts)
        if (d.step == item.step) drafts += d.rows, filed |= d.filed;
    if (drafts == 0) return report(ROUTECAP_ERR_UNKNOWN_STEP, "no drafts of step %llu wait to be accepted", ull(item.step));
    if (item.count > drafts) return report(ROUTECAP_ERR_OUT_OF_RANGE, "%llu rows of %llu drafts", ull(item.count), ull(drafts));
    for (uint64_t i = 0; item.rows != nullptr && i < item.count; i++) {
        if (item.rows[i] >= drafts) return report(ROUTECAP_ERR_OUT_OF_RANGE, "row %u of %llu drafts", item.rows[i], ull(drafts));
        if (i > 0 && item.rows[i] <= item.rows[i - 1]) return report(ROUTECAP_ERR_ARGUMENT, "rows do not ascend at index %llu", ull(i));
    }
    Settle settle{request->rows(), item.step, item.rows == nullptr ? item.count : 0, nullptr};
    if (item.rows != nullptr && item.count > 0) settle.kept = std::make_unique<std::vector<uint32_t>>(item.rows, item.rows + item.count);
    capture_->filing.make_room();

    // The length, and which rows change once this is applied.
    uint64_t changed_first = UINT64_MAX, changed_end = 0, listed = 0;
    for (const DraftSpan &d : request->drafts) {
        if (d.step != item.step) continue;
        uint64_t end = 0;
        if (item.rows == nullptr) {
            end = d.end_of_first(std::clamp(item.count, d.first_index, d.first_index + d.rows) - d.first_index);
        } else {
            for (; listed < item.count && item.rows[listed] < d.first_index + d.rows; listed++) end = std::max(end, d.end_of(item.rows[listed]));
        }
        if (end == 0) continue;
        if (!d.device_positions || !d.filed) request->length = std::max(request->length, end);
        if (d.filed) changed_first = std::min(changed_first, d.position), changed_end = std::max(changed_end, end);
    }
    std::erase_if(request->drafts, [&](const DraftSpan &d) { return d.step == item.step; });
    if (filed) {
        request->operate(changed_first, changed_end);
        capture_->filing.append(request->after(), std::move(settle));
    }
    return ROUTECAP_OK;
}

int32_t Capturer::accept(routecap_request request, routecap_step step, const uint32_t *rows, size_t count) {
    if (!owner()) return ROUTECAP_OK;
    {
        std::lock_guard lock(capture_->mutex);
        if (int32_t s = accept_one({.request = request, .step = step, .rows = rows, .count = count, .status = 0, .reserved = 0}); s < 0) return s;
    }
    capture_->filing.wake();
    return ROUTECAP_OK;
}

// Rows at and after `end` of steps in flight will be dropped when they land, but for those that a child is to have.
void Capturer::cut_in_flight(Request &request, uint64_t end) {
    const bool lending = request.lending();
    request.for_each_in_flight(capture_->steps, [&](StepSpan &span, uint64_t step) {
        const uint64_t from = lending && step <= request.lending_step ? std::max(end, request.lending_end) : end;
        std::atomic_ref cut(span.cut);
        if (cut.load(std::memory_order_relaxed) > from) cut.store(from, std::memory_order_release);
    });
}

int32_t Capturer::truncate(routecap_request handle, uint64_t rows) {
    if (!owner()) return ROUTECAP_OK;
    {
        std::lock_guard lock(capture_->mutex);
        Request *request = nullptr;
        if (int32_t s = find(handle, &request); s < 0) return s;
        if (rows >= std::max(request->length_now(capture_->steps), request->flagged_end)) return ROUTECAP_OK;
        capture_->filing.make_room();
        std::erase_if(request->cuts, [applied = request->applied()](const Request::Cut &cut) { return applied >= cut.until; });
        request->cuts.reserve(request->cuts.size() + 1);
        const uint64_t page_rows = config_.shape->page_rows;
        const uint64_t first_page = rows / page_rows + (rows % page_rows != 0);
        const uint64_t pages = request->pages.remove(first_page, UINT64_MAX);
        cut_in_flight(*request, rows);
        for (DraftSpan &draft : request->drafts) draft.cut = std::min(draft.cut, rows);
        request->length = std::min(request->length, rows);
        request->changing_end = std::min(request->changing_end, rows);
        request->operate(0, 0);
        request->flagged_end = std::min(request->flagged_end, rows);
        request->cuts.push_back({rows, request->operations, request->newest.step});
        capture_->filing.append(request->after(), Truncate{request->rows(), rows, pages});
    }
    capture_->filing.wake();
    return ROUTECAP_OK;
}

int32_t Capturer::fork(routecap_request handle, uint64_t rows, routecap_request *child) {
    if (!owner()) return ROUTECAP_OK;
    {
        std::lock_guard lock(capture_->mutex);
        Request *parent = nullptr;
        if (int32_t s = find(handle, &parent); s < 0) return s;
        const uint64_t length = parent->length_now(capture_->steps);
        if (rows == ROUTECAP_ROWS_ALL) rows = length;
        if (rows > length) return report(ROUTECAP_ERR_OUT_OF_RANGE, "rows [%llu,%llu) do not exist", ull(length), ull(rows));
        if (!capture_->requests.reserve(1)) return report(ROUTECAP_ERR_TOO_MANY_REQUESTS, "%u requests are open", config_.max_requests);
        capture_->filing.make_room();
        Intervals pages = parent->pages;
        pages.remove(rows / config_.shape->page_rows, UINT64_MAX);  // a page that is shared in part will be copied when it is written
        *child = open_one(parent->rows()->policy());
        Request &c = *capture_->requests.find(*child);
        c.length = rows;
        c.pages = std::move(pages);
        c.inherited_after = parent->after();
        c.operate(0, rows);
        parent->operate(0, 0);
        parent->lending_end = parent->lending() ? std::max(parent->lending_end, rows) : rows;
        parent->lending_step = parent->newest.step;
        parent->lending_until = parent->operations;
        capture_->filing.append(parent->after(), Fork{parent->rows(), c.rows(), rows});
    }
    capture_->filing.wake();
    return ROUTECAP_OK;
}

int32_t Capturer::attach(routecap_request handle, const Routing *routing, uint64_t rows) {
    if (!owner()) return ROUTECAP_OK;
    if (routing == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "routing is NULL");
    if (!routing->shape().same_rows(*config_.shape)) return report(ROUTECAP_ERR_SHAPE_MISMATCH, "the routing is of another model or layer map");
    if (!config_.shape->can_hold(routing->shape()))
        return report(ROUTECAP_ERR_SHAPE_MISMATCH, "a layer of the routing is recomputed, and captured here");
    const bool pending = !routing->ready();
    if (pending && routing->landing() != &capture_->landing)
        return report(ROUTECAP_ERR_NOT_READY, "the routing belongs to another capturer and has not landed");
    const uint64_t routing_end = routing->expected_end();
    if (rows == ROUTECAP_ROWS_ALL) rows = routing_end;
    if (rows > routing_end) return report(ROUTECAP_ERR_OUT_OF_RANGE, "rows [%llu,%llu) are beyond the routing", ull(routing_end), ull(rows));
    {
        std::lock_guard lock(capture_->mutex);
        Request *request = nullptr;
        if (int32_t s = find(handle, &request); s < 0) return s;
        capture_->filing.make_room();
        const uint64_t first = pending ? 0 : std::min(routing->first(), rows), page_rows = config_.shape->page_rows;
        if (first >= rows) return ROUTECAP_OK;
        request->pages.add((first + page_rows - 1) / page_rows, rows / page_rows);  // shared as a whole
        request->length = std::max(request->length, rows);
        if (pending) request->inherited_after = std::max(request->inherited_after, routing->after());
        request->operate(first, rows);
        routing->retain();
        capture_->filing.append(request->after(), Attach{request->rows(), RoutingPtr(routing), rows});
    }
    capture_->filing.wake();
    return ROUTECAP_OK;
}

// ---- End ------------------------------------------------------------------------------------

int32_t Capturer::finish_one(routecap_request handle, uint64_t rows, Routing **routing) {
    *routing = nullptr;
    Request *request = nullptr;
    if (int32_t s = find(handle, &request); s < 0) return s;
    if (rows != ROUTECAP_ROWS_ALL && rows > ROUTECAP_MAX_POSITION) return report(ROUTECAP_ERR_OUT_OF_RANGE, "%llu rows", ull(rows));
    const bool all = rows == ROUTECAP_ROWS_ALL;
    const uint64_t length = request->length, expected = all ? request->length_now(capture_->steps) : rows, after = request->after();
    capture_->filing.make_room();
    if (!all && rows < request->issued_end()) cut_in_flight(*request, rows);
    *routing = &request->captured->routing;
    (*routing)->expect(after, expected);
    capture_->filing.append(after, Finish{CapturedPtr(request->captured.release()), all ? length : rows, all});
    capture_->requests.close(*request, handle);
    return ROUTECAP_OK;
}

int32_t Capturer::finish(routecap_request request, uint64_t rows, Routing **routing) {
    if (!owner()) return report(ROUTECAP_ERR_DISABLED, "this capturer is disabled or a mirror");
    {
        std::lock_guard lock(capture_->mutex);
        if (int32_t s = finish_one(request, rows, routing); s < 0) return s;
    }
    capture_->filing.wake();
    return ROUTECAP_OK;
}

int32_t Capturer::close_one(routecap_request handle) {
    if (handle == 0) return ROUTECAP_OK;
    Request *request = nullptr;
    if (int32_t s = find(handle, &request); s < 0) return s;
    capture_->filing.make_room();
    cut_in_flight(*request, 0);
    capture_->filing.append(request->after(), Close{std::move(request->captured)});
    capture_->requests.close(*request, handle);
    return ROUTECAP_OK;
}

int32_t Capturer::close(routecap_request request) {
    if (!owner()) return ROUTECAP_OK;
    {
        std::lock_guard lock(capture_->mutex);
        if (int32_t s = close_one(request); s < 0) return s;
    }
    capture_->filing.wake();
    return ROUTECAP_OK;
}

// ---- Many at once ---------------------------------------------------------------------------

template <class Item, class One>
int32_t Capturer::batch(Item *items, size_t item_size, size_t count, One one) {
    if (int32_t s = check_items(items, count, item_size, "items"); s < 0) return s;
    bool ok = true;
    {
        std::lock_guard lock(capture_->mutex);
        for (size_t i = 0; i < count; i++) {
            if (i + Requests::kAhead < count) capture_->requests.prefetch(at(items, item_size, i + Requests::kAhead).request, false);
            if (i + Requests::kAhead / 2 < count) capture_->requests.prefetch_more(at(items, item_size, i + Requests::kAhead / 2).request);
            capture_->filing.prefetch_log(Requests::kAhead);
            Item &item = at(items, item_size, i);
            try {
                item.status = item.reserved == 0 ? one(item) : refuse_reserved(item.reserved);
            } catch (const std::bad_alloc &) {
                item.status = ROUTECAP_ERR_NO_MEMORY;
            }
            ok &= item.status == ROUTECAP_OK;
        }
    }
    capture_->filing.wake();
    return ok ? ROUTECAP_OK : report(ROUTECAP_PARTIAL, "some items were refused: see the status of each");
}

int32_t Capturer::accept_batch(routecap_accept_item *items, size_t item_size, size_t count) {
    if (!owner()) {
        const int32_t sound = check_array(items, count, item_size, sizeof *items, "items");
        for (size_t i = 0; sound == ROUTECAP_OK && i < count; i++) at(items, item_size, i).status = ROUTECAP_OK;
        return ROUTECAP_OK;
    }
    return batch(items, item_size, count, [this](const routecap_accept_item &item) { return accept_one(item); });
}

int32_t Capturer::finish_batch(routecap_finish_item *items, size_t item_size, size_t count) {
    if (!owner()) return report(ROUTECAP_ERR_DISABLED, "this capturer is disabled or a mirror");
    return batch(items, item_size, count, [this](routecap_finish_item &item) {
        return finish_one(item.request, item.rows, reinterpret_cast<Routing **>(&item.routing));
    });
}

int32_t Capturer::close_batch(const routecap_request *requests, int32_t *status, size_t count) {
    if (!owner()) {
        if (status != nullptr) std::fill_n(status, count, ROUTECAP_OK);
        return ROUTECAP_OK;
    }
    if (requests == nullptr && count > 0) return report(ROUTECAP_ERR_ARGUMENT, "requests is NULL");
    bool ok = true;
    {
        std::lock_guard lock(capture_->mutex);
        capture_->filing.make_room(count);  // so that none fails halfway
        for (size_t i = 0; i < count; i++) {
            const int32_t s = close_one(requests[i]);
            if (status != nullptr) status[i] = s;
            ok &= s == ROUTECAP_OK;
        }
    }
    capture_->filing.wake();
    return ok ? ROUTECAP_OK : report(ROUTECAP_PARTIAL, "some requests were not open: see the status of each");
}

}  // namespace routecap
