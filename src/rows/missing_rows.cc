#include "rows/missing_rows.h"

#include "rows/row_store.h"

namespace routecap {

// Runs lie between the ends of those that were there and of those that came since: n runs and m
// changes have 2n + 2m ends at most.
void MissingRows::reserve(size_t changes) {
    const size_t most = 2 * (runs_.size() + changes);
    if (runs_.capacity() < most) runs_.reserve(std::max(most, 2 * runs_.capacity()));
}

// No run goes across `position` afterwards.
void MissingRows::split(uint64_t position) {
    const size_t i = after(position);
    if (i == runs_.size() || runs_[i].first >= position) return;
    const Run left{runs_[i].first, position, runs_[i].reason};
    runs_[i].first = position;
    runs_.insert(runs_.begin() + static_cast<ptrdiff_t>(i), left);
}

void MissingRows::append(uint64_t first, uint64_t end, int32_t reason) {
    if (reason == ROUTECAP_MISSING_ABSENT) return;
    if (!runs_.empty() && runs_.back().end == first && runs_.back().reason == reason)
        runs_.back().end = end;
    else
        runs_.push_back({first, end, reason});
}

void MissingRows::add(uint64_t first, uint64_t end, int32_t reason) {
    if (first >= end || reason == ROUTECAP_MISSING_ABSENT) return;
    if (runs_.empty() || runs_.back().end <= first)
        return append(first, end, reason);  // mostly rows are missing in order
    split(first);
    split(end);
    const size_t begin = after(first);
    size_t inside = begin, gaps = 0;
    uint64_t known = first;
    for (; inside < runs_.size() && runs_[inside].first < end; inside++) {
        Run &run = runs_[inside];
        gaps += known < run.first;
        known = run.end;
        if (reason_rank(run.reason) < reason_rank(reason)) run.reason = reason;
    }
    gaps += known < end;

    // The gaps become runs, from the last on.
    runs_.insert(runs_.begin() + static_cast<ptrdiff_t>(inside), gaps, Run{});
    size_t from = inside, to = inside + gaps;
    for (uint64_t position = end; gaps > 0; position = runs_[to].first) {
        const uint64_t before = from > begin ? runs_[from - 1].end : first;
        if (before < position)
            runs_[--to] = {before, position, reason}, gaps--;
        else
            runs_[--to] = runs_[--from];
    }
    // Neighbours become one, those on both sides included.
    size_t last = begin > 0 ? begin - 1 : 0, next = last + 1;
    for (; next < runs_.size() && runs_[last].first <= end; next++) {
        if (runs_[last].end == runs_[next].first && runs_[last].reason == runs_[next].reason)
            runs_[last].end = runs_[next].end;
        else
            runs_[++last] = runs_[next];
    }
    runs_.erase(runs_.begin() + static_cast<ptrdiff_t>(last + 1),
                runs_.begin() + static_cast<ptrdiff_t>(next));
}

void MissingRows::add(const MissingRows &other) {
    if (other.runs_.size() <= 4) {
        reserve(other.runs_.size());
        for (const Run &run : other.runs_) add(run.first, run.end, run.reason);
        return;
    }
    // Where neither begins or ends, in order.
    MissingRows both;
    both.reserve(runs_.size() + other.runs_.size());
    auto a = runs_.begin();
    auto b = other.runs_.begin();
    for (uint64_t position = 0; a != runs_.end() || b != other.runs_.end();) {
        uint64_t end = UINT64_MAX;
        int32_t reason = ROUTECAP_MISSING_ABSENT;
        const auto look = [&](auto &run, auto last) {
            while (run != last && run->end <= position) ++run;
            if (run == last) return;
            end = std::min(end, run->first > position ? run->first : run->end);
            if (run->first <= position && reason_rank(run->reason) > reason_rank(reason))
                reason = run->reason;
        };
        look(a, runs_.end());
        look(b, other.runs_.end());
        both.append(position, end, reason);
        position = end;
    }
    *this = std::move(both);
}

void MissingRows::clear(uint64_t first, uint64_t end) {
    if (first >= end) return;
    split(first);
    split(end);
    const auto begin = runs_.begin() + static_cast<ptrdiff_t>(after(first));
    runs_.erase(begin,
                std::find_if(begin, runs_.end(), [&](const Run &run) { return run.first >= end; }));
}

void MissingRows::cut(uint64_t end) noexcept {
    while (!runs_.empty() && runs_.back().first >= end) runs_.pop_back();
    if (!runs_.empty()) runs_.back().end = std::min(runs_.back().end, end);
}

namespace {

// Adds a segment without a page, to the last one if the two can be one.
void append(std::vector<Segment> &segments, uint64_t first, uint64_t end, int32_t reason) {
    if (first >= end) return;
    if (!segments.empty() && !segments.back().page && segments.back().end() == first &&
        segments.back().reason == reason)
        segments.back().rows += end - first;
    else
        segments.push_back(Segment::not_there(first, end - first, reason));
}

}  // namespace

std::vector<Segment> with_missing(const Shape &shape, std::vector<Segment> &&present,
                                  const MissingRows &a, const MissingRows *b, uint64_t first,
                                  uint64_t end) {
    MissingRows known = a.part(first, end);
    if (b != nullptr) known.add(b->part(first, end));
    if (known.empty()) return std::move(present);

    // Rows that are there hide what is known; those of pages that are not there hide it if they
    // know better.
    std::vector<Segment> missing;
    size_t next = 0;
    known.for_each(first, end, [&](uint64_t from, uint64_t to, int32_t reason) {
        while (next < present.size() && present[next].end() <= from) next++;
        for (size_t i = next; i < present.size() && present[i].first < to; i++) {
            const Segment &segment = present[i];
            append(missing, from, segment.first, reason);
            const uint64_t stop = std::min(to, segment.end());
            from = std::max(from, segment.first);
            if (!segment.page && reason_rank(segment.reason) < reason_rank(reason))
                append(missing, from, stop, reason);
            for (; segment.page && !segment.complete && from < stop; from++) {
                const int32_t row = shape.row_reason(segment.ids(from - segment.first),
                                                     segment.validity(from - segment.first));
                if (row != 0 && reason_rank(row) < reason_rank(reason))
                    append(missing, from, from + 1, reason);
            }
            from = stop;
        }
        append(missing, from, to, reason);
    });

    std::vector<Segment> all;
    all.reserve(present.size() + 2 * missing.size());  // from here on nothing fails
    auto hole = missing.begin();
    uint64_t done = first;
    const auto holes_until = [&](uint64_t position) {
        done = std::max(done, position);
        for (; hole != missing.end() && hole->first <= done; ++hole)
            done = std::max(done, hole->end()), all.push_back(std::move(*hole));
    };
    for (const Segment &segment : present) {
        for (holes_until(segment.first); done < segment.end();) {
            const uint64_t stop =
                hole != missing.end() ? std::min(hole->first, segment.end()) : segment.end();
            all.push_back(segment.part(done, stop));
            holes_until(stop);
        }
    }
    holes_until(end);
    return all;
}

}  // namespace routecap
