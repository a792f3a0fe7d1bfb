// routecap_capturer_dump: what a capturer holds, as JSON, for whoever looks at an engine that
// hangs. It takes the registry's mutex for a few requests at a time, no other lock that anybody
// holds for long, and no memory.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string_view>

#include "base/declared.h"
#include "base/status.h"
#include "capture/capturer.h"

namespace routecap {
namespace {

using Clock = Rhythm::Clock;

// The most bytes that each part takes, with every number as long as it can be.
constexpr size_t kFixed = 4096, kStep = 192, kRequest = 288, kEnd = 64;

// Text that is written from the front, and stops where there is no room.
class Text {
public:
    Text(char *to, size_t bytes) : to_(to), room_(bytes) {}

    [[gnu::format(printf, 2, 3)]] void add(const char *format, ...) {
        char part[512];
        va_list arguments;
        va_start(arguments, format);
        const int n = std::vsnprintf(part, sizeof part, format, arguments);
        va_end(arguments);
        const auto bytes = static_cast<size_t>(n);
        if (n < 0 || bytes >= sizeof part || bytes > room_ - size_) {
            full_ = true;
        } else {
            std::memcpy(to_ + size_, part, bytes);
            size_ += bytes;
        }
    }
    // With a comma behind what comes before.
    void member(const char *name, uint64_t value) {
        add("%s\"%s\": %llu", comma(), name, ull(value));
    }
    void begin(const char *name, char bracket) { add("%s\"%s\": %c", comma(), name, bracket); }
    void end(char bracket) { add("%c", bracket); }
    const char *comma() const {
        const char last = size_ > 0 ? to_[size_ - 1] : '{';
        return last == '{' || last == '[' ? "" : ", ";
    }

    size_t size() const { return size_; }
    size_t room() const { return room_ - size_; }
    bool full() const { return full_; }

private:
    char *const to_;
    const size_t room_;
    size_t size_ = 0;
    bool full_ = false;
};

uint64_t ns_since(Clock::time_point then, Clock::time_point now) {
    return static_cast<uint64_t>(
        std::max<int64_t>(0, std::chrono::nanoseconds(now - then).count()));
}

const char *name_of(StepWorker::Doing doing) {
    switch (doing) {
        case StepWorker::Doing::starting: return "starting";
        case StepWorker::Doing::sleeping: return "sleeping";
        case StepWorker::Doing::dozing: return "waiting";
        case StepWorker::Doing::filing: return "filing";
        case StepWorker::Doing::releasing: return "releasing";
        case StepWorker::Doing::logging: return "logging";
    }
    return "";
}

const char *name_of(bool flag) { return flag ? "true" : "false"; }

}  // namespace

struct Capturer::Dump {
    const Capturer &of;
    Text &text;
    const Clock::time_point now = Clock::now();
    const routecap_stats stats = of.counted();

    void settings() {
        const Config &c = of.config_;
        text.begin("config", '{');
        text.add("\"backend\": \"%s\"", c.backend == ROUTECAP_BACKEND_HOST ? "host" : "cuda");
        text.member("device", static_cast<uint64_t>(c.device));
        text.member("layers", c.shape->layers);
        text.member("k", c.shape->k);
        text.member("experts", c.shape->experts);
        text.member("rows", c.rows);
        text.member("slots", c.slots);
        text.member("max_requests", c.max_requests);
        text.member("budget_bytes", c.budget_bytes);
#define ROUTECAP_FLAG(name, member) text.add(", \"%s\": %s", #member, name_of(c.member));
        ROUTECAP_CONFIG_FLAGS(ROUTECAP_FLAG)
#undef ROUTECAP_FLAG
        text.end('}');
    }

    void memory() {
        const routecap_memory m = memory_of(of.config_);
        text.begin("memory", '{');
        text.member("device_bytes", m.device_bytes);
        text.member("pinned_bytes", m.pinned_bytes);
        text.member("host_bytes", m.host_bytes);
        text.member("row_bytes", m.row_bytes);
        text.member("page_rows", m.page_rows);
        text.member("page_bytes", m.page_bytes);
        text.member("bytes_in_use", stats.bytes_in_use);
        text.member("bytes_peak", stats.bytes_peak);
        text.member("bytes_budget", stats.bytes_budget);
        text.end('}');
    }

