#include "routing/serialized.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "base/crc32c.h"
#include "base/status.h"
#include "base/structs.h"
#include "routing/coverage.h"
#include "routing/import.h"

namespace routecap {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the serialised form is what lies in memory");

constexpr char kMagic[8] = {'R', 'O', 'U', 'T', 'E', 'C', 'A', 'P'};
// Version 2 has checks: of the header in the header, and of each row in a plane of its own.
constexpr uint32_t kPlain = 1, kChecked = 2;
constexpr uint64_t kAlignment = 64;

struct Header {
    char magic[8];
    uint32_t version;
    uint32_t check;  // CRC32C of header and tables, of which these bytes count as 0; or 0
    uint64_t bytes;
    uint64_t first;
    uint64_t rows;
    uint64_t runs;
    uint32_t layers;
    uint32_t k;
    int32_t dtype;
    int32_t id_space;
};
struct LayerEntry {
    int32_t index;
    uint32_t experts;
    int32_t provenance;
};
enum RunFlags : uint32_t { kPresent = 1, kValidity = 2, kTags = 4 };
struct Run {
    uint64_t rows;
    uint64_t tag;
    uint32_t flags;
    int32_t reason;  // of rows that are not PRESENT; 0 for ABSENT

    bool has(RunFlags flag) const { return (flags & flag) != 0; }
};
static_assert(sizeof(Header) == ROUTECAP_SERIALIZED_MIN && sizeof(LayerEntry) == 12 &&
              sizeof(Run) == 24);

uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

// Where everything lies.
struct Layout {
    uint64_t run_table, header_end;  // the tables' ends, without padding
    uint64_t ids = round_up(header_end, kAlignment), ids_end = ids;
    uint64_t tags = ids, tags_end = ids, validity = ids, validity_end = ids;
    uint64_t checks = ids, end = ids;

    Layout(uint32_t version, const Shape &shape, const std::vector<Run> &runs)
        : Layout(shape.layers, runs.size()) {
        uint64_t rows[8] = {};  // by flags
        for (const Run &run : runs) rows[run.flags & 7] += run.rows;
        const uint64_t present = rows[1] + rows[3] + rows[5] + rows[7];
        ids_end = ids + present * shape.ids_bytes;
        tags = round_up(ids_end, kAlignment);
        tags_end = tags + (rows[5] + rows[7]) * sizeof(uint64_t);
        validity = round_up(tags_end, kAlignment);
        validity_end = validity + (rows[3] + rows[7]) * shape.validity_bytes;
        const bool checked = version == kChecked;
        checks = checked ? round_up(validity_end, kAlignment) : validity_end;
        end = checks + (checked ? present * sizeof(uint32_t) : 0);
    }
    // Of the header alone.
    Layout(uint32_t layers, uint64_t runs)
        : run_table(round_up(sizeof(Header) + layers * sizeof(LayerEntry), 8)),
          header_end(run_table + runs * sizeof(Run)) {}
};

// In header and tables of version 2, where the check of all of them is.
uint32_t header_check(const uint8_t *data, uint64_t bytes) {
    return crc32c_without(data, bytes, offsetof(Header, check));
}

void write_header(uint32_t version, const Shape &shape, uint64_t first,
                  const std::vector<Run> &runs, const Layout &layout, uint8_t *dst) {
    Header header{.magic = {},
                  .version = version,
                  .check = 0,
                  .bytes = layout.end,
                  .first = first,
                  .rows = 0,
                  .runs = runs.size(),
                  .layers = shape.layers,
                  .k = shape.k,
                  .dtype = shape.dtype(),
                  .id_space = shape.id_space};
    std::memcpy(header.magic, kMagic, sizeof kMagic);
    for (const Run &run : runs) header.rows += run.rows;
    std::memset(dst, 0, layout.ids);
    std::memcpy(dst, &header, sizeof header);
    for (uint32_t l = 0; l < shape.layers; l++) {
        const LayerEntry entry{shape.layer_map[l], shape.layer_experts[l],
                               shape.layer_provenance[l]};
        std::memcpy(dst + sizeof header + l * sizeof entry, &entry, sizeof entry);
    }
    if (!runs.empty()) std::memcpy(dst + layout.run_table, runs.data(), runs.size() * sizeof(Run));
    if (version != kChecked) return;
    header.check = header_check(dst, layout.ids);
    std::memcpy(dst, &header, sizeof header);
}

// The runs as segments of the planes, from position `first` on, and where their checks are.
struct InPlace {
    std::vector<routecap_segment> segments;
    std::vector<const uint8_t *> checks;  // of version 2
};
InPlace in_place(uint32_t version, const Shape &shape, uint64_t first, const std::vector<Run> &runs,
                 const Layout &layout, const uint8_t *data) {
    InPlace rows;
    const uint8_t *ids = data + layout.ids, *tags = data + layout.tags,
                  *validity = data + layout.validity, *checks = data + layout.checks;
    for (const Run &run : runs) {
        if (run.has(kPresent) || run.reason != 0) {
            rows.segments.push_back(
                {first, run.rows, run.has(kPresent) ? ids : nullptr,
                 run.has(kValidity) ? validity : nullptr,
                 run.has(kTags) ? reinterpret_cast<const uint64_t *>(tags) : nullptr, run.tag,
                 run.reason, 0});
            if (version == kChecked) rows.checks.push_back(checks);
        }
        first += run.rows;
        ids += run.has(kPresent) ? run.rows * shape.ids_bytes : 0;
        tags += run.has(kTags) ? run.rows * sizeof(uint64_t) : 0;
        validity += run.has(kValidity) ? run.rows * shape.validity_bytes : 0;
        checks += run.has(kPresent) ? run.rows * sizeof(uint32_t) : 0;
    }
    return rows;
}

// ---- Writing --------------------------------------------------------------------------------

// A routing's rows as runs, and where the rows of each lie.
class Runs {
public:
    explicit Runs(const Routing &routing) : shape_(routing.shape()) {
        for_all_rows(routing.first(), routing.end(), routing.segments(),
                     [&](const Segment &segment) {
                         if (!segment.page)
                             add(not_there(segment.reason), nullptr, 0, segment.rows);
                         else if (segment.complete || routing.status() == ROUTECAP_OK)
                             add({kPresent, 0}, &segment, 0, segment.rows);
                         else
                             for (uint64_t r = 0; r < segment.rows; r++)
                                 add(kind(segment, r), &segment, r, 1);
                     });
    }

