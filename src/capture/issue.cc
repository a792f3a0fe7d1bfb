// routecap_step_issue: the hot path. One pass checks every span and changes nothing, a second hands
// each to its request and appends the step to the log: these two under the registry's mutex, for
// which all memory was made before. Then, without it, the next slot is named and the copy started.
#include <algorithm>
#include <array>
#include <new>

#include "base/profiler_ranges.h"
#include "base/status.h"
#include "base/structs.h"
#include "capture/forward_path.h"

namespace routecap {

constexpr uint32_t kPhaseFlags =
    ROUTECAP_SPAN_PREFILL | ROUTECAP_SPAN_DECODE | ROUTECAP_SPAN_UNCOUNTED;

static bool speculative(const routecap_span &span) {
    return (span.flags & ROUTECAP_SPAN_SPECULATIVE) != 0;
}

// Settled rows whose positions the host knows.
static bool plain(const routecap_span &span) { return (span.flags & ~kPhaseFlags) == 0; }

// At most one of these flags.
static constexpr bool phase_is_clear(uint32_t flags) {
    flags &= kPhaseFlags;
    return (flags & (flags - 1)) == 0;
}

// A bit for each value of the flags that says nothing wrong, and nothing of device positions.
static constexpr uint32_t kUsualFlags = [] {
    uint32_t usual = 0;
    for (uint32_t flags = 0; flags < 32; flags++)
        if ((flags & ~(ROUTECAP_SPAN_SPECULATIVE | kPhaseFlags)) == 0 && phase_is_clear(flags))
            usual |= 1u << flags;
    return usual;
}();
static bool usual_flags(uint32_t flags) { return flags < 32 && (kUsualFlags >> flags & 1) != 0; }

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
    bool tags_vary;      // some step had another tag
    uint64_t first_tag;  // of requests that have rows and no tag of their own
    uint64_t ticket;
    int32_t slot;
    bool lost;                   // there is no slot
    Step *step = nullptr;        // the slot's, and what it has for spans
    StepSpan *handed = nullptr;  // in order, of which the first handed_count are there
    SpanExtra *extras = nullptr;
    uint32_t handed_count = 0;

    // What check_spans finds.
    uint64_t wanted = 0;            // bytes that all spans may take from the budget
    uint64_t wanted_by_drafts = 0;  // of these, that ordinary spans take
    size_t nodes = 0;               // that they may take
    bool tangled = false;           // some spans of one request neither ascend nor descend
    // The budget is shared with other threads, so it is asked once if it can be: then ordinary
    // spans have theirs, and this is of `wanted` for the others to come.
    uint64_t reserved = 0;
    bool drafts_reserved = false;

    uint64_t rows_filed = 0, rows_lost = 0, rows_skipped = 0, rows_refused = 0;
    uint32_t sink_rows = 0;  // one past the last that is filed
    uint32_t positions = 0;  // one past the last sink row whose position comes from the device
    bool partial = false;

