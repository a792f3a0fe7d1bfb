#include "pages.h"

#include <algorithm>
#include <cstring>
#include <new>
#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace routecap {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr size_t kIdleBytes = 64 << 20;  // kept for reuse at most; the rest goes back to the system

// Filing goes from request to request, each in pages of its own: with the system's small pages most of its time would be address translation.
constexpr size_t kHugePage = 2 << 20;
constexpr size_t kMostBlockBytes = 16 * kHugePage;  // of addresses; memory comes when it is touched
constexpr std::align_val_t kBlockAlignment{kHugePage};

void prefer_huge_pages([[maybe_unused]] void *memory, [[maybe_unused]] size_t bytes) {
#if defined(__linux__)
    if (bytes >= kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
}

// Gives whole pages of the system back to it. The addresses stay; what was there is zero.
void discard([[maybe_unused]] void *memory, [[maybe_unused]] size_t bytes) {
#if defined(__linux__)
    static const auto size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto address = reinterpret_cast<uintptr_t>(memory);
    const uintptr_t first = (address + size - 1) / size * size, end = (address + bytes) / size * size;
    if (first < end) madvise(reinterpret_cast<void *>(first), end - first, MADV_DONTNEED);
#endif
}

}  // namespace

PageRef::~PageRef() {
    if (page_ != nullptr && page_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) PagePool::free(page_);
}

std::shared_ptr<PagePool> PagePool::create(ShapePtr shape, uint64_t budget_bytes) {
    return std::shared_ptr<PagePool>(new PagePool(std::move(shape), budget_bytes, true));
}

std::shared_ptr<PagePool> PagePool::unlimited(ShapePtr shape) { return std::shared_ptr<PagePool>(new PagePool(std::move(shape), UINT64_MAX, false)); }

PagePool::PagePool(ShapePtr shape, uint64_t budget_bytes, bool recycles)
    : shape_(std::move(shape)), page_bytes_(page_bytes(*shape_, shape_->page_rows)), budget_(budget_bytes), recycles_(recycles) {}

PagePool::~PagePool() {
    for (void *block : blocks_) ::operator delete(block, kBlockAlignment);
}

size_t PagePool::page_bytes(const Shape &shape, uint64_t rows) { return (Page::kHeader + rows * shape.row_bytes() + 63) / 64 * 64; }

