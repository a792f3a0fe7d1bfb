#include "storage/row_store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "routecap.h"

namespace routecap {

// ---- Memory ---------------------------------------------------------------------------------

void RowStore::give_back(ReservedMemory &reserved) {
    pool_->unreserve(reserved.bytes(PagePool::page_bytes(*shape_, shape_->page_rows),
                                    PagePool::tag_bytes(shape_->page_rows)));
    reserved = {};
}

RowStore::Supply::~Supply() {
    const Shape &shape = *store.shape_;
    if (blank != nullptr) store.pool_->give_blank(shape, shape.page_rows, blank);
    reserved.pages += page_paid;
    reserved.tags += tags_paid;
}

// With the store's mutex: out of what was reserved, then of the budget.
RowStore::Supply::Need RowStore::Supply::pay(bool page, bool promised, bool tags_, bool entry) {
    const Shape &shape = *store.shape_;
    if (page && !promised && !page_paid) {
        if (reserved.kept > 0)
            reserved.kept--;
        else if (reserved.pages > 0)
            reserved.pages--;
        // Merged rows may be wider than the pool's own.
        else if (!store.pool_->reserve(PagePool::page_bytes(shape, shape.page_rows)))
            return Need::refused;
        page_paid = true;
    }
    if (tags_ && !tags_paid) {
        if (reserved.tags > 0)
            reserved.tags--;
        else if (!store.pool_->reserve(PagePool::tag_bytes(shape.page_rows)))
            return Need::refused;
        tags_paid = true;
    }
    if (entry && store.entries_.size() == store.entries_.capacity()) {
        if (room.capacity() <= store.entries_.size()) return Need::memory;
        for (Entry &e : store.entries_) room.push_back(std::move(e));
        store.entries_.swap(room);
    }
    page_wanted = page;
    return (page && blank == nullptr) || (tags_ && tags == nullptr) ? Need::memory : Need::nothing;
}

// Without the store's mutex: what was paid for, and room for a longer table. What the last page's
// rows left is freed.
bool RowStore::Supply::fetch() {
    const Shape &shape = *store.shape_;
    try {
        if (page_wanted && blank == nullptr &&
            (blank = store.pool_->blank(shape, shape.page_rows)) == nullptr)
            return false;
        if (tags_paid && tags == nullptr) tags.reset(new uint64_t[shape.page_rows]);
        size_t longer = 0;
        {
            std::lock_guard lock(store.mutex);
            if (store.entries_.size() == store.entries_.capacity())
                longer = 2 * store.entries_.size() + 2;
        }
        room = Entries();
        room.reserve(longer);
        return true;
    } catch (const std::bad_alloc &) {
        return false;
    }
}

RowStore::Entries::iterator RowStore::Supply::add_entry(uint64_t index) {
    return store.entries_.insert(store.at_or_after(index), store.without_page(index));
}

PageRef RowStore::Supply::take_page(bool &promised) {
    (promised ? promised : page_paid) = false;
    return store.pool_->make(*store.shape_, store.shape_->page_rows, std::exchange(blank, nullptr));
}

void RowStore::Supply::tag_rows(Entry &entry, uint64_t position, uint64_t rows, uint64_t tag) {
    store.tag_rows(entry, position, rows, tag, tags);
    note_used_tags();
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
                         ReservedMemory &reserved, RowOutcomes &filed, Counting counting) {
    const Filing filing{tag, policy_, counting};
    if (file_next(position, source, rows, filing, filed)) return;
    Supply supply{.store = *this, .reserved = reserved};
    filed += file_with(position, source, rows, filing, supply);
}

// Files rows right behind the last ones, where their page has room and the same tag and nobody else
// sees them: nearly all rows of decode steps. False, and nothing has changed, otherwise.
bool RowStore::file_next(uint64_t position, const RowSource &source, uint64_t rows,
                         const Filing &filing, RowOutcomes &filed) {
    const uint64_t end = position + rows;
    const std::lock_guard lock(mutex);
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

RowOutcomes RowStore::file_with(uint64_t position, RowSource source, uint64_t rows,
                                const Filing &filing, Supply &supply) {
    RowOutcomes filed;
    const uint64_t page_rows = shape_->page_rows;
    while (rows > 0) {
        const uint64_t index = position / page_rows;
        const uint64_t n = std::min(rows, (index + 1) * page_rows - position);
        Supply::Need need;
        {
            std::lock_guard lock(mutex);
            need = prepare(index, position, source, n, filing, supply);
            if (need == Supply::Need::nothing)
                file_in_page(index, position, source, n, filing, supply, filed);
        }
        supply.dropped = PageRef();
        if (need == Supply::Need::memory && supply.fetch()) continue;
        if (need != Supply::Need::nothing) {
            filed.refused += n;
            note_missing(position, position + n, ROUTECAP_MISSING_REFUSED);
        }
        position += n, rows -= n, source = source.from(n);
    }
    return filed;
}

// Pays for what filing rows into one page will need.
RowStore::Supply::Need RowStore::prepare(uint64_t index, uint64_t position, RowSource source,
                                         uint64_t rows, const Filing &filing, Supply &supply) {
    const uint64_t tag = filing.tag;
    supply.copies = false;
    const auto entry = at_or_after(index);
    if (entry == entries_.end() || entry->index != index)
        return supply.pay(true, false, false, true);
    if (!entry->page) return supply.pay(true, entry->promised, false, false);
    const uint64_t end = position + rows;
    const uint64_t inside = std::clamp(entry->first, position, end),
                   after = std::clamp(entry->end, inside, end);
    const bool empty = entry->first == entry->end;
    bool copies = false, whole = false;
    if (after < end) copies |= !writable(*entry, empty ? after : entry->end, end), whole = true;
    if (position < inside)
        copies |= !writable(*entry, position, empty ? inside : entry->first), whole = true;
    if (inside < after && (!writable(*entry, inside, after) || needs_tags(*entry, tag)))
        for (uint64_t p = inside; p < after; p++) {
            const Meeting m = meet(*entry, p, source.from(p - position), filing);
            whole |= m.retags;
            copies |= m.writes && !writable(*entry, p, p + 1);
        }
    supply.copies = copies;
    const bool tagged = entry->page->tags.load(std::memory_order_relaxed) != nullptr;
    const bool tags = copies ? tagged || (whole && entry->page->tag_of(0) != tag && !empty)
                             : whole && needs_tags(*entry, tag);
    if (!copies && !tags) return Supply::Need::nothing;
    return supply.pay(copies, entry->promised, tags, false);
}

void RowStore::file_in_page(uint64_t index, uint64_t position, RowSource source, uint64_t rows,
                            const Filing &filing, Supply &supply, RowOutcomes &filed) {
    auto entry = at_or_after(index);
    if (entry == entries_.end() || entry->index != index) entry = supply.add_entry(index);
    if (!entry->page) {
        entry->page = supply.take_page(entry->promised);
        entry->own = true;
        entry->first = entry->end = position;
    } else if (supply.copies) {
        make_writable(*entry, supply);
    }
    // Rows outside the visible ones are new, rows inside meet others.
    const uint64_t end = position + rows;
    const uint64_t inside = std::clamp(entry->first, position, end),
                   after = std::clamp(entry->end, inside, end);
    const auto add_new = [&](uint64_t from, uint64_t to) {
        if (from == to) return;
        const RowSource part = source.from(from - position);
        append(*entry, from, part, to - from, filing.tag, supply);
        note_new(part, to - from, filing, filed);
    };
    const uint64_t visible_first = entry->first, visible_end = entry->end;
    for (uint64_t p = std::max(position, visible_first); p < std::min(end, visible_end); p++)
        merge(*entry, p, source.from(p - position), filing, supply, filed);
    add_new(after, end);
    add_new(position, inside);
    last_entry_.store(&*entry, std::memory_order_relaxed);
    last_page_.store(entry->page.get(), std::memory_order_relaxed);
}

// Adds rows outside the visible ones. Rows between these and the visible ones become absent rows.
void RowStore::append(Entry &entry, uint64_t position, RowSource source, uint64_t rows,
                      uint64_t tag, Supply &supply) {
    const uint64_t end = position + rows;
    const bool empty = entry.first == entry.end;
    const uint64_t first = empty ? position : std::min(position, entry.first),
                   last = empty ? end : std::max(end, entry.end);
    if (empty) entry.first = entry.end = position;
    const uint64_t write_first = position >= entry.end ? entry.end : position,
                   write_end = position >= entry.end ? end : entry.first;
    supply.tag_rows(entry, position, rows, tag);
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
    m.retags = m.whole || first ||
               (fills && filing.tag < entry.page->tag_of(entry.row(position)));
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
                     Supply &supply, RowOutcomes &filed) {
    const Meeting m = meet(entry, position, source, filing);
    if (m.writes) {
        if (filing.counting.counts())
            filing.counting.cells->add_missing(source, entry.page->validity(entry.row(position)),
                                               filing.tag, filing.counting.phase);
        if (m.retags) supply.tag_rows(entry, position, 1, filing.tag);
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

void RowStore::keep(uint64_t position, uint64_t end, ReservedMemory &reserved) {
    const uint64_t end_index = (end - 1) / shape_->page_rows + 1;
    ReservedMemory none;
    Supply supply{.store = *this, .reserved = none};
    for (uint64_t index = position / shape_->page_rows; reserved.kept > 0 && index < end_index;) {
        Supply::Need need = Supply::Need::nothing;
        {
            std::lock_guard lock(mutex);
            auto entry = at_or_after(index);
            const bool there = entry != entries_.end() && entry->index == index;
            if (!there) need = supply.pay(false, false, false, true);
            if (need == Supply::Need::nothing) {
                if (!there) entry = supply.add_entry(index);
                if (!entry->own && !entry->promised) entry->promised = true, reserved.kept--;
                index++;
            }
        }
        if (need != Supply::Need::nothing && !supply.fetch()) break;
    }
}

bool RowStore::file_draft(uint64_t step, uint64_t first_index, std::vector<uint64_t> positions,
                          uint64_t covered, RowSource source, uint64_t tag, Phase phase,
                          ReservedMemory reserved, bool lost) {
    const auto rows = static_cast<uint32_t>(positions.size());
    const bool kept = !lost && std::any_of(positions.begin(), positions.end(),
                                           [](uint64_t p) { return p < kPast; });
    PageRef page;
    if (kept) {
        page = pool_->make(*shape_, rows);
        if (!page) {
            give_back(reserved);
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
        give_back(reserved);
    }
    try {
        drafts_.push_back(
            {step, first_index, std::move(page), std::move(positions), reserved, phase, lost});
        return true;
    } catch (const std::bad_alloc &) {
        give_back(reserved);
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
                          1, draft.page->tag_of(r), draft.reserved, filed, {counted, draft.phase});
                placed(draft.positions[r] + 1);
            }
        }
        give_back(draft.reserved);
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
        give_back(draft.reserved);
    }
    drafts_.clear();
    return filed;
}

void RowStore::drop(uint64_t end) {
    const uint64_t end_index = end / shape_->page_rows + (end % shape_->page_rows != 0);
    uint64_t promised = 0;
    for (bool more = true; more;) {
        std::array<PageRef, 32> gone;  // freed without the mutex
        std::lock_guard lock(mutex);
        for (PageRef &page : gone) {
            more = !entries_.empty() && entries_.back().index >= end_index;
            if (!more) break;
            promised += entries_.back().promised;
            page = std::move(entries_.back().page);
            entries_.pop_back();
        }
        if (more || entries_.empty()) continue;
        Entry &last = entries_.back();  // the page that is cut in two stays, even without a row
        last.end = std::min(last.end, end);
        last.first = std::min(last.first, last.end);
    }
    give_back_promises(promised);
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
        give_back(draft.reserved);
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
    uint64_t promised = 0;
    {
        std::lock_guard lock(mutex);
        gone.swap(entries_);
    }
    for (const Entry &entry : gone) promised += entry.promised;
    give_back_promises(promised);
    for (Draft &draft : drafts_) give_back(draft.reserved);
    drafts_ = {};
    waiting_ = {};
    cut_missing(0);
}

template <class Change>
void RowStore::change_missing(Change change) noexcept {
    std::shared_ptr<const MissingRows> changed;
    try {
        auto copy = missing_ != nullptr ? std::make_shared<MissingRows>(*missing_)
                                        : std::make_shared<MissingRows>();
        change(*copy);
        if (!copy->empty()) changed = std::move(copy);
    } catch (const std::bad_alloc &) {
        return;
    }
    std::lock_guard lock(mutex);
    missing_.swap(changed);  // what was known before is freed after
}

void RowStore::note_missing(uint64_t first, uint64_t end, int32_t reason) noexcept {
    if (first < end) change_missing([&](MissingRows &missing) { missing.add(first, end, reason); });
}

void RowStore::cut_missing(uint64_t end) noexcept {
    if (missing_ != nullptr) change_missing([&](MissingRows &missing) { missing.cut(end); });
}

std::vector<Segment> RowStore::take_all(uint64_t first, uint64_t end, const MissingNote *notes) {
    MissingRows noted;
    for (const MissingNote *note = notes; note != nullptr; note = note->next)
        noted.add(std::max(note->first, first), std::min(note->end, end), note->reason);
    std::vector<Segment> segments;
    Split none;
    for (size_t room = 0;;) {
        segments.reserve(room);
        std::lock_guard lock(mutex);
        if ((room = count(first, end)) > segments.capacity()) continue;
        if (first == 0 && notes == nullptr && missing_ == nullptr)
            take(0, end, plan_take(0, end), {}, segments, none);
        else
            share(first, end, segments);
        break;
    }
    if (noted.empty() && missing_ == nullptr) return segments;
    return with_missing(*shape_, std::move(segments), noted, missing_.get(), first, end);
}

// Rows [first, end) are about to be lent: where drafts may have to write then, a page is promised
// that pay() pays for. With `mutex`, by whoever files.
template <class Pay>
void RowStore::promise_to_drafts(uint64_t first, uint64_t end, Pay pay) {
    for (const Draft &draft : drafts_) {
        if (draft.reserved.pages >= draft.positions.size()) continue;
        for (uint64_t position : draft.positions) {
            const uint64_t index = position / shape_->page_rows;
            if (position < kPast &&
                will_need_page(index, first, end, nullptr, position, position + 1) &&
                unpromised(index, index + 1) > 0 && pay())
                promise(index, index + 1);
        }
    }
}

// ---- Publishing -----------------------------------------------------------------------------

void RowStore::publish(std::shared_ptr<Publication> publication) noexcept {
    if (!has_drafts(publication->first, publication->end)) return publish_now(*publication);
    try {
        waiting_.push_back(std::move(publication));
    } catch (const std::bad_alloc &) {}  // it is dropped, and counts that
}

void RowStore::publish_now(Publication &publication) noexcept {
    const uint64_t first = publication.first, end = publication.end;
    std::vector<Segment> rows;
    try {
        for (size_t room = 0;;) {
            rows.reserve(room);
            std::lock_guard lock(mutex);
            if ((room = count(first, end)) > rows.capacity()) continue;
            promise_to_drafts(first, end, [this] {
                return pool_->reserve(PagePool::page_bytes(*shape_, shape_->page_rows));
            });
            share(first, end, rows);
            break;
        }
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

void RowStore::fork(RowStore &parent, uint64_t end, uint64_t pages) {
    Entries shared;
    try {
        shared.reserve(parent.entries_.capacity());  // only whoever files changes that
    } catch (const std::bad_alloc &) {
        parent.give_back_promises(pages);
        return;  // its rows are missing
    }
    {
        std::lock_guard lock(parent.mutex);
        parent.promise_to_drafts(0, end, [&] { return pages--, true; });
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
    }
    parent.give_back_promises(pages);
    if (parent.missing_ != nullptr)
        change_missing([&](MissingRows &missing) { missing.add(parent.missing_->part(0, end)); });
    std::lock_guard lock(mutex);
    entries_.swap(shared);
}

RowOutcomes RowStore::attach(std::span<const Segment> segments, uint64_t end) {
    RowOutcomes filed;
    ReservedMemory reserved;
    {
        Supply supply{.store = *this, .reserved = reserved};
        for (const Segment &segment : segments)
            if (segment.page)
                filed += attach_segment(segment, std::min(segment.end(), end), supply);
    }
    give_back(reserved);
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
RowOutcomes RowStore::attach_segment(const Segment &segment, uint64_t end, Supply &supply) {
    RowOutcomes filed;
    const uint64_t page_rows = shape_->page_rows;
    for (uint64_t position = segment.first; position < end;) {
        const uint64_t index = position / page_rows;
        const uint64_t n = std::min(end, (index + 1) * page_rows) - position;
        bool shared = false;
        Supply::Need need = Supply::Need::nothing;
        {
            std::lock_guard lock(mutex);
            auto entry = at_or_after(index);
            const bool there = entry != entries_.end() && entry->index == index;
            shared = (!there || !entry->page) && segment.page_row <= segment.first;
            if (shared && !there) need = supply.pay(false, false, false, true);
            if (shared && need == Supply::Need::nothing) {
                if (!there) entry = supply.add_entry(index);
                entry->origin = segment.first - segment.page_row;
                entry->first = position, entry->end = position + n;
                entry->page = segment.page;
                entry->full_rows = segment.complete ? shape_->page_rows : 0;
            }
        }
        if (need != Supply::Need::nothing) {
            if (supply.fetch()) continue;
            filed.refused += end - position;
            break;
        }
        for (uint64_t p = position; !shared && p < position + n; p++) {
            const uint64_t row = p - segment.first;
            filed += file_with(p, {segment.ids(row), segment.validity(row), 0, 0}, 1,
                               {segment.tag(row), Policy::keep}, supply);
        }
        position += n;
    }
    return filed;
}

RowOutcomes RowStore::attach_missing(const MissingRows &missing, uint64_t first, uint64_t end) {
    RowOutcomes filed;
    if (missing.empty() && missing_ == nullptr) return filed;
    change_missing([&](MissingRows &known) { known.add(missing); });
    if (missing_ == nullptr) return filed;
    std::vector<uint8_t> cells(size_t{shape_->ids_bytes} + shape_->validity_bytes);
    const RowSource row{cells.data(), cells.data() + shape_->ids_bytes, 0, 0};
    // The next row at or after a position of which something is there and something is missing.
    const auto next = [&](uint64_t from, uint64_t to) {
        std::lock_guard lock(mutex);
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
    ReservedMemory reserved;
    {
        Supply supply{.store = *this, .reserved = reserved};
        missing_->for_each(first, end, [&](uint64_t from, uint64_t to, int32_t reason) {
            shape_->mark_missing(cells.data(), reason);
            for (uint64_t p = next(from, to); p < to; p = next(p + 1, to))
                filed += file_with(p, row, 1, {0, Policy::keep}, supply);
        });
    }
    give_back(reserved);
    return filed;
}

// ---- Reading --------------------------------------------------------------------------------

size_t RowStore::count(uint64_t first, uint64_t end) {
    size_t n = 0;
    for (auto entry = at_or_after(first / shape_->page_rows);
         entry != entries_.end() && entry->first < end; ++entry)
        n++;
    return n;
}

std::pair<uint64_t, uint64_t> RowStore::bounds(uint64_t first, uint64_t end) {
    if (first >= end) return {end, end};
    const auto empty = [](const Entry &entry) { return entry.first == entry.end; };
    auto begin = at_or_after(first / shape_->page_rows);
    auto last = at_or_after((end - 1) / shape_->page_rows + 1);
    while (begin != last && empty(*begin)) ++begin;
    while (begin != last && empty(*(last - 1))) --last;
    if (begin == last || begin->first >= end) return {end, end};
    return {std::max(first, begin->first), std::min(end, (last - 1)->end)};
}

std::pair<uint64_t, uint64_t> RowStore::shared_bounds(uint64_t first, uint64_t end) {
    uint64_t from = end, to = first;
    const auto add = [&](uint64_t a, uint64_t b) {
        from = std::min(from, std::max(first, a)), to = std::max(to, std::min(end, b));
    };
    for (auto entry = at_or_after(first / shape_->page_rows);
         entry != entries_.end() && entry->first < end; ++entry) {
        if (!entry->own || entry->lent_first == entry->lent_end || entry->page.unique()) continue;
        // Some of it has left the table.
        if (entry->lent_first < entry->first || entry->lent_end > entry->end)
            add(entry->index * shape_->page_rows, (entry->index + 1) * shape_->page_rows);
        else
            add(entry->lent_first, entry->lent_end);
    }
    return {from, to};
}

void RowStore::share(uint64_t first, uint64_t end, std::vector<Segment> &segments) noexcept {
    for (auto entry = at_or_after(first / shape_->page_rows);
         entry != entries_.end() && entry->first < end; ++entry)
        lend(*entry, std::max(first, entry->first), std::min(end, entry->end), segments);
}

bool RowStore::has_tags(uint64_t position) {
    const auto entry = at_or_after(position / shape_->page_rows);
    return entry != entries_.end() && entry->page &&
           entry->page->tags.load(std::memory_order_relaxed) != nullptr;
}

RowStore::TakePlan RowStore::plan_take(uint64_t first, uint64_t end) {
    const uint64_t page_rows = shape_->page_rows;
    const auto begin = at_or_after(first / page_rows);
    if (begin == entries_.end() || begin->first >= end) return {};
    if (begin->first < first && begin->end > end) return {.splits = true};
    TakePlan plan{.gone_first = begin->first < first ? begin->index + 1 : first / page_rows,
                  .gone_end = (end - 1) / page_rows + 1,
                  .splits = false};
    const auto last = std::lower_bound(begin, entries_.end(), plan.gone_end,
                                       [](const Entry &e, uint64_t i) { return e.index < i; });
    if (last != begin && ((last - 1)->first >= end || (last - 1)->end > end))
        plan.gone_end = (last - 1)->index;
    plan.gone_end = std::max(plan.gone_end, plan.gone_first);
    return plan;
}

bool RowStore::will_need_page(uint64_t index, uint64_t first, uint64_t end, const TakePlan *plan,
                              uint64_t from, uint64_t to) {
    const auto entry = at_or_after(index);
    if (entry == entries_.end() || entry->index != index) return false;
    if (plan != nullptr && plan->leaves(index)) return entry->own || entry->promised;
    // What stays of a page that is split gets one of its own.
    if (!entry->own || (plan != nullptr && plan->splits)) return false;
    // Rows beside those that stay become somebody else's.
    if (plan != nullptr) return entry->first < end && entry->end > first;
    const auto overlaps = [&](uint64_t lent_first, uint64_t lent_end) {
        return std::max(lent_first, from) < std::min(lent_end, to);
    };
    const uint64_t lent_first = std::max(first, entry->first), lent_end = std::min(end, entry->end);
    if (lent_first >= lent_end) return false;
    const bool none = entry->lent_first == entry->lent_end || entry->page.unique();
    if (none) return overlaps(lent_first, lent_end);
    return !overlaps(entry->lent_first, entry->lent_end) &&
           overlaps(std::min(lent_first, entry->lent_first), std::max(lent_end, entry->lent_end));
}

uint64_t RowStore::unpromised(uint64_t begin, uint64_t end) {
    uint64_t n = 0;
    for (auto entry = at_or_after(begin); entry != entries_.end() && entry->index < end; ++entry)
        n += !entry->promised;
    return n;
}

void RowStore::promise(uint64_t begin, uint64_t end) {
    for (auto entry = at_or_after(begin); entry != entries_.end() && entry->index < end; ++entry)
        entry->promised = true;
}

void RowStore::take(uint64_t first, uint64_t end, const TakePlan &plan, const Intervals &needed,
                    std::vector<Segment> &segments, Split &spare) noexcept {
    const auto begin = at_or_after(first / shape_->page_rows);
    if (begin == entries_.end() || begin->first >= end) return;
    if (plan.splits) {  // rows stay on both sides: they get a page of their own
        Entry kept = copy_of(
            *begin, pool_->make(*shape_, shape_->page_rows, std::exchange(spare.blank, nullptr)),
            spare.tags);
        kept.promised = begin->promised;
        lend(*begin, first, end, segments);
        *begin = std::move(kept);
        clear_rows(*begin, first, end);
        return;
    }
    uint64_t promised = 0;
    auto to = begin;
    for (; to != entries_.end() && to->first < end; ++to) {
        if (!plan.leaves(to->index)) {
            lend(*to, std::max(first, to->first), std::min(end, to->end), segments);
            if (to->first == to->end) continue;
            if (to->first < first)
                to->end = std::min(to->end, first);
            else
                to->first = end;
            continue;
        }
        if (to->first < to->end)
            segments.push_back(segment(*to, std::move(to->page), to->first, to->end));
        if (!to->promised) continue;
        const bool stays = needed.has(to->index);
        promised += !stays;
        *to = without_page(to->index);
        to->promised = stays;
    }
    entries_.erase(
        std::remove_if(begin, to,
                       [&](const Entry &e) { return plan.leaves(e.index) && !e.promised; }),
        to);
    give_back_promises(promised);
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
void RowStore::make_writable(Entry &entry, Supply &supply) {
    PageRef page = supply.take_page(entry.promised);
    Entry copy = copy_of(entry, std::move(page), supply.tags);
    supply.note_used_tags();
    copy.promised = entry.promised;
    supply.dropped = std::move(entry.page);
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
