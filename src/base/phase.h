// Whether rows are of prefill or of decode, as the load is counted.
#pragma once

#include <cstdint>

#include "routecap.h"

namespace routecap {

enum class Phase : uint8_t {
    prefill = ROUTECAP_PHASE_PREFILL,
    decode = ROUTECAP_PHASE_DECODE,
    none,  // they are not counted
};

}  // namespace routecap
