// What an open request captures: its rows, and the routing that they become.
#pragma once

#include <memory>

#include "routing/routing.h"
#include "rows/row_store.h"

namespace routecap {

// The rows of a request, and the routing that they become when the request is finished. They are
// made together, so that finishing allocates nothing. The object lives as long as the routing has
// references. An open request holds two references from the start: when it is finished, one goes to
// the user and one to the filing thread. So finishing changes no counter. An atomic increment there
// would wait until all earlier stores are in the cache.
struct RequestData {
    // The engine's thread writes the routing while the worker files rows. The worker's core
    // prefetches the memory after the rows, so the routing comes before them.
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
