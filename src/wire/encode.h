// Encoding: a routing becomes a message of some format.
#pragma once

#include <cstddef>
#include <cstdint>

#include "routecap.h"
#include "routing/routing.h"

namespace routecap::wire {

int32_t encode(const Routing &routing, const routecap_wire_options *options, void *dst,
               size_t dst_bytes, uint64_t *needed, routecap_wire_report *report);

}  // namespace routecap::wire
