// What every kernel's element body shares: it compiles for the host and, under nvcc, for the device, and does the same on both.
//
// A kernel is a struct with outer() * inner() items; item(o, i) does one of them, in any order, at once or one after another.
#pragma once

#include <stdint.h>

#include <type_traits>

#include "routecap.h"

#if defined(__CUDACC__)
#define ROUTECAP_BODY __host__ __device__ __forceinline__
#else
#define ROUTECAP_BODY inline
#endif

namespace routecap::kernels {

// The sink of one layer: rows of k ids, row_stride elements apart.
struct SinkLayer {
    void *ids;
    int64_t row_stride;
    int32_t dtype;  // ROUTECAP_DTYPE_I16, _I32 or _I64
    uint32_t experts;
};

// A begun row that nobody wrote: bytes 0x80, a negative number in every dtype. An id that cannot be one is recorded as kInvalidId.
constexpr unsigned char kPoisonByte = 0x80;
template <class T>
constexpr T kPoison = static_cast<T>(sizeof(T) == 2 ? int64_t{-0x7f80} : sizeof(T) == 4 ? int64_t{-0x7f7f7f80} : -0x7f7f7f7f7f7f7f80);
constexpr int32_t kInvalidId = -1;

constexpr int32_t kNoSlot = -1;

// The words that begin, record and snapshot exchange, in the memory of the device. Work of one stream reads and writes them in its order.
struct Control {
    uint32_t armed;      // rows begun and not yet snapped
    int32_t slot;        // what the next snapshot fills, or kNoSlot
    uint64_t conflicts;  // cells recorded twice since begin
    uint64_t dropped;    // rows recorded outside the rows begun, since begin
};

// k as the compiler may know it: K, or where that is 0 the number given.
template <uint32_t K>
ROUTECAP_BODY constexpr uint32_t columns(uint32_t k) {
    return K != 0 ? K : k;
}

// Calls f.operator()<K>() with K = k for the k of common models, otherwise with 0.
template <class F>
inline void with_columns(uint32_t k, F f) {
    switch (k) {
        case 1: return f.template operator()<1>();
        case 2: return f.template operator()<2>();
        case 4: return f.template operator()<4>();
        case 6: return f.template operator()<6>();
        case 8: return f.template operator()<8>();
        case 10: return f.template operator()<10>();
        case 16: return f.template operator()<16>();
        case 22: return f.template operator()<22>();
        default: return f.template operator()<0>();
    }
}

// Adds to a word that many threads of a kernel count in.
ROUTECAP_BODY void count(uint64_t *word, uint64_t n) {
#if defined(__CUDA_ARCH__)
    atomicAdd(reinterpret_cast<unsigned long long *>(word), static_cast<unsigned long long>(n));
#else
    *word += n;
#endif
}

// Calls f(pointer to row `row` of the sink, in its element type).
template <class F>
ROUTECAP_BODY void with_row(const SinkLayer &sink, int64_t row, F f) {
    switch (sink.dtype) {
        case ROUTECAP_DTYPE_I16: f(static_cast<int16_t *>(sink.ids) + row * sink.row_stride); break;
        case ROUTECAP_DTYPE_I32: f(static_cast<int32_t *>(sink.ids) + row * sink.row_stride); break;
        default: f(static_cast<int64_t *>(sink.ids) + row * sink.row_stride); break;
    }
}

}  // namespace routecap::kernels
