#include "prefix/mapped_store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "base/status.h"
#include "prefix/row_merge.h"

namespace routecap {
namespace {

constexpr size_t kBuckets = 4096;
constexpr size_t kKeysAtOnce = 64;   // for which the mutex is held
constexpr size_t kRowsAtOnce = 128;  // that land while it is held; at least a block

}  // namespace

// What was published in one call. Its flights are in the store's list until they have landed.
class MappedStore::Published final : public Publication,
                                     public std::enable_shared_from_this<Published> {
public:
    Published(std::shared_ptr<MappedStore> store, Keys keys, uint64_t generation, const void *owner)
        : store_(std::move(store)),
          generation_(generation),
          owner_(owner),
          key_bytes_(keys.key_bytes),
          keys_(keys.bytes, keys.bytes + keys.count * keys.key_bytes),
          flights_(keys.count) {}
    ~Published() override {
        uint64_t refused = 0;
        for (size_t i = 0; i < flights_.size(); i++) {
            const Lock lock(store_->flights_mutex_);
            if (flights_[i].publication == nullptr) continue;
            store_->unlist(flights_[i]);
            store_->in_flight_--;
            refused++;
        }
        store_->blocks_->count(MappedCount::refused, refused);
    }

    void land(std::span<const Segment> rows) noexcept override;

    uint8_t *key(size_t i) { return keys_.data() + i * key_bytes_; }

    const std::shared_ptr<MappedStore> store_;
    const uint64_t generation_;
    const void *const owner_;
    const size_t key_bytes_;
    std::vector<uint8_t> keys_;
    std::vector<Flight> flights_;
    // For who adopted blocks in flight; whoever files has it: 0 for what came to the store, or why
    // it did not.
    std::vector<int32_t> landed_;

private:
    using Rows = std::span<const Segment>;
    bool gather(size_t i, Rows &rows, RowPlanes to, RowView &gathered) const;
};

MappedStore::MappedStore(StoreConfig config, std::unique_ptr<MappedBlocks> blocks)
    : Store(std::move(config)), blocks_(std::move(blocks)), flights_(kBuckets) {}

int32_t MappedStore::create(StoreConfig config, int32_t &descriptor, StorePtr &store) {
    std::unique_ptr<MappedBlocks> blocks;
    if (int32_t s = MappedBlocks::create(config, descriptor, blocks); s < 0) return s;
    store.reset(new MappedStore(std::move(config), std::move(blocks)));
    return ROUTECAP_OK;
}

int32_t MappedStore::open(StoreConfig config, int32_t descriptor, StorePtr &store) {
    std::unique_ptr<MappedBlocks> blocks;
    if (int32_t s = MappedBlocks::open(config, descriptor, blocks); s < 0) return s;
    store.reset(new MappedStore(std::move(config), std::move(blocks)));
    return ROUTECAP_OK;
}

// ---- Blocks in flight -------------------------------------------------------------------------

MappedStore::Flight *&MappedStore::flights(const uint8_t *key) {
    uint64_t hash = 0;
    std::memcpy(&hash, key, sizeof hash);
    return flights_[xxh64::avalanche(hash) % kBuckets];
}

void MappedStore::list(Flight &flight) {
    Flight *&first = flights(flight.publication->key(flight.index));
    flight.next = std::exchange(first, &flight);
}

void MappedStore::unlist(Flight &flight) {
    Flight **at = &flights(flight.publication->key(flight.index));
    while (*at != &flight) at = &(*at)->next;
    *at = flight.next;
    flight.publication = nullptr;
}

MappedStore::Flight *MappedStore::flight(const uint8_t *key, const Flight *after) {
    for (Flight *f = after != nullptr ? after->next : flights(key); f != nullptr; f = f->next)
        if (f->wanted && std::memcmp(f->publication->key(f->index), key, config_.key_bytes) == 0)
            return f;
    return nullptr;
}

MappedStore::Flight *MappedStore::awaited(const uint8_t *key, uint64_t generation) {
    Flight *first = nullptr;  // that was published, which is the last of the list
    for (Flight *f = flight(key); f != nullptr; f = flight(key, f))
        if (f->publication->generation_ == generation) first = f;
    return first;
}

bool MappedStore::drop_flights(const uint8_t *key) {
    bool any = false;
    for (Flight *f = flight(key); f != nullptr; f = flight(key, f)) {
        f->wanted = false;
        any = true;
    }
    return any;
}

template <class F>
void MappedStore::for_each(Keys keys, F f) {
    if (in_flight_.load(std::memory_order_acquire) == 0) return;
    for (size_t first = 0; first < keys.count; first += kKeysAtOnce) {
        const Lock lock(flights_mutex_);
        for (size_t i = first; i < std::min(first + kKeysAtOnce, keys.count); i++) f(i);
    }
}

// ---- Publishing -------------------------------------------------------------------------------

int32_t MappedStore::publish(Keys keys, uint64_t first, uint64_t generation, const void *owner,
                             std::shared_ptr<Publication> &publication) {
    if (int32_t s = check_generation(generation); s < 0) return s;
    if (const uint64_t now = this->generation(); generation < now) {
        note_stale(generation, now);
        blocks_->count(MappedCount::stale, keys.count);
        return ROUTECAP_OK;
    }
    auto published = std::make_shared<Published>(shared_from_this(), keys, generation, owner);
    published->first = first;
    published->end = first + keys.count * config_.block_rows;
    for (size_t from = 0; from < keys.count; from += kKeysAtOnce) {
        const Lock lock(flights_mutex_);
        const size_t end = std::min(from + kKeysAtOnce, keys.count);
        in_flight_ += end - from;
        for (size_t i = from; i < end; i++) {
            published->flights_[i] = {nullptr, published.get(), static_cast<uint32_t>(i), true};
            list(published->flights_[i]);
        }
    }
    publication = std::move(published);
    return ROUTECAP_OK;
}

// Finds the rows of block i: where they lie, if all are there and in one place, or a copy with the
// others marked. False: none is there. What is before the block is taken off the rows.
bool MappedStore::Published::gather(size_t i, Rows &rows, RowPlanes to, RowView &gathered) const {
    const StoreConfig &config = store_->config();
    const Shape &shape = *config.shape;
    const uint64_t first_row = first + i * config.block_rows,
                   end_row = first_row + config.block_rows;
    while (!rows.empty() && rows.front().end() <= first_row) rows = rows.subspan(1);
    if (rows.empty() || rows.front().first >= end_row) return false;
    const Segment &only = rows.front();
    if (only.page && only.first <= first_row && end_row <= only.end()) {
        const uint64_t at = first_row - only.first;
        gathered.ids = only.ids(at), gathered.validity = only.validity(at);
        gathered.tags = to.tags;
        bool all = true;
        for (uint64_t r = 0; r < config.block_rows; r++) {
            to.tags[r] = only.tag(at + r);
            all &= !shape.row_empty(gathered.from(shape, r).validity);
        }
        if (all) return true;
    }
    std::memset(to.validity, 0, size_t{config.block_rows} * shape.validity_bytes);
    for (uint32_t r = 0; r < config.block_rows; r++)
        shape.mark_missing(to.from(shape, r).ids, ROUTECAP_MISSING_NOT_PUBLISHED);
    bool any = false;
    for (const Segment &s : rows) {
        if (s.first >= end_row) break;
        const uint64_t end = s.page ? std::min(end_row, s.end()) : 0;
        for (uint64_t at = std::max(first_row, s.first); at < end; at++) {
            const RowPlanes row = to.from(shape, at - first_row);
            const uint64_t from = at - s.first;
            any |= merge_row(shape, row.ids, row.validity, *row.tags, s.ids(from), s.validity(from),
                             s.tag(from))
                       .filled;
        }
    }
    // A row without a cell says nothing of the block's age.
    const uint64_t tag = store_->blocks_->least_tag(to);
    for (uint32_t r = 0; r < config.block_rows; r++)
        if (shape.row_empty(to.from(shape, r).validity)) to.tags[r] = tag;
    gathered = to;
    return any;
}

void MappedStore::Published::land(std::span<const Segment> rows) noexcept try {
    const StoreConfig &config = store_->config();
    const Shape &shape = *config.shape;
    MappedBlocks &blocks = *store_->blocks_;
    const size_t group = std::max<size_t>(1, kRowsAtOnce / config.block_rows),
                 most = group * config.block_rows;
    std::vector<uint8_t> ids(most * shape.ids_bytes), validity(most * shape.validity_bytes);
    std::vector<uint64_t> tags(most);
    const RowPlanes planes{ids.data(), validity.data(), tags.data()};
    landed_.assign(flights_.size(), ROUTECAP_MISSING_NOT_PUBLISHED);
    bool all_stale = true;
    uint64_t newest = 0;
    std::array<uint64_t, static_cast<size_t>(MappedCount::end)> counts{};
    const auto add = [&](MappedCount what) { counts[static_cast<size_t>(what)]++; };
    for (size_t from = 0; from < flights_.size(); from += group) {
        const size_t n = std::min(group, flights_.size() - from);
        const bool late = generation_ < blocks.generation();  // whatever their rows are
        all_stale &= !late;                                   // or it is no news
        std::array<RowView, kRowsAtOnce> gathered;
        std::array<bool, kRowsAtOnce> any{}, stale{};
        stale.fill(late);
        for (size_t i = 0; i < n && !late; i++) {
            any[i] = gather(from + i, rows, planes.from(shape, i * config.block_rows), gathered[i]);
            const uint64_t tag = any[i] ? blocks.least_tag(gathered[i]) : 0;
            stale[i] = any[i] && tag < generation_;
            newest = std::max(newest, tag);
        }
        // Without a writer all of it is refused.
        const auto publish = [&](const MappedBlocks::Writer *writer) {
            const Lock lock(store_->flights_mutex_);
            std::array<MappedBlocks::New, kRowsAtOnce> wanted;
            size_t count = 0;
            for (size_t i = 0; i < n; i++)
                if (any[i] && !stale[i] && flights_[from + i].wanted)
                    wanted[count++] = {.key = key(from + i), .rows = gathered[i]};
            if (writer != nullptr) writer->publish({wanted.data(), count}, generation_);
            const MappedBlocks::New *next = wanted.data();
            for (size_t i = 0; i < n; i++) {
                MappedCount what = MappedCount::empty;
                if (stale[i]) {
                    what = MappedCount::stale;
                } else if (any[i] && !flights_[from + i].wanted) {
                    what = MappedCount::published;  // as if it had been dropped after that
                } else if (any[i]) {
                    what = next->result;
                    if (next++->mismatched) add(MappedCount::mismatched);
                }
                if (what == MappedCount::published || what == MappedCount::repeated)
                    landed_[from + i] = 0;
                else if (what == MappedCount::stale)
                    landed_[from + i] = ROUTECAP_MISSING_STALE;
                all_stale &= what == MappedCount::stale;
                add(what);
                store_->unlist(flights_[from + i]);
            }
            store_->in_flight_ -= n;
        };
        // In this order: who sees nothing in flight looks no further than the file.
        if (!blocks.change([&](const MappedBlocks::Writer &writer) { publish(&writer); }))
            publish(nullptr);
    }
    for (size_t c = 0; c < counts.size(); c++) blocks.count(static_cast<MappedCount>(c), counts[c]);
    if (all_stale) store_->note_stale(newest, generation_);
} catch (const std::bad_alloc &) {}  // what has not landed is dropped, which counts it

// ---- Adopting ---------------------------------------------------------------------------------

PageRef MappedStore::copy_page(const uint8_t *keys, uint64_t generation,
                               std::span<MappedBlocks::Found> found, PagePool &pool) const {
    const Shape &shape = *config_.shape;
    const auto rows = static_cast<uint32_t>(found.size() * config_.block_rows);
    if (!pool.reserve(PagePool::page_bytes(shape, rows))) return PageRef();
    PageRef page = pool.make(shape, rows);
    if (!page) return page;
    const uint64_t *tags = page->tags_plane, *first = nullptr;
    blocks_->read(keys, generation, found,
                  {page->ids_plane, page->validity_plane, page->tags_plane});
    bool one = true;
    for (size_t i = 0; i < found.size(); i++) {
        if (found[i].reason != 0) continue;
        const uint64_t *of = tags + i * config_.block_rows;
        if (first == nullptr) first = of;
        for (uint32_t r = 0; r < config_.block_rows; r++) one &= of[r] == *first;
    }
    if (one)
        page->tag.store(first != nullptr ? *first : 0, std::memory_order_relaxed);
    else
        page->tags.store(page->tags_plane, std::memory_order_release);
    return page;
}

class MappedStore::Adopted final : public Adoption {
public:
    Adopted(std::shared_ptr<MappedStore> store, Keys keys, uint64_t first, uint64_t generation)
        : store_(std::move(store)),
          first_(first),
          generation_(generation),
          keys_(keys.bytes, keys.bytes + keys.count * keys.key_bytes),
          found_(keys.count),
          flights_(keys.count) {}

