// A store for tests, in the shape of a rig, whose keys are numbers.
#pragma once

#include <rig.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace rig {

using Numbers = std::vector<uint64_t>;
constexpr int32_t kEvicted = ROUTECAP_MISSING_EVICTED, kNever = ROUTECAP_MISSING_NOT_PUBLISHED;

struct ShelfOptions {
    uint32_t block_rows = 4;
    uint32_t key_bytes = 8;
    uint32_t flags = 0;
    uint64_t budget_bytes = 0;
    uint64_t generation = 0;
};

inline routecap_config config_of(const Shape &shape) {
    routecap_config config{};
    config.struct_size = sizeof config;
    config.layers = shape.layers, config.k = shape.k, config.experts = shape.experts;
    return config;
}

class Shelf {
public:
    explicit Shelf(const Shape &shape, const ShelfOptions &options = {}) : options_(options) {
        routecap_store_config config;
        EXPECT_STATUS(ROUTECAP_OK, routecap_store_config_init(&config, sizeof config));
        config.block_rows = options.block_rows, config.key_bytes = options.key_bytes;
        config.flags = options.flags, config.budget_bytes = options.budget_bytes;
        config.generation = options.generation;
        const routecap_config of = config_of(shape);
        EXPECT_STATUS(ROUTECAP_OK, routecap_store_create(&config, &of, &store_));
    }
    ~Shelf() { free(); }
    Shelf(const Shelf &) = delete;

    routecap_store *get() const { return store_; }
    void free() { routecap_store_free(std::exchange(store_, nullptr)); }
    uint64_t rows(size_t blocks) const { return blocks * options_.block_rows; }

    std::vector<uint8_t> keys(const Numbers &numbers) const {
        std::vector<uint8_t> bytes(numbers.size() * options_.key_bytes);
        for (size_t i = 0; i < numbers.size(); i++)
            std::memcpy(&bytes[i * options_.key_bytes], &numbers[i], sizeof numbers[i]);
        return bytes;
    }

    void publish(Rig &rig, routecap_request request, uint64_t first, const Numbers &numbers,
                 int32_t expected = ROUTECAP_OK) {
        EXPECT_STATUS(expected,
                      routecap_request_publish(rig.capturer(), request, store_, first,
                                               keys(numbers).data(), numbers.size(), generation));
    }
    routecap_adoption adopt(Rig &rig, routecap_request request, uint64_t first,
                            const Numbers &numbers, int32_t expected = ROUTECAP_OK) {
        routecap_adoption adoption{};
        adoption.struct_size = sizeof adoption;
        EXPECT_STATUS(expected, routecap_request_adopt(rig.capturer(), request, store_, first,
                                                       keys(numbers).data(), numbers.size(),
                                                       generation, &adoption));
        return adoption;
    }
    // 0, or why a key is not there.
    std::vector<int32_t> contains(const Numbers &numbers) {
        std::vector<int32_t> reasons(numbers.size());
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_store_contains(store_, keys(numbers).data(), numbers.size(),
                                              generation, reasons.data(), nullptr));
        return reasons;
    }
    void retain(const Numbers &numbers) {
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_store_retain(store_, keys(numbers).data(), numbers.size(), nullptr));
    }
    void release(const Numbers &numbers) {
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_store_release(store_, keys(numbers).data(), numbers.size()));
    }
    void evict(const Numbers &numbers) {
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_store_evict(store_, keys(numbers).data(), numbers.size(), nullptr));
    }
    void advance(uint64_t to) {
        EXPECT_STATUS(ROUTECAP_OK, routecap_store_advance(store_, to));
        generation = to;
    }
    routecap_store_counts counts() const {
        routecap_store_counts counts{};
        counts.struct_size = sizeof counts;
        EXPECT_STATUS(ROUTECAP_OK, routecap_store_stats(store_, &counts));
        return counts;
    }
    // After everything that was issued has landed: what was published is there.
    routecap_store_counts settled(Rig &rig) {
        rig.bytes_in_use();
        return counts();
    }

    uint64_t generation = 0;

private:
    const ShelfOptions options_;
    routecap_store *store_ = nullptr;
    int32_t descriptor_ = -1;
};

inline Numbers from_to(uint64_t first, uint64_t end) {
    Numbers numbers;
    for (uint64_t n = first; n < end; n++) numbers.push_back(n);
    return numbers;
}

// Why each row of a range is missing; 0 where any cell is there.
inline std::vector<int32_t> why(Rig &rig, routecap_request request, uint64_t first, uint64_t rows) {
    std::vector<routecap_missing> missing(256);
    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    EXPECT_GE(routecap_request_coverage(rig.capturer(), request, first, rows, &coverage,
                                        missing.data(), sizeof missing[0], missing.size()),
              0)
        << routecap_last_error();
    std::vector<int32_t> reasons(rows, 0);
    for (uint64_t b = 0; b < coverage.blocks; b++)
        for (uint64_t r = 0; missing[b].layers == rig.shape().layers && r < missing[b].rows; r++)
            reasons[missing[b].first + r - first] = missing[b].reason;
    return reasons;
}

}  // namespace rig
