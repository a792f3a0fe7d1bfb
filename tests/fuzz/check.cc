#include "check.h"

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "../support/declared.h"
#include "../support/views.h"

namespace check {

void (*on_failure)() = [] {};

void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::fputs("difference: ", stderr);
    std::vfprintf(stderr, format, arguments);
    std::fputs("\n", stderr);
    va_end(arguments);
    on_failure();
    std::abort();
}

void trace(const char *format, ...) {
    static const bool on = std::getenv("ROUTECAP_FUZZ_TRACE") != nullptr;
    if (!on) return;
    va_list arguments;
    va_start(arguments, format);
    std::vfprintf(stderr, format, arguments);
    va_end(arguments);
}

void status(const char *call, int32_t expected, int32_t got) {
    trace("%.*s: %s\n", static_cast<int>(std::strcspn(call, "(")), call, routecap_status_name(got));
    if (got != expected)
        fail("%s is %s instead of %s (%s)", call, routecap_status_name(got),
             routecap_status_name(expected), routecap_last_error());
    if (got < 0 || got == ROUTECAP_PARTIAL) {
        const char *text = routecap_last_error();
        if (*text == 0 || std::strchr(text, '\n') != nullptr)
            fail("%s left the text \"%s\"", call, text);
    }
}

void number(const char *what, uint64_t expected, uint64_t got) {
    if (got != expected) fail("%s is %" PRIu64 " instead of %" PRIu64, what, got, expected);
}

void coverage(const routecap_coverage &expected, const std::vector<routecap_missing> &blocks,
              const routecap_coverage &got, const std::vector<routecap_missing> &first_blocks) {
    SAME(expected.layers, got.layers);
    SAME(expected.first, got.first);
    SAME(expected.rows, got.rows);
    SAME(expected.length, got.length);
    SAME(expected.rows_complete, got.rows_complete);
    SAME(expected.rows_partial, got.rows_partial);
    SAME(expected.rows_empty, got.rows_empty);
    SAME(expected.cells_missing, got.cells_missing);
    SAME(expected.blocks, got.blocks);
    SAME(expected.cells_recomputed, got.cells_recomputed);
    SAME(expected.cells_weighted, got.cells_weighted);
    for (size_t i = 0; i < first_blocks.size(); i++) {
        const routecap_missing untouched{77, 77, 77, 77, 77, 77},
            &block = i < blocks.size() ? blocks[i] : untouched;
        if (std::memcmp(&block, &first_blocks[i], sizeof block) != 0)
            fail("block %zu is rows %" PRIu64 "+%" PRIu64
                 " layers %u+%u reason %d instead of rows %" PRIu64 "+%" PRIu64
                 " layers %u+%u reason %d",
                 i, first_blocks[i].first, first_blocks[i].rows, first_blocks[i].first_layer,
                 first_blocks[i].layers, first_blocks[i].reason, block.first, block.rows,
                 block.first_layer, block.layers, block.reason);
    }
}

