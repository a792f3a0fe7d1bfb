#include "wire/decoder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status.h"
#include "base/structs.h"
#include "routing/import.h"
#include "routing/serialized.h"

namespace routecap::wire {
namespace {

constexpr size_t kTextAtOnce = 32768;    // what it decodes to stays in the processor's cache
constexpr uint64_t kFirstBytes = 65536;  // room for rows whose number is not known
constexpr char kWithinGroup[] = "the text in base64 ends within a group of four";

int32_t over_budget(uint64_t bytes, uint64_t budget) {
    return report(ROUTECAP_ERR_NO_MEMORY, "decoding takes %llu bytes, hint.budget_bytes is %llu",
                  ull(bytes), ull(budget));
}

// The status of a result, by its number of valid cells and of all cells.
int32_t status_of(uint64_t valid, uint64_t cells, bool strict) {
    if (valid == cells) return ROUTECAP_OK;
    const int32_t status = strict       ? ROUTECAP_ERR_INCOMPLETE
                           : valid == 0 ? ROUTECAP_NOT_CAPTURED
                                        : ROUTECAP_INCOMPLETE;
    return report(status, "%llu of %llu cells in the bytes are not k distinct experts",
                  ull(cells - valid), ull(cells));
}

}  // namespace

// ---- Reading --------------------------------------------------------------------------------

int32_t Reader::begin(uint64_t ready) {
    if (int32_t s = make_layout(*format_, said_, hint_, layout_); s < 0) return s;
    if (body_size_) {
        const uint64_t size = *body_size_ - (format_->npy ? head_.size() : 0);
        if (ArrayLayout::is_known(layout_.rows) &&
            (size / layout_.row_bytes != layout_.rows || size % layout_.row_bytes != 0))
            return report(layout_.wrong_rows(),
                          "the array has %llu bytes; %llu rows of %llu bytes were said", ull(size),
                          ull(layout_.rows), ull(layout_.row_bytes));
        ready = size / layout_.row_bytes;
    }
    RowSink *rows = nullptr;
    if (int32_t s = rows_for(layout_, ready, rows); s < 0) return s;
    cells_.emplace(layout_, *rows);
    return ROUTECAP_OK;
}

int32_t Reader::elements(const uint8_t *bytes, uint64_t n) {
    if (!cells_)
        if (int32_t s = begin(0); s < 0) return s;
    return cells_->write(bytes, n);
}

// The bytes that remain after base64 is decoded.
int32_t Reader::payload(const uint8_t *bytes, uint64_t n) {
    if (!format_->npy || cells_) return elements(bytes, n);
    const size_t before = head_.size();
    // A longer header is refused.
    head_.insert(head_.end(), bytes, bytes + std::min<uint64_t>(n, kLongestNpyHead));
    size_t head = 0;
    const int32_t s = read_npy(head_.data(), head_.size(), said_, head);
    if (s != ROUTECAP_OK) return std::min(s, ROUTECAP_OK);  // PENDING is no error
    head_.resize(head);
    if (int32_t t = begin(0); t < 0) return t;
    return elements(bytes + (head - before), n - (head - before));
}

// The size of the payload of a whole message. Text that ends within a group has none, because its
// last bytes would decode to part of a row that the size does not count.
int32_t Reader::measure(const uint8_t *body, uint64_t n) {
    if (format_->base64 && n % 4 != 0) return report(ROUTECAP_ERR_FORMAT, kWithinGroup);
    body_size_ = format_->base64 ? base64_decoded_size(body, n) : n;
    return ROUTECAP_OK;
}

int32_t Reader::body(const uint8_t *bytes, uint64_t n) {
    if (!format_->base64) return payload(bytes, n);
    if (!base64_) base64_.emplace();
    uint8_t decoded[base64_room(kTextAtOnce)];
    while (n > 0) {
        const size_t taken = std::min<uint64_t>(n, kTextAtOnce);
        const int64_t got = base64_->decode(bytes, taken, decoded);
        if (got < 0)
            return report(ROUTECAP_ERR_FORMAT,
                          "the text is not in base64, within %llu bytes after byte %llu",
                          ull(taken), ull(bytes_ - n));
        if (int32_t s = payload(decoded, static_cast<uint64_t>(got)); s < 0) return s;
        bytes += taken, n -= taken;
    }
    return ROUTECAP_OK;
}

int32_t Reader::write(const uint8_t *bytes, uint64_t n) {
    bytes_ += n;
    if (format_->format == ROUTECAP_WIRE_LISTS) {
        if (!lists_) lists_.emplace();
        return lists_->write(
            bytes, n,
            [&](uint32_t columns, uint32_t k) {
                said_.facts = ROUTECAP_WIRE_FACT_SHAPE, said_.columns = columns, said_.k = k,
                said_.rows = UINT64_MAX;
                return begin(0);
            },
            [&](const int64_t *ids, uint64_t count) {
                return elements(reinterpret_cast<const uint8_t *>(ids), count * sizeof *ids);
            });
    }
    if (format_->format != ROUTECAP_WIRE_NRLRE1 || in_body_) return body(bytes, n);
    const size_t before = head_.size();
    head_.insert(head_.end(), bytes, bytes + std::min<uint64_t>(n, 128));
    size_t head = 0;
    const int32_t s = read_nrlre1(head_.data(), head_.size(), said_, head);
    if (s != ROUTECAP_OK) return std::min(s, ROUTECAP_OK);
    in_body_ = true;
    if (body_size_)
        if (int32_t t = measure(bytes + head, n - head); t < 0) return t;
    return body(bytes + (head - before), n - (head - before));
}

int32_t Reader::read(const uint8_t *bytes, uint64_t n) {
    if (format_->format == ROUTECAP_WIRE_OBJECT) {
        size_t data = 0, size = 0;
        if (int32_t s = read_object(bytes, n, said_, data, size); s < 0) return s;
        bytes_ = n;
        if (int32_t s = measure(bytes + data, size); s < 0) return s;
        if (int32_t s = body(bytes + data, size); s < 0) return s;
        return finish();
    }
    if (format_->format == ROUTECAP_WIRE_NRLRE1)
        body_size_ = 0;  // measured when its head was read
    else if (format_->format != ROUTECAP_WIRE_LISTS)
        if (int32_t s = measure(bytes, n); s < 0) return s;
    if (int32_t s = write(bytes, n); s < 0) return s;
    return finish();
}

int32_t Reader::finish() {
    if (format_->format == ROUTECAP_WIRE_NRLRE1 && !in_body_)
        return report(ROUTECAP_ERR_FORMAT, "the text ends within its head");
    if (base64_ && !base64_->complete()) return report(ROUTECAP_ERR_FORMAT, kWithinGroup);
    if (format_->npy && !cells_)
        return report(ROUTECAP_ERR_FORMAT, "the bytes end within the head of the .npy file");
    if (lists_)
        if (int32_t s = lists_->finish([&](const int64_t *ids, uint64_t n) {
                return elements(reinterpret_cast<const uint8_t *>(ids), n * sizeof *ids);
            });
            s < 0)
            return s;
    if (format_->format == ROUTECAP_WIRE_LISTS && !lists_)
        return report(ROUTECAP_ERR_FORMAT, "there are no lists");
    if (!cells_)
        if (int32_t s = begin(0); s < 0) return s;  // no rows
    return cells_->finish();
}

void Reader::report_to(routecap_wire_report *report) const {
    if (report == nullptr) return;
    routecap_wire_report r{};
    r.format = format_->format;
    r.version = said_.version;
    r.facts = said_.facts | (layout_.dtype->is_signed ? ROUTECAP_WIRE_FACT_VALIDITY : 0u);
    r.bytes = bytes_;
    cells_->report_to(r);
    write_struct(report, r);
}

// ---- To a routing ---------------------------------------------------------------------------

namespace {

class ToRouting : public Reader, private RowSink {
public:
    using Reader::Reader;

