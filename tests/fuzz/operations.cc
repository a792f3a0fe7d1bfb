// Any sequence of calls on up to two capturers with manual progress, each held against the model:
// every status, cell, reason, tag, length and counter.
#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <unordered_set>
#include <utility>

#include <device.h>
#include <unistd.h>

#include "../vectors/fields.h"
#include "bytes.h"
#include "check.h"
#include "model.h"

namespace {

using fuzz::Bytes;
using model::RequestPtr;

unsigned long long ull(uint64_t n) { return n; }

// Positions stay below, so that everything can be compared at every turn.
constexpr uint64_t kFarthest = 600;

struct Held {
    routecap_routing *routing;
    model::RoutingPtr expected;
};

// Rows on their way to a step that was issued without them.
struct Coming {
    routecap_step step;
    uint32_t rows;
    std::vector<int64_t> ids;                      // [layers, rows, k]
    std::vector<uint32_t> weights;                 // the same; without those of the shape
    std::unique_ptr<std::vector<int64_t>> memory;  // what the issue was given as positions
    std::vector<int64_t> positions;                // what is there when they arrive
    bool drafts, gone;
};
constexpr int64_t kUnwritten = INT64_MIN;

// A capturer, its model, and what the caller knows of both.
struct Engine {
    std::unique_ptr<rig::Device> device = std::make_unique<rig::Device>();  // where its tensors are
    routecap_capturer *capturer = nullptr;
    model::ShapePtr shape;
    uint32_t rows = 0;
    std::unique_ptr<model::Sink> sink;
    std::unique_ptr<model::Capturer> model;
    std::vector<int32_t> map, provenance;  // what its configuration refers to
    std::vector<uint32_t> of_layers, k_of_layers, least_of_layers, visits;
    routecap_config config;
    routecap_store_config store_config;
    routecap_store *store = nullptr;
    model::StorePtr blocks;  // and its model
    std::map<routecap_request, RequestPtr> requests;
    std::vector<routecap_request> gone;                         // handles that were given back
    std::vector<std::pair<routecap_request, uint64_t>> drafts;  // requests and tickets
    uint64_t tag = 1;
    bool files_in_begin = false;  // where too many are in flight
    bool later = false;           // its rows arrive later
    std::vector<Coming> coming;
};

class World {
public:
    explicit World(Bytes &in) : in_(in) {}

    void run() {
        for (uint64_t n = 1 + in_.below(2); n > 0; n--) create();
        while (!in_.empty()) one();
        finish_all();
    }

private:
    // ---- Capturers

    void create() {
        auto shape = std::make_shared<model::Shape>();
        const uint64_t columns = in_.number(1);
        constexpr uint32_t kColumns[] = {1, 2, 4, 8, 3};
        shape->k = kColumns[columns % 5];
        const bool rules = columns / 5 % 3 == 2;  // whether layers have their own k, and visits
        constexpr int32_t kWeights[] = {
            0, 0, 0, 0, 0, 0, ROUTECAP_DTYPE_F32, ROUTECAP_DTYPE_F16, ROUTECAP_DTYPE_BF16};
        shape->weights = kWeights[columns / 15 % 9];
        const uint32_t layers = in_.pick({1u, 2u, 3u, 9u}),
                       experts = std::max(shape->k, in_.pick({5u, 8u, 256u, 257u, 1000u}));
        int32_t index = 0;
        const bool odd = in_.chance(64);
        for (uint32_t l = 0; l < layers; l++, index++) {
            if (odd) index += static_cast<int32_t>(in_.below(3));
            shape->layers.push_back({index,
                                     odd && in_.chance(64)
                                         ? std::max(shape->k, static_cast<uint32_t>(in_.below(300)))
                                         : experts,
                                     odd && in_.chance(64), shape->k, shape->k});
            if (!rules) continue;
            model::Layer &layer = shape->layers.back();
            if (in_.chance(64)) layer.k = 1 + static_cast<uint32_t>(in_.below(shape->k));
            layer.least = static_cast<uint32_t>(in_.below(layer.k + 1));
            if (layer.experts == 256 && in_.chance(128)) layer.experts = 255;
            if (l > 0 && in_.chance(64))  // once more
                index--, layer.index = index, layer.visit = shape->layers[l - 1].visit + 1;
        }
        shape->id_space = in_.chance(16);
        Engine e;
        for (const model::Layer &layer : shape->layers)
            e.map.push_back(layer.index), e.of_layers.push_back(layer.experts),
                e.provenance.push_back(layer.provenance), e.k_of_layers.push_back(layer.k),
                e.least_of_layers.push_back(layer.least), e.visits.push_back(layer.visit);
        e.shape = shape;
        routecap_config &config = e.config;
        SAME_STATUS(ROUTECAP_OK, routecap_config_init(&config, sizeof config));
        config.backend = rig::backend();
        config.layers = layers, config.k = shape->k, config.experts = experts;
        config.rows = e.rows = in_.pick({8u, 16u, 1u, 5u});
        config.slots = in_.pick({0u, 1u, 3u, 8u});
        config.sink_dtype =
            in_.pick({0, ROUTECAP_DTYPE_I16, ROUTECAP_DTYPE_I32, ROUTECAP_DTYPE_I64});
        const uint64_t kind = in_.number(1);
        config.flags = ROUTECAP_CONFIG_MANUAL_PROGRESS |
                       (kind >= 128 ? ROUTECAP_CONFIG_COMPARE : 0) |
                       (kind % 8 < 2 ? 0 : ROUTECAP_CONFIG_LOAD) |
                       (kind % 2 == 1 ? ROUTECAP_CONFIG_MAY_LOSE : 0);
        e.files_in_begin = !rig::on_cuda() && kind % 2 == 0;
        e.later = !rig::on_cuda() && kind / 8 % 8 >= 6;
        config.id_space = shape->id_space;
        config.weights_dtype = shape->weights;
        config.max_requests = in_.pick({0u, 0u, 3u, 6u});
        if (odd || rules)
            config.layer_map = e.map.data(), config.layer_experts = e.of_layers.data(),
            config.layer_provenance = e.provenance.data();
        if (rules)
            config.layer_k = e.k_of_layers.data(), config.layer_min_k = e.least_of_layers.data(),
            config.layer_visit = e.visits.data();
        SAME_STATUS(ROUTECAP_OK, routecap_capturer_create(&config, &e.capturer));
        e.sink = std::make_unique<model::Sink>(shape, e.rows);
        e.model = std::make_unique<model::Capturer>(
            shape, config.slots != 0 ? config.slots : 2, config.flags,
            config.max_requests != 0 ? config.max_requests : 65536);
        routecap_store_config &store = e.store_config;
        SAME_STATUS(ROUTECAP_OK, routecap_store_config_init(&store, sizeof store));
        store.block_rows = in_.pick({1u, 2u, 3u, 16u}), store.key_bytes = 8;
        const uint64_t sort = in_.number(1);
        store.flags = sort + 100 > 255 ? ROUTECAP_STORE_SLOT_KEYS : 0;
        e.blocks = std::make_shared<model::Store>(
            model::Store{.slots = store.flags != 0, .block_rows = store.block_rows});
        store.budget_bytes = 64 << 20;
        SAME_STATUS(ROUTECAP_OK, routecap_store_create(&e.store_config, &e.config, &e.store));
        engines_.push_back(std::move(e));
        open();
    }

    // A store may end at any time.
    void free_store(Engine &e) { routecap_store_free(std::exchange(e.store, nullptr)); }

    void finish_all() {
        for (Engine &e : engines_) check_blocks(e);
        if (in_.chance(128))
            for (Engine &e : engines_) free_store(e);
        if (in_.chance(128)) {  // routings outlive the capturer, whose end makes them ready
            destroy();
            check_routings();
            free_routings();
            return;
        }
        for (Engine &e : engines_) {
            progress(e);
            for (const auto &[handle, r] : e.requests) {
                model::Routing all;
                const int32_t status = e.model->read(r, 0, ROUTECAP_ROWS_ALL, false, all);
                routecap_routing *routing = nullptr;
                SAME_STATUS(status,
                            routecap_request_extract(e.capturer, handle, 0, ROUTECAP_ROWS_ALL,
                                                     ROUTECAP_EXTRACT_COPY, 0, &routing));
                check::routing(routing, all);
                routecap_routing_free(routing);
            }
        }
        check_routings();
        free_routings();
        for (Engine &e : engines_) {
            for (const auto &[handle, r] : e.requests)
                SAME_STATUS(ROUTECAP_OK, routecap_request_close(e.capturer, handle)),
                    e.model->close(r);
            e.requests.clear();
            progress(e);
            check_counters(e);
        }
        for (Engine &e : engines_) free_store(e);
        // After all have closed: what was attached shares the pages of another.
        for (Engine &e : engines_) SAME(0, stats(e).bytes_in_use);
        destroy();
    }

