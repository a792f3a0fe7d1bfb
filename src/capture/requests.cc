#include "capture/requests.h"

#include <array>
#include <new>

#include "base/status.h"
#include "base/structs.h"

namespace routecap {

// ---- Open -----------------------------------------------------------------------------------

int32_t Requests::refuse_many(size_t count) const {
    return report(ROUTECAP_ERR_TOO_MANY_REQUESTS, "%zu more than the %llu open, of at most %u",
                  count, ull(owner_->registry.open_requests()), config_.max_requests);
}

int32_t Requests::open(const routecap_open_options *options, routecap_request *requests,
                       size_t count) {
    if (requests == nullptr && count > 0) return report(ROUTECAP_ERR_ARGUMENT, "requests is NULL");
    if (int32_t s = check_count(count, sizeof *requests, "requests"); s < 0) return s;
    if (owner_ == nullptr) return ROUTECAP_OK;
    routecap_open_options o{};
    if (options != nullptr)
        if (int32_t s = read_struct(o, options, "options"); s < 0) return s;
    if (o.policy != ROUTECAP_POLICY_KEEP && o.policy != ROUTECAP_POLICY_REPLACE)
        return report(ROUTECAP_ERR_ARGUMENT, "options.policy is %d", o.policy);
    const RowStore::Policy policy =
        o.policy == ROUTECAP_POLICY_KEEP ? RowStore::Policy::keep : RowStore::Policy::replace;
    if (count == 0) return ROUTECAP_OK;
    // Looked at again with the mutex: so many requests need not be made in vain.
    if (count + owner_->registry.open_requests() > config_.max_requests) return refuse_many(count);

    std::vector<OpenRequestPtr> made(count);
    for (OpenRequestPtr &data : made)
        data.reset(new RequestData(owner_->storage, policy, config_.compare));
    const RegistryLock lock(owner_->registry, {.requests = count});
    if (!owner_->registry.requests.possible(count)) return refuse_many(count);
    const uint64_t serial = Serials::take(count);
    if (serial == 0)
        return report(ROUTECAP_ERR_TOO_MANY_REQUESTS, "this process has given out all its handles");
    for (size_t i = 0; i < count; i++)
        requests[i] = owner_->registry.requests.open(std::move(made[i]), serial + i);
    return ROUTECAP_OK;
}

// ---- Change ---------------------------------------------------------------------------------

// Of the rows of an item, if it names any and there may be so many: before that is known they are
// not looked at.
Requests::Kept Requests::copy_kept(const routecap_accept_item &item, size_t &nodes) {
    size_t spans = 0;
    uint64_t drafts = 0;
    {
        const RegistryLock lock(owner_->registry);
        const Request *request = owner_->registry.requests.find(item.request);
        for (const DraftSpan *d = request != nullptr ? request->drafts : nullptr; d != nullptr;
             d = d->next)
            if (d->step == item.step) drafts += d->rows, spans++;
    }
    if (item.rows == nullptr || item.count == 0 || item.count > drafts)
        return nodes += spans, nullptr;
    nodes += item.count;
    return std::make_unique<std::vector<uint32_t>>(item.rows, item.rows + item.count);
}

// What is wrong with an item, for a request that has so many drafts of its step, if anything is.
[[gnu::noinline]] int32_t Requests::check_accept(const routecap_accept_item &item, uint64_t drafts,
                                                 const Kept &kept) const {
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
    if (item.rows != nullptr && item.count > 0 && kept == nullptr)
        return report(ROUTECAP_ERR_UNKNOWN_STEP, "the drafts are new since the call began");
    return ROUTECAP_OK;
}

// One past the highest position of the rows in `d` that an item names, from its `listed`-th on; 0
// for none. Those that will never come are noted.
[[gnu::noinline]] static uint64_t end_of_listed(const DraftSpan &d,
                                                const routecap_accept_item &item, uint64_t &listed,
                                                Request &request, Nodes &nodes) {
    uint64_t end = 0;
    for (; listed < item.count && item.rows[listed] < uint64_t{d.first_index} + d.rows; listed++) {
        const uint64_t index = item.rows[listed], row_end = d.end_of(index);
        if (d.missing != 0)
            request.note_missing(
                d.device_positions ? d.position : d.position + (index - d.first_index), row_end,
                d.missing, nodes);
        end = std::max(end, row_end);
    }
    return end;
}

inline int32_t Requests::accept_one(Request *request, const routecap_accept_item &item,
                                    Kept *kept) {
    if (request == nullptr) return refuse_unknown(item.request);
    const DraftSpan *d = request->drafts;
    // The first of the request's only drafts, which are to be filed: nearly all.
    if (d == nullptr || d->next != nullptr || d->step != item.step || d->missing != 0 ||
        item.rows != nullptr || item.count > d->rows)
        return accept_special(*request, item, kept);
    const uint64_t first = d->position, end = d->end_of_first(item.count);
    if (!d->device_positions) request->extend(end, config_.shape->page_shift);
    request->drafts = owner_->registry.nodes.give(request->drafts);
    request->note_operation(first, end);
    owner_->registry.log.append(request->after(),
                                Settle{request->rows(), item.step, item.count, nullptr});
    return ROUTECAP_OK;
}

// The same for drafts of several spans or steps, or that will never be there, and for rows that are
// named.
[[gnu::noinline]] int32_t Requests::accept_special(Request &request,
                                                   const routecap_accept_item &item, Kept *kept) {
    uint64_t drafts = 0;
    bool filed = false;
    for (const DraftSpan *d = request.drafts; d != nullptr; d = d->next)
        if (d->step == item.step) drafts += d->rows, filed |= d->missing == 0;
    if (drafts == 0 || item.count > drafts || item.rows != nullptr)
        if (int32_t s = check_accept(item, drafts, *kept); s < 0) return s;

    // The length, and which rows change once this is applied.
    Nodes &nodes = owner_->registry.nodes;
    uint64_t changed_first = UINT64_MAX, changed_end = 0, listed = 0;
    DraftSpan *settled = request.take_drafts(item.step);
    while (settled != nullptr) {
        DraftSpan copy;
        const DraftSpan *d = settled;
        if (d->missing != 0) d = &(copy = *d);  // a note may take the node
        settled = nodes.give(settled);
        uint64_t end = 0;
        if (item.rows == nullptr) {
            end = d->end_of_first(std::clamp<uint64_t>(item.count, d->first_index,
                                                       uint64_t{d->first_index} + d->rows) -
                                  d->first_index);
            if (d->missing != 0) request.note_missing(d->position, end, d->missing, nodes);
        } else {
            end = end_of_listed(*d, item, listed, request, nodes);
        }
        if (end == 0) continue;
        if (d->missing != 0)
            request.extend_missing(end);
        else if (!d->device_positions)
            request.extend(end, config_.shape->page_shift);
        if (d->missing == 0)
            changed_first = std::min(changed_first, d->position),
            changed_end = std::max(changed_end, end);
    }
    if (filed) {
        request.note_operation(changed_first, changed_end);
        owner_->registry.log.append(
            request.after(), Settle{request.rows(), item.step,
                                    item.rows == nullptr ? item.count : 0, std::move(*kept)});
    }
    return ROUTECAP_OK;
}

int32_t Requests::accept(routecap_request request, routecap_step step, const uint32_t *rows,
                         size_t count) {
    if (owner_ == nullptr) return ROUTECAP_OK;
    const routecap_accept_item item{
        .request = request, .step = step, .rows = rows, .count = count, .status = 0, .reserved = 0};
    size_t nodes = 0;
    Kept kept = rows != nullptr ? copy_kept(item, nodes) : nullptr;
    {
        const RegistryLock lock(owner_->registry, {.entries = 1, .nodes = nodes});
        if (int32_t s = accept_one(owner_->registry.requests.find(request), item, &kept); s < 0)
            return s;
    }
    owner_->worker.wake();
    return ROUTECAP_OK;
}

// Rows at and after `end` of steps in flight will be dropped when they land, but for those that a
// child or a store is to have. Where the request is finished there, drafts are told apart: those
// that nobody accepted end as rejected, and not as late.
void Requests::cut_in_flight(Request &request, uint64_t end, bool finished) {
    const uint64_t applied = request.applied();
    const PendingBounds &bounds = request.rare().bounds;
    request.for_each_in_flight(owner_->steps, [&](StepSpan &span, SpanExtra *extra, uint64_t step) {
        const uint64_t from = std::max(end, bounds.needed_end(step, applied));
        const bool ends = finished && extra != nullptr;
        std::atomic_ref cut(ends ? extra->ended : span.cut);
        if (cut.load(std::memory_order_relaxed) > from) cut.store(from, std::memory_order_release);
    });
}

int32_t Requests::truncate(routecap_request handle, uint64_t rows) {
    if (owner_ == nullptr) return ROUTECAP_OK;
    {
        const RegistryLock lock(owner_->registry, {.entries = 1, .nodes = 2});
        Request *request = nullptr;
        if (int32_t s = owner_->registry.find(handle, &request); s < 0) return s;
        if (rows >= std::max(request->length_now(owner_->steps), request->flagged_end))
            return ROUTECAP_OK;
        Nodes &nodes = owner_->registry.nodes;
        Rare &rare = request->change_rare();
        rare.bounds.forget_cuts(request->applied(), nodes);
        const bool alone = request->settled();
        const uint64_t page_rows = config_.shape->page_rows;
        const uint64_t first_page = (rows + page_rows - 1) / page_rows;
        request->own_page = Request::kNone;
        cut_in_flight(*request, rows);
        for (DraftSpan *draft = request->drafts; draft != nullptr; draft = draft->next)
            draft->cut = std::min(draft->cut, rows);
        rare.cut_notes(rows, nodes);
        request->length = std::min(request->length, rows);
        // Of a page that stays others may still see what is cut.
        request->shared_end = std::min(request->shared_end, first_page * page_rows);
        request->flagged_end = std::min(request->flagged_end, rows);
        request->note_cut(rows, nodes);
        owner_->registry.log.append(request->after(), Truncate{request->rows(), rows, alone});
    }
    owner_->worker.wake();
    return ROUTECAP_OK;
}

int32_t Requests::fork(routecap_request handle, uint64_t rows, routecap_request *child) {
    if (owner_ == nullptr) return ROUTECAP_OK;
    const uint64_t serial = Serials::take(1);
    if (serial == 0)
        return report(ROUTECAP_ERR_TOO_MANY_REQUESTS, "this process has given out all its handles");
    OpenRequestPtr made(new RequestData(owner_->storage, RowStore::Policy::keep, config_.compare));
    {
        Room room{.entries = 1, .nodes = 1, .requests = 1};
        RegistryLock lock(owner_->registry, room);
        Request *parent = nullptr;
        for (;;) {  // how much the parent has to copy is known with the mutex only
            if (int32_t s = owner_->registry.find(handle, &parent); s < 0) return s;
            room.nodes = 0;
            for (const MissingNote *note = parent->rare().missing; note != nullptr;
                 note = note->next)
                room.nodes++;
            if (!lock.make_room(room)) break;
        }
        const uint64_t length = parent->length_now(owner_->steps);
        if (rows == ROUTECAP_ROWS_ALL) rows = length;
        if (rows > length)
            return report(ROUTECAP_ERR_OUT_OF_RANGE, "rows [%llu,%llu) do not exist", ull(length),
                          ull(rows));
        if (!owner_->registry.requests.possible(1)) return refuse_many(1);
        Nodes &nodes = owner_->registry.nodes;
        made->rows.set_policy(parent->rows()->policy());
        *child = owner_->registry.requests.open(std::move(made), serial);
        Request &c = *owner_->registry.requests.find(*child);
        const Rare &from = parent->rare();
        Rare &to = c.change_rare();
        MissingNote **last = &to.missing;
        for (const MissingNote *note = from.missing; note != nullptr; note = note->next)
            if (note->first < rows) {
                *last = nodes.take([&] {
                    return MissingNote{note->first, std::min(note->end, rows), note->reason,
                                       nullptr};
                });
                last = &(*last)->next;
            }
        c.length = rows;
        to.inherited_after = parent->after();
        to.tag = from.tag, to.tagged = from.tagged;
        to.mixed_end =
            std::min(std::max(from.mixed_end,
                              owner_->tags_vary.load(std::memory_order_relaxed) ? UINT64_MAX : 0),
                     rows / config_.shape->page_rows + 1);
        c.note_operation(0, rows);
        parent->share(rows);
        parent->note_fork(rows);
        owner_->registry.log.append(parent->after(), Fork{parent->rows(), c.rows(), rows});
    }
    owner_->worker.wake();
    return ROUTECAP_OK;
}

int32_t Requests::attach(routecap_request handle, const Routing *routing, uint64_t rows) {
    if (owner_ == nullptr) return ROUTECAP_OK;
    if (routing == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "routing is NULL");
    if (!routing->shape().same_rows(*config_.shape))
        return report(ROUTECAP_ERR_SHAPE_MISMATCH, "the routing is of another model or layer map");
    if (!config_.shape->can_hold(routing->shape()))
        return report(ROUTECAP_ERR_SHAPE_MISMATCH,
                      "a layer of the routing is recomputed, and captured here");
    const bool pending = !routing->ready();
    if (pending && routing->completion() != &owner_->completion)
        return report(ROUTECAP_ERR_NOT_READY,
                      "the routing belongs to another capturer and has not landed");
    const uint64_t routing_end = routing->expected_end();
    if (rows == ROUTECAP_ROWS_ALL) rows = routing_end;
    if (rows > routing_end)
        return report(ROUTECAP_ERR_OUT_OF_RANGE, "rows [%llu,%llu) are beyond the routing",
                      ull(routing_end), ull(rows));
    routing->retain();
    RoutingPtr held(routing);
    uint64_t present_end = pending ? rows : 0;  // of what it has, as far as that is known
    for (const Segment &segment : pending ? std::span<const Segment>() : routing->segments())
        if (segment.page) present_end = std::max(present_end, std::min(segment.end(), rows));
    {
        const RegistryLock lock(owner_->registry, {.entries = 1});
        Request *request = nullptr;
        if (int32_t s = owner_->registry.find(handle, &request); s < 0) return s;
        const uint64_t first = pending ? 0 : std::min(routing->first(), rows),
                       page_rows = config_.shape->page_rows;
        if (first >= rows) return ROUTECAP_OK;
        Rare &rare = request->change_rare();
        rare.mixed_end = std::max(rare.mixed_end, (present_end + page_rows - 1) / page_rows);
        request->extend_attached(rows);
        if (pending) rare.inherited_after = std::max(rare.inherited_after, routing->after());
        request->note_operation(first, rows);
        owner_->registry.log.append(request->after(),
                                    Attach{request->rows(), std::move(held), rows});
    }
    owner_->worker.wake();
    return ROUTECAP_OK;
}

// ---- End ------------------------------------------------------------------------------------

// The caller has cleared *routing: it is left alone where this refuses.
inline int32_t Requests::finish_one(Request *request, routecap_request handle, uint64_t rows,
                                    Routing **routing) {
    if (request == nullptr) return refuse_unknown(handle);
    if (rows != ROUTECAP_ROWS_ALL && rows > ROUTECAP_MAX_POSITION)
        return report(ROUTECAP_ERR_OUT_OF_RANGE, "%llu rows", ull(rows));
    const bool all = rows == ROUTECAP_ROWS_ALL;
    const uint64_t length = request->length,
                   expected = all ? request->length_now(owner_->steps) : rows,
                   after = request->after();
    if (!all && rows < request->issued_end()) cut_in_flight(*request, rows, true);
    *routing = &request->data->routing;
    (*routing)->expect(after, expected);
    MissingNote *missing = request->take_notes();
    owner_->registry.log.append(
        after, Finish{RequestDataPtr(request->data.release()), all ? length : rows, missing, all});
    owner_->registry.requests.close(*request, owner_->registry.nodes);
    return ROUTECAP_OK;
}

int32_t Requests::finish(routecap_request request, uint64_t rows, Routing **routing) {
    if (owner_ == nullptr)
        return report(ROUTECAP_ERR_DISABLED, "this capturer is disabled or a mirror");
    {
        const RegistryLock lock(owner_->registry, {.entries = 1});
        if (int32_t s = finish_one(owner_->registry.requests.find(request), request, rows, routing);
            s < 0)
            return s;
    }
    owner_->worker.wake();
    return ROUTECAP_OK;
}

int32_t Requests::close_one(routecap_request handle) {
    if (handle == 0) return ROUTECAP_OK;
    Request *request = nullptr;
    if (int32_t s = owner_->registry.find(handle, &request); s < 0) return s;
    const bool alone = request->settled();
    cut_in_flight(*request, 0);
    owner_->registry.log.append(request->after(), Close{std::move(request->data), alone});
    owner_->registry.requests.close(*request, owner_->registry.nodes);
    return ROUTECAP_OK;
}

int32_t Requests::close(routecap_request request) {
    if (owner_ == nullptr) return ROUTECAP_OK;
    {
        const RegistryLock lock(owner_->registry, {.entries = 1});
        if (int32_t s = close_one(request); s < 0) return s;
    }
    owner_->worker.wake();
    return ROUTECAP_OK;
}

// ---- Many at once ---------------------------------------------------------------------------

// Calls one(request, item, i) for each, with the mutex and so many nodes for all of them; the
// request is null if it is not open. Some time before, it fetches what all need of a request, or
// drafts too, then calls prefetch(request) for what that leads to, also where one was open once.
template <class Item, class Prefetch, class One>
int32_t Requests::batch(Item *items, size_t item_size, size_t count, size_t nodes, bool drafts,
                        Prefetch prefetch, One one) {
    constexpr size_t kAhead = size_t{2} * RequestTable::kAhead;  // less is done than at issue
    std::array<Request *, kAhead> places{};  // of the next items, each at its number % kAhead
    bool ok = true;
    {
        const RegistryLock lock(owner_->registry, {.entries = count, .nodes = nodes});
        const auto look_ahead = [&](size_t i) REQUIRES(owner_->registry.mutex) {
            places[i % kAhead] = i < count ? owner_->registry.requests.prefetch(
                                                 at(items, item_size, i).request, drafts)
                                           : nullptr;
        };
        for (size_t i = 0; i < std::min(count, kAhead); i++) look_ahead(i);
        for (size_t i = 0; i < count; i++) {
            Item &item = at(items, item_size, i);
            Request *request = RequestTable::found(places[i % kAhead], item.request);
            look_ahead(i + kAhead);
            if (const Request *place = places[(i + kAhead / 2) % kAhead]; place != nullptr)
                prefetch(*place);
            owner_->registry.log.prefetch(RequestTable::kAhead);
            item.status =
                item.reserved == 0 ? one(request, item, i) : refuse_reserved(item.reserved);
            ok &= item.status == ROUTECAP_OK;
        }
    }
    owner_->worker.wake();
    return ok ? ROUTECAP_OK
              : report(ROUTECAP_PARTIAL, "some items were refused: see the status of each");
}

int32_t Requests::accept_batch(routecap_accept_item *items, size_t item_size, size_t count) {
    if (owner_ == nullptr) {
        const int32_t sound = check_array(items, count, item_size, sizeof *items, "items");
        for (size_t i = 0; sound == ROUTECAP_OK && i < count; i++)
            at(items, item_size, i).status = ROUTECAP_OK;
        return ROUTECAP_OK;
    }
    if (int32_t s = check_items(items, count, item_size, "items"); s < 0) return s;
    std::vector<Kept> kept;  // of the items that name their rows
    size_t nodes = 0;
    for (size_t i = 0; i < count; i++) {
        const routecap_accept_item &item = at(items, item_size, i);
        if (item.rows == nullptr || item.reserved != 0) continue;
        kept.resize(count);
        kept[i] = copy_kept(item, nodes);
    }
    Kept none;
    return batch(
        items, item_size, count, nodes, true,
        [](const Request &request) {
            __builtin_prefetch(request.drafts, 1);
            if (request.open() && request.pending.count() > 0)
                __builtin_prefetch(&request.rows()->applied);
        },
        [&](Request *request, const routecap_accept_item &item, size_t i)
            REQUIRES(owner_->registry.mutex) {
                return accept_one(request, item, kept.empty() ? &none : &kept[i]);
            });
}

int32_t Requests::finish_batch(routecap_finish_item *items, size_t item_size, size_t count) {
    if (owner_ == nullptr)
        return report(ROUTECAP_ERR_DISABLED, "this capturer is disabled or a mirror");
    if (int32_t s = check_items(items, count, item_size, "items"); s < 0) return s;
    return batch(
        items, item_size, count, 0, false,
        [](const Request &request) {
            if (request.open()) request.data->routing.prefetch();
            if (request.changed) __builtin_prefetch(&request.drafts, 1);
        },
        [this](Request *request, routecap_finish_item &item, size_t)
            REQUIRES(owner_->registry.mutex) {
                return finish_one(request, item.request, item.rows,
                                  reinterpret_cast<Routing **>(&item.routing));
            });
}

int32_t Requests::close_batch(const routecap_request *requests, int32_t *status, size_t count) {
    if (int32_t s = check_count(count, sizeof *requests, "requests"); s < 0) return s;
    if (owner_ == nullptr) {
        if (status != nullptr) std::fill_n(status, count, ROUTECAP_OK);
        return ROUTECAP_OK;
    }
    if (requests == nullptr && count > 0) return report(ROUTECAP_ERR_ARGUMENT, "requests is NULL");
    bool ok = true;
    {
        const RegistryLock lock(owner_->registry, {.entries = count});
        for (size_t i = 0; i < count; i++) {
            const int32_t s = close_one(requests[i]);
            if (status != nullptr) status[i] = s;
            ok &= s == ROUTECAP_OK;
        }
    }
    owner_->worker.wake();
    return ok ? ROUTECAP_OK
              : report(ROUTECAP_PARTIAL, "some requests were not open: see the status of each");
}

}  // namespace routecap
