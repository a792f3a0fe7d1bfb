#include "model.h"

#include <algorithm>
#include <set>

namespace model {
namespace {

bool same_set(const std::vector<int64_t> &a, const std::vector<int64_t> &b) {
    return std::set<int64_t>(a.begin(), a.end()) == std::set<int64_t>(b.begin(), b.end());
}

}  // namespace

bool Row::any() const {
    return std::any_of(cells.begin(), cells.end(), [](const rig::Cell &c) { return c.has_value(); });
}

int32_t Routing::status() const {
    uint64_t complete = 0;
    bool any = false;
    for (const auto &[position, row] : content) {
        any |= row.any();
        complete += std::all_of(row.cells.begin(), row.cells.end(), [](const rig::Cell &c) { return c.has_value(); });
    }
    return complete == rows ? ROUTECAP_OK : any ? ROUTECAP_INCOMPLETE : ROUTECAP_NOT_CAPTURED;
}

uint64_t Capturer::length(const Request &r) const {
    if (!r.device) return r.length;
    uint64_t end = r.placed;
    for (const Entry &e : log_) {
        for (const Span &s : e.spans)
            if (s.request.get() == &r && s.device && !s.speculative) end = std::max(end, s.bound_end);
        if (e.request.get() == &r) end = std::min(std::max(end, e.raises_to), e.cuts_to);
    }
    return std::max(end, r.length);
}

uint64_t Capturer::landed_end(const RequestPtr &r, uint64_t first, bool take) const {
    uint64_t in_flight = UINT64_MAX;
    const auto not_landed = [&](uint64_t from, uint64_t to) {
        if (std::max(from, first) < to) in_flight = std::min(in_flight, std::max(from, first));
    };
    for (const Entry &e : log_) {
        for (const Span &s : e.spans)
            if (s.request == r && !s.speculative) not_landed(s.bound_first, std::min(s.bound_end, s.cut));
        if (e.request == r) not_landed(e.cuts_to, UINT64_MAX);
    }
    if (take && r->lending > 0) not_landed(0, r->lending_end);
    if (r->pending > 0) not_landed(r->changing_first, r->changing_end);
    return in_flight;
}

bool Capturer::ready(const RequestPtr &r, uint64_t first, uint64_t end, bool take) const { return landed_end(r, first, take) >= end; }

uint64_t Capturer::steps_in_flight() const {
    return static_cast<uint64_t>(std::count_if(log_.begin(), log_.end(), [](const Entry &e) { return !e.spans.empty(); }));
}

uint64_t Capturer::issue(std::vector<Span> spans, uint64_t tag, bool lost, uint64_t skipped, uint64_t dropped, uint64_t conflicts) {
    const uint64_t ticket = ++tickets_;
    counters.issued++;
    counters.skipped += skipped;
    if (lost) counters.lost_steps++;
    for (Span &s : spans) {
        Request &r = *s.request;
        const uint64_t n = s.positions.size();
        counters.rows_issued += n;
        if (s.speculative || s.device) r.flagged_end = std::max(r.flagged_end, s.bound_end);
        if (s.speculative) {
            s.draft_index = 0;
            for (const Draft &d : r.drafts)
                if (d.step == ticket) s.draft_index = d.first_index + d.rows;
            r.drafts.push_back({ticket, s.draft_index, n, s.bound_first, s.bound_end, UINT64_MAX, s.device, !lost});
        } else if (!s.device || lost) {
            r.length = std::max(r.length, s.bound_end);
        }
        if (lost) {
            counters.lost += n;
        } else {
            r.device |= s.device;
            counters.in_flight += n;
        }
    }
    if (!lost && !spans.empty()) {
        Entry e;
        e.spans = std::move(spans);
        e.step = ticket;
        e.tag = tag;
        e.dropped = dropped;
        e.conflicts = conflicts;
        log_.push_back(std::move(e));
    }
    return ticket;
}

// Appends an operation; rows [first, end) are not ready until it was applied.
void Capturer::operate(const RequestPtr &r, uint64_t first, uint64_t end, Entry entry) {
    if (first < end) {
        r->changing_first = r->pending == 0 ? first : std::min(r->changing_first, first);
        r->changing_end = r->pending == 0 ? end : std::max(r->changing_end, end);
        r->pending++;
        entry.apply = [r, apply = std::move(entry.apply)] {
            apply();
            r->pending--;
        };
    }
    entry.request = r;
    log_.push_back(std::move(entry));
}

int32_t Capturer::accept(const RequestPtr &r, uint64_t step, const std::vector<uint32_t> *rows, uint64_t count) {
    uint64_t drafts = 0;
    bool filed = false;
    for (const Draft &d : r->drafts)
        if (d.step == step) drafts += d.rows, filed |= d.filed;
    if (drafts == 0) return ROUTECAP_ERR_UNKNOWN_STEP;
    if (count > drafts) return ROUTECAP_ERR_OUT_OF_RANGE;
    std::set<uint32_t> kept;
    for (uint64_t i = 0; i < count; i++) kept.insert(rows != nullptr ? (*rows)[i] : static_cast<uint32_t>(i));
    if (!kept.empty() && *kept.rbegin() >= drafts) return ROUTECAP_ERR_OUT_OF_RANGE;

    uint64_t first = UINT64_MAX, end = 0, raises_to = 0;
    for (const Draft &d : r->drafts) {
        if (d.step != step) continue;
        uint64_t e = 0;
        for (uint32_t i : kept)
            if (i >= d.first_index && i < d.first_index + d.rows) e = std::max(e, d.end_of(i));
        if (e == 0) continue;
        if (!d.device || !d.filed)
            r->length = std::max(r->length, e);
        else
            raises_to = std::max(raises_to, e);
        if (d.filed) first = std::min(first, d.position), end = std::max(end, e);
    }
    std::erase_if(r->drafts, [&](const Draft &d) { return d.step == step; });
    if (!filed) return ROUTECAP_OK;
    Entry entry;
    entry.raises_to = raises_to;
    entry.apply = [this, r, step, kept] {
        for (LandedDraft &d : r->landed_drafts) {
            if (d.step != step) continue;
            for (size_t i = 0; i < d.rows.size(); i++) {
                if (d.positions[i] == kGone) continue;
                counters.provisional--;
                if (kept.count(static_cast<uint32_t>(d.first_index + i)) == 0 || d.cut[i]) {
                    counters.rejected++;
                    continue;
                }
                file(*r, d.positions[i], d.rows[i], r->policy);
                r->placed = std::max(r->placed, d.positions[i] + 1);
            }
        }
        std::erase_if(r->landed_drafts, [&](const LandedDraft &d) { return d.step == step; });
    };
    operate(r, first, end, std::move(entry));
    return ROUTECAP_OK;
}

void Capturer::cut_in_flight(const RequestPtr &r, uint64_t end) {
    for (Entry &e : log_)
        for (Span &s : e.spans)
            if (s.request == r) s.cut = std::min(s.cut, r->lending > 0 && e.step <= r->lending_step ? std::max(end, r->lending_end) : end);
}

void Capturer::truncate(const RequestPtr &r, uint64_t rows) {
    if (rows >= std::max(length(*r), r->flagged_end)) return;
    r->flagged_end = rows;
    cut_in_flight(r, rows);
    for (Draft &d : r->drafts) d.cut = std::min(d.cut, rows);
    r->length = std::min(r->length, rows);
    r->changing_end = std::min(r->changing_end, rows);
    Entry entry;
    entry.cuts_to = rows;
    entry.apply = [r, rows] {
        r->content.erase(r->content.lower_bound(rows), r->content.end());
        r->placed = std::min(r->placed, rows);
        for (LandedDraft &d : r->landed_drafts)
            for (size_t i = 0; i < d.positions.size(); i++)
                if (d.positions[i] != kGone && d.positions[i] >= rows) d.cut[i] = true;
    };
    operate(r, 0, 0, std::move(entry));
}

RequestPtr Capturer::fork(const RequestPtr &r, uint64_t rows) {
    auto child = std::make_shared<Request>();
    child->policy = r->policy;
    child->length = rows;
    r->lending_end = r->lending > 0 ? std::max(r->lending_end, rows) : rows;
    r->lending++;
    for (const Entry &e : log_)
        for (const Span &s : e.spans)
            if (s.request == r) r->lending_step = e.step;
    Entry entry;
    entry.apply = [r, child, rows] {
        child->content = Rows(r->content.begin(), r->content.lower_bound(rows));
        r->lending--;
    };
    operate(child, 0, rows, std::move(entry));
    return child;
}

void Capturer::attach(const RequestPtr &r, const std::shared_ptr<Routing> &routing, uint64_t rows) {
    const uint64_t first = routing->ready ? routing->first : 0;
    if (rows <= first) return;
    r->length = std::max(r->length, rows);
    Entry entry;
    entry.apply = [r, routing, rows] {
        for (const auto &[position, row] : routing->content) {
            if (position >= rows) break;
            Row &mine = r->content[position];
            if (!mine.any()) {
                mine = row;
                continue;
            }
            for (size_t l = 0; l < mine.cells.size(); l++)
                if (!mine.cells[l]) mine.cells[l] = row.cells[l];
        }
    };
    operate(r, first, rows, std::move(entry));
}

std::shared_ptr<Routing> Capturer::finish(const RequestPtr &r, uint64_t rows) {
    auto routing = std::make_shared<Routing>();
    routing->ready = false;
    routing->all = rows == ROUTECAP_ALL;
    routing->rows = routing->all ? length(*r) : rows;
    if (!routing->all) cut_in_flight(r, rows);
    Entry entry;
    entry.apply = [this, r, routing, host_length = r->length] {
        if (routing->all) routing->rows = std::max(host_length, r->placed);
        for (const LandedDraft &d : r->landed_drafts)
            for (uint64_t p : d.positions)
                if (p != kGone) counters.provisional--, counters.rejected++;
        routing->content = Rows(r->content.begin(), r->content.lower_bound(routing->rows));
        routing->ready = true;
    };
    operate(r, 0, 0, std::move(entry));
    return routing;
}

void Capturer::close(const RequestPtr &r) {
    cut_in_flight(r, 0);
    Entry entry;
    entry.apply = [this, r] {
        for (const LandedDraft &d : r->landed_drafts)
            for (uint64_t p : d.positions)
                if (p != kGone) counters.provisional--, counters.rejected++;
    };
    operate(r, 0, 0, std::move(entry));
}

void Capturer::file(Request &r, uint64_t position, const Row &row, int32_t policy) {
    if (!row.any()) {
        counters.missing++;
        return;
    }
    counters.delivered++;
    Row &mine = r.content[position];
    if (!mine.any()) {
        mine = row;
        return;
    }
    bool overlap = false, mismatch = false;
    for (size_t l = 0; l < row.cells.size(); l++) {
        if (!row.cells[l] || !mine.cells[l]) continue;
        overlap = true;
        mismatch |= !same_set(*row.cells[l], *mine.cells[l]);
    }
    counters.overlapped += overlap;
    counters.mismatched += mismatch;
    if (policy == ROUTECAP_POLICY_REPLACE) {
        mine = row;
        return;
    }
    for (size_t l = 0; l < row.cells.size(); l++)
        if (!mine.cells[l]) mine.cells[l] = row.cells[l];
}

void Capturer::file_step(Entry &e) {
    counters.dropped += e.dropped;
    counters.conflicting += e.conflicts;
    for (Span &s : e.spans) {
        counters.in_flight -= s.positions.size();
        LandedDraft draft{e.step, s.draft_index, e.tag, {}, {}, {}};
        for (size_t i = 0; i < s.positions.size(); i++) {
            uint64_t position = s.positions[i];
            if (s.device && (position < s.bound_first || position >= s.bound_end)) {
                counters.unplaced++;
                position = kGone;
            } else if (position >= s.cut) {
                counters.late++;
                position = kGone;
            }
            if (s.speculative) {
                draft.positions.push_back(position);
                draft.rows.push_back(s.rows[i]);
                draft.cut.push_back(false);
                counters.provisional += position != kGone;
            } else if (position != kGone) {
                file(*s.request, position, s.rows[i], s.request->policy);
                if (s.device) s.request->placed = std::max(s.request->placed, position + 1);
            }
        }
        if (s.speculative) s.request->landed_drafts.push_back(std::move(draft));
    }
}

void Capturer::land() {
    for (Entry &e : log_) {
        if (e.apply)
            e.apply();
        else
            file_step(e);
    }
    log_.clear();
}

Routing Capturer::read(const Request &r, uint64_t first, uint64_t rows) const {
    Routing routing;
    routing.first = first;
    routing.rows = rows;
    routing.content = Rows(r.content.lower_bound(first), r.content.lower_bound(first + rows));
    return routing;
}

void Capturer::take(Request &r, uint64_t first, uint64_t rows) {
    r.content.erase(r.content.lower_bound(first), r.content.lower_bound(first + rows));
}

bool Capturer::merge(const std::vector<const Routing *> &routings, Routing &merged) const {
    uint64_t first = UINT64_MAX, end = 0;
    for (const Routing *r : routings) {
        if (r->rows > 0) first = std::min(first, r->first), end = std::max(end, r->first + r->rows);
        for (const auto &[position, row] : r->content) {
            Row &mine = merged.content[position];
            if (!mine.any()) {
                mine = row;
                continue;
            }
            for (size_t l = 0; l < row.cells.size(); l++) {
                if (mine.cells[l] && row.cells[l] && !same_set(*mine.cells[l], *row.cells[l])) return false;
                if (!mine.cells[l]) mine.cells[l] = row.cells[l];
            }
        }
    }
    if (first > end) first = end = routings.front()->first;
    merged.first = first;
    merged.rows = end - first;
    return true;
}

rig::Rows Capturer::rows_of(const Routing &routing) const {
    rig::Rows rows = rig::missing_rows(shape_, routing.rows);
    for (const auto &[position, row] : routing.content)
        if (row.any()) rows[position - routing.first] = row.cells;
    return rows;
}

}  // namespace model