namespace {

// Of a cell whose ids are there.
void weights(const routecap_view &view, const routecap_segment &segment, uint64_t r, size_t layer,
             const model::Row &expected, const model::Shape &shape) {
    const auto cell = expected.weights.find(layer);
    const uint8_t bits = segment.weights_validity[r * view.row_stride + layer / 8];
    if ((bits >> layer % 8 & 1) != (cell != expected.weights.end()))
        fail("row %" PRIu64 " layer %zu %s weights", segment.first + r, layer,
             cell == expected.weights.end() ? "should have no" : "lacks its");
    const size_t element = model::element_bytes(shape.weights);
    for (size_t c = 0; c < shape.k; c++) {
        const uint32_t wanted = cell != expected.weights.end() ? cell->second[c] : 0;
        uint32_t got = 0;
        std::memcpy(&got,
                    static_cast<const uint8_t *>(segment.weights) + r * view.row_stride +
                        (layer * shape.k + c) * element,
                    element);
        if (got != wanted)
            fail("row %" PRIu64 " layer %zu column %zu has the weight %x instead of %x",
                 segment.first + r, layer, c, got, wanted);
    }
}

// Copied as they are, and by a plan of one sample; in both each cell of a row follows the other.
void copied_weights(const routecap_routing *routing, const model::Routing &expected) {
    const model::Shape &shape = *expected.shape;
    const size_t element = model::element_bytes(shape.weights), of_cell = shape.k * element,
                 cells = expected.rows * shape.cells();
    // Of which the model has weights, or else those that the caller names.
    std::vector<uint8_t> same_mask;
    const auto written = [&](uint64_t first, uint64_t end, uint32_t missing) {
        std::vector<uint8_t> bytes;
        same_mask.clear();
        for (uint64_t p = first; p < end; p++)
            for (size_t l = 0; l < shape.cells(); l++) {
                const model::RowPtr row = expected.at(p);
                const bool has = row != nullptr && row->weights.count(l) > 0;
                same_mask.push_back(has);
                for (size_t c = 0; c < shape.k; c++) {
                    const uint32_t bits = has ? row->weights.at(l)[c] : missing;
                    for (size_t b = 0; b < element; b++)
                        bytes.push_back(static_cast<uint8_t>(bits >> 8 * b));
                }
            }
        return bytes;
    };
    routecap_copy_options options{};
    SAME_STATUS(ROUTECAP_OK, routecap_copy_options_init(&options, sizeof options));
    options.dtype = shape.weights;
    std::vector<uint8_t> dst(cells * of_cell + 1, 0x77), mask(cells + 1, 0x77);
    const uint32_t nan = shape.weights == ROUTECAP_DTYPE_F32    ? 0x7fc00000
                         : shape.weights == ROUTECAP_DTYPE_BF16 ? 0x7fc0
                                                                : 0x7e00;
    std::vector<uint8_t> same = written(expected.first, expected.end(), nan);
    same.push_back(0x77), same_mask.push_back(0x77);
    const auto there =
        static_cast<size_t>(std::count(same_mask.begin(), same_mask.end() - 1, uint8_t{1}));
    SAME_STATUS(there == cells ? ROUTECAP_OK
                : there == 0   ? ROUTECAP_NOT_CAPTURED
                               : ROUTECAP_INCOMPLETE,
                routecap_routing_copy_weights(routing, &options, dst.data(), cells * of_cell,
                                              mask.data(), cells, nullptr));
    if (dst != same || mask != same_mask) fail("a copy of weights differs");
    options.flags = ROUTECAP_READ_STRICT | ROUTECAP_READ_ALLOW_RECOMPUTED;
    SAME_STATUS(there == cells ? ROUTECAP_OK : ROUTECAP_ERR_INCOMPLETE,
                routecap_routing_copy_weights(routing, &options, dst.data(), cells * of_cell,
                                              nullptr, 0, nullptr));

    const uint64_t length = expected.end() + 1;  // the last token has no row
    if (length > 1000 || shape.id_space != ROUTECAP_ID_SPACE_LOGICAL) return;  // not for plans
    std::vector<int32_t> map;
    std::vector<uint32_t> experts, k, least, visit;
    for (const model::Layer &layer : shape.layers)
        map.push_back(layer.index), experts.push_back(layer.experts), k.push_back(layer.k),
            least.push_back(layer.least), visit.push_back(layer.visit);
    routecap_plan_config config{};
    SAME_STATUS(ROUTECAP_OK, routecap_plan_config_init(&config, sizeof config));
    config.samples = 1, config.lengths = &length;
    config.layers = static_cast<uint32_t>(map.size()), config.layer_map = map.data();
    config.layer_experts = experts.data(), config.layer_k = k.data();
    config.layer_min_k = least.data(), config.layer_visit = visit.data();
    config.k = shape.k, config.experts = shape.experts(), config.dtype = ROUTECAP_DTYPE_I32;
    routecap_plan *plan = nullptr;
    SAME_STATUS(ROUTECAP_OK, routecap_plan_create(&config, &plan));
    const routecap_plan_source source{0, routing};
    std::vector<uint8_t> planned(length * shape.cells() * of_cell, 0x77);
    std::vector<uint8_t> same_planned = written(0, length - 1, 0);
    same_planned.resize(planned.size());  // 0 for the last
    const auto missing =
        static_cast<uint64_t>(std::count(same_mask.begin(), same_mask.end(), uint8_t{0}));
    uint64_t lost = 77;
    SAME_STATUS(missing == 0 ? ROUTECAP_OK : ROUTECAP_INCOMPLETE,
                routecap_plan_gather_weights(plan, &source, sizeof source, 1, shape.weights, 0.0f,
                                             planned.data(), planned.size(), &lost));
    SAME(missing, lost);
    if (planned != same_planned) fail("the weights of a plan differ");
    routecap_plan_free(plan);
}

}  // namespace

