// Every function of routecap.h: check what the object is, guard against exceptions, call.
#include <new>

#include "backend/config.h"
#include "backend/dispatch_check.h"
#include "backend/routing_method.h"
#include "base/process.h"
#include "base/status.h"
#include "base/structs.h"
#include "capture/capturer.h"
#include "plan/gather.h"
#include "plan/packed.h"
#include "plan/plan.h"
#include "plan/scatter.h"
#include "routecap.h"
#include "routing/copy_out.h"
#include "routing/import.h"
#include "routing/routing.h"
#include "routing/serialized.h"
#include "sequence/envelope.h"
#include "sequence/sequence.h"
#include "store/blocks_as_bytes.h"
#include "store/keys.h"
#include "store/local_store.h"
#include "store/mapped_store.h"
#include "wire/decoder.h"
#include "wire/encode.h"
#include "wire/format.h"
#include "wire/message.h"
#include "wire/splice.h"

namespace {

using namespace routecap;

// What a capturer's handle points to: the object, and the process it was made in. The public types
// stay incomplete even here, so that no debug information says what is behind them.
struct Handle {
    std::unique_ptr<Capturer> object;
    uint32_t process;
};
routecap_capturer *capturer_handle(Handle *handle) {
    return reinterpret_cast<routecap_capturer *>(handle);
}
const Handle *handle_of(const routecap_capturer *capturer) {
    return reinterpret_cast<const Handle *>(capturer);
}

// No exception crosses the boundary.
template <class Body>
int32_t guard(Body body) noexcept {
    try {
        return body();
    } catch (const std::bad_alloc &) {
        return report(ROUTECAP_ERR_NO_MEMORY, "the system has no memory left");
    } catch (const std::exception &e) {
        return report(ROUTECAP_ERR_INTERNAL, "%s", e.what());
    } catch (...) {
        return report(ROUTECAP_ERR_INTERNAL, "unknown exception");
    }
}

int32_t forked() {
    return report(ROUTECAP_ERR_FORKED,
                  "this object was made before fork(); it works in the parent only");
}

template <class Body>
int32_t with(const routecap_capturer *capturer, Body body) noexcept {
    if (capturer == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "capturer is NULL");
    if (handle_of(capturer)->process != process_generation()) return forked();
    return guard([&] { return body(*handle_of(capturer)->object); });
}

// The same for the functions of the forward path, which one thread at a time may be in.
template <class Body>
int32_t on_forward_path(const routecap_capturer *capturer, Body body) noexcept {
    return with(capturer, [&](Capturer &c) {
        const ForwardCheck::Call call(c.check());
        const int32_t status = call.status();
        return status < 0 ? status : body(c);
    });
}

routecap_routing *routing_handle(Routing *routing) {
    return reinterpret_cast<routecap_routing *>(routing);
}
Routing **routing_output(routecap_routing **routing) {
    return reinterpret_cast<Routing **>(routing);
}
const Routing *routing_of(const routecap_routing *routing) {
    return reinterpret_cast<const Routing *>(routing);
}

template <class Body>
int32_t with(const routecap_routing *routing, Body body) noexcept {
    if (routing == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "routing is NULL");
    if (routing_of(routing)->process() != process_generation()) return forked();
    return guard([&] { return body(*routing_of(routing)); });
}

// The same for functions that need a routing's rows.
template <class Body>
int32_t with_rows(const routecap_routing *routing, Body body) noexcept {
    return with(routing, [&](const Routing &r) {
        return r.ready() ? body(r)
                         : report(ROUTECAP_ERR_NOT_READY, "the routing's last step has not landed");
    });
}

Sequence **sequence_output(routecap_sequence **sequence) {
    return reinterpret_cast<Sequence **>(sequence);
}
Sequence *sequence_of(const routecap_sequence *sequence) {
    return reinterpret_cast<Sequence *>(const_cast<routecap_sequence *>(sequence));
}

template <class Body>
int32_t with(const routecap_sequence *sequence, Body body) noexcept {
    if (sequence == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "sequence is NULL");
    if (sequence_of(sequence)->process() != process_generation()) return forked();
    return guard([&] { return body(*sequence_of(sequence)); });
}

struct StoreHandle {
    StorePtr object;
    uint32_t process;
};
const StoreHandle *handle_of(const routecap_store *store) {
    return reinterpret_cast<const StoreHandle *>(store);
}

template <class Body>
int32_t with(const routecap_store *store, Body body) noexcept {
    if (store == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "store is NULL");
    if (handle_of(store)->process != process_generation()) return forked();
    return guard([&] { return body(handle_of(store)->object); });
}

// The same for functions that take keys.
template <class Body>
int32_t with_keys(const routecap_store *store, const void *keys, size_t count, Body body) noexcept {
    return with(store, [&](const StorePtr &s) {
        if (keys == nullptr && count > 0) return report(ROUTECAP_ERR_ARGUMENT, "keys is NULL");
        return body(*s, Keys{static_cast<const uint8_t *>(keys), count, s->config().key_bytes});
    });
}

// And for functions of a capturer's requests.
template <class Body>
int32_t with(const routecap_capturer *capturer, const routecap_store *store, Body body) noexcept {
    return with(capturer, [&](Capturer &c) {
        return with(store, [&](const StorePtr &s) { return body(c, s); });
    });
}

template <class Body>
int32_t with(const routecap_plan *plan, Body body) noexcept {
    if (plan == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "plan is NULL");
    return guard([&] { return body(*reinterpret_cast<const Plan *>(plan)); });
}

// Clears an output handle.
template <class Handle>
int32_t clear(Handle *output, const char *name) noexcept {
    if (output == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "%s is NULL", name);
    *output = Handle{};
    return ROUTECAP_OK;
}

template <class Make>
int32_t make_store(const routecap_store_config *config, const routecap_config *shape,
                   routecap_store **store, Make make) noexcept {
    if (int32_t s = clear(store, "store"); s < 0) return s;
    return guard([&] {
        StoreConfig c;
        if (int32_t s = read_store_config(config, shape, c); s < 0) return s;
        auto handle = std::make_unique<StoreHandle>();
        handle->process = process_generation();
        if (int32_t s = make(std::move(c), handle->object); s < 0) return s;
        *store = reinterpret_cast<routecap_store *>(handle.release());
        return ROUTECAP_OK;
    });
}

template <class Item>
void clear_routings(Item *items, size_t item_size, size_t count) noexcept {
    for (size_t i = 0; items != nullptr && item_size >= sizeof *items && i < count; i++)
        at(items, item_size, i).routing = nullptr;
}

int32_t slice(const Routing &routing, uint64_t first, uint64_t rows, Routing **slice) {
    if (first < routing.first() || first > routing.end() ||
        (rows != ROUTECAP_ROWS_ALL && rows > routing.end() - first))
        return report(ROUTECAP_ERR_OUT_OF_RANGE,
                      "%llu rows from %llu of a routing of rows [%llu,%llu)", ull(rows), ull(first),
                      ull(routing.first()), ull(routing.end()));
    *slice = routing.slice(first, rows == ROUTECAP_ROWS_ALL ? routing.end() - first : rows);
    return ROUTECAP_OK;
}

}  // namespace