    // The routing of all that was read.
    int32_t finish(routecap_wire_report *report, Routing **routing) {
        if (int32_t s = Reader::finish(); s < 0) return s;
        return done(report, routing);
    }
    int32_t done(routecap_wire_report *report, Routing **routing) {
        const uint64_t cells = rows_ * layout().shape->layers;
        if (strict())
            if (int32_t s = status_of(valid(), cells, true); s < 0) return s;
        ImportedRows imported{layout().shape, layout().first, rows_, {}, {}};
        uint64_t position = layout().first;
        for (const Chunk &chunk : *chunks_) {
            if (chunk.used == 0) continue;
            imported.segments.push_back({position, chunk.used, chunk.ids.get(),
                                         chunk.complete ? nullptr : chunk.validity.get(), nullptr,
                                         hint_.values.tag, 0, 0});
            position += chunk.used;
        }
        auto owner = std::make_unique<std::shared_ptr<Chunks>>(chunks_);
        const int32_t s = import_rows(
            std::move(imported), ROUTECAP_IMPORT_TRUSTED,
            [](void *o) { delete static_cast<std::shared_ptr<Chunks> *>(o); }, owner.get(),
            routing);
        if (s < 0) return s;
        static_cast<void>(owner.release());
        report_to(report);
        return s == ROUTECAP_OK ? s : status_of(valid(), cells, false);
    }

private:
    struct Chunk {
        std::unique_ptr<uint8_t[]> ids, validity;
        uint64_t rows = 0, used = 0;
        bool complete = true;
    };
    using Chunks = std::vector<Chunk>;