uint64_t rows(const routecap_routing *routing, const model::Routing &expected,
              const Refused &refused) {
    routecap_view view{};
    view.struct_size = sizeof view;
    SAME_STATUS(ROUTECAP_OK, routecap_routing_view(routing, &view));
    const model::Shape &shape = *expected.shape;
    SAME(shape.cells(), view.layers);
    SAME(shape.k, view.k);
    SAME(shape.experts(), view.experts);
    SAME(shape.dtype(), view.dtype);
    SAME((shape.cells() + 7) / 8, view.validity_bytes);
    SAME(shape.id_space, view.id_space);
    SAME(shape.weights, view.weights_dtype);
    SAME(expected.first, view.first);
    SAME(expected.rows, view.rows);
    if (!refused) SAME(expected.status() == ROUTECAP_OK, view.complete);
    for (size_t l = 0; l < shape.cells(); l++) {
        SAME(shape.layers[l].index, view.layer_map[l]);
        SAME(shape.layers[l].experts, view.layer_experts[l]);
        SAME(shape.layers[l].provenance, view.layer_provenance[l]);
        SAME(shape.layers[l].k, view.layer_k[l]);
        SAME(shape.layers[l].least, view.layer_min_k[l]);
        SAME(shape.layers[l].visit, view.layer_visit[l]);
    }
    uint64_t position = view.first, compared = 0;
    auto row = expected.content.begin();
    for (size_t i = 0; i < view.segment_count; i++) {
        const auto &segment = *reinterpret_cast<const routecap_segment *>(
            reinterpret_cast<const char *>(view.segments) + i * view.segment_size);
        SAME(position, segment.first);
        if (segment.ids != nullptr ? segment.reason != 0
                                   : !model::of_whole_rows(static_cast<uint8_t>(segment.reason)))
            check::fail("a segment %s ids has the reason %d",
                        segment.ids != nullptr ? "with" : "without", segment.reason);
        SAME(0, segment.reserved);
        SAME(shape.weights != 0 && segment.ids != nullptr, segment.weights != nullptr);
        SAME(segment.weights != nullptr, segment.weights_validity != nullptr);
        for (uint64_t r = 0; r < segment.rows; r++, position++) {
            while (row != expected.content.end() && row->first < position) ++row;
            const model::Row *has = row != expected.content.end() && row->first == position
                                        ? row->second.get()
                                        : nullptr;
            for (size_t l = 0; l < shape.cells(); l++) {
                const bool valid = cell_is_valid(view, segment, r, l);
                const bool wanted = has != nullptr && has->valid(l);
                const auto id = [&](size_t c) {
                    return static_cast<int>(
                        static_cast<uint16_t>(id_of_cell(view, segment, r, l, c)));
                };
                if (valid != wanted) {
                    if (!refused || (valid && (has == nullptr || !has->any())))
                        fail("row %" PRIu64 " layer %zu is %s", position, l,
                             valid ? "there and should be missing" : "missing");
                    std::vector<int64_t> ids;
                    for (size_t c = 0; valid && c < shape.k; c++) ids.push_back(id(c));
                    refused(position, l, ids);
                    continue;
                }
                if (!valid) {
                    const int reason = has != nullptr ? has->missing[l] : ROUTECAP_MISSING_ABSENT;
                    const int says =
                        segment.ids == nullptr ? segment.reason
                        : (id(0) >= ROUTECAP_MISSING_ABSENT && id(0) <= std::ssize(kBestFirst))
                            ? id(0)
                            : ROUTECAP_MISSING_UNWRITTEN;
                    if (!refused && says != reason)
                        fail("row %" PRIu64 " layer %zu is missing for reason %d instead of %d",
                             position, l, says, reason);
                    continue;
                }
                compared++;
                if (shape.weights != 0) weights(view, segment, r, l, *has, shape);
                for (size_t c = 0; c < shape.k; c++)
                    if (const int wanted_id = shape.in_memory(has->ids[l * shape.k + c]);
                        id(c) != wanted_id)
                        fail("row %" PRIu64 " layer %zu column %zu is %d instead of %d", position,
                             l, c, id(c), wanted_id);
            }
            if (!refused && has != nullptr && has->any()) {
                const uint64_t tag = segment.tags != nullptr ? segment.tags[r] : segment.tag;
                if (tag != has->tag)
                    fail("row %" PRIu64 " has the tag %" PRIu64 " instead of %" PRIu64, position,
                         tag, has->tag);
            }
        }
    }
    SAME(expected.end(), position);
    return compared;
}

