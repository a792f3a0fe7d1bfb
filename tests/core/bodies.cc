// The element bodies of the kernels, from inside: what the host backend and the device run for one
// item.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/list.h"

using namespace routecap;
using namespace routecap::kernels;

namespace {

template <class T>
constexpr int32_t dtype_of() {
    return sizeof(T) == 2   ? ROUTECAP_DTYPE_I16
           : sizeof(T) == 4 ? ROUTECAP_DTYPE_I32
                            : ROUTECAP_DTYPE_I64;
}

template <class Kernel>
void run(const Kernel &kernel) {
    for (uint32_t o = 0; o < kernel.outer(); o++)
        for (uint32_t i = 0; i < kernel.inner(); i++) kernel.item(o, i);
}

// A sink of one dtype with one slot.
template <class T>
struct Fixture {
    Fixture(uint32_t layers_, uint32_t k_, uint32_t experts, uint32_t rows_)
        : layer_count(layers_),
          k(k_),
          rows(rows_),
          id_bytes(experts <= 256 ? 1 : 2),
          layout(rows, (layers_ + 7) / 8, layers_ * k_ * id_bytes),
          sink(static_cast<size_t>(layers_) * rows * k_, T{3}),
          memory(layout.bytes() + 64, 0xcd) {
        for (uint32_t l = 0; l < layers_; l++)
            layers.push_back(
                {sink.data() + static_cast<size_t>(l) * rows * k, k, dtype_of<T>(), experts});
        slot = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
        control.named = {0, 1};
    }
    void begin(uint32_t n) {
        const Begin kernel{layers.data(), layer_count, k,     n, begin_items(n, k, sizeof(T)),
                           &control,      slot,        layout};
        run(kernel);
        kernel.once();
    }
    void snapshot() {
        if (id_bytes == 1)
            snapshot<uint8_t>();
        else
            snapshot<uint16_t>();
    }
    template <class Id>
    void snapshot() {
        with_columns(k, [&]<uint32_t K>() {
            const Snapshot<Id, K> kernel{layers.data(), layer_count, k, &control, slot, layout};
            run(kernel);
            kernel.once();
        });
    }
    T *cell(uint32_t layer, uint32_t row) {
        return sink.data() + (static_cast<size_t>(layer) * rows + row) * k;
    }
    bool valid(uint32_t layer, uint32_t row) const {
        return (layout.validity(slot, row)[layer / 8] >> layer % 8 & 1) != 0;
    }
    int64_t id(uint32_t layer, uint32_t row, uint32_t column) const {
        const uint8_t *ids =
            layout.ids(slot, row) + (static_cast<size_t>(layer) * k + column) * id_bytes;
        return id_bytes == 1 ? ids[0] : ids[0] | ids[1] << 8;
    }

    uint32_t layer_count, k, rows, id_bytes;
    SlotLayout layout;
    std::vector<T> sink;
    std::vector<SinkLayer> layers;
    std::vector<uint8_t> memory;
    uint8_t *slot;
    Control control{};
};

template <class T>
class Bodies : public testing::Test {};
using SinkTypes = testing::Types<int16_t, int32_t, int64_t>;
TYPED_TEST_SUITE(Bodies, SinkTypes);

}  // namespace

TYPED_TEST(Bodies, poison_is_bytes_of_0x80_and_never_an_id) {
    Fixture<TypeParam> f(3, 5, 300, 4);
    f.begin(2);
    unsigned char poison[sizeof(TypeParam) * 5];
    std::memset(poison, kPoisonByte, sizeof poison);
    for (uint32_t l = 0; l < 3; l++) {
        for (uint32_t r = 0; r < 2; r++)
            EXPECT_EQ(std::memcmp(f.cell(l, r), poison, sizeof poison), 0);
        EXPECT_EQ(f.cell(l, 2)[0], 3);  // not begun, not touched
    }
    EXPECT_LT(kPoison<TypeParam>, -1);
    EXPECT_EQ(f.control.armed, 2u);
}

