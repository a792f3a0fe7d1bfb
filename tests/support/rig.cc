#include "rig.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <ostream>
#include <thread>

namespace rig {

std::ostream &operator<<(std::ostream &out, Status status) {
    return out << routecap_status_name(status.value);
}

// ---- What is expected ----------------------------------------------------------------------

std::vector<int64_t> routed(const Shape &shape, uint64_t seed, uint64_t position, uint32_t layer) {
    uint64_t x =
        seed * 0x9e3779b97f4a7c15u + position * 0xbf58476d1ce4e5b9u + layer * 0x94d049bb133111ebu;
    x ^= x >> 29, x *= 0xbf58476d1ce4e5b9u, x ^= x >> 32;
    std::vector<int64_t> ids;
    for (uint32_t c = 0; c < shape.k; c++)
        ids.push_back(static_cast<int64_t>((x + c) % shape.experts));
    std::reverse(ids.begin(), ids.end());  // routers do not sort
    return ids;
}

Row routed_row(const Shape &shape, uint64_t seed, uint64_t position) {
    Row row;
    for (uint32_t l = 0; l < shape.layers; l++) row.push_back(routed(shape, seed, position, l));
    return row;
}

Rows routed_rows(const Shape &shape, uint64_t seed, uint64_t first, uint64_t end) {
    Rows rows;
    for (uint64_t p = first; p < end; p++) rows.push_back(routed_row(shape, seed, p));
    return rows;
}

Rows missing_rows(const Shape &shape, uint64_t rows) { return Rows(rows, Row(shape.layers)); }

Rows operator+(Rows a, const Rows &b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

// ---- The rig -------------------------------------------------------------------------------

routecap_memory memory_of(const Shape &shape) {
    routecap_config config;
    EXPECT_STATUS(ROUTECAP_OK, routecap_config_init(&config, sizeof config));
    config.backend = backend();
    config.layers = shape.layers, config.k = shape.k, config.experts = shape.experts,
    config.rows = shape.rows;
    routecap_memory memory{};
    memory.struct_size = sizeof memory;
    EXPECT_STATUS(ROUTECAP_OK, routecap_config_memory(&config, &memory));
    return memory;
}

Rig::Rig(const Options &options) : options_(options) {
    routecap_config config;
    EXPECT_STATUS(ROUTECAP_OK, routecap_config_init(&config, sizeof config));
    config.backend = backend();
    config.role = options.role;
    config.layers = options.shape.layers;
    config.k = options.shape.k;
    config.experts = options.shape.experts;
    config.rows = options.shape.rows;
    config.slots = options.slots;
    config.flags = options.flags | (options.held ? ROUTECAP_CONFIG_MANUAL_PROGRESS : 0);
    config.sink_dtype = options.sink_dtype;
    config.budget_bytes = options.budget_bytes;
    config.max_requests = options.max_requests;
    if (!options.layer_map.empty()) config.layer_map = options.layer_map.data();
    if (!options.layer_experts.empty()) config.layer_experts = options.layer_experts.data();
    if (!options.layer_provenance.empty())
        config.layer_provenance = options.layer_provenance.data();
    EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_create(&config, &capturer_));
}

Rig::~Rig() {
    device_.synchronize();
    routecap_capturer_destroy(capturer_);
}

routecap_request Rig::open(int32_t policy) {
    const routecap_open_options options{sizeof options, policy};
    routecap_request request = 0;
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_open(capturer_, &options, &request, 1));
    EXPECT_NE(request, 0u);
    return request;
}

int32_t Rig::record(uint32_t layer, routecap_source source) {
    if (on_cuda() && source.rows <= 65536) {
        const auto stride = [](int64_t given, int64_t dense) { return given != 0 ? given : dense; };
        const int64_t columns = source.k_source != 0 ? source.k_source : shape().k;
        const int64_t last =
            (source.rows > 1 ? (source.rows - 1) * stride(source.row_stride, columns) : 0) +
            (columns - 1) * stride(source.column_stride, 1);
        const int64_t element = source.dtype == ROUTECAP_DTYPE_I16   ? 2
                                : source.dtype == ROUTECAP_DTYPE_I64 ? 8
                                                                     : 4;
        const auto upload = [this](const auto *&pointer, size_t bytes) {
            pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(
                device_.upload(pointer, bytes));
        };
        if (source.rows > 0) upload(source.ids, static_cast<size_t>((last + 1) * element));
        upload(source.live_rows, 4);
        upload(source.row_base, 4);
        upload(source.row_index, size_t{source.rows} * 4);
        upload(source.table, size_t{source.table_size} * 4);
    }
    return routecap_layer_record(capturer_, layer, &source, stream());
}

