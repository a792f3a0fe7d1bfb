// A plan puts every row of a trainer's rank where the trainer's own functions put its token. The
// judges: layouts of slime, verl and SkyRL (golden/), and a model that makes the whole micro-batch
// row by row and cuts it up as lists.
#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>

#include <nlohmann/json.hpp>

#include "rig.h"

using rig::Status;

namespace {

struct Free {
    void operator()(routecap_plan *plan) const { routecap_plan_free(plan); }
    void operator()(routecap_routing *routing) const { routecap_routing_free(routing); }
};
using PlanPtr = std::unique_ptr<routecap_plan, Free>;
using RoutingPtr = std::unique_ptr<routecap_routing, Free>;

constexpr int64_t kPadding = -1;

// A configuration with arrays of its own.
struct Config : routecap_plan_config {
    std::vector<uint64_t> lengths_, needed_, padded_, starts_;
    std::vector<int32_t> map_;
    std::vector<uint32_t> experts_;

    Config() {
        EXPECT_STATUS(ROUTECAP_OK, routecap_plan_config_init(this, sizeof(routecap_plan_config)));
        layers = 1, k = 1, experts = 8, dtype = ROUTECAP_DTYPE_I64;
    }
    Config(const Config &) = delete;
    routecap_plan_config *point() {
        const auto at = [](const auto &v) { return v.empty() ? nullptr : v.data(); };
        samples = lengths_.size();
        lengths = at(lengths_), needed = at(needed_), padded_lengths = at(padded_);
        starts = at(starts_), layer_map = at(map_), layer_experts = at(experts_);
        return this;
    }
    bool by_layer() const { return order == ROUTECAP_ORDER_LAYER_MAJOR; }
    uint32_t experts_of(uint32_t l) const { return experts_.empty() ? experts : experts_[l]; }
    int32_t index_of(uint32_t l) const { return map_.empty() ? static_cast<int32_t>(l) : map_[l]; }
    uint64_t needed_of(size_t i) const {
        if (needed_.empty()) return lengths_[i] - (lengths_[i] > 0);
        return needed_[i] == ROUTECAP_ROWS_ALL ? lengths_[i] : needed_[i];
    }
};

PlanPtr make(Config &config) {
    routecap_plan *plan = nullptr;
    EXPECT_STATUS(ROUTECAP_OK, routecap_plan_create(config.point(), &plan));
    return PlanPtr(plan);
}

routecap_plan_shape shape_of(const PlanPtr &plan) {
    routecap_plan_shape shape{};
    shape.struct_size = sizeof shape;
    EXPECT_STATUS(ROUTECAP_OK, routecap_plan_describe(plan.get(), &shape));
    return shape;
}

std::vector<routecap_plan_range> ranges_of(const PlanPtr &plan) {
    uint64_t count = 0;
    EXPECT_STATUS(ROUTECAP_OK, routecap_plan_ranges(plan.get(), nullptr, 0, 0, &count));
    std::vector<routecap_plan_range> ranges(count);
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_plan_ranges(plan.get(), ranges.data(), sizeof ranges[0], count, &count));
    return ranges;
}

// ---- The model ------------------------------------------------------------------------------

// A row of the micro-batch: a token of a sample, or padding.
struct Row {
    size_t sample = 0;
    int64_t token = kPadding;
    uint64_t ordinal = 0;  // p where it is filled, otherwise its place in the whole
    int32_t row_class = ROUTECAP_PLAN_CLASS_PADDING;
};
using Rows = std::vector<Row>;

Rows part(const Rows &rows, size_t first, size_t count) {
    return {rows.begin() + static_cast<ptrdiff_t>(first),
            rows.begin() + static_cast<ptrdiff_t>(first + count)};
}

uint64_t round_up(uint64_t n, uint64_t to) { return to == 0 ? n : (n + to - 1) / to * to; }

// The rows of a rank, or nothing where they cannot be divided.
std::optional<Rows> model(const Config &c) {
    const bool packed = c.layout == ROUTECAP_PLAN_LAYOUT_PACKED;
    const uint64_t cp = std::max(c.context_size, 1u), tp = std::max(c.tensor_size, 1u);
    const bool sp = (c.flags & ROUTECAP_PLAN_SEQUENCE_PARALLEL) != 0;
    const bool zigzag = c.context == ROUTECAP_PLAN_CONTEXT_ZIGZAG;
    const bool allgather = c.context == ROUTECAP_PLAN_CONTEXT_ALLGATHER;
    const uint64_t divisor = cp * (sp ? tp : 1);
    const uint64_t align = c.align != 0          ? c.align
                           : allgather && packed ? 1
                                                 : divisor * (zigzag ? 2 : 1);
    uint64_t width = c.width, total = 0;
    std::vector<uint64_t> padded;
    for (uint64_t n : c.lengths_) padded.push_back(round_up(n, align));
    if (!c.padded_.empty()) padded = c.padded_;
    if (!packed) {
        if (width == 0 && !padded.empty()) width = *std::max_element(padded.begin(), padded.end());
        padded.assign(padded.size(), width);
    }
    for (uint64_t n : padded) total += n;
    if (packed && !padded.empty()) {
        const uint64_t of = c.align_total != 0 ? c.align_total : allgather ? divisor : 1;
        padded.back() += round_up(std::max(total, c.least_total), of) - total;
    }

    // The whole micro-batch, one list for each sequence.
    std::vector<Rows> sequences;
    uint64_t filled = 0, place = 0;
    for (size_t i = 0; i < padded.size(); i++) {
        const uint64_t start = !c.starts_.empty() ? c.starts_[i]
                               : c.layout == ROUTECAP_PLAN_LAYOUT_PADDED_LEFT
                                   ? width - c.lengths_[i]
                                   : 0;
        Rows &rows = sequences.emplace_back(padded[i]);
        for (uint64_t n = 0; n < padded[i]; n++, place++) {
            Row &row = rows[n];
            row.sample = i;
            if (n >= start && n < start + c.lengths_[i]) {
                row.token = static_cast<int64_t>(n - start);
                row.row_class = n - start < c.needed_of(i) ? ROUTECAP_PLAN_CLASS_VALID
                                                           : ROUTECAP_PLAN_CLASS_NOT_NEEDED;
            }
            row.ordinal = row.row_class == ROUTECAP_PLAN_CLASS_VALID ? place : filled++;
        }
    }
    const auto interval = [&](const Rows &rows) -> std::optional<Rows> {
        if (rows.size() % cp != 0) return std::nullopt;
        return part(rows, rows.size() / cp * c.context_rank, rows.size() / cp);
    };
    const auto chunks = [&](const Rows &rows) -> std::optional<Rows> {
        if (cp == 1 && !zigzag) return rows;
        if (!zigzag) return interval(rows);
        if (rows.size() % (2 * cp) != 0) return std::nullopt;
        const uint64_t chunk = rows.size() / (2 * cp);
        Rows own = part(rows, chunk * c.context_rank, chunk);
        const Rows second = part(rows, chunk * (2 * cp - 1 - c.context_rank), chunk);
        own.insert(own.end(), second.begin(), second.end());
        return own;
    };
    const auto slice = [&](const Rows &rows) -> std::optional<Rows> {
        if (!sp) return rows;
        if (rows.size() % tp != 0) return std::nullopt;
        return part(rows, rows.size() / tp * c.tensor_rank, rows.size() / tp);
    };

    if (packed) {
        Rows whole, own;
        for (const Rows &rows : sequences) whole.insert(whole.end(), rows.begin(), rows.end());
        if (zigzag || cp == 1) {
            for (const Rows &rows : sequences) {
                const auto chosen = chunks(rows);
                if (!chosen) return std::nullopt;
                own.insert(own.end(), chosen->begin(), chosen->end());
            }
        } else if (const auto chosen = interval(whole)) {
            own = *chosen;
        } else {
            return std::nullopt;
        }
        const uint64_t tail = round_up(own.size(), c.align_rank) - own.size();
        for (uint64_t n = 0; n < tail; n++)
            own.push_back({sequences.size(), kPadding, filled + c.context_rank * tail + n});
        return slice(own);
    }
    std::vector<Rows> own;
    for (const Rows &rows : sequences) {
        const auto chosen = chunks(rows);
        const auto sliced = chosen ? slice(*chosen) : std::nullopt;
        if (!sliced) return std::nullopt;
        own.push_back(*sliced);
    }
    Rows rows;
    if ((c.flags & ROUTECAP_PLAN_SEQUENCE_FIRST) != 0) {
        for (size_t n = 0; !own.empty() && n < own[0].size(); n++)
            for (const Rows &each : own) rows.push_back(each[n]);
    } else {
        for (const Rows &each : own) rows.insert(rows.end(), each.begin(), each.end());
    }
    return rows;
}

