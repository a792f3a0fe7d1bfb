// Serialised routings in memory that was lent: used in place, given back once, never written; and
// checks. What the form says is in the vectors and in tests/fuzz/serialized.cc.
#include <rig.h>

#include <cstring>
#include <random>
#include <span>

using namespace rig;

namespace {

using Bytes = std::vector<uint8_t>;

Bytes serialized(const routecap_routing *routing) {
    uint64_t needed = 0;
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                  routecap_routing_serialize(routing, nullptr, 0, &needed));
    Bytes bytes(needed, 0xee);
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                  routecap_routing_serialize(routing, bytes.data(), needed - 1, nullptr));
    EXPECT_STATUS(ROUTECAP_OK, routecap_routing_serialize(routing, bytes.data(), needed, nullptr));
    return bytes;
}

RoutingPtr deserialized(const Bytes &bytes, uint32_t flags = 0) {
    routecap_routing *routing = nullptr;
    EXPECT_GE(
        routecap_routing_deserialize(bytes.data(), bytes.size(), flags, nullptr, nullptr, &routing),
        0)
        << routecap_last_error();
    return RoutingPtr(routing);
}

int32_t refusal(const void *data, size_t bytes, uint32_t flags = 0) {
    routecap_routing *routing = nullptr;
    const int32_t status =
        routecap_routing_deserialize(data, bytes, flags, nullptr, nullptr, &routing);
    EXPECT_EQ(routing != nullptr, status >= 0);
    EXPECT_TRUE(status >= 0 || *routecap_last_error() != 0);
    routecap_routing_free(routing);
    return status;
}

void count(void *counter) { ++*static_cast<int *>(counter); }

// A routing with everything in it: whole rows, cells that are missing for every reason, rows that
// are not there, tags of one row and of many.
struct Captured {
    Shape shape;
    Rig rig;
    routecap_request request;

    explicit Captured(const Shape &s, int32_t recomputed = 0)
        : shape(s),
          rig({.shape = s, .layer_provenance = std::vector<int32_t>(s.layers, recomputed)}),
          request(rig.open()) {}

    // Steps of a few rows each; `dense`: without anything missing, and with one tag.
    RoutingPtr routing(uint64_t rows, unsigned seed, bool dense = false) {
        std::mt19937 random(seed);
        const auto one_in = [&](unsigned n) { return !dense && random() % n == 0; };
        uint64_t position = dense ? 0 : random() % 5;
        while (position < rows) {
            const auto n = static_cast<uint32_t>(
                std::min<uint64_t>(1 + random() % shape.rows, rows - position));
            EXPECT_STATUS(ROUTECAP_OK, rig.begin(n));
            for (uint32_t l = 0; l < shape.layers; l++) {
                if (one_in(12)) continue;
                std::vector<std::vector<int64_t>> ids;
                for (uint32_t r = 0; r < n; r++) {
                    ids.push_back(routed(shape, seed, position + r, l));
                    if (one_in(40)) ids.back()[0] = shape.experts;
                    if (one_in(40)) ids.back()[0] = ids.back().back();
                }
                EXPECT_STATUS(ROUTECAP_OK, rig.record(l, ids));
            }
            EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
            const routecap_issue_options options{.struct_size = sizeof options,
                                                 .tag = dense ? 7 : random() % 3};
            rig.land(
                rig.issue({Rig::span(request, position, 0, n)}, ROUTECAP_OK, nullptr, &options));
            position += n + (one_in(4) ? random() % 9 : 0);
        }
        routecap_routing *routing = nullptr;
        EXPECT_GE(routecap_request_extract(rig.capturer(), request, 0, ROUTECAP_ROWS_ALL,
                                           ROUTECAP_EXTRACT_SHARE, 0, &routing),
                  0);
        return RoutingPtr(routing);
    }
};

