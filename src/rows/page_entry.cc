#include "rows/page_entry.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "load/load_counter.h"

namespace routecap {

// ---- Lending --------------------------------------------------------------------------------

void PageEntry::note_lent(uint64_t to) { lent_end = page.unique() ? to : std::max(lent_end, to); }

bool PageEntry::writable(uint64_t from) {
    if (lent_end != 0 && page.unique()) lent_end = 0;
    return own && from >= lent_end;
}

PageEntry PageEntry::copy(PageRef to) const {
    PageEntry copied{.shape = shape,
                     .index = index,
                     .origin = index * shape->page_rows,
                     .first = first,
                     .end = end,
                     .page = std::move(to),
                     .own = true};
    copied.page->copy_tags(copied.row(first), *page.get(), row(first), end - first, true);
    copied.put(first,
               {ids(first), validity(first), static_cast<ptrdiff_t>(shape->ids_bytes),
                static_cast<ptrdiff_t>(shape->validity_bytes)},
               end - first);
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

bool PageEntry::needs_copy(uint64_t position, const RowSource &source, uint64_t rows,
                           const Filing &filing) {
    if (writable(first == end ? position : std::min(position, end))) return false;
    // New rows in front, or behind; these begin at `end`, with the rows between that become absent.
    if (position < first || first == end || (position + rows > end && !writable(end))) return true;
    for (uint64_t p = position; p < std::min(position + rows, end); p++)
        if (!writable(p) && changes(p, source.from(p - position), filing)) return true;
    return false;
}

void PageEntry::file(uint64_t position, const RowSource &source, uint64_t rows,
                     const Filing &filing, RowOutcomes &filed) {
    // Rows outside the visible ones are new, rows inside meet others.
    const uint64_t last = position + rows;
    const uint64_t inside = std::clamp(first, position, last),
                   after = std::clamp(end, inside, last);
    for (uint64_t p = inside; p < after; p++) merge(p, source.from(p - position), filing, filed);
    add(after, source.from(after - position), last - after, filing, filed);
    add(position, source, inside - position, filing, filed);
}

// Adds rows outside the visible ones. Rows between these and the visible ones become absent rows.
void PageEntry::add(uint64_t position, const RowSource &source, uint64_t rows, const Filing &filing,
                    RowOutcomes &filed) {
    if (rows == 0) return;
    const uint64_t last = position + rows;
    if (first == end) first = end = position;
    tag_rows(position, rows, filing.tag);
    clear_rows(end, std::max(end, position));
    clear_rows(std::min(last, first), first);
    put(position, source, rows);
    first = std::min(first, position), end = std::max(end, last);
    if (filing.counts()) filing.load->add(source, rows, nullptr, filing.phase);
    for (uint64_t r = 0; r < rows; r++)
        (shape->row_empty(source.validity_of(r)) ? filed.missing : filed.delivered)++;
}

// Whether filing a row changes the one that is there.
bool PageEntry::changes(uint64_t position, const RowSource &source, const Filing &filing) const {
    if (filing.replace && !shape->row_empty(source.validity)) return true;
    if (shape->row_full(validity(position))) return false;
    for (uint32_t l = 0; l < shape->layers; l++)
        if (better(l, ids(position), validity(position), source)) return true;
    return false;
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
                      RowOutcomes &filed) {
    uint8_t *to = page->ids(row(position)), *valid = page->validity(row(position));
    const bool nothing_new = shape->row_empty(source.validity),
               nothing_old = shape->row_empty(valid);
    bool overlap = false, mismatch = false, fills = false;
    for (uint32_t b = 0; b < shape->validity_bytes; b++)
        overlap |= (valid[b] & source.validity[b]) != 0;
    for (uint32_t l = 0; filing.compare && overlap && !mismatch && l < shape->layers; l++)
        mismatch = Shape::valid(valid, l) && Shape::valid(source.validity, l) &&
                   !shape->same_cell(to + size_t{l} * shape->cell_bytes,
                                     source.ids + size_t{l} * shape->cell_bytes);
    (nothing_new ? filed.missing : filed.delivered)++;
    filed.overlapped += overlap;
    filed.mismatched += mismatch;
    if (!changes(position, source, filing)) return;
    if (filing.counts()) filing.load->add(source, 1, valid, filing.phase);
    if (filing.replace && !nothing_new) {
        tag_rows(position, 1, filing.tag);
        return put(position, source, 1);
    }
    const bool not_there = shape->row_reason(to, valid) != 0;
    for (uint32_t l = 0; l < shape->layers; l++) {
        if (!better(l, to, valid, source)) continue;
        if (Shape::valid(source.validity, l)) {
            std::memcpy(to + size_t{l} * shape->cell_bytes,
                        source.ids + size_t{l} * shape->cell_bytes, shape->cell_bytes);
            Shape::set_valid(valid, l);
            fills = true;
        } else {
            shape->mark(to, l, shape->reason(source.ids, l));
        }
    }
    full_rows += shape->row_full(valid);
    if (not_there || (fills && (nothing_old || filing.tag < page->tag_of(row(position)))))
        tag_rows(position, 1, filing.tag);
}

void PageEntry::tag_rows(uint64_t position, uint64_t rows, uint64_t tag) {
    page->set_tag(row(position), rows, tag, first == end && lent_end == 0);
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