// ---- Library --------------------------------------------------------------------------------

uint32_t routecap_version(void) {
    return ROUTECAP_VERSION_MAJOR * 10000 + ROUTECAP_VERSION_MINOR * 100 + ROUTECAP_VERSION_PATCH;
}

const char *routecap_status_name(int32_t status) { return status_name(status); }

const char *routecap_last_error(void) { return last_error(); }

int32_t routecap_backend_info(int32_t backend, routecap_backend *info) {
    if (int32_t s = check_output(info, "info"); s < 0) return s;
    const BackendInfo i = backend_info(backend);
    write_struct(info, routecap_backend{.struct_size = 0,
                                        .available = i.available,
                                        .devices = i.devices,
                                        .reserved = 0,
                                        .detail = i.detail});
    return ROUTECAP_OK;
}

// ---- Configuration and capturer -------------------------------------------------------------

int32_t routecap_config_init(routecap_config *config, size_t struct_size) {
    return init_struct(config, struct_size, routecap_config{}, "config");
}

int32_t routecap_config_memory(const routecap_config *config, routecap_memory *memory) {
    if (int32_t s = check_output(memory, "memory"); s < 0) return s;
    return guard([&] {
        Config c;
        if (int32_t s = read_config(config, c); s < 0) return s;
        if (c.backend == ROUTECAP_BACKEND_CUDA && !built_with_cuda())
            return report(ROUTECAP_ERR_NO_BACKEND, "%s", backend_info(c.backend).detail);
        write_struct(memory, memory_of(c));
        return ROUTECAP_OK;
    });
}

int32_t routecap_capturer_create(const routecap_config *config, routecap_capturer **capturer) {
    if (int32_t s = clear(capturer, "capturer"); s < 0) return s;
    return guard([&] {
        Config c;
        if (int32_t s = read_config(config, c); s < 0) return s;
        auto handle = std::make_unique<Handle>();
        handle->process = process_generation();
        if (int32_t s = Capturer::create(c, handle->object); s < 0) return s;
        *capturer = capturer_handle(handle.release());
        return ROUTECAP_OK;
    });
}

void routecap_capturer_destroy(routecap_capturer *capturer) {
    if (capturer == nullptr || handle_of(capturer)->process != process_generation()) return;
    delete handle_of(capturer);
}

int32_t routecap_capturer_stats(const routecap_capturer *capturer, routecap_stats *stats) {
    return with(capturer, [&](Capturer &c) { return c.stats(stats); });
}

int32_t routecap_capturer_layer_stats(const routecap_capturer *capturer,
                                      routecap_layer_stats *stats, size_t stat_size, size_t count) {
    return with(capturer, [&](Capturer &c) { return c.layer_stats(stats, stat_size, count); });
}

int32_t routecap_capturer_progress(routecap_capturer *capturer) {
    return with(capturer, [&](Capturer &c) { return c.progress(); });
}

// ---- Sink, layers, steps --------------------------------------------------------------------

int32_t routecap_sink_bind(routecap_capturer *capturer, uint32_t first_layer, uint32_t layers,
                           const routecap_sink *sink) {
    return on_forward_path(capturer,
                           [&](Capturer &c) { return c.bind(first_layer, layers, sink); });
}

int32_t routecap_sink_layer(routecap_capturer *capturer, uint32_t layer, routecap_sink *sink) {
    return on_forward_path(capturer, [&](Capturer &c) { return c.sink_layer(layer, sink); });
}

int32_t routecap_layer_record(routecap_capturer *capturer, uint32_t layer,
                              const routecap_source *source, routecap_stream stream) {
    return on_forward_path(capturer, [&](Capturer &c) { return c.record(layer, source, stream); });
}

int32_t routecap_layers_record(routecap_capturer *capturer, const routecap_source *source,
                               const routecap_layer_source *layers, size_t layer_size, size_t count,
                               routecap_stream stream) {
    return on_forward_path(capturer, [&](Capturer &c) {
        return c.record_layers(source, layers, layer_size, count, stream);
    });
}

int32_t routecap_router_init(routecap_router *router, size_t struct_size, int32_t method) {
    routecap_router filled;
    if (int32_t s = init_router(filled, method); s < 0) return s;
    return init_struct(router, struct_size, filled, "router");
}

int32_t routecap_layer_route(routecap_capturer *capturer, uint32_t layer,
                             const routecap_router *router, const routecap_logits *logits,
                             routecap_stream stream) {
    return on_forward_path(capturer,
                           [&](Capturer &c) { return c.route(layer, router, logits, stream); });
}

int32_t routecap_received_read(routecap_capturer *capturer, uint32_t layer,
                               const routecap_received *received, routecap_stream stream) {
    return on_forward_path(capturer,
                           [&](Capturer &c) { return c.read_received(layer, received, stream); });
}

int32_t routecap_received_merge(const int32_t *const *executed, size_t count, size_t cells,
                                int32_t *merged) {
    return merge_received(executed, count, cells, merged);
}

