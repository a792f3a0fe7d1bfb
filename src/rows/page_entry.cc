#include "rows/page_entry.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "load/load_counter.h"
#include "rows/merge.h"

namespace routecap {

uint32_t PageEntry::count_incomplete(uint64_t from, uint64_t to) const {
    uint32_t n = 0;
    for (uint64_t p = from; p < to; p++) n += !shape->row_full(at(p));
    return n;
}

void PageEntry::narrow(uint64_t from, uint64_t to) {
    const uint64_t last = std::clamp(to, first, end), start = std::clamp(from, first, last);
    if (incomplete > 0) incomplete -= count_incomplete(first, start) + count_incomplete(last, end);
    first = start, end = last;
}

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
                     .own = true,
                     .incomplete = incomplete};
    copied.page->copy_rows(copied.row(first), *page.get(), row(first), end - first);
    return copied;
}

void PageEntry::clear(uint64_t from, uint64_t to) {
    incomplete -= count_incomplete(from, to);
    add_absent(from, to);
}

void PageEntry::add_absent(uint64_t from, uint64_t to) {
    for (uint64_t p = from; p < to; p++) {
        shape->make_missing(at(p), ROUTECAP_MISSING_ABSENT);
        page->set_tags(row(p), 1, Tag::none);
        incomplete++;
    }
}

// ---- Filing ---------------------------------------------------------------------------------

bool PageEntry::needs_copy(uint64_t position, const uint8_t *source, uint64_t rows,
                           const Filing &filing) {
    if (writable(first == end ? position : std::min(position, end))) return false;
    // New rows in front, or behind; these begin at `end`, with the rows between that become absent.
    if (position < first || first == end || (position + rows > end && !writable(end))) return true;
    for (uint64_t p = position; p < std::min(position + rows, end); p++)
        if (!writable(p) && changes(p, source + (p - position) * shape->stride, filing))
            return true;
    return false;
}

void PageEntry::file(uint64_t position, const uint8_t *source, uint64_t rows, const Filing &filing,
                     RowOutcomes &filed) {
    // Rows outside the visible ones are new, rows inside meet others.
    const uint64_t last = position + rows;
    const uint64_t inside = std::clamp(first, position, last),
                   after = std::clamp(end, inside, last);
    for (uint64_t p = inside; p < after; p++)
        file_onto(p, source + (p - position) * shape->stride, filing, filed);
    add(after, source + (after - position) * shape->stride, last - after, filing, filed);
    add(position, source, inside - position, filing, filed);
}

// Adds rows outside the visible ones. Rows between these and the visible ones become absent rows.
void PageEntry::add(uint64_t position, const uint8_t *source, uint64_t rows, const Filing &filing,
                    RowOutcomes &filed) {
    if (rows == 0) return;
    const uint64_t last = position + rows;
    if (first == end) first = end = position;
    add_absent(end, std::max(end, position));
    add_absent(std::min(last, first), first);
    std::memcpy(at(position), source, rows * shape->stride);
    page->set_tags(row(position), rows, filing.tag);
    first = std::min(first, position), end = std::max(end, last);
    if (filing.counts()) filing.load->add(source, rows, nullptr, filing.phase);
    for (uint64_t r = 0; r < rows; r++, source += shape->stride) {
        const bool full = shape->row_full(source);
        incomplete += !full;
        (!full && shape->row_empty(source) ? filed.missing : filed.delivered)++;
    }
}

// Whether filing a row changes the one that is there.
bool PageEntry::changes(uint64_t position, const uint8_t *source, const Filing &filing) const {
    if (filing.replace && !shape->row_empty(source)) return true;
    return !shape->row_full(at(position)) && compare_rows(*shape, at(position), source).changes();
}

// Files one row at a position that has one.
void PageEntry::file_onto(uint64_t position, const uint8_t *source, const Filing &filing,
                          RowOutcomes &filed) {
    uint8_t *to = at(position);
    const bool empty = shape->row_empty(source);
    const Meeting meeting = compare_rows(*shape, to, source);
    (empty ? filed.missing : filed.delivered)++;
    filed.overlapped += meeting.overlap;
    filed.mismatched += filing.compare && meeting.overlap && differ(*shape, to, source);
    const bool replaces = filing.replace && !empty;
    if (!replaces && !meeting.changes()) return;
    if (filing.counts()) filing.load->add(source, 1, to, filing.phase);
    incomplete -= !shape->row_full(to);
    if (replaces) {
        std::memcpy(to, source, shape->stride);
        page->set_tags(row(position), 1, filing.tag);
    } else {
        const Tag tag = page->tag(row(position));
        page->set_tags(row(position), 1, merge(*shape, to, tag, source, filing.tag));
    }
    incomplete += !shape->row_full(to);
}

}  // namespace routecap
