// Routings as bytes, and routings made from arrays.
#include "routing/serialized.h"
#include "api/call.h"
#include "base/structs.h"
#include "routing/import.h"

using namespace routecap;

namespace {

template <class Body>
int32_t checked(const SplicedTo &to, Body body, const char *call = __builtin_FUNCTION()) noexcept {
    if (int32_t s = check_output(to.sizes, "splice"); s < 0) return s;
    if (int32_t s =
            check_array(to.pieces, to.piece_capacity, to.piece_size, sizeof *to.pieces, "pieces");
        s < 0)
        return s;
    return guard([&] { return body(to); }, call);
}

}  // namespace

routecap_status routecap_routing_serialize(const routecap_routing *routing, void *dst,
                                           size_t dst_bytes, uint64_t *needed) {
    return with_rows(routing,
                     [&](const Routing &r) { return serialize(r, dst, dst_bytes, needed); });
}

routecap_status routecap_routing_deserialize(const void *data, size_t bytes,
                                             routecap_import_flags flags, routecap_release release,
                                             void *context, routecap_routing **routing) {
    if (int32_t s = clear(routing, "routing"); s < 0) return s;
    return guard(
        [&] { return deserialize(data, bytes, flags, release, context, routing_output(routing)); });
}

routecap_status routecap_routing_import(const routecap_view *view, routecap_import_flags flags,
                                        routecap_release release, void *context,
                                        routecap_routing **routing) {
    if (int32_t s = clear(routing, "routing"); s < 0) return s;
    return guard(
        [&] { return import_view(view, flags, release, context, routing_output(routing)); });
}

routecap_status routecap_serialized_info(const void *data, size_t bytes,
                                         routecap_serialized *info) {
    if (int32_t s = check_output(info, "info"); s < 0) return s;
    return guard([&] { return serialized_info(data, bytes, info); });
}

routecap_status routecap_serialized_splice(const void *head, size_t head_bytes, const void *tail,
                                           size_t tail_bytes, uint64_t row, void *header,
                                           size_t capacity, routecap_piece *pieces,
                                           size_t piece_size, size_t piece_capacity,
                                           routecap_splice *splice_) {
    return checked(
        {header, capacity, pieces, piece_size, piece_capacity, splice_},
        [&](const SplicedTo &to) { return splice(head, head_bytes, tail, tail_bytes, row, to); });
}

routecap_status routecap_serialized_slice(const void *data, size_t bytes, uint64_t first,
                                          uint64_t rows, void *header, size_t capacity,
                                          routecap_piece *pieces, size_t piece_size,
                                          size_t piece_capacity, routecap_splice *slice) {
    return checked(
        {header, capacity, pieces, piece_size, piece_capacity, slice},
        [&](const SplicedTo &to) { return slice_serialized(data, bytes, first, rows, to); });
}
