// Room in vectors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace routecap {

// Makes room for this many elements; if the vector must grow, it doubles. Throws without memory.
template <class T>
void make_room(std::vector<T> &elements, size_t n) {
    if (n > elements.capacity()) elements.reserve(std::max(n, 2 * elements.capacity()));
}

}  // namespace routecap