    const std::vector<Run> &all() const { return runs_; }

    void write(const Layout &layout, uint8_t *dst) const {
        uint8_t *ids = dst + layout.ids, *tags = dst + layout.tags,
                *validity = dst + layout.validity;
        for (const Part &part : parts_) {
            const Run &run = runs_[part.run];
            const uint64_t end = part.row + part.rows;
            std::memcpy(ids, part.segment->ids(part.row), part.rows * shape_.ids_bytes);
            for (uint64_t r = part.row; run.has(kValidity) && r < end;
                 r++, validity += shape_.validity_bytes) {
                write_reasons(part.segment->validity(r), ids + (r - part.row) * shape_.ids_bytes);
                std::memcpy(validity, part.segment->validity(r), shape_.validity_bytes);
            }
            for (uint64_t r = part.row; run.has(kTags) && r < end; r++, tags += sizeof(uint64_t)) {
                const uint64_t tag = part.segment->tag(r);
                std::memcpy(tags, &tag, sizeof tag);
            }
            ids += part.rows * shape_.ids_bytes;
        }
        std::memset(ids, 0, layout.tags - layout.ids_end);
        std::memset(tags, 0, layout.validity - layout.tags_end);
        std::memset(validity, 0, layout.checks - layout.validity_end);
    }

private:
    struct Part {
        size_t run;
        const Segment *segment;
        uint64_t row, rows;  // in it
    };

    // What a run's rows have in common.
    struct Kind {
        uint32_t flags = 0;
        int32_t reason = 0;
    };

    // Rows that are not there are not written; their run has their reason.
    Kind kind(const Segment &segment, uint64_t row) const {
        const uint8_t *validity = segment.validity(row);
        if (shape_.row_full(validity)) return {kPresent, 0};
        const int32_t reason = shape_.row_reason(segment.ids(row), validity);
        return reason == 0 ? Kind{kPresent | kValidity, 0} : not_there(reason);
    }
    static Kind not_there(int32_t reason) {
        return {0, reason == ROUTECAP_MISSING_ABSENT ? 0 : reason};
    }

