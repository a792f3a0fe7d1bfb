// The sink, recording, routing from logits, and probes.
#include "api/call.h"
#include "base/structs.h"
#include "capture/routing_method.h"

using namespace routecap;

routecap_status routecap_sink_bind(routecap_capturer *capturer, uint32_t first_layer,
                                   uint32_t layers, const routecap_sink *sink) {
    return on_forward_path(capturer,
                           [&](Capturer &c) { return c.forward.bind(first_layer, layers, sink); });
}

routecap_status routecap_sink_layer(routecap_capturer *capturer, uint32_t layer,
                                    routecap_sink *sink) {
    return on_forward_path(capturer,
                           [&](Capturer &c) { return c.forward.sink_layer(layer, sink); });
}

routecap_status routecap_layer_record(routecap_capturer *capturer, uint32_t layer,
                                      const routecap_source *source, routecap_stream stream) {
    return on_forward_path(capturer,
                           [&](Capturer &c) { return c.forward.record(layer, source, stream); });
}

routecap_status routecap_layers_record(routecap_capturer *capturer, const routecap_source *source,
                                       const routecap_layer_source *layers, size_t layer_size,
                                       size_t count, routecap_stream stream) {
    return on_forward_path(capturer, [&](Capturer &c) {
        return c.forward.record_layers(source, layers, layer_size, count, stream);
    });
}

routecap_status routecap_router_init(routecap_router *router, size_t struct_size,
                                     routecap_method method) {
    routecap_router filled;
    if (int32_t s = init_router(filled, method); s < 0) return s;
    return init_struct(router, struct_size, filled, "router");
}

routecap_status routecap_layer_route(routecap_capturer *capturer, uint32_t layer,
                                     const routecap_router *router, const routecap_logits *logits,
                                     routecap_stream stream) {
    return on_forward_path(
        capturer, [&](Capturer &c) { return c.forward.route(layer, router, logits, stream); });
}

routecap_status routecap_capturer_probe(routecap_capturer *capturer, uint32_t rows,
                                        routecap_layer_probe *layers, size_t layer_size,
                                        size_t count, routecap_stream stream) {
    return on_forward_path(capturer, [&](Capturer &c) {
        return c.forward.probe(rows, layers, layer_size, count, stream);
    });
}