bool PagePool::reserve(uint64_t bytes) {
    uint64_t used = used_.load(std::memory_order_relaxed);
    do {
        if (bytes > budget_ || used > budget_ - bytes) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    uint64_t peak = peak_.load(std::memory_order_relaxed);
    while (peak < used + bytes && !peak_.compare_exchange_weak(peak, used + bytes, std::memory_order_relaxed)) {
    }
    return true;
}

void *PagePool::take_memory(size_t bytes) {
    {
        const std::lock_guard lock(mutex_);
        if (recycled(bytes) && !idle_.empty()) {
            void *memory = idle_.back();
            idle_.pop_back();
            return memory;
        }
        while (!idle_.empty() && used() + idle_.size() * page_bytes_ > budget_) discard_one();
        if (recycled(bytes) && !discarded_.empty()) {
            void *memory = discarded_.back();
            discarded_.pop_back();
            return memory;
        }
        if (recycled(bytes)) return fresh_ != fresh_end_ || grow() ? std::exchange(fresh_, fresh_ + page_bytes_) : nullptr;
    }
    return ::operator new(bytes, kAlignment, std::nothrow);
}

// One more block: as large as all before it, within the budget, or a single page if the system refuses that. What is given back later has room.
bool PagePool::grow() {
    const uint64_t left = std::max(budget_ - budget_ % page_bytes_, (pages_ + 1) * page_bytes_) - pages_ * page_bytes_;
    const size_t wanted = std::clamp(pages_ * page_bytes_ / kHugePage * kHugePage, kHugePage, kMostBlockBytes);
    size_t bytes = std::min<uint64_t>(wanted, left);
    void *block = ::operator new(bytes, kBlockAlignment, std::nothrow);
    if (block == nullptr) block = ::operator new(bytes = page_bytes_, kBlockAlignment, std::nothrow);
    if (block == nullptr) return false;
    const size_t pages = bytes / page_bytes_;
    try {
        blocks_.reserve(blocks_.size() + 1);
        idle_.reserve(pages_ + pages);
        discarded_.reserve(pages_ + pages);
    } catch (const std::bad_alloc &) {
        ::operator delete(block, kBlockAlignment);
        return false;
    }
    prefer_huge_pages(block, bytes);
    blocks_.push_back(block);
    pages_ += pages;
    fresh_ = static_cast<uint8_t *>(block), fresh_end_ = fresh_ + pages * page_bytes_;
    return true;
}

void PagePool::discard_one() {
    discard(idle_.back(), page_bytes_);
    discarded_.push_back(idle_.back());
    idle_.pop_back();
}

PageRef PagePool::make(const Shape &shape, uint32_t rows) {
    const size_t bytes = page_bytes(shape, rows);
    void *memory = take_memory(bytes);
    if (memory == nullptr) {
        unreserve(bytes);
        return PageRef();
    }
    uint8_t *ids = static_cast<uint8_t *>(memory) + Page::kHeader;
    Page *page = new (memory) Page{.rows = rows,
                                   .ids_bytes = shape.ids_bytes,
                                   .validity_bytes = shape.validity_bytes,
                                   .ids_plane = ids,
                                   .validity_plane = ids + size_t{rows} * shape.ids_bytes,
                                   .pool = shared_from_this(),
                                   .bytes = bytes,
                                   .lender = nullptr};
    std::memset(page->validity(0), 0, static_cast<size_t>(rows) * shape.validity_bytes);
    return PageRef(page);
}

// A lent page is read only, whatever the pointers in it could do.
PageRef PagePool::borrow(uint32_t rows, const uint8_t *ids, const uint8_t *validity, const uint64_t *tags, uint64_t tag,
                         std::shared_ptr<const void> lender) {
    const size_t bytes = Page::kHeader + (validity != nullptr ? 0 : size_t{rows} * shape_->validity_bytes);
    auto *memory = static_cast<uint8_t *>(::operator new(bytes, kAlignment));
    reserve(bytes);
    Page *page = new (memory) Page{.rows = rows,
                                   .ids_bytes = shape_->ids_bytes,
                                   .validity_bytes = shape_->validity_bytes,
                                   .tag = tag,
                                   .tags = const_cast<uint64_t *>(tags),
                                   .ids_plane = const_cast<uint8_t *>(ids),
                                   .validity_plane = validity != nullptr ? const_cast<uint8_t *>(validity) : memory + Page::kHeader,
                                   .pool = shared_from_this(),
                                   .bytes = bytes,
                                   .lender = std::move(lender)};
    for (uint32_t r = 0; validity == nullptr && r < rows; r++) std::memcpy(page->validity(r), shape_->full.data(), shape_->validity_bytes);
    return PageRef(page);
}

void PagePool::free(Page *page) {
    const std::shared_ptr<PagePool> pool = std::move(page->pool);
    const size_t bytes = page->bytes;
    const bool borrowed = page->lender != nullptr;
    if (const uint64_t *tags = page->tags.load(std::memory_order_relaxed); tags != nullptr && !borrowed) {
        delete[] tags;
        pool->unreserve(static_cast<size_t>(page->rows) * sizeof *tags);
    }
    page->~Page();
    pool->unreserve(bytes);
    if (borrowed) return ::operator delete(page, kAlignment);
    pool->give_memory(page, bytes);
}

void PagePool::give_memory(void *memory, size_t bytes) {
    if (!recycled(bytes)) return ::operator delete(memory, kAlignment);
    const std::lock_guard lock(mutex_);
    idle_.push_back(memory);
    const size_t idle_bytes = idle_.size() * page_bytes_;
    if (idle_bytes > kIdleBytes || used() + idle_bytes > budget_) discard_one();
}

}  // namespace routecap
