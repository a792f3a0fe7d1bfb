// What the host refuses before a kernel sees it: a kernel that gets it says missing, never what the
// last value of a list means. From inside, because no call of the header reaches this.
#include <gtest/gtest.h>

#include <cstdint>
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
          layout(rows, {layers_, k_, id_bytes, 0}),
          sink(static_cast<size_t>(layers_) * rows * k_, T{3}),
          memory(layout.bytes() + 64, 0xcd) {
        for (uint32_t l = 0; l < layers_; l++)
            layers.push_back({sink.data() + static_cast<size_t>(l) * rows * k,
                              k,
                              dtype_of<T>(),
                              {static_cast<uint16_t>(experts), static_cast<uint8_t>(k),
                               static_cast<uint8_t>(k)}});
        slot = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
        control.named = {0, 1};
    }
    void begin(uint32_t n) {
        const Begin kernel{layers.data(), layer_count, n,     begin_items(n, k, sizeof(T)),
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
        return (layout.row.validity(layout.at(slot, row))[layer / 8] >> layer % 8 & 1) != 0;
    }
    int64_t id(uint32_t layer, uint32_t row, uint32_t column) const {
        const uint8_t *ids =
            layout.row.cell(layout.at(slot, row), layer) + static_cast<size_t>(column) * id_bytes;
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
class Unknown : public testing::Test {};
using SinkTypes = testing::Types<int16_t, int32_t, int64_t>;
TYPED_TEST_SUITE(Unknown, SinkTypes);

}  // namespace

TYPED_TEST(Unknown, a_source_of_no_known_dtype_has_no_ids) {
    Fixture<TypeParam> f(1, 2, 8, 1);
    f.begin(1);
    const int64_t source[] = {1 << 16, 2 << 16};
    RecordOne<0> kernel{};
    kernel.layers[0] = {source, nullptr, f.layers[0]};
    kernel.source.dtype = 99;
    kernel.source.column_stride = 1;
    kernel.source.to.rows = 1;
    kernel.control = &f.control;
    run(kernel);
    f.snapshot();
    EXPECT_FALSE(f.valid(0, 0));
    EXPECT_EQ(f.id(0, 0, 0), ROUTECAP_MISSING_OUT_OF_RANGE);
}

TYPED_TEST(Unknown, a_sink_of_no_known_dtype_is_neither_written_nor_read) {
    Fixture<TypeParam> f(1, 2, 8, 2);
    f.layers[0].dtype = 99;
    f.begin(1);
    const int64_t source[] = {1, 2};
    RecordOne<0> kernel{};
    kernel.layers[0] = {source, nullptr, f.layers[0]};
    kernel.source.dtype = ROUTECAP_DTYPE_I64;
    kernel.source.column_stride = 1;
    kernel.source.to.rows = 1;
    kernel.control = &f.control;
    run(kernel);
    f.cell(0, 0)[1] = 4;
    f.snapshot();
    EXPECT_EQ(f.sink, (std::vector<TypeParam>{3, 4, 3, 3}));
    EXPECT_FALSE(f.valid(0, 0));
    EXPECT_EQ(f.id(0, 0, 0), ROUTECAP_MISSING_UNWRITTEN);
}

TYPED_TEST(Unknown, no_known_score_chooses_no_expert) {
    Fixture<TypeParam> f(1, 2, 4, 1);
    f.begin(1);
    const float logits[] = {3, 1, 2, 0};
    Route<1, kAnyScore> kernel{};
    kernel.router.score = 99;
    kernel.router.groups = 1;
    kernel.logits.logits = logits;
    kernel.logits.column_stride = 1;
    kernel.logits.dtype = ROUTECAP_DTYPE_F32;
    kernel.logits.experts = 4;
    kernel.logits.to.rows = 1;
    kernel.sink = f.layers[0];
    kernel.k = 2;
    kernel.control = &f.control;
    run(kernel);
    f.snapshot();
    EXPECT_FALSE(f.valid(0, 0));
    EXPECT_EQ(f.id(0, 0, 0), ROUTECAP_MISSING_OUT_OF_RANGE);
    bool called = false;
    EXPECT_FALSE(with_route(4, 99, [&]<uint32_t, int32_t>() { called = true; }));
    EXPECT_FALSE(called);
}

TEST(Unpack, a_result_of_no_known_dtype_is_not_written) {
    uint64_t ids[2] = {7, 7};
    uint8_t what = ROUTECAP_PLAN_CLASS_VALID;
    struct {
        PackedHeader header{};
        PlanLayer layer{0, {8, 2, 2}};
        RowWord word{ROUTECAP_PLAN_CLASS_VALID, 0};
        uint8_t ids[2] = {1, 2};
    } packed;
    PackedHeader &header = packed.header;
    const auto offset = [&](const void *part) {
        return static_cast<uint64_t>(static_cast<const uint8_t *>(part) -
                                     reinterpret_cast<const uint8_t *>(&packed));
    };
    header.magic = PackedHeader::kMagic;
    header.row_words = offset(&packed.word);
    header.ids = offset(packed.ids);
    header.id_bytes = 1;
    header.shape = {1, 1, 2, 1, 8, 99, ROUTECAP_ORDER_ROW_MAJOR, 0};
    Unpack<0> kernel{reinterpret_cast<const uint8_t *>(&packed), ids, &what, header.shape};
    run(kernel);
    EXPECT_EQ(ids[0], 7u);
    EXPECT_EQ(ids[1], 7u);
    EXPECT_EQ(what, ROUTECAP_PLAN_CLASS_LOST);
    header.shape.dtype = kernel.shape.dtype = ROUTECAP_DTYPE_I64;
    run(kernel);
    EXPECT_EQ(ids[0], 1u);
    EXPECT_EQ(ids[1], 2u);
    EXPECT_EQ(what, ROUTECAP_PLAN_CLASS_VALID);
}
