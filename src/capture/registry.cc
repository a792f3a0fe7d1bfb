#include "capture/registry.h"

#include <memory>
#include <utility>

#include "base/status.h"

namespace routecap {

Registry::Registry(uint32_t max_requests) : requests(max_requests) {
    log.add(Log::make(8));
    nodes.add(Nodes::make(1));
}

int32_t Registry::find(routecap_request handle, Request **request) {
    *request = requests.find(handle);
    return *request != nullptr ? ROUTECAP_OK : refuse_unknown(handle);
}

[[gnu::noinline]] int32_t refuse_unknown(routecap_request handle) {
    return report(ROUTECAP_ERR_UNKNOWN_REQUEST, "request %016llx is not open here", ull(handle));
}

// Clang does not know that lock_ holds the mutex.
bool RegistryLock::make_room(const Room &room) UNCHECKED_THREADS {
    for (bool released = false;; released = true) {
        const size_t blocks = registry_.log.missing(room.entries),
                     nodes = registry_.nodes.missing(room.nodes),
                     chunks = registry_.requests.missing(room.requests);
        if (blocks == 0 && nodes == 0 && chunks == 0) return released;
        lock_.unlock();
        std::unique_ptr<Log::Block, void (*)(Log::Block *)> made(Log::make(blocks), Log::drop);
        Nodes::Chunk more = nodes > 0 ? Nodes::make(nodes) : Nodes::Chunk();
        RequestTable::Chunk chunk = chunks > 0 ? RequestTable::make() : nullptr;
        lock_.lock();
        registry_.log.add(made.release());
        if (nodes > 0) registry_.nodes.add(std::move(more));
        if (chunks == 0 || registry_.requests.add(chunk)) continue;
        lock_.unlock();  // it was made in vain
        chunk = nullptr;
        lock_.lock();
    }
}

}  // namespace routecap
