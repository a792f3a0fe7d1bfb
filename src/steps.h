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
    uint32_t rows_copied = 0;
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
    explicit Steps(uint32_t slots, uint32_t sink_rows) : steps_(slots), busy_(new std::atomic<bool>[slots]()) {
        for (Step &step : steps_) step.spans.resize(sink_rows < 1024 ? sink_rows : 1024);
    }

    // The slot that the next snapshot fills, as issue, discard or begin named it.
    int32_t named() const { return named_; }
    void name(int32_t slot) { named_ = slot; }
    // A slot that holds no step, or none.
    int32_t free_slot() const {
        const auto n = static_cast<int32_t>(steps_.size());
        for (int32_t i = 1; i <= n; i++) {
            const int32_t slot = (named_ + i + n) % n;
            if (!busy_[static_cast<size_t>(slot)].load(std::memory_order_acquire)) return slot;
        }
        return kernels::kNoSlot;
    }
    Step &step(int32_t slot) { return steps_[static_cast<size_t>(slot)]; }
    const Step &step(int32_t slot) const { return steps_[static_cast<size_t>(slot)]; }
    void occupy(int32_t slot) { busy_[static_cast<size_t>(slot)].store(true, std::memory_order_relaxed); }

    uint64_t issued() const { return issued_.load(std::memory_order_acquire); }
    uint64_t next_ticket() const { return issued() + 1; }
    // Gives out next_ticket(). A step that landed at once has nothing to file.
    void issue(bool lost, bool at_once) {
        const uint64_t ticket = next_ticket();
        Result &r = result(ticket);
        r.ticket.store(0, std::memory_order_release);
        r.lost.store(lost, std::memory_order_relaxed);
        r.at_once.store(at_once, std::memory_order_relaxed);
        r.conflicts.store(0, std::memory_order_relaxed);
        r.ticket.store(ticket, std::memory_order_release);
        issued_.store(ticket, std::memory_order_release);
    }

    // A step was filed: steps are, in order of issue.
    void filed(int32_t slot, uint64_t conflicts) {
        const uint64_t ticket = step(slot).ticket;
        Result &r = result(ticket);
        if (r.ticket.load(std::memory_order_acquire) == ticket) r.conflicts.store(conflicts, std::memory_order_relaxed);
        filed_.store(ticket, std::memory_order_release);
        busy_[static_cast<size_t>(slot)].store(false, std::memory_order_release);
    }
    // Whether the rows of a step were filed, or are to be: a link to them is valid while they are not.
    bool in_flight(uint64_t ticket) const { return ticket > filed_.load(std::memory_order_acquire); }

    // For steps that were issued.
    bool landed(uint64_t ticket) const {
        const Result &r = result(ticket);
        const bool at_once = r.at_once.load(std::memory_order_relaxed) && r.ticket.load(std::memory_order_acquire) == ticket;
        return at_once || !in_flight(ticket);
    }
    bool lost(uint64_t ticket) const {
        const Result &r = result(ticket);
        return r.ticket.load(std::memory_order_acquire) == ticket && r.lost.load(std::memory_order_relaxed);
    }
    uint64_t conflicts(uint64_t ticket) const {
        const Result &r = result(ticket);
        return r.ticket.load(std::memory_order_acquire) == ticket ? r.conflicts.load(std::memory_order_relaxed) : 0;
    }

private:
    struct Result {
        std::atomic<uint64_t> ticket{0};
        std::atomic<uint64_t> conflicts{0};
        std::atomic<bool> lost{false}, at_once{false};
    };
    Result &result(uint64_t ticket) { return results_[ticket % results_.size()]; }
    const Result &result(uint64_t ticket) const { return results_[ticket % results_.size()]; }

    std::vector<Step> steps_;  // by slot
    std::unique_ptr<std::atomic<bool>[]> busy_;
    int32_t named_ = kernels::kNoSlot;
    std::atomic<uint64_t> issued_{0}, filed_{0};
    std::array<Result, 1024> results_;  // of the last steps
};

}  // namespace routecap
