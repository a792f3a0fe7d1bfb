// Weights beside the ids: recorded in every way, read in every way, each bit against plain arrays.
#include <rig.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

using namespace rig;

namespace {

constexpr uint32_t kSinkRows = 16;

uint32_t bytes_of(int32_t dtype) { return dtype == ROUTECAP_DTYPE_F32 ? 4 : 2; }
bool is_nan(uint32_t bits, int32_t dtype) {
    const auto above = [bits](uint32_t sign, uint32_t infinity) {
        return (bits & (sign - 1)) > infinity;
    };
    if (dtype == ROUTECAP_DTYPE_F32) return above(0x80000000u, 0x7f800000u);
    return above(0x8000u, dtype == ROUTECAP_DTYPE_BF16 ? 0x7f80u : 0x7c00u);
}

// What a step records, and what must be read of it.
struct Recorded {
    uint32_t layers, k, experts, rows;
    int32_t weights_dtype;
    std::vector<uint32_t> most, least;  // [layers] how many experts a token gets
    // [layers][rows][k]
    std::vector<int32_t> ids;
    std::vector<uint32_t> weights;  // bits
    std::vector<uint8_t> given;     // [layers] whether weights are given

    Recorded(std::mt19937_64 &random, bool fewer) {
        const auto draw = [&](uint32_t low, uint32_t high) {
            return std::uniform_int_distribution<uint32_t>(low, high)(random);
        };
        constexpr uint32_t kColumns[] = {1, 2, 4, 6, 8, 9};
        constexpr int32_t kDtypes[] = {ROUTECAP_DTYPE_F32, ROUTECAP_DTYPE_F16, ROUTECAP_DTYPE_BF16};
        layers = draw(1, 19), k = kColumns[draw(0, 5)];
        experts = draw(0, 1) != 0 ? draw(k + 1, 255) : draw(256, 600);
        rows = draw(1, kSinkRows), weights_dtype = kDtypes[draw(0, 2)];
        for (uint32_t l = 0; l < layers; l++) {
            most.push_back(fewer && l > 0 ? draw(1, k) : k);
            least.push_back(fewer ? draw(0, most[l]) : k);
            given.push_back(draw(0, 7) != 0);
        }
        for (uint32_t l = 0; l < layers; l++)
            for (uint32_t r = 0; r < rows; r++) add_cell(random, draw, l);
    }
    template <class Draw>
    void add_cell(std::mt19937_64 &random, Draw draw, uint32_t layer) {
        std::vector<int32_t> all(experts);
        for (uint32_t e = 0; e < experts; e++) all[e] = static_cast<int32_t>(e);
        std::shuffle(all.begin(), all.end(), random);
        const uint32_t used = draw(least[layer], most[layer]), fault = draw(0, 29);
        for (uint32_t c = 0; c < k; c++) {
            int32_t id = c < used ? all[c] : kNone;
            if (fault == 0 && c == 0) id = static_cast<int32_t>(experts);  // out of range
            ids.push_back(id);
            auto bits = static_cast<uint32_t>(random());
            if (bytes_of(weights_dtype) == 2) bits &= 0xffff;
            if (is_nan(bits, weights_dtype)) bits = 0;
            if (fault == 1 && c + 1 == used)
                bits = 0x7fffffffu & (bytes_of(weights_dtype) == 2 ? 0x7fffu : ~0u);
            if (fault == 2 && c == 0)  // an infinity
                bits = weights_dtype == ROUTECAP_DTYPE_F32    ? 0x7f800000u
                       : weights_dtype == ROUTECAP_DTYPE_BF16 ? 0xff80u
                                                              : 0x7c00u;
            weights.push_back(bits);
        }
    }
    size_t at(uint32_t layer, uint32_t row) const { return (size_t{layer} * rows + row) * k; }
    uint32_t used(uint32_t layer, uint32_t row) const {
        uint32_t n = k;
        while (n > 0 && ids[at(layer, row) + n - 1] == kNone) n--;
        return n;
    }
    bool valid(uint32_t layer, uint32_t row) const {
        const int32_t *cell = &ids[at(layer, row)];
        return std::all_of(cell, cell + used(layer, row), [this](int32_t id) {
            return id >= 0 && id < static_cast<int32_t>(experts);
        });
    }
    bool weighted(uint32_t layer, uint32_t row) const {
        const uint32_t *cell = &weights[at(layer, row)];
        return valid(layer, row) &&
               (used(layer, row) == 0 ||
                (given[layer] != 0 &&
                 std::none_of(cell, cell + used(layer, row),
                              [this](uint32_t bits) { return is_nan(bits, weights_dtype); })));
    }
    uint32_t weight(uint32_t layer, uint32_t row, uint32_t column) const {
        return column < used(layer, row) ? weights[at(layer, row) + column] : 0;
    }
    // The weights of a layer as they lie in memory.
    std::vector<unsigned char> bytes(uint32_t layer) const {
        const uint32_t element = bytes_of(weights_dtype);
        std::vector<unsigned char> out(size_t{rows} * k * element);
        for (size_t i = 0; i < size_t{rows} * k; i++)
            std::memcpy(&out[i * element], &weights[at(layer, 0) + i], element);
        return out;
    }

