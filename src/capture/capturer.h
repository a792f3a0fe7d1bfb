// A capturer: the object behind the handle. It drives a backend along the forward path, keeps the
// requests, and hands what was issued to the step worker.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "backend/backends.h"
#include "backend/config.h"
#include "base/completion.h"
#include "base/counters.h"
#include "base/mutex.h"
#include "capture/forward_check.h"
#include "capture/request_table.h"
#include "capture/step_worker.h"
#include "capture/steps.h"
#include "routecap.h"
#include "routing/coverage.h"
#include "routing/routing.h"
#include "storage/pages.h"
#include "store/store.h"

namespace routecap {

// What a capturer of this configuration allocates.
routecap_memory memory_of(const Config &config);

// Every function returns a status and is described in routecap.h; arguments come as they are, and
// structs may be of any version.
class Capturer {
public:
    static int32_t create(const Config &config, std::unique_ptr<Capturer> &capturer);
    ~Capturer();
    Capturer(const Capturer &) = delete;

    bool disabled() const { return config_.role == ROUTECAP_ROLE_DISABLED; }
    bool owner() const { return config_.role == ROUTECAP_ROLE_OWNER; }

    int32_t stats(routecap_stats *stats) const;
    int32_t layer_stats(routecap_layer_stats *stats, size_t stat_size, size_t count) const;
    int32_t load(const uint64_t *tag, routecap_load *load, uint64_t *counts, size_t count);
    int32_t load_tags(uint64_t *tags, size_t capacity, uint64_t *count);
    int32_t progress();
    // dump.cc
    int32_t dump(uint32_t requests, void *dst, size_t dst_bytes, uint64_t *needed);

    // For each call of the forward path, whose thread it checks in checked mode.
    ForwardCheck *check() { return check_ ? &*check_ : nullptr; }

    // The forward path (capturer.cc, issue.cc): one thread at a time.
    int32_t bind(uint32_t first_layer, uint32_t layers, const routecap_sink *sink);
    int32_t sink_layer(uint32_t layer, routecap_sink *sink);
    int32_t begin(uint32_t rows, routecap_stream stream);
    int32_t snapshot(routecap_stream stream);
    int32_t discard(routecap_stream stream);
    int32_t issue(const routecap_span *spans, size_t span_size, size_t count,
                  const routecap_issue_options *options, int32_t *status, routecap_step *step,
                  routecap_stream stream);

    // And what records ids (record.cc).
    int32_t record(uint32_t layer, const routecap_source *source, routecap_stream stream);
    int32_t record_layers(const routecap_source *source, const routecap_layer_source *layers,
                          size_t layer_size, size_t count, routecap_stream stream);
    int32_t route(uint32_t layer, const routecap_router *router, const routecap_logits *logits,
                  routecap_stream stream);
    int32_t read_received(uint32_t layer, const routecap_received *received,
                          routecap_stream stream);
    int32_t probe(uint32_t rows, routecap_layer_probe *layers, size_t layer_size, size_t count,
                  routecap_stream stream);

    // Any thread.
    int32_t poll(routecap_step step) const;
    int32_t finalize(routecap_step step, int64_t timeout_ns, uint64_t *conflicting);

    // Changing requests (request_operations.cc).
    int32_t open(const routecap_open_options *options, routecap_request *requests, size_t count);
    int32_t accept(routecap_request request, routecap_step step, const uint32_t *rows,
                   size_t count);
    int32_t accept_batch(routecap_accept_item *items, size_t item_size, size_t count);
    int32_t truncate(routecap_request request, uint64_t rows);
    int32_t fork(routecap_request request, uint64_t rows, routecap_request *child);
    int32_t attach(routecap_request request, const Routing *routing, uint64_t rows);
    int32_t finish(routecap_request request, uint64_t rows, Routing **routing);
    int32_t finish_batch(routecap_finish_item *items, size_t item_size, size_t count);
    int32_t close(routecap_request request);
    int32_t close_batch(const routecap_request *requests, int32_t *status, size_t count);

