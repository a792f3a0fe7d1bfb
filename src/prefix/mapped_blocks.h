// Blocks of rows in a file that several processes map: a hash table of fixed size that one process
// at a time adds to.
//
//   identity   what the file is, checked when it is opened and never written again
//   control    generation and counters
//   evictions  the keys of blocks that went lately (Evictions)
//   index      cells, which lead from a key's hash to a slot
//   used       of each slot: whether its block was used lately
//   slots      of each block: a word, generation and key
//   rows       of each block: ids, validity and tags
//
// How it works. The word of a slot says whether it has a block, with a number that grows with every
// use of the slot, and the checksum. A key has a cell of the index: of sixteen, from the one
// that its hash names on, the first that led to no block. It has 32 bits of the hash and a slot's
// number. There are four times as many cells as slots, so one of sixteen is practically always such
// a cell. A cell may lead to a slot that has another block by now: the slot says whose key it has.
//
// Writing. One process at a time, the Writer, publishes blocks. It exists only with a mutex of this
// process and a lock on a byte of the file, which the kernel drops when its process ends. Nobody
// waits for the lock without a limit. A hand goes round the slots. It takes a slot without a block,
// if there is one among the next few, and else the first whose block is of older weights or was not
// used since the hand came by (second chance). What gets more cells is written into another slot,
// and its cell changes by one store.
//
// Reading. A reader takes no lock. It loads the word (acquire), copies what it wants by relaxed
// loads, and loads the word again behind an acquire fence: the copy is whole if the word is the
// same, and is believed if the checksum is right and every id an expert of its layer. A writer
// takes the block out of the word before it writes to the slot, and puts a fence behind that. Who
// finds nothing looks again if a cell has changed meanwhile, for a limited number of times.
//
// Dropping. Whoever has no lock can still drop a block, by one compare-and-swap of its word: nobody
// finds it from then on. The hand clears its cell.
//
// Death. Nothing that a writer leaves needs a repair. It clears the cell of a slot before it writes
// there, so a slot without a block is taken when the hand comes by, as is one with a block to which
// no cell leads yet.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "prefix/evictions.h"
#include "prefix/mapped_checksum.h"
#include "prefix/mapped_file.h"
#include "prefix/store.h"

namespace routecap {

// Rows one after another: ids, validity and a tag of each.
struct RowPlanes {
    uint8_t *ids, *validity;
    uint64_t *tags;

    RowPlanes from(const Shape &shape, uint64_t row) const {
        return {ids + row * shape.ids_bytes, validity + row * shape.validity_bytes, tags + row};
    }
};
// The same to be read only.
struct RowView {
    RowView() = default;
    RowView(const uint8_t *ids_, const uint8_t *validity_, const uint64_t *tags_)
        : ids(ids_), validity(validity_), tags(tags_) {}
    RowView(const RowPlanes &rows) : RowView(rows.ids, rows.validity, rows.tags) {}

    RowView from(const Shape &shape, uint64_t row) const {
        return {ids + row * shape.ids_bytes, validity + row * shape.validity_bytes, tags + row};
    }

    const uint8_t *ids = nullptr, *validity = nullptr;
    const uint64_t *tags = nullptr;
};

// What is counted in the file, for all processes: indices of MappedBlocks::count.
enum class MappedCount : uint32_t {
    published,
    repeated,
    empty,
    refused,
    stale,
    adopted,
    absent,
    mismatched,
    evicted,
    damaged,
    end
};

class MappedBlocks {
public:
    static constexpr uint32_t kMostKeyWords = 8;

    // What a block takes of the budget.
    static uint64_t slot_bytes(const StoreConfig &config);

    // In memory without a name, whose descriptor is the caller's. What is budgeted are blocks: the
    // file has some 1.2 MB besides.
    static int32_t create(const StoreConfig &config, int32_t &descriptor,
                          std::unique_ptr<MappedBlocks> &blocks);
    // The same of a file that is empty. Otherwise budget and generation are not looked at.
    static int32_t open(const StoreConfig &config, int32_t descriptor,
                        std::unique_ptr<MappedBlocks> &blocks);
    MappedBlocks(const MappedBlocks &) = delete;
    MappedBlocks &operator=(const MappedBlocks &) = delete;

    // ---- By anyone at any time

    uint64_t generation() const;
    void advance(uint64_t generation);

    // Where a block was found, or why none was.
    struct Found {
        uint64_t hash;  // of the key
        uint64_t word;
        uint32_t slot;
        int32_t reason;  // 0, or ROUTECAP_MISSING_*
        uint64_t tag;    // the least of its rows
        bool complete;   // read: no cell is missing
    };
    // Looks up [found.size(), key_bytes] keys for a caller at a generation.
    void find(const uint8_t *keys, uint64_t generation, std::span<Found> found) const;
    // Copies blocks that were found to rows one after another, block_rows each, and checks them.
    // What has gone since is looked for anew. Rows of a block that is not there are missing, for
    // its reason. The others were used.
    void read(const uint8_t *keys, uint64_t generation, std::span<Found> found, RowPlanes rows);

