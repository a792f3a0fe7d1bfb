#include "model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "../support/crc32c.h"
#include "../support/declared.h"

namespace model {

// ---- Rows ----------------------------------------------------------------------------------

uint32_t Shape::experts() const {
    uint32_t most = 0;
    for (const Layer &layer : layers) most = std::max(most, layer.experts);
    return most;
}

bool Shape::fewer() const {
    return std::any_of(layers.begin(), layers.end(),
                       [&](const Layer &layer) { return layer.least < k; });
}

bool Shape::matches(const Shape &o) const {
    return same(o) && std::equal(layers.begin(), layers.end(), o.layers.begin(), o.layers.end(),
                                 [](const Layer &a, const Layer &b) { return a.same(b); });
}
bool Shape::takes(const Shape &o) const {
    bool captured = true;
    for (size_t l = 0; l < std::min(cells(), o.cells()); l++)
        captured &= o.layers[l].provenance <= layers[l].provenance;
    return captured && matches(o);
}

bool Row::any() const {
    return std::any_of(missing.begin(), missing.end(), [](uint8_t reason) { return reason == 0; });
}
bool Row::complete() const {
    return std::all_of(missing.begin(), missing.end(), [](uint8_t reason) { return reason == 0; });
}
bool Row::there() const {
    return std::any_of(missing.begin(), missing.end(),
                       [](uint8_t reason) { return reason == 0 || !of_whole_rows(reason); });
}
uint8_t Row::reason() const {
    const bool one = std::count(missing.begin(), missing.end(), missing.front()) ==
                     static_cast<ptrdiff_t>(missing.size());
    return one && of_whole_rows(missing.front()) ? missing.front() : 0;
}

int rank(uint8_t reason) {
    return static_cast<int>(std::end(kBestFirst) -
                            std::find(std::begin(kBestFirst), std::end(kBestFirst), reason));
}
bool of_whole_rows(uint8_t reason) {
    return std::find(std::begin(kOfRows), std::end(kOfRows), reason) != std::end(kOfRows);
}

bool Row::same_set(const Row &other, size_t layer) const {
    const size_t k = ids.size() / missing.size();
    const uint16_t *mine = ids.data() + layer * k, *others = other.ids.data() + layer * k;
    return std::is_permutation(mine, mine + k, others);
}

uint8_t judge(const std::vector<int64_t> &cell, const Layer &layer) {
    const std::vector<int64_t> experts(
        cell.begin(), std::find(cell.begin(), cell.end(), int64_t{ROUTECAP_NO_EXPERT}));
    const auto unused =
        static_cast<size_t>(std::count(cell.begin(), cell.end(), int64_t{ROUTECAP_NO_EXPERT}));
    const bool counts = experts.size() + unused == cell.size() && experts.size() >= layer.least &&
                        experts.size() <= layer.k;
    if (!counts || std::any_of(experts.begin(), experts.end(),
                               [&](int64_t id) { return id < 0 || id >= layer.experts; }))
        return ROUTECAP_MISSING_OUT_OF_RANGE;
    return std::set(experts.begin(), experts.end()).size() < experts.size()
               ? ROUTECAP_MISSING_DUPLICATE
               : 0;
}

std::shared_ptr<Row> empty_row(const Shape &shape, uint8_t reason) {
    auto row = std::make_shared<Row>();
    row->ids.resize(shape.cells() * shape.k);
    row->missing.assign(shape.cells(), reason);
    for (size_t l = 0; l < shape.cells(); l++) row->ids[l * shape.k] = reason;
    return row;
}

RowPtr unite(const RowPtr &first, const RowPtr &second) {
    if (first == nullptr || second == nullptr) return first == nullptr ? second : first;
    if (first->complete()) return first;
    if (!first->any() && second->complete()) return second;
    auto row = std::make_shared<Row>(*first);
    const size_t k = row->ids.size() / row->missing.size();
    bool fills = false;
    for (size_t l = 0; l < row->missing.size(); l++) {
        if (row->valid(l) ||
            (!second->valid(l) && rank(second->missing[l]) <= rank(row->missing[l])))
            continue;
        fills |= second->valid(l);
        row->missing[l] = second->missing[l];
        std::copy_n(second->ids.begin() + static_cast<ptrdiff_t>(l * k), k,
                    row->ids.begin() + static_cast<ptrdiff_t>(l * k));
        if (second->weights.count(l) > 0) row->weights[l] = second->weights.at(l);
    }
    if (!first->any() && (second->any() || !first->there())) row->tag = second->tag;
    if (first->any() && fills) row->tag = std::min(first->tag, second->tag);
    return row;
}

// ---- Routings ------------------------------------------------------------------------------

RowPtr Routing::at(uint64_t position) const {
    const auto found = content.find(position);
    return found == content.end() ? nullptr : found->second;
}

int32_t Routing::status() const {
    uint64_t complete = 0;
    bool any = false;
    for (const auto &[position, row] : content) complete += row->complete(), any |= row->any();
    return complete == rows ? ROUTECAP_OK : any ? ROUTECAP_INCOMPLETE : ROUTECAP_NOT_CAPTURED;
}

int32_t Routing::strict(uint32_t flags) const {
    if ((flags & ROUTECAP_READ_STRICT) == 0) return ROUTECAP_OK;
    if (status() != ROUTECAP_OK) return ROUTECAP_ERR_INCOMPLETE;
    const bool recomputed =
        rows > 0 && std::any_of(shape->layers.begin(), shape->layers.end(),
                                [](const Layer &l) { return l.provenance != 0; });
    return recomputed && (flags & ROUTECAP_READ_ALLOW_RECOMPUTED) == 0 ? ROUTECAP_ERR_RECOMPUTED
                                                                       : ROUTECAP_OK;
}

routecap_coverage Routing::coverage(uint64_t length, std::vector<routecap_missing> &blocks) const {
    routecap_coverage c{};
    c.layers = static_cast<uint32_t>(shape->cells());
    c.first = first, c.rows = rows, c.length = length;
    const RowPtr none = empty_row(*shape, ROUTECAP_MISSING_ABSENT);
    std::vector<uint8_t> before(shape->cells(), 0);
    size_t run = 0;  // where the blocks of rows like this one begin
    for (uint64_t p = first; p < end(); p++) {
        const RowPtr kept = at(p);
        const Row &row = kept != nullptr ? *kept : *none;
        (row.complete() ? c.rows_complete : row.any() ? c.rows_partial : c.rows_empty)++;
        for (size_t l = 0; l < shape->cells(); l++) {
            c.cells_missing += !row.valid(l);
            c.cells_weighted += row.weights.count(l);
            c.cells_recomputed +=
                row.valid(l) && shape->layers[l].provenance == ROUTECAP_PROVENANCE_RECOMPUTED;
        }
        if (p > first && row.missing == before) {
            for (size_t b = run; b < blocks.size(); b++) blocks[b].rows++;
            continue;
        }
        run = blocks.size();
        for (uint32_t l = 0; l < shape->cells(); l++) {
            if (row.valid(l)) continue;
            if (l > 0 && row.missing[l - 1] == row.missing[l])
                blocks.back().layers++;
            else
                blocks.push_back({p, 1, l, 1, row.missing[l], 0});
        }
        before = row.missing;
    }
    c.blocks = blocks.size();
    return c;
}

Routing Routing::part(uint64_t from, uint64_t count) const {
    return {shape, from, count, Rows(content.lower_bound(from), content.lower_bound(from + count))};
}

Routing Routing::of_layers(size_t first_layer, size_t layers) const {
    auto narrow = std::make_shared<Shape>(*shape);
    const auto from = shape->layers.begin() + static_cast<ptrdiff_t>(first_layer);
    narrow->layers.assign(from, from + static_cast<ptrdiff_t>(layers));
    Routing routing{narrow, first, rows};
    for (const auto &[position, row] : content) {
        auto part = std::make_shared<Row>();
        part->tag = row->tag;
        part->ids.assign(
            row->ids.begin() + static_cast<ptrdiff_t>(first_layer * shape->k),
            row->ids.begin() + static_cast<ptrdiff_t>((first_layer + layers) * shape->k));
        part->missing.assign(row->missing.begin() + static_cast<ptrdiff_t>(first_layer),
                             row->missing.begin() + static_cast<ptrdiff_t>(first_layer + layers));
        for (const auto &[layer, weights] : row->weights)
            if (layer >= first_layer && layer < first_layer + layers)
                part->weights[layer - first_layer] = weights;
        routing.content.emplace(position, part);
    }
    return routing;
}

// The one form that the header specifies.
std::vector<uint8_t> Routing::serialize() const {
    enum : uint32_t { kPresent = 1, kComplete = 2 };
    // Consecutive rows of one kind.
    struct Run {
        uint64_t rows, tag;
        uint32_t flags, reason;  // 0 stands for ABSENT
    };
    std::vector<Run> runs;
    std::vector<uint8_t> records, checks;
    const auto put = [](std::vector<uint8_t> &to, uint64_t value, size_t bytes) {
        for (size_t b = 0; b < bytes; b++) to.push_back(static_cast<uint8_t>(value >> 8 * b));
    };
    const auto kind = [](const RowPtr &row) -> Run {
        if (row == nullptr || row->reason() == ROUTECAP_MISSING_ABSENT) return {1, 0, 0, 0};
        if (row->reason() != 0) return {1, 0, 0, row->reason()};
        return {1, row->tag, row->complete() ? kPresent | kComplete : kPresent, 0};
    };
    for (uint64_t p = first; p < end(); p++) {
        const Run run = kind(at(p));
        if (!runs.empty() && runs.back().tag == run.tag && runs.back().flags == run.flags &&
            runs.back().reason == run.reason)
            runs.back().rows++;
        else
            runs.push_back(run);
        if (run.flags == 0) continue;
        const std::vector<uint8_t> record = shape->record(*at(p));
        std::vector<uint8_t> checked;
        put(checked, p, 8);
        checked.insert(checked.end(), record.begin(), record.end());
        put(checks, crc32c(checked), 4);
        records.insert(records.end(), record.begin(), record.end());
    }
    std::vector<uint8_t> data(24);
    std::memcpy(data.data(), "RCAPROWS\1\0\0\0\0\0\0\0", 16);
    for (uint64_t number : {first, rows, static_cast<uint64_t>(runs.size()),
                            static_cast<uint64_t>(checks.size() / 4)})
        put(data, number, 8);
    for (uint64_t number :
         {static_cast<uint64_t>(shape->cells()), static_cast<uint64_t>(shape->k),
          static_cast<uint64_t>(shape->dtype()), static_cast<uint64_t>(shape->id_space),
          static_cast<uint64_t>(shape->stride()), static_cast<uint64_t>(shape->weights),
          uint64_t{0}, uint64_t{0}})
        put(data, number, 4);
    for (const Layer &layer : shape->layers)
        for (uint32_t number :
             {static_cast<uint32_t>(layer.index), layer.experts,
              static_cast<uint32_t>(layer.provenance), layer.k, layer.least, layer.visit})
            put(data, number, 4);
    for (const Run &run : runs)
        put(data, run.rows, 8), put(data, run.tag, 8), put(data, run.flags, 4),
            put(data, run.reason, 4);
    data.insert(data.end(), checks.begin(), checks.end());
    data.resize((data.size() + 63) / 64 * 64);
    const size_t head = data.size();
    data.insert(data.end(), records.begin(), records.end());
    const uint64_t bytes = data.size();
    for (size_t b = 0; b < 8; b++) data[16 + b] = static_cast<uint8_t>(bytes >> 8 * b);
    const uint32_t check = crc32c(data, head, 12);
    std::memcpy(data.data() + 12, &check, 4);
    return data;
}

size_t Shape::weights_begin() const {
    const size_t ids = cells() * k * id_bytes(), bits = (cells() + 7) / 8;
    if (weights == 0) return ids + bits;
    const size_t element = element_bytes(weights);
    return (ids + 2 * bits + element - 1) / element * element;
}

size_t Shape::stride() const {
    size_t unit = 1;
    while (unit < 16 && k * id_bytes() % (2 * unit) == 0) unit *= 2;
    const size_t element = weights != 0 ? element_bytes(weights) : 0;
    unit = std::max(unit, element);
    return (weights_begin() + cells() * k * element + unit - 1) / unit * unit;
}

std::optional<std::vector<uint32_t>> Shape::weigh(size_t experts,
                                                  const std::vector<uint32_t> *given) const {
    if (weights == 0 || (given == nullptr && experts > 0)) return {};
    std::vector<uint32_t> cell(k);
    for (size_t c = 0; c < experts; c++) {
        if (is_nan(given->at(c), weights)) return {};
        cell[c] = given->at(c);
    }
    return cell;
}

std::vector<uint8_t> Shape::record(const Row &row) const {
    std::vector<uint8_t> bytes(stride());
    for (size_t i = 0; i < row.ids.size(); i++)
        for (size_t b = 0; b < id_bytes(); b++)
            bytes[i * id_bytes() + b] = static_cast<uint8_t>(row.ids[i] >> 8 * b);
    uint8_t *const validity = bytes.data() + cells() * k * id_bytes();
    for (size_t l = 0; l < cells(); l++)
        validity[l / 8] = static_cast<uint8_t>(validity[l / 8] | row.valid(l) << l % 8);
    const size_t element = element_bytes(weights);
    for (const auto &[layer, cell] : row.weights) {
        uint8_t &byte = validity[(cells() + 7) / 8 + layer / 8];
        byte = static_cast<uint8_t>(byte | 1 << layer % 8);
        for (size_t c = 0; c < k; c++)
            std::memcpy(&bytes[weights_begin() + (layer * k + c) * element], &cell[c], element);
    }
    return bytes;
}

int32_t merge(const std::vector<RoutingPtr> &routings, RoutingPtr &merged) {
    for (const RoutingPtr &r : routings)
        if (r->pending != nullptr) return ROUTECAP_ERR_NOT_READY;
    const Shape &head = *routings.front()->shape;
    std::map<std::pair<int32_t, uint32_t>, Layer> layers;
    uint64_t first = UINT64_MAX, end = 0;
    for (const RoutingPtr &r : routings) {
        if (!r->shape->same(head)) return ROUTECAP_ERR_SHAPE_MISMATCH;
        for (const Layer &layer : r->shape->layers) {
            Layer &known = layers.emplace(layer.key(), layer).first->second;
            if (!known.same(layer)) return ROUTECAP_ERR_SHAPE_MISMATCH;
            known.provenance = std::max(known.provenance, layer.provenance);
        }
        if (r->rows > 0) first = std::min(first, r->first), end = std::max(end, r->end());
    }
    auto shape = std::make_shared<Shape>(Shape{{}, head.k, head.id_space, head.weights});
    std::map<std::pair<int32_t, uint32_t>, size_t> place;
    for (const auto &[key, layer] : layers)
        place[key] = shape->layers.size(), shape->layers.push_back(layer);
    if (end == 0) first = end = routings.front()->first;
    merged = std::make_shared<Routing>(Routing{shape, first, end - first});
    // First the rows that somebody has: what nobody has a cell of keeps the tag of such a one.
    for (const bool there : {true, false})
        for (const RoutingPtr &r : routings)
            for (const auto &[position, row] : r->content) {
                if (row->there() != there) continue;
                auto wide = empty_row(*shape, ROUTECAP_MISSING_ABSENT);
                wide->tag = row->tag;
                for (size_t l = 0; l < row->missing.size(); l++) {
                    const size_t to = place[r->shape->layers[l].key()];
                    wide->missing[to] = row->missing[l];
                    std::copy_n(row->ids.begin() + static_cast<ptrdiff_t>(l * head.k), head.k,
                                wide->ids.begin() + static_cast<ptrdiff_t>(to * head.k));
                    if (row->weights.count(l) > 0) wide->weights[to] = row->weights.at(l);
                }
                RowPtr &known = merged->content[position];
                for (size_t l = 0; known != nullptr && l < shape->cells(); l++)
                    if (known->valid(l) && wide->valid(l) && !known->same_set(*wide, l))
                        return merged = nullptr, ROUTECAP_ERR_CONFLICT;
                known = unite(known, wide);
            }
    return merged->status();
}

RoutingPtr splice(const Routing &head, const Routing &tail, uint64_t row) {
    auto shape = std::make_shared<Shape>(*head.shape);
    if (!shape->matches(*tail.shape)) return nullptr;
    for (size_t l = 0; l < shape->cells(); l++)
        shape->layers[l].provenance =
            std::max(shape->layers[l].provenance, tail.shape->layers[l].provenance);
    const uint64_t first = std::min(head.first, row), end = std::max(tail.end(), row);
    Rows content(head.content.begin(), head.content.lower_bound(row));
    content.insert(tail.content.lower_bound(row), tail.content.end());
    return std::make_shared<Routing>(Routing{shape, first, end - first, std::move(content)});
}

// ---- Copies --------------------------------------------------------------------------------

size_t element_bytes(int32_t dtype) {
    switch (dtype) {
        case ROUTECAP_DTYPE_U8: return 1;
        case ROUTECAP_DTYPE_I16:
        case ROUTECAP_DTYPE_U16:
        case ROUTECAP_DTYPE_F16:
        case ROUTECAP_DTYPE_BF16: return 2;
        case ROUTECAP_DTYPE_I64: return 8;
        default: return 4;
    }
}

bool of_weights(int32_t dtype) {
    return dtype == ROUTECAP_DTYPE_F32 || dtype == ROUTECAP_DTYPE_F16 ||
           dtype == ROUTECAP_DTYPE_BF16;
}

bool is_nan(uint32_t bits, int32_t dtype) {
    switch (dtype) {  // without the sign it is above infinity
        case ROUTECAP_DTYPE_F32: return (bits & 0x7fffffff) > 0x7f800000;
        case ROUTECAP_DTYPE_BF16: return (bits & 0x7fff) > 0x7f80;
        default: return (bits & 0x7fff) > 0x7c00;
    }
}

float widened(uint32_t bits, int32_t dtype) {
    if (dtype == ROUTECAP_DTYPE_F16) {  // a sign, 5 bits of exponent, 10 of fraction
        const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
        const auto exponent = static_cast<int>(bits >> 10 & 31);
        const auto fraction = static_cast<float>(bits & 0x3ff);
        if (exponent == 31) return sign * std::numeric_limits<float>::infinity();
        return sign * (exponent == 0 ? std::ldexp(fraction, -24)
                                     : std::ldexp(1024 + fraction, exponent - 25));
    }
    if (dtype == ROUTECAP_DTYPE_BF16) bits <<= 16;  // the upper half of a float
    float weight = 0;
    std::memcpy(&weight, &bits, sizeof weight);
    return weight;
}

// Where the options put each cell; 0, or what they are refused with.
static int32_t lay_out(const routecap_copy_options &o, const Routing &whole, Copied &copied) {
    const Shape &shape = *whole.shape;
    if (o.order != ROUTECAP_ORDER_ROW_MAJOR && o.order != ROUTECAP_ORDER_LAYER_MAJOR)
        return ROUTECAP_ERR_ARGUMENT;
    if (o.first_layer >= shape.cells() || o.layers > shape.cells() - o.first_layer)
        return ROUTECAP_ERR_UNKNOWN_LAYER;
    const uint64_t layers = o.layers != 0 ? o.layers : shape.cells() - o.first_layer, k = shape.k;
    copied.routing = whole.of_layers(o.first_layer, layers);
    const uint64_t rows = whole.rows;
    const bool row_major = o.order == ROUTECAP_ORDER_ROW_MAJOR;
    const uint64_t row_stride = o.row_stride != 0 ? static_cast<uint64_t>(o.row_stride)
                                : row_major       ? layers * k
                                                  : k;
    const uint64_t layer_stride = o.layer_stride != 0 ? static_cast<uint64_t>(o.layer_stride)
                                  : row_major         ? k
                                                      : rows * k;
    const auto nested = [&](uint64_t outer, uint64_t outer_stride, uint64_t inner,
                            uint64_t inner_stride) {
        return (inner <= 1 || inner_stride >= k) &&
               (outer <= 1 || outer_stride >= (inner - 1) * inner_stride + k);
    };
    if (rows > 0 && !nested(rows, row_stride, layers, layer_stride) &&
        !nested(layers, layer_stride, rows, row_stride))
        return ROUTECAP_ERR_ARGUMENT;
    copied.needed = 0;
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t l = 0; l < layers; l++) {
            const uint64_t place = r * row_stride + l * layer_stride;
            copied.cells.push_back({place, {whole.first + r, l}});
            copied.needed = std::max(copied.needed, (place + k) * element_bytes(o.dtype));
        }
    copied.mask_needed = rows * layers;
    return ROUTECAP_OK;
}