// The formula of the header, as it stands there.
int64_t balanced(const Config &c, uint64_t p, uint32_t l, uint32_t column) {
    const uint64_t ranks = std::max(c.expert_parallel, 1u), experts = c.experts_of(l);
    const uint64_t a = p * c.k + column + static_cast<uint64_t>(c.index_of(l)) * ranks * c.k;
    if (experts % ranks != 0) return static_cast<int64_t>(a % experts);
    return static_cast<int64_t>(a % ranks * (experts / ranks) + a / ranks % (experts / ranks));
}

// ---- Samples --------------------------------------------------------------------------------

// What the router of a decoder layer chose for a token, or missing.
using Truth = std::function<bool(size_t sample, uint64_t token, int32_t layer)>;

int64_t routed_id(size_t sample, uint64_t token, int32_t layer, uint32_t column, uint32_t experts) {
    const uint64_t seed = sample * 977 + token * 31 + static_cast<uint64_t>(layer) * 7;
    return static_cast<int64_t>((seed + column) % experts);
}

// A routing of rows [first, end) of a sample, in all `layers` layers of a decoder. Rows that lack
// every cell, and begin a run of such, are left out.
RoutingPtr routing_of(const Config &c, size_t sample, uint64_t first, uint64_t end,
                      const std::vector<int32_t> &map, const std::vector<uint32_t> &experts,
                      const Truth &there, uint64_t segment_rows) {
    const size_t layers = map.size(), validity_bytes = (layers + 7) / 8;
    const bool narrow = *std::max_element(experts.begin(), experts.end()) <= 256;
    const size_t id_bytes = narrow ? 1 : 2, row_bytes = layers * c.k * id_bytes;
    std::vector<uint8_t> ids((end - first) * row_bytes), validity((end - first) * validity_bytes);
    for (uint64_t t = first; t < end; t++)
        for (size_t l = 0; l < layers; l++) {
            if (!there(sample, t, map[l])) continue;
            validity[(t - first) * validity_bytes + l / 8] |= static_cast<uint8_t>(1 << l % 8);
            for (uint32_t column = 0; column < c.k; column++) {
                const int64_t id = routed_id(sample, t, map[l], column, experts[l]);
                std::memcpy(&ids[(t - first) * row_bytes + (l * c.k + column) * id_bytes], &id,
                            id_bytes);
            }
        }
    std::vector<routecap_segment> segments;
    for (uint64_t t = first; t < end; t += segment_rows) {
        const uint64_t rows = std::min(segment_rows, end - t);
        bool whole = true, any = false;
        for (uint64_t r = t; r < t + rows; r++)
            for (size_t l = 0; l < layers; l++) {
                const bool valid = there(sample, r, map[l]);
                whole &= valid, any |= valid;
            }
        if (!any) continue;
        routecap_segment s{};
        s.first = t, s.rows = rows;
        s.ids = &ids[(t - first) * row_bytes];
        s.validity = whole ? nullptr : &validity[(t - first) * validity_bytes];
        segments.push_back(s);
    }
    routecap_view view{};
    view.struct_size = sizeof view;
    view.dtype = narrow ? ROUTECAP_DTYPE_U8 : ROUTECAP_DTYPE_I16;
    view.layers = static_cast<uint32_t>(layers), view.k = c.k;
    view.first = first, view.rows = end - first;
    view.layer_map = map.data(), view.layer_experts = experts.data();
    view.segments = segments.data(), view.segment_size = sizeof(routecap_segment);
    view.segment_count = segments.size();
    routecap_routing *routing = nullptr;
    const int32_t status = routecap_routing_import(&view, 0, nullptr, nullptr, &routing);
    EXPECT_GE(status, 0) << routecap_last_error();
    return RoutingPtr(routing);
}

// ---- Results --------------------------------------------------------------------------------

size_t bytes_of(int32_t dtype) {
    switch (dtype) {
        case ROUTECAP_DTYPE_U8: return 1;
        case ROUTECAP_DTYPE_I16:
        case ROUTECAP_DTYPE_U16: return 2;
        case ROUTECAP_DTYPE_I32:
        case ROUTECAP_DTYPE_U32: return 4;
        default: return 8;
    }
}

// Memory between canaries, filled with a byte before it is written.
class Guarded {
public:
    Guarded(size_t bytes, uint8_t before) : memory_(bytes + 2 * kCanary, 0xc5) {
        std::memset(data(), before, bytes);
    }
    uint8_t *data() { return memory_.data() + kCanary; }
    size_t size() const { return memory_.size() - 2 * kCanary; }
    bool intact() const {
        return std::all_of(memory_.begin(), memory_.begin() + kCanary,
                           [](uint8_t b) { return b == 0xc5; }) &&
               std::all_of(memory_.end() - kCanary, memory_.end(),
                           [](uint8_t b) { return b == 0xc5; });
    }
    std::vector<uint8_t> contents() const {
        return {memory_.begin() + kCanary, memory_.end() - kCanary};
    }

private:
    static constexpr ptrdiff_t kCanary = 64;
    std::vector<uint8_t> memory_;
};

struct Result {
    std::vector<uint8_t> ids, classes;
    bool operator==(const Result &) const = default;
};

// Every byte is written, and none beside: memory that held other bytes before ends up the same.
template <class Call>
Result written(const routecap_plan_shape &shape, int32_t expected, Call call) {
    std::optional<Result> first;
    for (const uint8_t before : {0x00, 0xff, 0x5a}) {
        Guarded ids(shape.ids_bytes, before), classes(shape.classes_bytes, before);
        EXPECT_STATUS(expected, call(ids, classes));
        EXPECT_TRUE(ids.intact() && classes.intact());
        const Result result{ids.contents(), classes.contents()};
        if (first)
            EXPECT_TRUE(*first == result);
        else
            first = result;
    }
    return *first;
}

int64_t id_at(const Config &c, const Result &result, uint64_t rows, uint64_t row, uint32_t layer,
              uint32_t column) {
    const size_t bytes = bytes_of(c.dtype);
    const uint64_t cell = c.by_layer() ? layer * rows + row : row * c.layers + layer;
    uint64_t id = 0;
    std::memcpy(&id, &result.ids[(cell * c.k + column) * bytes], bytes);
    return static_cast<int64_t>(id);
}

uint8_t class_at(const Config &c, const Result &result, uint64_t rows, uint64_t row,
                 uint32_t layer) {
    return result.classes[c.by_layer() ? layer * rows + row : row * c.layers + layer];
}

int64_t as_written(int64_t value, size_t bytes) {
    return bytes == 8 ? value
                      : static_cast<int64_t>(static_cast<uint64_t>(value) &
                                             ((uint64_t{1} << 8 * bytes) - 1));
}

std::vector<uint64_t> aligned(uint64_t bytes) { return std::vector<uint64_t>(bytes / 8 + 1); }

// ---- Random plans ---------------------------------------------------------------------------

class Chance {
public:
    explicit Chance(uint32_t seed) : engine_(seed) {}
    uint64_t below(uint64_t n) {
        return std::uniform_int_distribution<uint64_t>(0, n - 1)(engine_);
    }
    bool once_in(uint64_t n) { return below(n) == 0; }
    template <class T>
    T one_of(std::initializer_list<T> all) {
        return all.begin()[below(all.size())];
    }

private:
    std::mt19937_64 engine_;
};

// Of all ranks of one micro-batch; the ranks are to be set.
void choose(Config &c, Chance &chance) {
    c.layout = chance.one_of<int32_t>({0, 0, 1, 2});
    const bool packed = c.layout == ROUTECAP_PLAN_LAYOUT_PACKED;
    c.context = chance.one_of<int32_t>({0, 1, 1, 2, 3});
    c.context_size = c.context == 0 ? 1 : chance.one_of({1u, 2u, 3u, 4u});
    c.tensor_size = chance.one_of({1u, 2u, 3u});
    if (chance.once_in(2)) c.flags |= ROUTECAP_PLAN_SEQUENCE_PARALLEL;
    if (!packed && chance.once_in(2)) c.flags |= ROUTECAP_PLAN_SEQUENCE_FIRST;
    for (uint64_t n = chance.below(5); n > 0; n--) c.lengths_.push_back(chance.below(30));
    if (chance.once_in(2))
        for (const uint64_t n : c.lengths_)
            c.needed_.push_back(chance.once_in(4) ? ROUTECAP_ROWS_ALL : chance.below(n + 1));
    if (chance.once_in(4)) c.align = chance.one_of({1, 2, 8, 24});
    if (packed) {
        if (!c.lengths_.empty() && chance.once_in(4)) c.align_total = chance.one_of({6, 16, 48});
        if (chance.once_in(4)) c.align_rank = chance.one_of({2, 6, 10});
        if (!c.lengths_.empty() && chance.once_in(6)) c.least_total = chance.below(100);
        if (chance.once_in(8))
            for (const uint64_t n : c.lengths_) c.padded_.push_back(round_up(n, 24));
    } else if (!c.lengths_.empty() && chance.once_in(3)) {
        c.width = 24 * chance.one_of({2u, 3u});
        for (size_t i = 0; i < c.lengths_.size(); i++)
            c.starts_.push_back(chance.below(c.width - 29));
    }
    c.k = chance.one_of({1u, 2u, 3u, 8u});
    c.layers = chance.one_of({1u, 2u, 5u, 9u});
    int32_t index = 0;
    for (uint32_t l = 0; l < c.layers; l++)
        c.map_.push_back(index += chance.one_of<int32_t>({1, 1, 3}));
    c.experts = chance.one_of({8u, 24u, 256u, 300u});
    if (chance.once_in(3))
        for (uint32_t l = 0; l < c.layers; l++)
            c.experts_.push_back(chance.one_of({8u, 12u, 256u}));
    c.expert_parallel = chance.one_of({0u, 1u, 4u, 5u});
    const bool wide = c.experts > 256 && c.experts_.empty();
    c.dtype =
        chance.one_of<int32_t>({ROUTECAP_DTYPE_I16, ROUTECAP_DTYPE_I32, ROUTECAP_DTYPE_I64,
                                wide ? ROUTECAP_DTYPE_U16 : ROUTECAP_DTYPE_U8, ROUTECAP_DTYPE_U32});
    c.order = chance.one_of<int32_t>({ROUTECAP_ORDER_ROW_MAJOR, ROUTECAP_ORDER_LAYER_MAJOR});
    c.fill = chance.one_of<int32_t>({ROUTECAP_PLAN_FILL_BALANCED, ROUTECAP_PLAN_FILL_VALUE});
    c.fill_value = chance.one_of<int64_t>({0, -1, 7});
    c.lost = chance.one_of<int32_t>({ROUTECAP_PLAN_LOST_MARK, ROUTECAP_PLAN_LOST_BALANCED});
}