void load(const routecap_capturer *capturer, const model::Shape &shape, const model::Load &expected,
          bool lacks) {
    const size_t layers = shape.cells(), experts = shape.experts();
    std::vector<uint64_t> counts(ROUTECAP_LOAD_PHASES * layers * experts, 77);
    routecap_load got{};
    got.struct_size = sizeof got;
    SAME_STATUS(ROUTECAP_OK, routecap_capturer_load(capturer, &got, counts.data(), counts.size()));
    SAME(layers, got.layers);
    SAME(experts, got.experts);
    const uint64_t rows[] = {got.rows_prefill, got.rows_decode};
    SAME(expected.steps, got.steps);
    SAME(expected.first_step, got.first_step);
    SAME(expected.last_step, got.last_step);
    for (int phase = 0; phase < ROUTECAP_LOAD_PHASES; phase++) {
        if (lacks ? rows[phase] > expected.rows[phase] : rows[phase] != expected.rows[phase])
            fail("phase %d: the load is of %llu rows of %llu", phase,
                 static_cast<unsigned long long>(rows[phase]),
                 static_cast<unsigned long long>(expected.rows[phase]));
        for (size_t l = 0; l < layers; l++)
            for (size_t e = 0; e < experts; e++) {
                const size_t at = (static_cast<size_t>(phase) * layers + l) * experts + e;
                const uint64_t n = expected.counts.empty() ? 0 : expected.counts[at],
                               is = counts[at];
                if (lacks ? is > n : is != n)
                    fail(
                        "phase %d, layer %zu: expert %zu was chosen %llu times, and is counted %llu times",
                        phase, l, e, static_cast<unsigned long long>(n),
                        static_cast<unsigned long long>(is));
            }
    }
}

std::vector<uint8_t> serialized(const routecap_routing *routing) {
    uint64_t needed = 0;
    SAME_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                routecap_routing_serialize(routing, nullptr, 0, &needed));
    std::vector<uint8_t> data(needed);
    SAME_STATUS(ROUTECAP_OK,
                routecap_routing_serialize(routing, data.data(), data.size(), nullptr));
    return data;
}

std::vector<uint8_t> spliced(const routecap_splice &splice, const routecap_piece *pieces,
                             const std::vector<uint8_t> &header, const std::vector<uint8_t> &head,
                             const std::vector<uint8_t> &tail) {
    std::vector<uint8_t> data;
    for (uint32_t i = 0; i < splice.pieces; i++) {
        const routecap_piece &piece = pieces[i];
        const std::vector<uint8_t> *from[] = {&header, &head, &tail};
        for (uint64_t n = 0; n < piece.bytes; n++)
            data.push_back(from[piece.source]->at(piece.offset + n));
    }
    SAME(splice.bytes, data.size());
    return data;
}

