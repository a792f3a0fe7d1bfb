// Routings of what the routers of one rank have recorded: the inverse of gathering.
#include <algorithm>
#include <cstring>
#include <span>

#include "base/element.h"
#include "base/status.h"
#include "kernels/snapshot.h"
#include "plan/plan.h"
#include "routing/distinct.h"
#include "routing/import.h"

namespace routecap {
namespace {

// Narrows one cell of k columns. Returns 0 if it is valid, otherwise the reason. `none` is in
// columns without an expert.
template <class T, class Id, uint32_t K>
int32_t read_cell(const T *cell, uint32_t k, const kernels::CellRule &rule, T none, Id *to) {
    uint32_t used = kernels::columns<K>(k);
    if constexpr (K == 0)
        while (used > rule.least && cell[used - 1] == none) to[--used] = kernels::kUnused<Id>;
    bool negative = false, in_range = used <= rule.k;
    for (uint32_t c = 0; c < used; c++) {
        if constexpr (std::is_signed_v<T>) negative |= cell[c] < 0;
        in_range &= static_cast<uint64_t>(cell[c]) < rule.experts;
        to[c] = static_cast<Id>(cell[c]);
    }
    if (negative) return ROUTECAP_MISSING_UNWRITTEN;
    if (!in_range) return ROUTECAP_MISSING_OUT_OF_RANGE;
    return kernels::distinct<Id, K>(to, used) ? 0 : ROUTECAP_MISSING_DUPLICATE;
}

// Returns whether all cells are valid.
template <class T, class Id, uint32_t K>
bool read_cells(const Plan &plan, const T *ids, const uint8_t *classes, const PlanRun &run,
                uint8_t *row) {
    const Shape &shape = *plan.ids();
    bool complete = true;
    for (uint64_t r = 0; r < run.rows; r++, row += shape.stride) {
        std::memset(row, 0, shape.stride);
        for (uint32_t l = 0; l < shape.layers; l++) {
            const uint64_t at =
                (run.row + r * run.step) * plan.row_stride() + l * plan.layer_stride();
            const bool lost = classes != nullptr && classes[at] == ROUTECAP_PLAN_CLASS_LOST;
            const int32_t reason =
                lost ? ROUTECAP_MISSING_UNWRITTEN
                     : read_cell<T, Id, K>(ids + at * shape.k, shape.k, shape.rules[l],
                                           static_cast<T>(plan.filler().none_value),
                                           reinterpret_cast<Id *>(shape.cell(row, l)));
            complete &= reason == 0;
            if (reason == 0)
                shape.set_valid(row, l);
            else
                shape.mark(row, l, reason);
        }
    }
    return complete;
}

}  // namespace

int32_t scatter(const Plan &plan, const void *ids, size_t ids_bytes, const uint8_t *classes,
                size_t classes_bytes, Routing **routings, size_t count) {
    if (count != plan.samples())
        return report(ROUTECAP_ERR_ARGUMENT, "%zu routings of %llu samples", count,
                      ull(plan.samples()));
    if (ids_bytes != plan.ids_bytes() || (classes != nullptr && classes_bytes != plan.cells()))
        return report(ROUTECAP_ERR_ARGUMENT,
                      "ids have %zu bytes and classes %zu; the plan's have %llu and %llu",
                      ids_bytes, classes_bytes, ull(plan.ids_bytes()), ull(plan.cells()));
    if (ids_bytes > 0 && ids == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "ids is NULL");

    const Shape &shape = *plan.ids();
    bool complete = true;
    std::vector<RoutingPtr> made;
    const std::vector<PlanRun> &runs = plan.layout().runs;
    for (uint64_t i = 0, r = 0; i < count; i++) {
        const size_t begin = r;
        uint64_t needed = 0;
        for (; r < runs.size() && runs[r].sample == i; r++)
            needed += runs[r].row_class == ROUTECAP_PLAN_CLASS_VALID ? runs[r].rows : 0;
        const std::shared_ptr<uint8_t[]> memory = make_records(shape, needed);
        ImportedRows rows{plan.ids(), 0, plan.layout().lengths[i], {}, memory};
        uint8_t *records = memory.get();
        for (const PlanRun &run : std::span(runs).subspan(begin, r - begin)) {
            if (run.row_class != ROUTECAP_PLAN_CLASS_VALID) continue;
            with_dtype(plan.dtype(), [&]<class T>(T) {
                const auto *from = static_cast<const T *>(ids);
                complete &= with_k(shape.kernel_k(), [&]<uint32_t K>() {
                    return shape.id_bytes == 1
                               ? read_cells<T, uint8_t, K>(plan, from, classes, run, records)
                               : read_cells<T, uint16_t, K>(plan, from, classes, run, records);
                });
            });
            rows.runs.push_back({.first = run.first, .rows = run.rows, .records = records});
            records += run.rows * shape.stride;
        }
        Routing *routing = nullptr;
        if (int32_t s = import_rows(std::move(rows), ROUTECAP_IMPORT_TRUSTED, &routing); s < 0)
            return s;
        made.emplace_back(routing);
    }
    for (size_t i = 0; i < count; i++) routings[i] = const_cast<Routing *>(made[i].release());
    if (complete) return ROUTECAP_OK;
    return report(ROUTECAP_INCOMPLETE, "recorded cells are missing; coverage names them");
}

}  // namespace routecap
