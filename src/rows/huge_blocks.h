// Memory for pages of one size, cut from blocks of one huge page each.
//
// Filing goes from request to request, and each has pages of its own. With the system's small
// pages, address translation would take most of the time. A block goes back to the system once none
// of its pages is in use.
#pragma once

#include <cstddef>
#include <cstdint>

namespace routecap {

// Not thread-safe: PagePool guards it.
class HugeBlocks {
public:
    struct Block;
    static constexpr size_t kAlignment = 64;  // of pages
    static constexpr size_t kHugePage = 2 << 20;

    // For pages of this size, a multiple of kAlignment. At most `most` are in use at a time.
    HugeBlocks(size_t page_bytes, uint64_t most);
    HugeBlocks(const HugeBlocks &) = delete;
    HugeBlocks &operator=(const HugeBlocks &) = delete;
    // No page may be in use.
    ~HugeBlocks();

    // Null if no block has room. The caller then makes a block without the mutex, and adds it.
    void *take();
    void give(void *page);
    Block *make() const;  // null without memory
    void add(Block *block) { link(block); }

    // The bytes of blocks without a page in use. take_idle() gives one of them to the caller, who
    // releases it, and needs no mutex for that.
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
