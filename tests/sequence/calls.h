// Calls of an engine, as sequences get them: tokens, and rows that depend on every token before.
#pragma once

#include <rig.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace calls {

using namespace rig;
using TokenIds = std::vector<int32_t>;

constexpr Shape kShape{.layers = 3, .k = 2, .experts = 200};

inline TokenIds operator+(TokenIds a, const TokenIds &b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

// What an engine computes for tokens [first, end) of a sequence. Each pass may differ from others
// in its last bits, and then routes otherwise.
inline Rows computed(const TokenIds &tokens, uint64_t first, uint64_t end, uint64_t pass = 0) {
    Rows rows;
    uint64_t seed = 7;
    for (uint64_t p = 0; p < end; p++) {
        seed = seed * 31 + static_cast<uint64_t>(tokens[p]);
        if (p >= first) rows.push_back(routed_row(kShape, seed + 1000003 * pass, p));
    }
    return rows;
}
// All rows of a call: S tokens have S-1.
inline Rows computed(const TokenIds &tokens, uint64_t pass = 0) {
    return computed(tokens, 0, tokens.size() - 1, pass);
}

// The rows as a routing of one array.
inline RoutingPtr routing_of(const Rows &rows, uint64_t first = 0, uint64_t tag = 0) {
    std::vector<uint8_t> ids, validity;
    for (const Row &row : rows) {
        uint8_t valid = 0;
        for (uint32_t l = 0; l < kShape.layers; l++) {
            valid = static_cast<uint8_t>(valid | (row[l] ? 1u << l : 0u));
            for (uint32_t c = 0; c < kShape.k; c++)
                ids.push_back(row[l]   ? static_cast<uint8_t>((*row[l])[c])
                              : c == 0 ? uint8_t{ROUTECAP_MISSING_ABSENT}
                                       : uint8_t{0});
        }
        validity.push_back(valid);
    }
    const bool complete =
        std::all_of(validity.begin(), validity.end(), [](uint8_t v) { return v == 7; });
    const routecap_segment segment{.first = first,
                                   .rows = rows.size(),
                                   .ids = ids.data(),
                                   .validity = complete ? nullptr : validity.data(),
                                   .tag = tag};
    const routecap_view view{.struct_size = sizeof view,
                             .dtype = ROUTECAP_DTYPE_U8,
                             .layers = kShape.layers,
                             .k = kShape.k,
                             .experts = kShape.experts,
                             .first = first,
                             .rows = rows.size(),
                             .segments = &segment,
                             .segment_size = sizeof segment,
                             .segment_count = rows.empty() ? size_t{0} : 1};
    routecap_routing *routing = nullptr;
    EXPECT_GE(routecap_routing_import(&view, 0, nullptr, nullptr, &routing), 0)
        << routecap_last_error();
    return RoutingPtr(routing);
}

struct SequenceFree {
    void operator()(routecap_sequence *sequence) const { routecap_sequence_free(sequence); }
};

class Sequence {
public:
    explicit Sequence(uint64_t budget_bytes = 0, const Shape &shape = kShape) {
        const routecap_sequence_config config{.struct_size = sizeof config,
                                              .layers = shape.layers,
                                              .k = shape.k,
                                              .experts = shape.experts,
                                              .budget_bytes = budget_bytes};
        routecap_sequence *made = nullptr;
        EXPECT_STATUS(ROUTECAP_OK, routecap_sequence_create(&config, &made));
        sequence_.reset(made);
    }
    explicit Sequence(routecap_sequence *made) : sequence_(made) {}

    operator routecap_sequence *() const { return sequence_.get(); }

    // TokenIds from `start` on.
    int32_t append(const TokenIds &tokens, uint64_t start, const RoutingPtr &routing,
                   routecap_append_options options = {}) {
        options.struct_size = sizeof options;
        report = {.struct_size = sizeof report};
        return routecap_sequence_append(sequence_.get(), tokens.data(), start, tokens.size(),
                                        routing.get(), &options, &report);
    }
    // A call with all its tokens.
    int32_t append(const TokenIds &tokens, const RoutingPtr &routing,
                   const routecap_append_options &options = {}) {
        return append(tokens, 0, routing, options);
    }
    Sequence fork(uint64_t tokens = ROUTECAP_ROWS_ALL) const {
        routecap_sequence *child = nullptr;
        EXPECT_STATUS(ROUTECAP_OK, routecap_sequence_fork(sequence_.get(), tokens, &child));
        return Sequence(child);
    }
    RoutingPtr routing() const {
        routecap_routing *routing = nullptr;
        EXPECT_GE(routecap_sequence_routing(sequence_.get(), &routing), 0);
        return RoutingPtr(routing);
    }
    Rows rows() const { return contents(routing().get(), kShape); }
    std::vector<routecap_sequence_span> spans() const {
        uint64_t count = 0;
        EXPECT_STATUS(ROUTECAP_OK, routecap_sequence_spans(sequence_.get(), nullptr, 0, 0, &count));
        std::vector<routecap_sequence_span> all(count);
        EXPECT_STATUS(ROUTECAP_OK, routecap_sequence_spans(sequence_.get(), all.data(),
                                                           sizeof all[0], all.size(), &count));
        return all;
    }
    routecap_append_report sums() const {
        routecap_append_report sums{.struct_size = sizeof sums};
        EXPECT_STATUS(ROUTECAP_OK, routecap_sequence_report(sequence_.get(), &sums));
        return sums;
    }
    std::vector<uint8_t> bytes(uint32_t flags) const {
        uint64_t needed = 0;
        EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                      routecap_sequence_serialize(sequence_.get(), flags, nullptr, 0, &needed));
        std::vector<uint8_t> bytes(needed);
        EXPECT_STATUS(ROUTECAP_OK, routecap_sequence_serialize(sequence_.get(), flags, bytes.data(),
                                                               needed, nullptr));
        return bytes;
    }

    routecap_append_report report{};  // of the last append

private:
    std::unique_ptr<routecap_sequence, SequenceFree> sequence_;
};

}  // namespace calls
