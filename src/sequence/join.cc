#include "sequence/join.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

namespace routecap {
namespace {

// One row of a segment, or of none.
struct RowView {
    const Segment *segment;  // or null: nothing is known of the row, it is ABSENT
    const uint8_t *ids, *validity;
    bool there;  // a cell of it is valid
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
            const bool better =
                sequence == nullptr || reason_rank(call->reason) > reason_rank(sequence->reason);
            return add(better ? call : sequence, first, end, false);
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
        const RowView old = view(sequence, position, unknown_[0]),
                      now = view(call, position, unknown_[1]);
        bool overlap = false, gain = false, differ = false;
        for (uint32_t b = 0; b < shape_.validity_bytes; b++) {
            overlap |= (old.validity[b] & now.validity[b]) != 0;
            gain |= (now.validity[b] & ~old.validity[b]) != 0;
        }
        for (uint32_t l = 0; overlap && !differ && l < shape_.layers; l++)
            differ = Shape::valid(old.validity, l) && Shape::valid(now.validity, l) &&
                     !same_cell(old, now, l);
        out_.overlap += overlap;
        if (differ) note_differed(position);
        if (gain || (preferred && now.there))
            note_taken(position, position + 1, preferred && overlap, gain, !old.there || preferred);

        const RowView &winner = preferred ? now : old, &other = preferred ? old : now;
        bool all_of_winner = true, all_of_other = true;
        for (uint32_t l = 0; !shape_.row_full(winner.validity) && l < shape_.layers; l++) {
            all_of_winner &= !better(other, winner, l);
            all_of_other &= better(other, winner, l) || same_reason(other, winner, l);
        }
        if (!all_of_winner && (!all_of_other || gives_tag(winner, other)))
            return blend(winner, other, position);
        const RowView &all = all_of_winner ? winner : other;
        return all.segment == nullptr ||
               add(all.segment, position, position + 1, shape_.row_full(all.validity));
    }

    // A row of a segment. One that is not there is made of its reason.
    RowView view(const Segment *segment, uint64_t position, std::vector<uint8_t> &unknown) const {
        if (segment != nullptr && segment->page) {
            const uint64_t row = position - segment->first;
            return {segment, segment->ids(row), segment->validity(row),
                    !shape_.row_empty(segment->validity(row))};
        }
        unknown.assign(shape_.row_bytes(), 0);
        shape_.mark_missing(unknown.data(),
                            segment != nullptr ? segment->reason : ROUTECAP_MISSING_ABSENT);
        return {segment, unknown.data(), unknown.data() + shape_.ids_bytes, false};
    }

    // Whether the cell of `a` replaces that of `b`, which wins a tie: if only a's is valid, or if
    // both are missing and a's reason has the higher rank.
    bool better(const RowView &a, const RowView &b, uint32_t layer) const {
        if (Shape::valid(b.validity, layer)) return false;
        return Shape::valid(a.validity, layer) ||
               reason_rank(shape_.reason(a.ids, layer)) > reason_rank(shape_.reason(b.ids, layer));
    }
    bool same_reason(const RowView &a, const RowView &b, uint32_t layer) const {
        return !Shape::valid(a.validity, layer) && !Shape::valid(b.validity, layer) &&
               shape_.reason(a.ids, layer) == shape_.reason(b.ids, layer);
    }
    bool same_cell(const RowView &a, const RowView &b, uint32_t layer) const {
        const size_t at = size_t{layer} * shape_.cell_bytes;
        return shape_.same_cell(a.ids + at, b.ids + at);
    }

    // A joined row has the lowest tag of the rows that its valid cells come from. Without a valid
    // cell it has the tag of the side that has reasons for single cells, and not merely one for the
    // whole row. Returns whether that is the winner, if the other side fills no cell.
    bool gives_tag(const RowView &winner, const RowView &other) const {
        return winner.there ||
               (!other.there && shape_.row_reason(winner.ids, winner.validity) == 0);
    }

    // Compares rows without a missing cell, at the speed of memory where they are equal.
    void compare(const Segment &sequence, const Segment &call, uint64_t first, uint64_t end) {
        constexpr uint64_t kAtOnce = 64;
        out_.overlap += end - first;
        for (uint64_t p = first; p < end;) {
            const uint64_t n = std::min(kAtOnce, end - p);
            const uint8_t *a = sequence.ids(p - sequence.first), *b = call.ids(p - call.first);
            if (std::memcmp(a, b, n * shape_.ids_bytes) != 0)
                for (uint64_t r = 0; r < n; r++)
                    if (!same_row(a + r * shape_.ids_bytes, b + r * shape_.ids_bytes))
                        note_differed(p + r);
            p += n;
        }
    }
    bool same_row(const uint8_t *a, const uint8_t *b) const {
        if (std::memcmp(a, b, shape_.ids_bytes) == 0) return true;
        for (size_t at = 0; at < shape_.ids_bytes; at += shape_.cell_bytes)
            if (!shape_.same_cell(a + at, b + at)) return false;
        return true;
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

    // Adds a row of cells of both.
    bool blend(const RowView &winner, const RowView &other, uint64_t position) {
        std::vector<uint8_t> row(shape_.row_bytes());
        uint8_t *ids = row.data(), *validity = row.data() + shape_.ids_bytes;
        std::memcpy(ids, winner.ids, shape_.ids_bytes);
        std::memcpy(validity, winner.validity, shape_.validity_bytes);
        bool fills = false;
        for (uint32_t l = 0; l < shape_.layers; l++) {
            if (!better(other, winner, l)) continue;
            const size_t at = size_t{l} * shape_.cell_bytes;
            std::memcpy(ids + at, other.ids + at, shape_.cell_bytes);
            if (!Shape::valid(other.validity, l)) continue;
            fills = true;
            Shape::set_valid(validity, l);
        }
        const auto tag_of = [position](const RowView &row) {
            return row.segment != nullptr && row.segment->page
                       ? row.segment->tag(position - row.segment->first)
                       : 0;
        };
        uint64_t tag = tag_of(gives_tag(winner, other) ? winner : other);
        if (fills && winner.there) tag = std::min(tag, tag_of(other));
        return end_run() && own_.add(storage_, position, ids, validity, tag, out_.segments);
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
    std::vector<uint8_t> unknown_[2];
};

}  // namespace

bool join(const Storage &storage, const JoinedRows &rows, OwnRows &own, Joined &joined) {
    return Join(storage, rows, own, joined).run();
}

uint64_t complete_rows(const Shape &shape, const Segment &segment) {
    if (!segment.page) return 0;
    if (segment.complete) return segment.rows;
    uint64_t n = 0;
    for (uint64_t r = 0; r < segment.rows; r++) n += shape.row_full(segment.validity(r));
    return n;
}

}  // namespace routecap