    // Rows of prefixes (prefixes.cc).
    int32_t publish(const StorePtr &store, routecap_publish_item &item, uint64_t generation);
    int32_t publish_batch(const StorePtr &store, routecap_publish_item *items, size_t item_size,
                          size_t count, uint64_t generation);
    int32_t adopt(const StorePtr &store, routecap_adopt_item &item, uint64_t generation);
    int32_t adopt_batch(const StorePtr &store, routecap_adopt_item *items, size_t item_size,
                        size_t count, uint64_t generation);

    // Reading requests (request_reading.cc).
    int32_t coverage(routecap_request request, uint64_t first, uint64_t rows,
                     routecap_coverage *coverage, routecap_missing *missing, size_t missing_size,
                     size_t capacity);
    int32_t extract(routecap_request request, uint64_t first, uint64_t rows, int32_t mode,
                    uint32_t flags, Routing **routing);
    int32_t extract_batch(routecap_extract_item *items, size_t item_size, size_t count);
    int32_t extract_into(routecap_request request, uint64_t first, uint64_t rows,
                         const routecap_copy_options *options, void *dst, size_t dst_bytes,
                         uint8_t *mask, size_t mask_bytes, uint64_t *needed);

private:
    // What an owner has and a mirror has not.
    struct Capture {
        Capture(const Config &config, uint64_t number, Backend &backend);
        // With the turn of its readers: what has landed is counted in it.
        LoadCounter &counted_load();

        // Guards requests, the log and the nodes. Held for as long as one call's arguments take:
        // never while waiting, copying rows, calling the driver or a callback, or allocating
        // (docs/threading.md).
        mutable QuickMutex mutex;
        const StoragePtr storage;
        PagePool &pool;
        Completion &completion;
        Counters counters;
        Steps steps;
        RequestTable requests;
        std::atomic<bool> tags_vary{false};  // the steps have not all had the same tag
        std::optional<LoadCounter> load;     // if it is counted
        StepWorker worker;                   // last: it uses the others
    };

    // What a call will add: room for it is made while the mutex is not held.
    struct Room {
        size_t entries = 0;  // of the log
        size_t nodes = 0;
        size_t requests = 0;
    };
    std::unique_lock<QuickMutex> lock_with(const Room &room);
    // True if there was not enough, so that the mutex was released meanwhile.
    bool make_room(std::unique_lock<QuickMutex> &lock, const Room &room);

    // Rows of a layer that the host knows to be recorded in this step.
    struct Recorded {
        uint64_t begin = 0;  // the begin they belong to
        std::vector<std::pair<uint32_t, uint32_t>> rows;
    };

    explicit Capturer(const Config &config) : config_(config) {}
    struct Dump;  // dump.cc
    void log_creation() const;
    routecap_stats counted() const;
    int32_t enter_outside_capture(routecap_stream stream);
    int32_t check_exists(uint32_t layer) const;

    // record.cc
    int32_t check_placement(const kernels::Placement &to) const;
    int32_t check_forward(const kernels::Placement &to) const;
    int32_t check_layer(uint32_t layer, const kernels::Placement &to, bool capturing) const;
    bool known(const kernels::Placement &to, bool capturing) const;
    void make_room(uint32_t layer);
    void note_recorded(uint32_t layer, const kernels::Placement &to, bool capturing) noexcept;
    int32_t check_source(const routecap_source &s, kernels::Source &source) const;
    int32_t record(const routecap_source &source, std::span<const RecordedLayer> layers,
                   routecap_stream stream);

    // issue.cc; with the mutex held.
    struct Issue;
    int32_t issue_step(const routecap_span *spans, size_t span_size, size_t count,
                       const routecap_issue_options *options, int32_t *status, routecap_step *step,
                       routecap_stream stream);
    void copy(int32_t slot, uint32_t rows, const DevicePositions &positions,
              routecap_stream stream);
    int32_t check_span(const Issue &issue, uint32_t i) const;
    int32_t check_spans(Issue &issue);
    bool overlaps(const Issue &issue);
    struct Checked;
    int32_t issue_span(Issue &issue, const routecap_span &span, const Checked &checked,
                       uint32_t index);
    int32_t issue_special(Issue &issue, uint32_t index);
    void hand_spans(Issue &issue, int32_t *status);
    uint32_t note_draft(const Issue &issue, const routecap_span &span, Request &request,
                        uint64_t end, int32_t reason);
    uint32_t hand_over(Issue &issue, const routecap_span &span, Request &request, uint64_t end,
                       uint64_t pages, bool extra);

