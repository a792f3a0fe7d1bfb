// How often each expert of each layer was chosen (include/routecap/load.h). The thread that has the
// turn counts the rows that it files. A thread that reads takes the turn, so it sees whole steps.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "base/shape.h"
#include "rows/row_store.h"

namespace routecap {

class LoadCounter final : public NewCells {
public:
    LoadCounter(ShapePtr shape, bool by_tag);
    static size_t bytes(const Shape &shape, bool by_tag);

    // A step's rows follow. Of a step that has landed with rows.
    void add_step(uint64_t ticket, uint64_t tag) noexcept;
    void add(const RowSource &rows, uint64_t count, const uint8_t *known, uint64_t tag,
             Phase phase) noexcept override;

    // [phases, layers, experts]
    size_t size() const { return size_; }
    struct Reading {
        uint64_t steps = 0, first_step = 0, last_step = 0;
        std::array<uint64_t, ROUTECAP_LOAD_PHASES> rows{};
    };
    // Of a tag, or without one of all. False if no such tag is known. counts may be null.
    bool read(const uint64_t *tag, Reading &reading, uint64_t *counts) const;
    // How many tags are known, and the first of them as they came.
    size_t tags(std::span<uint64_t> tags) const;

private:
    // What is counted together: the steps of one tag; or, as the first, those of all others.
    struct Series {
        uint64_t tag = 0;
        uint64_t serial = 0;  // 0: it has no tag. Tags are numbered as they come
        Reading sums;
        bool is(uint64_t t) const { return serial != 0 && tag == t; }
    };
    static constexpr uint32_t kMostSeries = 1 + ROUTECAP_MAX_LOAD_TAGS;

    std::span<const Series> series() const { return {series_.data(), by_tag_ ? kMostSeries : 1}; }
    uint32_t series_of(uint64_t tag) noexcept;
    void add_up(uint32_t series, Reading &sums, uint64_t *to) const noexcept;

    const ShapePtr shape_;
    const bool by_tag_;
    const size_t size_;  // counts of one series
    std::array<Series, kMostSeries> series_{};
    std::unique_ptr<uint64_t[]> counts_;  // [series, phases, layers, experts]
    uint64_t serials_ = 0;
};

}  // namespace routecap