// Checks one rank against the model and returns its rows.
Rows check_rank(Config &c, const std::vector<routecap_plan_source> &sources, const Truth &there) {
    const auto expected = model(c);
    routecap_plan *made = nullptr;
    const int32_t status = routecap_plan_create(c.point(), &made);
    const PlanPtr plan(made);
    if (!expected) {
        EXPECT_EQ(Status{ROUTECAP_ERR_ARGUMENT}, Status{status});
        return {};
    }
    EXPECT_EQ(Status{ROUTECAP_OK}, Status{status}) << routecap_last_error();
    if (status != ROUTECAP_OK) return {};
    const Rows &rows = *expected;
    const routecap_plan_shape shape = shape_of(plan);
    EXPECT_EQ(rows.size(), shape.rows);

    // The ranges: every needed row once, and no other.
    std::map<std::pair<size_t, uint64_t>, int> fetched;
    for (const routecap_plan_range &range : ranges_of(plan))
        for (uint64_t r = 0; r < range.rows; r++) fetched[{range.sample, range.first + r}]++;
    uint64_t needed = 0;
    for (const Row &row : rows) {
        if (row.row_class != ROUTECAP_PLAN_CLASS_VALID) continue;
        needed++;
        const auto key = std::pair(row.sample, static_cast<uint64_t>(row.token));
        EXPECT_EQ(1, fetched[key]);
    }
    EXPECT_EQ(needed, fetched.size());
    EXPECT_EQ(needed, shape.rows_needed);

    // The ids.
    uint64_t lost = 0;
    for (const Row &row : rows)
        for (uint32_t l = 0; row.row_class == ROUTECAP_PLAN_CLASS_VALID && l < c.layers; l++)
            lost += !there(row.sample, static_cast<uint64_t>(row.token), c.index_of(l));
    const int32_t incomplete = lost > 0 ? ROUTECAP_INCOMPLETE : ROUTECAP_OK;
    routecap_plan_report report{};
    report.struct_size = sizeof report;
    const Result result = written(shape, incomplete, [&](Guarded &ids, Guarded &classes) {
        return routecap_plan_gather(plan.get(), sources.data(), sizeof sources[0], sources.size(),
                                    ids.data(), ids.size(), classes.data(), classes.size(),
                                    &report);
    });
    EXPECT_EQ(lost, report.cells_lost);
    EXPECT_EQ(rows.size(), report.rows_valid + report.rows_partial + report.rows_lost +
                               report.rows_not_needed + report.rows_padding);
    const size_t bytes = bytes_of(c.dtype);
    for (uint64_t r = 0; r < rows.size(); r++)
        for (uint32_t l = 0; l < c.layers; l++) {
            const Row &row = rows[r];
            const bool valid = row.row_class == ROUTECAP_PLAN_CLASS_VALID;
            const bool is_lost =
                valid && !there(row.sample, static_cast<uint64_t>(row.token), c.index_of(l));
            EXPECT_EQ(is_lost ? ROUTECAP_PLAN_CLASS_LOST : row.row_class,
                      class_at(c, result, rows.size(), r, l));
            const bool value = is_lost ? c.lost == ROUTECAP_PLAN_LOST_MARK
                                       : !valid && c.fill == ROUTECAP_PLAN_FILL_VALUE;
            for (uint32_t column = 0; column < c.k; column++) {
                const int64_t id = value ? as_written(is_lost ? c.lost_value : c.fill_value, bytes)
                                   : valid && !is_lost
                                       ? routed_id(row.sample, static_cast<uint64_t>(row.token),
                                                   c.index_of(l), column, c.experts_of(l))
                                       : balanced(c, row.ordinal, l, column);
                if (id != id_at(c, result, rows.size(), r, l, column))
                    return ADD_FAILURE() << "row " << r << ", layer " << l << ", column " << column
                                         << ": " << id_at(c, result, rows.size(), r, l, column)
                                         << " instead of " << id,
                           rows;
            }
        }

    // The same by way of a device.
    std::vector<uint64_t> packed = aligned(shape.packed_bytes);
    EXPECT_STATUS(incomplete,
                  routecap_plan_pack(plan.get(), sources.data(), sizeof sources[0], sources.size(),
                                     packed.data(), packed.size() * 8, &report));
    const Result unpacked = written(shape, ROUTECAP_OK, [&](Guarded &ids, Guarded &classes) {
        routecap_plan_target target{};
        target.struct_size = sizeof target;
        target.backend = ROUTECAP_BACKEND_HOST;
        target.dst = ids.data(), target.dst_bytes = ids.size();
        target.classes = classes.data(), target.classes_bytes = classes.size();
        return routecap_plan_unpack(plan.get(), packed.data(), packed.size() * 8, &target, nullptr);
    });
    EXPECT_TRUE(result == unpacked);

    // Token numbers take the same way.
    std::vector<std::vector<int32_t>> tokens;
    std::vector<const void *> values;
    for (size_t i = 0; i < c.lengths_.size(); i++) {
        tokens.emplace_back(c.lengths_[i] + 1);
        std::iota(tokens[i].begin(), tokens[i].end(), static_cast<int32_t>(1000 * i));
    }
    for (const auto &each : tokens) values.push_back(each.data());
    std::vector<int32_t> sent(rows.size() + 1, 77);
    const int32_t none = -5;
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_plan_gather_values(plan.get(), values.data(), sizeof none, &none,
                                              sent.data(), rows.size() * sizeof none));
    for (size_t r = 0; r < rows.size(); r++)
        EXPECT_EQ(rows[r].token == kPadding ? none
                                            : static_cast<int32_t>(1000 * rows[r].sample) +
                                                  static_cast<int32_t>(rows[r].token),
                  sent[r]);
    EXPECT_EQ(77, sent[rows.size()]);
    return rows;
}

// ---- Golden files and ranks ------------------------------------------------------------------

// A file of golden/: where it was when this was compiled, or on another machine in the project's
// root.
nlohmann::json golden(const std::string &name) {
    for (const std::string folder : {ROUTECAP_GOLDEN_PLANS, "tests/plan/golden"}) {
        std::ifstream file(folder + "/" + name);
        if (file) return nlohmann::json::parse(file);
    }
    ADD_FAILURE() << name << " is not there: run this in the project's root";
    return nlohmann::json::array();
}

// The layout of all ranks of a golden case.
void lay_out(Config &c, const nlohmann::json &golden) {
    const std::map<std::string, int32_t> layouts = {
        {"packed", ROUTECAP_PLAN_LAYOUT_PACKED},
        {"padded_right", ROUTECAP_PLAN_LAYOUT_PADDED_RIGHT}};
    const std::map<std::string, int32_t> contexts = {
        {"none", ROUTECAP_PLAN_CONTEXT_NONE},
        {"zigzag", ROUTECAP_PLAN_CONTEXT_ZIGZAG},
        {"contiguous", ROUTECAP_PLAN_CONTEXT_CONTIGUOUS},
        {"allgather", ROUTECAP_PLAN_CONTEXT_ALLGATHER}};
    c.layout = layouts.at(golden["layout"]), c.context = contexts.at(golden["context"]);
    c.context_size = golden["context_size"], c.tensor_size = golden["tensor_size"];
    if (golden["sequence_parallel"]) c.flags |= ROUTECAP_PLAN_SEQUENCE_PARALLEL;
    if (golden.value("sequence_first", false)) c.flags |= ROUTECAP_PLAN_SEQUENCE_FIRST;
    c.lengths_ = golden["lengths"].get<std::vector<uint64_t>>();
    c.align = golden.value("align", 0), c.align_total = golden.value("align_total", 0);
    c.align_rank = golden.value("align_rank", 0), c.width = golden.value("width", 0);
    c.least_total = golden.value("least_total", 0);
}