    void destroy() {
        for (Engine &e : engines_) {
            e.device->synchronize();
            // Those that have not arrived are lost.
            for (size_t i = e.coming.size(); i-- > 0;)
                if (e.coming[i].drafts || in_.chance(128))
                    arrive(e, i);
                else
                    e.model->lose(e.coming[i].step);
            routecap_capturer_destroy(e.capturer);
            e.model->land();
            free_store(e);
        }
        retired_.insert(retired_.end(), std::make_move_iterator(engines_.begin()),
                        std::make_move_iterator(engines_.end()));
        engines_.clear();
    }

    // Everything that was issued lands: on a device at some time, on the host at once.
    void progress(Engine &e) {
        arrive_all(e);
        do {
            SAME_STATUS(ROUTECAP_OK, routecap_capturer_progress(e.capturer));
        } while (rig::on_cuda() && stats(e).steps_in_flight > 0);
        e.model->land();
    }

    routecap_stats stats(const Engine &e) {
        routecap_stats s{};
        s.struct_size = sizeof s;
        SAME_STATUS(ROUTECAP_OK, routecap_capturer_stats(e.capturer, &s));
        return s;
    }

    void check_counters(Engine &e) {
        routecap_stats is = stats(e), expected = e.model->stats;
        expected.steps_in_flight = e.model->in_flight();
        expected.bytes_in_use = is.bytes_in_use;  // the model does not know about memory
        expected.bytes_peak = is.bytes_peak;
        expected.bytes_budget = is.bytes_budget;
        std::vector<uint64_t> values;
        vectors::fields(expected, [&](const char *, uint64_t value) { values.push_back(value); });
        auto value = values.begin();
        vectors::fields(is, [&](const char *name, uint64_t counted) {
            if (counted != *value)
                check::fail("stats.%s is %" PRIu64 ", not %" PRIu64, name, counted, *value);
            value++;
        });
        std::vector<routecap_layer_stats> layers(e.shape->cells());
        SAME_STATUS(ROUTECAP_OK, routecap_capturer_layer_stats(e.capturer, layers.data(),
                                                               sizeof layers[0], layers.size()));
        for (size_t l = 0; l < layers.size(); l++)
            if (std::memcmp(&layers[l], &e.model->layer_stats[l], sizeof layers[l]) != 0)
                check::fail("the counters of layer %zu differ", l);
        check_load(e);
    }

    void check_load(Engine &e) {
        const model::Capturer &m = *e.model;
        routecap_load load{};
        load.struct_size = sizeof load;
        if ((m.flags & ROUTECAP_CONFIG_LOAD) == 0) {
            SAME_STATUS(ROUTECAP_ERR_ARGUMENT,
                        routecap_capturer_load(e.capturer, &load, nullptr, 0));
            return;
        }
        check::load(e.capturer, *e.shape, m.load);
    }

    // ---- One operation

    void one() {
        static constexpr void (World::*kOperations[])() = {
            &World::forward,       &World::forward,      &World::forward,  &World::forward,
            &World::progress_any,  &World::progress_any, &World::accept,   &World::accept,
            &World::extract,       &World::extract,      &World::open,     &World::truncate,
            &World::fork,          &World::attach,       &World::finish,   &World::close,
            &World::cut,           &World::merge,        &World::copy,     &World::serialize,
            &World::coverage,      &World::wait,         &World::begin,    &World::record,
            &World::record_layers, &World::write,        &World::snapshot, &World::issue_any,
            &World::discard,       &World::probe,        &World::import,   &World::splice,
            &World::look,          &World::publish,      &World::adopt,    &World::publish,
            &World::adopt,         &World::evict,        &World::retain,   &World::retain,
            &World::release,       &World::publish,      &World::adopt,    &World::advance,
            &World::progress_some, &World::progress_some};
        engine_ = &engines_[in_.below(engines_.size())];
        (this->*kOperations[in_.below(std::size(kOperations))])();
        check_counters(*engine_);
    }

    // A handle: mostly of an open request (then with its model), otherwise one that must not be
    // known.
    std::pair<routecap_request, RequestPtr> any_request() {
        Engine &e = *engine_;
        if (!e.requests.empty() && !in_.chance(10)) {
            auto it = e.requests.begin();
            std::advance(it, static_cast<ptrdiff_t>(in_.below(e.requests.size())));
            return *it;
        }
        const Engine &other = engines_[in_.below(engines_.size())];
        if (&other != &e && !other.requests.empty())
            return {other.requests.begin()->first, nullptr};
        if (!e.gone.empty()) return {e.gone[in_.below(e.gone.size())], nullptr};
        return {0xdead0000beef, nullptr};
    }

    void look() {
        check_routings();
        routecap_layer_stats none{};
        SAME_STATUS(ROUTECAP_ERR_UNKNOWN_LAYER,
                    routecap_capturer_layer_stats(engine_->capturer, &none, sizeof none,
                                                  engine_->shape->cells() + 1));
    }
    void progress_any() { progress(*engine_); }

    void open() {
        Engine &e = engines_.back();
        Engine &target = engine_ != nullptr ? *engine_ : e;
        const uint64_t count = 1 + in_.below(3);
        const routecap_open_options options{
            sizeof options, in_.chance(80) ? ROUTECAP_POLICY_REPLACE : ROUTECAP_POLICY_KEEP};
        std::array<routecap_request, 3> handles{77, 77, 77};
        const bool fits = target.model->room(count);
        SAME_STATUS(fits ? ROUTECAP_OK : ROUTECAP_ERR_TOO_MANY_REQUESTS,
                    routecap_request_open(target.capturer, &options, handles.data(), count));
        for (uint64_t i = 0; i < count; i++) {
            if (fits)
                add(target, handles[i], target.model->open(options.policy));
            else
                SAME(0, handles[i]);
        }
    }

    void add(Engine &e, routecap_request handle, RequestPtr r) {
        if (handle == 0 || !given_out().insert(handle).second)
            check::fail("the handle %llx was given out twice", ull(handle));
        e.requests.emplace(handle, std::move(r));
    }
    // By any capturer of this process, as far back as is remembered.
    static std::unordered_set<routecap_request> &given_out() {
        static std::unordered_set<routecap_request> handles;
        if (handles.size() > 1'000'000) handles.clear();
        return handles;
    }
    void remove(Engine &e, routecap_request handle) {
        e.requests.erase(handle);
        e.gone.push_back(handle);
    }

    // ---- The forward pass

    // The columns of a row of a layer: mostly valid, and for few seeds, so that rows are recomputed
    // alike and not alike.
    std::vector<int64_t> cell(uint32_t layer, uint32_t row, uint8_t seed) const {
        const auto &[index, experts, provenance, k, least, visit] = engine_->shape->layers[layer];
        std::vector<int64_t> ids;
        const uint64_t from = (seed % 4u) * 7919u + row * 31u + layer * 17u;
        const uint32_t used = k - (row + layer + seed % 4u) % (k - least + 1);
        for (uint32_t c = 0; c < k; c++)
            ids.push_back(c < used ? static_cast<int64_t>(
                                         (from + (seed % 8u < 4 ? c : used - 1 - c)) % experts)
                                   : ROUTECAP_NO_EXPERT);
        if (least < k) {
            switch (seed / 8 % 32) {
                case 5: ids[row % k] = ROUTECAP_NO_EXPERT; break;
                case 6:
                    std::fill(ids.begin() + (least > 0 ? least - 1 : 0), ids.end(),
                              ROUTECAP_NO_EXPERT);
                    break;
                default: break;
            }
        }
        switch (seed / 8 % 32) {
            case 1: ids[row % k] = experts; break;
            case 2: ids[row % k] = -1; break;
            case 3: ids.back() = ids.front(); break;
            case 4:
                if (row % 2 == 0) ids.front() = experts;
                break;
            default: break;
        }
        return ids;
    }

    // Its weights: for few seeds too, but otherwise than the ids, so that equal ids have other
    // weights. Some are infinite or no number, also those of no expert.
    std::vector<uint32_t> weights_of(uint32_t layer, uint32_t row, uint8_t seed) const {
        const int32_t dtype = engine_->shape->weights;
        const uint32_t k = engine_->shape->layers[layer].k, kind = seed / 8 % 32;
        const uint32_t mask = dtype == ROUTECAP_DTYPE_F32 ? UINT32_MAX : UINT16_MAX;
        const uint32_t infinity = dtype == ROUTECAP_DTYPE_F32    ? 0x7f800000
                                  : dtype == ROUTECAP_DTYPE_BF16 ? 0x7f80
                                                                 : 0x7c00;
        std::vector<uint32_t> bits;
        for (uint32_t c = 0; c < k; c++) {
            const uint32_t drawn = (seed * 977u + row * 31u + layer * 17u + c) * 0x9e3779b1u;
            bits.push_back(dtype == ROUTECAP_DTYPE_F32 ? drawn : drawn >> 16);
            if (model::is_nan(bits.back(), dtype)) bits.back() &= infinity;
        }
        if (kind == 7) bits[row % k] = infinity;
        if (kind == 8 || kind == 9) bits[row % k] = infinity | 1;
        if (kind == 10) bits[row % k] = mask;
        return bits;
    }
    bool has_weights(uint8_t seed) const {
        return engine_->shape->weights != 0 && seed / 8 % 32 < 28;
    }

