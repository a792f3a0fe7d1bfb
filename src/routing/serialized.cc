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

constexpr char kMagic[8] = {'R', 'C', 'A', 'P', 'R', 'O', 'W', 'S'};
constexpr char kDevelopmentMagic[8] = {'R', 'O', 'U', 'T', 'E', 'C', 'A', 'P'};
constexpr uint32_t kVersion = 1;
constexpr uint64_t kAlignment = 64;       // of the rows in the bytes
constexpr uintptr_t kLentAlignment = 16;  // of bytes that are read in place

struct Header {
    char magic[8];
    uint32_t version;
    uint32_t check;  // CRC32C of all before the rows, of which these bytes count as 0
    uint64_t bytes;
    uint64_t first;
    uint64_t rows;
    uint64_t runs;
    uint64_t present;  // rows that are there
    uint32_t layers;
    uint32_t k;
    int32_t dtype;
    int32_t id_space;
    uint32_t row_stride;
    int32_t weights_dtype;  // 0: no weights beside the ids
    uint64_t reserved;
};
struct LayerEntry {
    int32_t index;
    uint32_t experts;
    int32_t provenance;
    uint32_t k, min_k;
    uint32_t visit;
};
enum RunFlags : uint32_t { kPresent = 1, kComplete = 2 };
struct Run {
    uint64_t rows;
    uint64_t tag;
    uint32_t flags;
    int32_t reason;  // of rows that are not PRESENT; 0 for ABSENT

    bool has(RunFlags flag) const { return (flags & flag) != 0; }
    bool same_kind(const Run &o) const {
        return flags == o.flags && tag == o.tag && reason == o.reason;
    }
};
static_assert(sizeof(Header) == ROUTECAP_SERIALIZED_MIN && sizeof(LayerEntry) == 24 &&
              sizeof(Run) == 24);

// Where everything lies, one after another; the rows begin at the next multiple of kAlignment.
struct Layout {
    uint64_t run_table, checks, checks_end, rows;

    Layout(uint32_t layers, uint64_t runs, uint64_t present)
        : run_table(sizeof(Header) + layers * sizeof(LayerEntry)),
          checks(run_table + runs * sizeof(Run)),
          checks_end(checks + present * sizeof(uint32_t)),
          rows((checks_end + kAlignment - 1) / kAlignment * kAlignment) {}
    explicit Layout(const Header &h) : Layout(h.layers, h.runs, h.present) {}
    uint64_t end(const Shape &shape, uint64_t present) const {
        return rows + present * shape.stride;
    }
};

uint32_t head_check(const uint8_t *data, const Layout &layout) {
    return crc32c_without(data, layout.rows, offsetof(Header, check));
}

uint64_t present_rows(std::span<const Run> runs) {
    uint64_t n = 0;
    for (const Run &run : runs) n += run.has(kPresent) ? run.rows : 0;
    return n;
}

// Adds a run, or lengthens the last one if the two can be joined.
void append(std::vector<Run> &runs, const Run &run) {
    if (run.rows == 0) return;
    if (!runs.empty() && runs.back().same_kind(run))
        runs.back().rows += run.rows;
    else
        runs.push_back(run);
}

// Calls f(run, position of its first row, number of that row among those that are there).
template <class F>
void for_runs(std::span<const Run> runs, uint64_t first, F f) {
    uint64_t present = 0;
    for (const Run &run : runs) {
        f(run, first, present);
        first += run.rows;
        present += run.has(kPresent) ? run.rows : 0;
    }
}

// ---- Writing --------------------------------------------------------------------------------

