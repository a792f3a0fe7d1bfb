#include "capture/capturer.h"

#include <cstdio>

#include "base/log.h"
#include "base/status.h"
#include "base/structs.h"

namespace routecap {

// ---- Life -----------------------------------------------------------------------------------

routecap_memory memory_of(const Config &config) {
    routecap_memory m{};
    if (config.role == ROUTECAP_ROLE_DISABLED) return m;
    const Shape &shape = *config.shape;
    const kernels::SlotLayout layout(config.rows, shape);
    const uint64_t sink = config.external_sink ? 0
                                               : sink_bytes(config.rows, shape, config.sink_dtype) +
                                                     weights_bytes(config.rows, shape);
    const uint32_t count = config.of_backend().slots;
    const uint64_t slots = count * layout.bytes();
    const bool host = config.backend == ROUTECAP_BACKEND_HOST;
    m.host_bytes = (host ? sink + slots : 0) + sizeof(Capturer) + size_t{256} * 1024;
    if (config.role == ROUTECAP_ROLE_OWNER)
        m.host_bytes += count * Steps::bytes_per_slot(config.rows) +
                        (config.load ? LoadCounter::bytes(shape) : 0);
    const DeviceMemory device = device_memory_of(config.of_backend());
    m.device_bytes = device.device_bytes;
    m.pinned_bytes = device.pinned_bytes;
    m.page_rows = shape.page_rows;
    m.row_bytes = shape.bytes();
    m.page_bytes = PagePool::page_bytes(shape, shape.page_rows);
    m.request_bytes = sizeof(Request) + sizeof(RequestData) + 64;
    return m;
}

CaptureState::CaptureState(const Config &config, uint64_t number, Backend &backend)
    : storage(std::make_shared<const Storage>(config.shape,
                                              PagePool::create(config.shape, config.budget_bytes),
                                              std::make_shared<Completion>())),
      pool(*storage->pool),
      completion(*storage->completion),
      counters(config.shape->layers),
      steps(config.slots, config.rows),
      registry(config.max_requests),
      load(config.load ? std::make_unique<LoadCounter>(config.shape) : nullptr),
      worker(number, registry, storage, backend, steps, counters, load.get()) {}

Capturer::Capturer(const Config &config, std::unique_ptr<Backend> backend)
    : config_(config),
      backend_(std::move(backend)),
      state_(config.role == ROUTECAP_ROLE_OWNER
                 ? std::make_unique<CaptureState>(config_, number_, *backend_)
                 : nullptr),
      forward(config_, backend_.get(), state_.get()),
      requests(config_, state_.get()),
      reader(config_, state_.get()) {}

int32_t Capturer::create(const Config &config, std::unique_ptr<Capturer> &capturer) {
    std::unique_ptr<Backend> backend;
    if (config.role != ROUTECAP_ROLE_DISABLED)
        if (int32_t s = make_backend(config.of_backend(), backend); s < 0) return s;
    std::unique_ptr<Capturer> c(new Capturer(config, std::move(backend)));
    if (c->state_ != nullptr) {
        c->state_->worker.set_check(c->forward.check());
        if (int32_t s = c->state_->worker.start(config.manual_progress); s < 0) return s;
    }
    c->log_creation();
    c->whole_ = true;
    capturer = std::move(c);
    return ROUTECAP_OK;
}

Capturer::~Capturer() {
    if (state_ != nullptr) {
        backend_->give_up();
        state_->worker.stop();
    }
    if (!whole_) return;
    const routecap_stats s = counted();
    tell(
        ROUTECAP_LOG_INFO,
        "capturer %llu destroyed: %llu steps, %llu of them lost; %llu rows, %llu of them delivered",
        ull(number_), ull(s.steps_issued), ull(s.steps_lost), ull(s.rows_issued),
        ull(s.rows_delivered));
}

void Capturer::log_creation() const {
    if (!logs(ROUTECAP_LOG_INFO)) return;
    if (disabled()) return tell(ROUTECAP_LOG_INFO, "capturer %llu made: disabled", ull(number_));
    const routecap_memory m = memory_of(config_);
    char where[32] = "host";
    if (config_.backend != ROUTECAP_BACKEND_HOST)
        std::snprintf(where, sizeof where, "cuda device %d", config_.device);
    tell(ROUTECAP_LOG_INFO,
         "capturer %llu made: %s on %s (%s), %u layers, k %u of %u experts, %u rows, %u slots, "
         "budget_bytes %llu%s; it has %llu bytes on the device, %llu page-locked, %llu others",
         ull(number_), state_ != nullptr ? "owner" : "mirror", where,
         backend_info(config_.backend).detail, config_.shape->layers, config_.shape->k,
         config_.shape->experts, config_.rows, config_.slots, ull(config_.budget_bytes),
         config_.checked ? ", checked" : "", ull(m.device_bytes), ull(m.pinned_bytes),
         ull(m.host_bytes));
}

// ---- Steps ----------------------------------------------------------------------------------

int32_t Capturer::poll(routecap_step step) const {
    if (state_ == nullptr) return ROUTECAP_OK;
    const Steps &steps = state_->steps;
    const Ticket ticket{step};
    if (ticket == Ticket::none || ticket > steps.issued())
        return report(ROUTECAP_ERR_UNKNOWN_STEP, "step %llu was not issued; the last was %llu",
                      ull(step), ull(number(steps.issued())));
    if (!steps.landed(ticket)) return ROUTECAP_PENDING;
    return steps.with_result(ticket, [](const StepResult &r) {
        return r.lost ? report(ROUTECAP_LOST, "%s", r.text) : ROUTECAP_OK;
    });
}

int32_t Capturer::finalize(routecap_step step, int64_t timeout_ns, uint64_t *conflicting) {
    if (state_ == nullptr) {
        if (conflicting != nullptr) *conflicting = 0;
        return ROUTECAP_OK;
    }
    if (int32_t s = poll(step); s < 0) return s;
    state_->completion.wait(timeout_ns, [&] { return state_->steps.landed(Ticket{step}); });
    const int32_t status = poll(step);
    if (status == ROUTECAP_PENDING) return status;
    return state_->steps.with_result(Ticket{step}, [&](const StepResult &r) {
        if (conflicting != nullptr) *conflicting = r.conflicts;
        return r.slip < 0 ? ForwardCheck::report_found(step, r.slip) : status;
    });
}

int32_t Capturer::arrive(routecap_step step, const routecap_sink *rows) {
    if (state_ == nullptr) return ROUTECAP_OK;
    if (int32_t s = poll(step); s < 0) return s;
    ArrivedLayers layers;
    routecap_sink from{};
    if (rows != nullptr) {
        if (int32_t s = read_struct(from, rows, "rows"); s < 0) return s;
        if (int32_t s = layers_of(from, *config_.shape, layers); s < 0) return s;
    }
    if (const uint32_t awaited = config_.checked ? backend_->awaited_rows(step) : 0;
        rows != nullptr && from.rows < awaited)
        return report(ROUTECAP_ERR_ROWS_NOT_BEGUN,
                      "%u rows, and spans of step %llu name sink rows up to %u", from.rows,
                      ull(step), awaited - 1);
    backend_->arrive(step, rows != nullptr ? &layers : nullptr, from.rows);
    state_->worker.wake();
    return ROUTECAP_OK;
}

int32_t Capturer::progress() {
    if (state_ != nullptr) state_->completion.progress();
    return ROUTECAP_OK;
}

// ---- Counters -------------------------------------------------------------------------------

int32_t Capturer::stats(routecap_stats *stats) const {
    if (int32_t s = check_output(stats, "stats"); s < 0) return s;
    write_struct(stats, counted());
    return ROUTECAP_OK;
}

routecap_stats Capturer::counted() const {
    routecap_stats out{};
    if (state_ != nullptr) {
        const Counters &c = state_->counters;
#define COUNTER(field) out.field = static_cast<decltype(out.field)>(c.field);
        ROUTECAP_COUNTERS(COUNTER)
#undef COUNTER
        for (uint32_t l = 0; l < config_.shape->layers; l++) {
            out.cells_unwritten += c.layers[l].unwritten;
            out.cells_out_of_range += c.layers[l].out_of_range;
            out.cells_duplicate += c.layers[l].duplicate;
        }
        out.requests_open = state_->registry.open_requests();
        out.steps_in_flight = out.steps_issued - out.steps_landed;
        out.bytes_in_use = state_->pool.used();
        out.bytes_peak = state_->pool.peak();
        out.bytes_budget = state_->pool.budget();
    }
    return out;
}

int32_t Capturer::layer_stats(routecap_layer_stats *stats, size_t stat_size, size_t count) const {
    if (int32_t s = check_array(stats, count, stat_size, sizeof(routecap_layer_stats), "stats");
        s < 0)
        return s;
    if (!disabled() && count > config_.shape->layers)
        return report(ROUTECAP_ERR_UNKNOWN_LAYER, "%zu layers of %u", count, config_.shape->layers);
    for (size_t l = 0; l < count; l++) {
        routecap_layer_stats out{};
        if (state_ != nullptr) {
            const LayerCounters &c = state_->counters.layers[l];
            out.unwritten = c.unwritten;
            out.out_of_range = c.out_of_range;
            out.duplicate = c.duplicate;
            out.silent_steps = c.silent_steps;
            const uint64_t missing = out.unwritten + out.out_of_range + out.duplicate,
                           landed = state_->counters.rows_landed;
            out.rows_written = landed > missing ? landed - missing : 0;
        }
        write_bytes(reinterpret_cast<char *>(stats) + l * stat_size, stat_size, out);
    }
    return ROUTECAP_OK;
}

// ---- Load -----------------------------------------------------------------------------------

int32_t Capturer::load(routecap_load *load, uint64_t *counts, size_t count) {
    if (int32_t s = check_output(load, "load"); s < 0) return s;
    if (counts == nullptr && count > 0) return report(ROUTECAP_ERR_ARGUMENT, "counts is NULL");
    if (int32_t s = check_count(count, sizeof *counts, "counts"); s < 0) return s;
    routecap_load out{};
    if (state_ == nullptr) {
        std::fill_n(counts, count, 0);
        write_struct(load, out);
        return ROUTECAP_OK;
    }
    if (!config_.load)
        return report(ROUTECAP_ERR_ARGUMENT,
                      "the capturer was created without ROUTECAP_CONFIG_LOAD");
    const LoadCounter &counter = *state_->load;
    const bool fits = count == counter.size();
    const LoadCounter::Sums sums =
        state_->worker.between_steps([&] { return counter.read(fits ? counts : nullptr); });
    out.layers = config_.shape->layers;
    out.experts = config_.shape->experts;
    out.steps = sums.steps;
    out.first_step = sums.first_step;
    out.last_step = sums.last_step;
    out.rows_prefill = sums.rows[ROUTECAP_PHASE_PREFILL];
    out.rows_decode = sums.rows[ROUTECAP_PHASE_DECODE];
    write_struct(load, out);
    return fits || count == 0
               ? ROUTECAP_OK
               : report(ROUTECAP_ERR_BUFFER_TOO_SMALL, "%zu counts of %zu", count, counter.size());
}

}  // namespace routecap