    // What the calls' pointers refer to is where the stream's work can read it.
    template <class T>
    void upload(const T *&pointer, size_t count) {
        pointer = static_cast<const T *>(engine_->device->upload(pointer, count * sizeof(T)));
    }
    void upload(const void *&ids, size_t count) {
        ids = engine_->device->upload(ids, count * sizeof(int32_t));
    }

    // ---- Rows that arrive later

    // What the pass of a capturer writes whose rows arrive later: the sink is the model's alone.
    Coming pass() {
        Engine &e = *engine_;
        const auto rows = static_cast<uint32_t>(in_.chance(32) ? in_.below(e.rows + 1) : e.rows);
        const auto layers = static_cast<uint32_t>(e.shape->cells());
        Coming coming{0, rows, {}, {}, nullptr, {}, false, in_.chance(24)};
        e.sink->begin(rows);
        for (uint32_t l = 0; l < layers; l++) {
            const auto seed = static_cast<uint8_t>(in_.number(1));
            for (uint32_t r = 0; r < rows; r++) {
                std::vector<int64_t> ids = cell(l, r, seed);
                std::vector<uint32_t> weights = weights_of(l, r, seed);
                if (seed % 16 == 15)
                    ids.assign(ids.size(), kUnwritten);
                else
                    e.sink->write(l, r, ids, weights);
                ids.resize(e.shape->k, 7);  // columns that the layer has not are not read
                coming.ids.insert(coming.ids.end(), ids.begin(), ids.end());
                weights.resize(e.shape->k, 7);
                coming.weights.insert(coming.weights.end(), weights.begin(), weights.end());
            }
        }
        e.sink->snapshot();
        return coming;
    }

    void arrive_any() {
        if (Engine &e = *engine_; !e.coming.empty()) arrive(e, in_.below(e.coming.size()));
    }
    void arrive(Engine &e, size_t i) {
        const Coming c = std::move(e.coming[i]);
        e.coming.erase(e.coming.begin() + static_cast<ptrdiff_t>(i));
        check::trace("  %u rows of step %llu%s\n", c.rows, ull(c.step), c.gone ? ", lost" : "");
        if (c.gone)
            return SAME_STATUS(ROUTECAP_OK, routecap_step_arrive(e.capturer, c.step, nullptr));
        if (c.memory != nullptr) *c.memory = c.positions;
        const uint32_t k = e.shape->k;
        const size_t layers = e.shape->cells(), room = c.rows + in_.below(2);
        routecap_sink sink{};
        sink.struct_size = sizeof sink;
        sink.dtype = in_.pick({ROUTECAP_DTYPE_I16, ROUTECAP_DTYPE_I32, ROUTECAP_DTYPE_I64});
        sink.rows = c.rows, sink.k = k;
        const bool rows_first = in_.chance(128);
        sink.row_stride = static_cast<int64_t>(rows_first ? layers * k : k);
        sink.layer_stride = static_cast<int64_t>(rows_first || room == 0 ? k : room * k);
        const size_t element = model::element_bytes(sink.dtype);
        std::vector<uint8_t> memory(layers * room * k * element, 0x80);
        for (size_t n = 0; n < c.ids.size(); n++) {
            const size_t layer = n / k / c.rows, row = n / k % c.rows;
            const size_t at = layer * static_cast<size_t>(sink.layer_stride) +
                              row * static_cast<size_t>(sink.row_stride) + n % k;
            if (c.ids[n] != kUnwritten) std::memcpy(&memory[at * element], &c.ids[n], element);
        }
        sink.ids = memory.data();
        const size_t weight = model::element_bytes(e.shape->weights);
        std::vector<uint8_t> weights(layers * room * k * weight, 0xff);
        for (size_t n = 0; n < c.weights.size(); n++) {
            const size_t layer = n / k / c.rows, row = n / k % c.rows;
            const size_t at = layer * static_cast<size_t>(sink.layer_stride) +
                              row * static_cast<size_t>(sink.row_stride) + n % k;
            std::memcpy(&weights[at * weight], &c.weights[n], weight);
        }
        if (e.shape->weights != 0 && !weights.empty()) {
            sink.weights = weights.data(), sink.weights_dtype = e.shape->weights;
            sink.weights_bytes = weights.size();
        }
        SAME_STATUS(ROUTECAP_OK, routecap_step_arrive(e.capturer, c.step, &sink));
        if (in_.chance(32))  // nothing happens
            SAME_STATUS(ROUTECAP_OK, routecap_step_arrive(e.capturer, c.step, nullptr));
    }
    // What is filed are the steps before the first that is on its way. Returns that.
    uint64_t file_arrived(Engine &e) {
        uint64_t first = UINT64_MAX;
        for (const Coming &c : e.coming) first = std::min(first, c.step);
        SAME_STATUS(ROUTECAP_OK, routecap_capturer_progress(e.capturer));
        e.model->land(first);
        return first;
    }
    // Afterwards every row that has landed and is settled can be read, and no other.
    void progress_some() {
        Engine &e = *engine_;
        if (!e.later) return progress(e);
        for (uint64_t n = in_.below(e.coming.size() + 1); n > 0; n--)
            arrive(e, in_.below(e.coming.size()));
        file_arrived(e);
    }
    // In any order.
    void arrive_all(Engine &e) {
        while (!e.coming.empty()) {
            arrive(e, in_.below(e.coming.size()));
            if (e.coming.empty() || !in_.chance(64)) continue;
            const uint64_t first = file_arrived(e);
            uint64_t waiting = 0;
            for (uint64_t step = first; step <= e.model->stats.steps_issued; step++) {
                SAME_STATUS(e.model->poll(step), routecap_step_poll(e.capturer, step));
                waiting += e.model->poll(step) == ROUTECAP_PENDING;
            }
            SAME(waiting, stats(e).steps_in_flight);
        }
    }

    void begin() {
        if (engine_->later) {
            if (engine_->model->stats.steps_issued > 0)
                SAME_STATUS(ROUTECAP_ERR_STATE, routecap_step_begin(engine_->capturer, 1, nullptr));
            return;
        }
        begin(in_.chance(16) ? static_cast<uint32_t>(in_.below(engine_->rows + 3)) : engine_->rows);
    }
    void begin(uint32_t rows) {
        Engine &e = *engine_;
        const int32_t status = e.sink->begin(rows);
        SAME_STATUS(status, routecap_step_begin(e.capturer, rows, e.device->stream()));
        if (status != ROUTECAP_OK) return;
        const uint64_t landed = e.model->stats.steps_landed;
        const bool exact = e.model->make_room_for_begin(e.files_in_begin);
        SAME(e.model->in_flight() - !exact, stats(e).steps_in_flight);
        if (!exact) SAME(landed + 1, stats(e).steps_landed), progress(e);
    }

    // A source of consecutive rows as I32, and the rest of it from the input. Rarely wrong in one
    // way, which `wrong` says.
    struct Written {
        std::vector<int32_t> ids;
        std::vector<uint8_t> weights{};  // none: they are not given
        routecap_source source{};
        int32_t wrong = ROUTECAP_OK;
    };
    Written written(uint32_t layer, uint32_t first_row, uint32_t rows) {
        Written w;
        const uint8_t seed = static_cast<uint8_t>(in_.number(1));
        const model::Shape &shape = *engine_->shape;
        if (shape.fewer())
            w.source.none = in_.pick({int32_t{ROUTECAP_NO_EXPERT}, int32_t{ROUTECAP_NO_EXPERT}, -1,
                                      static_cast<int32_t>(shape.experts()), 0});
        for (uint32_t r = 0; r < rows; r++) {
            std::vector<int64_t> ids = cell(layer < shape.cells() ? layer : 0, first_row + r, seed);
            ids.resize(shape.k, 7);  // columns that the layer has not are not read
            for (int64_t id : ids)
                w.ids.push_back(id == ROUTECAP_NO_EXPERT && w.source.none != 0
                                    ? w.source.none
                                    : static_cast<int32_t>(id));
        }
        for (uint32_t r = 0; has_weights(seed) && r < rows; r++) {
            std::vector<uint32_t> bits =
                weights_of(layer < shape.cells() ? layer : 0, first_row + r, seed);
            bits.resize(shape.k, 7);
            for (const uint32_t weight : bits)
                for (size_t b = 0; b < model::element_bytes(shape.weights); b++)
                    w.weights.push_back(static_cast<uint8_t>(weight >> 8 * b));
        }
        if (shape.fewer() && in_.chance(16)) {  // fewer columns, which not every layer has
            w.source.k_source = 1 + static_cast<uint32_t>(in_.below(shape.k));
            w.source.row_stride = w.source.weights_row_stride = shape.k;
        }
        // Nothing is given where nothing is recorded.
        if (!w.weights.empty()) w.source.weights_dtype = shape.weights;
        w.source.struct_size = sizeof w.source;
        w.source.dtype = ROUTECAP_DTYPE_I32;
        w.source.ids = w.ids.data();
        w.source.rows = rows;
        w.source.first_row = first_row;
        return w;
    }