static bool known_flags(const routecap_copy_options &o) {
    return (o.flags & ~(ROUTECAP_READ_STRICT | ROUTECAP_READ_ALLOW_RECOMPUTED)) == 0;
}

Copied copied_weights(const routecap_copy_options &o, const Routing &whole) {
    Copied copied;
    copied.weights = true;
    const int32_t has = whole.shape->weights;
    copied.refusal = has == 0 || (o.dtype != has && o.dtype != ROUTECAP_DTYPE_F32)
                         ? ROUTECAP_ERR_DTYPE
                     : !known_flags(o) ? ROUTECAP_ERR_ARGUMENT
                                       : lay_out(o, whole, copied);
    return copied;
}

Copied copied(const routecap_copy_options &o, bool masked, const Routing &whole) {
    Copied copied;
    const size_t size = element_bytes(o.dtype);
    const auto refused = [&](int32_t status) { return copied.refusal = status, copied; };
    if (o.dtype < ROUTECAP_DTYPE_U8 || o.dtype > ROUTECAP_DTYPE_I64)
        return refused(ROUTECAP_ERR_DTYPE);
    if (!known_flags(o)) return refused(ROUTECAP_ERR_ARGUMENT);
    const model::Shape &shape = *whole.shape;
    const int64_t most[] = {0, 255, INT16_MAX, UINT16_MAX, INT32_MAX, UINT32_MAX, INT64_MAX},
                  highest = most[o.dtype];
    if (int64_t{shape.experts()} - 1 > highest) return refused(ROUTECAP_ERR_DTYPE);
    const int64_t lowest = size == 8 ? INT64_MIN : -(int64_t{1} << (8 * size - 1));
    const auto fits = [&](int64_t value) { return value >= lowest && value <= highest; };
    const auto written = [&](int64_t value) {
        return size == 8 ? static_cast<uint64_t>(value)
                         : static_cast<uint64_t>(value) & ((uint64_t{1} << 8 * size) - 1);
    };
    // A column without an expert is valid, so no mask tells it from an expert.
    if (shape.fewer() && !fits(o.none)) return refused(ROUTECAP_ERR_DTYPE);
    if (shape.fewer() && written(o.none) < shape.experts()) return refused(ROUTECAP_ERR_ARGUMENT);
    if ((o.flags & ROUTECAP_READ_STRICT) == 0) {
        if (!fits(o.fill)) return refused(ROUTECAP_ERR_DTYPE);
        if (!masked && (written(o.fill) < shape.experts() ||
                        (shape.fewer() && written(o.fill) == written(o.none))))
            return refused(ROUTECAP_ERR_ARGUMENT);
    }
    return refused(lay_out(o, whole, copied));
}

