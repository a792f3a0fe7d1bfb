// The ids of a rank in its layout, in host memory.
#include "base/status.h"
#include "base/structs.h"
#include "plan/plan.h"
#include "plan/row_writer.h"
#include "plan/sources.h"

namespace routecap {

int32_t check_result(const Plan &plan, const void *dst, uint64_t dst_bytes, const uint8_t *classes,
                     uint64_t classes_bytes) {
    if (dst_bytes < plan.ids_bytes())
        return report(ROUTECAP_ERR_BUFFER_TOO_SMALL, "dst has %llu bytes and needs %llu",
                      ull(dst_bytes), ull(plan.ids_bytes()));
    if (plan.cells() > 0 && dst == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "dst is NULL");
    if (classes != nullptr && classes_bytes < plan.cells())
        return report(ROUTECAP_ERR_BUFFER_TOO_SMALL, "classes has %llu bytes and needs %llu",
                      ull(classes_bytes), ull(plan.cells()));
    if (classes == nullptr && plan.cells() > 0 && plan.lost_may_look_valid())
        return report(
            ROUTECAP_ERR_ARGUMENT,
            "a lost cell would look like a valid one: pass classes, LOST_ERROR or another "
            "lost_value");
    return ROUTECAP_OK;
}

int32_t gather(const Plan &plan, const routecap_plan_source *sources, size_t source_size,
               size_t count, void *dst, size_t dst_bytes, uint8_t *classes, size_t classes_bytes,
               routecap_plan_report *report) {
    if (int32_t s = check_wanted(report, "report"); s < 0) return s;
    if (int32_t s = check_result(plan, dst, dst_bytes, classes, classes_bytes); s < 0) return s;
    PlanSources found(plan);
    if (int32_t s = found.read(sources, source_size, count); s < 0) return s;
    found.report_to(report);
    const int32_t status = found.status();
    if (status < 0) return status;
    RowWriter writer(plan, {.ids = dst,
                            .classes = classes,
                            .element_bytes = plan.element_bytes(),
                            .row_stride = plan.row_stride(),
                            .layer_stride = plan.layer_stride(),
                            .none = plan.filler().none_value});
    for (const Piece &piece : found.pieces()) writer.write(piece);
    for (const PlanRun &run : plan.layout().runs)
        if (run.row_class != ROUTECAP_PLAN_CLASS_VALID) writer.fill(run);
    return status;
}

}  // namespace routecap
