// Encoding: a routing becomes a message of some format.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/element.h"
#include "base/status.h"
#include "base/structs.h"
#include "routing/coverage.h"
#include "routing/serialized.h"
#include "wire/base64.h"
#include "wire/decoder.h"
#include "wire/format.h"
#include "wire/message.h"

namespace routecap::wire {
namespace {

constexpr size_t kEncodedAtOnce = 12288;

// A message as it is written to a caller's memory, and never beyond its end, however much it is
// given: text as it is, bytes as they are or in base64.
class Output {
public:
    // `size`: of `to`, and of the message. base64: of the bytes, not of the text.
    Output(uint8_t *to, uint64_t size, bool base64) : to_(to), size_(size), base64_(base64) {}

    void text(std::string_view text) { put(text.data(), text.size()); }
    void bytes(const uint8_t *bytes, size_t n) {
        if (!base64_) return put(bytes, n);
        // Encodes into a buffer first, because the codec may write a little beyond its result.
        for (size_t taken = 0; n > 0; bytes += taken, n -= taken) {
            taken = std::min<size_t>(n, kEncodedAtOnce);
            char text[kEncodedAtOnce / 3 * 4 + 64];
            size_t characters = 0;
            base64_stream_encode(&state_, reinterpret_cast<const char *>(bytes), taken, text,
                                 &characters);
            put(text, characters);
        }
    }
    // The end of the bytes.
    void finish() {
        if (!base64_) return;
        char text[4];
        size_t characters = 0;
        base64_stream_encode_final(&state_, text, &characters);
        put(text, characters);
    }

    // Bytes that were given, whether or not there was room for them.
    uint64_t written() const { return written_; }
    // An error if the message does not have the announced size. That happens only if the routing
    // lies in memory of the caller, who changed it after the size was measured.
    int32_t status() const {
        if (written_ == size_) return ROUTECAP_OK;
        return report(ROUTECAP_ERR_FORMAT, "a message of %llu bytes became one of %llu meanwhile",
                      ull(size_), ull(written_));
    }

private:
    void put(const void *from, size_t n) {
        const uint64_t at = written_;
        written_ += n;
        if (n > 0 && written_ <= size_) std::memcpy(to_ + at, from, n);
    }

    uint8_t *const to_;
    const uint64_t size_;
    const bool base64_;
    uint64_t written_ = 0;
    base64_state state_ = base64_encoder();
};

// A routing to be written, and how.
struct Job {
    const Routing &routing;
    uint32_t columns;
    std::vector<uint32_t> column;  // [layers] of each captured layer
    int64_t fill;

