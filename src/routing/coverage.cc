#include "routing/coverage.h"

#include <algorithm>
#include <vector>

#include "base/status.h"
#include "base/structs.h"

namespace routecap {
namespace {

// The missing cells of one row: neighbouring layers with one reason.
struct LayerRun {
    uint32_t first_layer;
    uint32_t layers;
    int32_t reason;
    bool operator==(const LayerRun &) const = default;
};

void missing_of_row(const Shape &shape, const Segment &segment, uint64_t row,
                    std::vector<LayerRun> &runs) {
    runs.clear();
    const uint8_t *cells = segment.row(row);
    if (shape.row_full(cells)) return;
    for (uint32_t l = 0; l < shape.layers; l++) {
        if (shape.valid(cells, l)) continue;
        const int32_t reason = shape.reason(cells, l);
        if (!runs.empty() && runs.back().first_layer + runs.back().layers == l &&
            runs.back().reason == reason)
            runs.back().layers++;
        else
            runs.push_back({l, 1, reason});
    }
}

}  // namespace

routecap_coverage cover(const Shape &shape, uint64_t first, uint64_t rows, uint64_t length,
                        std::span<const Segment> segments, const MissingBlocks &to) {
    routecap_coverage coverage{};
    coverage.layers = shape.layers;
    coverage.first = first;
    coverage.rows = rows;
    coverage.length = length;
    // Rows of a block have the same missing cells.
    uint64_t block_first = first, block_rows = 0;
    std::vector<LayerRun> block;
    const auto end_block = [&] {
        for (const LayerRun &run : block) {
            coverage.cells_missing += block_rows * run.layers;
            if (coverage.blocks < to.capacity)
                write_bytes(&at(to.missing, to.size, coverage.blocks), to.size,
                            routecap_missing{block_first, block_rows, run.first_layer, run.layers,
                                             run.reason, 0});
            coverage.blocks++;
        }
    };
    const auto add = [&](uint64_t from, uint64_t n, const std::vector<LayerRun> &runs) {
        if (runs != block) {
            end_block();
            block_first = from, block_rows = 0, block = runs;
        }
        block_rows += n;
    };

    const std::vector<LayerRun> none;
    std::vector<LayerRun> runs;
    for_all_rows(first, first + rows, segments, [&](const Segment &segment) {
        if (!segment.page) {
            runs.assign(1, {0, shape.layers, segment.reason});
            coverage.rows_empty += segment.rows;
            return add(segment.first, segment.rows, runs);
        }
        if (segment.complete) {
            coverage.rows_complete += segment.rows;
            coverage.cells_recomputed += segment.rows * shape.recomputed_layers;
            for (uint64_t r = 0; shape.weight_bytes != 0 && r < segment.rows; r++)
                coverage.cells_weighted += shape.count_weighted(segment.row(r), 0, shape.layers);
            return add(segment.first, segment.rows, none);
        }
        for (uint64_t r = 0; r < segment.rows; r++) {
            missing_of_row(shape, segment, r, runs);
            coverage.cells_recomputed += shape.count_recomputed(segment.row(r));
            coverage.cells_weighted += shape.count_weighted(segment.row(r), 0, shape.layers);
            (runs.empty()                      ? coverage.rows_complete
             : shape.row_empty(segment.row(r)) ? coverage.rows_empty
                                               : coverage.rows_partial)++;
            add(segment.first + r, 1, runs);
        }
    });
    end_block();
    return coverage;
}

int32_t report_missing(const routecap_coverage &coverage) {
    if (coverage.cells_missing == 0) return ROUTECAP_OK;
    return report(ROUTECAP_INCOMPLETE, "%llu cells are missing, in %llu blocks",
                  ull(coverage.cells_missing), ull(coverage.blocks));
}

int32_t read_flags(uint32_t flags, Strictness &strictness) {
    if ((flags & ~(ROUTECAP_READ_STRICT | ROUTECAP_READ_ALLOW_RECOMPUTED)) != 0)
        return report(ROUTECAP_ERR_ARGUMENT, "flags is %u", flags);
    strictness.complete = (flags & ROUTECAP_READ_STRICT) != 0;
    strictness.captured = strictness.complete && (flags & ROUTECAP_READ_ALLOW_RECOMPUTED) == 0;
    return ROUTECAP_OK;
}

int32_t check_provenance(const Shape &shape, uint32_t first_layer, uint32_t end_layer,
                         uint64_t rows, Strictness strictness) {
    for (uint32_t l = first_layer; l < end_layer && rows > 0 && strictness.captured; l++)
        if (shape.is_recomputed(l))
            return report(ROUTECAP_ERR_RECOMPUTED,
                          "layer %s is recomputed from logits and the reading is strict",
                          shape.layer_name(l).text);
    return ROUTECAP_OK;
}

int32_t reading_status(const Shape &shape, uint64_t first, uint64_t rows,
                       std::span<const Segment> segments) noexcept {
    bool any = false;
    uint64_t missing = UINT64_MAX;  // the first row with a missing cell
    uint32_t layer = 0;             // and its first missing layer
    for_all_rows(first, first + rows, segments, [&](const Segment &segment) {
        if (!segment.page) missing = std::min(missing, segment.first);
        any |= segment.complete;
        if (!segment.page || segment.complete) return;
        for (uint64_t r = 0; r < segment.rows && (missing == UINT64_MAX || !any); r++) {
            const uint8_t *row = segment.row(r);
            any |= !shape.row_empty(row);
            if (missing != UINT64_MAX || shape.row_full(row)) continue;
            missing = segment.first + r;
            while (layer + 1 < shape.layers && shape.valid(row, layer)) layer++;
        }
    });
    if (missing == UINT64_MAX) return ROUTECAP_OK;

    if (!any)
        return report(ROUTECAP_NOT_CAPTURED, "no cell of rows [%llu,%llu) was captured", ull(first),
                      ull(first + rows));
    return report(
        ROUTECAP_INCOMPLETE,
        "cells are missing in rows [%llu,%llu), the first in layer %s of row %llu; coverage names all",
        ull(first), ull(first + rows), shape.layer_name(layer).text, ull(missing));
}

}  // namespace routecap
