// The whole way of cells that need not have k experts: a k of each layer, fewer experts for some
// tokens, and layers that a decoder visits again. Decoders are drawn at random, with faults in what
// their routers write. What must be read is in plain arrays that are made here.
#include <rig.h>

#include <cstring>
#include <numeric>
#include <random>

using namespace rig;

namespace {

constexpr int64_t kNothing = INT64_MIN;  // a column for which the router chose no expert
constexpr int64_t kNotWritten = INT64_MIN + 1;

struct Draw {
    std::mt19937_64 numbers;
    uint32_t below(uint64_t n) { return static_cast<uint32_t>(numbers() % n); }
    bool one_in(uint32_t n) { return below(n) == 0; }
    template <class T>
    T pick(const std::vector<T> &list) {
        return list[below(list.size())];
    }
};

// A valid cell has from `least` to k distinct experts.
struct Layer {
    int32_t index;
    uint32_t visit, experts, k, least;
    int32_t provenance;
    bool fewer() const { return least < k; }
};

struct Decoder {
    uint32_t k = 1;
    std::vector<Layer> layers;

    bool fewer() const {  // than k, in some cell
        return std::any_of(layers.begin(), layers.end(),
                           [this](const Layer &layer) { return layer.least < k; });
    }
    uint32_t experts() const {
        uint32_t most = 0;
        for (const Layer &layer : layers) most = std::max(most, layer.experts);
        return most;
    }
    // One byte has 256 values, of which an unused column takes one.
    bool wide() const { return experts() > (fewer() ? 255 : 256); }
    uint16_t unused() const { return wide() ? 0xffff : 0xff; }
    Decoder of(const std::vector<uint32_t> &some) const {
        Decoder part{k, {}};
        for (const uint32_t l : some) part.layers.push_back(layers[l]);
        return part;
    }
};

// The columns of a description, as structs of the library refer to them.
struct Columns {
    std::vector<int32_t> map, provenance;
    std::vector<uint32_t> visit, experts, k, least;
    explicit Columns(const Decoder &decoder) {
        for (const Layer &l : decoder.layers)
            map.push_back(l.index), provenance.push_back(l.provenance), visit.push_back(l.visit),
                experts.push_back(l.experts), k.push_back(l.k), least.push_back(l.least);
    }
    template <class T>
    void describe(T &to) const {
        to.layers = static_cast<uint32_t>(map.size());
        to.layer_map = map.data(), to.layer_visit = visit.data();
        to.layer_experts = experts.data(), to.layer_k = k.data(), to.layer_min_k = least.data();
    }
};

// What a cell must hold when it is read: experts in the router's order, or why it is missing.
struct Known {
    std::vector<int64_t> experts;
    int32_t reason = 0;
};
using KnownRow = std::vector<Known>;  // by layer
using KnownRows = std::vector<KnownRow>;

Decoder draw_decoder(Draw &draw) {
    Decoder decoder;
    decoder.k = 1 + draw.below(draw.one_in(2) ? 32 : 5);
    const uint32_t experts =
        std::max(decoder.k, draw.pick<uint32_t>({8, 64, 255, 256, 257, 1 + draw.below(400)}));
    const uint32_t kind = draw.below(4);  // 0: k in all; 1: a k of each; 2: any; 3: fewer in all
    for (uint32_t l = 0, layers = 1 + draw.below(12); l < layers; l++) {
        Layer layer{static_cast<int32_t>(l), 0, experts, decoder.k, decoder.k, 0};
        if (l > 0) {
            const Layer &before = decoder.layers.back();
            const bool again = draw.one_in(4);
            layer.index = before.index + (again ? 0 : 1 + static_cast<int32_t>(draw.below(2)));
            layer.visit = again ? before.visit + 1 : 0;
        }
        if (kind > 0 && draw.one_in(2)) layer.k = 1 + draw.below(decoder.k);
        layer.least = kind == 3   ? draw.below(layer.k)
                      : kind == 2 ? draw.below(layer.k + 1)
                                  : layer.k;
        if (draw.one_in(4)) layer.experts = std::max(layer.k, 1 + draw.below(400));
        if (draw.one_in(8)) layer.provenance = ROUTECAP_PROVENANCE_RECOMPUTED;
        decoder.layers.push_back(layer);
    }
    return decoder;
}

// Distinct experts of a layer, in any order.
std::vector<int64_t> draw_experts(Draw &draw, const Layer &layer, uint32_t count) {
    std::vector<int64_t> all(layer.experts);
    std::iota(all.begin(), all.end(), 0);
    for (uint32_t c = 0; c < count; c++) std::swap(all[c], all[c + draw.below(layer.experts - c)]);
    all.resize(count);
    return all;
}

// ---- What routers write --------------------------------------------------------------------

enum Fault { kBetween, kBelowLeast, kMinusOne, kDuplicate, kOutOfRange, kTorn, kRowNotWritten };

// The columns that a router writes: mostly as the rule says.
std::vector<int64_t> draw_columns(Draw &draw, const Layer &layer) {
    const uint32_t count = layer.least + draw.below(layer.k - layer.least + 1);
    std::vector<int64_t> columns = draw_experts(draw, layer, count);
    columns.resize(layer.k, kNothing);
    if (!draw.one_in(5)) return columns;
    const uint32_t at = draw.below(layer.k);
    switch (draw.below(7)) {
        case kBetween:  // or, in the last column, where it is not allowed
            columns[at] = kNothing;
            break;
        case kBelowLeast:
            std::fill(columns.begin() + (layer.least > 0 ? layer.least - 1 : 0), columns.end(),
                      kNothing);
            break;
        case kMinusOne: columns[at] = -1; break;
        case kDuplicate: columns[at] = columns[draw.below(layer.k)]; break;
        case kOutOfRange: columns[at] = layer.experts + draw.below(2); break;
        case kTorn: columns[at] = kNotWritten; break;
        default: columns.assign(layer.k, kNotWritten); break;
    }
    return columns;
}

// What the snapshot must make of them.
Known judged(const std::vector<int64_t> &columns, const Layer &layer) {
    if (std::count(columns.begin(), columns.end(), kNotWritten) > 0)
        return {{}, ROUTECAP_MISSING_UNWRITTEN};
    std::vector<int64_t> experts;
    bool ended = false, good = true;
    for (const int64_t id : columns) {
        good &= id == kNothing || (!ended && id >= 0 && id < layer.experts);
        ended |= id == kNothing;
        if (id != kNothing) experts.push_back(id);
    }
    if (!good || experts.size() < layer.least) return {{}, ROUTECAP_MISSING_OUT_OF_RANGE};
    if (std::set(experts.begin(), experts.end()).size() < experts.size())
        return {{}, ROUTECAP_MISSING_DUPLICATE};
    return {experts, 0};
}

size_t element_of(int32_t dtype) {
    return dtype == ROUTECAP_DTYPE_U8                                   ? 1
           : dtype == ROUTECAP_DTYPE_I16 || dtype == ROUTECAP_DTYPE_U16 ? 2
           : dtype == ROUTECAP_DTYPE_I64                                ? 8
                                                                        : 4;
}

// Columns as they are in a sink. Bytes 0x80 are what nobody wrote.
void put_columns(const std::vector<int64_t> &columns, int32_t dtype, uint8_t *to) {
    const size_t element = element_of(dtype);
    for (size_t c = 0; c < columns.size(); c++) {
        const int64_t value = columns[c] == kNothing ? ROUTECAP_NO_EXPERT : columns[c];
        if (columns[c] != kNotWritten) std::memcpy(to + c * element, &value, element);
    }
}

// A matrix of a router that is recorded: how it states ids, and that no expert was chosen.
struct Matrix {
    int32_t dtype, none, offset;
    uint32_t k_source;
    bool table;

