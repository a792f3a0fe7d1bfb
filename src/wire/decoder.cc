#include "wire/decoder.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "base/status.h"
#include "base/structs.h"
#include "routing/import.h"
#include "routing/serialized.h"
#include "wire/base64.h"
#include "wire/json_lists.h"
#include "wire/message.h"

namespace routecap::wire {
namespace {

constexpr size_t kTextAtOnce = 32768;  // what it decodes to stays in the processor's cache

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

// Reads a message whose ids are in an array or in lists.
class ArrayReader {
public:
    ArrayReader(const Format &format, const Hint &hint) : format_(format), hint_(hint) {}

    int32_t read(const uint8_t *bytes, uint64_t n) {
        if (format_.format == ROUTECAP_WIRE_LISTS) return read_as_lists(bytes, n);
        size_t from = 0, size = n;
        if (format_.format == ROUTECAP_WIRE_OBJECT) {
            if (int32_t s = read_object(bytes, n, said_, from, size); s < 0) return s;
        } else if (format_.format == ROUTECAP_WIRE_NRLRE1) {
            if (int32_t s = read_nrlre1(bytes, n, said_, from); s < 0) return s;
            size = n - from;
        }
        uint64_t taken;
        if (int32_t s =
                format_.base64 ? read_base64(bytes + from, size) : take(bytes, n, size, taken);
            s < 0)
            return s;
        if (!cells_)
            return report(ROUTECAP_ERR_FORMAT, "the bytes end within the head of the .npy file");
        return check_end();
    }

    int32_t finish(uint64_t bytes, routecap_wire_report *report, Routing **routing) {
        routecap_wire_report r = cells_->counted();
        r.format = format_.format;
        r.version = said_.version;
        r.facts = said_.facts | (layout_.dtype->is_signed ? ROUTECAP_WIRE_FACT_VALIDITY : 0u);
        r.bytes = bytes;
        const uint64_t cells = layout_.rows * layout_.shape->layers;
        const bool strict = (hint_.values.flags & ROUTECAP_WIRE_HINT_STRICT) != 0;
        if (int32_t s = status_of(r.cells_valid, cells, strict); s < 0) return s;
        ImportedRows imported{layout_.shape, layout_.first, layout_.rows, {}, records_};
        if (layout_.rows > 0)
            imported.runs.push_back({.first = layout_.first,
                                     .rows = layout_.rows,
                                     .records = records_.get(),
                                     .tag = Tag{hint_.values.tag}});
        const int32_t s = import_rows(std::move(imported), ROUTECAP_IMPORT_TRUSTED, routing);
        if (s < 0) return s;
        if (report != nullptr) write_struct(report, r);
        return s == ROUTECAP_OK ? s : status_of(r.cells_valid, cells, false);
    }

private:
    // Makes room for the rows of an array of this many bytes.
    int32_t begin(uint64_t size) {
        if (int32_t s = make_layout(format_, said_, hint_, size, layout_); s < 0) return s;
        const Shape &shape = *layout_.shape;
        const uint64_t bytes = layout_.rows * shape.stride, budget = hint_.values.budget_bytes;
        if (budget != 0 && bytes > budget) return over_budget(bytes, budget);
        records_ = make_records(shape, layout_.rows);
        cells_.emplace(layout_, records_.get());
        return ROUTECAP_OK;
    }

    int32_t check_end() const {
        if (cells_->rows() == layout_.rows) return ROUTECAP_OK;
        return report(ROUTECAP_ERR_FORMAT, "there are %llu rows of %llu that were said",
                      ull(cells_->rows()), ull(layout_.rows));
    }

    // Reads the head of the .npy file if that is next, and then whole rows. Says how many bytes it
    // has read. `size`: of all bytes, the head included.
    int32_t take(const uint8_t *bytes, uint64_t n, uint64_t size, uint64_t &taken) {
        taken = 0;
        if (!cells_) {
            size_t head = 0;
            if (format_.npy)
                if (int32_t s = read_npy(bytes, n, said_, head); s != ROUTECAP_OK)
                    return std::min(s, ROUTECAP_OK);  // PENDING is no error
            if (int32_t s = begin(size - head); s < 0) return s;
            taken = head;
        }
        const uint64_t rows = (n - taken) / layout_.row_bytes;
        if (int32_t s = cells_->write(bytes + taken, rows); s < 0) return s;
        taken += rows * layout_.row_bytes;
        return ROUTECAP_OK;
    }

    int32_t read_base64(const uint8_t *text, uint64_t n) {
        if (n % 4 != 0)
            return report(ROUTECAP_ERR_FORMAT, "the text in base64 ends within a group of four");
        const uint64_t size = base64_decoded_size(text, n);
        std::vector<uint8_t> decoded;
        uint64_t rest = 0;  // bytes that were decoded and not read yet
        uint64_t at = 0, taken;
        do {
            const uint64_t most = std::min<uint64_t>(n - at, kTextAtOnce);
            if (decoded.size() < rest + base64_room(most)) decoded.resize(rest + base64_room(most));
            const int64_t got = decode_base64(text + at, most, decoded.data() + rest);
            if (got < 0)
                return report(ROUTECAP_ERR_FORMAT,
                              "the text is not in base64, within %llu bytes after byte %llu",
                              ull(most), ull(at));
            rest += static_cast<uint64_t>(got);
            if (int32_t s = take(decoded.data(), rest, size, taken); s < 0) return s;
            rest -= taken, at += most;
            std::memmove(decoded.data(), decoded.data() + taken, rest);
        } while (at < n);
        return ROUTECAP_OK;
    }

