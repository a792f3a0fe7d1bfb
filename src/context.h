// What everything that holds rows of one capturer shares. It outlives the capturer for as long as any of them does.
#pragma once

#include <memory>

#include "landing.h"
#include "pages.h"
#include "shape.h"

namespace routecap {

struct Context {
    const ShapePtr shape;
    const std::shared_ptr<PagePool> pool;
    const std::shared_ptr<Landing> landing;
};

using ContextPtr = std::shared_ptr<const Context>;

}  // namespace routecap
