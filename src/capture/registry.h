// What the forward path, the calls on requests and the step worker share, under one mutex: the
// open requests, the log of what is still to be applied, and memory for what is noted of requests.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/mutex.h"
#include "base/node_pool.h"
#include "capture/operations.h"
#include "capture/request_table.h"

namespace routecap {

struct Registry {
    explicit Registry(uint32_t max_requests);

    // Held for as long as one call's arguments take: never while waiting, copying rows, calling the
    // driver or a callback, or allocating (docs/threading.md).
    mutable QuickMutex mutex;
    RequestTable requests GUARDED_BY(mutex);
    Log log GUARDED_BY(mutex);
    Nodes nodes GUARDED_BY(mutex);

    // Finds an open request, or refuses its handle.
    int32_t find(routecap_request handle, Request **request) REQUIRES(mutex);
    // How many requests are open. Without the mutex: the table counts them in an atomic.
    uint64_t open_requests() const UNCHECKED_THREADS { return requests.count(); }
};

// Refuses the handle of a request that is not open.
int32_t refuse_unknown(routecap_request handle);

// What a call will add.
struct Room {
    size_t entries = 0;  // of the log
    size_t nodes = 0;
    size_t requests = 0;
};

// Holds the registry's mutex, with room for what the call will add. Memory is made while the mutex
// is not held, so that nothing is allocated under it.
class ROUTECAP_SCOPED_CAPABILITY RegistryLock {
public:
    explicit RegistryLock(Registry &registry, const Room &room = {}) ACQUIRE(registry.mutex)
        : registry_(registry), lock_(registry.mutex) {
        make_room(room);
    }
    ~RegistryLock() RELEASE() {}
    RegistryLock(const RegistryLock &) = delete;

    void unlock() RELEASE() { lock_.unlock(); }
    void lock() ACQUIRE() { lock_.lock(); }
    // Releases the mutex meanwhile if something is missing: what was seen may have changed then.
    void make_room(const Room &room);

private:
    Registry &registry_;
    Lock<QuickMutex> lock_;
};

}  // namespace routecap
