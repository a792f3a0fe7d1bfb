#include "rows/row_store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "routecap.h"

namespace routecap {

// ---- Memory ---------------------------------------------------------------------------------

void RowStore::give_back(Charge &charge) {
    pool_->unreserve(charge.bytes(PagePool::page_bytes(*shape_, shape_->page_rows),
                                  PagePool::tag_bytes(shape_->page_rows)));
    charge = {};
}

// Pays for what rows need and allocates it. False, and nothing has changed, if the budget has no
// room or the system no memory.
bool RowStore::pay(Needs needs, const Filing &filing, Means &means) {
    const auto reserve = [&](uint32_t Charge::*kind, uint64_t bytes) {
        if (filing.charge == nullptr) return pool_->reserve(bytes);
        if (filing.charge->*kind > 0)
            (filing.charge->*kind)--;
        else
            pool_->reserve_anyway(bytes);
        return true;
    };
    const uint64_t tag_bytes = PagePool::tag_bytes(shape_->page_rows);
    // Merged rows may be wider than the pool's own.
    if (needs.page && !reserve(&Charge::pages, PagePool::page_bytes(*shape_, shape_->page_rows)))
        return false;
    if (needs.page && !(means.page = pool_->make(*shape_, shape_->page_rows))) return false;
    if (!needs.tags) return true;
    if (!reserve(&Charge::tags, tag_bytes)) return false;
    means.tags.reset(new (std::nothrow) uint64_t[shape_->page_rows]);
    if (means.tags == nullptr) pool_->unreserve(tag_bytes);
    return means.tags != nullptr;
}

// For one entry more. False without memory.
bool RowStore::make_room() noexcept try {
    if (entries_.size() == entries_.capacity()) entries_.reserve(2 * entries_.size() + 2);
    return true;
} catch (const std::bad_alloc &) {
    return false;
}

// There must be room.
RowStore::Entry &RowStore::add_entry(uint64_t index, PageRef page) {
    const uint64_t origin = index * shape_->page_rows;
    return *entries_.insert(at_or_after(index), {.index = index,
                                                 .origin = origin,
                                                 .first = origin,
                                                 .end = origin,
                                                 .page = std::move(page)});
}

// ---- Filing -------------------------------------------------------------------------------------

void RowStore::prefetch_row(uint64_t position) const {
    const Entry *entry = last_entry_.load(std::memory_order_relaxed);
    const auto *page =
        reinterpret_cast<const uint8_t *>(last_page_.load(std::memory_order_relaxed));
    if (page == nullptr) return;
    const size_t row = position % shape_->page_rows;
    const uint8_t *ids = page + Page::kHeader + row * shape_->ids_bytes;
    __builtin_prefetch(entry, 1);
    __builtin_prefetch(&entry->full_rows, 1);
    __builtin_prefetch(page);
    for (uint32_t b = 0; b < shape_->ids_bytes && b < 1024; b += 64) __builtin_prefetch(ids + b, 1);
    __builtin_prefetch(page + Page::kHeader + size_t{shape_->page_rows} * shape_->ids_bytes +
                           row * shape_->validity_bytes,
                       1);
}

void RowStore::file_rows(uint64_t position, const RowSource &source, uint64_t rows, uint64_t tag,
                         Charge &charge, RowOutcomes &filed, Counting counting) {
    const Filing filing{tag, policy_, counting, &charge};
    if (!file_next(position, source, rows, filing, filed))
        filed += file(position, source, rows, filing);
}

// Files rows right behind the last ones, where their page has room and the same tag and nobody else
// sees them: nearly all rows of decode steps. False, and nothing has changed, otherwise.
bool RowStore::file_next(uint64_t position, const RowSource &source, uint64_t rows,
                         const Filing &filing, RowOutcomes &filed) {
    const uint64_t end = position + rows;
    const Lock lock(mutex);
    if (entries_.empty()) return false;
    Entry &entry = entries_.back();
    if (position != entry.end || position >> shape_->page_shift != entry.index ||
        end > (entry.index + 1) << shape_->page_shift || !writable(entry, position, end))
        return false;
    const Page &page = *entry.page.get();
    if (page.tags.load(std::memory_order_relaxed) != nullptr ||
        page.tag.load(std::memory_order_relaxed) != filing.tag)
        return false;
    put(entry, position, source, rows);
    entry.end = end;
    note_new(source, rows, filing, filed);
    return true;
}

// Rows where nothing was.
void RowStore::note_new(const RowSource &source, uint64_t rows, const Filing &filing,
                        RowOutcomes &filed) const {
    if (filing.counting.counts())
        filing.counting.cells->add(source, rows, filing.tag, filing.counting.phase);
    for (uint64_t r = 0; r < rows; r++)
        (shape_->row_empty(source.validity_of(r)) ? filed.missing : filed.delivered)++;
}

RowOutcomes RowStore::file(uint64_t position, RowSource source, uint64_t rows,
                           const Filing &filing) {
    RowOutcomes filed;
    const uint64_t page_rows = shape_->page_rows;
    while (rows > 0) {
        const uint64_t index = position / page_rows;
        const uint64_t n = std::min(rows, (index + 1) * page_rows - position);
        Means means;  // what is left of it is freed without the mutex
        bool done = false;
        {
            const Lock lock(mutex);
            done = file_in_page(index, position, source, n, filing, means, filed);
        }
        if (means.tags != nullptr) pool_->unreserve(PagePool::tag_bytes(page_rows));
        if (!done) {
            filed.refused += n;
            note_missing(position, position + n, ROUTECAP_MISSING_REFUSED);
        }
        position += n, rows -= n, source = source.from(n);
    }
    return filed;
}

// What filing rows into a page that is there needs.
RowStore::Needs RowStore::needs(Entry &entry, uint64_t position, RowSource source, uint64_t rows,
                                const Filing &filing) {
    const uint64_t tag = filing.tag, end = position + rows;
    const uint64_t inside = std::clamp(entry.first, position, end),
                   after = std::clamp(entry.end, inside, end);
    const bool empty = entry.first == entry.end;
    bool copies = false, whole = false;
    if (after < end) copies |= !writable(entry, empty ? after : entry.end, end), whole = true;
    if (position < inside)
        copies |= !writable(entry, position, empty ? inside : entry.first), whole = true;
    if (inside < after && (!writable(entry, inside, after) || needs_tags(entry, tag)))
        for (uint64_t p = inside; p < after; p++) {
            const Meeting m = meet(entry, p, source.from(p - position), filing);
            whole |= m.retags;
            copies |= m.writes && !writable(entry, p, p + 1);
        }
    const bool tagged = entry.page->tags.load(std::memory_order_relaxed) != nullptr;
    return {.page = copies,
            .tags = copies ? tagged || (whole && entry.page->tag_of(0) != tag && !empty)
                           : whole && needs_tags(entry, tag)};
}

// False, and nothing has changed, without memory.
bool RowStore::file_in_page(uint64_t index, uint64_t position, RowSource source, uint64_t rows,
                            const Filing &filing, Means &means, RowOutcomes &filed) {
    const auto there = at_or_after(index);
    Entry *entry = there != entries_.end() && there->index == index ? &*there : nullptr;
    if (entry == nullptr) {
        if (!pay({.page = true}, filing, means) || !make_room()) return false;
        entry = &add_entry(index, std::move(means.page));
        entry->own = true;
        entry->first = entry->end = position;
    } else {
        const Needs needed = needs(*entry, position, source, rows, filing);
        if (!pay(needed, filing, means)) return false;
        if (needed.page) make_writable(*entry, means);
    }
    // Rows outside the visible ones are new, rows inside meet others.
    const uint64_t end = position + rows;
    const uint64_t inside = std::clamp(entry->first, position, end),
                   after = std::clamp(entry->end, inside, end);
    const auto add_new = [&](uint64_t from, uint64_t to) {
        if (from == to) return;
        const RowSource part = source.from(from - position);
        append(*entry, from, part, to - from, filing.tag, means);
        note_new(part, to - from, filing, filed);
    };
    const uint64_t visible_first = entry->first, visible_end = entry->end;
    for (uint64_t p = std::max(position, visible_first); p < std::min(end, visible_end); p++)
        merge(*entry, p, source.from(p - position), filing, means, filed);
    add_new(after, end);
    add_new(position, inside);
    last_entry_.store(entry, std::memory_order_relaxed);
    last_page_.store(entry->page.get(), std::memory_order_relaxed);
    return true;
}

// Adds rows outside the visible ones. Rows between these and the visible ones become absent rows.
void RowStore::append(Entry &entry, uint64_t position, RowSource source, uint64_t rows,
                      uint64_t tag, Means &means) {
    const uint64_t end = position + rows;
    const bool empty = entry.first == entry.end;
    const uint64_t first = empty ? position : std::min(position, entry.first),
                   last = empty ? end : std::max(end, entry.end);
    if (empty) entry.first = entry.end = position;
    const uint64_t write_first = position >= entry.end ? entry.end : position,
                   write_end = position >= entry.end ? end : entry.first;
    tag_rows(entry, position, rows, tag, means.tags);
    if (write_first < position) clear_rows(entry, write_first, position);
    if (end < write_end) clear_rows(entry, end, write_end);
    put(entry, position, source, rows);
    entry.first = first, entry.end = last;
}

RowStore::Meeting RowStore::meet(const Entry &entry, uint64_t position, RowSource source,
                                 const Filing &filing) const {
    const uint8_t *ids = entry.page->ids(entry.row(position)),
                  *validity = entry.page->validity(entry.row(position));
    const bool nothing_old = shape_->row_empty(validity);
    Meeting m{.nothing_new = shape_->row_empty(source.validity)};
    if (!m.nothing_new && !nothing_old) {
        for (uint32_t b = 0; b < shape_->validity_bytes; b++)
            m.overlap |= (validity[b] & source.validity[b]) != 0;
        for (uint32_t l = 0; compare_ && m.overlap && !m.mismatch && l < shape_->layers; l++)
            m.mismatch = Shape::valid(validity, l) && Shape::valid(source.validity, l) &&
                         !shape_->same_cell(ids + size_t{l} * shape_->cell_bytes,
                                            source.ids + size_t{l} * shape_->cell_bytes);
    }
    const bool fresh = nothing_old && shape_->row_full(source.validity);
    m.whole = !m.nothing_new && (filing.policy == Policy::replace || fresh);
    m.writes = m.whole;
    for (uint32_t l = 0; !m.writes && !shape_->row_full(validity) && l < shape_->layers; l++)
        m.writes = better(l, ids, validity, source);
    const bool first =
        m.writes && nothing_old && (!m.nothing_new || shape_->row_reason(ids, validity) != 0);
    bool fills = false;
    for (uint32_t b = 0; m.writes && b < shape_->validity_bytes; b++)
        fills |= (source.validity[b] & ~validity[b]) != 0;
    m.retags = m.whole || first || (fills && filing.tag < entry.page->tag_of(entry.row(position)));
    return m;
}

// Whether the new cell of a layer goes in the old one's place. Of two that are missing the reason
// with the higher rank stands.
bool RowStore::better(uint32_t layer, const uint8_t *ids, const uint8_t *validity,
                      RowSource source) const {
    if (Shape::valid(validity, layer)) return false;
    return Shape::valid(source.validity, layer) ||
           reason_rank(shape_->reason(source.ids, layer)) > reason_rank(shape_->reason(ids, layer));
}

// Files one row at a position that has one.
void RowStore::merge(Entry &entry, uint64_t position, RowSource source, const Filing &filing,
                     Means &means, RowOutcomes &filed) {
    const Meeting m = meet(entry, position, source, filing);
    if (m.writes) {
        if (filing.counting.counts())
            filing.counting.cells->add_missing(source, entry.page->validity(entry.row(position)),
                                               filing.tag, filing.counting.phase);
        if (m.retags) tag_rows(entry, position, 1, filing.tag, means.tags);
        if (m.whole) {
            put(entry, position, source, 1);
        } else {
            const uint32_t row = entry.row(position);
            uint8_t *to = entry.page->ids(row), *to_validity = entry.page->validity(row);
            for (uint32_t l = 0; l < shape_->layers; l++) {
                if (!better(l, to, to_validity, source)) continue;
                if (Shape::valid(source.validity, l)) {
                    std::memcpy(to + size_t{l} * shape_->cell_bytes,
                                source.ids + size_t{l} * shape_->cell_bytes, shape_->cell_bytes);
                    Shape::set_valid(to_validity, l);
                } else {
                    shape_->mark(to, l, shape_->reason(source.ids, l));
                }
            }
            entry.full_rows += shape_->row_full(to_validity);
        }
    }
    (m.nothing_new ? filed.missing : filed.delivered)++;
    filed.overlapped += m.overlap;
    filed.mismatched += m.mismatch;
}

bool RowStore::file_draft(uint64_t step, uint64_t first_index, std::vector<uint64_t> positions,
                          uint64_t covered, RowSource source, uint64_t tag, Phase phase,
                          Charge charge, bool lost) {
    const auto rows = static_cast<uint32_t>(positions.size());
    const bool kept = !lost && std::any_of(positions.begin(), positions.end(),
                                           [](uint64_t p) { return p < kPast; });
    PageRef page;
    if (kept) {
        page = pool_->make(*shape_, rows);
        if (!page) {
            give_back(charge);
            return false;
        }
        page->tag.store(tag, std::memory_order_relaxed);
        for (uint64_t r = 0; r < rows; r++) {
            if (r < covered) {
                std::memcpy(page->ids(r), source.ids_of(r), shape_->ids_bytes);
                std::memcpy(page->validity(r), source.validity_of(r), shape_->validity_bytes);
            } else {
                shape_->mark_absent(page->ids(r));
            }
        }
    } else {
        pool_->unreserve(PagePool::page_bytes(*shape_, rows));
        give_back(charge);
    }
    try {
        drafts_.push_back(
            {step, first_index, std::move(page), std::move(positions), charge, phase, lost});
        return true;
    } catch (const std::bad_alloc &) {
        give_back(charge);
        return false;
    }
}

RowOutcomes RowStore::settle(uint64_t step, std::span<const uint32_t> kept, uint64_t keep_first,
                             NewCells *counted) {
    RowOutcomes filed;
    for (Draft &draft : drafts_) {
        if (draft.step != step) continue;
        for (uint64_t r = 0; r < draft.positions.size(); r++) {
            if (draft.positions[r] == kDropped) continue;
            const uint64_t index = draft.first_index + r;
            const bool keep = kept.empty() ? index < keep_first
                                           : std::binary_search(kept.begin(), kept.end(), index);
            if (!keep) {
                filed.rejected++;
            } else if (draft.positions[r] >= kPast) {
                filed.late++;
            } else if (draft.lost) {
                filed.lost++;
                note_missing(draft.positions[r], draft.positions[r] + 1, ROUTECAP_MISSING_LOST);
            } else {
                file_rows(draft.positions[r], {draft.page->ids(r), draft.page->validity(r), 0, 0},
                          1, draft.page->tag_of(r), draft.charge, filed, {counted, draft.phase});
                placed(draft.positions[r] + 1);
            }
        }
        give_back(draft.charge);
        if (counted != nullptr && draft.page) counted->hold(std::move(draft.page));
    }
    std::erase_if(drafts_, [step](const Draft &draft) { return draft.step == step; });
    publish_settled(false);
    return filed;
}

RowOutcomes RowStore::drop_drafts(uint64_t end) {
    RowOutcomes filed;
    for (Draft &draft : drafts_) {
        for (uint64_t position : draft.positions) {
            if (position == kDropped) continue;
            (position == kCut || (position >= end && position != kPast) ? filed.late
                                                                        : filed.rejected)++;
        }
        give_back(draft.charge);
    }
    drafts_.clear();
    return filed;
}

void RowStore::drop(uint64_t end) {
    const uint64_t end_index = end / shape_->page_rows + (end % shape_->page_rows != 0);
    for (bool more = true; more;) {
        std::array<PageRef, 32> gone;  // freed without the mutex
        const Lock lock(mutex);
        for (PageRef &page : gone) {
            more = !entries_.empty() && entries_.back().index >= end_index;
            if (!more) break;
            page = std::move(entries_.back().page);
            entries_.pop_back();
        }
        if (more || entries_.empty()) continue;
        Entry &last = entries_.back();  // the page that is cut in two stays, even without a row
        last.end = std::min(last.end, end);
        last.first = std::min(last.first, last.end);
    }
}

void RowStore::truncate(uint64_t end) {
    drop(end);
    for (Draft &draft : drafts_) {
        bool left = false;
        for (uint64_t &position : draft.positions) {
            // What is past was issued below every earlier cut.
            if (position >= end && position < kPast) position = kCut;
            left |= position < kPast;
        }
        if (left) continue;
        draft.page = PageRef();
        give_back(draft.charge);
    }
    cut_missing(end);
    for (auto &publication : waiting_)
        publication->end = std::clamp(end, publication->first, publication->end);
    publish_settled(false);
    if (placed_end.load(std::memory_order_relaxed) > end)
        placed_end.store(end, std::memory_order_relaxed);
}

void RowStore::clear() {
    Entries gone;
    std::shared_ptr<const MissingRows> missing;
    {
        const Lock lock(mutex);
        gone.swap(entries_);
        missing.swap(missing_);
    }
    for (Draft &draft : drafts_) give_back(draft.charge);
    drafts_ = {};
    waiting_ = {};
}

template <class Change>
void RowStore::change_missing(Change change) noexcept {
    std::shared_ptr<const MissingRows> changed;
    try {
        const auto known = known_missing();
        auto copy = known != nullptr ? std::make_shared<MissingRows>(*known)
                                     : std::make_shared<MissingRows>();
        change(*copy);
        if (!copy->empty()) changed = std::move(copy);
    } catch (const std::bad_alloc &) {
        return;
    }
    const Lock lock(mutex);
    missing_.swap(changed);  // what was known before is freed after
}

void RowStore::note_missing(uint64_t first, uint64_t end, int32_t reason) noexcept {
    if (first < end) change_missing([&](MissingRows &missing) { missing.add(first, end, reason); });
}

void RowStore::cut_missing(uint64_t end) noexcept {
    if (known_missing() != nullptr) change_missing([&](MissingRows &missing) { missing.cut(end); });
}

std::vector<Segment> RowStore::take_all(uint64_t first, uint64_t end, const MissingNote *notes) {
    MissingRows noted;
    for (const MissingNote *note = notes; note != nullptr; note = note->next)
        noted.add(std::max(note->first, first), std::min(note->end, end), note->reason);
    std::vector<Segment> segments;
    std::shared_ptr<const MissingRows> known;
    {
        const Lock lock(mutex);
        known = missing_;
        if (first != 0 || notes != nullptr || known != nullptr)
            segments = share(first, end);
        else
            take(0, end, segments);
    }
    if (noted.empty() && known == nullptr) return segments;
    return with_missing(*shape_, std::move(segments), noted, known.get(), first, end);
}

// ---- Publishing -----------------------------------------------------------------------------

void RowStore::publish(std::shared_ptr<Publication> publication) noexcept {
    if (!has_drafts(publication->first, publication->end)) return publish_now(*publication);
    try {
        waiting_.push_back(std::move(publication));
    } catch (const std::bad_alloc &) {}  // it is dropped, and counts that
}

void RowStore::publish_now(Publication &publication) noexcept {
    std::vector<Segment> rows;
    try {
        const Lock lock(mutex);
        rows = share(publication.first, publication.end);
    } catch (const std::bad_alloc &) {}
    publication.land(rows);
}

bool RowStore::has_drafts(uint64_t first, uint64_t end) const {
    for (const Draft &draft : drafts_)
        for (uint64_t position : draft.positions)
            if (position >= first && position < end) return true;  // what was cut is beyond
    return false;
}

void RowStore::publish_settled(bool all) noexcept {
    for (auto &publication : waiting_) {
        if (!all && has_drafts(publication->first, publication->end)) continue;
        publish_now(*publication);
        publication = nullptr;
    }
    std::erase(waiting_, nullptr);
}

void RowStore::fork(RowStore &parent, uint64_t end) {
    Entries shared;
    try {
        const Lock lock(parent.mutex);
        shared.reserve(parent.entries_.size());
        for (Entry &entry : parent.entries_) {
            const uint64_t entry_end = std::min(entry.end, end);
            if (entry.first >= entry_end) continue;
            parent.note_lent(entry, entry.first, entry_end);
            shared.push_back({.index = entry.index,
                              .origin = entry.origin,
                              .first = entry.first,
                              .end = entry_end,
                              .page = entry.page,
                              .full_rows = entry.full_rows});
        }
    } catch (const std::bad_alloc &) {
        return;
    }  // its rows are missing
    if (const auto known = parent.known_missing(); known != nullptr)
        change_missing([&](MissingRows &missing) { missing.add(known->part(0, end)); });
    const Lock lock(mutex);
    entries_.swap(shared);
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
                Entry &entry = add_entry(index, segment.page);
                entry.origin = segment.first - segment.page_row;
                entry.first = position, entry.end = position + n;
                entry.full_rows = segment.complete ? shape_->page_rows : 0;
            }
        }
        for (uint64_t p = position; !shared && p < position + n; p++) {
            const uint64_t row = p - segment.first;
            filed += file(p, {segment.ids(row), segment.validity(row), 0, 0}, 1,
                          {.tag = segment.tag(row), .policy = Policy::keep});
        }
        position += n;
    }
    return filed;
}