// Visits each rank that has rows of its own, context-parallel rank by rank.
template <class Visit>
void each_rank(Config &c, Visit visit) {
    const uint32_t tensor_ranks =
        (c.flags & ROUTECAP_PLAN_SEQUENCE_PARALLEL) != 0 ? c.tensor_size : 1;
    for (c.context_rank = 0; c.context_rank < c.context_size; c.context_rank++)
        for (c.tensor_rank = 0; c.tensor_rank < tensor_ranks; c.tensor_rank++) visit();
}

// A routing for each sample: of S tokens all S-1 rows.
std::vector<RoutingPtr> whole_routings(const Config &c, const std::vector<int32_t> &map,
                                       const Truth &there) {
    const std::vector<uint32_t> experts(map.size(), c.experts);
    std::vector<RoutingPtr> routings;
    for (size_t i = 0; i < c.lengths_.size(); i++)
        routings.push_back(routing_of(c, i, 0, c.lengths_[i] - 1, map, experts, there, 1000));
    return routings;
}

std::vector<routecap_plan_source> sources_of(const std::vector<RoutingPtr> &routings) {
    std::vector<routecap_plan_source> sources;
    for (size_t i = 0; i < routings.size(); i++) sources.push_back({i, routings[i].get()});
    return sources;
}

// ---- Tests ----------------------------------------------------------------------------------

// slime, verl, SkyRL and Megatron say for each row of each rank which token it is.
TEST(Plan, puts_each_token_where_trainers_put_it) {
    const auto cases = golden("layouts.json");
    ASSERT_GT(cases.size(), 50u);
    for (const auto &golden : cases) {
        SCOPED_TRACE(golden["by"].get<std::string>() + " " + golden["context"].get<std::string>());
        Config c;
        lay_out(c, golden);
        c.experts = 256, c.k = 2;
        std::vector<uint64_t> first{0};
        for (const uint64_t n : c.lengths_) first.push_back(first.back() + n);
        const Truth all = [](size_t, uint64_t, int32_t) { return true; };
        const auto routings = whole_routings(c, {0}, all);
        const auto sources = sources_of(routings);
        auto expected = golden["ranks"].begin();
        each_rank(c, [&] {
            const auto rows = (expected++)->get<std::vector<int64_t>>();
            const PlanPtr plan = make(c);
            const routecap_plan_shape shape = shape_of(plan);
            ASSERT_EQ(rows.size(), shape.rows);
            Result result{std::vector<uint8_t>(shape.ids_bytes),
                          std::vector<uint8_t>(shape.classes_bytes)};
            ASSERT_STATUS(ROUTECAP_OK, routecap_plan_gather(
                                           plan.get(), sources.data(), sizeof sources[0],
                                           sources.size(), result.ids.data(), result.ids.size(),
                                           result.classes.data(), result.classes.size(), nullptr));
            for (size_t r = 0; r < rows.size(); r++) {
                const bool token = rows[r] >= 0;
                ASSERT_EQ(token, result.classes[r] == ROUTECAP_PLAN_CLASS_VALID) << "row " << r;
                if (!token) continue;
                const auto number = static_cast<uint64_t>(rows[r]);
                const auto sample = static_cast<size_t>(
                    std::upper_bound(first.begin(), first.end(), number) - first.begin() - 1);
                for (uint32_t column = 0; column < c.k; column++)
                    ASSERT_EQ(routed_id(sample, number - first[sample], 0, column, c.experts),
                              id_at(c, result, rows.size(), r, 0, column));
            }
        });
        EXPECT_EQ(golden["ranks"].end(), expected);
    }
}

// The rows of a golden sample, with weights.
RoutingPtr weighted_routing(const Config &c, const nlohmann::json &golden, size_t sample) {
    const auto validity = golden["valid"][sample].get<std::vector<uint8_t>>(),
               weighted = golden["weighted"][sample].get<std::vector<uint8_t>>();
    std::vector<uint8_t> ids;
    std::vector<float> weights;
    for (size_t t = 0; t < validity.size(); t++)
        for (int32_t layer = 0; layer < 5; layer++)
            for (uint32_t column = 0; column < c.k; column++) {
                const int64_t id = routed_id(sample, t, layer, column, c.experts);
                ids.push_back(static_cast<uint8_t>(id));
                weights.push_back(static_cast<float>(1000 * sample + 100 * t +
                                                     10 * static_cast<size_t>(layer) + column + 1));
            }
    routecap_segment segment{};
    segment.rows = validity.size();
    segment.ids = ids.data(), segment.validity = validity.data();
    segment.weights = weights.data(), segment.weights_validity = weighted.data();
    routecap_view view{};
    view.struct_size = sizeof view;
    view.dtype = ROUTECAP_DTYPE_U8, view.weights_dtype = ROUTECAP_DTYPE_F32;
    view.layers = 5, view.k = c.k, view.experts = c.experts, view.rows = validity.size();
    view.segments = &segment, view.segment_size = sizeof segment;
    view.segment_count = validity.empty() ? 0 : 1;
    routecap_routing *routing = nullptr;
    EXPECT_GE(routecap_routing_import(&view, 0, nullptr, nullptr, &routing), 0)
        << routecap_last_error();
    return RoutingPtr(routing);
}

// What small plans with holes gather, cell by cell, which all languages read.
TEST(Plan, gathers_what_the_golden_cells_are) {
    const auto cases = golden("gathers.json");
    ASSERT_GT(cases.size(), 5u);
    for (const auto &golden : cases) {
        SCOPED_TRACE(golden.dump().substr(0, 200));
        Config c;
        lay_out(c, golden);
        c.needed_ = golden["needed"].get<std::vector<uint64_t>>();
        c.map_ = golden["layers"].get<std::vector<int32_t>>();
        c.layers = static_cast<uint32_t>(c.map_.size());
        c.k = golden["k"], c.experts = golden["experts"];
        c.expert_parallel = golden["expert_parallel"];
        c.order = golden["order"] == "layer_major" ? ROUTECAP_ORDER_LAYER_MAJOR
                                                   : ROUTECAP_ORDER_ROW_MAJOR;
        if (!golden["fill"].is_null())
            c.fill = ROUTECAP_PLAN_FILL_VALUE, c.fill_value = golden["fill"];
        c.lost_value = golden["lost"];
        const Truth there = [&](size_t sample, uint64_t token, int32_t layer) {
            return (golden["valid"][sample][token].get<int>() >> layer & 1) != 0;
        };
        const auto routings = whole_routings(c, {0, 1, 2, 3, 4}, there);
        const auto sources = sources_of(routings);
        std::vector<RoutingPtr> weighted;
        for (size_t i = 0; i < c.lengths_.size(); i++)
            weighted.push_back(weighted_routing(c, golden, i));
        const auto weighted_sources = sources_of(weighted);
        auto next = golden["ranks"].begin();
        each_rank(c, [&] {
            const auto &expected = *next++;
            const PlanPtr plan = make(c);
            const routecap_plan_shape shape = shape_of(plan);
            std::vector<int64_t> ids(shape.ids_bytes / 8);
            std::vector<uint8_t> classes(shape.classes_bytes);
            routecap_plan_report report{};
            report.struct_size = sizeof report;
            const bool lost = expected["cells_lost"] != 0;
            ASSERT_STATUS(lost ? ROUTECAP_INCOMPLETE : ROUTECAP_OK,
                          routecap_plan_gather(plan.get(), sources.data(), sizeof sources[0],
                                               sources.size(), ids.data(), shape.ids_bytes,
                                               classes.data(), classes.size(), &report));
            EXPECT_EQ(expected["ids"].get<std::vector<int64_t>>(), ids);
            EXPECT_EQ(expected["classes"].get<std::vector<uint8_t>>(), classes);
            EXPECT_EQ(expected["cells_lost"].get<uint64_t>(), report.cells_lost);
            std::vector<float> weights(ids.size(), 99);
            uint64_t missing = 0;
            ASSERT_STATUS(expected["cells_unweighted"] != 0 ? ROUTECAP_INCOMPLETE : ROUTECAP_OK,
                          routecap_plan_gather_weights(
                              plan.get(), weighted_sources.data(), sizeof weighted_sources[0],
                              weighted_sources.size(), ROUTECAP_DTYPE_F32, -1, weights.data(),
                              weights.size() * sizeof weights[0], &missing));
            EXPECT_EQ(expected["weights"].get<std::vector<float>>(), weights);
            EXPECT_EQ(expected["cells_unweighted"].get<uint64_t>(), missing);
        });
        EXPECT_EQ(golden["ranks"].end(), next);
    }
}

