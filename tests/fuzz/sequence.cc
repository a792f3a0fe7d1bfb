// Conversations drawn from the input: calls that extend, repeat, diverge or come late, forks and
// cuts, beside a model that puts rows together one by one as sequence.h says it. And the bytes of
// sequences, damaged and of any origin.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include "../support/crc32c.h"
#include "bytes.h"
#include "check.h"
#include "model.h"
#include "sequence_model.h"

namespace {

using fuzz::Bytes;
using Data = std::vector<uint8_t>;
using Call = model::Append;
using Model = model::Sequence;
using Tokens = model::Tokens;

struct Free {
    void operator()(routecap_sequence *sequence) const { routecap_sequence_free(sequence); }
    void operator()(routecap_routing *routing) const { routecap_routing_free(routing); }
};
using SequencePtr = std::unique_ptr<routecap_sequence, Free>;
using RoutingPtr = std::unique_ptr<routecap_routing, Free>;

// ---- What is fed

model::ShapePtr draw_shape(Bytes &in) {
    auto shape = std::make_shared<model::Shape>();
    const uint64_t columns = in.number(1);
    shape->k = static_cast<uint32_t>(1 + columns % 3);
    const bool rules = columns / 3 % 3 == 2;  // whether layers have their own k, and visits
    constexpr int32_t kWeights[] = {
        0, 0, 0, 0, 0, 0, ROUTECAP_DTYPE_F32, ROUTECAP_DTYPE_F16, ROUTECAP_DTYPE_BF16};
    shape->weights = kWeights[columns / 9 % 9];
    for (uint64_t l = in.pick({1u, 2u, 8u, 9u}); l > 0; l--) {
        shape->layers.push_back({static_cast<int32_t>(shape->layers.size() * 2),
                                 in.pick({8u, 256u, 300u}), 0, shape->k, shape->k});
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
    return shape;
}

// Rows that a call may bring: by the token at each position, so that calls of equal tokens often
// agree, with holes of every kind.
std::shared_ptr<model::Routing> draw_routing(Bytes &in, const model::ShapePtr &shape,
                                             uint64_t first, uint64_t end) {
    auto routing = std::make_shared<model::Routing>(
        model::Routing{shape, first, end > first ? end - first : 0});
    const uint64_t drift = in.below(4) == 3, holes = in.below(3), tags = in.below(3);
    for (uint64_t p = first; p < end; p++) {
        const uint64_t kind = holes == 0 ? 0 : in.number(1);
        if (kind % 8 == 7) {
            constexpr uint8_t kReasons[] = {ROUTECAP_MISSING_LOST, ROUTECAP_MISSING_TAKEN,
                                            ROUTECAP_MISSING_REFUSED};
            if (kind / 8 % 4 < 3)
                routing->content.emplace(p, model::empty_row(*shape, kReasons[kind / 8 % 4]));
            continue;
        }
        auto row = std::make_shared<model::Row>();
        row->tag = tags == 0 ? 7 : p / 3 % (1 + tags);
        for (size_t l = 0; l < shape->cells(); l++) {
            const bool missing = kind % 8 == 6 && (kind / 8 + l) % 3 != 0;
            row->missing.push_back(missing ? static_cast<uint8_t>(2 + (kind / 64 + l) % 3) : 0);
            const model::Layer &layer = shape->layers[l];
            const uint64_t used = layer.k - (p + drift + l) % (layer.k - layer.least + 1);
            for (uint32_t c = 0; c < shape->k; c++)
                row->ids.push_back(static_cast<uint16_t>(missing    ? (c == 0 ? row->missing[l] : 0)
                                                         : c < used ? (p + drift + l + c) % 8
                                                                    : model::kUnused));
            std::vector<uint32_t> bits;  // which tell by whom the row was drawn
            for (uint32_t c = 0; c < used; c++)
                bits.push_back((shape->weights == ROUTECAP_DTYPE_F32 ? 0x3f800000 : 0x3c00) +
                               static_cast<uint32_t>(first % 16 << 4 | drift << 3 | c));
            if (const auto weights =
                    shape->weigh(used, (kind / 8 + l + drift) % 4 == 3 ? nullptr : &bits);
                !missing && weights)
                row->weights[l] = *weights;
        }
        routing->content.emplace(p, std::move(row));
    }
    return routing;
}

RoutingPtr make(const model::Routing &routing, bool slice) {
    const Data bytes = routing.serialize();
    routecap_routing *made = nullptr;
    SAME_STATUS(routing.status(), routecap_routing_deserialize(bytes.data(), bytes.size(), 0,
                                                               nullptr, nullptr, &made));
    RoutingPtr whole(made);
    if (!slice) return whole;
    // Of pieces, so that pages are shared and begin anywhere.
    SAME_STATUS(ROUTECAP_OK,
                routecap_routing_slice(whole.get(), routing.first, routing.rows, &made));
    return RoutingPtr(made);
}

Call draw_call(Bytes &in, const Model &m) {
    Call call;
    const uint64_t length = m.tokens.size();
    const uint64_t whole = in.below(4);
    call.start = whole > 1 ? 0 : whole == 1 ? length : in.below(length + 2);
    const uint64_t most = length > 80 ? 6 : 90;
    uint64_t end = in.below(4) == 0 ? in.below(length + 1) : length + in.below(most);
    if (end < call.start) end = call.start;
    for (uint64_t p = call.start; p < end; p++)
        call.tokens.push_back(p < length ? m.tokens[p] : static_cast<int32_t>(in.below(3)));
    if (in.below(4) == 3 && !call.tokens.empty()) call.tokens[in.below(call.tokens.size())] += 1;
    if (in.below(8) != 7) {
        const uint64_t first = in.below(3) != 0 ? 0 : in.below(end + 2);
        call.routing =
            draw_routing(in, m.shape, first, std::max<uint64_t>(end, 2) + 1 - in.below(4));
    }
    routecap_append_options &o = call.options;
    o.struct_size = sizeof o;
    o.policy = in.pick({ROUTECAP_APPEND_KEEP, ROUTECAP_APPEND_KEEP, ROUTECAP_APPEND_NEWEST,
                        ROUTECAP_APPEND_EQUAL});
    o.prompt_tokens = in.below(3) == 2 ? in.below(end + 2) : 0;
    o.call = in.below(4) == 3 ? 1 + in.below(3) : 0;
    o.tag = in.below(2), o.origin = static_cast<uint32_t>(in.below(2));
    return call;
}

// ---- Comparing

void same_report(const routecap_append_report &expected, const routecap_append_report &got) {
    SAME(expected.call, got.call);
    SAME(expected.tokens_common, got.tokens_common);
    SAME(expected.tokens_cut, got.tokens_cut);
    SAME(expected.rows_cut, got.rows_cut);
    SAME(expected.rows_overlap, got.rows_overlap);
    SAME(expected.rows_differed, got.rows_differed);
    SAME(expected.first_differed, got.first_differed);
    SAME(expected.rows_taken, got.rows_taken);
    SAME(expected.rows_boundary, got.rows_boundary);
    SAME(expected.rows_filled, got.rows_filled);
    SAME(expected.rows_replaced, got.rows_replaced);
    SAME(expected.rows_beyond, got.rows_beyond);
}

RoutingPtr routing_of(const routecap_sequence *sequence, int32_t expected) {
    routecap_routing *routing = nullptr;
    SAME_STATUS(expected, routecap_sequence_routing(sequence, &routing));
    return RoutingPtr(routing);
}

void same(const Model &m, const routecap_sequence *sequence) {
    const model::Routing expected = m.routing();
    check::routing(routing_of(sequence, expected.status()).get(), expected);
    const auto spans = m.spans();
    std::vector<routecap_sequence_span> got(spans.size() + 1);
    uint64_t count = 0;
    SAME_STATUS(ROUTECAP_OK,
                routecap_sequence_spans(sequence, got.data(), sizeof got[0], got.size(), &count));
    SAME(spans.size(), count);
    SAME(0,
         spans.empty() ? 0 : std::memcmp(spans.data(), got.data(), spans.size() * sizeof spans[0]));
    Tokens tokens(m.tokens.size());
    SAME_STATUS(m.known ? ROUTECAP_OK : ROUTECAP_ERR_STATE,
                routecap_sequence_tokens(sequence, 0, tokens.data(), tokens.size(), &count));
    if (m.known && tokens != m.tokens) check::fail("the tokens are others");
    routecap_append_report sums{};
    sums.struct_size = sizeof sums;
    SAME_STATUS(ROUTECAP_OK, routecap_sequence_report(sequence, &sums));
    same_report(m.sums, sums);
    SAME(m.tokens.size(), sums.tokens);
    SAME(m.missing(), sums.rows_missing);
}

Data serialized(const routecap_sequence *sequence, uint32_t flags) {
    uint64_t needed = 0;
    SAME_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                routecap_sequence_serialize(sequence, flags, nullptr, 0, &needed));
    Data bytes(needed, 0xee);
    SAME_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                routecap_sequence_serialize(sequence, flags, bytes.data(), needed - 1, nullptr));
    SAME_STATUS(ROUTECAP_OK,
                routecap_sequence_serialize(sequence, flags, bytes.data(), needed, nullptr));
    return bytes;
}