    static constexpr int32_t kNone = -7;
};

struct Capturing {
    Capturing(const Recorded &s, uint32_t flags) {
        routecap_config c{};
        EXPECT_STATUS(ROUTECAP_OK, routecap_config_init(&c, sizeof c));
        c.backend = backend(), c.layers = s.layers, c.k = s.k, c.experts = s.experts;
        c.rows = kSinkRows, c.flags = flags;
        c.layer_k = s.most.data(), c.layer_min_k = s.least.data();
        c.weights_dtype = s.weights_dtype;
        EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_create(&c, &capturer));
        EXPECT_STATUS(ROUTECAP_OK, routecap_request_open(capturer, nullptr, &request, 1));
    }
    ~Capturing() { routecap_capturer_destroy(capturer); }
    Capturing(const Capturing &) = delete;

    routecap_capturer *capturer = nullptr;
    routecap_request request = 0;
};

enum Way { one_by_one, together, whole_step, in_sink, packed, ways };

// A source of the layers' ids and weights, in memory of the device.
class InMemory {
public:
    InMemory(Device &device, const Recorded &s) : device_(device), s_(s) {}

    routecap_source common(bool is_packed) const {
        routecap_source source{};
        source.struct_size = sizeof source;
        source.dtype = is_packed ? ROUTECAP_DTYPE_ID16_BF16 : ROUTECAP_DTYPE_I32;
        source.rows = s_.rows;
        source.k_source = s_.k;
        source.none = fewer() ? Recorded::kNone : 0;
        return source;
    }
    bool fewer() const {
        return std::all_of(s_.least.begin(), s_.least.end(),
                           [this](uint32_t least) { return least < s_.k; });
    }
    const void *ids(uint32_t layer) const {
        return device_.upload(&s_.ids[s_.at(layer, 0)], size_t{s_.rows} * s_.k * 4);
    }
    const void *weights(uint32_t layer) const {
        const auto bytes = s_.bytes(layer);
        return device_.upload(bytes.data(), bytes.size());
    }
    const void *packed_ids(uint32_t layer) const {
        std::vector<uint32_t> both(size_t{s_.rows} * s_.k);
        for (size_t i = 0; i < both.size(); i++)
            both[i] = static_cast<uint32_t>(s_.ids[s_.at(layer, 0) + i]) << 16 |
                      s_.weights[s_.at(layer, 0) + i];
        keep_.push_back(both);
        return device_.upload(keep_.back().data(), both.size() * 4);
    }

private:
    Device &device_;
    const Recorded &s_;
    mutable std::vector<std::vector<uint32_t>> keep_;
};

