#include "base/log.h"

#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "base/status.h"

namespace routecap {

constinit std::atomic<int32_t> log_level{-1};

namespace {

constexpr size_t kText = 512;  // of a line, with its 0

const char *const kLevels[] = {"off", "error", "warning", "info", "debug"};

// ---- Where lines go -------------------------------------------------------------------------

// The hook is in one of two places, and a new hook goes into the other one. A thread that delivers
// a line increments the counter of the current place, and then checks that the place is still
// current. The thread that replaces the hook waits until the counter of the old place is 0.
struct Target {
    routecap_log log;
    void *context;
};
constinit Target targets[2] = {};
constinit std::atomic<uint32_t> tellers[2] = {};
constinit std::atomic<uint32_t> current{0};  // the lowest bit is the place
constinit std::atomic<bool> changing{false};
thread_local bool telling = false;

class Use {
public:
    Use() {
        for (;; leave()) {
            place_ = current.load() & 1;
            tellers[place_].fetch_add(1);
            if ((current.load() & 1) == place_) return;
        }
    }
    ~Use() { leave(); }
    Use(const Use &) = delete;
    const Target &target() const { return targets[place_]; }

private:
    void leave() {
        if (tellers[place_].fetch_sub(1) == 1) tellers[place_].notify_all();
    }
    uint32_t place_;
};

// One write of a whole line, so that lines of several threads and processes do not mix.
void write_to_stderr(int32_t level, const char *text) {
    using namespace std::chrono;
    const auto now = floor<milliseconds>(system_clock::now());
    const auto day = floor<days>(now);
    const year_month_day date(day);
    const hh_mm_ss time(now - day);
    char line[kText + 96];
    const int n = std::snprintf(
        line, sizeof line, "%04d-%02u-%02uT%02d:%02d:%02d.%03dZ routecap[%d] %s: %s\n",
        static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
        static_cast<unsigned>(date.day()), static_cast<int>(time.hours().count()),
        static_cast<int>(time.minutes().count()), static_cast<int>(time.seconds().count()),
        static_cast<int>(time.subseconds().count()), static_cast<int>(getpid()), kLevels[level],
        text);
    const char *at = line;
    for (auto left = static_cast<size_t>(std::max(n, 0)); left > 0;) {
        const ssize_t written = write(STDERR_FILENO, at, left);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return;
        at += written, left -= static_cast<size_t>(written);
    }
}

// Keeps errno and the text of routecap_last_error, which the hook may change and the caller may
// look at afterwards.
void tell_text(int32_t level, const char *text) noexcept {
    if (telling) return;
    const int error = errno;
    const KeptError kept;
    telling = true;
    {
        const Use use;
        if (use.target().log != nullptr)
            use.target().log(use.target().context, level, text);
        else
            write_to_stderr(level, text);
    }
    telling = false;
    errno = error;
}

// ---- Errors that calls return ---------------------------------------------------------------

int32_t level_of(int32_t status) {
    switch (status) {
        case ROUTECAP_ERR_THREAD:
        case ROUTECAP_ERR_NO_BACKEND:
        case ROUTECAP_ERR_DRIVER_TOO_OLD:
        case ROUTECAP_ERR_DEVICE:
        case ROUTECAP_ERR_DEVICE_LOST:
        case ROUTECAP_ERR_INTERNAL: return ROUTECAP_LOG_ERROR;
        case ROUTECAP_ERR_NOT_BEGUN:
        case ROUTECAP_ERR_NOT_SNAPSHOT:
        case ROUTECAP_ERR_SNAPSHOT_TWICE:
        case ROUTECAP_ERR_ISSUED_TWICE:
        case ROUTECAP_ERR_ROWS_NOT_BEGUN:
        case ROUTECAP_ERR_TWO_THREADS:
        case ROUTECAP_ERR_NO_MEMORY:
        case ROUTECAP_ERR_TOO_MANY_REQUESTS: return ROUTECAP_LOG_WARNING;
        default: return ROUTECAP_LOG_DEBUG;
    }
}

// For each status, by its number: the second in which it was last returned, and how often in that
// second.
constexpr int kCountBits = 24;
constinit std::array<std::atomic<uint64_t>, 512> returned = {};

}  // namespace

int32_t ask_log_level() noexcept {
    const char *wanted = std::getenv("ROUTECAP_LOG");
    int32_t level = ROUTECAP_LOG_OFF;
    bool known = wanted == nullptr || *wanted == '\0';
    for (int32_t l = ROUTECAP_LOG_OFF; l <= ROUTECAP_LOG_DEBUG && !known; l++)
        if (strcasecmp(wanted, kLevels[l]) == 0) level = l, known = true;
    if (!known) level = ROUTECAP_LOG_WARNING;
    int32_t unasked = -1;
    if (!log_level.compare_exchange_strong(unasked, level)) return unasked;
    if (!known)
        tell(ROUTECAP_LOG_WARNING,
             "ROUTECAP_LOG is \"%.40s\", not error, warning, info or debug: it is taken for "
             "warning",
             wanted);
    return level;
}

void tell(int32_t level, const char *format, ...) noexcept {
    if (!logs(level)) return;
    char text[kText];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    tell_text(level, text);
}

void tell_refusal(int32_t status, const char *call) noexcept {
    constexpr uint64_t kMost = 5;                         // a second
    if (status == ROUTECAP_ERR_BUFFER_TOO_SMALL) return;  // asking for a size is no mistake
    const int32_t level = level_of(status);
    if (!logs(level)) return;
    const auto now = static_cast<uint64_t>(std::time(nullptr));
    auto &word = returned[static_cast<size_t>(-status) % returned.size()];
    uint64_t before = word.load(std::memory_order_relaxed), times;
    do times = before >> kCountBits == now ? (before & ((1u << kCountBits) - 1)) + 1 : 1;
    while (
        !word.compare_exchange_weak(before, now << kCountBits | times, std::memory_order_relaxed));
    if (times > kMost) return;
    const uint64_t earlier = before >> kCountBits != now ? before & ((1u << kCountBits) - 1) : 0;
    char left_out[64] = "";
    if (earlier > kMost)
        std::snprintf(left_out, sizeof left_out, " (%llu times more before)", ull(earlier - kMost));
    tell(level, "%s: %s: %s%s", call, status_name(status), last_error(), left_out);
}

void Lines::add(int32_t level, const char *format, ...) noexcept {
    if (count_ == kMost || !logs(level)) return;
    Line &line = lines_[count_++];
    line.level = level;
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(line.text, sizeof line.text, format, arguments);
    va_end(arguments);
}

void Lines::tell() const noexcept {
    for (uint32_t i = 0; i < count_; i++) tell_text(lines_[i].level, lines_[i].text);
}

int32_t set_log(routecap_log log, void *context, int32_t level) noexcept {
    if (level < ROUTECAP_LOG_OFF || level > ROUTECAP_LOG_DEBUG || (log == nullptr && level != 0))
        return report(ROUTECAP_ERR_ARGUMENT, "level is %d", level);
    if (telling) return report(ROUTECAP_ERR_STATE, "a hook of the log cannot replace the hook");
    while (changing.exchange(true)) changing.wait(true);
    const uint32_t before = current.load();
    targets[(before + 1) & 1] = {log, context};
    current.store(before + 1);
    log_level.store(log != nullptr ? level : -1);
    for (uint32_t n; (n = tellers[before & 1].load()) != 0;) tellers[before & 1].wait(n);
    changing.store(false);
    changing.notify_one();
    return ROUTECAP_OK;
}

void forget_tellers() noexcept {
    tellers[0] = tellers[1] = 0;
    changing = false;
}

}  // namespace routecap
