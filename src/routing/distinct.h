// Whether the ids of many cells are distinct. It gives the answer of kernels::distinct for each
// cell, at the speed of memory.
#pragma once

#include <cstdint>
#include <vector>

namespace routecap {

// Calls f.operator()<K>() with K = k for the k of most models, otherwise with 0.
template <class F>
auto with_k(uint32_t k, F f) {
    switch (k) {
        case 2: return f.template operator()<2>();
        case 4: return f.template operator()<4>();
        case 8: return f.template operator()<8>();
        default: return f.template operator()<0>();
    }
}

class Distinct {
public:
    // Whether each of `cells` cells of k ids, one after another, has k distinct ids. All of them
    // must be below `experts`.
    Distinct(uint32_t k, uint32_t experts) : k_(k), experts_(experts) {}
    template <class Id>
    bool all(const Id *ids, uint64_t cells);

private:
    template <class Id>
    bool by_stamps(const Id *ids, uint64_t cells);

    uint32_t k_, experts_;
    // [experts] the cell that had an expert last, where k is not a power of two up to 8.
    std::vector<uint32_t> stamps_;
    uint32_t stamp_ = 0;
};

}  // namespace routecap
