// Routings, and how they are read.
#include <algorithm>

#include "api/call.h"
#include "base/structs.h"
#include "routing/copy_out.h"

using namespace routecap;

routecap_status routecap_copy_options_init(routecap_copy_options *options, size_t struct_size) {
    routecap_copy_options defaults{};
    defaults.fill = -1;
    defaults.none = ROUTECAP_NO_EXPERT;
    return init_struct(options, struct_size, defaults, "options");
}

routecap_status routecap_routing_wait(const routecap_routing *routing, int64_t timeout_ns) {
    return with(routing, [&](const Routing &r) { return r.wait(timeout_ns); });
}

routecap_status routecap_routing_poll(const routecap_routing *routing) {
    return with(routing, [](const Routing &r) { return r.poll(); });
}

routecap_status routecap_routing_view(const routecap_routing *routing, routecap_view *view) {
    if (int32_t s = check_output(view, "view"); s < 0) return s;
    return with_rows(routing, [&](const Routing &r) { return r.view(view), ROUTECAP_OK; });
}

routecap_status routecap_routing_coverage(const routecap_routing *routing,
                                          routecap_coverage *coverage, routecap_missing *missing,
                                          size_t missing_size, size_t capacity) {
    if (int32_t s = check_output(coverage, "coverage"); s < 0) return s;
    if (int32_t s =
            check_array(missing, capacity, missing_size, sizeof(routecap_missing), "missing");
        s < 0)
        return s;
    return with_rows(routing, [&](const Routing &r) {
        return r.coverage(coverage, missing, missing_size, capacity);
    });
}

routecap_status routecap_routing_split(const routecap_routing *routing, uint64_t prompt_tokens,
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

routecap_status routecap_routing_slice(const routecap_routing *routing, uint64_t first,
                                       uint64_t rows, routecap_routing **slice) {
    if (int32_t s = clear(slice, "slice"); s < 0) return s;
    return with_rows(routing, [&](const Routing &r) {
        if (first < r.first() || first > r.end() ||
            (rows != ROUTECAP_ROWS_ALL && rows > r.end() - first))
            return report(ROUTECAP_ERR_OUT_OF_RANGE,
                          "%llu rows from %llu of a routing of rows [%llu,%llu)", ull(rows),
                          ull(first), ull(r.first()), ull(r.end()));
        *slice = routing_handle(r.slice(first, rows == ROUTECAP_ROWS_ALL ? r.end() - first : rows));
        return ROUTECAP_OK;
    });
}

routecap_status routecap_routing_merge(const routecap_routing *const *routings, size_t count,
                                       uint32_t flags, routecap_routing **merged) {
    if (int32_t s = clear(merged, "merged"); s < 0) return s;
    if (flags != 0) return report(ROUTECAP_ERR_ARGUMENT, "flags is %u", flags);
    if (routings == nullptr || count == 0) return report(ROUTECAP_ERR_ARGUMENT, "nothing to merge");
    if (int32_t s = check_count(count, sizeof(void *), "routings"); s < 0) return s;
    for (size_t i = 0; i < count; i++)
        if (int32_t s = with_rows(routings[i], [](const Routing &) { return ROUTECAP_OK; }); s < 0)
            return s;
    return guard([&] {
        return merge({reinterpret_cast<const Routing *const *>(routings), count},
                     routing_output(merged));
    });
}

routecap_status routecap_routing_copy_to(const routecap_routing *routing,
                                         const routecap_copy_options *options, void *dst,
                                         size_t dst_bytes, uint8_t *mask, size_t mask_bytes,
                                         uint64_t *needed) {
    return with_rows(routing, [&](const Routing &r) {
        return copy_out(r, {options, dst, dst_bytes, mask, mask_bytes, needed});
    });
}

routecap_status routecap_routing_copy_weights(const routecap_routing *routing,
                                              const routecap_copy_options *options, void *dst,
                                              size_t dst_bytes, uint8_t *mask, size_t mask_bytes,
                                              uint64_t *needed) {
    return with_rows(routing, [&](const Routing &r) {
        return copy_out_weights(r, {options, dst, dst_bytes, mask, mask_bytes, needed});
    });
}

routecap_status routecap_routing_retain(const routecap_routing *routing) {
    return with(routing, [](const Routing &r) { return r.retain(), ROUTECAP_OK; });
}

void routecap_routing_free(routecap_routing *routing) {
    if (routing == nullptr || routing_of(routing)->process() != process_generation()) return;
    routing_of(routing)->release();
}
