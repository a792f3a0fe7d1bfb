// Blocks of rows in a file that several processes map: a table of fixed size without a lock.
//
//   identity   what the file is, checked when it is opened and never written again
//   control    generation, clock, counters, and which processes have it open
//   evictions  the keys of blocks that went lately (MappedEvictions)
//   index      buckets of 16 cells: from a key's hash to a slot
//   ages       which slot is to be taken next (MappedAges)
//   slots      a word, generation, pins and key for each block
//   rows       ids, validity and tags of each block
//
// What is true is in a slot's word, and there only: the state of the slot (free, claimed by a
// process, published), a number that grows with every claim, and the checksum of what was
// published. Index and ages are hints. A cell that leads to a slot of another key is passed over
// and is used again; what is lost with a cell is a block that nobody finds, which goes with age.
//
// Writing. A process claims a slot that is free, or that has a block which is to go, by one
// compare-and-swap of its word. Then it alone writes there. One release store of the word publishes
// the block, and one compare-and-swap of a cell makes it found. Where the key has no block the cell
// comes first, and readers pass it over until the word is stored. Where it has one the word comes
// first, and the cell goes from the old slot to the new one in one instant. Whoever has linked a
// block looks afterwards, behind a fence, whether another process linked the key too: one of two
// sees the other.
//
// Reading. A reader loads the word (acquire), copies generation, key and rows with relaxed loads,
// and loads the word again behind an acquire fence. A writer has a release fence between its claim
// and its first relaxed store. So a reader that saw one byte of a later writer sees its claim too,
// and a word that is still the same says that nothing of what was copied is later. All that others
// may write is read by atomics, so no access is a data race; what was copied is believed only after
// the word was the same, the checksum right and every id an expert of its layer.
//
// Pins. A slot has a word with a bit for each process that retains its block, and of which claim
// the block is, so that nobody sets or clears a bit of another block. What goes for room is closed
// to pins by one compare-and-swap of a word without any, before it is claimed. A block also goes
// while it is retained: if it is dropped, or if it gives way to another block of its key, which
// inherits its pins. So whoever sets a bit looks at the slot's word afterwards, and whoever claims
// looks at the bits afterwards, both in sequentially consistent order: one of them sees the other.
// A block that is published before the index leads there is pinned by its writer until it does.
//
// Death. A process has a number, whose lock the kernel drops when the process ends. Its claims are
// then free and its pins gone: whoever needs a slot, or takes the number, sees to that (free_slots_of_dead). A
// process that dies anywhere leaves a block that is whole or none.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "store/mapped_ages.h"
#include "store/mapped_checksum.h"
#include "store/mapped_evictions.h"
#include "store/mapped_file.h"
#include "store/store.h"

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
    replaced,
    evicted,
    imported,
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
    ~MappedBlocks();
    MappedBlocks(const MappedBlocks &) = delete;
    MappedBlocks &operator=(const MappedBlocks &) = delete;

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
    // Looks up [found.size(), key_bytes] keys for a caller at a generation. Takes no lock.
    void find(const uint8_t *keys, uint64_t generation, std::span<Found> found) const;
    // Blocks that were found were used, in this order.
    void touch(std::span<const Found> found);
    // Copies blocks that were found to rows one after another, block_rows each, and checks them.
    // What has gone since is looked for anew, but not under a slot key, which may be another's by
    // now. Rows of a block that is not there are missing, for its reason. Takes no lock, but to
    // drop a block that is damaged.
    void read(const uint8_t *keys, uint64_t generation, std::span<Found> found, RowPlanes rows);

    // The least tag of block_rows rows that have a valid cell.
    uint64_t least_tag(RowView rows) const;

    // Begins to bring into the cache what publish() reads first of a key.
    void fetch(const uint8_t *key) const;
    enum class Published { stored, repeated, refused, stale };
    struct New {
        const uint8_t *key = nullptr;
        RowView rows = {};  // block_rows
        // What became of it; and whether a cell that was there has other ids.
        std::optional<Published> result = {};
        bool mismatched = false;
    };
    static constexpr uint32_t kAtOnce = 16;  // keys that are looked up or published side by side
    // Publishes at most kAtOnce blocks, as if one after another.
    void publish(std::span<New> blocks, uint64_t generation);

    // [n] reasons, as those of find(); may be null. What is `known` already need not be in the
    // table: of [n] keys 0 (retained), a reason, or kUnknown. Throws without memory.
    static constexpr int32_t kUnknown = -1;
    void retain(const uint8_t *keys, size_t n, int32_t *reasons, const int32_t *known = nullptr);
    void release(const uint8_t *keys, size_t n);
    // Drops a block. Whether there was one; `as_if` there was.
    bool evict(const uint8_t *key, bool as_if = false);
    // A later publish took the slot key, and nothing came of it: what there was is another's.
    void give_way(const uint8_t *key);
    // Memory for a move of so many; throws without.
    struct Moves {
        struct Moved {
            uint32_t slot;
            uint64_t sum;  // of the rows alone
        };
        using Pin = std::map<uint64_t, uint32_t>::node_type;

        explicit Moves(size_t n) : in_flight(n), moved(n), pins(n), spare(n) {}
        // Whether a key's block is in flight, and will come under the other.
        std::vector<bool> in_flight;
        std::vector<Moved> moved;
        std::vector<Pin> pins, spare;
    };
    // All at once.
    void move(const uint8_t *from, const uint8_t *to, Moves &moves);

    void count(MappedCount what, uint64_t n) {
        if (n != 0) counter(what).fetch_add(n, std::memory_order_relaxed);
    }
    uint64_t counted(MappedCount what) const {
        return counter(what).load(std::memory_order_relaxed);
    }
    struct Usage {
        uint64_t blocks, retained;
        uint64_t bytes, bytes_peak, bytes_budget;
    };
    // Looks for the dead first.
    Usage usage();

