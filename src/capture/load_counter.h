// How often each expert of each layer was chosen (include/routecap/load.h).
//
// Whoever files has the turn, and notes here where new rows lie; it counts them once their step was
// announced. It counts in a block of its own. Who reads swaps that block for an empty one, with the
// turn, and adds it up without it: so the one never waits while the other copies, and both see
// whole steps.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/shape.h"
#include "capture/turn.h"
#include "rows/new_cells.h"
#include "rows/row_store.h"

namespace routecap {

class LoadCounter final : public NewCells {
public:
    LoadCounter(ShapePtr shape, uint32_t sink_rows, bool by_tag);
    static size_t bytes(const Shape &shape, uint32_t sink_rows, bool by_tag);

    // ---- With the turn.

    // A step's rows follow. Of a step that has landed with rows.
    void add_step(uint64_t ticket, uint64_t tag) noexcept;
    void add(const RowSource &rows, uint64_t count, uint64_t tag, Phase phase) noexcept override;
    void add_missing(const RowSource &row, const uint8_t *known, uint64_t tag,
                     Phase phase) noexcept override;
    void hold(PageRef page) noexcept override;
    // Counts what was added: its memory is not looked at later.
    void count() noexcept;
    // What was counted becomes the reader's, who then calls merge().
    void hand_over() noexcept;

    // ---- Who reads, without the turn of filing, but with this one.

    Turn &readers() { return readers_; }
    void merge() noexcept;
    bool by_tag() const { return by_tag_; }
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
    // Rows that are still to be counted.
    struct Run {
        RowSource from;
        uint64_t rows;
        uint64_t tag;
        Phase phase;
    };
    // What is counted together: the steps of one tag; or, as the first of a block, those of all
    // others.
    struct Series {
        uint64_t serial = 0;  // of the tag whose it is
        Reading sums;
        bool used = false;  // a count is not 0
    };
    static constexpr uint32_t kMostSeries = 1 + ROUTECAP_MAX_LOAD_TAGS;
    struct Block {
        std::array<Series, kMostSeries> series{};
        std::unique_ptr<uint64_t[]> counts;  // [series, phases, layers, experts]
    };
    struct Tag {
        uint64_t tag = 0;
        uint64_t serial = 0;  // 0: none. Tags are numbered as they come
        bool operator==(uint64_t t) const { return serial != 0 && tag == t; }
    };
    using Tags = std::array<Tag, kMostSeries>;  // each at the index of its series

    Block make_block() const;
    uint64_t *counts(const Block &block, uint32_t series) const {
        return block.counts.get() + series * size_;
    }
    uint64_t *counts(const Block &block, uint32_t series, Phase phase) const {
        return counts(block, series) +
               static_cast<size_t>(phase) * shape_->layers * shape_->experts;
    }
    void add_up(const Block &from, uint32_t series, Reading &sums, uint64_t *to) const;
    void add_up(const Block &from, uint32_t from_series, Block &to, uint32_t to_series) noexcept;
    void clear(Block &block, uint32_t series) noexcept;
    uint32_t series_of(uint64_t tag) noexcept;
    void count(const Run &run) noexcept;
    template <class Valid>
    void count_cells(const uint8_t *ids, uint64_t *to, Valid valid) const noexcept;

    const ShapePtr shape_;
    const bool by_tag_;
    const size_t size_;  // counts of one series

    // Of whoever has the turn of filing.
    std::vector<Run> runs_;       // its room is made once
    std::vector<PageRef> pages_;  // likewise
    Block counting_;
    Tags tags_{};
    uint64_t serials_ = 0;
    uint32_t last_series_ = 0;  // the one looked for last

    // Of whoever has the turn of reading; counts of `handed_over_` are 0 between readings.
    Turn readers_;
    Block handed_over_, total_;
    Tags known_tags_{};
};

}  // namespace routecap
