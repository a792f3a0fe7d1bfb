#include "prefix/block_pages.h"

#include <algorithm>
#include <new>

#include "base/assume.h"

namespace routecap {

BlockPages::BlockPages(const Shape &shape, uint32_t block_rows)
    : block_rows_(block_rows), slots_(std::max(1u, shape.page_rows / block_rows)) {
    chunks_.reserve(kMost / kChunk);
}

BlockPages::Chunk BlockPages::make() { return Chunk(new (std::nothrow) Entry[kChunk]{}); }

void BlockPages::add(Chunk chunk) { chunks_.push_back(std::move(chunk)); }

BlockPages::Entry &BlockPages::entry(uint32_t r) const { return chunks_[r / kChunk][r % kChunk]; }

uint32_t BlockPages::share(PageRef page, uint32_t blocks) {
    ROUTECAP_ASSUME(!full());
    const uint32_t r = free_ != kNone ? free_ : made_++;
    Entry &entry = this->entry(r);
    if (r == free_) free_ = entry.next;
    entry = {};
    entry.page = std::move(page);
    entry.blocks = blocks;
    return r;
}

void BlockPages::add_slots(PageRef page) {
    const uint32_t r = share(std::move(page), 0);
    entry(r).own = true;
    list(r);
}

void BlockPages::list(uint32_t r) {
    Entry &entry = this->entry(r);
    entry.listed = true;
    entry.previous = kNone;
    entry.next = open_;
    (open_ != kNone ? this->entry(open_).previous : open_last_) = r;
    open_ = r;
}

void BlockPages::unlist(uint32_t r) {
    Entry &entry = this->entry(r);
    entry.listed = false;
    (entry.previous != kNone ? this->entry(entry.previous).next : open_) = entry.next;
    (entry.next != kNone ? this->entry(entry.next).previous : open_last_) = entry.previous;
}

bool BlockPages::take_from(uint32_t r, uint32_t &place) {
    Entry &entry = this->entry(r);
    // Slots of blocks that went can be written once nobody else has the page.
    if (entry.page.unique()) std::copy(entry.live, entry.live + 4, entry.used);
    uint32_t slot = 0;
    while (slot < slots_ && (entry.used[slot / 64] >> slot % 64 & 1) != 0) slot++;
    if (slot == slots_) return false;
    entry.used[slot / 64] |= uint64_t{1} << slot % 64;
    entry.live[slot / 64] |= uint64_t{1} << slot % 64;
    entry.blocks++;
    place = this->place(r, slot);
    if (entry.blocks == slots_) unlist(r);
    return true;
}

bool BlockPages::take(uint32_t &place) {
    uint32_t r = open_;
    for (int looked = 0; r != kNone && looked < 4; looked++) {
        if (take_from(r, place)) return true;
        // It is full until others let go of it: the next look begins elsewhere.
        const uint32_t next = entry(r).next;
        if (r != open_last_) {
            unlist(r);
            entry(r).listed = true;
            entry(r).previous = open_last_;
            entry(r).next = kNone;
            entry(open_last_).next = r;
            open_last_ = r;
        }
        r = next;
    }
    return false;
}

PageRef BlockPages::give(uint32_t place) {
    const uint32_t r = place >> 8, slot = place & 255;
    Entry &entry = this->entry(r);
    entry.blocks--;
    if (entry.own) entry.live[slot / 64] &= ~(uint64_t{1} << slot % 64);
    if (entry.blocks > 0) {
        if (entry.own && !entry.listed) list(r);
        return PageRef();
    }
    if (entry.listed) unlist(r);
    PageRef page = std::move(entry.page);
    entry.next = free_;
    free_ = r;
    return page;
}

BlockPages::Place BlockPages::at(uint32_t place) const {
    const Entry &entry = this->entry(place >> 8);
    return {entry.page.get(), (place & 255) * (entry.own ? block_rows_ : 1)};
}

Tag BlockPages::least_tag(uint32_t place) const {
    const Place at = this->at(place);
    Tag least = at.page->tag(at.row);
    for (uint32_t r = 1; r < block_rows_; r++) least = std::min(least, at.page->tag(at.row + r));
    return least;
}

PageRef BlockPages::page(uint32_t place) const { return entry(place >> 8).page; }

}  // namespace routecap
