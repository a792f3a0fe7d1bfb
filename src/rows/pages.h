// Memory for captured rows: reference-counted pages, and the budget that bounds them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "base/completion.h"
#include "base/mutex.h"
#include "base/numbers.h"
#include "base/shape.h"
#include "rows/huge_blocks.h"

namespace routecap {

class PagePool;

// A block of rows (kernels/row_layout.h) and their tags. The request that made it writes rows that
// no other holder can see. Rows that other holders can see do not change.
struct Page {
    std::atomic<uint32_t> references{1};
    uint32_t rows;      // capacity
    uint32_t stride;    // bytes from one row to the next
    uint32_t tag_step;  // from one row's tag to the next: 1, or 0 if a lender's rows have one tag
    // Behind this header, or a lender's.
    uint8_t *records;
    uint64_t *tags;
    uint64_t one_tag = 0;            // of a lender's page whose rows have one
    std::shared_ptr<PagePool> pool;  // made the page, which counts in its budget
    size_t bytes;                    // in that budget
    // Keeps a lender's records and tags alive. Nobody writes such a page.
    std::shared_ptr<const void> lender;
    Page *next = nullptr;  // among DeferredPages
    // Not null once the page was moved to another budget: that budget's pool, on the heap.
    std::atomic<std::shared_ptr<PagePool> *> charged{nullptr};

    uint8_t *row(size_t n) const { return records + n * stride; }
    Tag tag(size_t n) const { return Tag{tags[n * tag_step]}; }
    void set_tags(size_t first, size_t n, Tag tag) { std::fill_n(tags + first, n, number(tag)); }
    // Copies `n` rows of another page with their tags.
    void copy_rows(size_t first, const Page &from, size_t at, size_t n) {
        std::memcpy(row(first), from.row(at), n * stride);
        if (from.tag_step == 1)
            std::copy_n(from.tags + at, n, tags + first);
        else if (n > 0)
            set_tags(first, n, from.tag(at));
    }
    static constexpr size_t kHeader = 128;
};
static_assert(sizeof(Page) <= Page::kHeader);

// One reference to a page.
class PageRef {
public:
    PageRef() = default;
    explicit PageRef(Page *page) : page_(page) {}  // adopts the reference
    PageRef(const PageRef &other) : page_(other.page_) {
        if (page_ != nullptr) page_->references.fetch_add(1, std::memory_order_relaxed);
    }
    PageRef(PageRef &&other) noexcept : page_(std::exchange(other.page_, nullptr)) {}
    PageRef &operator=(PageRef other) noexcept {
        std::swap(page_, other.page_);
        return *this;
    }
    ~PageRef();

    Page *operator->() const { return page_; }
    Page *get() const { return page_; }
    explicit operator bool() const { return page_ != nullptr; }
    bool unique() const { return page_->references.load(std::memory_order_acquire) == 1; }

private:
    Page *page_ = nullptr;
};

// Lenders' pages whose last reference is gone. They are freed later, by a thread that holds no
// mutex and does not file, because freeing them runs the lenders' callbacks.
class DeferredPages {
public:
    // While this object lives, lenders' pages whose last reference this thread drops are deferred.
    class Scope {
    public:
        explicit Scope(DeferredPages &to);
        ~Scope();
        Scope(const Scope &) = delete;

    private:
        DeferredPages *const before_;
    };

    ~DeferredPages() { free(); }
    bool empty() const { return pages_.load(std::memory_order_relaxed) == nullptr; }
    void free();

private:
    friend class PageRef;
    void add(Page *page);

    std::atomic<Page *> pages_{nullptr};
};

// Makes pages within a budget. It outlives its capturer for as long as one of its pages lives. The
// thread that issues rows reserves memory, and the thread that files them makes pages of it.
class PagePool : public std::enable_shared_from_this<PagePool> {
public:
    static std::shared_ptr<PagePool> create(ShapePtr shape, uint64_t budget_bytes);
    // For rows that belong to no capturer: each page is an allocation of its own.
    static std::shared_ptr<PagePool> plain(ShapePtr shape, uint64_t budget_bytes);
    PagePool(const PagePool &) = delete;
    PagePool &operator=(const PagePool &) = delete;

    // The bytes that a page of this many rows takes from the budget.
    static size_t page_bytes(const Shape &shape, uint64_t rows) {
        return (tags_offset(shape, rows) + rows * sizeof(uint64_t) + 63) / 64 * 64;
    }
    size_t page_bytes() const { return page_bytes_; }

    bool reserve(uint64_t bytes);
    // The same, even if the budget has no room: for rows that were accepted.
    void reserve_anyway(uint64_t bytes);
    void unreserve(uint64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }

    // Makes a page of page_bytes(shape, rows) reserved bytes, whose rows and tags are not set. Null
    // without memory; the reservation then is undone.
    PageRef make(const Shape &shape, uint32_t rows);
    // Makes a page of a lender's rows. Without tags all have `tag`. Null if the budget has no room;
    // throws without memory.
    PageRef borrow(uint32_t rows, const uint8_t *records, const uint64_t *tags, Tag tag,
                   std::shared_ptr<const void> lender);

    // Moves a page to this budget, in which the caller has reserved the page's bytes. False if the
    // page is a lender's or was moved before; the bytes stay reserved.
    bool adopt(Page &page);

    uint64_t used() const { return used_.load(std::memory_order_relaxed); }
    uint64_t peak() const { return peak_.load(std::memory_order_relaxed); }
    uint64_t budget() const { return budget_; }

private:
    friend class PageRef;
    friend class DeferredPages;
    PagePool(ShapePtr shape, uint64_t budget_bytes, bool recycles);
    // Of the tags, behind the rows.
    static size_t tags_offset(const Shape &shape, uint64_t rows) {
        return (Page::kHeader + rows * shape.stride + 7) / 8 * 8;
    }
    void *take_memory(size_t bytes);
    static void free(Page *page);
    void give_memory(void *memory, size_t bytes);
    bool recycled(size_t bytes) const { return recycles_ && bytes == page_bytes_; }
    bool release_idle();
    void note_peak(uint64_t used);

    const ShapePtr shape_;
    const size_t page_bytes_;
    const uint64_t budget_;
    // Pages of the standard size come from blocks_; all others are allocations of their own.
    const bool recycles_;
    std::atomic<uint64_t> used_{0};  // in pages and reserved
    std::atomic<uint64_t> peak_{0};

    // HugeBlocks allows both at any time, so they need no mutex.
    HugeBlocks::Block *make_block() UNCHECKED_THREADS { return blocks_.make(); }
    void release_block(HugeBlocks::Block *block) UNCHECKED_THREADS { blocks_.release(block); }

    QuickMutex mutex_;
    // take_memory() and give_memory() keep used_ and the idle blocks together within the budget.
    HugeBlocks blocks_ GUARDED_BY(mutex_);
};

// What all holders of one capturer's rows share: the shape, the budget, and what threads wait on.
// It lives as long as the capturer and these holders.
struct Storage {
    Storage(ShapePtr s, std::shared_ptr<PagePool> p, std::shared_ptr<Completion> l)
        : shape(std::move(s)), pool(std::move(p)), completion(std::move(l)) {}

    const ShapePtr shape;
    const std::shared_ptr<PagePool> pool;
    const std::shared_ptr<Completion> completion;
};
using StoragePtr = std::shared_ptr<const Storage>;

}  // namespace routecap