int32_t Copied::status(uint32_t flags) const {
    const int32_t strict = routing.strict(flags);
    if (!weights || strict < 0) return strict < 0 ? strict : routing.status();
    uint64_t there = 0;  // cells with weights
    for (const auto &[position, row] : routing.content) there += row->weights.size();
    if (there == cells.size()) return ROUTECAP_OK;
    if ((flags & ROUTECAP_READ_STRICT) != 0) return ROUTECAP_ERR_INCOMPLETE;
    return there > 0 ? ROUTECAP_INCOMPLETE : ROUTECAP_NOT_CAPTURED;
}

void Copied::write(const routecap_copy_options &o, uint8_t *dst, uint8_t *mask) const {
    const size_t size = element_bytes(o.dtype), layers = routing.shape->cells();
    const int32_t of = routing.shape->weights;
    // A quiet one of each type.
    const uint32_t nan = o.dtype == ROUTECAP_DTYPE_F32   ? 0x7fc00000
                         : o.dtype == ROUTECAP_DTYPE_F16 ? 0x7e00
                                                         : 0x7fc0;
    for (const auto &[place, cell] : cells) {
        const auto &[position, layer] = cell;
        const RowPtr row = routing.at(position);
        const bool there =
            row != nullptr && (weights ? row->weights.count(layer) > 0 : row->valid(layer));
        for (uint64_t c = 0; c < routing.shape->k; c++) {
            uint64_t value = 0;
            if (!weights) {
                const uint16_t has = there ? row->ids[layer * routing.shape->k + c] : 0;
                value = static_cast<uint64_t>(!there           ? int64_t{o.fill}
                                              : has == kUnused ? int64_t{o.none}
                                                               : has);
            } else if (!there) {
                value = nan;
            } else if (o.dtype == of) {
                value = row->weights.at(layer)[c];
            } else {
                const float wide = widened(row->weights.at(layer)[c], of);
                std::memcpy(&value, &wide, sizeof wide);
            }
            std::memcpy(dst + (place + c) * size, &value, size);
        }
        const uint64_t r = position - routing.first;
        if (mask != nullptr)
            mask[o.order == ROUTECAP_ORDER_ROW_MAJOR ? r * layers + layer
                                                     : layer * routing.rows + r] = there;
    }
}

// ---- The sink ------------------------------------------------------------------------------

int32_t Sink::begin(uint32_t rows) {
    if (rows > rows_) return ROUTECAP_ERR_CAPACITY;
    begun_ = rows;
    for (auto &layer : written_) layer.clear();
    for (auto &layer : weights_) layer.clear();
    for (auto &layer : known_) layer.clear();
    dropped_ = conflicts_ = 0;
    snapshots_ = 0;
    taken_ = {};
    return ROUTECAP_OK;
}

int32_t Sink::check(uint32_t layer, const Placement &to) const {
    if (to.rows > rows_ || (to.row_index == nullptr && to.first_row > rows_ - to.rows))
        return ROUTECAP_ERR_CAPACITY;
    if (layer >= shape_->cells()) return ROUTECAP_ERR_UNKNOWN_LAYER;
    if (begun_.has_value() && to.row_index == nullptr && to.live_rows == nullptr &&
        to.row_base == nullptr)
        for (const auto &[first, end] : known_[layer])
            if (std::max(first, to.first_row) < std::min(end, to.first_row + to.rows))
                return ROUTECAP_ERR_CONFLICT;
    return ROUTECAP_OK;
}

