// What was handed over and is still to be applied, in order: blocks of entries that are made before
// the capturer's mutex is taken, so that appending under it allocates nothing, however long the log
// is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

namespace routecap {

template <class Entry>
class OperationLog {
public:
    static constexpr uint32_t kBlock = 128;
    struct Block {
        Block *next = nullptr;
        uint32_t count = 0;
        alignas(Entry) unsigned char memory[kBlock * sizeof(Entry)];

        Entry *entry(uint32_t i) { return std::launder(reinterpret_cast<Entry *>(memory) + i); }
        // Destroys the entries, the block itself stays.
        void clear() noexcept {
            for (uint32_t i = 0; i < count; i++) entry(i)->~Entry();
            count = 0;
        }
    };

    OperationLog() = default;
    OperationLog(const OperationLog &) = delete;
    ~OperationLog() { drop(first_), drop(spare_); }

    // Without the mutex: a chain of empty blocks. Throws without memory.
    static Block *make(size_t blocks) {
        Block *chain = nullptr;
        try {
            for (; blocks > 0; blocks--) {
                Block *block = new Block;
                block->next = chain;
                chain = block;
            }
        } catch (...) {
            drop(chain);
            throw;
        }
        return chain;
    }
    static void drop(Block *chain) noexcept {
        while (chain != nullptr) {
            Block *next = chain->next;
            chain->clear();
            delete chain;
            chain = next;
        }
    }

    // The rest with the mutex held. How many blocks are missing for so many entries more.
    size_t missing(size_t entries) const {
        const size_t room = (last_ != nullptr ? kBlock - last_->count : 0) + spare_blocks_ * kBlock;
        return entries <= room ? 0 : (entries - room + kBlock - 1) / kBlock;
    }
    // Takes a chain of empty blocks.
    void add(Block *chain) noexcept {
        while (chain != nullptr) {
            Block *next = chain->next;
            chain->next = std::exchange(spare_, chain);
            spare_blocks_++;
            chain = next;
        }
    }
    // How many there are.
    uint64_t entries() const {
        uint64_t n = 0;
        for (const Block *block = first_; block != nullptr; block = block->next) n += block->count;
        return n;
    }
    // There must be room.
    template <class... Args>
    void append(Args &&...args) noexcept {
        if (last_ == nullptr || last_->count == kBlock) {
            Block *block = std::exchange(spare_, spare_->next);
            spare_blocks_--;
            block->next = nullptr;
            (last_ != nullptr ? last_->next : first_) = block;
            last_ = block;
        }
        new (last_->memory + last_->count * sizeof(Entry)) Entry(std::forward<Args>(args)...);
        last_->count++;
    }
    // Starts fetching where the entry goes that comes after the next `ahead`: a worker's core has
    // it.
    void prefetch(uint32_t ahead) const {
        if (last_ == nullptr) return;
        const uint32_t at = last_->count + ahead;
        if (at < kBlock)
            __builtin_prefetch(last_->memory + at * sizeof(Entry), 1);
        else if (spare_ != nullptr)
            __builtin_prefetch(spare_->memory + (at - kBlock) * sizeof(Entry), 1);
    }
    // Hands over all entries, in a chain of blocks.
    Block *take() noexcept {
        last_ = nullptr;
        return std::exchange(first_, nullptr);
    }

private:
    Block *first_ = nullptr, *last_ = nullptr;
    Block *spare_ = nullptr;
    size_t spare_blocks_ = 0;
};

}  // namespace routecap
