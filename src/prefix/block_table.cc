#include "prefix/block_table.h"

#include <bit>
#include <cstring>
#include <new>

#include "prefix/key_hash.h"

namespace routecap {

BlockTable::BlockTable(uint32_t key_bytes, uint32_t most)
    : key_bytes_(key_bytes),
      stride_((sizeof(Block) + key_bytes + 3) / 4 * 4),
      most_(most),
      mask_(std::bit_ceil(size_t{most} / 2 + 1) - 1),
      buckets_(zeroed_array<Id>(mask_ + 1)),
      memory_(zeroed_array<uint8_t>((size_t{most} + 1) * stride_)) {}

uint64_t BlockTable::hash(const uint8_t *key) const { return KeyHash::of(key, key_bytes_); }

BlockTable::Id BlockTable::find(const uint8_t *wanted, uint64_t hash) const {
    Id id = buckets_[bucket(hash)];
    while (id != 0 && std::memcmp(key(id), wanted, key_bytes_) != 0) id = at(id).chain;
    return id;
}

BlockTable::Id BlockTable::make(const uint8_t *key) {
    Id id = free_;
    if (id != 0)
        free_ = at(id).chain;
    else if (made_ < most_)
        id = ++made_;
    else
        return 0;
    Block &block = *new (&at(id)) Block{};
    block.set(State::pending);
    std::memcpy(const_cast<uint8_t *>(this->key(id)), key, key_bytes_);
    return id;
}

void BlockTable::link(Id id, uint64_t hash) {
    Block &block = at(id);
    block.chain = buckets_[bucket(hash)];
    buckets_[bucket(hash)] = id;
    block.linked = 1;
}

void BlockTable::unlink(Id id, uint64_t hash) {
    Id *to = &buckets_[bucket(hash)];
    while (*to != id) to = &at(*to).chain;
    *to = at(id).chain;
    at(id).linked = 0;
}

void BlockTable::free(Id id) {
    at(id).set(State::free);
    at(id).chain = free_;
    free_ = id;
}

void BlockTable::enqueue(Id id) {
    Block &block = at(id);
    block.newer = 0;
    block.older = newest_;
    (newest_ != 0 ? at(newest_).newer : oldest_) = id;
    newest_ = id;
}

void BlockTable::dequeue(Id id) {
    const Block &block = at(id);
    (block.newer != 0 ? at(block.newer).older : newest_) = block.older;
    (block.older != 0 ? at(block.older).newer : oldest_) = block.newer;
}

}  // namespace routecap
