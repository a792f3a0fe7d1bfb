// Structs of every size: those that the caller fills and those that the library fills, with sizes
// from 0 to beyond, tails of zeros and of garbage, in memory of just that size; and configurations
// with any number in any field.
#include <algorithm>
#include <cstring>
#include <memory>

#include "../support/declared.h"
#include "bytes.h"
#include "check.h"
#include "model.h"

namespace {

using fuzz::Bytes;

// `count` structs one after another in memory of just their size, each with the first bytes of its
// value and a tail.
class Sized {
public:
    template <class T>
    Sized(Bytes &in, const std::vector<T> &values) : known_(sizeof(T)) {
        const uint64_t kind = in.below(16);
        size_ = kind == 0   ? in.below(sizeof(T))
                : kind < 8  ? sizeof(T)
                : kind < 14 ? sizeof(T) + 1 + in.below(64)
                            : sizeof(T) + in.below(4096);
        // As a compiler would.
        if (values.size() > 1) size_ = (size_ + alignof(T) - 1) / alignof(T) * alignof(T);
        tail_ = size_ > known_ && in.chance(64);
        memory_.assign(std::max<size_t>(size_, sizeof(uint32_t)) * values.size(), 0);
        for (size_t i = 0; i < values.size(); i++)
            std::memcpy(memory_.data() + i * size_, &values[i], std::min(size_, sizeof(T)));
        if (tail_) memory_[size_ * (values.size() - 1) + known_ + in.below(size_ - known_)] = 0x5a;
        memory_.shrink_to_fit();
    }
    size_t size() const { return size_; }
    bool small() const { return size_ < known_; }
    template <class T>
    T *get() {
        return reinterpret_cast<T *>(memory_.data());
    }
    // The first member of structs that say their own size.
    template <class T>
    T *with_size() {
        get<T>()->struct_size = static_cast<uint32_t>(size_);
        return get<T>();
    }
    // What a call returns that would return `expected` with the struct as this library knows it.
    int32_t read(int32_t expected) const {
        return small() || tail_ ? ROUTECAP_ERR_STRUCT_SIZE : expected;
    }
    int32_t filled(int32_t expected) const { return small() ? ROUTECAP_ERR_STRUCT_SIZE : expected; }
    // What was filled has zeros where the library knows nothing.
    void check_zeros() const {
        for (size_t i = known_; i < size_; i++)
            if (memory_[i] != 0)
                check::fail("byte %zu of a struct of %zu is %u", i, size_, memory_[i]);
    }
    void check_untouched() const {
        SAME(0, std::count_if(memory_.begin() + sizeof(uint32_t), memory_.end(),
                              [](uint8_t b) { return b != 0x77; }));
    }
    void garbage() { std::fill(memory_.begin(), memory_.end(), uint8_t{0x77}); }

private:
    size_t known_, size_ = 0;
    bool tail_ = false;
    std::vector<uint8_t> memory_;
};

// A struct that the library fills: garbage before, everything filled after.
template <class T>
void fills(Bytes &in, int32_t expected, const std::function<int32_t(T *)> &call) {
    Sized s(in, std::vector<T>(1));
    s.garbage();
    T *out = s.with_size<T>();
    const uint32_t size = out->struct_size;
    SAME_STATUS(s.filled(expected), call(out));
    SAME(size, out->struct_size);
    if (s.filled(expected) < 0)
        s.check_untouched();
    else
        s.check_zeros();
}
template <class T>
void reads(Bytes &in, T value, int32_t expected, const std::function<int32_t(const T *)> &call) {
    Sized s(in, std::vector<T>{value});
    const T *given = s.with_size<T>();
    SAME_STATUS(s.read(expected), call(given));
}

constexpr uint32_t kLayers = 3, kRows = 4, kExperts = 8;

routecap_config small_config() {
    routecap_config config;
    SAME_STATUS(ROUTECAP_OK, routecap_config_init(&config, sizeof config));
    config.backend = ROUTECAP_BACKEND_HOST;
    config.layers = kLayers, config.k = 1, config.experts = kExperts, config.rows = kRows;
    config.flags = ROUTECAP_CONFIG_MANUAL_PROGRESS;
    return config;
}

// One capturer with one request, a step of two rows and a routing, for each input.
class World {
public:
    explicit World(Bytes &in) : in_(in) {
        routecap_config config = small_config();
        const int32_t provenance[kLayers] = {0, 0, ROUTECAP_PROVENANCE_RECOMPUTED};
        config.layer_provenance = provenance;
        reads<routecap_config>(in_, config, ROUTECAP_OK, [&](const routecap_config *c) {
            const int32_t status = routecap_capturer_create(c, &capturer_);
            SAME(status == ROUTECAP_OK, capturer_ != nullptr);
            return status;
        });
        if (capturer_ == nullptr)
            SAME_STATUS(ROUTECAP_OK, routecap_capturer_create(&config, &capturer_));
        SAME_STATUS(ROUTECAP_OK, routecap_request_open(capturer_, nullptr, &request_, 1));
        SAME_STATUS(ROUTECAP_OK, routecap_step_begin(capturer_, kRows, nullptr));
    }
    ~World() {
        routecap_routing_free(routing_);
        routecap_capturer_destroy(capturer_);
    }

