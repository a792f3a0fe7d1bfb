// Bytes of the wire: what they say arrives, what is wrong in them is named, and what they cannot
// say is not lost silently.
//
// The messages are written here, by the plainest means, and judged by a model of the header's
// table.
#include <rig.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>

using namespace rig;

namespace {

using Bytes = std::vector<uint8_t>;

// ---- Messages, as anybody would write them --------------------------------------------------

struct Array {
    uint64_t rows = 0;
    uint32_t columns = 0, k = 0;
    std::vector<int64_t> ids;  // [rows, columns, k]

    int64_t *cell(uint64_t row, uint32_t column) {
        return ids.data() + (row * columns + column) * k;
    }
    const int64_t *cell(uint64_t row, uint32_t column) const {
        return ids.data() + (row * columns + column) * k;
    }
};

struct Type {
    int32_t dtype;
    size_t bytes;
    int64_t least, most;
    const char *name, *descr;
};
const std::vector<Type> kTypes = {
    {ROUTECAP_DTYPE_U8, 1, 0, UINT8_MAX, "uint8", "|u1"},
    {ROUTECAP_DTYPE_I8, 1, INT8_MIN, INT8_MAX, "int8", "|i1"},
    {ROUTECAP_DTYPE_U16, 2, 0, UINT16_MAX, "uint16", "<u2"},
    {ROUTECAP_DTYPE_I16, 2, INT16_MIN, INT16_MAX, "int16", "<i2"},
    {ROUTECAP_DTYPE_U32, 4, 0, UINT32_MAX, "uint32", "<u4"},
    {ROUTECAP_DTYPE_I32, 4, INT32_MIN, INT32_MAX, "int32", "<i4"},
    {ROUTECAP_DTYPE_U64, 8, 0, INT64_MAX, "uint64", "<u8"},
    {ROUTECAP_DTYPE_I64, 8, INT64_MIN, INT64_MAX, "int64", "<i8"},
};

std::string raw(const Array &array, const Type &type) {
    std::string text;
    for (const int64_t id : array.ids) text.append(reinterpret_cast<const char *>(&id), type.bytes);
    return text;
}

std::string base64(const std::string &bytes) {
    static const char kDigits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    for (size_t i = 0; i < bytes.size(); i += 3) {
        uint32_t group = 0;
        for (size_t b = 0; b < 3; b++)
            group = group << 8 | (i + b < bytes.size() ? static_cast<uint8_t>(bytes[i + b]) : 0u);
        for (size_t d = 0; d < 4; d++)
            text += i + d > bytes.size() ? '=' : kDigits[group >> (18 - 6 * d) & 63];
    }
    return text;
}

std::string npy(const Array &array, const Type &type, int version = 1) {
    std::string head = "{'descr': '" + std::string(type.descr) +
                       "', 'fortran_order': False, 'shape': (" + std::to_string(array.rows) + ", " +
                       std::to_string(array.columns) + ", " + std::to_string(array.k) + "), }";
    const size_t before = version == 1 ? 10 : 12;
    while ((before + head.size()) % 64 != 63) head += ' ';
    head += '\n';
    std::string bytes = "\x93NUMPY";
    bytes += static_cast<char>(version);
    bytes += '\0';
    for (size_t b = 0; b < before - 8; b++) bytes += static_cast<char>(head.size() >> 8 * b & 0xff);
    return bytes + head + raw(array, type);
}

std::string lists(const Array &array) {
    std::string text = "[";
    for (uint64_t r = 0; r < array.rows; r++) {
        text += r > 0 ? ",[" : "[";
        for (uint32_t c = 0; c < array.columns; c++) {
            text += c > 0 ? ",[" : "[";
            for (uint32_t i = 0; i < array.k; i++)
                text += (i > 0 ? "," : "") + std::to_string(array.cell(r, c)[i]);
            text += "]";
        }
        text += "]";
    }
    return text + "]";
}

std::string message(int32_t format, const Array &array, const Type &type, uint64_t start = 0) {
    const std::string shape = std::to_string(array.rows) + "x" + std::to_string(array.columns) +
                              "x" + std::to_string(array.k);
    std::string with_commas = shape;
    std::replace(with_commas.begin(), with_commas.end(), 'x', ',');
    switch (format) {
        case ROUTECAP_WIRE_NPY: return npy(array, type);
        case ROUTECAP_WIRE_NPY_BASE64: return base64(npy(array, type));
        case ROUTECAP_WIRE_RAW: return raw(array, type);
        case ROUTECAP_WIRE_RAW_BASE64: return base64(raw(array, type));
        case ROUTECAP_WIRE_NRLRE1:
            return "nrlre1:" + std::string(type.name) + ":" + shape + ":" +
                   base64(raw(array, type));
        case ROUTECAP_WIRE_OBJECT:
            return "{\"data\":\"" + base64(raw(array, type)) + "\",\"shape\":[" + with_commas +
                   "],\"start\":" + std::to_string(start) + ",\"dtype\":\"" + type.name + "\"}";
        default: return lists(array);
    }
}

const std::vector<int32_t> kArrays = {
    ROUTECAP_WIRE_NPY,    ROUTECAP_WIRE_NPY_BASE64, ROUTECAP_WIRE_RAW,  ROUTECAP_WIRE_RAW_BASE64,
    ROUTECAP_WIRE_OBJECT, ROUTECAP_WIRE_NRLRE1,     ROUTECAP_WIRE_LISTS};

// ---- The model ------------------------------------------------------------------------------

struct Judged {
    Rows rows;
    std::vector<std::vector<int32_t>> reasons;  // [rows][layers] 0 where the cell is valid
    routecap_wire_report report{};
};

Judged judge(const Array &array, const std::vector<uint32_t> &columns,
             const std::vector<uint32_t> &experts) {
    Judged judged;
    judged.report.largest_id = -1;
    std::vector<bool> seen(columns.size());
    for (uint64_t r = 0; r < array.rows; r++) {
        Row row;
        std::vector<int32_t> reasons;
        uint32_t zeros = 0, nothing = 0, counting = 0, valid = 0;
        for (size_t l = 0; l < columns.size(); l++) {
            const int64_t *cell = array.cell(r, columns[l]);
            const std::vector<int64_t> ids(cell, cell + array.k);
            const bool negative =
                std::any_of(ids.begin(), ids.end(), [](int64_t id) { return id < 0; });
            const bool zero = array.k > 1 && std::all_of(ids.begin(), ids.end(),
                                                         [](int64_t id) { return id == 0; });
            const bool high =
                std::any_of(ids.begin(), ids.end(), [&](int64_t id) { return id >= experts[l]; });
            const bool twice = std::set(ids.begin(), ids.end()).size() < ids.size();
            uint64_t &count = negative ? judged.report.cells_negative
                              : zero   ? judged.report.cells_zero
                              : high   ? judged.report.cells_out_of_range
                              : twice  ? judged.report.cells_duplicate
                                       : judged.report.cells_valid;
            count++;
            const bool good = &count == &judged.report.cells_valid;
            if (good)
                judged.report.largest_id =
                    std::max(judged.report.largest_id, *std::max_element(ids.begin(), ids.end()));
            if (good) seen[l] = true;
            zeros += !negative && zero, nothing += negative || zero, valid += good;
            bool counts = array.k > 1;
            for (uint32_t i = 0; i < array.k; i++) counts &= ids[i] == i;
            counting += counts;
            reasons.push_back(good               ? 0
                              : negative || zero ? ROUTECAP_MISSING_UNWRITTEN
                              : high             ? ROUTECAP_MISSING_OUT_OF_RANGE
                                                 : ROUTECAP_MISSING_DUPLICATE);
            row.push_back(good ? Cell(ids) : Cell());
        }
        if (nothing == columns.size()) reasons.assign(columns.size(), ROUTECAP_MISSING_ABSENT);
        judged.report.rows_zero += zeros == columns.size();
        judged.report.rows_counting += counting == columns.size();
        const size_t n = size_t{array.columns} * array.k;
        if (r > 0 && valid > 0 &&
            std::equal(array.cell(r, 0), array.cell(r, 0) + n, array.cell(r - 1, 0)))
            judged.report.rows_repeated++;
        judged.rows.push_back(row);
        judged.reasons.push_back(reasons);
    }
    for (const bool layer : seen) judged.report.layers_empty += !layer && array.rows > 0;
    judged.report.columns = array.columns;
    judged.report.columns_left_out = array.columns - static_cast<uint32_t>(columns.size());
    judged.report.rows = array.rows;
    return judged;
}

// The reason of every missing cell of a routing.
std::vector<std::vector<int32_t>> reasons_of(const routecap_routing *routing) {
    const routecap_view view = view_of(routing);
    std::vector<std::vector<int32_t>> reasons(view.rows, std::vector<int32_t>(view.layers));
    routecap_coverage coverage{.struct_size = sizeof coverage};
    EXPECT_GE(routecap_routing_coverage(routing, &coverage, nullptr, sizeof(routecap_missing), 0),
              0);
    std::vector<routecap_missing> blocks(coverage.blocks);
    EXPECT_GE(routecap_routing_coverage(routing, &coverage, blocks.data(), sizeof(routecap_missing),
                                        blocks.size()),
              0);
    for (const routecap_missing &block : blocks)
        for (uint64_t r = block.first; r < block.first + block.rows; r++)
            for (uint32_t l = block.first_layer; l < block.first_layer + block.layers; l++)
                reasons[r - view.first][l] = block.reason;
    return reasons;
}

void expect_report(const routecap_wire_report &expected, const routecap_wire_report &got) {
#define SAME(field) EXPECT_EQ(expected.field, got.field)
    SAME(columns);
    SAME(columns_left_out);
    SAME(layers_empty);
    SAME(rows);
    SAME(cells_valid);
    SAME(cells_negative);
    SAME(cells_zero);
    SAME(cells_out_of_range);
    SAME(cells_duplicate);
    SAME(rows_zero);
    SAME(rows_repeated);
    SAME(rows_counting);
    SAME(largest_id);
#undef SAME
}

// ---- Random arrays --------------------------------------------------------------------------

struct Model {
    uint32_t columns = 4, k = 2, experts = 16;
    std::vector<int32_t> map;  // of captured layers, where there are more columns
};

// k distinct experts in each cell; `wrong`: with all that can be wrong and fits the type.
Array random_array(const Model &model, uint64_t rows, const Type &type, std::mt19937 &random,
                   bool wrong) {
    Array array{rows, model.columns, model.k, std::vector<int64_t>(rows * model.columns * model.k)};
    const auto one_in = [&](unsigned n) { return wrong && random() % n == 0; };
    for (uint64_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < model.columns; c++) {
            const std::vector<int64_t> ids =
                routed({model.columns, model.k,
                        static_cast<uint32_t>(std::min<int64_t>(model.experts - 1, type.most) + 1)},
                       5, r, c);
            std::copy(ids.begin(), ids.end(), array.cell(r, c));
            int64_t &id = array.cell(r, c)[random() % model.k];
            if (one_in(20) && type.most >= model.experts)
                id = random() % 2 ? model.experts : type.most;
            if (one_in(20)) id = array.cell(r, c)[0];
            if (one_in(20) && type.least < 0) id = random() % 2 ? -1 : type.least;
            if (one_in(20)) std::fill_n(array.cell(r, c), model.k, 0);
        }
        const size_t n = size_t{model.columns} * model.k;
        if (one_in(12)) std::fill_n(array.cell(r, 0), n, 0);
        if (one_in(12) && type.least < 0) std::fill_n(array.cell(r, 0), n, -1);
        if (one_in(12) && r > 0) std::copy_n(array.cell(r - 1, 0), n, array.cell(r, 0));
        if (one_in(12))
            for (size_t i = 0; i < n; i++) array.cell(r, 0)[i] = static_cast<int64_t>(i % model.k);
    }
    return array;
}

