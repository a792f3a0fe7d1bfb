// The weights of a rank in its layout, in host memory.
#include "base/status.h"
#include "plan/plan.h"
#include "plan/sources.h"
#include "routing/weights.h"

namespace routecap {

int32_t gather_weights(const Plan &plan, const routecap_plan_source *sources, size_t source_size,
                       size_t count, int32_t dtype, float missing, void *dst, size_t dst_bytes,
                       uint64_t *missing_cells) {
    const uint32_t element = weight_element_bytes(dtype);
    const uint64_t needed = plan.cells() * plan.k() * element;
    if (element == 0) return report(ROUTECAP_ERR_DTYPE, "dtype %d is not a weight's", dtype);
    if (dst_bytes < needed)
        return report(ROUTECAP_ERR_BUFFER_TOO_SMALL, "dst has %zu bytes and needs %llu", dst_bytes,
                      ull(needed));
    if (needed > 0 && dst == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "dst is NULL");
    PlanSources found(plan);
    if (int32_t s = found.read(sources, source_size, count); s < 0) return s;
    for (const Piece &piece : found.pieces())
        if (piece.source != nullptr)
            if (int32_t s = check_weights_dtype(piece.source->routing->shape(), dtype); s < 0)
                return s;

    const size_t layers = plan.layers().size();
    const auto at = [&](uint64_t row, size_t layer) {
        return static_cast<int64_t>((row * plan.row_stride() + layer * plan.layer_stride()) *
                                    plan.k());
    };
    uint64_t lost = 0;
    for (const Piece &piece : found.pieces()) {
        const Shape &shape = piece.source != nullptr ? piece.source->routing->shape() : *plan.ids();
        const WeightWriter write(shape, dtype, missing);
        for (uint64_t r = 0; r < piece.rows; r++)
            for (size_t l = 0; l < layers; l++)
                lost += !write.cell(dst, at(piece.row + r * piece.step, l),
                                    piece.source != nullptr ? piece.at(r) : nullptr,
                                    piece.source != nullptr ? piece.source->layers[l] : 0);
    }
    const WeightWriter write(*plan.ids(), dtype, 0);  // zeros
    for (const PlanRun &run : plan.layout().runs)
        for (uint64_t r = 0; r < run.rows && run.row_class != ROUTECAP_PLAN_CLASS_VALID; r++)
            for (size_t l = 0; l < layers; l++)
                write.cell(dst, at(run.row + r * run.step, l), nullptr, 0);
    if (missing_cells != nullptr) *missing_cells = lost;
    if (lost == 0) return ROUTECAP_OK;
    return report(ROUTECAP_INCOMPLETE, "%llu needed cells have no weights", ull(lost));
}

}  // namespace routecap
