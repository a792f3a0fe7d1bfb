// Bytes of the wire, whole and in pieces: no crash, the same either way, nothing written behind the
// caller's memory, and what was decoded comes back when it is encoded.
//
// An input is decisions (format, hint, what is changed) and then the message itself, or decisions
// of which one is made.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "bytes.h"
#include "check.h"

namespace {

using fuzz::Bytes;
using Message = std::vector<uint8_t>;

struct RoutingFree {
    void operator()(routecap_routing *routing) const { routecap_routing_free(routing); }
};
using RoutingPtr = std::unique_ptr<routecap_routing, RoutingFree>;

// Arrays of the hint live as long as it does.
struct Hint {
    routecap_wire_hint values{};
    std::vector<int32_t> map;
};

struct Decoded {
    int32_t status = 0;
    RoutingPtr routing;
    routecap_wire_report report{};
    Decoded() { report.struct_size = sizeof report; }
};

// A caller's memory. Behind it lie bytes that nobody may change.
class Guarded {
public:
    explicit Guarded(size_t size) : bytes_(size + kGuard.size(), 0xee), size_(size) {}
    uint8_t *data() { return bytes_.data(); }
    // Its bytes, once they were written.
    Message message(const char *call) const {
        if (std::memcmp(bytes_.data() + size_, kGuard.data(), kGuard.size()) != 0)
            check::fail("%s wrote behind memory of %zu bytes", call, size_);
        return {bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(size_)};
    }

private:
    static inline const Message kGuard = Message(8192, 0xee);
    Message bytes_;
    size_t size_;
};

bool documented(int32_t status) {
    switch (status) {
        case ROUTECAP_OK:
        case ROUTECAP_INCOMPLETE:
        case ROUTECAP_NOT_CAPTURED:
        case ROUTECAP_ERR_FORMAT:
        case ROUTECAP_ERR_SHAPE_MISMATCH:
        case ROUTECAP_ERR_INCOMPLETE:
        case ROUTECAP_ERR_ARGUMENT:
        case ROUTECAP_ERR_DTYPE:
        case ROUTECAP_ERR_NO_MEMORY: return true;
        default: return false;
    }
}

Decoded decode(const Message &message, int32_t format, const Hint &hint) {
    Decoded decoded;
    routecap_routing *routing = nullptr;
    decoded.status = routecap_wire_decode(message.data(), message.size(), format, &hint.values,
                                          &decoded.report, &routing);
    decoded.routing.reset(routing);
    if (!documented(decoded.status))
        check::fail("decode returned %s", routecap_status_name(decoded.status));
    if ((routing != nullptr) != (decoded.status >= 0))
        check::fail("decode returned %s and %p", routecap_status_name(decoded.status),
                    static_cast<void *>(routing));
    return decoded;
}

Decoded decode_in_pieces(const Message &message, int32_t format, const Hint &hint, uint64_t most) {
    Decoded decoded;
    routecap_wire_decoder *decoder = nullptr;
    decoded.status = routecap_wire_decoder_create(format, &hint.values, &decoder);
    for (size_t at = 0, n; at < message.size() && decoded.status >= 0; at += n) {
        n = std::min<size_t>(1 + (at * 7 + most) % most, message.size() - at);
        const Message piece(message.begin() + static_cast<std::ptrdiff_t>(at),
                            message.begin() + static_cast<std::ptrdiff_t>(at + n));
        decoded.status = routecap_wire_decoder_write(decoder, piece.data(), n);
    }
    routecap_routing *routing = nullptr;
    if (decoded.status >= 0)
        decoded.status = routecap_wire_decoder_finish(decoder, &decoded.report, &routing);
    routecap_wire_decoder_free(decoder);
    decoded.routing.reset(routing);
    return decoded;
}

// What is encoded with leave to lose everything.
Message encode(const routecap_routing *routing, const routecap_wire_options &options) {
    uint64_t needed = 0;
    const int32_t asked = routecap_wire_encode(routing, &options, nullptr, 0, &needed, nullptr);
    if (asked != ROUTECAP_ERR_BUFFER_TOO_SMALL) {
        if (asked != ROUTECAP_ERR_DTYPE && asked != ROUTECAP_ERR_SHAPE_MISMATCH)
            check::fail("encode returned %s", routecap_status_name(asked));
        return {};
    }
    for (const uint64_t less : {needed, uint64_t{1}}) {
        if (less > needed || less == 0) continue;
        Guarded memory(needed - less);
        SAME_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                    routecap_wire_encode(routing, &options, memory.data(), needed - less, nullptr,
                                         nullptr));
        memory.message("encode");
    }
    Guarded memory(needed);
    SAME_STATUS(ROUTECAP_OK,
                routecap_wire_encode(routing, &options, memory.data(), needed, nullptr, nullptr));
    return memory.message("encode");
}

