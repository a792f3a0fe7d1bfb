#include "plan/plan.h"

#include <cstring>

#include "base/element.h"
#include "base/shape.h"
#include "base/status.h"
#include "base/structs.h"

namespace routecap {
int32_t Plan::create(const routecap_plan_config *config, std::unique_ptr<Plan> &plan) {
    routecap_plan_config c;
    if (int32_t s = read_struct(c, config, "config"); s < 0) return s;
    std::unique_ptr<Plan> made(new Plan);
    if (int32_t s = made->read_ids(c); s < 0) return s;
    if (int32_t s = make_layout(c, made->layout_); s < 0) return s;
    plan = std::move(made);
    return ROUTECAP_OK;
}

int32_t Plan::read_ids(const routecap_plan_config &c) {
    if (int32_t s =
            make_shape(shape_source(c, ROUTECAP_ID_SPACE_LOGICAL, nullptr, 0), "config", ids_);
        s < 0)
        return s;
    const uint32_t ranks = c.expert_parallel != 0 ? c.expert_parallel : 1;
    if (int32_t s = check_between("config", "expert_parallel", ranks, 1, ROUTECAP_MAX_EXPERTS);
        s < 0)
        return s;
    if (c.order != ROUTECAP_ORDER_ROW_MAJOR && c.order != ROUTECAP_ORDER_LAYER_MAJOR)
        return report(ROUTECAP_ERR_ARGUMENT, "config.order is %d", c.order);
    if (c.fill != ROUTECAP_PLAN_FILL_BALANCED && c.fill != ROUTECAP_PLAN_FILL_VALUE)
        return report(ROUTECAP_ERR_ARGUMENT, "config.fill is %d", c.fill);
    if (c.lost < ROUTECAP_PLAN_LOST_MARK || c.lost > ROUTECAP_PLAN_LOST_ERROR)
        return report(ROUTECAP_ERR_ARGUMENT, "config.lost is %d", c.lost);
    const ElementLimits element = element_limits(c.dtype);
    if (element.size == 0)
        return report(ROUTECAP_ERR_DTYPE, "dtype %d is not one that ids can have", c.dtype);
    if (ids_->experts - 1 > element.largest_id)
        return report(ROUTECAP_ERR_DTYPE, "ids up to %u do not fit dtype %d", ids_->experts - 1,
                      c.dtype);
    const auto fits = [&](bool used, const char *name, int64_t value) {
        return !used || element.holds(value)
                   ? ROUTECAP_OK
                   : report(ROUTECAP_ERR_DTYPE, "config.%s %lld does not fit dtype %d", name,
                            static_cast<long long>(value), c.dtype);
    };
    if (int32_t s = fits(c.fill == ROUTECAP_PLAN_FILL_VALUE, "fill_value", c.fill_value); s < 0)
        return s;
    if (int32_t s = fits(c.lost == ROUTECAP_PLAN_LOST_MARK, "lost_value", c.lost_value); s < 0)
        return s;
    if (int32_t s = fits(!ids_->uniform, "none_value", c.none_value); s < 0) return s;
    if (!ids_->uniform && element.written(c.none_value) < ids_->experts)
        return report(ROUTECAP_ERR_ARGUMENT,
                      "a column without an expert would look like expert %llu: set none_value",
                      ull(element.written(c.none_value)));

    element_bytes_ = element.size, dtype_ = c.dtype, order_ = c.order;
    for (uint32_t l = 0; l < ids_->layers; l++)
        layers_.push_back({ids_->of.map[l], ids_->rules[l]});
    filler_ = {.fill = c.fill,
               .lost = c.lost,
               .fill_value = c.fill_value,
               .lost_value = c.lost_value,
               .none_value = c.none_value,
               .ranks = ranks,
               .reserved = 0};
    return ROUTECAP_OK;
}

kernels::PackedShape Plan::shape() const {
    return {static_cast<uint32_t>(layout_.rows),
            static_cast<uint32_t>(layers_.size()),
            ids_->k,
            ids_->uniform,
            ids_->experts,
            dtype_,
            order_,
            0};
}

bool Plan::lost_may_look_valid() const {
    const ElementLimits limit = element_limits(dtype_);
    const uint64_t written = limit.written(filler_.lost_value);
    return filler_.lost == ROUTECAP_PLAN_LOST_BALANCED ||
           (filler_.lost == ROUTECAP_PLAN_LOST_MARK &&
            (written < ids_->experts ||
             (!ids_->uniform && written == limit.written(filler_.none_value))));
}

void Plan::describe(routecap_plan_shape *shape) const {
    write_struct(shape, routecap_plan_shape{.struct_size = 0,
                                            .layers = static_cast<uint32_t>(layers_.size()),
                                            .k = ids_->k,
                                            .dtype = dtype_,
                                            .order = order_,
                                            .reserved = 0,
                                            .rows = layout_.rows,
                                            .rows_needed = layout_.needed,
                                            .rows_not_needed = layout_.not_needed,
                                            .rows_padding = layout_.padding,
                                            .total_rows = layout_.total,
                                            .width = layout_.width,
                                            .ranges = layout_.ranges.size(),
                                            .ids_bytes = ids_bytes(),
                                            .classes_bytes = cells(),
                                            .packed_bytes = packed_bytes(*this)});
}

int32_t Plan::gather_values(const void *const *values, size_t element_bytes, const void *fill,
                            void *dst, size_t dst_bytes) const {
    if (int32_t s = check_between("gather_values", "element_bytes", element_bytes, 1, 65536); s < 0)
        return s;
    if (fill == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "fill is NULL");
    const uint64_t needed = layout_.rows * element_bytes;
    if (dst_bytes < needed)
        return report(ROUTECAP_ERR_BUFFER_TOO_SMALL, "dst has %zu bytes and needs %llu", dst_bytes,
                      ull(needed));
    if (needed > 0 && dst == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "dst is NULL");
    for (const PlanRun &run : layout_.runs)
        if (run.row_class != ROUTECAP_PLAN_CLASS_PADDING &&
            (values == nullptr || values[run.sample] == nullptr))
            return report(ROUTECAP_ERR_ARGUMENT, "values[%llu] is NULL", ull(run.sample));
    for (const PlanRun &run : layout_.runs) {
        auto *to = static_cast<uint8_t *>(dst) + run.row * element_bytes;
        const bool token = run.row_class != ROUTECAP_PLAN_CLASS_PADDING;
        const auto *from = static_cast<const uint8_t *>(token ? values[run.sample] : fill);
        if (token) from += run.first * element_bytes;
        if (token && run.step == 1) {
            std::memcpy(to, from, run.rows * element_bytes);
            continue;
        }
        for (uint64_t r = 0; r < run.rows; r++)
            std::memcpy(to + r * run.step * element_bytes, token ? from + r * element_bytes : from,
                        element_bytes);
    }
    return ROUTECAP_OK;
}

}  // namespace routecap
