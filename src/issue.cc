// routecap_step_issue: the hot path. One pass checks every span and changes nothing, a second hands each to its request; then the slot's copy is
// started, the next slot named, and the step appended to the log. It takes one lock, and memory only to grow buffers that stay.
#include <new>

#include "capturer.h"
#include "status.h"
#include "structs.h"

namespace routecap {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

}  // namespace

// One call, and what its spans add up to.
struct Capturer::Issue {
    const char *spans;
    size_t span_size;
    size_t count;
    const routecap_issue_options &options;
    const Shape &shape;
    uint64_t ticket;
    int32_t slot;
    bool lost;             // there is no slot
    Step *step = nullptr;  // the slot's

    uint64_t wanted = 0;    // bytes that all spans may take from the budget
    uint64_t reserved = 0;  // and what is reserved for spans to come: the budget is shared with other threads, so it is asked once if it can be

    uint64_t rows_issued = 0, rows_filed = 0, rows_skipped = 0, rows_refused = 0;
    uint32_t sink_rows = 0;  // one past the last that is filed
    uint32_t positions = 0;  // one past the last sink row whose position comes from the device
    bool partial = false;

    const routecap_span &span(size_t i) const { return *reinterpret_cast<const routecap_span *>(spans + i * span_size); }

    // Settled rows in pages that the request has: nearly all spans.
    bool ordinary(const routecap_span &span, const Request &request) const {
        return span.flags == 0 && !lost &&
               request.pages.contains(span.position >> shape.page_shift, ((span.position + span.rows - 1) >> shape.page_shift) + 1);
    }

