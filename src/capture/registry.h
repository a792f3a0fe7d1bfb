// What the forward path, the calls on requests and the step worker share under one mutex: the open
// requests, the log of what is still to be applied, and the nodes for drafts and cuts.
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

    // A thread holds it as long as the arguments of one call take. Meanwhile it does not wait, copy
    // rows, allocate, or call the driver or a callback (docs/threading.md).
    QuickMutex mutex;
    RequestTable requests GUARDED_BY(mutex);
    Log log GUARDED_BY(mutex);
    Nodes nodes GUARDED_BY(mutex);

    // Finds an open request, or refuses its handle.
    int32_t find(routecap_request handle, Request **request) REQUIRES(mutex);
    // How many requests are open. Needs no mutex, because the table counts them in an atomic.
    uint64_t open_requests() const UNCHECKED_THREADS { return requests.count(); }
};

// Refuses the handle of a request that is not open.
int32_t refuse_unknown(routecap_request handle);

// The most that a call may add.
struct Room {
    size_t entries = 0;  // of the log
    size_t nodes = 0;
    size_t requests = 0;
};

// Holds the registry's mutex, with room for what the call may add. It allocates while it does not
// hold the mutex.
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
    // Makes more room. Returns true if it had to allocate: it released the mutex for that time, so
    // what the caller has seen may have changed.
    bool make_room(const Room &room);

private:
    Registry &registry_;
    Lock<QuickMutex> lock_;
};

}  // namespace routecap
