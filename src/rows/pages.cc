#include "rows/pages.h"

#include <cstring>
#include <new>

namespace routecap {
namespace {

constexpr std::align_val_t kAlignment{HugeBlocks::kAlignment};
constexpr size_t kIdleBytes = 64 << 20;  // kept for reuse at most; the rest goes back to the system

}  // namespace

static thread_local DeferredPages *deferring = nullptr;

PageRef::~PageRef() {
    if (page_ == nullptr || page_->references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    if (deferring != nullptr && page_->lender != nullptr)
        deferring->add(page_);
    else
        PagePool::free(page_);
}

DeferredPages::Scope::Scope(DeferredPages &to) : before_(std::exchange(deferring, &to)) {}

DeferredPages::Scope::~Scope() { deferring = before_; }

void DeferredPages::add(Page *page) {
    page->next = pages_.load(std::memory_order_relaxed);
    while (!pages_.compare_exchange_weak(page->next, page, std::memory_order_release,
                                         std::memory_order_relaxed)) {}
}

void DeferredPages::free() {
    Page *page = pages_.exchange(nullptr, std::memory_order_acquire);
    while (page != nullptr) PagePool::free(std::exchange(page, page->next));
}

std::shared_ptr<PagePool> PagePool::create(ShapePtr shape, uint64_t budget_bytes) {
    return std::shared_ptr<PagePool>(new PagePool(std::move(shape), budget_bytes, true));
}

std::shared_ptr<PagePool> PagePool::plain(ShapePtr shape, uint64_t budget_bytes) {
    return std::shared_ptr<PagePool>(new PagePool(std::move(shape), budget_bytes, false));
}

PagePool::PagePool(ShapePtr shape, uint64_t budget_bytes, bool recycles)
    : shape_(std::move(shape)),
      page_bytes_(page_bytes(*shape_, shape_->page_rows)),
      budget_(budget_bytes),
      recycles_(recycles),
      blocks_(page_bytes_, budget_ / page_bytes_) {}

bool PagePool::reserve(uint64_t bytes) {
    uint64_t used = used_.load(std::memory_order_relaxed);
    do {
        if (bytes > budget_ || used > budget_ - bytes) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    note_peak(used + bytes);
    return true;
}

void PagePool::reserve_anyway(uint64_t bytes) {
    note_peak(used_.fetch_add(bytes, std::memory_order_relaxed) + bytes);
}

void PagePool::note_peak(uint64_t used) {
    uint64_t peak = peak_.load(std::memory_order_relaxed);
    while (peak < used && !peak_.compare_exchange_weak(peak, used, std::memory_order_relaxed)) {}
}

void *PagePool::take_memory(size_t bytes) {
    if (recycled(bytes)) {
        for (;;) {
            {
                const Lock lock(mutex_);
                if (void *memory = blocks_.take(); memory != nullptr) return memory;
            }
            HugeBlocks::Block *block = make_block();  // of the system, and that may take its time
            if (block == nullptr) return nullptr;
            const Lock lock(mutex_);
            blocks_.add(block);
        }
    }
    while (release_idle()) {}
    return ::operator new(bytes, kAlignment, std::nothrow);
}

// One block, if too many are idle or the budget is needed for something else.
bool PagePool::release_idle() {
    HugeBlocks::Block *block = nullptr;
    {
        const Lock lock(mutex_);
        const size_t idle = blocks_.idle_bytes();
        if (idle <= kIdleBytes && used() + idle <= budget_) return false;
        block = blocks_.take_idle();
    }
    if (block == nullptr) return false;
    release_block(block);
    return true;
}

PageRef PagePool::make(const Shape &shape, uint32_t rows) {
    const size_t bytes = page_bytes(shape, rows);
    void *memory = take_memory(bytes);
    if (memory == nullptr) {
        unreserve(bytes);
        return PageRef();
    }
    auto *at = static_cast<uint8_t *>(memory);
#if defined(__SANITIZE_ADDRESS__)
    std::memset(at, 0xa5, bytes);  // a row that was not set has nothing that could be right
#endif
    return PageRef(new (memory)
                       Page{.rows = rows,
                            .stride = shape.stride,
                            .tag_step = 1,
                            .records = at + Page::kHeader,
                            .tags = reinterpret_cast<uint64_t *>(at + tags_offset(shape, rows)),
                            .pool = shared_from_this(),
                            .bytes = bytes,
                            .lender = nullptr});
}

// A lent page is read only, whatever the pointers in it could do.
PageRef PagePool::borrow(uint32_t rows, const uint8_t *records, const uint64_t *tags, Tag tag,
                         std::shared_ptr<const void> lender) {
    constexpr size_t bytes = Page::kHeader;
    if (!reserve(bytes)) return PageRef();
    void *memory = ::operator new(bytes, kAlignment, std::nothrow);
    if (memory == nullptr) {
        unreserve(bytes);
        throw std::bad_alloc();
    }
    Page *page = new (memory) Page{.rows = rows,
                                   .stride = shape_->stride,
                                   .tag_step = tags != nullptr ? 1u : 0u,
                                   .records = const_cast<uint8_t *>(records),
                                   .tags = const_cast<uint64_t *>(tags),
                                   .one_tag = number(tag),
                                   .pool = shared_from_this(),
                                   .bytes = bytes,
                                   .lender = std::move(lender)};
    if (tags == nullptr) page->tags = &page->one_tag;
    return PageRef(page);
}

bool PagePool::adopt(Page &page) {
    if (page.pool.get() == this || page.lender != nullptr) return false;
    auto *charged = new (std::nothrow) std::shared_ptr<PagePool>(shared_from_this());
    std::shared_ptr<PagePool> *none = nullptr;
    if (charged == nullptr || !page.charged.compare_exchange_strong(none, charged)) {
        delete charged;
        return false;
    }
    page.pool->unreserve(page.bytes);
    return true;
}

void PagePool::free(Page *page) {
    const std::shared_ptr<PagePool> pool = std::move(page->pool);
    const size_t bytes = page->bytes;
    const bool borrowed = page->lender != nullptr;
    const std::unique_ptr<std::shared_ptr<PagePool>> moved(
        page->charged.load(std::memory_order_relaxed));
    page->~Page();
    (moved != nullptr ? **moved : *pool).unreserve(bytes);
    if (borrowed) return ::operator delete(page, kAlignment);
    pool->give_memory(page, bytes);
}

void PagePool::give_memory(void *memory, size_t bytes) {
    if (!recycled(bytes)) return ::operator delete(memory, kAlignment);
    {
        const Lock lock(mutex_);
        blocks_.give(memory);
    }
    release_idle();
}

}  // namespace routecap
