// What wants rows of a request, once they are there.
#pragma once

#include <cstdint>
#include <span>

namespace routecap {

struct Segment;

class Publication {
public:
    virtual ~Publication() = default;  // without rows, if land() was not called
    // Called once, without a mutex, by whoever files: these rows of [first, end) are there, and the
    // others will not come. Pages of the segments may be kept.
    virtual void land(std::span<const Segment> rows) noexcept = 0;

    uint64_t first = 0, end = 0;  // positions in the request
};

}  // namespace routecap
