#include "rows.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "routecap.h"

namespace routecap {
namespace {

// Makes room for one more element. False without memory: filing never throws.
template <class T>
bool room(std::vector<T> &vector, size_t more = 1) noexcept {
    if (vector.size() + more <= vector.capacity()) return true;
    try {
        vector.reserve(std::max(2 * vector.capacity(), vector.size() + more));
        return true;
    } catch (const std::bad_alloc &) {
        return false;
    }
}

}  // namespace

// ---- Filing ---------------------------------------------------------------------------------

void RowStore::prefetch(uint64_t position) {
    const auto entry = at_or_after(position / shape_->page_rows);
    if (entry == entries_.end() || entry->index != position / shape_->page_rows) return;
    const auto *page = reinterpret_cast<const uint8_t *>(entry->page.get());
    const uint8_t *ids = page + Page::kHeader + size_t{entry->row(position)} * shape_->ids_bytes;
    __builtin_prefetch(page);
    for (uint32_t b = 0; b < shape_->ids_bytes && b < 1024; b += 64) __builtin_prefetch(ids + b, 1);
    __builtin_prefetch(page + Page::kHeader + size_t{shape_->page_rows} * shape_->ids_bytes + size_t{entry->row(position)} * shape_->validity_bytes, 1);
}

Filed RowStore::file(uint64_t position, RowSource source, uint64_t rows, uint64_t tag, Policy policy) {
    Filed filed;
    const uint64_t page_rows = shape_->page_rows;
    while (rows > 0) {
        const uint64_t index = position / page_rows;
        const uint64_t n = std::min(rows, (index + 1) * page_rows - position);
        file_in_page(index, position, source, n, tag, policy, filed);
        position += n, rows -= n, source = source.from(n);
    }
    return filed;
}

void RowStore::file_in_page(uint64_t index, uint64_t position, RowSource source, uint64_t rows, uint64_t tag, Policy policy, Filed &filed) {
    auto entry = at_or_after(index);
    if (entry == entries_.end() || entry->index != index) {
        const auto at = entry - entries_.begin();
        PageRef page = room(entries_) ? new_page() : PageRef();
        entry = entries_.begin() + at;
        if (!page) {
            filed.refused += rows;
            return;
        }
        entry = entries_.insert(entry, Entry{.index = index,
                                             .origin = index * shape_->page_rows,
                                             .first = position,
                                             .end = position,
                                             .page = std::move(page),
                                             .own = true,
                                             .lent_first = 0,
                                             .lent_end = 0,
                                             .full_rows = 0});
    }
    // Rows outside the visible ones are new, rows inside meet others.
    const uint64_t end = position + rows;
    const uint64_t inside = std::clamp(entry->first, position, end), after = std::clamp(entry->end, inside, end);
    const auto add_new = [&](uint64_t from, uint64_t to) {
        if (from == to) return;
        const RowSource part = source.from(from - position);
        if (!append(*entry, from, part, to - from, tag)) {
            filed.refused += to - from;
            return;
        }
        for (uint64_t r = 0; r < to - from; r++) (shape_->row_empty(part.from(r).validity) ? filed.missing : filed.delivered)++;
    };
    const uint64_t visible_first = entry->first, visible_end = entry->end;
    for (uint64_t p = std::max(position, visible_first); p < std::min(end, visible_end); p++)
        merge(*entry, p, source.from(p - position), tag, policy, filed);
    add_new(after, end);
    add_new(position, inside);
}

// Adds rows outside the visible ones. Rows between these and the visible ones become absent rows.
bool RowStore::append(Entry &entry, uint64_t position, RowSource source, uint64_t rows, uint64_t tag) {
    const uint64_t end = position + rows;
    const bool empty = entry.first == entry.end;
    const uint64_t first = empty ? position : std::min(position, entry.first), last = empty ? end : std::max(end, entry.end);
    if (empty) entry.first = entry.end = position;
    const uint64_t write_first = position >= entry.end ? entry.end : position, write_end = position >= entry.end ? end : entry.first;
    if (!make_writable(entry, write_first, write_end) || !tag_rows(entry, position, rows, tag)) return false;
    if (write_first < position) clear(entry, write_first, position);
    if (end < write_end) clear(entry, end, write_end);
    put(entry, position, source, rows);
    entry.first = first, entry.end = last;
    return true;
}

// Files one row at a position that has one. Of a cell that neither has, the reason with the higher rank stands.
void RowStore::merge(Entry &entry, uint64_t position, RowSource source, uint64_t tag, Policy policy, Filed &filed) {
    const uint8_t *ids = entry.page->ids(entry.row(position)), *validity = entry.page->validity(entry.row(position));
    const bool nothing_new = shape_->row_empty(source.validity), nothing_old = shape_->row_empty(validity);

    bool overlap = false, mismatch = false;
    if (!nothing_new && !nothing_old) {
        for (uint32_t b = 0; b < shape_->validity_bytes; b++) overlap |= (validity[b] & source.validity[b]) != 0;
        for (uint32_t l = 0; compare_ && overlap && !mismatch && l < shape_->layers; l++)
            mismatch = Shape::valid(validity, l) && Shape::valid(source.validity, l) &&
                       !same_ids(ids + l * shape_->cell_bytes, source.ids + l * shape_->cell_bytes);
    }
    const auto better = [&](uint32_t l) {  // whether the new cell goes in the old one's place
        if (Shape::valid(validity, l)) return false;
        return Shape::valid(source.validity, l) || reason_rank(shape_->reason(source.ids, l)) > reason_rank(shape_->reason(ids, l));
    };
    const bool whole = !nothing_new && (policy == Policy::replace || (nothing_old && shape_->row_full(source.validity)));
    bool changes = whole;
    for (uint32_t l = 0; !changes && !shape_->row_full(validity) && l < shape_->layers; l++) changes = better(l);
    if (changes) {
        const bool first = nothing_old && (!nothing_new || shape_->row_reason(ids, validity) != 0);  // to say anything of the row
        if (!make_writable(entry, position, position + 1) || ((whole || first) && !tag_rows(entry, position, 1, tag))) {
            filed.refused++;
            return;
        }
        const uint32_t row = entry.row(position);
        uint8_t *to = entry.page->ids(row), *to_validity = entry.page->validity(row);
        ids = to, validity = to_validity;
        if (whole) put(entry, position, source, 1);
        for (uint32_t l = 0; !whole && l < shape_->layers; l++) {
            if (!better(l)) continue;
            if (Shape::valid(source.validity, l)) {
                std::memcpy(to + l * shape_->cell_bytes, source.ids + l * shape_->cell_bytes, shape_->cell_bytes);
                to_validity[l / 8] = static_cast<uint8_t>(to_validity[l / 8] | 1u << l % 8);
            } else {
                shape_->mark(to, l, shape_->reason(source.ids, l));
            }
        }
        entry.full_rows += !whole && shape_->row_full(to_validity);
    }
    (nothing_new ? filed.missing : filed.delivered)++;
    filed.overlapped += overlap;
    filed.mismatched += mismatch;
}

bool RowStore::file_draft(uint64_t step, uint64_t first_index, std::vector<uint64_t> positions, uint64_t covered, RowSource source, uint64_t tag) {
    if (!room(drafts_)) {
        pool_->unreserve(PagePool::page_bytes(*shape_, positions.size()));
        return false;
    }
    PageRef page = pool_->make(*shape_, static_cast<uint32_t>(positions.size()));
    if (!page) return false;
    page->tag.store(tag, std::memory_order_relaxed);
    for (uint64_t r = 0; r < positions.size(); r++) {
        if (r < covered) {
            std::memcpy(page->ids(r), source.from(r).ids, shape_->ids_bytes);
            std::memcpy(page->validity(r), source.from(r).validity, shape_->validity_bytes);
        } else {
            shape_->mark_absent(page->ids(r));
        }
    }
    drafts_.push_back({step, first_index, std::move(page), std::move(positions)});
    return true;
}

Filed RowStore::settle(uint64_t step, std::span<const uint32_t> kept, uint64_t keep_first) {
    Filed filed;
    for (Draft &draft : drafts_) {
        if (draft.step != step) continue;
        for (uint64_t r = 0; r < draft.positions.size(); r++) {
            if (draft.positions[r] == kDropped) continue;
            const uint64_t index = draft.first_index + r;
            const bool keep = kept.empty() ? index < keep_first : std::binary_search(kept.begin(), kept.end(), index);
            if (!keep || draft.positions[r] == kCut) {
                filed.rejected++;
                continue;
            }
            filed += file(draft.positions[r], {draft.page->ids(r), draft.page->validity(r), 0, 0}, 1, draft.page->tag_of(r));
            placed(draft.positions[r] + 1);
        }
    }
    std::erase_if(drafts_, [step](const Draft &draft) { return draft.step == step; });
    return filed;
}

Filed RowStore::reject_drafts() {
    Filed filed;
    for (const Draft &draft : drafts_)
        for (uint64_t position : draft.positions) filed.rejected += position != kDropped;
    drafts_.clear();
    return filed;
}

void RowStore::truncate(uint64_t end, uint64_t pages) {
    const uint64_t first_page = end / shape_->page_rows + (end % shape_->page_rows != 0);
    uint64_t gone = 0;
    while (!entries_.empty() && entries_.back().index >= first_page) entries_.pop_back(), gone++;
    if (!entries_.empty()) {  // the page that is cut in two stays, even without a row
        Entry &last = entries_.back();
        last.end = std::min(last.end, end);
        last.first = std::min(last.first, last.end);
    }
    const uint64_t unused = std::min(promised_pages_, pages > gone ? pages - gone : 0);
    promised_pages_ -= unused;
    pool_->unreserve(unused * pool_->page_bytes());
    for (Draft &draft : drafts_)
        for (uint64_t &position : draft.positions)
            if (position >= end && position != kDropped) position = kCut;
    missing_.cut(end);
    if (placed_end.load(std::memory_order_relaxed) > end) placed_end.store(end, std::memory_order_relaxed);
}

void RowStore::clear() {
    pool_->unreserve(promised_pages_ * pool_->page_bytes());
    promised_pages_ = 0;
    entries_ = {};
    drafts_ = {};
    missing_ = {};
}

void RowStore::fork(RowStore &parent, uint64_t end) {
    if (!room(entries_, parent.entries_.size())) return;  // its rows are missing
    for (Entry &entry : parent.entries_) {
        const uint64_t entry_end = std::min(entry.end, end);
        if (entry.first >= entry_end) continue;
        note_lent(entry, entry.first, entry_end);
        entries_.push_back({entry.index, entry.origin, entry.first, entry_end, entry.page, false, 0, 0, entry.full_rows});
    }
    try {
        missing_ = parent.missing_;
        missing_.cut(end);
    } catch (const std::bad_alloc &) {  // it is not known why they are missing
    }
}

Filed RowStore::attach(std::span<const Segment> segments, uint64_t end) {
    Filed filed;
    const uint64_t page_rows = shape_->page_rows;
    for (const Segment &segment : segments) {
        const uint64_t segment_end = std::min(segment.end(), end);
        for (uint64_t position = segment.first; segment.page && position < segment_end;) {
            const uint64_t index = position / page_rows;
            const uint64_t n = std::min(segment_end, (index + 1) * page_rows) - position;
            if (!room(entries_)) {
                filed.refused += segment_end - position;
                break;
            }
            const auto entry = at_or_after(index);
            if ((entry == entries_.end() || entry->index != index) && segment.page_row <= segment.first) {
                entries_.insert(entry, {index, segment.first - segment.page_row, position, position + n, segment.page, false, 0, 0,
                                        segment.complete ? shape_->page_rows : 0});
            } else {
                for (uint64_t p = position; p < position + n; p++) {
                    const uint64_t row = p - segment.first;
                    filed += file(p, {segment.ids(row), segment.validity(row), 0, 0}, 1, segment.tag(row), Policy::keep);
                }
            }
            position += n;
        }
    }
    try {
        MissingRows missing;
        for (const Segment &segment : segments)
            if (!segment.page) missing.add(segment.first, std::min(segment.end(), end), segment.reason);
        if (!segments.empty()) filed += attach(missing, segments.front().first, end);
    } catch (const std::bad_alloc &) {
        filed.refused += end - segments.front().first;
    }
    return filed;
}

Filed RowStore::attach(const MissingRows &missing, uint64_t first, uint64_t end) {
    Filed filed;
    missing_.add(missing);
    if (missing_.empty()) return filed;
    std::vector<uint8_t> cells(size_t{shape_->ids_bytes} + shape_->validity_bytes);
    const RowSource row{cells.data(), cells.data() + shape_->ids_bytes, 0, 0};
    missing_.for_each(first, end, [&](uint64_t from, uint64_t to, int32_t reason) {
        shape_->mark_missing(cells.data(), reason);
        for (auto entry = at_or_after(from / shape_->page_rows); entry != entries_.end() && entry->first < to; ++entry) {
            if (entry->full_rows == shape_->page_rows) continue;
            for (uint64_t p = std::max(from, entry->first); p < std::min(to, entry->end); p++) {
                const uint32_t r = entry->row(p);
                if (shape_->row_reason(entry->page->ids(r), entry->page->validity(r)) == 0) merge(*entry, p, row, 0, Policy::keep, filed);
            }
        }
    });
    return filed;
}

// ---- Reading --------------------------------------------------------------------------------

std::vector<Segment> RowStore::share(uint64_t first, uint64_t end) {
    std::vector<Segment> segments;
    auto entry = at_or_after(first / shape_->page_rows);
    segments.reserve(static_cast<size_t>(entries_.end() - entry));
    for (; entry != entries_.end() && entry->first < end; ++entry)
        lend(*entry, std::max(first, entry->first), std::min(end, entry->end), segments);
    return with_missing(*shape_, std::move(segments), missing_, nullptr, first, end);
}

bool RowStore::take(uint64_t first, uint64_t end, std::vector<Segment> &segments, uint64_t &gone_first, uint64_t &gone_end) {
    const uint64_t page_rows = shape_->page_rows;
    const auto begin = at_or_after(first / page_rows);
    gone_first = gone_end = 0;
    if (begin == entries_.end() || begin->first >= end) return true;

    if (begin->first < first && begin->end > end) {  // rows stay on both sides: they need a page of their own
        Entry kept = *begin;
        segments.reserve(1);
        if (!copy_page(kept)) return false;
        lend(*begin, first, end, segments);
        *begin = std::move(kept);
        clear(*begin, first, end);
        return true;
    }
    segments.reserve(static_cast<size_t>(entries_.end() - begin));  // from here on nothing fails
    auto from = begin, to = begin;
    for (; to != entries_.end() && to->first < end; ++to) {
        if (to->first >= first && to->end <= end) {  // goes as a whole
            if (to->first < to->end) segments.push_back(segment(*to, std::move(to->page), to->first, to->end));
            continue;
        }
        lend(*to, std::max(first, to->first), std::min(end, to->end), segments);
        if (to->first < first) {
            to->end = std::min(to->end, first), from = to + 1;
        } else {
            to->first = end;
            break;
        }
    }
    gone_first = from == begin ? first / page_rows : begin->index + 1;
    gone_end = to != entries_.end() && to->index <= (end - 1) / page_rows ? to->index : (end - 1) / page_rows + 1;
    entries_.erase(from, to);
    return true;
}

void RowStore::lend(Entry &entry, uint64_t first, uint64_t end, std::vector<Segment> &segments) {
    if (first >= end) return;
    segments.push_back(segment(entry, entry.page, first, end));
    note_lent(entry, first, end);
}

void RowStore::note_lent(Entry &entry, uint64_t first, uint64_t end) {
    const bool none = entry.lent_first == entry.lent_end;
    entry.lent_first = none ? first : std::min(entry.lent_first, first);
    entry.lent_end = none ? end : std::max(entry.lent_end, end);
}

// ---- Pages ----------------------------------------------------------------------------------

std::vector<RowStore::Entry>::iterator RowStore::at_or_after(uint64_t index) {
    if (!entries_.empty() && entries_.back().index <= index) return entries_.back().index == index ? entries_.end() - 1 : entries_.end();
    return std::lower_bound(entries_.begin(), entries_.end(), index, [](const Entry &e, uint64_t i) { return e.index < i; });
}

PageRef RowStore::new_page() {
    if (promised_pages_ > 0)
        promised_pages_--;
    else if (!pool_->reserve(PagePool::page_bytes(*shape_, shape_->page_rows)))  // merged rows may be wider than the pool's own
        return PageRef();
    return pool_->make(*shape_, shape_->page_rows);
}

// Whether the rows may be written in place; gives the entry a page of its own if they may not.
bool RowStore::make_writable(Entry &entry, uint64_t first, uint64_t end) {
    if (entry.own) {
        if (entry.lent_first != entry.lent_end && entry.page.unique()) entry.lent_first = entry.lent_end = 0;
        if (first >= entry.lent_end || end <= entry.lent_first) return true;
    }
    return copy_page(entry);
}

bool RowStore::copy_page(Entry &entry) {
    PageRef page = new_page();
    if (!page) return false;
    Entry copy{.index = entry.index,
               .origin = entry.index * shape_->page_rows,
               .first = entry.first,
               .end = entry.first,
               .page = std::move(page),
               .own = true,
               .lent_first = 0,
               .lent_end = 0,
               .full_rows = 0};
    const ptrdiff_t ids_stride = static_cast<ptrdiff_t>(shape_->ids_bytes), validity_stride = static_cast<ptrdiff_t>(shape_->validity_bytes);
    for (uint64_t p = entry.first; p < entry.end;) {  // runs of one tag
        const uint64_t tag = entry.page->tag_of(entry.row(p));
        uint64_t q = p + 1;
        while (q < entry.end && entry.page->tag_of(entry.row(q)) == tag) q++;
        if (!tag_rows(copy, p, q - p, tag)) return false;
        put(copy, p, {entry.page->ids(entry.row(p)), entry.page->validity(entry.row(p)), ids_stride, validity_stride}, q - p);
        copy.end = p = q;
    }
    entry = std::move(copy);
    return true;
}

// Gives rows a tag. Most pages have one tag for all rows; the first that has two gets one per row, if the budget allows.
bool RowStore::tag_rows(Entry &entry, uint64_t position, uint64_t rows, uint64_t tag) {
    Page &page = *entry.page.get();
    uint64_t *tags = page.tags.load(std::memory_order_relaxed);
    if (tags == nullptr) {
        const bool nobody_looks = entry.first == entry.end && entry.lent_first == entry.lent_end;
        if (nobody_looks) page.tag.store(tag, std::memory_order_relaxed);
        if (page.tag.load(std::memory_order_relaxed) == tag) return true;
        const size_t bytes = static_cast<size_t>(page.rows) * sizeof *tags;
        if (!page.pool->reserve(bytes)) return false;
        tags = new (std::nothrow) uint64_t[page.rows];
        if (tags == nullptr) {
            page.pool->unreserve(bytes);
            return false;
        }
        std::fill_n(tags, page.rows, page.tag.load(std::memory_order_relaxed));
        page.tags.store(tags, std::memory_order_release);
    }
    std::fill_n(tags + entry.row(position), rows, tag);
    return true;
}

void RowStore::put(Entry &entry, uint64_t position, RowSource source, uint64_t rows) {
    Page &page = *entry.page.get();
    const uint32_t row = entry.row(position);
    if (source.ids_stride == static_cast<ptrdiff_t>(shape_->ids_bytes))
        std::memcpy(page.ids(row), source.ids, rows * shape_->ids_bytes);
    else
        for (uint64_t r = 0; r < rows; r++) std::memcpy(page.ids(row + r), source.from(r).ids, shape_->ids_bytes);
    uint32_t was_full = 0, is_full = 0;
    for (uint64_t r = 0; r < rows; r++) {
        uint8_t *to = page.validity(row + r);
        was_full += shape_->row_full(to);
        std::memcpy(to, source.from(r).validity, shape_->validity_bytes);
        is_full += shape_->row_full(to);
    }
    entry.full_rows += is_full - was_full;
}

// Rows that were never there.
void RowStore::clear(Entry &entry, uint64_t first, uint64_t end) {
    Page &page = *entry.page.get();
    for (uint64_t p = first; p < end; p++) {
        const uint32_t row = entry.row(p);
        entry.full_rows -= shape_->row_full(page.validity(row));
        std::memset(page.validity(row), 0, shape_->validity_bytes);
        shape_->mark_absent(page.ids(row));
    }
}

bool RowStore::same_ids(const uint8_t *a, const uint8_t *b) const {
    if (std::memcmp(a, b, shape_->cell_bytes) == 0) return true;
    const auto subset = [this](const auto *x, const auto *y) {  // both are sets of k
        return std::all_of(x, x + shape_->k, [&](auto id) { return std::find(y, y + shape_->k, id) != y + shape_->k; });
    };
    return shape_->id_bytes == 1 ? subset(a, b) : subset(reinterpret_cast<const uint16_t *>(a), reinterpret_cast<const uint16_t *>(b));
}

}  // namespace routecap
