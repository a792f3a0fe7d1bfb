#include "capture/registry.h"

#include <memory>
#include <utility>

#include "base/status.h"

namespace routecap {

Registry::Registry(uint32_t max_requests) : requests(max_requests) {
    log.add(Log::make(8));
    Nodes::More more = Nodes::make(Nodes::kChunk, {});
    nodes.add(more);
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
    RequestTable &requests = registry_.requests;
    Log &log = registry_.log;
    Nodes &nodes = registry_.nodes;
    for (bool released = false;; released = true) {
        const size_t blocks = log.missing(room.entries), chunks = requests.missing(room.requests);
        const size_t missing = nodes.free() < room.nodes ? room.nodes - nodes.free() : 0;
        const Nodes::Size nodes_now = nodes.size();
        if (blocks == 0 && chunks == 0 && missing == 0) return released;
        lock_.unlock();
        std::unique_ptr<Log::Block, void (*)(Log::Block *)> made(Log::make(blocks), Log::drop);
        RequestTable::Chunk chunk = chunks > 0 ? RequestTable::make() : nullptr;
        Nodes::More more;
        if (missing > 0) more = Nodes::make(missing, nodes_now);
        lock_.lock();
        log.add(made.release());
        if (chunk != nullptr && requests.missing(room.requests) > 0) requests.add(std::move(chunk));
        if (missing > 0) nodes.add(more);
        lock_.unlock();  // what was made in vain is freed
        chunk = nullptr, more = {};
        lock_.lock();
    }
}

}  // namespace routecap