routecap_wire_hint hint_for(const Model &model, int32_t format, const Type &type) {
    routecap_wire_hint hint{};
    hint.struct_size = sizeof hint;
    hint.experts = model.experts;
    const bool said = format != ROUTECAP_WIRE_RAW && format != ROUTECAP_WIRE_RAW_BASE64;
    if (!said) hint.columns = model.columns, hint.k = model.k, hint.dtype = type.dtype;
    if (!model.map.empty())
        hint.layers = static_cast<uint32_t>(model.map.size()), hint.layer_map = model.map.data();
    return hint;
}

bool has_type(int32_t format, const Type &type) {
    return format != ROUTECAP_WIRE_LISTS || type.dtype == ROUTECAP_DTYPE_I32;
}

struct Decoded {
    int32_t status = 0;
    RoutingPtr routing;
    routecap_wire_report report{.struct_size = sizeof report};
    std::string text;
};

Decoded decode(const std::string &bytes, int32_t format, const routecap_wire_hint &hint) {
    Decoded decoded;
    const Bytes exact(bytes.begin(), bytes.end());  // so that a sanitizer sees what is read beyond
    routecap_routing *routing = nullptr;
    decoded.status =
        routecap_wire_decode(exact.data(), exact.size(), format, &hint, &decoded.report, &routing);
    EXPECT_EQ(routing != nullptr, decoded.status >= 0);
    if (decoded.status != ROUTECAP_OK) decoded.text = routecap_last_error();
    decoded.routing.reset(routing);
    return decoded;
}