int32_t routecap_capturer_probe(routecap_capturer *capturer, uint32_t rows,
                                routecap_layer_probe *layers, size_t layer_size, size_t count,
                                routecap_stream stream) {
    return on_forward_path(
        capturer, [&](Capturer &c) { return c.probe(rows, layers, layer_size, count, stream); });
}

int32_t routecap_step_begin(routecap_capturer *capturer, uint32_t rows, routecap_stream stream) {
    return on_forward_path(capturer, [&](Capturer &c) { return c.begin(rows, stream); });
}

int32_t routecap_step_snapshot(routecap_capturer *capturer, routecap_stream stream) {
    return on_forward_path(capturer, [&](Capturer &c) { return c.snapshot(stream); });
}

int32_t routecap_step_issue(routecap_capturer *capturer, const routecap_span *spans,
                            size_t span_size, size_t count, const routecap_issue_options *options,
                            int32_t *status, routecap_step *step, routecap_stream stream) {
    if (step != nullptr) *step = 0;
    return on_forward_path(capturer, [&](Capturer &c) {
        return c.issue(spans, span_size, count, options, status, step, stream);
    });
}

int32_t routecap_step_discard(routecap_capturer *capturer, routecap_stream stream) {
    return on_forward_path(capturer, [&](Capturer &c) { return c.discard(stream); });
}

int32_t routecap_step_poll(routecap_capturer *capturer, routecap_step step) {
    return with(capturer, [&](Capturer &c) { return c.poll(step); });
}

int32_t routecap_step_finalize(routecap_capturer *capturer, routecap_step step, int64_t timeout_ns,
                               uint64_t *conflicting) {
    return with(capturer, [&](Capturer &c) { return c.finalize(step, timeout_ns, conflicting); });
}

// ---- Requests -----------------------------------------------------------------------------------

int32_t routecap_request_open(routecap_capturer *capturer, const routecap_open_options *options,
                              routecap_request *requests, size_t count) {
    if (requests != nullptr) std::fill_n(requests, count, routecap_request{0});
    return with(capturer, [&](Capturer &c) { return c.open(options, requests, count); });
}

int32_t routecap_request_accept(routecap_capturer *capturer, routecap_request request,
                                routecap_step step, const uint32_t *rows, size_t count) {
    return with(capturer, [&](Capturer &c) { return c.accept(request, step, rows, count); });
}

int32_t routecap_request_accept_batch(routecap_capturer *capturer, routecap_accept_item *items,
                                      size_t item_size, size_t count) {
    return with(capturer, [&](Capturer &c) { return c.accept_batch(items, item_size, count); });
}

int32_t routecap_request_truncate(routecap_capturer *capturer, routecap_request request,
                                  uint64_t rows) {
    return with(capturer, [&](Capturer &c) { return c.truncate(request, rows); });
}

int32_t routecap_request_fork(routecap_capturer *capturer, routecap_request request, uint64_t rows,
                              routecap_request *child) {
    if (int32_t s = clear(child, "child"); s < 0) return s;
    return with(capturer, [&](Capturer &c) { return c.fork(request, rows, child); });
}

int32_t routecap_request_attach(routecap_capturer *capturer, routecap_request request,
                                const routecap_routing *routing, uint64_t rows) {
    return with(capturer,
                [&](Capturer &c) { return c.attach(request, routing_of(routing), rows); });
}

int32_t routecap_request_coverage(routecap_capturer *capturer, routecap_request request,
                                  uint64_t first, uint64_t rows, routecap_coverage *coverage,
                                  routecap_missing *missing, size_t missing_size, size_t capacity) {
    return with(capturer, [&](Capturer &c) {
        return c.coverage(request, first, rows, coverage, missing, missing_size, capacity);
    });
}

int32_t routecap_request_extract(routecap_capturer *capturer, routecap_request request,
                                 uint64_t first, uint64_t rows, int32_t mode, uint32_t flags,
                                 routecap_routing **routing) {
    if (int32_t s = clear(routing, "routing"); s < 0) return s;
    return with(capturer, [&](Capturer &c) {
        return c.extract(request, first, rows, mode, flags, routing_output(routing));
    });
}

int32_t routecap_request_extract_batch(routecap_capturer *capturer, routecap_extract_item *items,
                                       size_t item_size, size_t count) {
    clear_routings(items, item_size, count);
    return with(capturer, [&](Capturer &c) { return c.extract_batch(items, item_size, count); });
}

int32_t routecap_request_extract_into(routecap_capturer *capturer, routecap_request request,
                                      uint64_t first, uint64_t rows,
                                      const routecap_copy_options *options, void *dst,
                                      size_t dst_bytes, uint8_t *mask, size_t mask_bytes,
                                      uint64_t *needed) {
    return with(capturer, [&](Capturer &c) {
        return c.extract_into(request, first, rows, options, dst, dst_bytes, mask, mask_bytes,
                              needed);
    });
}

int32_t routecap_request_finish(routecap_capturer *capturer, routecap_request request,
                                uint64_t rows, routecap_routing **routing) {
    if (int32_t s = clear(routing, "routing"); s < 0) return s;
    return with(capturer,
                [&](Capturer &c) { return c.finish(request, rows, routing_output(routing)); });
}

int32_t routecap_request_finish_batch(routecap_capturer *capturer, routecap_finish_item *items,
                                      size_t item_size, size_t count) {
    clear_routings(items, item_size, count);
    return with(capturer, [&](Capturer &c) { return c.finish_batch(items, item_size, count); });
}

int32_t routecap_request_close(routecap_capturer *capturer, routecap_request request) {
    return with(capturer, [&](Capturer &c) { return c.close(request); });
}

int32_t routecap_request_close_batch(routecap_capturer *capturer, const routecap_request *requests,
                                     int32_t *status, size_t count) {
    return with(capturer, [&](Capturer &c) { return c.close_batch(requests, status, count); });
}

// ---- Copying and routings -------------------------------------------------------------------

int32_t routecap_copy_options_init(routecap_copy_options *options, size_t struct_size) {
    routecap_copy_options defaults{};
    defaults.fill = -1;
    return init_struct(options, struct_size, defaults, "options");
}

