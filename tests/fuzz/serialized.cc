// The serialised form, from bytes of any origin: a reader written from the header decides what they
// hold, and the library must say the same. What both accept is read, written again, imported and
// spliced.
#include <algorithm>
#include <cstring>
#include <optional>

#include "../support/crc32c.h"
#include "../support/declared.h"
#include "bytes.h"
#include "check.h"
#include "model.h"
#include "reader.h"

namespace {

using fuzz::Bytes;
using namespace reader;

// ---- What is fed

// A routing from the input, as the model writes it.
Data written(Bytes &in) {
    auto shape = std::make_shared<model::Shape>();
    const uint64_t columns = in.number(1);
    shape->k = static_cast<uint32_t>(1 + columns % 4);
    const bool rules = columns / 4 % 3 == 2;  // whether layers have their own k, and visits
    constexpr int32_t kWeights[] = {
        0, 0, 0, 0, 0, 0, ROUTECAP_DTYPE_F32, ROUTECAP_DTYPE_F16, ROUTECAP_DTYPE_BF16};
    shape->weights = kWeights[columns / 12 % 9];
    shape->id_space = static_cast<int32_t>(in.below(8) == 7);
    for (uint64_t l = in.pick({1u, 2u, 8u, 9u}); l > 0; l--) {
        shape->layers.push_back(
            {shape->layers.empty()
                 ? 0
                 : shape->layers.back().index + 1 + static_cast<int32_t>(in.below(8) == 7),
             in.pick({8u, 8u, 256u, 300u}), in.below(8) == 7, shape->k, shape->k});
        if (!rules) continue;
        model::Layer &layer = shape->layers.back();
        if (in.below(4) == 3) layer.k = 1 + static_cast<uint32_t>(in.below(shape->k));
        layer.least = static_cast<uint32_t>(in.below(layer.k + 1));
        if (layer.experts == 256 && in.below(2) == 1) layer.experts = 255;
        if (shape->layers.size() > 1 && in.below(4) == 3) {  // once more
            const model::Layer &before = shape->layers[shape->layers.size() - 2];
            layer.index = before.index, layer.visit = before.visit + 1;
        }
    }
    model::Routing routing{shape, in.below(8), in.below(24)};
    const uint64_t tags = in.below(4);
    for (uint64_t p = routing.first; p < routing.end(); p++) {
        const uint64_t kind = in.number(1);
        if (kind % 4 == 3) {
            const size_t which = kind / 4 % 16;
            if (which < std::size(kOfRows) && kOfRows[which] != ROUTECAP_MISSING_ABSENT)
                routing.content.emplace(p, model::empty_row(*shape, kOfRows[which]));
            continue;
        }
        auto row = std::make_shared<model::Row>();
        row->tag = tags == 0 ? 0 : kind / 4 % (1 + tags);
        for (size_t l = 0; l < shape->cells(); l++) {
            row->missing.push_back(kind % 4 == 2 && (kind / 16 + l) % 3 == 0
                                       ? static_cast<uint8_t>(2 + (kind / 64 + l) % 3)
                                       : 0);
            const model::Layer &layer = shape->layers[l];
            const size_t used = layer.k - (kind / 4 + l) % (layer.k - layer.least + 1);
            for (uint32_t c = 0; c < shape->k; c++)
                row->ids.push_back(static_cast<uint16_t>(
                    row->valid(l) ? (c < used ? (kind + l + c) % layer.experts : model::kUnused)
                    : c == 0      ? row->missing[l]
                                  : 0));
            std::vector<uint32_t> bits;  // of numbers from 1 on
            for (size_t c = 0; c < used; c++)
                bits.push_back(shape->weights == ROUTECAP_DTYPE_F32
                                   ? 0x3f800000 + static_cast<uint32_t>(kind << 8 | l << 4 | c)
                                   : 0x3f80 + static_cast<uint32_t>((kind + l * 4 + c) % 128));
            if (const auto weights = shape->weigh(used, (kind + l) % 3 == 0 ? nullptr : &bits);
                row->valid(l) && weights)
                row->weights[l] = *weights;
        }
        routing.content.emplace(p, std::move(row));
    }
    return routing.serialize();
}

// Writes the checks that the bytes should have, as far as they have places for them.
void mend_checks(Data &data) {
    const auto mend_head = [&] {
        const auto f = fixed(data);
        if (!f || data.size() < f->header_bytes) return;
        const uint32_t check = crc32c(data, f->header_bytes, 12);
        std::memcpy(data.data() + 12, &check, 4);
    };
    mend_head();
    const auto h = header(data);
    if (!h || h->f.bytes != data.size()) return;
    uint64_t at = h->f.header_bytes, checks = h->f.checks, position = h->f.first;
    for (const Run &run : h->runs) {
        for (uint64_t r = 0; (run.flags & kPresent) != 0 && r < run.rows; r++) {
            Data row;
            for (size_t b = 0; b < 8; b++)
                row.push_back(static_cast<uint8_t>((position + r) >> 8 * b));
            const auto begin = data.begin() + static_cast<ptrdiff_t>(at);
            row.insert(row.end(), begin, begin + static_cast<ptrdiff_t>(h->f.stride));
            const uint32_t check = crc32c(row);
            std::memcpy(data.data() + checks, &check, 4);
            at += h->f.stride, checks += 4;
        }
        position += run.rows;
    }
    mend_head();
}

// It, damaged here and there; or the rest of the input as it is.
Data any(Bytes &in) {
    if (in.below(4) == 3) {
        Data data;
        while (!in.empty()) data.push_back(static_cast<uint8_t>(in.number(1)));
        return data;
    }
    Data data = written(in);
    for (uint64_t damages = in.below(4); damages > 0; damages--) {
        const size_t at =
            in.below(std::min<size_t>(data.size(), in.below(2) == 0 ? 256 : SIZE_MAX));
        switch (in.below(4)) {
            case 0: data[at] = static_cast<uint8_t>(in.number(1)); break;
            case 1: data[at] = static_cast<uint8_t>(data[at] + 1); break;
            case 2: data.resize(at + 1); break;
            default: data.insert(data.begin() + static_cast<ptrdiff_t>(at), 0); break;
        }
    }
    // What a damaged header says is looked at, too, and so are damaged rows.
    if (in.below(2) == 1) mend_checks(data);
    return data;
}

int32_t released = 0;

// Lent or copied; the lent memory lives until it is released.
routecap_routing *deserialize(const Data &data, uint32_t flags, bool lend, bool straight,
                              const std::optional<model::Routing> &expected) {
    routecap_routing *routing = reinterpret_cast<routecap_routing *>(&released);
    const int32_t status = expected ? expected->status() : ROUTECAP_ERR_FORMAT;
    auto *memory = new std::vector<uint64_t>(data.size() / 8 + 2);
    uint8_t *bytes = reinterpret_cast<uint8_t *>(memory->data()) + (straight ? 0 : 1);
    std::copy(data.begin(), data.end(), bytes);
    const int32_t before = released;
    const auto release = [](void *context) {
        released++;
        delete static_cast<std::vector<uint64_t> *>(context);
    };
    SAME_STATUS(status, routecap_routing_deserialize(bytes, data.size(), flags,
                                                     lend ? +release : nullptr, memory, &routing));
    if (!lend || status < 0) {
        SAME(before, released);
        delete memory;
    }
    if (status < 0) SAME(0, routing != nullptr);
    return routing;
}

void spliced(const Data &head, const Data &tail, uint64_t row) {
    const auto a = header(head), b = header(tail);
    int32_t expected = ROUTECAP_OK;
    if (!a || !b)
        expected = ROUTECAP_ERR_FORMAT;
    else if (!a->shape->same(*b->shape) || a->f.layers != b->f.layers)
        expected = ROUTECAP_ERR_SHAPE_MISMATCH;
    for (size_t l = 0; expected == ROUTECAP_OK && l < a->shape->cells(); l++)
        if (!a->shape->layers[l].same(b->shape->layers[l])) expected = ROUTECAP_ERR_SHAPE_MISMATCH;
    Data made(head.size() + tail.size() + 128);
    routecap_splice splice{};
    splice.struct_size = sizeof splice;
    routecap_piece pieces[ROUTECAP_MAX_PIECES];
    const auto call = [&](Data &into) {
        return routecap_serialized_splice(head.data(), head.size(), tail.data(), tail.size(), row,
                                          into.data(), into.size(), pieces, sizeof pieces[0],
                                          std::size(pieces), &splice);
    };
    SAME_STATUS(expected, call(made));
    if (expected < 0) return;
    if (splice.header_bytes > a->f.header_bytes + b->f.header_bytes + 128)
        check::fail("a header of %llu bytes", static_cast<unsigned long long>(splice.header_bytes));
    Data small(splice.header_bytes - 1);
    SAME_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL, call(small));
    SAME_STATUS(ROUTECAP_OK, call(made));
    const auto whole_a = parse(head, true), whole_b = parse(tail, true);
    // Their rows are not what they should be, and nobody has looked.
    if (!whole_a || !whole_b) return;
    if (whole_a->rows > kMostRows || whole_b->rows > kMostRows) return;
    const Data data = check::spliced(splice, pieces, made, head, tail);
    const model::RoutingPtr same = model::splice(*whole_a, *whole_b, row);
    if (same->rows > kMostRows) return;
    routecap_routing *routing = deserialize(data, ROUTECAP_IMPORT_TRUSTED, false, true, *same);
    check::routing(routing, *same);
    routecap_routing_free(routing);
}