// The same in pieces of at most so many bytes.
Decoded decode_in_pieces(const std::string &bytes, int32_t format, const routecap_wire_hint &hint,
                         size_t most, std::mt19937 &random) {
    Decoded decoded;
    routecap_wire_decoder *decoder = nullptr;
    EXPECT_STATUS(ROUTECAP_OK, routecap_wire_decoder_create(format, &hint, &decoder));
    for (size_t at = 0, n; at < bytes.size() && decoded.status >= 0; at += n) {
        n = std::min<size_t>(1 + random() % most, bytes.size() - at);
        const Bytes piece(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                          bytes.begin() + static_cast<std::ptrdiff_t>(at + n));
        decoded.status = routecap_wire_decoder_write(decoder, piece.data(), piece.size());
    }
    routecap_routing *routing = nullptr;
    const int32_t finished = routecap_wire_decoder_finish(decoder, &decoded.report, &routing);
    if (decoded.status < 0) {
        EXPECT_EQ(finished, decoded.status);
    }
    decoded.status = finished;
    decoded.routing.reset(routing);
    routecap_wire_decoder_free(decoder);
    return decoded;
}

Shape rig_shape(const Model &model) {
    return {.layers = static_cast<uint32_t>(model.map.empty() ? model.columns : model.map.size()),
            .k = model.k,
            .experts = model.experts};
}

void expect_same_routing(const Judged &judged, const Model &model, uint64_t first,
                         const Decoded &decoded) {
    const uint64_t cells = judged.rows.size() * rig_shape(model).layers;
    const int32_t expected = judged.report.cells_valid == cells ? ROUTECAP_OK
                             : judged.report.cells_valid > 0    ? ROUTECAP_INCOMPLETE
                                                                : ROUTECAP_NOT_CAPTURED;
    ASSERT_EQ((Status{expected}), (Status{decoded.status})) << decoded.text;
    expect_routing(decoded.routing.get(), rig_shape(model), first, judged.rows);
    EXPECT_EQ(judged.reasons, reasons_of(decoded.routing.get()));
    expect_report(judged.report, decoded.report);
}

std::vector<uint32_t> columns_of(const Model &model) {
    std::vector<uint32_t> columns(model.map.begin(), model.map.end());
    for (uint32_t c = 0; model.map.empty() && c < model.columns; c++) columns.push_back(c);
    return columns;
}

const std::vector<Model> kModels = {{1, 1, 2, {}},          {4, 2, 16, {}},    {3, 3, 100, {}},
                                    {5, 4, 256, {1, 3, 4}}, {2, 8, 256, {}},   {3, 8, 257, {}},
                                    {9, 6, 512, {}},        {2, 4, 32768, {}}, {2, 32, 300, {}}};

Bytes encoded(const routecap_routing *routing, const routecap_wire_options &options,
              routecap_wire_report *report = nullptr) {
    uint64_t needed = 0;
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                  routecap_wire_encode(routing, &options, nullptr, 0, &needed, nullptr));
    Bytes bytes(needed, 0xee);
    EXPECT_STATUS(
        ROUTECAP_ERR_BUFFER_TOO_SMALL,
        routecap_wire_encode(routing, &options, bytes.data(), needed - 1, nullptr, nullptr));
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_wire_encode(routing, &options, bytes.data(), needed, nullptr, report));
    return bytes;
}

routecap_wire_options options_for(int32_t format, int32_t dtype = 0, uint32_t allow = 0) {
    routecap_wire_options options{};
    options.struct_size = sizeof options, options.format = format, options.dtype = dtype,
    options.allow = allow;
    return options;
}

// Calls f(format, type, model) for all that go together.
void for_each(const std::function<void(int32_t, const Type &, const Model &)> &f) {
    for (const int32_t format : kArrays)
        for (const Type &type : kTypes)
            for (const Model &model : kModels) {
                if (!has_type(format, type) || type.most < model.k) continue;
                SCOPED_TRACE("format " + std::to_string(format) + ", " + type.name + ", " +
                             std::to_string(model.columns) + " columns of " +
                             std::to_string(model.k) + " of " + std::to_string(model.experts));
                f(format, type, model);
                if (testing::Test::HasFailure()) return;
            }
}

}  // namespace

