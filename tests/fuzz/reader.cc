#include "reader.h"

#include <algorithm>
#include <cstring>

#include "../support/crc32c.h"
#include "../support/declared.h"

namespace reader {
namespace {

uint64_t number(const Data &data, size_t at, size_t bytes) {
    uint64_t value = 0;
    for (size_t b = 0; b < bytes; b++) value |= uint64_t{data[at + b]} << 8 * b;
    return value;
}
size_t up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }
bool zero(const Data &data, size_t from, size_t to) {
    return std::all_of(data.begin() + static_cast<ptrdiff_t>(from),
                       data.begin() + static_cast<ptrdiff_t>(to), [](uint8_t b) { return b == 0; });
}

// Why rows may be said not to be there: 0 stands for ABSENT, and what cells lack is said of cells.
bool may_say(uint64_t reason) {
    return reason == 0 || (reason > ROUTECAP_MISSING_ABSENT && reason <= std::size(kBestFirst) &&
                           model::of_whole_rows(static_cast<uint8_t>(reason)));
}

}  // namespace

std::optional<Fixed> fixed(const Data &data) {
    if (data.size() < ROUTECAP_SERIALIZED_MIN || std::memcmp(data.data(), kMagic, 8) != 0)
        return {};
    if (number(data, 8, 4) != 1) return {};
    Fixed f{number(data, 16, 8),
            number(data, 24, 8),
            number(data, 32, 8),
            number(data, 40, 8),
            number(data, 48, 8),
            number(data, 56, 4),
            number(data, 60, 4),
            number(data, 64, 4),
            number(data, 68, 4),
            number(data, 72, 4),
            number(data, 76, 4),
            0,
            0};
    if (number(data, 80, 8) != 0) return {};
    if (f.weights != 0 && f.weights != ROUTECAP_DTYPE_F32 && f.weights != ROUTECAP_DTYPE_F16 &&
        f.weights != ROUTECAP_DTYPE_BF16)
        return {};
    if (f.layers < 1 || f.layers > ROUTECAP_MAX_LAYERS || f.k < 1 || f.k > ROUTECAP_MAX_K ||
        f.id_space > 1)
        return {};
    if (f.dtype != ROUTECAP_DTYPE_U8 && f.dtype != ROUTECAP_DTYPE_I16) return {};
    if (f.first > ROUTECAP_MAX_POSITION || f.rows > ROUTECAP_MAX_POSITION - f.first ||
        f.runs > f.rows || f.present > f.rows)
        return {};
    f.checks = ROUTECAP_SERIALIZED_MIN + f.layers * 24 + f.runs * 24;
    f.header_bytes = up(f.checks + f.present * 4, 64);
    if (f.bytes < f.header_bytes) return {};
    return f;
}

std::optional<Header> header(const Data &data) {
    const auto f = fixed(data);
    if (!f || data.size() < f->header_bytes) return {};
    if (number(data, 12, 4) != crc32c(data, f->header_bytes, 12)) return {};
    Header h{*f};
    h.shape->k = static_cast<uint32_t>(f->k), h.shape->id_space = static_cast<int32_t>(f->id_space);
    h.shape->weights = static_cast<int32_t>(f->weights);
    size_t at = ROUTECAP_SERIALIZED_MIN;
    for (uint64_t l = 0; l < f->layers; l++, at += 24) {
        const model::Layer layer{static_cast<int32_t>(number(data, at, 4)),
                                 static_cast<uint32_t>(number(data, at + 4, 4)),
                                 static_cast<int32_t>(number(data, at + 8, 4)),
                                 static_cast<uint32_t>(number(data, at + 12, 4)),
                                 static_cast<uint32_t>(number(data, at + 16, 4)),
                                 static_cast<uint32_t>(number(data, at + 20, 4))};
        if (layer.index < 0 || (l > 0 && layer.key() <= h.shape->layers.back().key())) return {};
        if (layer.k < 1 || layer.k > f->k || layer.least > layer.k) return {};
        if (layer.experts < layer.k || layer.experts > ROUTECAP_MAX_EXPERTS ||
            (layer.provenance != 0 && layer.provenance != 1))
            return {};
        h.shape->layers.push_back(layer);
    }
    if (static_cast<uint64_t>(h.shape->dtype()) != f->dtype || h.shape->stride() != f->stride)
        return {};
    uint64_t rows = 0, present = 0;
    for (uint64_t r = 0; r < f->runs; r++, at += 24) {
        const Run run{number(data, at, 8), number(data, at + 8, 8), number(data, at + 16, 4),
                      number(data, at + 20, 4)};
        if (run.rows == 0 || run.rows > f->rows || run.flags > 3) return {};
        if ((run.flags & kPresent) == 0 ? run.flags != 0 || run.tag != 0 || !may_say(run.reason)
                                        : run.reason != 0)
            return {};
        rows += run.rows;
        present += (run.flags & kPresent) != 0 ? run.rows : 0;
        h.runs.push_back(run);
    }
    if (rows != f->rows || present != f->present) return {};
    if (!zero(data, f->checks + f->present * 4, f->header_bytes)) return {};
    if (f->header_bytes + f->present * f->stride != f->bytes) return {};
    return h;
}

