// What the forward path, the calls on requests and the step worker share under one mutex: the open
// requests, and the log of what was handed over and is still to be applied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/assume.h"
#include "base/mutex.h"
#include "base/reserve.h"
#include "base/status.h"
#include "capture/operations.h"
#include "capture/request_table.h"

namespace routecap {

struct Registry {
    // Entries that the log has room for from the start, so that few requests can be finished or
    // closed without memory.
    static constexpr size_t kRoom = 256;
    explicit Registry(uint32_t max_requests) : requests(max_requests) { log.reserve(kRoom); }

    // A thread holds it as long as the arguments of one call take. It takes the memory that the
    // call needs before it changes anything. Meanwhile it does not wait, copy rows, or call the
    // driver or a callback (docs/threading.md).
    QuickMutex mutex;
    RequestTable requests GUARDED_BY(mutex);
    std::vector<LogEntry> log GUARDED_BY(mutex);  // in order
    // Entries that an issue is still to append, while it does not hold the mutex: the log keeps
    // room for them.
    size_t promised GUARDED_BY(mutex) = 0;

    // Makes room in the log for so many entries more. Throws without memory.
    void make_room(size_t entries) REQUIRES(mutex) {
        reserve_amortized(log, log.size() + promised + entries);
    }
    // There must be room: that growing the log is out of the question makes the code shorter.
    template <class What>
    void append(Ticket after, What &&what) noexcept REQUIRES(mutex) {
        ROUTECAP_ASSUME(log.size() < log.capacity());
        log.emplace_back(after, std::forward<What>(what));
    }

    // Finds an open request, or refuses its handle.
    int32_t find(routecap_request handle, Request **request) REQUIRES(mutex) {
        *request = requests.find(handle);
        if (*request != nullptr) return ROUTECAP_OK;
        return report(ROUTECAP_ERR_UNKNOWN_REQUEST, "request %016llx is not open here",
                      ull(handle));
    }
    // How many requests are open. Needs no mutex, because the table counts them in an atomic.
    uint64_t open_requests() const UNCHECKED_THREADS { return requests.count(); }
};

}  // namespace routecap
