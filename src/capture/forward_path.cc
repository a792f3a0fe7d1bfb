#include "capture/forward_path.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/status.h"
#include "base/structs.h"

namespace routecap {

ForwardPath::ForwardPath(const Config &config, Backend *backend, CaptureState *state)
    : config_(config), backend_(backend), state_(state) {
    if (disabled()) return;
    if (config.checked) check_.emplace(*backend, config.rows);
    recorded_.resize(config.shape->layers);
    for (Recorded &recorded : recorded_) recorded.rows.reserve(4);
    listed_.reserve(config.shape->layers);
    seen_.reserve(config.shape->layers);
    checked_.resize(std::min(config.rows, 1024u));
    order_.reserve(checked_.size());
    named_rows_.resize((size_t{config.rows} + 63) / 64);
}

int32_t ForwardPath::bind(uint32_t first_layer, uint32_t layers, const routecap_sink *sink) {
    if (disabled()) return ROUTECAP_OK;
    routecap_sink s;
    if (int32_t status = read_struct(s, sink, "sink"); status < 0) return status;
    return backend_->bind(first_layer, layers, s);
}

int32_t ForwardPath::check_exists(uint32_t layer) const {
    return layer < config_.shape->layers
               ? ROUTECAP_OK
               : report(ROUTECAP_ERR_UNKNOWN_LAYER, "layer %u of %u", layer, config_.shape->layers);
}

int32_t ForwardPath::sink_layer(uint32_t layer, routecap_sink *sink) {
    if (int32_t s = check_output(sink, "sink"); s < 0) return s;
    if (disabled()) {
        write_struct(sink, routecap_sink{});
        return ROUTECAP_OK;
    }
    if (int32_t s = check_exists(layer); s < 0) return s;
    write_struct(sink, backend_->give_out(layer));
    return ROUTECAP_OK;
}

// Before the device begins a step. On the host no step is lost, unless that is wanted.
int32_t ForwardPath::prepare_begin() {
    if (later_)
        return report(ROUTECAP_ERR_STATE,
                      "the rows of this capturer's steps arrive later: it begins none");
    if (state_ == nullptr || config_.backend != ROUTECAP_BACKEND_HOST || config_.may_lose)
        return ROUTECAP_OK;
    // Every step in flight has landed: it only waits to be filed.
    while (state_->steps.full()) {
        state_->worker.file_one_step();
        // None was filed if a finish before them waits for memory.
        if (state_->steps.full()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return ROUTECAP_OK;
}

int32_t ForwardPath::begin(uint32_t rows, routecap_stream stream) {
    if (disabled()) return ROUTECAP_OK;
    bool capturing = false;
    if (int32_t s = backend_->enter(stream, capturing); s < 0) return s;
    if (rows > config_.rows)
        return report(ROUTECAP_ERR_CAPACITY, "%u rows, the sink has %u", rows, config_.rows);
    if (int32_t s = prepare_begin(); s < 0) return s;
    if (int32_t s = backend_->begin(rows, stream); s < 0) return s;
    begins_++;
    begun_ = !capturing;
    if (check_) check_->begun(rows);
    return ROUTECAP_OK;
}

int32_t ForwardPath::snapshot(routecap_stream stream) {
    if (disabled()) return ROUTECAP_OK;
    bool capturing = false;
    if (int32_t s = backend_->enter(stream, capturing); s < 0) return s;
    if (check_)
        if (int32_t s = check_->before_snapshot(); s < 0) return s;
    begun_ = false;
    if (int32_t s = backend_->snapshot(stream); s < 0) return s;
    if (check_) check_->snapshot_taken();
    return ROUTECAP_OK;
}

int32_t ForwardPath::enter_outside_capture(routecap_stream stream) {
    bool capturing = false;
    if (int32_t s = backend_->enter(stream, capturing); s < 0) return s;
    return capturing ? report(ROUTECAP_ERR_CAPTURING, "this call cannot be captured into a graph")
                     : ROUTECAP_OK;
}

int32_t ForwardPath::discard(routecap_stream stream) {
    if (state_ != nullptr)
        if (int32_t s = enter_outside_capture(stream); s < 0) return s;
    begun_ = false;
    if (check_) check_->discarded();
    if (state_ == nullptr) return ROUTECAP_OK;
    backend_->name_slot(state_->steps.named(), stream);
    return ROUTECAP_OK;
}

}  // namespace routecap
