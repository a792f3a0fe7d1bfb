// Capacity of vectors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace routecap {

// Makes the capacity this many elements at least; if the vector must grow, it doubles. Throws
// without memory.
template <class T>
void reserve_amortized(std::vector<T> &elements, size_t n) {
    if (n > elements.capacity()) elements.reserve(std::max(n, 2 * elements.capacity()));
}

}  // namespace routecap
