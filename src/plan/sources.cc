#include "plan/sources.h"

#include <algorithm>

#include "base/process.h"
#include "base/status.h"
#include "base/structs.h"

namespace routecap {

int32_t PlanSources::read(const routecap_plan_source *sources, size_t source_size, size_t count) {
    if (int32_t s = check_items(sources, count, source_size, "sources"); s < 0) return s;
    sources_.reserve(count);
    for (size_t i = 0; i < count; i++)
        if (int32_t s = add(at(sources, source_size, i)); s < 0) return s;
    std::sort(sources_.begin(), sources_.end(), [](const PlanSource &a, const PlanSource &b) {
        return a.sample != b.sample ? a.sample < b.sample : a.routing->first() < b.routing->first();
    });
    for (size_t i = 1; i < sources_.size(); i++) {
        const PlanSource &a = sources_[i - 1], &b = sources_[i];
        if (a.sample == b.sample && a.routing->end() > b.routing->first())
            return report(ROUTECAP_ERR_OVERLAP, "two sources have row %llu of sample %llu",
                          ull(b.routing->first()), ull(a.sample));
    }
    for (const PlanRun &run : plan_.layout().runs)
        if (run.row_class == ROUTECAP_PLAN_CLASS_VALID) cut(run);
    return ROUTECAP_OK;
}

int32_t PlanSources::add(const routecap_plan_source &given) {
    if (given.sample >= plan_.samples())
        return report(ROUTECAP_ERR_OUT_OF_RANGE, "sample %llu of %llu", ull(given.sample),
                      ull(plan_.samples()));
    const auto *routing = reinterpret_cast<const Routing *>(given.routing);
    if (routing == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "a routing is NULL");
    if (routing->process() != process_generation())
        return report(ROUTECAP_ERR_FORKED, "a routing was made before fork()");
    if (!routing->ready())
        return report(ROUTECAP_ERR_NOT_READY, "the routing of sample %llu is not ready",
                      ull(given.sample));
    const uint64_t length = plan_.layout().lengths[given.sample];
    if (routing->end() > length && routing->end() > routing->first())
        return report(ROUTECAP_ERR_OUT_OF_RANGE,
                      "sample %llu has %llu tokens, its routing rows [%llu,%llu)",
                      ull(given.sample), ull(length), ull(routing->first()), ull(routing->end()));
    const Shape &shape = routing->shape();
    if (shape.k != plan_.k() || shape.id_space != ROUTECAP_ID_SPACE_LOGICAL)
        return report(ROUTECAP_ERR_SHAPE_MISMATCH,
                      "the routing of sample %llu has k %u and id space %d, the plan k %u and "
                      "logical ids",
                      ull(given.sample), shape.k, shape.id_space, plan_.k());
    if (routing->end() == routing->first()) return ROUTECAP_OK;
    PlanSource source{.sample = given.sample,
                      .routing = routing,
                      .layers = {},
                      .adjacent = true,
                      .width = shape.id_bytes,
                      .stride = shape.stride};
    if (!sources_.empty() && &sources_.back().routing->shape() == &shape) {
        source.layers = sources_.back().layers, source.adjacent = sources_.back().adjacent;
        return sources_.push_back(std::move(source)), ROUTECAP_OK;
    }
    const Shape &wanted = *plan_.ids();
    for (uint32_t p = 0; p < wanted.layers; p++) {
        const size_t found = shape.of.find(wanted.of.key(p));
        if (found == shape.layers)
            return report(ROUTECAP_ERR_UNKNOWN_LAYER,
                          "the routing of sample %llu has no layer %s of the decoder",
                          ull(given.sample), wanted.layer_name(p).text);
        const auto l = static_cast<uint32_t>(found);
        const kernels::CellRule &rule = shape.rules[l], &plans = wanted.rules[p];
        if (rule != plans)
            return report(
                ROUTECAP_ERR_SHAPE_MISMATCH,
                "layer %s has %u to %u of %u experts in the routing of sample %llu, %u to "
                "%u of %u in the plan",
                wanted.layer_name(p).text, uint32_t{rule.least}, uint32_t{rule.k},
                uint32_t{rule.experts}, ull(given.sample), uint32_t{plans.least}, uint32_t{plans.k},
                uint32_t{plans.experts});
        source.adjacent &= source.layers.empty() || l == source.layers.back() + 1;
        source.layers.push_back(l);
    }
    return sources_.push_back(std::move(source)), ROUTECAP_OK;
}

// Divides a run at the borders of sources and of their segments.
void PlanSources::cut(const PlanRun &run) {
    const uint64_t end = run.first + run.rows;
    uint64_t position = run.first;
    const auto up_to = [&](uint64_t to, const PlanSource *source, const Segment *segment) {
        if (to <= position) return;
        Piece piece{.row = run.row + (position - run.first) * run.step,
                    .step = run.step,
                    .rows = to - position,
                    .ordinal = run.ordinal + (position - run.first)};
        if (segment != nullptr) {
            piece.source = source;
            piece.records = segment->row(position - segment->first);
            piece.whole = segment->complete;
        }
        add_pieces(piece);
        position = to;
    };
    auto source = std::partition_point(sources_.begin(), sources_.end(), [&](const PlanSource &s) {
        return s.sample < run.sample || (s.sample == run.sample && s.routing->end() <= position);
    });
    for (; source != sources_.end() && source->sample == run.sample && position < end; ++source) {
        const auto segments = source->routing->segments();
        auto segment = std::partition_point(segments.begin(), segments.end(),
                                            [&](const Segment &s) { return s.end() <= position; });
        for (; segment != segments.end() && position < end; ++segment) {
            if (!segment->page) continue;
            up_to(std::min(end, segment->first), nullptr, nullptr);
            up_to(std::min(end, segment->end()), &*source, &*segment);
        }
    }
    up_to(end, nullptr, nullptr);
}

// Counts the lost cells of a piece. If its rows may lack cells, it is split into stretches of rows
// that are complete and stretches of rows that are not.
void PlanSources::add_pieces(const Piece &piece) {
    const uint64_t layers = plan_.layers().size();
    if (piece.source == nullptr) {
        rows_lost_ += piece.rows, lost_ += piece.rows * layers;
        pieces_.push_back(piece);
        return;
    }
    if (piece.whole) return pieces_.push_back(piece);
    const Shape &shape = piece.source->routing->shape();
    uint64_t first = 0;
    const auto close = [&](uint64_t end, bool whole) {
        if (end == first) return;
        Piece part = piece;
        part.row += first * piece.step, part.ordinal += first, part.rows = end - first;
        part.records = piece.at(first);
        part.whole = whole;
        pieces_.push_back(part);
        first = end;
    };
    bool whole = true;
    for (uint64_t r = 0; r < piece.rows; r++) {
        uint64_t lost = 0;
        if (!shape.row_full(piece.at(r)))
            for (size_t l = 0; l < layers; l++) lost += !piece.valid(r, l);
        lost_ += lost;
        rows_lost_ += lost == layers;
        rows_partial_ += lost > 0 && lost < layers;
        if (r > first && whole != (lost == 0)) close(r, whole);
        whole = lost == 0;
    }
    close(piece.rows, whole);
}

int32_t PlanSources::status() const {
    if (lost_ == 0) return ROUTECAP_OK;
    return report(plan_.filler().lost == ROUTECAP_PLAN_LOST_ERROR ? ROUTECAP_ERR_INCOMPLETE
                                                                  : ROUTECAP_INCOMPLETE,
                  "%llu cells are lost, in %llu of %llu needed rows", ull(lost_),
                  ull(rows_lost_ + rows_partial_), ull(plan_.layout().needed));
}

void PlanSources::report_to(routecap_plan_report *to) const {
    if (to == nullptr) return;
    const PlanLayout &layout = plan_.layout();
    write_struct(to, routecap_plan_report{.struct_size = 0,
                                          .layers = static_cast<uint32_t>(plan_.layers().size()),
                                          .rows = layout.rows,
                                          .rows_valid = layout.needed - rows_lost_ - rows_partial_,
                                          .rows_partial = rows_partial_,
                                          .rows_lost = rows_lost_,
                                          .rows_not_needed = layout.not_needed,
                                          .rows_padding = layout.padding,
                                          .cells_lost = lost_});
}

}  // namespace routecap