// Each rank agrees with the model, and the union of what all ranks have is the input: scattered
// back and merged, every needed cell comes out as it went in.
TEST(Plan, agrees_with_the_model_and_all_ranks_together_have_the_input) {
    const int rounds = getenv("ROUTECAP_PLAN_ROUNDS") ? atoi(getenv("ROUTECAP_PLAN_ROUNDS")) : 300;
    int divided = 0;
    for (int round = 0; round < rounds && !HasFailure(); round++) {
        SCOPED_TRACE("round " + std::to_string(round));
        Chance chance(static_cast<uint32_t>(round));
        Config c;
        choose(c, chance);
        // The decoder may have more MoE layers than this stage.
        std::vector<int32_t> map;
        std::vector<uint32_t> experts;
        if (chance.once_in(2)) map.push_back(0), experts.push_back(c.experts);
        for (uint32_t l = 0; l < c.layers; l++)
            map.push_back(c.index_of(l)), experts.push_back(c.experts_of(l));
        if (chance.once_in(2)) map.push_back(map.back() + 1), experts.push_back(c.k);
        const uint64_t holes = chance.one_of<uint64_t>({0, 0, 3, 20});
        const Truth there = [&](size_t i, uint64_t t, int32_t l) {
            const uint64_t n = i * 7919 + t * 104729 + static_cast<uint64_t>(l) * 1299709;
            return holes == 0 || (n % 9973 % holes != 0 && (i + t) % (holes + 4) != 1);
        };
        std::vector<RoutingPtr> routings;
        std::vector<routecap_plan_source> sources;
        for (size_t i = 0; i < c.lengths_.size(); i++)
            for (uint64_t from = 0, end = c.lengths_[i]; from < end;) {
                const uint64_t to = chance.once_in(2) ? end : from + 1 + chance.below(end - from);
                routings.push_back(
                    routing_of(c, i, from, to, map, experts, there, 1 + chance.below(40)));
                sources.push_back({i, routings.back().get()});
                from = to;
            }
        std::shuffle(sources.begin(), sources.end(), std::mt19937(7));

        std::vector<std::vector<RoutingPtr>> scattered(c.lengths_.size());
        std::map<std::pair<size_t, int64_t>, int> seen;
        bool divides = true;
        each_rank(c, [&] {
            divides &= model(c).has_value();
            for (const Row &row : check_rank(c, sources, there))
                if (row.token != kPadding) seen[{row.sample, row.token}]++;
            if (!divides || HasFailure()) return;
            const PlanPtr plan = make(c);
            const routecap_plan_shape shape = shape_of(plan);
            Result result{std::vector<uint8_t>(shape.ids_bytes),
                          std::vector<uint8_t>(shape.classes_bytes)};
            routecap_plan_report report{};
            report.struct_size = sizeof report;
            EXPECT_GE(routecap_plan_gather(plan.get(), sources.data(), sizeof sources[0],
                                           sources.size(), result.ids.data(), result.ids.size(),
                                           result.classes.data(), result.classes.size(), &report),
                      0);
            std::vector<routecap_routing *> back(c.lengths_.size());
            EXPECT_STATUS(report.cells_lost > 0 ? ROUTECAP_INCOMPLETE : ROUTECAP_OK,
                          routecap_plan_scatter(plan.get(), result.ids.data(), result.ids.size(),
                                                result.classes.data(), result.classes.size(),
                                                back.data(), back.size()));
            for (size_t i = 0; i < back.size(); i++) scattered[i].emplace_back(back[i]);
        });
        if (!divides) continue;
        divided++;
        for (size_t i = 0; i < c.lengths_.size(); i++) {
            for (uint64_t t = 0; t < c.lengths_[i]; t++) {
                const auto key = std::pair(i, static_cast<int64_t>(t));
                EXPECT_EQ(1, seen[key]) << "token " << t << " of sample " << i;
            }
            std::vector<const routecap_routing *> all;
            for (const RoutingPtr &r : scattered[i]) all.push_back(r.get());
            routecap_routing *united = nullptr;
            ASSERT_GE(routecap_routing_merge(all.data(), all.size(), 0, &united), 0);
            const RoutingPtr whole(united);
            std::vector<int64_t> ids(c.lengths_[i] * c.layers * c.k);
            std::vector<uint8_t> mask(c.lengths_[i] * c.layers);
            routecap_copy_options options;
            ASSERT_STATUS(ROUTECAP_OK, routecap_copy_options_init(&options, sizeof options));
            options.dtype = ROUTECAP_DTYPE_I64;
            ASSERT_GE(routecap_routing_copy_to(whole.get(), &options, ids.data(), ids.size() * 8,
                                               mask.data(), mask.size(), nullptr),
                      0);
            for (uint64_t t = 0; t < c.lengths_[i]; t++)
                for (uint32_t l = 0; l < c.layers; l++) {
                    const bool valid = t < c.needed_of(i) && there(i, t, c.index_of(l));
                    ASSERT_EQ(valid, mask[t * c.layers + l] == 1);
                    for (uint32_t column = 0; column < c.k; column++)
                        ASSERT_EQ(
                            valid ? routed_id(i, t, c.index_of(l), column, c.experts_of(l)) : -1,
                            ids[(t * c.layers + l) * c.k + column]);
                }
        }
    }
    EXPECT_GT(divided, rounds / 4);
}

// Results of 8 MiB and more are written past the processor's caches, in whole vectors where the
// memory and k allow it.
TEST(Plan, has_the_same_ids_in_results_larger_than_caches) {
    struct Large {
        int32_t dtype, order;
        uint32_t k, experts;
        std::vector<int32_t> map;
        uint64_t offset;  // of the memory, in ids
    };
    const int32_t by_row = ROUTECAP_ORDER_ROW_MAJOR, by_layer = ROUTECAP_ORDER_LAYER_MAJOR;
    const std::vector<int32_t> all{0, 1, 2, 3}, some{1, 2};
    for (const Large &large : {Large{ROUTECAP_DTYPE_I64, by_layer, 8, 200, all, 0},
                               Large{ROUTECAP_DTYPE_I64, by_row, 8, 300, some, 1},
                               Large{ROUTECAP_DTYPE_I64, by_layer, 3, 300, some, 0},
                               Large{ROUTECAP_DTYPE_I32, by_layer, 8, 300, some, 3},
                               Large{ROUTECAP_DTYPE_I32, by_row, 3, 200, all, 1},
                               Large{ROUTECAP_DTYPE_I16, by_layer, 8, 200, all, 5},
                               Large{ROUTECAP_DTYPE_I16, by_row, 8, 300, all, 1},
                               Large{ROUTECAP_DTYPE_U8, by_row, 8, 200, all, 1},
                               Large{ROUTECAP_DTYPE_U8, by_layer, 8, 200, all, 7}}) {
        SCOPED_TRACE(testing::Message()
                     << "dtype " << large.dtype << " order " << large.order << " k " << large.k);
        Config c;
        c.dtype = large.dtype, c.order = large.order, c.k = large.k, c.experts = large.experts;
        c.map_ = large.map, c.layers = static_cast<uint32_t>(c.map_.size());
        const size_t bytes = bytes_of(c.dtype);
        const uint64_t rows = (8 << 20) / (c.layers * c.k * bytes) + 5;
        c.lengths_ = {rows};
        c.needed_ = {ROUTECAP_ROWS_ALL};
        const Truth there = [](size_t, uint64_t, int32_t) { return true; };
        const RoutingPtr routing =
            routing_of(c, 0, 0, rows, all, std::vector<uint32_t>(4, c.experts), there, rows);
        const std::vector<routecap_plan_source> sources{{0, routing.get()}};
        const PlanPtr plan = make(c);
        const routecap_plan_shape shape = shape_of(plan);
        Guarded memory(shape.ids_bytes + large.offset * bytes, 0x5a);
        ASSERT_STATUS(ROUTECAP_OK,
                      routecap_plan_gather(plan.get(), sources.data(), sizeof sources[0], 1,
                                           memory.data() + large.offset * bytes, shape.ids_bytes,
                                           nullptr, 0, nullptr));
        EXPECT_TRUE(memory.intact());
        std::vector<uint8_t> ids = memory.contents();
        ids.erase(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(large.offset * bytes));
        const Result result{std::move(ids), {}};
        uint64_t wrong = 0;
        for (uint64_t r = 0; r < rows; r++)
            for (uint32_t l = 0; l < c.layers; l++)
                for (uint32_t column = 0; column < c.k; column++)
                    wrong += routed_id(0, r, c.index_of(l), column, c.experts) !=
                             id_at(c, result, rows, r, l, column);
        EXPECT_EQ(0u, wrong);
    }
}