routecap_wire_options leave(int32_t format, int32_t dtype) {
    routecap_wire_options options{};
    options.struct_size = sizeof options, options.format = format, options.dtype = dtype,
    options.allow = 1023;
    return options;
}

Hint draw_hint(Bytes &bytes, uint32_t columns, uint32_t k) {
    Hint hint;
    routecap_wire_hint &h = hint.values;
    h.struct_size = sizeof h;
    h.experts = bytes.pick({8u, 2u, 32u, 255u, 256u, 257u, 512u, 32768u});
    if (bytes.chance(200)) h.columns = columns, h.k = k;
    if (bytes.chance(60)) {
        for (uint32_t c = 0; c < columns; c++)
            if (bytes.chance(160)) hint.map.push_back(static_cast<int32_t>(c));
        h.layers = static_cast<uint32_t>(hint.map.size());
        h.layer_map = hint.map.empty() ? nullptr : hint.map.data();
    }
    h.column_kind = bytes.pick({0, 0, 1, 2});
    h.dtype = bytes.pick({0, 1, 2, 3, 4, 5, 6, 8, 9});
    if (bytes.chance(20)) h.rows = bytes.below(6);
    if (bytes.chance(40)) h.first = bytes.below(3);
    if (bytes.chance(10)) h.flags = ROUTECAP_WIRE_HINT_STRICT;
    if (bytes.chance(20)) h.budget_bytes = bytes.number(2);
    h.tag = bytes.below(2);
    return hint;
}

// A routing of small numbers, with holes.
RoutingPtr draw_routing(Bytes &bytes, const Hint &hint, uint32_t columns, uint32_t k) {
    std::string text = "[";
    const uint64_t rows = 1 + bytes.below(6);
    for (uint64_t r = 0; r < rows; r++) {
        text += r > 0 ? ",[" : "[";
        for (uint32_t c = 0; c < columns; c++) {
            text += c > 0 ? ",[" : "[";
            for (uint32_t i = 0; i < k; i++) {
                const uint64_t plain_id = (i + r + c) % std::max(hint.values.experts, k);
                if (i > 0) text += ',';
                text += std::to_string(bytes.chance(12) ? static_cast<int64_t>(bytes.number(1)) - 2
                                                        : static_cast<int64_t>(plain_id));
            }
            text += "]";
        }
        text += "]";
    }
    text += "]";
    Hint plain;
    plain.values.struct_size = sizeof plain.values,
    plain.values.experts = std::max(hint.values.experts, k);
    return decode(Message(text.begin(), text.end()), ROUTECAP_WIRE_LISTS, plain).routing;
}

// Of the library; their numbers begin at 1.
int32_t formats() {
    routecap_wire_description description{};
    description.struct_size = sizeof description;
    int32_t found = 0;
    while (routecap_wire_describe(found + 1, &description) == ROUTECAP_OK) found++;
    return found;
}

