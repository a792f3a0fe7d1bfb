#include "prefix/block_pages.h"

#include <algorithm>
#include <new>

namespace routecap {

BlockPages::BlockPages(const Shape &shape, uint32_t block_rows)
    : block_rows_(block_rows), slots_(std::max(1u, shape.page_rows / block_rows)) {
    chunks_.reserve(kMost / kChunk);
}

BlockPages::Chunk BlockPages::make() { return Chunk(new (std::nothrow) Record[kChunk]{}); }

void BlockPages::add(Chunk chunk) { chunks_.push_back(std::move(chunk)); }

BlockPages::Record &BlockPages::record(uint32_t r) const { return chunks_[r / kChunk][r % kChunk]; }

uint32_t BlockPages::share(PageRef page, uint32_t blocks) {
    const uint32_t r = free_ != kNone ? free_ : made_++;
    Record &record = this->record(r);
    if (r == free_) free_ = record.next;
    record = {};
    record.page = std::move(page);
    record.blocks = blocks;
    return r;
}

void BlockPages::add_slots(PageRef page) {
    const uint32_t r = share(std::move(page), 0);
    record(r).own = true;
    list(r);
}

void BlockPages::list(uint32_t r) {
    Record &record = this->record(r);
    record.listed = true;
    record.previous = kNone;
    record.next = open_;
    (open_ != kNone ? this->record(open_).previous : open_last_) = r;
    open_ = r;
}

void BlockPages::unlist(uint32_t r) {
    Record &record = this->record(r);
    record.listed = false;
    (record.previous != kNone ? this->record(record.previous).next : open_) = record.next;
    (record.next != kNone ? this->record(record.next).previous : open_last_) = record.previous;
}

bool BlockPages::take_from(uint32_t r, uint64_t tag, bool one_tag, uint32_t &place) {
    Record &record = this->record(r);
    // Slots of blocks that went can be written once nobody else has the page.
    if (record.page.unique()) std::copy(record.live, record.live + 4, record.used);
    uint32_t slot = 0;
    while (slot < slots_ && (record.used[slot / 64] >> slot % 64 & 1) != 0) slot++;
    if (slot == slots_) return false;
    Page &page = *record.page.get();
    if (page.tags.load(std::memory_order_relaxed) == nullptr) {
        if (record.blocks == 0 && page.references.load(std::memory_order_acquire) == 1)
            page.tag.store(tag, std::memory_order_relaxed);
        if (!one_tag || page.tag.load(std::memory_order_relaxed) != tag) page.split_tags();
    }
    record.used[slot / 64] |= uint64_t{1} << slot % 64;
    record.live[slot / 64] |= uint64_t{1} << slot % 64;
    record.blocks++;
    place = this->place(r, slot);
    if (record.blocks == slots_) unlist(r);
    return true;
}

bool BlockPages::take(uint64_t tag, bool one_tag, uint32_t &place) {
    uint32_t r = open_;
    for (int looked = 0; r != kNone && looked < 4; looked++) {
        if (take_from(r, tag, one_tag, place)) return true;
        // It is full until others let go of it: the next look begins elsewhere.
        const uint32_t next = record(r).next;
        if (r != open_last_) {
            unlist(r);
            record(r).listed = true;
            record(r).previous = open_last_;
            record(r).next = kNone;
            record(open_last_).next = r;
            open_last_ = r;
        }
        r = next;
    }
    return false;
}

PageRef BlockPages::give(uint32_t place) {
    const uint32_t r = place >> 8, slot = place & 255;
    Record &record = this->record(r);
    record.blocks--;
    if (record.own) record.live[slot / 64] &= ~(uint64_t{1} << slot % 64);
    if (record.blocks > 0) {
        if (record.own && !record.listed) list(r);
        return PageRef();
    }
    if (record.listed) unlist(r);
    PageRef page = std::move(record.page);
    record.next = free_;
    free_ = r;
    return page;
}

BlockPages::Place BlockPages::at(uint32_t place) const {
    const Record &record = this->record(place >> 8);
    return {record.page.get(), (place & 255) * (record.own ? block_rows_ : 1)};
}

uint64_t BlockPages::least_tag(uint32_t place) const {
    const Place at = this->at(place);
    const uint64_t *tags = at.page->tags.load(std::memory_order_acquire);
    return tags != nullptr ? *std::min_element(tags + at.row, tags + at.row + block_rows_)
                           : at.page->tag.load(std::memory_order_relaxed);
}

PageRef BlockPages::page(uint32_t place) const { return record(place >> 8).page; }

}  // namespace routecap
