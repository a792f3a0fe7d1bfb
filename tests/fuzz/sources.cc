// Descriptions of sources on the host backend: dtypes, strides in both directions, live rows,
// bases, indices, tables and offsets of any value, and logits to route by; from memory of just the
// elements that may be read, into a sink of the caller's with guards around every row.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "bytes.h"
#include "check.h"
#include "model.h"

namespace {

using fuzz::Bytes;

constexpr uint8_t kGuard = 0xa5;

// A matrix of elements in memory that begins and ends with those of its live rows.
struct Matrix {
    std::vector<uint8_t> memory;
    const void *first = nullptr;  // row 0, column 0

    Matrix(size_t element, uint64_t rows, uint64_t columns, int64_t row_stride,
           int64_t column_stride) {
        int64_t lowest = 0, highest = 0;
        for (uint64_t r : {uint64_t{0}, rows - 1})
            for (uint64_t c : {uint64_t{0}, columns - 1}) {
                const int64_t at =
                    static_cast<int64_t>(r) * row_stride + static_cast<int64_t>(c) * column_stride;
                lowest = std::min(lowest, at), highest = std::max(highest, at);
            }
        memory.assign(rows == 0 ? element : static_cast<size_t>(highest - lowest + 1) * element, 0);
        first = memory.data() + (rows == 0 ? 0 : static_cast<size_t>(-lowest) * element);
    }
    void put(int64_t at, size_t element, int64_t value) {
        std::memcpy(memory.data() + (static_cast<const uint8_t *>(first) - memory.data()) +
                        at * static_cast<int64_t>(element),
                    &value, element);
    }
};

int32_t any_number(Bytes &in, uint32_t rows) {
    return in.chance(40) ? in.pick({INT32_MIN, INT32_MAX, -1, 1 << 20})
                         : static_cast<int32_t>(in.below(rows + 3)) - 1;
}

class World {
public:
    explicit World(Bytes &in) : in_(in), shape_(std::make_shared<model::Shape>()) {
        shape_->k = in.pick({2u, 1u, 3u, 8u});
        const uint32_t layers = in.pick({2u, 1u, 9u});
        for (uint32_t l = 0; l < layers; l++)
            shape_->layers.push_back({static_cast<int32_t>(l),
                                      std::max(shape_->k, in.pick({8u, 16u, 300u})), l % 2 == 1});
        std::vector<uint32_t> experts;
        std::vector<int32_t> provenance;
        for (const model::Layer &layer : shape_->layers)
            experts.push_back(layer.experts), provenance.push_back(layer.provenance);
        routecap_config config;
        SAME_STATUS(ROUTECAP_OK, routecap_config_init(&config, sizeof config));
        config.backend = ROUTECAP_BACKEND_HOST;
        config.layers = layers, config.k = shape_->k, config.rows = rows_ = in.pick({4u, 8u, 1u});
        config.layer_experts = experts.data(), config.layer_provenance = provenance.data();
        config.flags = ROUTECAP_CONFIG_MANUAL_PROGRESS | ROUTECAP_CONFIG_EXTERNAL_SINK;
        SAME_STATUS(ROUTECAP_OK, routecap_capturer_create(&config, &capturer_));
        sink_ = std::make_unique<model::Sink>(shape_, rows_);
        bind();
    }
    ~World() { routecap_capturer_destroy(capturer_); }

    void run() {
        SAME_STATUS(sink_->begin(rows_), routecap_step_begin(capturer_, rows_, nullptr));
        for (int i = 0; i < 6 && !in_.empty(); i++) {
            switch (in_.below(4)) {
                case 0: record_layers(); break;
                case 1: route(); break;
                default: record(); break;
            }
            check_guards();
        }
        compare();
    }

private:
    // A sink of one layer or all, with gaps between rows and layers and around everything.
    void bind() {
        const int32_t dtype =
            in_.pick({ROUTECAP_DTYPE_I32, ROUTECAP_DTYPE_I16, ROUTECAP_DTYPE_I64});
        element_ = check::element_bytes(dtype);
        row_stride_ = shape_->k + static_cast<int64_t>(in_.below(4));
        layer_stride_ = rows_ * row_stride_ + static_cast<int64_t>(in_.below(4));
        memory_.assign(
            static_cast<size_t>(layer_stride_ * static_cast<int64_t>(shape_->cells()) + 16) *
                element_,
            kGuard);
        const size_t lead = 8 * element_;
        const routecap_sink sink{sizeof sink, dtype,       memory_.data() + lead, rows_,
                                 shape_->k,   row_stride_, layer_stride_};
        SAME_STATUS(ROUTECAP_OK, routecap_sink_bind(capturer_, 0,
                                                    static_cast<uint32_t>(shape_->cells()), &sink));
        guards_.assign(memory_.size(), true);
        for (size_t l = 0; l < shape_->cells(); l++)
            for (uint32_t r = 0; r < rows_; r++) {
                const auto at =
                    guards_.begin() +
                    static_cast<ptrdiff_t>(
                        lead + static_cast<size_t>(static_cast<int64_t>(l) * layer_stride_ +
                                                   r * row_stride_) *
                                   element_);
                std::fill(at, at + static_cast<ptrdiff_t>(shape_->k * element_), false);
            }
    }
    void check_guards() {
        for (size_t i = 0; i < memory_.size(); i++)
            if (guards_[i] && memory_[i] != kGuard)
                check::fail("byte %zu of the sink's surroundings was written", i);
    }

