#include "prefix/block_table.h"

#include <bit>
#include <cstring>
#include <new>

namespace routecap {

template <class T>
BlockTable::Array<T> BlockTable::zeros(size_t n) {
    Array<T> array(static_cast<T *>(std::calloc(n, sizeof(T))));
    if (array == nullptr) throw std::bad_alloc();
    return array;
}

BlockTable::BlockTable(uint32_t key_bytes, uint32_t most)
    : key_bytes_(key_bytes),
      stride_((sizeof(Block) + key_bytes + 3) / 4 * 4),
      most_(most),
      mask_(std::bit_ceil(size_t{most} / 2 + 1) - 1),
      buckets_(zeros<Id>(mask_ + 1)),
      memory_(zeros<uint8_t>((size_t{most} + 1) * stride_)),
      gone_cells_(zeros<std::atomic<uint64_t>>(Evictions::kWords)) {}

uint64_t BlockTable::hash(const uint8_t *key) const {
    constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
    uint64_t h = key_bytes_, word = 0;
    uint32_t b = 0;
    for (; b + 8 <= key_bytes_; b += 8) {
        std::memcpy(&word, key + b, 8);
        h = (h ^ word) * kOdd;
        h ^= h >> 32;
    }
    if (b < key_bytes_) {
        word = 0;
        std::memcpy(&word, key + b, key_bytes_ - b);
        h = (h ^ word) * kOdd;
        h ^= h >> 32;
    }
    return h * kOdd ^ h >> 29;
}

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
    rename(id, key);
    return id;
}

void BlockTable::rename(Id id, const uint8_t *key) {
    std::memcpy(const_cast<uint8_t *>(this->key(id)), key, key_bytes_);
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