// ---- Decoding -------------------------------------------------------------------------------

TEST(Wire, each_cell_of_each_format_arrives_or_is_named) {
    std::mt19937 random(1);
    for_each([&](int32_t format, const Type &type, const Model &model) {
        // Where less time is given, one of the numbers and one of the lengths below are drawn.
        std::vector<uint64_t> numbers{0, 1, 7, 90};
        std::shuffle(numbers.begin(), numbers.end(), random);
        numbers.resize(static_cast<size_t>(rig::draws(4)));
        for (const uint64_t rows : numbers)
            for (const bool wrong : {false, true}) {
                const Array array = random_array(model, rows, type, random, wrong);
                const Judged judged =
                    judge(array, columns_of(model),
                          std::vector<uint32_t>(columns_of(model).size(), model.experts));
                routecap_wire_hint hint = hint_for(model, format, type);
                if (format == ROUTECAP_WIRE_LISTS && rows == 0)
                    hint.columns = model.columns, hint.k = model.k;
                hint.first = 3;
                const std::string bytes = message(format, array, type, 3);
                const Decoded whole = decode(bytes, format, hint);
                expect_same_routing(judged, model, 3, whole);
                EXPECT_EQ(whole.report.format, format);
                EXPECT_EQ(whole.report.bytes, bytes.size());
                EXPECT_EQ(whole.report.first, 3u);
                // Thousands of pieces find what hundreds find.
                std::vector<size_t> lengths{1, 5, 4000};
                std::erase_if(lengths, [&](size_t most) { return bytes.size() >= 1000 * most; });
                std::shuffle(lengths.begin(), lengths.end(), random);
                lengths.resize(std::min(lengths.size(), static_cast<size_t>(rig::draws(3))));
                for (const size_t most : lengths)
                    expect_same_routing(judged, model, 3,
                                        decode_in_pieces(bytes, format, hint, most, random));
            }
    });
}

TEST(Wire, columns_of_dense_layers_are_left_out_and_looked_at) {
    const Type &type = kTypes[5];
    Array array{3, 5, 2, std::vector<int64_t>(30)};
    for (uint64_t r = 0; r < 3; r++)
        for (uint32_t c = 1; c < 5; c++)
            array.cell(r, c)[0] = static_cast<int64_t>(r + c), array.cell(r, c)[1] = 9;
    const Model model{5, 2, 16, {1, 2, 4}};
    routecap_wire_hint hint = hint_for(model, ROUTECAP_WIRE_NPY, type);
    const std::string bytes = message(ROUTECAP_WIRE_NPY, array, type);
    const Decoded decoded = decode(bytes, ROUTECAP_WIRE_NPY, hint);
    EXPECT_STATUS(ROUTECAP_OK, decoded.status);
    EXPECT_EQ(decoded.report.columns_left_out, 2u);
    // 3 is not said to be captured, and looks as if it were.
    EXPECT_EQ(decoded.report.columns_in_use, 1u);
    const routecap_view view = view_of(decoded.routing.get());
    EXPECT_EQ(std::vector<int32_t>(view.layer_map, view.layer_map + 3), model.map);

    hint.layer_map = nullptr;  // which of five columns are three layers is not guessed
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, decode(bytes, ROUTECAP_WIRE_NPY, hint).status);
    hint.layers = 6;
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, decode(bytes, ROUTECAP_WIRE_NPY, hint).status);
    const std::vector<int32_t> beyond = {1, 2, 5};
    hint.layers = 3, hint.layer_map = beyond.data();
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, decode(bytes, ROUTECAP_WIRE_NPY, hint).status);
    hint.layer_map = model.map.data(), hint.column_kind = ROUTECAP_WIRE_COLUMNS_CAPTURED;
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, decode(bytes, ROUTECAP_WIRE_NPY, hint).status);
}

// As many columns as layers, and the caller knows that they are those of the decoder: an engine
// that has dense layers would be found out.
TEST(Wire, the_kind_of_columns_can_be_insisted_on) {
    std::mt19937 random(3);
    const Model model{3, 2, 16, {}};
    const Array array = random_array(model, 4, kTypes[0], random, false);
    routecap_wire_hint hint = hint_for(model, ROUTECAP_WIRE_NPY, kTypes[0]);
    const int32_t map[] = {1, 2, 3};
    hint.layers = 3, hint.layer_map = map;
    const std::string bytes = message(ROUTECAP_WIRE_NPY, array, kTypes[0]);
    EXPECT_STATUS(ROUTECAP_OK, decode(bytes, ROUTECAP_WIRE_NPY, hint).status);
    hint.column_kind = ROUTECAP_WIRE_COLUMNS_DECODER;
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, decode(bytes, ROUTECAP_WIRE_NPY, hint).status);
}