void run(Bytes &bytes) {
    static const int32_t last = formats();
    const auto format = static_cast<int32_t>(bytes.below(static_cast<uint64_t>(last) + 1));
    const auto columns = static_cast<uint32_t>(1 + bytes.below(5)),
               k = bytes.pick({2u, 1u, 3u, 4u, 8u, 32u});
    const Hint hint = draw_hint(bytes, columns, k);
    Message message;
    if (bytes.chance(160)) {
        const RoutingPtr routing = draw_routing(bytes, hint, columns, k);
        if (routing)
            message =
                encode(routing.get(),
                       leave(format == ROUTECAP_WIRE_ANY ? ROUTECAP_WIRE_NPY : format,
                             format > ROUTECAP_WIRE_SERIALIZED && format != ROUTECAP_WIRE_LISTS
                                 ? bytes.pick({0, 1, 2, 3, 4, 6, 8})
                                 : 0));
        for (uint64_t n = bytes.below(4); n > 0 && !message.empty(); n--) {
            const size_t at = bytes.below(message.size());
            if (bytes.chance(128))
                message[at] = static_cast<uint8_t>(bytes.number(1));
            else
                message.resize(at);
        }
    } else {
        while (!bytes.empty()) message.push_back(static_cast<uint8_t>(bytes.number(1)));
    }

    const Decoded whole = decode(message, format, hint);
    for (const uint64_t most : {1u, 13u}) {
        const Decoded pieces = decode_in_pieces(message, format, hint, most);
        if ((whole.status >= 0) != (pieces.status >= 0) && hint.values.budget_bytes == 0)
            check::fail("whole %s, in pieces %s", routecap_status_name(whole.status),
                        routecap_status_name(pieces.status));
        if (whole.status < 0 || pieces.status < 0) continue;
        SAME(whole.status, pieces.status);
        if (std::memcmp(&whole.report, &pieces.report, sizeof whole.report) != 0)
            check::fail("in pieces the report is another");
        if (check::serialized(whole.routing.get()) != check::serialized(pieces.routing.get()))
            check::fail("in pieces the routing is another");
    }
    // With its end cut, too: within a group of four in base64, for instance.
    Message cut = message;
    for (size_t n = 0; n < 4; n++) {
        decode(cut, format, hint);
        if (cut.empty()) break;
        cut.pop_back();
    }
    if (whole.status < 0) return;

    // Every cell is counted once, and the routing has as many.
    const routecap_wire_report &report = whole.report;
    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    if (routecap_routing_coverage(whole.routing.get(), &coverage, nullptr, sizeof(routecap_missing),
                                  0) < 0)
        check::fail("no coverage");
    SAME(coverage.rows * coverage.layers - coverage.cells_missing, report.cells_valid);
    if (report.format == ROUTECAP_WIRE_SERIALIZED) return;
    SAME(coverage.cells_missing, report.cells_negative + report.cells_zero +
                                     report.cells_out_of_range + report.cells_duplicate);

    // What is valid is k distinct experts.
    routecap_copy_options copy;
    SAME_STATUS(ROUTECAP_OK, routecap_copy_options_init(&copy, sizeof copy));
    copy.dtype = ROUTECAP_DTYPE_I32;
    std::vector<int32_t> expected(report.rows * coverage.layers * 32 + 1);
    std::vector<uint8_t> mask(report.rows * coverage.layers);
    SAME(whole.status,
         routecap_routing_copy_to(whole.routing.get(), &copy, expected.data(), expected.size() * 4,
                                  mask.data(), mask.size(), nullptr));
    routecap_view view{};
    view.struct_size = sizeof view;
    SAME_STATUS(ROUTECAP_OK, routecap_routing_view(whole.routing.get(), &view));
    for (size_t cell = 0; cell < mask.size(); cell++) {
        std::vector<int32_t> ids(
            expected.begin() + static_cast<std::ptrdiff_t>(cell * view.k),
            expected.begin() + static_cast<std::ptrdiff_t>((cell + 1) * view.k));
        std::sort(ids.begin(), ids.end());
        const bool good =
            ids.front() >= 0 &&
            static_cast<uint32_t>(ids.back()) < view.layer_experts[cell % view.layers] &&
            std::adjacent_find(ids.begin(), ids.end()) == ids.end();
        if (mask[cell] != 0 && !good)
            check::fail("cell %zu is valid, and is not %u distinct experts", cell, view.k);
    }

    // There and back, in what can say that cells are missing.
    const routecap_wire_options options = leave(ROUTECAP_WIRE_NPY, ROUTECAP_DTYPE_I32);
    Hint back = hint;
    back.values.dtype = 0, back.values.columns = 0, back.values.rows = 0,
    back.values.budget_bytes = 0, back.values.flags = 0;
    back.values.column_kind = ROUTECAP_WIRE_COLUMNS_CAPTURED, back.values.first = report.first;
    const Message again = encode(whole.routing.get(), options);
    const Decoded second = decode(again, ROUTECAP_WIRE_NPY, back);
    SAME(second.status, whole.status);
    if (encode(second.routing.get(), options) != again)
        check::fail("there and back the ids are others");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Bytes bytes(data, size);
    run(bytes);
    return 0;
}
