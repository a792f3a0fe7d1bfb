// Steps in flight: the slots that hold their rows, the tickets that name them, and what became of the last ones.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/body.h"
#include "rows.h"

namespace routecap {

// Names a span of a step in flight, until that step was filed.
struct SpanLink {
    uint64_t step = 0;
    int32_t slot = kernels::kNoSlot;
    uint32_t span = 0;
};

// Rows of one step on their way to one request. Written by issue; but for `cut`, not changed while the step is in flight. One cache line.
struct alignas(64) StepSpan {
    RowStore *rows;         // lives at least until everything issued before the request's end was filed
    uint64_t position;      // of the first row, or the lower bound of device positions
    uint64_t position_end;  // one past the last
    uint64_t cut;           // rows at and after are late; lowered while the step is in flight, by std::atomic_ref
    SpanLink previous;      // of the same request
    uint32_t sink_row;
    uint32_t count;
    uint32_t pages;            // reserved for it
    uint32_t draft_index : 30;  // of the first row, if speculative
    uint32_t speculative : 1;
    uint32_t device_positions : 1;
};
static_assert(sizeof(StepSpan) == 64);

struct Step {
    uint64_t ticket = 0;
    uint64_t tag = 0;
    uint64_t rows = 0;  // of its spans together
    uint32_t rows_copied = 0;
    int32_t positions_dtype = 0;  // of the positions in the slot, where spans have device positions
    uint32_t span_count = 0;
    std::vector<StepSpan> spans;  // the first span_count are this step's; it only grows

    void begin(uint64_t new_ticket, uint64_t new_tag, size_t most_spans) {
        if (spans.size() < most_spans) spans.resize(most_spans);
        ticket = new_ticket;
        tag = new_tag;
        span_count = 0;
    }
};

// Everything is guarded by the capturer's mutex unless it is atomic.
class Steps {
public:
    explicit Steps(uint32_t slots, uint32_t sink_rows) : steps_(slots), in_slot_(new std::atomic<uint64_t>[slots]()) {
        for (Step &step : steps_) step.spans.resize(first_spans(sink_rows));
    }
    static size_t bytes_per_slot(uint32_t sink_rows) { return first_spans(sink_rows) * sizeof(StepSpan); }

    // The slot that the next snapshot fills, as issue, discard or begin named it.
    int32_t named() const { return named_; }
    void name(int32_t slot) { named_ = slot; }
    // A slot that holds no step, or none.
    int32_t free_slot() const {
        const auto n = static_cast<int32_t>(steps_.size());
        for (int32_t i = 1; i <= n; i++) {
            const int32_t slot = (named_ + i + n) % n;
            if (in_slot_[static_cast<size_t>(slot)].load(std::memory_order_acquire) == 0) return slot;
        }
        return kernels::kNoSlot;
    }
    Step &step(int32_t slot) { return steps_[static_cast<size_t>(slot)]; }
    // Gives a slot to next_ticket(), which is still to be issued.
    void occupy(int32_t slot) { in_slot_[static_cast<size_t>(slot)].store(next_ticket(), std::memory_order_relaxed); }

    uint64_t issued() const { return issued_.load(std::memory_order_acquire); }
    uint64_t next_ticket() const { return issued() + 1; }
    // Gives out next_ticket(). A step without a slot has nothing to file: it has landed.
    void issue(bool lost) {
        const uint64_t ticket = next_ticket();
        Result &r = result(ticket);
        r.ticket.store(0, std::memory_order_release);
        r.lost.store(lost, std::memory_order_relaxed);
        r.conflicts.store(0, std::memory_order_relaxed);
        r.slip.store(ROUTECAP_OK, std::memory_order_relaxed);
        r.ticket.store(ticket, std::memory_order_release);
        issued_.store(ticket, std::memory_order_release);
    }

    // A step was filed: steps are, in order of issue.
    void filed(int32_t slot, uint64_t conflicts, bool lost = false, int32_t slip = ROUTECAP_OK) {
        const uint64_t ticket = step(slot).ticket;
        Result &r = result(ticket);
        if (r.ticket.load(std::memory_order_acquire) == ticket) {
            r.conflicts.store(conflicts, std::memory_order_relaxed);
            if (lost) r.lost.store(true, std::memory_order_relaxed);
            r.slip.store(slip, std::memory_order_relaxed);
        }
        filed_.store(ticket, std::memory_order_release);
        in_slot_[static_cast<size_t>(slot)].store(0, std::memory_order_release);
    }
    // Of a step that has a slot, whether it was not filed yet: a link to its spans is valid as long.
    bool in_flight(uint64_t ticket) const { return ticket > filed_.load(std::memory_order_acquire); }

    // For steps that were issued. Who sees that one has landed finds its slot free.
    bool landed(uint64_t ticket) const {
        for (size_t slot = 0; slot < steps_.size(); slot++)
            if (in_slot_[slot].load(std::memory_order_acquire) == ticket) return false;
        return true;
    }
    bool lost(uint64_t ticket) const {
        const Result &r = result(ticket);
        return r.ticket.load(std::memory_order_acquire) == ticket && r.lost.load(std::memory_order_relaxed);
    }
    uint64_t conflicts(uint64_t ticket) const {
        const Result &r = result(ticket);
        return r.ticket.load(std::memory_order_acquire) == ticket ? r.conflicts.load(std::memory_order_relaxed) : 0;
    }
    int32_t slip(uint64_t ticket) const {
        const Result &r = result(ticket);
        return r.ticket.load(std::memory_order_acquire) == ticket
                   ? r.slip.load(std::memory_order_relaxed)
                   : ROUTECAP_OK;
    }

private:
    static size_t first_spans(uint32_t sink_rows) { return sink_rows < 1024 ? sink_rows : 1024; }
    struct Result {
        std::atomic<uint64_t> ticket{0};
        std::atomic<uint64_t> conflicts{0};
        std::atomic<bool> lost{false};
        std::atomic<int32_t> slip{ROUTECAP_OK};
    };
    Result &result(uint64_t ticket) { return results_[ticket % results_.size()]; }
    const Result &result(uint64_t ticket) const { return results_[ticket % results_.size()]; }

    std::vector<Step> steps_;  // by slot
    std::unique_ptr<std::atomic<uint64_t>[]> in_slot_;  // the ticket of the step in each, or 0
    int32_t named_ = kernels::kNoSlot;
    std::atomic<uint64_t> issued_{0}, filed_{0};
    std::array<Result, 1024> results_;  // of the last steps
};

}  // namespace routecap
