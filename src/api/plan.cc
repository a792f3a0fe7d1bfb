// Plans: the rows of one rank of a trainer, in its layout.
#include <algorithm>
#include <memory>

#include "api/call.h"
#include "base/structs.h"
#include "plan/plan.h"

using namespace routecap;

namespace {

template <class Body>
int32_t with(const routecap_plan *plan, Body body,
             const char *call = __builtin_FUNCTION()) noexcept {
    if (plan == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "plan is NULL");
    return guard([&] { return body(*reinterpret_cast<const Plan *>(plan)); }, call);
}

}  // namespace

routecap_status routecap_plan_config_init(routecap_plan_config *config, size_t struct_size) {
    routecap_plan_config defaults{};
    defaults.context_rank = defaults.tensor_rank = ROUTECAP_PLAN_RANK_UNSET;
    defaults.lost_value = -1;
    defaults.none_value = ROUTECAP_NO_EXPERT;
    return init_struct(config, struct_size, defaults, "config");
}

routecap_status routecap_plan_create(const routecap_plan_config *config, routecap_plan **plan) {
    if (int32_t s = clear(plan, "plan"); s < 0) return s;
    return guard([&] {
        std::unique_ptr<Plan> made;
        if (int32_t s = Plan::create(config, made); s < 0) return s;
        *plan = reinterpret_cast<routecap_plan *>(made.release());
        return ROUTECAP_OK;
    });
}

void routecap_plan_free(routecap_plan *plan) { delete reinterpret_cast<Plan *>(plan); }

routecap_status routecap_plan_describe(const routecap_plan *plan, routecap_plan_shape *shape) {
    if (int32_t s = check_output(shape, "shape"); s < 0) return s;
    return with(plan, [&](const Plan &p) { return p.describe(shape), ROUTECAP_OK; });
}

routecap_status routecap_plan_ranges(const routecap_plan *plan, routecap_plan_range *ranges,
                                     size_t range_size, size_t capacity, uint64_t *count) {
    return with(plan, [&](const Plan &p) {
        return give_out(p.layout().ranges, ranges, range_size, capacity, count, "ranges");
    });
}

routecap_status routecap_plan_gather(const routecap_plan *plan, const routecap_plan_source *sources,
                                     size_t source_size, size_t count, void *dst, size_t dst_bytes,
                                     uint8_t *classes, size_t classes_bytes,
                                     routecap_plan_report *report) {
    return with(plan, [&](const Plan &p) {
        return gather(p, sources, source_size, count, dst, dst_bytes, classes, classes_bytes,
                      report);
    });
}

routecap_status routecap_plan_gather_weights(const routecap_plan *plan,
                                             const routecap_plan_source *sources,
                                             size_t source_size, size_t count, routecap_dtype dtype,
                                             float missing, void *dst, size_t dst_bytes,
                                             uint64_t *missing_cells) {
    return with(plan, [&](const Plan &p) {
        return gather_weights(p, sources, source_size, count, dtype, missing, dst, dst_bytes,
                              missing_cells);
    });
}

routecap_status routecap_plan_gather_values(const routecap_plan *plan, const void *const *values,
                                            size_t element_bytes, const void *fill, void *dst,
                                            size_t dst_bytes) {
    return with(plan, [&](const Plan &p) {
        return p.gather_values(values, element_bytes, fill, dst, dst_bytes);
    });
}

routecap_status routecap_plan_scatter(const routecap_plan *plan, const void *ids, size_t ids_bytes,
                                      const uint8_t *classes, size_t classes_bytes,
                                      routecap_routing **routings, size_t count) {
    if (routings == nullptr && count > 0) return report(ROUTECAP_ERR_ARGUMENT, "routings is NULL");
    if (int32_t s = check_count(count, sizeof(void *), "routings"); s < 0) return s;
    std::fill_n(routings, count, nullptr);
    return with(plan, [&](const Plan &p) {
        return scatter(p, ids, ids_bytes, classes, classes_bytes, routing_output(routings), count);
    });
}

routecap_status routecap_plan_pack(const routecap_plan *plan, const routecap_plan_source *sources,
                                   size_t source_size, size_t count, void *packed,
                                   size_t packed_bytes, routecap_plan_report *report) {
    return with(plan, [&](const Plan &p) {
        return pack(p, sources, source_size, count, packed, packed_bytes, report);
    });
}

routecap_status routecap_plan_unpack(const routecap_plan *plan, const void *packed,
                                     size_t packed_bytes, const routecap_plan_target *target,
                                     routecap_stream stream) {
    return with(plan,
                [&](const Plan &p) { return unpack(p, packed, packed_bytes, target, stream); });
}