    uint64_t valid() const {
        routecap_wire_report r{};
        r.struct_size = sizeof r;
        report_to(&r);
        return r.cells_valid;
    }

    int32_t rows_for(const ArrayLayout &, uint64_t ready, RowSink *&rows) override {
        ready_ = ready;
        rows = this;
        return ROUTECAP_OK;
    }

    int32_t room(uint64_t wanted, Room &room) override {
        const Shape &shape = *layout().shape;
        if (chunks_->empty() || chunks_->back().used == chunks_->back().rows) {
            uint64_t rows = std::max({ready_ - std::min(ready_, rows_), wanted, rows_,
                                      ready_ > 0 ? 1 : kFirstBytes / shape.row_bytes()});
            if (ArrayLayout::is_known(layout().rows)) rows = std::min(rows, layout().rows - rows_);
            const uint64_t bytes = rows * shape.row_bytes(), budget = hint_.values.budget_bytes;
            if (budget != 0 && bytes > budget - std::min(budget, bytes_))
                return over_budget(bytes_ + bytes, budget);
            Chunk chunk{std::unique_ptr<uint8_t[]>(new uint8_t[rows * shape.ids_bytes]),
                        std::unique_ptr<uint8_t[]>(new uint8_t[rows * shape.validity_bytes]), rows};
            chunks_->push_back(std::move(chunk));
            bytes_ += bytes;
        }
        const Chunk &chunk = chunks_->back();
        room = {chunk.ids.get() + chunk.used * shape.ids_bytes,
                chunk.validity.get() + chunk.used * shape.validity_bytes,
                std::min(wanted, chunk.rows - chunk.used)};
        return ROUTECAP_OK;
    }

    int32_t wrote(uint64_t rows, bool complete) override {
        chunks_->back().used += rows;
        chunks_->back().complete &= complete;
        rows_ += rows;
        return ROUTECAP_OK;
    }