void record(Device &device, const Capturing &c, const Recorded &s, Way way,
            std::vector<std::vector<unsigned char>> &keep) {
    const InMemory from(device, s);
    const routecap_stream stream = device.stream();
    const auto weights_of = [&](uint32_t l) -> const void * {
        if (s.given[l] == 0) return nullptr;
        keep.push_back(s.bytes(l));
        return device.upload(keep.back().data(), keep.back().size());
    };
    if (way == whole_step || way == together) {
        routecap_source source = from.common(false);
        std::vector<routecap_layer_source> layers;
        bool any = false;
        for (uint32_t l = 0; l < s.layers; l++) {
            layers.push_back({l, 0, from.ids(l), nullptr, weights_of(l)});
            any |= s.given[l] != 0;
        }
        source.weights_dtype = any ? s.weights_dtype : 0;
        source.flags = way == whole_step ? ROUTECAP_SOURCE_WHOLE_STEP : 0;
        if (way == together) {
            ASSERT_STATUS(ROUTECAP_OK, routecap_step_begin(c.capturer, s.rows, stream));
        }
        ASSERT_STATUS(ROUTECAP_OK, routecap_layers_record(c.capturer, &source, layers.data(),
                                                          sizeof layers[0], layers.size(), stream));
        if (way == whole_step) return;
    } else {
        ASSERT_STATUS(ROUTECAP_OK, routecap_step_begin(c.capturer, s.rows, stream));
    }
    for (uint32_t l = 0; l < s.layers && way != together; l++) {
        if (way == in_sink) {
            routecap_sink sink{};
            sink.struct_size = sizeof sink;
            ASSERT_STATUS(ROUTECAP_OK, routecap_sink_layer(c.capturer, l, &sink));
            std::vector<int16_t> ids(size_t{s.rows} * s.k);
            for (size_t i = 0; i < ids.size(); i++) {
                const int32_t id = s.ids[s.at(l, 0) + i];
                ids[i] = static_cast<int16_t>(id == Recorded::kNone ? ROUTECAP_NO_EXPERT : id);
            }
            device.write(sink.ids, ids.data(), ids.size() * 2);
            const auto bytes = s.bytes(l);
            if (s.given[l] != 0) device.write(sink.weights, bytes.data(), bytes.size());
            continue;
        }
        routecap_source source = from.common(way == packed);
        source.ids = way == packed ? from.packed_ids(l) : from.ids(l);
        source.ids_bytes = uint64_t{s.rows} * s.k * 4;
        if (way != packed && s.given[l] != 0) {
            source.weights = weights_of(l), source.weights_dtype = s.weights_dtype;
            source.weights_bytes = uint64_t{s.rows} * s.k * bytes_of(s.weights_dtype);
        }
        ASSERT_STATUS(ROUTECAP_OK, routecap_layer_record(c.capturer, l, &source, stream));
    }
    ASSERT_STATUS(ROUTECAP_OK, routecap_step_snapshot(c.capturer, stream));
}