// Writes everything before the rows but the checks of rows and, which comes last, of the head.
void write_tables(const Shape &shape, uint64_t first, std::span<const Run> runs,
                  const Layout &layout, uint8_t *dst) {
    Header header{.magic = {},
                  .version = kVersion,
                  .check = 0,
                  .bytes = layout.end(shape, present_rows(runs)),
                  .first = first,
                  .rows = 0,
                  .runs = runs.size(),
                  .present = present_rows(runs),
                  .layers = shape.layers,
                  .k = shape.k,
                  .dtype = shape.dtype(),
                  .id_space = shape.id_space,
                  .row_stride = shape.stride,
                  .weights_dtype = shape.weights_dtype,
                  .reserved = 0};
    std::memcpy(header.magic, kMagic, sizeof kMagic);
    for (const Run &run : runs) header.rows += run.rows;
    std::memcpy(dst, &header, sizeof header);
    for (uint32_t l = 0; l < shape.layers; l++) {
        const LayerEntry entry{shape.of.map[l], shape.of.experts[l], shape.of.provenance[l],
                               shape.of.k[l],   shape.of.least[l],   shape.of.visit[l]};
        std::memcpy(dst + sizeof header + l * sizeof entry, &entry, sizeof entry);
    }
    if (!runs.empty()) std::memcpy(dst + layout.run_table, runs.data(), runs.size_bytes());
    std::memset(dst + layout.checks_end, 0, layout.rows - layout.checks_end);
}

void write_head_check(const Layout &layout, uint8_t *dst) {
    const uint32_t check = head_check(dst, layout);
    std::memcpy(dst + offsetof(Header, check), &check, sizeof check);
}

// A routing's rows as runs, and where the rows of each lie.
class Runs {
public:
    explicit Runs(const Routing &routing) : shape_(routing.shape()) {
        for_all_rows(routing.first(), routing.end(), routing.segments(),
                     [&](const Segment &segment) {
                         if (!segment.page)
                             return append(runs_, not_there(segment.reason, segment.rows));
                         if (segment.complete) return add_complete(segment);
                         for (uint64_t r = 0; r < segment.rows; r++) add_row(segment, r);
                     });
    }

    const std::vector<Run> &all() const { return runs_; }

    // Writes the rows and their checks.
    void write(uint8_t *rows, uint8_t *checks) const {
        for (const Part &part : parts_)
            for (uint64_t at = 0, n; at < part.rows; at += n) {
                n = std::min<uint64_t>(part.rows - at, kRowsSummed);
                const uint64_t r = part.row + at;
                std::memcpy(rows, part.segment->row(r), n * shape_.stride);
                for (uint64_t i = 0; i < n && !part.segment->complete; i++)
                    if (uint8_t *row = rows + i * shape_.stride; !shape_.row_full(row))
                        write_reasons(row);
                uint32_t sums[kRowsSummed];
                crc32c_of_rows(rows, shape_.stride, part.segment->first + r, n, sums);
                std::memcpy(checks, sums, n * sizeof sums[0]);
                rows += n * shape_.stride, checks += n * sizeof sums[0];
            }
    }

private:
    struct Part {
        const Segment *segment;
        uint64_t row, rows;  // in it
    };

    // Rows that are not there are not written; their run has their reason.
    static Run not_there(int32_t reason, uint64_t rows) {
        return {rows, 0, 0, reason == ROUTECAP_MISSING_ABSENT ? 0 : reason};
    }
    void add_complete(const Segment &segment) {
        for (uint64_t r = 0, n; r < segment.rows; r += n) {
            const Tag tag = segment.tag(r);
            for (n = 1; r + n < segment.rows && segment.tag(r + n) == tag;) n++;
            append(runs_, {n, number(tag), kPresent | kComplete, 0});
        }
        parts_.push_back({&segment, 0, segment.rows});
    }
    void add_row(const Segment &segment, uint64_t r) {
        const uint8_t *row = segment.row(r);
        const bool full = shape_.row_full(row);
        const int32_t reason = full ? 0 : shape_.row_reason(row);
        if (reason != 0) return append(runs_, not_there(reason, 1));
        append(runs_, {1, number(segment.tag(r)), full ? kPresent | kComplete : kPresent, 0});
        if (!parts_.empty() && parts_.back().segment == &segment &&
            parts_.back().row + parts_.back().rows == r)
            parts_.back().rows++;
        else
            parts_.push_back({&segment, r, 1});
    }
    // Imported rows may hold something else there.
    void write_reasons(uint8_t *row) const {
        for (uint32_t l = 0; l < shape_.layers; l++)
            if (!shape_.valid(row, l)) shape_.mark(row, l, shape_.reason(row, l));
    }