    // Drops a block. Whether there was one; `as_if` there was.
    bool evict(const uint8_t *key, bool as_if = false);

    // The least tag of block_rows rows that have a valid cell.
    uint64_t least_tag(RowView rows) const;

    void count(MappedCount what, uint64_t n) {
        if (n != 0) counter(what).fetch_add(n, std::memory_order_relaxed);
    }
    uint64_t counted(MappedCount what) const {
        return counter(what).load(std::memory_order_relaxed);
    }
    struct Usage {
        uint64_t blocks;
        uint64_t bytes, bytes_peak, bytes_budget;  // the peak: the most that a call has seen
    };
    Usage usage() const;

    // ---- By a writer

    // Calls f(writer) with the lock, unless it is not to be had within a second, or, after such a
    // call and until it was to be had, within some microseconds. Whether it was.
    template <class F>
    bool change(F f) {
        if (!lock()) return false;
        f(Writer(*this));
        unlock();
        return true;
    }

    struct New {
        const uint8_t *key = nullptr;
        RowView rows = {};  // block_rows
        // What became of it: published, repeated, stale, or else refused. And whether a cell that
        // was there has other ids.
        MappedCount result = MappedCount::refused;
        bool mismatched = false;
    };
    // Whoever changes the table. One exists only while change() has the lock.
    class Writer {
    public:
        // One block after another.
        void publish(std::span<New> blocks, uint64_t generation) const;

    private:
        friend class MappedBlocks;
        explicit Writer(MappedBlocks &blocks) : blocks_(blocks) {}
        MappedBlocks &blocks_;
    };

private:
    struct Control;
    struct Slot;
    using Cell = std::atomic<uint32_t>;
    // Offsets in the file.
    struct Layout {
        size_t control, evictions, index, used, slots, rows, bytes;
    };
    struct Key {
        std::array<uint64_t, kMostKeyWords> words;
        uint64_t hash;
    };

    explicit MappedBlocks(const StoreConfig &config);
    Layout layout(uint32_t slots) const;
    std::vector<uint8_t> identity(uint32_t slots, uint64_t seed, uint64_t bytes) const;
    int32_t initialise(int32_t descriptor);
    int32_t check_identity();
    void place(uint32_t slots, uint64_t seed);

    Key key_at(const uint8_t *keys, size_t i) const;
    uint64_t hash_in(uint32_t slot) const;
    Cell *cells(uint64_t hash) const;
    std::atomic<uint8_t> &used(uint32_t slot) const;
    Slot &slot(uint32_t number) const;
    MappedWord *rows(uint32_t slot) const;
    bool is_key(const Slot &slot, const Key &key) const;
    std::atomic<uint64_t> &counter(MappedCount what) const;

    // ---- Without the lock
    std::optional<Found> look(const Key &key) const;
    int32_t reason_of_absence(uint64_t hash) const;
    bool copy_block(const Found &found, RowPlanes rows, bool &damaged) const;
    bool good_rows(RowPlanes rows, uint64_t n, bool &complete) const;
    bool read_block(const uint8_t *key, uint64_t generation, Found &found, RowPlanes rows);
    void mark_hole(RowPlanes rows, int32_t reason) const;
    bool drop(const Found &found);
    void discard_damaged(const Found &found);
    void note_eviction(uint64_t hash);

    // ---- With it
    bool lock() TRY_ACQUIRE(true, mutex_);
    void unlock() RELEASE(mutex_);
    void has_writer() const ASSERTS(mutex_) {}
    uint32_t take_slot() REQUIRES(mutex_);
    void index(uint64_t hash, uint32_t slot, const std::optional<Found> &old) REQUIRES(mutex_);
    void write(uint32_t slot, const Key &key, RowView rows) REQUIRES(mutex_);
    void publish(std::span<New> blocks, uint64_t generation) REQUIRES(mutex_);
    MappedCount publish_one(New &block, const Key &key, uint64_t generation) REQUIRES(mutex_);
    bool merge(RowPlanes old_rows, RowView new_rows, bool &mismatched) const REQUIRES(mutex_);

    const StoreConfig config_;
    const uint32_t key_words_;
    const size_t ids_bytes_, validity_bytes_;  // of a block
    const size_t slot_stride_, rows_words_;
    MappedFile file_;
    Layout at_{};
    uint32_t slots_ = 0;
    uint64_t seed_ = 0;
    Control *control_ = nullptr;
    std::optional<Evictions> evictions_;
    mutable std::atomic<uint64_t> seen_generation_{0};

    // A writer has it and the file's lock.
    Mutex mutex_;
    std::vector<uint64_t> scratch_ GUARDED_BY(mutex_);  // a block
    std::atomic<bool> held_up_{false};                  // somebody waited for the lock, and in vain
};

}  // namespace routecap
