// Routings of what the routers of one rank have recorded: the inverse of gathering.
#include <algorithm>

#include "base/element.h"
#include "base/status.h"
#include "kernels/snapshot.h"
#include "plan/plan.h"
#include "routing/import.h"

namespace routecap {
namespace {

// Rows of one sample that follow one another, as they lie in a routing.
struct Rows {
    std::vector<uint8_t> ids, validity;
};

class Scatter {
public:
    Scatter(const Plan &plan, const void *ids, const uint8_t *classes)
        : plan_(plan), ids_(ids), classes_(classes) {}

    Rows read(const PlanRun &run) {
        Rows rows{std::vector<uint8_t>(run.rows * shape_.ids_bytes),
                  std::vector<uint8_t>(run.rows * shape_.validity_bytes)};
        with_dtype(plan_.dtype(), [&]<class T>(T) {
            if (shape_.id_bytes == 1)
                read_cells<T, uint8_t>(run, rows);
            else
                read_cells<T, uint16_t>(run, rows);
        });
        return rows;
    }

    bool complete() const { return complete_; }

private:
    template <class T, class Id>
    void read_cells(const PlanRun &run, Rows &rows) {
        for (uint64_t r = 0; r < run.rows; r++)
            for (uint32_t l = 0; l < shape_.layers; l++) {
                const uint64_t at =
                    (run.row + r * run.step) * plan_.row_stride() + l * plan_.layer_stride();
                uint8_t *row = rows.ids.data() + r * shape_.ids_bytes;
                const int32_t reason =
                    classes_ != nullptr && classes_[at] == ROUTECAP_PLAN_CLASS_LOST
                        ? ROUTECAP_MISSING_UNWRITTEN
                        : read_cell(static_cast<const T *>(ids_) + at * shape_.k,
                                    shape_.layer_experts[l],
                                    reinterpret_cast<Id *>(row) + size_t{l} * shape_.k);
                if (reason == 0) {
                    Shape::set_valid(rows.validity.data() + r * shape_.validity_bytes, l);
                } else {
                    shape_.mark(row, l, reason);
                    complete_ = false;
                }
            }
    }

    // Narrows one cell. Returns 0 if it is valid, otherwise the reason.
    template <class T, class Id>
    int32_t read_cell(const T *cell, uint32_t experts, Id *to) const {
        bool negative = false, in_range = true;
        for (uint32_t c = 0; c < shape_.k; c++) {
            if constexpr (std::is_signed_v<T>) negative |= cell[c] < 0;
            in_range &= static_cast<uint64_t>(cell[c]) < experts;
            to[c] = static_cast<Id>(cell[c]);
        }
        if (negative) return ROUTECAP_MISSING_UNWRITTEN;
        if (!in_range) return ROUTECAP_MISSING_OUT_OF_RANGE;
        return kernels::distinct<Id, 0>(to, shape_.k) ? 0 : ROUTECAP_MISSING_DUPLICATE;
    }

    const Plan &plan_;
    const Shape &shape_ = *plan_.ids();
    const void *ids_;
    const uint8_t *classes_;
    bool complete_ = true;
};

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

    Scatter from(plan, ids, classes);
    std::vector<RoutingPtr> made;
    auto run = plan.layout().runs.begin();
    for (uint64_t i = 0; i < count; i++) {
        ImportedRows rows{plan.ids(), 0, plan.layout().lengths[i], {}, {}};
        std::vector<Rows> arrays;
        for (; run != plan.layout().runs.end() && run->sample == i; ++run) {
            if (run->row_class != ROUTECAP_PLAN_CLASS_VALID) continue;
            arrays.push_back(from.read(*run));
            const Rows &read = arrays.back();
            rows.segments.push_back({.first = run->first,
                                     .rows = run->rows,
                                     .ids = read.ids.data(),
                                     .validity = read.validity.data(),
                                     .tags = nullptr,
                                     .tag = 0,
                                     .reason = 0,
                                     .reserved = 0});
        }
        Routing *routing = nullptr;
        if (int32_t s =
                import_rows(std::move(rows), ROUTECAP_IMPORT_TRUSTED, nullptr, nullptr, &routing);
            s < 0)
            return s;
        made.emplace_back(routing);
    }
    for (size_t i = 0; i < count; i++) routings[i] = const_cast<Routing *>(made[i].release());
    if (from.complete()) return ROUTECAP_OK;
    return report(ROUTECAP_INCOMPLETE, "recorded cells are missing; coverage names them");
}

}  // namespace routecap
