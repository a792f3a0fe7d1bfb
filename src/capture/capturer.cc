#include "capture/capturer.h"

#include <cstdio>

#include "base/log.h"
#include "base/profiler_ranges.h"
#include "base/status.h"
#include "base/structs.h"

namespace routecap {

// ---- Life -----------------------------------------------------------------------------------

routecap_memory memory_of(const Config &config) {
    routecap_memory m{};
    if (config.role == ROUTECAP_ROLE_DISABLED) return m;
    const Shape &shape = *config.shape;
    const kernels::SlotLayout layout(config.rows, shape.validity_bytes, shape.ids_bytes);
    const uint64_t sink =
        config.external_sink
            ? 0
            : shape.layers * sink_layer_bytes(config.rows, shape.k, config.sink_dtype);
    const uint64_t slots =
        config.role == ROUTECAP_ROLE_OWNER ? config.all_slots() * layout.bytes() : 0;
    const bool host = config.backend == ROUTECAP_BACKEND_HOST;
    m.host_bytes = (host ? sink + slots : 0) + sizeof(Capturer) + size_t{256} * 1024;
    if (config.role == ROUTECAP_ROLE_OWNER)
        m.host_bytes +=
            config.all_slots() * Steps::bytes_per_slot(config.rows) +
            RequestTable::bytes(config.max_requests) +
            (config.load ? LoadCounter::bytes(shape, config.rows, config.load_tags) : 0);
    const DeviceMemory device = device_memory_of(config);
    m.device_bytes = device.device_bytes;
    m.pinned_bytes = device.pinned_bytes;
    m.page_rows = shape.page_rows;
    m.row_bytes = shape.row_bytes();
    m.page_bytes = PagePool::page_bytes(shape, shape.page_rows);
    m.request_bytes = sizeof(Request) + sizeof(RequestData) + 64;
    m.tag_bytes = PagePool::tag_bytes(shape.page_rows);
    return m;
}

Capturer::Capture::Capture(const Config &config, uint64_t number, Backend &backend)
    : storage(std::make_shared<const Storage>(config.shape,
                                              PagePool::create(config.shape, config.budget_bytes),
                                              std::make_shared<Completion>())),
      pool(*storage->pool),
      completion(*storage->completion),
      counters(config.shape->layers),
      steps(config.all_slots(), config.slots, config.rows),
      requests(config.max_requests),
      worker(number, mutex, storage, backend, steps, counters) {
    if (!config.load) return;
    load.emplace(config.shape, config.rows, config.load_tags);
    worker.set_load(&*load);
}

int32_t Capturer::create(const Config &config, std::unique_ptr<Capturer> &capturer) {
    std::unique_ptr<Capturer> c(new Capturer(config));
    if (!c->disabled()) {
        ask_for_profiler();
        if (int32_t s = make_backend(config, c->backend_); s < 0) return s;
        if (config.checked) c->check_.emplace(*c->backend_, config.rows);
        c->recorded_.resize(config.shape->layers);
        for (Recorded &recorded : c->recorded_) recorded.rows.reserve(4);
        c->listed_.reserve(config.shape->layers);
        c->seen_.reserve(config.shape->layers);
        c->checked_.resize(std::min(config.rows, 1024u));
        c->order_.reserve(c->checked_.size());
        c->sorted_.reserve(c->checked_.size());
    }
    if (c->owner()) {
        c->capture_.emplace(config, c->number_, *c->backend_);
        c->capture_->steps.name(0);
        c->capture_->worker.set_check(c->check());
        if (int32_t s = c->capture_->worker.start(config.manual_progress); s < 0) return s;
    }
    c->log_creation();
    c->whole_ = true;
    capturer = std::move(c);
    return ROUTECAP_OK;
}

Capturer::~Capturer() {
    if (capture_) capture_->worker.stop();
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
         ull(number_), owner() ? "owner" : "mirror", where, backend_info(config_.backend).detail,
         config_.shape->layers, config_.shape->k, config_.shape->experts, config_.rows,
         config_.slots, ull(config_.budget_bytes), config_.checked ? ", checked" : "",
         ull(m.device_bytes), ull(m.pinned_bytes), ull(m.host_bytes));
}