// 66 padding rows on one expert of one rank cost slime a run, and 128 ranks a run of theirs. Here
// expert-parallel ranks are within one row of each other.
TEST(Plan, loads_experts_and_ranks_evenly_with_padding) {
    Config c;
    c.lengths_ = {1}, c.align = 67;
    c.layers = 5, c.k = 6, c.experts = 128, c.expert_parallel = 8;
    const PlanPtr plan = make(c);
    std::vector<int64_t> ids(shape_of(plan).ids_bytes / 8);
    ASSERT_STATUS(ROUTECAP_OK, routecap_plan_gather(plan.get(), nullptr, 0, 0, ids.data(),
                                                    ids.size() * 8, nullptr, 0, nullptr));
    for (uint32_t l = 0; l < c.layers; l++) {
        std::map<int64_t, int> of_rank, of_expert;
        for (uint64_t r = 0; r < 67; r++) {
            std::set<int64_t> distinct;
            for (uint32_t column = 0; column < c.k; column++) {
                const int64_t id = ids[(r * c.layers + l) * c.k + column];
                of_rank[id / 16]++, of_expert[id]++, distinct.insert(id);
            }
            EXPECT_EQ(c.k, distinct.size());
        }
        const auto spread = [](const auto &counts, size_t n) {
            EXPECT_EQ(n, counts.size());
            const auto by_count = [](const auto &a, const auto &b) { return a.second < b.second; };
            const auto [low, high] = std::minmax_element(counts.begin(), counts.end(), by_count);
            return high->second - low->second;
        };
        EXPECT_LE(spread(of_rank, 8), 1);
        EXPECT_LE(spread(of_expert, 128), 1);
    }
}

// A routing that was not cut with its response once failed deep inside a trainer, and one row too
// early or too late fails nowhere.
TEST(Plan, refuses_sources_that_are_not_of_its_samples) {
    Config c;
    c.lengths_ = {4, 6}, c.layers = 2, c.k = 2, c.map_ = {1, 2};
    const PlanPtr plan = make(c);
    const routecap_plan_shape shape = shape_of(plan);
    const Truth all = [](size_t, uint64_t, int32_t) { return true; };
    std::vector<int64_t> ids(shape.ids_bytes / 8, 4711);
    const auto gather = [&](std::vector<routecap_plan_source> sources) {
        const int32_t status =
            routecap_plan_gather(plan.get(), sources.data(), sizeof sources[0], sources.size(),
                                 ids.data(), ids.size() * 8, nullptr, 0, nullptr);
        EXPECT_EQ(status < 0, ids == std::vector<int64_t>(ids.size(), 4711));
        return status;
    };
    const RoutingPtr good = routing_of(c, 0, 0, 3, {1, 2}, {8, 8}, all, 9);
    const RoutingPtr full = routing_of(c, 0, 0, 4, {1, 2}, {8, 8}, all, 9);
    const RoutingPtr longer = routing_of(c, 0, 0, 5, {1, 2}, {8, 8}, all, 9);
    const RoutingPtr late = routing_of(c, 0, 2, 4, {1, 2}, {8, 8}, all, 9);
    const RoutingPtr other_layer = routing_of(c, 0, 0, 3, {0, 1}, {8, 8}, all, 9);
    const RoutingPtr other_experts = routing_of(c, 0, 0, 3, {1, 2}, {8, 9}, all, 9);
    Config three;
    three.k = 3;
    const RoutingPtr other_k = routing_of(three, 0, 0, 3, {1, 2}, {8, 8}, all, 9);
    EXPECT_STATUS(ROUTECAP_ERR_OUT_OF_RANGE, gather({{2, good.get()}}));
    EXPECT_STATUS(ROUTECAP_ERR_OUT_OF_RANGE, gather({{0, longer.get()}}));
    EXPECT_STATUS(ROUTECAP_ERR_OVERLAP, gather({{0, good.get()}, {0, late.get()}}));
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_LAYER, gather({{0, other_layer.get()}}));
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, gather({{0, other_experts.get()}}));
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, gather({{0, other_k.get()}}));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, gather({{0, nullptr}}));
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                  routecap_plan_gather(plan.get(), nullptr, 0, 0, ids.data(), ids.size() * 8 - 1,
                                       nullptr, 0, nullptr));
    std::vector<uint8_t> classes(shape.classes_bytes);
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                  routecap_plan_gather(plan.get(), nullptr, 0, 0, ids.data(), ids.size() * 8,
                                       classes.data(), classes.size() - 1, nullptr));
    EXPECT_STATUS(ROUTECAP_INCOMPLETE, gather({{0, full.get()}}));
}

TEST(Plan, writes_nothing_where_a_lost_cell_is_an_error_or_would_pass_for_an_expert) {
    Config c;
    c.lengths_ = {4}, c.lost = ROUTECAP_PLAN_LOST_ERROR;
    std::vector<int64_t> ids(4, 4711);
    const std::vector<int64_t> untouched = ids;
    routecap_plan_report report{};
    report.struct_size = sizeof report;
    EXPECT_STATUS(
        ROUTECAP_ERR_INCOMPLETE,
        routecap_plan_gather(make(c).get(), nullptr, 0, 0, ids.data(), 32, nullptr, 0, &report));
    EXPECT_EQ(3u, report.rows_lost);
    c.lost = ROUTECAP_PLAN_LOST_BALANCED;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_plan_gather(make(c).get(), nullptr, 0, 0,
                                                              ids.data(), 32, nullptr, 0, nullptr));
    c.lost = ROUTECAP_PLAN_LOST_MARK, c.lost_value = 7;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_plan_gather(make(c).get(), nullptr, 0, 0,
                                                              ids.data(), 32, nullptr, 0, nullptr));
    EXPECT_EQ(untouched, ids);
    c.lost_value = 8;  // no expert
    EXPECT_STATUS(ROUTECAP_INCOMPLETE, routecap_plan_gather(make(c).get(), nullptr, 0, 0,
                                                            ids.data(), 32, nullptr, 0, nullptr));
    EXPECT_EQ((std::vector<int64_t>{8, 8, 8, 0}), ids);
}

// What cannot be divided evenly, or counted, is refused with a reason.
TEST(Plan, refuses_numbers_that_make_no_layout) {
    const auto refused = [](int32_t status, auto change) {
        Config c;
        c.lengths_ = {8, 8};
        change(c);
        routecap_plan *plan = nullptr;
        EXPECT_STATUS(status, routecap_plan_create(c.point(), &plan));
        EXPECT_EQ(nullptr, plan);
        routecap_plan_free(plan);
    };
    const int32_t argument = ROUTECAP_ERR_ARGUMENT;
    refused(argument, [](Config &c) { c.layout = 3; });
    refused(argument, [](Config &c) { c.context = 4; });
    refused(argument, [](Config &c) { c.context_size = 2; });
    refused(argument, [](Config &c) { c.context = 1, c.context_size = 2, c.context_rank = 2; });
    refused(argument, [](Config &c) {
        c.context = 1, c.context_size = ROUTECAP_MAX_RANKS + 1, c.context_rank = 0;
    });
    refused(argument, [](Config &c) { c.tensor_rank = 1; });
    // Whoever forgot to say which of several ranks it is got the rows of rank 0.
    refused(argument, [](Config &c) { c.context = 1, c.context_size = 2; });
    refused(argument,
            [](Config &c) { c.tensor_size = 2, c.flags = ROUTECAP_PLAN_SEQUENCE_PARALLEL; });
    refused(argument, [](Config &c) { c.flags = 4; });
    refused(argument, [](Config &c) { c.flags = ROUTECAP_PLAN_SEQUENCE_FIRST; });
    refused(argument, [](Config &c) { c.width = 8; });
    refused(argument, [](Config &c) { c.layout = 1, c.align_rank = 8; });
    refused(argument, [](Config &c) { c.layout = 1, c.width = 7; });
    refused(argument, [](Config &c) { c.layout = 1, c.width = 8, c.starts_ = {0, 1}; });
    refused(argument, [](Config &c) { c.lengths_ = {ROUTECAP_MAX_PLAN_ROWS, 1}; });
    refused(argument, [](Config &c) { c.lengths_ = {UINT64_MAX, 8}; });
    refused(argument, [](Config &c) { c.align = UINT64_MAX; });
    refused(argument, [](Config &c) { c.align = ROUTECAP_MAX_PLAN_ROWS; });
    refused(argument, [](Config &c) { c.layout = 1, c.width = ROUTECAP_MAX_PLAN_ROWS; });
    refused(argument, [](Config &c) {
        c.align_rank = ROUTECAP_MAX_PLAN_ROWS / 2 + 1;
        c.context = 1, c.context_size = 2, c.context_rank = 0;
    });
    refused(argument, [](Config &c) { c.padded_ = {7, 8}; });
    refused(argument, [](Config &c) {
        c.padded_ = {9, 8}, c.context = 1, c.context_size = 2, c.context_rank = 0;
    });
    refused(argument, [](Config &c) { c.needed_ = {9, 8}; });
    refused(argument, [](Config &c) { c.lengths_.clear(), c.least_total = 8; });
    refused(argument, [](Config &c) {
        c.align = 1, c.lengths_ = {3}, c.tensor_size = 2, c.flags = ROUTECAP_PLAN_SEQUENCE_PARALLEL;
    });
    refused(argument, [](Config &c) { c.layers = 0; });
    refused(argument, [](Config &c) { c.k = 9; });
    refused(argument, [](Config &c) { c.map_ = {-1}; });
    refused(argument, [](Config &c) { c.expert_parallel = ROUTECAP_MAX_EXPERTS + 1; });
    refused(argument, [](Config &c) { c.order = 2; });
    refused(argument, [](Config &c) { c.fill = 2; });
    refused(argument, [](Config &c) { c.lost = 3; });
    refused(ROUTECAP_ERR_DTYPE, [](Config &c) { c.dtype = 0; });
    refused(ROUTECAP_ERR_DTYPE, [](Config &c) { c.dtype = 1, c.experts = 257; });
    refused(ROUTECAP_ERR_DTYPE, [](Config &c) { c.dtype = 1, c.lost_value = 256; });
    refused(ROUTECAP_ERR_DTYPE, [](Config &c) { c.dtype = 2, c.fill = 1, c.fill_value = -32769; });
    refused(ROUTECAP_ERR_STRUCT_SIZE, [](Config &c) { c.struct_size = 8; });
}

