// An array of zeros whose memory is taken as it is written (calloc).
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace routecap {

struct FreeMemory {
    void operator()(void *memory) const { std::free(memory); }
};
template <class T>
using ZeroedArray = std::unique_ptr<T[], FreeMemory>;

// Throws without memory.
template <class T>
ZeroedArray<T> zeroed_array(size_t n) {
    ZeroedArray<T> array(static_cast<T *>(std::calloc(n, sizeof(T))));
    if (array == nullptr) throw std::bad_alloc();
    return array;
}

}  // namespace routecap
