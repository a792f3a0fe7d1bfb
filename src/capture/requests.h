// Requests, and what changes them: open, accept, truncate, fork, attach, publish, adopt, finish and
// close. Each call changes at once what the engine's side knows, and appends to the log what is to
// be done with rows. Any thread may call.
//
// Every function returns a status and is described in routecap.h; arguments come as they are, and
// structs may be of any version.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "capture/capture_state.h"
#include "capture/config.h"
#include "capture/request_table.h"
#include "prefix/store.h"
#include "routecap.h"
#include "routing/routing.h"

namespace routecap {

class Requests {
public:
    // Without a state the capturer is a mirror, or disabled, and has none.
    Requests(const Config &config, CaptureState *state) : config_(config), state_(state) {}

    int32_t open(const routecap_open_options *options, routecap_request *requests, size_t count);
    int32_t accept(routecap_request request, routecap_step step, const uint32_t *rows,
                   size_t count);
    int32_t accept_batch(routecap_accept_item *items, size_t item_size, size_t count);
    int32_t truncate(routecap_request request, uint64_t rows);
    int32_t fork(routecap_request request, uint64_t rows, routecap_request *child);
    int32_t attach(routecap_request request, const Routing *routing, uint64_t rows);
    int32_t finish(routecap_request request, uint64_t rows, Routing **routing);
    int32_t finish_batch(routecap_finish_item *items, size_t item_size, size_t count);
    int32_t close(routecap_request request);
    int32_t close_batch(const routecap_request *requests, int32_t *status, size_t count);

    // Rows of prefixes (prefixes.cc).
    int32_t publish(const StorePtr &store, routecap_publish_item &item, uint64_t generation);
    int32_t publish_batch(const StorePtr &store, routecap_publish_item *items, size_t item_size,
                          size_t count, uint64_t generation);
    int32_t adopt(const StorePtr &store, routecap_adopt_item &item, uint64_t generation);
    int32_t adopt_batch(const StorePtr &store, routecap_adopt_item *items, size_t item_size,
                        size_t count, uint64_t generation);

private:
    // Calls f(request) with the mutex and room for one entry in the log, and wakes the worker.
    template <class F>
    int32_t change(routecap_request handle, F f) {
        {
            const Lock lock(state_->registry.mutex);
            state_->registry.make_room(1);
            Request *request = nullptr;
            if (int32_t s = state_->registry.find(handle, &request); s < 0) return s;
            if (int32_t s = f(*request); s < 0) return s;
        }
        state_->worker.wake();
        return ROUTECAP_OK;
    }
    int32_t accept_one(Request &request, const routecap_accept_item &item)
        REQUIRES(state_->registry.mutex);
    int32_t finish_one(Request &request, uint64_t rows, Routing **routing)
        REQUIRES(state_->registry.mutex);
    int32_t close_one(Request &request) REQUIRES(state_->registry.mutex);
    void cut_in_flight(Request &request, uint64_t end, bool finished = false)
        REQUIRES(state_->registry.mutex);
    int32_t refuse_many(size_t count) const;
    template <class Item, class Ahead, class One>
    int32_t batch(Item *items, size_t item_size, size_t count, bool drafts, Ahead ahead, One one);

    // prefixes.cc
    int32_t check_prefix(const Store &store, const Shape &from, const Shape &to, uint64_t first,
                         const void *keys, uint64_t count, Keys &checked) const;

    const Config &config_;
    CaptureState *const state_;
};

}  // namespace routecap