    void run() {
        static constexpr void (World::*kBefore[])() = {
            &World::sink,     &World::record, &World::record_layers, &World::route,
            &World::received, &World::probe,  &World::open};
        static constexpr void (World::*kAfter[])() = {
            &World::stats,    &World::layer_stats, &World::accept,
            &World::coverage, &World::extract,     &World::copy,
            &World::view,     &World::serialized,  &World::close};
        (this->*kBefore[in_.below(std::size(kBefore))])();
        (this->*kBefore[in_.below(std::size(kBefore))])();
        issue();
        for (int i = 0; i < 3; i++) (this->*kAfter[in_.below(std::size(kAfter))])();
    }

private:
    void sink() {
        std::vector<int32_t> memory(kRows);
        // After begin.
        reads<routecap_sink>(
            in_, {0, ROUTECAP_DTYPE_I32, memory.data(), kRows, 1, 0, 0}, ROUTECAP_ERR_STATE,
            [&](const routecap_sink *s) { return routecap_sink_bind(capturer_, 0, 1, s); });
        fills<routecap_sink>(in_, ROUTECAP_OK, [&](routecap_sink *s) {
            return routecap_sink_layer(capturer_, 0, s);
        });
    }
    routecap_source source() {
        routecap_source s{};
        s.dtype = ROUTECAP_DTYPE_I32;
        s.rows = 2;
        s.first_row = recorded_;
        return s;
    }
    void record() {
        if (recorded_ > 0) return;
        routecap_source s = source();
        s.ids = ids_;
        reads<routecap_source>(in_, s, ROUTECAP_OK, [&](const routecap_source *given) {
            const int32_t status = routecap_layer_record(capturer_, 0, given, nullptr);
            recorded_ = status == ROUTECAP_OK ? 2 : 0;
            return status;
        });
    }
    void record_layers() {
        if (recorded_ > 0) return;
        Sized layers(
            in_, std::vector<routecap_layer_source>{{0, 0, ids_, nullptr}, {1, 0, ids_, nullptr}});
        if (in_.chance(128)) {
            routecap_source s = source();
            s.struct_size = sizeof s;
            const int32_t status = layers.read(ROUTECAP_OK);
            SAME_STATUS(status,
                        routecap_layers_record(capturer_, &s, layers.get<routecap_layer_source>(),
                                               layers.size(), 2, nullptr));
            recorded_ = status == ROUTECAP_OK ? 2 : 0;
        } else {
            const routecap_layer_source one{0, 0, ids_, nullptr};
            reads<routecap_source>(in_, source(), ROUTECAP_OK, [&](const routecap_source *given) {
                const int32_t status =
                    routecap_layers_record(capturer_, given, &one, sizeof one, 1, nullptr);
                recorded_ = status == ROUTECAP_OK ? 2 : 0;
                return status;
            });
        }
    }
    void route() {
        routecap_router router;
        const int32_t method = static_cast<int32_t>(in_.below(14));
        const bool known = method >= ROUTECAP_METHOD_SOFTMAX && method <= ROUTECAP_METHOD_ERNIE;
        Sized s(in_, std::vector<routecap_router>(1));
        s.garbage();
        const int32_t status = known ? s.filled(ROUTECAP_OK) : ROUTECAP_ERR_ARGUMENT;
        const int32_t got = routecap_router_init(s.get<routecap_router>(), s.size(), method);
        if (known || !s.small()) SAME_STATUS(status, got);
        if (got < 0) return;
        SAME(s.size(), s.get<routecap_router>()->struct_size);
        s.check_zeros();
        std::memcpy(&router, s.get<routecap_router>(), sizeof router);
        const float logits[kExperts] = {1, 2, 3, 4, 5, 6, 7, 8};
        routecap_logits l{};
        l.struct_size = sizeof l;
        l.dtype = ROUTECAP_DTYPE_F32;
        l.logits = logits;
        l.rows = 1;
        l.first_row = 3;
        const int32_t first = routed_ ? ROUTECAP_ERR_CONFLICT : ROUTECAP_OK;
        if (in_.chance(128)) {
            reads<routecap_router>(in_, router, first, [&](const routecap_router *r) {
                return noted(routecap_layer_route(capturer_, 2, r, &l, nullptr));
            });
        } else {
            router.struct_size = sizeof router;
            reads<routecap_logits>(in_, l, first, [&](const routecap_logits *given) {
                return noted(routecap_layer_route(capturer_, 2, &router, given, nullptr));
            });
        }
    }
    int32_t noted(int32_t status) {
        routed_ |= status == ROUTECAP_OK;
        return status;
    }
    void received() {
        const int32_t metadata[2 * 3] = {0, 0, 0, 1, 0, 0};
        const int32_t ids[2] = {0, 1};
        int32_t global[2];
        routecap_received r{};
        r.ranks = 1, r.tokens_per_rank = 2, r.rows = 2, r.dtype = ROUTECAP_DTYPE_I32;
        r.metadata = metadata, r.ids = ids, r.global_ids = global;
        reads<routecap_received>(in_, r, ROUTECAP_OK, [&](const routecap_received *given) {
            return routecap_received_read(capturer_, 0, given, nullptr);
        });
    }
    void probe() {
        Sized s(in_, std::vector<routecap_layer_probe>(2));
        s.garbage();
        const int32_t got = routecap_capturer_probe(capturer_, 1, s.get<routecap_layer_probe>(),
                                                    s.size(), 2, nullptr);
        if (s.small() || got < 0) return SAME_STATUS(s.filled(ROUTECAP_PARTIAL), got);
    }
    void open() {
        routecap_request handle = 0;
        reads<routecap_open_options>(in_, {0, static_cast<int32_t>(in_.below(2))}, ROUTECAP_OK,
                                     [&](const routecap_open_options *o) {
                                         return routecap_request_open(capturer_, o, &handle, 1);
                                     });
        SAME_STATUS(ROUTECAP_OK, routecap_request_close(capturer_, handle));
    }
    void issue() {
        SAME_STATUS(ROUTECAP_OK, routecap_step_snapshot(capturer_, nullptr));
        const std::vector<routecap_span> spans{
            {request_, 0, 0, 0, 1, 0, 0}, {request_, 1, 0, 1, 1, ROUTECAP_SPAN_SPECULATIVE, 0}};
        Sized s(in_, spans);
        routecap_step step = 0;
        SAME_STATUS(s.read(ROUTECAP_OK),
                    routecap_step_issue(capturer_, s.get<routecap_span>(), s.size(), 2, nullptr,
                                        nullptr, &step, nullptr));
        if (step == 0)
            reads<routecap_issue_options>(in_, {0, ROUTECAP_SNAPSHOT_TAKEN, 7, nullptr, 0, 0},
                                          ROUTECAP_OK, [&](const routecap_issue_options *o) {
                                              return routecap_step_issue(capturer_, spans.data(),
                                                                         sizeof spans[0], 2, o,
                                                                         nullptr, &step, nullptr);
                                          });
        if (step == 0)
            SAME_STATUS(ROUTECAP_OK, routecap_step_issue(capturer_, spans.data(), sizeof spans[0],
                                                         2, nullptr, nullptr, &step, nullptr));
        SAME(1, step);
        SAME_STATUS(ROUTECAP_OK, routecap_capturer_progress(capturer_));
        const int32_t got = routecap_request_extract(capturer_, request_, 0, 1,
                                                     ROUTECAP_EXTRACT_SHARE, 0, &routing_);
        if (got < 0) check::fail("nothing can be extracted: %s", routecap_last_error());
    }
    void stats() {
        fills<routecap_stats>(in_, ROUTECAP_OK, [&](routecap_stats *s) {
            return routecap_capturer_stats(capturer_, s);
        });
        fills<routecap_backend>(in_, ROUTECAP_OK, [&](routecap_backend *b) {
            return routecap_backend_info(ROUTECAP_BACKEND_HOST, b);
        });
        const routecap_config config = small_config();
        fills<routecap_memory>(in_, ROUTECAP_OK, [&](routecap_memory *m) {
            return routecap_config_memory(&config, m);
        });
        Sized s(in_, std::vector<routecap_config>(1));
        s.garbage();
        SAME_STATUS(s.filled(ROUTECAP_OK),
                    routecap_config_init(s.get<routecap_config>(), s.size()));
        if (!s.small()) s.check_zeros();
    }
    void layer_stats() {
        Sized s(in_, std::vector<routecap_layer_stats>(kLayers));
        s.garbage();
        SAME_STATUS(s.filled(ROUTECAP_OK),
                    routecap_capturer_layer_stats(capturer_, s.get<routecap_layer_stats>(),
                                                  s.size(), kLayers));
    }
    void accept() {
        const routecap_accept_item item{request_, 1, nullptr, 0, 77, 0};
        Sized s(in_, std::vector<routecap_accept_item>{item, item});
        const int32_t got =
            routecap_request_accept_batch(capturer_, s.get<routecap_accept_item>(), s.size(), 2);
        SAME_STATUS(s.read(ROUTECAP_PARTIAL), got);  // settled once
    }
    void coverage() {
        routecap_missing missing[2];
        fills<routecap_coverage>(in_, ROUTECAP_INCOMPLETE, [&](routecap_coverage *c) {
            const int32_t status = routecap_request_coverage(capturer_, request_, 0, 1, c, missing,
                                                             sizeof missing[0], 2);
            return status == ROUTECAP_OK ? ROUTECAP_INCOMPLETE : status;
        });
        Sized s(in_, std::vector<routecap_missing>(2));
        s.garbage();
        routecap_coverage c{};
        c.struct_size = sizeof c;
        const int32_t got =
            routecap_routing_coverage(routing_, &c, s.get<routecap_missing>(), s.size(), 2);
        if (s.small() || got < 0) SAME_STATUS(s.filled(ROUTECAP_INCOMPLETE), got);
    }
    void extract() {
        Sized s(in_, std::vector<routecap_extract_item>(2, {0x77, 0, 1, 0, 0, nullptr, 77, 0}));
        SAME_STATUS(
            s.read(ROUTECAP_PARTIAL),
            routecap_request_extract_batch(capturer_, s.get<routecap_extract_item>(), s.size(), 2));
        Sized f(in_, std::vector<routecap_finish_item>(2, {0x77, 0, nullptr, 77, 0}));
        SAME_STATUS(
            f.read(ROUTECAP_PARTIAL),
            routecap_request_finish_batch(capturer_, f.get<routecap_finish_item>(), f.size(), 2));
    }
    void copy() {
        Sized s(in_, std::vector<routecap_copy_options>(1));
        s.garbage();
        SAME_STATUS(s.filled(ROUTECAP_OK),
                    routecap_copy_options_init(s.get<routecap_copy_options>(), s.size()));
        if (s.small()) return;
        s.check_zeros();
        routecap_copy_options options;
        std::memcpy(&options, s.get<routecap_copy_options>(), sizeof options);
        options.dtype = ROUTECAP_DTYPE_I32;
        int32_t dst[kLayers];
        int32_t status = ROUTECAP_OK;
        reads<routecap_copy_options>(
            in_, options, ROUTECAP_OK, [&](const routecap_copy_options *o) {
                status =
                    routecap_routing_copy_to(routing_, o, dst, sizeof dst, nullptr, 0, nullptr);
                return status >= 0 ? ROUTECAP_OK : status;
            });
    }
    void view() {
        fills<routecap_view>(in_, ROUTECAP_OK,
                             [&](routecap_view *v) { return routecap_routing_view(routing_, v); });
        routecap_view view{};
        view.struct_size = sizeof view;
        SAME_STATUS(ROUTECAP_OK, routecap_routing_view(routing_, &view));
        reads<routecap_view>(in_, view, ROUTECAP_OK, [&](const routecap_view *v) {
            routecap_routing *same = nullptr;
            const int32_t status = routecap_routing_import(v, 0, nullptr, nullptr, &same);
            SAME(status >= 0, same != nullptr);
            routecap_routing_free(same);
            return status >= 0 ? ROUTECAP_OK : status;
        });
        std::vector<routecap_segment> segments(view.segments, view.segments + view.segment_count);
        if (segments.empty()) return;
        Sized s(in_, segments);
        view.segments = s.get<routecap_segment>(), view.segment_size = s.size();
        routecap_routing *same = nullptr;
        const int32_t status = routecap_routing_import(&view, 0, nullptr, nullptr, &same);
        if (s.read(ROUTECAP_OK) < 0 || status < 0) SAME_STATUS(s.read(ROUTECAP_OK), status);
        routecap_routing_free(same);
    }
    void serialized() {
        std::vector<uint8_t> data = check::serialized(routing_), header(2 * data.size() + 128);
        routecap_piece pieces[ROUTECAP_MAX_PIECES];
        fills<routecap_serialized>(in_, ROUTECAP_OK, [&](routecap_serialized *s) {
            return routecap_serialized_info(data.data(), data.size(), s);
        });
        fills<routecap_splice>(in_, ROUTECAP_OK, [&](routecap_splice *s) {
            return routecap_serialized_splice(data.data(), data.size(), data.data(), data.size(), 1,
                                              header.data(), header.size(), pieces,
                                              sizeof pieces[0], std::size(pieces), s);
        });
    }
    void close() {
        SAME_STATUS(ROUTECAP_ERR_UNKNOWN_REQUEST, routecap_request_close(capturer_, request_ + 1));
    }