int32_t routecap_routing_wait(const routecap_routing *routing, int64_t timeout_ns) {
    return with(routing, [&](const Routing &r) { return r.wait(timeout_ns); });
}

int32_t routecap_routing_poll(const routecap_routing *routing) {
    return with(routing, [](const Routing &r) { return r.poll(); });
}

int32_t routecap_routing_view(const routecap_routing *routing, routecap_view *view) {
    if (int32_t s = check_output(view, "view"); s < 0) return s;
    return with_rows(routing, [&](const Routing &r) { return r.view(view), ROUTECAP_OK; });
}

int32_t routecap_routing_coverage(const routecap_routing *routing, routecap_coverage *coverage,
                                  routecap_missing *missing, size_t missing_size, size_t capacity) {
    if (int32_t s = check_output(coverage, "coverage"); s < 0) return s;
    if (int32_t s =
            check_array(missing, capacity, missing_size, sizeof(routecap_missing), "missing");
        s < 0)
        return s;
    return with_rows(routing, [&](const Routing &r) {
        return r.coverage(coverage, missing, missing_size, capacity);
    });
}

int32_t routecap_routing_split(const routecap_routing *routing, uint64_t prompt_tokens,
                               uint64_t generated_tokens, routecap_routing **prompt,
                               routecap_routing **generated) {
    const int32_t s1 = clear(prompt, "prompt"), s2 = clear(generated, "generated");
    if (s1 < 0 || s2 < 0) return std::min(s1, s2);
    return with_rows(routing, [&](const Routing &r) {
        const uint64_t middle = std::clamp(prompt_tokens, r.first(), r.end());
        RoutingPtr first(r.slice(r.first(), middle - r.first()));
        *generated = routing_handle(r.slice(middle, std::min(generated_tokens, r.end() - middle)));
        *prompt = routing_handle(const_cast<Routing *>(first.release()));
        return ROUTECAP_OK;
    });
}

int32_t routecap_routing_slice(const routecap_routing *routing, uint64_t first, uint64_t rows,
                               routecap_routing **slice_) {
    if (int32_t s = clear(slice_, "slice"); s < 0) return s;
    return with_rows(
        routing, [&](const Routing &r) { return slice(r, first, rows, routing_output(slice_)); });
}

int32_t routecap_routing_merge(const routecap_routing *const *routings, size_t count,
                               uint32_t flags, routecap_routing **merged) {
    if (int32_t s = clear(merged, "merged"); s < 0) return s;
    if (flags != 0) return report(ROUTECAP_ERR_ARGUMENT, "flags is %u", flags);
    if (routings == nullptr || count == 0) return report(ROUTECAP_ERR_ARGUMENT, "nothing to merge");
    for (size_t i = 0; i < count; i++)
        if (int32_t s = with_rows(routings[i], [](const Routing &) { return ROUTECAP_OK; }); s < 0)
            return s;
    return guard([&] {
        return merge({reinterpret_cast<const Routing *const *>(routings), count},
                     routing_output(merged));
    });
}

int32_t routecap_routing_copy_to(const routecap_routing *routing,
                                 const routecap_copy_options *options, void *dst, size_t dst_bytes,
                                 uint8_t *mask, size_t mask_bytes, uint64_t *needed) {
    return with_rows(routing, [&](const Routing &r) {
        CopyPlan plan;
        if (int32_t s = plan_copy(r.shape(), r.end() - r.first(), options, dst, dst_bytes, mask,
                                  mask_bytes, needed, plan);
            s < 0)
            return s;
        return copy_out(r, plan, dst, mask);
    });
}

int32_t routecap_routing_retain(const routecap_routing *routing) {
    return with(routing, [](const Routing &r) { return r.retain(), ROUTECAP_OK; });
}

void routecap_routing_free(routecap_routing *routing) {
    if (routing == nullptr || routing_of(routing)->process() != process_generation()) return;
    routing_of(routing)->release();
}

// ---- Serialised form and import -------------------------------------------------------------

int32_t routecap_routing_serialize(const routecap_routing *routing, uint32_t flags, void *dst,
                                   size_t dst_bytes, uint64_t *needed) {
    if (flags != 0) return report(ROUTECAP_ERR_ARGUMENT, "flags is %u", flags);
    return with_rows(routing,
                     [&](const Routing &r) { return serialize(r, dst, dst_bytes, needed); });
}

int32_t routecap_routing_deserialize(const void *data, size_t bytes, uint32_t flags,
                                     routecap_release release, void *context,
                                     routecap_routing **routing) {
    if (int32_t s = clear(routing, "routing"); s < 0) return s;
    return guard(
        [&] { return deserialize(data, bytes, flags, release, context, routing_output(routing)); });
}

int32_t routecap_routing_import(const routecap_view *view, uint32_t flags, routecap_release release,
                                void *context, routecap_routing **routing) {
    if (int32_t s = clear(routing, "routing"); s < 0) return s;
    return guard(
        [&] { return import_view(view, flags, release, context, routing_output(routing)); });
}

int32_t routecap_serialized_info(const void *data, size_t bytes, routecap_serialized *info) {
    if (int32_t s = check_output(info, "info"); s < 0) return s;
    return guard([&] { return serialized_info(data, bytes, info); });
}

int32_t routecap_serialized_splice(const void *head, size_t head_bytes, const void *tail,
                                   size_t tail_bytes, uint64_t row, void *header, size_t capacity,
                                   routecap_piece *pieces, size_t piece_size, size_t piece_capacity,
                                   routecap_splice *splice_) {
    if (int32_t s = check_output(splice_, "splice"); s < 0) return s;
    if (int32_t s = check_array(pieces, piece_capacity, piece_size, sizeof *pieces, "pieces");
        s < 0)
        return s;
    return guard([&] {
        return splice(head, head_bytes, tail, tail_bytes, row, header, capacity, pieces, piece_size,
                      piece_capacity, splice_);
    });
}

