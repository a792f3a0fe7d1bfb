#include "capture/requests.h"

#include <new>

#include "base/status.h"
#include "base/structs.h"

namespace routecap {

// ---- Open -----------------------------------------------------------------------------------

int32_t Requests::refuse_many(size_t count) const {
    return report(ROUTECAP_ERR_TOO_MANY_REQUESTS, "%zu more than the %llu open, of at most %u",
                  count, ull(state_->registry.open_requests()), config_.max_requests);
}

int32_t Requests::open(const routecap_open_options *options, routecap_request *requests,
                       size_t count) {
    if (requests == nullptr && count > 0) return report(ROUTECAP_ERR_ARGUMENT, "requests is NULL");
    if (int32_t s = check_count(count, sizeof *requests, "requests"); s < 0) return s;
    if (state_ == nullptr) return ROUTECAP_OK;
    routecap_open_options o{};
    if (options != nullptr)
        if (int32_t s = read_struct(o, options, "options"); s < 0) return s;
    if (o.policy != ROUTECAP_POLICY_KEEP && o.policy != ROUTECAP_POLICY_REPLACE)
        return report(ROUTECAP_ERR_ARGUMENT, "options.policy is %d", o.policy);
    const bool replace = o.policy == ROUTECAP_POLICY_REPLACE;
    if (count == 0) return ROUTECAP_OK;
    // Looked at again with the mutex: so many requests need not be made in vain.
    if (count + state_->registry.open_requests() > config_.max_requests) return refuse_many(count);

    std::vector<OpenRequestPtr> made(count);
    for (OpenRequestPtr &data : made)
        data.reset(new RequestData(state_->storage, replace, config_.compare));
    const Lock lock(state_->registry.mutex);
    if (!state_->registry.requests.possible(count)) return refuse_many(count);
    state_->registry.requests.make_room(count);
    const uint64_t serial = Serials::take(count);
    if (serial == 0)
        return report(ROUTECAP_ERR_TOO_MANY_REQUESTS, "this process has given out all its handles");
    for (size_t i = 0; i < count; i++)
        requests[i] = state_->registry.requests.open(std::move(made[i]), serial + i).handle;
    return ROUTECAP_OK;
}

// ---- Change ---------------------------------------------------------------------------------

// What is wrong with an item, for a request that has so many drafts of its step, if anything is.
static int32_t check_accept(const routecap_accept_item &item, uint64_t drafts) {
    if (drafts == 0)
        return report(ROUTECAP_ERR_UNKNOWN_STEP, "no drafts of step %llu wait to be accepted",
                      ull(item.step));
    if (item.count > drafts)
        return report(ROUTECAP_ERR_OUT_OF_RANGE, "%llu rows of %llu drafts", ull(item.count),
                      ull(drafts));
    for (uint64_t i = 0; item.rows != nullptr && i < item.count; i++) {
        if (item.rows[i] >= drafts)
            return report(ROUTECAP_ERR_OUT_OF_RANGE, "row %u of %llu drafts", item.rows[i],
                          ull(drafts));
        if (i > 0 && item.rows[i] <= item.rows[i - 1])
            return report(ROUTECAP_ERR_ARGUMENT, "rows do not ascend at index %llu", ull(i));
    }
    return ROUTECAP_OK;
}

// Throws without memory, before anything has changed.
int32_t Requests::accept_one(Request &request, const routecap_accept_item &item) {
    uint64_t drafts = 0;
    const Ticket step{item.step};
    for (const DraftSpan *d = request.drafts; d != nullptr; d = d->next)
        if (d->step == step) drafts += d->rows;
    if (drafts == 0 || item.count > drafts || item.rows != nullptr)
        if (int32_t s = check_accept(item, drafts); s < 0) return s;
    std::unique_ptr<std::vector<uint32_t>> kept;
    if (item.rows != nullptr && item.count > 0)
        kept = std::make_unique<std::vector<uint32_t>>(item.rows, item.rows + item.count);

    // The length, and which rows change once this is applied. The newest draft comes first.
    request.note_operation();
    uint64_t listed = item.rows != nullptr ? item.count : 0;
    for (DraftSpan **at = &request.drafts; *at != nullptr;) {
        DraftSpan *const d = *at;
        if (d->step != step) {
            at = &d->next;
            continue;
        }
        uint64_t end = 0;
        if (item.rows == nullptr && item.count > d->first_index) {
            end = d->end_of_first(std::min<uint64_t>(item.count - d->first_index, d->rows));
            request.note_change(d->position, end);
        }
        for (; listed > 0 && item.rows[listed - 1] >= d->first_index; listed--) {
            const uint64_t row_end = d->end_of(item.rows[listed - 1]);
            if (row_end == 0) continue;
            request.note_change(d->device_positions ? d->position : row_end - 1, row_end);
            end = std::max(end, row_end);
        }
        if (end > 0) {
            if (d->missing)
                request.extend_missing(end);
            else if (!d->device_positions)
                request.extend(end, config_.shape->page_shift);
        }
        *at = state_->registry.requests.drafts.give(d);
    }
    state_->registry.append(
        request.after(),
        Settle{request.rows(), step, item.rows == nullptr ? item.count : 0, std::move(kept)});
    return ROUTECAP_OK;
}

int32_t Requests::accept(routecap_request request, routecap_step step, const uint32_t *rows,
                         size_t count) {
    if (state_ == nullptr) return ROUTECAP_OK;
    const routecap_accept_item item{
        .request = request, .step = step, .rows = rows, .count = count, .status = 0, .reserved = 0};
    return change(request, [&](Request &found) REQUIRES(state_->registry.mutex) {
        return accept_one(found, item);
    });
}

// Rows at and after `end` of steps in flight will be dropped when they land, but for those that a
// child or a store is to have. Where the request is finished there, drafts are told apart: those
// that nobody accepted end as rejected, and not as late.
void Requests::cut_in_flight(Request &request, uint64_t end, bool finished) {
    const uint64_t applied = request.applied();
    request.for_each_in_flight(state_->steps, [&](StepSpan &span, Ticket step) {
        uint64_t from = end;
        if (request.has_rare) from = std::max(end, request.rare().lent_end(step, applied));
        if (finished && span.speculative)
            span.cut.engine_ends(from);
        else
            span.cut.engine_cuts(from);
    });
}

int32_t Requests::truncate(routecap_request handle, uint64_t rows) {
    if (state_ == nullptr) return ROUTECAP_OK;
    return change(handle, [&](Request &request) REQUIRES(state_->registry.mutex) {
        if (rows >= std::max(request.length_now(state_->steps), request.flagged_end))
            return ROUTECAP_OK;
        request.change_rare().cuts.make_room(request.applied());
        const bool alone = request.settled();
        const uint64_t page_rows = config_.shape->page_rows;
        const uint64_t first_page = (rows + page_rows - 1) / page_rows;
        request.own_page = Request::kNone;
        cut_in_flight(request, rows);
        for (DraftSpan *draft = request.drafts; draft != nullptr; draft = draft->next)
            draft->cut = std::min(draft->cut, rows);
        request.length = std::min(request.length, rows);
        // Of a page that stays others may still see what is cut.
        request.shared_end_ = std::min(request.shared_end_, first_page * page_rows);
        request.flagged_end = std::min(request.flagged_end, rows);
        request.note_cut(rows);
        state_->registry.append(request.after(), Truncate{request.rows(), rows, alone});
        return ROUTECAP_OK;
    });
}

int32_t Requests::fork(routecap_request handle, uint64_t rows, routecap_request *child) {
    if (state_ == nullptr) return ROUTECAP_OK;
    const uint64_t serial = Serials::take(1);
    if (serial == 0)
        return report(ROUTECAP_ERR_TOO_MANY_REQUESTS, "this process has given out all its handles");
    return change(handle, [&](Request &parent) REQUIRES(state_->registry.mutex) {
        const uint64_t length = parent.length_now(state_->steps);
        if (rows == ROUTECAP_ROWS_ALL) rows = length;
        if (rows > length)
            return report(ROUTECAP_ERR_OUT_OF_RANGE, "rows [%llu,%llu) do not exist", ull(length),
                          ull(rows));
        if (!state_->registry.requests.possible(1)) return refuse_many(1);
        state_->registry.requests.make_room(1);
        parent.change_rare().lendings.make_room(parent.applied());
        OpenRequestPtr data(
            new RequestData(state_->storage, parent.rows()->replaces(), config_.compare));
        Request &c = state_->registry.requests.open(std::move(data), serial);
        *child = c.handle;
        c.length = rows;
        c.inherit(parent.after());
        c.note_operation();
        c.note_change(0, rows);
        parent.share(rows);
        parent.note_lending(0, rows);
        state_->registry.append(parent.after(), Fork{parent.rows(), c.rows(), rows});
        return ROUTECAP_OK;
    });
}

int32_t Requests::attach(routecap_request handle, const Routing *routing, uint64_t rows) {
    if (state_ == nullptr) return ROUTECAP_OK;
    if (routing == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "routing is NULL");
    if (!routing->shape().same_rows(*config_.shape))
        return report(ROUTECAP_ERR_SHAPE_MISMATCH, "the routing is of another model or layer map");
    if (!config_.shape->can_hold(routing->shape()))
        return report(ROUTECAP_ERR_SHAPE_MISMATCH,
                      "a layer of the routing is recomputed, and captured here");
    const bool pending = !routing->ready();
    if (pending && routing->completion() != &state_->completion)
        return report(ROUTECAP_ERR_NOT_READY,
                      "the routing belongs to another capturer and has not landed");
    const uint64_t routing_end = routing->expected_end();
    if (rows == ROUTECAP_ROWS_ALL) rows = routing_end;
    if (rows > routing_end)
        return report(ROUTECAP_ERR_OUT_OF_RANGE, "rows [%llu,%llu) are beyond the routing",
                      ull(routing_end), ull(rows));
    routing->retain();
    RoutingPtr held(routing);
    return change(handle, [&](Request &request) REQUIRES(state_->registry.mutex) {
        const uint64_t first = pending ? 0 : std::min(routing->first(), rows);
        if (first >= rows) return ROUTECAP_OK;
        request.extend_attached(rows);
        if (pending) request.inherit(routing->after());
        request.note_operation();
        request.note_change(first, rows);
        state_->registry.append(request.after(), Attach{request.rows(), std::move(held), rows});
        return ROUTECAP_OK;
    });
}

// ---- End ------------------------------------------------------------------------------------

// The caller has cleared *routing: it is left alone where this refuses.
int32_t Requests::finish_one(Request &request, uint64_t rows, Routing **routing) {
    if (rows != ROUTECAP_ROWS_ALL && rows > ROUTECAP_MAX_POSITION)
        return report(ROUTECAP_ERR_OUT_OF_RANGE, "%llu rows", ull(rows));
    const bool all = rows == ROUTECAP_ROWS_ALL;
    const uint64_t length = request.length,
                   expected = all ? request.length_now(state_->steps) : rows;
    const Ticket after = request.after();
    if (!all && rows < request.issued_end()) cut_in_flight(request, rows, true);
    request.data->expect(after, expected);
    RequestDataPtr data(request.data.release());
    *routing = data.get();  // the caller's reference; the other one goes into the log
    state_->registry.append(after, Finish{std::move(data), all ? length : rows, all});
    state_->registry.requests.close(request);
    return ROUTECAP_OK;
}

int32_t Requests::finish(routecap_request request, uint64_t rows, Routing **routing) {
    if (state_ == nullptr)
        return report(ROUTECAP_ERR_DISABLED, "this capturer is disabled or a mirror");
    return change(request, [&](Request &found) REQUIRES(state_->registry.mutex) {
        return finish_one(found, rows, routing);
    });
}

int32_t Requests::close_one(Request &request) {
    const bool alone = request.settled();
    cut_in_flight(request, 0);
    state_->registry.append(request.after(), Close{std::move(request.data), alone});
    state_->registry.requests.close(request);
    return ROUTECAP_OK;
}

int32_t Requests::close(routecap_request request) {
    if (state_ == nullptr || request == 0) return ROUTECAP_OK;
    return change(
        request, [&](Request &found) REQUIRES(state_->registry.mutex) { return close_one(found); });
}

// ---- Many at once ---------------------------------------------------------------------------

// Calls one(request, item) for each, with the mutex and room in the log for one entry of each.
// Requests lie all over memory, so it begins to fetch them some items ahead, with or without what
// drafts need, and then calls ahead(request) for what they point to. Without it finishing 1,024
// takes 1.7 times as long, and accepting for 1,024 1.8 times, if requests were opened in another
// order (cold caches).
template <class Item, class Ahead, class One>
int32_t Requests::batch(Item *items, size_t item_size, size_t count, bool drafts, Ahead ahead,
                        One one) {
    if (int32_t s = check_items(items, count, item_size, "items"); s < 0) return s;
    bool ok = true;
    {
        const Lock lock(state_->registry.mutex);
        state_->registry.make_room(count);
        for (size_t i = 0; i < count; i++) {
            constexpr size_t kAhead = 16;
            RequestTable &requests = state_->registry.requests;
            if (i + 2 * kAhead < count)
                requests.prefetch(at(items, item_size, i + 2 * kAhead).request, drafts);
            if (i + kAhead < count)
                if (const Request *next = requests.find(at(items, item_size, i + kAhead).request))
                    ahead(*next);
            Item &item = at(items, item_size, i);
            Request *request = nullptr;
            item.status = item.reserved != 0 ? refuse_reserved(item.reserved)
                                             : state_->registry.find(item.request, &request);
            if (request != nullptr) item.status = one(*request, item);
            ok &= item.status == ROUTECAP_OK;
        }
    }
    state_->worker.wake();
    return ok ? ROUTECAP_OK
              : report(ROUTECAP_PARTIAL, "some items were refused: see the status of each");
}

int32_t Requests::accept_batch(routecap_accept_item *items, size_t item_size, size_t count) {
    if (state_ == nullptr) {
        const int32_t sound = check_array(items, count, item_size, sizeof *items, "items");
        for (size_t i = 0; sound == ROUTECAP_OK && i < count; i++)
            at(items, item_size, i).status = ROUTECAP_OK;
        return ROUTECAP_OK;
    }
    return batch(
        items, item_size, count, true,
        [](const Request &request) {
            __builtin_prefetch(request.drafts);
            request.rows()->progress.engine_prefetches();
        },
        [this](Request &request, const routecap_accept_item &item)
            REQUIRES(state_->registry.mutex) {
                try {
                    return accept_one(request, item);
                } catch (const std::bad_alloc &) {
                    return ROUTECAP_ERR_NO_MEMORY;
                }
            });
}

int32_t Requests::finish_batch(routecap_finish_item *items, size_t item_size, size_t count) {
    if (state_ == nullptr)
        return report(ROUTECAP_ERR_DISABLED, "this capturer is disabled or a mirror");
    return batch(
        items, item_size, count, false,
        [](const Request &request) { __builtin_prefetch(request.data.get(), 1); },
        [this](Request &request, routecap_finish_item &item) REQUIRES(state_->registry.mutex) {
            return finish_one(request, item.rows, reinterpret_cast<Routing **>(&item.routing));
        });
}

int32_t Requests::close_batch(const routecap_request *requests, int32_t *status, size_t count) {
    if (int32_t s = check_count(count, sizeof *requests, "requests"); s < 0) return s;
    if (state_ == nullptr) {
        if (status != nullptr) std::fill_n(status, count, ROUTECAP_OK);
        return ROUTECAP_OK;
    }
    if (requests == nullptr && count > 0) return report(ROUTECAP_ERR_ARGUMENT, "requests is NULL");
    bool ok = true;
    {
        const Lock lock(state_->registry.mutex);
        state_->registry.make_room(count);
        for (size_t i = 0; i < count; i++) {
            Request *request = nullptr;
            int32_t s = ROUTECAP_OK;
            if (requests[i] != 0) s = state_->registry.find(requests[i], &request);
            if (request != nullptr) s = close_one(*request);
            if (status != nullptr) status[i] = s;
            ok &= s == ROUTECAP_OK;
        }
    }
    state_->worker.wake();
    return ok ? ROUTECAP_OK
              : report(ROUTECAP_PARTIAL, "some requests were not open: see the status of each");
}

}  // namespace routecap
