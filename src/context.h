// What everything that holds rows of one capturer shares. It outlives the capturer for as long as any of them does.
#pragma once

#include <memory>
#include <utility>

#include "landing.h"
#include "pages.h"
#include "shape.h"

namespace routecap {

struct Context {
    Context(ShapePtr s, std::shared_ptr<PagePool> p, std::shared_ptr<Landing> l) : shape(std::move(s)), pool(std::move(p)), landing(std::move(l)) {}

    const ShapePtr shape;
    const std::shared_ptr<PagePool> pool;
    const std::shared_ptr<Landing> landing;
};

using ContextPtr = std::shared_ptr<const Context>;

}  // namespace routecap