// Some of its numbers as large as they can be: a plan is refused, or adds up.
TEST(Plan, of_any_numbers_is_refused_or_adds_up) {
    int made = 0, refused = 0;
    for (uint32_t round = 0; round < 6000 && !HasFailure(); round++) {
        SCOPED_TRACE("round " + std::to_string(round));
        Chance chance(round);
        Config c;
        choose(c, chance);
        c.context_rank = c.tensor_rank = 0;
        for (uint64_t changes = chance.below(4); changes > 0; changes--) {
            const auto number = chance.one_of<uint64_t>(
                {0, 1, 7, 1 << 20, ROUTECAP_MAX_PLAN_ROWS - 1, ROUTECAP_MAX_PLAN_ROWS,
                 uint64_t{1} << 31, uint64_t{1} << 40, uint64_t{1} << 63, UINT64_MAX});
            const auto small = static_cast<uint32_t>(number);
            std::vector<uint64_t> *const arrays[] = {&c.lengths_, &c.needed_, &c.padded_,
                                                     &c.starts_};
            std::vector<uint64_t> &array = *arrays[chance.below(4)];
            switch (chance.below(13)) {
                case 0: c.width = number; break;
                case 1: c.align = number; break;
                case 2: c.align_total = number; break;
                case 3: c.align_rank = number; break;
                case 4: c.least_total = number; break;
                case 5: c.context_size = small; break;
                case 6: c.tensor_size = small; break;
                case 7: c.context_rank = small; break;
                case 8: c.tensor_rank = small; break;
                case 9: c.expert_parallel = small; break;
                case 10: c.lost_value = c.fill_value = static_cast<int64_t>(number); break;
                default:
                    if (!array.empty()) array[chance.below(array.size())] = number;
            }
        }
        routecap_plan *plan = nullptr;
        const int32_t status = routecap_plan_create(c.point(), &plan);
        const PlanPtr owner(plan);
        EXPECT_EQ(status == ROUTECAP_OK, plan != nullptr);
        if (status != ROUTECAP_OK) {
            EXPECT_TRUE(status == ROUTECAP_ERR_ARGUMENT || status == ROUTECAP_ERR_DTYPE)
                << Status{status};
            refused++;
            continue;
        }
        made++;
        const routecap_plan_shape shape = shape_of(owner);
        EXPECT_LE(shape.total_rows, uint64_t{ROUTECAP_MAX_PLAN_ROWS});
        EXPECT_LE(shape.rows, shape.total_rows);
        EXPECT_EQ(shape.rows, shape.rows_needed + shape.rows_not_needed + shape.rows_padding);
        uint64_t needed = 0;
        for (const routecap_plan_range &range : ranges_of(owner)) needed += range.rows;
        EXPECT_EQ(shape.rows_needed, needed);
        if (shape.ids_bytes > 1 << 16) continue;
        written(shape, needed > 0 ? ROUTECAP_INCOMPLETE : ROUTECAP_OK,
                [&](Guarded &ids, Guarded &classes) {
                    return routecap_plan_gather(plan, nullptr, 0, 0, ids.data(), ids.size(),
                                                classes.data(), classes.size(), nullptr);
                });
    }
    EXPECT_GT(made, 1000);
    EXPECT_GT(refused, 1000);
}

TEST(Plan, takes_cumulative_lengths_instead) {
    Config c;
    const uint64_t cu_lengths[] = {0, 3, 3, 10};
    routecap_plan *made = nullptr;
    c.point();
    c.samples = 3, c.cu_lengths = cu_lengths;
    ASSERT_STATUS(ROUTECAP_OK, routecap_plan_create(&c, &made));
    const PlanPtr plan(made);
    const auto ranges = ranges_of(plan);
    ASSERT_EQ(2u, ranges.size());
    EXPECT_EQ(2u, ranges[1].sample);
    EXPECT_EQ(6u, ranges[1].rows);
    const uint64_t falling[] = {0, 3, 2, 10}, late[] = {1, 3, 3, 10};
    for (const uint64_t *wrong : {falling, late, static_cast<const uint64_t *>(nullptr)}) {
        c.cu_lengths = wrong;
        EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_plan_create(&c, &made));
    }
    c.lengths = c.cu_lengths = cu_lengths;  // which of the two?
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_plan_create(&c, &made));
}

// What is uploaded says what it is; bytes of another plan, or of none, are not unpacked.
TEST(Plan, unpacks_only_what_was_packed_for_it) {
    Config c, other;
    c.lengths_ = {4}, other.lengths_ = {5}, other.align = 4;
    const PlanPtr plan = make(c), longer = make(other);
    const routecap_plan_shape shape = shape_of(plan);
    std::vector<uint64_t> packed = aligned(shape_of(longer).packed_bytes);
    std::vector<int64_t> ids(4, 4711);
    routecap_plan_target target{};
    target.struct_size = sizeof target, target.backend = ROUTECAP_BACKEND_HOST;
    target.dst = ids.data(), target.dst_bytes = 32;
    const auto unpack = [&](size_t bytes) {
        return routecap_plan_unpack(plan.get(), packed.data(), bytes, &target, nullptr);
    };
    EXPECT_STATUS(ROUTECAP_ERR_STATE, unpack(packed.size() * 8));
    ASSERT_STATUS(
        ROUTECAP_INCOMPLETE,
        routecap_plan_pack(longer.get(), nullptr, 0, 0, packed.data(), packed.size() * 8, nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_STATE, unpack(packed.size() * 8));
    EXPECT_EQ(std::vector<int64_t>(4, 4711), ids);
    ASSERT_STATUS(ROUTECAP_INCOMPLETE, routecap_plan_pack(plan.get(), nullptr, 0, 0, packed.data(),
                                                          packed.size() * 8, nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_STATE, unpack(shape.packed_bytes - 1));
    EXPECT_STATUS(ROUTECAP_OK, unpack(shape.packed_bytes));
    EXPECT_EQ((std::vector<int64_t>{-1, -1, -1, 0}), ids);
    target.backend = 9;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, unpack(shape.packed_bytes));
}

// What a router records may be anything; a cell that is no routing is missing, for its reason.
TEST(Plan, says_why_a_recorded_cell_is_missing) {
    Config c;
    c.lengths_ = {7}, c.k = 2, c.needed_ = {ROUTECAP_ROWS_ALL};
    const PlanPtr plan = make(c);
    const int64_t ids[] = {1, 2, -1, 2, 3, 8, 4, 4, 7, 0, INT64_MIN, INT64_MAX, 257, 1};
    const uint8_t classes[] = {0, 0, 0, 0, ROUTECAP_PLAN_CLASS_LOST, 0, 0};
    routecap_routing *made = nullptr;
    ASSERT_STATUS(ROUTECAP_INCOMPLETE, routecap_plan_scatter(plan.get(), ids, sizeof ids, classes,
                                                             sizeof classes, &made, 1));
    const RoutingPtr routing(made);
    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    std::array<routecap_missing, 8> missing;
    ASSERT_STATUS(ROUTECAP_INCOMPLETE,
                  routecap_routing_coverage(routing.get(), &coverage, missing.data(),
                                            sizeof missing[0], missing.size()));
    std::vector<int32_t> reasons(7);
    for (uint64_t b = 0; b < coverage.blocks; b++)
        for (uint64_t r = 0; r < missing[b].rows; r++)
            reasons[missing[b].first + r] = missing[b].reason;
    EXPECT_EQ((std::vector<int32_t>{0, ROUTECAP_MISSING_UNWRITTEN, ROUTECAP_MISSING_OUT_OF_RANGE,
                                    ROUTECAP_MISSING_DUPLICATE, ROUTECAP_MISSING_UNWRITTEN,
                                    ROUTECAP_MISSING_UNWRITTEN, ROUTECAP_MISSING_OUT_OF_RANGE}),
              reasons);
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_plan_scatter(plan.get(), ids, sizeof ids - 8, nullptr, 0, &made, 1));
    EXPECT_EQ(nullptr, made);
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_plan_scatter(plan.get(), ids, sizeof ids, nullptr, 0, &made, 0));
}

