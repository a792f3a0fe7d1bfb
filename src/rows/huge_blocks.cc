#include "rows/huge_blocks.h"

#include <algorithm>
#include <new>
#include <utility>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#define ROUTECAP_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ROUTECAP_ASAN 1
#endif
#endif
#if defined(ROUTECAP_ASAN)
#include <sanitizer/asan_interface.h>
#endif

namespace routecap {
namespace {

constexpr size_t kHuge = 16;  // as many blocks, or it is not worth rounding up to huge pages
constexpr std::align_val_t kBlockAlignment{HugeBlocks::kHugePage};

// What is not in use is out of bounds for AddressSanitizer, and so is what lies between pages.
#if defined(ROUTECAP_ASAN)
constexpr size_t kGuard = 64;
void forbid(void *memory, size_t bytes) { ASAN_POISON_MEMORY_REGION(memory, bytes); }
void allow(void *memory, size_t bytes) { ASAN_UNPOISON_MEMORY_REGION(memory, bytes); }
#else
constexpr size_t kGuard = 0;
void forbid(void *, size_t) {}
void allow(void *, size_t) {}
#endif

}  // namespace

// At the start of its memory, so that a page's block is found by its address.
struct alignas(64) HugeBlocks::Block {
    Block *previous, *next;  // in the list that it is in
    void *given;             // pages that were given back; each begins with the address of the next
    uint32_t in_use;
    uint32_t cut;  // pages that were ever in use

    static Block *of(void *page) {
        return reinterpret_cast<Block *>(reinterpret_cast<uintptr_t>(page) / kHugePage * kHugePage);
    }
};

HugeBlocks::HugeBlocks(size_t page_bytes, uint64_t most)
    : page_bytes_(page_bytes),
      stride_(page_bytes + kGuard),
      block_pages_(static_cast<uint32_t>(std::clamp<uint64_t>((kHugePage - sizeof(Block)) / stride_,
                                                              1, std::max<uint64_t>(most, 1)))),
      block_bytes_(most / block_pages_ < kHuge ? sizeof(Block) + block_pages_ * stride_
                                               : kHugePage) {}

HugeBlocks::~HugeBlocks() {
    while (Block *block = take_idle()) release(block);
}

void *HugeBlocks::take() {
    if (partial_ == nullptr)
        if (Block *idle = take_idle(); idle != nullptr) add(idle);
    Block *block = partial_;
    if (block == nullptr) return nullptr;
    void *page = block->given;
    if (page != nullptr)
        block->given = *static_cast<void **>(page);
    else
        page = reinterpret_cast<uint8_t *>(block + 1) + block->cut++ * stride_;
    allow(page, page_bytes_);
    if (++block->in_use == block_pages_) unlink(block);
    return page;
}

HugeBlocks::Block *HugeBlocks::make() const {
    void *memory = ::operator new(block_bytes_, kBlockAlignment, std::nothrow);
    if (memory == nullptr) return nullptr;
#if defined(__linux__)
    if (block_bytes_ == kHugePage) madvise(memory, kHugePage, MADV_HUGEPAGE);
#endif
    auto *block = new (memory) Block{};
    forbid(block + 1, block_bytes_ - sizeof(Block));
    return block;
}

void HugeBlocks::give(void *page) {
    Block *block = Block::of(page);
    *static_cast<void **>(page) = block->given;
    forbid(static_cast<void **>(page) + 1, page_bytes_ - sizeof(void *));
    block->given = page;
    if (block->in_use == block_pages_) link(block);
    if (--block->in_use > 0) return;
    unlink(block);
    block->next = std::exchange(idle_, block);
    idle_blocks_++;
}

HugeBlocks::Block *HugeBlocks::take_idle() {
    Block *block = idle_;
    if (block == nullptr) return nullptr;
    idle_ = block->next;
    idle_blocks_--;
    return block;
}

// The addresses may stay with the allocator, the memory does not.
void HugeBlocks::release(Block *block) const {
    allow(block, block_bytes_);
#if defined(__linux__)
    if (block_bytes_ == kHugePage) {
        // Or the allocator's first byte would bring it back.
        madvise(block, kHugePage, MADV_NOHUGEPAGE);
        madvise(block, kHugePage, MADV_DONTNEED);
    }
#endif
    ::operator delete(block, kBlockAlignment);
}

void HugeBlocks::link(Block *block) {
    block->previous = nullptr;
    block->next = partial_;
    if (partial_ != nullptr) partial_->previous = block;
    partial_ = block;
}

void HugeBlocks::unlink(Block *block) {
    (block->previous != nullptr ? block->previous->next : partial_) = block->next;
    if (block->next != nullptr) block->next->previous = block->previous;
}

}  // namespace routecap
