// Code shared by the element bodies of all kernels. It compiles for the host and, under nvcc, for
// the device, and has the same result on both.
//
// A kernel is a struct with outer() * inner() items; item(o, i) does one of them. Items may run in
// any order, in parallel or one after another.
#pragma once

#include <stdint.h>
#include <string.h>

#include <type_traits>

#include "routecap/base.h"

#if defined(__CUDACC__)
#define ROUTECAP_BODY __host__ __device__ __forceinline__
#else
#define ROUTECAP_BODY inline
#endif

namespace routecap::kernels {

// What a valid cell of a layer is: least to k distinct experts, each in [0, experts).
struct CellRule {
    uint16_t experts;
    uint8_t k;
    uint8_t least;

    ROUTECAP_BODY constexpr bool operator==(const CellRule &o) const {
        return experts == o.experts && k == o.k && least == o.least;
    }
};
static_assert(ROUTECAP_MAX_EXPERTS <= UINT16_MAX && ROUTECAP_MAX_K <= UINT8_MAX);

// The sink of one layer: rows of rule.k ids, row_stride elements apart.
struct SinkLayer {
    void *ids;
    int64_t row_stride;
    int32_t dtype;  // ROUTECAP_DTYPE_I16, _I32 or _I64
    CellRule rule;
};

// The sinks of all layers: a table in memory or, if they are alike and equally far apart, the first
// sink and the distance. These are kernel parameters and cost no load, whereas the engine's step
// has evicted a table from the device's caches.
struct SinkTable {
    const SinkLayer *layers;
    SinkLayer first{};
    int64_t layer_bytes = 0;  // from one layer to the next; 0: they are in the table

    SinkTable() = default;
    SinkTable(const SinkLayer *table) : layers(table) {}
    SinkTable(const SinkLayer *table, const SinkLayer &layer, int64_t bytes)
        : layers(table), first(layer), layer_bytes(bytes) {}

    ROUTECAP_BODY SinkLayer operator[](uint32_t layer) const {
        if (layer_bytes == 0) return layers[layer];
        SinkLayer sink = first;
        sink.ids = static_cast<uint8_t *>(sink.ids) + layer * layer_bytes;
        return sink;
    }
};

// The id of a begun row that nothing has written: bytes 0x80, a negative number in every dtype. An
// id that is not valid is recorded as kInvalidId.
constexpr unsigned char kPoisonByte = 0x80;
template <class T>
constexpr T kPoison = static_cast<T>(sizeof(T) == 2   ? int64_t{-0x7f80}
                                     : sizeof(T) == 4 ? int64_t{-0x7f7f7f80}
                                                      : -0x7f7f7f7f7f7f7f80);
constexpr int32_t kInvalidId = -1;
// In a sink, a column of a row in which the router chose no expert. These come after the ids.
constexpr int32_t kNoExpert = ROUTECAP_NO_EXPERT;
// The same in a record, where all columns that a cell does not use have it.
template <class Id>
constexpr Id kUnused = static_cast<Id>(~Id{0});

constexpr int32_t kNoSlot = -1;

// Which slot the next snapshot fills, as named by the host in stream order. Each time it names a
// slot, it takes a new epoch, so that work begun under an earlier epoch is recognised. At one epoch
// a microsecond, 56 bits last for two thousand years.
struct Named {
    uint64_t word;

    Named() = default;
    ROUTECAP_BODY constexpr Named(int32_t slot, uint64_t epoch)
        : word(epoch << 8 | (static_cast<uint32_t>(slot) & 0xff)) {}
    ROUTECAP_BODY constexpr int32_t slot() const { return static_cast<int8_t>(word & 0xff); }
    ROUTECAP_BODY constexpr uint64_t epoch() const { return word >> 8; }
    ROUTECAP_BODY constexpr bool operator==(const Named &other) const { return word == other.word; }
};

// The words by which begin, record and snapshot communicate, in device memory. They are read and
// written in the order of the stream.
struct Control {
    Named named;         // written by the host; a new naming disarms what was begun
    Named begun;         // what `named` was at the last begin
    uint32_t armed;      // rows begun
    uint32_t done;       // blocks of the deliver that runs
    uint64_t conflicts;  // cells recorded twice since the last snapshot or begin
    uint64_t dropped;    // rows recorded outside the rows begun since then