    static Matrix draw(Draw &draw, uint32_t k, uint32_t experts, bool may_state) {
        Matrix m{};
        m.dtype = draw.pick<int32_t>({ROUTECAP_DTYPE_I16, ROUTECAP_DTYPE_I32, ROUTECAP_DTYPE_U32,
                                      ROUTECAP_DTYPE_I64, ROUTECAP_DTYPE_ID16_BF16});
        m.none = may_state ? draw.pick<int32_t>({-1, ROUTECAP_NO_EXPERT,
                                                 static_cast<int32_t>(experts) + 7, 9999, 0})
                           : 0;
        m.table = draw.one_in(3);
        m.offset = m.dtype != ROUTECAP_DTYPE_U32 && draw.one_in(3) ? 1 : 0;
        m.k_source = k + draw.below(3);
        return m;
    }
    // Ids of physical experts: the table turns the order of the layer's round.
    std::vector<int32_t> map(const Layer &layer) const {
        std::vector<int32_t> ids(table ? layer.experts : 0);
        for (size_t i = 0; i < ids.size(); i++)
            ids[i] = static_cast<int32_t>(layer.experts - 1 - i) - offset;
        return ids;
    }
    // Writes a row. `columns` becomes what these numbers say.
    void put(std::vector<int64_t> &columns, const Layer &layer, uint8_t *to) const {
        for (uint32_t c = 0; c < k_source; c++) {
            int64_t value = c % layer.experts;  // behind the layer's columns: of a shared expert
            if (c < columns.size()) {
                int64_t &id = columns[c];
                if (id == kNothing && none == 0) id = -5;  // nobody says what it stands for
                if (id == -1 && none == -1) id = -5;
                const bool expert = id >= 0 && id < layer.experts;
                value = id == kNothing ? none
                        : !expert      ? (id < 0 ? id - offset : id + 3)
                        : table        ? layer.experts - 1 - id
                                       : id - offset;
                if (value == none && none != 0) id = kNothing;
            }
            if (dtype == ROUTECAP_DTYPE_ID16_BF16) value = value << 16 | 0x3f80;
            std::memcpy(to + c * element_of(dtype), &value, element_of(dtype));
        }
    }
};

// ---- A request of a decoder, recorded ------------------------------------------------------

enum Way { kMixed, kWholeStep, kArrive };

class Recorded {
public:
    Recorded(Draw &draw, const Decoder &decoder)
        : draw_(draw), decoder_(decoder), columns_(decoder) {
        way_ = static_cast<Way>(draw.below(on_cuda() ? 2 : 3));
        EXPECT_STATUS(ROUTECAP_OK, routecap_config_init(&config_, sizeof config_));
        config_.backend = backend();
        config_.k = decoder.k, config_.rows = kRows, config_.slots = 4;
        columns_.describe(config_);
        config_.layer_provenance = columns_.provenance.data();
        config_.flags =
            ROUTECAP_CONFIG_LOAD | (way_ == kArrive ? ROUTECAP_CONFIG_EXTERNAL_SINK : 0);
        config_.sink_dtype =
            draw.pick<int32_t>({ROUTECAP_DTYPE_I16, ROUTECAP_DTYPE_I32, ROUTECAP_DTYPE_I64});
        EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_create(&config_, &capturer_));
        bind();
        open(request_);
        for (uint32_t steps = 1 + draw.below(3); steps > 0; steps--) step();
    }
    ~Recorded() {
        device_.synchronize();
        routecap_capturer_destroy(capturer_);
    }
    Recorded(const Recorded &) = delete;

    routecap_capturer *capturer() const { return capturer_; }
    routecap_request request() const { return request_; }
    const routecap_config &config() const { return config_; }
    const KnownRows &rows() const { return rows_; }
    Device &device() { return device_; }
    void open(routecap_request &request) const {
        EXPECT_STATUS(ROUTECAP_OK, routecap_request_open(capturer_, nullptr, &request, 1));
    }
    RoutingPtr finish(routecap_request request) const {
        routecap_routing *routing = nullptr;
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_request_finish(capturer_, request, ROUTECAP_ROWS_ALL, &routing));
        EXPECT_GE(routecap_routing_wait(routing, -1), 0);
        return RoutingPtr(routing);
    }