int32_t routecap_serialized_slice(const void *data, size_t bytes, uint64_t first, uint64_t rows,
                                  void *header, size_t capacity, routecap_piece *pieces,
                                  size_t piece_size, size_t piece_capacity,
                                  routecap_splice *slice) {
    if (int32_t s = check_output(slice, "slice"); s < 0) return s;
    if (int32_t s = check_array(pieces, piece_capacity, piece_size, sizeof *pieces, "pieces");
        s < 0)
        return s;
    return guard([&] {
        return slice_serialized(data, bytes, first, rows, header, capacity, pieces, piece_size,
                                piece_capacity, slice);
    });
}

// ---- Wire -----------------------------------------------------------------------------------

int32_t routecap_wire_describe(int32_t format, routecap_wire_description *description) {
    return wire::describe(format, description);
}

int32_t routecap_wire_find(const char *name, int32_t *format) {
    return guard([&] { return wire::find(name, format); });
}

int32_t routecap_wire_probe(const void *data, size_t bytes, routecap_wire_info *info) {
    return guard([&] { return wire::probe(data, bytes, info); });
}

int32_t routecap_wire_decode(const void *data, size_t bytes, int32_t format,
                             const routecap_wire_hint *hint, routecap_wire_report *report,
                             routecap_routing **routing) {
    if (int32_t s = clear(routing, "routing"); s < 0) return s;
    return guard(
        [&] { return wire::decode(data, bytes, format, hint, report, routing_output(routing)); });
}

int32_t routecap_wire_decode_into(const void *data, size_t bytes, int32_t format,
                                  const routecap_wire_hint *hint,
                                  const routecap_copy_options *options, void *dst, size_t dst_bytes,
                                  uint8_t *mask, size_t mask_bytes, uint64_t *needed,
                                  routecap_wire_report *report) {
    return guard([&] {
        return wire::decode_into(data, bytes, format, hint, options, dst, dst_bytes, mask,
                                 mask_bytes, needed, report);
    });
}

int32_t routecap_wire_decoder_create(int32_t format, const routecap_wire_hint *hint,
                                     routecap_wire_decoder **decoder) {
    if (int32_t s = clear(decoder, "decoder"); s < 0) return s;
    return guard([&] {
        if (int32_t s = wire::check_format(format, true); s < 0) return s;
        wire::Hint checked;
        if (int32_t s = wire::read_hint(hint, format, checked); s < 0) return s;
        *decoder = reinterpret_cast<routecap_wire_decoder *>(
            new wire::Decoder(format, std::move(checked)));
        return ROUTECAP_OK;
    });
}

int32_t routecap_wire_decoder_write(routecap_wire_decoder *decoder, const void *data,
                                    size_t bytes) {
    if (decoder == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "decoder is NULL");
    return guard([&] { return reinterpret_cast<wire::Decoder *>(decoder)->write(data, bytes); });
}

int32_t routecap_wire_decoder_finish(routecap_wire_decoder *decoder, routecap_wire_report *report_,
                                     routecap_routing **routing) {
    if (int32_t s = clear(routing, "routing"); s < 0) return s;
    if (decoder == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "decoder is NULL");
    return guard([&] {
        return reinterpret_cast<wire::Decoder *>(decoder)->finish(report_, routing_output(routing));
    });
}

void routecap_wire_decoder_free(routecap_wire_decoder *decoder) {
    delete reinterpret_cast<wire::Decoder *>(decoder);
}

int32_t routecap_wire_encode(const routecap_routing *routing, const routecap_wire_options *options,
                             void *dst, size_t dst_bytes, uint64_t *needed,
                             routecap_wire_report *report) {
    return with_rows(routing, [&](const Routing &r) {
        return wire::encode(r, options, dst, dst_bytes, needed, report);
    });
}

int32_t routecap_wire_splice(int32_t format, const void *head, size_t head_bytes,
                             const routecap_wire_hint *head_hint, const void *tail,
                             size_t tail_bytes, const routecap_wire_hint *tail_hint, uint64_t row,
                             void *dst, size_t dst_bytes, uint64_t *needed) {
    return guard([&] {
        return wire::splice(format, head, head_bytes, head_hint, tail, tail_bytes, tail_hint, row,
                            dst, dst_bytes, needed);
    });
}

// ---- Sequences ------------------------------------------------------------------------------

int32_t routecap_sequence_create(const routecap_sequence_config *config,
                                 routecap_sequence **sequence) {
    if (int32_t s = clear(sequence, "sequence"); s < 0) return s;
    return guard([&] { return Sequence::create(config, sequence_output(sequence)); });
}

void routecap_sequence_free(routecap_sequence *sequence) {
    if (sequence == nullptr || sequence_of(sequence)->process() != process_generation()) return;
    delete sequence_of(sequence);
}

int32_t routecap_sequence_append(routecap_sequence *sequence, const int32_t *tokens,
                                 uint64_t token_start, uint64_t count,
                                 const routecap_routing *routing,
                                 const routecap_append_options *options,
                                 routecap_append_report *report_) {
    const auto append = [&](const Routing *r) {
        return with(sequence, [&](Sequence &s) {
            return s.append(tokens, token_start, count, r, options, report_);
        });
    };
    if (routing == nullptr) return append(nullptr);
    return with_rows(routing, [&](const Routing &r) { return append(&r); });
}

int32_t routecap_sequence_truncate(routecap_sequence *sequence, uint64_t tokens) {
    return with(sequence, [&](Sequence &s) { return s.truncate(tokens); });
}

int32_t routecap_sequence_fork(const routecap_sequence *sequence, uint64_t tokens,
                               routecap_sequence **child) {
    if (int32_t s = clear(child, "child"); s < 0) return s;
    return with(sequence,
                [&](const Sequence &s) { return s.fork(tokens, sequence_output(child)); });
}

int32_t routecap_sequence_routing(const routecap_sequence *sequence, routecap_routing **routing) {
    if (int32_t s = clear(routing, "routing"); s < 0) return s;
    return with(sequence, [&](const Sequence &s) {
        Routing *rows = s.routing();
        *routing = routing_handle(rows);
        return rows->poll();
    });
}