private:
    struct Control;
    struct Slot;
    // Offsets in the file.
    struct Layout {
        size_t control, evictions, index, ages, slots, rows, bytes;
    };
    struct Key {
        std::array<uint64_t, kMostKeyWords> words;
        uint64_t hash;
    };
    using Cell = std::atomic<uint32_t>;
    // A block of a key, and the cell that led there.
    struct Match {
        Cell *cell;
        uint32_t value;
        uint32_t slot;
        uint64_t word;
        uint64_t generation;
    };

    explicit MappedBlocks(const StoreConfig &config);
    Layout layout(uint32_t slots) const;
    std::vector<uint8_t> identity(uint32_t slots, uint64_t seed, uint64_t bytes) const;
    template <class Take>
    int32_t initialise(Take take);
    int32_t check_identity();
    void place(uint32_t slots, uint64_t seed);
    int32_t attach();

    // ---- Finding
    uint64_t hash_of(const Key &key) const;
    Key key_at(const uint8_t *keys, size_t i) const;
    std::array<Cell *, 2> buckets(uint64_t hash) const;
    uint32_t cell_value(uint64_t hash, uint32_t slot) const;
    uint32_t slot_of(uint32_t cell) const;
    struct Cells;
    Cells cells(const std::array<Cell *, 2> &buckets, uint32_t print) const;
    uint32_t print_of(uint64_t hash) const;
    uint32_t candidates(const std::array<Cell *, 2> &buckets, uint64_t hash) const;
    std::optional<Match> match(const Key &key, Cell &cell) const;
    std::optional<Match> match_in(const Key &key, uint32_t slot) const;
    std::optional<Match> first_match(const Key &key, const std::array<Cell *, 2> &buckets,
                                     uint32_t candidates) const;
    std::optional<Match> first_match(const Key &key, uint32_t but = UINT32_MAX) const;
    int32_t reason_of_absence(uint64_t hash) const;
    bool copy_block(const Found &found, RowPlanes rows, bool &damaged) const;
    bool slot_keys() const { return config_.slot_keys(); }
    bool good_rows(RowPlanes rows, uint64_t n, bool &complete) const;
    bool read_block(const uint8_t *key, uint64_t generation, Found &found, RowPlanes rows);
    void mark_hole(RowPlanes rows, int32_t reason) const;

    // ---- Changing, with mutex_
    std::optional<uint32_t> claim(uint32_t stamp);
    void expect_to_write(uint32_t slot) const;
    void expect_to_replace(const std::array<Cell *, 2> &buckets, uint32_t cells) const;
    bool claim_oldest(uint32_t slot, uint32_t number, uint32_t stamp);
    uint64_t write(uint32_t slot, const Key &key, RowView rows, uint64_t pins);
    // A block on its way: the cell that is to lead to its slot, and what cell, age and word get.
    struct Writing {
        New *block;
        Key key;
        std::array<Cell *, 2> buckets;
        Cell *cell;
        uint32_t slot, value, stamp;
        uint64_t word;
    };
    void publish_new(std::span<Writing *const> blocks, uint64_t generation);
    Published publish_one(const Writing &writing, uint64_t generation);
    std::optional<Published> link(const Match &own, const Key &key,
                                  const std::optional<Match> &before, Cell *linked = nullptr);
    Cell *empty_cell(const std::array<Cell *, 2> &buckets, uint32_t empty) const;
    bool make_room(const std::array<Cell *, 2> &buckets);
    bool retire(const Match &match, uint64_t hash, const Key *of_another = nullptr);
    bool drop(const Key &key);
    void end_replacing();
    void unlink(uint64_t hash, uint32_t slot);
    void give_back(uint32_t slot);
    void discard_damaged(const Found &found);
    void note_eviction(uint64_t hash);
    bool merge(RowPlanes old_rows, RowView new_rows, bool &mismatched) const;
    uint32_t newest_number(uint32_t slot);
    void mend_age(uint32_t slot);
    uint64_t my_pin() const { return uint64_t{1} << me_; }
    bool pin(const Match &match, uint64_t bits);
    void unpin(const Match &match, uint64_t bits);
    std::optional<Match> pin_block(const Key &key, uint64_t bits);
    void inherit(const Key &key, uint64_t bits);
    void settle_pin(const Key &key, std::optional<Match> own = {});
    void free_slots_of_dead();
    void sweep(uint32_t process);
    void drop_stray_pins();
    Key key_in(uint32_t slot) const;

    Slot &slot(uint32_t index) const;
    MappedWord *rows(uint32_t index) const;
    std::atomic<uint64_t> &counter(MappedCount what) const;
    uint64_t claimed_word(uint64_t word) const;

    const StoreConfig config_;
    const uint32_t key_words_;
    const size_t ids_bytes_, validity_bytes_;  // of a block
    const size_t slot_stride_, rows_words_;
    const uint32_t process_generation_;
    MappedFile file_;
    Layout at_{};
    uint32_t slots_ = 0, bucket_count_ = 0, slot_bits_ = 0;
    uint64_t seed_ = 0;
    Control *control_ = nullptr;
    std::optional<MappedAges> ages_;
    std::optional<MappedEvictions> evictions_;
    uint32_t me_ = UINT32_MAX;  // this process' number
    mutable std::atomic<uint64_t> seen_generation_{0};

    // One thread of this process changes the table at a time; guards what follows too.
    QuickMutex mutex_;
    // How often this process retains a key, by its hash.
    std::map<uint64_t, uint32_t> pins_;
    std::vector<uint64_t> scratch_;  // a block
    uint32_t next_ = 0;              // the slot behind the last that was claimed
    // Until a call ends: the slot of a block that was replaced, still claimed, which the next one
    // is written to; and how many were replaced, to be counted.
    std::optional<uint32_t> spare_;
    uint64_t replaced_ = 0;
    uint32_t claims_ = 0;  // of blocks that had to go, since the dead were looked for
};

}  // namespace routecap
