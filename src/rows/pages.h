// Memory for captured rows: pages, reference-counted and recycled, and the budget that bounds them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/completion.h"
#include "base/mutex.h"
#include "base/shape.h"
#include "rows/huge_blocks.h"

namespace routecap {

class PagePool;

// Memory that rows on their way into a request may need, reserved in the budget when they are
// issued. Filing takes from it what the rows turn out to need, and gives the rest back: that of
// drafts once they are settled.
struct Charge {
    uint32_t pages = 0;
    uint32_t tags = 0;  // for whole pages whose rows get a second tag

    bool none() const { return (pages | tags) == 0; }
    uint64_t bytes(uint64_t page_bytes, uint64_t tag_bytes) const {
        return pages * page_bytes + tags * tag_bytes;
    }
};

// A block of rows: ids in C order, and validity. Its owner writes rows that nobody else can see;
// rows that were lent to a routing or to another request do not change while they are. Holders pass
// pages on without touching them: they are rarely in a cache.
struct Page {
    std::atomic<uint32_t> references{1};
    uint32_t rows;                          // capacity
    uint32_t ids_bytes;                     // of one row
    uint32_t validity_bytes;                // of one row
    std::atomic<uint64_t> tag{0};           // of every row, unless there are tags
    std::atomic<uint64_t *> tags{nullptr};  // [rows], once two rows had different tags
    // Behind this header, as validity_plane is behind the ids, or foreign.
    uint8_t *ids_plane;
    uint8_t *validity_plane;
    std::shared_ptr<PagePool> pool;  // whose memory it is, and whose budget it counts in
    size_t bytes;                    // in that budget, without tags
    // Keeps foreign planes and tags alive; nobody writes such a page.
    std::shared_ptr<const void> lender;
    Page *next = nullptr;  // among DeferredPages
    // Whose budget it counts in instead: a heap object, once it was moved; and whether its tags
    // moved with it, which later ones do not.
    std::atomic<std::shared_ptr<PagePool> *> charged{nullptr};
    std::atomic<bool> tags_moved{false};

    uint8_t *ids(size_t row) const { return ids_plane + row * ids_bytes; }
    uint8_t *validity(size_t row) const { return validity_plane + row * validity_bytes; }
    uint64_t tag_of(size_t row) const {
        const uint64_t *each = tags.load(std::memory_order_acquire);
        return each != nullptr ? each[row] : tag.load(std::memory_order_relaxed);
    }
    // What it takes from a budget, with the tags that it has now.
    size_t whole_bytes() const {
        const bool tagged = tags.load(std::memory_order_acquire) != nullptr;
        return bytes + (tagged ? rows * sizeof(uint64_t) : 0);
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

// Borrowed pages that nobody refers to any more, to be freed where no mutex is held: that runs
// their lenders' callbacks.
class DeferredPages {
public:
    // While it lives, pages that this thread drops last are deferred and not freed.
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

// Gives out pages within a budget. Outlives its capturer for as long as one of its pages lives.
//
// Memory is first reserved, on the thread that issues rows, and turned into a page later, on the
// thread that files them.
class PagePool : public std::enable_shared_from_this<PagePool> {
public:
    static std::shared_ptr<PagePool> create(ShapePtr shape, uint64_t budget_bytes);
    // For rows that belong to no capturer: each page is memory of its own.
    static std::shared_ptr<PagePool> plain(ShapePtr shape, uint64_t budget_bytes);
    static std::shared_ptr<PagePool> unlimited(ShapePtr shape) {
        return plain(std::move(shape), UINT64_MAX);
    }
    PagePool(const PagePool &) = delete;
    PagePool &operator=(const PagePool &) = delete;

    // What a page of this many rows takes from the budget, and what its tags take once two of them
    // differ.
    static size_t page_bytes(const Shape &shape, uint64_t rows) {
        return (Page::kHeader + rows * shape.row_bytes() + 63) / 64 * 64;
    }
    size_t page_bytes() const { return page_bytes_; }
    static constexpr size_t tag_bytes(uint64_t rows) { return rows * sizeof(uint64_t); }

    bool reserve(uint64_t bytes);
    // Above the budget too: for rows that were accepted.
    void reserve_anyway(uint64_t bytes);
    void unreserve(uint64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }

    // Memory for a page of so many rows, as yet without a reservation: to be fetched where no lock
    // is held. Null without memory.
    void *blank(const Shape &shape, uint32_t rows) { return take_memory(page_bytes(shape, rows)); }
    void give_blank(const Shape &shape, uint32_t rows, void *memory) {
        give_memory(memory, page_bytes(shape, rows));
    }
    // Makes a page of that memory and of page_bytes(shape, rows) reserved bytes, its validity all
    // zero. Allocates nothing.
    PageRef make(const Shape &shape, uint32_t rows, void *blank);
    // Both. Null without memory; the reservation then is undone.
    PageRef make(const Shape &shape, uint32_t rows);
    // Makes one around planes of a lender; without a validity plane every cell is valid. The planes
    // take so many bytes of this budget too; null if it refuses. Throws without memory.
    PageRef borrow(uint32_t rows, const uint8_t *ids, const uint8_t *validity, const uint64_t *tags,
                   uint64_t tag, std::shared_ptr<const void> lender, uint64_t charged = 0);

    // Moves a page from the budget it counts in to this one, in which `bytes` are reserved: what
    // its whole_bytes() were. False, and the reservation stays, if it was moved before, or is not
    // one to be moved.
    bool adopt(Page &page, uint64_t bytes);

    uint64_t used() const { return used_.load(std::memory_order_relaxed); }
    uint64_t peak() const { return peak_.load(std::memory_order_relaxed); }
    uint64_t budget() const { return budget_; }

private:
    friend class PageRef;
    friend class DeferredPages;
    PagePool(ShapePtr shape, uint64_t budget_bytes, bool recycles);
    void *take_memory(size_t bytes);
    static void free(Page *page);
    void give_memory(void *memory, size_t bytes);
    bool recycled(size_t bytes) const { return recycles_ && bytes == page_bytes_; }
    bool release_idle();
    void note_peak(uint64_t used);

    const ShapePtr shape_;
    const size_t page_bytes_;
    const uint64_t budget_;
    // Standard pages come from blocks_; otherwise each is memory of its own.
    const bool recycles_;
    std::atomic<uint64_t> used_{0};  // in pages and reserved
    std::atomic<uint64_t> peak_{0};

    // What HugeBlocks says of this needs no mutex.
    HugeBlocks::Block *make_block() UNCHECKED_THREADS { return blocks_.make(); }
    void release_block(HugeBlocks::Block *block) UNCHECKED_THREADS { blocks_.release(block); }

    QuickMutex mutex_;
    // Where memory is taken or given back, used_ and its idle ones together stay within the budget.
    HugeBlocks blocks_ GUARDED_BY(mutex_);
};

// What everything that holds rows of one capturer shares. It outlives the capturer for as long as
// any of them does.
struct Storage {
    Storage(ShapePtr s, std::shared_ptr<PagePool> p, std::shared_ptr<Completion> l)
        : shape(std::move(s)), pool(std::move(p)), completion(std::move(l)) {}

    const ShapePtr shape;
    const std::shared_ptr<PagePool> pool;
    const std::shared_ptr<Completion> completion;
};
using StoragePtr = std::shared_ptr<const Storage>;

}  // namespace routecap