    // Number of rows that may be written and that a snapshot takes. All words are read in one load.
    ROUTECAP_BODY uint32_t rows() const {
        const uint32_t all = armed;
        return begun == named ? all : 0;
    }
};

// k as a compile-time constant: K, or the run-time number if K is 0.
template <uint32_t K>
ROUTECAP_BODY constexpr uint32_t columns(uint32_t k) {
    return K != 0 ? K : k;
}

// The ids of one cell.
template <class T, uint32_t K>
struct alignas(16) Ids {
    T id[K != 0 ? K : ROUTECAP_MAX_K];
    ROUTECAP_BODY T &operator[](uint32_t c) { return id[c]; }
    ROUTECAP_BODY T operator[](uint32_t c) const { return id[c]; }
};

// Copies the ids of a cell to or from `memory`, in the largest words that its alignment allows.
template <uint32_t K, class T>
ROUTECAP_BODY void move(T *to, const T *from, const T *memory, uint32_t k) {
#if defined(__CUDA_ARCH__)
    constexpr uint32_t bytes = K * sizeof(T);
    const auto words = [&]<class Word>(Word) {
#pragma unroll
        for (uint32_t w = 0; w < bytes / sizeof(Word); w++)
            reinterpret_cast<Word *>(to)[w] = reinterpret_cast<const Word *>(from)[w];
    };
    const auto address = reinterpret_cast<uintptr_t>(memory);
    if constexpr (K != 0 && bytes % 16 == 0) {
        if (address % 16 == 0) return words(uint4{});
    }
    if constexpr (K != 0 && bytes % 8 == 0) {
        if (address % 8 == 0) return words(uint2{});
    }
    if constexpr (K != 0 && bytes % 4 == 0) {
        if (address % 4 == 0) return words(uint32_t{});
    }
#else
    static_cast<void>(memory);
#endif
    for (uint32_t c = 0; c < columns<K>(k); c++) to[c] = from[c];
}
template <class T, uint32_t K>
ROUTECAP_BODY void load(Ids<T, K> &ids, const T *cell, uint32_t k) {
    move<K, T>(ids.id, cell, cell, k);
}
template <class T, uint32_t K>
ROUTECAP_BODY void store(T *cell, const Ids<T, K> &ids, uint32_t k) {
    move<K, T>(cell, ids.id, cell, k);
}

// Adds to a counter that many threads of a kernel share.
ROUTECAP_BODY void count(uint64_t *word, uint64_t n) {
#if defined(__CUDA_ARCH__)
    atomicAdd(reinterpret_cast<unsigned long long *>(word), static_cast<unsigned long long>(n));
#else
    *word += n;
#endif
}

// Calls f(ids in their element type). A dtype that is not a sink's has no ids: f is not called, so
// that nothing is recorded and the snapshot calls the cell unwritten.
template <class F>
ROUTECAP_BODY void with_ids(void *ids, int32_t dtype, F f) {
    switch (dtype) {
        case ROUTECAP_DTYPE_I16: f(static_cast<int16_t *>(ids)); break;
        case ROUTECAP_DTYPE_I32: f(static_cast<int32_t *>(ids)); break;
        case ROUTECAP_DTYPE_I64: f(static_cast<int64_t *>(ids)); break;
        default: break;
    }
}
// Calls f(pointer to row `row` of the sink, in its element type).
template <class F>
ROUTECAP_BODY void with_row(const SinkLayer &sink, int64_t row, F f) {
    with_ids(sink.ids, sink.dtype, [&](auto *ids) { f(ids + row * sink.row_stride); });
}

}  // namespace routecap::kernels