TEST(Wire, what_the_bytes_say_and_what_the_hint_says_must_agree) {
    std::mt19937 random(4);
    const Model model{3, 2, 16, {}};
    const Array array = random_array(model, 4, kTypes[0], random, false);
    const std::string bytes = message(ROUTECAP_WIRE_OBJECT, array, kTypes[0], 5);
    const routecap_wire_hint right = hint_for(model, ROUTECAP_WIRE_OBJECT, kTypes[0]);
    EXPECT_STATUS(ROUTECAP_OK, decode(bytes, ROUTECAP_WIRE_OBJECT, right).status);
    EXPECT_EQ(decode(bytes, ROUTECAP_WIRE_OBJECT, right).report.first, 5u);
    const auto refused = [&](auto change) {
        routecap_wire_hint hint = right;
        change(hint);
        EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH,
                      decode(bytes, ROUTECAP_WIRE_OBJECT, hint).status);
    };
    refused([](auto &h) { h.rows = 3; });  // four rows where three tokens were input: S or S - 1
    refused([](auto &h) { h.rows = 5; });
    refused([](auto &h) { h.columns = 4; });
    refused([](auto &h) { h.layers = 4; });
    refused([](auto &h) { h.k = 3; });
    refused([](auto &h) { h.first = 4; });
    refused([](auto &h) { h.dtype = ROUTECAP_DTYPE_I8; });
    routecap_wire_hint raw_hint = hint_for(model, ROUTECAP_WIRE_RAW, kTypes[5]);
    const std::string raw_bytes = message(ROUTECAP_WIRE_RAW, array, kTypes[5]);
    raw_hint.rows = 4;
    EXPECT_STATUS(ROUTECAP_OK, decode(raw_bytes, ROUTECAP_WIRE_RAW, raw_hint).status);
    raw_hint.rows = 3;
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH,
                  decode(raw_bytes, ROUTECAP_WIRE_RAW, raw_hint).status);
    raw_hint.rows = 0, raw_hint.k = 0;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, decode(raw_bytes, ROUTECAP_WIRE_RAW, raw_hint).status);
}

TEST(Wire, strict_decoding_refuses_a_missing_cell) {
    Array array{2, 1, 2, {1, 2, -1, -1}};
    const Model model{1, 2, 16, {}};
    routecap_wire_hint hint = hint_for(model, ROUTECAP_WIRE_NRLRE1, kTypes[1]);
    EXPECT_STATUS(
        ROUTECAP_INCOMPLETE,
        decode(message(ROUTECAP_WIRE_NRLRE1, array, kTypes[1]), ROUTECAP_WIRE_NRLRE1, hint).status);
    hint.flags = ROUTECAP_WIRE_HINT_STRICT;
    EXPECT_STATUS(
        ROUTECAP_ERR_INCOMPLETE,
        decode(message(ROUTECAP_WIRE_NRLRE1, array, kTypes[1]), ROUTECAP_WIRE_NRLRE1, hint).status);
}

// Megatron-Core 0.19 sends its arrays so.
TEST(Wire, lists_may_be_wrapped_with_their_type) {
    const routecap_wire_hint hint = hint_for({1, 2, 16, {}}, ROUTECAP_WIRE_LISTS, kTypes[0]);
    const std::string around =
        "[\"ndarray\", {\"data\": [[[1, 2]], [[3,4]]], \"dtype\": \"int16\"}]";
    std::mt19937 random(10);
    for (const Decoded &decoded :
         {decode(around, ROUTECAP_WIRE_ANY, hint),
          decode_in_pieces(around, ROUTECAP_WIRE_LISTS, hint, 3, random)}) {
        EXPECT_STATUS(ROUTECAP_OK, decoded.status);
        expect_routing(decoded.routing.get(), {.layers = 1, .k = 2, .experts = 16}, 0,
                       {{Cell({1, 2})}, {Cell({3, 4})}});
    }
    for (const char *text : {"[\"ndarray\",{\"data\":[[[1,2]]],\"dtype\":\"int16\"}",
                             "[\"ndarray\",{\"data\":[[[1,2]]]}]", "[\"tensor\",[[[1,2]]]]",
                             "[\"ndarray\",{\"data\":[[[1,2]]],\"dtype\":\"int16\"}]]"})
        EXPECT_STATUS(ROUTECAP_ERR_FORMAT, decode(text, ROUTECAP_WIRE_LISTS, hint).status);
}

// What is claimed is not believed: no memory is taken for it.
TEST(Wire, sizes_that_are_not_there_are_refused) {
    const Model model{58, 8, 256, {}};
    const routecap_wire_hint hint = hint_for(model, ROUTECAP_WIRE_NRLRE1, kTypes[0]);
    for (const char *text :
         {"nrlre1:int16:1000000000000x58x8:AAAA", "nrlre1:int16:18446744073709551615x1024x32:AAAA",
          "nrlre1:int16:1x58x8:", "nrlre1:int16:1x58x8:AAA", "nrlre1:int16:0x58x8:AAAA",
          "nrlre1:float32:1x58x8:AAAA", "nrlre1:int16:1x58x08:AAAA", "nrlre1:int16:1x58:AAAA",
          "nrlre2:int16:1x58x8:AAAA", "nrlre1:int16:-1x58x8:AAAA", "nrlre1:int16:1x58x33:AAAA",
          "nrlre1", ""})
        EXPECT_STATUS(ROUTECAP_ERR_FORMAT, decode(text, ROUTECAP_WIRE_NRLRE1, hint).status);
    for (const char *text :
         {"{\"data\":\"AAAA\",\"shape\":[1,58,8]", "{\"data\":\"AAAA\"}", "{\"shape\":[1,58,8]}",
          "{\"data\":\"AA\\/A\",\"shape\":[1,58,8]}",
          "{\"data\":\"AAAA\",\"data\":\"AAAA\",\"shape\":[1,58,8]}",
          "{\"data\":\"AAAA\",\"shape\":[1,58,8]} x", "{\"data\":1,\"shape\":[1,58,8]}",
          "{\"data\":\"AAAA\",\"shape\":[1,58,8],\"dtype\":\"float\"}",
          "{\"data\":\"AAAA\",\"shape\":[1,58,8],\"start\":-1}", "[]", "{", "{}"})
        EXPECT_STATUS(ROUTECAP_ERR_FORMAT, decode(text, ROUTECAP_WIRE_OBJECT, hint).status);
    for (const char *text :
         {"[[[1,2],[3]]]", "[[[1,2]],[[1,2],[3,4]]]", "[[[1,2]]", "[[[1,2]]]]", "[[[1,]]]",
          "[[[1 2]]]", "[[[1.5]]]", "[[[01]]]", "[[[\"1\"]]]", "[[1]]", "[[[[1]]]]", "[[[]]]",
          "[[]]", "[,]", "[[[1]],]", "[[[-]]]", "[[[12345678901234567890]]]", "1", "[[[1]]]x"})
        EXPECT_STATUS(ROUTECAP_ERR_FORMAT, decode(text, ROUTECAP_WIRE_LISTS, hint).status);
}