int32_t routecap_sequence_spans(const routecap_sequence *sequence, routecap_sequence_span *spans,
                                size_t span_size, size_t capacity, uint64_t *count) {
    if (int32_t s = check_array(spans, capacity, span_size, sizeof *spans, "spans"); s < 0)
        return s;
    if (count == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "count is NULL");
    return with(sequence, [&](const Sequence &s) {
        *count = s.spans(spans, span_size, capacity);
        return ROUTECAP_OK;
    });
}

int32_t routecap_sequence_tokens(const routecap_sequence *sequence, uint64_t first, int32_t *tokens,
                                 size_t capacity, uint64_t *count) {
    if (tokens == nullptr && capacity > 0) return report(ROUTECAP_ERR_ARGUMENT, "tokens is NULL");
    if (count == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "count is NULL");
    return with(sequence,
                [&](const Sequence &s) { return s.tokens(first, tokens, capacity, *count); });
}

int32_t routecap_sequence_report(const routecap_sequence *sequence,
                                 routecap_append_report *report_) {
    if (int32_t s = check_output(report_, "report"); s < 0) return s;
    return with(sequence, [&](const Sequence &s) {
        write_struct(report_, s.sums());
        return ROUTECAP_OK;
    });
}

int32_t routecap_sequence_serialize(const routecap_sequence *sequence, uint32_t flags, void *dst,
                                    size_t dst_bytes, uint64_t *needed) {
    return with(sequence,
                [&](const Sequence &s) { return serialize(s, flags, dst, dst_bytes, needed); });
}

int32_t routecap_sequence_deserialize(const void *data, size_t bytes, uint64_t budget_bytes,
                                      routecap_sequence **sequence) {
    if (int32_t s = clear(sequence, "sequence"); s < 0) return s;
    return guard([&] { return deserialize(data, bytes, budget_bytes, sequence_output(sequence)); });
}

// ---- Store ----------------------------------------------------------------------------------

int32_t routecap_store_config_init(routecap_store_config *config, size_t struct_size) {
    return init_struct(config, struct_size, routecap_store_config{}, "config");
}

int32_t routecap_store_create(const routecap_store_config *config, const routecap_config *shape,
                              routecap_store **store) {
    return make_store(config, shape, store, [](StoreConfig c, StorePtr &object) {
        return LocalStore::create(std::move(c), object);
    });
}

int32_t routecap_store_create_shared(const routecap_store_config *config,
                                     const routecap_config *shape, int32_t *descriptor,
                                     routecap_store **store) {
    return make_store(config, shape, store, [descriptor](StoreConfig c, StorePtr &object) {
        if (descriptor == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "descriptor is NULL");
        return MappedStore::create(std::move(c), *descriptor, object);
    });
}

int32_t routecap_store_open_shared(const routecap_store_config *config,
                                   const routecap_config *shape, int32_t descriptor,
                                   routecap_store **store) {
    return make_store(config, shape, store, [descriptor](StoreConfig c, StorePtr &object) {
        return MappedStore::open(std::move(c), descriptor, object);
    });
}

void routecap_store_free(routecap_store *store) {
    if (store == nullptr || handle_of(store)->process != process_generation()) return;
    delete handle_of(store);
}

int32_t routecap_store_stats(const routecap_store *store, routecap_store_counts *counts) {
    return with(store, [&](const StorePtr &s) {
        if (int32_t status = check_output(counts, "counts"); status < 0) return status;
        routecap_store_counts c{};
        s->counts(c);
        write_struct(counts, c);
        return ROUTECAP_OK;
    });
}

int32_t routecap_store_advance(routecap_store *store, uint64_t generation) {
    return with(store, [&](const StorePtr &s) { return s->advance(generation); });
}

int32_t routecap_request_publish(routecap_capturer *capturer, routecap_request request,
                                 routecap_store *store, uint64_t first, const void *keys,
                                 size_t count, uint64_t generation) {
    return with(capturer, store, [&](Capturer &c, const StorePtr &s) {
        routecap_publish_item item{.request = request,
                                   .first = first,
                                   .keys = keys,
                                   .count = count,
                                   .status = 0,
                                   .reserved = 0};
        return c.publish(s, item, generation);
    });
}

int32_t routecap_request_adopt(routecap_capturer *capturer, routecap_request request,
                               routecap_store *store, uint64_t first, const void *keys,
                               size_t count, uint64_t generation, routecap_adoption *adoption) {
    return with(capturer, store, [&](Capturer &c, const StorePtr &s) {
        if (adoption != nullptr)
            if (int32_t status = check_output(adoption, "adoption"); status < 0) return status;
        routecap_adopt_item item{};
        item.request = request, item.first = first, item.keys = keys, item.count = count;
        const int32_t status = c.adopt(s, item, generation);
        if (status == ROUTECAP_OK && adoption != nullptr)
            write_struct(adoption, routecap_adoption{.struct_size = 0,
                                                     .reserved = 0,
                                                     .rows = item.rows,
                                                     .found = item.found,
                                                     .evicted = item.evicted,
                                                     .not_published = item.not_published,
                                                     .stale = item.stale});
        return status;
    });
}

int32_t routecap_request_publish_batch(routecap_capturer *capturer, routecap_store *store,
                                       routecap_publish_item *items, size_t item_size, size_t count,
                                       uint64_t generation) {
    return with(capturer, store, [&](Capturer &c, const StorePtr &s) {
        return c.publish_batch(s, items, item_size, count, generation);
    });
}

int32_t routecap_request_adopt_batch(routecap_capturer *capturer, routecap_store *store,
                                     routecap_adopt_item *items, size_t item_size, size_t count,
                                     uint64_t generation) {
    return with(capturer, store, [&](Capturer &c, const StorePtr &s) {
        return c.adopt_batch(s, items, item_size, count, generation);
    });
}

int32_t routecap_key_chain(const void *seed, size_t seed_bytes, const int32_t *tokens, size_t count,
                           uint32_t block_rows, uint32_t key_bytes, void *keys, size_t keys_bytes) {
    return key_chain(seed, seed_bytes, tokens, count, block_rows, key_bytes, keys, keys_bytes);
}

