#include "prefix/store.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/log.h"
#include "base/status.h"

namespace routecap {
namespace {

constexpr size_t kChunk = 128;  // keys for which the mutex is held
// Blocks in flight, beside those that the budget has room for.
constexpr uint64_t kInFlight = 65536;

// The table takes address space for as many as there can be: those of the budget, or those that the
// machine has memory for.
uint32_t most_blocks(const StoreConfig &config) {
    const uint64_t bytes =
        config.block_rows * config.shape->stride + BlockTable::block_bytes(config.key_bytes);
    const uint64_t memory = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                            static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    return static_cast<uint32_t>(std::min<uint64_t>(
        std::min(config.budget_bytes, memory) / bytes + kInFlight, UINT32_MAX - 1));
}

}  // namespace

Store::Store(StoreConfig config)
    : config_(std::move(config)),
      shape_(config_.shape),
      pool_(PagePool::create(shape_, config_.budget_bytes)),
      block_bytes_(BlockTable::block_bytes(config_.key_bytes)),
      page_rows_(BlockPages(*shape_, config_.block_rows).rows()),
      generation_(config_.generation),
      table_(config_.key_bytes, most_blocks(config_)),
      pages_(*shape_, config_.block_rows) {}

int32_t Store::create(StoreConfig config, StorePtr &store) {
    const BlockPages pages(*config.shape, config.block_rows);
    const uint64_t page = std::max(PagePool::page_bytes(*config.shape, config.shape->page_rows),
                                   PagePool::page_bytes(*config.shape, pages.rows()));
    if (int32_t s =
            check_between("config", "budget_bytes", config.budget_bytes,
                          2 * (page + BlockTable::block_bytes(config.key_bytes)), UINT64_MAX);
        s < 0)
        return s;
    store.reset(new Store(std::move(config)));
    return ROUTECAP_OK;
}

int32_t Store::check_generation(uint64_t generation) const {
    const uint64_t at = this->generation();
    if (generation <= at) return ROUTECAP_OK;
    return report(ROUTECAP_ERR_STATE, "generation %llu: the store is at %llu, advance it first",
                  ull(generation), ull(at));
}

void Store::note_key(size_t i, int32_t reason, routecap_adoption &found) const {
    found.found += reason == 0;
    if (found.found == i + 1) found.rows = (i + 1) * config_.block_rows;
    found.evicted += reason == ROUTECAP_MISSING_EVICTED;
    found.stale += reason == ROUTECAP_MISSING_STALE;
    found.not_published += reason == ROUTECAP_MISSING_NOT_PUBLISHED;
}

// ---- With the mutex -------------------------------------------------------------------------

template <class One>
void Store::for_each(Keys keys, Dropped &dropped, One one) {
    std::array<uint64_t, kChunk> hashes;
    dropped.reserve(2 * kChunk);
    for (size_t first = 0; first < keys.count; first += kChunk) {
        const size_t n = std::min(kChunk, keys.count - first);
        for (size_t i = 0; i < n; i++) hashes[i] = hash_ahead(keys[first + i]);
        {
            const Lock lock(mutex_);
            for (size_t i = 0; i < n; i++) table_.prefetch_block(hashes[i]);
            for (size_t i = 0; i < n; i++) one(first + i, keys[first + i], hashes[i]);
        }
        dropped.clear();
    }
}

void Store::link(Id id, uint64_t hash) {
    table_.link(id, hash);
    blocks_++;
    in_flight_ += table_.at(id).state() == State::pending;
}

// How often it was retained.
uint16_t Store::unlink(Id id, uint64_t hash) {
    Block &block = table_.at(id);
    table_.unlink(id, hash);
    blocks_--;
    in_flight_ -= block.state() == State::pending;
    retained_ -= block.retained > 0;
    if (block.state() == State::ready && block.retained == 0) table_.dequeue(id);
    return std::exchange(block.retained, uint16_t{0});
}

// What was used last goes last.
void Store::use(Id id) {
    if (table_.at(id).state() != State::ready || table_.at(id).retained > 0) return;
    table_.dequeue(id);
    table_.enqueue(id);
}

// It is linked, and not in line.
void Store::put_in_line(Id id, uint16_t retained) {
    Block &block = table_.at(id);
    block.retained = retained;
    retained_ += retained > 0;
    if (retained == 0 && block.state() == State::ready) table_.enqueue(id);
}

// An unlinked block is nobody's any more; if it is in flight, its landing ends it.
void Store::give_up(Id id, Dropped &dropped) {
    Block &block = table_.at(id);
    if (block.state() == State::pending) {
        block.superseded = 1;
        return;
    }
    dropped.push_back(pages_.give(block.place));
    pool_->unreserve(block_bytes_);
    table_.free(id);
}

void Store::evict(Id id, Dropped &dropped) {
    const uint64_t hash = table_.hash(table_.key(id));
    table_.note_gone(hash);
    counted_.blocks_evicted++;
    unlink(id, hash);
    give_up(id, dropped);
}

// What is in flight is as old as its publisher says, until its rows say more.
bool Store::current(const Block &block) const {
    const uint64_t generation = generation_.load(std::memory_order_relaxed);
    if (block.state() == State::pending)
        return publications_.at(block.publication())->generation_ >= generation;
    return generation == 0 || number(pages_.least_tag(block.place)) >= generation;
}

// What an adopter hears of a key: 0 if the block is there.
int32_t Store::look(Id id, uint64_t hash, uint64_t generation, const void *capturer,
                    bool any_capturer) const {
    if (id == 0)
        return table_.has_gone(hash) ? ROUTECAP_MISSING_EVICTED : ROUTECAP_MISSING_NOT_PUBLISHED;
    const Block &block = table_.at(id);
    const bool at = generation == generation_.load(std::memory_order_relaxed) && current(block);
    if (block.state() == State::ready) return at ? 0 : ROUTECAP_MISSING_STALE;
    const Publication &publication = *publications_.at(block.publication());
    const bool awaited =
        at && (any_capturer || (publication.capturer_ == capturer && publication.is_handed_over()));
    return awaited ? 0 : ROUTECAP_MISSING_NOT_PUBLISHED;
}

// ---- Publishing -----------------------------------------------------------------------------

int32_t Store::publish(Keys keys, uint64_t first, uint64_t generation, const void *capturer,
                       std::shared_ptr<Publication> &publication) {
    if (int32_t s = check_generation(generation); s < 0) return s;
    if (const uint64_t now = this->generation(); generation < now) {
        note_stale(generation, now);
        const Lock lock(mutex_);
        counted_.blocks_stale += keys.count;
        return ROUTECAP_OK;
    }
    auto published =
        std::make_shared<Publication>(shared_from_this(), capturer, first, keys.count, generation);
    Dropped dropped;
    for_each(keys, dropped, [&](size_t i, const uint8_t *key, uint64_t hash) REQUIRES(mutex_) {
        note(*published, i, key, hash, dropped);
    });
    publication = std::move(published);
    return ROUTECAP_OK;
}

void Store::note(Publication &publication, size_t i, const uint8_t *key, uint64_t hash,
                 Dropped &dropped) {
    if (publication.generation_ != generation_.load(std::memory_order_relaxed)) {
        counted_.blocks_stale++;
        return;
    }
    const Id id = table_.make(key);
    if (id == 0) {
        counted_.blocks_refused++;
        return;
    }
    publication.blocks_[i] = id;
    table_.at(id).newer = publication.number_;
    table_.at(id).older = static_cast<uint32_t>(i);
    const Id there = table_.find(key, hash);
    uint16_t retained = 0;
    // What comes second is compared, or fills what is missing, once it lands.
    if (!slot_keys() && there != 0 && current(table_.at(there))) return;
    if (there != 0) {
        counted_.blocks_replaced += slot_keys();
        retained = unlink(there, hash);
        give_up(there, dropped);
    }
    link(id, hash);
    put_in_line(id, retained);
}

// A block has landed: it is there under its key, unless that is another's by now. `before` are the
// rows that it was made from, if the key had some.
void Store::commit(Id id, uint32_t place, bool complete, const BlockRows &before,
                   Dropped &dropped) {
    Block &block = table_.at(id);
    const uint64_t hash = table_.hash(table_.key(id));
    bool wanted = !block.superseded && current(block);
    uint16_t retained = 0;
    if (block.linked) {
        retained = unlink(id, hash);
    } else if (const Id there = wanted ? table_.find(table_.key(id), hash) : 0; there != 0) {
        const Block &other = table_.at(there);
        const bool ready = other.state() == State::ready;
        const BlockPages::Place at = ready ? pages_.at(other.place) : BlockPages::Place{};
        // Another came first.
        if (ready && current(other) && (at.page != before.page.get() || at.row != before.row))
            wanted = false;
        else if (retained = unlink(there, hash); ready)
            give_up(there, dropped);
    }
    block.place = place;
    block.complete = complete;
    block.set(State::ready);
    if (!wanted) return give_up(id, dropped);
    link(id, hash);
    put_in_line(id, retained);
}

// ---- Room -----------------------------------------------------------------------------------

bool Store::evict_oldest() {
    Dropped dropped;
    dropped.reserve(1);
    const Lock lock(mutex_);
    if (table_.oldest() == 0) return false;
    evict(table_.oldest(), dropped);
    return true;
}

bool Store::pay(uint64_t bytes) {
    while (!pool_->reserve(bytes))
        if (!evict_oldest()) return false;
    return true;
}

// A page with blocks, or one of slots for them.
bool Store::add_page(PageRef page, uint32_t blocks, uint32_t &entry) {
    for (;;) {
        {
            const Lock lock(mutex_);
            if (!pages_.full()) {
                if (blocks > 0)
                    entry = pages_.share(std::move(page), blocks);
                else
                    pages_.add_slots(std::move(page));
                return true;
            }
            if (!pages_.possible()) return false;
        }
        BlockPages::Chunk chunk = BlockPages::make();
        if (chunk == nullptr) return false;
        const Lock lock(mutex_);
        if (pages_.full()) pages_.add(std::move(chunk));
    }
}

// A slot for a block's rows, and the block's own bytes.
bool Store::take_slot(BlockSlot &slot) {
    if (!pay(block_bytes_)) return false;
    const uint64_t page_bytes = PagePool::page_bytes(*shape_, page_rows_);
    const auto look = [&] {
        const Lock lock(mutex_);
        if (!pages_.take(slot.place)) return false;
        const BlockPages::Place at = pages_.at(slot.place);
        slot.page = at.page, slot.row = at.row;
        return true;
    };
    while (!look()) {
        PageRef page;
        if (pool_->reserve(page_bytes))
            page = pool_->make(*shape_, page_rows_);
        else if (evict_oldest())
            continue;
        uint32_t none;
        if (page && add_page(std::move(page), 0, none)) continue;
        pool_->unreserve(block_bytes_);
        return false;
    }
    return true;
}

// ---- Adopting -------------------------------------------------------------------------------

int32_t Store::adopt(Keys keys, uint64_t first, uint64_t generation, const void *capturer,
                     routecap_adoption &found, Ticket &after, std::unique_ptr<Adoption> &adoption) {
    if (int32_t s = check_generation(generation); s < 0) return s;
    std::unique_ptr<Adoption> result;
    // An adopt is before an advance or after it, as a whole. What was found before one is looked
    // for again, and is not there any more: no other advance changes that.
    for (bool again = true; again;) {
        const bool current = generation == this->generation();
        result = std::make_unique<Adoption>(first, keys.count);
        const uint64_t rows = config_.block_rows;
        found = {};
        after = Ticket::none;
        Dropped dropped;
        for_each(keys, dropped, [&](size_t i, const uint8_t *key, uint64_t hash) REQUIRES(mutex_) {
            const Id id = table_.find(key, hash);
            int32_t reason = look(id, hash, generation, capturer, false);
            const Block *block = reason == 0 ? &table_.at(id) : nullptr;
            if (block != nullptr && block->state() == State::pending) {
                auto publication = publications_.at(block->publication())->weak_from_this().lock();
                if (publication != nullptr) {
                    after = std::max(after, publication->after());
                    result->add_late(rows, std::move(publication), block->index());
                } else {
                    reason = ROUTECAP_MISSING_NOT_PUBLISHED;  // it is being dropped
                }
            } else if (block != nullptr) {
                const BlockPages::Place at = pages_.at(block->place);
                result->add(at.page, at.row, rows, block->complete);
                use(id);
            }
            if (reason != 0) result->add_missing(rows, reason);
            note_key(i, reason, found);
        });
        again = current && generation != this->generation();
    }
    {
        const Lock lock(mutex_);
        counted_.blocks_adopted += found.found;
        counted_.blocks_absent += keys.count - found.found;
    }
    adoption = std::move(result);
    return ROUTECAP_OK;
}

int32_t Store::contains(Keys keys, uint64_t generation, int32_t *reasons, uint64_t *leading) {
    if (int32_t s = check_generation(generation); s < 0) return s;
    uint64_t there = 0;
    Dropped dropped;
    for_each(keys, dropped, [&](size_t i, const uint8_t *key, uint64_t hash) REQUIRES(mutex_) {
        const int32_t reason = look(table_.find(key, hash), hash, generation, nullptr, true);
        if (reasons != nullptr) reasons[i] = reason;
        there += there == i && reason == 0;
    });
    if (leading != nullptr) *leading = there;
    return ROUTECAP_OK;
}

// ---- Keeping and dropping -------------------------------------------------------------------

int32_t Store::retain(Keys keys, int32_t *reasons) {
    Dropped dropped;
    for_each(keys, dropped, [&](size_t i, const uint8_t *key, uint64_t hash) REQUIRES(mutex_) {
        const Id id = table_.find(key, hash);
        const int32_t reason = look(id, hash, generation_, nullptr, true);
        if (reasons != nullptr) reasons[i] = reason;
        if (reason != 0) return;
        Block &block = table_.at(id);
        if (block.retained == UINT16_MAX) return;  // for ever
        if (block.retained++ > 0) return;
        retained_++;
        if (block.state() == State::ready) table_.dequeue(id);
    });
    return ROUTECAP_OK;
}

int32_t Store::release(Keys keys) {
    Dropped dropped;
    for_each(keys, dropped, [&](size_t, const uint8_t *key, uint64_t hash) REQUIRES(mutex_) {
        const Id id = table_.find(key, hash);
        if (id == 0) return;
        Block &block = table_.at(id);
        if (block.retained == 0 || block.retained == UINT16_MAX || --block.retained > 0) return;
        retained_--;
        if (block.state() == State::ready) table_.enqueue(id);
    });
    return ROUTECAP_OK;
}

int32_t Store::evict(Keys keys, uint64_t *evicted) {
    uint64_t gone = 0;
    Dropped dropped;
    for_each(keys, dropped, [&](size_t, const uint8_t *key, uint64_t hash) REQUIRES(mutex_) {
        const Id id = table_.find(key, hash);
        if (id == 0) return;
        gone++;
        evict(id, dropped);
    });
    if (evicted != nullptr) *evicted = gone;
    return ROUTECAP_OK;
}

int32_t Store::advance(uint64_t generation) {
    const Lock lock(mutex_);
    if (generation > generation_.load(std::memory_order_relaxed))
        generation_.store(generation, std::memory_order_release);
    return ROUTECAP_OK;
}

void Store::counts(routecap_store_counts &counts) {
    const Lock lock(mutex_);
    counts = counted_;
    counts.block_rows = config_.block_rows;
    counts.key_bytes = config_.key_bytes;
    counts.flags = config_.flags;
    counts.generation = generation_.load(std::memory_order_relaxed);
    counts.blocks = blocks_;
    counts.blocks_in_flight = in_flight_;
    counts.blocks_retained = retained_;
    counts.bytes_in_use = pool_->used();
    counts.bytes_peak = pool_->peak();
    counts.bytes_budget = pool_->budget();
}

// ---- What the log hears ---------------------------------------------------------------------

void Store::note_stale(uint64_t tag, uint64_t generation) {
    stale_tag_.store(tag, std::memory_order_relaxed);
    stale_generation_.store(generation, std::memory_order_relaxed);
    stale_.fetch_add(1, std::memory_order_release);
}

void Store::log_creation() const {
    tell(ROUTECAP_LOG_INFO,
         "store made: blocks of %u rows, keys of %u bytes, %u layers, budget_bytes %llu",
         config_.block_rows, config_.key_bytes, config_.shape->layers, ull(config_.budget_bytes));
}

void Store::tell_refusals() {
    if (!logs(ROUTECAP_LOG_WARNING)) return;
    uint64_t refused, mismatched;
    {
        const Lock lock(mutex_);
        refused = counted_.blocks_refused, mismatched = counted_.blocks_mismatched;
    }
    const auto second = static_cast<int64_t>(std::time(nullptr));
    // How often since it was told; 0 if it is not to be told now.
    const auto fresh = [second](Told &told, uint64_t times) {
        uint64_t before = told.times.load(std::memory_order_relaxed);
        if (times <= before || told.second.load(std::memory_order_relaxed) == second ||
            !told.times.compare_exchange_strong(before, times, std::memory_order_relaxed))
            return uint64_t{0};
        told.second.store(second, std::memory_order_relaxed);
        return times - before;
    };
    if (const uint64_t blocks = fresh(told_refused_, refused); blocks > 0)
        tell(ROUTECAP_LOG_WARNING, "store: %llu blocks refused, %llu in all; budget_bytes is %llu",
             ull(blocks), ull(refused), ull(config_.budget_bytes));
    if (const uint64_t blocks = fresh(told_mismatched_, mismatched); blocks > 0)
        tell(ROUTECAP_LOG_WARNING, "store: %llu blocks were published again with other ids",
             ull(blocks));
    if (const uint64_t times = fresh(told_stale_, stale_.load(std::memory_order_acquire));
        times > 0)
        tell(ROUTECAP_LOG_WARNING,
             "store: %llu publishes had only rows of older weights: their tag is %llu, and the "
             "store is at generation %llu",
             ull(times), ull(stale_tag_.load(std::memory_order_relaxed)),
             ull(stale_generation_.load(std::memory_order_relaxed)));
}

}  // namespace routecap