    // Adds rows of one kind. If the last run is of that kind, it grows.
    void add(Kind kind, const Segment *segment, uint64_t row, uint64_t rows) {
        if (rows == 0) return;
        const bool present = kind.flags != 0;
        const bool grows = !runs_.empty() && (runs_.back().flags & ~kTags) == kind.flags &&
                           runs_.back().reason == kind.reason;
        if (!grows) runs_.push_back({0, present ? segment->tag(row) : 0, kind.flags, kind.reason});
        Run &run = runs_.back();
        run.rows += rows;
        if (!present) return;
        const uint64_t tagged =
            segment->page->tags.load(std::memory_order_acquire) != nullptr ? rows : 1;
        for (uint64_t r = row; r < row + tagged && !run.has(kTags); r++)
            if (segment->tag(r) != run.tag) run.flags |= kTags, run.tag = 0;
        if (grows && parts_.back().segment == segment &&
            parts_.back().row + parts_.back().rows == row)
            parts_.back().rows += rows;
        else
            parts_.push_back({runs_.size() - 1, segment, row, rows});
    }

    void write_reasons(const uint8_t *validity, uint8_t *ids) const {
        for (uint32_t l = 0; l < shape_.layers; l++)
            if (!Shape::valid(validity, l)) shape_.mark(ids, l, shape_.reason(ids, l));
    }

    const Shape &shape_;
    std::vector<Run> runs_;
    std::vector<Part> parts_;
};

void write_checks(const Shape &shape, std::span<const routecap_segment> segments, uint8_t *checks) {
    for (const routecap_segment &segment : segments)
        for (uint64_t r = 0; segment.ids != nullptr && r < segment.rows; r++) {
            const uint32_t check = row_check(shape, segment, r);
            std::memcpy(checks, &check, sizeof check);
            checks += sizeof check;
        }
}

// ---- Reading --------------------------------------------------------------------------------

bool all_zero(const uint8_t *from, const uint8_t *to) {
    return std::all_of(from, to, [](uint8_t byte) { return byte == 0; });
}

int32_t read_fixed(const void *data, size_t bytes, Header &header) {
    if (data == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "data is NULL");
    if (bytes >= sizeof kMagic && std::memcmp(data, kMagic, sizeof kMagic) != 0)
        return report(ROUTECAP_ERR_FORMAT, "the first bytes are not those of a serialised routing");
    if (bytes < sizeof header)
        return report(ROUTECAP_ERR_BUFFER_TOO_SMALL, "%zu bytes; a header has %zu at least", bytes,
                      sizeof header);
    std::memcpy(&header, data, sizeof header);
    if (header.version != kPlain && header.version != kChecked)
        return report(ROUTECAP_ERR_FORMAT,
                      "version %u of the serialised form; this library reads %u and %u",
                      header.version, kPlain, kChecked);
    if (header.version == kPlain && header.check != 0)
        return report(ROUTECAP_ERR_FORMAT, "a reserved field is %u", header.check);
    if (header.layers == 0 || header.layers > ROUTECAP_MAX_LAYERS || header.k == 0 ||
        header.k > ROUTECAP_MAX_K)
        return report(ROUTECAP_ERR_FORMAT, "%u layers, %u experts per token", header.layers,
                      header.k);
    if ((header.dtype != ROUTECAP_DTYPE_U8 && header.dtype != ROUTECAP_DTYPE_I16) ||
        (header.id_space != ROUTECAP_ID_SPACE_LOGICAL &&
         header.id_space != ROUTECAP_ID_SPACE_PHYSICAL))
        return report(ROUTECAP_ERR_FORMAT, "dtype %d, id space %d", header.dtype, header.id_space);
    if (header.first > ROUTECAP_MAX_POSITION || header.rows > ROUTECAP_MAX_POSITION - header.first)
        return report(ROUTECAP_ERR_FORMAT, "rows [%llu,+%llu) are beyond the highest position",
                      ull(header.first), ull(header.rows));
    if (header.runs > header.rows)
        return report(ROUTECAP_ERR_FORMAT, "%llu runs of %llu rows", ull(header.runs),
                      ull(header.rows));
    if (header.bytes < Layout(header.layers, header.runs).ids)
        return report(ROUTECAP_ERR_FORMAT, "%llu bytes do not hold the header's tables",
                      ull(header.bytes));
    return ROUTECAP_OK;
}

// A checked header with its tables.
struct Parsed {
    Header header;
    ShapePtr shape;
    std::vector<Run> runs;

