// Checked mode (ROUTECAP_CONFIG_CHECKED): whether the calls of the forward path come in their
// order, with memory that the device can read, and from one thread at a time. A capturer without
// that mode has no such object.
//
// Each slip is refused at the call that makes it, if the host can know it. It cannot where a begin
// was captured into a graph: any replay may have begun a step since. Then the slot of the step
// tells what the device has seen (slip_of), once the step has landed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "backend/backend.h"
#include "kernels/placement.h"
#include "routecap.h"

namespace routecap {

class ForwardCheck {
public:
    explicit ForwardCheck(Backend &backend, uint32_t sink_rows)
        : backend_(backend), sink_rows_(sink_rows) {}

    // As long as it lives its thread is in a call of the forward path. Without a check it does
    // nothing.
    class Call {
    public:
        explicit Call(ForwardCheck *check) : check_(check) {
            if (check_ != nullptr && check_->busy_.exchange(true, std::memory_order_acquire))
                check_ = nullptr, alone_ = false;
        }
        ~Call() {
            if (check_ != nullptr) check_->busy_.store(false, std::memory_order_release);
        }
        Call(const Call &) = delete;
        // Whether no other thread is in one, reported.
        int32_t status() const;

    private:
        ForwardCheck *check_;
        bool alone_ = true;
    };

    // Before a call does anything: ROUTECAP_OK, or the slip, reported. After Backend::enter, which
    // knows of captures.
    int32_t before_write(const kernels::Placement &to) const;
    int32_t before_snapshot() const;
    // With spans that are in order themselves. Also what an earlier step's slot told, once.
    int32_t before_issue(const routecap_span *spans, size_t span_size, size_t count,
                         int32_t snapshot);
    // After it has done it.
    void begun(uint32_t rows);
    void snapshot_taken();
    void issued() { pass_ = {.after_issue = true}; }
    void discarded() { pass_ = {}; }

    // A device argument, which may be NULL.
    struct Memory {
        const void *address;
        const char *name;
    };
    int32_t check_memory(std::initializer_list<Memory> arguments) const;

    // For whoever files. What a step that landed, and was not lost, tells of its forward:
    // ROUTECAP_OK or a slip. `rows` is one past the last sink row that a span named.
    static int32_t slip_of(const SlotContents &contents, uint32_t rows);
    // Keeps that for the next issue, if none is kept already. Before the step is seen to have
    // landed.
    void found(routecap_step step, int32_t slip);
    // Reports such a slip and returns it.
    static int32_t report_found(routecap_step step, int32_t slip);
    static const char *text_of(int32_t slip);

private:
    // A forward pass as the host sees it.
    struct Pass {
        uint64_t capture = 0;  // in which it is captured; 0: in none
        bool begun = false;
        bool after_issue = false;  // nothing but an issue was before it
        uint32_t rows = 0;
        uint32_t snapshots = 0;
    };
    const Pass *known() const;

    Backend &backend_;
    const uint32_t sink_rows_;
    std::atomic<bool> busy_{false};
    Pass pass_, captured_;  // the last one in line, and the last one that was captured
    bool begin_captured_ = false, snapshot_captured_ = false;  // ever
    std::atomic<uint64_t> found_{0};  // step << 8 | slip, as found() packs it; 0: nothing
};

}  // namespace routecap
