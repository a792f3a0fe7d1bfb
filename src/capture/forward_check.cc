#include "capture/forward_check.h"

#include "base/status.h"
#include "base/structs.h"

namespace routecap {
namespace {

constexpr const char *kNotBegun = "no step was begun since the last issue or discard";

}  // namespace

const char *ForwardCheck::text_of(int32_t slip) {
    switch (slip) {
        case ROUTECAP_ERR_NOT_BEGUN: return kNotBegun;
        case ROUTECAP_ERR_NOT_SNAPSHOT: return "no snapshot was taken";
        case ROUTECAP_ERR_SNAPSHOT_TWICE: return "more than one snapshot was taken";
        default: return "rows were recorded, or named by a span, at or beyond those begun";
    }
}

int32_t ForwardCheck::Call::status() const {
    return alone_ ? ROUTECAP_OK
                  : report(ROUTECAP_ERR_TWO_THREADS,
                           "another thread is in a call of the forward path of this capturer");
}

// The pass that a call belongs to; nullptr if the host cannot know it.
const ForwardCheck::Pass *ForwardCheck::known() const {
    const uint64_t capture = backend_.capture();
    if (capture != 0) return captured_.capture == capture ? &captured_ : nullptr;
    return begin_captured_ ? nullptr : &pass_;
}

int32_t ForwardCheck::before_write(const kernels::Placement &to) const {
    const Pass *pass = known();
    if (pass == nullptr) return ROUTECAP_OK;
    if (!pass->begun) return report(ROUTECAP_ERR_NOT_BEGUN, "%s", kNotBegun);
    const bool placed =
        to.live_rows == nullptr && to.row_base == nullptr && to.row_index == nullptr;
    if (placed && uint64_t{to.first_row} + to.rows > pass->rows)
        return report(ROUTECAP_ERR_ROWS_NOT_BEGUN, "rows [%u,%u), and %u were begun", to.first_row,
                      to.first_row + to.rows, pass->rows);
    return ROUTECAP_OK;
}

int32_t ForwardCheck::before_snapshot() const {
    const Pass *pass = known();
    if (pass == nullptr) return ROUTECAP_OK;
    if (!pass->begun) return report(ROUTECAP_ERR_NOT_BEGUN, "%s", kNotBegun);
    return pass->snapshots > 0
               ? report(ROUTECAP_ERR_SNAPSHOT_TWICE, "this step has a snapshot already")
               : ROUTECAP_OK;
}

int32_t ForwardCheck::before_issue(const routecap_span *spans, size_t span_size, size_t count,
                                   int32_t snapshot) {
    if (const uint64_t found = found_.exchange(0, std::memory_order_acquire); found != 0)
        return report_found(found >> 8,
                            ROUTECAP_ERR_NOT_BEGUN - static_cast<int32_t>(found & 0xff) + 1);
    if (snapshot == ROUTECAP_SNAPSHOT_LATER) return ROUTECAP_OK;
    const Pass *pass = known();
    if (pass == nullptr) return ROUTECAP_OK;
    if (!pass->begun && pass->after_issue)
        return report(ROUTECAP_ERR_ISSUED_TWICE, "no step was begun since the last issue");
    if (!pass->begun) return report(ROUTECAP_ERR_NOT_BEGUN, "%s", kNotBegun);
    if (snapshot == ROUTECAP_SNAPSHOT_MAKE && pass->snapshots > 0)
        return report(ROUTECAP_ERR_SNAPSHOT_TWICE,
                      "this step has a snapshot already, and options.snapshot is MAKE");
    if (snapshot != ROUTECAP_SNAPSHOT_MAKE && pass->snapshots == 0 && !snapshot_captured_)
        return report(ROUTECAP_ERR_NOT_SNAPSHOT,
                      "this step has no snapshot, and options.snapshot is TAKEN");
    for (size_t i = 0; i < count; i++) {
        const routecap_span &span = at(spans, span_size, i);
        const uint64_t end = uint64_t{span.sink_row} + span.rows;
        if (end > pass->rows && end <= sink_rows_)
            return report(ROUTECAP_ERR_ROWS_NOT_BEGUN,
                          "span %zu: sink rows [%u,%llu), and %u were begun", i, span.sink_row,
                          ull(end), pass->rows);
    }
    return ROUTECAP_OK;
}

void ForwardCheck::begun(uint32_t rows) {
    const uint64_t capture = backend_.capture();
    begin_captured_ |= capture != 0;
    (capture != 0 ? captured_ : pass_) = {.capture = capture, .begun = true, .rows = rows};
}

void ForwardCheck::snapshot_taken() {
    const uint64_t capture = backend_.capture();
    snapshot_captured_ |= capture != 0;
    if (capture == 0)
        pass_.snapshots++;
    else if (captured_.capture == capture)
        captured_.snapshots++;
}

int32_t ForwardCheck::check_memory(std::initializer_list<Memory> arguments) const {
    for (const Memory &argument : arguments) {
        if (argument.address == nullptr) continue;
        if (int32_t s = backend_.check_memory(argument.address, argument.name); s < 0) return s;
    }
    return ROUTECAP_OK;
}

int32_t ForwardCheck::slip_of(const SlotContents &contents, uint32_t rows) {
    if (!contents.begun) return ROUTECAP_ERR_NOT_BEGUN;
    if (contents.snapshots == 0) return ROUTECAP_ERR_NOT_SNAPSHOT;
    if (contents.snapshots > 1) return ROUTECAP_ERR_SNAPSHOT_TWICE;
    return contents.dropped > 0 || rows > contents.covered ? ROUTECAP_ERR_ROWS_NOT_BEGUN
                                                           : ROUTECAP_OK;
}

void ForwardCheck::found(routecap_step step, int32_t slip) {
    if (slip == ROUTECAP_OK) return;
    uint64_t nothing = 0;
    found_.compare_exchange_strong(
        nothing, step << 8 | static_cast<uint64_t>(ROUTECAP_ERR_NOT_BEGUN - slip + 1),
        std::memory_order_release, std::memory_order_relaxed);
}

int32_t ForwardCheck::report_found(routecap_step step, int32_t slip) {
    return report(slip, "step %llu: %s", ull(step), text_of(slip));
}

}  // namespace routecap