    void counters() {
        text.begin("counters", '{');
#define ROUTECAP_COUNTER(name) \
    if (!std::string_view(#name).starts_with("bytes_")) text.member(#name, stats.name);
        ROUTECAP_STATS(ROUTECAP_COUNTER)
#undef ROUTECAP_COUNTER
        text.end('}');
    }

    // Of an owner.
    void work(const Owner &c, const StepWorker::State &worker) {
        if (c.worker.manual())
            text.add(", \"worker\": null");
        else
            text.add(", \"worker\": {\"thread\": %d, \"doing\": \"%s\", \"for_ns\": %llu}",
                     worker.thread, name_of(worker.doing), ull(ns_since(worker.since, now)));
        text.begin("log", '{');
        {
            const Lock lock(c.registry.mutex);
            text.member("handed_over", c.registry.log.entries());
        }
        text.member("waiting", worker.taken);
        text.end('}');
    }

    // With the mutex a step in a slot stays the one it is: only with it another is put there.
    void steps(const Owner &c, uint64_t filing) {
        text.begin("steps", '[');
        for (uint32_t slot = 0; slot < c.steps.slots(); slot++) {
            const Lock lock(c.registry.mutex);
            const uint64_t ticket = c.steps.in_slot(slot);
            if (ticket == 0) continue;
            const Step &step = c.steps.step(static_cast<int32_t>(slot));
            const Arrival arrival = of.backend_->arrival(static_cast<int32_t>(slot));
            const char *const state = ticket == filing              ? "filing"
                                      : arrival == Arrival::arrived ? "arrived"
                                      : arrival == Arrival::failed  ? "failed"
                                                                    : "coming";
            text.add(
                "%s{\"step\": %llu, \"slot\": %u, \"rows\": %llu, \"state\": \"%s\", "
                "\"age_ns\": %llu}",
                text.comma(), ull(ticket), slot, ull(step.rows), state,
                ull(ns_since(step.issued_at, now)));
        }
        text.end(']');
    }

    // If these are not all, those that something is on its way for.
    void requests(Owner &c, uint32_t most) {
        constexpr uint32_t kAtOnce = 64;  // places of the table, each time that the mutex is taken
        const bool all = c.registry.open_requests() <= most;
        uint32_t at = 0, listed = 0;
        text.begin("requests", '[');
        const auto room = [&] { return listed < most && text.room() >= kRequest + kEnd; };
        for (bool more = true; more && room();) {
            const Lock lock(c.registry.mutex);
            more = c.registry.requests.for_each_open(at, kAtOnce, [&](const Request &r) {
                const uint64_t pending = r.pending.count() - r.applied();
                const bool in_flight = r.newest.step != 0 && c.steps.in_flight(r.newest.step);
                if (!room() || !(all || in_flight || pending > 0)) return;
                listed++;
                request(r, r.length_now(c.steps), in_flight ? r.newest.step : 0, pending);
            });
        }
        text.end(']');
    }
    void request(const Request &r, uint64_t rows, uint64_t step, uint64_t pending) {
        uint64_t drafts = 0;
        for (const DraftSpan *d = r.drafts; d != nullptr; d = d->next) drafts += d->rows;
        text.add(
            "%s{\"request\": %llu, \"rows\": %llu, \"drafts\": %llu, "
            "\"step_in_flight\": %llu, \"calls_waiting\": %llu, \"behind_step\": %llu}",
            text.comma(), ull(r.handle), ull(rows), ull(drafts), ull(step), ull(pending),
            ull(pending > 0 ? r.pending.after() : 0));
    }
};

int32_t Capturer::dump(uint32_t requests, void *dst, size_t dst_bytes, uint64_t *needed) {
    const size_t slots = owner_ ? owner_->steps.slots() : 0;
    const uint64_t open = owner_ ? owner_->registry.open_requests() : 0;
    const size_t least = kFixed + slots * kStep + kEnd;
    if (dst == nullptr || dst_bytes < least) {
        const uint64_t enough = least + std::min<uint64_t>(requests, open) * kRequest;
        if (needed != nullptr) *needed = enough;
        return report(ROUTECAP_ERR_BUFFER_TOO_SMALL, "a dump takes up to %llu bytes, dst has %zu",
                      ull(enough), dst_bytes);
    }
    using namespace std::chrono;
    const auto wall = duration_cast<nanoseconds>(system_clock::now().time_since_epoch());
    Text text(static_cast<char *>(dst), dst_bytes);
    Dump dump{*this, text};
    text.add("{\"routecap\": \"%d.%d.%d\", \"process\": %d", ROUTECAP_VERSION_MAJOR,
             ROUTECAP_VERSION_MINOR, ROUTECAP_VERSION_PATCH, static_cast<int>(getpid()));
    text.member("capturer", number_);
    text.member("time_ns", static_cast<uint64_t>(wall.count()));
    text.add(", \"role\": \"%s\"", owner_ ? "owner" : disabled() ? "disabled" : "mirror");
    if (!disabled()) dump.settings(), dump.memory();
    if (owner_) {
        const StepWorker::State worker = owner_->worker.state();
        dump.counters();
        dump.work(*owner_, worker);
        dump.steps(*owner_, worker.filing);
        dump.requests(*owner_, requests);
    }
    text.end('}');
    if (text.full()) return report(ROUTECAP_ERR_INTERNAL, "a dump exceeds its bounds");
    if (needed != nullptr) *needed = text.size();
    return ROUTECAP_OK;
}

}  // namespace routecap
