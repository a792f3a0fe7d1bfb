// What becomes of published rows once they are there: each block is compared with what the store
// has, shared with its request, or copied. Done by whoever files.
#include <algorithm>
#include <cstring>
#include <new>

#include "prefix/publication.h"
#include "prefix/store.h"
#include "rows/merge.h"

namespace routecap {

class Landing {
public:
    Landing(Store &store, Publication &published, std::span<const Segment> rows)
        : s_(store),
          shape_(*store.shape_),
          p_(published),
          rows_(rows),
          block_rows_(store.config_.block_rows),
          blocks_(published.blocks_.size()) {}

    // After its first lines nothing throws: what was placed is finished.
    void run() {
        dropped_.reserve(2 * kAtOnce);
        if (p_.generation_ >= s_.generation()) place();
        finish();
        if (all_stale_) s_.note_stale(newest_, p_.generation_);
    }

private:
    using Id = BlockTable::Id;
    using State = BlockTable::State;
    enum class Outcome : uint8_t { nothing, refused, stale, empty, repeated, copy, done };
    struct Landed {
        size_t from = 0;      // the first segment with rows of it
        BlockRows before;     // what the key has
        Tag tag = Tag::none;  // the least of its rows
        uint32_t place = 0;   // done
        uint32_t row = 0;
        Page *page = nullptr;  // the one that has all its rows; done: has them in the store
        Outcome outcome = Outcome::nothing;
        bool complete = true, mismatched = false;
    };

    void place() {
        look_before();
        size_t at = 0;
        all_stale_ = true;
        for (size_t i = 0; i < blocks_.size(); i++) {
            scan(i, at);
            all_stale_ &= blocks_[i].outcome == Outcome::stale;
        }
        share();
        for (size_t i = 0; i < blocks_.size(); i++)
            if (blocks_[i].outcome == Outcome::copy) copy(i);
    }

    uint64_t first_of(size_t i) const { return p_.first + i * block_rows_; }

    // Calls f(segment, row of the segment, row of the block, rows) for what is there of block i.
    template <class F>
    void for_each_part(size_t i, F f) const {
        const uint64_t first = first_of(i), end = first + block_rows_;
        for (size_t at = blocks_[i].from; at < rows_.size() && rows_[at].first < end; at++) {
            const Segment &segment = rows_[at];
            const uint64_t from = std::max(first, segment.first), to = std::min(end, segment.end());
            if (segment.page && from < to)
                f(segment, from - segment.first, from - first, to - from);
        }
    }

    void look_before() {
        if (s_.slot_keys()) return;
        const Lock lock(s_.mutex_);
        for (size_t i = 0; i < blocks_.size(); i++) {
            const Id id = p_.blocks_[i];
            if (id == 0 || s_.table_.at(id).linked || s_.table_.at(id).superseded) continue;
            const uint8_t *key = s_.table_.key(id);
            const Id there = s_.table_.find(key, s_.table_.hash(key));
            if (there == 0) continue;
            const BlockTable::Block &block = s_.table_.at(there);
            if (block.state() == State::ready && s_.current(block))
                blocks_[i].before = s_.rows_of(there);
        }
    }

    // What there is of block i, and what is to be done with it.
    void scan(size_t i, size_t &at) {
        Landed &b = blocks_[i];
        while (at < rows_.size() && rows_[at].end() <= first_of(i)) at++;
        b.from = at;
        if (p_.blocks_[i] == 0) return;
        uint64_t there = 0;
        bool any = false, news = false;
        for_each_part(i, [&](const Segment &segment, uint64_t from, uint64_t block_row,
                             uint64_t n) {
            if (n == block_rows_)
                b.page = segment.page.get(), b.row = segment.page_row + static_cast<uint32_t>(from);
            there += n;
            for (uint64_t r = from; r < from + n; r++) {
                const uint8_t *row = segment.row(r);
                const bool full = segment.complete || shape_.row_full(row);
                b.complete &= full;
                if (!full && shape_.row_empty(row)) continue;
                const Tag tag = segment.tag(r);
                b.tag = any ? std::min(b.tag, tag) : tag;
                any = true;
                if (b.before.page) meet(b, block_row + (r - from), row, news);
            }
        });
        b.complete &= there == block_rows_;
        newest_ = std::max(newest_, number(b.tag));
        if (!any)
            b.outcome = Outcome::empty;
        else if (number(b.tag) < p_.generation_)
            b.outcome = Outcome::stale, b.mismatched = false;
        else if (b.before.page && !news)
            b.outcome = Outcome::repeated;
        else
            b.outcome = Outcome::copy;
        if (b.before.page || !b.complete) b.page = nullptr;
    }

    // A row meets what the key has: whether it differs, and whether it has something new.
    void meet(Landed &b, uint64_t n, const uint8_t *row, bool &news) const {
        const uint8_t *before = b.before.page->row(b.before.row + n);
        const Meeting met = compare_rows(shape_, before, row);
        news |= met.fills;
        b.mismatched |= met.overlap && differ(shape_, before, row);
    }

