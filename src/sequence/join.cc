#include "sequence/join.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "rows/merge.h"

namespace routecap {
namespace {

// One row of a segment, or of none.
struct Side {
    const Segment *segment;  // or null: nothing is known of the row, it is ABSENT
    const uint8_t *row;
    Tag tag;  // none if it is not there
};

class Join {
public:
    Join(const Storage &storage, const JoinedRows &rows, OwnRows &own, Joined &joined)
        : storage_(storage), shape_(*storage.shape), rows_(rows), own_(own), out_(joined) {}

    // Meets ranges of rows that are in one segment, or in none, on each side.
    bool run() {
        const uint64_t end = std::max(rows_.kept, rows_.taken.end);
        out_.first = std::min(rows_.taken.first, rows_.kept);
        size_t s = 0, c = 0;
        for (uint64_t position = out_.first; position < end;) {
            uint64_t next = end;
            const auto edge = [&](uint64_t at) {
                if (at > position) next = std::min(next, at);
            };
            const auto at = [&](std::span<const Segment> segments, size_t &i, RowRange range) {
                edge(range.first), edge(range.end);
                while (i < segments.size() && segments[i].end() <= position) i++;
                if (i == segments.size()) return static_cast<const Segment *>(nullptr);
                edge(segments[i].first), edge(segments[i].end());
                return segments[i].first <= position && range.has(position) ? &segments[i]
                                                                            : nullptr;
            };
            edge(rows_.preferred.first), edge(rows_.preferred.end);
            const Segment *sequence = at(rows_.sequence, s, {0, rows_.kept});
            const Segment *call = at(rows_.call, c, rows_.taken);
            if (!meet(sequence, call, position, next)) return false;
            position = next;
        }
        return end_run();
    }

private:
    bool meet(const Segment *sequence, const Segment *call, uint64_t first, uint64_t end) {
        if (call == nullptr)
            return sequence == nullptr || add(sequence, first, end, sequence->complete);
        const bool preferred = rows_.preferred.has(first);
        const bool in_sequence = sequence != nullptr && sequence->page;
        if (!in_sequence && !call->page) {
            const bool stays = sequence != nullptr &&
                               higher_reason(sequence->reason, call->reason) == sequence->reason;
            return add(stays ? sequence : call, first, end, false);
        }
        const auto whole = [](const Segment *s) { return s->page && s->complete; };
        if (!in_sequence && whole(call)) {
            note_taken(first, end, false, true);
            return add(call, first, end, true);
        }
        if (in_sequence && whole(sequence) && whole(call)) {
            compare(*sequence, *call, first, end);
            if (preferred) note_taken(first, end, true, false);
            return add(preferred ? call : sequence, first, end, true);
        }
        for (uint64_t p = first; p < end; p++)
            if (!meet_row(sequence, call, p, preferred)) return false;
        return true;
    }

    // Adds rows of one side, together with rows of the same segment before them.
    bool add(const Segment *side, uint64_t first, uint64_t end, bool complete) {
        if (side == run_.side && first == run_.end) {
            run_.end = end, run_.complete &= complete;
            return true;
        }
        if (!end_run()) return false;
        run_ = {side, first, end, complete};
        return true;
    }
    // Rows of the sequence are shared, those of the call are copied.
    bool end_run() {
        const Run run = std::exchange(run_, {});
        if (run.side == nullptr) return true;
        Segment rows = run.side->part(run.first, run.end);
        rows.complete = run.complete;
        const std::less<const Segment *> before;  // it may be of another array
        const bool of_call = !before(run.side, rows_.call.data()) &&
                             before(run.side, rows_.call.data() + rows_.call.size());
        if (of_call && rows.page) return own_.copy(storage_, rows, out_.segments);
        push(out_.segments, std::move(rows));
        return true;
    }

