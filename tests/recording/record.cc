// routecap_layer_record and routecap_layers_record over everything that a source can be, each cell
// against plain arithmetic, and memory around sources and sinks untouched.
#include <rig.h>

#include <algorithm>
#include <cstring>
#include <random>

using namespace rig;

namespace {

constexpr uint32_t kRows = 24, kGuard = 64;

struct Case {
    int32_t dtype;
    enum { dense, padded, transposed } strides;
    enum { first_row, row_index, row_base } placement;
    enum { plain, offset, table } remap;
    uint32_t k, experts, k_source;
};

size_t size_of(int32_t dtype) {
    return dtype == ROUTECAP_DTYPE_I16 ? 2 : dtype == ROUTECAP_DTYPE_I64 ? 8 : 4;
}

// Two layers in memory of their own, with bytes around them that nobody may write.
class GuardedSink {
public:
    GuardedSink(Rig &rig, uint32_t k, int32_t dtype)
        : rig_(rig), bytes_(2 * kGuard + size_t{2} * kRows * k * size_of(dtype)) {
        memory_ = static_cast<unsigned char *>(rig.device().allocate(bytes_, 0x5a));
        routecap_sink sink{};
        sink.struct_size = sizeof sink;
        sink.dtype = dtype;
        sink.ids = memory_ + kGuard;
        sink.rows = kRows;
        sink.k = k;
        EXPECT_STATUS(ROUTECAP_OK, routecap_sink_bind(rig.capturer(), 0, 2, &sink));
    }
    void expect_untouched() {
        std::vector<unsigned char> now(bytes_);
        rig_.device().read(now.data(), memory_, bytes_);
        for (uint32_t i = 0; i < kGuard; i++) {
            ASSERT_EQ(now[i], 0x5a);
            ASSERT_EQ(now[bytes_ - 1 - i], 0x5a);
        }
    }

private:
    Rig &rig_;
    const size_t bytes_;
    unsigned char *memory_;
};

// One source of each layer, in host memory, with what its cells must be.
class Sources {
public:
    Sources(const Case &c, uint32_t rows, std::mt19937_64 &random)
        : case_(c), rows_(rows), random_(random) {
        source.struct_size = sizeof source;
        source.dtype = c.dtype;
        source.rows = rows;
        source.k_source = c.k_source;
        row_stride_ = c.strides == Case::dense    ? c.k_source
                      : c.strides == Case::padded ? c.k_source + 5
                                                  : 1;
        column_stride_ = c.strides == Case::transposed ? rows + 3 : 1;
        if (c.strides == Case::padded) source.row_stride = row_stride_;
        if (c.strides == Case::transposed)
            source.row_stride = 1, source.column_stride = column_stride_;
        if (c.remap == Case::offset) source.offset = 7;
        if (c.remap == Case::table) {
            for (uint32_t i = 0; i < c.experts + 9; i++)
                table_.push_back(static_cast<int32_t>(random() % (c.experts + 2)) - 1);
            source.table_size = static_cast<uint32_t>(table_.size());
        }
        for (Layer &layer : layers_) fill(layer);
    }

    const void *ids(uint32_t layer) const { return layers_[layer].memory.data(); }
    size_t bytes() const { return layers_[0].memory.size(); }
    const int32_t *table() const { return table_.empty() ? nullptr : table_.data(); }
    const Cell &cell(uint32_t layer, uint32_t row) const { return layers_[layer].cells[row]; }
    routecap_source source{};

private:
    struct Layer {
        std::vector<unsigned char> memory;
        std::vector<Cell> cells;
    };