void expect_view(const routecap_routing *routing, const Recorded &s) {
    const routecap_view view = view_of(routing);
    ASSERT_EQ(view.weights_dtype, s.weights_dtype);
    const uint32_t element = bytes_of(s.weights_dtype);
    for (size_t i = 0; i < view.segment_count; i++) {
        const routecap_segment &segment = view.segments[i];
        ASSERT_NE(segment.weights, nullptr);
        ASSERT_EQ(reinterpret_cast<uintptr_t>(segment.weights) % element, 0u);
        for (uint64_t r = 0; r < segment.rows; r++)
            for (uint32_t l = 0; l < s.layers; l++) {
                const auto row = static_cast<uint32_t>(segment.first + r);
                const uint8_t *validity =
                    segment.validity != nullptr ? segment.validity + r * view.row_stride : nullptr;
                ASSERT_EQ(validity == nullptr || (validity[l / 8] >> l % 8 & 1) != 0,
                          s.valid(l, row))
                    << l << " " << row;
                for (uint32_t c = 0; c < s.k && s.valid(l, row); c++) {
                    uint16_t id = 0;
                    const uint32_t width = view.dtype == ROUTECAP_DTYPE_U8 ? 1 : 2;
                    std::memcpy(&id,
                                static_cast<const uint8_t *>(segment.ids) + r * view.row_stride +
                                    (size_t{l} * s.k + c) * width,
                                width);
                    const int32_t unused = width == 1 ? 0xff : 0xffff;
                    ASSERT_EQ(id, c < s.used(l, row) ? s.ids[s.at(l, row) + c] : unused)
                        << l << " " << row << " " << c;
                }
                const uint8_t *bits = segment.weights_validity + r * view.row_stride;
                ASSERT_EQ((bits[l / 8] >> l % 8 & 1) != 0, s.weighted(l, row)) << l << " " << row;
                for (uint32_t c = 0; c < s.k; c++) {
                    uint32_t weight = 0;
                    std::memcpy(&weight,
                                static_cast<const uint8_t *>(segment.weights) +
                                    r * view.row_stride + (size_t{l} * s.k + c) * element,
                                element);
                    ASSERT_EQ(weight, s.weighted(l, row) ? s.weight(l, row, c) : 0)
                        << l << " " << row << " " << c;
                }
            }
    }
}

// An element of each type as a number.
float value_of(uint32_t bits, int32_t dtype) {
    float value;
    if (dtype != ROUTECAP_DTYPE_F16) {
        const uint32_t wide = dtype == ROUTECAP_DTYPE_BF16 ? bits << 16 : bits;
        std::memcpy(&value, &wide, sizeof value);
        return value;
    }
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const auto fraction = static_cast<float>(bits & 0x3ff);
    const float size = exponent == 31  ? (fraction == 0 ? INFINITY : NAN)
                       : exponent == 0 ? std::ldexp(fraction, -24)
                                       : std::ldexp(1024 + fraction, exponent - 25);
    return (bits & 0x8000) != 0 ? -size : size;
}

void expect_copies(const routecap_routing *routing, const Recorded &s) {
    uint64_t there = 0;
    for (uint32_t l = 0; l < s.layers; l++)
        for (uint32_t r = 0; r < s.rows; r++) there += s.weighted(l, r);
    const uint64_t cells = uint64_t{s.layers} * s.rows;
    const int32_t status = there == cells ? ROUTECAP_OK
                           : there == 0   ? ROUTECAP_NOT_CAPTURED
                                          : ROUTECAP_INCOMPLETE;
    routecap_copy_options options{};
    EXPECT_STATUS(ROUTECAP_OK, routecap_copy_options_init(&options, sizeof options));
    options.order = ROUTECAP_ORDER_LAYER_MAJOR;
    for (const int32_t dtype : {s.weights_dtype, int32_t{ROUTECAP_DTYPE_F32}}) {
        options.dtype = dtype;
        std::vector<unsigned char> dst(cells * s.k * bytes_of(dtype));
        std::vector<uint8_t> mask(cells);
        EXPECT_STATUS(status,
                      routecap_routing_copy_weights(routing, &options, dst.data(), dst.size(),
                                                    mask.data(), mask.size(), nullptr));
        for (uint32_t l = 0; l < s.layers; l++)
            for (uint32_t r = 0; r < s.rows; r++) {
                ASSERT_EQ(mask[size_t{l} * s.rows + r], s.weighted(l, r));
                for (uint32_t c = 0; c < s.k; c++) {
                    uint32_t bits = 0;
                    std::memcpy(&bits, &dst[(s.at(l, r) + c) * bytes_of(dtype)], bytes_of(dtype));
                    if (!s.weighted(l, r))
                        ASSERT_TRUE(is_nan(bits, dtype));
                    else if (dtype == s.weights_dtype)
                        ASSERT_EQ(bits, s.weight(l, r, c));
                    else
                        ASSERT_EQ(value_of(bits, dtype),
                                  value_of(s.weight(l, r, c), s.weights_dtype));
                }
            }
    }
    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    EXPECT_GE(routecap_routing_coverage(routing, &coverage, nullptr, sizeof(routecap_missing), 0),
              0);
    EXPECT_EQ(coverage.cells_weighted, there);
}