// Rows from `row` on, as many as there are of half of them, cut out of the bytes and out of the
// routing.
void sliced(const Data &bytes, const routecap_routing *routing, const model::Routing &whole,
            uint64_t row) {
    uint64_t first = whole.first + row;
    routecap_splice slice{};
    slice.struct_size = sizeof slice;
    routecap_piece pieces[ROUTECAP_MAX_PIECES];
    Data made(header(bytes)->f.header_bytes);
    const auto call = [&](uint64_t rows) {
        return routecap_serialized_slice(bytes.data(), bytes.size(), first, rows, made.data(),
                                         made.size(), pieces, sizeof pieces[0], std::size(pieces),
                                         &slice);
    };
    if (row > whole.rows) return SAME_STATUS(ROUTECAP_ERR_OUT_OF_RANGE, call(0));
    if (row == 0 && first > 0) {
        first--;  // a row before them
        SAME_STATUS(ROUTECAP_ERR_OUT_OF_RANGE, call(1));
        first++;
    }
    SAME_STATUS(ROUTECAP_ERR_OUT_OF_RANGE, call(whole.rows - row + 1));
    const uint64_t rows = (whole.rows - row + 1) / 2;
    SAME_STATUS(ROUTECAP_OK, call(rows));
    const Data cut = check::spliced(slice, pieces, made, bytes, {});
    routecap_routing *read = nullptr, *same = nullptr;
    if (routecap_routing_deserialize(cut.data(), cut.size(), ROUTECAP_IMPORT_TRUSTED, nullptr,
                                     nullptr, &read) < 0)
        check::fail("a slice is no routing: %s", routecap_last_error());
    SAME_STATUS(ROUTECAP_OK, routecap_routing_slice(routing, first, rows, &same));
    if (check::serialized(read) != check::serialized(same)) check::fail("a slice has other rows");
    routecap_routing_free(read);
    routecap_routing_free(same);
}

