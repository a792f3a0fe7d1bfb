// Steps in flight: the slots with their rows, their tickets, and the results of the last steps.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "base/event_count.h"
#include "base/mutex.h"
#include "kernels/body.h"
#include "rows/row_store.h"

namespace routecap {

// Names a span of a step. Valid until the step was filed.
struct SpanLink {
    Ticket step = Ticket::none;
    uint32_t span = 0;
    int32_t slot = kernels::kNoSlot;
};

// Rows of one step on their way to one request. Issue writes it. While the step is in flight only
// `cut` changes.
struct StepSpan {
    // Valid until the Finish or Close of the request was applied.
    RowStore *rows;
    uint64_t position;      // of the first row, or the lower bound of device positions
    uint64_t position_end;  // one past the last
    SpanCut cut;
    SpanLink previous;  // of the same request
    uint32_t sink_row;
    uint32_t count;
    uint32_t charge;       // pages
    uint32_t draft_index;  // of the first row, if speculative
    bool speculative, device_positions;
    Phase phase;
};

struct Step {
    Ticket ticket = Ticket::none;
    Tag tag = Tag::none;
    uint64_t rows = 0;  // of its spans together
    uint32_t rows_copied = 0;
    int32_t positions_dtype = 0;  // of the positions in the slot, where spans have device positions
    uint32_t span_count = 0;
    EventCount::Clock::time_point issued_at;
    std::vector<StepSpan> spans;  // the first span_count are this step's; it only grows

    // Begins to fetch where issue writes a span, for which there must be room. Without it issuing
    // 1,024 spans takes 1.13 times as long (cold caches, on a Xeon).
    void prefetch(size_t span) const {
        __builtin_prefetch(&spans[span], 1);
        __builtin_prefetch(&spans[span].phase, 1);
    }
    // Needs the registry's mutex, because another thread may still look at the slot's last step.
    // Throws without memory for so many spans.
    void begin(Ticket new_ticket, Tag new_tag, size_t most_spans) {
        if (spans.size() < most_spans)
            spans = std::vector<StepSpan>(std::max(most_spans, 2 * spans.size()));
        ticket = new_ticket;
        tag = new_tag;
        span_count = 0;
    }
};

// What became of a step.
struct StepResult {
    bool lost = false;           // too many were in flight, or its copy failed
    int32_t slip = 0;            // the status of a slip that the device saw
    uint64_t conflicts = 0;      // cells that were recorded twice
    const char *text = nullptr;  // why it was lost, in static storage or in Steps
};

// The forward path's thread names slots and issues; whoever files says what was filed; anyone asks.
// The spans of a step are written before it is issued, and read by other threads with the
// registry's mutex, while it is in flight.
class Steps {
public:
    static constexpr char kLostText[] =
        "this step was issued while as many steps were in flight as config.slots allows";

    // Slots for `most` steps in flight: one each, and one for the pass that is not issued yet, which
    // is named before a graph is replayed.
    static uint32_t slots_for(uint32_t most) { return most + 1; }

    Steps(uint32_t most_in_flight, uint32_t sink_rows)
        : slots_(slots_for(most_in_flight)),
          steps_(new Step[slots_]),
          in_slot_(new std::atomic<Ticket>[slots_]()) {
        for (size_t slot = 0; slot < slots_; slot++)
            steps_[slot].begin(Ticket::none, Tag::none, first_spans(sink_rows));
    }
    static size_t bytes_per_slot(uint32_t sink_rows) {
        return sizeof(Step) + first_spans(sink_rows) * sizeof(StepSpan);
    }

    uint32_t most_in_flight() const { return static_cast<uint32_t>(slots_) - 1; }
    // Whether as many are in flight as may be: a step that is issued now is lost.
    bool full() const {
        size_t held = 0;
        for (size_t slot = 0; slot < slots_; slot++)
            held += in_slot_[slot].load(std::memory_order_acquire) != Ticket::none;
        return held == slots_ - 1;
    }