int32_t Rig::record(uint32_t layer, const std::vector<std::vector<int64_t>> &ids,
                    uint32_t first_row, int32_t dtype) {
    std::vector<unsigned char> memory;
    uint32_t columns = 0;
    for (const auto &row : ids) {
        columns = static_cast<uint32_t>(row.size());
        for (int64_t id : row) {
            const size_t size = dtype == ROUTECAP_DTYPE_I16   ? 2
                                : dtype == ROUTECAP_DTYPE_I64 ? 8
                                                              : 4;
            if (dtype == ROUTECAP_DTYPE_ID16_BF16) id = id << 16 | 0x3f80;
            memory.insert(memory.end(), reinterpret_cast<unsigned char *>(&id),
                          reinterpret_cast<unsigned char *>(&id) + size);
        }
    }
    routecap_source source{};
    source.struct_size = sizeof source;
    source.dtype = dtype;
    source.ids = memory.data();
    source.rows = static_cast<uint32_t>(ids.size());
    source.k_source = columns;
    source.first_row = first_row;
    return record(layer, source);
}

void Rig::record_tokens(uint32_t layer, const std::vector<Tokens> &batch, uint32_t first_row) {
    std::vector<std::vector<int64_t>> ids;
    for (const Tokens &t : batch)
        for (uint32_t i = 0; i < t.count; i++)
            ids.push_back(routed(shape(), t.seed, t.position + i, layer));
    EXPECT_STATUS(ROUTECAP_OK, record(layer, ids, first_row));
}

void Rig::record_all(const std::vector<Tokens> &batch, uint32_t first_row) {
    for (uint32_t l = 0; l < shape().layers; l++) record_tokens(l, batch, first_row);
}

void Rig::run(const std::vector<Tokens> &batch) {
    uint32_t rows = 0;
    for (const Tokens &t : batch) rows += t.count;
    forward([&] {
        EXPECT_STATUS(ROUTECAP_OK, begin(rows));
        record_all(batch);
        EXPECT_STATUS(ROUTECAP_OK, snapshot());
    });
}

routecap_span Rig::span(routecap_request request, uint64_t position, uint32_t sink_row,
                        uint32_t rows, uint32_t flags) {
    routecap_span s{};
    s.request = request;
    s.position = position;
    s.sink_row = sink_row;
    s.rows = rows;
    s.flags = flags;
    return s;
}

routecap_step Rig::issue(const std::vector<routecap_span> &spans, int32_t expected,
                         std::vector<int32_t> *status, const routecap_issue_options *options) {
    routecap_step step = 0;
    if (status != nullptr) status->assign(spans.size(), 12345);
    if (!options_.held && last_ >= options_.slots) {
        EXPECT_GE(routecap_step_finalize(capturer_, last_ + 1 - options_.slots, -1, nullptr), 0);
    }
    routecap_issue_options uploaded{};
    if (options != nullptr && options->positions != nullptr) {
        uint32_t rows = 0;
        for (const routecap_span &s : spans)
            if ((s.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0 && s.rows <= 65536)
                rows = std::max(rows, s.sink_row + s.rows);
        uploaded = *options;
        uploaded.positions =
            device_.upload(options->positions,
                           size_t{rows} * (options->positions_dtype == ROUTECAP_DTYPE_I32 ? 4 : 8));
        options = &uploaded;
    }
    EXPECT_STATUS(
        expected,
        routecap_step_issue(capturer_, spans.data(), sizeof(routecap_span), spans.size(), options,
                            status != nullptr ? status->data() : nullptr, &step, stream()));
    EXPECT_EQ(step != 0, expected >= 0 && options_.role == ROUTECAP_ROLE_OWNER);
    last_ = std::max(last_, step);
    return step;
}

routecap_step Rig::step(const std::vector<std::pair<routecap_request, Tokens>> &batch,
                        uint32_t flags) {
    std::vector<Tokens> tokens;
    std::vector<routecap_span> spans;
    uint32_t row = 0;
    for (const auto &[request, t] : batch) {
        tokens.push_back(t);
        spans.push_back(span(request, t.position, row, t.count, flags));
        row += t.count;
    }
    run(tokens);
    return issue(spans);
}

void Rig::land(routecap_step step, int32_t expected) {
    EXPECT_STATUS(expected, routecap_step_finalize(capturer_, step, -1, nullptr));
}

void Rig::expect(routecap_request request, uint64_t first, const Rows &rows, int32_t mode) {
    // The request's coverage is that of the routing.
    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    const int32_t status =
        routecap_request_coverage(capturer_, request, first, rows.size(), &coverage, nullptr, 0, 0);
    ASSERT_GE(status, 0) << routecap_last_error();

    routecap_routing *routing = nullptr;
    const int32_t extracted =
        routecap_request_extract(capturer_, request, first, rows.size(), mode, 0, &routing);
    ASSERT_GE(extracted, 0) << routecap_last_error();
    const RoutingPtr owner(routing);
    EXPECT_STATUS(extracted, routecap_routing_poll(routing));
    expect_routing(routing, shape(), first, rows);

    routecap_coverage same{};
    same.struct_size = sizeof same;
    EXPECT_STATUS(status, routecap_routing_coverage(routing, &same, nullptr, 0, 0));
    EXPECT_EQ(coverage.cells_missing, same.cells_missing);
    EXPECT_EQ(coverage.blocks, same.blocks);
    if (mode == ROUTECAP_EXTRACT_COPY && !rows.empty()) {
        EXPECT_EQ(view_of(routing).segment_count, 1u);
    }
}

void Rig::expect_length(routecap_request request, uint64_t length) {
    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_request_coverage(capturer_, request, 0, 0, &coverage, nullptr, 0, 0));
    EXPECT_EQ(coverage.length, length);
}