// Of weights that are given, or said to be.
int32_t Sink::check_weights(const routecap_source &s,
                            const std::vector<routecap_layer_source> &layers) const {
    const bool given =
        std::any_of(layers.begin(), layers.end(),
                    [](const routecap_layer_source &layer) { return layer.weights != nullptr; });
    if (given ? shape_->weights == 0 || s.weights_dtype != shape_->weights : s.weights_dtype != 0)
        return ROUTECAP_ERR_DTYPE;
    const uint64_t columns = s.k_source != 0 ? s.k_source : shape_->k, size = s.weights_bytes;
    for (const routecap_layer_source &layer : layers) {
        if (layer.weights == nullptr) continue;
        if (memory_[layer.layer] != Memory::kAll) return ROUTECAP_ERR_STATE;
        if (size == 0) continue;
        // Exactly the matrix; with a stride, up to the last element that is used.
        const bool apart = s.weights_row_stride != 0;
        const uint64_t elements = !apart || s.rows == 0
                                      ? s.rows * columns
                                      : (s.rows - 1) * static_cast<uint64_t>(s.weights_row_stride) +
                                            shape_->layers[layer.layer].k;
        const uint64_t bytes = elements * element_bytes(shape_->weights);
        if (apart ? size < bytes : size != bytes) return ROUTECAP_ERR_SHAPE_MISMATCH;
    }
    return ROUTECAP_OK;
}

void Sink::put(uint32_t layer, const Placement &to,
               const std::function<std::vector<int64_t>(uint32_t row)> &cell,
               const std::function<std::vector<uint32_t>(uint32_t row)> &weights) {
    if (begun_.has_value() && snapshots_ == 0 && to.row_index == nullptr &&
        to.live_rows == nullptr && to.row_base == nullptr)
        known_[layer].emplace_back(to.first_row, to.first_row + to.rows);
    for (uint32_t i = 0;
         i < to.rows && (to.live_rows == nullptr || static_cast<int64_t>(i) < *to.live_rows); i++) {
        if (to.row_index != nullptr && to.row_index[i] < 0) continue;
        const int64_t row =
            to.row_index != nullptr
                ? to.row_index[i]
                : int64_t{to.first_row} + i + (to.row_base != nullptr ? *to.row_base : 0);
        if (!begun_.has_value() || row < 0 || row >= int64_t{*begun_})
            dropped_++;
        else if (!written_[layer].emplace(static_cast<uint32_t>(row), cell(i)).second)
            conflicts_++;
        else if (weights != nullptr)
            weights_[layer][static_cast<uint32_t>(row)] = weights(i);
    }
}

int32_t Sink::record(const routecap_source &s, const std::vector<routecap_layer_source> &layers) {
    const uint32_t columns = s.k_source != 0 ? s.k_source : shape_->k;
    const int64_t row_stride = s.row_stride != 0 ? s.row_stride : columns,
                  column_stride = s.column_stride != 0 ? s.column_stride : 1;
    const Placement to{s.rows, s.first_row, s.live_rows, s.row_base, s.row_index};
    const std::set<int32_t> dtypes = {ROUTECAP_DTYPE_I16, ROUTECAP_DTYPE_I32, ROUTECAP_DTYPE_U32,
                                      ROUTECAP_DTYPE_I64, ROUTECAP_DTYPE_ID16_BF16};
    if (dtypes.count(s.dtype) == 0) return ROUTECAP_ERR_DTYPE;
    bool fewer = layers.empty();
    std::set<uint32_t> named;
    for (const routecap_layer_source &layer : layers) {
        if (layer.layer >= shape_->cells()) return ROUTECAP_ERR_UNKNOWN_LAYER;
        if (!named.insert(layer.layer).second) return ROUTECAP_ERR_ARGUMENT;
        if (memory_[layer.layer] == Memory::kNone) return ROUTECAP_ERR_STATE;
        const Layer &of = shape_->layers[layer.layer];
        if (columns < of.k) return ROUTECAP_ERR_SHAPE_MISMATCH;
        fewer |= of.least < of.k;
    }
    if (s.none != 0 && !fewer) return ROUTECAP_ERR_ARGUMENT;
    if (const int32_t status = check_weights(s, layers); status < 0) return status;
    for (const routecap_layer_source &layer : layers)
        if (const int32_t status = check(layer.layer, to); status < 0) return status;
    const bool packed =
        s.dtype == ROUTECAP_DTYPE_ID16_BF16 && shape_->weights == ROUTECAP_DTYPE_BF16;
    for (const routecap_layer_source &layer : layers) {
        const bool weighted = layer.weights != nullptr;
        const auto weights = [&](uint32_t row) {
            std::vector<uint32_t> cell(shape_->layers[layer.layer].k);
            const size_t element = element_bytes(shape_->weights);
            const int64_t stride = s.weights_row_stride != 0 ? s.weights_row_stride : columns;
            for (uint32_t c = 0; c < cell.size(); c++)
                if (weighted)
                    std::memcpy(&cell[c],
                                static_cast<const uint8_t *>(layer.weights) +
                                    static_cast<size_t>(row * stride + c) * element,
                                element);
                else
                    cell[c] = static_cast<const uint32_t *>(
                                  layer.ids)[row * row_stride + c * column_stride] &
                              0xffff;
            return cell;
        };
        const auto ids_of = [&](uint32_t row) {
            std::vector<int64_t> ids;
            for (uint32_t c = 0; c < shape_->layers[layer.layer].k; c++) {
                const int64_t at = row * row_stride + c * column_stride;
                int64_t id = 0;
                switch (s.dtype) {
                    case ROUTECAP_DTYPE_I16:
                        id = static_cast<const int16_t *>(layer.ids)[at];
                        break;
                    case ROUTECAP_DTYPE_I32:
                        id = static_cast<const int32_t *>(layer.ids)[at];
                        break;
                    case ROUTECAP_DTYPE_U32:
                        id = static_cast<const uint32_t *>(layer.ids)[at];
                        break;
                    case ROUTECAP_DTYPE_I64:
                        id = static_cast<const int64_t *>(layer.ids)[at];
                        break;
                    default: id = static_cast<const int32_t *>(layer.ids)[at] >> 16; break;
                }
                const int64_t none =
                    s.dtype == ROUTECAP_DTYPE_U32 ? int64_t{static_cast<uint32_t>(s.none)} : s.none;
                if (s.none != 0 && id == none) {
                    ids.push_back(ROUTECAP_NO_EXPERT);
                    continue;
                }
                if (layer.table != nullptr)
                    id = id >= 0 && id < int64_t{s.table_size} ? layer.table[id] : INT64_MAX;
                const bool sum = !__builtin_add_overflow(id, int64_t{s.offset}, &id);
                // Nothing wraps.
                ids.push_back(sum && id >= 0 && id < shape_->layers[layer.layer].experts ? id : -1);
            }
            return ids;
        };
        if (weighted || (packed && memory_[layer.layer] == Memory::kAll))
            put(layer.layer, to, ids_of, weights);
        else
            put(layer.layer, to, ids_of, nullptr);
    }
    return ROUTECAP_OK;
}

void Sink::snapshot() {
    taken_.dropped += std::exchange(dropped_, 0);
    taken_.conflicts += std::exchange(conflicts_, 0);
    taken_.rows.clear();
    for (auto &layer : known_) layer.clear();
    if (snapshots_++ > 0) return;  // a second one: its rows are missing
    for (uint32_t r = 0; r < begun_.value_or(0); r++) {
        auto row = empty_row(*shape_, ROUTECAP_MISSING_UNWRITTEN);
        for (size_t l = 0; l < shape_->cells(); l++) {
            const auto cell = written_[l].find(r);
            if (cell == written_[l].end()) continue;
            row->missing[l] = judge(cell->second, shape_->layers[l]);
            row->ids[l * shape_->k] = row->missing[l];
            for (uint32_t c = 0; row->valid(l) && c < shape_->k; c++) {
                const bool used = c < cell->second.size() && cell->second[c] != ROUTECAP_NO_EXPERT;
                row->ids[l * shape_->k + c] =
                    used ? static_cast<uint16_t>(cell->second[c]) : kUnused;
            }
            if (!row->valid(l)) continue;
            const auto given = weights_[l].find(r);
            const auto experts = static_cast<size_t>(
                std::find(cell->second.begin(), cell->second.end(), ROUTECAP_NO_EXPERT) -
                cell->second.begin());
            if (const auto weights =
                    shape_->weigh(experts, given != weights_[l].end() ? &given->second : nullptr))
                row->weights[l] = *weights;
        }
        taken_.rows.push_back(std::move(row));
    }
}

