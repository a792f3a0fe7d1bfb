// Requests and stores: rows that are published, and rows that are adopted.
#include "base/status.h"
#include "base/structs.h"
#include "capture/requests.h"

namespace routecap {

// `from` gives its rows to `to`.
int32_t Requests::check_prefix(const Store &store, const Shape &from, const Shape &to,
                               uint64_t first, const void *keys, uint64_t count,
                               Keys &checked) const {
    if (keys == nullptr && count > 0) return report(ROUTECAP_ERR_ARGUMENT, "keys is NULL");
    if (!from.same_rows(to))
        return report(ROUTECAP_ERR_SHAPE_MISMATCH, "the store is of another model or layer map");
    if (!to.can_hold(from))
        return report(ROUTECAP_ERR_SHAPE_MISMATCH,
                      "a layer is recomputed where rows come from, and captured where they go");
    const uint64_t rows = store.config().block_rows;
    if (first > ROUTECAP_MAX_POSITION || count > (ROUTECAP_MAX_POSITION - first) / rows)
        return report(ROUTECAP_ERR_OUT_OF_RANGE, "%llu blocks from row %llu", ull(count),
                      ull(first));
    checked = {static_cast<const uint8_t *>(keys), count, store.config().key_bytes};
    return ROUTECAP_OK;
}

// ---- Publish --------------------------------------------------------------------------------

int32_t Requests::publish(const StorePtr &store, routecap_publish_item &item, uint64_t generation) {
    if (state_ == nullptr) return ROUTECAP_OK;
    Keys keys;
    if (int32_t s = check_prefix(*store, *config_.shape, *store->config().shape, item.first,
                                 item.keys, item.count, keys);
        s < 0)
        return s;
    const uint64_t rows = store->config().block_rows, end = item.first + item.count * rows;
    {
        const Lock lock(state_->registry.mutex);
        Request *request = nullptr;
        if (int32_t s = state_->registry.find(item.request, &request); s < 0) return s;
        if (item.count == 0) return ROUTECAP_OK;
        const uint64_t issued = std::max(request->length_now(state_->steps), request->flagged_end);
        if (end > issued)
            return report(ROUTECAP_ERR_OUT_OF_RANGE, "rows [%llu,%llu) were not issued",
                          ull(std::max(issued, item.first)), ull(end));
        for (const DraftSpan *d = request->drafts; d != nullptr; d = d->next)
            if (d->position < std::min(d->cut, end) &&
                std::min(d->cut, d->position_end) > item.first)
                return report(ROUTECAP_ERR_NOT_READY,
                              "rows [%llu,%llu) have drafts of step %llu that are not settled",
                              ull(item.first), ull(end), ull(number(d->step)));
    }
    std::shared_ptr<Publication> publication;
    if (int32_t s = store->publish(keys, item.first, generation, state_, publication); s < 0)
        return s;
    if (publication == nullptr) return ROUTECAP_OK;
    return change(item.request, [&](Request &request) REQUIRES(state_->registry.mutex) {
        request.change_rare().lendings.make_room(request.applied());
        request.share(end);
        request.note_lending(item.first, end);
        Publication &noted = *publication;
        state_->registry.append(request.after(), Publish{request.rows(), std::move(publication)});
        noted.handed_over(request.after());  // from now on it can be adopted
        return ROUTECAP_OK;
    });
}

// ---- Adopt ----------------------------------------------------------------------------------

int32_t Requests::adopt(const StorePtr &store, routecap_adopt_item &item, uint64_t generation) {
    item.rows = item.found = item.evicted = item.not_published = item.stale = 0;
    if (state_ == nullptr) return ROUTECAP_OK;
    Keys keys;
    if (int32_t s = check_prefix(*store, *store->config().shape, *config_.shape, item.first,
                                 item.keys, item.count, keys);
        s < 0)
        return s;
    {
        const Lock lock(state_->registry.mutex);
        Request *request = nullptr;
        if (int32_t s = state_->registry.find(item.request, &request); s < 0) return s;
    }
    if (item.count == 0) return ROUTECAP_OK;
    const uint64_t end = item.first + item.count * store->config().block_rows;
    routecap_adoption found{};
    Ticket after = Ticket::none;
    std::unique_ptr<Adoption> adoption;
    if (int32_t s = store->adopt(keys, item.first, generation, state_, found, after, adoption);
        s < 0)
        return s;
    return change(item.request, [&](Request &request) REQUIRES(state_->registry.mutex) {
        request.extend_attached(end);
        request.inherit(after);
        request.note_operation();
        request.note_change(item.first, end);
        state_->registry.append(request.after(), Adopt{request.rows(), std::move(adoption), end});
        item.rows = found.rows;
        item.found = found.found;
        item.evicted = found.evicted;
        item.not_published = found.not_published;
        item.stale = found.stale;
        return ROUTECAP_OK;
    });
}

// ---- Many at once ---------------------------------------------------------------------------

int32_t Requests::publish_batch(const StorePtr &store, routecap_publish_item *items,
                                size_t item_size, size_t count, uint64_t generation) {
    return for_each_item(items, item_size, count, [&](routecap_publish_item &item) {
        return publish(store, item, generation);
    });
}

int32_t Requests::adopt_batch(const StorePtr &store, routecap_adopt_item *items, size_t item_size,
                              size_t count, uint64_t generation) {
    return for_each_item(items, item_size, count,
                         [&](routecap_adopt_item &item) { return adopt(store, item, generation); });
}

}  // namespace routecap
