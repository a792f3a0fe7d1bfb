// A capturer: the object behind the handle. Its three parts do the work of the calls: the forward
// path, the requests, and the reader. What all of them share is in CaptureState.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "backend/backends.h"
#include "capture/capture_state.h"
#include "capture/config.h"
#include "capture/forward_path.h"
#include "capture/reader.h"
#include "capture/requests.h"
#include "routecap.h"

namespace routecap {

// What a capturer of this configuration allocates.
routecap_memory memory_of(const Config &config);

// Every function returns a status and is described in routecap.h; arguments come as they are, and
// structs may be of any version.
class Capturer {
    static uint64_t next_number() { return made_.fetch_add(1, std::memory_order_relaxed) + 1; }
    inline static std::atomic<uint64_t> made_{0};  // by this process or its parents

    const Config config_;
    const uint64_t number_ = next_number();
    bool whole_ = false;                         // it was handed out
    const std::unique_ptr<Backend> backend_;     // null if disabled
    const std::unique_ptr<CaptureState> state_;  // null of a mirror, or if disabled

public:
    static int32_t create(const Config &config, std::unique_ptr<Capturer> &capturer);
    ~Capturer();
    Capturer(const Capturer &) = delete;

    ForwardPath forward;
    Requests requests;
    Reader reader;

    // Any thread.
    int32_t poll(routecap_step step) const;
    int32_t finalize(routecap_step step, int64_t timeout_ns, uint64_t *conflicting);
    int32_t arrive(routecap_step step, const routecap_sink *rows);
    int32_t progress();
    int32_t stats(routecap_stats *stats) const;
    int32_t layer_stats(routecap_layer_stats *stats, size_t stat_size, size_t count) const;
    int32_t load(routecap_load *load, uint64_t *counts, size_t count);

private:
    Capturer(const Config &config, std::unique_ptr<Backend> backend);
    bool disabled() const { return config_.role == ROUTECAP_ROLE_DISABLED; }
    void log_creation() const;
    routecap_stats counted() const;
};

}  // namespace routecap