private:
    static constexpr uint32_t kRows = 12;

    // Some layers have memory of the engine's as their sink.
    void bind() {
        for (uint32_t l = 0; way_ == kMixed && l < decoder_.layers.size(); l++) {
            if (!draw_.one_in(4)) continue;
            routecap_sink sink{};
            sink.struct_size = sizeof sink;
            sink.dtype =
                draw_.pick<int32_t>({ROUTECAP_DTYPE_I16, ROUTECAP_DTYPE_I32, ROUTECAP_DTYPE_I64});
            sink.rows = kRows, sink.k = decoder_.layers[l].k;
            sink.row_stride = sink.k + draw_.below(3);
            sink.ids = device_.allocate(kRows * static_cast<size_t>(sink.row_stride) * 8);
            if (sink.k > 1) {
                sink.k--;
                EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH,
                              routecap_sink_bind(capturer_, l, 1, &sink));
                sink.k++;
            }
            EXPECT_STATUS(ROUTECAP_OK, routecap_sink_bind(capturer_, l, 1, &sink));
        }
    }

    template <class T>
    const T *upload(const std::vector<T> &data) {
        return static_cast<const T *>(device_.upload(data.data(), data.size() * sizeof(T)));
    }

    void step() {
        const uint32_t rows = 1 + draw_.below(kRows);
        if (draw_.one_in(3)) rows_.emplace_back(decoder_.layers.size(), kAbsent);  // is not routed
        const uint64_t position = rows_.size();
        cells_.assign(decoder_.layers.size(), {});
        for (size_t l = 0; l < decoder_.layers.size(); l++)
            for (uint32_t r = 0; r < rows; r++)
                cells_[l].push_back(draw_columns(draw_, decoder_.layers[l]));
        if (way_ != kArrive) device_.forward([&] { way_ == kMixed ? mixed(rows) : whole(rows); });
        routecap_issue_options options{};
        options.struct_size = sizeof options;
        if (way_ == kArrive) options.snapshot = ROUTECAP_SNAPSHOT_LATER;
        const routecap_span span = Rig::span(request_, position, 0, rows);
        routecap_step step = 0;
        EXPECT_STATUS(ROUTECAP_OK, routecap_step_issue(capturer_, &span, sizeof span, 1, &options,
                                                       nullptr, &step, device_.stream()));
        if (way_ == kArrive) arrive(step, rows);
        EXPECT_STATUS(ROUTECAP_OK, routecap_step_finalize(capturer_, step, -1, nullptr));
        for (uint32_t r = 0; r < rows; r++) {
            rows_.emplace_back();
            for (size_t l = 0; l < decoder_.layers.size(); l++)
                rows_.back().push_back(judged(cells_[l][r], decoder_.layers[l]));
        }
    }

    // Each layer in a way of its own; some in one call.
    void mixed(uint32_t rows) {
        EXPECT_STATUS(ROUTECAP_OK, routecap_step_begin(capturer_, rows, device_.stream()));
        std::vector<uint32_t> together;
        for (uint32_t l = 0; l < decoder_.layers.size(); l++) {
            if (decoder_.layers[l].provenance == ROUTECAP_PROVENANCE_RECOMPUTED)
                route(l, rows);
            else if (draw_.one_in(3))
                write(l, rows);
            else if (draw_.one_in(2))
                record(l, rows);
            else
                together.push_back(l);
        }
        if (!together.empty()) record(together, rows, 0);
        EXPECT_STATUS(ROUTECAP_OK, routecap_step_snapshot(capturer_, device_.stream()));
    }

    void whole(uint32_t rows) {
        std::vector<uint32_t> layers;
        for (uint32_t l = 0; l < decoder_.layers.size(); l++)
            if (l == 0 || !draw_.one_in(8))
                layers.push_back(l);
            else
                for (auto &columns : cells_[l]) columns.assign(columns.size(), kNotWritten);
        record(layers, rows, ROUTECAP_SOURCE_WHOLE_STEP);
    }

    // The router writes into the sink.
    void write(uint32_t l, uint32_t rows) {
        routecap_sink sink{};
        sink.struct_size = sizeof sink;
        EXPECT_STATUS(ROUTECAP_OK, routecap_sink_layer(capturer_, l, &sink));
        EXPECT_EQ(sink.k, decoder_.layers[l].k);
        const size_t element = element_of(sink.dtype);
        for (uint32_t r = 0; r < rows; r++) {
            std::vector<uint8_t> bytes(sink.k * element, 0x80);
            put_columns(cells_[l][r], sink.dtype, bytes.data());
            device_.write(static_cast<uint8_t *>(sink.ids) +
                              r * static_cast<size_t>(sink.row_stride) * element,
                          bytes.data(), bytes.size());
        }
    }

    std::vector<uint8_t> matrix(const Matrix &m, uint32_t l, uint32_t rows) {
        std::vector<uint8_t> bytes(size_t{rows} * m.k_source * element_of(m.dtype));
        for (uint32_t r = 0; r < rows; r++)
            m.put(cells_[l][r], decoder_.layers[l], &bytes[bytes.size() / rows * r]);
        return bytes;
    }

    // One layer. Rows that are not written have no sink row.
    void record(uint32_t l, uint32_t rows) {
        const Layer &layer = decoder_.layers[l];
        const Matrix m = Matrix::draw(draw_, layer.k, layer.experts, layer.fewer());
        std::vector<int32_t> index(rows);
        for (uint32_t r = 0; r < rows; r++) {
            auto &columns = cells_[l][r];
            const bool written = std::count(columns.begin(), columns.end(), kNotWritten) == 0;
            index[r] = written ? static_cast<int32_t>(r) : -1;
            if (!written) columns.assign(layer.k, kNotWritten);
        }
        const std::vector<std::vector<int64_t>> before = cells_[l];
        const std::vector<uint8_t> bytes = matrix(m, l, rows);
        for (uint32_t r = 0; r < rows; r++)
            if (index[r] < 0) cells_[l][r] = before[r];
        routecap_source source = source_of(m, rows);
        source.ids = upload(bytes);
        source.row_index = upload(index);
        const std::vector<int32_t> map = m.map(layer);
        if (m.table)
            source.table = upload(map), source.table_size = static_cast<uint32_t>(map.size());
        const auto call = [&](const routecap_source &s) {
            return routecap_layer_record(capturer_, l, &s, device_.stream());
        };
        routecap_source wrong = source;
        wrong.none = layer.fewer() ? 0 : -1;
        if (!layer.fewer()) {
            EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, call(wrong));
        }
        wrong = source, wrong.k_source = layer.k - 1;
        if (layer.k > 1) {
            EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, call(wrong));
        }
        EXPECT_STATUS(ROUTECAP_OK, call(source));
    }

    static routecap_source source_of(const Matrix &m, uint32_t rows) {
        routecap_source source{};
        source.struct_size = sizeof source;
        source.dtype = m.dtype, source.none = m.none, source.offset = m.offset;
        source.rows = rows, source.k_source = m.k_source;
        return source;
    }

    // Several layers in one call, which writes all rows. A call states one number for all.
    void record(const std::vector<uint32_t> &layers, uint32_t rows, uint32_t flags) {
        bool fewer = false, tables = true;
        uint32_t k = 1, experts = 1;
        for (const uint32_t l : layers) {
            const Layer &layer = decoder_.layers[l];
            fewer |= layer.fewer();
            tables &= layer.experts == decoder_.layers[layers[0]].experts;
            k = std::max(k, layer.k), experts = std::max(experts, layer.experts);
        }
        Matrix m = Matrix::draw(draw_, k, experts, fewer);
        m.table &= tables;
        routecap_source source = source_of(m, rows);
        source.flags = flags;
        const std::vector<int32_t> map = m.map(decoder_.layers[layers[0]]);
        source.table_size = static_cast<uint32_t>(map.size());
        std::vector<routecap_layer_source> given;
        std::vector<std::vector<uint8_t>> matrices;
        for (const uint32_t l : layers) {
            for (auto &columns : cells_[l])
                std::replace(columns.begin(), columns.end(), kNotWritten, int64_t{-3});
            matrices.push_back(matrix(m, l, rows));
            given.push_back({l, 0, upload(matrices.back()), m.table ? upload(map) : nullptr});
        }
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_layers_record(capturer_, &source, given.data(), sizeof given[0],
                                             given.size(), device_.stream()));
    }

    // The experts of the highest logits, in columns of the layer's own.
    void route(uint32_t l, uint32_t rows) {
        const Layer &layer = decoder_.layers[l];
        std::vector<float> logits;
        for (uint32_t r = 0; r < rows; r++) {
            const std::vector<int64_t> order = draw_experts(draw_, layer, layer.experts);
            std::vector<float> row(layer.experts);
            for (size_t rank = 0; rank < order.size(); rank++)
                row[static_cast<size_t>(order[rank])] = -static_cast<float>(rank);
            logits.insert(logits.end(), row.begin(), row.end());
            cells_[l][r].assign(order.begin(), order.begin() + layer.k);
        }
        routecap_router router;
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_router_init(&router, sizeof router, ROUTECAP_METHOD_TOPK));
        routecap_logits from{};
        from.struct_size = sizeof from;
        from.dtype = ROUTECAP_DTYPE_F32;
        from.logits = upload(logits);
        from.rows = rows;
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_layer_route(capturer_, l, &router, &from, device_.stream()));
    }

    void arrive(routecap_step step, uint32_t rows) {
        routecap_sink sink{};
        sink.struct_size = sizeof sink;
        sink.dtype = config_.sink_dtype, sink.rows = rows, sink.k = decoder_.k;
        const bool by_row = draw_.one_in(2);
        const size_t layers = decoder_.layers.size(), element = element_of(sink.dtype);
        sink.row_stride = static_cast<int64_t>(by_row ? layers * sink.k : sink.k);
        sink.layer_stride = static_cast<int64_t>(by_row ? sink.k : size_t{rows} * sink.k);
        std::vector<uint8_t> memory(layers * rows * sink.k * element, 0x80);
        for (size_t l = 0; l < layers; l++)
            for (uint32_t r = 0; r < rows; r++)
                put_columns(cells_[l][r], sink.dtype,
                            &memory[(l * static_cast<size_t>(sink.layer_stride) +
                                     r * static_cast<size_t>(sink.row_stride)) *
                                    element]);
        sink.ids = memory.data();
        EXPECT_STATUS(ROUTECAP_OK, routecap_step_arrive(capturer_, step, &sink));
    }

    const Known kAbsent{{}, ROUTECAP_MISSING_ABSENT};
    Draw &draw_;
    const Decoder &decoder_;
    const Columns columns_;
    Device device_;
    Way way_;
    routecap_config config_;
    routecap_capturer *capturer_ = nullptr;
    routecap_request request_ = 0;
    std::vector<std::vector<std::vector<int64_t>>> cells_;  // of this step: [layers, rows] columns
    KnownRows rows_;
};