int32_t routecap_store_contains(routecap_store *store, const void *keys, size_t count,
                                uint64_t generation, int32_t *reasons, uint64_t *leading) {
    return with_keys(store, keys, count,
                     [&](Store &s, Keys k) { return s.contains(k, generation, reasons, leading); });
}

int32_t routecap_store_retain(routecap_store *store, const void *keys, size_t count,
                              int32_t *reasons) {
    return with_keys(store, keys, count, [&](Store &s, Keys k) { return s.retain(k, reasons); });
}

int32_t routecap_store_release(routecap_store *store, const void *keys, size_t count) {
    return with_keys(store, keys, count, [&](Store &s, Keys k) { return s.release(k); });
}

int32_t routecap_store_evict(routecap_store *store, const void *keys, size_t count,
                             uint64_t *evicted) {
    return with_keys(store, keys, count, [&](Store &s, Keys k) { return s.evict(k, evicted); });
}

int32_t routecap_store_move(routecap_store *store, const void *from, const void *to, size_t count) {
    return with_keys(store, from, count, [&](Store &s, Keys k) {
        if (to == nullptr && count > 0) return report(ROUTECAP_ERR_ARGUMENT, "to is NULL");
        return s.move(k, Keys{static_cast<const uint8_t *>(to), count, k.key_bytes});
    });
}

int32_t routecap_store_export(routecap_store *store, const void *keys, size_t count,
                              uint64_t generation, void *dst, size_t dst_bytes, uint64_t *needed) {
    return with_keys(store, keys, count, [&](Store &s, Keys k) {
        return export_blocks(s, k, generation, dst, dst_bytes, needed);
    });
}

int32_t routecap_store_import(routecap_store *store, const void *data, size_t bytes,
                              uint64_t *blocks) {
    return with(store, [&](const StorePtr &s) { return import_blocks(*s, data, bytes, blocks); });
}

// ---- Plans ----------------------------------------------------------------------------------

int32_t routecap_plan_config_init(routecap_plan_config *config, size_t struct_size) {
    routecap_plan_config defaults{};
    defaults.lost_value = -1;
    return init_struct(config, struct_size, defaults, "config");
}

int32_t routecap_plan_create(const routecap_plan_config *config, routecap_plan **plan) {
    if (int32_t s = clear(plan, "plan"); s < 0) return s;
    return guard([&] {
        std::unique_ptr<Plan> made;
        if (int32_t s = Plan::create(config, made); s < 0) return s;
        *plan = reinterpret_cast<routecap_plan *>(made.release());
        return ROUTECAP_OK;
    });
}

void routecap_plan_free(routecap_plan *plan) { delete reinterpret_cast<Plan *>(plan); }

int32_t routecap_plan_describe(const routecap_plan *plan, routecap_plan_shape *shape) {
    if (int32_t s = check_output(shape, "shape"); s < 0) return s;
    return with(plan, [&](const Plan &p) { return p.describe(shape), ROUTECAP_OK; });
}

int32_t routecap_plan_ranges(const routecap_plan *plan, routecap_plan_range *ranges,
                             size_t range_size, size_t capacity, uint64_t *count) {
    return with(plan, [&](const Plan &p) {
        return give_out(p.layout().ranges, ranges, range_size, capacity, count, "ranges");
    });
}

int32_t routecap_plan_runs(const routecap_plan *plan, routecap_plan_run *runs, size_t run_size,
                           size_t capacity, uint64_t *count) {
    return with(plan, [&](const Plan &p) {
        return give_out(p.layout().runs, runs, run_size, capacity, count, "runs");
    });
}

int32_t routecap_plan_gather(const routecap_plan *plan, const routecap_plan_source *sources,
                             size_t source_size, size_t count, void *dst, size_t dst_bytes,
                             uint8_t *classes, size_t classes_bytes, routecap_plan_report *report) {
    return with(plan, [&](const Plan &p) {
        return gather(p, sources, source_size, count, dst, dst_bytes, classes, classes_bytes,
                      report);
    });
}

int32_t routecap_plan_gather_values(const routecap_plan *plan, const void *const *values,
                                    size_t element_bytes, const void *fill, void *dst,
                                    size_t dst_bytes) {
    return with(plan, [&](const Plan &p) {
        return p.gather_values(values, element_bytes, fill, dst, dst_bytes);
    });
}

int32_t routecap_plan_scatter(const routecap_plan *plan, const void *ids, size_t ids_bytes,
                              const uint8_t *classes, size_t classes_bytes,
                              routecap_routing **routings, size_t count) {
    if (routings == nullptr && count > 0) return report(ROUTECAP_ERR_ARGUMENT, "routings is NULL");
    std::fill_n(routings, count, nullptr);
    return with(plan, [&](const Plan &p) {
        return scatter(p, ids, ids_bytes, classes, classes_bytes, routing_output(routings), count);
    });
}

int32_t routecap_plan_pack(const routecap_plan *plan, const routecap_plan_source *sources,
                           size_t source_size, size_t count, void *packed, size_t packed_bytes,
                           routecap_plan_report *report) {
    return with(plan, [&](const Plan &p) {
        return pack(p, sources, source_size, count, packed, packed_bytes, report);
    });
}

int32_t routecap_plan_unpack(const routecap_plan *plan, const void *packed, size_t packed_bytes,
                             const routecap_plan_target *target, routecap_stream stream) {
    return with(plan,
                [&](const Plan &p) { return unpack(p, packed, packed_bytes, target, stream); });
}

// ---- The function table ---------------------------------------------------------------------

