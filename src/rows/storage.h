// What everything that holds rows of one capturer shares. It outlives the capturer for as long as
// any of them does.
#pragma once

#include <memory>
#include <utility>

#include "base/completion.h"
#include "base/shape.h"
#include "rows/pages.h"

namespace routecap {

struct Storage {
    Storage(ShapePtr s, std::shared_ptr<PagePool> p, std::shared_ptr<Completion> l)
        : shape(std::move(s)), pool(std::move(p)), completion(std::move(l)) {}

    const ShapePtr shape;
    const std::shared_ptr<PagePool> pool;
    const std::shared_ptr<Completion> completion;
};

using StoragePtr = std::shared_ptr<const Storage>;

}  // namespace routecap