// By position: the ids and validity of every cell, and the tag of every row with a valid one.
std::vector<std::pair<Row, uint64_t>> everything(const routecap_routing *routing,
                                                 const Shape &shape) {
    const Rows rows = contents(routing, shape);
    const routecap_view view = view_of(routing);
    std::vector<std::pair<Row, uint64_t>> all;
    for (size_t s = 0; s < view.segment_count; s++) {
        const routecap_segment &segment = view.segments[s];
        for (uint64_t r = 0; r < segment.rows; r++) {
            const Row &row = rows[segment.first - view.first + r];
            const bool any = std::any_of(row.begin(), row.end(),
                                         [](const Cell &cell) { return cell.has_value(); });
            all.emplace_back(row, !any                      ? 0
                                  : segment.tags != nullptr ? segment.tags[r]
                                                            : segment.tag);
        }
    }
    return all;
}

std::vector<std::array<uint64_t, 5>> missing(const routecap_routing *routing) {
    routecap_coverage coverage{.struct_size = sizeof coverage};
    EXPECT_GE(routecap_routing_coverage(routing, &coverage, nullptr, 0, 0), 0);
    std::vector<routecap_missing> blocks(coverage.blocks);
    EXPECT_GE(routecap_routing_coverage(routing, &coverage, blocks.data(), sizeof(routecap_missing),
                                        blocks.size()),
              0);
    std::vector<std::array<uint64_t, 5>> all;
    for (const routecap_missing &m : blocks)
        all.push_back({m.first, m.rows, m.first_layer, m.layers, static_cast<uint64_t>(m.reason)});
    return all;
}

void expect_same(const routecap_routing *a, const routecap_routing *b, const Shape &shape) {
    EXPECT_EQ(everything(a, shape), everything(b, shape));
    EXPECT_EQ(missing(a), missing(b));
    EXPECT_EQ(view_of(a).first, view_of(b).first);
    EXPECT_EQ((Status{routecap_routing_poll(a)}), (Status{routecap_routing_poll(b)}));
}

// The bytes that a splice describes.
Bytes spliced(const Bytes &head, const Bytes &tail, uint64_t row, int32_t expected = ROUTECAP_OK) {
    const auto header_bytes = [](const Bytes &bytes) {
        routecap_serialized info{.struct_size = sizeof info};
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_serialized_info(bytes.data(), ROUTECAP_SERIALIZED_MIN, &info));
        return info.header_bytes;
    };
    // The headers alone, in memory of just that size.
    const Bytes head_only(head.begin(), head.begin() + static_cast<ptrdiff_t>(header_bytes(head)));
    const Bytes tail_only(tail.begin(), tail.begin() + static_cast<ptrdiff_t>(header_bytes(tail)));
    routecap_splice splice{.struct_size = sizeof splice};
    Bytes header, bytes;
    std::vector<routecap_piece> pieces;
    const auto call = [&] {
        return routecap_serialized_splice(head_only.data(), head_only.size(), tail_only.data(),
                                          tail_only.size(), row, header.data(), header.size(),
                                          pieces.data(), sizeof pieces[0], pieces.size(), &splice);
    };
    if (const int32_t status = call(); status != ROUTECAP_ERR_BUFFER_TOO_SMALL) {
        EXPECT_STATUS(expected, status);
        return {};
    }
    EXPECT_LE(splice.header_bytes, head_only.size() + tail_only.size() + 128);
    EXPECT_LE(splice.pieces, uint32_t{ROUTECAP_MAX_PIECES});
    header.assign(splice.header_bytes, 0x77);
    pieces.assign(splice.pieces - 1,
                  {.offset = 0x77, .bytes = 0x77, .source = 0x77, .reserved = 0x77});
    EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL, call());
    EXPECT_TRUE(
        std::all_of(header.begin(), header.end(), [](unsigned char c) { return c == 0x77; }));
    EXPECT_TRUE(std::all_of(pieces.begin(), pieces.end(), [](const routecap_piece &p) {
        return p.bytes == 0x77 && p.source == 0x77;
    }));
    pieces.resize(splice.pieces);
    EXPECT_STATUS(expected, call());
    const Bytes *sources[] = {&header, &head, &tail};
    for (const routecap_piece &piece : pieces) {
        EXPECT_EQ(0u, piece.reserved);
        const auto from = sources[piece.source]->begin() + static_cast<ptrdiff_t>(piece.offset);
        EXPECT_LE(piece.offset + piece.bytes, sources[piece.source]->size());
        bytes.insert(bytes.end(), from, from + static_cast<ptrdiff_t>(piece.bytes));
    }
    EXPECT_EQ(bytes.size(), splice.bytes);
    return bytes;
}