void expect_file(const routecap_routing *routing, const Recorded &s) {
    uint64_t bytes = 0;
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                  routecap_routing_serialize(routing, nullptr, 0, &bytes));
    std::vector<uint8_t> data(bytes);
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_routing_serialize(routing, data.data(), data.size(), &bytes));
    routecap_routing *made = nullptr;
    ASSERT_GE(routecap_routing_deserialize(data.data(), bytes, 0, nullptr, nullptr, &made), 0)
        << routecap_last_error();
    const RoutingPtr read(made);
    expect_view(read.get(), s);
    const routecap_view view = view_of(read.get());
    ASSERT_GE(routecap_routing_import(&view, 0, nullptr, nullptr, &made), 0)
        << routecap_last_error();
    expect_view(RoutingPtr(made).get(), s);
}

// The load counts experts alone, where weights follow the ids too.
void expect_load(const routecap_capturer *capturer, const Recorded &s) {
    const size_t of_phase = size_t{s.layers} * s.experts;
    std::vector<uint64_t> counts(ROUTECAP_LOAD_PHASES * of_phase), chosen(of_phase);
    routecap_load load{};
    load.struct_size = sizeof load;
    ASSERT_STATUS(ROUTECAP_OK,
                  routecap_capturer_load(capturer, &load, counts.data(), counts.size()));
    for (size_t at = of_phase; at < counts.size(); at++) counts[at % of_phase] += counts[at];
    counts.resize(of_phase);
    for (uint32_t l = 0; l < s.layers; l++)
        for (uint32_t r = 0; r < s.rows; r++)
            for (uint32_t c = 0; s.valid(l, r) && c < s.used(l, r); c++)
                chosen[size_t{l} * s.experts + static_cast<uint32_t>(s.ids[s.at(l, r) + c])]++;
    EXPECT_EQ(counts, chosen);
}

RoutingPtr capture(Device &device, const Capturing &c, const Recorded &s, Way way,
                   std::vector<std::vector<unsigned char>> &keep) {
    device.forward([&] { record(device, c, s, way, keep); });
    routecap_span span{};
    span.request = c.request, span.rows = s.rows;
    routecap_step ticket = 0;
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_issue(c.capturer, &span, sizeof span, 1, nullptr,
                                                   nullptr, &ticket, device.stream()));
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_finalize(c.capturer, ticket, -1, nullptr));
    routecap_routing *routing = nullptr;
    EXPECT_GE(routecap_request_extract(c.capturer, c.request, 0, s.rows, ROUTECAP_EXTRACT_SHARE, 0,
                                       &routing),
              0)
        << routecap_last_error();
    return RoutingPtr(routing);
}

}  // namespace

TEST(Weights, are_those_that_were_recorded_bit_for_bit) {
    for (int seed = 0; seed < draws(200); seed++) {
        std::mt19937_64 random(static_cast<uint64_t>(seed));
        Recorded step(random, false);
        const auto way = static_cast<Way>(seed % ways);
        if (way == packed) {
            step = Recorded(random, false);
            while (step.weights_dtype != ROUTECAP_DTYPE_BF16) step = Recorded(random, false);
            std::fill(step.given.begin(), step.given.end(), uint8_t{1});
        }
        SCOPED_TRACE("seed " + std::to_string(seed));
        Device device;
        const Capturing capturer(step, 0);
        std::vector<std::vector<unsigned char>> keep;
        const RoutingPtr routing = capture(device, capturer, step, way, keep);
        ASSERT_NE(routing, nullptr);
        expect_view(routing.get(), step);
        expect_copies(routing.get(), step);
        expect_file(routing.get(), step);
        if (HasFatalFailure()) return;
    }
}

