// Blocks of rows in a file that several processes map: a hash table of fixed size that one process
// at a time changes.
//
//   identity   what the file is, checked when it is opened and never written again
//   control    generation, counters, and ends of the lists
//   evictions  the keys of blocks that went lately (Evictions)
//   buckets    from a key's hash to the first slot of a chain
//   slots      of each block: a word, generation, links and key
//   rows       of each block: ids, validity and tags
//
// How it works. The word of a slot says what the slot is: free, written (a writer has it to
// itself), published, or dropped. One process at a time, the Writer, changes anything but that:
// chains and lists, and the words of slots from free over written to published. Everybody
// else reads without a lock, and may make what is published dropped, by one compare-and-swap. A
// process that dies as the writer leaves a word that says so (dirty), and in the chains nothing
// but whole blocks and some that were dropped: the next writer makes everything else anew.
//
// Writing. A Writer changes the table. It exists only with a mutex of this process and a lock on a
// byte of the file, which the kernel drops when its process ends. So there is one at a time, and
// links and lists are as in any table. Nobody waits for the lock without a limit. A slot is in a
// chain, or in the list of free ones; what is in a chain stands in a line too, by which blocks go
// for room, the one that was used longest ago first.
//
// Reading. A reader takes no lock. A slot's word has its state, a number that grows with every use
// of the slot, and the checksum of its block. A reader loads the word (acquire), copies what it
// wants by relaxed loads, and loads the word again behind an acquire fence: the copy is whole if
// the word is the same, and is believed if the checksum is right and every id an expert of its
// layer. The writer takes a slot out of its chain before it writes to it, and puts a fence behind
// the word that says so. A chain changes by one store, also where a block takes the place of
// another. So who walks one finds what was there all the time, if it begins again whenever a slot
// was not, or is not any more, of that chain. It does so for a limited number of times.
//
// Dropping. Whoever has no lock can still drop a block, by one compare-and-swap of its word: nobody
// finds it from then on. The slot is added to a list, and the next writer frees what is in it.
//
// Death. A writer sets a word (dirty) while it changes the table. The next one finds it set if the
// process died, and repairs the table: what a chain leads to stays, every other slot is free, and
// line and lists are made anew. Bytes that something else wrote may lead a writer to what cannot be:
// then it leaves the table dirty.
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
    // its reason.
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
        uint64_t bytes, bytes_peak, bytes_budget;
    };
    Usage usage() const;

    // ---- By a writer

    // On an engine's thread a writer only tries, for some microseconds. Elsewhere it waits, for a
    // second at most; but not again before the lock was to be had.
    enum class Patience { tries, waits };
    // Calls f(writer) with the lock, unless it is not to be had in time. Whether it was.
    template <class F>
    bool change(Patience patience, F f) {
        if (!lock(patience)) return false;
        f(Writer(*this));
        unlock();
        return true;
    }

    // Blocks that were found were used, in this order. Without the lock it is not noted.
    void touch(std::span<const Found> found);

    // Begins to bring into the cache what publish() reads first of a key.
    void fetch(const uint8_t *key) const;
    enum class Published { stored, repeated, refused, stale };
    struct New {
        const uint8_t *key = nullptr;
        RowView rows = {};  // block_rows
        // What became of it; refused, if it was not published. And whether a cell that was there
        // has other ids.
        Published result = Published::refused;
        bool mismatched = false;
    };
    static constexpr uint32_t kAtOnce = 16;  // keys for which memory is fetched side by side
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
    using Link = std::atomic<uint32_t>;  // the number of a slot, from 1; 0: none
    // Offsets in the file.
    struct Layout {
        size_t control, evictions, buckets, slots, rows, bytes;
    };
    struct Key {
        std::array<uint64_t, kMostKeyWords> words;
        uint64_t hash;
    };
    // A block of a key.
    struct Match {
        uint32_t slot;
        uint64_t word;
        uint64_t generation;
    };

    explicit MappedBlocks(const StoreConfig &config);
    Layout layout(uint32_t slots) const;
    std::vector<uint8_t> identity(uint32_t slots, uint64_t seed, uint64_t bytes) const;
    int32_t initialise(int32_t descriptor);
    int32_t check_identity();
    void place(uint32_t slots, uint64_t seed);

    uint64_t hash_of(const Key &key) const;
    Key key_at(const uint8_t *keys, size_t i) const;
    Key key_in(uint32_t slot) const;
    Slot &slot(uint32_t number) const;
    MappedWord *rows(uint32_t slot) const;
    Link &bucket(uint64_t hash) const;
    bool is_key(const Slot &slot, const Key &key) const;
    std::atomic<uint64_t> &counter(MappedCount what) const;

    // ---- Without the lock
    std::optional<Match> look(const Key &key) const;
    int32_t reason_of_absence(uint64_t hash) const;
    bool copy_block(const Found &found, RowPlanes rows, bool &damaged) const;
    bool good_rows(RowPlanes rows, uint64_t n, bool &complete) const;
    bool read_block(const uint8_t *key, uint64_t generation, Found &found, RowPlanes rows);
    void mark_hole(RowPlanes rows, int32_t reason) const;
    bool drop(uint32_t slot, uint64_t word);
    bool drop(const Key &key);
    void discard_damaged(const Found &found);
    void note_eviction(uint64_t hash);

    // ---- With it
    bool lock(Patience patience) TRY_ACQUIRE(true, mutex_);
    void unlock() RELEASE(mutex_);
    void has_writer() const ASSERTS(mutex_) {}
    Link *link_to(const Key &key) const REQUIRES(mutex_);
    void unlink(uint32_t slot) REQUIRES(mutex_);
    void enqueue(uint32_t slot, bool first) REQUIRES(mutex_);
    void dequeue(uint32_t slot) REQUIRES(mutex_);
    void use(uint32_t slot) REQUIRES(mutex_);
    uint32_t take_slot() REQUIRES(mutex_);
    void give_back(uint32_t slot) REQUIRES(mutex_);
    bool retire(uint32_t slot) REQUIRES(mutex_);
    uint64_t write(uint32_t slot, const Key &key, RowView rows) REQUIRES(mutex_);
    void publish(std::span<New> blocks, uint64_t generation) REQUIRES(mutex_);
    Published publish_one(New &block, const Key &key, uint64_t generation) REQUIRES(mutex_);
    bool merge(RowPlanes old_rows, RowView new_rows, bool &mismatched) const REQUIRES(mutex_);
    void free_dropped() REQUIRES(mutex_);
    void repair() REQUIRES(mutex_);

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
    mutable bool broken_ GUARDED_BY(mutex_) = false;    // the writer found what cannot be
    std::atomic<bool> held_up_{false};                  // somebody waited for the lock, and in vain
};

}  // namespace routecap
