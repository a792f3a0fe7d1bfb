#include "sequence/own_rows.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

namespace routecap {

void push(std::vector<Segment> &segments, Segment rows) {
    if (!segments.empty()) {
        Segment &last = segments.back();
        const bool continues =
            last.end() == rows.first && last.page.get() == rows.page.get() &&
            (rows.page ? last.page_row + last.rows == rows.page_row : last.reason == rows.reason);
        if (continues) {
            last.rows += rows.rows;
            last.complete &= rows.complete;
            return;
        }
    }
    segments.push_back(std::move(rows));
}

bool OwnRows::copy(const Storage &storage, const Segment &rows, std::vector<Segment> &segments) {
    for (uint64_t done = 0; done < rows.rows;) {
        if (!make_room(storage, rows.rows - done)) return false;
        const auto n =
            static_cast<uint32_t>(std::min<uint64_t>(rows.rows - done, page_->rows - used_));
        std::memcpy(page_->ids(used_), rows.ids(done), size_t{n} * page_->ids_bytes);
        std::memcpy(page_->validity(used_), rows.validity(done), size_t{n} * page_->validity_bytes);
        const uint32_t at = used_;
        for (uint32_t r = 0; r < n;) {  // runs of one tag
            const uint64_t tag = rows.tag(done + r);
            uint32_t end = r + 1;
            while (end < n && rows.tag(done + end) == tag) end++;
            if (!tag_rows(*storage.pool, end - r, tag)) return false;
            used_ += end - r, r = end;
        }
        push(segments, {page_, at, rows.first + done, n, rows.complete});
        done += n;
    }
    return true;
}

bool OwnRows::add(const Storage &storage, uint64_t position, const uint8_t *ids,
                  const uint8_t *validity, uint64_t tag, std::vector<Segment> &segments) {
    if (!make_room(storage, 1) || !tag_rows(*storage.pool, 1, tag)) return false;
    std::memcpy(page_->ids(used_), ids, page_->ids_bytes);
    std::memcpy(page_->validity(used_), validity, page_->validity_bytes);
    push(segments, {page_, used_++, position, 1, storage.shape->row_full(validity)});
    return true;
}

// Ensures a page with an unused row. A new page has room for this many rows.
bool OwnRows::make_room(const Storage &storage, uint64_t rows) {
    if (page_ && used_ < page_->rows) return true;
    const Shape &shape = *storage.shape;
    const auto capacity =
        static_cast<uint32_t>(std::clamp<uint64_t>(rows, shape.page_rows, 1u << 30));
    if (!storage.pool->reserve(PagePool::page_bytes(shape, capacity))) return false;
    page_ = storage.pool->make(shape, capacity);
    if (!page_) throw std::bad_alloc();
    used_ = 0;
    return true;
}

// Gives the next rows a tag. Most pages have one for all rows; the first that has two gets a plane.
bool OwnRows::tag_rows(PagePool &pool, uint32_t rows, uint64_t tag) {
    uint64_t *each = page_->tags.load(std::memory_order_relaxed);
    if (each == nullptr && used_ == 0) page_->tag.store(tag, std::memory_order_relaxed);
    if (each == nullptr && page_->tag.load(std::memory_order_relaxed) != tag) {
        auto made = std::make_unique<uint64_t[]>(page_->rows);
        if (!pool.reserve(PagePool::tag_bytes(page_->rows))) return false;
        each = made.release();
        std::fill_n(each, page_->rows, page_->tag.load(std::memory_order_relaxed));
        page_->tags.store(each, std::memory_order_release);
    }
    if (each != nullptr) std::fill_n(each + used_, rows, tag);
    return true;
}

}  // namespace routecap
