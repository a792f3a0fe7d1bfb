// Requests: opening, changing, ending and reading them.
#include <algorithm>

#include "api/call.h"
#include "base/structs.h"

using namespace routecap;

namespace {

// Clears the routings of a batch before it runs, so that a refused item has none. If the size or
// the number of the items is wrong, the call refuses them, and nothing may be written.
template <class Item>
void clear_routings(Item *items, size_t item_size, size_t count) noexcept {
    if (items == nullptr || item_size < sizeof *items || item_size > kLargestStruct ||
        !can_be(count, item_size))
        return;
    for (size_t i = 0; i < count; i++) at(items, item_size, i).routing = nullptr;
}

}  // namespace

routecap_status routecap_request_open(routecap_capturer *capturer,
                                      const routecap_open_options *options,
                                      routecap_request *requests, size_t count) {
    if (requests != nullptr && can_be(count, sizeof *requests))
        std::fill_n(requests, count, routecap_request{0});
    return with(capturer, [&](Capturer &c) { return c.requests.open(options, requests, count); });
}

routecap_status routecap_request_accept(routecap_capturer *capturer, routecap_request request,
                                        routecap_step step, const uint32_t *rows, size_t count) {
    return with(capturer,
                [&](Capturer &c) { return c.requests.accept(request, step, rows, count); });
}

routecap_status routecap_request_accept_batch(routecap_capturer *capturer,
                                              routecap_accept_item *items, size_t item_size,
                                              size_t count) {
    return with(capturer,
                [&](Capturer &c) { return c.requests.accept_batch(items, item_size, count); });
}

routecap_status routecap_request_truncate(routecap_capturer *capturer, routecap_request request,
                                          uint64_t rows) {
    return with(capturer, [&](Capturer &c) { return c.requests.truncate(request, rows); });
}

routecap_status routecap_request_fork(routecap_capturer *capturer, routecap_request request,
                                      uint64_t rows, routecap_request *child) {
    if (int32_t s = clear(child, "child"); s < 0) return s;
    return with(capturer, [&](Capturer &c) { return c.requests.fork(request, rows, child); });
}

routecap_status routecap_request_attach(routecap_capturer *capturer, routecap_request request,
                                        const routecap_routing *routing, uint64_t rows) {
    return with(capturer,
                [&](Capturer &c) { return c.requests.attach(request, routing_of(routing), rows); });
}

routecap_status routecap_request_coverage(routecap_capturer *capturer, routecap_request request,
                                          uint64_t first, uint64_t rows,
                                          routecap_coverage *coverage, routecap_missing *missing,
                                          size_t missing_size, size_t capacity) {
    return with(capturer, [&](Capturer &c) {
        return c.reader.coverage(request, first, rows, coverage, missing, missing_size, capacity);
    });
}

routecap_status routecap_request_extract(routecap_capturer *capturer, routecap_request request,
                                         uint64_t first, uint64_t rows, routecap_extract_mode mode,
                                         routecap_read_flags flags, routecap_routing **routing) {
    if (int32_t s = clear(routing, "routing"); s < 0) return s;
    return with(capturer, [&](Capturer &c) {
        return c.reader.extract(request, first, rows, mode, flags, routing_output(routing));
    });
}

routecap_status routecap_request_extract_batch(routecap_capturer *capturer,
                                               routecap_extract_item *items, size_t item_size,
                                               size_t count) {
    clear_routings(items, item_size, count);
    return with(capturer,
                [&](Capturer &c) { return c.reader.extract_batch(items, item_size, count); });
}

routecap_status routecap_request_extract_into(routecap_capturer *capturer, routecap_request request,
                                              uint64_t first, uint64_t rows,
                                              const routecap_copy_options *options, void *dst,
                                              size_t dst_bytes, uint8_t *mask, size_t mask_bytes,
                                              uint64_t *needed) {
    return with(capturer, [&](Capturer &c) {
        return c.reader.extract_into(request, first, rows, options, dst, dst_bytes, mask,
                                     mask_bytes, needed);
    });
}

routecap_status routecap_request_finish(routecap_capturer *capturer, routecap_request request,
                                        uint64_t rows, routecap_routing **routing) {
    if (int32_t s = clear(routing, "routing"); s < 0) return s;
    return with(capturer, [&](Capturer &c) {
        return c.requests.finish(request, rows, routing_output(routing));
    });
}

routecap_status routecap_request_finish_batch(routecap_capturer *capturer,
                                              routecap_finish_item *items, size_t item_size,
                                              size_t count) {
    clear_routings(items, item_size, count);
    return with(capturer,
                [&](Capturer &c) { return c.requests.finish_batch(items, item_size, count); });
}

routecap_status routecap_request_close(routecap_capturer *capturer, routecap_request request) {
    return with(capturer, [&](Capturer &c) { return c.requests.close(request); });
}

routecap_status routecap_request_close_batch(routecap_capturer *capturer,
                                             const routecap_request *requests,
                                             routecap_status *status, size_t count) {
    return with(capturer,
                [&](Capturer &c) { return c.requests.close_batch(requests, status, count); });
}