    void record() {
        if (engine_->later) return arrive_any();
        const uint32_t layer =
            static_cast<uint32_t>(in_.below(engine_->shape->cells() + (in_.chance(8) ? 1 : 0)));
        const uint32_t first = static_cast<uint32_t>(in_.below(engine_->rows)),
                       rows = static_cast<uint32_t>(
                           in_.below(engine_->rows - first + 1 + (in_.chance(8) ? 1 : 0)));
        record(layer, first, rows);
    }
    void record(uint32_t layer, uint32_t first, uint32_t rows) {
        Engine &e = *engine_;
        Written w = written(layer, first, rows);
        std::vector<int32_t> index;
        int32_t live = 0;
        const bool live_rows = in_.chance(16);
        if (in_.chance(16)) {
            for (uint32_t r = 0; r < rows; r++)
                index.push_back(static_cast<int32_t>(in_.below(e.rows + 2)) - 1);
            index.push_back(0);
            w.source.row_index = index.data();
        }
        if (live_rows) live = static_cast<int32_t>(in_.below(rows + 2)), w.source.live_rows = &live;
        const int32_t expected = e.sink->record(
            w.source,
            {{layer, 0, w.source.ids, nullptr, w.weights.empty() ? nullptr : w.weights.data()}});
        upload(w.source.ids, w.ids.size());
        if (!w.weights.empty())
            w.source.weights = e.device->upload(w.weights.data(), w.weights.size());
        upload(w.source.row_index, index.size());
        upload(w.source.live_rows, 1);
        SAME_STATUS(expected,
                    routecap_layer_record(e.capturer, layer, &w.source, e.device->stream()));
    }

    void record_layers() {
        if (engine_->later) return arrive_any();
        Engine &e = *engine_;
        const uint32_t first = static_cast<uint32_t>(in_.below(e.rows)),
                       rows = static_cast<uint32_t>(in_.below(e.rows - first + 1));
        Written w = written(0, first, rows);
        std::vector<routecap_layer_source> layers;
        for (uint32_t l = 0; l < e.shape->cells(); l++)
            if (!in_.chance(64)) layers.push_back({l, 0, w.ids.data(), nullptr, nullptr});
        const bool twice = !layers.empty() && in_.chance(8);
        if (twice) layers.push_back(layers.front());
        if (layers.empty()) layers.push_back({0, 0, w.ids.data(), nullptr, nullptr});
        // Every other layer has no weights, if there are several.
        for (size_t i = 0; !w.weights.empty() && i < layers.size(); i += 2)
            layers[i].weights = w.weights.data();
        w.source.ids = nullptr;
        const int32_t expected = twice && layers.size() > e.shape->cells()
                                     ? ROUTECAP_ERR_UNKNOWN_LAYER
                                 : twice ? ROUTECAP_ERR_ARGUMENT
                                         : e.sink->record(w.source, layers);
        for (routecap_layer_source &given : layers) {
            upload(given.ids, w.ids.size());
            if (given.weights != nullptr)
                given.weights = e.device->upload(given.weights, w.weights.size());
        }
        SAME_STATUS(expected,
                    routecap_layers_record(e.capturer, &w.source, layers.data(), sizeof layers[0],
                                           layers.size(), e.device->stream()));
    }

    // What a router does that was given the sink's address. Rows written before are left alone, and
    // so is a sink that nobody began.
    void write() {
        if (engine_->later) return arrive_any();
        Engine &e = *engine_;
        const uint32_t layer = static_cast<uint32_t>(in_.below(e.shape->cells())),
                       row = static_cast<uint32_t>(in_.below(e.rows));
        const uint8_t seed = static_cast<uint8_t>(in_.number(1));
        routecap_sink sink{};
        sink.struct_size = sizeof sink;
        SAME_STATUS(ROUTECAP_OK, routecap_sink_layer(e.capturer, layer, &sink));
        if (!e.sink->writable(layer, row)) return;
        const std::vector<int64_t> ids = cell(layer, row, seed);
        const size_t element = model::element_bytes(sink.dtype);
        std::vector<uint8_t> bytes(sink.k * element);
        for (uint32_t c = 0; c < sink.k; c++) std::memcpy(&bytes[c * element], &ids[c], element);
        const size_t row_stride =
            static_cast<size_t>(sink.row_stride != 0 ? sink.row_stride : sink.k) * element;
        e.device->write(static_cast<uint8_t *>(sink.ids) + row * row_stride, bytes.data(),
                        bytes.size());
        SAME(e.shape->weights != 0, sink.weights != nullptr);
        SAME(e.shape->weights, sink.weights_dtype);
        if (!has_weights(seed)) return e.sink->write(layer, row, ids);
        const std::vector<uint32_t> weights = weights_of(layer, row, seed);
        const size_t weight = model::element_bytes(e.shape->weights);
        std::vector<uint8_t> bits(sink.k * weight);
        for (uint32_t c = 0; c < sink.k; c++) std::memcpy(&bits[c * weight], &weights[c], weight);
        e.device->write(static_cast<uint8_t *>(sink.weights) + row * row_stride / element * weight,
                        bits.data(), bits.size());
        e.sink->write(layer, row, ids, weights);
    }

    void snapshot() {
        if (engine_->later) return arrive_any();
        SAME_STATUS(ROUTECAP_OK,
                    routecap_step_snapshot(engine_->capturer, engine_->device->stream()));
        engine_->sink->snapshot();
    }

    void discard() {
        Engine &e = *engine_;
        SAME_STATUS(ROUTECAP_OK, routecap_step_discard(e.capturer, e.device->stream()));
        e.sink->take();
    }

    void probe() {
        if (engine_->later) return arrive_any();
        Engine &e = *engine_;
        std::vector<routecap_layer_probe> expected(in_.chance(8) ? e.shape->cells() + 1
                                                                 : in_.below(e.shape->cells() + 1));
        std::vector<routecap_layer_probe> got(expected.size() + 1);
        const uint32_t rows = static_cast<uint32_t>(in_.below(e.rows + 1));
        const int32_t status = e.sink->probe(rows, expected);
        SAME_STATUS(status, routecap_capturer_probe(e.capturer, rows, got.data(), sizeof got[0],
                                                    expected.size(), e.device->stream()));
        for (size_t l = 0; status >= 0 && l < expected.size(); l++)
            if (std::memcmp(&expected[l], &got[l], sizeof got[l]) != 0)
                check::fail("probing layer %zu found %u instead of %u", l, got[l].found,
                            expected[l].found);
    }

    // A whole pass, with what may be forgotten in it.
    void forward() {
        if (engine_->later) return issue(false);
        const uint8_t forgets = static_cast<uint8_t>(in_.number(1));
        if (forgets % 16 != 1) begin();
        for (uint32_t l = 0; l < engine_->shape->cells(); l++)
            if (forgets % 16 != 2 || l != forgets / 16 % engine_->shape->cells())
                record(l, 0, engine_->rows);
        const bool snapshots = forgets % 16 != 3;
        if (snapshots) snapshot();
        issue(snapshots == (forgets % 16 == 4));
    }

    void issue_any() { issue(!engine_->later && in_.chance(64)); }

    uint64_t position_in(const RequestPtr &r) {
        const uint64_t length = r != nullptr ? r->length() : 0;
        switch (in_.below(8)) {
            case 0: return in_.below(length + 6);
            case 1: return std::min(kFarthest - 20, length + in_.below(8));
            case 2: return 248 + in_.below(16);  // where a page ends
            case 3: return in_.chance(32) ? kFarthest - 20 : std::min(kFarthest - 20, length);
            default: return std::min(kFarthest - 20, length);
        }
    }

