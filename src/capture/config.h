// A configuration that was checked.
#pragma once

#include <cstdint>

#include "backend/backends.h"
#include "base/declared.h"
#include "base/shape.h"
#include "routecap.h"

namespace routecap {

struct Config {
    int32_t backend = 0;
    int32_t role = 0;
    int32_t device = 0;
    uint32_t rows = 0;
    uint32_t slots = 0;  // steps that may be in flight
    int32_t sink_dtype = 0;
#define ROUTECAP_FLAG(name, member) bool member = false;  // ROUTECAP_CONFIG_name
    ROUTECAP_CONFIG_FLAGS(ROUTECAP_FLAG)
#undef ROUTECAP_FLAG
    uint32_t max_requests = 0;
    uint64_t budget_bytes = 0;
    uint64_t first_epoch = 1;  // of slots' names (kernels/body.h); tests begin near the end
    ShapePtr shape;            // null if disabled

    // What its backend is made of.
    BackendConfig of_backend() const;
};

int32_t read_config(const routecap_config *config, Config &out);

}  // namespace routecap