    const Shape &shape_;
    std::vector<Run> runs_;
    std::vector<Part> parts_;
};

// ---- Reading --------------------------------------------------------------------------------

int32_t check_fixed(const Header &header) {
    if (header.layers == 0 || header.layers > ROUTECAP_MAX_LAYERS || header.k == 0 ||
        header.k > ROUTECAP_MAX_K)
        return report(ROUTECAP_ERR_FORMAT, "%u layers, %u experts per token", header.layers,
                      header.k);
    if ((header.dtype != ROUTECAP_DTYPE_U8 && header.dtype != ROUTECAP_DTYPE_I16) ||
        (header.id_space != ROUTECAP_ID_SPACE_LOGICAL &&
         header.id_space != ROUTECAP_ID_SPACE_PHYSICAL))
        return report(ROUTECAP_ERR_FORMAT, "dtype %d, id space %d", header.dtype, header.id_space);
    if (header.weights_dtype != 0 && weight_element_bytes(header.weights_dtype) == 0)
        return report(ROUTECAP_ERR_FORMAT, "weights of dtype %d, which weights do not have",
                      header.weights_dtype);
    if (header.reserved != 0)
        return report(ROUTECAP_ERR_FORMAT, "a reserved field is %llu", ull(header.reserved));
    if (header.first > ROUTECAP_MAX_POSITION || header.rows > ROUTECAP_MAX_POSITION - header.first)
        return report(ROUTECAP_ERR_FORMAT, "rows [%llu,+%llu) are beyond the highest position",
                      ull(header.first), ull(header.rows));
    if (header.runs > header.rows || header.present > header.rows)
        return report(ROUTECAP_ERR_FORMAT, "%llu runs and %llu rows present, of %llu rows",
                      ull(header.runs), ull(header.present), ull(header.rows));
    if (header.bytes < Layout(header).rows)
        return report(ROUTECAP_ERR_FORMAT, "%llu bytes do not hold the header's tables",
                      ull(header.bytes));
    return ROUTECAP_OK;
}

int32_t read_fixed(const void *data, size_t bytes, Header &header) {
    if (data == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "data is NULL");
    if (bytes >= sizeof kMagic && std::memcmp(data, kDevelopmentMagic, sizeof kMagic) == 0)
        return report(ROUTECAP_ERR_FORMAT,
                      "the bytes are in a form of development versions, which 1.0 does not read");
    if (bytes >= sizeof kMagic && std::memcmp(data, kMagic, sizeof kMagic) != 0)
        return report(ROUTECAP_ERR_FORMAT, "the first bytes are not those of a serialised routing");
    if (bytes < sizeof header)
        return report(ROUTECAP_ERR_BUFFER_TOO_SMALL, "%zu bytes; a header has %zu at least", bytes,
                      sizeof header);
    std::memcpy(&header, data, sizeof header);
    if (header.version != kVersion)
        return report(ROUTECAP_ERR_FORMAT,
                      "version %u of the serialised form; this library reads %u", header.version,
                      kVersion);
    return check_fixed(header);
}

// A checked head.
struct Parsed {
    Header header;
    ShapePtr shape;
    std::vector<Run> runs;
    const uint8_t *checks;  // in the bytes, of any alignment

    uint64_t end() const { return header.first + header.rows; }
    Layout layout() const { return Layout(header); }
};

