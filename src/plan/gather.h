// The ids of a rank in its layout, in host memory.
#pragma once

#include "plan/plan.h"

namespace routecap {

int32_t gather(const Plan &plan, const routecap_plan_source *sources, size_t source_size,
               size_t count, void *dst, size_t dst_bytes, uint8_t *classes, size_t classes_bytes,
               routecap_plan_report *report);

// Refuses memory that is too small for a plan's result, and missing classes that are required.
int32_t check_result(const Plan &plan, const void *dst, uint64_t dst_bytes, const uint8_t *classes,
                     uint64_t classes_bytes);

}  // namespace routecap