TEST(Wire, memory_stays_within_the_callers_budget) {
    std::mt19937 random(5);
    const Model model{4, 8, 256, {}};
    const Array array = random_array(model, 500, kTypes[0], random, false);
    for (const int32_t format : kArrays) {
        routecap_wire_hint hint = hint_for(model, format, kTypes[0]);
        const std::string bytes = message(format, array, kTypes[0]);
        // A row has 4 * 8 ids, a byte of validity, and zeros up to a multiple of 8.
        hint.budget_bytes = 500 * 40 - 1;
        EXPECT_STATUS(ROUTECAP_ERR_NO_MEMORY, decode(bytes, format, hint).status);
        EXPECT_STATUS(ROUTECAP_ERR_NO_MEMORY,
                      decode_in_pieces(bytes, format, hint, 1000, random).status);
        // Pieces are kept, and count.
        hint.budget_bytes = bytes.size() + 500 * 40 - 1;
        EXPECT_STATUS(ROUTECAP_OK, decode(bytes, format, hint).status);
        EXPECT_STATUS(ROUTECAP_ERR_NO_MEMORY,
                      decode_in_pieces(bytes, format, hint, 1000, random).status);
        hint.budget_bytes++;
        EXPECT_STATUS(ROUTECAP_OK, decode_in_pieces(bytes, format, hint, 1000, random).status);
    }
}

TEST(Wire, a_decoder_repeats_its_error_and_ends_once) {
    const Model model{1, 2, 16, {}};
    const routecap_wire_hint hint = hint_for(model, ROUTECAP_WIRE_LISTS, kTypes[5]);
    routecap_wire_decoder *decoder = nullptr;
    routecap_routing *routing = nullptr;
    ASSERT_STATUS(ROUTECAP_OK, routecap_wire_decoder_create(ROUTECAP_WIRE_LISTS, &hint, &decoder));
    EXPECT_STATUS(ROUTECAP_OK, routecap_wire_decoder_write(decoder, "[[", 2));
    EXPECT_STATUS(ROUTECAP_OK, routecap_wire_decoder_write(decoder, "x", 1));
    EXPECT_STATUS(ROUTECAP_ERR_FORMAT, routecap_wire_decoder_finish(decoder, nullptr, &routing));
    const std::string text = routecap_last_error();
    EXPECT_STATUS(ROUTECAP_ERR_FORMAT, routecap_wire_decoder_write(decoder, "[1,2]]]", 7));
    EXPECT_EQ(text, routecap_last_error());
    EXPECT_STATUS(ROUTECAP_ERR_FORMAT, routecap_wire_decoder_finish(decoder, nullptr, &routing));
    EXPECT_EQ(text, routecap_last_error());
    routecap_wire_decoder_free(decoder);
    routecap_wire_hint small = hint;
    small.budget_bytes = 9;
    ASSERT_STATUS(ROUTECAP_OK, routecap_wire_decoder_create(ROUTECAP_WIRE_ANY, &small, &decoder));
    EXPECT_STATUS(ROUTECAP_OK, routecap_wire_decoder_write(decoder, "[[[1,2]]]", 9));
    EXPECT_STATUS(ROUTECAP_ERR_NO_MEMORY, routecap_wire_decoder_write(decoder, " ", 1));
    EXPECT_STATUS(ROUTECAP_ERR_NO_MEMORY, routecap_wire_decoder_finish(decoder, nullptr, &routing));
    routecap_wire_decoder_free(decoder);
    ASSERT_STATUS(ROUTECAP_OK, routecap_wire_decoder_create(ROUTECAP_WIRE_ANY, &hint, &decoder));
    EXPECT_STATUS(ROUTECAP_OK, routecap_wire_decoder_write(decoder, "[[[1,2]]]", 9));
    EXPECT_STATUS(ROUTECAP_OK, routecap_wire_decoder_finish(decoder, nullptr, &routing));
    routecap_routing_free(routing);
    EXPECT_STATUS(ROUTECAP_ERR_STATE, routecap_wire_decoder_write(decoder, "[", 1));
    EXPECT_STATUS(ROUTECAP_ERR_STATE, routecap_wire_decoder_finish(decoder, nullptr, &routing));
    routecap_wire_decoder_free(decoder);
    routecap_wire_decoder_free(nullptr);
}

// Only so many blanks are looked through.
TEST(Wire, blanks_before_a_message_end_where_its_format_must_be_known) {
    const Model model{1, 2, 16, {}};
    const routecap_wire_hint hint = hint_for(model, ROUTECAP_WIRE_LISTS, kTypes[5]);
    for (const size_t blanks : {511u, 512u, 513u}) {
        const int32_t status = blanks < 512 ? ROUTECAP_OK : ROUTECAP_ERR_FORMAT;
        const std::string bytes = std::string(blanks, ' ') + "[[[1,2]]]";
        routecap_wire_decoder *decoder = nullptr;
        routecap_routing *routing = nullptr;
        ASSERT_STATUS(ROUTECAP_OK,
                      routecap_wire_decoder_create(ROUTECAP_WIRE_ANY, &hint, &decoder));
        for (size_t i = 0; i < bytes.size(); i++)
            ASSERT_STATUS(ROUTECAP_OK, routecap_wire_decoder_write(decoder, &bytes[i], 1));
        EXPECT_STATUS(status, routecap_wire_decoder_finish(decoder, nullptr, &routing));
        routecap_routing_free(routing);
        routecap_wire_decoder_free(decoder);
        EXPECT_STATUS(status, routecap_wire_decode(bytes.data(), bytes.size(), ROUTECAP_WIRE_ANY,
                                                   &hint, nullptr, &routing));
        routecap_routing_free(routing);
    }
}