    // Where rows go: counts, base and index, and how many rows are live.
    struct Place {
        uint32_t rows = 0, first_row = 0, live = 0;
        int32_t live_rows = 0, row_base = 0;
        std::vector<int32_t> index;
        const int32_t *live_given = nullptr, *base_given = nullptr, *index_given = nullptr;
    };
    void place(Place &p) {
        p.rows = static_cast<uint32_t>(in_.below(rows_ + 1)),
        p.first_row = static_cast<uint32_t>(in_.below(rows_ - p.rows + 1));
        if (in_.chance(8))
            p.first_row = rows_ - p.rows + 1 +
                          static_cast<uint32_t>(in_.below(2) == 0 ? 0 : UINT32_MAX - 2 * rows_);
        p.live = p.rows;
        if (in_.chance(64)) {
            p.live_rows = any_number(in_, p.rows), p.live_given = &p.live_rows;
            p.live = static_cast<uint32_t>(std::clamp<int64_t>(p.live_rows, 0, p.rows));
        }
        if (in_.chance(64)) p.row_base = any_number(in_, rows_), p.base_given = &p.row_base;
        if (in_.chance(64)) {
            for (uint32_t r = 0; r < p.rows; r++) p.index.push_back(any_number(in_, rows_));
            p.index.resize(p.rows), p.index.shrink_to_fit();
            static const int32_t none = 0;
            p.index_given = p.rows > 0 ? p.index.data() : &none;
        }
    }

    int64_t any_id(int32_t dtype, uint32_t layer) {
        const auto experts = static_cast<int64_t>(shape_->layers[layer].experts);
        int64_t id = static_cast<int64_t>(in_.below(static_cast<uint64_t>(experts)));
        if (in_.chance(6))
            id = in_.pick({experts, int64_t{-1}, INT64_MAX, INT64_MIN, int64_t{INT32_MAX},
                           int64_t{INT32_MIN}, int64_t{0x8080}, int64_t{-0x7f80}});
        return dtype == ROUTECAP_DTYPE_ID16_BF16
                   ? static_cast<int64_t>(static_cast<uint64_t>(id) << 16 | in_.number(1))
                   : id;
    }

    struct Strides {
        int64_t row, column;
    };
    Strides strides(uint32_t columns, uint64_t rows) {
        Strides s{static_cast<int64_t>(columns) + static_cast<int64_t>(in_.below(3)), 1};
        if (in_.chance(40)) s = {1, static_cast<int64_t>(rows) + 1};  // column by column
        if (in_.chance(24)) s.row = -s.row;
        if (in_.chance(24)) s.column = -s.column;
        if (rows == 1 && in_.chance(32)) s.row = in_.pick({INT64_MAX, INT64_MIN, int64_t{0}});
        return s;
    }

