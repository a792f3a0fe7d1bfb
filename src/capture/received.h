// Checks the tensors of one expert-parallel dispatch.
#pragma once

#include <cstdint>

#include "routecap.h"

namespace routecap {

// Whether the fields that routecap_received_read, or routecap_received_compare, uses are sound. An
// expert_alignment of 0 becomes 1.
int32_t check_received(routecap_received &r);
int32_t check_chosen(const routecap_received &r);

}  // namespace routecap