    // The slot that the next snapshot fills. It holds no step.
    int32_t named() const { return named_; }
    void name(int32_t slot) { named_ = slot; }
    // A slot that holds no step: there is one, as at most most_in_flight() are occupied.
    int32_t free_slot() const {
        auto slot = static_cast<size_t>(named_);
        do slot = (slot + 1) % slots_;
        while (in_slot_[slot].load(std::memory_order_acquire) != Ticket::none);
        return static_cast<int32_t>(slot);
    }
    Step &step(int32_t slot) { return steps_[static_cast<size_t>(slot)]; }
    // Gives a slot to next_ticket(), which is still to be issued. Not if they are full().
    void occupy(int32_t slot) {
        in_slot_[static_cast<size_t>(slot)].store(next_ticket(), std::memory_order_relaxed);
    }

    Ticket issued() const { return issued_.load(std::memory_order_acquire); }
    Ticket next_ticket() const { return Ticket{number(issued()) + 1}; }
    // Gives out next_ticket(). A step that is lost has nothing to file: it has landed.
    void issue(bool lost) {
        const Ticket ticket = next_ticket();
        {
            const Lock lock(results_mutex_);
            results_[number(ticket) % results_.size()] = {
                ticket, {.lost = lost, .text = lost ? kLostText : nullptr}};
        }
        issued_.store(ticket, std::memory_order_release);
    }

    // A step was filed: steps are, in order of issue. Its slot is free then.
    void filed(int32_t slot, uint64_t conflicts, const char *failure, int32_t slip) {
        const Ticket ticket = step(slot).ticket;
        {
            const Lock lock(results_mutex_);
            Result &r = results_[number(ticket) % results_.size()];
            if (r.ticket == ticket) {
                r.result = {.lost = failure != nullptr,
                            .slip = slip,
                            .conflicts = conflicts,
                            .text = nullptr};
                if (failure != nullptr) {
                    Text &kept = texts_[failures_++ % texts_.size()];
                    std::snprintf(kept.data(), kept.size(), "%s", failure);
                    r.result.text = kept.data();
                }
            }
        }
        filed_.store(ticket, std::memory_order_release);
        in_slot_[static_cast<size_t>(slot)].store(Ticket::none, std::memory_order_release);
    }
    // Of a step that has a slot, whether it was not filed yet: a link to its spans is valid as
    // long.
    bool in_flight(Ticket ticket) const { return ticket > filed_.load(std::memory_order_acquire); }

    // For steps that were issued. Who sees that one has landed finds that they are not full().
    bool landed(Ticket ticket) const {
        for (size_t slot = 0; slot < slots_; slot++)
            if (in_slot_[slot].load(std::memory_order_acquire) == ticket) return false;
        return true;
    }
    // Calls f(result), with a text that is valid meanwhile. Steps of long ago were not lost, and
    // nothing else is known of them.
    template <class F>
    auto with_result(Ticket ticket, F f) const {
        const Lock lock(results_mutex_);
        const Result &r = results_[number(ticket) % results_.size()];
        return f(r.ticket == ticket ? r.result : StepResult{});
    }

private:
    static size_t first_spans(uint32_t sink_rows) { return sink_rows < 1024 ? sink_rows : 1024; }
    struct Result {
        Ticket ticket = Ticket::none;
        StepResult result;
    };
    using Text = std::array<char, 200>;

    const size_t slots_;
    std::unique_ptr<Step[]> steps_;  // by slot
    // The ticket of the step in each; none: it is free.
    std::unique_ptr<std::atomic<Ticket>[]> in_slot_;
    int32_t named_ = 0;  // the forward path's own
    std::atomic<Ticket> issued_{Ticket::none}, filed_{Ticket::none};
    mutable QuickMutex results_mutex_;  // held for a few instructions
    // Of the last steps, and of the last that failed.
    std::array<Result, 1024> results_ GUARDED_BY(results_mutex_){};
    std::array<Text, 16> texts_ GUARDED_BY(results_mutex_){};
    uint64_t failures_ GUARDED_BY(results_mutex_) = 0;
};

}  // namespace routecap
