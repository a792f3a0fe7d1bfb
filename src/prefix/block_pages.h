// Where the rows of a store's blocks lie: in pages of requests that the store shares, and in pages
// of its own, which are cut into slots of one block. Its users guard it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "rows/pages.h"

namespace routecap {

class BlockPages {
public:
    // A page, and the first row of the block in it.
    struct Place {
        Page *page;
        uint32_t row;
    };

    BlockPages(const Shape &shape, uint32_t block_rows);

    // Rows of a page of its own, and of how many slots.
    uint32_t rows() const { return slots_ * block_rows_; }
    uint32_t slots() const { return slots_; }

    // A page with blocks.
    struct Entry {
        PageRef page;
        uint32_t blocks;          // that live in it
        bool own;                 // it is cut into slots
        bool listed;              // among the open ones
        uint32_t next, previous;  // of these; or the next free entry
        uint64_t used[4];  // slots of blocks, and of those that went while others had the page
        uint64_t live[4];  // slots of blocks
    };
    // Room for more pages, to be made where nothing guards this. Null without memory.
    using Chunk = std::unique_ptr<Entry[]>;
    bool full() const { return free_ == kNone && made_ == chunks_.size() * kChunk; }
    bool possible() const { return free_ != kNone || made_ < kMost; }
    static Chunk make();
    void add(Chunk chunk);

    // With room: a page of a request with blocks of this store, and how many; the number by which
    // they are placed. And a page of its own, empty.
    uint32_t share(PageRef page, uint32_t blocks);
    static uint32_t place(uint32_t entry, uint32_t page_row) { return entry << 8 | page_row; }
    void add_slots(PageRef page);

    // A slot for a block, which is nobody else's from then on. False if there is none.
    bool take(uint32_t &place);
    // A block went. What is returned is to be dropped where nothing guards this.
    PageRef give(uint32_t place);

    Place at(uint32_t place) const;
    PageRef page(uint32_t place) const;
    // Of the rows of a block.
    Tag least_tag(uint32_t place) const;

private:
    static constexpr uint32_t kNone = UINT32_MAX, kChunk = 1024, kMost = 1u << 24;
    Entry &entry(uint32_t r) const;
    bool take_from(uint32_t r, uint32_t &place);
    void list(uint32_t r);
    void unlist(uint32_t r);

    const uint32_t block_rows_;
    const uint32_t slots_;  // of a page of its own, 256 at most
    std::vector<Chunk> chunks_;
    uint32_t made_ = 0, free_ = kNone;
    // Pages of its own with slots that are free, or will be once nobody else has the page; newest
    // first.
    uint32_t open_ = kNone, open_last_ = kNone;
};

}  // namespace routecap