// ---- On a device ----------------------------------------------------------------------------

// Memory of the device for a plan's result, between canaries.
class OnDevice {
public:
    OnDevice(rig::Device &device, const routecap_plan_shape &shape)
        : device_(device), shape_(shape) {
        target_.struct_size = sizeof target_, target_.backend = rig::backend();
        target_.scratch = device.allocate(shape.packed_bytes + 8);
        target_.scratch_bytes = shape.packed_bytes;
        target_.dst = room(shape.ids_bytes), target_.dst_bytes = shape.ids_bytes;
        target_.classes = room(shape.classes_bytes), target_.classes_bytes = shape.classes_bytes;
    }
    const routecap_plan_target *target() const { return &target_; }
    Result read() {
        return {contents(target_.dst, shape_.ids_bytes),
                contents(target_.classes, shape_.classes_bytes)};
    }

private:
    static constexpr size_t kCanary = 64;
    uint8_t *room(size_t bytes) {
        return static_cast<uint8_t *>(device_.allocate(bytes + 2 * kCanary, 0xc5)) + kCanary;
    }
    std::vector<uint8_t> contents(const void *at, size_t bytes) {
        std::vector<uint8_t> all(bytes + 2 * kCanary);
        device_.read(all.data(), static_cast<const uint8_t *>(at) - kCanary, all.size());
        for (size_t i = 0; i < kCanary; i++)
            EXPECT_TRUE(all[i] == 0xc5 && all[all.size() - 1 - i] == 0xc5);
        return {all.begin() + kCanary, all.end() - kCanary};
    }

    rig::Device &device_;
    const routecap_plan_shape shape_;
    routecap_plan_target target_{};
};

// A whole routing for each sample, with holes.
std::vector<RoutingPtr> routings_of(const Config &c, uint64_t seed) {
    std::vector<int32_t> map;
    std::vector<uint32_t> experts;
    for (uint32_t l = 0; l < c.layers; l++)
        map.push_back(c.index_of(l)), experts.push_back(c.experts_of(l));
    const Truth there = [=](size_t i, uint64_t t, int32_t l) {
        return seed == 0 || (i * 31 + t * 7 + static_cast<uint64_t>(l)) % (seed + 5) != 0;
    };
    std::vector<RoutingPtr> routings;
    for (size_t i = 0; i < c.lengths_.size(); i++)
        routings.push_back(routing_of(c, i, 0, c.lengths_[i], map, experts, there, 17));
    return routings;
}

Result gathered(const PlanPtr &plan, const std::vector<RoutingPtr> &routings) {
    const routecap_plan_shape shape = shape_of(plan);
    const auto sources = sources_of(routings);
    Result result{std::vector<uint8_t>(shape.ids_bytes), std::vector<uint8_t>(shape.classes_bytes)};
    EXPECT_GE(routecap_plan_gather(plan.get(), sources.data(), sizeof sources[0], sources.size(),
                                   result.ids.data(), result.ids.size(), result.classes.data(),
                                   result.classes.size(), nullptr),
              0)
        << routecap_last_error();
    return result;
}

void pack(const PlanPtr &plan, const std::vector<RoutingPtr> &routings, void *packed) {
    const auto sources = sources_of(routings);
    EXPECT_GE(routecap_plan_pack(plan.get(), sources.data(), sizeof sources[0], sources.size(),
                                 packed, shape_of(plan).packed_bytes, nullptr),
              0)
        << routecap_last_error();
}

TEST(PlanOnDevice, has_the_ids_that_are_gathered_on_the_host) {
    const int rounds = getenv("ROUTECAP_PLAN_ROUNDS") ? atoi(getenv("ROUTECAP_PLAN_ROUNDS")) : 60;
    int made = 0;
    for (int round = 0; round < rounds && !HasFailure(); round++) {
        SCOPED_TRACE("round " + std::to_string(round));
        Chance chance(static_cast<uint32_t>(round));
        Config c;
        choose(c, chance);
        c.context_rank = static_cast<uint32_t>(chance.below(c.context_size));
        c.tensor_rank = static_cast<uint32_t>(chance.below(c.tensor_size));
        if (!model(c)) continue;
        made++;
        rig::Device device;
        const PlanPtr plan = make(c);
        const routecap_plan_shape shape = shape_of(plan);
        const auto routings = routings_of(c, chance.below(3));
        std::vector<uint64_t> packed = aligned(shape.packed_bytes);
        pack(plan, routings, packed.data());
        const void *pinned = device.upload(packed.data(), shape.packed_bytes);
        OnDevice memory(device, shape);
        device.forward([&] {
            EXPECT_STATUS(ROUTECAP_OK, routecap_plan_unpack(plan.get(), pinned, shape.packed_bytes,
                                                            memory.target(), device.stream()));
        });
        EXPECT_TRUE(gathered(plan, routings) == memory.read());
    }
    EXPECT_GT(made, rounds / 4);
}

// A graph is captured once and replayed for every micro-batch of its shape.
TEST(PlanOnDevice, is_another_micro_batch_at_each_replay) {
    if (!rig::on_cuda()) GTEST_SKIP() << "the host has no graphs";
    const auto choose = [](Config &c, std::vector<uint64_t> lengths) {
        c.lengths_ = std::move(lengths);
        c.layers = 5, c.k = 8, c.experts = 24, c.align_total = 64;
        c.order = ROUTECAP_ORDER_LAYER_MAJOR;
    };
    Config first, second, third;
    choose(first, {20, 30, 9}), choose(second, {64}), choose(third, {65});
    const PlanPtr plans[] = {make(first), make(second), make(third)};
    const Config *configs[] = {&first, &second, &third};
    const routecap_plan_shape shape = shape_of(plans[0]);
    ASSERT_EQ(64u, shape.rows);
    ASSERT_EQ(128u, shape_of(plans[2]).rows);
    rig::Device device;
    std::vector<uint64_t> room = aligned(shape_of(plans[2]).packed_bytes);
    pack(plans[0], routings_of(first, 0), room.data());
    // Page-locked memory of ours, which is written again.
    void *pinned = const_cast<void *>(device.upload(room.data(), room.size() * 8));
    OnDevice memory(device, shape);
    const auto graph = device.capture([&] {
        ASSERT_STATUS(ROUTECAP_OK, routecap_plan_unpack(plans[0].get(), pinned, shape.packed_bytes,
                                                        memory.target(), device.stream()));
    });
    for (const uint64_t seed : {0, 1, 2})
        for (int i = 0; i < 3; i++) {
            const auto routings = routings_of(*configs[i], seed);
            pack(plans[i], routings, pinned);
            graph.replay(device.stream());
            const Result result = memory.read();
            if (i < 2) {
                EXPECT_TRUE(gathered(plans[i], routings) == result);
                continue;
            }
            // Of another shape: nothing is taken for routing.
            for (const uint8_t each : result.classes) ASSERT_EQ(ROUTECAP_PLAN_CLASS_LOST, each);
            for (const uint8_t each : result.ids) ASSERT_EQ(0xff, each);
        }
}

TEST(PlanOnDevice, refuses_what_is_no_device_and_too_little_memory) {
    if (!rig::on_cuda()) GTEST_SKIP() << "the host has no devices";
    Config c;
    c.lengths_ = {4};
    const PlanPtr plan = make(c);
    rig::Device device;
    const routecap_plan_shape shape = shape_of(plan);
    std::vector<uint64_t> packed = aligned(shape.packed_bytes);
    pack(plan, routings_of(c, 0), packed.data());
    OnDevice memory(device, shape);
    const auto unpack = [&](auto change) {
        routecap_plan_target target = *memory.target();
        change(target);
        return routecap_plan_unpack(plan.get(), packed.data(), shape.packed_bytes, &target,
                                    device.stream());
    };
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, unpack([](auto &t) { t.device = 99; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, unpack([](auto &t) { t.device = -1; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, unpack([](auto &t) { t.scratch = nullptr; }));
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL, unpack([](auto &t) { t.scratch_bytes--; }));
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL, unpack([](auto &t) { t.dst_bytes--; }));
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL, unpack([](auto &t) { t.classes_bytes--; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, unpack([](auto &t) { t.backend = 7; }));
    EXPECT_STATUS(ROUTECAP_OK, unpack([](auto &) {}));
    EXPECT_TRUE(gathered(plan, routings_of(c, 0)) == memory.read());
}

}  // namespace