    uint64_t rows() const { return routing.end() - routing.first(); }
    uint64_t row_ids() const { return uint64_t{columns} * routing.shape().k; }
};

// One row of a segment as ids of type T.
template <class T, class Id>
void write_row(const Job &job, const Segment &segment, uint64_t row, T *to) {
    const Shape &shape = job.routing.shape();
    const uint32_t k = shape.k;
    if (shape.layers < job.columns) std::fill_n(to, job.row_ids(), T{0});
    const bool present = static_cast<bool>(segment.page);
    const uint8_t *cells = present ? segment.row(row) : nullptr;
    const auto *ids = reinterpret_cast<const Id *>(cells);
    if (present && shape.layers == job.columns && (segment.complete || shape.row_full(cells))) {
        for (uint64_t i = 0, n = job.row_ids(); i < n; i++) to[i] = static_cast<T>(ids[i]);
        return;
    }
    for (uint32_t l = 0; l < shape.layers; l++) {
        T *cell = to + uint64_t{job.column[l]} * k;
        const bool valid = present && shape.valid(cells, l);
        for (uint32_t c = 0; c < k; c++)
            cell[c] = valid ? static_cast<T>(ids[uint64_t{l} * k + c]) : static_cast<T>(job.fill);
    }
}

// Calls f(segment, row of it) for every row.
template <class F>
void for_rows(const Routing &routing, F f) {
    for_all_rows(routing.first(), routing.end(), routing.segments(), [&](const Segment &segment) {
        for (uint64_t r = 0; r < segment.rows; r++) f(segment, r);
    });
}

template <class T, class Id>
void write_array(const Job &job, Output &output) {
    const size_t row_bytes = job.row_ids() * sizeof(T),
                 rows_at_once = kEncodedAtOnce / (row_bytes + 1) + 1;
    std::vector<T> some(rows_at_once * job.row_ids());
    size_t rows = 0;
    for_rows(job.routing, [&](const Segment &segment, uint64_t row) {
        write_row<T, Id>(job, segment, row, some.data() + rows * job.row_ids());
        if (++rows < rows_at_once) return;
        output.bytes(reinterpret_cast<const uint8_t *>(some.data()), rows * row_bytes);
        rows = 0;
    });
    output.bytes(reinterpret_cast<const uint8_t *>(some.data()), rows * row_bytes);
    output.finish();
}

template <class Id>
void write_lists(const Job &job, Output &output) {
    const uint32_t k = job.routing.shape().k;
    std::vector<uint64_t> row_ids(job.row_ids());
    char number[24];
    output.text("[");
    bool first = true;
    for_rows(job.routing, [&](const Segment &segment, uint64_t row) {
        write_row<uint64_t, Id>(job, segment, row, row_ids.data());
        output.text(first ? "[[" : ",[[");
        first = false;
        for (uint64_t i = 0; i < row_ids.size(); i++) {
            if (i > 0) output.text(i % k == 0 ? "],[" : ",");
            const char *end =
                std::to_chars(number, number + sizeof number, static_cast<int64_t>(row_ids[i])).ptr;
            output.text({number, static_cast<size_t>(end - number)});
        }
        output.text("]]");
    });
    output.text("]");
}

// The facts that the routing states and that a reader cannot know from the model.
uint32_t facts_of(const Routing &routing, uint64_t missing, bool map_follows) {
    const Shape &shape = routing.shape();
    uint32_t facts = 0;
    if (routing.first() != 0) facts |= ROUTECAP_WIRE_FACT_FIRST;
    if (!map_follows) facts |= ROUTECAP_WIRE_FACT_LAYERS;
    if (missing > 0) facts |= ROUTECAP_WIRE_FACT_VALIDITY | ROUTECAP_WIRE_FACT_REASONS;
    if (shape.id_space != ROUTECAP_ID_SPACE_LOGICAL) facts |= ROUTECAP_WIRE_FACT_ID_SPACE;
    if (shape.recomputed_layers > 0) facts |= ROUTECAP_WIRE_FACT_PROVENANCE;
    if (shape.weight_bytes != 0) facts |= ROUTECAP_WIRE_FACT_WEIGHTS;
    for (const Segment &segment : routing.segments()) {
        if (!segment.page) continue;
        for (uint64_t r = 0; r < segment.rows; r++)
            if (segment.tag(r) != Tag::none) return facts | ROUTECAP_WIRE_FACT_TAGS;
    }
    return facts;
}

std::string names_of(uint32_t facts) {
    static constexpr const char *kNames[] = {"shape",    "dtype",      "experts", "layers",
                                             "first",    "validity",   "reasons", "tags",
                                             "id space", "provenance", "weights"};
    std::string text;
    for (uint32_t f = 0; f < std::size(kNames); f++)
        if ((facts >> f & 1) != 0) text.append(text.empty() ? "" : ", ").append(kNames[f]);
    return text;
}

// Checks the options, and finds the type of the ids.
int32_t check_options(const routecap_wire_options &o, const Format &format, const Shape &shape,
                      const Dtype *&dtype) {
    if ((o.allow & ~find_format(ROUTECAP_WIRE_SERIALIZED)->facts) != 0)
        return report(ROUTECAP_ERR_ARGUMENT, "options.allow is %u", o.allow);
    if (o.column_kind < ROUTECAP_WIRE_COLUMNS_FOUND ||
        o.column_kind > ROUTECAP_WIRE_COLUMNS_DECODER)
        return report(ROUTECAP_ERR_ARGUMENT, "options.column_kind is %d", o.column_kind);
    const bool decoder = o.column_kind == ROUTECAP_WIRE_COLUMNS_DECODER,
               serialized = o.format == ROUTECAP_WIRE_SERIALIZED;
    if ((o.columns != 0 && !decoder) || (decoder && serialized))
        return report(ROUTECAP_ERR_ARGUMENT, "options.columns is %u", o.columns);
    if (!shape.uniform && !serialized)
        return report(ROUTECAP_ERR_LOSSY,
                      "%s cannot say that cells have fewer than %u experts; %s can", format.name,
                      shape.k, find_format(ROUTECAP_WIRE_SERIALIZED)->name);
    if (decoder && std::any_of(shape.of.visit.begin(), shape.of.visit.end(),
                               [](uint32_t visit) { return visit != 0; }))
        return report(ROUTECAP_ERR_LOSSY,
                      "a layer of the decoder is there in several visits, and has one column");
    if (o.dtype != 0 && (serialized || o.format == ROUTECAP_WIRE_LISTS))
        return report(ROUTECAP_ERR_DTYPE, "%s has no dtype to choose", format.name);
    dtype = find_dtype(serialized     ? shape.dtype()
                       : o.dtype != 0 ? o.dtype
                                      : usual_dtype(o.format, shape.experts));
    const bool has = dtype != nullptr &&
                     (o.format != ROUTECAP_WIRE_NRLRE1 || (dtype->is_signed && dtype->bytes <= 4));
    if (!has || !dtype->holds(shape.experts))
        return report(ROUTECAP_ERR_DTYPE, "ids of %u experts are not written as %s in %s",
                      shape.experts, dtype != nullptr ? dtype->name : "that", format.name);
    return ROUTECAP_OK;
}

// The column of each layer. Also whether a reader knows the layer map: by the columns, or because
// it counts from 0.
int32_t place_columns(const routecap_wire_options &o, const Shape &shape, Job &job,
                      bool &map_follows) {
    const bool decoder = o.column_kind == ROUTECAP_WIRE_COLUMNS_DECODER;
    const auto last = static_cast<uint64_t>(shape.of.map.back()) + 1;
    if (decoder && o.columns != 0 && o.columns < last)
        return report(ROUTECAP_ERR_SHAPE_MISMATCH,
                      "options.columns is %u, and layer %d is captured", o.columns,
                      shape.of.map.back());
    const uint64_t columns = !decoder ? shape.layers : o.columns != 0 ? o.columns : last;
    if (columns > ROUTECAP_MAX_LAYERS)
        return report(ROUTECAP_ERR_SHAPE_MISMATCH, "%llu columns are more than %u", ull(columns),
                      ROUTECAP_MAX_LAYERS);
    job.columns = static_cast<uint32_t>(columns);
    map_follows = true;
    for (uint32_t l = 0; l < shape.layers; l++) {
        job.column.push_back(decoder ? static_cast<uint32_t>(shape.of.map[l]) : l);
        map_follows &=
            decoder || (shape.of.map[l] == static_cast<int32_t>(l) && shape.of.visit[l] == 0);
    }
    return ROUTECAP_OK;
}

// Refuses to lose what options.allow does not have, and finds what is written for cells that lack.
int32_t check_lost(uint32_t lost, const routecap_wire_options &o, const Format &format,
                   const Dtype &dtype, Job &job) {
    if ((lost & ~o.allow) != 0)
        return report(ROUTECAP_ERR_LOSSY,
                      "%s as %s cannot say all: %s; options.allow does not have it", format.name,
                      dtype.name, names_of(lost & ~o.allow).c_str());
    if ((lost & ROUTECAP_WIRE_FACT_VALIDITY) == 0) return ROUTECAP_OK;
    if (o.fill < 0 || o.fill > dtype.largest)
        return report(ROUTECAP_ERR_DTYPE, "options.fill is %lld", static_cast<long long>(o.fill));
    job.fill = o.fill;
    return ROUTECAP_OK;
}

// Where the message goes, and what is said of its size.
struct Destination {
    void *dst;
    size_t bytes;
    uint64_t *needed;
    uint64_t size = 0;  // of the message