    Bytes &in_;
    routecap_capturer *capturer_ = nullptr;
    routecap_request request_ = 0;
    routecap_routing *routing_ = nullptr;
    const int32_t ids_[2] = {3, 9};
    uint32_t recorded_ = 0;
    bool routed_ = false;
};

// ---- Configurations ------------------------------------------------------------------------

uint32_t any32(Bytes &in, std::initializer_list<uint32_t> likely) {
    return in.chance(16) ? static_cast<uint32_t>(in.number(4)) : in.pick(likely);
}

// What the header's words say of each field.
int32_t judge(const routecap_config &c) {
    const auto sane = [&] {
        if (c.backend <= 0 || c.id_space < 0 || c.id_space > 1 || (c.flags & ~kConfigFlags) != 0 ||
            (c.flags & (ROUTECAP_CONFIG_LOAD | ROUTECAP_CONFIG_LOAD_TAGS)) ==
                ROUTECAP_CONFIG_LOAD_TAGS ||
            c.reserved != 0)
            return false;
        if (c.layers < 1 || c.layers > ROUTECAP_MAX_LAYERS || c.k < 1 || c.k > ROUTECAP_MAX_K ||
            c.rows < 1 || c.rows > ROUTECAP_MAX_ROWS || c.slots > ROUTECAP_MAX_SLOTS ||
            c.max_requests > 1u << 24)
            return false;
        if (c.sink_dtype != 0 && c.sink_dtype != ROUTECAP_DTYPE_I16 &&
            c.sink_dtype != ROUTECAP_DTYPE_I32 && c.sink_dtype != ROUTECAP_DTYPE_I64)
            return false;
        for (uint32_t l = 0; l < c.layers; l++) {
            const uint32_t experts = c.layer_experts != nullptr ? c.layer_experts[l] : c.experts;
            if (experts < c.k || experts > ROUTECAP_MAX_EXPERTS) return false;
            if (c.layer_map != nullptr &&
                (c.layer_map[l] < 0 || (l > 0 && c.layer_map[l] <= c.layer_map[l - 1])))
                return false;
            if (c.layer_provenance != nullptr && c.layer_provenance[l] != 0 &&
                c.layer_provenance[l] != 1)
                return false;
        }
        return true;
    };
    if (c.role < 0 || c.role > 2) return ROUTECAP_ERR_ARGUMENT;
    // CUDA itself is not tried here.
    if (c.backend > ROUTECAP_BACKEND_CUDA) return ROUTECAP_ERR_NO_BACKEND;
    return sane() ? ROUTECAP_OK : ROUTECAP_ERR_ARGUMENT;
}

void configure(Bytes &in) {
    routecap_config c = small_config();
    std::vector<int32_t> map, provenance;
    std::vector<uint32_t> experts;
    for (uint64_t changes = 1 + in.below(4); changes > 0; changes--) switch (in.below(16)) {
            case 0: c.role = static_cast<int32_t>(any32(in, {0, 1, 2, 3})); break;
            case 1: c.device = static_cast<int32_t>(any32(in, {0, 1, 7})); break;
            case 2: c.layers = any32(in, {1, 2, 7, 8, 9, 1024, 1025, 0}); break;
            case 3: c.k = any32(in, {1, 2, 8, 31, 32, 33, 0}); break;
            case 4: c.experts = any32(in, {1, 8, 255, 256, 257, 32767, 32768, 32769, 0}); break;
            case 5: c.rows = any32(in, {1, 2, 1000, 1048576, 1048577, 0}); break;
            case 6: c.slots = any32(in, {0, 1, 2, 64, 65}); break;
            case 7:
                c.sink_dtype = static_cast<int32_t>(any32(in, {0, 1, 2, 3, 4, 5, 6, 7, 16}));
                break;
            case 8:
                c.flags = any32(in, {0, 1, 2, 8, 16, 32, 64, 96, kConfigFlags, kConfigFlags + 1}) |
                          ROUTECAP_CONFIG_MANUAL_PROGRESS;
                break;
            case 9: c.id_space = static_cast<int32_t>(any32(in, {0, 1, 2})); break;
            case 10: c.max_requests = any32(in, {0, 1, 65536, UINT32_MAX}); break;
            case 11: c.reserved = any32(in, {0, 1}); break;
            case 12:
                c.backend = static_cast<int32_t>(in.pick({ROUTECAP_BACKEND_HOST, 0, 3, -1}));
                break;
            case 13: map.resize(ROUTECAP_MAX_LAYERS), c.layer_map = map.data(); break;
            case 14: experts.resize(ROUTECAP_MAX_LAYERS), c.layer_experts = experts.data(); break;
            default:
                provenance.resize(ROUTECAP_MAX_LAYERS), c.layer_provenance = provenance.data();
                break;
        }
    const uint32_t read = std::min<uint32_t>(c.layers, ROUTECAP_MAX_LAYERS);
    for (uint32_t l = 0; l < read; l++) {
        if (!map.empty())
            map[l] =
                in.chance(2) ? static_cast<int32_t>(in.number(4)) : static_cast<int32_t>(3 * l);
        if (!experts.empty()) experts[l] = in.chance(2) ? static_cast<uint32_t>(in.number(3)) : 300;
        if (!provenance.empty())
            provenance[l] =
                in.chance(2) ? static_cast<int32_t>(in.number(1)) : static_cast<int32_t>(l % 2);
    }
    // In memory of just their size.
    map.resize(std::min<size_t>(map.size(), read)), map.shrink_to_fit();
    experts.resize(std::min<size_t>(experts.size(), read)), experts.shrink_to_fit();
    provenance.resize(std::min<size_t>(provenance.size(), read)), provenance.shrink_to_fit();
    if (c.layer_map != nullptr) c.layer_map = map.data();
    if (c.layer_experts != nullptr) c.layer_experts = experts.data();
    if (c.layer_provenance != nullptr) c.layer_provenance = provenance.data();

    routecap_memory memory{};
    memory.struct_size = sizeof memory;
    const bool disabled = c.role == ROUTECAP_ROLE_DISABLED;
    const int32_t expected = judge(c);
    if (!disabled) SAME_STATUS(expected, routecap_config_memory(&c, &memory));
    if (expected == ROUTECAP_OK && !disabled) {
        SAME(0, memory.device_bytes + memory.pinned_bytes);
        c.budget_bytes =
            in.pick({uint64_t{0}, memory.page_bytes, memory.page_bytes - 1, UINT64_MAX});
    }
    if (expected == ROUTECAP_OK && !disabled && memory.host_bytes > 1 << 22) return;
    routecap_capturer *capturer = nullptr;
    const int32_t budget =
        expected == ROUTECAP_OK && c.budget_bytes != 0 && c.budget_bytes < memory.page_bytes
            ? ROUTECAP_ERR_ARGUMENT
            : expected;
    SAME_STATUS(disabled ? ROUTECAP_OK : budget, routecap_capturer_create(&c, &capturer));
    SAME(disabled || budget == ROUTECAP_OK, capturer != nullptr);
    routecap_request request = 77;
    if (capturer != nullptr)
        SAME_STATUS(ROUTECAP_OK, routecap_request_open(capturer, nullptr, &request, 1));
    if (capturer != nullptr) SAME(c.role == ROUTECAP_ROLE_OWNER, request != 0);
    routecap_capturer_destroy(capturer);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Bytes in(data, size);
    if (in.below(2) == 0)
        configure(in);
    else
        World(in).run();
    return 0;
}