    const routecap_span &span(size_t i) const {
        return *reinterpret_cast<const routecap_span *>(spans + i * span_size);
    }
    static uint64_t end_of(const routecap_span &span) {
        return (span.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0 ? span.position_end
                                                                  : span.position + span.rows;
    }
    uint64_t page_of(uint64_t position) const { return position >> shape.page_shift; }
    uint64_t pages_before(uint64_t position) const {
        return page_of(position + shape.page_rows - 1);
    }

    // One past the last page of a request that may have rows of another tag than this step's, once
    // its rows are there.
    uint64_t mixed_end(const Request &request) const {
        const uint64_t end = request.issued_end();
        const Rare &rare = request.rare();
        const bool other =
            tags_vary && end > 0 && (rare.tagged ? rare.tag : first_tag) != options.tag;
        return other ? std::max(rare.mixed_end, pages_before(end)) : rare.mixed_end;
    }

    // Rows that the host knows, in the page of the request's own, where nobody else sees them, and
    // of its tag: nearly all spans. They are charged nothing. Drafts need memory of their own until
    // they are settled.
    bool ordinary(const routecap_span &span, const Request &request) const {
        if ((span.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0 || lost) return false;
        const uint64_t end = span.position + span.rows;
        if (page_of(span.position) != request.own_page || page_of(end - 1) != request.own_page ||
            span.position < request.shared_end)
            return false;
        if (!request.has_rare) return !tags_vary;
        return page_of(span.position) >= mixed_end(request) &&
               (!tags_vary || (request.rare().tagged && request.rare().tag == options.tag));
    }

    // What a span is charged: every page that it touches, but for the request's own where nobody
    // else sees the rows; the tags of pages that may get a second one; and what a draft waits in.
    struct Memory {
        Charge charge;
        uint64_t bytes;  // with those of a draft
    };
    [[gnu::noinline]] Memory memory(const routecap_span &span, const Request &request,
                                    const PagePool &pool) const {
        const uint64_t end = end_of(span), first_page = page_of(span.position),
                       end_page = page_of(end - 1) + 1;
        Memory m{};
        if (lost) return m;
        const uint64_t mixed = mixed_end(request), own = request.own_page;
        m.charge.tags = static_cast<uint32_t>(std::min<uint64_t>(
            std::min(end_page, std::max(mixed, first_page)) - first_page, span.rows));
        if (wide_bounds(span.position, end, span.rows, shape.page_shift)) {
            m.charge.pages = span.rows;
        } else {
            const bool has_own =
                own >= first_page && own < end_page &&
                std::max(span.position, own << shape.page_shift) >= request.shared_end;
            m.charge.pages = static_cast<uint32_t>(end_page - first_page - has_own);
        }
        m.bytes = draft_bytes(span) +
                  m.charge.bytes(pool.page_bytes(), PagePool::tag_bytes(shape.page_rows));
        return m;
    }
    uint64_t draft_bytes(const routecap_span &span) const {
        return speculative(span) ? PagePool::page_bytes(shape, span.rows) : 0;
    }
    bool reserve(uint64_t bytes, PagePool &pool) {
        if (bytes > reserved) return pool.reserve(bytes);
        reserved -= bytes;
        return true;
    }
};

// What is wrong with a span, if anything is.
[[gnu::noinline]] int32_t ForwardPath::check_span(const Issue &issue, uint32_t i) const {
    constexpr uint32_t kFlags =
        ROUTECAP_SPAN_SPECULATIVE | ROUTECAP_SPAN_DEVICE_POSITIONS | kPhaseFlags;
    const routecap_span &span = issue.span(i);
    const bool device = (span.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0;
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
    issue.wanted = issue.nodes = 0;
    issue.tangled = false;
    if (++checks_ == 0) {  // once in 2^32 issues
        owner_->registry.requests.clear_checks();
        checks_ = 1;
    }
    const uint32_t sink_rows = config_.rows, count = static_cast<uint32_t>(issue.count);
    // Nothing is wrong with it, nor has it positions of the device: nearly all.
    const auto right = [sink_rows](const routecap_span &span) {
        return usual_flags(span.flags) && span.rows != 0 &&
               (span.reserved | span.position_end) == 0 &&
               uint64_t{span.sink_row} + span.rows <= sink_rows &&
               span.position <= ROUTECAP_MAX_POSITION - span.rows;
    };
    Checked *const checked = checked_.data();
    uint32_t seen = 0;
    const char *next = issue.spans;
    const auto look_ahead = [&, size = issue.span_size]() REQUIRES(owner_->registry.mutex) {
        if (seen == count) return;
        const auto &span = *reinterpret_cast<const routecap_span *>(next);
        checked[seen++].request =
            owner_->registry.requests.prefetch(span.request, speculative(span));
        next += size;
    };
    for (uint32_t i = 0; i < RequestTable::kAhead; i++) look_ahead();
    uint64_t drafts = 0, wanted_by_drafts = 0, draft_bytes = 0;
    uint32_t draft_rows = 0;  // of which draft_bytes are the bytes
    for (uint32_t i = 0; i < count; i++) {
        look_ahead();
        const routecap_span &span = issue.span(i);
        if (!right(span))
            if (int32_t s = check_span(issue, i); s < 0) return s;
        if (speculative(span) && (drafts += span.rows) > UINT32_MAX)
            return report(ROUTECAP_ERR_ARGUMENT, "span %u: more than 2^32 drafts in one step", i);

        Request *request = RequestTable::found(checked[i].request, span.request);
        const bool ordinary = request != nullptr && issue.ordinary(span, *request);
        checked[i] = {request, span.position, span.position + span.rows, ordinary};
        if (request == nullptr) continue;
        if (!ordinary) {
            issue.wanted += issue.memory(span, *request, owner_->pool).bytes;
            issue.nodes += 2;  // a draft, a note
        } else if (speculative(span)) {
            if (span.rows != draft_rows)
                draft_rows = span.rows, draft_bytes = issue.draft_bytes(span);
            wanted_by_drafts += draft_bytes;
            issue.nodes++;
        }
        if (!plain(span)) continue;
        if (request->check == checks_) {
            const Checked &before = checked[request->check_last];
            issue.tangled |= checked[i].first < before.end && checked[i].end > before.first;
            checked[i].first = std::min(checked[i].first, before.first);
            checked[i].end = std::max(checked[i].end, before.end);
        }
        request->check = checks_;
        request->check_last = i;
    }
    issue.wanted_by_drafts = wanted_by_drafts;
    issue.wanted += wanted_by_drafts;
    if (issue.tangled && overlaps(issue))
        return report(ROUTECAP_ERR_OVERLAP, "two spans of one request overlap in position");
    return ROUTECAP_OK;
}

// Sorts numbers of spans by their positions, in time that grows with their number alone. `scratch`
// has as much room.
template <class Position>
static void sort_by_position(std::vector<uint32_t> &order, std::vector<uint32_t> &scratch,
                             Position position) {
    constexpr int kBits = 10;
    constexpr uint32_t kDigits = 1u << kBits;
    static_assert(ROUTECAP_MAX_POSITION == uint64_t{1} << (4 * kBits));
    scratch.resize(order.size());
    for (int shift = 0; shift < 4 * kBits; shift += kBits) {
        const auto digit = [&](uint32_t i) {
            return static_cast<uint32_t>(position(i) >> shift) % kDigits;
        };
        std::array<uint32_t, kDigits> at{};
        for (uint32_t i : order) at[digit(i)]++;
        if (at[digit(order.front())] == order.size()) continue;  // all alike
        uint32_t before = 0;
        for (uint32_t &n : at) before += std::exchange(n, before);
        for (uint32_t i : order) scratch[at[digit(i)]++] = i;
        order.swap(scratch);
    }
}

// Whether two spans with known, settled positions of one request overlap, where their order does
// not tell.
bool ForwardPath::overlaps(const Issue &issue) {
    order_.clear();
    for (uint32_t i = 0; i < issue.count; i++)
        if (checked_[i].request != nullptr && plain(issue.span(i))) order_.push_back(i);
    sort_by_position(order_, sorted_, [&](uint32_t i) { return issue.span(i).position; });
    // How far the spans of each request reach is kept with the last one of it.
    for (uint32_t i : order_) checked_[checked_[i].request->check_last].end = 0;
    for (uint32_t i : order_) {
        const routecap_span &span = issue.span(i);
        uint64_t &end = checked_[checked_[i].request->check_last].end;
        if (span.position < end) return true;
        end = span.position + span.rows;
    }
    return false;
}

// Hands one span to its request, and to the step unless that is lost. Returns the span's status.
inline int32_t ForwardPath::issue_span(Issue &issue, const routecap_span &span,
                                       const Checked &checked, uint32_t index) {
    if (checked.request == nullptr) {
        issue.rows_skipped += span.rows;
        return ROUTECAP_ERR_UNKNOWN_REQUEST;
    }
    // What was ordinary when it was checked is so still: no span before it can have changed that,
    // and the mutex was not released since check_spans.
    Request &request = *checked.request;
    const bool draft = speculative(span);
    if (!checked.ordinary ||
        (draft && !issue.drafts_reserved && !issue.reserve(issue.draft_bytes(span), owner_->pool)))
        return issue_special(issue, index);
    const uint64_t end = span.position + span.rows;
    const uint32_t handed = hand_over(issue, span, request, end, 0, draft);
    if (draft)
        issue.extras[handed] = {.draft_index = note_draft(issue, span, request, end, 0)};
    else
        request.extend(end, issue.shape.page_shift);
    return ROUTECAP_OK;
}

// `reason` is 0, or why the drafts will never be there. Returns the index of the first among the
// request's drafts of the step.
inline uint32_t ForwardPath::note_draft(const Issue &issue, const routecap_span &span,
                                        Request &request, uint64_t end, int32_t reason) {
    uint32_t first = 0;
    if (request.drafts != nullptr)
        if (const DraftSpan &last = *request.drafts->last; last.step == issue.ticket)
            first = last.first_index + last.rows;
    request.changed = true;
    request.flagged_end = std::max(request.flagged_end, end);
    const auto made = [&]() -> DraftSpan {
        return {.step = issue.ticket,
                .position = span.position,
                .position_end = end,
                .cut = UINT64_MAX,
                .first_index = first,
                .rows = span.rows,
                .device_positions = (span.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0,
                .missing = static_cast<uint8_t>(reason),
                .next = nullptr,
                .last = nullptr};
    };
    request.add_draft(made, owner_->registry.nodes);
    return first;
}

// `end` is one past its last position, `pages` what it is charged. Returns the index of it in the
// step, where the caller puts its SpanExtra if it has one.
inline uint32_t ForwardPath::hand_over(Issue &issue, const routecap_span &span, Request &request,
                                       uint64_t end, uint64_t pages, bool extra) {
    const uint32_t index = issue.handed_count++;
    // In place, as Nodes::take.
    new (&issue.handed[index])
        StepSpan{.rows = request.rows(),
                 .position = span.position,
                 .position_end = end,
                 .cut = UINT64_MAX,
                 .previous = request.newest(),
                 .sink_row = span.sink_row,
                 .count = span.rows,
                 .pages = static_cast<uint32_t>(pages),
                 .speculative = speculative(span),
                 .device_positions = (span.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0,
                 .extra = extra,
                 .phase = phase_of(span)};
    request.newest_step = issue.ticket;
    request.newest_span = index;
    request.newest_slot = static_cast<int8_t>(issue.slot);
    issue.rows_filed += span.rows;
    issue.sink_rows = std::max(issue.sink_rows, span.sink_row + span.rows);
    return index;
}

// The same for spans that need memory, are drafts, have device positions or another tag, or are
// lost.
[[gnu::noinline]] int32_t ForwardPath::issue_special(Issue &issue, uint32_t index) {
    const routecap_span &span = issue.span(index);
    Request &request = *checked_[index].request;
    PagePool &pool = owner_->pool;
    Nodes &nodes = owner_->registry.nodes;
    const bool device = (span.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0;
    const uint64_t end = Issue::end_of(span);
    const Issue::Memory memory = issue.memory(span, request, pool);
    const bool filed = !issue.lost && (memory.bytes == 0 || issue.reserve(memory.bytes, pool));
    const int32_t reason = filed        ? 0
                           : issue.lost ? ROUTECAP_MISSING_LOST
                                        : ROUTECAP_MISSING_REFUSED;
    if (filed && issue.tags_vary) {
        Rare &rare = request.change_rare();
        rare.mixed_end = issue.mixed_end(request);
        rare.tag = issue.options.tag;
        rare.tagged = true;
    }
    SpanExtra extra{.tags = memory.charge.tags};
    if (speculative(span)) {
        extra.draft_index = note_draft(issue, span, request, end, reason);
    } else {
        if (device)
            request.changed = true, request.flagged_end = std::max(request.flagged_end, end);
        if (!filed) {
            request.extend_missing(end);
            request.note_missing(span.position, end, reason, nodes);
        } else if (!device) {
            request.extend(end, issue.shape.page_shift);
        }
    }
    if (!filed) {
        (issue.lost ? issue.rows_lost : issue.rows_refused) += span.rows;
        return issue.lost ? ROUTECAP_OK : ROUTECAP_ERR_NO_MEMORY;
    }
    request.device_positions |= device;
    if (device) issue.positions = std::max(issue.positions, span.sink_row + span.rows);
    const bool has_extra = speculative(span) || memory.charge.tags > 0;
    const uint32_t handed = hand_over(issue, span, request, end, memory.charge.pages, has_extra);
    if (has_extra) issue.extras[handed] = extra;
    return ROUTECAP_OK;
}

// Hands over every span. Requests are not prefetched: check_spans has just touched them. A function
// of its own keeps more in registers.
[[gnu::noinline]] void ForwardPath::hand_spans(Issue &issue, int32_t *status) {
    const auto count = static_cast<uint32_t>(issue.count);
    const size_t span_size = issue.span_size;
    const Checked *checked = checked_.data();
    const char *at = issue.spans;
    for (uint32_t i = 0; i < count; i++, checked++, at += span_size) {
        const auto &span = *reinterpret_cast<const routecap_span *>(at);
        if (const uint32_t ahead = i + RequestTable::kAhead; ahead < count && !issue.lost) {
            __builtin_prefetch(&issue.handed[ahead], 1);
            if (speculative(span)) {  // so may the next be
                __builtin_prefetch(&issue.extras[ahead], 1);
                owner_->registry.nodes.prefetch(RequestTable::kAhead);
            }
        }
        const int32_t s = issue_span(issue, span, *checked, i);
        if (status != nullptr) status[i] = s;
        issue.partial |= s != ROUTECAP_OK;
    }
}

// A function of its own, as issue() is: what a range keeps costs the caller's loops registers.
[[gnu::noinline]] void ForwardPath::copy(int32_t slot, uint32_t rows,
                                         const DevicePositions &positions, routecap_stream stream) {
    const ProfilerRange range("copy");
    backend_->copy(slot, rows, positions, owner_->steps.named(), stream);
}

int32_t ForwardPath::issue(const routecap_span *spans, size_t span_size, size_t count,
                           const routecap_issue_options *options, int32_t *status,
                           routecap_step *step, routecap_stream stream) {
    const ProfilerRange range("issue");
    return issue_step(spans, span_size, count, options, status, step, stream);
}

[[gnu::noinline]] int32_t ForwardPath::issue_step(const routecap_span *spans, size_t span_size,
                                                  size_t count,
                                                  const routecap_issue_options *options,
                                                  int32_t *status, routecap_step *step,
                                                  routecap_stream stream) {
    if (count >= UINT32_MAX) return report(ROUTECAP_ERR_ARGUMENT, "%zu spans", count);
    if (owner_ == nullptr) {
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
    if (o.snapshot != ROUTECAP_SNAPSHOT_TAKEN && o.snapshot != ROUTECAP_SNAPSHOT_MAKE)
        return report(ROUTECAP_ERR_ARGUMENT, "options.snapshot is %d", o.snapshot);
    if (o.reserved != 0) return report(ROUTECAP_ERR_ARGUMENT, "options.reserved is %u", o.reserved);
    if (o.positions != nullptr && o.positions_dtype != ROUTECAP_DTYPE_I32 &&
        o.positions_dtype != ROUTECAP_DTYPE_I64)
        return report(ROUTECAP_ERR_DTYPE, "positions of dtype %d", o.positions_dtype);

    Steps &steps = owner_->steps;
    StepWorker &worker = owner_->worker;
    Counters &counters = owner_->counters;
    if (checked_.size() < count) checked_.resize(count);
    order_.reserve(count), sorted_.reserve(count);
    const int32_t slot = steps.named();
    const bool first = steps.issued() == 0;
    Issue issue{.spans = reinterpret_cast<const char *>(spans),
                .span_size = span_size,
                .count = count,
                .options = o,
                .shape = *config_.shape,
                .tags_vary = owner_->tags_vary.load(std::memory_order_relaxed) ||
                             (!first && o.tag != last_tag_),
                .first_tag = owner_->tags_vary.load(std::memory_order_relaxed) || first ? first_tag_
                                                                                        : last_tag_,
                .ticket = steps.next_ticket(),
                .slot = slot,
                .lost = slot == kernels::kNoSlot && count > 0};
    Step::Room room;
    if (slot != kernels::kNoSlot) {
        issue.step = &steps.step(slot);
        room = issue.step->room_for(count);
    }

    RegistryLock lock(owner_->registry);
    if (issue.step != nullptr) {
        issue.step->begin(issue.ticket, o.tag, room);
        issue.handed = issue.step->spans.data(), issue.extras = issue.step->extras.data();
    }
    if (check_ || o.snapshot == ROUTECAP_SNAPSHOT_MAKE) {
        // After the arguments, before anything changes.
        if (int32_t s = check_spans(issue); s < 0) return s;
        lock.unlock();
        if (check_) {
            if (int32_t s = check_->check_memory({{o.positions, "options.positions"}}); s < 0)
                return s;
            if (int32_t s = check_->before_issue(spans, span_size, count, o.snapshot); s < 0)
                return s;
        }
        if (o.snapshot == ROUTECAP_SNAPSHOT_MAKE)
            if (int32_t s = backend_->snapshot(stream); s < 0) return s;
        lock.lock();
    }
    for (bool reclaimed = false;; reclaimed = true) {
        do {
            if (int32_t s = check_spans(issue); s < 0) return s;
        } while (lock.make_room({.entries = 1, .nodes = issue.nodes}));
        if (issue.wanted == 0 || owner_->pool.reserve(issue.wanted)) {
            issue.reserved = issue.wanted - issue.wanted_by_drafts;
            issue.drafts_reserved = true;
            break;
        }
        if (reclaimed) break;  // what fits is accepted
        lock.unlock();
        worker.reclaim();
        lock.lock();
    }

    hand_spans(issue, status);
    if (issue.tags_vary) owner_->tags_vary.store(true, std::memory_order_relaxed);
    // Two spans that share a page wanted it twice.
    if (issue.reserved > 0) owner_->pool.unreserve(issue.reserved);

    const uint64_t rows_issued = issue.rows_filed + issue.rows_lost + issue.rows_refused;
    const bool to_file = issue.rows_filed > 0;
    if (to_file) {
        issue.step->span_count = issue.handed_count;
        issue.step->rows = issue.rows_filed;
        issue.step->rows_copied = issue.sink_rows;
        issue.step->positions_dtype = o.positions_dtype;
        issue.step->issued_at = Bell::Clock::now();
        backend_->expect(slot);  // from now on it can be seen by whoever files
        steps.occupy(slot);
    }
    steps.issue(issue.lost);
    counters.steps_issued++;
    counters.rows_issued += rows_issued;
    counters.rows_in_flight += issue.rows_filed;
    counters.rows_skipped += issue.rows_skipped;
    counters.rows_refused += issue.rows_refused;
    if (issue.lost) {
        counters.rows_lost += issue.rows_lost;
        counters.steps_lost++;
    }
    if (to_file)
        owner_->registry.log.append(issue.ticket, FileStep{slot});
    else
        counters.steps_landed++;
    lock.unlock();

    first_tag_ = issue.first_tag;
    last_tag_ = o.tag;
    begun_ = false;
    if (check_) check_->issued();
    if (to_file || slot == kernels::kNoSlot) steps.name(steps.free_slot());
    ROUTECAP_PROBE(issued, number_, issue.ticket, rows_issued, issue.lost);
    if (!to_file) {
        backend_->name_slot(steps.named(), stream);
    } else {
        copy(slot, issue.sink_rows, {o.positions, o.positions_dtype, issue.positions}, stream);
        worker.wake();
    }
    if (step != nullptr) *step = issue.ticket;
    if (const char *failure = to_file ? backend_->failure(slot) : nullptr; failure != nullptr)
        return report(ROUTECAP_LOST, "%s", failure);
    if (issue.lost)
        return report(
            ROUTECAP_LOST,
            "no slot was free for this step: more steps are in flight than config.slots allows");
    return issue.partial ? report(ROUTECAP_PARTIAL,
                                  "spans of unknown requests or beyond the budget were skipped")
                         : ROUTECAP_OK;
}

}  // namespace routecap