// ---- What is read --------------------------------------------------------------------------

std::string place(uint64_t row, size_t layer) {
    return "row " + std::to_string(row) + " layer " + std::to_string(layer);
}

// In place: which cells are valid, their experts, the columns behind them, and the reasons.
void expect_view(const routecap_routing *routing, const Decoder &decoder, const KnownRows &rows) {
    const routecap_view view = view_of(routing);
    ASSERT_EQ(view.layers, decoder.layers.size());
    ASSERT_EQ(view.rows, rows.size());
    EXPECT_EQ(view.k, decoder.k);
    EXPECT_EQ(view.experts, decoder.experts());
    ASSERT_EQ(view.dtype, decoder.wide() ? ROUTECAP_DTYPE_I16 : ROUTECAP_DTYPE_U8);
    for (size_t l = 0; l < decoder.layers.size(); l++) {
        const Layer &layer = decoder.layers[l];
        EXPECT_EQ(view.layer_map[l], layer.index);
        EXPECT_EQ(view.layer_visit[l], layer.visit);
        EXPECT_EQ(view.layer_experts[l], layer.experts);
        EXPECT_EQ(view.layer_k[l], layer.k);
        EXPECT_EQ(view.layer_min_k[l], layer.least);
    }
    uint64_t row = 0;
    for (size_t i = 0; i < view.segment_count; i++) {
        const auto &segment = *reinterpret_cast<const routecap_segment *>(
            reinterpret_cast<const char *>(view.segments) + i * view.segment_size);
        for (uint64_t r = 0; r < segment.rows; r++, row++)
            for (size_t l = 0; l < decoder.layers.size(); l++) {
                const Known &known = rows[row][l];
                const bool valid = cell_is_valid(view, segment, r, l);
                ASSERT_EQ(valid, known.reason == 0) << place(row, l) << ": " << known.reason;
                const auto id = [&](size_t c) {
                    return static_cast<uint16_t>(id_of_cell(view, segment, r, l, c));
                };
                if (!valid) {
                    ASSERT_EQ(segment.ids != nullptr ? id(0) : segment.reason, known.reason)
                        << place(row, l);
                    continue;
                }
                for (size_t c = 0; c < decoder.k; c++)
                    ASSERT_EQ(id(c), c < known.experts.size() ? known.experts[c] : decoder.unused())
                        << place(row, l) << " column " << c;
            }
    }
}

void expect_coverage(const routecap_routing *routing, const KnownRows &rows) {
    std::vector<routecap_missing> blocks(rows.size() * rows[0].size() + 1);
    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    EXPECT_GE(routecap_routing_coverage(routing, &coverage, blocks.data(), sizeof blocks[0],
                                        blocks.size()),
              0);
    std::vector<std::vector<int32_t>> named(rows.size(), std::vector<int32_t>(rows[0].size()));
    for (uint64_t b = 0; b < coverage.blocks; b++)
        for (uint64_t r = 0; r < blocks[b].rows; r++)
            for (uint32_t l = 0; l < blocks[b].layers; l++)
                named[blocks[b].first + r][blocks[b].first_layer + l] = blocks[b].reason;
    for (size_t r = 0; r < rows.size(); r++)
        for (size_t l = 0; l < rows[r].size(); l++)
            ASSERT_EQ(named[r][l], rows[r][l].reason) << place(r, l);
}

// An element of a copy or of a plan's result.
uint64_t element_at(const std::vector<uint8_t> &data, size_t at, int32_t dtype) {
    uint64_t value = 0;
    std::memcpy(&value, &data[at * element_of(dtype)], element_of(dtype));
    return value;
}
uint64_t written_as(int64_t value, int32_t dtype) {
    const size_t bits = 8 * element_of(dtype);
    return static_cast<uint64_t>(value) & (bits == 64 ? UINT64_MAX : (uint64_t{1} << bits) - 1);
}
int32_t draw_dtype(Draw &draw, const Decoder &decoder, int64_t none) {
    std::vector<int32_t> dtypes = {ROUTECAP_DTYPE_I16, ROUTECAP_DTYPE_U16, ROUTECAP_DTYPE_I32,
                                   ROUTECAP_DTYPE_U32, ROUTECAP_DTYPE_I64};
    if (decoder.experts() <= 256 && written_as(none, ROUTECAP_DTYPE_U8) >= decoder.experts())
        dtypes.push_back(ROUTECAP_DTYPE_U8);
    return draw.pick(dtypes);
}

// Copies of all kinds, by a function that copies.
template <class F>
void expect_copies(Draw &draw, const Decoder &decoder, const KnownRows &rows, const F &call) {
    for (int turn = 0; turn < 3; turn++) {
        routecap_copy_options options;
        EXPECT_STATUS(ROUTECAP_OK, routecap_copy_options_init(&options, sizeof options));
        options.none = draw.pick<int64_t>({ROUTECAP_NO_EXPERT, -1, 5000});
        options.dtype = draw_dtype(draw, decoder, options.none);
        if (options.dtype == ROUTECAP_DTYPE_U8 && options.none == 5000) options.none = -1;
        if (written_as(options.none, options.dtype) < decoder.experts()) continue;
        options.order = draw.one_in(2) ? ROUTECAP_ORDER_LAYER_MAJOR : ROUTECAP_ORDER_ROW_MAJOR;
        options.fill = draw.pick<int64_t>({-1, ROUTECAP_NO_EXPERT, 0});
        const size_t layers = decoder.layers.size(), cells = rows.size() * layers;
        std::vector<uint8_t> ids(cells * decoder.k * element_of(options.dtype)), mask(cells);
        const bool unsure = written_as(options.fill, options.dtype) < decoder.experts() ||
                            (decoder.fewer() && written_as(options.fill, options.dtype) ==
                                                    written_as(options.none, options.dtype));
        if (unsure) {
            EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, call(options, ids, nullptr));
        }
        const bool masked = unsure || draw.one_in(2);
        EXPECT_GE(call(options, ids, masked ? &mask : nullptr), 0) << routecap_last_error();
        for (size_t r = 0; r < rows.size(); r++)
            for (size_t l = 0; l < layers; l++) {
                const bool by_row = options.order == ROUTECAP_ORDER_ROW_MAJOR;
                const size_t cell = by_row ? r * layers + l : l * rows.size() + r;
                const Known &known = rows[r][l];
                if (masked) {
                    ASSERT_EQ(mask[cell], known.reason == 0) << place(r, l);
                }
                for (size_t c = 0; c < decoder.k; c++) {
                    const int64_t id = known.reason != 0          ? options.fill
                                       : c < known.experts.size() ? known.experts[c]
                                                                  : options.none;
                    ASSERT_EQ(element_at(ids, cell * decoder.k + c, options.dtype),
                              written_as(id, options.dtype))
                        << place(r, l) << " column " << c;
                }
            }
        options.none = decoder.experts() - 1;  // an expert, mask or not
        EXPECT_STATUS(decoder.fewer() ? ROUTECAP_ERR_ARGUMENT : routecap_status{ROUTECAP_OK},
                      std::min(call(options, ids, &mask), 0));
    }
}