// Every cell of every shape gets exactly the verdict that a slow reading of the definition gives.
TYPED_TEST(Bodies, snapshot_judges_every_cell) {
    std::mt19937_64 random(1);
    for (uint32_t k : {1u, 2u, 3u, 4u, 5u, 6u, 8u, 10u, 16u, 22u, 31u, 32u})
        for (uint32_t experts : {32u, 256u, 257u, 32768u})
            for (uint32_t layers : {1u, 7u, 8u, 9u, 17u}) {
                Fixture<TypeParam> f(layers, k, experts, 6);
                f.begin(5);
                std::vector<int> verdict(layers * 5);
                for (uint32_t l = 0; l < layers; l++)
                    for (uint32_t r = 0; r < 5; r++) {
                        TypeParam *cell = f.cell(l, r);
                        int &v = verdict[l * 5 + r];
                        v = static_cast<int>(random() % 6);
                        if (v == ROUTECAP_MISSING_DUPLICATE && k == 1) v = 0;
                        if (v == 1 || v == 5) v = 0;
                        const uint64_t base = random();
                        for (uint32_t c = 0; c < k; c++)
                            cell[c] = static_cast<TypeParam>((base + c * 31) % experts);
                        const auto at = static_cast<uint32_t>(random() % k);
                        if (v == ROUTECAP_MISSING_UNWRITTEN) cell[at] = kPoison<TypeParam>;
                        if (v == ROUTECAP_MISSING_OUT_OF_RANGE)
                            cell[at] = static_cast<TypeParam>(sizeof(TypeParam) > 2 && random() % 2
                                                                  ? static_cast<int64_t>(experts)
                                                                  : -1);
                        if (v == ROUTECAP_MISSING_DUPLICATE) cell[at] = cell[(at + 1) % k];
                    }
                f.snapshot();
                ASSERT_EQ(f.layout.header(f.slot)->covered, 5u);
                for (uint32_t l = 0; l < layers; l++)
                    for (uint32_t r = 0; r < 5; r++) {
                        ASSERT_EQ(f.valid(l, r), verdict[l * 5 + r] == 0)
                            << k << " " << experts << " " << layers;
                        for (uint32_t c = 0; c < k; c++)
                            ASSERT_EQ(f.id(l, r, c), f.valid(l, r)
                                                         ? static_cast<int64_t>(f.cell(l, r)[c])
                                                     : c == 0 ? verdict[l * 5 + r]
                                                              : 0);
                    }
                const uint8_t last = f.layout.validity(f.slot, 0)[f.layout.validity_bytes - 1];
                ASSERT_EQ(layers % 8 == 0 ? 0 : last >> layers % 8, 0);  // bits beyond the layers
                ASSERT_EQ(f.layout.ids(f.slot, 5)[0], 0xcd);             // beyond the rows armed
            }
}

TYPED_TEST(Bodies, record_reads_every_source) {
    std::mt19937_64 random(2);
    const auto check = [&](auto element, int32_t dtype) {
        using S = decltype(element);
        for (int64_t column_stride : {1, 3})
            for (int64_t row_stride : {0, 17, 40}) {
                constexpr uint32_t k = 4, experts = 700, rows = 5;
                Fixture<TypeParam> f(1, k, experts, 8);
                f.begin(7);
                const int64_t stride = row_stride != 0 ? row_stride : k * column_stride;
                std::vector<S> source(400);
                for (S &s : source) {
                    const auto id = static_cast<int64_t>(random() % 1000) - 100;
                    s = static_cast<S>(dtype == ROUTECAP_DTYPE_ID16_BF16 ? id << 16 | 0x3c00 : id);
                }
                RecordOne<0> kernel{};
                kernel.layers[0].ids = source.data();
                kernel.source.dtype = dtype;
                kernel.source.row_stride = stride;
                kernel.source.column_stride = column_stride;
                kernel.source.to.rows = rows;
                kernel.source.to.first_row = 3;
                kernel.k = k;
                kernel.layers[0].sink = f.layers[0];
                kernel.control = &f.control;
                run(kernel);
                for (uint32_t r = 0; r < 7; r++)
                    for (uint32_t c = 0; c < k; c++) {
                        int64_t expected = kPoison<TypeParam>;
                        if (r >= 3) {
                            expected = static_cast<int64_t>(
                                source[static_cast<size_t>((r - 3) * stride + c * column_stride)]);
                            if (dtype == ROUTECAP_DTYPE_ID16_BF16)
                                expected = static_cast<int16_t>(expected >> 16);
                            if (expected < 0 || expected >= experts) expected = kInvalidId;
                        }
                        ASSERT_EQ(f.cell(0, r)[c], static_cast<TypeParam>(expected));
                    }
                ASSERT_EQ(f.control.dropped, 1u);  // row 7 was not begun
                run(kernel);
                ASSERT_EQ(f.control.conflicts, 4u);
            }
    };
    check(int16_t{}, ROUTECAP_DTYPE_I16);
    check(int32_t{}, ROUTECAP_DTYPE_I32);
    check(uint32_t{}, ROUTECAP_DTYPE_U32);
    check(int64_t{}, ROUTECAP_DTYPE_I64);
    check(int32_t{}, ROUTECAP_DTYPE_ID16_BF16);
}