    // The next, which may be one too many.
    void issue(bool makes) {
        Engine &e = *engine_;
        std::vector<routecap_span> given;
        std::vector<model::Span> spans;
        std::vector<int64_t> positions(e.rows, -1);
        std::map<RequestPtr, std::vector<std::pair<uint64_t, uint64_t>>> settled;
        bool overlap = false, device_positions = false, conflict = false;
        const bool shares = in_.chance(220);  // whether all spans say so
        uint32_t row = 0;
        for (uint64_t n = in_.below(5); n > 0 && row < e.rows; n--) {
            const auto [handle, r] = any_request();
            routecap_span s{};
            s.request = handle;
            s.position = position_in(r);
            s.sink_row = row;
            s.rows = 1 + static_cast<uint32_t>(
                             in_.below(std::min<uint64_t>(e.rows - row, in_.chance(64) ? 16 : 3)));
            const uint64_t drawn = in_.below(64), kind = drawn % 16, phase = drawn / 16;
            if (kind % 4 == 3) s.flags |= ROUTECAP_SPAN_SPECULATIVE;
            if (kind / 4 == 3) {
                s.flags |= ROUTECAP_SPAN_DEVICE_POSITIONS;
                s.position_end = s.position + 1 + in_.below(s.rows + 3);
                device_positions = true;
                for (uint32_t i = row; i < row + s.rows; i++)
                    if (positions[i] < 0)
                        positions[i] = static_cast<int64_t>(s.position + in_.below(s.rows + 4)) -
                                       (in_.chance(8) ? 1 : 0);
                for (uint32_t i = row; i < row + s.rows; i++)
                    positions[i] = std::max(positions[i], int64_t{0});
            }
            if (s.flags == 0 && r != nullptr) {
                for (const auto &[first, end] : settled[r])
                    overlap |= std::max(first, s.position) < std::min(end, s.position + s.rows);
                settled[r].emplace_back(s.position, s.position + s.rows);
            }
            constexpr uint32_t kPhases[] = {0, ROUTECAP_SPAN_PREFILL, ROUTECAP_SPAN_DECODE,
                                            ROUTECAP_SPAN_UNCOUNTED};
            s.flags |= kPhases[phase];
            given.push_back(s);
            if (!in_.chance(26)) row += s.rows;  // else the next span names the same sink rows
        }
        // In any order of sink rows, which mostly is the right one.
        if (in_.chance(24)) std::reverse(given.begin(), given.end());
        const auto meet = [](const routecap_span &a, const routecap_span &b) {
            return &a != &b && std::max(a.sink_row, b.sink_row) <
                                   std::min(a.sink_row + a.rows, b.sink_row + b.rows);
        };
        for (routecap_span &s : given) {
            const bool shared = std::any_of(given.begin(), given.end(),
                                            [&](const routecap_span &o) { return meet(s, o); });
            if (shared && (shares || in_.chance(128))) s.flags |= ROUTECAP_SPAN_SHARED;
            conflict |= shared && (s.flags & ROUTECAP_SPAN_SHARED) == 0;
        }
        for (const routecap_span &s : given) {
            const auto open = e.requests.find(s.request);
            spans.push_back({open != e.requests.end() ? open->second : nullptr, s});
        }

        routecap_issue_options options{};
        options.struct_size = sizeof options;
        options.snapshot = e.later ? ROUTECAP_SNAPSHOT_LATER
                           : makes ? ROUTECAP_SNAPSHOT_MAKE
                                   : ROUTECAP_SNAPSHOT_TAKEN;
        const uint64_t tag = in_.chance(24) ? e.tag / 2 : e.tag;  // of older weights, too
        options.tag = tag;
        if (device_positions || in_.chance(16))
            options.positions = positions.data(), options.positions_dtype = ROUTECAP_DTYPE_I64;
        int32_t wrong = conflict  ? ROUTECAP_ERR_CONFLICT
                        : overlap ? ROUTECAP_ERR_OVERLAP
                                  : ROUTECAP_OK;
        if (!given.empty() && wrong == ROUTECAP_OK && in_.chance(12)) {  // one thing wrong
            routecap_span &s = given[in_.below(given.size())];
            wrong = ROUTECAP_ERR_ARGUMENT;
            switch (in_.below(9)) {
                case 0: s.rows = 0; break;
                case 1:
                    s.flags |= in_.chance(128) ? 64 : ROUTECAP_SPAN_PREFILL | ROUTECAP_SPAN_DECODE;
                    break;
                case 2: s.reserved = 1; break;
                case 3: s.sink_row = e.rows, wrong = ROUTECAP_ERR_CAPACITY; break;
                case 4: s.rows = e.rows + 1, s.sink_row = 0, wrong = ROUTECAP_ERR_CAPACITY; break;
                case 5:
                    s.position = ROUTECAP_MAX_POSITION,
                    s.position_end =
                        (s.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0 ? s.position + 1 : 0;
                    break;
                case 6:
                    s.flags |= ROUTECAP_SPAN_DEVICE_POSITIONS, s.position_end = s.position;
                    break;
                case 7: options.snapshot = 3; break;
                default:
                    options.positions = positions.data(),
                    options.positions_dtype = ROUTECAP_DTYPE_U8, wrong = ROUTECAP_ERR_DTYPE;
                    break;
            }
        }
        std::vector<int32_t> status(given.size() + 1, 77);
        routecap_step step = 77;
        const bool asks = in_.chance(200);
        if (wrong != ROUTECAP_OK) {
            SAME_STATUS(wrong,
                        routecap_step_issue(e.capturer, given.data(), sizeof given[0], given.size(),
                                            &options, asks ? status.data() : nullptr, &step,
                                            e.device->stream()));
            SAME(0, step);
            return;
        }
        for (const routecap_span &s : given) {
            check::trace("  span of %llx: sink rows %u+%u, position %llu, flags %u", ull(s.request),
                         s.sink_row, s.rows, ull(s.position), s.flags);
            for (uint32_t i = 0; (s.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0 && i < s.rows; i++)
                check::trace("%s%lld", i == 0 ? "..: " : ",",
                             static_cast<long long>(positions[s.sink_row + i]));
            check::trace(" to %llu\n", ull(s.position_end));
        }
        if (makes) e.sink->snapshot();
        Coming coming = e.later ? pass() : Coming{};
        const bool lost = e.model->full() && !given.empty();
        const model::Sink::Taken taken = e.sink->take();
        uint64_t ticket = 0;
        const int32_t expected = e.model->issue(spans, positions, tag, taken, lost, ticket);
        if (options.positions != nullptr && e.later) {
            coming.memory = std::make_unique<std::vector<int64_t>>(positions.size(), -1);
            options.positions = coming.memory->data();
        } else if (options.positions != nullptr) {
            options.positions =
                e.device->upload(positions.data(), positions.size() * sizeof positions[0]);
        }
        SAME_STATUS(expected, routecap_step_issue(
                                  e.capturer, given.data(), sizeof given[0], given.size(), &options,
                                  asks ? status.data() : nullptr, &step, e.device->stream()));
        SAME(ticket, step);
        for (size_t i = 0; asks && i < spans.size(); i++)
            SAME(spans[i].request != nullptr ? ROUTECAP_OK : ROUTECAP_ERR_UNKNOWN_REQUEST,
                 status[i]);
        SAME_STATUS(e.model->poll(ticket), routecap_step_poll(e.capturer, step));
        SAME_STATUS(ROUTECAP_ERR_UNKNOWN_STEP, routecap_step_poll(e.capturer, step + 1));
        for (const model::Span &s : spans)
            if (s.request != nullptr && (s.span.flags & ROUTECAP_SPAN_SPECULATIVE) != 0)
                e.drafts.emplace_back(s.span.request, ticket), coming.drafts = true;
        if (e.later && e.model->poll(ticket) == ROUTECAP_PENDING) {
            coming.step = ticket, coming.positions = positions;
            coming.gone &= !coming.drafts;
            if (coming.gone) e.model->lose(ticket);
            e.coming.push_back(std::move(coming));
        }
        e.tag += in_.chance(80);
    }

    void wait() {
        Engine &e = *engine_;
        if (in_.chance(128) && !routings_.empty()) {
            const Held held = any_routing();
            const auto owns = [&](const Engine &o) {
                return o.model.get() == held.expected->pending;
            };
            const auto owner = std::find_if(engines_.begin(), engines_.end(), owns);
            if (owner != engines_.end()) arrive_all(*owner), owner->model->land();
            SAME_STATUS(held.expected->status(), routecap_routing_wait(held.routing, timeout()));
            if (owner != engines_.end()) progress(*owner);
            return;
        }
        const uint64_t step = in_.below(e.model->stats.steps_issued + 2);
        uint64_t conflicting = 77;
        const bool lands = e.model->poll(step) == ROUTECAP_PENDING;
        if (lands) arrive_all(e), e.model->land();
        const int32_t expected = e.model->poll(step);
        SAME_STATUS(expected, routecap_step_finalize(e.capturer, step, timeout(), &conflicting));
        SAME(expected < 0 ? 77 : e.model->conflicting(step), conflicting);
        if (lands) progress(e);
    }
    // Any for the host, where a call that waits lands everything.
    int64_t timeout() {
        const int64_t given = in_.pick({int64_t{0}, int64_t{-1}, int64_t{1000}});
        return rig::on_cuda() ? -1 : given;
    }

    // ---- Requests

    void accept() {
        Engine &e = *engine_;
        std::array<routecap_accept_item, 3> items{};
        std::array<std::vector<uint32_t>, 3> lists;
        const bool batch = in_.chance(64);
        const size_t count = batch ? in_.below(4) : 1;
        std::vector<int32_t> expected;
        for (size_t i = 0; i < count; i++) {
            auto [handle, r] = any_request();
            uint64_t step = in_.below(e.model->stats.steps_issued + 2);
            if (!e.drafts.empty() && !in_.chance(16)) {
                std::tie(handle, step) =
                    e.drafts[e.drafts.size() - 1 -
                             in_.below(std::min<uint64_t>(e.drafts.size(), 256))];
                const auto open = e.requests.find(handle);
                r = open != e.requests.end() ? open->second : nullptr;
            }
            items[i].request = handle, items[i].step = step;
            if (in_.chance(128)) {
                items[i].count = in_.below(5);
            } else {
                for (uint32_t k = 0; k < 8; k++)
                    if (in_.chance(100)) lists[i].push_back(k);
                lists[i].reserve(1);
                items[i].rows = lists[i].data(), items[i].count = lists[i].size();
            }
            items[i].status = 77;
            check::trace("  %llx: %llu rows of step %llu%s", ull(handle), ull(items[i].count),
                         ull(step), items[i].rows != nullptr ? ":" : "\n");
            for (uint64_t k = 0; items[i].rows != nullptr && k < items[i].count; k++)
                check::trace(" %u%s", items[i].rows[k], k + 1 == items[i].count ? "\n" : "");
            expected.push_back(r != nullptr
                                   ? e.model->accept(r, step, items[i].rows, items[i].count)
                                   : ROUTECAP_ERR_UNKNOWN_REQUEST);
        }
        if (!batch) {
            SAME_STATUS(expected[0],
                        routecap_request_accept(e.capturer, items[0].request, items[0].step,
                                                items[0].rows, items[0].count));
            return;
        }
        SAME_STATUS(of_batch(expected), routecap_request_accept_batch(e.capturer, items.data(),
                                                                      sizeof items[0], count));
        for (size_t i = 0; i < count; i++) SAME(expected[i], items[i].status);
    }

    static int32_t of_batch(const std::vector<int32_t> &statuses) {
        return std::all_of(statuses.begin(), statuses.end(),
                           [](int32_t s) { return s == ROUTECAP_OK; })
                   ? ROUTECAP_OK
                   : ROUTECAP_PARTIAL;
    }

    void truncate() {
        const auto [handle, r] = any_request();
        const uint64_t rows = in_.below((r != nullptr ? r->length() : 0) + 3);
        check::trace("  %llx to %llu rows\n", ull(handle), ull(rows));
        SAME_STATUS(r != nullptr ? ROUTECAP_OK : ROUTECAP_ERR_UNKNOWN_REQUEST,
                    routecap_request_truncate(engine_->capturer, handle, rows));
        if (r != nullptr) engine_->model->truncate(r, rows);
    }

    void fork() {
        Engine &e = *engine_;
        const auto [handle, r] = any_request();
        const uint64_t rows =
            in_.chance(64) ? ROUTECAP_ROWS_ALL : in_.below((r != nullptr ? r->length() : 0) + 2);
        check::trace("  %llu rows of %llx\n", ull(rows), ull(handle));
        RequestPtr young;
        routecap_request child = 77;
        const int32_t expected =
            r == nullptr ? ROUTECAP_ERR_UNKNOWN_REQUEST : e.model->fork(r, rows, young);
        SAME_STATUS(expected, routecap_request_fork(e.capturer, handle, rows, &child));
        if (expected == ROUTECAP_OK)
            add(e, child, young);
        else
            SAME(0, child);
    }

    void attach() {
        if (routings_.empty()) return;
        Engine &e = *engine_;
        const auto [handle, r] = any_request();
        const Held held = any_routing();
        if (held.expected->end() > kFarthest) return;
        const uint64_t rows =
            in_.chance(64) ? ROUTECAP_ROWS_ALL : in_.below(held.expected->end() + 2);
        if (r == nullptr) return;
        check::trace("  %llx up to %llu: rows %llu+%llu%s\n", ull(handle), ull(rows),
                     ull(held.expected->first), ull(held.expected->rows),
                     held.expected->pending != nullptr ? ", pending" : "");
        SAME_STATUS(e.model->attach(r, held.expected, rows),
                    routecap_request_attach(e.capturer, handle, held.routing, rows));
    }

    // Few keys, so that they meet; each once.
    std::vector<uint64_t> some_keys() {
        std::vector<uint64_t> keys;
        for (uint64_t n = in_.below(5); n > 0; n--)
            if (const uint64_t key = in_.below(12);
                std::find(keys.begin(), keys.end(), key) == keys.end())
                keys.push_back(key);
        return keys;
    }

    static void trace_keys(const std::vector<uint64_t> &keys) {
        for (const uint64_t key : keys) check::trace(" %llu", ull(key));
        check::trace("\n");
    }

    // Mostly the one that the store is at.
    uint64_t any_generation() {
        const uint64_t now = engine_->blocks->generation, other = in_.below(64);
        return other == 0 ? now + 1 : other == 1 ? now / 2 : now;
    }

    void publish() {
        Engine &e = *engine_;
        auto [handle, r] = any_request();
        const std::vector<uint64_t> keys = some_keys();
        uint64_t first = in_.below((r != nullptr ? r->length() : 0) + 2);
        const uint64_t generation = any_generation();
        // Often the newest drafts.
        if (const auto open = e.requests.find(e.drafts.empty() ? 0 : e.drafts.back().first);
            first % 2 == 1 && open != e.requests.end())
            std::tie(handle, r) = *open, first = r->length();
        check::trace("  %zu blocks of %llx from row %llu in generation %llu:", keys.size(),
                     ull(handle), ull(first), ull(generation));
        trace_keys(keys);
        SAME_STATUS(r == nullptr ? ROUTECAP_ERR_UNKNOWN_REQUEST
                                 : e.model->publish(r, e.blocks, first, keys, generation),
                    routecap_request_publish(e.capturer, handle, e.store, first, keys.data(),
                                             keys.size(), generation));
    }

    void adopt() {
        Engine &e = *engine_;
        const auto [handle, r] = any_request();
        const std::vector<uint64_t> keys = some_keys();
        const uint64_t first = in_.below((r != nullptr ? r->length() : 0) + 2),
                       generation = any_generation();
        if (first + keys.size() * e.blocks->block_rows > kFarthest) return;
        check::trace("  %zu blocks to %llx from row %llu in generation %llu:", keys.size(),
                     ull(handle), ull(first), ull(generation));
        trace_keys(keys);
        routecap_adoption found{}, expected{};
        found.struct_size = expected.struct_size = sizeof found;
        SAME_STATUS(r == nullptr ? ROUTECAP_ERR_UNKNOWN_REQUEST
                                 : e.model->adopt(r, *e.blocks, first, keys, generation, expected),
                    routecap_request_adopt(e.capturer, handle, e.store, first, keys.data(),
                                           keys.size(), generation, &found));
        if (std::memcmp(&found, &expected, sizeof found) != 0)
            check::fail("found %llu blocks, expected %llu", ull(found.found), ull(expected.found));
    }

    // The weights change, and mostly the tag of the steps.
    void advance() {
        Engine &e = *engine_;
        const uint64_t generation = e.tag - in_.below(2) + in_.below(3);
        SAME_STATUS(ROUTECAP_OK, routecap_store_advance(e.store, generation));
        e.blocks->generation = std::max(e.blocks->generation, generation);
        if (in_.chance(200)) e.tag = std::max(e.tag, generation);
        check_blocks(e);
    }

    void evict() {
        Engine &e = *engine_;
        const std::vector<uint64_t> keys = some_keys();
        for (uint64_t key : keys) {
            check::trace("  evict %llu: %d\n", ull(key), e.blocks->why(key, e.blocks->generation));
            e.blocks->evict(key);
        }
        SAME_STATUS(ROUTECAP_OK, routecap_store_evict(e.store, keys.data(), keys.size(), nullptr));
        check_blocks(e);
    }

    void retain() {
        Engine &e = *engine_;
        const std::vector<uint64_t> keys = some_keys();
        std::vector<int32_t> reasons(keys.size() + 1, 77);
        SAME_STATUS(ROUTECAP_OK,
                    routecap_store_retain(e.store, keys.data(), keys.size(), reasons.data()));
        for (size_t i = 0; i < keys.size(); i++) SAME(e.blocks->retain(keys[i]), reasons[i]);
        SAME(77, reasons.back());
    }

    void release() {
        Engine &e = *engine_;
        std::vector<uint64_t> keys = some_keys();
        for (const auto &[key, block] : e.blocks->blocks)
            if (block->retained > 0 && in_.chance(128)) keys.push_back(key);
        for (const uint64_t key : keys) e.blocks->release(key);
        SAME_STATUS(ROUTECAP_OK, routecap_store_release(e.store, keys.data(), keys.size()));
        check_blocks(e);
    }

    void check_blocks(Engine &e) {
        progress(e);
        routecap_store_counts counts{};
        counts.struct_size = sizeof counts;
        SAME_STATUS(ROUTECAP_OK, routecap_store_stats(e.store, &counts));
        const routecap_store_counts &m = e.blocks->counts;
        const model::Store::Kept kept = e.blocks->kept();
        SAME(e.blocks->generation, counts.generation);
        SAME(e.blocks->blocks.size(), counts.blocks);
        SAME(kept.in_flight, counts.blocks_in_flight);
        SAME(kept.retained, counts.blocks_retained);
        SAME(m.blocks_replaced, counts.blocks_replaced);
        SAME(m.blocks_published, counts.blocks_published);
        SAME(m.blocks_repeated, counts.blocks_repeated);
        SAME(m.blocks_empty, counts.blocks_empty);
        SAME(m.blocks_mismatched, counts.blocks_mismatched);
        SAME(m.blocks_evicted, counts.blocks_evicted);
        SAME(m.blocks_stale, counts.blocks_stale);
        SAME(m.blocks_adopted, counts.blocks_adopted);
        SAME(m.blocks_absent, counts.blocks_absent);
        SAME(0, counts.blocks_refused);
        for (uint64_t key = 0; key < 13; key++) {
            int32_t reason = -1;
            SAME_STATUS(ROUTECAP_OK, routecap_store_contains(e.store, &key, 1, counts.generation,
                                                             &reason, nullptr));
            SAME(e.blocks->why(key, counts.generation), reason);
        }
    }

    std::pair<uint64_t, uint64_t> range_in(const RequestPtr &r) {
        const uint64_t length = r != nullptr ? r->length() : 0,
                       first = in_.chance(100) ? 0 : in_.below(length + 2);
        return {first, in_.chance(100)  ? ROUTECAP_ROWS_ALL
                       : in_.chance(80) ? ROUTECAP_ROWS_LANDED
                                        : in_.below(length + 3)};
    }

    uint32_t strictness() {
        return in_.pick({0u, 0u, ROUTECAP_READ_STRICT,
                         ROUTECAP_READ_STRICT | ROUTECAP_READ_ALLOW_RECOMPUTED, 0u});
    }

    void extract() {
        Engine &e = *engine_;
        const bool batch = in_.chance(40);
        const size_t count = batch ? in_.below(4) : 1;
        std::array<routecap_extract_item, 3> items{};
        std::vector<int32_t> expected;
        std::vector<model::RoutingPtr> routings;
        for (size_t i = 0; i < count; i++) {
            const auto [handle, r] = any_request();
            const auto [first, rows] = range_in(r);
            const bool wrong = in_.chance(4);
            check::trace("  %llx rows %llu+%llu\n", ull(handle), ull(first), ull(rows));
            items[i] = {
                handle,       first,   rows, static_cast<int32_t>(in_.below(3)) + (wrong ? 3 : 0),
                strictness(), nullptr, 77,   0};
            routings.emplace_back();
            expected.push_back(wrong          ? ROUTECAP_ERR_ARGUMENT
                               : r == nullptr ? ROUTECAP_ERR_UNKNOWN_REQUEST
                                              : e.model->extract(r, first, rows, items[i].mode,
                                                                 items[i].flags, routings.back()));
        }
        if (!batch) {
            items[0].routing = nullptr;
            SAME_STATUS(expected[0],
                        routecap_request_extract(e.capturer, items[0].request, items[0].first,
                                                 items[0].rows, items[0].mode, items[0].flags,
                                                 &items[0].routing));
        } else {
            SAME_STATUS(of_batch(expected), routecap_request_extract_batch(e.capturer, items.data(),
                                                                           sizeof items[0], count));
        }
        for (size_t i = 0; i < count; i++) {
            if (batch) SAME(expected[i], items[i].status);
            SAME(expected[i] >= 0, items[i].routing != nullptr);
            if (expected[i] < 0) continue;
            routecap_view view{};
            view.struct_size = sizeof view;
            SAME_STATUS(ROUTECAP_OK, routecap_routing_view(items[i].routing, &view));
            if (items[i].mode == ROUTECAP_EXTRACT_COPY && view.rows > 0)
                SAME(1, view.segment_count);
            hold(items[i].routing, routings[i]);
        }
    }

    void coverage() {
        Engine &e = *engine_;
        const auto [handle, r] = any_request();
        const auto [first, rows] = range_in(r);
        std::vector<routecap_missing> blocks, got(in_.below(6), {77, 77, 77, 77, 77, 77});
        routecap_coverage covered{};
        covered.struct_size = sizeof covered;
        check::trace("  %llx rows %llu+%llu\n", ull(handle), ull(first), ull(rows));
        model::Routing routing;
        int32_t expected = r == nullptr ? ROUTECAP_ERR_UNKNOWN_REQUEST
                                        : e.model->read(r, first, rows, false, routing);
        if (expected == ROUTECAP_NOT_CAPTURED) expected = ROUTECAP_INCOMPLETE;
        SAME_STATUS(expected, routecap_request_coverage(e.capturer, handle, first, rows, &covered,
                                                        got.data(), sizeof got[0], got.size()));
        if (expected >= 0)
            check::coverage(routing.coverage(r->length(), blocks), blocks, covered, got);
    }

    check::Copy any_copy(const model::Shape &shape) {
        check::Copy c;
        SAME_STATUS(ROUTECAP_OK, routecap_copy_options_init(&c.options, sizeof c.options));
        c.options.dtype =
            in_.pick({ROUTECAP_DTYPE_I32, ROUTECAP_DTYPE_U8, ROUTECAP_DTYPE_I16, ROUTECAP_DTYPE_U16,
                      ROUTECAP_DTYPE_U32, ROUTECAP_DTYPE_I64, ROUTECAP_DTYPE_ID16_BF16, 0});
        c.options.order = in_.pick({ROUTECAP_ORDER_ROW_MAJOR, ROUTECAP_ORDER_LAYER_MAJOR,
                                    ROUTECAP_ORDER_ROW_MAJOR, ROUTECAP_ORDER_LAYER_MAJOR, 2});
        c.options.flags = strictness();
        c.mask = in_.chance(160);
        if (in_.chance(64))
            c.options.first_layer = static_cast<uint32_t>(in_.below(shape.cells() + 1)),
            c.options.layers = static_cast<uint32_t>(in_.below(shape.cells() + 1));
        if (in_.chance(48))
            c.options.row_stride = static_cast<int64_t>(in_.below(64)),
            c.options.layer_stride = static_cast<int64_t>(in_.below(64));
        if (in_.chance(48) && (c.options.flags & ROUTECAP_READ_STRICT) == 0)
            c.options.fill = in_.pick(
                {int64_t{-2}, int64_t{0}, int64_t{shape.experts()}, int64_t{70000}, int64_t{-129}});
        if (shape.fewer() && in_.chance(160))
            c.options.none = in_.pick({int64_t{-1}, int64_t{0}, int64_t{shape.experts()},
                                       int64_t{255}, int64_t{70000}, int64_t{-129}});
        c.asks = in_.chance(16);
        if (in_.chance(16)) c.dst_less = 1;
        if (in_.chance(16)) c.mask_less = 1;
        return c;
    }

    void copy() {
        Engine &e = *engine_;
        if (in_.chance(128)) {
            const auto [handle, r] = any_request();
            const auto [first, rows] = range_in(r);
            const check::Copy c = any_copy(*e.shape);
            model::Routing routing{e.shape};
            const int32_t read = r == nullptr ? ROUTECAP_ERR_UNKNOWN_REQUEST
                                              : e.model->read(r, first, rows, false, routing);
            check::copy(c, read, routing,
                        [&, handle = handle, first = first, rows = rows](
                            const auto *options, void *dst, size_t bytes, uint8_t *mask,
                            size_t mask_bytes, uint64_t *needed) {
                            return routecap_request_extract_into(e.capturer, handle, first, rows,
                                                                 options, dst, bytes, mask,
                                                                 mask_bytes, needed);
                        });
        } else if (!routings_.empty()) {
            const Held held = any_routing();
            const check::Copy c = any_copy(*held.expected->shape);
            check::copy(c, held.expected->pending != nullptr ? ROUTECAP_ERR_NOT_READY : ROUTECAP_OK,
                        *held.expected, [&](auto... arguments) {
                            return routecap_routing_copy_to(held.routing, arguments...);
                        });
        }
    }

    void finish() {
        Engine &e = *engine_;
        const bool batch = in_.chance(64);
        const size_t count = batch ? in_.below(4) : 1;
        std::array<routecap_finish_item, 3> items{};
        std::vector<int32_t> expected;
        std::vector<model::RoutingPtr> routings;
        for (size_t i = 0; i < count; i++) {
            const auto [handle, r] = any_request();
            items[i] = {handle,
                        in_.chance(128) ? ROUTECAP_ROWS_ALL
                        : in_.chance(4) ? ROUTECAP_MAX_POSITION + 1
                                        : in_.below((r != nullptr ? r->length() : 0) + 4),
                        nullptr, 77, 0};
            check::trace("  %llx rows %llu\n", ull(handle), ull(items[i].rows));
            const bool beyond =
                items[i].rows != ROUTECAP_ROWS_ALL && items[i].rows > ROUTECAP_MAX_POSITION;
            // It may be in the batch twice.
            const bool open = r != nullptr && e.requests.count(handle) > 0;
            expected.push_back(!open    ? ROUTECAP_ERR_UNKNOWN_REQUEST
                               : beyond ? ROUTECAP_ERR_OUT_OF_RANGE
                                        : ROUTECAP_OK);
            routings.push_back(expected.back() == ROUTECAP_OK ? e.model->finish(r, items[i].rows)
                                                              : nullptr);
            if (expected.back() == ROUTECAP_OK) remove(e, handle);
        }
        if (!batch)
            SAME_STATUS(expected[0], routecap_request_finish(e.capturer, items[0].request,
                                                             items[0].rows, &items[0].routing));
        else
            SAME_STATUS(of_batch(expected), routecap_request_finish_batch(e.capturer, items.data(),
                                                                          sizeof items[0], count));
        for (size_t i = 0; i < count; i++) {
            if (batch) SAME(expected[i], items[i].status);
            SAME(expected[i] == ROUTECAP_OK, items[i].routing != nullptr);
            if (routings[i] != nullptr) hold(items[i].routing, routings[i]);
        }
    }

    void close() {
        Engine &e = *engine_;
        const bool batch = in_.chance(64);
        const size_t count = batch ? in_.below(4) : 1;
        std::array<routecap_request, 3> handles{};
        std::array<int32_t, 3> status{77, 77, 77};
        std::vector<int32_t> expected;
        for (size_t i = 0; i < count; i++) {
            const auto [handle, r] = any_request();
            handles[i] = in_.chance(16) ? 0 : handle;
            const bool open = handles[i] != 0 && r != nullptr && e.requests.count(handle) > 0;
            expected.push_back(open || handles[i] == 0 ? ROUTECAP_OK
                                                       : ROUTECAP_ERR_UNKNOWN_REQUEST);
            if (open) e.model->close(r), remove(e, handle);
        }
        if (!batch) {
            SAME_STATUS(expected[0], routecap_request_close(e.capturer, handles[0]));
            return;
        }
        const bool asks = in_.chance(128);
        SAME_STATUS(of_batch(expected),
                    routecap_request_close_batch(e.capturer, handles.data(),
                                                 asks ? status.data() : nullptr, count));
        for (size_t i = 0; asks && i < count; i++) SAME(expected[i], status[i]);
    }

    // ---- Routings

    Held any_routing() { return routings_[in_.below(routings_.size())]; }

    void hold(routecap_routing *routing, model::RoutingPtr expected) {
        check::routing(routing, *expected);
        routings_.push_back({routing, std::move(expected)});
        if (routings_.size() < 12) return;
        const size_t i = in_.below(routings_.size());
        routecap_routing_free(routings_[i].routing);
        routings_.erase(routings_.begin() + static_cast<ptrdiff_t>(i));
    }
    void check_routings() {
        for (const Held &held : routings_) check::routing(held.routing, *held.expected);
    }
    void free_routings() {
        for (const Held &held : routings_) routecap_routing_free(held.routing);
        routings_.clear();
    }

    void cut() {
        if (routings_.empty()) return;
        const Held held = any_routing();
        const model::Routing &whole = *held.expected;
        const bool pending = whole.pending != nullptr;
        if (in_.chance(40)) {
            SAME_STATUS(ROUTECAP_OK, routecap_routing_retain(held.routing));
            hold(held.routing, held.expected);
        } else if (in_.chance(128)) {
            const uint64_t prompt = in_.below(whole.end() + 3),
                           generated =
                               in_.chance(128) ? ROUTECAP_ROWS_ALL : in_.below(whole.rows + 2);
            routecap_routing *a = held.routing, *b = held.routing;
            SAME_STATUS(pending ? ROUTECAP_ERR_NOT_READY : ROUTECAP_OK,
                        routecap_routing_split(held.routing, prompt, generated, &a, &b));
            SAME(pending, a == nullptr && b == nullptr);
            if (pending) return;
            const uint64_t middle = std::clamp(prompt, whole.first, whole.end());
            hold(a,
                 std::make_shared<model::Routing>(whole.part(whole.first, middle - whole.first)));
            hold(b, std::make_shared<model::Routing>(
                        whole.part(middle, std::min(generated, whole.end() - middle))));
        } else {
            const uint64_t first = whole.first + in_.below(whole.rows + 2) -
                                   (whole.first > 0 && in_.chance(16) ? 1 : 0);
            const uint64_t rows = in_.chance(64) ? ROUTECAP_ROWS_ALL : in_.below(whole.rows + 2);
            const bool fits = first >= whole.first && first <= whole.end() &&
                              (rows == ROUTECAP_ROWS_ALL || rows <= whole.end() - first);
            routecap_routing *slice = held.routing;
            SAME_STATUS(pending ? ROUTECAP_ERR_NOT_READY
                        : fits  ? ROUTECAP_OK
                                : ROUTECAP_ERR_OUT_OF_RANGE,
                        routecap_routing_slice(held.routing, first, rows, &slice));
            SAME(!pending && fits, slice != nullptr);
            const uint64_t kept = rows == ROUTECAP_ROWS_ALL ? whole.end() - first : rows;
            if (slice != nullptr)
                hold(slice, std::make_shared<model::Routing>(whole.part(first, kept)));
        }
    }

    void merge() {
        if (routings_.empty()) return;
        std::vector<const routecap_routing *> parts;
        std::vector<model::RoutingPtr> expected;
        for (uint64_t n = 1 + in_.below(3); n > 0; n--) {
            const Held held = any_routing();
            parts.push_back(held.routing);
            expected.push_back(held.expected);
        }
        model::RoutingPtr united;
        routecap_routing *merged = nullptr;
        const int32_t status = model::merge(expected, united);
        SAME_STATUS(status, routecap_routing_merge(parts.data(), parts.size(), 0, &merged));
        SAME(status >= 0, merged != nullptr);
        if (merged != nullptr) hold(merged, united);
    }

    // To bytes and back, copied or lent.
    void serialize() {
        if (routings_.empty()) return;
        const Held held = any_routing();
        if (held.expected->pending != nullptr) {
            SAME_STATUS(ROUTECAP_ERR_NOT_READY,
                        routecap_routing_serialize(held.routing, nullptr, 0, nullptr));
            return;
        }
        auto data = std::make_unique<std::vector<uint8_t>>(check::serialized(held.routing));
        routecap_routing *back = nullptr;
        const uint32_t flags = in_.chance(128) ? ROUTECAP_IMPORT_TRUSTED : 0;
        if (in_.chance(128)) {
            SAME_STATUS(held.expected->status(),
                        routecap_routing_deserialize(data->data(), data->size(), flags, nullptr,
                                                     nullptr, &back));
        } else {
            const auto release = [](void *context) {
                delete static_cast<std::vector<uint8_t> *>(context);
            };
            SAME_STATUS(held.expected->status(),
                        routecap_routing_deserialize(data->data(), data->size(), flags, release,
                                                     data.get(), &back));
            static_cast<void>(data.release());  // a sanitizer sees whether it was released
        }
        hold(back, held.expected);
    }

    void import() {
        if (routings_.empty()) return;
        const Held held = any_routing();
        if (held.expected->pending != nullptr) return;
        routecap_view view{};
        view.struct_size = sizeof view;
        SAME_STATUS(ROUTECAP_OK, routecap_routing_view(held.routing, &view));
        routecap_routing *back = nullptr;
        SAME_STATUS(held.expected->status(),
                    routecap_routing_import(&view, 0, nullptr, nullptr, &back));
        hold(back, held.expected);
    }

    void splice() {
        if (routings_.empty()) return;
        const Held head = any_routing(), tail = any_routing();
        if (head.expected->pending != nullptr || tail.expected->pending != nullptr) return;
        const uint64_t row = in_.below(std::max(head.expected->end(), tail.expected->end()) + 3);
        const std::vector<uint8_t> a = check::serialized(head.routing),
                                   b = check::serialized(tail.routing);
        std::vector<uint8_t> header(a.size() + b.size() + 128);
        routecap_splice splice{};
        splice.struct_size = sizeof splice;
        routecap_piece pieces[ROUTECAP_MAX_PIECES];
        const model::RoutingPtr expected = model::splice(*head.expected, *tail.expected, row);
        SAME_STATUS(expected != nullptr ? ROUTECAP_OK : ROUTECAP_ERR_SHAPE_MISMATCH,
                    routecap_serialized_splice(a.data(), a.size(), b.data(), b.size(), row,
                                               header.data(), header.size(), pieces,
                                               sizeof pieces[0], std::size(pieces), &splice));
        if (expected == nullptr) return;
        const std::vector<uint8_t> data = check::spliced(splice, pieces, header, a, b);
        routecap_routing *back = nullptr;
        SAME_STATUS(expected->status(), routecap_routing_deserialize(data.data(), data.size(), 0,
                                                                     nullptr, nullptr, &back));
        hold(back, expected);
    }

    Bytes &in_;
    std::vector<Engine> engines_, retired_;
    Engine *engine_ = nullptr;
    std::vector<Held> routings_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Bytes in(data, size);
    World(in).run();
    return 0;
}
