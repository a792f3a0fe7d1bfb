// A plan: the rows of one rank of a trainer in its layout, and what its ids look like. Immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/unpack.h"
#include "plan/layout.h"
#include "routecap.h"
#include "routing/routing.h"

namespace routecap {

class Plan {
public:
    static int32_t create(const routecap_plan_config *config, std::unique_ptr<Plan> &plan);

    const PlanLayout &layout() const { return layout_; }
    uint64_t samples() const { return layout_.lengths.size(); }
    // Of the ids of its layers, as a routing has them.
    const ShapePtr &ids() const { return ids_; }
    uint32_t k() const { return ids_->k; }
    std::span<const kernels::PlanLayer> layers() const { return layers_; }
    const kernels::Filler &filler() const { return filler_; }
    kernels::PackedShape shape() const;

    int32_t dtype() const { return dtype_; }
    bool by_layer() const { return order_ == ROUTECAP_ORDER_LAYER_MAJOR; }
    uint32_t element_bytes() const { return element_bytes_; }
    uint64_t cells() const { return layout_.rows * layers_.size(); }
    uint64_t ids_bytes() const { return cells() * k() * element_bytes_; }
    // Strides of the result, in cells.
    uint64_t row_stride() const { return by_layer() ? 1 : layers_.size(); }
    uint64_t layer_stride() const { return by_layer() ? layout_.rows : 1; }
    // Whether a reader who does not look at the classes could mistake a lost cell for experts.
    bool lost_may_look_valid() const;

    void describe(routecap_plan_shape *shape) const;
    int32_t gather_values(const void *const *values, size_t element_bytes, const void *fill,
                          void *dst, size_t dst_bytes) const;

private:
    Plan() = default;
    int32_t read_ids(const routecap_plan_config &config);

    PlanLayout layout_;
    ShapePtr ids_;
    uint32_t element_bytes_ = 0;
    int32_t dtype_ = 0, order_ = 0;
    std::vector<kernels::PlanLayer> layers_;
    kernels::Filler filler_{};
};

// What is done with a plan, as the functions of plan.h of the same names.
int32_t gather(const Plan &plan, const routecap_plan_source *sources, size_t source_size,
               size_t count, void *dst, size_t dst_bytes, uint8_t *classes, size_t classes_bytes,
               routecap_plan_report *report);
int32_t gather_weights(const Plan &plan, const routecap_plan_source *sources, size_t source_size,
                       size_t count, int32_t dtype, float missing, void *dst, size_t dst_bytes,
                       uint64_t *missing_cells);
int32_t scatter(const Plan &plan, const void *ids, size_t ids_bytes, const uint8_t *classes,
                size_t classes_bytes, Routing **routings, size_t count);
int32_t pack(const Plan &plan, const routecap_plan_source *sources, size_t source_size,
             size_t count, void *packed, size_t packed_bytes, routecap_plan_report *report);
int32_t unpack(const Plan &plan, const void *packed, size_t packed_bytes,
               const routecap_plan_target *target, routecap_stream stream);

// How many bytes `packed` needs.
uint64_t packed_bytes(const Plan &plan);
// Refuses memory that is too small for a plan's result, and missing classes that are required.
int32_t check_result(const Plan &plan, const void *dst, uint64_t dst_bytes, const uint8_t *classes,
                     uint64_t classes_bytes);

}  // namespace routecap