TEST(Weights, are_0_in_columns_without_an_expert) {
    for (int seed = 0; seed < draws(200); seed++) {
        std::mt19937_64 random(1000 + static_cast<uint64_t>(seed));
        Recorded step(random, true);
        for (uint32_t l = 0; l < step.layers; l++)
            step.least[l] = std::min(step.least[l], step.most[l] - 1);
        const Way way = std::array{one_by_one, together, whole_step, in_sink}[seed % 4];
        if (way == in_sink) std::fill(step.most.begin(), step.most.end(), step.k);
        SCOPED_TRACE("seed " + std::to_string(seed));
        Device device;
        const Capturing capturer(step, ROUTECAP_CONFIG_LOAD);
        std::vector<std::vector<unsigned char>> keep;
        const RoutingPtr routing = capture(device, capturer, step, way, keep);
        ASSERT_NE(routing, nullptr);
        expect_view(routing.get(), step);
        expect_copies(routing.get(), step);
        expect_file(routing.get(), step);
        expect_load(capturer.capturer, step);
        if (HasFatalFailure()) return;
    }
}

// A weight of the last step must never stand beside an id of this one.
TEST(Weights, of_a_step_that_records_none_are_missing) {
    std::mt19937_64 random(7);
    Recorded first(random, false);
    std::fill(first.given.begin(), first.given.end(), uint8_t{1});
    for (const Way way : {one_by_one, together, whole_step, in_sink}) {
        Device device;
        const Capturing capturer(first, 0);
        std::vector<std::vector<unsigned char>> keep;
        capture(device, capturer, first, way, keep);
        Recorded second = first;
        std::fill(second.given.begin(), second.given.end(), uint8_t{0});
        device.forward([&] { record(device, capturer, second, way, keep); });
        routecap_span span{};
        span.request = capturer.request, span.position = first.rows, span.rows = second.rows;
        routecap_step ticket = 0;
        ASSERT_STATUS(ROUTECAP_OK, routecap_step_issue(capturer.capturer, &span, sizeof span, 1,
                                                       nullptr, nullptr, &ticket, device.stream()));
        ASSERT_STATUS(ROUTECAP_OK, routecap_step_finalize(capturer.capturer, ticket, -1, nullptr));
        routecap_routing *made = nullptr;
        ASSERT_GE(routecap_request_extract(capturer.capturer, capturer.request, first.rows,
                                           second.rows, ROUTECAP_EXTRACT_SHARE, 0, &made),
                  0);
        const RoutingPtr routing(made);
        routecap_coverage coverage{};
        coverage.struct_size = sizeof coverage;
        EXPECT_GE(routecap_routing_coverage(made, &coverage, nullptr, sizeof(routecap_missing), 0),
                  0);
        EXPECT_EQ(coverage.cells_weighted, 0u) << way;
        EXPECT_GT(coverage.rows * coverage.layers, coverage.cells_missing);
    }
}

