// Routing methods by name, and the check of a caller's router.
#pragma once

#include <cstdint>

#include "kernels/route.h"
#include "routecap.h"

namespace routecap {

constexpr bool is_float(int32_t dtype) {
    return dtype == ROUTECAP_DTYPE_F32 || dtype == ROUTECAP_DTYPE_F16 ||
           dtype == ROUTECAP_DTYPE_BF16;
}

// Fills a router with a ROUTECAP_METHOD_*.
int32_t init_router(routecap_router &router, int32_t method);

// Checks a router that chooses k of `experts` experts, and converts it for the kernels.
int32_t check_router(const routecap_router &r, uint32_t k, uint32_t experts,
                     kernels::Router &router);

}  // namespace routecap