int32_t read_layers(const uint8_t *at, const Header &header, ShapePtr &shape) {
    Layers of;
    for (uint32_t l = 0; l < header.layers; l++) {
        LayerEntry entry;
        std::memcpy(&entry, at + sizeof header + l * sizeof entry, sizeof entry);
        of.map.push_back(entry.index), of.visit.push_back(entry.visit);
        of.experts.push_back(entry.experts), of.provenance.push_back(entry.provenance);
        of.k.push_back(entry.k), of.least.push_back(entry.min_k);
    }
    const ShapeSource source{header.layers,
                             header.k,
                             0,
                             header.id_space,
                             of.map.data(),
                             of.experts.data(),
                             of.provenance.data(),
                             of.k.data(),
                             of.least.data(),
                             of.visit.data(),
                             header.weights_dtype};
    if (make_shape(source, "header", shape) < 0) return ROUTECAP_ERR_FORMAT;
    if (header.dtype != shape->dtype() || header.row_stride != shape->stride)
        return report(ROUTECAP_ERR_FORMAT,
                      "dtype %d and rows of %u bytes; ids of %u experts have %d, in rows of %u",
                      header.dtype, header.row_stride, shape->experts, shape->dtype(),
                      shape->stride);
    return ROUTECAP_OK;
}

int32_t read_runs(const uint8_t *at, const Header &header, std::vector<Run> &runs) {
    runs.resize(header.runs);
    if (header.runs > 0) std::memcpy(runs.data(), at, header.runs * sizeof(Run));
    uint64_t rows = 0;
    for (size_t i = 0; i < runs.size(); i++) {
        const Run &run = runs[i];
        if (run.rows == 0 || run.rows > header.rows - rows)
            return report(ROUTECAP_ERR_FORMAT, "run %zu has %llu rows, where %llu are left", i,
                          ull(run.rows), ull(header.rows - rows));
        const bool known = run.reason == 0 || (!run.has(kPresent) && is_row_reason(run.reason) &&
                                               run.reason != ROUTECAP_MISSING_ABSENT);
        if ((run.flags & ~uint32_t{kPresent | kComplete}) != 0 || !known ||
            (!run.has(kPresent) && (run.flags != 0 || run.tag != 0)))
            return report(ROUTECAP_ERR_FORMAT, "run %zu has flags %u, tag %llu and reason %d", i,
                          run.flags, ull(run.tag), run.reason);
        rows += run.rows;
    }
    if (rows != header.rows || present_rows(runs) != header.present)
        return report(ROUTECAP_ERR_FORMAT, "runs of %llu rows, of %llu, and %llu present, of %llu",
                      ull(rows), ull(header.rows), ull(present_rows(runs)), ull(header.present));
    return ROUTECAP_OK;
}

int32_t read_head(const void *data, size_t bytes, Parsed &parsed) {
    Header &header = parsed.header;
    int32_t s = read_fixed(data, bytes, header);
    if (s == ROUTECAP_ERR_BUFFER_TOO_SMALL) return ROUTECAP_ERR_FORMAT;
    if (s < 0) return s;
    const Layout layout(header);
    if (bytes < layout.rows)
        return report(ROUTECAP_ERR_FORMAT, "%zu bytes of a header of %llu", bytes,
                      ull(layout.rows));
    const auto *at = static_cast<const uint8_t *>(data);
    if (header.check != head_check(at, layout))
        return report(ROUTECAP_ERR_FORMAT, "the header is not what was written: its check differs");
    if (s = read_layers(at, header, parsed.shape); s < 0) return s;
    if (s = read_runs(at + layout.run_table, header, parsed.runs); s < 0) return s;
    if (!kernels::all_zero(at + layout.checks_end, at + layout.rows))
        return report(ROUTECAP_ERR_FORMAT, "padding of the header is not zero");
    if (const uint64_t end = layout.end(*parsed.shape, header.present); end != header.bytes)
        return report(ROUTECAP_ERR_FORMAT, "%llu bytes; the rows take %llu", ull(header.bytes),
                      ull(end));
    parsed.checks = at + layout.checks;
    return ROUTECAP_OK;
}

// ---- Splicing -------------------------------------------------------------------------------

// Rows of a serialised routing that become part of another: those that are there follow one
// another.
struct Part {
    int32_t source;  // ROUTECAP_PIECE_*
    const Parsed &from;
    uint64_t first_present = 0, present = 0;
};