void routing(const routecap_routing *routing, const model::Routing &expected) {
    if (expected.pending != nullptr) {
        SAME_STATUS(ROUTECAP_PENDING, routecap_routing_poll(routing));
        routecap_view view{};
        view.struct_size = sizeof view;
        SAME_STATUS(ROUTECAP_ERR_NOT_READY, routecap_routing_view(routing, &view));
        return;
    }
    SAME_STATUS(expected.status(), routecap_routing_poll(routing));
    rows(routing, expected);
    std::vector<routecap_missing> blocks, got(8, {77, 77, 77, 77, 77, 77});
    const routecap_coverage c = expected.coverage(expected.end(), blocks);
    routecap_coverage covered{};
    covered.struct_size = sizeof covered;
    SAME_STATUS(
        c.cells_missing == 0 ? ROUTECAP_OK : ROUTECAP_INCOMPLETE,
        routecap_routing_coverage(routing, &covered, got.data(), sizeof got[0], got.size()));
    coverage(c, blocks, covered, got);
    if (expected.shape->weights != 0) copied_weights(routing, expected);
    const std::vector<uint8_t> data = serialized(routing), same = expected.serialize();
    if (data != same) {
        size_t at = 0;
        while (at < std::min(data.size(), same.size()) && data[at] == same[at]) at++;
        fail("serialised in %zu bytes instead of %zu; the first difference is at %zu", data.size(),
             same.size(), at);
    }
}

void copy(const Copy &copy, int32_t read, const model::Routing &whole,
          const std::function<int32_t(const routecap_copy_options *, void *, size_t, uint8_t *,
                                      size_t, uint64_t *)> &call) {
    constexpr uint8_t kGuard = 0x4d;
    constexpr size_t kBorder = 32;
    const routecap_copy_options &o = copy.options;
    // Bytes of a buffer that a refused call will not look at.
    constexpr uint64_t kUnknown = 64;
    model::Copied copied;
    if (read >= 0) copied = model::copied(o, copy.mask, whole);
    const uint64_t needed = copied.needed, mask_needed = copied.mask_needed;
    const bool small = (needed > 0 && (copy.asks || copy.dst_less > 0)) ||
                       (copy.mask && mask_needed > 0 && copy.mask_less > 0);
    const int32_t expected = read < 0             ? read
                             : copied.refusal < 0 ? copied.refusal
                             : small              ? ROUTECAP_ERR_BUFFER_TOO_SMALL
                                                  : copied.status(o.flags);

    const auto room = [](uint64_t bytes, int64_t less) {
        return bytes == UINT64_MAX
                   ? kUnknown
                   : bytes - std::min(bytes, static_cast<uint64_t>(std::max(less, int64_t{0})));
    };
    const size_t dst_bytes = copy.asks ? 0 : room(needed, copy.dst_less),
                 mask_bytes = room(mask_needed, copy.mask_less);
    std::vector<uint8_t> dst(dst_bytes + 2 * kBorder, kGuard),
        mask(mask_bytes + 2 * kBorder, kGuard);
    uint64_t says = 77;
    const int32_t got =
        call(&o, copy.asks ? nullptr : dst.data() + kBorder, dst_bytes,
             copy.mask ? mask.data() + kBorder : nullptr, copy.mask ? mask_bytes : 0, &says);
    status("copy", expected, got);
    if (expected >= 0 || expected == ROUTECAP_ERR_BUFFER_TOO_SMALL) number("needed", needed, says);

    std::vector<uint8_t> same(dst.size(), kGuard), same_mask(mask.size(), kGuard);
    if (expected >= 0)
        copied.write(o, same.data() + kBorder, copy.mask ? same_mask.data() + kBorder : nullptr);
    if (dst != same) fail("a copy of %" PRIu64 " rows differs", copied.routing.rows);
    if (mask != same_mask) fail("the mask of %" PRIu64 " rows differs", copied.routing.rows);
}

}  // namespace check
