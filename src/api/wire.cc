// Formats of the wire: decoding and encoding messages.
#include "api/call.h"
#include "wire/decoder.h"
#include "wire/format.h"
#include "wire/message.h"

using namespace routecap;

routecap_status routecap_wire_describe(routecap_wire_format format,
                                       routecap_wire_description *description) {
    return wire::describe(format, description);
}

routecap_status routecap_wire_find(const char *name, routecap_wire_format *format) {
    return guard([&] { return wire::find(name, format); });
}

routecap_status routecap_wire_decode(const void *data, size_t bytes, routecap_wire_format format,
                                     const routecap_wire_hint *hint, routecap_wire_report *report,
                                     routecap_routing **routing) {
    if (int32_t s = clear(routing, "routing"); s < 0) return s;
    return guard(
        [&] { return wire::decode(data, bytes, format, hint, report, routing_output(routing)); });
}

routecap_status routecap_wire_decoder_create(routecap_wire_format format,
                                             const routecap_wire_hint *hint,
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

routecap_status routecap_wire_decoder_write(routecap_wire_decoder *decoder, const void *data,
                                            size_t bytes) {
    if (decoder == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "decoder is NULL");
    return guard([&] { return reinterpret_cast<wire::Decoder *>(decoder)->write(data, bytes); });
}

routecap_status routecap_wire_decoder_finish(routecap_wire_decoder *decoder,
                                             routecap_wire_report *report_,
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

routecap_status routecap_wire_encode(const routecap_routing *routing,
                                     const routecap_wire_options *options, void *dst,
                                     size_t dst_bytes, uint64_t *needed,
                                     routecap_wire_report *report) {
    return with_rows(routing, [&](const Routing &r) {
        return wire::encode(r, options, dst, dst_bytes, needed, report);
    });
}