std::optional<model::Routing> parse(const Data &data, bool trusted) {
    const auto h = header(data);
    if (!h || h->f.bytes != data.size()) return {};
    model::Routing routing{h->shape, h->f.first, h->f.rows};
    uint64_t at = h->f.header_bytes, checks = h->f.checks, position = h->f.first;
    const size_t k = h->f.k, size = h->shape->id_bytes(), layers = h->f.layers;
    for (const Run &run : h->runs) {
        if ((run.flags & kPresent) == 0) {
            for (uint64_t r = 0; run.reason != 0 && r < std::min(run.rows, kMostRows); r++)
                routing.content.emplace(
                    position + r, model::empty_row(*h->shape, static_cast<uint8_t>(run.reason)));
            position += run.rows;
            continue;
        }
        for (uint64_t r = 0; r < run.rows; r++, position++, at += h->f.stride, checks += 4) {
            Data of_row;
            for (size_t b = 0; b < 8; b++)
                of_row.push_back(static_cast<uint8_t>(position >> 8 * b));
            const auto begin = data.begin() + static_cast<ptrdiff_t>(at);
            of_row.insert(of_row.end(), begin, begin + static_cast<ptrdiff_t>(h->f.stride));
            if (number(data, checks, 4) != crc32c(of_row)) return {};
            auto row = std::make_shared<model::Row>();
            row->tag = run.tag;
            const uint64_t validity = at + layers * k * size;
            for (size_t l = 0; l < layers; l++) {
                const bool valid = (data[validity + l / 8] >> l % 8 & 1) != 0;
                std::vector<int64_t> cell, of_layer;
                for (size_t c = 0; c < k; c++)
                    cell.push_back(
                        static_cast<int64_t>(number(data, at + (l * k + c) * size, size)));
                // All bits of a column that is not used are set.
                const int64_t unused = size == 1 ? UINT8_MAX : UINT16_MAX;
                for (size_t c = 0; c < k; c++)
                    if (valid && h->shape->fewer() && cell[c] == unused) cell[c] = model::kUnused;
                for (size_t c = 0; c < k; c++)
                    of_layer.push_back(cell[c] == model::kUnused ? ROUTECAP_NO_EXPERT : cell[c]);
                if (valid && !trusted && model::judge(of_layer, h->shape->layers[l]) != 0)
                    return {};
                const auto reason = static_cast<uint8_t>(
                    cell[0] >= ROUTECAP_MISSING_ABSENT && cell[0] <= int64_t{std::size(kBestFirst)}
                        ? cell[0]
                        : ROUTECAP_MISSING_UNWRITTEN);
                row->missing.push_back(valid ? 0 : reason);
                for (size_t c = 0; c < k; c++)
                    row->ids.push_back(static_cast<uint16_t>(valid    ? cell[c]
                                                             : c == 0 ? reason
                                                                      : 0));
            }
            const uint64_t bits = (layers + 7) / 8;
            if (layers % 8 != 0 && data[validity + bits - 1] >> layers % 8 != 0) return {};
            const uint64_t begin_weights = at + h->shape->weights_begin(), end = at + h->f.stride;
            if (h->shape->weights == 0) {
                if (!zero(data, validity + bits, end)) return {};
            } else {
                const size_t element = model::element_bytes(h->shape->weights);
                if (!zero(data, validity + 2 * bits, begin_weights) ||
                    !zero(data, begin_weights + layers * k * element, end))
                    return {};
                for (size_t b = 0; b < bits; b++)
                    if ((data[validity + bits + b] & ~data[validity + b]) != 0) return {};
                for (size_t l = 0; l < layers; l++) {
                    const bool there = (data[validity + bits + l / 8] >> l % 8 & 1) != 0;
                    std::vector<uint32_t> cell;
                    for (size_t c = 0; c < k; c++)
                        cell.push_back(static_cast<uint32_t>(
                            number(data, begin_weights + (l * k + c) * element, element)));
                    const auto ids = row->ids.begin() + static_cast<ptrdiff_t>(l * k);
                    size_t experts = there ? h->shape->layers[l].k : 0;
                    while (experts > h->shape->layers[l].least &&
                           ids[static_cast<ptrdiff_t>(experts) - 1] == model::kUnused)
                        experts--;
                    // As they are, or nothing but zeros.
                    const auto as_they_are =
                        there ? h->shape->weigh(experts, &cell) : std::vector<uint32_t>(k);
                    if (!as_they_are || *as_they_are != cell) return {};
                    if (there) row->weights[l] = cell;
                }
            }
            if ((run.flags & kComplete) != 0 && !row->complete()) return {};
            routing.content.emplace(position, std::move(row));
        }
    }
    return routing;
}

}  // namespace reader
