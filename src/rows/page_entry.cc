#include "rows/page_entry.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace routecap {

// ---- Lending --------------------------------------------------------------------------------

void PageEntry::note_lent(uint64_t from, uint64_t to) {
    const bool none = lent_first == lent_end || page.unique();
    lent_first = none ? from : std::min(lent_first, from);
    lent_end = none ? to : std::max(lent_end, to);
}

bool PageEntry::writable(uint64_t from, uint64_t to) {
    if (!own) return false;
    if (lent_first != lent_end && page.unique()) lent_first = lent_end = 0;
    return from >= lent_end || to <= lent_first;
}

PageEntry PageEntry::copy(PageRef to, std::unique_ptr<uint64_t[]> &tags) const {
    PageEntry copied{.shape = shape,
                     .index = index,
                     .origin = index * shape->page_rows,
                     .first = first,
                     .end = first,
                     .page = std::move(to),
                     .own = true};
    for (uint64_t p = first; p < end;) {  // runs of one tag
        const uint64_t tag = page->tag_of(row(p));
        uint64_t q = p + 1;
        while (q < end && page->tag_of(row(q)) == tag) q++;
        copied.tag_rows(p, q - p, tag, tags);
        copied.put(p,
                   {ids(p), validity(p), static_cast<ptrdiff_t>(shape->ids_bytes),
                    static_cast<ptrdiff_t>(shape->validity_bytes)},
                   q - p);
        copied.end = p = q;
    }
    return copied;
}

void PageEntry::clear_rows(uint64_t from, uint64_t to) {
    for (uint64_t p = from; p < to; p++) {
        uint8_t *valid = page->validity(row(p));
        full_rows -= shape->row_full(valid);
        std::memset(valid, 0, shape->validity_bytes);
        shape->mark_absent(page->ids(row(p)));
    }
}

// ---- Filing ---------------------------------------------------------------------------------

Needs PageEntry::needs(uint64_t position, const RowSource &source, uint64_t rows,
                       const Filing &filing) {
    const uint64_t last = position + rows;
    const uint64_t inside = std::clamp(first, position, last),
                   after = std::clamp(end, inside, last);
    const bool empty = first == end;
    bool copies = false, whole = false;
    if (after < last) copies |= !writable(empty ? after : end, last), whole = true;
    if (position < inside) copies |= !writable(position, empty ? inside : first), whole = true;
    if (inside < after && (!writable(inside, after) || needs_tags(filing.tag)))
        for (uint64_t p = inside; p < after; p++) {
            const Meeting m = meet(p, source.from(p - position), filing);
            whole |= m.retags;
            copies |= m.writes && !writable(p, p + 1);
        }
    const bool tagged = page->tags.load(std::memory_order_relaxed) != nullptr;
    return {.page = copies,
            .tags = copies ? tagged || (whole && page->tag_of(0) != filing.tag && !empty)
                           : whole && needs_tags(filing.tag)};
}

void PageEntry::file(uint64_t position, const RowSource &source, uint64_t rows,
                     const Filing &filing, Means &means, RowOutcomes &filed) {
    // Before any row is written, so that what the old page says of tags is copied once.
    if (means.page) {
        PageEntry copied = copy(std::move(means.page), means.tags);
        means.page = std::move(page);
        *this = std::move(copied);
    }
    // Rows outside the visible ones are new, rows inside meet others.
    const uint64_t last = position + rows;
    const uint64_t inside = std::clamp(first, position, last),
                   after = std::clamp(end, inside, last);
    for (uint64_t p = inside; p < after; p++)
        merge(p, source.from(p - position), filing, means, filed);
    add(after, source.from(after - position), last - after, filing, means, filed);
    add(position, source, inside - position, filing, means, filed);
}

// Adds rows outside the visible ones. Rows between these and the visible ones become absent rows.
void PageEntry::add(uint64_t position, const RowSource &source, uint64_t rows, const Filing &filing,
                    Means &means, RowOutcomes &filed) {
    if (rows == 0) return;
    const uint64_t last = position + rows;
    if (first == end) first = end = position;
    tag_rows(position, rows, filing.tag, means.tags);
    clear_rows(end, std::max(end, position));
    clear_rows(std::min(last, first), first);
    put(position, source, rows);
    first = std::min(first, position), end = std::max(end, last);
    filing.count(source, rows, nullptr);
    for (uint64_t r = 0; r < rows; r++)
        (shape->row_empty(source.validity_of(r)) ? filed.missing : filed.delivered)++;
}