SequencePtr deserialized(const Data &bytes, int32_t &status) {
    routecap_sequence *sequence = nullptr;
    const Data exact(bytes.begin(), bytes.end());
    status = routecap_sequence_deserialize(exact.data(), exact.size(), 0, &sequence);
    if ((sequence != nullptr) != (status == ROUTECAP_OK))
        check::fail("deserialize returned %s", routecap_status_name(status));
    return SequencePtr(sequence);
}

// A sequence comes back from its bytes; which are its own again.
void through_bytes(Model &m, SequencePtr &sequence, uint32_t flags) {
    const Data bytes = serialized(sequence.get(), flags);
    int32_t status = 0;
    SequencePtr made = deserialized(bytes, status);
    SAME_STATUS(ROUTECAP_OK, status);
    if (serialized(made.get(), flags) != bytes) check::fail("other bytes than before");
    const uint64_t call = m.sums.call;
    m.sums = Model().sums;
    m.sums.call = call;
    m.known = flags != 0 || m.tokens.empty();
    sequence = std::move(made);
}

// Damaged bytes are refused, or are those of some sequence.
void damaged(Bytes &in, Data bytes) {
    for (uint64_t n = 1 + in.below(3); n > 0 && !bytes.empty(); n--) {
        const size_t at = in.below(std::min<size_t>(bytes.size(), in.below(2) == 0 ? 256 : 65536));
        switch (in.below(4)) {
            case 0: bytes[at] = static_cast<uint8_t>(in.number(1)); break;
            case 1: bytes[at] = static_cast<uint8_t>(bytes[at] + 1); break;
            case 2: bytes.resize(at + 1); break;
            default: bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at), 0); break;
        }
    }
    // What they say is looked at, too: the rows begin at the magic of a routing.
    const std::string_view magic = "RCAPROWS";
    const auto rows = std::search(bytes.begin(), bytes.end(), magic.begin(), magic.end());
    if (rows - bytes.begin() >= 64 && in.below(4) > 0) {
        const uint32_t check = crc32c(bytes, static_cast<size_t>(rows - bytes.begin()), 48);
        std::memcpy(bytes.data() + 48, &check, 4);
    }
    int32_t status = 0;
    const SequencePtr made = deserialized(bytes, status);
    if (status < 0) {
        SAME_STATUS(ROUTECAP_ERR_FORMAT, status);
        return;
    }
    const Data again = serialized(made.get(), 0);
    const SequencePtr other = deserialized(again, status);
    SAME_STATUS(ROUTECAP_OK, status);
    if (serialized(other.get(), 0) != again) check::fail("other bytes than before");
    // Its spans name the rows that are there.
    routecap_routing *routing = nullptr;
    if (routecap_sequence_routing(made.get(), &routing) < 0) check::fail("no routing");
    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    if (routecap_routing_coverage(routing, &coverage, nullptr, 0, 0) < 0)
        check::fail("no coverage");
    routecap_routing_free(routing);
    uint64_t count = 0, named = 0;
    SAME_STATUS(ROUTECAP_OK, routecap_sequence_spans(made.get(), nullptr,
                                                     sizeof(routecap_sequence_span), 0, &count));
    std::vector<routecap_sequence_span> spans(count);
    SAME_STATUS(ROUTECAP_OK,
                routecap_sequence_spans(made.get(), spans.data(), sizeof spans[0], count, &count));
    for (const routecap_sequence_span &span : spans) named += span.rows;
    SAME(coverage.rows - coverage.rows_empty, named);
}