    std::vector<Segment> take(PagePool &pool) override {
        const StoreConfig &config = store_->config();
        const auto rows = config.block_rows;
        for (size_t i = 0; i < found_.size(); i++)
            if (const Late &late = flights_[i]; late.publication != nullptr) {
                const std::vector<int32_t> &landed = late.publication->landed_;
                found_[i].reason = late.index < landed.size() ? landed[late.index]
                                                              : ROUTECAP_MISSING_NOT_PUBLISHED;
                if (found_[i].reason == 0)
                    store_->blocks_->find(&keys_[i * config.key_bytes], generation_,
                                          {&found_[i], 1});
            }
        AdoptedRows adopted(first_);
        const size_t per_page = std::max<size_t>(1, config.shape->page_rows / rows);
        for (size_t i = 0; i < found_.size();) {
            // Blocks that are in the file, one after another.
            size_t n = 0;
            while (i + n < found_.size() && n < per_page && found_[i + n].reason == 0) n++;
            if (n == 0) {
                adopted.add_missing(rows, found_[i++].reason);
                continue;
            }
            const std::span<MappedBlocks::Found> run(&found_[i], n);
            const PageRef page =
                store_->copy_page(&keys_[i * config.key_bytes], generation_, run, pool);
            for (size_t b = 0; b < n; b++)
                if (!page || run[b].reason != 0)
                    adopted.add_missing(rows, page ? run[b].reason : ROUTECAP_MISSING_REFUSED);
                else
                    adopted.add(page.get(), static_cast<uint32_t>(b * rows), rows, run[b].complete);
            i += n;
        }
        return adopted.take();
    }

