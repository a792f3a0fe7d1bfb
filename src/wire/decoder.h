// Decoding: turns a message of any format, whole or in pieces, into rows. Encoding: the inverse.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "routecap.h"
#include "routing/routing.h"
#include "wire/cells.h"

namespace routecap::wire {

int32_t decode(const void *data, size_t bytes, int32_t format, const routecap_wire_hint *hint,
               routecap_wire_report *report, Routing **routing);

int32_t encode(const Routing &routing, const routecap_wire_options *options, void *dst,
               size_t dst_bytes, uint64_t *needed, routecap_wire_report *report);

// A message that arrives piece by piece. The pieces are kept, and decoded at its end.
class Decoder {
public:
    Decoder(int32_t format, Hint hint) : format_(format), hint_(std::move(hint)) {}
    int32_t write(const void *data, size_t bytes);
    int32_t finish(routecap_wire_report *report, Routing **routing);

private:
    template <class Call>
    int32_t once(Call call);

    const int32_t format_;
    Hint hint_;
    std::vector<uint8_t> kept_;
    int32_t error_ = ROUTECAP_OK;                         // what every call returns from now on
    std::string text_ = "the system has no memory left";  // of it
};

}  // namespace routecap::wire