// ---- What bytes are -------------------------------------------------------------------------

TEST(Wire, formats_are_found_by_name_writer_and_ending) {
    routecap_wire_description description{.struct_size = sizeof description};
    int32_t format = ROUTECAP_WIRE_SERIALIZED;
    std::set<std::string> names;
    for (; routecap_wire_describe(format, &description) == ROUTECAP_OK; format++) {
        EXPECT_EQ(description.format, format);
        int32_t found = 0;
        EXPECT_STATUS(ROUTECAP_OK, routecap_wire_find(description.name, &found));
        EXPECT_EQ(found, format);
        if (*description.ending != '\0') {
            EXPECT_STATUS(ROUTECAP_OK, routecap_wire_find(description.ending, &found));
            EXPECT_EQ(found, format);
        }
        EXPECT_TRUE(names.insert(description.name).second);
    }
    EXPECT_EQ(format, ROUTECAP_WIRE_LISTS + 1);
    const std::pair<const char *, int32_t> writers[] = {
        {"vllm", ROUTECAP_WIRE_NPY_BASE64}, {"sglang", ROUTECAP_WIRE_RAW_BASE64},
        {"megatron", ROUTECAP_WIRE_LISTS},  {"prime-rl", ROUTECAP_WIRE_OBJECT},
        {"dynamo", ROUTECAP_WIRE_OBJECT},   {"nemo-rl", ROUTECAP_WIRE_NRLRE1}};
    for (const auto &[name, expected] : writers) {
        EXPECT_STATUS(ROUTECAP_OK, routecap_wire_find(name, &format));
        EXPECT_EQ(format, expected);
    }
    for (const char *name : {"", "prime", "rl", "NPY", ".txt", "dynamo prime-rl"})
        EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_wire_find(name, &format));
}

TEST(Wire, the_beginning_says_what_bytes_are) {
    std::mt19937 random(7);
    const Model model{3, 2, 16, {}};
    const Array array = random_array(model, 300, kTypes[3], random, false);
    for (const int32_t format : kArrays) {
        if (format == ROUTECAP_WIRE_RAW) continue;
        SCOPED_TRACE(format);
        std::string bytes = message(format, array, kTypes[3]);
        const Decoded any =
            decode(bytes, ROUTECAP_WIRE_ANY, hint_for(model, ROUTECAP_WIRE_NPY, kTypes[3]));
        EXPECT_STATUS(format == ROUTECAP_WIRE_RAW_BASE64 ? ROUTECAP_ERR_FORMAT : ROUTECAP_OK,
                      any.status);
    }
    EXPECT_STATUS(ROUTECAP_ERR_FORMAT, decode("what else", ROUTECAP_WIRE_ANY,
                                              hint_for(model, ROUTECAP_WIRE_NPY, kTypes[3]))
                                           .status);
}

// ---- Encoding -------------------------------------------------------------------------------

TEST(Wire, what_is_encoded_is_what_others_write_and_comes_back) {
    std::mt19937 random(8);
    for_each([&](int32_t format, const Type &type, const Model &model) {
        const bool wrong = type.least < 0;
        const Array array = random_array(model, 40, type, random, wrong);
        const Decoded decoded =
            decode(message(format, array, type), format, hint_for(model, format, type));
        ASSERT_GE(decoded.status, 0) << decoded.text;
        const bool fits = type.most >= model.experts - 1, chosen = format != ROUTECAP_WIRE_LISTS;
        routecap_wire_options options =
            options_for(format, chosen ? type.dtype : 0, ROUTECAP_WIRE_FACT_REASONS);
        if (!model.map.empty())
            options.column_kind = ROUTECAP_WIRE_COLUMNS_DECODER, options.columns = model.columns;
        if (format == ROUTECAP_WIRE_NRLRE1 && (type.least == 0 || type.bytes == 8)) {
            EXPECT_STATUS(ROUTECAP_ERR_DTYPE, routecap_wire_encode(decoded.routing.get(), &options,
                                                                   nullptr, 0, nullptr, nullptr));
            return;
        }
        if (!fits) {
            EXPECT_STATUS(ROUTECAP_ERR_DTYPE, routecap_wire_encode(decoded.routing.get(), &options,
                                                                   nullptr, 0, nullptr, nullptr));
            return;
        }
        // Missing cells become -1, and what is no captured layer 0; the rest is as it was.
        Array expected{array.rows, array.columns, array.k, std::vector<int64_t>(array.ids.size())};
        const std::vector<uint32_t> columns = columns_of(model);
        const Judged judged =
            judge(array, columns, std::vector<uint32_t>(columns.size(), model.experts));
        for (uint64_t r = 0; r < array.rows; r++)
            for (size_t l = 0; l < columns.size(); l++)
                for (uint32_t c = 0; c < array.k; c++)
                    expected.cell(r, columns[l])[c] =
                        judged.rows[r][l] ? (*judged.rows[r][l])[c] : -1;
        routecap_wire_report report{.struct_size = sizeof report};
        if (!wrong) options.allow = 0;
        const Bytes bytes = encoded(decoded.routing.get(), options, &report);
        EXPECT_EQ(std::string(bytes.begin(), bytes.end()), message(format, expected, type));
        EXPECT_EQ(report.lost, judged.report.cells_valid == judged.rows.size() * columns.size()
                                   ? 0
                                   : ROUTECAP_WIRE_FACT_REASONS);
        EXPECT_EQ(report.bytes, bytes.size());
    });
}