// Rows [first, end) of a serialised routing; adds their runs.
Part select(int32_t source, const Parsed &from, uint64_t first, uint64_t end,
            std::vector<Run> &runs) {
    Part part{source, from};
    for_runs(from.runs, from.header.first, [&](Run run, uint64_t position, uint64_t present) {
        const uint64_t run_end = position + run.rows, a = std::clamp(first, position, run_end),
                       b = std::clamp(end, a, run_end);
        if (run.has(kPresent) && a < b) {
            if (part.present == 0) part.first_present = present + (a - position);
            part.present += b - a;
        }
        run.rows = b - a;
        append(runs, run);
    });
    return part;
}

// A routing of these runs, whose rows are those of the parts, one after another.
int32_t assemble(const Shape &shape, uint64_t first, const std::vector<Run> &runs,
                 std::span<const Part> parts, const SplicedTo &to) {
    const Layout layout(shape.layers, runs.size(), present_rows(runs));
    std::array<routecap_piece, ROUTECAP_MAX_PIECES> list;
    uint32_t count = 0;
    list[count++] = {0, layout.rows, ROUTECAP_PIECE_HEADER, 0};
    for (const Part &part : parts)
        if (part.present > 0)
            list[count++] = {part.from.layout().rows + part.first_present * shape.stride,
                             part.present * shape.stride, part.source, 0};

    write_struct(to.sizes, {.struct_size = 0,
                            .pieces = count,
                            .bytes = layout.end(shape, present_rows(runs)),
                            .header_bytes = layout.rows});
    if (to.header == nullptr || to.capacity < layout.rows)
        return report(ROUTECAP_ERR_BUFFER_TOO_SMALL, "the header takes %llu bytes, of %zu",
                      ull(layout.rows), to.capacity);
    if (to.piece_capacity < count)
        return report(ROUTECAP_ERR_BUFFER_TOO_SMALL, "there are %u pieces, of %zu", count,
                      to.piece_capacity);
    auto *dst = static_cast<uint8_t *>(to.header);
    write_tables(shape, first, runs, layout, dst);
    uint8_t *checks = dst + layout.checks;
    for (const Part &part : parts) {
        const size_t bytes = part.present * sizeof(uint32_t);
        if (bytes > 0)
            std::memcpy(checks, part.from.checks + part.first_present * sizeof(uint32_t), bytes);
        checks += bytes;
    }
    write_head_check(layout, dst);
    for (uint32_t i = 0; i < count; i++)
        write_bytes(&at(to.pieces, to.piece_size, i), to.piece_size, list[i]);
    return ROUTECAP_OK;
}

}  // namespace

int32_t serialize(const Routing &routing, void *dst, size_t dst_bytes, uint64_t *needed) {
    const Runs runs(routing);
    const Shape &shape = routing.shape();
    const Layout layout(shape.layers, runs.all().size(), present_rows(runs.all()));
    const uint64_t bytes = layout.end(shape, present_rows(runs.all()));
    if (needed != nullptr) *needed = bytes;
    if (dst == nullptr || dst_bytes < bytes)
        return report(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                      "the serialised form takes %llu bytes, dst has %zu", ull(bytes), dst_bytes);
    auto *to = static_cast<uint8_t *>(dst);
    write_tables(shape, routing.first(), runs.all(), layout, to);
    runs.write(to + layout.rows, to + layout.checks);
    write_head_check(layout, to);
    return ROUTECAP_OK;
}