// ---- The mutex ------------------------------------------------------------------------------

bool Capturer::make_room(std::unique_lock<QuickMutex> &lock, const Room &room) {
    Capture &c = *capture_;
    bool released = false;
    for (;;) {
        const size_t blocks = c.worker.log.missing(room.entries);
        const size_t chunks = c.requests.missing(room.requests);
        const size_t nodes =
            c.worker.nodes.free() < room.nodes ? room.nodes - c.worker.nodes.free() : 0;
        const Nodes::Size nodes_now = c.worker.nodes.size();
        if (blocks == 0 && chunks == 0 && nodes == 0) return released;
        lock.unlock();
        released = true;
        std::unique_ptr<StepWorker::Log::Block, void (*)(StepWorker::Log::Block *)> made(
            StepWorker::Log::make(blocks), StepWorker::Log::drop);
        RequestTable::Chunk chunk = chunks > 0 ? RequestTable::make() : nullptr;
        Nodes::More more;
        if (nodes > 0) more = Nodes::make(nodes, nodes_now);
        lock.lock();
        c.worker.log.add(made.release());
        if (chunk != nullptr && c.requests.missing(room.requests) > 0)
            c.requests.add(std::move(chunk));
        if (nodes > 0) c.worker.nodes.add(more);
        lock.unlock();  // what was made in vain is freed
        chunk = nullptr, more = {};
        lock.lock();
    }
}

std::unique_lock<QuickMutex> Capturer::lock_with(const Room &room) {
    std::unique_lock lock(capture_->mutex);
    make_room(lock, room);
    return lock;
}

// ---- The forward path -----------------------------------------------------------------------

int32_t Capturer::bind(uint32_t first_layer, uint32_t layers, const routecap_sink *sink) {
    if (disabled()) return ROUTECAP_OK;
    routecap_sink s;
    if (int32_t status = read_struct(s, sink, "sink"); status < 0) return status;
    return backend_->bind(first_layer, layers, s);
}

int32_t Capturer::check_exists(uint32_t layer) const {
    return layer < config_.shape->layers
               ? ROUTECAP_OK
               : report(ROUTECAP_ERR_UNKNOWN_LAYER, "layer %u of %u", layer, config_.shape->layers);
}

int32_t Capturer::sink_layer(uint32_t layer, routecap_sink *sink) {
    if (int32_t s = check_output(sink, "sink"); s < 0) return s;
    if (disabled()) {
        write_struct(sink, routecap_sink{});
        return ROUTECAP_OK;
    }
    if (int32_t s = check_exists(layer); s < 0) return s;
    write_struct(sink, backend_->give_out(layer));
    return ROUTECAP_OK;
}

int32_t Capturer::begin(uint32_t rows, routecap_stream stream) {
    if (disabled()) return ROUTECAP_OK;
    const ProfilerRange range("begin");
    ROUTECAP_PROBE(begin, number_, rows);
    bool capturing = false;
    if (int32_t s = backend_->enter(stream, capturing); s < 0) return s;
    if (rows > config_.rows)
        return report(ROUTECAP_ERR_CAPACITY, "%u rows, the sink has %u", rows, config_.rows);
    if (owner() && !capturing && capture_->steps.named() == kernels::kNoSlot) {
        // None was free at the last issue; maybe one is now.
        Steps &steps = capture_->steps;
        int32_t slot = steps.free_slot();
        // On the host every step in flight has landed: it only waits to be filed.
        for (; slot == kernels::kNoSlot && config_.backend == ROUTECAP_BACKEND_HOST &&
               !config_.may_lose;
             slot = steps.free_slot())
            capture_->worker.file_one_step();
        steps.name(slot);
        backend_->name_slot(slot, stream);
    }
    const int32_t status = backend_->begin(rows, stream);
    if (status < 0) return status;
    begins_++;
    begun_ = !capturing;
    if (check_) check_->begun(rows);
    return ROUTECAP_OK;
}