routecap_routing *Rig::extract(routecap_request request, uint64_t first, uint64_t rows,
                               int32_t expected, int32_t mode) {
    routecap_routing *routing = nullptr;
    EXPECT_STATUS(expected,
                  routecap_request_extract(capturer_, request, first, rows, mode, 0, &routing));
    EXPECT_EQ(routing != nullptr, expected >= 0);
    return routing;
}

routecap_routing *Rig::finish(routecap_request request, uint64_t rows) {
    routecap_routing *routing = nullptr;
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_finish(capturer_, request, rows, &routing));
    return routing;
}

routecap_stats Rig::stats() const {
    routecap_stats s{};
    s.struct_size = sizeof s;
    EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_stats(capturer_, &s));
    return s;
}

std::vector<routecap_layer_stats> Rig::layer_stats() const {
    std::vector<routecap_layer_stats> s(shape().layers);
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_capturer_layer_stats(capturer_, s.data(), sizeof s[0], s.size()));
    return s;
}

void Rig::open_gate() {
    do {
        EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_progress(capturer_));
        std::this_thread::yield();
    } while (stats().steps_in_flight > 0);
}

uint64_t Rig::bytes_in_use() {
    while (stats().steps_in_flight > 0) {
        EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_progress(capturer_));
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    // A request that is finished is sealed after everything before it on the log that can be
    // applied; memory is given back with it or right after.
    const routecap_request request = open();
    const RoutingPtr routing(finish(request, 0));
    EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(routing.get(), -1));
    uint64_t bytes = stats().bytes_in_use;
    for (int i = 0; i < 200 && bytes != 0; i++) {  // the worker gives memory back a moment later
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        const uint64_t now = stats().bytes_in_use;
        if (now == bytes && i > 20) break;
        bytes = now;
    }
    return bytes;
}

// ---- Checking ------------------------------------------------------------------------------

routecap_view view_of(const routecap_routing *routing) {
    routecap_view view{};
    view.struct_size = sizeof view;
    EXPECT_STATUS(ROUTECAP_OK, routecap_routing_view(routing, &view));
    return view;
}

Rows contents(const routecap_routing *routing, const Shape &shape) {
    const routecap_view view = view_of(routing);
    EXPECT_EQ(view.layers, shape.layers);
    EXPECT_EQ(view.k, shape.k);
    EXPECT_EQ(view.dtype, view.experts <= 256 ? ROUTECAP_DTYPE_U8 : ROUTECAP_DTYPE_I16);
    Rows rows;
    for (size_t i = 0; i < view.segment_count; i++) {
        const auto &s = *reinterpret_cast<const routecap_segment *>(
            reinterpret_cast<const char *>(view.segments) + i * view.segment_size);
        EXPECT_EQ(s.first, view.first + rows.size()) << "segments follow one another";
        for (uint64_t r = 0; r < s.rows; r++) {
            Row row(view.layers);
            for (uint32_t l = 0; l < view.layers && s.ids != nullptr; l++) {
                if (!cell_is_valid(view, s, r, l)) continue;
                std::vector<int64_t> ids;
                for (uint32_t c = 0; c < view.k; c++) ids.push_back(id_of_cell(view, s, r, l, c));
                row[l] = std::move(ids);
            }
            rows.push_back(std::move(row));
        }
    }
    EXPECT_EQ(rows.size(), view.rows);
    return rows;
}