    struct Late {
        std::shared_ptr<Published> publication;
        uint32_t index = 0;
    };

    const std::shared_ptr<MappedStore> store_;
    const uint64_t first_, generation_;
    std::vector<uint8_t> keys_;
    std::vector<MappedBlocks::Found> found_;
    std::vector<Late> flights_;  // of the blocks that are in flight
};

int32_t MappedStore::adopt(Keys keys, uint64_t first, uint64_t generation, const void *owner,
                           routecap_adoption &found, uint64_t &after,
                           std::unique_ptr<Adoption> &adoption) {
    if (int32_t s = check_generation(generation); s < 0) return s;
    const uint64_t now = this->generation();
    after = 0;
    auto result = std::make_unique<Adopted>(shared_from_this(), keys, first, generation);
    // What is in flight now has landed at worst when the others are looked for.
    for_each(keys, [&](size_t i) REQUIRES(flights_mutex_) {
        const Flight *f = awaited(keys[i], generation);
        if (f != nullptr && f->publication->owner_ == owner && f->publication->is_handed_over())
            result->flights_[i] = {f->publication->weak_from_this().lock(), f->index};
    });
    blocks_->find(keys.bytes, generation, result->found_);
    found = {};
    for (size_t i = 0; i < keys.count; i++) {
        int32_t &reason = result->found_[i].reason;
        Adopted::Late &late = result->flights_[i];
        // What is there needs nothing in flight.
        if (reason == 0) late = {};
        if (late.publication != nullptr) reason = 0, after = UINT64_MAX;
        note_key(i, reason, found);
    }
    // An adopt is before an advance or after it, as a whole.
    if (this->generation() != now)
        return adopt(keys, first, generation, owner, found, after, adoption);
    blocks_->count(MappedCount::adopted, found.found);
    blocks_->count(MappedCount::absent, keys.count - found.found);
    adoption = std::move(result);
    return ROUTECAP_OK;
}

int32_t MappedStore::contains(Keys keys, uint64_t generation, int32_t *reasons, uint64_t *leading) {
    if (int32_t s = check_generation(generation); s < 0) return s;
    std::vector<bool> in_flight(keys.count);
    for_each(keys, [&](size_t i) REQUIRES(flights_mutex_) {
        in_flight[i] = awaited(keys[i], generation) != nullptr;
    });
    std::vector<MappedBlocks::Found> found(keys.count);
    blocks_->find(keys.bytes, generation, found);
    uint64_t there = 0;
    for (size_t i = 0; i < keys.count; i++) {
        const int32_t reason = in_flight[i] ? 0 : found[i].reason;
        if (reasons != nullptr) reasons[i] = reason;
        there += there == i && reason == 0;
    }
    if (leading != nullptr) *leading = there;
    return ROUTECAP_OK;
}

// ---- Dropping ---------------------------------------------------------------------------------

int32_t MappedStore::retain(Keys, int32_t *) {
    return report(ROUTECAP_ERR_ARGUMENT, "a shared store retains no blocks");
}

int32_t MappedStore::release(Keys) {
    return report(ROUTECAP_ERR_ARGUMENT, "a shared store retains no blocks to be released");
}

int32_t MappedStore::evict(Keys keys, uint64_t *evicted) {
    uint64_t gone = 0;
    for (size_t i = 0; i < keys.count; i++) {
        const Lock lock(flights_mutex_);
        gone += blocks_->evict(keys[i], drop_flights(keys[i]));
    }
    if (evicted != nullptr) *evicted = gone;
    return ROUTECAP_OK;
}

int32_t MappedStore::advance(uint64_t generation) {
    blocks_->advance(generation);
    return ROUTECAP_OK;
}

Store::Refusals MappedStore::refusals() {
    return {blocks_->counted(MappedCount::refused), blocks_->counted(MappedCount::mismatched)};
}

void MappedStore::counts(routecap_store_counts &counts) {
    const MappedBlocks::Usage usage = blocks_->usage();
    counts.block_rows = config_.block_rows;
    counts.key_bytes = config_.key_bytes;
    counts.flags = config_.flags;
    counts.generation = blocks_->generation();
    counts.blocks_in_flight = in_flight_.load(std::memory_order_acquire);
    counts.blocks = usage.blocks + counts.blocks_in_flight;
    counts.bytes_in_use = usage.bytes;
    counts.bytes_peak = usage.bytes_peak;
    counts.bytes_budget = usage.bytes_budget;
    // In the order of MappedCount.
    const std::array fields{
        &counts.blocks_published, &counts.blocks_repeated,   &counts.blocks_empty,
        &counts.blocks_refused,   &counts.blocks_stale,      &counts.blocks_adopted,
        &counts.blocks_absent,    &counts.blocks_mismatched, &counts.blocks_evicted};
    for (size_t c = 0; c < fields.size(); c++)
        *fields[c] = blocks_->counted(static_cast<MappedCount>(c));
    counts.rows_copied = (counts.blocks_published + counts.blocks_adopted) * config_.block_rows;
}

}  // namespace routecap