    uint64_t end() const { return header.first + header.rows; }
    Layout layout() const { return {header.version, *shape, runs}; }
};

int32_t read_header(const void *data, size_t bytes, Parsed &parsed) {
    Header &header = parsed.header;
    int32_t s = read_fixed(data, bytes, header);
    if (s == ROUTECAP_ERR_BUFFER_TOO_SMALL) return ROUTECAP_ERR_FORMAT;
    if (s < 0) return s;
    const Layout tables(header.layers, header.runs);
    if (bytes < tables.ids)
        return report(ROUTECAP_ERR_FORMAT, "%zu bytes of a header of %llu", bytes, ull(tables.ids));
    const auto *at = static_cast<const uint8_t *>(data);
    if (header.version == kChecked && header.check != header_check(at, tables.ids))
        return report(ROUTECAP_ERR_FORMAT, "the header is not what was written: its check differs");

    std::vector<int32_t> map, provenance;
    std::vector<uint32_t> experts;
    for (uint32_t l = 0; l < header.layers; l++) {
        LayerEntry entry;
        std::memcpy(&entry, at + sizeof header + l * sizeof entry, sizeof entry);
        map.push_back(entry.index), experts.push_back(entry.experts),
            provenance.push_back(entry.provenance);
    }
    const ShapeSource source{header.layers,  header.k,         0, header.id_space, map.data(),
                             experts.data(), provenance.data()};
    if (make_shape(source, "header", parsed.shape) < 0) return ROUTECAP_ERR_FORMAT;
    if (header.dtype != parsed.shape->dtype())
        return report(ROUTECAP_ERR_FORMAT, "dtype %d; ids of %u experts have %d", header.dtype,
                      parsed.shape->experts, parsed.shape->dtype());

    parsed.runs.resize(header.runs);
    if (header.runs > 0)
        std::memcpy(parsed.runs.data(), at + tables.run_table, header.runs * sizeof(Run));
    uint64_t rows = 0;
    for (size_t i = 0; i < parsed.runs.size(); i++) {
        const Run &run = parsed.runs[i];
        if (run.rows == 0 || run.rows > header.rows - rows)
            return report(ROUTECAP_ERR_FORMAT, "run %zu has %llu rows, where %llu are left", i,
                          ull(run.rows), ull(header.rows - rows));
        const bool known = run.reason == 0 || (!run.has(kPresent) && is_row_reason(run.reason) &&
                                               run.reason != ROUTECAP_MISSING_ABSENT);
        if ((run.flags & ~uint32_t{kPresent | kValidity | kTags}) != 0 ||
            (run.flags != 0 && !run.has(kPresent)) || !known ||
            (run.tag != 0 && (run.has(kTags) || !run.has(kPresent))))
            return report(ROUTECAP_ERR_FORMAT, "run %zu has flags %u, tag %llu and reason %d", i,
                          run.flags, ull(run.tag), run.reason);
        rows += run.rows;
    }
    if (rows != header.rows)
        return report(ROUTECAP_ERR_FORMAT, "runs of %llu rows, of %llu", ull(rows),
                      ull(header.rows));
    if (!all_zero(at + sizeof header + header.layers * sizeof(LayerEntry), at + tables.run_table) ||
        !all_zero(at + tables.header_end, at + tables.ids))
        return report(ROUTECAP_ERR_FORMAT, "padding of the header is not zero");
    if (const Layout layout = parsed.layout(); layout.end != header.bytes)
        return report(ROUTECAP_ERR_FORMAT, "%llu bytes; the rows take %llu", ull(header.bytes),
                      ull(layout.end));
    return ROUTECAP_OK;
}

// ---- Splicing -------------------------------------------------------------------------------

// Adds a run, or lengthens the last one if the two can be joined.
void append(std::vector<Run> &runs, const Run &run) {
    if (run.rows == 0) return;
    if (!runs.empty() && runs.back().flags == run.flags && runs.back().tag == run.tag &&
        runs.back().reason == run.reason)
        runs.back().rows += run.rows;
    else
        runs.push_back(run);
}

// Rows of one plane.
struct Range {
    uint64_t first = 0, rows = 0;
};
struct Selection {
    Range ids, tags, validity;  // checks are beside ids
};

// Rows [first, end) of a serialised routing: their runs, and where they lie in each plane.
Selection select(const Parsed &from, uint64_t first, uint64_t end, std::vector<Run> &runs) {
    Selection selection;
    uint64_t position = from.header.first;
    for (const Run &run : from.runs) {
        const uint64_t run_end = position + run.rows, a = std::clamp(first, position, run_end),
                       b = std::clamp(end, a, run_end);
        const auto add = [&](bool in_plane, Range &range) {
            if (!in_plane) return;
            if (range.rows == 0) range.first += a - position;
            range.rows += b - a;
        };
        add(run.has(kPresent), selection.ids);
        add(run.has(kTags), selection.tags);
        add(run.has(kValidity), selection.validity);
        append(runs, {b - a, run.tag, run.flags, run.reason});
        position = run_end;
    }
    return selection;
}

// Rows of a serialised routing that become part of another.
struct Part {
    int32_t source;  // ROUTECAP_PIECE_*
    const Parsed &from;
    Selection selection;
};

// A routing of these runs, whose rows are those of the parts, one after another.
int32_t assemble(const Shape &shape, uint64_t first, const std::vector<Run> &runs,
                 std::span<const Part> parts, const SplicedTo &to) {
    // Rows of version 1 have no checks to take over.
    uint32_t version = kChecked;
    for (const Part &part : parts) version = std::min(version, part.from.header.version);
    const Layout layout(version, shape, runs);
    std::array<routecap_piece, ROUTECAP_MAX_PIECES> list;
    uint32_t count = 0;
    const auto piece = [&](int32_t source, uint64_t offset, uint64_t bytes) {
        if (bytes > 0) list[count++] = {offset, bytes, source, 0};
    };
    const auto plane = [&](Range Selection::*range, uint64_t Layout::*plane, uint64_t row_bytes) {
        for (const Part &part : parts) {
            const Range &rows = part.selection.*range;
            const Layout in = part.from.layout();
            piece(part.source, in.*plane + rows.first * row_bytes, rows.rows * row_bytes);
        }
    };
    piece(ROUTECAP_PIECE_HEADER, 0, layout.ids);
    plane(&Selection::ids, &Layout::ids, shape.ids_bytes);
    piece(ROUTECAP_PIECE_ZERO, 0, layout.tags - layout.ids_end);
    plane(&Selection::tags, &Layout::tags, sizeof(uint64_t));
    piece(ROUTECAP_PIECE_ZERO, 0, layout.validity - layout.tags_end);
    plane(&Selection::validity, &Layout::validity, shape.validity_bytes);
    piece(ROUTECAP_PIECE_ZERO, 0, layout.checks - layout.validity_end);
    if (version == kChecked) plane(&Selection::ids, &Layout::checks, sizeof(uint32_t));

    write_struct(
        to.sizes,
        {.struct_size = 0, .pieces = count, .bytes = layout.end, .header_bytes = layout.ids});
    if (to.header == nullptr || to.capacity < layout.ids)
        return report(ROUTECAP_ERR_BUFFER_TOO_SMALL, "the header takes %llu bytes, of %zu",
                      ull(layout.ids), to.capacity);
    if (to.piece_capacity < count)
        return report(ROUTECAP_ERR_BUFFER_TOO_SMALL, "there are %u pieces, of %zu", count,
                      to.piece_capacity);
    write_header(version, shape, first, runs, layout, static_cast<uint8_t *>(to.header));
    for (uint32_t i = 0; i < count; i++)
        write_bytes(&at(to.pieces, to.piece_size, i), to.piece_size, list[i]);
    return ROUTECAP_OK;
}

}  // namespace