void imported(const routecap_routing *routing, const model::Routing &expected, uint32_t flags) {
    routecap_view view{};
    view.struct_size = sizeof view;
    SAME_STATUS(ROUTECAP_OK, routecap_routing_view(routing, &view));
    routecap_routing *same = nullptr;
    SAME_STATUS(expected.status(), routecap_routing_import(&view, flags, nullptr, nullptr, &same));
    check::routing(same, expected);
    routecap_routing_free(same);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Bytes in(data, size);
    const bool trusted = in.below(4) == 3, lend = in.below(2) == 1, straight = in.below(4) != 3;
    const uint64_t row = in.below(40);
    Bytes first_in = in;
    const Data other = written(in);
    Data bytes = any(in.below(8) == 7 ? first_in : in);
    bytes.reserve(1);  // memory, also for none
    const uint32_t flags = trusted ? ROUTECAP_IMPORT_TRUSTED : 0;

    routecap_serialized info{};
    info.struct_size = sizeof info;
    const auto f = fixed(bytes);
    const bool other_file = bytes.size() >= 8 && std::memcmp(bytes.data(), kMagic, 8) != 0;
    const int32_t expected = bytes.size() < ROUTECAP_SERIALIZED_MIN && !other_file
                                 ? ROUTECAP_ERR_BUFFER_TOO_SMALL
                             : f ? ROUTECAP_OK
                                 : ROUTECAP_ERR_FORMAT;
    SAME_STATUS(expected, routecap_serialized_info(bytes.data(), bytes.size(), &info));
    if (f) {
        SAME(1, info.version);
        SAME(f->bytes, info.bytes);
        SAME(f->header_bytes, info.header_bytes);
        SAME(f->first, info.first);
        SAME(f->rows, info.rows);
        SAME(f->layers, info.layers);
        SAME(f->k, info.k);
        SAME(f->dtype, info.dtype);
        SAME(f->id_space, info.id_space);
        SAME(f->weights, info.weights_dtype);
    }
    auto routing = parse(bytes, trusted);
    if (routing && routing->rows > kMostRows) return 0;
    routecap_routing *read = deserialize(bytes, flags, lend, straight, routing);
    if (routing) {
        check::routing(read, *routing);
        imported(read, *routing, flags);
        sliced(bytes, read, *routing, row);
        routecap_routing_free(read);
    }
    spliced(bytes, other, row);
    spliced(other, bytes, row);
    spliced(bytes, bytes, row);
    return 0;
}