int32_t deserialize(const void *data, size_t bytes, uint32_t flags, routecap_release release,
                    void *context, Routing **routing) {
    Parsed parsed;
    if (int32_t s = read_head(data, bytes, parsed); s < 0) return s;
    const Header &header = parsed.header;
    if (header.bytes != bytes)
        return report(ROUTECAP_ERR_FORMAT, "%zu bytes of a routing of %llu", bytes,
                      ull(header.bytes));
    const Shape &shape = *parsed.shape;
    const auto *at = static_cast<const uint8_t *>(data) + parsed.layout().rows;
    const auto lender = release != nullptr ? std::make_shared<Lender>(release, context) : nullptr;
    ImportedRows rows{parsed.shape, header.first, header.rows, {}, lender};
    uint8_t *copies = nullptr;
    if (release == nullptr || reinterpret_cast<uintptr_t>(at) % kLentAlignment != 0) {
        const std::shared_ptr<uint8_t[]> memory = make_records(shape, header.present);
        copies = memory.get();
        rows.memory = memory;
    }
    for_runs(parsed.runs, header.first, [&](const Run &run, uint64_t first, uint64_t present) {
        if (!run.has(kPresent) && run.reason == 0) return;
        rows.runs.push_back({.first = first,
                             .rows = run.rows,
                             .records = run.has(kPresent) ? at + present * shape.stride : nullptr,
                             .tags = nullptr,
                             .tag = Tag{run.tag},
                             .reason = run.reason,
                             .complete = run.has(kComplete),
                             .copy = copies != nullptr ? copies + present * shape.stride : nullptr,
                             .checks = parsed.checks + present * sizeof(uint32_t)});
    });
    const int32_t s = import_rows(std::move(rows), flags, routing);
    if (s >= 0 && lender != nullptr) lender->arm();
    return s;
}

int32_t serialized_info(const void *data, size_t bytes, routecap_serialized *info) {
    Header header;
    if (int32_t s = read_fixed(data, bytes, header); s < 0) return s;
    write_struct(info, routecap_serialized{.struct_size = 0,
                                           .version = header.version,
                                           .bytes = header.bytes,
                                           .header_bytes = Layout(header).rows,
                                           .first = header.first,
                                           .rows = header.rows,
                                           .layers = header.layers,
                                           .k = header.k,
                                           .dtype = header.dtype,
                                           .id_space = header.id_space,
                                           .weights_dtype = header.weights_dtype,
                                           .reserved = 0});
    return ROUTECAP_OK;
}

int32_t splice(const void *head_data, size_t head_bytes, const void *tail_data, size_t tail_bytes,
               uint64_t row, const SplicedTo &to) {
    Parsed head, tail;
    if (int32_t s = read_head(head_data, head_bytes, head); s < 0) return s;
    if (int32_t s = read_head(tail_data, tail_bytes, tail); s < 0) return s;
    if (!head.shape->same_rows(*tail.shape))
        return report(ROUTECAP_ERR_SHAPE_MISMATCH,
                      "k, the id space, the layers or their experts differ");
    if (row > ROUTECAP_MAX_POSITION)
        return report(ROUTECAP_ERR_ARGUMENT, "row %llu is beyond the highest position", ull(row));

    const uint64_t first = std::min(head.header.first, row), end = std::max(tail.end(), row);
    const uint64_t head_end = std::clamp(row, first, std::max(head.end(), first)),
                   tail_first = std::clamp(tail.header.first, row, end);
    std::vector<Run> runs;
    const Part from_head = select(ROUTECAP_PIECE_HEAD, head, first, head_end, runs);
    append(runs, {tail_first - head_end, 0, 0, 0});
    const Part from_tail = select(ROUTECAP_PIECE_TAIL, tail, tail_first, end, runs);

    const Part parts[] = {from_head, from_tail};
    return assemble(*with_provenance_of_both(head.shape, *tail.shape), first, runs, parts, to);
}

int32_t slice_serialized(const void *data, size_t bytes, uint64_t first, uint64_t rows,
                         const SplicedTo &to) {
    Parsed whole;
    if (int32_t s = read_head(data, bytes, whole); s < 0) return s;
    const uint64_t begin = whole.header.first, end = whole.end();
    if (first < begin || first > end || (rows != ROUTECAP_ROWS_ALL && rows > end - first))
        return report(ROUTECAP_ERR_OUT_OF_RANGE,
                      "%llu rows from %llu of a routing of rows [%llu,%llu)", ull(rows), ull(first),
                      ull(begin), ull(end));
    std::vector<Run> runs;
    const Part parts[] = {select(ROUTECAP_PIECE_HEAD, whole, first,
                                 rows == ROUTECAP_ROWS_ALL ? end : first + rows, runs)};
    return assemble(*whole.shape, first, runs, parts, to);
}

}  // namespace routecap
