#include "routing/distinct.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/snapshot.h"

namespace routecap {
namespace {

// 32 bytes of ids. The ids of a cell lie side by side.
template <class Id>
struct Lanes {
    typedef Id Vector __attribute__((vector_size(32)));
    static constexpr size_t count = 32 / sizeof(Id);
};

// Notes where an id equals the one R further in its cell.
template <class Id, uint32_t K, size_t R, size_t... I>
[[gnu::always_inline]] inline void compare(typename Lanes<Id>::Vector &equal,
                                           const typename Lanes<Id>::Vector &v,
                                           std::index_sequence<I...>) {
    equal |= reinterpret_cast<typename Lanes<Id>::Vector>(
        v == __builtin_shufflevector(v, v, (I / K * K + (I + R) % K)...));
}
template <class Id, uint32_t K, size_t... R>
[[gnu::always_inline]] inline void compare_all(typename Lanes<Id>::Vector &equal,
                                               const typename Lanes<Id>::Vector &v,
                                               std::index_sequence<R...>) {
    (compare<Id, K, R + 1>(equal, v, std::make_index_sequence<Lanes<Id>::count>{}), ...);
}

// Each rotation of the cells compares k pairs of every cell at once. 0: no two are equal.
template <class Id, uint32_t K>
[[gnu::always_inline]] inline uint64_t all_in_vectors(const Id *ids, uint64_t cells) {
    typename Lanes<Id>::Vector equal{};
    const uint64_t vectors = cells * K / Lanes<Id>::count;
    for (uint64_t i = 0; i < vectors; i++, ids += Lanes<Id>::count) {
        typename Lanes<Id>::Vector v;
        __builtin_memcpy(&v, ids, sizeof v);
        compare_all<Id, K>(equal, v, std::make_index_sequence<K / 2>{});
    }
    uint64_t words[4], any = 0;
    __builtin_memcpy(words, &equal, sizeof words);
    for (const uint64_t word : words) any |= word;
    for (uint64_t c = vectors * Lanes<Id>::count / K; c < cells; c++, ids += K)
        any |= !kernels::distinct<Id, K>(ids, K);
    return any;
}

#if defined(__x86_64__)
// Asks the processor itself. __builtin_cpu_supports is always false if zig provides the runtime.
bool has_avx2() {
    uint32_t a, b, c, d, kept;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_OSXSAVE) == 0) return false;
    __asm__("xgetbv" : "=a"(kept), "=d"(d) : "c"(0));  // the registers that the system keeps
    return (kept & 6) == 6 && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_AVX2) != 0;
}
template <class Id, uint32_t K>
[[gnu::target("avx2")]] bool all_avx2(const Id *ids, uint64_t cells) {
    return all_in_vectors<Id, K>(ids, cells) == 0;
}
#endif

template <class Id, uint32_t K>
bool all_of(const Id *ids, uint64_t cells) {
#if defined(__x86_64__)
    static const bool avx2 = has_avx2();
    if (avx2) return all_avx2<Id, K>(ids, cells);
    bool all = true;
    for (uint64_t c = 0; c < cells; c++) all &= kernels::distinct<Id, K>(ids + c * K, K);
    return all;
#else
    return all_in_vectors<Id, K>(ids, cells) == 0;
#endif
}

}  // namespace

template <class Id>
bool Distinct::by_stamps(const Id *ids, uint64_t cells) {
    if (stamps_.empty()) stamps_.resize(experts_);
    uint32_t twice = 0;
    for (uint64_t c = 0; c < cells; c++, ids += k_) {
        if (++stamp_ == 0) std::fill(stamps_.begin(), stamps_.end(), 0), stamp_ = 1;
        for (uint32_t i = 0; i < k_; i++) {
            twice |= stamps_[ids[i]] == stamp_;
            stamps_[ids[i]] = stamp_;
        }
    }
    return twice == 0;
}

template <class Id>
bool Distinct::all(const Id *ids, uint64_t cells) {
    if (k_ == 1) return true;
    return with_k(k_, [&]<uint32_t K>() {
        if constexpr (K == 0)
            return by_stamps(ids, cells);
        else
            return all_of<Id, K>(ids, cells);
    });
}
template bool Distinct::all(const uint8_t *, uint64_t);
template bool Distinct::all(const uint16_t *, uint64_t);

}  // namespace routecap