RoutingPtr slice(const routecap_routing *routing, uint64_t first, uint64_t rows) {
    routecap_routing *part = nullptr;
    EXPECT_STATUS(ROUTECAP_OK, routecap_routing_slice(routing, first, rows, &part));
    return RoutingPtr(part);
}

const Shape kShapes[] = {{.layers = 4, .k = 2, .experts = 16, .rows = 32},
                         {.layers = 11, .k = 8, .experts = 256, .rows = 32},
                         {.layers = 3, .k = 3, .experts = 300, .rows = 8},
                         {.layers = 1, .k = 1, .experts = 2, .rows = 64},
                         {.layers = 9, .k = 4, .experts = 1000, .rows = 16}};

}  // namespace

TEST(Serialized, lent_memory_is_used_in_place_until_nobody_does) {
    const Shape shape = kShapes[1];
    Captured captured(shape);
    const RoutingPtr routing = captured.routing(100, 3, true);
    const Bytes bytes = serialized(routing.get());
    int released = 0;
    routecap_routing *raw = nullptr;
    ASSERT_GE(routecap_routing_deserialize(bytes.data(), bytes.size(), 0, count, &released, &raw),
              0);
    RoutingPtr lent(raw);
    for (size_t s = 0; s < view_of(raw).segment_count; s++) {
        const auto *ids = static_cast<const uint8_t *>(view_of(raw).segments[s].ids);
        EXPECT_TRUE(ids == nullptr || (ids > bytes.data() && ids < bytes.data() + bytes.size()));
    }
    RoutingPtr part = slice(raw, 10, 20);
    Rig other({.shape = shape});
    const routecap_request r = other.open();
    EXPECT_STATUS(ROUTECAP_OK, routecap_request_attach(other.capturer(), r, raw, 50));
    lent.reset();
    EXPECT_EQ(released, 0);
    part.reset();
    RoutingPtr attached(other.finish(r, 50));
    EXPECT_GE(routecap_routing_wait(attached.get(), -1), 0);
    expect_same(attached.get(), slice(routing.get(), 0, 50).get(), shape);
    EXPECT_EQ(released, 0);
    attached.reset();
    EXPECT_EQ(released, 1);

    // That of a call that fails is not given back at all.
    EXPECT_STATUS(ROUTECAP_ERR_FORMAT, routecap_routing_deserialize(bytes.data(), bytes.size() - 1,
                                                                    0, count, &released, &raw));
    EXPECT_EQ(raw, nullptr);
    EXPECT_EQ(released, 1);
}

TEST(Serialized, memory_that_is_not_aligned_is_copied_and_given_back_at_once) {
    for (const Shape &shape : kShapes) {  // ids of one byte and of two
        Captured captured(shape);
        const RoutingPtr routing = captured.routing(100, 3);
        const Bytes bytes = serialized(routing.get());
        Bytes shifted(bytes.size() + 1);
        std::memcpy(shifted.data() + 1, bytes.data(), bytes.size());
        int released = 0;
        routecap_routing *raw = nullptr;
        ASSERT_GE(routecap_routing_deserialize(shifted.data() + 1, bytes.size(), 0, count,
                                               &released, &raw),
                  0);
        EXPECT_EQ(released, 1);
        std::fill(shifted.begin(), shifted.end(), uint8_t{0});
        expect_same(routing.get(), RoutingPtr(raw).get(), shape);
    }
}

// Whoever changes what he has lent gets nonsense, and nothing outside his memory is read.
TEST(Serialized, lent_memory_that_changes_against_the_rules_does_no_harm) {
    const Shape shape = kShapes[0];
    Captured captured(shape);
    Bytes lent = serialized(captured.routing(60, 5).get());
    int released = 0;
    routecap_routing *raw = nullptr;
    ASSERT_GE(routecap_routing_deserialize(lent.data(), lent.size(), 0, count, &released, &raw), 0);
    const RoutingPtr routing(raw);
    routecap_serialized info{.struct_size = sizeof info};
    EXPECT_STATUS(ROUTECAP_OK, routecap_serialized_info(lent.data(), lent.size(), &info));
    std::fill(lent.begin() + static_cast<ptrdiff_t>(info.header_bytes), lent.end(), uint8_t{0xff});
    EXPECT_GE(routecap_routing_poll(raw), 0);
    routecap_coverage coverage{.struct_size = sizeof coverage};
    EXPECT_GE(routecap_routing_coverage(raw, &coverage, nullptr, 0, 0), 0);
    serialized(raw);
}

