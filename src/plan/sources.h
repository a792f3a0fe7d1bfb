// Where the ids of a plan's needed rows lie: routings, cut along the runs of the plan.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "routing/routing.h"

namespace routecap {

// A routing that a plan is given, and where the plan's layers are in it.
struct PlanSource {
    uint64_t sample = 0;
    const Routing *routing = nullptr;
    std::vector<uint32_t> layers;  // [layers of the plan] of the routing
    bool adjacent = false;         // they follow one another there
    uint32_t width = 0;            // bytes of an id
    uint32_t stride = 0;           // from row to row
};

// Needed rows that follow one another in memory, or that no source has.
struct Piece {
    uint64_t row, step, rows;  // as of a run
    uint64_t ordinal;
    const PlanSource *source = nullptr;  // nullptr: all cells are lost
    const uint8_t *records = nullptr;
    bool whole = true;  // every cell of the plan's layers is valid

    const uint8_t *at(uint64_t r) const { return records + r * source->stride; }
    bool valid(uint64_t r, size_t layer) const {
        return whole || source->routing->shape().valid(at(r), source->layers[layer]);
    }
    template <class Id>
    const Id *cell(uint64_t r, size_t layer, uint32_t k) const {
        return reinterpret_cast<const Id *>(at(r)) + size_t{source->layers[layer]} * k;
    }
};

class PlanSources {
public:
    explicit PlanSources(const Plan &plan) : plan_(plan) {}
    // Checks the caller's sources, and finds every needed row.
    int32_t read(const routecap_plan_source *sources, size_t source_size, size_t count);

    const std::vector<Piece> &pieces() const { return pieces_; }
    uint64_t cells_lost() const { return lost_; }
    // The status to return if there was no other error: OK, INCOMPLETE, or the error of LOST_ERROR.
    int32_t status() const;
    void report_to(routecap_plan_report *to) const;

private:
    int32_t add(const routecap_plan_source &given);
    void cut(const PlanRun &run);
    void add_pieces(const Piece &piece);

    const Plan &plan_;
    std::vector<PlanSource> sources_;  // ordered by sample and first row
    std::vector<Piece> pieces_;
    uint64_t lost_ = 0, rows_lost_ = 0, rows_partial_ = 0;
};

}  // namespace routecap