TEST(Wire, the_usual_type_is_that_of_the_writers) {
    struct {
        int32_t format;
        uint32_t experts;
        int32_t dtype;
    } cases[] = {{ROUTECAP_WIRE_NPY, 256, ROUTECAP_DTYPE_U8},
                 {ROUTECAP_WIRE_NPY_BASE64, 257, ROUTECAP_DTYPE_U16},
                 {ROUTECAP_WIRE_OBJECT, 512, ROUTECAP_DTYPE_U16},
                 {ROUTECAP_WIRE_RAW_BASE64, 64, ROUTECAP_DTYPE_I32},
                 {ROUTECAP_WIRE_NRLRE1, 128, ROUTECAP_DTYPE_I8},
                 {ROUTECAP_WIRE_NRLRE1, 129, ROUTECAP_DTYPE_I16}};
    for (const auto &[format, experts, dtype] : cases) {
        routecap_wire_hint hint = hint_for({1, 2, experts, {}}, ROUTECAP_WIRE_LISTS, kTypes[0]);
        const Decoded decoded = decode("[[[1,2]]]", ROUTECAP_WIRE_LISTS, hint);
        routecap_wire_report report{.struct_size = sizeof report};
        encoded(decoded.routing.get(), options_for(format), &report);
        EXPECT_EQ(report.dtype, dtype);
    }
}

TEST(Wire, nothing_is_lost_without_leave) {
    const uint8_t ids[] = {1, 2, 3, 4, ROUTECAP_MISSING_DUPLICATE, 0, 5, 6}, validity[] = {3, 2};
    const uint64_t tags[] = {0, 9};
    const int32_t map[] = {1, 2}, provenance[] = {0, ROUTECAP_PROVENANCE_RECOMPUTED};
    routecap_segment segment{};
    segment.first = 4, segment.rows = 2, segment.ids = ids, segment.validity = validity,
    segment.tags = tags;
    routecap_view view{};
    view.struct_size = sizeof view, view.dtype = ROUTECAP_DTYPE_U8, view.layers = 2, view.k = 2,
    view.experts = 16, view.validity_bytes = 1;
    view.id_space = ROUTECAP_ID_SPACE_PHYSICAL, view.first = 4, view.rows = 2, view.layer_map = map,
    view.layer_provenance = provenance;
    view.segments = &segment, view.segment_size = sizeof segment, view.segment_count = 1;
    routecap_routing *routing = nullptr;
    ASSERT_STATUS(ROUTECAP_INCOMPLETE,
                  routecap_routing_import(&view, 0, nullptr, nullptr, &routing));
    const RoutingPtr owner(routing);
    const uint32_t everything = ROUTECAP_WIRE_FACT_LAYERS | ROUTECAP_WIRE_FACT_FIRST |
                                ROUTECAP_WIRE_FACT_VALIDITY | ROUTECAP_WIRE_FACT_REASONS |
                                ROUTECAP_WIRE_FACT_TAGS | ROUTECAP_WIRE_FACT_ID_SPACE |
                                ROUTECAP_WIRE_FACT_PROVENANCE;
    const auto lost = [&](routecap_wire_options options) {
        options.allow = 1023;
        routecap_wire_report report{.struct_size = sizeof report};
        encoded(routing, options, &report);
        for (uint32_t fact = 1; fact <= ROUTECAP_WIRE_FACT_PROVENANCE; fact <<= 1) {
            options.allow = 1023 & ~fact;
            EXPECT_STATUS(
                (report.lost & fact) != 0 ? ROUTECAP_ERR_LOSSY : ROUTECAP_ERR_BUFFER_TOO_SMALL,
                routecap_wire_encode(routing, &options, nullptr, 0, nullptr, nullptr));
        }
        return report.lost;
    };
    EXPECT_EQ(lost(options_for(ROUTECAP_WIRE_NPY)), everything);
    EXPECT_EQ(lost(options_for(ROUTECAP_WIRE_NPY, ROUTECAP_DTYPE_I16)),
              everything & ~ROUTECAP_WIRE_FACT_VALIDITY);
    EXPECT_EQ(lost(options_for(ROUTECAP_WIRE_OBJECT)), everything & ~ROUTECAP_WIRE_FACT_FIRST);
    EXPECT_EQ(lost(options_for(ROUTECAP_WIRE_SERIALIZED)), 0u);
    routecap_wire_options decoder = options_for(ROUTECAP_WIRE_LISTS);
    decoder.column_kind = ROUTECAP_WIRE_COLUMNS_DECODER;
    EXPECT_EQ(lost(decoder),
              everything & ~ROUTECAP_WIRE_FACT_VALIDITY & ~ROUTECAP_WIRE_FACT_LAYERS);
    decoder.allow = 1023;
    const Bytes text = encoded(routing, decoder);
    EXPECT_EQ(std::string(text.begin(), text.end()), "[[[0,0],[1,2],[3,4]],[[0,0],[-1,-1],[5,6]]]");
    routecap_wire_options filled = options_for(ROUTECAP_WIRE_RAW, ROUTECAP_DTYPE_U8, 1023);
    filled.fill = 255;
    EXPECT_EQ(encoded(routing, filled), (Bytes{1, 2, 3, 4, 255, 255, 5, 6}));
    for (const int64_t fill : {-1, 256}) {
        filled.fill = fill;
        EXPECT_STATUS(ROUTECAP_ERR_DTYPE,
                      routecap_wire_encode(routing, &filled, nullptr, 0, nullptr, nullptr));
    }
    decoder.columns = 2;
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH,
                  routecap_wire_encode(routing, &decoder, nullptr, 0, nullptr, nullptr));

    const Bytes serialized = encoded(routing, options_for(ROUTECAP_WIRE_SERIALIZED));
    routecap_routing *back = nullptr;
    routecap_wire_report report{.struct_size = sizeof report};
    EXPECT_STATUS(ROUTECAP_INCOMPLETE,
                  routecap_wire_decode(serialized.data(), serialized.size(), ROUTECAP_WIRE_ANY,
                                       nullptr, &report, &back));
    EXPECT_EQ(report.cells_valid, 3u);
    EXPECT_EQ(encoded(back, options_for(ROUTECAP_WIRE_SERIALIZED)), serialized);
    routecap_routing_free(back);
}
