// The ids of a rank as they are uploaded: packed on the host, unpacked by a kernel.
#pragma once

#include "plan/plan.h"

namespace routecap {

uint64_t packed_bytes(const Plan &plan);
int32_t pack(const Plan &plan, const routecap_plan_source *sources, size_t source_size,
             size_t count, void *packed, size_t packed_bytes, routecap_plan_report *report);
int32_t unpack(const Plan &plan, const void *packed, size_t packed_bytes,
               const routecap_plan_target *target, routecap_stream stream);

}  // namespace routecap
