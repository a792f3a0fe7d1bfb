// The element types that ids are copied to.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "routecap.h"

namespace routecap {

// Calls f(an element of the type), or returns false.
template <class F>
bool with_dtype(int32_t dtype, F f) {
    switch (dtype) {
        case ROUTECAP_DTYPE_U8: f(uint8_t{}); return true;
        case ROUTECAP_DTYPE_I16: f(int16_t{}); return true;
        case ROUTECAP_DTYPE_U16: f(uint16_t{}); return true;
        case ROUTECAP_DTYPE_I32: f(int32_t{}); return true;
        case ROUTECAP_DTYPE_U32: f(uint32_t{}); return true;
        case ROUTECAP_DTYPE_I64: f(int64_t{}); return true;
        default: return false;
    }
}

// Calls f(an unsigned element of so many bytes).
template <class F>
void with_width(uint32_t element_bytes, F f) {
    switch (element_bytes) {
        case 1: return f(uint8_t{});
        case 2: return f(uint16_t{});
        case 4: return f(uint32_t{});
        default: return f(uint64_t{});
    }
}

struct ElementLimits {
    uint32_t size = 0;  // bytes; 0: there is no such type
    uint64_t largest_id = 0;
    int64_t fill_min = 0, fill_max = 0;  // what the type can hold, signed or unsigned

    bool holds(int64_t fill) const { return fill >= fill_min && fill <= fill_max; }
    // The bits that are written for a fill.
    uint64_t written(int64_t fill) const {
        return static_cast<uint64_t>(fill) & (UINT64_MAX >> (64 - 8 * size));
    }
};

inline ElementLimits element_limits(int32_t dtype) {
    ElementLimits limits;
    with_dtype(dtype, [&]<class T>(T) {
        constexpr auto max = static_cast<uint64_t>(std::numeric_limits<T>::max());
        limits = {sizeof(T), max, std::numeric_limits<std::make_signed_t<T>>::min(),
                  static_cast<int64_t>(max)};
    });
    return limits;
}

}  // namespace routecap
