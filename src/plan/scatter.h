// Routings of what the routers of one rank have recorded: the inverse of gathering.
#pragma once

#include "plan/plan.h"
#include "routing/routing.h"

namespace routecap {

int32_t scatter(const Plan &plan, const void *ids, size_t ids_bytes, const uint8_t *classes,
                size_t classes_bytes, Routing **routings, size_t count);

}  // namespace routecap