    // request_operations.cc; with the mutex held. Those that return a status have reported it.
    int32_t find(routecap_request handle, Request **request);
    int32_t refuse_unknown(routecap_request handle) const;
    using Kept = std::unique_ptr<std::vector<uint32_t>>;
    Kept copy_kept(const routecap_accept_item &item, size_t &nodes);
    int32_t check_accept(const routecap_accept_item &item, uint64_t drafts, const Kept &kept) const;
    int32_t accept_one(Request *request, const routecap_accept_item &item, Kept *kept);
    int32_t accept_special(Request &request, const routecap_accept_item &item, Kept *kept);
    int32_t finish_one(Request *request, routecap_request handle, uint64_t rows, Routing **routing);
    int32_t close_one(routecap_request request);
    enum class Cut { truncated, finished, closed };
    void cut_in_flight(Request &request, uint64_t end, Cut why);
    int32_t refuse_many(size_t count) const;
    bool tags_vary() const { return capture_->tags_vary.load(std::memory_order_relaxed); }
    template <class Item, class Prefetch, class One>
    int32_t batch(Item *items, size_t item_size, size_t count, size_t nodes, bool drafts,
                  Prefetch prefetch, One one);

    // prefixes.cc
    int32_t check_prefix(const Store &store, const Shape &from, const Shape &to, uint64_t first,
                         const void *keys, uint64_t count, Keys &checked) const;

    // request_reading.cc
    struct Range {
        uint64_t first, rows, length;
        uint64_t end() const { return first + rows; }
    };
    int32_t read(routecap_request request, uint64_t first, uint64_t rows, bool take,
                 Strictness strictness, Range &range, std::vector<Segment> &segments);
    int32_t find_to_read(routecap_request handle, RequestDataPtr &data);
    int32_t check_readable(Request &request, uint64_t first, uint64_t rows, bool take,
                           Range &range);
    int32_t look_at(routecap_request handle, RowStore &store, uint64_t first, uint64_t rows,
                    bool take, Range &range, std::vector<MissingNote> &notes);
    void note_taken(routecap_request handle, const std::vector<Segment> &segments) noexcept;
    int32_t read_routing(routecap_request request, uint64_t first, uint64_t rows, int32_t mode,
                         uint32_t flags, Routing **routing);

    inline static std::atomic<uint64_t> made_{0};  // by this process or its parents
    const Config config_;
    const uint64_t number_ = made_.fetch_add(1, std::memory_order_relaxed) + 1;
    bool whole_ = false;                 // it was handed out
    std::unique_ptr<Backend> backend_;   // null if disabled
    std::optional<ForwardCheck> check_;  // in checked mode
    std::optional<Capture> capture_;     // an owner's

    // The step being recorded, as far as the host knows it.
    uint64_t begins_ = 0;
    bool begun_ = false;
    std::vector<Recorded> recorded_;     // per layer
    std::vector<RecordedLayer> listed_;  // record_layers' own; it keeps its memory
    std::vector<bool> seen_;             // likewise

    // What check_spans found, for issue_span: the request of each span; of all spans of that request
    // up to this one the bounds; and whether it is an ordinary one.
    struct Checked {
        Request *request;
        uint64_t first, end;
        bool ordinary;
    };
    uint32_t checks_ = 0;  // issues that were checked
    std::vector<Checked> checked_;
    // Spans by position, where they neither ascend nor descend.
    std::vector<uint32_t> order_, sorted_;
    uint64_t first_tag_ = 0, last_tag_ = 0;  // of the steps
};

}  // namespace routecap
