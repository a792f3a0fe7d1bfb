#include "capture/reader.h"

#include "base/status.h"
#include "base/structs.h"
#include "routing/copy_out.h"
#include "routing/coverage.h"

namespace routecap {
namespace {

int32_t refuse_reading() {
    return report(ROUTECAP_ERR_DISABLED, "this capturer is disabled or a mirror: it has no rows");
}

// Refuses rows [first, first + rows) if the reading is strict and they are not as it wants them.
int32_t check_strict(const Shape &shape, uint64_t first, uint64_t rows,
                     const std::vector<Segment> &segments, Strictness strictness) {
    if (!strictness.complete) return ROUTECAP_OK;
    if (reading_status(shape, first, rows, segments) != ROUTECAP_OK)
        return report(
            ROUTECAP_ERR_INCOMPLETE,
            "cells are missing in rows [%llu,%llu) and the reading is strict; coverage names them",
            ull(first), ull(first + rows));
    return check_provenance(shape, 0, shape.layers, rows, strictness);
}

}  // namespace

// ---- Find, check, take -------------------------------------------------------------

// Finds the rows of a range, after checking that they exist, have landed and are as strict reading
// wants them. With `take` they leave the request.
int32_t Reader::read(routecap_request handle, uint64_t first, uint64_t rows, bool take,
                     Strictness strictness, Range &range, std::vector<Segment> &segments) {
    RequestDataPtr data;
    if (int32_t s = find_to_read(handle, data); s < 0) return s;
    RowStore &store = data->rows;
    const auto check = [&] {
        return check_strict(*config_.shape, range.first, range.rows, segments, strictness);
    };
    {
        const Lock lock(store.mutex);
        if (int32_t s = look_at(handle, store, first, rows, take, range); s < 0) return s;
        if (!take || strictness.complete) segments = store.share(range.first, range.end());
        if (take && strictness.complete)
            if (int32_t s = check(); s < 0) return s;
        if (take && range.rows > 0 && !store.take(range.first, range.end(), segments))
            return report(ROUTECAP_ERR_NO_MEMORY,
                          "taking rows [%llu,%llu) needs a page more than the budget has",
                          ull(range.first), ull(range.end()));
    }
    return take ? ROUTECAP_OK : check();
}

// Finds the request's rows. First it applies the earlier operations that wait for no step. It does
// not leave that to the worker, which may be inside a hook or a release callback that waits for a
// lock of this thread.
int32_t Reader::find_to_read(routecap_request handle, RequestDataPtr &data) {
    uint64_t ready = 0;  // operations that must be applied
    {
        const Lock lock(state_->registry.mutex);
        Request *request = nullptr;
        if (int32_t s = state_->registry.find(handle, &request); s < 0) return s;
        request->data->retain();
        data.reset(request->data.get());
        if (!state_->worker.manual()) ready = request->ready_operations(state_->steps);
    }
    if (ready > 0) state_->worker.apply_operations();
    if (data->rows.progress.engine_applied() < ready)
        return report(ROUTECAP_ERR_NO_MEMORY,
                      "the system has no memory for operations that were handed over before");
    return ROUTECAP_OK;
}

// Checks whether rows can be read, and notes on the engine's side that they are shared or taken.
// With both mutexes nothing is filed into the request, so what is found in flight is what is not in
// the store.
int32_t Reader::look_at(routecap_request handle, RowStore &store, uint64_t first, uint64_t rows,
                        bool take, Range &range) {
    const Lock lock(state_->registry.mutex);
    Request *found = nullptr;
    if (int32_t s = state_->registry.find(handle, &found); s < 0) return s;
    Request &request = *found;
    const uint64_t length = request.length_now(state_->steps);
    uint64_t in_flight = UINT64_MAX;  // the first row at or after `first` that is
    const auto not_landed = [&](uint64_t from, uint64_t to) {
        if (std::max(from, first) < to) in_flight = std::min(in_flight, std::max(from, first));
    };
    request.for_each_in_flight(state_->steps, [&](const StepSpan &span, Ticket) {
        if (!span.speculative)
            not_landed(span.position, std::min(span.position_end, span.cut.engine_cut()));
    });
    const uint64_t applied = request.applied();
    request.for_each_change(applied, [&](const Change &c) { not_landed(c.first, c.end); });
    not_landed(request.rare().first_cut(applied), UINT64_MAX);
    if (take)
        request.rare().lendings.for_each(
            applied, [&](const Lending &lending) { not_landed(lending.first, lending.end); });

    if (first > length)
        return report(ROUTECAP_ERR_OUT_OF_RANGE, "row %llu: the request has %llu rows", ull(first),
                      ull(length));
    if (rows == ROUTECAP_ROWS_LANDED) rows = std::min(in_flight, length) - first;
    if (rows == ROUTECAP_ROWS_ALL) rows = length - first;
    if (rows > length - first)
        return report(ROUTECAP_ERR_OUT_OF_RANGE,
                      "rows [%llu,%llu) do not exist: the request has %llu rows",
                      ull(std::max(first, length)),
                      rows > UINT64_MAX - first ? ull(UINT64_MAX) : ull(first + rows), ull(length));
    if (in_flight < first + rows)
        return report(ROUTECAP_ERR_NOT_READY, "row %llu is in flight", ull(in_flight));
    range = {first, rows, length};
    if (rows == 0) return ROUTECAP_OK;
    request.share(store.last_before(range.end()));
    if (take) request.own_page = Request::kNone;
    return ROUTECAP_OK;
}

int32_t Reader::coverage(routecap_request request, uint64_t first, uint64_t rows,
                         routecap_coverage *coverage, routecap_missing *missing,
                         size_t missing_size, size_t capacity) {
    if (state_ == nullptr) return refuse_reading();
    if (int32_t s = check_output(coverage, "coverage"); s < 0) return s;
    if (int32_t s =
            check_array(missing, capacity, missing_size, sizeof(routecap_missing), "missing");
        s < 0)
        return s;
    Range range{};
    std::vector<Segment> segments;
    if (int32_t s = read(request, first, rows, false, {}, range, segments); s < 0) return s;
    const routecap_coverage c = cover(*config_.shape, range.first, range.rows, range.length,
                                      segments, {missing, missing_size, capacity});
    write_struct(coverage, c);
    return report_missing(c);
}

int32_t Reader::extract(routecap_request request, uint64_t first, uint64_t rows, int32_t mode,
                        uint32_t flags, Routing **routing) {
    if (state_ == nullptr) return refuse_reading();
    if (mode != ROUTECAP_EXTRACT_SHARE && mode != ROUTECAP_EXTRACT_TAKE &&
        mode != ROUTECAP_EXTRACT_COPY)
        return report(ROUTECAP_ERR_ARGUMENT, "mode is %d", mode);
    Strictness strictness{};
    if (int32_t s = read_flags(flags, strictness); s < 0) return s;
    Range range{};
    std::vector<Segment> segments;
    // First, so that rows taken have a place.
    std::unique_ptr<Routing, RoutingRelease> result(new Routing(state_->storage));
    if (int32_t s =
            read(request, first, rows, mode == ROUTECAP_EXTRACT_TAKE, strictness, range, segments);
        s < 0)
        return s;
    result->fill(range.first, range.rows, std::move(segments));
    if (mode == ROUTECAP_EXTRACT_COPY) {
        result.reset(result->copy());
        if (!result)
            return report(ROUTECAP_ERR_NO_MEMORY,
                          "a copy of %llu rows is more than the budget has left", ull(range.rows));
    }
    *routing = result.release();
    return (*routing)->status();
}

int32_t Reader::extract_batch(routecap_extract_item *items, size_t item_size, size_t count) {
    if (state_ == nullptr) return refuse_reading();
    return for_each_item(items, item_size, count, [this](routecap_extract_item &item) {
        return extract(item.request, item.first, item.rows, item.mode, item.flags,
                       reinterpret_cast<Routing **>(&item.routing));
    });
}

int32_t Reader::extract_into(routecap_request request, uint64_t first, uint64_t rows,
                             const routecap_copy_options *options, void *dst, size_t dst_bytes,
                             uint8_t *mask, size_t mask_bytes, uint64_t *needed) {
    if (state_ == nullptr) return refuse_reading();
    Range range{};
    std::vector<Segment> segments;
    if (int32_t s = read(request, first, rows, false, {}, range, segments); s < 0) return s;
    const RoutingPtr routing(
        new Routing(state_->storage, range.first, range.rows, std::move(segments)));
    return copy_out(*routing, {options, dst, dst_bytes, mask, mask_bytes, needed});
}

}  // namespace routecap