// Nothing wraps: ids that are far out of range, tables and offsets at the limits.
TYPED_TEST(Bodies, record_never_wraps) {
    Fixture<TypeParam> f(1, 1, 300, 16);
    f.begin(16);
    const int64_t source[] = {65541, 4294967301, -4294967291, INT64_MAX, INT64_MIN,
                              299,   300,        -1,          0};
    RecordOne<1> kernel{};
    kernel.layers[0].ids = source;
    kernel.source.dtype = ROUTECAP_DTYPE_I64;
    kernel.source.row_stride = kernel.source.column_stride = 1;
    kernel.source.to.rows = 9;
    kernel.k = 1;
    kernel.layers[0].sink = f.layers[0];
    kernel.control = &f.control;
    run(kernel);
    const int64_t plain[] = {-1, -1, -1, -1, -1, 299, -1, -1, 0};
    for (uint32_t r = 0; r < 9; r++) EXPECT_EQ(f.cell(0, r)[0], plain[r]) << r;
    for (int32_t offset : {INT32_MIN, INT32_MAX, -5}) {
        f.begin(16);
        kernel.source.offset = offset;
        run(kernel);
        for (uint32_t r = 0; r < 9; r++) {
            const __int128 sum = static_cast<__int128>(source[r]) + offset;
            EXPECT_EQ(f.cell(0, r)[0], sum < 0 || sum >= 300 ? -1 : static_cast<TypeParam>(sum))
                << r << " " << offset;
        }
    }
    const int32_t table[] = {7, -3, 299, 300, INT32_MAX, INT32_MIN};
    const int64_t physical[] = {0, 1, 2, 3, 4, 5, 6, -1, 2};
    f.begin(16);
    kernel.layers[0].ids = physical;
    kernel.layers[0].table = table;
    kernel.source.table_size = 6;
    kernel.source.offset = 0;
    run(kernel);
    const int64_t mapped[] = {7, -1, 299, -1, -1, -1, -1, -1, 299};
    for (uint32_t r = 0; r < 9; r++) EXPECT_EQ(f.cell(0, r)[0], mapped[r]) << r;
}

// Rows, validity and positions of a slot lie apart for every number of rows copied, and what is
// copied is one range.
TEST(Slot, layout) {
    for (uint32_t rows : {1u, 7u, 64u})
        for (uint32_t validity : {1u, 3u, 8u})
            for (uint32_t ids : {1u, 8u, 464u}) {
                const SlotLayout layout(rows, validity, ids);
                std::vector<uint8_t> memory(layout.bytes() + 64);
                uint8_t *slot =
                    memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
                EXPECT_EQ(reinterpret_cast<uintptr_t>(layout.header(slot)) % 64, 0u);
                EXPECT_GE(layout.validity(slot, rows - 1), slot);
                EXPECT_EQ(layout.validity(slot, 0) + validity,
                          reinterpret_cast<uint8_t *>(layout.header(slot)));
                EXPECT_EQ(layout.ids(slot, 0),
                          reinterpret_cast<uint8_t *>(layout.header(slot) + 1));
                for (uint32_t n = 1; n <= rows; n++) {
                    EXPECT_GE(reinterpret_cast<uint8_t *>(layout.positions(slot, n)),
                              layout.ids(slot, n));
                    EXPECT_EQ(reinterpret_cast<uintptr_t>(layout.positions(slot, n)) % 8, 0u);
                    EXPECT_LE(reinterpret_cast<uint8_t *>(layout.positions(slot, n) + n),
                              slot + layout.bytes());
                }
            }
}
