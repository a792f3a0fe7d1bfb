// Copies packed ids of a plan to a device and unpacks them there.
#pragma once

#include "backend/unpack.h"

namespace routecap {

int32_t cuda_unpack(int32_t device, const UnpackWork &work, routecap_stream stream);

}  // namespace routecap