    void record() {
        const auto layer = static_cast<uint32_t>(in_.below(shape_->cells()));
        Place to;
        place(to);
        routecap_source s{};
        s.struct_size = sizeof s;
        s.dtype = in_.pick({ROUTECAP_DTYPE_I32, ROUTECAP_DTYPE_I16, ROUTECAP_DTYPE_U32,
                            ROUTECAP_DTYPE_I64, ROUTECAP_DTYPE_ID16_BF16});
        s.rows = to.rows, s.first_row = to.first_row;
        s.live_rows = to.live_given, s.row_base = to.base_given, s.row_index = to.index_given;
        const uint32_t columns = shape_->k + static_cast<uint32_t>(in_.below(3));
        if (columns != shape_->k || in_.chance(64)) s.k_source = columns;
        Strides stride = strides(columns, to.rows);
        const bool dense = in_.chance(100);
        if (dense) stride = {columns, 1};
        s.row_stride = dense ? 0 : stride.row, s.column_stride = dense ? 0 : stride.column;
        if (!dense && s.row_stride == 0) stride.row = columns;
        // Only the live rows and the columns that are kept hold ids: there is no memory for others.
        Matrix ids(check::element_bytes(s.dtype), to.live, shape_->k, to.live > 1 ? stride.row : 0,
                   stride.column);
        for (uint32_t r = 0; r < to.live; r++)
            for (uint32_t c = 0; c < shape_->k; c++)
                ids.put((to.live > 1 ? r * stride.row : 0) + c * stride.column,
                        check::element_bytes(s.dtype), any_id(s.dtype, layer));
        s.ids = ids.first;
        std::vector<int32_t> table;
        if (in_.chance(64)) {
            for (uint64_t i = 1 + in_.below(12); i > 0; i--)
                table.push_back(in_.chance(16) ? any_number(in_, 8) : static_cast<int32_t>(i));
            table.shrink_to_fit();
            s.table = table.data(), s.table_size = static_cast<uint32_t>(table.size());
        }
        if (in_.chance(64)) s.offset = in_.pick({1, -1, INT32_MAX, INT32_MIN, 3});
        if (in_.chance(16)) s.flags = ROUTECAP_SOURCE_OVERLAP;
        int32_t wrong = ROUTECAP_OK;
        uint32_t to_layer = layer;
        if (in_.chance(16)) switch (in_.below(5)) {
                case 0:
                    s.dtype = in_.pick(
                        {ROUTECAP_DTYPE_U8, ROUTECAP_DTYPE_U16, ROUTECAP_DTYPE_F32, 0, -1}),
                    wrong = ROUTECAP_ERR_DTYPE;
                    break;
                case 1: s.flags = 2, wrong = ROUTECAP_ERR_ARGUMENT; break;
                case 2:
                    if (shape_->k > 1)
                        s.k_source = shape_->k - 1, wrong = ROUTECAP_ERR_SHAPE_MISMATCH;
                    break;
                case 3:
                    s.table = table.empty() ? &s.offset : nullptr, wrong = ROUTECAP_ERR_ARGUMENT;
                    break;
                default:
                    to_layer = static_cast<uint32_t>(shape_->cells()),
                    wrong = ROUTECAP_ERR_UNKNOWN_LAYER;
                    break;
            }
        const int32_t status = routecap_layer_record(capturer_, to_layer, &s, nullptr);
        if (wrong == ROUTECAP_OK)
            return SAME_STATUS(sink_->record(s, {{layer, 0, s.ids, s.table}}), status);
        // Which is looked at first is nobody's business.
        if (status != ROUTECAP_ERR_CAPACITY) SAME_STATUS(wrong, status);
    }

    void record_layers() {
        const uint32_t rows = static_cast<uint32_t>(in_.below(rows_ + 1)),
                       first = static_cast<uint32_t>(in_.below(rows_ - rows + 1));
        std::vector<std::vector<int32_t>> ids(shape_->cells()), tables(shape_->cells());
        std::vector<routecap_layer_source> layers;
        routecap_source s{};
        s.struct_size = sizeof s;
        s.dtype = ROUTECAP_DTYPE_I32;
        s.rows = rows, s.first_row = first;
        s.table_size = static_cast<uint32_t>(in_.below(3) * 4);
        for (uint32_t l = static_cast<uint32_t>(shape_->cells()); l-- > 0;) {
            if (in_.chance(64)) continue;
            for (uint32_t i = 0; i < rows * shape_->k; i++)
                ids[l].push_back(static_cast<int32_t>(any_id(s.dtype, l)));
            ids[l].reserve(1);
            for (uint32_t i = 0; i < s.table_size; i++)
                tables[l].push_back(static_cast<int32_t>(in_.below(10)));
            layers.push_back({l, 0, ids[l].data(), s.table_size > 0 ? tables[l].data() : nullptr});
        }
        layers.reserve(1);
        SAME_STATUS(sink_->record(s, layers),
                    routecap_layers_record(capturer_, &s, layers.data(), sizeof layers[0],
                                           layers.size(), nullptr));
    }

    static int64_t float_bits(int32_t dtype, float value) {
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        if (dtype == ROUTECAP_DTYPE_F32) return bits;
        if (dtype == ROUTECAP_DTYPE_BF16) return bits >> 16;
        // Numbers here are eighths between -4 and 4, 0 included: exact in 11 bits.
        if (value == 0) return 0;
        return (bits >> 16 & 0x8000) | (((bits >> 23 & 0xff) - 112) << 10) | (bits >> 13 & 0x3ff);
    }

