#include "rows/row_store.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "routecap.h"

namespace routecap {

// ---- Memory ---------------------------------------------------------------------------------

void RowStore::give_back(uint32_t &charge) {
    if (charge == 0) return;
    pool_->unreserve(std::exchange(charge, 0) * PagePool::page_bytes(*shape_, shape_->page_rows));
}

// Pays for a page and makes it. Null if the budget has no room or the system no memory.
PageRef RowStore::pay(uint32_t *charge) {
    // Merged rows may be wider than the pool's own.
    const uint64_t bytes = PagePool::page_bytes(*shape_, shape_->page_rows);
    if (charge == nullptr && !pool_->reserve(bytes)) return PageRef();
    if (charge != nullptr && *charge == 0) pool_->reserve_anyway(bytes);
    if (charge != nullptr && *charge > 0) --*charge;
    return pool_->make(*shape_, shape_->page_rows);
}

// For one entry more. False without memory.
bool RowStore::make_room() noexcept try {
    if (entries_.size() == entries_.capacity()) entries_.reserve(2 * entries_.size() + 2);
    return true;
} catch (const std::bad_alloc &) {
    return false;
}

// There must be room.
PageEntry &RowStore::add_entry(uint64_t index, PageRef page) {
    const uint64_t origin = index * shape_->page_rows;
    return *entries_.insert(at_or_after(index), {.shape = shape_,
                                                 .index = index,
                                                 .origin = origin,
                                                 .first = origin,
                                                 .end = origin,
                                                 .page = std::move(page)});
}

RowStore::Entries::iterator RowStore::at_or_after(uint64_t index) {
    if (!entries_.empty() && entries_.back().index <= index)
        return entries_.back().index == index ? entries_.end() - 1 : entries_.end();
    return std::lower_bound(entries_.begin(), entries_.end(), index,
                            [](const PageEntry &e, uint64_t i) { return e.index < i; });
}

// Those that may have rows of [first, end).
std::span<PageEntry> RowStore::entries(uint64_t first, uint64_t end) {
    const auto begin = at_or_after(first / shape_->page_rows);
    auto last = begin;
    while (last != entries_.end() && last->first < end) ++last;
    return {begin, last};
}

// ---- Filing -------------------------------------------------------------------------------------

void RowStore::prefetch_row(uint64_t position) const {
    if (filed_page_ == nullptr) return;
    const auto *rows = reinterpret_cast<const uint8_t *>(filed_page_) + Page::kHeader;
    const uint64_t row = position % shape_->page_rows;
    __builtin_prefetch(filed_entry_, 1);
    __builtin_prefetch(&filed_entry_->incomplete, 1);
    __builtin_prefetch(filed_page_);
    for (uint32_t b = 0; b < shape_->stride && b < 1024; b += 64)
        __builtin_prefetch(rows + row * shape_->stride + b, 1);
    __builtin_prefetch(rows + size_t{shape_->page_rows} * shape_->stride + row * sizeof(uint64_t),
                       1);
}

void RowStore::file(uint64_t position, const uint8_t *source, uint64_t rows, const Filing &filing,
                    RowOutcomes &filed) {
    const uint64_t page_rows = shape_->page_rows;
    for (uint64_t done = 0; done < rows;) {
        const uint64_t from = position + done, index = from / page_rows;
        const uint64_t n = std::min(rows - done, (index + 1) * page_rows - from);
        PageRef replaced;  // freed without the mutex
        bool filed_all = false;
        {
            const Lock lock(mutex);
            filed_all = file_in_page(index, from, source + done * shape_->stride, n, filing,
                                     replaced, filed);
        }
        if (!filed_all) {
            filed.refused += n;
            note_missing(from, from + n, ROUTECAP_MISSING_REFUSED);
        }
        done += n;
    }
}

// False, and nothing has changed, without memory.
bool RowStore::file_in_page(uint64_t index, uint64_t position, const uint8_t *source, uint64_t rows,
                            const Filing &filing, PageRef &replaced, RowOutcomes &filed) {
    const auto there = at_or_after(index);
    PageEntry *entry = there != entries_.end() && there->index == index ? &*there : nullptr;
    if (entry == nullptr) {
        PageRef page = make_room() ? pay(filing.charge) : PageRef();
        if (!page) return false;
        entry = &add_entry(index, std::move(page));
        entry->own = true;
    } else if (entry->needs_copy(position, source, rows, filing)) {
        PageRef page = pay(filing.charge);
        if (!page) return false;
        PageEntry copied = entry->copy(std::move(page));
        replaced = std::move(entry->page);
        *entry = std::move(copied);
    }
    entry->file(position, source, rows, filing, filed);
    filed_entry_ = entry;
    filed_page_ = entry->page.get();
    return true;
}

// ---- Drafts ---------------------------------------------------------------------------------

bool RowStore::file_draft(Ticket step, uint64_t first_index, std::vector<uint64_t> positions,
                          uint64_t late, uint64_t covered, const uint8_t *source, Tag tag,
                          Phase phase, uint32_t charge) {
    const auto rows = static_cast<uint32_t>(positions.size());
    const bool kept = std::any_of(positions.begin(), positions.end(),
                                  [&](uint64_t p) { return p < std::min(late, kPast); });
    PageRef page = kept ? pool_->make(*shape_, rows) : PageRef();
    const bool refused = kept && !page;
    if (page) {
        page->set_tags(0, rows, tag);
        std::memcpy(page->row(0), source, covered * shape_->stride);
        for (uint64_t r = covered; r < rows; r++)
            shape_->make_missing(page->row(r), ROUTECAP_MISSING_ABSENT);
    }
    if (!kept) pool_->unreserve(PagePool::page_bytes(*shape_, rows));
    if (!page) give_back(charge);
    try {
        drafts_.push_back({step, first_index, std::move(page), std::move(positions), late,
                           UINT64_MAX, charge, phase, refused ? ROUTECAP_MISSING_REFUSED : 0});
        return !refused;
    } catch (const std::bad_alloc &) {
        give_back(charge);
        return false;
    }
}

void RowStore::miss_draft(const MissedDraft &m) noexcept try {
    std::vector<uint64_t> positions(m.rows, m.position);
    for (uint64_t r = 0; r < m.rows && m.bounds_end == 0; r++) positions[r] += r;
    drafts_.push_back({m.step, m.first_index, PageRef(), std::move(positions), UINT64_MAX,
                       UINT64_MAX, 0, Phase::none, m.reason, m.bounds_end});
} catch (const std::bad_alloc &) {}  // nobody knows why they are missing

RowOutcomes RowStore::settle(Ticket step, std::span<const uint32_t> kept, uint64_t keep_first,
                             LoadCounter *load) {
    RowOutcomes filed;
    for (Draft &draft : drafts_) {
        if (draft.step != step) continue;
        for (uint64_t r = 0; r < draft.positions.size(); r++) {
            const uint64_t position = draft.positions[r], index = draft.first_index + r;
            if (position == kDropped) continue;
            const bool keep = kept.empty() ? index < keep_first
                                           : std::binary_search(kept.begin(), kept.end(), index);
            if (draft.missing != 0) {
                if (!keep || position >= std::min(draft.cut, kPast)) continue;
                const uint64_t end = std::max(position + 1, draft.bounds_end);
                note_missing(position, end, draft.missing);
                progress.filing_places(end);
            } else if (!keep) {
                filed.rejected++;
            } else if (position >= std::min(draft.late, kPast)) {
                filed.late++;
                // What cuts it comes after this accept: until then it counts for the length.
                if (position < std::min(draft.cut, kPast)) progress.filing_places(position + 1);
            } else {
                file_rows(position, draft.page->row(r), 1, draft.page->tag(r), draft.charge, filed,
                          load, draft.phase);
                progress.filing_places(position + 1);
            }
        }
        give_back(draft.charge);
    }
    std::erase_if(drafts_, [step](const Draft &draft) { return draft.step == step; });
    return filed;
}

RowOutcomes RowStore::drop_drafts(uint64_t end) {
    RowOutcomes filed;
    for (Draft &draft : drafts_) {
        for (uint64_t position : draft.positions) {
            if (position == kDropped || draft.missing != 0) continue;
            const bool late = position != kPast && position >= std::min(end, draft.late);
            (late ? filed.late : filed.rejected)++;
        }
        give_back(draft.charge);
    }
    drafts_.clear();
    return filed;
}

// ---- Cutting --------------------------------------------------------------------------------

void RowStore::drop(uint64_t end) {
    const uint64_t end_index = end / shape_->page_rows + (end % shape_->page_rows != 0);
    for (;;) {
        PageRef gone;  // freed without the mutex
        const Lock lock(mutex);
        if (entries_.empty()) return;
        PageEntry &last = entries_.back();
        if (last.index < end_index) {  // a page that is cut in two stays, even without a row
            last.narrow(last.first, end);
            return;
        }
        gone = std::move(last.page);
        entries_.pop_back();
    }
}

void RowStore::truncate(uint64_t end) {
    drop(end);
    for (Draft &draft : drafts_) {
        draft.cut = std::min(draft.cut, end);
        draft.late = std::min(draft.late, end);
        draft.bounds_end = std::min(draft.bounds_end, end);
        if (std::any_of(draft.positions.begin(), draft.positions.end(),
                        [&](uint64_t p) { return p < std::min(draft.late, kPast); }))
            continue;
        draft.page = PageRef();
        give_back(draft.charge);
    }
    progress.filing_truncates(end);
    const Lock lock(mutex);
    missing_.cut(end);
    attached_.cut(end);
}

void RowStore::clear() {
    Entries gone;
    MissingRows missing, attached;
    {
        const Lock lock(mutex);
        std::swap(gone, entries_);
        std::swap(missing, missing_);
        std::swap(attached, attached_);
    }
    for (Draft &draft : drafts_) give_back(draft.charge);
    drafts_ = {};
}

void RowStore::note_missing(uint64_t first, uint64_t end, int32_t reason) noexcept try {
    const Lock lock(mutex);
    missing_.add(first, end, reason);
} catch (const std::bad_alloc &) {}

// ---- Rows of others -------------------------------------------------------------------------

void RowStore::fork(RowStore &parent, uint64_t end) {
    Entries shared;
    MissingRows missing, attached;
    try {
        const Lock lock(parent.mutex);
        missing = parent.missing_.part(0, end);
        attached = parent.attached_.part(0, end);
        shared.reserve(parent.entries_.size());
        for (PageEntry &entry : parent.entries_) {
            const uint64_t entry_end = std::min(entry.end, end);
            if (entry.first >= entry_end) continue;
            entry.note_lent(entry_end);
            shared.push_back({.shape = shape_,
                              .index = entry.index,
                              .origin = entry.origin,
                              .first = entry.first,
                              .end = entry.end,
                              .page = entry.page,
                              .incomplete = entry.incomplete});
            shared.back().narrow(entry.first, entry_end);
        }
    } catch (const std::bad_alloc &) {}  // its rows are missing
    const Lock lock(mutex);
    entries_.swap(shared);
    std::swap(missing_, missing);
    std::swap(attached_, attached);
}

RowOutcomes RowStore::attach(std::span<const Segment> segments, uint64_t end) {
    RowOutcomes filed;
    for (const Segment &segment : segments)
        if (segment.page) filed += attach_segment(segment, std::min(segment.end(), end));
    try {
        MissingRows missing;
        for (const Segment &segment : segments)
            if (!segment.page)
                missing.add(segment.first, std::min(segment.end(), end), segment.reason);
        if (!segments.empty()) filed += attach_missing(missing, segments.front().first, end);
    } catch (const std::bad_alloc &) {
        filed.refused += end - segments.front().first;
    }
    return filed;
}

// Rows of a segment before `end`. Where the request has no page yet the segment's is shared.
RowOutcomes RowStore::attach_segment(const Segment &segment, uint64_t end) {
    RowOutcomes filed;
    const uint64_t page_rows = shape_->page_rows;
    for (uint64_t position = segment.first; position < end;) {
        const uint64_t index = position / page_rows;
        const uint64_t n = std::min(end, (index + 1) * page_rows) - position;
        bool shared = segment.page_row <= segment.first;
        {
            const Lock lock(mutex);
            const auto there = at_or_after(index);
            shared &= there == entries_.end() || there->index != index;
            if (shared && !make_room()) {
                filed.refused += end - position;
                break;
            }
            if (shared) {
                PageEntry &entry = add_entry(index, segment.page);
                entry.origin = segment.first - segment.page_row;
                entry.first = position, entry.end = position + n;
                if (!segment.complete)
                    entry.incomplete = entry.count_incomplete(entry.first, entry.end);
            }
        }
        for (uint64_t p = position; !shared && p < position + n; p++) {
            const uint64_t row = p - segment.first;
            file(p, segment.row(row), 1, {.tag = segment.tag(row), .compare = compare_}, filed);
        }
        position += n;
    }
    return filed;
}

RowOutcomes RowStore::attach_missing(const MissingRows &missing, uint64_t first, uint64_t end) {
    RowOutcomes filed;
    MissingRows known;
    {
        const Lock lock(mutex);
        attached_.add(missing);
        missing_.add(missing);
        known = attached_.part(first, end);
    }
    if (known.empty()) return filed;
    std::vector<uint8_t> row(shape_->stride);
    // The next row at or after a position of which something is there and something is missing.
    const auto next = [&](uint64_t from, uint64_t to) {
        const Lock lock(mutex);
        for (const PageEntry &entry : entries(from, to)) {
            if (entry.complete()) continue;
            for (uint64_t p = std::max(from, entry.first); p < std::min(to, entry.end); p++)
                if (!shape_->row_full(entry.at(p)) && shape_->row_reason(entry.at(p)) == 0)
                    return p;
        }
        return to;
    };
    known.for_each(first, end, [&](uint64_t from, uint64_t to, int32_t reason) {
        shape_->make_missing(row.data(), reason);
        for (uint64_t p = next(from, to); p < to; p = next(p + 1, to))
            file(p, row.data(), 1, {.tag = Tag::none, .compare = compare_}, filed);
    });
    return filed;
}

// ---- Reading --------------------------------------------------------------------------------

uint64_t RowStore::last_before(uint64_t end) {
    auto entry = at_or_after((end + shape_->page_rows - 1) / shape_->page_rows);
    while (entry != entries_.begin()) {
        --entry;
        if (entry->first < std::min(entry->end, end)) return std::min(entry->end, end);
    }
    return 0;
}

// The rows of [first, end) that are there.
std::vector<Segment> RowStore::lend(uint64_t first, uint64_t end) {
    const std::span<PageEntry> all = entries(first, end);
    std::vector<Segment> segments;
    segments.reserve(all.size());
    for (PageEntry &entry : all) {
        const uint64_t from = std::max(first, entry.first), to = std::min(end, entry.end);
        if (from >= to) continue;
        entry.note_lent(to);
        segments.push_back(entry.segment(entry.page, from, to));
    }
    return segments;
}

std::vector<Segment> RowStore::share(uint64_t first, uint64_t end) {
    return with_missing(*shape_, lend(first, end), missing_.part(first, end), first, end);
}

bool RowStore::take(uint64_t first, uint64_t end, std::vector<Segment> &segments) {
    segments = share(first, end);
    MissingRows known;
    for (const Segment &segment : segments) {
        if (segment.complete) known.add(segment.first, segment.end(), ROUTECAP_MISSING_TAKEN);
        for (uint64_t r = 0; segment.page && !segment.complete && r < segment.rows; r++) {
            const int32_t reason = shape_->row_reason(segment.row(r));
            known.add(segment.first + r, segment.first + r + 1,
                      reason == 0 ? ROUTECAP_MISSING_TAKEN : reason);
        }
    }
    known.add(missing_);
    const std::span<PageEntry> all = entries(first, end);
    if (!all.empty() && all.front().first < first && all.front().end > end) {
        // Rows stay on both sides, in another page.
        PageRef page = pay(nullptr);
        if (!page) return false;
        all.front() = all.front().copy(std::move(page));
        all.front().clear(first, end);
    } else {
        // A page without a row stays, for a step in flight may need it.
        const auto leaves = [&](const PageEntry &entry) {
            return entry.first < entry.end && entry.first >= first && entry.end <= end;
        };
        for (PageEntry &entry : all) {
            if (leaves(entry)) continue;
            if (entry.first < first)
                entry.narrow(entry.first, first);
            else
                entry.narrow(end, entry.end);
        }
        std::erase_if(entries_, leaves);
    }
    missing_ = std::move(known);
    return true;
}

}  // namespace routecap