    bool meet_row(const Segment *sequence, const Segment *call, uint64_t position, bool preferred) {
        const Side old = side(sequence, position, unknown_[0]),
                   now = side(call, position, unknown_[1]);
        const Meeting met = compare_rows(shape_, old.row, now.row);
        out_.overlap += met.overlap;
        if (met.overlap && differ(shape_, old.row, now.row)) note_differed(position);
        if (met.fills || (preferred && !shape_.row_empty(now.row)))
            note_taken(position, position + 1, preferred && met.overlap, met.fills,
                       shape_.row_empty(old.row) || preferred);

        const Side &winner = preferred ? now : old, &other = preferred ? old : now;
        const Meeting meeting = preferred ? compare_rows(shape_, winner.row, other.row) : met;
        if (!meeting.changes()) return share(winner, position);
        merged_.assign(winner.row, winner.row + shape_.stride);
        const Tag tag = merge(shape_, merged_.data(), winner.tag, other.row, other.tag);
        if (!meeting.keeps && tag == other.tag) return share(other, position);
        return end_run() && own_.add(storage_, position, merged_.data(), tag, out_.segments);
    }
    // A row that is one side's as it is.
    bool share(const Side &side, uint64_t position) {
        return side.segment == nullptr ||
               add(side.segment, position, position + 1, shape_.row_full(side.row));
    }

    // A row of a segment. One that is not there is made of its reason.
    Side side(const Segment *segment, uint64_t position, std::vector<uint8_t> &unknown) const {
        if (segment != nullptr && segment->page) {
            const uint64_t n = position - segment->first;
            return {segment, segment->row(n), segment->tag(n)};
        }
        unknown.resize(shape_.stride);
        shape_.make_missing(unknown.data(),
                            segment != nullptr ? segment->reason : ROUTECAP_MISSING_ABSENT);
        return {segment, unknown.data(), Tag::none};
    }

    // Compares rows without a missing cell, at the speed of memory where they are equal.
    void compare(const Segment &sequence, const Segment &call, uint64_t first, uint64_t end) {
        constexpr uint64_t kAtOnce = 64;
        out_.overlap += end - first;
        for (uint64_t p = first; p < end;) {
            const uint64_t n = std::min(kAtOnce, end - p);
            const uint8_t *a = sequence.row(p - sequence.first), *b = call.row(p - call.first);
            if (std::memcmp(a, b, n * shape_.stride) != 0)
                for (uint64_t r = 0; r < n; r++)
                    if (differ(shape_, a + r * shape_.stride, b + r * shape_.stride))
                        note_differed(p + r);
            p += n;
        }
    }

    void note_differed(uint64_t position) {
        out_.differed++;
        out_.first_differed = std::min(out_.first_differed, position);
    }
    // Notes rows in which a cell comes from the call, either replacing a cell or filling a gap.
    void note_taken(uint64_t first, uint64_t end, bool replaced, bool gained,
                    bool are_the_calls = true) {
        out_.took += end - first;
        if (replaced) out_.replaced += end - first;
        const uint64_t boundary = rows_.kept - 1;  // of none: at no position
        if (gained && RowRange{first, end}.has(boundary)) out_.boundary++;
        if (gained && rows_.kept > 0 && first < boundary)
            out_.filled += std::min(end, boundary) - first;
        if (!are_the_calls) return;
        if (!out_.of_call.empty() && out_.of_call.back().end == first)
            out_.of_call.back().end = end;
        else
            out_.of_call.push_back({first, end});
    }

    const Storage &storage_;
    const Shape &shape_;
    const JoinedRows &rows_;
    OwnRows &own_;
    Joined &out_;
    struct Run {
        const Segment *side = nullptr;
        uint64_t first = 0, end = 0;
        bool complete = false;
    } run_;  // rows that are still to be added
    std::vector<uint8_t> unknown_[2], merged_;
};

}  // namespace

bool join(const Storage &storage, const JoinedRows &rows, OwnRows &own, Joined &joined) {
    return Join(storage, rows, own, joined).run();
}

uint64_t complete_rows(const Shape &shape, const Segment &segment) {
    if (!segment.page) return 0;
    if (segment.complete) return segment.rows;
    uint64_t n = 0;
    for (uint64_t r = 0; r < segment.rows; r++) n += shape.row_full(segment.row(r));
    return n;
}

}  // namespace routecap
