// What the tests of blocks in mapped memory share: rows that say whose they are, and objects that
// stand for processes.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "prefix/mapped_blocks.h"

namespace mapped {

using namespace routecap;

inline ShapePtr make_shape(uint32_t layers, uint32_t k, uint32_t experts) {
    std::vector<int32_t> map(layers), provenance(layers, ROUTECAP_PROVENANCE_CAPTURED);
    for (uint32_t l = 0; l < layers; l++) map[l] = static_cast<int32_t>(l);
    return std::make_shared<const Shape>(k, ROUTECAP_ID_SPACE_LOGICAL, map,
                                         std::vector<uint32_t>(layers, experts), provenance);
}

// Waits until enough has happened, or a test has failed; for five minutes at most.
inline void run_until(const std::function<bool()> &enough) {
    using std::chrono::steady_clock;
    const auto limit = steady_clock::now() + std::chrono::minutes(5);
    while (!enough() && !testing::Test::HasFailure() && steady_clock::now() < limit)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

// The generation that tests name is the tag of rows but for these: rows of a block have many.
constexpr uint64_t kTags = 1 << 20;

struct Options {
    uint32_t layers = 5, k = 4, experts = 60, block_rows = 4, key_bytes = 16;
    uint32_t blocks = 64;
    uint64_t generation = 1;
};

// Of so few cells that a call is over soon.
inline Options small(uint32_t blocks) {
    return {.layers = 2, .k = 2, .experts = 20, .block_rows = 2, .key_bytes = 8, .blocks = blocks};
}

inline StoreConfig config(const Options &o) {
    StoreConfig c{make_shape(o.layers, o.k, o.experts),
                  0,
                  o.block_rows,
                  o.key_bytes,
                  0,
                  o.generation * kTags};
    c.budget_bytes = MappedBlocks::slot_bytes(c) * o.blocks;
    return c;
}

class Descriptor {
public:
    explicit Descriptor(int fd = -1) : fd_(fd) {}
    Descriptor(const Descriptor &) = delete;
    Descriptor &operator=(const Descriptor &) = delete;
    ~Descriptor() {
        if (fd_ >= 0) close(fd_);
    }
    int32_t &get() { return fd_; }

private:
    int32_t fd_;
};

// A block's rows in process memory.
struct Block {
    std::vector<uint8_t> ids, validity;
    std::vector<uint64_t> tags;

    Block(const Shape &shape, uint32_t rows)
        : ids(size_t{rows} * shape.ids_bytes),
          validity(size_t{rows} * shape.validity_bytes),
          tags(rows) {}
    RowPlanes planes() { return {ids.data(), validity.data(), tags.data()}; }
    bool operator==(const Block &) const = default;
};

inline uint64_t mix(uint64_t x) { return xxh64::avalanche(x * xxh64::kPrime1 + xxh64::kPrime5); }

// k distinct experts that row, layer and `seed` decide.
inline void put_cell(const Shape &shape, uint8_t *cell, uint64_t seed, uint32_t row,
                     uint32_t layer) {
    const uint64_t h = mix(seed * 1000003 + row * 257 + layer);
    const uint32_t first = static_cast<uint32_t>(h % shape.experts);
    const uint32_t step = 1 + static_cast<uint32_t>(h >> 40) % 3;
    for (uint32_t c = 0; c < shape.k; c++) {
        const uint32_t id = (first + c * step) % shape.experts;  // experts > 3 k
        cell[c * shape.id_bytes] = static_cast<uint8_t>(id);
        if (shape.id_bytes == 2) cell[c * 2 + 1] = static_cast<uint8_t>(id >> 8);
    }
}

// Rows of a seed. Cells of which `missing` has a bit, counted from row 0, are missing.
inline Block block_of(const Shape &shape, uint32_t rows, uint64_t generation, uint64_t seed,
                      uint64_t missing = 0) {
    Block b(shape, rows);
    for (uint32_t r = 0; r < rows; r++) {
        b.tags[r] = generation * kTags + mix(seed + r) % kTags;
        for (uint32_t l = 0; l < shape.layers; l++) {
            uint8_t *cell = b.ids.data() + r * shape.ids_bytes + l * shape.cell_bytes;
            const uint32_t i = r * shape.layers + l;
            if (i < 64 && (missing >> i & 1) != 0) {
                shape.mark(b.ids.data() + r * shape.ids_bytes, l, ROUTECAP_MISSING_UNWRITTEN);
                continue;
            }
            put_cell(shape, cell, seed, r, l);
            b.validity[r * shape.validity_bytes + l / 8] |= static_cast<uint8_t>(1u << l % 8);
        }
    }
    return b;
}

inline std::vector<uint8_t> key_of(uint32_t key_bytes, uint64_t number) {
    std::vector<uint8_t> key(key_bytes);
    for (uint32_t i = 0; i < key_bytes; i += 8) {
        const uint64_t word = i == 0 ? number : mix(number + i);
        std::memcpy(key.data() + i, &word, std::min<size_t>(8, key_bytes - i));
    }
    return key;
}
inline std::vector<uint8_t> keys_of(uint32_t key_bytes, const std::vector<uint64_t> &numbers) {
    std::vector<uint8_t> keys;
    for (const uint64_t n : numbers) {
        const auto key = key_of(key_bytes, n);
        keys.insert(keys.end(), key.begin(), key.end());
    }
    return keys;
}

// One process' view of a table, with numbers for keys.
class Process {
public:
    // The first makes the table, others open it.
    Process(const Options &o, Descriptor &descriptor)
        : config_(config(o)), generation(o.generation), scratch_(*config_.shape, o.block_rows) {
        status = descriptor.get() < 0 ? MappedBlocks::create(config_, descriptor.get(), blocks_)
                                      : MappedBlocks::open(config_, descriptor.get(), blocks_);
    }

    MappedBlocks &blocks() { return *blocks_; }
    const Shape &shape() const { return *config_.shape; }
    void end() { blocks_.reset(); }

    MappedCount publish(uint64_t key, uint64_t seed, uint64_t missing = 0) {
        Block b = block_of(shape(), config_.block_rows, generation, seed, missing);
        return publish_block(key, b);
    }
    MappedCount publish_block(uint64_t key, Block &b) {
        const auto bytes = key_of(config_.key_bytes, key);
        MappedBlocks::New block{bytes.data(), b.planes()};
        write({&block, 1});
        mismatched = block.mismatched;
        return block.result;
    }
    // Keys with blocks of a seed each, in one call.
    std::vector<MappedCount> publish_many(const std::vector<uint64_t> &keys,
                                          const std::vector<uint64_t> &seeds,
                                          uint64_t missing = 0) {
        const auto bytes = keys_of(config_.key_bytes, keys);
        std::vector<Block> rows;
        for (const uint64_t seed : seeds)
            rows.push_back(block_of(shape(), config_.block_rows, generation, seed, missing));
        std::vector<MappedBlocks::New> blocks;
        for (size_t i = 0; i < keys.size(); i++)
            blocks.push_back({bytes.data() + i * config_.key_bytes, rows[i].planes()});
        if (ready) ready();
        write(blocks);
        std::vector<MappedCount> results;
        for (const MappedBlocks::New &block : blocks) results.push_back(block.result);
        return results;
    }
    // 0 and the rows in read_rows(), or the reason.
    int32_t read(uint64_t key) {
        const auto bytes = key_of(config_.key_bytes, key);
        MappedBlocks::Found found{};
        blocks_->find(bytes.data(), generation * kTags, {&found, 1});
        blocks_->read(bytes.data(), generation * kTags, {&found, 1}, scratch_.planes());
        return found.reason;
    }
    const Block &read_rows() const { return scratch_; }
    bool has(uint64_t key, uint64_t seed, uint64_t missing = 0) {
        return read(key) == 0 &&
               scratch_ == block_of(shape(), config_.block_rows, generation, seed, missing);
    }
    int32_t find(uint64_t key) {
        MappedBlocks::Found found{};
        blocks_->find(key_of(config_.key_bytes, key).data(), generation * kTags, {&found, 1});
        return found.reason;
    }
    bool evict(uint64_t key) { return blocks_->evict(key_of(config_.key_bytes, key).data()); }
    void advance(uint64_t to) { blocks_->advance(to * kTags); }
    uint64_t is_at() const { return blocks_->generation() / kTags; }
    uint64_t counted(MappedCount what) const { return blocks_->counted(what); }

private:
    void write(std::span<MappedBlocks::New> blocks) {
        blocks_->change([&](const MappedBlocks::Writer &writer) {
            writer.publish(blocks, generation * kTags);
        });
    }

    StoreConfig config_;
    std::unique_ptr<MappedBlocks> blocks_;

public:
    uint64_t generation;  // that it is at
    bool mismatched = false;
    int32_t status;
    std::function<void()> ready;  // publish_many has made its blocks

private:
    Block scratch_;
};

constexpr int32_t kEvicted = ROUTECAP_MISSING_EVICTED,
                  kNotPublished = ROUTECAP_MISSING_NOT_PUBLISHED, kStale = ROUTECAP_MISSING_STALE;

}  // namespace mapped