struct Conversation {
    Model m;
    SequencePtr sequence;
    // What was given out before, and must not change.
    std::optional<model::Routing> before;
    RoutingPtr given;

    void hold() {
        before = m.routing();
        given = routing_of(sequence.get(), before->status());
    }
    void check_held() const {
        if (given != nullptr) check::routing(given.get(), *before);
    }
};

Conversation conversation(const model::ShapePtr &shape) {
    Conversation c;
    c.m.shape = shape;
    std::vector<int32_t> map;
    std::vector<uint32_t> experts, k, least, visit;
    for (const model::Layer &layer : shape->layers)
        map.push_back(layer.index), experts.push_back(layer.experts), k.push_back(layer.k),
            least.push_back(layer.least), visit.push_back(layer.visit);
    routecap_sequence_config config{};
    config.struct_size = sizeof config;
    config.layers = static_cast<uint32_t>(map.size()), config.k = shape->k;
    config.weights_dtype = shape->weights;
    config.layer_map = map.data(), config.layer_experts = experts.data();
    config.layer_k = k.data(), config.layer_min_k = least.data(), config.layer_visit = visit.data();
    routecap_sequence *sequence = nullptr;
    SAME_STATUS(ROUTECAP_OK, routecap_sequence_create(&config, &sequence));
    c.sequence.reset(sequence);
    return c;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Bytes in(data, size);
    if (in.below(16) == 15) {  // bytes of any origin, behind the first of a sequence
        Data bytes = {'R', 'O', 'U', 'T', 'E', 'S', 'E', 'Q', 1, 0, 0, 0};
        while (!in.empty()) bytes.push_back(static_cast<uint8_t>(in.number(1)));
        int32_t status = 0;
        deserialized(bytes, status);
        if (status < 0) SAME_STATUS(ROUTECAP_ERR_FORMAT, status);
        return 0;
    }
    const model::ShapePtr shape = draw_shape(in);
    std::vector<Conversation> all;
    all.push_back(conversation(shape));
    for (int steps = 0; steps < 24 && !in.empty(); steps++) {
        const size_t which = in.below(all.size());
        Conversation &c = all[which];
        const uint64_t length = c.m.tokens.size();
        switch (in.below(12)) {
            case 8: {
                const uint64_t tokens = in.below(length + 2);
                const bool may = c.m.known || tokens >= length || tokens % 64 == 0;
                check::trace("truncate %llu\n", static_cast<unsigned long long>(tokens));
                SAME_STATUS(may ? ROUTECAP_OK : ROUTECAP_ERR_STATE,
                            routecap_sequence_truncate(c.sequence.get(), tokens));
                if (may) c.m.cut(tokens);
                break;
            }
            case 9: {
                if (all.size() > 3) break;
                const uint64_t tokens = in.below(4) == 0 ? ROUTECAP_ROWS_ALL : in.below(length + 2);
                const int32_t expected =
                    tokens != ROUTECAP_ROWS_ALL && tokens > length      ? ROUTECAP_ERR_OUT_OF_RANGE
                    : c.m.known || tokens >= length || tokens % 64 == 0 ? ROUTECAP_OK
                                                                        : ROUTECAP_ERR_STATE;
                routecap_sequence *child = nullptr;
                SAME_STATUS(expected, routecap_sequence_fork(c.sequence.get(), tokens, &child));
                if (expected < 0) break;
                Conversation fork;
                fork.m = c.m;
                fork.m.cut(tokens);
                fork.sequence.reset(child);
                all.push_back(std::move(fork));
                break;
            }
            case 10: through_bytes(c.m, c.sequence, c.m.known ? in.below(4) != 3 : 0); break;
            case 11:
                if (in.below(2) == 0)
                    c.hold();
                else
                    damaged(in, serialized(c.sequence.get(), c.m.known && in.below(2) == 0));
                break;
            default: {
                const Call call = draw_call(in, c.m);
                routecap_append_report expected{}, got{};
                got.struct_size = sizeof got;
                const int32_t status = append(c.m, call, expected);
                const RoutingPtr routing =
                    call.routing ? make(*call.routing, in.below(2) == 1) : nullptr;
                check::trace("append %zu tokens at %llu\n", call.tokens.size(),
                             static_cast<unsigned long long>(call.start));
                SAME_STATUS(status, routecap_sequence_append(c.sequence.get(), call.tokens.data(),
                                                             call.start, call.tokens.size(),
                                                             routing.get(), &call.options, &got));
                if (status < 0) break;
                same_report(expected, got);
                SAME(expected.tokens, got.tokens);
                SAME(expected.rows_missing, got.rows_missing);
                break;
            }
        }
        same(all[which].m, all[which].sequence.get());
    }
    for (const Conversation &c : all) {
        same(c.m, c.sequence.get());
        c.check_held();
    }
    return 0;
}