    void fill(Layer &layer) {
        const size_t size = size_of(case_.dtype);
        layer.memory.resize(size * static_cast<size_t>((rows_ - 1) * row_stride_ +
                                                       (case_.k_source - 1) * column_stride_ + 1));
        // Between rows and columns.
        for (unsigned char &byte : layer.memory) byte = static_cast<unsigned char>(random_());
        for (uint32_t r = 0; r < rows_; r++) {
            std::vector<int64_t> ids;
            const int64_t first = static_cast<int64_t>(random_() % case_.experts);
            for (uint32_t c = 0; c < case_.k_source; c++) {
                int64_t id = (first + c) % case_.experts - source.offset;
                if (random_() % 40 == 0) id = strange();
                const int64_t raw = case_.dtype == ROUTECAP_DTYPE_ID16_BF16
                                        ? static_cast<int64_t>(static_cast<uint64_t>(id) << 16 |
                                                               (random_() & 0xffff))
                                        : id;
                std::memcpy(layer.memory.data() +
                                size * static_cast<size_t>(r * row_stride_ + c * column_stride_),
                            &raw, size);
                if (c < case_.k) ids.push_back(mapped(as_read(raw)));
            }
            bool valid = true;
            for (size_t c = 0; c < ids.size(); c++)
                valid &= ids[c] >= 0 && ids[c] < case_.experts &&
                         std::find(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(c), ids[c]) ==
                             ids.begin() + static_cast<ptrdiff_t>(c);
            layer.cells.push_back(valid ? Cell(ids) : std::nullopt);
        }
    }
    int64_t strange() {
        const int64_t values[] = {-1,        static_cast<int64_t>(case_.experts),
                                  32767,     -32768,
                                  65536 + 1, int64_t{1} << 32,
                                  INT64_MIN, INT64_MAX};
        return values[random_() % 8];
    }
    // What the element type leaves of a number.
    int64_t as_read(int64_t raw) const {
        switch (case_.dtype) {
            case ROUTECAP_DTYPE_I16: return static_cast<int16_t>(raw);
            case ROUTECAP_DTYPE_I32: return static_cast<int32_t>(raw);
            case ROUTECAP_DTYPE_U32: return static_cast<uint32_t>(raw);
            case ROUTECAP_DTYPE_I64: return raw;
            default: return static_cast<int16_t>(raw >> 16);
        }
    }
    int64_t mapped(int64_t id) const {
        if (case_.remap == Case::table)
            return id < 0 || id >= static_cast<int64_t>(table_.size())
                       ? -1
                       : table_[static_cast<size_t>(id)];
        return id > INT64_MAX - 7 ? -1 : id + source.offset;
    }

    const Case case_;
    const uint32_t rows_;
    std::mt19937_64 &random_;
    int64_t row_stride_, column_stride_;
    std::vector<int32_t> table_;
    Layer layers_[2];
};

// all: The source rows are those of the whole step, which one call records.
void run(Rig &rig, const Case &c, bool together, bool overlap, bool all, std::mt19937_64 &random) {
    constexpr uint32_t kSource = 13;
    Sources s(c, kSource, random);
    // Which sink row each source row goes to.
    std::vector<int32_t> to(kSource, -1), index;
    const int32_t base = 4, live = 11;
    for (uint32_t i = 0; i < kSource; i++) {
        if (c.placement == Case::first_row) to[i] = static_cast<int32_t>(all ? i : i + 6);
        if (c.placement == Case::row_index)
            index.push_back(to[i] = i % 5 == 2 ? -3 : static_cast<int32_t>((i * 7 + 3) % kRows));
        if (c.placement == Case::row_base && i < 11) to[i] = static_cast<int32_t>(i) + 2 + base;
    }
    if (c.placement == Case::first_row && !all) s.source.first_row = 6;
    if (c.placement == Case::row_base) s.source.first_row = 2;
    if (overlap) s.source.flags = ROUTECAP_SOURCE_OVERLAP;
    if (all) s.source.flags = ROUTECAP_SOURCE_WHOLE_STEP;

    rig.forward([&] {
        if (!all) {
            EXPECT_STATUS(ROUTECAP_OK, rig.begin(kRows));
        }
        routecap_source source = s.source;
        if (c.placement == Case::row_index)
            source.row_index =
                static_cast<const int32_t *>(rig.device().upload(index.data(), index.size() * 4));
        if (c.placement == Case::row_base) {
            source.row_base = static_cast<const int32_t *>(rig.device().upload(&base, 4));
            source.live_rows = static_cast<const int32_t *>(rig.device().upload(&live, 4));
        }
        const auto *table = s.table() == nullptr ? nullptr
                                                 : static_cast<const int32_t *>(rig.device().upload(
                                                       s.table(), size_t{source.table_size} * 4));
        std::vector<routecap_layer_source> layers;
        for (uint32_t l : {1u, 0u})
            layers.push_back({l, 0, rig.device().upload(s.ids(l), s.bytes()), table});
        if (together) {
            EXPECT_STATUS(ROUTECAP_OK,
                          routecap_layers_record(rig.capturer(), &source, layers.data(),
                                                 sizeof layers[0], layers.size(), rig.stream()));
        } else {
            for (const routecap_layer_source &l : layers) {
                source.ids = l.ids;
                source.table = l.table;
                EXPECT_STATUS(ROUTECAP_OK, routecap_layer_record(rig.capturer(), l.layer, &source,
                                                                 rig.stream()));
            }
        }
        if (!all) {
            EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
        }
    });
    const routecap_request r = rig.open();
    const uint32_t rows = all ? kSource : kRows;
    rig.land(rig.issue({Rig::span(r, 0, 0, rows)}));
    Rows expected = missing_rows(rig.shape(), rows);
    for (uint32_t i = 0; i < kSource; i++)
        for (uint32_t l = 0; l < 2 && to[i] >= 0; l++)
            expected[static_cast<size_t>(to[i])][l] = s.cell(l, i);
    rig.expect(r, 0, expected);
    rig.close(r);
}

}  // namespace

