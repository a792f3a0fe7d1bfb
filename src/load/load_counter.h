// How often each expert of each layer was chosen (include/routecap/load.h). Whoever files counts
// the rows. A thread that reads has the filing lock, so it sees whole steps.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/shape.h"
#include "load/phase.h"

namespace routecap {

class LoadCounter {
public:
    explicit LoadCounter(ShapePtr shape);
    static size_t bytes(const Shape &shape);

    // A step's rows follow. Of a step that has landed with rows.
    void add_step(uint64_t ticket) noexcept;
    // Counts the valid cells of rows, except those that are valid in `known` (a row, or null), which
    // were counted before. The mutex of a request's rows may be held.
    void add(const uint8_t *rows, uint64_t count, const uint8_t *known, Phase phase) noexcept;

    // [phases, layers, experts]
    size_t size() const { return counts_.size(); }
    struct Sums {
        uint64_t steps = 0, first_step = 0, last_step = 0;
        std::array<uint64_t, ROUTECAP_LOAD_PHASES> rows{};
    };
    // counts may be null.
    Sums read(uint64_t *counts) const;

private:
    const ShapePtr shape_;
    Sums sums_;
    std::vector<uint64_t> counts_;
};

}  // namespace routecap
