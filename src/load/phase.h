// Of which phase of a request a row is (include/routecap/load.h).
#pragma once

#include <cstdint>

#include "routecap.h"

namespace routecap {

// Whether the load counts rows as prefill or as decode.
enum class Phase : uint8_t {
    prefill = ROUTECAP_PHASE_PREFILL,
    decode = ROUTECAP_PHASE_DECODE,
    none,  // they are not counted
};

}  // namespace routecap
