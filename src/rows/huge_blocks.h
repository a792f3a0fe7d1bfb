// Memory for pages of one size, cut from blocks of one huge page each.
//
// Filing goes from request to request, each in pages of its own: with the system's small pages
// most of its time would be address translation. A block goes back to the system as a whole, once
// none of its pages is in use.
#pragma once

#include <cstddef>
#include <cstdint>

namespace routecap {

// Its users guard it.
class HugeBlocks {
public:
    struct Block;
    static constexpr size_t kAlignment = 64;  // of pages
    static constexpr size_t kHugePage = 2 << 20;

    // Pages of so many bytes, a multiple of kAlignment, of which `most` may be in use at a time.
    HugeBlocks(size_t page_bytes, uint64_t most);
    HugeBlocks(const HugeBlocks &) = delete;
    HugeBlocks &operator=(const HugeBlocks &) = delete;
    // No page may be in use.
    ~HugeBlocks();

    // Null if there is no block with room: make one, where nothing guards this, and add it.
    void *take();
    void give(void *page);
    Block *make() const;  // null without memory
    void add(Block *block) { link(block); }

    // Bytes of blocks without a page in use; and one of them, which is then its caller's to
    // release, at any time.
    size_t idle_bytes() const { return idle_blocks_ * block_bytes_; }
    Block *take_idle();
    void release(Block *block) const;

private:
    void link(Block *block);
    void unlink(Block *block);

    const size_t page_bytes_;
    const size_t stride_;  // from page to page
    const uint32_t block_pages_;
    const size_t block_bytes_;
    Block *partial_ = nullptr;  // blocks with room, and pages in use
    Block *idle_ = nullptr;     // blocks without a page in use
    size_t idle_blocks_ = 0;
};

}  // namespace routecap