TEST(Record, every_source) {
    std::mt19937_64 random(7);
    const int32_t sink_dtypes[] = {ROUTECAP_DTYPE_I16, ROUTECAP_DTYPE_I32, ROUTECAP_DTYPE_I64};
    uint32_t n = 0;
    for (auto [k, experts] : {std::pair{1u, 8u},
                              {2u, 16u},
                              {6u, 160u},
                              {7u, 300u},
                              {8u, 256u},
                              {10u, 512u},
                              {16u, 896u},
                              {22u, 512u},
                              {32u, 1024u}}) {
        const int32_t sink_dtype = sink_dtypes[n % 3];
        Rig rig({.shape = {.layers = 2, .k = k, .experts = experts, .rows = kRows},
                 .flags = ROUTECAP_CONFIG_EXTERNAL_SINK,
                 .sink_dtype = sink_dtype});
        GuardedSink sink(rig, k, sink_dtype);
        for (int32_t dtype : {ROUTECAP_DTYPE_I16, ROUTECAP_DTYPE_I32, ROUTECAP_DTYPE_U32,
                              ROUTECAP_DTYPE_I64, ROUTECAP_DTYPE_ID16_BF16})
            for (auto strides : {Case::dense, Case::padded, Case::transposed})
                for (auto placement : {Case::first_row, Case::row_index, Case::row_base})
                    for (auto remap : {Case::plain, Case::offset, Case::table}) {
                        SCOPED_TRACE(testing::Message()
                                     << "k " << k << " dtype " << dtype << " strides " << strides
                                     << " placement " << placement << " remap " << remap << " n "
                                     << n);
                        const Case c{
                            dtype, strides, placement, remap, k, experts, n % 4 == 0 ? k + 2 : k};
                        const bool all = placement == Case::first_row && n % 5 < 2;
                        run(rig, c, all || n % 2 == 0, !all && n % 3 == 0, all, random);
                        if (HasFailure()) return;
                        n++;
                    }
        sink.expect_untouched();
    }
    EXPECT_EQ(n, 9u * 5 * 3 * 3 * 3);
}

// More layers than one launch takes.
TEST(Record, many_layers_at_once) {
    for (bool whole : {false, true}) {
        Rig rig({.shape = {.layers = 130, .k = 4, .experts = 64, .rows = 8}});
        const routecap_request r = rig.open();
        std::vector<std::vector<int32_t>> ids(130);
        for (uint32_t l = 0; l < 130; l++)
            for (uint64_t p = 0; p < 5; p++)
                for (int64_t id : routed(rig.shape(), 3, p, l))
                    ids[l].push_back(static_cast<int32_t>(id));
        rig.forward([&] {
            if (!whole) {
                EXPECT_STATUS(ROUTECAP_OK, rig.begin(5));
            }
            std::vector<routecap_layer_source> layers;
            for (uint32_t l = 0; l < 130; l++)
                layers.push_back(
                    {l, 0, rig.device().upload(ids[l].data(), ids[l].size() * 4), nullptr});
            routecap_source source{};
            source.struct_size = sizeof source;
            source.dtype = ROUTECAP_DTYPE_I32;
            source.rows = 5;
            if (whole) source.flags = ROUTECAP_SOURCE_WHOLE_STEP;
            EXPECT_STATUS(ROUTECAP_OK,
                          routecap_layers_record(rig.capturer(), &source, layers.data(),
                                                 sizeof layers[0], layers.size(), rig.stream()));
            if (!whole) {
                EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
            }
        });
        rig.land(rig.issue({Rig::span(r, 0, 0, 5)}));
        rig.expect(r, 0, routed_rows(rig.shape(), 3, 0, 5));
    }
}