int32_t serialize(const Routing &routing, uint32_t flags, void *dst, size_t dst_bytes,
                  uint64_t *needed) {
    if ((flags & ~ROUTECAP_SERIALIZE_CHECKED) != 0)
        return report(ROUTECAP_ERR_ARGUMENT, "flags is %u", flags);
    const uint32_t version = (flags & ROUTECAP_SERIALIZE_CHECKED) != 0 ? kChecked : kPlain;
    const Runs runs(routing);
    const Layout layout(version, routing.shape(), runs.all());
    if (needed != nullptr) *needed = layout.end;
    if (dst == nullptr || dst_bytes < layout.end)
        return report(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                      "the serialised form takes %llu bytes, dst has %zu", ull(layout.end),
                      dst_bytes);
    auto *to = static_cast<uint8_t *>(dst);
    const Shape &shape = routing.shape();
    write_header(version, shape, routing.first(), runs.all(), layout, to);
    runs.write(layout, to);
    if (version == kChecked)
        write_checks(shape,
                     in_place(version, shape, routing.first(), runs.all(), layout, to).segments,
                     to + layout.checks);
    return ROUTECAP_OK;
}

int32_t deserialize(const void *data, size_t bytes, uint32_t flags, routecap_release release,
                    void *context, Routing **routing) {
    Parsed parsed;
    if (int32_t s = read_header(data, bytes, parsed); s < 0) return s;
    if (parsed.header.bytes != bytes)
        return report(ROUTECAP_ERR_FORMAT, "%zu bytes of a routing of %llu", bytes,
                      ull(parsed.header.bytes));
    const Layout layout = parsed.layout();
    const auto *at = static_cast<const uint8_t *>(data);
    if (!all_zero(at + layout.ids_end, at + layout.tags) ||
        !all_zero(at + layout.tags_end, at + layout.validity) ||
        !all_zero(at + layout.validity_end, at + layout.checks))
        return report(ROUTECAP_ERR_FORMAT, "padding is not zero");

    const Header &header = parsed.header;
    InPlace in = in_place(header.version, *parsed.shape, header.first, parsed.runs, layout, at);
    ImportedRows rows{parsed.shape, header.first, header.rows, std::move(in.segments),
                      std::move(in.checks)};
    if (release == nullptr || reinterpret_cast<uintptr_t>(data) % alignof(uint64_t) == 0)
        return import_rows(std::move(rows), flags, release, context, routing);
    // Planes that are not aligned are copied.
    const int32_t s = import_rows(std::move(rows), flags, nullptr, nullptr, routing);
    if (s >= 0) release(context);
    return s;
}

