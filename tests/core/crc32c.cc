// The sums of several rows at once are those of each row alone, bit by bit. From inside, because no
// shape has rows of every length.
#include "tests/support/crc32c.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "base/crc32c.h"

namespace {

constexpr size_t kMostRows = 9;
constexpr uint64_t kPosition = (uint64_t{1} << 40) - 5;  // its carry reaches beyond 32 bits

// Rows of `bytes` bytes that no rule of their length gives.
std::vector<uint8_t> some_rows(size_t bytes) {
    std::vector<uint8_t> rows(kMostRows * bytes);
    uint64_t state = bytes + 1;
    for (uint8_t &byte : rows) {
        state = state * 6364136223846793005 + 1442695040888963407;
        byte = static_cast<uint8_t>(state >> 56);
    }
    return rows;
}

std::vector<uint32_t> sums_of_each(const std::vector<uint8_t> &rows, size_t bytes) {
    std::vector<uint32_t> sums;
    for (size_t r = 0; r < kMostRows; r++) {
        std::vector<uint8_t> summed;
        for (int byte = 0; byte < 8; byte++)
            summed.push_back(static_cast<uint8_t>((kPosition + r) >> 8 * byte));
        for (size_t b = 0; b < bytes; b++) summed.push_back(rows[r * bytes + b]);
        sums.push_back(crc32c(summed));
    }
    return sums;
}

void check(size_t bytes) {
    constexpr uint32_t kUntouched = 0x12345678;
    const std::vector<uint8_t> rows = some_rows(bytes);
    const std::vector<uint32_t> expected = sums_of_each(rows, bytes);
    for (size_t n = 0; n <= kMostRows; n++) {
        std::vector<uint32_t> sums(kMostRows + 1, kUntouched), these = expected;
        these.resize(n), these.resize(kMostRows + 1, kUntouched);
        // An array of its own, so that a sanitizer finds a byte that is read behind the rows.
        const std::vector<uint8_t> own(rows.begin(),
                                       rows.begin() + static_cast<ptrdiff_t>(n * bytes));
        routecap::crc32c_of_rows(own.data(), bytes, kPosition, n, sums.data());
        ASSERT_EQ(sums, these) << n << " rows of " << bytes << " bytes";
    }
}

}  // namespace

TEST(Crc32c, of_rows_is_that_of_each_row_whatever_its_length) {
    for (size_t bytes = 0; bytes <= 1100; bytes++) check(bytes);
    for (const size_t bytes : {1168, 2048, 4095, 4096}) check(bytes);
}
