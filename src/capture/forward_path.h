// The forward path: ids come into the sink, and each step's rows are handed to their requests. One
// thread at a time is in these functions, and all that is here is that thread's.
//
// Every function returns a status and is described in routecap.h; arguments come as they are, and
// structs may be of any version.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "capture/capture_state.h"
#include "capture/config.h"
#include "capture/forward_check.h"
#include "capture/request_table.h"
#include "routecap.h"

namespace routecap {

class ForwardPath {
public:
    // Without a backend the capturer is disabled; without a state it is a mirror.
    ForwardPath(const Config &config, Backend *backend, CaptureState *state);

    // For each call of the forward path, whose thread it checks in checked mode.
    ForwardCheck *check() { return check_ ? &*check_ : nullptr; }

    int32_t bind(uint32_t first_layer, uint32_t layers, const routecap_sink *sink);
    int32_t sink_layer(uint32_t layer, routecap_sink *sink);
    int32_t begin(uint32_t rows, routecap_stream stream);
    int32_t snapshot(routecap_stream stream);
    int32_t discard(routecap_stream stream);

    // What records ids (record.cc).
    int32_t record(uint32_t layer, const routecap_source *source, routecap_stream stream);
    int32_t record_layers(const routecap_source *source, const routecap_layer_source *layers,
                          size_t layer_size, size_t count, routecap_stream stream);
    int32_t route(uint32_t layer, const routecap_router *router, const routecap_logits *logits,
                  routecap_stream stream);
    int32_t read_received(const routecap_received *received, routecap_stream stream);
    int32_t compare_received(const routecap_received *received, routecap_stream stream);
    int32_t probe(uint32_t rows, routecap_layer_probe *layers, size_t layer_size, size_t count,
                  routecap_stream stream);

    // issue.cc
    int32_t issue(const routecap_span *spans, size_t span_size, size_t count,
                  const routecap_issue_options *options, int32_t *status, routecap_step *step,
                  routecap_stream stream);

private:
    bool disabled() const { return backend_ == nullptr; }
    int32_t enter_outside_capture(routecap_stream stream);
    int32_t prepare_begin();
    int32_t check_exists(uint32_t layer) const;

    // record.cc
    int32_t check_placement(const kernels::Placement &to) const;
    int32_t check_forward(const kernels::Placement &to) const;
    int32_t check_layer(uint32_t layer, const kernels::Placement &to, bool capturing) const;
    bool known(const kernels::Placement &to, bool capturing) const;
    void make_room(uint32_t layer);
    void note_recorded(uint32_t layer, const kernels::Placement &to, bool capturing) noexcept;
    int32_t check_columns(const routecap_source &s, std::span<const RecordedLayer> layers,
                          uint32_t &k) const;
    int32_t check_source(const routecap_source &s, std::span<const RecordedLayer> layers,
                         kernels::Source &source, uint32_t &k) const;
    int32_t record(const routecap_source &source, std::span<const RecordedLayer> layers,
                   routecap_stream stream);
    int32_t check_weights(const routecap_source &s, std::span<const RecordedLayer> layers,
                          uint32_t k, RecordSource &source) const;
    int32_t whole_step(const RecordSource &source, std::span<const RecordedLayer> layers,
                       routecap_stream stream);

    // issue.cc
    struct Issue;
    int32_t check_span(const Issue &issue, uint32_t i) const;
    int32_t check_spans(Issue &issue) REQUIRES(state_->registry.mutex);
    int32_t check_sink_rows(Issue &issue);
    static int32_t report_shared(const Issue &issue, uint32_t i);
    bool overlaps(const Issue &issue);
    uint32_t add_draft(const Issue &issue, const routecap_span &span, bool missing,
                       Request &request) REQUIRES(state_->registry.mutex);
    int32_t miss_span(Issue &issue, const routecap_span &span, uint32_t first_draft,
                      Request &request) REQUIRES(state_->registry.mutex);
    int32_t issue_span(Issue &issue, uint32_t i) REQUIRES(state_->registry.mutex);
    int32_t check_options(const routecap_issue_options &options) const;
    int32_t check_and_make_room(Issue &issue) REQUIRES(state_->registry.mutex);
    int32_t take_snapshot(const Issue &issue, routecap_stream stream);
    int32_t issue_spans(Issue &issue, int32_t *status, routecap_stream stream);
    void append_step(const Issue &issue) REQUIRES(state_->registry.mutex);
    void start_copy(const Issue &issue, routecap_stream stream);
    int32_t outcome(const Issue &issue) const;

    const Config &config_;
    Backend *const backend_;             // null if disabled
    CaptureState *const state_;          // null of a mirror
    std::optional<ForwardCheck> check_;  // in checked mode

    // The step being recorded, as far as the host knows it.
    uint64_t begins_ = 0;
    bool begun_ = false;
    bool later_ = false;  // a step was issued whose rows arrive later
    // Rows of a layer that the host knows to be recorded in this step.
    struct Recorded {
        uint64_t begin = 0;  // the begin they belong to
        std::vector<std::pair<uint32_t, uint32_t>> rows;
    };
    std::vector<Recorded> recorded_;     // per layer
    std::vector<RecordedLayer> listed_;  // record_layers' own; it keeps its memory
    std::vector<bool> seen_;             // likewise

    uint32_t checks_ = 0;  // issues that were checked
    // Of each span, what check_spans found: its request, or null, and what it is charged.
    struct Checked {
        Request *request;
        uint32_t charge;
    };
    std::vector<Checked> checked_;
    std::vector<uint32_t> order_;  // spans by request and position, where they do not ascend
    // Of 64 sink rows, where spans do not ascend: those that spans name, those of spans that share
    // none, and those that several name.
    struct NamedRows {
        uint64_t named, alone, again;
    };
    std::vector<NamedRows> named_rows_;
};

}  // namespace routecap