    std::shared_ptr<Chunks> chunks_ = std::make_shared<Chunks>();
    uint64_t ready_ = 0, rows_ = 0, bytes_ = 0;
};

// The format of the bytes, if it is certain.
int32_t find_out(const uint8_t *bytes, uint64_t n, int32_t &format) {
    bool certain = false;
    const int32_t s = detect(bytes, n, format, certain);
    if (s != ROUTECAP_OK) return s;
    return certain ? ROUTECAP_OK
                   : report(ROUTECAP_ERR_FORMAT,
                            "the bytes may be %s, or anything else in base64: say which",
                            find_format(format)->name);
}

// What decoding checks first. Replaces ANY by the format that was found.
int32_t begin_decoding(const void *data, size_t bytes, int32_t &format,
                       const routecap_wire_report *report_, const uint8_t *&at) {
    if (int32_t s = check_bytes(data, bytes, "data", at); s < 0) return s;
    if (int32_t s = check_format(format, true); s < 0) return s;
    if (report_ != nullptr)
        if (int32_t s = check_output(report_, "report"); s < 0) return s;
    if (format != ROUTECAP_WIRE_ANY) return ROUTECAP_OK;
    const int32_t s = find_out(at, bytes, format);
    return s == ROUTECAP_PENDING
               ? report(ROUTECAP_ERR_FORMAT, "%zu bytes do not say what they are", bytes)
               : s;
}

// Checks a hint against a serialised routing, which states every fact itself.
int32_t check_hint(const routecap_wire_hint &h, const Routing &routing) {
    const Shape &shape = routing.shape();
    for (const auto &[name, said, hinted] :
         {std::tuple("layers", uint64_t{shape.layers}, uint64_t{h.layers}),
          std::tuple("k", uint64_t{shape.k}, uint64_t{h.k}),
          std::tuple("experts", uint64_t{shape.experts}, uint64_t{h.experts}),
          std::tuple("first", routing.first(), h.first),
          std::tuple("rows", routing.end() - routing.first(), h.rows)})
        if (hinted != 0 && said != hinted)
            return report(ROUTECAP_ERR_SHAPE_MISMATCH, "the bytes have %s %llu, the hint %llu",
                          name, ull(said), ull(hinted));
    if (h.layer_map != nullptr &&
        !std::equal(shape.layer_map.begin(), shape.layer_map.end(), h.layer_map))
        return report(ROUTECAP_ERR_SHAPE_MISMATCH,
                      "the layer map of the bytes differs from the hint's");
    if (h.layer_experts != nullptr &&
        !std::equal(shape.layer_experts.begin(), shape.layer_experts.end(), h.layer_experts))
        return report(ROUTECAP_ERR_SHAPE_MISMATCH,
                      "the bytes have other layer_experts than the hint");
    return ROUTECAP_OK;
}

int32_t decode_serialized(const void *data, size_t bytes, const routecap_wire_hint &h,
                          routecap_wire_report *report_, Routing **routing) {
    if (h.budget_bytes != 0 && bytes > h.budget_bytes) return over_budget(bytes, h.budget_bytes);
    Routing *decoded = nullptr;
    if (int32_t s = deserialize(data, bytes, 0, nullptr, nullptr, &decoded); s < 0) return s;
    const RoutingPtr owner(decoded);
    if (int32_t s = check_hint(h, *decoded); s < 0) return s;
    const Shape &shape = decoded->shape();
    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    decoded->coverage(&coverage, nullptr, sizeof(routecap_missing), 0);
    const uint64_t cells = coverage.rows * shape.layers;
    const int32_t s = status_of(cells - coverage.cells_missing, cells,
                                (h.flags & ROUTECAP_WIRE_HINT_STRICT) != 0);
    if (s < 0) return s;
    if (report_ != nullptr) {
        routecap_wire_report r{};
        r.format = ROUTECAP_WIRE_SERIALIZED, r.version = 1, r.dtype = shape.dtype(),
        r.facts = find_format(ROUTECAP_WIRE_SERIALIZED)->facts;
        r.columns = shape.layers, r.bytes = bytes, r.first = decoded->first(),
        r.rows = coverage.rows;
        r.cells_valid = cells - coverage.cells_missing;
        r.largest_id = -1;
        write_struct(report_, r);
    }
    decoded->retain();
    *routing = decoded;
    return s;
}

}  // namespace

int32_t decode(const void *data, size_t bytes, int32_t format, const routecap_wire_hint *theirs,
               routecap_wire_report *report_, Routing **routing) {
    const uint8_t *at = nullptr;
    if (int32_t s = begin_decoding(data, bytes, format, report_, at); s < 0) return s;
    Hint hint;
    if (int32_t s = read_hint(theirs, format, hint); s < 0) return s;
    if (format == ROUTECAP_WIRE_SERIALIZED)
        return decode_serialized(at, bytes, hint.values, report_, routing);
    ToRouting reader(format, std::move(hint));
    if (int32_t s = reader.read(at, bytes); s < 0) return s;
    return reader.done(report_, routing);
}

// ---- In pieces ------------------------------------------------------------------------------

int32_t Decoder::fail(int32_t status) {
    error_ = status;
    text_ = last_error();
    reader_.reset();
    kept_ = {};
    return status;
}

int32_t Decoder::take(const uint8_t *bytes, uint64_t n) {
    if (reader_) return reader_->write(bytes, n);
    const uint64_t budget = hint_.values.budget_bytes;
    if (budget != 0 && n > budget - std::min<uint64_t>(budget, kept_.size()))
        return over_budget(kept_.size() + n, budget);
    kept_.insert(kept_.end(), bytes, bytes + n);
    if (format_ == ROUTECAP_WIRE_ANY) {
        const int32_t s = find_out(kept_.data(), kept_.size(), format_);
        if (s != ROUTECAP_OK) {
            format_ = ROUTECAP_WIRE_ANY;
            return std::min(s, ROUTECAP_OK);
        }
    }
    if (format_ == ROUTECAP_WIRE_SERIALIZED || format_ == ROUTECAP_WIRE_OBJECT) return ROUTECAP_OK;
    reader_ = std::make_shared<ToRouting>(format_, std::move(hint_));
    const std::vector<uint8_t> kept = std::move(kept_);
    kept_ = {};
    return reader_->write(kept.data(), kept.size());
}

int32_t Decoder::write(const void *data, size_t bytes) {
    if (error_ < 0) return report(error_, "%s", text_.c_str());
    if (finished_) return report(ROUTECAP_ERR_STATE, "the decoder was finished");
    const uint8_t *at = nullptr;
    if (int32_t s = check_bytes(data, bytes, "data", at); s < 0) return s;
    if (bytes == 0) return ROUTECAP_OK;
    try {
        const int32_t s = take(at, bytes);
        return s < 0 ? fail(s) : s;
    } catch (const std::bad_alloc &) {
        error_ = ROUTECAP_ERR_NO_MEMORY;
        throw;
    }
}

// Decodes a format that cannot be read in pieces. The kept bytes count in the budget too.
int32_t Decoder::decode_kept(routecap_wire_report *report_, Routing **routing) {
    routecap_wire_hint &h = hint_.values;
    if (h.struct_size == 0)
        return decode(kept_.data(), kept_.size(), format_, nullptr, report_, routing);
    if (h.budget_bytes != 0 && kept_.size() >= h.budget_bytes)
        return over_budget(kept_.size() + 1, h.budget_bytes);
    if (h.budget_bytes != 0) h.budget_bytes -= kept_.size();
    return decode(kept_.data(), kept_.size(), format_, &h, report_, routing);
}

int32_t Decoder::finish(routecap_wire_report *report_, Routing **routing) {
    if (error_ < 0) return report(error_, "%s", text_.c_str());
    if (finished_) return report(ROUTECAP_ERR_STATE, "the decoder was finished");
    if (report_ != nullptr)
        if (int32_t s = check_output(report_, "report"); s < 0) return s;
    try {
        int32_t s;
        if (reader_)
            s = static_cast<ToRouting &>(*reader_).finish(report_, routing);
        else
            s = decode_kept(report_, routing);
        if (s < 0) return fail(s);
        finished_ = true;
        reader_.reset();
        kept_ = {};
        return s;
    } catch (const std::bad_alloc &) {
        error_ = ROUTECAP_ERR_NO_MEMORY;
        throw;
    }
}

}  // namespace routecap::wire