PageEntry::Meeting PageEntry::meet(uint64_t position, const RowSource &source,
                                   const Filing &filing) const {
    const uint8_t *old_ids = ids(position), *old_validity = validity(position);
    const bool nothing_old = shape->row_empty(old_validity);
    Meeting m{.nothing_new = shape->row_empty(source.validity)};
    if (!m.nothing_new && !nothing_old) {
        for (uint32_t b = 0; b < shape->validity_bytes; b++)
            m.overlap |= (old_validity[b] & source.validity[b]) != 0;
        for (uint32_t l = 0; filing.compare && m.overlap && !m.mismatch && l < shape->layers; l++)
            m.mismatch = Shape::valid(old_validity, l) && Shape::valid(source.validity, l) &&
                         !shape->same_cell(old_ids + size_t{l} * shape->cell_bytes,
                                           source.ids + size_t{l} * shape->cell_bytes);
    }
    const bool fresh = nothing_old && shape->row_full(source.validity);
    m.whole = !m.nothing_new && (filing.replace || fresh);
    m.writes = m.whole;
    for (uint32_t l = 0; !m.writes && !shape->row_full(old_validity) && l < shape->layers; l++)
        m.writes = better(l, old_ids, old_validity, source);
    const bool becomes_first = m.writes && nothing_old &&
                               (!m.nothing_new || shape->row_reason(old_ids, old_validity) != 0);
    bool fills = false;
    for (uint32_t b = 0; m.writes && b < shape->validity_bytes; b++)
        fills |= (source.validity[b] & ~old_validity[b]) != 0;
    m.retags = m.whole || becomes_first || (fills && filing.tag < page->tag_of(row(position)));
    return m;
}

// Whether the new cell of a layer goes in the old one's place. Of two that are missing the reason
// with the higher rank stands.
bool PageEntry::better(uint32_t layer, const uint8_t *old_ids, const uint8_t *old_validity,
                       const RowSource &source) const {
    if (Shape::valid(old_validity, layer)) return false;
    return Shape::valid(source.validity, layer) || reason_rank(shape->reason(source.ids, layer)) >
                                                       reason_rank(shape->reason(old_ids, layer));
}

// Files one row at a position that has one.
void PageEntry::merge(uint64_t position, const RowSource &source, const Filing &filing,
                      Means &means, RowOutcomes &filed) {
    const Meeting m = meet(position, source, filing);
    (m.nothing_new ? filed.missing : filed.delivered)++;
    filed.overlapped += m.overlap;
    filed.mismatched += m.mismatch;
    if (!m.writes) return;
    filing.count(source, 1, validity(position));
    if (m.retags) tag_rows(position, 1, filing.tag, means.tags);
    if (m.whole) return put(position, source, 1);
    uint8_t *to = page->ids(row(position)), *to_validity = page->validity(row(position));
    for (uint32_t l = 0; l < shape->layers; l++) {
        if (!better(l, to, to_validity, source)) continue;
        if (Shape::valid(source.validity, l)) {
            std::memcpy(to + size_t{l} * shape->cell_bytes,
                        source.ids + size_t{l} * shape->cell_bytes, shape->cell_bytes);
            Shape::set_valid(to_validity, l);
        } else {
            shape->mark(to, l, shape->reason(source.ids, l));
        }
    }
    full_rows += shape->row_full(to_validity);
}

// Whether rows of this tag make it necessary to keep one for each row.
bool PageEntry::needs_tags(uint64_t tag) const {
    if (page->tags.load(std::memory_order_relaxed) != nullptr ||
        page->tag.load(std::memory_order_relaxed) == tag)
        return false;
    return first != end || lent_first != lent_end;  // or nobody looks at the old one
}

// Gives rows a tag. Most pages have one tag for all rows; the first that has two gets `tags`, which
// are one for each row.
void PageEntry::tag_rows(uint64_t position, uint64_t rows, uint64_t tag,
                         std::unique_ptr<uint64_t[]> &tags) {
    if (needs_tags(tag)) {
        std::fill_n(tags.get(), page->rows, page->tag.load(std::memory_order_relaxed));
        page->tags.store(tags.release(), std::memory_order_release);
    }
    if (uint64_t *each = page->tags.load(std::memory_order_relaxed); each != nullptr)
        std::fill_n(each + row(position), rows, tag);
    else
        page->tag.store(tag, std::memory_order_relaxed);
}

void PageEntry::put(uint64_t position, const RowSource &source, uint64_t rows) {
    for (uint64_t r = 0; r < rows; r++) {
        const uint32_t to = row(position + r);
        std::memcpy(page->ids(to), source.ids_of(r), shape->ids_bytes);
        uint8_t *valid = page->validity(to);
        full_rows -= shape->row_full(valid);
        std::memcpy(valid, source.validity_of(r), shape->validity_bytes);
        full_rows += shape->row_full(valid);
    }
}

}  // namespace routecap
