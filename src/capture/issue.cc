// routecap_step_issue: the hot path. One pass checks every span and changes nothing, a second hands
// each to its request and appends the step to the log: these two under the registry's mutex. What
// the second needs of memory is made before it. Then, without the mutex, the next slot is named and
// the copy started.
#include <algorithm>
#include <bit>
#include <new>
#include <tuple>

#include "base/status.h"
#include "base/structs.h"
#include "capture/forward_path.h"

namespace routecap {

constexpr uint32_t kPhaseFlags =
    ROUTECAP_SPAN_PREFILL | ROUTECAP_SPAN_DECODE | ROUTECAP_SPAN_UNCOUNTED;

static bool speculative(const routecap_span &span) {
    return (span.flags & ROUTECAP_SPAN_SPECULATIVE) != 0;
}

static bool device_positions(const routecap_span &span) {
    return (span.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0;
}

static bool shared(const routecap_span &span) { return (span.flags & ROUTECAP_SPAN_SHARED) != 0; }

// Settled rows whose positions the host knows.
static bool plain(const routecap_span &span) {
    return (span.flags & (ROUTECAP_SPAN_SPECULATIVE | ROUTECAP_SPAN_DEVICE_POSITIONS)) == 0;
}

// How many spans ahead memory is fetched.
constexpr uint32_t kAhead = 16;

// At most one of these flags.
static constexpr bool phase_is_clear(uint32_t flags) {
    flags &= kPhaseFlags;
    return (flags & (flags - 1)) == 0;
}

static Phase phase_of(const routecap_span &span) {
    if ((span.flags & kPhaseFlags) != 0)
        return (span.flags & ROUTECAP_SPAN_PREFILL) != 0  ? Phase::prefill
               : (span.flags & ROUTECAP_SPAN_DECODE) != 0 ? Phase::decode
                                                          : Phase::none;
    return speculative(span) || span.rows == 1 ? Phase::decode : Phase::prefill;
}

// One call, and what its spans add up to.
struct ForwardPath::Issue {
    const char *spans;
    size_t span_size;
    size_t count;
    const routecap_issue_options &options;
    const Shape &shape;
    Ticket ticket;
    int32_t slot;
    bool lost;                 // too many steps are in flight
    bool later;                // its rows arrive later
    Step *step = nullptr;      // the slot's, unless it is lost
    size_t drafts = 0;         // speculative spans
    uint64_t wanted = 0;       // bytes that all spans take of the budget
    bool reserved = false;     // they have them; otherwise each span asks for its own
    uint32_t handed = 0;       // spans that the step has
    uint64_t rows_shared = 0;  // of spans with rows that another span names too
    uint64_t rows_filed = 0, rows_lost = 0, rows_skipped = 0, rows_refused = 0;
    uint32_t sink_rows = 0;  // one past the last that is filed
    uint32_t positions = 0;  // one past the last sink row whose position comes from the device
    bool partial = false;

    bool has_rows() const { return rows_filed > 0; }
    const routecap_span &span(size_t i) const {
        return *reinterpret_cast<const routecap_span *>(spans + i * span_size);
    }
    static uint64_t end_of(const routecap_span &span) {
        return device_positions(span) ? span.position_end : span.position + span.rows;
    }
    uint64_t page_of(uint64_t position) const { return position >> shape.page_shift; }

    // The pages that a span is charged: every one that it touches, but for the request's own where
    // nobody else sees the rows; and no more than it has rows.
    uint32_t charge_of(const routecap_span &span, const Request &request) const {
        if (lost) return 0;
        const uint64_t first_page = page_of(span.position),
                       end_page = page_of(end_of(span) - 1) + 1, own = request.own_page;
        const bool has_own =
            own >= first_page && own < end_page &&
            std::max(span.position, own << shape.page_shift) >= request.shared_end();
        return static_cast<uint32_t>(
            std::min<uint64_t>(end_page - first_page - has_own, span.rows));
    }
    // The bytes of a charge, with those of the page that a draft waits in.
    uint64_t bytes_of(const routecap_span &span, uint32_t charge, const PagePool &pool) const {
        if (lost) return 0;
        return (speculative(span) ? PagePool::page_bytes(shape, span.rows) : 0) +
               charge * pool.page_bytes();
    }
};

// Whether a span is sound by itself.
int32_t ForwardPath::check_span(const Issue &issue, uint32_t i) const {
    constexpr uint32_t kFlags = ROUTECAP_SPAN_SPECULATIVE | ROUTECAP_SPAN_DEVICE_POSITIONS |
                                ROUTECAP_SPAN_SHARED | kPhaseFlags;
    const routecap_span &span = issue.span(i);
    const bool device = device_positions(span);
    if (span.rows == 0) return report(ROUTECAP_ERR_ARGUMENT, "span %u has no rows", i);
    if ((span.flags & ~kFlags) != 0 || !phase_is_clear(span.flags) || span.reserved != 0)
        return report(ROUTECAP_ERR_ARGUMENT, "span %u: flags is %u and reserved %u", i, span.flags,
                      span.reserved);
    if (span.rows > config_.rows || span.sink_row > config_.rows - span.rows)
        return report(ROUTECAP_ERR_CAPACITY, "span %u: sink rows [%u,%llu) of %u", i, span.sink_row,
                      ull(span.sink_row) + span.rows, config_.rows);
    if (span.position >= ROUTECAP_MAX_POSITION ||
        (!device && span.rows > ROUTECAP_MAX_POSITION - span.position))
        return report(ROUTECAP_ERR_ARGUMENT, "span %u: positions from %llu", i, ull(span.position));
    if (device ? span.position_end <= span.position || span.position_end > ROUTECAP_MAX_POSITION
               : span.position_end != 0)
        return report(ROUTECAP_ERR_ARGUMENT, "span %u: position %llu with position_end %llu", i,
                      ull(span.position), ull(span.position_end));
    if (device && issue.options.positions == nullptr)
        return report(ROUTECAP_ERR_ARGUMENT, "span %u needs options.positions", i);
    return ROUTECAP_OK;
}

int32_t ForwardPath::check_spans(Issue &issue) {
    issue.wanted = issue.drafts = 0;
    checks_++;
    const auto count = static_cast<uint32_t>(issue.count);
    uint64_t draft_rows = 0;
    bool tangled = false;       // some spans of one request do not ascend
    bool rows_tangled = false;  // some spans do not ascend in the sink
    uint32_t sink_end = 0;      // of the span before
    for (uint32_t i = 0; i < count; i++) {
        // Requests lie all over memory.
        if (i + kAhead < count)
            state_->registry.requests.prefetch(issue.span(i + kAhead).request, true);
        const routecap_span &span = issue.span(i);
        if (int32_t s = check_span(issue, i); s < 0) return s;
        if (span.sink_row < sink_end) [[unlikely]]
            rows_tangled = true;
        sink_end = span.sink_row + span.rows;
        issue.drafts += speculative(span);
        if (speculative(span) && (draft_rows += span.rows) > UINT32_MAX)
            return report(ROUTECAP_ERR_ARGUMENT, "span %u: more than 2^32 drafts in one step", i);
        Request *request = state_->registry.requests.find(span.request);
        checked_[i] = {request, request != nullptr ? issue.charge_of(span, *request) : 0};
        if (request == nullptr) continue;
        issue.wanted += issue.bytes_of(span, checked_[i].charge, state_->pool);
        if (!plain(span)) continue;
        // The number may be one of 2^32 issues ago: then it compares in vain.
        if (request->check == checks_ && request->check_last < i)
            tangled |= span.position < Issue::end_of(issue.span(request->check_last));
        request->check = checks_;
        request->check_last = i;
    }
    issue.rows_shared = 0;
    if (rows_tangled)
        if (int32_t s = check_sink_rows(issue); s < 0) return s;
    if (tangled && overlaps(issue))
        return report(ROUTECAP_ERR_OVERLAP, "two spans of one request overlap in position");
    return ROUTECAP_OK;
}

// Refuses a sink row in two spans, unless both say that it is shared, where the order of the spans
// does not tell. Spans that will be skipped count, too: whether the arguments are right does not
// depend on when a request was closed.
int32_t ForwardPath::check_sink_rows(Issue &issue) {
    constexpr uint32_t kBits = 64;
    uint32_t sink_end = 0;
    for (uint32_t i = 0; i < issue.count; i++)
        sink_end = std::max(sink_end, issue.span(i).sink_row + issue.span(i).rows);
    std::fill_n(named_rows_.begin(), (size_t{sink_end} + kBits - 1) / kBits, NamedRows{});
    for (uint32_t i = 0; i < issue.count; i++) {
        const routecap_span &span = issue.span(i);
        const uint32_t end = span.sink_row + span.rows;
        for (uint32_t row = span.sink_row; row < end;) {
            NamedRows &word = named_rows_[row / kBits];
            const uint32_t n = std::min(end - row, kBits - row % kBits);
            const uint64_t rows = ~uint64_t{0} >> (kBits - n) << row % kBits;
            const uint64_t again = word.named & rows;
            if ((shared(span) ? word.alone & rows : again) != 0) return report_shared(issue, i);
            issue.rows_shared += static_cast<uint64_t>(std::popcount(again)) +
                                 static_cast<uint64_t>(std::popcount(again & ~word.again));
            word.again |= again;
            word.alone |= shared(span) ? 0 : rows;
            word.named |= rows;
            row += n;
        }
    }
    return ROUTECAP_OK;
}

// Span i and one before it have a sink row in common.
int32_t ForwardPath::report_shared(const Issue &issue, uint32_t i) {
    const routecap_span &span = issue.span(i);
    const auto end = [](const routecap_span &of) { return of.sink_row + of.rows; };
    const auto meets = [&](const routecap_span &other) {
        return std::max(other.sink_row, span.sink_row) < std::min(end(other), end(span)) &&
               !(shared(other) && shared(span));
    };
    uint32_t other = 0;
    while (!meets(issue.span(other))) other++;
    return report(ROUTECAP_ERR_CONFLICT,
                  "spans %u and %u both have sink row %u: give the second span its own sink_row, "
                  "or set ROUTECAP_SPAN_SHARED on both",
                  other, i, std::max(issue.span(other).sink_row, span.sink_row));
}

// Whether two spans with known, settled positions of one request overlap, where their order does
// not tell.
bool ForwardPath::overlaps(const Issue &issue) {
    order_.clear();
    for (uint32_t i = 0; i < issue.count; i++)
        if (checked_[i].request != nullptr && plain(issue.span(i))) order_.push_back(i);
    const auto place = [&](uint32_t i) {
        return std::tuple(checked_[i].request, issue.span(i).position);
    };
    std::sort(order_.begin(), order_.end(),
              [&](uint32_t a, uint32_t b) { return place(a) < place(b); });
    for (size_t i = 1; i < order_.size(); i++)
        if (checked_[order_[i - 1]].request == checked_[order_[i]].request &&
            Issue::end_of(issue.span(order_[i - 1])) > issue.span(order_[i]).position)
            return true;
    return false;
}

// Notes the drafts of a span. Returns the number of the first among those of its request and step.
uint32_t ForwardPath::add_draft(const Issue &issue, const routecap_span &span, bool missing,
                                Request &request) {
    const DraftSpan *before = request.drafts;
    const bool same_step = before != nullptr && before->step == issue.ticket;
    const uint32_t first = same_step ? before->first_index + before->rows : 0;
    request.drafts = new (state_->registry.requests.drafts.take())
        DraftSpan{.next = request.drafts,
                  .step = issue.ticket,
                  .position = span.position,
                  .position_end = Issue::end_of(span),
                  .cut = UINT64_MAX,
                  .first_index = first,
                  .rows = span.rows,
                  .device_positions = device_positions(span),
                  .missing = missing};
    return first;
}

// Notes why the rows of a span will not come. Returns its status.
int32_t ForwardPath::miss_span(Issue &issue, const routecap_span &span, uint32_t first_draft,
                               Request &request) {
    const bool draft = speculative(span);
    const uint64_t end = Issue::end_of(span);
    const int32_t reason = issue.lost ? ROUTECAP_MISSING_LOST : ROUTECAP_MISSING_REFUSED;
    request.note_missing(draft ? 0 : span.position, draft ? 0 : end);
    state_->registry.append(request.after(), Miss{.rows = request.rows(),
                                                  .position = span.position,
                                                  .end = end,
                                                  .step = draft ? issue.ticket : Ticket::none,
                                                  .first_index = first_draft,
                                                  .drafts = span.rows,
                                                  .device_positions = device_positions(span),
                                                  .reason = static_cast<uint8_t>(reason)});
    (issue.lost ? issue.rows_lost : issue.rows_refused) += span.rows;
    return issue.lost ? ROUTECAP_OK : ROUTECAP_ERR_NO_MEMORY;
}

// Hands one span to its request, and to the step unless that is lost. Returns the span's status.
int32_t ForwardPath::issue_span(Issue &issue, uint32_t i) {
    const routecap_span &span = issue.span(i);
    if (checked_[i].request == nullptr) {
        issue.rows_skipped += span.rows;
        return ROUTECAP_ERR_UNKNOWN_REQUEST;
    }
    Request &request = *checked_[i].request;
    const bool draft = speculative(span), device = device_positions(span);
    const uint64_t end = Issue::end_of(span);
    uint32_t charge = checked_[i].charge;
    if (request.newest.step == issue.ticket) {
        // An earlier span of this step may pay for a page that this one touches. What check_spans
        // found is enough nevertheless: the page that was the request's own then still is.
        const uint32_t less = std::min(charge, issue.charge_of(span, request));
        if (issue.reserved) state_->pool.unreserve((charge - less) * state_->pool.page_bytes());
        charge = less;
    }
    const bool filed =
        !issue.lost &&
        (issue.reserved || state_->pool.reserve(issue.bytes_of(span, charge, state_->pool)));
    if (draft || device) {
        request.changed = true;
        request.flagged_end = std::max(request.flagged_end, end);
    }
    uint32_t first_draft = 0;
    if (draft) {
        first_draft = add_draft(issue, span, !filed, request);
    } else if (!filed) {
        request.extend_missing(end);
    } else if (!device) {
        request.extend(end, issue.shape.page_shift);
    }
    if (!filed) return miss_span(issue, span, first_draft, request);
    request.device_positions |= device;
    if (device) issue.positions = std::max(issue.positions, span.sink_row + span.rows);
    new (&issue.step->spans[issue.handed]) StepSpan{.rows = request.rows(),
                                                    .position = span.position,
                                                    .position_end = end,
                                                    .cut = {},
                                                    .previous = request.newest,
                                                    .sink_row = span.sink_row,
                                                    .count = span.rows,
                                                    .charge = charge,
                                                    .draft_index = first_draft,
                                                    .speculative = draft,
                                                    .device_positions = device,
                                                    .phase = phase_of(span)};
    request.newest = {issue.ticket, issue.handed++, issue.slot};
    issue.rows_filed += span.rows;
    issue.sink_rows = std::max(issue.sink_rows, span.sink_row + span.rows);
    return ROUTECAP_OK;
}

int32_t ForwardPath::check_options(const routecap_issue_options &o) const {
    if (o.snapshot < ROUTECAP_SNAPSHOT_TAKEN || o.snapshot > ROUTECAP_SNAPSHOT_LATER)
        return report(ROUTECAP_ERR_ARGUMENT, "options.snapshot is %d", o.snapshot);
    const bool later = o.snapshot == ROUTECAP_SNAPSHOT_LATER;
    if (later && config_.backend != ROUTECAP_BACKEND_HOST)
        return report(ROUTECAP_ERR_ARGUMENT,
                      "options.snapshot is LATER, and the capturer is not on the host backend");
    if (later && begins_ > 0)
        return report(ROUTECAP_ERR_STATE,
                      "options.snapshot is LATER, and this capturer has begun a step");
    if (o.reserved != 0) return report(ROUTECAP_ERR_ARGUMENT, "options.reserved is %u", o.reserved);
    if (o.positions != nullptr && o.positions_dtype != ROUTECAP_DTYPE_I32 &&
        o.positions_dtype != ROUTECAP_DTYPE_I64)
        return report(ROUTECAP_ERR_DTYPE, "positions of dtype %d", o.positions_dtype);
    return ROUTECAP_OK;
}

// The first pass: checks the spans, and makes room for what the second adds.
int32_t ForwardPath::check_and_make_room(Issue &issue) {
    state_->registry.promised = 0;
    if (int32_t s = check_spans(issue); s < 0) return s;
    state_->registry.requests.drafts.make_room(issue.drafts);
    state_->registry.make_room(issue.count + 1);
    return ROUTECAP_OK;
}

// What checked mode looks at, and the snapshot if it is this call's. Without the mutex.
int32_t ForwardPath::take_snapshot(const Issue &issue, routecap_stream stream) {
    const routecap_issue_options &o = issue.options;
    if (check_) {
        if (int32_t s = check_->check_memory({{o.positions, "options.positions"}}); s < 0) return s;
        const auto *spans = reinterpret_cast<const routecap_span *>(issue.spans);
        const int32_t s = check_->before_issue(spans, issue.span_size, issue.count, o.snapshot);
        if (s < 0) return s;
    }
    return o.snapshot == ROUTECAP_SNAPSHOT_MAKE ? backend_->snapshot(stream) : ROUTECAP_OK;
}

// The step goes into the log, after its spans went to their requests.
void ForwardPath::append_step(const Issue &issue) {
    if (issue.has_rows()) {
        issue.step->span_count = issue.handed;
        issue.step->rows = issue.rows_filed;
        issue.step->rows_copied = issue.sink_rows;
        issue.step->positions_dtype = issue.options.positions_dtype;
        issue.step->issued_at = EventCount::Clock::now();
        backend_->expect(issue.slot);  // from now on it can be seen by whoever files
        state_->steps.occupy(issue.slot);
    }
    state_->steps.issue(issue.lost);
    Counters &counters = state_->counters;
    counters.steps_issued++;
    counters.rows_issued += issue.rows_filed + issue.rows_lost + issue.rows_refused;
    counters.rows_in_flight += issue.rows_filed;
    counters.rows_skipped += issue.rows_skipped;
    counters.rows_shared += issue.rows_shared;
    counters.rows_refused += issue.rows_refused;
    if (issue.lost) {
        counters.rows_lost += issue.rows_lost;
        counters.steps_lost++;
    }
    if (issue.has_rows())
        state_->registry.append(issue.ticket, FileStep{issue.slot});
    else
        counters.steps_landed++;
}

// Names the next slot, and has the step's rows brought to the host.
void ForwardPath::start_copy(const Issue &issue, routecap_stream stream) {
    Steps &steps = state_->steps;
    if (!issue.has_rows()) return backend_->name_slot(steps.named(), stream);
    steps.name(steps.free_slot());
    const DevicePositions positions{issue.options.positions, issue.options.positions_dtype,
                                    issue.positions};
    if (issue.later)
        backend_->await(issue.slot, number(issue.ticket), issue.sink_rows, positions,
                        steps.named());
    else
        backend_->copy(issue.slot, issue.sink_rows, positions, steps.named(), stream);
    state_->worker.wake();
}

int32_t ForwardPath::outcome(const Issue &issue) const {
    if (const char *failure = issue.has_rows() ? backend_->failure(issue.slot) : nullptr;
        failure != nullptr)
        return report(ROUTECAP_LOST, "%s", failure);
    if (issue.lost) return report(ROUTECAP_LOST, "%s", Steps::kLostText);
    return issue.partial ? report(ROUTECAP_PARTIAL,
                                  "spans of unknown requests or beyond the budget were skipped")
                         : ROUTECAP_OK;
}

// Both passes. If it fails nothing has changed.
int32_t ForwardPath::issue_spans(Issue &issue, int32_t *status, routecap_stream stream) {
    const auto count = static_cast<uint32_t>(issue.count);
    Lock lock(state_->registry.mutex);
    if (issue.step != nullptr) issue.step->begin(issue.ticket, Tag{issue.options.tag}, count);
    if (check_ || issue.options.snapshot == ROUTECAP_SNAPSHOT_MAKE) {
        // After the arguments, before anything changes.
        if (int32_t s = check_and_make_room(issue); s < 0) return s;
        state_->registry.promised = issue.count + 1;
        lock.unlock();
        const int32_t s = take_snapshot(issue, stream);
        lock.lock();
        if (s < 0) {
            state_->registry.promised = 0;
            return s;
        }
    }
    for (bool reclaimed = false;; reclaimed = true) {
        if (int32_t s = check_and_make_room(issue); s < 0) return s;
        issue.reserved = issue.wanted == 0 || state_->pool.reserve(issue.wanted);
        if (issue.reserved || reclaimed) break;  // after that what fits is accepted
        state_->registry.promised = issue.count + 1;
        lock.unlock();
        state_->worker.reclaim();
        lock.lock();
    }
    for (uint32_t i = 0; i < count; i++) {
        if (issue.step != nullptr && i + kAhead < count)
            issue.step->prefetch(issue.handed + kAhead);
        const int32_t s = issue_span(issue, i);
        if (status != nullptr) status[i] = s;
        issue.partial |= s != ROUTECAP_OK;
    }
    append_step(issue);
    return ROUTECAP_OK;
}

int32_t ForwardPath::issue(const routecap_span *spans, size_t span_size, size_t count,
                           const routecap_issue_options *options, int32_t *status,
                           routecap_step *step, routecap_stream stream) {
    if (count >= UINT32_MAX) return report(ROUTECAP_ERR_ARGUMENT, "%zu spans", count);
    if (state_ == nullptr) {
        begun_ = false;
        if (check_) check_->issued();
        for (size_t i = 0; status != nullptr && i < count; i++) status[i] = ROUTECAP_OK;
        return ROUTECAP_OK;
    }
    routecap_issue_options o{};
    if (options != nullptr)
        if (int32_t s = read_struct(o, options, "options"); s < 0) return s;
    if (int32_t s = enter_outside_capture(stream); s < 0) return s;
    if (int32_t s = check_items(spans, count, span_size, "spans"); s < 0) return s;
    if (int32_t s = check_options(o); s < 0) return s;

    Steps &steps = state_->steps;
    if (checked_.size() < count) checked_.resize(count);
    order_.reserve(count);
    const bool later = o.snapshot == ROUTECAP_SNAPSHOT_LATER;
    Issue issue{.spans = reinterpret_cast<const char *>(spans),
                .span_size = span_size,
                .count = count,
                .options = o,
                .shape = *config_.shape,
                .ticket = steps.next_ticket(),
                .slot = steps.named(),
                .lost = count > 0 && steps.full(),
                .later = later};
    if (!issue.lost) issue.step = &steps.step(issue.slot);
    if (int32_t s = issue_spans(issue, status, stream); s < 0) return s;

    begun_ = false;
    later_ |= later;
    if (check_) check_->issued();
    start_copy(issue, stream);
    if (step != nullptr) *step = number(issue.ticket);
    return outcome(issue);
}

}  // namespace routecap