Sink::Taken Sink::take() {
    begun_.reset();
    snapshots_ = 0;
    return std::exchange(taken_, {});
}

int32_t Sink::probe(uint32_t rows, std::vector<routecap_layer_probe> &layers) const {
    if (layers.size() > shape_->cells()) return ROUTECAP_ERR_UNKNOWN_LAYER;
    if (begun_.value_or(0) == 0) return ROUTECAP_ERR_STATE;
    if (rows > *begun_) return ROUTECAP_ERR_CAPACITY;
    const std::map<uint32_t, std::vector<int64_t>> *before = nullptr;
    bool odd = false;
    for (size_t l = 0; l < layers.size(); l++) {
        routecap_layer_probe &p = layers[l];
        p = {};
        p.lowest = p.highest = -1;
        std::set<std::vector<int64_t>> kinds;
        const Layer &layer = shape_->layers[l];
        bool sequence = true;
        bool repeated = before != nullptr;
        for (uint32_t r = 0; r < rows; r++) {
            const auto cell = written_[l].find(r);
            const bool written = cell != written_[l].end();
            (written ? p.rows_written : p.rows_unwritten)++;
            if (repeated) {
                const auto other = before->find(r);
                repeated = (other != before->end()) == written &&
                           (!written || other->second == cell->second);
            }
            if (!written) continue;
            kinds.insert(cell->second);
            const uint8_t reason = judge(cell->second, layer);
            for (size_t c = 0; c < cell->second.size(); c++)
                sequence &= cell->second[c] == static_cast<int64_t>(c) ||
                            (c > 0 && c >= layer.least && cell->second[c] == ROUTECAP_NO_EXPERT);
            p.rows_out_of_range += reason == ROUTECAP_MISSING_OUT_OF_RANGE;
            p.rows_duplicate += reason == ROUTECAP_MISSING_DUPLICATE;
            for (int64_t id : cell->second) {
                if (id < 0 || id >= layer.experts) continue;
                p.lowest = p.lowest < 0 ? static_cast<int32_t>(id)
                                        : std::min(p.lowest, static_cast<int32_t>(id));
                p.highest = std::max(p.highest, static_cast<int32_t>(id));
            }
        }
        const bool several = p.rows_written > 1;
        // Ids one after another: those at odd places, and those at even ones.
        std::set<int64_t> odd_ids, even_ids;
        uint64_t n = 0;
        for (uint32_t r = 0; p.rows_written == rows && r < rows; r++)
            for (int64_t id : written_[l].at(r)) (n++ % 2 == 1 ? odd_ids : even_ids).insert(id);
        p.found = (rows > 0 && p.rows_written == 0 ? ROUTECAP_PROBE_SILENT : 0) |
                  (p.rows_written > 0 && p.rows_unwritten > 0 ? ROUTECAP_PROBE_INCOMPLETE : 0) |
                  (p.rows_out_of_range > 0 ? ROUTECAP_PROBE_OUT_OF_RANGE : 0) |
                  (p.rows_duplicate > 0 ? ROUTECAP_PROBE_DUPLICATE : 0) |
                  (several && kinds.size() == 1 ? ROUTECAP_PROBE_CONSTANT : 0) |
                  (several && sequence ? ROUTECAP_PROBE_SEQUENCE : 0) |
                  (several && repeated ? ROUTECAP_PROBE_REPEATED : 0) |
                  (n >= 16 && odd_ids == std::set<int64_t>{0} && even_ids.size() > 1
                       ? ROUTECAP_PROBE_WORD_SIZE
                       : 0);
        odd |= p.found != 0;
        before = &written_[l];
    }
    return odd ? ROUTECAP_PARTIAL : ROUTECAP_OK;
}

// ---- Steps ---------------------------------------------------------------------------------

uint64_t Filed::reach() const {
    if (!known) return std::min(end, cut_first);
    return unplaced || real >= cut_first ? 0 : real + 1;
}

uint64_t Request::length() const {
    uint64_t length = 0;
    for (const Reach &reach : reaches) {
        length = std::max(length, reach.at_least);
        for (const FiledPtr &row : reach.rows) length = std::max(length, row->reach());
        length = std::min(length, reach.cut);
    }
    return length;
}

// What is certain becomes one number.
void Request::reached(Reach reach) {
    uint64_t certain = 0;
    size_t n = 0;
    const auto settled = [](const FiledPtr &row) { return row->known; };
    for (;
         n < reaches.size() && std::all_of(reaches[n].rows.begin(), reaches[n].rows.end(), settled);
         n++) {
        certain = std::max(certain, reaches[n].at_least);
        for (const FiledPtr &row : reaches[n].rows) certain = std::max(certain, row->reach());
        certain = std::min(certain, reaches[n].cut);
    }
    if (n > 1) {
        reaches.erase(reaches.begin() + 1, reaches.begin() + static_cast<ptrdiff_t>(n));
        reaches.front() = {.rows = {}, .at_least = certain};
    }
    reaches.push_back(std::move(reach));
}

void Request::note(uint8_t reason, uint64_t first, uint64_t end) {
    for (uint64_t p = first; p < end; p++) {
        uint8_t &known = reasons[p];
        if (known == 0 || rank(reason) > rank(known)) known = reason;
    }
}

Rows Request::rows(const Shape &shape, uint64_t first, uint64_t end) const {
    Rows rows(content.lower_bound(first), content.lower_bound(end));
    for (auto known = reasons.lower_bound(first); known != reasons.lower_bound(end); ++known) {
        RowPtr &row = rows[known->first];
        row = unite(row, empty_row(shape, known->second));
    }
    return rows;
}

bool Capturer::make_room_for_begin(bool files) {
    if (!full() || !files) return true;
    const bool steps_alone = in_flight() == log_.size();
    const std::shared_ptr<Step> oldest = log_.front().step;
    if (steps_alone) {
        log_.erase(log_.begin());
        land(*oldest);
    }
    return steps_alone;
}

uint64_t Capturer::in_flight() const {
    return static_cast<uint64_t>(std::count_if(
        log_.begin(), log_.end(), [](const Entry &entry) { return entry.step != nullptr; }));
}