// ---- Routings of plain arrays --------------------------------------------------------------

std::vector<uint16_t> in_memory(const Decoder &decoder, const KnownRow &row) {
    std::vector<uint16_t> ids;
    for (const Known &known : row)
        for (size_t c = 0; c < decoder.k; c++)
            ids.push_back(known.reason != 0 ? static_cast<uint16_t>(c == 0 ? known.reason : 0)
                          : c < known.experts.size() ? static_cast<uint16_t>(known.experts[c])
                                                     : decoder.unused());
    return ids;
}

// Imports rows [rows, layers, k], as the decoder's routings have them.
int32_t import_ids(const Decoder &decoder, const KnownRows &rows,
                   const std::vector<std::vector<uint16_t>> &ids, RoutingPtr &made) {
    const Columns columns(decoder);
    routecap_view view{};
    view.struct_size = sizeof view;
    view.dtype = decoder.wide() ? ROUTECAP_DTYPE_I16 : ROUTECAP_DTYPE_U8;
    view.k = decoder.k, view.experts = decoder.experts(), view.rows = rows.size();
    view.validity_bytes = static_cast<uint32_t>((decoder.layers.size() + 7) / 8);
    columns.describe(view);
    view.layer_provenance = columns.provenance.data();
    std::vector<std::vector<uint8_t>> narrow(rows.size()), validity(rows.size());
    std::vector<routecap_segment> segments(rows.size());
    for (size_t r = 0; r < rows.size(); r++) {
        segments[r].first = r, segments[r].rows = 1;
        if (rows[r][0].reason == ROUTECAP_MISSING_ABSENT) continue;
        narrow[r].assign(ids[r].begin(), ids[r].end());
        segments[r].ids = decoder.wide() ? static_cast<const void *>(ids[r].data())
                                         : static_cast<const void *>(narrow[r].data());
        validity[r].resize(view.validity_bytes);
        for (size_t l = 0; l < rows[r].size(); l++)
            validity[r][l / 8] =
                static_cast<uint8_t>(validity[r][l / 8] | (rows[r][l].reason == 0) << l % 8);
        segments[r].validity = validity[r].data();
    }
    view.segments = segments.data(), view.segment_count = segments.size();
    view.segment_size = sizeof segments[0];
    routecap_routing *routing = nullptr;
    const int32_t status = routecap_routing_import(&view, 0, nullptr, nullptr, &routing);
    made.reset(routing);
    return status;
}
RoutingPtr imported(const Decoder &decoder, const KnownRows &rows) {
    std::vector<std::vector<uint16_t>> ids;
    for (const KnownRow &row : rows) ids.push_back(in_memory(decoder, row));
    RoutingPtr made;
    EXPECT_GE(import_ids(decoder, rows, ids, made), 0) << routecap_last_error();
    return made;
}

KnownRows of_layers(const KnownRows &rows, const std::vector<uint32_t> &layers) {
    KnownRows part;
    for (const KnownRow &row : rows) {
        part.emplace_back();
        for (const uint32_t l : layers) part.back().push_back(row[l]);
    }
    return part;
}

// A valid cell, or none.
struct At {
    size_t row, layer;
    bool found = false;
};
At any_valid(Draw &draw, const KnownRows &rows) {
    std::vector<At> all;
    for (size_t r = 0; r < rows.size(); r++)
        for (size_t l = 0; l < rows[r].size(); l++)
            if (rows[r][l].reason == 0) all.push_back({r, l, true});
    return all.empty() ? At{0, 0} : draw.pick(all);
}
// An expert that a cell has not, or -1.
int64_t another(const Layer &layer, const Known &known) {
    for (int64_t e = 0; e < layer.experts; e++)
        if (std::count(known.experts.begin(), known.experts.end(), e) == 0) return e;
    return -1;
}

// Arrays that break the rule in one valid cell are refused.
void expect_refusals(Draw &draw, const Decoder &decoder, const KnownRows &rows) {
    for (int turn = 0; turn < 6; turn++) {
        const At at = any_valid(draw, rows);
        if (!at.found) return;
        const Layer &layer = decoder.layers[at.layer];
        const Known &known = rows[at.row][at.layer];
        const size_t count = known.experts.size();
        std::vector<std::vector<uint16_t>> ids;
        for (const KnownRow &row : rows) ids.push_back(in_memory(decoder, row));
        uint16_t *cell = &ids[at.row][at.layer * decoder.k];
        const int64_t other = another(layer, known);
        bool breaks = true;
        switch (turn) {
            case 0:  // too few
                breaks = layer.least > 0 && decoder.fewer();
                if (breaks) std::fill(cell + layer.least - 1, cell + decoder.k, decoder.unused());
                break;
            case 1:  // too many
                breaks = layer.k < decoder.k && count == layer.k && other >= 0;
                if (breaks) cell[count] = static_cast<uint16_t>(other);
                break;
            case 2:  // none between
                breaks = count > 1 && decoder.fewer();
                if (breaks) cell[draw.below(count - 1)] = decoder.unused();
                break;
            case 3:
                breaks = count > 1;
                if (breaks) cell[0] = cell[count - 1];
                break;
            case 4:
                breaks = count > 0 && layer.experts < decoder.unused();
                if (breaks) cell[draw.below(count)] = static_cast<uint16_t>(layer.experts);
                break;
            default:  // an expert behind the last that is used
                breaks = count + 1 < decoder.k && other >= 0;
                if (breaks) cell[decoder.k - 1] = static_cast<uint16_t>(other);
                break;
        }
        RoutingPtr made;
        if (breaks) {
            EXPECT_STATUS(ROUTECAP_ERR_FORMAT, import_ids(decoder, rows, ids, made))
                << "turn " << turn << ", " << place(at.row, at.layer);
        }
    }
}

// Halves of the layers are one again; and what differs in a cell is noticed.
void expect_merges(Draw &draw, const Decoder &decoder, const KnownRows &rows) {
    std::vector<uint32_t> halves[2];
    for (uint32_t l = 0; l < decoder.layers.size(); l++) halves[draw.below(2)].push_back(l);
    if (halves[0].empty() || halves[1].empty()) return;
    RoutingPtr parts[2];
    for (int i : {0, 1}) parts[i] = imported(decoder.of(halves[i]), of_layers(rows, halves[i]));
    const auto merge = [](const RoutingPtr &a, const RoutingPtr &b, RoutingPtr &to) {
        const routecap_routing *both[] = {a.get(), b.get()};
        routecap_routing *merged = nullptr;
        const int32_t status = routecap_routing_merge(both, 2, 0, &merged);
        to.reset(merged);
        return status;
    };
    RoutingPtr merged;
    EXPECT_GE(merge(parts[0], parts[1], merged), 0) << routecap_last_error();
    expect_view(merged.get(), decoder, rows);
    if (const At at = any_valid(draw, rows); at.found) {
        KnownRows others = rows;
        Known &known = others[at.row][at.layer];
        const Layer &layer = decoder.layers[at.layer];
        std::shuffle(known.experts.begin(), known.experts.end(), draw.numbers);
        const RoutingPtr turned = imported(decoder, others);
        EXPECT_GE(merge(merged, turned, parts[0]), 0) << "the same set in another order";
        if (known.experts.size() > layer.least) {  // one fewer, in either order of the two
            known.experts = rows[at.row][at.layer].experts;
            known.experts.pop_back();
            const RoutingPtr less = imported(decoder, others);
            EXPECT_STATUS(ROUTECAP_ERR_CONFLICT, merge(merged, less, parts[0]));
            EXPECT_STATUS(ROUTECAP_ERR_CONFLICT, merge(less, merged, parts[0]));
        }
    }
    Decoder other = decoder;
    Layer &layer = other.layers[draw.below(other.layers.size())];
    if (layer.least > 0) {  // the same layer with another rule
        layer.least--;
        KnownRows none(rows.size(), KnownRow(other.layers.size(), {{}, ROUTECAP_MISSING_LOST}));
        for (KnownRow &row : none) row[0].reason = ROUTECAP_MISSING_ABSENT;
        EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, merge(merged, imported(other, none), parts[0]));
    }
}