namespace {

std::string describe(const Cell &cell) {
    if (!cell) return "missing";
    std::string text = "[";
    for (int64_t id : *cell) text += std::to_string(id) + " ";
    return text + "]";
}

// Blocks of missing cells, as sets of cells; also that they are disjoint and ordered.
void expect_blocks(const std::vector<routecap_missing> &blocks, uint64_t first, const Rows &rows) {
    std::set<std::pair<uint64_t, uint32_t>> named, expected;
    for (const routecap_missing &b : blocks)
        for (uint64_t r = 0; r < b.rows; r++)
            for (uint32_t l = 0; l < b.layers; l++)
                EXPECT_TRUE(named.emplace(b.first + r, b.first_layer + l).second) << "named twice";
    for (uint64_t r = 0; r < rows.size(); r++)
        for (uint32_t l = 0; l < rows[r].size(); l++)
            if (!rows[r][l]) expected.emplace(first + r, l);
    EXPECT_EQ(named, expected);
    EXPECT_TRUE(std::is_sorted(blocks.begin(), blocks.end(), [](const auto &a, const auto &b) {
        return a.first != b.first ? a.first < b.first : a.first_layer < b.first_layer;
    }));
}

}  // namespace

void expect_routing(const routecap_routing *routing, const Shape &shape, uint64_t first,
                    const Rows &rows) {
    const routecap_view view = view_of(routing);
    ASSERT_EQ(view.first, first);
    ASSERT_EQ(view.rows, rows.size());
    const Rows got = contents(routing, shape);
    ASSERT_EQ(got.size(), rows.size());
    int shown = 0;
    for (size_t r = 0; r < rows.size(); r++)
        for (size_t l = 0; l < rows[r].size(); l++)
            if (got[r][l] != rows[r][l] && shown++ < 5)
                ADD_FAILURE() << "row " << first + r << " layer " << l << ": "
                              << describe(got[r][l]) << " instead of " << describe(rows[r][l]);
    ASSERT_EQ(shown, 0);

    // Counts.
    uint64_t complete = 0, partial = 0, empty = 0, missing = 0;
    for (const Row &row : rows) {
        const auto n = static_cast<uint64_t>(std::count(row.begin(), row.end(), std::nullopt));
        missing += n;
        (n == 0 ? complete : n == row.size() ? empty : partial)++;
    }
    std::vector<routecap_missing> blocks(missing);
    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    EXPECT_STATUS(missing == 0 ? ROUTECAP_OK : ROUTECAP_INCOMPLETE,
                  routecap_routing_coverage(routing, &coverage, blocks.data(),
                                            sizeof(routecap_missing), blocks.size()));
    EXPECT_EQ(coverage.first, first);
    EXPECT_EQ(coverage.rows, rows.size());
    EXPECT_EQ(coverage.rows_complete, complete);
    EXPECT_EQ(coverage.rows_partial, partial);
    EXPECT_EQ(coverage.rows_empty, empty);
    EXPECT_EQ(coverage.cells_missing, missing);
    ASSERT_LE(coverage.blocks, blocks.size());
    blocks.resize(coverage.blocks);
    expect_blocks(blocks, first, rows);
    EXPECT_EQ(view.complete, missing == 0);
    EXPECT_STATUS(missing == 0           ? ROUTECAP_OK
                  : empty == rows.size() ? ROUTECAP_NOT_CAPTURED
                                         : ROUTECAP_INCOMPLETE,
                  routecap_routing_poll(routing));

    // A copy, wide, with mask and fill, in both orders.
    for (int32_t order : {ROUTECAP_ORDER_ROW_MAJOR, ROUTECAP_ORDER_LAYER_MAJOR}) {
        const size_t cells = rows.size() * shape.layers;
        std::vector<int64_t> ids(cells * shape.k, 777777);
        std::vector<uint8_t> mask(cells, 9);
        routecap_copy_options options;
        EXPECT_STATUS(ROUTECAP_OK, routecap_copy_options_init(&options, sizeof options));
        options.dtype = ROUTECAP_DTYPE_I64;
        options.order = order;
        options.fill = -5;
        uint64_t needed = 0;
        EXPECT_STATUS(routecap_routing_poll(routing),
                      routecap_routing_copy_to(routing, &options, ids.data(), ids.size() * 8,
                                               mask.data(), mask.size(), &needed));
        EXPECT_EQ(needed, ids.size() * 8);
        for (size_t r = 0; r < rows.size(); r++)
            for (size_t l = 0; l < shape.layers; l++) {
                const size_t cell =
                    order == ROUTECAP_ORDER_ROW_MAJOR ? r * shape.layers + l : l * rows.size() + r;
                ASSERT_EQ(mask[cell], rows[r][l].has_value());
                for (size_t c = 0; c < shape.k; c++)
                    ASSERT_EQ(ids[cell * shape.k + c], rows[r][l] ? (*rows[r][l])[c] : -5);
            }
    }
}

}  // namespace rig
