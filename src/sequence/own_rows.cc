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
        page_->copy_rows(used_, *rows.page.get(), rows.page_row + done, n);
        push(segments, {page_, used_, rows.first + done, n, rows.complete});
        used_ += n;
        done += n;
    }
    return true;
}

bool OwnRows::add(const Storage &storage, uint64_t position, const uint8_t *row, Tag tag,
                  std::vector<Segment> &segments) {
    if (!make_room(storage, 1)) return false;
    page_->set_tags(used_, 1, tag);
    std::memcpy(page_->row(used_), row, page_->stride);
    push(segments, {page_, used_++, position, 1, storage.shape->row_full(row)});
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

}  // namespace routecap