// To bytes and back, and into a conversation.
void expect_bytes(const routecap_routing *routing, const Decoder &decoder, const KnownRows &rows) {
    uint64_t needed = 0;
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                  routecap_routing_serialize(routing, nullptr, 0, &needed));
    std::vector<uint8_t> data(needed);
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_routing_serialize(routing, data.data(), data.size(), nullptr));
    for (const uint32_t flags : {0u, ROUTECAP_IMPORT_TRUSTED}) {
        routecap_routing *back = nullptr;
        EXPECT_GE(
            routecap_routing_deserialize(data.data(), data.size(), flags, nullptr, nullptr, &back),
            0)
            << routecap_last_error();
        const RoutingPtr held(back);
        expect_view(back, decoder, rows);
    }
    routecap_sequence_config config{};
    config.struct_size = sizeof config;
    config.k = decoder.k;
    const Columns columns(decoder);
    columns.describe(config);
    routecap_sequence *sequence = nullptr;
    EXPECT_STATUS(ROUTECAP_OK, routecap_sequence_create(&config, &sequence));
    const std::vector<int32_t> tokens(rows.size() + 1);
    routecap_append_report report{};
    report.struct_size = sizeof report;
    EXPECT_GE(routecap_sequence_append(sequence, tokens.data(), 0, tokens.size(), routing, nullptr,
                                       &report),
              0)
        << routecap_last_error();
    routecap_routing *all = nullptr;
    EXPECT_GE(routecap_sequence_routing(sequence, &all), 0);
    const RoutingPtr held(all);
    expect_view(all, decoder, rows);
    routecap_sequence_free(sequence);
}

// ---- Plans ---------------------------------------------------------------------------------

// A plan of some layers for two samples, of which nothing is known of the second.
struct Planned {
    std::vector<uint32_t> layers;
    Decoder decoder;
    Columns columns;
    routecap_plan_config config;
    std::vector<uint64_t> lengths;
    routecap_plan *plan = nullptr;

    Planned(Draw &draw, const Decoder &whole, uint64_t rows)
        : layers(some(draw, whole)), decoder(whole.of(layers)), columns(decoder) {
        EXPECT_STATUS(ROUTECAP_OK, routecap_plan_config_init(&config, sizeof config));
        lengths = {rows + 1, 1 + draw.below(4)};
        config.samples = 2, config.lengths = lengths.data();
        config.align = 1 + draw.below(4);
        config.k = decoder.k;
        columns.describe(config);
        config.none_value = draw.pick<int64_t>({ROUTECAP_NO_EXPERT, -1, 20000});
        config.dtype = draw.pick<int32_t>(
            {ROUTECAP_DTYPE_I16, ROUTECAP_DTYPE_I32, ROUTECAP_DTYPE_U32, ROUTECAP_DTYPE_I64});
        config.order = draw.one_in(2) ? ROUTECAP_ORDER_LAYER_MAJOR : ROUTECAP_ORDER_ROW_MAJOR;
        config.fill = draw.one_in(3) ? ROUTECAP_PLAN_FILL_VALUE : ROUTECAP_PLAN_FILL_BALANCED;
        config.fill_value = 3;
        config.lost = draw.one_in(2) ? ROUTECAP_PLAN_LOST_BALANCED : ROUTECAP_PLAN_LOST_MARK;
        config.expert_parallel = 1 + draw.below(3);
        EXPECT_STATUS(ROUTECAP_OK, routecap_plan_create(&config, &plan));
    }
    ~Planned() { routecap_plan_free(plan); }
    Planned(const Planned &) = delete;

    static std::vector<uint32_t> some(Draw &draw, const Decoder &decoder) {
        std::vector<uint32_t> layers;
        for (uint32_t l = 0; l < decoder.layers.size(); l++)
            if (!draw.one_in(3)) layers.push_back(l);
        return layers.empty() ? std::vector<uint32_t>{0} : layers;
    }

    uint64_t padded(size_t sample) const {
        return (lengths[sample] + config.align - 1) / config.align * config.align;
    }
    uint64_t rows() const { return padded(0) + padded(1); }
    size_t cell(uint64_t row, size_t layer) const {
        return config.order == ROUTECAP_ORDER_ROW_MAJOR ? row * layers.size() + layer
                                                        : layer * rows() + row;
    }

    // The columns of row p of those that are filled, as plan.h says it.
    std::vector<int64_t> balanced(uint64_t p, const Layer &layer) const {
        const uint64_t ranks = config.expert_parallel, experts = layer.experts;
        std::vector<int64_t> ids;
        for (uint64_t c = 0; c < layer.k; c++) {
            const uint64_t a =
                p * layer.k + c + static_cast<uint64_t>(layer.index) * ranks * layer.k;
            ids.push_back(static_cast<int64_t>(
                experts % ranks == 0 ? a % ranks * (experts / ranks) + a / ranks % (experts / ranks)
                                     : a % experts));
        }
        ids.resize(decoder.k, config.none_value);
        return ids;
    }
    void expected(const KnownRows &known, std::vector<int64_t> &ids,
                  std::vector<uint8_t> &classes) const {
        ids.assign(rows() * layers.size() * decoder.k, 0);
        classes.assign(rows() * layers.size(), 0);
        uint64_t filled = 0;
        for (uint64_t row = 0; row < rows(); row++) {
            const size_t sample = row < padded(0) ? 0 : 1;
            const uint64_t position = row - (sample == 0 ? 0 : padded(0));
            const bool needed = position + 1 < lengths[sample];
            for (size_t l = 0; l < layers.size(); l++) {
                const Layer &layer = decoder.layers[l];
                const Known lost{{}, ROUTECAP_MISSING_ABSENT};
                const Known &cell_known = needed && sample == 0 ? known[position][layers[l]] : lost;
                std::vector<int64_t> columns;
                uint8_t &of = classes[cell(row, l)];
                if (!needed) {
                    of = position < lengths[sample] ? ROUTECAP_PLAN_CLASS_NOT_NEEDED
                                                    : ROUTECAP_PLAN_CLASS_PADDING;
                    columns = config.fill == ROUTECAP_PLAN_FILL_VALUE
                                  ? std::vector<int64_t>(decoder.k, config.fill_value)
                                  : balanced(filled, layer);
                } else if (cell_known.reason != 0) {
                    of = ROUTECAP_PLAN_CLASS_LOST;
                    columns = config.lost == ROUTECAP_PLAN_LOST_MARK
                                  ? std::vector<int64_t>(decoder.k, config.lost_value)
                                  : balanced(row, layer);
                } else {
                    columns = cell_known.experts;
                    columns.resize(decoder.k, config.none_value);
                }
                std::copy(columns.begin(), columns.end(),
                          ids.begin() + static_cast<ptrdiff_t>(cell(row, l) * decoder.k));
            }
            filled += !needed;
        }
    }
};