RowOutcomes RowStore::attach_missing(const MissingRows &missing, uint64_t first, uint64_t end) {
    RowOutcomes filed;
    if (missing.empty() && known_missing() == nullptr) return filed;
    change_missing([&](MissingRows &known) { known.add(missing); });
    const auto known = known_missing();
    if (known == nullptr) return filed;
    std::vector<uint8_t> cells(size_t{shape_->ids_bytes} + shape_->validity_bytes);
    const RowSource row{cells.data(), cells.data() + shape_->ids_bytes, 0, 0};
    // The next row at or after a position of which something is there and something is missing.
    const auto next = [&](uint64_t from, uint64_t to) {
        const Lock lock(mutex);
        for (auto entry = at_or_after(from / shape_->page_rows);
             entry != entries_.end() && entry->first < to; ++entry) {
            if (entry->full_rows == shape_->page_rows) continue;
            for (uint64_t p = std::max(from, entry->first); p < std::min(to, entry->end); p++) {
                const uint8_t *validity = entry->page->validity(entry->row(p));
                if (!shape_->row_full(validity) &&
                    shape_->row_reason(entry->page->ids(entry->row(p)), validity) == 0)
                    return p;
            }
        }
        return to;
    };
    known->for_each(first, end, [&](uint64_t from, uint64_t to, int32_t reason) {
        shape_->mark_missing(cells.data(), reason);
        for (uint64_t p = next(from, to); p < to; p = next(p + 1, to))
            filed += file(p, row, 1, {.tag = 0, .policy = Policy::keep});
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

std::vector<Segment> RowStore::share(uint64_t first, uint64_t end) {
    const auto begin = at_or_after(first / shape_->page_rows);
    auto last = begin;
    while (last != entries_.end() && last->first < end) ++last;
    std::vector<Segment> segments;
    segments.reserve(static_cast<size_t>(last - begin));
    for (auto entry = begin; entry != last; ++entry)
        lend(*entry, std::max(first, entry->first), std::min(end, entry->end), segments);
    return segments;
}

bool RowStore::take(uint64_t first, uint64_t end, std::vector<Segment> &segments) {
    const auto begin = at_or_after(first / shape_->page_rows);
    auto last = begin;
    while (last != entries_.end() && last->first < end) ++last;
    if (begin == last) return true;
    segments.reserve(static_cast<size_t>(last - begin));
    if (begin->first < first && begin->end > end) {  // rows stay on both sides, in another page
        const bool tagged = begin->page->tags.load(std::memory_order_relaxed) != nullptr;
        Means means;
        if (!pay({.page = true, .tags = tagged}, {.tag = 0, .policy = policy_}, means))
            return false;
        Entry kept = copy_of(*begin, std::move(means.page), means.tags);
        if (means.tags != nullptr) pool_->unreserve(PagePool::tag_bytes(shape_->page_rows));
        lend(*begin, first, end, segments);
        *begin = std::move(kept);
        clear_rows(*begin, first, end);
        return true;
    }
    // A page without a row stays, for a step in flight may need it.
    const auto leaves = [&](const Entry &entry) {
        return entry.first < entry.end && entry.first >= first && entry.end <= end;
    };
    for (auto entry = begin; entry != last; ++entry) {
        if (leaves(*entry)) {
            segments.push_back(segment(*entry, std::move(entry->page), entry->first, entry->end));
            continue;
        }
        lend(*entry, std::max(first, entry->first), std::min(end, entry->end), segments);
        if (entry->first < first)
            entry->end = std::min(entry->end, first);
        else
            entry->first = std::min(end, entry->end);
    }
    entries_.erase(std::remove_if(begin, last, leaves), last);
    return true;
}

void RowStore::lend(Entry &entry, uint64_t first, uint64_t end, std::vector<Segment> &segments) {
    if (first >= end) return;
    note_lent(entry, first, end);
    segments.push_back(segment(entry, entry.page, first, end));
}

// Before they are: what was lent until now is the table's own again if nobody else has the page.
void RowStore::note_lent(Entry &entry, uint64_t first, uint64_t end) {
    const bool none = entry.lent_first == entry.lent_end || entry.page.unique();
    entry.lent_first = none ? first : std::min(entry.lent_first, first);
    entry.lent_end = none ? end : std::max(entry.lent_end, end);
}

// ---- Pages ----------------------------------------------------------------------------------

std::vector<RowStore::Entry>::iterator RowStore::at_or_after(uint64_t index) {
    if (!entries_.empty() && entries_.back().index <= index)
        return entries_.back().index == index ? entries_.end() - 1 : entries_.end();
    return std::lower_bound(entries_.begin(), entries_.end(), index,
                            [](const Entry &e, uint64_t i) { return e.index < i; });
}

// Whether the rows may be written in place.
bool RowStore::writable(Entry &entry, uint64_t first, uint64_t end) {
    if (!entry.own) return false;
    if (entry.lent_first != entry.lent_end && entry.page.unique())
        entry.lent_first = entry.lent_end = 0;
    return first >= entry.lent_end || end <= entry.lent_first;
}

// Gives the entry a page of its own: before any row is written, so that what the old page says of
// tags is copied once.
void RowStore::make_writable(Entry &entry, Means &means) {
    Entry copy = copy_of(entry, std::move(means.page), means.tags);
    means.page = std::move(entry.page);
    entry = std::move(copy);
}

// The entry's rows in another page. Where they have several tags, `tags` becomes the page's.
RowStore::Entry RowStore::copy_of(const Entry &entry, PageRef page,
                                  std::unique_ptr<uint64_t[]> &tags) {
    Entry copy{.index = entry.index,
               .origin = entry.index * shape_->page_rows,
               .first = entry.first,
               .end = entry.first,
               .page = std::move(page),
               .own = true};
    const ptrdiff_t ids_stride = static_cast<ptrdiff_t>(shape_->ids_bytes),
                    validity_stride = static_cast<ptrdiff_t>(shape_->validity_bytes);
    for (uint64_t p = entry.first; p < entry.end;) {  // runs of one tag
        const uint64_t tag = entry.page->tag_of(entry.row(p));
        uint64_t q = p + 1;
        while (q < entry.end && entry.page->tag_of(entry.row(q)) == tag) q++;
        tag_rows(copy, p, q - p, tag, tags);
        put(copy, p,
            {entry.page->ids(entry.row(p)), entry.page->validity(entry.row(p)), ids_stride,
             validity_stride},
            q - p);
        copy.end = p = q;
    }
    return copy;
}

// Whether rows of this tag make it necessary to keep one for each row.
bool RowStore::needs_tags(const Entry &entry, uint64_t tag) const {
    const Page &page = *entry.page.get();
    if (page.tags.load(std::memory_order_relaxed) != nullptr ||
        page.tag.load(std::memory_order_relaxed) == tag)
        return false;
    // Or nobody looks at the old one.
    return entry.first != entry.end || entry.lent_first != entry.lent_end;
}

// Gives rows a tag. Most pages have one tag for all rows; the first that has two gets `tags`, which
// are one for each row.
void RowStore::tag_rows(Entry &entry, uint64_t position, uint64_t rows, uint64_t tag,
                        std::unique_ptr<uint64_t[]> &tags) {
    Page &page = *entry.page.get();
    if (needs_tags(entry, tag)) {
        std::fill_n(tags.get(), page.rows, page.tag.load(std::memory_order_relaxed));
        page.tags.store(tags.release(), std::memory_order_release);
    }
    if (uint64_t *each = page.tags.load(std::memory_order_relaxed); each != nullptr)
        std::fill_n(each + entry.row(position), rows, tag);
    else
        page.tag.store(tag, std::memory_order_relaxed);
}

void RowStore::put(Entry &entry, uint64_t position, const RowSource &source, uint64_t rows) {
    Page &page = *entry.page.get();
    const uint32_t row = entry.row(position);
    if (source.ids_stride == static_cast<ptrdiff_t>(shape_->ids_bytes))
        std::memcpy(page.ids(row), source.ids, rows * shape_->ids_bytes);
    else
        for (uint64_t r = 0; r < rows; r++)
            std::memcpy(page.ids(row + r), source.ids_of(r), shape_->ids_bytes);
    uint32_t was_full = 0, is_full = 0;
    for (uint64_t r = 0; r < rows; r++) {
        uint8_t *to = page.validity(row + r);
        was_full += shape_->row_full(to);
        std::memcpy(to, source.validity_of(r), shape_->validity_bytes);
        is_full += shape_->row_full(to);
    }
    entry.full_rows += is_full - was_full;
}

// Rows that were never there.
void RowStore::clear_rows(Entry &entry, uint64_t first, uint64_t end) {
    Page &page = *entry.page.get();
    for (uint64_t p = first; p < end; p++) {
        const uint32_t row = entry.row(p);
        entry.full_rows -= shape_->row_full(page.validity(row));
        std::memset(page.validity(row), 0, shape_->validity_bytes);
        shape_->mark_absent(page.ids(row));
    }
}

}  // namespace routecap