// Positions that were supplied from lent memory are filled up and recorded again: the lender's
// bytes stay what they are.
TEST(Serialized, nobody_writes_into_lent_memory) {
    const Shape shape = kShapes[0];
    Captured captured(shape);
    const RoutingPtr routing = captured.routing(60, 5);
    const Bytes bytes = serialized(routing.get());
    Bytes lent = bytes;
    int released = 0;
    routecap_routing *raw = nullptr;
    ASSERT_GE(routecap_routing_deserialize(lent.data(), lent.size(), 0, count, &released, &raw), 0);
    {
        Rig other({.shape = shape});
        const routecap_request r = other.open();
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_request_attach(other.capturer(), r, raw, ROUTECAP_ROWS_ALL));
        other.step({{r, {9, 0, 32}}});
        other.step({{r, {9, 32, 32}}});
        const RoutingPtr filled(other.finish(r, 64));
        EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(filled.get(), -1));
    }
    RoutingPtr(raw).reset();
    EXPECT_EQ(released, 1);
    EXPECT_EQ(lent, bytes);
}

// ---- Checked --------------------------------------------------------------------------------

// The bytes that a slice describes, with `data` for what is read of the routing.
Bytes sliced(const Bytes &whole, const Bytes &data, uint64_t first, uint64_t rows) {
    routecap_splice slice{.struct_size = sizeof slice};
    routecap_piece pieces[ROUTECAP_MAX_PIECES];
    Bytes header(whole.size());
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_serialized_slice(whole.data(), whole.size(), first, rows, header.data(),
                                            header.size(), pieces, sizeof pieces[0],
                                            std::size(pieces), &slice));
    Bytes bytes;
    for (const routecap_piece &piece : std::span(pieces, slice.pieces)) {
        const auto *from = piece.source == ROUTECAP_PIECE_HEADER ? header.data() : data.data();
        bytes.insert(bytes.end(), from + piece.offset, from + piece.offset + piece.bytes);
    }
    EXPECT_EQ(bytes.size(), slice.bytes);
    return bytes;
}

TEST(Checks, a_range_that_was_read_is_checked_by_itself) {
    Captured captured(kShapes[0]);
    const RoutingPtr routing = captured.routing(40, 4);
    const Bytes whole = serialized(routing.get());
    routecap_serialized info{.struct_size = sizeof info};
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_serialized_info(whole.data(), ROUTECAP_SERIALIZED_MIN, &info));
    for (const uint64_t first : {0, 33}) {
        const Bytes range = sliced(whole, whole, first, 7);
        routecap_routing *same = nullptr;
        EXPECT_GE(routecap_routing_slice(routing.get(), first, 7, &same), 0);
        expect_same(deserialized(range).get(), RoutingPtr(same).get(), kShapes[0]);
        // A byte that changed on its way costs the range that it is in, and no other.
        size_t refused = 0;
        for (size_t at = info.header_bytes; at < whole.size(); at++) {
            Bytes damaged = whole;
            damaged[at] ^= 1;
            const Bytes read = sliced(whole, damaged, first, 7);
            const int32_t status = refusal(read.data(), read.size());
            EXPECT_EQ(status == ROUTECAP_ERR_FORMAT, read != range) << at;
            refused += status == ROUTECAP_ERR_FORMAT;
        }
        EXPECT_GT(refused, 0u);
    }
}