// By gather; by pack and unpack, on the host or on the device; and back by scatter.
void expect_plan(Draw &draw, Device &device, const routecap_routing *routing,
                 const Decoder &decoder, const KnownRows &rows) {
    Planned p(draw, decoder, rows.size());
    std::vector<int64_t> wanted;
    std::vector<uint8_t> classes_wanted;
    p.expected(rows, wanted, classes_wanted);
    const size_t element = element_of(p.config.dtype);
    const routecap_plan_source source{0, routing};
    std::vector<uint8_t> ids(wanted.size() * element), classes(classes_wanted.size());
    const auto compare = [&](const char *by) {
        ASSERT_EQ(classes, classes_wanted) << by;
        for (size_t i = 0; i < wanted.size(); i++)
            ASSERT_EQ(element_at(ids, i, p.config.dtype), written_as(wanted[i], p.config.dtype))
                << by << ": element " << i << ", k " << p.decoder.k;
    };
    const auto gather = [&](uint8_t *to, size_t bytes) {
        return routecap_plan_gather(p.plan, &source, sizeof source, 1, ids.data(), ids.size(), to,
                                    bytes, nullptr);
    };
    // A lost cell must not pass for one without experts.
    if (p.config.lost == ROUTECAP_PLAN_LOST_BALANCED ||
        (p.decoder.fewer() && p.config.none_value == p.config.lost_value)) {
        EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, gather(nullptr, 0));
    } else {
        EXPECT_GE(gather(nullptr, 0), 0) << routecap_last_error();
    }
    EXPECT_GE(gather(classes.data(), classes.size()), 0) << routecap_last_error();
    compare("gather");

    routecap_plan_shape shape{};
    shape.struct_size = sizeof shape;
    EXPECT_STATUS(ROUTECAP_OK, routecap_plan_describe(p.plan, &shape));
    std::vector<uint64_t> packed(shape.packed_bytes / 8 + 1);
    EXPECT_GE(routecap_plan_pack(p.plan, &source, sizeof source, 1, packed.data(),
                                 shape.packed_bytes, nullptr),
              0)
        << routecap_last_error();
    routecap_plan_target target{};
    target.struct_size = sizeof target;
    target.backend = backend();
    target.dst_bytes = ids.size(), target.classes_bytes = classes.size();
    target.scratch_bytes = shape.packed_bytes;
    std::fill(ids.begin(), ids.end(), uint8_t{0x55});
    std::fill(classes.begin(), classes.end(), uint8_t{0x55});
    if (on_cuda())
        target.scratch = device.allocate(shape.packed_bytes),
        target.dst = device.allocate(ids.size()),
        target.classes = static_cast<uint8_t *>(device.allocate(classes.size()));
    else
        target.dst = ids.data(), target.classes = classes.data();
    EXPECT_STATUS(ROUTECAP_OK, routecap_plan_unpack(p.plan, packed.data(), shape.packed_bytes,
                                                    &target, device.stream()));
    if (on_cuda()) {
        device.read(ids.data(), target.dst, ids.size());
        device.read(classes.data(), target.classes, classes.size());
    }
    compare("unpack");

    // What a rank recorded, with faults.
    KnownRows back(rows.size() + 1, KnownRow(p.layers.size(), {{}, ROUTECAP_MISSING_ABSENT}));
    for (size_t r = 0; r < rows.size(); r++)
        for (size_t l = 0; l < p.layers.size(); l++) {
            Known &known = back[r][l] = rows[r][p.layers[l]];
            if (known.reason != 0) known.reason = ROUTECAP_MISSING_UNWRITTEN;
        }
    const auto put = [&](size_t row, size_t layer, size_t column, int64_t id) {
        std::memcpy(&ids[(p.cell(row, layer) * p.decoder.k + column) * element], &id, element);
    };
    const bool is_signed = p.config.dtype != ROUTECAP_DTYPE_U32;
    const int32_t none_is = p.config.none_value < 0 && is_signed ? ROUTECAP_MISSING_UNWRITTEN
                                                                 : ROUTECAP_MISSING_OUT_OF_RANGE;
    for (int turn = 0; turn < 5; turn++) {
        const At at = any_valid(draw, back);
        if (!at.found) break;
        const Layer &layer = p.decoder.layers[at.layer];
        Known &known = back[at.row][at.layer];
        const size_t count = known.experts.size();
        const int64_t other = another(layer, known);
        if (turn == 0 && count > 1) {
            put(at.row, at.layer, draw.below(count - 1), p.config.none_value);
            known = {{}, none_is};
        } else if (turn == 1 && layer.least > 0) {
            for (size_t c = layer.least - 1; c < p.decoder.k; c++)
                put(at.row, at.layer, c, p.config.none_value);
            known = {{}, none_is};
        } else if (turn == 2 && count == layer.k && layer.k < p.decoder.k && other >= 0) {
            put(at.row, at.layer, count, other);
            known = {{}, ROUTECAP_MISSING_OUT_OF_RANGE};
        } else if (turn == 3 && count > 1) {
            put(at.row, at.layer, 0, known.experts.back());
            known = {{}, ROUTECAP_MISSING_DUPLICATE};
        } else if (turn == 4 && count > 0) {
            put(at.row, at.layer, 0, layer.experts);
            known = {{}, ROUTECAP_MISSING_OUT_OF_RANGE};
        }
    }
    routecap_routing *scattered[2] = {};
    EXPECT_GE(routecap_plan_scatter(p.plan, ids.data(), ids.size(), classes.data(), classes.size(),
                                    scattered, 2),
              0)
        << routecap_last_error();
    const RoutingPtr first(scattered[0]), second(scattered[1]);
    Decoder captured = p.decoder;
    for (Layer &layer : captured.layers) layer.provenance = ROUTECAP_PROVENANCE_CAPTURED;
    expect_view(scattered[0], captured, back);
}

// The rule of a plan's layer is that of the routing's.
void expect_plan_of_the_rule(Draw &draw, const routecap_routing *routing, const Decoder &decoder,
                             uint64_t rows) {
    Decoder other = decoder;
    Layer &layer = other.layers[draw.below(other.layers.size())];
    if (layer.least == 0 || rows == 0) return;
    layer.least--;
    const Columns columns(other);
    routecap_plan_config config;
    EXPECT_STATUS(ROUTECAP_OK, routecap_plan_config_init(&config, sizeof config));
    const uint64_t length = rows + 1;
    config.samples = 1, config.lengths = &length, config.k = decoder.k;
    config.dtype = ROUTECAP_DTYPE_I32;
    columns.describe(config);
    routecap_plan *plan = nullptr;
    EXPECT_STATUS(ROUTECAP_OK, routecap_plan_create(&config, &plan));
    std::vector<int32_t> ids(length * other.layers.size() * decoder.k);
    const routecap_plan_source source{0, routing};
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH,
                  routecap_plan_gather(plan, &source, sizeof source, 1, ids.data(), ids.size() * 4,
                                       nullptr, 0, nullptr));
    routecap_plan_free(plan);
}