TEST(Weights, of_a_cell_that_is_recorded_twice_are_those_of_its_ids) {
    std::mt19937_64 random(8);
    Recorded first(random, false);
    std::fill(first.given.begin(), first.given.end(), uint8_t{1});
    Recorded second = first;
    for (uint32_t &bits : second.weights) bits ^= 1;
    Device device;
    const Capturing capturer(first, 0);
    std::vector<int32_t> rows(first.rows);
    for (uint32_t r = 0; r < first.rows; r++) rows[r] = static_cast<int32_t>(r);
    device.forward([&] {
        ASSERT_STATUS(ROUTECAP_OK,
                      routecap_step_begin(capturer.capturer, first.rows, device.stream()));
        for (uint32_t l = 0; l < first.layers; l++)
            for (const Recorded *s : {&first, &second}) {
                const auto bytes = s->bytes(l);
                routecap_source source = InMemory(device, *s).common(false);
                source.ids = InMemory(device, *s).ids(l);
                source.weights = device.upload(bytes.data(), bytes.size());
                source.weights_dtype = s->weights_dtype;
                source.row_index = static_cast<const int32_t *>(
                    device.upload(rows.data(), rows.size() * sizeof rows[0]));
                ASSERT_STATUS(ROUTECAP_OK, routecap_layer_record(capturer.capturer, l, &source,
                                                                 device.stream()));
            }
        ASSERT_STATUS(ROUTECAP_OK, routecap_step_snapshot(capturer.capturer, device.stream()));
    });
    routecap_span span{};
    span.request = capturer.request, span.rows = first.rows;
    routecap_step ticket = 0;
    ASSERT_STATUS(ROUTECAP_OK, routecap_step_issue(capturer.capturer, &span, sizeof span, 1,
                                                   nullptr, nullptr, &ticket, device.stream()));
    uint64_t conflicts = 0;
    ASSERT_GE(routecap_step_finalize(capturer.capturer, ticket, -1, &conflicts), 0);
    EXPECT_EQ(conflicts, uint64_t{first.layers} * first.rows);
    routecap_routing *made = nullptr;
    ASSERT_GE(routecap_request_extract(capturer.capturer, capturer.request, 0, first.rows,
                                       ROUTECAP_EXTRACT_SHARE, 0, &made),
              0);
    expect_view(RoutingPtr(made).get(), first);
}

TEST(Weights, are_refused_where_they_cannot_be_kept) {
    std::mt19937_64 random(9);
    const Recorded step(random, false);
    Device device;
    const Capturing with(step, 0);
    routecap_source source = InMemory(device, step).common(false);
    source.ids = InMemory(device, step).ids(0);
    const std::vector<unsigned char> bytes = step.bytes(0);
    source.weights = device.upload(bytes.data(), bytes.size());
    ASSERT_STATUS(ROUTECAP_OK, routecap_step_begin(with.capturer, step.rows, device.stream()));
    const auto record = [&] {
        return routecap_layer_record(with.capturer, 0, &source, device.stream());
    };
    EXPECT_STATUS(ROUTECAP_ERR_DTYPE, record());  // no dtype stated
    source.weights_dtype =
        step.weights_dtype == ROUTECAP_DTYPE_F16 ? ROUTECAP_DTYPE_BF16 : ROUTECAP_DTYPE_F16;
    EXPECT_STATUS(ROUTECAP_ERR_DTYPE, record());
    source.weights_dtype = step.weights_dtype, source.weights_bytes = bytes.size() + 2;
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, record());
    source.weights_bytes = bytes.size(), source.weights_row_stride = -1;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, record());
    source.weights = nullptr, source.weights_row_stride = 0;
    EXPECT_STATUS(ROUTECAP_ERR_DTYPE, record());  // a dtype without weights
    // No layer lacks weights in a call that has none, as one of a pass whose only layer is silent.
    const auto record_none = [&] {
        source.ids = nullptr;
        return routecap_layers_record(with.capturer, &source, nullptr,
                                      sizeof(routecap_layer_source), 0, device.stream());
    };
    EXPECT_STATUS(ROUTECAP_OK, record_none());
    source.weights_dtype =
        step.weights_dtype == ROUTECAP_DTYPE_F16 ? ROUTECAP_DTYPE_BF16 : ROUTECAP_DTYPE_F16;
    EXPECT_STATUS(ROUTECAP_ERR_DTYPE, record_none());

    routecap_config c{};
    EXPECT_STATUS(ROUTECAP_OK, routecap_config_init(&c, sizeof c));
    c.backend = ROUTECAP_BACKEND_HOST, c.layers = 400, c.k = 8, c.experts = 256, c.rows = 4;
    routecap_capturer *made = nullptr;
    c.weights_dtype = ROUTECAP_DTYPE_F32;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_capturer_create(&c, &made));  // 4 KiB a row
    c.layers = 3, c.weights_dtype = ROUTECAP_DTYPE_I32;
    EXPECT_STATUS(ROUTECAP_ERR_DTYPE, routecap_capturer_create(&c, &made));
}