// The head's check covers the rows' checks too: whoever cannot read the head knows it at once.
TEST(Checks, a_byte_of_the_head_that_changed_is_noticed) {
    Captured captured(kShapes[0]);
    const Bytes whole = spliced(serialized(captured.routing(20, 1).get()),
                                serialized(captured.routing(30, 2).get()), 11);
    deserialized(whole);
    routecap_serialized info{.struct_size = sizeof info};
    EXPECT_STATUS(ROUTECAP_OK, routecap_serialized_info(whole.data(), whole.size(), &info));
    for (size_t at = 0; at < info.header_bytes; at++) {
        Bytes damaged = whole;
        damaged[at] ^= 1;
        EXPECT_STATUS(ROUTECAP_ERR_FORMAT, refusal(damaged.data(), damaged.size())) << at;
    }
}

// Files that a development version wrote.
TEST(Serialized, bytes_of_another_form_are_refused_by_name) {
    const Bytes old(200, 0);
    Bytes development = old;
    std::memcpy(development.data(), "ROUTECAP", 8);
    EXPECT_STATUS(ROUTECAP_ERR_FORMAT, refusal(development.data(), development.size()));
    EXPECT_NE(std::string(routecap_last_error()).find("development"), std::string::npos);
    EXPECT_STATUS(ROUTECAP_ERR_FORMAT, refusal(old.data(), old.size()));
}

// ---- Splicing -------------------------------------------------------------------------------

TEST(Splice, what_does_not_fit_together_is_refused_and_provenance_is_united) {
    Captured one(kShapes[0]), recomputed(kShapes[0], ROUTECAP_PROVENANCE_RECOMPUTED),
        other(kShapes[3]);
    const RoutingPtr nothing(recomputed.rig.finish(recomputed.request, 20));
    EXPECT_STATUS(ROUTECAP_NOT_CAPTURED, routecap_routing_wait(nothing.get(), -1));
    const Bytes a = serialized(one.routing(20, 1, true).get()), b = serialized(nothing.get());
    spliced(a, serialized(other.routing(20, 1).get()), 5, ROUTECAP_ERR_SHAPE_MISMATCH);
    const RoutingPtr united = deserialized(spliced(a, b, 10));
    EXPECT_EQ(view_of(united.get()).layer_provenance[0], ROUTECAP_PROVENANCE_RECOMPUTED);
    spliced(a, b, uint64_t{ROUTECAP_MAX_POSITION} + 1, ROUTECAP_ERR_ARGUMENT);
    routecap_splice splice{.struct_size = sizeof splice};
    const auto refused = [&](int32_t status, size_t a_bytes, size_t b_bytes, routecap_piece *pieces,
                             size_t piece_size, size_t capacity) {
        EXPECT_STATUS(
            status, routecap_serialized_splice(a.data(), a_bytes, b.data(), b_bytes, 5, nullptr, 0,
                                               pieces, piece_size, capacity, &splice));
    };
    routecap_piece pieces[ROUTECAP_MAX_PIECES];
    refused(ROUTECAP_ERR_FORMAT, 120, b.size(), pieces, sizeof pieces[0], std::size(pieces));
    refused(ROUTECAP_ERR_FORMAT, a.size(), 10, pieces, sizeof pieces[0], std::size(pieces));
    refused(ROUTECAP_ERR_STRUCT_SIZE, a.size(), b.size(), pieces, sizeof pieces[0] - 8,
            std::size(pieces));
    refused(ROUTECAP_ERR_ARGUMENT, a.size(), b.size(), nullptr, sizeof pieces[0], 1);

    // Pieces of a newer program: what this library does not know of them is 0.
    struct Newer {
        routecap_piece known;
        uint64_t more;
    } newer[ROUTECAP_MAX_PIECES];
    std::memset(newer, 0x77, sizeof newer);
    Bytes header(a.size() + b.size() + 128);
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_serialized_splice(a.data(), a.size(), b.data(), b.size(), 5,
                                             header.data(), header.size(), &newer[0].known,
                                             sizeof newer[0], std::size(newer), &splice));
    uint64_t bytes = 0;
    for (const Newer &piece : newer) {
        const bool filled = &piece < newer + splice.pieces;
        EXPECT_EQ(filled ? 0 : 0x7777777777777777, piece.more);
        if (filled) bytes += piece.known.bytes;
    }
    EXPECT_EQ(splice.bytes, bytes);
}