// ---- The whole way -------------------------------------------------------------------------

void expect_load(const Recorded &recorded, const Decoder &decoder) {
    const size_t experts = decoder.experts(), layers = decoder.layers.size();
    std::vector<uint64_t> counts(ROUTECAP_LOAD_PHASES * layers * experts), wanted(layers * experts);
    routecap_load load{};
    load.struct_size = sizeof load;
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_capturer_load(recorded.capturer(), &load, counts.data(), counts.size()));
    for (const KnownRow &row : recorded.rows())
        for (size_t l = 0; l < layers; l++)
            for (const int64_t id : row[l].experts) wanted[l * experts + static_cast<size_t>(id)]++;
    for (size_t i = 0; i < wanted.size(); i++) {
        uint64_t counted = 0;
        for (size_t phase = 0; phase < ROUTECAP_LOAD_PHASES; phase++)
            counted += counts[phase * wanted.size() + i];
        ASSERT_EQ(counted, wanted[i]) << "layer " << i / experts << " expert " << i % experts;
    }
}

// What a request published another has.
void expect_shared(const Recorded &recorded, const Decoder &decoder) {
    routecap_store_config config;
    EXPECT_STATUS(ROUTECAP_OK, routecap_store_config_init(&config, sizeof config));
    config.block_rows = 1, config.key_bytes = 8;
    routecap_store *store = nullptr;
    EXPECT_STATUS(ROUTECAP_OK, routecap_store_create(&config, &recorded.config(), &store));
    std::vector<uint64_t> keys(recorded.rows().size());
    std::iota(keys.begin(), keys.end(), 0);
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_publish(recorded.capturer(), recorded.request(),
                                                        store, 0, keys.data(), keys.size(), 0));
    routecap_request other = 0;
    recorded.open(other);
    routecap_adoption found{};
    found.struct_size = sizeof found;
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_adopt(recorded.capturer(), other, store, 0,
                                                      keys.data(), keys.size(), 0, &found));
    KnownRows rows = recorded.rows();
    for (KnownRow &row : rows)  // a block without a valid cell is none
        if (std::all_of(row.begin(), row.end(), [](const Known &cell) { return cell.reason != 0; }))
            for (Known &cell : row) cell.reason = ROUTECAP_MISSING_NOT_PUBLISHED;
    expect_view(recorded.finish(other).get(), decoder, rows);
    routecap_store_free(store);
}

void whole_way(Draw &draw) {
    const Decoder decoder = draw_decoder(draw);
    Recorded recorded(draw, decoder);
    const KnownRows &rows = recorded.rows();
    expect_copies(draw, decoder, rows,
                  [&](const routecap_copy_options &options, std::vector<uint8_t> &ids,
                      std::vector<uint8_t> *mask) {
                      return routecap_request_extract_into(
                          recorded.capturer(), recorded.request(), 0, ROUTECAP_ROWS_ALL, &options,
                          ids.data(), ids.size(), mask != nullptr ? mask->data() : nullptr,
                          mask != nullptr ? mask->size() : 0, nullptr);
                  });
    expect_load(recorded, decoder);
    expect_shared(recorded, decoder);
    const RoutingPtr routing = recorded.finish(recorded.request());
    expect_view(routing.get(), decoder, rows);
    expect_coverage(routing.get(), rows);
    expect_copies(draw, decoder, rows,
                  [&](const routecap_copy_options &options, std::vector<uint8_t> &ids,
                      std::vector<uint8_t> *mask) {
                      return routecap_routing_copy_to(routing.get(), &options, ids.data(),
                                                      ids.size(),
                                                      mask != nullptr ? mask->data() : nullptr,
                                                      mask != nullptr ? mask->size() : 0, nullptr);
                  });
    expect_bytes(routing.get(), decoder, rows);
    expect_view(imported(decoder, rows).get(), decoder, rows);
    expect_refusals(draw, decoder, rows);
    expect_merges(draw, decoder, rows);
    expect_plan(draw, recorded.device(), routing.get(), decoder, rows);
    expect_plan_of_the_rule(draw, routing.get(), decoder, rows.size());
}

}  // namespace

// Every place that reads a cell has to ask how many experts it has, and every place that names a
// layer for its visit.
TEST(Fewer, what_routers_write_is_what_all_readers_read) {
    for (int turn = 0, turns = draws(200); turn < turns && !HasFailure(); turn++) {
        SCOPED_TRACE("turn " + std::to_string(turn));
        Draw draw{std::mt19937_64(static_cast<uint64_t>(turn))};
        whole_way(draw);
    }
}

// A cell of two experts is not one of three that has them too, from whichever side it is looked at.
TEST(Fewer, cells_of_other_counts_are_other_cells) {
    constexpr uint8_t kTwo[] = {1, 2, 0xff}, kThree[] = {2, 1, 3}, kAll = 1;
    const uint32_t least = 1;
    const auto make = [&](const uint8_t *ids) {
        routecap_segment segment{};
        segment.rows = 1, segment.ids = ids, segment.validity = &kAll;
        routecap_view view{};
        view.struct_size = sizeof view;
        view.dtype = ROUTECAP_DTYPE_U8, view.layers = 1, view.k = 3, view.experts = 8;
        view.layer_min_k = &least, view.rows = 1;
        view.segments = &segment, view.segment_size = sizeof segment, view.segment_count = 1;
        routecap_routing *made = nullptr;
        EXPECT_STATUS(ROUTECAP_OK, routecap_routing_import(&view, 0, nullptr, nullptr, &made));
        return RoutingPtr(made);
    };
    for (const uint8_t *first : {kTwo, kThree})
        for (const uint8_t *second : {kTwo, kThree}) {
            const bool same = first == second;
            const RoutingPtr a = make(first), b = make(second);
            const routecap_routing *both[] = {a.get(), b.get()};
            routecap_routing *merged = nullptr;
            EXPECT_STATUS(same ? ROUTECAP_OK : ROUTECAP_ERR_CONFLICT,
                          routecap_routing_merge(both, 2, 0, &merged));
            routecap_routing_free(merged);

            routecap_sequence_config config{};
            config.struct_size = sizeof config;
            config.layers = 1, config.k = 3, config.experts = 8, config.layer_min_k = &least;
            routecap_sequence *sequence = nullptr;
            ASSERT_STATUS(ROUTECAP_OK, routecap_sequence_create(&config, &sequence));
            const int32_t tokens[] = {7, 7};
            const auto append = [&](const RoutingPtr &rows, int32_t policy,
                                    routecap_append_report *report) {
                routecap_append_options options{};
                options.struct_size = sizeof options, options.policy = policy;
                return routecap_sequence_append(sequence, tokens, 0, 2, rows.get(), &options,
                                                report);
            };
            routecap_append_report report{};
            report.struct_size = sizeof report;
            EXPECT_STATUS(ROUTECAP_OK, append(a, ROUTECAP_APPEND_KEEP, nullptr));
            EXPECT_STATUS(same ? ROUTECAP_OK : ROUTECAP_ERR_CONFLICT,
                          append(b, ROUTECAP_APPEND_EQUAL, nullptr));
            EXPECT_STATUS(ROUTECAP_OK, append(b, ROUTECAP_APPEND_KEEP, &report));
            EXPECT_EQ(report.rows_differed, same ? 0u : 1u);
            routecap_sequence_free(sequence);
        }
}