    int32_t read_as_lists(const uint8_t *text, uint64_t n) {
        const auto begin_rows = [&](uint64_t rows, uint32_t columns, uint32_t k) {
            said_.facts = ROUTECAP_WIRE_FACT_SHAPE, said_.columns = columns, said_.k = k,
            said_.rows = rows;
            return begin(rows * columns * k * sizeof(int64_t));
        };
        const auto give = [&](const int64_t *ids, uint64_t rows) {
            return cells_->write(reinterpret_cast<const uint8_t *>(ids), rows);
        };
        if (int32_t s = read_lists(text, n, begin_rows, give); s < 0) return s;
        if (!cells_)
            if (int32_t s = begin(0); s < 0) return s;  // no rows
        return check_end();
    }

    const Format &format_;
    const Hint &hint_;
    MessageFacts said_;
    ArrayLayout layout_;
    std::shared_ptr<uint8_t[]> records_;
    std::optional<Cells> cells_;
};

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
        !std::equal(shape.of.map.begin(), shape.of.map.end(), h.layer_map))
        return report(ROUTECAP_ERR_SHAPE_MISMATCH,
                      "the layer map of the bytes differs from the hint's");
    if (h.layer_experts != nullptr &&
        !std::equal(shape.of.experts.begin(), shape.of.experts.end(), h.layer_experts))
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
    const routecap_coverage coverage = decoded->counted();
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

int32_t decode(const uint8_t *bytes, size_t n, int32_t format, const Hint &hint,
               routecap_wire_report *report, Routing **routing) {
    if (format == ROUTECAP_WIRE_SERIALIZED)
        return decode_serialized(bytes, n, hint.values, report, routing);
    ArrayReader reader(*find_format(format), hint);
    if (int32_t s = reader.read(bytes, n); s < 0) return s;
    return reader.finish(n, report, routing);
}

}  // namespace

int32_t decode(const void *data, size_t bytes, int32_t format, const routecap_wire_hint *theirs,
               routecap_wire_report *report_, Routing **routing) {
    const uint8_t *at = nullptr;
    if (int32_t s = check_bytes(data, bytes, "data", at); s < 0) return s;
    if (int32_t s = check_format(format, true); s < 0) return s;
    if (int32_t s = check_wanted(report_, "report"); s < 0) return s;
    if (format == ROUTECAP_WIRE_ANY)
        if (int32_t s = detect(at, bytes, format); s < 0) return s;
    Hint hint;
    if (int32_t s = read_hint(theirs, format, hint); s < 0) return s;
    return decode(at, bytes, format, hint, report_, routing);
}

// ---- In pieces ------------------------------------------------------------------------------

// Makes a call unless an earlier one failed or was the last. Then every later call returns the same
// error.
template <class Call>
int32_t Decoder::once(Call call) {
    if (error_ < 0) return report(error_, "%s", text_.c_str());
    error_ = ROUTECAP_ERR_NO_MEMORY;  // if the call throws
    const int32_t status = call();
    error_ = std::min(status, ROUTECAP_OK);
    if (status < 0) text_ = last_error(), kept_ = {};
    return status;
}

int32_t Decoder::write(const void *data, size_t bytes) {
    return once([&] {
        const uint8_t *at = nullptr;
        if (int32_t s = check_bytes(data, bytes, "data", at); s < 0) return s;
        const uint64_t budget = hint_.values.budget_bytes;
        if (budget != 0 && bytes > budget - kept_.size())
            return over_budget(kept_.size() + bytes, budget);
        kept_.insert(kept_.end(), at, at + bytes);
        return ROUTECAP_OK;
    });
}

int32_t Decoder::finish(routecap_wire_report *report_, Routing **routing) {
    const int32_t status = once([&] {
        if (int32_t s = check_wanted(report_, "report"); s < 0) return s;
        int32_t format = format_;
        if (format == ROUTECAP_WIRE_ANY)
            if (int32_t s = detect(kept_.data(), kept_.size(), format); s < 0) return s;
        // The kept bytes count in the budget too.
        uint64_t &budget = hint_.values.budget_bytes;
        if (budget != 0 && budget == kept_.size()) return over_budget(budget + 1, budget);
        if (budget != 0) budget -= kept_.size();
        return decode(kept_.data(), kept_.size(), format, hint_, report_, routing);
    });
    if (status < 0) return status;
    kept_ = {};
    error_ = ROUTECAP_ERR_STATE, text_ = "the decoder was finished";
    return status;
}

}  // namespace routecap::wire