const routecap_api *routecap_get_api(uint32_t major, uint32_t minor) {
    static const routecap_api api = {
        .size = sizeof(routecap_api),
        .major = ROUTECAP_VERSION_MAJOR,
        .minor = ROUTECAP_VERSION_MINOR,
#define ROUTECAP_ENTRY(name) .name = routecap_##name
        ROUTECAP_ENTRY(version),
        ROUTECAP_ENTRY(status_name),
        ROUTECAP_ENTRY(last_error),
        ROUTECAP_ENTRY(backend_info),
        ROUTECAP_ENTRY(config_init),
        ROUTECAP_ENTRY(config_memory),
        ROUTECAP_ENTRY(capturer_create),
        ROUTECAP_ENTRY(capturer_destroy),
        ROUTECAP_ENTRY(capturer_stats),
        ROUTECAP_ENTRY(capturer_layer_stats),
        ROUTECAP_ENTRY(capturer_progress),
        ROUTECAP_ENTRY(sink_bind),
        ROUTECAP_ENTRY(sink_layer),
        ROUTECAP_ENTRY(layer_record),
        ROUTECAP_ENTRY(layers_record),
        ROUTECAP_ENTRY(router_init),
        ROUTECAP_ENTRY(layer_route),
        ROUTECAP_ENTRY(capturer_probe),
        ROUTECAP_ENTRY(received_read),
        ROUTECAP_ENTRY(received_merge),
        ROUTECAP_ENTRY(step_begin),
        ROUTECAP_ENTRY(step_snapshot),
        ROUTECAP_ENTRY(step_issue),
        ROUTECAP_ENTRY(step_discard),
        ROUTECAP_ENTRY(step_poll),
        ROUTECAP_ENTRY(step_finalize),
        ROUTECAP_ENTRY(request_open),
        ROUTECAP_ENTRY(request_accept),
        ROUTECAP_ENTRY(request_accept_batch),
        ROUTECAP_ENTRY(request_truncate),
        ROUTECAP_ENTRY(request_fork),
        ROUTECAP_ENTRY(request_attach),
        ROUTECAP_ENTRY(request_coverage),
        ROUTECAP_ENTRY(request_extract),
        ROUTECAP_ENTRY(request_extract_batch),
        ROUTECAP_ENTRY(copy_options_init),
        ROUTECAP_ENTRY(request_extract_into),
        ROUTECAP_ENTRY(request_finish),
        ROUTECAP_ENTRY(request_finish_batch),
        ROUTECAP_ENTRY(request_close),
        ROUTECAP_ENTRY(request_close_batch),
        ROUTECAP_ENTRY(routing_wait),
        ROUTECAP_ENTRY(routing_poll),
        ROUTECAP_ENTRY(routing_view),
        ROUTECAP_ENTRY(routing_coverage),
        ROUTECAP_ENTRY(routing_split),
        ROUTECAP_ENTRY(routing_slice),
        ROUTECAP_ENTRY(routing_merge),
        ROUTECAP_ENTRY(routing_copy_to),
        ROUTECAP_ENTRY(routing_retain),
        ROUTECAP_ENTRY(routing_free),
        ROUTECAP_ENTRY(routing_serialize),
        ROUTECAP_ENTRY(routing_deserialize),
        ROUTECAP_ENTRY(routing_import),
        ROUTECAP_ENTRY(serialized_info),
        ROUTECAP_ENTRY(serialized_splice),
        ROUTECAP_ENTRY(wire_describe),
        ROUTECAP_ENTRY(wire_find),
        ROUTECAP_ENTRY(wire_probe),
        ROUTECAP_ENTRY(wire_decode),
        ROUTECAP_ENTRY(wire_decode_into),
        ROUTECAP_ENTRY(wire_decoder_create),
        ROUTECAP_ENTRY(wire_decoder_write),
        ROUTECAP_ENTRY(wire_decoder_finish),
        ROUTECAP_ENTRY(wire_decoder_free),
        ROUTECAP_ENTRY(wire_encode),
        ROUTECAP_ENTRY(wire_splice),
        ROUTECAP_ENTRY(sequence_create),
        ROUTECAP_ENTRY(sequence_free),
        ROUTECAP_ENTRY(sequence_append),
        ROUTECAP_ENTRY(sequence_truncate),
        ROUTECAP_ENTRY(sequence_fork),
        ROUTECAP_ENTRY(sequence_routing),
        ROUTECAP_ENTRY(sequence_spans),
        ROUTECAP_ENTRY(sequence_tokens),
        ROUTECAP_ENTRY(sequence_report),
        ROUTECAP_ENTRY(sequence_serialize),
        ROUTECAP_ENTRY(sequence_deserialize),
        ROUTECAP_ENTRY(store_config_init),
        ROUTECAP_ENTRY(store_create),
        ROUTECAP_ENTRY(store_free),
        ROUTECAP_ENTRY(store_stats),
        ROUTECAP_ENTRY(store_advance),
        ROUTECAP_ENTRY(request_publish),
        ROUTECAP_ENTRY(request_adopt),
        ROUTECAP_ENTRY(request_publish_batch),
        ROUTECAP_ENTRY(request_adopt_batch),
        ROUTECAP_ENTRY(key_chain),
        ROUTECAP_ENTRY(store_contains),
        ROUTECAP_ENTRY(store_retain),
        ROUTECAP_ENTRY(store_release),
        ROUTECAP_ENTRY(store_evict),
        ROUTECAP_ENTRY(store_move),
        ROUTECAP_ENTRY(store_export),
        ROUTECAP_ENTRY(store_import),
        ROUTECAP_ENTRY(store_create_shared),
        ROUTECAP_ENTRY(store_open_shared),
        // Plans.
        ROUTECAP_ENTRY(plan_config_init),
        ROUTECAP_ENTRY(plan_create),
        ROUTECAP_ENTRY(plan_free),
        ROUTECAP_ENTRY(plan_describe),
        ROUTECAP_ENTRY(plan_ranges),
        ROUTECAP_ENTRY(plan_runs),
        ROUTECAP_ENTRY(plan_gather),
        ROUTECAP_ENTRY(plan_gather_values),
        ROUTECAP_ENTRY(plan_scatter),
        ROUTECAP_ENTRY(plan_pack),
        ROUTECAP_ENTRY(plan_unpack),
        ROUTECAP_ENTRY(serialized_slice),
#undef ROUTECAP_ENTRY
    };
    static_assert(sizeof(routecap_api) == 16 + 109 * sizeof(void *),
                  "an entry was added: add it to the table above");
    return major == ROUTECAP_VERSION_MAJOR && minor <= ROUTECAP_VERSION_MINOR ? &api : nullptr;
}