int32_t Capturer::issue(const std::vector<Span> &spans, const std::vector<int64_t> &positions,
                        uint64_t tag, const Sink::Taken &taken, bool lost, uint64_t &ticket) {
    ticket = ++stats.steps_issued;
    auto step = std::make_shared<Step>(Step{ticket, {}, taken.dropped, taken.conflicts, tag});
    bool partial = false;
    for (const Span &s : spans)
        for (uint32_t row = s.span.sink_row; row < s.span.sink_row + s.span.rows; row++)
            stats.rows_shared += std::count_if(spans.begin(), spans.end(), [&](const Span &other) {
                                     return other.span.sink_row <= row &&
                                            row < other.span.sink_row + other.span.rows;
                                 }) > 1;
    for (const Span &s : spans) {
        partial |= s.request == nullptr || s.status != ROUTECAP_OK;
        if (s.request == nullptr) {
            stats.rows_skipped += s.span.rows;
            continue;
        }
        const bool device = (s.span.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0,
                   speculative = (s.span.flags & ROUTECAP_SPAN_SPECULATIVE) != 0;
        std::vector<FiledPtr> rows;
        for (uint32_t i = 0; i < s.span.rows; i++) {
            const uint32_t sink_row = s.span.sink_row + i;
            auto filed = std::make_shared<Filed>();
            filed->span = s.span.position;
            filed->sink_row = sink_row;
            filed->real = device ? static_cast<uint64_t>(positions[sink_row]) : s.span.position + i;
            filed->first = device ? s.span.position : filed->real;
            filed->end = device ? s.span.position_end : filed->real + 1;
            filed->row = sink_row < taken.rows.size() ? taken.rows[sink_row] : nullptr;
            filed->tag = tag;
            filed->phase = (s.span.flags & ROUTECAP_SPAN_UNCOUNTED) != 0 ? kUncounted
                           : (s.span.flags & ROUTECAP_SPAN_PREFILL) != 0 ? ROUTECAP_PHASE_PREFILL
                           : (s.span.flags & ROUTECAP_SPAN_DECODE) != 0  ? ROUTECAP_PHASE_DECODE
                           : speculative || s.span.rows == 1             ? ROUTECAP_PHASE_DECODE
                                                                         : ROUTECAP_PHASE_PREFILL;
            filed->device = device;
            filed->known = !device;
            filed->never = lost                      ? ROUTECAP_MISSING_LOST
                           : s.status != ROUTECAP_OK ? ROUTECAP_MISSING_REFUSED
                                                     : 0;
            rows.push_back(std::move(filed));
        }
        if (!speculative && rows.front()->never != 0)
            change(s.request, {{rows.front()->first, rows.back()->end}},
                   [r = s.request, reason = rows.front()->never, first = rows.front()->first,
                    end = rows.back()->end] { r->note(reason, first, end); });
        s.request->issued_end = std::max(s.request->issued_end, rows.back()->end);
        stats.rows_issued += rows.size();
        (lost                      ? stats.rows_lost
         : s.status != ROUTECAP_OK ? stats.rows_refused
                                   : stats.rows_in_flight) += rows.size();
        if (speculative)
            s.request->drafts[ticket].insert(s.request->drafts[ticket].end(), rows.begin(),
                                             rows.end());
        else if (device && rows.front()->never == 0)
            s.request->reached({.rows = rows});
        else
            s.request->reached({.rows = {}, .at_least = rows.back()->end});
        if (!lost && s.status == ROUTECAP_OK)
            step->parts.push_back({s.request, std::move(rows), speculative});
    }
    steps_[ticket] = lost ? ROUTECAP_LOST : step->parts.empty() ? ROUTECAP_OK : ROUTECAP_PENDING;
    if (steps_[ticket] != ROUTECAP_PENDING) stats.steps_landed++;
    stats.steps_lost += lost;
    if (!step->parts.empty()) log_.push_back({step, nullptr, 0});
    return lost ? ROUTECAP_LOST : partial ? ROUTECAP_PARTIAL : ROUTECAP_OK;
}

int32_t Capturer::poll(uint64_t ticket) const {
    const auto found = steps_.find(ticket);
    return found == steps_.end() ? ROUTECAP_ERR_UNKNOWN_STEP : found->second;
}

uint64_t Capturer::conflicting(uint64_t ticket) const {
    const auto found = conflicting_.find(ticket);
    return found == conflicting_.end() ? 0 : found->second;
}

void Capturer::land(uint64_t first_in_flight) {
    std::vector<Entry> log;
    log.swap(log_);
    for (Entry &entry : log) {
        if ((entry.step != nullptr ? entry.step->ticket : entry.after) >= first_in_flight)
            log_.push_back(std::move(entry));
        else
            entry.step != nullptr ? land(*entry.step) : entry.apply();
    }
}

void Capturer::arrive(uint64_t ticket, const std::vector<RowPtr> &rows,
                      const std::vector<int64_t> &positions) {
    for (const Entry &entry : log_)
        for (const Step::Part &part : entry.step != nullptr && entry.step->ticket == ticket
                                          ? entry.step->parts
                                          : std::vector<Step::Part>())
            for (const FiledPtr &filed : part.rows) {
                filed->row = filed->sink_row < rows.size() ? rows[filed->sink_row] : nullptr;
                if (filed->device) filed->real = static_cast<uint64_t>(positions[filed->sink_row]);
            }
}

void Capturer::lose(uint64_t ticket) {
    for (const Entry &entry : log_)
        if (entry.step != nullptr && entry.step->ticket == ticket) entry.step->gone = true;
}

// Of device positions all within the bounds are lost.
void Capturer::land_lost(const Step &step) {
    steps_[step.ticket] = ROUTECAP_LOST;
    stats.steps_lost++;
    for (const Step::Part &part : step.parts)
        for (const FiledPtr &filed : part.rows) {
            const uint64_t end = std::min(filed->end, filed->late);
            filed->known = true;
            filed->nowhere = filed->first >= end && !filed->device;
            if (filed->device) filed->real = end - 1;
            stats.rows_in_flight--;
            (filed->nowhere ? stats.rows_late : stats.rows_lost)++;
            part.request->note(ROUTECAP_MISSING_LOST, filed->first, end);
        }
}

void Capturer::land(Step &step) {
    stats.steps_landed++;
    if (step.gone) return land_lost(step);
    steps_[step.ticket] = ROUTECAP_OK;
    if (step.conflicts > 0) conflicting_[step.ticket] = step.conflicts;
    stats.cells_conflicting += step.conflicts;
    stats.rows_dropped += step.dropped;
    if (load.steps++ == 0) load.first_step = step.ticket;
    load.last_step = step.ticket;
    std::vector<bool> written(shape->cells()), valid(shape->cells());
    uint64_t counted = 0;
    for (const Step::Part &part : step.parts)
        for (const FiledPtr &filed : part.rows) {
            const bool placed = filed->real >= filed->first && filed->real < filed->end,
                       late = filed->real >= filed->late;
            stats.rows_in_flight--;
            filed->known |= !part.speculative;
            filed->unplaced = !placed;
            filed->nowhere = !placed || (late && !part.speculative);
            if (placed && !late) {
                counted++;
                count_cells(*filed, written, valid);
            }
            if (filed->nowhere)
                (placed ? stats.rows_late : stats.rows_unplaced)++;
            else if (part.speculative)
                // Until it is settled, also if it was cut: what it is counted as depends on that
                // alone.
                stats.rows_provisional++;
            else
                file(*part.request, *filed);
        }
    if (counted == 0) return;
    stats.silent_layers = static_cast<uint32_t>(std::count(valid.begin(), valid.end(), false));
    for (size_t l = 0; l < shape->cells(); l++) layer_stats[l].silent_steps += !written[l];
}

void Capturer::count_cells(const Filed &filed, std::vector<bool> &written,
                           std::vector<bool> &valid) {
    for (size_t l = 0; l < shape->cells(); l++) {
        switch (filed.row != nullptr ? filed.row->missing[l] : ROUTECAP_MISSING_UNWRITTEN) {
            case 0: layer_stats[l].rows_written++, written[l] = valid[l] = true; break;
            case ROUTECAP_MISSING_OUT_OF_RANGE:
                layer_stats[l].out_of_range++, stats.cells_out_of_range++, written[l] = true;
                break;
            case ROUTECAP_MISSING_DUPLICATE:
                layer_stats[l].duplicate++, stats.cells_duplicate++, written[l] = true;
                break;
            default: layer_stats[l].unwritten++, stats.cells_unwritten++; break;
        }
    }
}

void Capturer::file(Request &r, const Filed &filed) {
    if (filed.row == nullptr || !filed.row->any()) {
        stats.rows_missing++;
    } else {
        stats.rows_delivered++;
    }
    if (filed.row == nullptr) return;
    RowPtr &mine = r.content[filed.real];
    count_load(filed, mine);
    bool overlap = false, mismatch = false;
    for (size_t l = 0; mine != nullptr && l < shape->cells(); l++) {
        if (!mine->valid(l) || !filed.row->valid(l)) continue;
        overlap = true;
        mismatch |= !mine->same_set(*filed.row, l);
    }
    stats.rows_overlapped += overlap;
    stats.rows_mismatched += mismatch && (flags & ROUTECAP_CONFIG_COMPARE) != 0;
    RowPtr row = filed.row;
    if (row->tag != filed.tag) {
        auto tagged = std::make_shared<Row>(*row);
        tagged->tag = filed.tag;
        row = std::move(tagged);
    }
    mine = r.policy == ROUTECAP_POLICY_REPLACE && row->any() ? row : unite(mine, row);
}

// The cells of a row that its request has not.
void Capturer::count_load(const Filed &filed, const RowPtr &known) {
    if (filed.phase == kUncounted) return;
    const size_t experts = shape->experts(),
                 first = static_cast<size_t>(filed.phase) * shape->cells() * experts;
    load.counts.resize(ROUTECAP_LOAD_PHASES * shape->cells() * experts);
    load.rows[filed.phase] += filed.row->any() && (known == nullptr || !known->any());
    for (size_t layer = 0; layer < shape->cells(); layer++)
        if (filed.row->valid(layer) && (known == nullptr || !known->valid(layer)))
            for (size_t j = layer * shape->k; j < (layer + 1) * shape->k; j++)
                if (filed.row->ids[j] != kUnused)
                    load.counts[first + layer * experts + filed.row->ids[j]]++;
}

// ---- Requests ------------------------------------------------------------------------------

// Appends a change that is applied after the request's steps before it; these rows cannot be read
// until then, and no others.
void Capturer::change(const RequestPtr &r, const std::vector<Request::Range> &rows,
                      std::function<void()> apply) {
    for (const Request::Range &range : rows) {
        r->changes.push_back(range);
        apply = [r, at = std::prev(r->changes.end()), apply = std::move(apply)] {
            apply(), r->changes.erase(at);
        };
    }
    log_.push_back({nullptr, std::move(apply), after(r)});
}

// Appends one that gives rows [first, end) to a child or a store.
void Capturer::lend(const RequestPtr &r, uint64_t first, uint64_t end,
                    std::function<void()> apply) {
    r->lendings.push_back({first, end, newest_step(r)});
    change(r, {}, [r, at = std::prev(r->lendings.end()), apply = std::move(apply)] {
        apply(), r->lendings.erase(at);
    });
}

uint64_t Capturer::after(const RequestPtr &r) const {
    return std::max(newest_step(r), r->inherited);
}

RequestPtr Capturer::open(int32_t policy) {
    stats.requests_open++;
    auto r = std::make_shared<Request>();
    r->policy = policy;
    return r;
}

int32_t Capturer::accept(const RequestPtr &r, uint64_t ticket, const uint32_t *rows,
                         uint64_t count) {
    const auto found = r->drafts.find(ticket);
    if (found == r->drafts.end()) return ROUTECAP_ERR_UNKNOWN_STEP;
    const std::vector<FiledPtr> drafts = found->second;
    if (count > drafts.size()) return ROUTECAP_ERR_OUT_OF_RANGE;
    std::set<uint64_t> kept;
    for (uint64_t i = 0; i < count; i++) kept.insert(rows != nullptr ? rows[i] : i);
    if (!kept.empty() && *kept.rbegin() >= drafts.size()) return ROUTECAP_ERR_OUT_OF_RANGE;
    r->drafts.erase(found);
    Request::Reach reach;
    std::vector<Request::Range> changes;
    std::vector<std::tuple<uint8_t, uint64_t, uint64_t>> missing;
    for (uint64_t i : kept) {
        Filed &row = *drafts[i];
        if (row.first >= row.cut) continue;
        row.known &= !row.device;  // the host learns where it is when it is filed
        row.cut_first = row.cut;
        if (row.device && row.never == 0)
            reach.rows.push_back(drafts[i]);
        else
            reach.at_least = std::max(reach.at_least, row.reach());
        if (row.never != 0) missing.emplace_back(row.never, row.first, row.reach());
        changes.push_back({row.device ? row.span : row.real, row.reach()});
    }
    r->reached(std::move(reach));
    std::vector<uint64_t> cuts;  // those before this call
    for (const FiledPtr &row : drafts) cuts.push_back(row->cut);
    change(r, changes, [this, r, drafts, kept, cuts, missing] {
        for (const auto &[reason, from, to] : missing) r->note(reason, from, to);
        for (uint64_t i = 0; i < drafts.size(); i++) {
            Filed &row = *drafts[i];
            if (row.never != 0) continue;
            row.known = true;
            if (row.nowhere) continue;
            stats.rows_provisional--;
            const bool keep = kept.count(i) > 0, late = row.real >= cuts[i] || row.real >= row.late;
            row.nowhere = !keep || late;
            if (row.nowhere)
                (keep ? stats.rows_late : stats.rows_rejected)++;
            else
                file(*r, row);
        }
    });
    return ROUTECAP_OK;
}

// Rows of steps in flight from there on will be late, but for those that a child or a store is to
// have.
void Capturer::cut_in_flight(const RequestPtr &r, uint64_t end) {
    for (const Entry &entry : log_) {
        if (entry.step == nullptr) continue;
        uint64_t late = end;
        for (const Request::Lending &lending : r->lendings)
            if (entry.step->ticket <= lending.step) late = std::max(late, lending.end);
        for (const Step::Part &part : entry.step->parts)
            for (const FiledPtr &row : part.rows)
                if (part.request == r) row->late = std::min(row->late, late);
    }
}

void Capturer::truncate(const RequestPtr &r, uint64_t rows) {
    if (rows >= r->issued()) return;
    r->issued_end = rows;
    cut_in_flight(r, rows);
    for (const Entry &entry : log_)
        for (const Step::Part &part :
             entry.step != nullptr ? entry.step->parts : std::vector<Step::Part>())
            for (const FiledPtr &row : part.rows)
                if (part.request == r) row->cut = std::min(row->cut, rows);
    for (const FiledPtr &row : r->waiting()) row->cut = std::min(row->cut, rows);
    r->reached({.rows = {}, .cut = rows});
    for (Request::Range &changing : r->changes) changing.end = std::min(changing.end, rows);
    r->cuts.push_back(rows);
    change(r, {}, [r, rows, at = std::prev(r->cuts.end())] {
        r->content.erase(r->content.lower_bound(rows), r->content.end());
        r->reasons.erase(r->reasons.lower_bound(rows), r->reasons.end());
        r->cuts.erase(at);
    });
}

int32_t Capturer::fork(const RequestPtr &r, uint64_t rows, RequestPtr &child) {
    const uint64_t length = r->length();
    if (rows == ROUTECAP_ROWS_ALL) rows = length;
    if (rows > length) return ROUTECAP_ERR_OUT_OF_RANGE;
    if (!room(1)) return ROUTECAP_ERR_TOO_MANY_REQUESTS;
    child = open(r->policy);
    child->reached({.rows = {}, .at_least = rows});
    child->inherited = after(r);
    child->changes.push_back({0, rows});
    lend(r, 0, rows, [r, child = child, rows] {
        child->content = Rows(r->content.begin(), r->content.lower_bound(rows));
        child->reasons = {r->reasons.begin(), r->reasons.lower_bound(rows)};
        child->changes.pop_front();
    });
    return ROUTECAP_OK;
}

int32_t Capturer::attach(const RequestPtr &r, const RoutingPtr &routing, uint64_t rows) {
    if (!shape->takes(*routing->shape)) return ROUTECAP_ERR_SHAPE_MISMATCH;
    if (routing->pending != nullptr && routing->pending != this) return ROUTECAP_ERR_NOT_READY;
    if (rows == ROUTECAP_ROWS_ALL) rows = routing->end();
    if (rows > routing->end()) return ROUTECAP_ERR_OUT_OF_RANGE;
    if (rows <= routing->first) return ROUTECAP_OK;
    r->reached({.rows = {}, .at_least = rows});
    if (routing->pending != nullptr) r->inherited = std::max(r->inherited, routing->after);
    change(r, {{routing->first, rows}}, [r, routing, rows] {
        for (auto row = routing->content.begin(); row != routing->content.lower_bound(rows);
             ++row) {
            RowPtr &mine = r->content[row->first];
            mine = unite(mine, row->second);
        }
    });
    return ROUTECAP_OK;
}

uint64_t Capturer::newest_step(const RequestPtr &r) const {
    uint64_t newest = 0;
    for (const Entry &entry : log_)
        for (const Step::Part &part :
             entry.step != nullptr ? entry.step->parts : std::vector<Step::Part>())
            if (part.request == r) newest = entry.step->ticket;
    return newest;
}

// ---- Stores --------------------------------------------------------------------------------

uint64_t Request::issued() const { return std::max(length(), issued_end); }

uint8_t Store::why(uint64_t key, uint64_t at) const {
    const auto found = blocks.find(key);
    if (found == blocks.end())
        return gone.count(key) > 0 ? ROUTECAP_MISSING_EVICTED : ROUTECAP_MISSING_NOT_PUBLISHED;
    const Block &block = *found->second;
    if (current(block) && at == generation) return 0;
    return block.landed ? ROUTECAP_MISSING_STALE : ROUTECAP_MISSING_NOT_PUBLISHED;
}

// The block of a key loses it.
BlockPtr Store::unlink(uint64_t key) {
    const auto found = blocks.find(key);
    if (found == blocks.end()) return nullptr;
    const BlockPtr block = found->second;
    blocks.erase(found);
    return block;
}

void Store::note(const BlockPtr &block) {
    const auto found = blocks.find(block->key);
    const bool there = found != blocks.end();
    // It meets the other when it lands.
    if (!slots && there && current(*found->second)) return;
    counts.blocks_replaced += slots && there;
    if (const BlockPtr before = unlink(block->key); before != nullptr) {
        block->retained = before->retained, before->unwanted = true;
    }
    blocks[block->key] = block;
}

void Store::land(const Shape &shape, const BlockPtr &block, std::vector<RowPtr> rows) {
    const auto found = blocks.find(block->key);
    const BlockPtr there = found != blocks.end() ? found->second : nullptr;
    const bool ours = there == block;
    uint64_t tag = UINT64_MAX;  // the least of rows with a valid cell
    for (const RowPtr &row : rows)
        if (row != nullptr && row->any()) tag = std::min(tag, row->tag);
    if (!current(*block) || tag < generation) {
        counts.blocks_stale++;
        block->stale = true;
        if (ours) blocks.erase(found);
        return;
    }
    const BlockPtr before =
        !slots && !ours && !block->unwanted && there != nullptr && there->landed && current(*there)
            ? there
            : nullptr;
    const RowPtr none = empty_row(shape, ROUTECAP_MISSING_NOT_PUBLISHED);
    bool any = false, news = false, differs = false;
    for (uint64_t p = 0; p < block_rows; p++) {
        RowPtr &row = rows[p];
        if (row != nullptr && !row->there()) row = nullptr;
        const RowPtr old = before != nullptr ? before->rows[p] : none;
        any |= row != nullptr && row->any();
        for (size_t l = 0; row != nullptr && l < shape.cells(); l++) {
            if (!row->valid(l)) continue;
            news |= !old->valid(l);
            differs |= old->valid(l) && !old->same_set(*row, l);
        }
        auto united = std::make_shared<Row>(*unite(old, row));
        if (!united->any()) united->tag = before != nullptr ? old->tag : tag;
        row = united;
    }
    counts.blocks_mismatched += differs;
    (!any ? counts.blocks_empty : !news ? counts.blocks_repeated : counts.blocks_published)++;
    block->landed = any;
    block->rows = std::move(rows);
    if (any) block->generation = UINT64_MAX;
    for (const RowPtr &row : block->rows)
        if (row != nullptr && row->any()) block->generation = std::min(block->generation, row->tag);
    if (!any || !news) {
        if (ours) blocks.erase(found);
    } else if (!ours && !block->unwanted) {
        if (there != nullptr) block->retained = there->retained;
        blocks[block->key] = block;
    }
}

void Store::evict(uint64_t key) {
    const BlockPtr block = unlink(key);
    if (block == nullptr) return;
    block->unwanted = true;
    gone.insert(key);
    counts.blocks_evicted++;
}

uint8_t Store::retain(uint64_t key) {
    const uint8_t reason = why(key, generation);
    if (reason == 0) blocks[key]->retained++;
    return reason;
}

void Store::release(uint64_t key) {
    const auto block = blocks.find(key);
    if (block != blocks.end() && block->second->retained > 0) block->second->retained--;
}

Store::Kept Store::kept() const {
    Kept n;
    for (const auto &[key, block] : blocks)
        n.retained += block->retained > 0, n.in_flight += !block->landed;
    return n;
}

int32_t Capturer::publish(const RequestPtr &r, const StorePtr &store, uint64_t first,
                          const std::vector<uint64_t> &keys, uint64_t generation) {
    const uint64_t n = store->block_rows, end = first + keys.size() * n;
    if (keys.empty()) return ROUTECAP_OK;
    if (end > r->issued()) return ROUTECAP_ERR_OUT_OF_RANGE;
    for (const FiledPtr &row : r->waiting())
        if (std::max(row->first, first) < std::min({row->end, row->cut, end}))
            return ROUTECAP_ERR_NOT_READY;
    if (generation > store->generation) return ROUTECAP_ERR_STATE;
    if (generation < store->generation) {
        store->counts.blocks_stale += keys.size();
        return ROUTECAP_OK;
    }
    std::vector<BlockPtr> blocks;
    for (uint64_t key : keys) {
        blocks.push_back(std::make_shared<Block>(
            Block{.key = key, .generation = generation, .of = this, .after = after(r)}));
        store->note(blocks.back());
    }
    lend(r, first, end, [this, r, store, blocks, position = first]() mutable {
        for (const BlockPtr &block : blocks) {
            std::vector<RowPtr> rows;
            for (uint64_t n = 0; n < store->block_rows; n++, position++) {
                const auto row = r->content.find(position);
                rows.push_back(row != r->content.end() ? row->second : nullptr);
            }
            store->land(*shape, block, std::move(rows));
        }
    });
    return ROUTECAP_OK;
}

int32_t Capturer::adopt(const RequestPtr &r, Store &store, uint64_t first,
                        const std::vector<uint64_t> &keys, uint64_t generation,
                        routecap_adoption &found) {
    if (keys.empty()) return ROUTECAP_OK;
    if (generation > store.generation) return ROUTECAP_ERR_STATE;
    const uint64_t end = first + keys.size() * store.block_rows;
    struct Found {
        uint64_t key;
        uint8_t why;
        BlockPtr block;
    };
    std::vector<Found> blocks;
    for (uint64_t key : keys) {
        uint8_t why = store.why(key, generation);
        if (why == 0 && !store.blocks[key]->landed && store.blocks[key]->of != this)
            why = ROUTECAP_MISSING_NOT_PUBLISHED;  // nobody knows when it lands
        const BlockPtr block = why == 0 ? store.blocks[key] : nullptr;
        const bool waits = block != nullptr && !block->landed;
        blocks.push_back({key, why, block});
        if (waits) r->inherited = std::max(r->inherited, block->after);
        found.found += why == 0;
        if (found.found == blocks.size()) found.rows = found.found * store.block_rows;
        found.evicted += why == ROUTECAP_MISSING_EVICTED;
        found.not_published += why == ROUTECAP_MISSING_NOT_PUBLISHED;
        found.stale += why == ROUTECAP_MISSING_STALE;
    }
    store.counts.blocks_adopted += found.found;
    store.counts.blocks_absent += keys.size() - found.found;
    r->reached({.rows = {}, .at_least = end});
    change(r, {{first, end}}, [this, r, first, blocks, rows = store.block_rows] {
        for (size_t i = 0; i < blocks.size(); i++) {
            const auto &[key, why, block] = blocks[i];
            for (uint64_t p = 0; p < rows; p++) {
                const uint8_t hole = why != 0 ? why
                                     : block != nullptr && block->stale
                                         ? ROUTECAP_MISSING_STALE
                                         : ROUTECAP_MISSING_NOT_PUBLISHED;
                RowPtr row =
                    block != nullptr && block->landed ? block->rows[p] : empty_row(*shape, hole);
                if (!row->there()) row = empty_row(*shape, row->missing.front());  // without a tag
                RowPtr &mine = r->content[first + i * rows + p];
                mine = unite(mine, row);
            }
        }
    });
    return ROUTECAP_OK;
}

std::vector<FiledPtr> Request::waiting() const {
    std::vector<FiledPtr> waiting;
    for (const auto &[ticket, rows] : drafts)
        waiting.insert(waiting.end(), rows.begin(), rows.end());
    return waiting;
}

void Capturer::drop_drafts(const std::vector<FiledPtr> &drafts,
                           const std::function<bool(const Filed &)> &late) {
    for (const FiledPtr &row : drafts) {
        if (row->never != 0 || row->nowhere) continue;
        stats.rows_provisional--;
        (late(*row) ? stats.rows_late : stats.rows_rejected)++;
    }
}

RoutingPtr Capturer::finish(const RequestPtr &r, uint64_t rows) {
    const bool all = rows == ROUTECAP_ROWS_ALL;
    auto routing = std::make_shared<Routing>(Routing{shape, 0, all ? r->length() : rows, {}, this});
    if (!all) cut_in_flight(r, rows);
    routing->after = after(r);
    change(r, {}, [this, r, routing, all] {
        if (all) routing->rows = r->length();
        routing->content = r->rows(*shape, 0, routing->rows);
        routing->pending = nullptr;
        drop_drafts(r->waiting(), [](const Filed &row) { return row.real >= row.cut; });
    });
    stats.requests_open--;
    return routing;
}

void Capturer::close(const RequestPtr &r) {
    cut_in_flight(r, 0);
    change(r, {}, [this, r] { drop_drafts(r->waiting(), [](const Filed &) { return true; }); });
    stats.requests_open--;
}

int32_t Capturer::read(const RequestPtr &r, uint64_t first, uint64_t rows, bool take,
                       Routing &routing) const {
    const uint64_t length = r->length();
    if (first > length) return ROUTECAP_ERR_OUT_OF_RANGE;
    uint64_t limit = UINT64_MAX;  // the first row from `first` on that cannot be read now
    const auto unready = [&](uint64_t from, uint64_t end) {
        if (std::max(from, first) < end) limit = std::min(limit, std::max(from, first));
    };
    for (const Entry &entry : log_)
        for (const Step::Part &part :
             entry.step != nullptr ? entry.step->parts : std::vector<Step::Part>())
            for (const FiledPtr &row : part.rows)
                if (part.request == r && !part.speculative)
                    unready(row->first, std::min(row->end, row->late));
    for (const Request::Range &changing : r->changes) unready(changing.first, changing.end);
    for (uint64_t rows_cut : r->cuts) unready(rows_cut, UINT64_MAX);
    for (const Request::Lending &lending : r->lendings)
        if (take) unready(lending.first, lending.end);
    if (rows == ROUTECAP_ROWS_LANDED) rows = std::min(limit, length) - first;
    if (rows == ROUTECAP_ROWS_ALL) rows = length - first;
    if (rows > length - first) return ROUTECAP_ERR_OUT_OF_RANGE;
    if (limit < first + rows) return ROUTECAP_ERR_NOT_READY;
    routing = {shape, first, rows, r->rows(*shape, first, first + rows)};
    return routing.status();
}

int32_t Capturer::extract(const RequestPtr &r, uint64_t first, uint64_t rows, int32_t mode,
                          uint32_t strictness, RoutingPtr &routing) {
    Routing read_out;
    const int32_t status = read(r, first, rows, mode == ROUTECAP_EXTRACT_TAKE, read_out);
    if (status < 0) return status;
    if (const int32_t refused = read_out.strict(strictness); refused < 0) return refused;
    for (uint64_t p = first; mode == ROUTECAP_EXTRACT_TAKE && p < read_out.end(); p++) {
        const auto row = r->content.find(p);
        if (row == r->content.end() || !row->second->there()) continue;
        r->content.erase(row);
        r->note(ROUTECAP_MISSING_TAKEN, p, p + 1);
    }
    routing = std::make_shared<Routing>(std::move(read_out));
    return status;
}

}  // namespace model