    // Pages that are worth it are shared: those of which no more than a quarter would be dead, and
    // those that count in the store's budget already.
    void share() {
        for (size_t i = 0; i < blocks_.size();) {
            Page *page = sharable(i) ? blocks_[i].page : nullptr;
            if (page == nullptr) {
                i++;
                continue;
            }
            size_t end = i;
            uint32_t blocks = 0;
            for (; end < blocks_.size() && (!sharable(end) || blocks_[end].page == page); end++)
                blocks += sharable(end);
            const std::shared_ptr<PagePool> *charged =
                page->charged.load(std::memory_order_acquire);
            const bool ours = charged != nullptr && *charged == s_.pool_;
            if (ours || uint64_t{blocks} * block_rows_ * 4 >= uint64_t{page->rows} * 3)
                share(page, i, end, blocks, ours);
            i = end;
        }
    }
    bool sharable(size_t i) const {
        const Landed &b = blocks_[i];
        return b.outcome == Outcome::copy && b.page != nullptr && b.page->lender == nullptr &&
               b.page->rows <= kPageRows && b.page->pool != s_.pool_;
    }
    void share(Page *page, size_t first, size_t end, uint32_t blocks, bool ours) {
        const uint64_t moved = ours ? 0 : page->bytes, bytes = moved + blocks * s_.block_bytes_;
        if (!s_.pay(bytes)) return;
        page->references.fetch_add(1, std::memory_order_relaxed);
        uint32_t entry = 0;
        if (!s_.add_page(PageRef(page), blocks, entry)) return s_.pool_->unreserve(bytes);
        if (!ours && !s_.pool_->adopt(*page)) s_.pool_->unreserve(moved);
        for (size_t i = first; i < end; i++) {
            Landed &b = blocks_[i];
            if (!sharable(i)) continue;
            b.place = BlockPages::place(entry, b.row);
            b.outcome = Outcome::done;
        }
    }

    void copy(size_t i) {
        Landed &b = blocks_[i];
        Store::BlockSlot slot;
        if (!s_.take_slot(slot)) {
            b.outcome = Outcome::refused;
            return;
        }
        Page &to = *slot.page;
        if (b.before.page) to.copy_rows(slot.row, *b.before.page.get(), b.before.row, block_rows_);
        for (uint32_t r = 0; !b.before.page && !b.complete && r < block_rows_; r++) {
            shape_.make_missing(to.row(slot.row + r), ROUTECAP_MISSING_NOT_PUBLISHED);
            to.set_tags(slot.row + r, 1, b.tag);
        }
        for_each_part(
            i, [&](const Segment &segment, uint64_t from, uint64_t block_row, uint64_t n) {
                const uint64_t first = slot.row + block_row;
                if (!b.before.page && (segment.complete || b.complete))
                    return to.copy_rows(first, *segment.page.get(), segment.page_row + from, n);
                for (uint64_t r = 0; r < n; r++) add(to, first + r, segment, from + r, b.tag);
            });
        b.complete = true;
        for (uint32_t r = 0; r < block_rows_ && b.complete; r++)
            b.complete = shape_.row_full(to.row(slot.row + r));
        copied_ += block_rows_;
        b.page = slot.page, b.row = slot.row, b.place = slot.place;
        b.outcome = Outcome::done;
    }
    // A row that is not there adds nothing, and one without a cell says nothing of the block's age.
    void add(Page &to, uint64_t n, const Segment &from, uint64_t row, Tag block_tag) const {
        if (shape_.row_reason(from.row(row)) != 0) return;
        const Tag tag = merge(shape_, to.row(n), to.tag(n), from.row(row), from.tag(row));
        to.set_tags(n, 1, shape_.row_empty(to.row(n)) ? block_tag : tag);
    }

    static constexpr size_t kAtOnce = 64;

    void finish() {
        for (size_t first = 0; first < blocks_.size(); first += kAtOnce) {
            {
                const Lock lock(s_.mutex_);
                const size_t end = std::min(first + kAtOnce, blocks_.size());
                for (size_t i = first; i < end; i++) finish(i);
                s_.counted_.rows_copied += std::exchange(copied_, 0);
            }
            dropped_.clear();
        }
    }
    void finish(size_t i) REQUIRES(s_.mutex_) {
        Landed &b = blocks_[i];
        const Id id = std::exchange(p_.blocks_[i], 0);
        if (id == 0) return;
        routecap_store_counts &counted = s_.counted_;
        const bool stale = b.outcome == Outcome::stale || !s_.current(s_.table_.at(id));
        if (stale) {
            counted.blocks_stale++;
        } else {
            counted.blocks_published += b.outcome == Outcome::done;
            counted.blocks_mismatched += b.mismatched;
            counted.blocks_empty += b.outcome == Outcome::empty;
            counted.blocks_refused +=
                b.outcome == Outcome::refused || b.outcome == Outcome::nothing;
            counted.blocks_repeated += b.outcome == Outcome::repeated;
        }
        const bool adopted = p_.weak_from_this().use_count() > 1;
        if (adopted && stale) p_.landed_[i].reason = ROUTECAP_MISSING_STALE;
        if (b.outcome != Outcome::done) {
            const uint64_t hash = s_.table_.hash(s_.table_.key(id));
            const Id there = s_.table_.find(s_.table_.key(id), hash);
            if (there == id)
                s_.unlink(id, hash);
            else if (b.outcome == Outcome::repeated && there != 0)
                s_.use(there);
            s_.table_.free(id);
            // Another publisher of the key was faster, after this one had been adopted.
            if (adopted && !stale && b.outcome == Outcome::repeated)
                p_.landed_[i] = std::move(b.before);
            return;
        }
        if (adopted && !stale) p_.landed_[i] = {s_.pages_.page(b.place), b.row, b.complete, 0};
        s_.commit(id, b.place, b.complete, b.before, dropped_);
    }

    Store &s_;
    const Shape &shape_;
    Publication &p_;
    const std::span<const Segment> rows_;
    const uint32_t block_rows_;
    std::vector<Landed> blocks_;
    Store::Dropped dropped_;
    uint64_t copied_ = 0;
    uint64_t newest_ = 0;     // of the blocks' tags
    bool all_stale_ = false;  // though the publisher is at the store's generation
};

void Publication::land(std::span<const Segment> rows) noexcept try {
    Landing(*store_, *this, rows).run();
} catch (const std::bad_alloc &) {}  // what has not landed is dropped, which counts it

}  // namespace routecap