    int32_t check_room(uint64_t of_message) {
        size = of_message;
        if (needed != nullptr) *needed = size;
        if (dst != nullptr && bytes >= size) return ROUTECAP_OK;
        return report(ROUTECAP_ERR_BUFFER_TOO_SMALL, "the message takes %llu bytes, dst has %zu",
                      ull(size), bytes);
    }
};

int32_t write_lists_message(const Job &job, Destination &to) {
    const auto write = [&](Output &output) {
        job.routing.shape().id_bytes == 1 ? write_lists<uint8_t>(job, output)
                                          : write_lists<uint16_t>(job, output);
    };
    Output counter(nullptr, 0, false);
    write(counter);
    if (int32_t s = to.check_room(counter.written()); s < 0) return s;
    Output output(static_cast<uint8_t *>(to.dst), to.size, false);
    write(output);
    return output.status();
}

int32_t write_array_message(const Job &job, const Format &format, const Dtype &dtype,
                            const MessageFacts &said, Destination &to) {
    const Frame around = frame(format, said);
    const uint64_t array = job.rows() * job.row_ids() * dtype.bytes,
                   npy = format.npy ? around.head.size() : 0;
    const uint64_t size = (format.base64 ? base64_size(array + npy) : array + npy) +
                          (format.npy ? 0 : around.head.size()) + around.tail.size();
    if (int32_t s = to.check_room(size); s < 0) return s;
    Output output(static_cast<uint8_t *>(to.dst), size, format.base64);
    if (format.npy)
        output.bytes(reinterpret_cast<const uint8_t *>(around.head.data()), around.head.size());
    else
        output.text(around.head);
    with_width(dtype.bytes, [&]<class T>(T) {
        job.routing.shape().id_bytes == 1 ? write_array<T, uint8_t>(job, output)
                                          : write_array<T, uint16_t>(job, output);
    });
    output.text(around.tail);
    return output.status();
}

}  // namespace

int32_t encode(const Routing &routing, const routecap_wire_options *theirs, void *dst,
               size_t dst_bytes, uint64_t *needed, routecap_wire_report *report_) {
    routecap_wire_options o;
    if (int32_t s = read_struct(o, theirs, "options"); s < 0) return s;
    if (int32_t s = check_format(o.format); s < 0) return s;
    if (int32_t s = check_wanted(report_, "report"); s < 0) return s;
    const Format &format = *find_format(o.format);
    const Shape &shape = routing.shape();
    const bool serialized = o.format == ROUTECAP_WIRE_SERIALIZED;
    const Dtype *dtype = nullptr;
    if (int32_t s = check_options(o, format, shape, dtype); s < 0) return s;
    Job job{routing, 0, {}, -1};
    bool map_follows = false;
    if (int32_t s = place_columns(o, shape, job, map_follows); s < 0) return s;

    const routecap_coverage coverage = routing.counted();
    const uint32_t says =
        format.facts & (dtype->is_signed || serialized ? ~0u : ~ROUTECAP_WIRE_FACT_VALIDITY);
    const uint32_t lost = facts_of(routing, coverage.cells_missing, map_follows) & ~says;
    if (int32_t s = check_lost(lost, o, format, *dtype, job); s < 0) return s;

    Destination to{dst, dst_bytes, needed};
    int32_t written = ROUTECAP_OK;
    if (serialized) {
        written = serialize(routing, dst, dst_bytes, &to.size);
        if (needed != nullptr) *needed = to.size;
    } else if (o.format == ROUTECAP_WIRE_LISTS) {
        written = write_lists_message(job, to);
    } else {
        const MessageFacts said{format.version,  says,      dtype->dtype, job.columns, shape.k,
                                routing.first(), job.rows()};
        written = write_array_message(job, format, *dtype, said, to);
    }
    if (written < 0) return written;
    if (report_ != nullptr) {
        routecap_wire_report r{};
        r.format = o.format, r.version = format.version, r.dtype = dtype->dtype, r.facts = says,
        r.lost = lost, r.bytes = to.size;
        r.columns = job.columns, r.columns_left_out = job.columns - shape.layers;
        r.first = routing.first(), r.rows = job.rows();
        r.cells_valid = job.rows() * shape.layers - coverage.cells_missing;
        r.largest_id = -1;
        write_struct(report_, r);
    }
    return ROUTECAP_OK;
}

}  // namespace routecap::wire
