// Which blocks a store has, by key; in which order they may go; and which keys went. All memory is
// taken at the start, and used as blocks come. Its users guard it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "prefix/evictions.h"
#include "prefix/zeroed_array.h"

namespace routecap {

class BlockTable {
public:
    using Id = uint32_t;  // 0: none

    enum class State : uint8_t { free, pending, ready };
    // In front of a key. A block of one row may cost no more than 32 bytes beside its cells.
    struct Block {
        Id chain;           // the next of its bucket, or the next free one
        Id newer, older;    // ready: in line, unless it is retained
        uint32_t place;     // ready: of its rows
        uint16_t retained;  // how often
        uint16_t state_ : 2;
        uint16_t linked : 1;      // found by its key
        uint16_t complete : 1;    // ready: no cell is missing
        uint16_t superseded : 1;  // pending: nobody wants it any more under its key

        State state() const { return static_cast<State>(state_); }
        void set(State state) { state_ = static_cast<uint16_t>(state) & 3; }
        // Pending: whose block it is, and which.
        uint32_t publication() const { return newer; }
        uint32_t index() const { return older; }
    };
    static_assert(sizeof(Block) == 20);

    // Throws without memory.
    BlockTable(uint32_t key_bytes, uint32_t most);

    static size_t block_bytes(uint32_t key_bytes) {
        return (sizeof(Block) + key_bytes + 3) / 4 * 4 +
               sizeof(Id) / 2;  // with its part of a bucket
    }

    uint64_t hash(const uint8_t *key) const;
    // What find() will look at.
    void prefetch_bucket(uint64_t hash) const { __builtin_prefetch(&buckets_[bucket(hash)]); }
    void prefetch_block(uint64_t hash) const {
        if (const Id id = buckets_[bucket(hash)]; id != 0) __builtin_prefetch(&at(id), 1);
    }

    Block &at(Id id) { return *reinterpret_cast<Block *>(memory_.get() + id * stride_); }
    const Block &at(Id id) const {
        return *reinterpret_cast<const Block *>(memory_.get() + id * stride_);
    }
    const uint8_t *key(Id id) const { return memory_.get() + id * stride_ + sizeof(Block); }

    Id find(const uint8_t *key, uint64_t hash) const;
    // A pending one, not linked. 0: there are too many.
    Id make(const uint8_t *key);
    void link(Id id, uint64_t hash);
    void unlink(Id id, uint64_t hash);
    // Neither linked nor in line.
    void free(Id id);

    // The line: who stands longest goes first.
    void enqueue(Id id);
    void dequeue(Id id);
    Id oldest() const { return oldest_; }

    // Keys of blocks that went.
    void note_gone(uint64_t hash) { gone_.add(hash); }
    bool has_gone(uint64_t hash) const { return gone_.has(hash); }

private:
    size_t bucket(uint64_t hash) const { return hash & mask_; }

    const uint32_t key_bytes_;
    const size_t stride_;
    const uint32_t most_;
    size_t mask_ = 0;
    ZeroedArray<Id> buckets_;
    ZeroedArray<uint8_t> memory_;
    uint32_t made_ = 0;
    Id free_ = 0;
    Id oldest_ = 0, newest_ = 0;

    Evictions gone_;
};

}  // namespace routecap