// Weights that arrived had no type and no length: bfloat16 taken for float32 gave finite numbers.
TEST(Weights, that_arrive_are_of_the_type_and_length_that_they_are_said_to_be) {
    routecap_config c{};
    ASSERT_STATUS(ROUTECAP_OK, routecap_config_init(&c, sizeof c));
    c.backend = ROUTECAP_BACKEND_HOST, c.layers = 2, c.k = 2, c.experts = 8, c.rows = 2;
    c.weights_dtype = ROUTECAP_DTYPE_F32, c.flags = ROUTECAP_CONFIG_EXTERNAL_SINK;
    routecap_capturer *made = nullptr;
    ASSERT_STATUS(ROUTECAP_OK, routecap_capturer_create(&c, &made));
    int32_t ids[8] = {3, 1, 7, 0, 5, 2, 4, 6};
    float weights[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const routecap_sink good{.struct_size = sizeof good,
                             .dtype = ROUTECAP_DTYPE_I32,
                             .ids = ids,
                             .rows = 2,
                             .k = 2,
                             .row_stride = 0,
                             .layer_stride = 0,
                             .ids_bytes = sizeof ids,
                             .weights_dtype = ROUTECAP_DTYPE_F32,
                             .reserved = 0,
                             .weights = weights,
                             .weights_bytes = sizeof weights};
    routecap_request request = 0;
    ASSERT_STATUS(ROUTECAP_OK, routecap_request_open(made, nullptr, &request, 1));
    routecap_span span{};
    span.request = request, span.rows = 2;
    routecap_issue_options later{};
    later.struct_size = sizeof later, later.snapshot = ROUTECAP_SNAPSHOT_LATER;
    routecap_step step = 0;
    ASSERT_STATUS(ROUTECAP_OK, routecap_step_issue(made, &span, sizeof span, 1, &later, nullptr,
                                                   &step, nullptr));
    const auto expect = [&](int32_t status, auto slip) {
        routecap_sink rows = good;
        slip(rows);
        EXPECT_STATUS(status, routecap_step_arrive(made, step, &rows));
    };
    expect(ROUTECAP_ERR_DTYPE, [](auto &rows) { rows.weights_dtype = 0; });
    expect(ROUTECAP_ERR_DTYPE, [](auto &rows) { rows.weights_dtype = ROUTECAP_DTYPE_BF16; });
    expect(ROUTECAP_ERR_DTYPE, [](auto &rows) { rows.weights = nullptr; });
    expect(ROUTECAP_ERR_SHAPE_MISMATCH, [](auto &rows) { rows.weights_bytes = 16; });
    expect(ROUTECAP_ERR_SHAPE_MISMATCH, [](auto &rows) { rows.ids_bytes = 16; });
    expect(ROUTECAP_ERR_ARGUMENT, [](auto &rows) { rows.reserved = 1; });
    expect(ROUTECAP_ERR_ARGUMENT, [](auto &rows) {
        rows.weights = reinterpret_cast<uint8_t *>(rows.weights) + 1, rows.weights_bytes = 0;
    });
    expect(ROUTECAP_OK, [](auto &) {});
    EXPECT_STATUS(ROUTECAP_OK, routecap_step_finalize(made, step, -1, nullptr));
    routecap_capturer_destroy(made);
}
