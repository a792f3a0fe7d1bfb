// Capturers and their steps.
#include <memory>

#include "api/call.h"
#include "base/structs.h"
#include "capture/config.h"

using namespace routecap;

routecap_status routecap_backend_info(routecap_backend_kind backend, routecap_backend *info) {
    if (int32_t s = check_output(info, "info"); s < 0) return s;
    const BackendInfo i = backend_info(backend);
    write_struct(info, routecap_backend{.struct_size = 0,
                                        .available = i.available,
                                        .devices = i.devices,
                                        .reserved = 0,
                                        .detail = i.detail});
    return ROUTECAP_OK;
}

routecap_status routecap_config_init(routecap_config *config, size_t struct_size) {
    return init_struct(config, struct_size, routecap_config{}, "config");
}

routecap_status routecap_config_memory(const routecap_config *config, routecap_memory *memory) {
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

routecap_status routecap_capturer_create(const routecap_config *config,
                                         routecap_capturer **capturer) {
    if (int32_t s = clear(capturer, "capturer"); s < 0) return s;
    return guard([&] {
        Config c;
        if (int32_t s = read_config(config, c); s < 0) return s;
        auto handle = std::make_unique<CapturerHandle>();
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

routecap_status routecap_capturer_stats(const routecap_capturer *capturer, routecap_stats *stats) {
    return with(capturer, [&](Capturer &c) { return c.stats(stats); });
}

routecap_status routecap_capturer_layer_stats(const routecap_capturer *capturer,
                                              routecap_layer_stats *stats, size_t stat_size,
                                              size_t count) {
    return with(capturer, [&](Capturer &c) { return c.layer_stats(stats, stat_size, count); });
}

routecap_status routecap_capturer_progress(routecap_capturer *capturer) {
    return with(capturer, [&](Capturer &c) { return c.progress(); });
}

routecap_status routecap_step_begin(routecap_capturer *capturer, uint32_t rows,
                                    routecap_stream stream) {
    return on_forward_path(capturer, [&](Capturer &c) { return c.forward.begin(rows, stream); });
}

routecap_status routecap_step_snapshot(routecap_capturer *capturer, routecap_stream stream) {
    return on_forward_path(capturer, [&](Capturer &c) { return c.forward.snapshot(stream); });
}

routecap_status routecap_step_issue(routecap_capturer *capturer, const routecap_span *spans,
                                    size_t span_size, size_t count,
                                    const routecap_issue_options *options, routecap_status *status,
                                    routecap_step *step, routecap_stream stream) {
    if (step != nullptr) *step = 0;
    return on_forward_path(capturer, [&](Capturer &c) {
        return c.forward.issue(spans, span_size, count, options, status, step, stream);
    });
}

routecap_status routecap_step_discard(routecap_capturer *capturer, routecap_stream stream) {
    return on_forward_path(capturer, [&](Capturer &c) { return c.forward.discard(stream); });
}

routecap_status routecap_step_arrive(routecap_capturer *capturer, routecap_step step,
                                     const routecap_sink *rows) {
    return with(capturer, [&](Capturer &c) { return c.arrive(step, rows); });
}

routecap_status routecap_step_poll(routecap_capturer *capturer, routecap_step step) {
    return with(capturer, [&](Capturer &c) { return c.poll(step); });
}

routecap_status routecap_step_finalize(routecap_capturer *capturer, routecap_step step,
                                       int64_t timeout_ns, uint64_t *conflicting) {
    return with(capturer, [&](Capturer &c) { return c.finalize(step, timeout_ns, conflicting); });
}
