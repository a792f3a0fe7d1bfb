// The serialised form of a routing, as docs/format.md specifies it: written, read without trust,
// and spliced by the headers alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "routecap.h"
#include "routing/routing.h"

namespace routecap {

int32_t serialize(const Routing &routing, void *dst, size_t dst_bytes, uint64_t *needed);
int32_t deserialize(const void *data, size_t bytes, uint32_t flags, routecap_release release,
                    void *context, Routing **routing);
int32_t serialized_info(const void *data, size_t bytes, routecap_serialized *info);
// Where the caller wants the header and the pieces.
struct SplicedTo {
    void *header;
    size_t capacity;
    routecap_piece *pieces;
    size_t piece_size, piece_capacity;
    routecap_splice *sizes;
};
int32_t splice(const void *head, size_t head_bytes, const void *tail, size_t tail_bytes,
               uint64_t row, const SplicedTo &to);
int32_t slice_serialized(const void *data, size_t bytes, uint64_t first, uint64_t rows,
                         const SplicedTo &to);

}  // namespace routecap