    // Without groups and bias every method ranks as the logits do; with a hash table the ids are
    // those of the table. What else is asked for must only choose k different experts.
    void route() {
        if (shape_->cells() < 2) return;
        const uint32_t layer = static_cast<uint32_t>(in_.below(shape_->cells() / 2)) * 2 + 1,
                       experts = shape_->layers[layer].experts;
        Place to;
        place(to);
        routecap_router router;
        SAME_STATUS(ROUTECAP_OK, routecap_router_init(&router, sizeof router,
                                                      static_cast<int32_t>(1 + in_.below(11))));
        routecap_logits l{};
        l.struct_size = sizeof l;
        l.dtype = in_.pick({ROUTECAP_DTYPE_F32, ROUTECAP_DTYPE_F16, ROUTECAP_DTYPE_BF16});
        l.rows = to.rows, l.first_row = to.first_row;
        l.live_rows = to.live_given, l.row_base = to.base_given, l.row_index = to.index_given;
        const Strides stride = strides(experts, to.rows);
        l.row_stride = stride.row, l.column_stride = stride.column;
        Matrix logits(check::element_bytes(l.dtype), to.live, experts,
                      to.live > 1 ? (stride.row == 0 ? experts : stride.row) : 0, stride.column);
        std::vector<std::vector<float>> values(to.live);
        const uint64_t seed = in_.number(2);
        for (uint32_t r = 0; r < to.live; r++)
            for (uint32_t e = 0; e < experts; e++) {
                values[r].push_back(
                    static_cast<float>(
                        static_cast<int64_t>((seed + r * 37 + e * (7 + seed % 5) % 61) % 64) - 32) /
                    8);
                logits.put((to.live > 1 ? r * (stride.row == 0 ? experts : stride.row) : 0) +
                               e * stride.column,
                           check::element_bytes(l.dtype), float_bits(l.dtype, values[r][e]));
            }
        l.logits = logits.first;
        const bool hashes = in_.chance(64);
        std::vector<int32_t> table;
        std::vector<int64_t> tokens;
        if (hashes) {
            router.hash_tokens = 5;
            for (uint32_t i = 0; i < 5 * shape_->k; i++)
                table.push_back(static_cast<int32_t>((seed + i * 3) % experts));
            router.hash_table = table.data();
            for (uint32_t r = 0; r < to.live; r++)
                tokens.push_back(in_.chance(16)
                                     ? in_.pick({int64_t{-1}, int64_t{5}, INT64_MAX, INT64_MIN})
                                     : static_cast<int64_t>(in_.below(5)));
            tokens.reserve(1);
            l.tokens = tokens.data(), l.tokens_dtype = ROUTECAP_DTYPE_I64;
        }
        std::vector<uint16_t> bias;
        if (in_.chance(40)) {
            for (uint32_t e = 0; e < experts; e++)
                bias.push_back(static_cast<uint16_t>(0x3f00 + (seed + e * 5) % 128));
            router.bias = bias.data(), router.bias_dtype = ROUTECAP_DTYPE_BF16;
        }
        if (in_.chance(40) && experts % 4 == 0 && experts / 2 >= shape_->k)
            router.groups = 4, router.groups_kept = 2;
        const bool ranks_logits = bias.empty() && router.groups <= 1;
        const int64_t weights_stride = shape_->k + static_cast<int64_t>(in_.below(3));
        std::vector<float> weights;
        if (in_.chance(100)) {
            weights.assign(static_cast<size_t>(to.live) * static_cast<size_t>(weights_stride) + 1,
                           -77.0f);
            l.weights = weights.data(), l.weights_stride = weights_stride;
        }
        const model::Sink::Placement placement{l.rows, l.first_row, l.live_rows, l.row_base,
                                               l.row_index};
        const int32_t expected = sink_->check(layer, placement);
        SAME_STATUS(expected, routecap_layer_route(capturer_, layer, &router, &l, nullptr));
        for (size_t i = 0; i < weights.size(); i++) {
            const bool written = expected == ROUTECAP_OK &&
                                 i % static_cast<size_t>(weights_stride) < shape_->k &&
                                 i / static_cast<size_t>(weights_stride) < to.live;
            const bool hashed_nowhere = written && hashes &&
                                        (tokens[i / static_cast<size_t>(weights_stride)] < 0 ||
                                         tokens[i / static_cast<size_t>(weights_stride)] >= 5);
            if (!hashed_nowhere && (weights[i] != -77.0f) != written)
                check::fail("weight %zu was %swritten", i, written ? "not " : "");
        }
        if (expected < 0) return;
        sink_->put(layer, placement, [&](uint32_t row) {
            std::vector<int64_t> ids;
            if (hashes) {
                for (uint32_t c = 0; c < shape_->k; c++)
                    ids.push_back(tokens[row] < 0 || tokens[row] >= 5
                                      ? -1
                                      : table[static_cast<size_t>(tokens[row]) * shape_->k + c]);
            } else if (!ranks_logits) {
                ids.push_back(kAny);
            } else {
                for (uint32_t e = 0; e < experts; e++) ids.push_back(e);
                std::stable_sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) {
                    return values[row][static_cast<size_t>(a)] >
                           values[row][static_cast<size_t>(b)];
                });
                ids.resize(shape_->k);
            }
            return ids;
        });
    }
    static constexpr int64_t kAny = -2;

    // What the sink holds, through a request; and its counters.
    void compare() {
        // Rows and layers of which only validity is known.
        std::vector<std::pair<uint32_t, uint32_t>> any;
        for (uint32_t l = 0; l < shape_->cells(); l++)
            for (uint32_t r = 0; r < rows_; r++)
                if (const auto *cell = sink_->written(l, r);
                    cell != nullptr && cell->front() == kAny)
                    any.emplace_back(r, l);
        SAME_STATUS(ROUTECAP_OK, routecap_step_snapshot(capturer_, nullptr));
        routecap_request request = 0;
        SAME_STATUS(ROUTECAP_OK, routecap_request_open(capturer_, nullptr, &request, 1));
        const routecap_span span{request, 0, 0, 0, rows_, 0, 0};
        SAME_STATUS(ROUTECAP_OK, routecap_step_issue(capturer_, &span, sizeof span, 1, nullptr,
                                                     nullptr, nullptr, nullptr));
        check_guards();
        uint64_t conflicting = 0;
        SAME_STATUS(ROUTECAP_OK, routecap_step_finalize(capturer_, 1, -1, &conflicting));
        routecap_routing *routing = nullptr;
        const int32_t status = routecap_request_extract(capturer_, request, 0, rows_,
                                                        ROUTECAP_EXTRACT_SHARE, 0, &routing);
        if (status < 0) check::status("extract", ROUTECAP_OK, status);
        // What the library chose where the model does not say.
        routecap_view view{};
        view.struct_size = sizeof view;
        SAME_STATUS(ROUTECAP_OK, routecap_routing_view(routing, &view));
        for (const auto &[r, l] : any) {
            if (view.segment_count != 1 || view.segments[0].ids == nullptr)
                check::fail("a row that was routed is missing");
            std::vector<int64_t> ids;
            for (uint32_t c = 0; c < shape_->k; c++) {
                const size_t at = (size_t{r} * shape_->cells() + l) * shape_->k + c;
                ids.push_back(view.dtype == ROUTECAP_DTYPE_U8
                                  ? static_cast<const uint8_t *>(view.segments[0].ids)[at]
                                  : static_cast<const uint16_t *>(view.segments[0].ids)[at]);
            }
            SAME(0, model::judge(ids.data(), shape_->k, shape_->layers[l].experts));
            sink_->write(l, r, ids);
        }
        sink_->snapshot();
        const model::Sink::Taken taken = sink_->take();
        model::Routing expected{shape_, 0, rows_};
        for (uint32_t r = 0; r < rows_; r++) expected.content.emplace(r, taken.rows[r]);
        check::routing(routing, expected);
        routecap_routing_free(routing);
        routecap_stats stats{};
        stats.struct_size = sizeof stats;
        SAME_STATUS(ROUTECAP_OK, routecap_capturer_stats(capturer_, &stats));
        SAME(taken.dropped, stats.rows_dropped);
        SAME(taken.conflicts, stats.cells_conflicting);
        SAME(taken.conflicts, conflicting);
    }

    Bytes &in_;
    std::shared_ptr<model::Shape> shape_;
    routecap_capturer *capturer_ = nullptr;
    std::unique_ptr<model::Sink> sink_;
    uint32_t rows_ = 0;
    size_t element_ = 0;
    int64_t row_stride_ = 0, layer_stride_ = 0;
    std::vector<uint8_t> memory_;
    std::vector<bool> guards_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Bytes in(data, size);
    World(in).run();
    return 0;
}
