// What an open request captures: its rows, and the routing that they become.
#pragma once

#include <memory>

#include "routing/routing.h"
#include "rows/row_store.h"

namespace routecap {

// The rows of a request, and the routing that they become when it is finished: made together, so
// that finishing allocates nothing. It lives as long as there are references to the routing. An
// open request has two, which are its user's and its filer's once it is finished, so that finishing
// counts nothing either: a locked instruction there would wait for every line that was written
// before.
struct RequestData {
    // The engine's thread writes it while a worker files rows, whose core fetches ahead what comes
    // after them: so it comes first.
    alignas(64) Routing routing;
    alignas(64) RowStore rows;

    RequestData(const StoragePtr &storage, RowStore::Policy policy, bool compare)
        : routing(storage, this, 2), rows(storage, policy, compare) {}
};
template <uint32_t references>
struct RequestDataRelease {
    void operator()(const RequestData *data) const { data->routing.release(references); }
};
using RequestDataPtr = std::unique_ptr<RequestData, RequestDataRelease<1>>;
using OpenRequestPtr = std::unique_ptr<RequestData, RequestDataRelease<2>>;  // an open request's

}  // namespace routecap