int32_t Capturer::snapshot(routecap_stream stream) {
    if (disabled()) return ROUTECAP_OK;
    const ProfilerRange range("snapshot");
    bool capturing = false;
    if (int32_t s = backend_->enter(stream, capturing); s < 0) return s;
    if (check_)
        if (int32_t s = check_->before_snapshot(); s < 0) return s;
    begun_ = false;
    if (int32_t s = backend_->snapshot(stream); s < 0) return s;
    if (check_) check_->snapshot_taken();
    return ROUTECAP_OK;
}

int32_t Capturer::enter_outside_capture(routecap_stream stream) {
    bool capturing = false;
    if (int32_t s = backend_->enter(stream, capturing); s < 0) return s;
    return capturing ? report(ROUTECAP_ERR_CAPTURING, "this call cannot be captured into a graph")
                     : ROUTECAP_OK;
}

int32_t Capturer::discard(routecap_stream stream) {
    if (owner())
        if (int32_t s = enter_outside_capture(stream); s < 0) return s;
    begun_ = false;
    if (check_) check_->discarded();
    if (!owner()) return ROUTECAP_OK;
    Steps &steps = capture_->steps;
    if (steps.named() == kernels::kNoSlot) steps.name(steps.free_slot());
    backend_->name_slot(steps.named(), stream);
    return ROUTECAP_OK;
}

// ---- Steps ----------------------------------------------------------------------------------

int32_t Capturer::poll(routecap_step step) const {
    if (!owner()) return ROUTECAP_OK;
    const Steps &steps = capture_->steps;
    if (step == 0 || step > steps.issued())
        return report(ROUTECAP_ERR_UNKNOWN_STEP, "step %llu was not issued; the last was %llu",
                      static_cast<unsigned long long>(step),
                      static_cast<unsigned long long>(steps.issued()));
    if (!steps.landed(step)) return ROUTECAP_PENDING;
    return steps.with_result(step, [](const StepResult &r) {
        return r.lost ? report(ROUTECAP_LOST, "%s", r.text) : ROUTECAP_OK;
    });
}

int32_t Capturer::finalize(routecap_step step, int64_t timeout_ns, uint64_t *conflicting) {
    if (!owner()) {
        if (conflicting != nullptr) *conflicting = 0;
        return ROUTECAP_OK;
    }
    if (int32_t s = poll(step); s < 0) return s;
    capture_->completion.wait(timeout_ns, [&] { return capture_->steps.landed(step); });
    const int32_t status = poll(step);
    if (conflicting != nullptr && status != ROUTECAP_PENDING)
        *conflicting =
            capture_->steps.with_result(step, [](const StepResult &r) { return r.conflicts; });
    const int32_t slip =
        status == ROUTECAP_OK
            ? capture_->steps.with_result(step, [](const StepResult &r) { return r.slip; })
            : ROUTECAP_OK;
    return slip < 0 ? ForwardCheck::report_found(step, slip) : status;
}