int32_t serialized_info(const void *data, size_t bytes, routecap_serialized *info) {
    Header header;
    if (int32_t s = read_fixed(data, bytes, header); s < 0) return s;
    write_struct(info, routecap_serialized{.struct_size = 0,
                                           .version = header.version,
                                           .bytes = header.bytes,
                                           .header_bytes = Layout(header.layers, header.runs).ids,
                                           .first = header.first,
                                           .rows = header.rows,
                                           .layers = header.layers,
                                           .k = header.k,
                                           .dtype = header.dtype,
                                           .id_space = header.id_space});
    return ROUTECAP_OK;
}

int32_t splice(const void *head_data, size_t head_bytes, const void *tail_data, size_t tail_bytes,
               uint64_t row, const SplicedTo &to) {
    Parsed head, tail;
    if (int32_t s = read_header(head_data, head_bytes, head); s < 0) return s;
    if (int32_t s = read_header(tail_data, tail_bytes, tail); s < 0) return s;
    if (!head.shape->same_rows(*tail.shape))
        return report(ROUTECAP_ERR_SHAPE_MISMATCH,
                      "k, the id space, the layers or their experts differ");
    if (row > ROUTECAP_MAX_POSITION)
        return report(ROUTECAP_ERR_ARGUMENT, "row %llu is beyond the highest position", ull(row));

    const uint64_t first = std::min(head.header.first, row), end = std::max(tail.end(), row);
    const uint64_t head_end = std::clamp(row, first, std::max(head.end(), first)),
                   tail_first = std::clamp(tail.header.first, row, end);
    std::vector<Run> runs;
    const Selection from_head = select(head, first, head_end, runs);
    append(runs, {tail_first - head_end, 0, 0, 0});
    const Selection from_tail = select(tail, tail_first, end, runs);

    const Part parts[] = {{ROUTECAP_PIECE_HEAD, head, from_head},
                          {ROUTECAP_PIECE_TAIL, tail, from_tail}};
    return assemble(*with_provenance_of_both(head.shape, *tail.shape), first, runs, parts, to);
}

int32_t slice_serialized(const void *data, size_t bytes, uint64_t first, uint64_t rows,
                         const SplicedTo &to) {
    Parsed whole;
    if (int32_t s = read_header(data, bytes, whole); s < 0) return s;
    const uint64_t begin = whole.header.first, end = whole.end();
    if (first < begin || first > end || (rows != ROUTECAP_ROWS_ALL && rows > end - first))
        return report(ROUTECAP_ERR_OUT_OF_RANGE,
                      "%llu rows from %llu of a routing of rows [%llu,%llu)", ull(rows), ull(first),
                      ull(begin), ull(end));
    std::vector<Run> runs;
    const Selection selection =
        select(whole, first, rows == ROUTECAP_ROWS_ALL ? end : first + rows, runs);
    const Part parts[] = {{ROUTECAP_PIECE_HEAD, whole, selection}};
    return assemble(*whole.shape, first, runs, parts, to);
}

}  // namespace routecap
