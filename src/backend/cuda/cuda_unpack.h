// What a plan has packed, brought to a device and unpacked there.
#pragma once

#include "backend/unpack.h"

namespace routecap {

int32_t cuda_unpack(int32_t device, const UnpackWork &work, routecap_stream stream);

}  // namespace routecap