    // Pages are promised now, so that what fits is known now. Where positions are known only within wide bounds, filing asks for them.
    struct Memory {
        uint64_t first_page, end_page;
        uint64_t pages;  // of these that the request does not have
        uint64_t bytes;  // with those of a draft
    };
    Memory memory(const routecap_span &span, const Request &request, const PagePool &pool) const {
        const bool speculative = (span.flags & ROUTECAP_SPAN_SPECULATIVE) != 0, device = (span.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0;
        const uint64_t end = device ? span.position_end : span.position + span.rows;
        Memory m{span.position >> shape.page_shift, ((end - 1) >> shape.page_shift) + 1, 0, 0};
        if (lost) return m;
        if (device && m.end_page - m.first_page > span.rows + uint64_t{1}) m.end_page = m.first_page;
        m.pages = request.pages.absent(m.first_page, m.end_page);
        m.bytes = m.pages * pool.page_bytes() + (speculative ? PagePool::page_bytes(shape, span.rows) : 0);
        return m;
    }
    bool reserve(uint64_t bytes, PagePool &pool) {
        if (bytes > reserved) return pool.reserve(bytes);
        reserved -= bytes;
        return true;
    }
};

int32_t Capturer::check_spans(Issue &issue) {
    constexpr uint32_t kFlags = ROUTECAP_SPAN_SPECULATIVE | ROUTECAP_SPAN_DEVICE_POSITIONS;
    const routecap_issue_options &options = issue.options;
    if (int32_t s = check_items(reinterpret_cast<const routecap_span *>(issue.spans), issue.count, issue.span_size, "spans"); s < 0) return s;
    if (issue.count >= kNone) return report(ROUTECAP_ERR_ARGUMENT, "%zu spans", issue.count);
    if (options.snapshot != ROUTECAP_SNAPSHOT_TAKEN && options.snapshot != ROUTECAP_SNAPSHOT_MAKE)
        return report(ROUTECAP_ERR_ARGUMENT, "options.snapshot is %d", options.snapshot);
    if (options.reserved != 0) return report(ROUTECAP_ERR_ARGUMENT, "options.reserved is %u", options.reserved);
    if (options.positions != nullptr && options.positions_dtype != ROUTECAP_DTYPE_I32 && options.positions_dtype != ROUTECAP_DTYPE_I64)
        return report(ROUTECAP_ERR_DTYPE, "positions of dtype %d", options.positions_dtype);

    checks_ = checks_ == UINT32_MAX ? 1 : checks_ + 1;
    if (checked_.size() < issue.count) checked_.resize(issue.count);
    for (uint32_t i = 0; i < issue.count; i++) {
        if (i + Requests::kAhead < issue.count) {
            const routecap_span &ahead = issue.span(i + Requests::kAhead);
            capture_->requests.prefetch(ahead.request, (ahead.flags & ROUTECAP_SPAN_SPECULATIVE) != 0);
        }
        const routecap_span &span = issue.span(i);
        const bool device = (span.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0;
        if (span.rows == 0) return report(ROUTECAP_ERR_ARGUMENT, "span %u has no rows", i);
        if ((span.flags & ~kFlags) != 0 || span.reserved != 0)
            return report(ROUTECAP_ERR_ARGUMENT, "span %u: flags is %u and reserved %u", i, span.flags, span.reserved);
        if (span.rows > config_.rows || span.sink_row > config_.rows - span.rows)
            return report(ROUTECAP_ERR_CAPACITY, "span %u: sink rows [%u,%llu) of %u", i, span.sink_row, ull(span.sink_row) + span.rows, config_.rows);
        if (span.position >= ROUTECAP_MAX_POSITION || (!device && span.rows > ROUTECAP_MAX_POSITION - span.position))
            return report(ROUTECAP_ERR_ARGUMENT, "span %u: positions from %llu", i, ull(span.position));
        if (device ? span.position_end <= span.position || span.position_end > ROUTECAP_MAX_POSITION : span.position_end != 0)
            return report(ROUTECAP_ERR_ARGUMENT, "span %u: position %llu with position_end %llu", i, ull(span.position), ull(span.position_end));
        if (device && options.positions == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "span %u needs options.positions", i);

        Request *request = capture_->requests.find(span.request);
        checked_[i] = {request, kNone};
        if (request == nullptr) continue;
        if (!issue.ordinary(span, *request)) issue.wanted += issue.memory(span, *request, capture_->pool).bytes;
        if ((span.flags & ROUTECAP_SPAN_SPECULATIVE) != 0) {
            request->check_drafts = request->drafts_checked == checks_ ? request->check_drafts + 1 : 1;
            request->drafts_checked = checks_;
            const size_t drafts = request->drafts.size() + request->check_drafts;
            if (drafts > request->drafts.capacity()) request->drafts.reserve(2 * drafts + 2);
        }
        if (span.flags != 0) continue;
        if (request->check == checks_) {
            checked_[i].previous = request->check_last;
            if (overlaps(issue, *request, i)) return report(ROUTECAP_ERR_OVERLAP, "span %u overlaps in position with another of its request", i);
        }
        request->check = checks_;
        request->check_last = i;
    }
    return ROUTECAP_OK;
}

// Whether span `index` overlaps one before it of the same request. Most requests have one span, and those with more mostly ascend.
bool Capturer::overlaps(const Issue &issue, const Request &request, uint32_t index) const {
    const routecap_span &span = issue.span(index);
    for (uint32_t i = request.check_last; i != kNone; i = checked_[i].previous) {
        const routecap_span &other = issue.span(i);
        if (std::max(span.position, other.position) < std::min(span.position + span.rows, other.position + other.rows)) return true;
    }
    return false;
}

// Hands one span to its request, and to the step unless that is lost. Returns the span's status.
inline int32_t Capturer::issue_span(Issue &issue, uint32_t index) {
    const routecap_span &span = issue.span(index);
    Request *request = checked_[index].request;
    if (request == nullptr) {
        issue.rows_skipped += span.rows;
        return ROUTECAP_ERR_UNKNOWN_REQUEST;
    }
    if (!issue.ordinary(span, *request)) return issue_special(issue, index);
    const uint64_t end = span.position + span.rows;
    request->length = std::max(request->length, end);
    hand_over(issue, span, *request, end, 0, 0);
    return ROUTECAP_OK;
}

// `end` is one past its last position, `pages` what is reserved for it, `draft_index` of its first row if it is speculative.
inline void Capturer::hand_over(Issue &issue, const routecap_span &span, Request &request, uint64_t end, uint64_t pages, uint64_t draft_index) {
    new (&issue.step->spans[issue.step->span_count])  // in place: one made beside it and copied would be read before its parts are in memory
        StepSpan{.rows = request.rows(),
                 .position = span.position,
                 .position_end = end,
                 .cut = UINT64_MAX,
                 .previous = request.newest,
                 .sink_row = span.sink_row,
                 .count = span.rows,
                 .pages = static_cast<uint32_t>(pages),
                 .draft_index = static_cast<uint32_t>(draft_index) & 0x3fffffff,
                 .speculative = (span.flags & ROUTECAP_SPAN_SPECULATIVE) != 0,
                 .device_positions = (span.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0};
    request.newest = {issue.ticket, issue.slot, issue.step->span_count};
    issue.step->span_count++;
    issue.rows_issued += span.rows;
    issue.rows_filed += span.rows;
    issue.sink_rows = std::max(issue.sink_rows, span.sink_row + span.rows);
}

// The same for spans that need pages, are drafts, have device positions, or are lost.
int32_t Capturer::issue_special(Issue &issue, uint32_t index) {
    const routecap_span &span = issue.span(index);
    Request &request = *checked_[index].request;
    PagePool &pool = capture_->pool;
    const bool speculative = (span.flags & ROUTECAP_SPAN_SPECULATIVE) != 0, device = (span.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0;
    const uint64_t end = device ? span.position_end : span.position + span.rows;
    const auto [first_page, end_page, pages, bytes] = issue.memory(span, request, pool);
    bool filed = !issue.lost && (bytes == 0 || issue.reserve(bytes, pool));
    try {  // nothing else allocates
        if (filed && pages > 0) {
            request.pages.add(first_page, end_page);
            request.changed |= !request.pages.simple();
        }
    } catch (const std::bad_alloc &) {
        pool.unreserve(bytes);
        filed = false;
    }

    if (speculative || device) request.changed = true, request.flagged_end = std::max(request.flagged_end, end);
    uint64_t draft_index = 0;
    if (speculative) {
        for (const DraftSpan &draft : request.drafts)
            if (draft.step == issue.ticket) draft_index = draft.first_index + draft.rows;
        request.drafts.push_back({issue.ticket, draft_index, span.rows, span.position, end, UINT64_MAX, device, filed});
    } else if (!device || !filed) {
        request.length = std::max(request.length, end);
    }
    if (!filed) {
        issue.rows_issued += span.rows;
        if (issue.lost) return ROUTECAP_OK;
        issue.rows_refused += span.rows;
        return ROUTECAP_ERR_NO_MEMORY;
    }
    request.device_positions |= device;
    if (device) issue.positions = std::max(issue.positions, span.sink_row + span.rows);
    hand_over(issue, span, request, end, pages, draft_index);
    return ROUTECAP_OK;
}

int32_t Capturer::issue(const routecap_span *spans, size_t span_size, size_t count, const routecap_issue_options *options, int32_t *status,
                        routecap_step *step, routecap_stream stream) {
    if (!owner()) {
        begun_ = false;
        if (check_) check_->issued();  // FORWARD
        for (size_t i = 0; status != nullptr && i < count; i++) status[i] = ROUTECAP_OK;
        return ROUTECAP_OK;
    }
    routecap_issue_options o{};
    if (options != nullptr)
        if (int32_t s = read_struct(o, options, "options"); s < 0) return s;
    if (int32_t s = enter_outside_capture(stream); s < 0) return s;

    Steps &steps = capture_->steps;
    Counters &counters = capture_->counters;
    std::unique_lock lock(capture_->mutex);
    const int32_t slot = steps.named();
    Issue issue{.spans = reinterpret_cast<const char *>(spans),
                .span_size = span_size,
                .count = count,
                .options = o,
                .shape = *config_.shape,
                .ticket = steps.next_ticket(),
                .slot = slot,
                .lost = slot == kernels::kNoSlot && count > 0};
    if (int32_t s = check_spans(issue); s < 0) return s;
    if (check_) {  // FORWARD: after the arguments, before anything changes
        if (int32_t s = check_->check_memory({{o.positions, "options.positions"}}); s < 0) return s;
        if (int32_t s = check_->before_issue(spans, span_size, count, o.snapshot); s < 0) return s;
    }
    capture_->filing.make_room();
    if (slot != kernels::kNoSlot) {
        issue.step = &steps.step(slot);
        issue.step->begin(issue.ticket, o.tag, count);
    }
    if (o.snapshot == ROUTECAP_SNAPSHOT_MAKE)
        if (int32_t s = backend_->snapshot(stream); s < 0) return s;

    if (issue.wanted > 0 && capture_->pool.reserve(issue.wanted)) issue.reserved = issue.wanted;
    for (uint32_t i = 0; i < count; i++) {
        if (i + Requests::kAhead < count) {
            const Request *ahead = checked_[i + Requests::kAhead].request;
            __builtin_prefetch(ahead, 1);
            if (issue.step) __builtin_prefetch(&issue.step->spans[i + Requests::kAhead], 1);
            if (ahead != nullptr && (issue.span(i + Requests::kAhead).flags & ROUTECAP_SPAN_SPECULATIVE) != 0)
                __builtin_prefetch(ahead->drafts.data() + ahead->drafts.size(), 1);
        }
        const int32_t s = issue_span(issue, i);
        if (status != nullptr) status[i] = s;
        issue.partial |= s != ROUTECAP_OK;
    }
    if (issue.reserved > 0) capture_->pool.unreserve(issue.reserved);  // two spans that share a page wanted it twice

    const bool to_file = issue.rows_filed > 0;
    if (to_file) backend_->expect(slot);  // FORWARD: before the step can be seen by whoever files
    if (to_file) steps.occupy(slot);
    if (to_file || slot == kernels::kNoSlot) steps.name(steps.free_slot());
    backend_->name_slot(steps.named(), stream);
    if (to_file) {
        issue.step->rows = issue.rows_filed;
        issue.step->rows_copied = issue.sink_rows;
        issue.step->positions_dtype = o.positions_dtype;
        backend_->copy(slot, issue.sink_rows, {o.positions, o.positions_dtype, issue.positions}, stream);
    }
    const char *failure =
        to_file ? backend_->failure(slot) : nullptr;  // FORWARD: before it can be filed
    if (failure != nullptr) report(ROUTECAP_LOST, "%s", failure);
    begun_ = false;
    if (check_) check_->issued();  // FORWARD

    steps.issue(issue.lost);
    counters.steps_issued++;
    counters.rows_issued += issue.rows_issued;
    counters.rows_in_flight += issue.rows_filed;
    counters.rows_skipped += issue.rows_skipped;
    counters.rows_refused += issue.rows_refused;
    if (issue.lost) {
        counters.rows_lost += issue.rows_issued;
        counters.steps_lost++;
    }
    if (to_file)
        capture_->filing.append(issue.ticket, FileStep{slot});
    else
        counters.steps_landed++;
    lock.unlock();
    if (to_file) capture_->filing.wake();
    if (step != nullptr) *step = issue.ticket;
    if (issue.lost || failure != nullptr) return ROUTECAP_LOST;
    return issue.partial ? report(ROUTECAP_PARTIAL, "spans of unknown requests or beyond the budget were skipped") : ROUTECAP_OK;
}

}  // namespace routecap
