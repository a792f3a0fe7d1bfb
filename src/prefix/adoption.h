// What an adopt found, on its way to whoever files: rows in order. Rows that lie one after another
// are one segment, and so are holes with one reason.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "prefix/publication.h"
#include "rows/row_store.h"

namespace routecap {

class Adoption {
public:
    // Rows from `first` on. Adding so many blocks takes no more memory.
    Adoption(uint64_t first, size_t blocks) : end_(first) {
        segments_.reserve(blocks);
        late_.reserve(blocks);
    }

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
    // Rows of a block in flight: a hole that may yet get them, so that no other joins it.
    void add_late(uint64_t rows, std::shared_ptr<Publication> publication, uint32_t block) {
        late_.push_back({segments_.size(), std::move(publication), block});
        segments_.push_back(Segment::not_there(end_, rows, ROUTECAP_MISSING_NOT_PUBLISHED));
        end_ += rows;
        apart_ = segments_.size();
    }

    // By whoever files, once, after the publications in flight: the rows as segments in order,
    // those that are not there with their reason.
    std::vector<Segment> take() {
        for (const Late &late : late_) {
            const BlockRows &rows = late.publication->landed(late.block);
            Segment &segment = segments_[late.segment];
            segment.reason = rows.page ? 0 : rows.reason;
            if (!rows.page) continue;
            segment.page = rows.page;
            segment.page_row = rows.row;
            segment.complete = rows.complete;
        }
        late_.clear();
        return std::move(segments_);
    }

private:
    struct Late {
        size_t segment;
        std::shared_ptr<Publication> publication;
        uint32_t block;
    };
    Segment *last() { return segments_.size() > apart_ ? &segments_.back() : nullptr; }

    uint64_t end_;
    std::vector<Segment> segments_;
    std::vector<Late> late_;
    size_t apart_ = 0;  // segments that nothing joins
};

}  // namespace routecap