int32_t Capturer::progress() {
    if (capture_) capture_->completion.progress();
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
    if (capture_) {
        const Counters &c = capture_->counters;
        out.silent_layers = static_cast<uint32_t>(c.silent_layers);
        out.rows_overlapped = c.rows_overlapped;  // effects before causes
        out.rows_mismatched = c.rows_mismatched;
        out.rows_dropped = c.rows_dropped;
        out.cells_conflicting = c.cells_conflicting;
        out.rows_delivered = c.rows_delivered;
        out.rows_missing = c.rows_missing;
        out.rows_late = c.rows_late;
        out.rows_rejected = c.rows_rejected;
        out.rows_unplaced = c.rows_unplaced;
        out.rows_refused = c.rows_refused;
        out.rows_lost = c.rows_lost;
        out.rows_provisional = c.rows_provisional;
        out.rows_in_flight = c.rows_in_flight;
        out.rows_skipped = c.rows_skipped;
        out.rows_issued = c.rows_issued;
        out.steps_landed = c.steps_landed;
        out.steps_lost = c.steps_lost;
        out.steps_issued = c.steps_issued;
        for (uint32_t l = 0; l < config_.shape->layers; l++) {
            out.cells_unwritten += c.layers[l].unwritten;
            out.cells_out_of_range += c.layers[l].out_of_range;
            out.cells_duplicate += c.layers[l].duplicate;
        }
        out.requests_open = capture_->requests.count();
        out.steps_in_flight = out.steps_issued - out.steps_landed;
        out.bytes_in_use = capture_->pool.used();
        out.bytes_peak = capture_->pool.peak();
        out.bytes_budget = capture_->pool.budget();
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
        if (capture_) {
            const LayerCounters &c = capture_->counters.layers[l];
            out.unwritten = c.unwritten;
            out.out_of_range = c.out_of_range;
            out.duplicate = c.duplicate;
            out.silent_steps = c.silent_steps;
            const uint64_t missing = out.unwritten + out.out_of_range + out.duplicate,
                           landed = capture_->counters.rows_landed;
            out.rows_written = landed > missing ? landed - missing : 0;
        }
        write_bytes(reinterpret_cast<char *>(stats) + l * stat_size, stat_size, out);
    }
    return ROUTECAP_OK;
}

// ---- Load -----------------------------------------------------------------------------------

LoadCounter &Capturer::Capture::counted_load() {
    worker.hand_over_load();
    load->merge();
    return *load;
}

int32_t Capturer::load(const uint64_t *tag, routecap_load *load, uint64_t *counts, size_t count) {
    if (int32_t s = check_output(load, "load"); s < 0) return s;
    if (counts == nullptr && count > 0) return report(ROUTECAP_ERR_ARGUMENT, "counts is NULL");
    if (int32_t s = check_count(count, sizeof *counts, "counts"); s < 0) return s;
    routecap_load out{};
    if (!owner()) {
        std::fill_n(counts, count, 0);
        write_struct(load, out);
        return ROUTECAP_OK;
    }
    if (!config_.load || (tag != nullptr && !config_.load_tags))
        return report(ROUTECAP_ERR_ARGUMENT, "the capturer was created without %s",
                      config_.load ? "ROUTECAP_CONFIG_LOAD_TAGS" : "ROUTECAP_CONFIG_LOAD");
    const TakenTurn reads(capture_->load->readers());
    const LoadCounter &counter = capture_->counted_load();
    const bool fits = count == counter.size();
    LoadCounter::Reading reading;
    if (!counter.read(tag, reading, fits ? counts : nullptr))
        return report(ROUTECAP_ERR_OUT_OF_RANGE, "tag %llu: none of its steps was counted",
                      ull(*tag));
    out.layers = config_.shape->layers;
    out.experts = config_.shape->experts;
    out.steps = reading.steps;
    out.first_step = reading.first_step;
    out.last_step = reading.last_step;
    out.rows_prefill = reading.rows[ROUTECAP_PHASE_PREFILL];
    out.rows_decode = reading.rows[ROUTECAP_PHASE_DECODE];
    write_struct(load, out);
    return fits || count == 0
               ? ROUTECAP_OK
               : report(ROUTECAP_ERR_BUFFER_TOO_SMALL, "%zu counts of %zu", count, counter.size());
}

int32_t Capturer::load_tags(uint64_t *tags, size_t capacity, uint64_t *count) {
    if (tags == nullptr && capacity > 0) return report(ROUTECAP_ERR_ARGUMENT, "tags is NULL");
    if (count == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "count is NULL");
    *count = 0;
    if (!owner()) return ROUTECAP_OK;
    if (!config_.load_tags)
        return report(ROUTECAP_ERR_ARGUMENT,
                      "the capturer was created without ROUTECAP_CONFIG_LOAD_TAGS");
    const TakenTurn reads(capture_->load->readers());
    *count = capture_->counted_load().tags({tags, capacity});
    return ROUTECAP_OK;
}

}  // namespace routecap