// Steps of one call: layers that it does not name are missing, and what was begun before it is
// forgotten. With more layers than one launch takes it is a begin, a record and a snapshot.
TEST(Record, a_whole_step) {
    for (uint32_t layer_count : {3u, 70u}) {
        Rig rig({.shape = {.layers = layer_count, .k = 2, .experts = 16, .rows = 8}});
        const int32_t ids[3][4] = {{1, 2, 3, 4}, {5, 6, 7, 7}, {8, 9, 10, 99}};
        const void *uploaded[3];
        for (uint32_t i = 0; i < 3; i++) uploaded[i] = rig.device().upload(ids[i], sizeof ids[i]);
        routecap_source source{};
        source.struct_size = sizeof source;
        source.dtype = ROUTECAP_DTYPE_I32;
        source.flags = ROUTECAP_SOURCE_WHOLE_STEP;
        const auto record = [&](uint32_t rows, const routecap_layer_source &one) {
            source.rows = rows;
            return routecap_layers_record(rig.capturer(), &source, &one, sizeof one, 1,
                                          rig.stream());
        };
        const routecap_request r = rig.open();
        Rows expected = missing_rows(rig.shape(), 7);
        rig.forward([&] {
            EXPECT_STATUS(ROUTECAP_OK, rig.begin(8));
            EXPECT_STATUS(ROUTECAP_OK, record(2, {1, 0, uploaded[0], nullptr}));
            EXPECT_STATUS(ROUTECAP_OK, record(2, {2, 0, uploaded[1], nullptr}));
        });
        rig.land(rig.issue({Rig::span(r, 0, 0, 2)}));
        expected[0][2] = std::vector<int64_t>{5, 6};
        rig.forward([&] { EXPECT_STATUS(ROUTECAP_OK, record(2, {0, 0, uploaded[2], nullptr})); });
        rig.land(rig.issue({Rig::span(r, 2, 0, 2)}));
        expected[2][0] = std::vector<int64_t>{8, 9};
        // Of rows that the step has not, and of none at all.
        rig.forward([&] { EXPECT_STATUS(ROUTECAP_OK, record(1, {0, 0, uploaded[0], nullptr})); });
        rig.land(rig.issue({Rig::span(r, 4, 0, 2)}));
        expected[4][0] = std::vector<int64_t>{1, 2};
        rig.forward([&] { EXPECT_STATUS(ROUTECAP_OK, record(0, {0, 0, uploaded[0], nullptr})); });
        rig.land(rig.issue({Rig::span(r, 6, 0, 1)}));
        rig.expect(r, 0, expected);
    }
}

