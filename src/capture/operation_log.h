// What was handed over and is still to be applied, in order. Callers make blocks of entries before
// they take the registry's mutex, so that appending allocates nothing.
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
        uint32_t count = 0;  // of its entries; while it is the log's last, `next_` tells
        alignas(Entry) unsigned char memory[kBlock * sizeof(Entry)];

        Entry *entry(uint32_t i) { return std::launder(reinterpret_cast<Entry *>(memory) + i); }
        // Destroys all but the first `kept` entries.
        void keep(uint32_t kept) noexcept {
            for (uint32_t i = kept; i < count; i++) entry(i)->~Entry();
            count = kept;
        }
    };

    OperationLog() = default;
    OperationLog(const OperationLog &) = delete;
    ~OperationLog() { drop(take()), drop(spare_); }

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
            chain->keep(0);
            delete chain;
            chain = next;
        }
    }

    // The rest with the mutex held. How many blocks are missing for so many entries more.
    size_t missing(size_t entries) const {
        const size_t room = rest() + spare_blocks_ * kBlock;
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
    // There must be room.
    template <class... Args>
    void append(Args &&...args) noexcept {
        if (next_ == end_) extend();
        new (next_) Entry(std::forward<Args>(args)...);
        next_++;
    }
    // Hands over all entries, in a chain of blocks.
    Block *take() noexcept {
        if (last_ != nullptr) last_->count = kBlock - static_cast<uint32_t>(rest());
        last_ = nullptr;
        next_ = end_ = nullptr;
        return std::exchange(first_, nullptr);
    }

private:
    size_t rest() const { return static_cast<size_t>(end_ - next_); }
    void extend() noexcept {
        Block *block = std::exchange(spare_, spare_->next);
        spare_blocks_--;
        block->next = nullptr;
        if (last_ != nullptr) last_->count = kBlock;
        (last_ != nullptr ? last_->next : first_) = block;
        last_ = block;
        next_ = reinterpret_cast<Entry *>(block->memory);
        end_ = next_ + kBlock;
    }

    Block *first_ = nullptr, *last_ = nullptr;
    Entry *next_ = nullptr, *end_ = nullptr;  // in the last block: where the next one goes
    Block *spare_ = nullptr;
    size_t spare_blocks_ = 0;
};

}  // namespace routecap
