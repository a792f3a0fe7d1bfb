#include "outbox.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <span>
#include <system_error>
#include <thread>

namespace {

using Ticket = std::array<uint8_t, OUTBOX_TICKET_BYTES>;
constexpr int64_t kPatience = 100'000'000'000;  // nanoseconds that a routing may be in flight

struct FreeRouting {
    void operator()(routecap_routing *routing) const { routecap_routing_free(routing); }
};
using Routing = std::unique_ptr<routecap_routing, FreeRouting>;

struct Rows {
    Routing routing;
    uint64_t first = 0, end = 0;
};

bool send_all(int connection, std::span<const uint8_t> bytes) {
    while (!bytes.empty()) {
        const ssize_t sent = send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        bytes = bytes.subspan(static_cast<size_t>(sent));
    }
    return true;
}

bool receive_all(int connection, std::span<uint8_t> bytes) {
    while (!bytes.empty()) {
        const ssize_t received = recv(connection, bytes.data(), bytes.size(), 0);
        if (received < 0 && errno == EINTR) continue;
        if (received <= 0) return false;
        bytes = bytes.subspan(static_cast<size_t>(received));
    }
    return true;
}

// The answer to a ticket: the number of bytes, and the bytes. Empty if there are no such rows.
struct Answer {
    std::unique_ptr<uint8_t[]> memory;
    size_t bytes = 0;

    explicit Answer(Rows rows) {
        if (rows.routing == nullptr) return;
        const routecap_routing *from = rows.routing.get();
        const int32_t status = routecap_routing_wait(from, kPatience);
        if (status < 0 || status == ROUTECAP_PENDING) return;
        routecap_routing *slice = nullptr;
        if (routecap_routing_slice(from, rows.first, rows.end - rows.first, &slice) < 0) return;
        const Routing part(slice);
        uint64_t needed = 0;
        if (routecap_routing_serialize(slice, nullptr, 0, &needed) != ROUTECAP_ERR_BUFFER_TOO_SMALL)
            return;
        memory.reset(new (std::nothrow) uint8_t[sizeof(int64_t) + needed]);
        if (memory == nullptr) return;
        const auto size = static_cast<int64_t>(needed);
        std::memcpy(memory.get(), &size, sizeof size);
        if (routecap_routing_serialize(slice, memory.get() + sizeof size, needed, nullptr) < 0)
            return;
        bytes = sizeof size + needed;
    }
};

}  // namespace

// Shared by its threads, of which those of connections are detached.
struct outbox {
    const int listener;
    const pid_t process = getpid();
    std::mutex mutex;  // guards what follows
    std::condition_variable ended;
    std::map<Ticket, Rows> waiting;
    std::deque<Ticket> order;  // of those that wait, and of some that are gone
    std::set<int> connections;
    std::thread accepting;

    explicit outbox(int socket) : listener(socket) {}

    Rows take(const Ticket &ticket) {
        const std::lock_guard lock(mutex);
        const auto found = waiting.find(ticket);
        if (found == waiting.end()) return {};
        Rows rows = std::move(found->second);
        waiting.erase(found);
        return rows;
    }

    void serve(int connection) {
        Ticket ticket;
        while (receive_all(connection, ticket)) {
            const Answer answer(take(ticket));
            const int64_t none = -1;
            uint8_t nothing[sizeof none];
            std::memcpy(nothing, &none, sizeof none);
            const bool sent = answer.bytes == 0
                                  ? send_all(connection, nothing)
                                  : send_all(connection, {answer.memory.get(), answer.bytes});
            if (!sent) break;
        }
        const std::lock_guard lock(mutex);
        connections.erase(connection);
        close(connection);
        ended.notify_all();
    }

    void accept_all() {
        pthread_setname_np(pthread_self(), "routecap-outbox");
        for (;;) {
            const int connection = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
            if (connection < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
            if (connection < 0) return;
            const std::lock_guard lock(mutex);
            try {
                connections.insert(connection);
                std::thread([this, connection] { serve(connection); }).detach();
            } catch (const std::exception &) {  // neither memory nor a thread: the client is told
                connections.erase(connection);
                close(connection);
            }
        }
    }
};

struct outbox *outbox_open(const char *name) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const size_t length = std::strlen(name);
    if (length + 1 > sizeof address.sun_path) return errno = ENAMETOOLONG, nullptr;
    std::memcpy(address.sun_path + 1, name, length);
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0) return nullptr;
    const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
    int failure = 0;
    if (bind(listener, reinterpret_cast<const sockaddr *>(&address), bytes) < 0 ||
        listen(listener, SOMAXCONN) < 0) {
        failure = errno;
    } else {
        try {
            auto made = std::make_unique<outbox>(listener);
            made->accepting = std::thread([self = made.get()] { self->accept_all(); });
            return made.release();
        } catch (const std::system_error &error) {
            failure = error.code().value();
        } catch (const std::bad_alloc &) {
            failure = ENOMEM;
        }
    }
    close(listener);
    errno = failure;
    return nullptr;
}

int outbox_put(struct outbox *self, const uint8_t *ticket, const routecap_routing *routing,
               uint64_t first, uint64_t end, uint64_t most) {
    if (routecap_routing_retain(routing) < 0) return EINVAL;
    Rows rows{Routing(const_cast<routecap_routing *>(routing)), first, end};
    Rows oldest;  // freed without the lock
    Ticket key;
    std::memcpy(key.data(), ticket, key.size());
    const std::lock_guard lock(self->mutex);
    try {
        self->order.push_back(key);
        self->waiting.insert_or_assign(key, std::move(rows));
    } catch (const std::bad_alloc &) {
        return ENOMEM;
    }
    while (!self->order.empty()) {
        const auto found = self->waiting.find(self->order.front());
        if (found != self->waiting.end()) {
            if (self->waiting.size() <= most) break;
            oldest = std::move(found->second);
            self->waiting.erase(found);
        }
        self->order.pop_front();
    }
    return 0;
}

void outbox_close(struct outbox *self) {
    if (self->process != getpid()) return;  // its threads are the parent's
    shutdown(self->listener, SHUT_RDWR);
    self->accepting.join();
    close(self->listener);
    {
        std::unique_lock lock(self->mutex);
        for (const int connection : self->connections) shutdown(connection, SHUT_RDWR);
        self->ended.wait(lock, [self] { return self->connections.empty(); });
    }
    delete self;
}