TEST(Record, a_whole_step_that_is_refused) {
    Rig rig({.shape = {.layers = 3, .k = 2, .experts = 16, .rows = 8}});
    const int32_t number = 1;
    const auto *ids = static_cast<const int32_t *>(rig.device().upload(&number, 4));
    const auto record = [&](auto change) {
        routecap_source source{};
        source.struct_size = sizeof source;
        source.dtype = ROUTECAP_DTYPE_I32;
        source.rows = 2;
        source.flags = ROUTECAP_SOURCE_WHOLE_STEP;
        change(source);
        const routecap_layer_source one{0, 0, ids, nullptr};
        return routecap_layers_record(rig.capturer(), &source, &one, sizeof one, 1, rig.stream());
    };
    using S = routecap_source;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, record([](S &s) { s.first_row = 1; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, record([&](S &s) { s.live_rows = ids; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, record([&](S &s) { s.row_base = ids; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, record([&](S &s) { s.row_index = ids; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, record([](S &s) { s.flags |= ROUTECAP_SOURCE_OVERLAP; }));
    EXPECT_STATUS(ROUTECAP_ERR_CAPACITY, record([](S &s) { s.rows = 9; }));
    routecap_source alone{};
    alone.struct_size = sizeof alone;
    alone.dtype = ROUTECAP_DTYPE_I32;
    alone.rows = 1;
    alone.ids = ids;
    alone.flags = ROUTECAP_SOURCE_WHOLE_STEP;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_layer_record(rig.capturer(), 0, &alone, rig.stream()));
}

TEST(Record, layers_that_are_refused) {
    Rig rig({.shape = {.layers = 3, .k = 2, .experts = 16, .rows = 8}});
    const int32_t ids[4] = {1, 2, 3, 4};
    const auto record = [&](std::vector<routecap_layer_source> layers, auto change) {
        routecap_source source{};
        source.struct_size = sizeof source;
        source.dtype = ROUTECAP_DTYPE_I32;
        source.rows = 2;
        change(source);
        return routecap_layers_record(rig.capturer(), &source, layers.data(), sizeof layers[0],
                                      layers.size(), rig.stream());
    };
    const auto same = [](auto &) {};
    EXPECT_STATUS(ROUTECAP_OK, rig.begin(8));
    EXPECT_STATUS(ROUTECAP_OK, record({}, same));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  record({{0, 0, ids, nullptr}, {0, 0, ids, nullptr}}, same));
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_LAYER,
                  record({{0, 0, ids, nullptr}, {3, 0, ids, nullptr}}, same));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, record({{0, 1, ids, nullptr}}, same));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, record({{0, 0, nullptr, nullptr}}, same));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, record({{0, 0, ids, ids}}, same));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  record({{0, 0, ids, nullptr}}, [](auto &s) { s.table_size = 4; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  record({{0, 0, ids, nullptr}}, [&](auto &s) { s.ids = ids; }));
    // What was refused recorded nothing, not even the layers before.
    const void *uploaded = rig.device().upload(ids, sizeof ids);
    EXPECT_STATUS(ROUTECAP_OK,
                  record({{0, 0, uploaded, nullptr}, {2, 0, uploaded, nullptr}}, same));
    EXPECT_STATUS(ROUTECAP_ERR_CONFLICT,
                  record({{1, 0, uploaded, nullptr}, {2, 0, uploaded, nullptr}}, same));
    EXPECT_STATUS(ROUTECAP_OK, record({{1, 0, uploaded, nullptr}}, same));
    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    const routecap_request r = rig.open();
    rig.land(rig.issue({Rig::span(r, 0, 0, 2)}));
    const std::vector<int64_t> first = {1, 2}, second = {3, 4};
    rig.expect(r, 0, {{first, first, first}, {second, second, second}});
    EXPECT_EQ(rig.stats().cells_conflicting, 0u);
}

namespace {

// What a kernel may leave in a cell of a sink: ids that are right, or a reason why it is missing.
struct Written {
    std::vector<int64_t> ids;
    int32_t reason = 0;
};

int64_t poison(int32_t dtype) {
    return dtype == ROUTECAP_DTYPE_I16   ? int16_t(0x8080)
           : dtype == ROUTECAP_DTYPE_I32 ? int32_t(0x80808080)
                                         : int64_t(0x8080808080808080);
}

Written written(const Shape &shape, int32_t dtype, std::mt19937_64 &random) {
    Written cell;
    const uint64_t base = random();
    for (uint32_t c = 0; c < shape.k; c++)
        cell.ids.push_back(static_cast<int64_t>((base + c * 31) % shape.experts));
    const size_t at = random() % shape.k;
    switch (random() % 6) {
        case 0:
            cell.reason = ROUTECAP_MISSING_UNWRITTEN;
            cell.ids[at] = poison(dtype);
            break;
        case 1:
            cell.reason = ROUTECAP_MISSING_OUT_OF_RANGE;
            cell.ids[at] = dtype != ROUTECAP_DTYPE_I16 && random() % 2 != 0
                               ? static_cast<int64_t>(shape.experts)
                               : -1;
            break;
        case 2:
            if (shape.k == 1) break;
            cell.reason = ROUTECAP_MISSING_DUPLICATE;
            cell.ids[at] = cell.ids[(at + 1) % shape.k];
            break;
        default: break;
    }
    return cell;
}

// A step whose kernel writes the sinks, and what is read of it.
void expect_judged(const Shape &shape, int32_t dtype, std::mt19937_64 &random) {
    Rig rig({.shape = shape, .sink_dtype = dtype});
    std::vector<std::vector<Written>> cells(shape.layers);
    std::vector<std::vector<unsigned char>> memory(shape.layers);
    for (uint32_t l = 0; l < shape.layers; l++)
        for (uint32_t r = 0; r < shape.rows; r++) {
            cells[l].push_back(written(shape, dtype, random));
            for (const int64_t id : cells[l].back().ids) {
                const auto *bytes = reinterpret_cast<const unsigned char *>(&id);
                memory[l].insert(memory[l].end(), bytes, bytes + size_of(dtype));
            }
        }
    const routecap_request request = rig.open();
    rig.forward([&] {
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(shape.rows));
        for (uint32_t l = 0; l < shape.layers; l++) {
            routecap_sink sink{};
            sink.struct_size = sizeof sink;
            EXPECT_STATUS(ROUTECAP_OK, routecap_sink_layer(rig.capturer(), l, &sink));
            rig.device().write(sink.ids, memory[l].data(), memory[l].size());
        }
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    });
    rig.land(rig.issue({Rig::span(request, 0, 0, shape.rows)}));

    routecap_routing *copy = nullptr;
    ASSERT_GE(routecap_request_extract(rig.capturer(), request, 0, shape.rows,
                                       ROUTECAP_EXTRACT_COPY, 0, &copy),
              0);
    const RoutingPtr routing(copy);
    const routecap_view view = view_of(copy);
    ASSERT_EQ(view.segment_count, 1u);
    const routecap_segment &segment = view.segments[0];
    ASSERT_NE(segment.validity, nullptr);
    for (uint32_t r = 0; r < shape.rows; r++)
        for (uint32_t l = 0; l < shape.layers; l++) {
            const Written &cell = cells[l][r];
            const bool valid = cell_is_valid(view, segment, r, l);
            ASSERT_EQ(valid, cell.reason == 0) << "layer " << l;
            for (uint32_t c = 0; c < shape.k; c++) {
                const int64_t id = id_of_cell(view, segment, r, l, c);
                ASSERT_EQ(id, valid ? cell.ids[c] : c == 0 ? cell.reason : 0);
            }
        }
}

}  // namespace

// Every cell gets exactly the verdict that a slow reading of the definition gives.
TEST(Record, cells_of_every_width_that_a_kernel_wrote_itself_are_judged) {
    std::mt19937_64 random(1);
    for (const int32_t dtype : {ROUTECAP_DTYPE_I16, ROUTECAP_DTYPE_I32, ROUTECAP_DTYPE_I64})
        for (const uint32_t k : {1u, 2u, 3u, 4u, 5u, 6u, 8u, 10u, 16u, 22u, 31u, 32u})
            for (const uint32_t experts : {32u, 256u, 257u, 32768u})
                for (const uint32_t layers : {8u, 17u}) {
                    SCOPED_TRACE(std::to_string(dtype) + ", " + std::to_string(k) + " of " +
                                 std::to_string(experts));
                    expect_judged({.layers = layers, .k = k, .experts = experts, .rows = 5}, dtype,
                                  random);
                }
}

// Placements with replicas: many physical ids of one expert, a table per layer, which balancing
// rewrites between steps.
TEST(Record, replicas_are_mapped_by_the_table_of_their_step) {
    Rig rig({.shape = {.layers = 2, .k = 2, .experts = 8, .rows = 8}});
    const routecap_request r = rig.open();
    auto *tables = static_cast<int32_t *>(rig.device().allocate(2 * 12 * 4));
    std::mt19937_64 random(5);
    Rows expected;
    for (uint64_t step = 0; step < 6; step++) {
        std::vector<int32_t> now(24);
        for (uint32_t l = 0; l < 2; l++)
            // Each expert once, and four replicas.
            for (uint32_t p = 0; p < 12; p++)
                now[l * 12 + p] = static_cast<int32_t>(p < 8 ? (p + step + l) % 8 : random() % 8);
        std::vector<int32_t> ids[2];
        expected.resize(expected.size() + 8, Row(2));
        for (uint32_t l = 0; l < 2; l++)
            for (uint32_t i = 0; i < 8; i++) {
                const auto a = static_cast<uint32_t>(random() % 12);
                uint32_t b = 0;
                while (now[l * 12 + b] == now[l * 12 + a]) b++;
                ids[l].insert(ids[l].end(), {static_cast<int32_t>(a), static_cast<int32_t>(b)});
                expected[step * 8 + i][l] = std::vector<int64_t>{now[l * 12 + a], now[l * 12 + b]};
            }
        rig.device().write(tables, now.data(), now.size() * 4);
        rig.forward([&] {
            EXPECT_STATUS(ROUTECAP_OK, rig.begin(8));
            routecap_source source{};
            source.struct_size = sizeof source;
            source.dtype = ROUTECAP_DTYPE_I32;
            source.rows = 8;
            source.table_size = 12;
            std::vector<routecap_layer_source> layers;
            for (uint32_t l = 0; l < 2; l++)
                layers.push_back(
                    {l, 0, rig.device().upload(ids[l].data(), ids[l].size() * 4), tables + l * 12});
            EXPECT_STATUS(ROUTECAP_OK,
                          routecap_layers_record(rig.capturer(), &source, layers.data(),
                                                 sizeof layers[0], 2, rig.stream()));
            EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
        });
        rig.issue({Rig::span(r, step * 8, 0, 8)});
    }
    rig.land(6);
    rig.expect(r, 0, expected);
}

// Load balancing that rewrites the router's ids in place: what was recorded before is what the
// router chose. A sink that is the router's own output gets physical ids instead, which the probe
// names where they are beyond the experts.
TEST(Record, ids_are_taken_before_they_are_rewritten) {
    Rig rig({.shape = {.layers = 2, .k = 2, .experts = 8, .rows = 8},
             .sink_dtype = ROUTECAP_DTYPE_I32});
    const routecap_request r = rig.open();
    const std::vector<int32_t> logical = {0, 1, 2, 3, 4, 5, 6, 7},
                               physical = {8, 9, 2, 11, 4, 13, 6, 15};
    auto *ids = static_cast<int32_t *>(rig.device().allocate(sizeof(int32_t) * 8));
    routecap_sink sink{};
    sink.struct_size = sizeof sink;
    EXPECT_STATUS(ROUTECAP_OK, routecap_sink_layer(rig.capturer(), 1, &sink));
    rig.forward([&] {
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(4));
        for (void *output : {static_cast<void *>(ids), sink.ids})
            rig.device().write(output, logical.data(), sizeof(int32_t) * 8);
        routecap_source source{};
        source.struct_size = sizeof source;
        source.dtype = ROUTECAP_DTYPE_I32;
        source.ids = ids;
        source.rows = 4;
        EXPECT_STATUS(ROUTECAP_OK, routecap_layer_record(rig.capturer(), 0, &source, rig.stream()));
        for (void *output : {static_cast<void *>(ids), sink.ids})
            rig.device().write(output, physical.data(), sizeof(int32_t) * 8);
        EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
    });
    routecap_layer_probe layers[2];
    EXPECT_STATUS(ROUTECAP_PARTIAL, routecap_capturer_probe(rig.capturer(), 4, layers,
                                                            sizeof layers[0], 2, rig.stream()));
    EXPECT_EQ(layers[0].found, 0u);
    EXPECT_EQ(layers[1].found, ROUTECAP_PROBE_OUT_OF_RANGE);
    rig.land(rig.issue({Rig::span(r, 0, 0, 4)}));
    using Ids = std::vector<int64_t>;
    rig.expect(r, 0,
               {{Ids{0, 1}, std::nullopt},
                {Ids{2, 3}, std::nullopt},
                {Ids{4, 5}, std::nullopt},
                {Ids{6, 7}, std::nullopt}});
}
