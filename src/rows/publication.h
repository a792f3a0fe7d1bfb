// A store's side of a publish: it gets rows of a request once they have landed.
#pragma once

#include <cstdint>
#include <span>

namespace routecap {

struct Segment;

class Publication {
public:
    virtual ~Publication() = default;  // if land() was not called, no row will come
    // The filing thread calls this once, without a mutex. `rows` are those of [first, end) that are
    // there; the others will not come. The pages of the segments may be kept.
    virtual void land(std::span<const Segment> rows) noexcept = 0;

    uint64_t first = 0, end = 0;  // positions in the request
};

}  // namespace routecap
