// The rows of an adopt, in order: rows that lie one after another are one segment, and so are holes
// with one reason.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "rows/row_store.h"

namespace routecap {

class AdoptedRows {
public:
    explicit AdoptedRows(uint64_t first) : end_(first) {}
    // Room for so many blocks, which adding then takes no memory for.
    void reserve(size_t blocks) { segments_.reserve(blocks); }

    void add(Page *page, uint32_t row, uint64_t rows, bool complete) {
        Segment *last = this->last();
        if (last != nullptr && last->page.get() == page && last->page_row + last->rows == row &&
            last->complete == complete) {
            last->rows += rows;
        } else {
            page->references.fetch_add(1, std::memory_order_relaxed);
            segments_.push_back({PageRef(page), row, end_, rows, complete});
        }
        end_ += rows;
    }
    void add_missing(uint64_t rows, int32_t reason) {
        Segment *last = this->last();
        if (last != nullptr && !last->page && last->reason == reason)
            last->rows += rows;
        else if (rows > 0)
            segments_.push_back(Segment::not_there(end_, rows, reason));
        end_ += rows;
    }
    // A hole that may yet get rows, so that no other joins it. Its index.
    size_t add_pending(uint64_t rows, int32_t reason) {
        segments_.push_back(Segment::not_there(end_, rows, reason));
        end_ += rows;
        apart_ = segments_.size();
        return apart_ - 1;
    }
    Segment &operator[](size_t index) { return segments_[index]; }
    std::vector<Segment> take() { return std::move(segments_); }

private:
    Segment *last() { return segments_.size() > apart_ ? &segments_.back() : nullptr; }

    uint64_t end_;
    std::vector<Segment> segments_;
    size_t apart_ = 0;  // segments that nothing joins
};

}  // namespace routecap
