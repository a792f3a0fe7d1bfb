// routecap_step_issue: the hot path. One pass checks every span and changes nothing, a second hands each to its request; then the slot's copy is
// started, the next slot named, and the step appended to the log. It takes one lock, and memory only to grow buffers that stay.
#include <new>

#include "capturer.h"
#include "status.h"
#include "structs.h"

namespace routecap {
namespace {

const routecap_span &element(const routecap_span *spans, size_t size, size_t i) {
    return *reinterpret_cast<const routecap_span *>(reinterpret_cast<const char *>(spans) + i * size);
}

unsigned long long ull(uint64_t n) { return n; }

}  // namespace

int32_t Capturer::check_spans(const routecap_span *spans, size_t span_size, size_t count, const routecap_issue_options &options) {
    constexpr uint32_t kFlags = ROUTECAP_SPAN_SPECULATIVE | ROUTECAP_SPAN_DEVICE_POSITIONS;
    if (int32_t s = check_array(spans, count, span_size, sizeof(routecap_span), "spans"); s < 0) return s;
    if (count > UINT32_MAX) return report(ROUTECAP_ERR_ARGUMENT, "%zu spans", count);
    if (options.snapshot != ROUTECAP_SNAPSHOT_TAKE && options.snapshot != ROUTECAP_SNAPSHOT_MAKE)
        return report(ROUTECAP_ERR_ARGUMENT, "options.snapshot is %d", options.snapshot);
    if (options.reserved != 0) return report(ROUTECAP_ERR_ARGUMENT, "options.reserved is %u", options.reserved);
    if (options.positions != nullptr && options.positions_dtype != ROUTECAP_DTYPE_I32 && options.positions_dtype != ROUTECAP_DTYPE_I64)
        return report(ROUTECAP_ERR_DTYPE, "positions of dtype %d", options.positions_dtype);

    checks_++;
    if (check_chain_.size() < count) check_chain_.resize(count);
    for (size_t i = 0; i < count; i++) {
        routecap_span copy;
        if (span_size != sizeof copy)
            if (int32_t s = read_struct(copy, &element(spans, span_size, i), span_size, "spans"); s < 0) return s;
        const routecap_span &span = element(spans, span_size, i);
        const bool device = (span.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0;
        if (span.rows == 0) return report(ROUTECAP_ERR_ARGUMENT, "span %zu has no rows", i);
        if ((span.flags & ~kFlags) != 0 || span.reserved != 0)
            return report(ROUTECAP_ERR_ARGUMENT, "span %zu: flags is %u and reserved %u", i, span.flags, span.reserved);
        if (span.rows > config_.rows || span.sink_row > config_.rows - span.rows)
            return report(ROUTECAP_ERR_CAPACITY, "span %zu: sink rows [%u,%llu) of %u", i, span.sink_row, ull(span.sink_row) + span.rows, config_.rows);
        if (span.position >= ROUTECAP_MAX_POSITION || (!device && span.rows > ROUTECAP_MAX_POSITION - span.position))
            return report(ROUTECAP_ERR_ARGUMENT, "span %zu: positions from %llu", i, ull(span.position));
        if (device ? span.position_end <= span.position || span.position_end > ROUTECAP_MAX_POSITION : span.position_end != 0)
            return report(ROUTECAP_ERR_ARGUMENT, "span %zu: position %llu with position_end %llu", i, ull(span.position), ull(span.position_end));
        if (device && options.positions == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "span %zu needs options.positions", i);

        // Overlap with an earlier span of the same request. Most requests have one span.
        if (span.flags != 0) continue;
        Request *request = capture_->requests.find(span.request);
        if (request == nullptr) continue;
        const uint64_t first = span.position, end = first + span.rows;
        if (request->check != checks_) {
            request->check = checks_;
            request->check_first = first, request->check_end = end;
            check_chain_[i] = UINT32_MAX;
        } else {
            if (std::max(first, request->check_first) < std::min(end, request->check_end))
                for (uint32_t j = request->check_last; j != UINT32_MAX; j = check_chain_[j]) {
                    const routecap_span &other = element(spans, span_size, j);
                    if (std::max(first, other.position) < std::min(end, other.position + other.rows))
                        return report(ROUTECAP_ERR_OVERLAP, "spans %u and %zu overlap in position", j, i);
                }
            request->check_first = std::min(request->check_first, first), request->check_end = std::max(request->check_end, end);
            check_chain_[i] = request->check_last;
        }
        request->check_last = static_cast<uint32_t>(i);
    }
    return ROUTECAP_OK;
}

// Hands one span to its request, and to the step unless that is lost. Returns the span's status.
int32_t Capturer::issue_span(const routecap_span &span, bool lost, Step *step) {
    Counters &counters = capture_->counters;
    Request *request = capture_->requests.find(span.request);
    if (request == nullptr) {
        counters.rows_skipped += span.rows;
        return ROUTECAP_ERR_UNKNOWN_REQUEST;
    }
    const Shape &shape = *config_.shape;
    PagePool &pool = *capture_->pool;
    const bool speculative = (span.flags & ROUTECAP_SPAN_SPECULATIVE) != 0, device = (span.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0;
    const uint64_t end = device ? span.position_end : span.position + span.rows;
    counters.rows_issued += span.rows;

    // Pages are promised now, so that what fits is known now. Where the positions are known only within wide bounds, filing asks for them.
    uint64_t first_page = span.position / shape.page_rows, end_page = (end - 1) / shape.page_rows + 1;
    if (device && end_page - first_page > span.rows + uint64_t{1}) end_page = first_page;
    bool filed = !lost;
    uint64_t pages = 0;
    if (filed) {
        pages = request->pages.absent(first_page, end_page);
        filed = pool.reserve(pages * pool.page_bytes() + (speculative ? PagePool::page_bytes(shape, span.rows) : 0));
    }

    try {  // nothing below allocates
        if (speculative && request->drafts.size() == request->drafts.capacity()) request->drafts.reserve(2 * request->drafts.size() + 4);
        if (filed && pages > 0) request->pages.add(first_page, end_page);
    } catch (const std::bad_alloc &) {
        if (filed) pool.unreserve(pages * pool.page_bytes() + (speculative ? PagePool::page_bytes(shape, span.rows) : 0));
        counters.rows_refused += span.rows;
        return ROUTECAP_ERR_NO_MEMORY;
    }

    uint64_t draft_index = 0;
    if (speculative) {
        for (const DraftSpan &draft : request->drafts)
            if (draft.step == capture_->steps.next_ticket()) draft_index = draft.first_index + draft.rows;
        request->drafts.push_back({capture_->steps.next_ticket(), draft_index, span.rows, span.position, end, UINT64_MAX, device, filed});
    } else if (!device || !filed) {
        request->length = std::max(request->length, end);
    }
    if (lost) {
        counters.rows_lost += span.rows;
        return ROUTECAP_OK;
    }
    if (!filed) {
        counters.rows_refused += span.rows;
        return ROUTECAP_ERR_NO_MEMORY;
    }
    request->device_positions |= device;
    step->spans.push_back({.rows = request->rows.get(),
                           .position = span.position,
                           .position_end = end,
                           .sink_row = span.sink_row,
                           .count = span.rows,
                           .speculative = speculative,
                           .device_positions = device,
                           .draft_index = draft_index,
                           .pages = pages,
                           .cut = UINT64_MAX,
                           .previous = request->newest});
    request->newest = {step->ticket, capture_->steps.named(), static_cast<uint32_t>(step->spans.size() - 1)};
    request->after = step->ticket;
    counters.rows_in_flight += span.rows;
    return ROUTECAP_OK;
}

int32_t Capturer::issue(const routecap_span *spans, size_t span_size, size_t count, const routecap_issue_options *options, int32_t *status,
                        routecap_step *step, routecap_stream stream) {
    if (step != nullptr) *step = 0;
    if (!owner()) {
        for (size_t i = 0; status != nullptr && i < count; i++) status[i] = ROUTECAP_OK;
        return ROUTECAP_OK;
    }
    routecap_issue_options o{};
    if (options != nullptr)
        if (int32_t s = read_struct(o, options, "options"); s < 0) return s;
    if (int32_t s = backend_->check(stream); s < 0) return s;

    Steps &steps = capture_->steps;
    std::unique_lock lock(capture_->mutex);
    if (int32_t s = check_spans(spans, span_size, count, o); s < 0) return s;
    const int32_t slot = steps.named();
    const bool lost = slot == kernels::kNoSlot && count > 0;
    Step *current = slot != kernels::kNoSlot ? &steps.step(slot) : nullptr;
    capture_->filing.make_room();
    if (current != nullptr) {
        current->spans.clear();
        current->spans.reserve(count);
        current->ticket = steps.next_ticket();
        current->tag = o.tag;
        current->rows_copied = 0;
    }
    if (o.snapshot == ROUTECAP_SNAPSHOT_MAKE)
        if (int32_t s = backend_->snapshot(stream); s < 0) return s;

    bool partial = false, positions = false;
    for (size_t i = 0; i < count; i++) {
        const routecap_span &span = element(spans, span_size, i);
        const int32_t s = issue_span(span, lost, current);
        if (status != nullptr) status[i] = s;
        partial |= s != ROUTECAP_OK;
        if (s != ROUTECAP_OK || lost) continue;
        current->rows_copied = std::max(current->rows_copied, span.sink_row + span.rows);
        positions |= (span.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0;
    }

    const bool to_file = current != nullptr && !current->spans.empty();
    if (to_file) {
        const DevicePositions from = positions ? DevicePositions{o.positions, o.positions_dtype} : DevicePositions{};
        if (int32_t s = backend_->copy(slot, current->rows_copied, from, stream); s < 0) return s;
        steps.occupy(slot);
    }
    if (to_file || slot == kernels::kNoSlot) steps.name(steps.free_slot());
    if (int32_t s = backend_->name_slot(steps.named(), stream); s < 0) return s;
    begun_ = false;

    const uint64_t ticket = steps.next_ticket();
    steps.issue(lost, !to_file);
    capture_->counters.steps_issued++;
    if (to_file) {
        capture_->filing.append(ticket, FileStep{slot});
    } else {
        capture_->counters.steps_landed++;
        if (lost) capture_->counters.steps_lost++;
    }
    lock.unlock();
    if (to_file) capture_->filing.wake();
    if (step != nullptr) *step = ticket;
    if (lost) return ROUTECAP_LOST;
    return partial ? report(ROUTECAP_PARTIAL, "spans of unknown requests or beyond the budget were skipped") : ROUTECAP_OK;
}

}  // namespace routecap
