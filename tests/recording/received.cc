// routecap_received_read on every backend, the whole way: tokens are dispatched to ranks, what each
// received is read, the ranks' tables are merged and recorded, and the routing of what was executed
// is held against the routing of what was routed. The wire format at large is simulated in
// core/received.cc.
#include <rig.h>

#include <algorithm>
#include <random>

using namespace rig;

namespace {

constexpr uint32_t kRanks = 4, kExperts = 16, kK = 3, kLocal = kExperts / kRanks, kAlignment = 4;

// What one rank receives of the tokens of all, each [token][column] global ids.
struct Received {
    std::vector<int32_t> metadata, ends;
    std::vector<int64_t> ids;       // local ones, or -1
    std::vector<int64_t> expected;  // global_ids
    std::vector<int32_t> executed;  // and the table
    uint32_t rows = 0, expanded_rows = 0;
    int32_t live = 0;
};

Received dispatch(const std::vector<std::vector<std::vector<int64_t>>> &tokens, uint32_t rank,
                  uint32_t m, bool expanded, std::mt19937_64 &random) {
    Received r;
    std::vector<std::pair<int32_t, const std::vector<int64_t> *>> received;
    for (uint32_t source = 0; source < kRanks; source++) {
        const size_t block = received.size();
        for (uint32_t t = 0; t < tokens[source].size(); t++)
            if (std::any_of(tokens[source][t].begin(), tokens[source][t].end(),
                            [&](int64_t id) { return id / kLocal == rank; }))
                received.push_back({static_cast<int32_t>(source * m + t), &tokens[source][t]});
        std::shuffle(received.begin() + static_cast<ptrdiff_t>(block), received.end(), random);
    }
    r.live = static_cast<int32_t>(received.size());
    // decode: the worst case, with a tail of anything.
    r.rows = expanded ? static_cast<uint32_t>(received.size()) : kRanks * m;
    r.executed.assign(size_t{kRanks} * m * kK, -1);
    r.ends.assign(kLocal, 0);
    std::vector<std::vector<std::pair<size_t, uint32_t>>> of_expert(kLocal);
    for (size_t row = 0; row < r.rows; row++) {
        const bool live = row < received.size();
        r.metadata.push_back(live ? received[row].first : static_cast<int32_t>(random() % 5));
        r.metadata.push_back(static_cast<int32_t>(random()));
        for (uint32_t c = 0; c < kK; c++) {
            const int64_t id = live ? (*received[row].second)[c] : 0;
            const bool mine = live && id / kLocal == rank;
            r.metadata.push_back(-1);
            r.ids.push_back(mine   ? id % kLocal
                            : live ? -1
                                   : static_cast<int64_t>(random() % kLocal));
            if (!expanded) r.expected.push_back(mine ? id : -1);
            if (!mine) continue;
            r.executed[static_cast<size_t>(received[row].first) * kK + c] =
                static_cast<int32_t>(id);
            of_expert[static_cast<size_t>(id % kLocal)].push_back({row, c});
        }
    }
    if (!expanded) return r;
    r.ids.clear();
    uint32_t at = 0;
    for (uint32_t e = 0; e < kLocal; e++) {
        for (auto [row, c] : of_expert[e])
            r.metadata[row * (2 + kK) + 2 + c] = static_cast<int32_t>(at++);
        r.ends[e] = static_cast<int32_t>(at);
        at = (at + kAlignment - 1) / kAlignment * kAlignment;
        r.expected.resize(at, static_cast<int64_t>(rank * kLocal + e));
    }
    r.expanded_rows = at;
    return r;
}

// Has the library read it; returns its table.
std::vector<int32_t> read(Rig &rig, const Received &r, uint32_t rank, uint32_t m, bool expanded) {
    const size_t ids = expanded ? r.expanded_rows : size_t{r.rows} * kK;
    auto *global = static_cast<int64_t *>(rig.device().allocate(ids * 8 + 8, 0x5a));
    auto *executed = static_cast<int32_t *>(rig.device().allocate(r.executed.size() * 4 + 8, 0x5a));
    auto *ignored = static_cast<uint64_t *>(rig.device().allocate(8, 0));
    rig.forward([&] {
        const auto upload = [&](const auto &v) {
            return rig.device().upload(v.data(), v.size() * sizeof v[0]);
        };
        routecap_received received{};
        received.struct_size = sizeof received;
        received.flags = expanded ? ROUTECAP_RECEIVED_EXPANDED : 0;
        received.ranks = kRanks;
        received.rank = rank;
        received.tokens_per_rank = m;
        received.rows = r.rows;
        received.live_rows = static_cast<const int32_t *>(rig.device().upload(&r.live, 4));
        received.metadata = static_cast<const int32_t *>(upload(r.metadata));
        received.ids = expanded ? nullptr : upload(r.ids);
        received.expert_ends = expanded ? static_cast<const int32_t *>(upload(r.ends)) : nullptr;
        received.expert_alignment = expanded ? kAlignment : 0;
        received.expanded_rows = r.expanded_rows;
        received.dtype = ROUTECAP_DTYPE_I64;
        received.global_ids = global;
        received.executed = executed;
        received.ignored = ignored;
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_received_read(rig.capturer(), 0, &received, rig.stream()));
    });
    std::vector<int64_t> globals(ids + 1);
    std::vector<int32_t> table(r.executed.size() + 2);
    uint64_t count = 0;
    rig.device().read(globals.data(), global, globals.size() * 8);
    rig.device().read(table.data(), executed, table.size() * 4);
    rig.device().read(&count, ignored, 8);
    EXPECT_EQ(globals.back(), 0x5a5a5a5a5a5a5a5a);
    EXPECT_EQ(table.back(), 0x5a5a5a5a);
    EXPECT_EQ(table[table.size() - 2], 0x5a5a5a5a);
    globals.pop_back();
    table.resize(r.executed.size());
    EXPECT_EQ(globals, r.expected);
    EXPECT_EQ(table, r.executed);
    EXPECT_EQ(count, 0u);
    return table;
}

}  // namespace

TEST(Received, what_was_executed_is_what_was_routed) {
    std::mt19937_64 random(11);
    const Shape shape{.layers = 1, .k = kK, .experts = kExperts, .rows = 16};
    Rig routed_by({.shape = shape}), executed_by({.shape = shape});
    for (bool expanded : {false, true})
        for (uint32_t m : {4u, 16u, 8u}) {
            SCOPED_TRACE(testing::Message() << "expanded " << expanded << " m " << m);
            std::vector<std::vector<std::vector<int64_t>>> tokens(kRanks);
            for (uint32_t rank = 0; rank < kRanks; rank++)
                for (uint64_t t = 0; t < (rank == 2 ? 0 : m - rank % 2); t++)
                    tokens[rank].push_back(routed(shape, rank + 10 * m, t, 0));
            std::vector<std::vector<int32_t>> tables;
            for (uint32_t rank = 0; rank < kRanks; rank++)
                tables.push_back(read(routed_by, dispatch(tokens, rank, m, expanded, random), rank,
                                      m, expanded));
            std::vector<const int32_t *> all;
            for (const auto &table : tables) all.push_back(table.data());
            std::vector<int32_t> merged(tables[0].size());
            ASSERT_STATUS(ROUTECAP_OK, routecap_received_merge(all.data(), all.size(),
                                                               merged.size(), merged.data()));

            // One rank's tokens, as its router chose and as the ranks together executed.
            const uint32_t rank = 1, count = static_cast<uint32_t>(tokens[rank].size());
            const auto routing_of = [&](Rig &rig, auto record) {
                const routecap_request r = rig.open();
                rig.forward([&] {
                    EXPECT_STATUS(ROUTECAP_OK, rig.begin(count));
                    record();
                    EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
                });
                rig.issue({Rig::span(r, 0, 0, count)});
                RoutingPtr routing(rig.finish(r, count));
                EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(routing.get(), -1));
                return routing;
            };
            const RoutingPtr wanted = routing_of(
                routed_by, [&] { EXPECT_STATUS(ROUTECAP_OK, routed_by.record(0, tokens[rank])); });
            for (bool wrong : {false, true}) {
                if (wrong)
                    merged[(rank * m + count - 1) * kK] =
                        static_cast<int32_t>((merged[(rank * m + count - 1) * kK] + 1) % kExperts);
                const RoutingPtr done = routing_of(executed_by, [&] {
                    routecap_source source{};
                    source.struct_size = sizeof source;
                    source.dtype = ROUTECAP_DTYPE_I32;
                    source.ids = merged.data() + rank * m * kK;
                    source.rows = count;
                    EXPECT_STATUS(ROUTECAP_OK, executed_by.record(0, source));
                });
                const routecap_routing *both[] = {wanted.get(), done.get()};
                routecap_routing *united = nullptr;
                const int32_t status = routecap_routing_merge(both, 2, 0, &united);
                routecap_routing_free(united);
                EXPECT_STATUS(wrong ? ROUTECAP_ERR_CONFLICT : ROUTECAP_OK, status);
                if (wrong) break;
            }
        }
}

TEST(Received, refusals) {
    Rig rig({.shape = {.layers = 1, .k = kK, .experts = kExperts, .rows = 8}});
    auto *memory = static_cast<int32_t *>(rig.device().allocate(4096));
    const auto read = [&](auto change, uint32_t layer = 0) {
        routecap_received r{};
        r.struct_size = sizeof r;
        r.ranks = kRanks;
        r.tokens_per_rank = 4;
        r.rows = 2;
        r.metadata = memory;
        r.ids = memory;
        r.dtype = ROUTECAP_DTYPE_I32;
        r.executed = memory + 256;
        change(r);
        return routecap_received_read(rig.capturer(), layer, &r, rig.stream());
    };
    const auto same = [](auto &) {};
    EXPECT_STATUS(ROUTECAP_OK, read(same));
    EXPECT_STATUS(ROUTECAP_ERR_UNKNOWN_LAYER, read(same, 1));
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE, read([](auto &r) { r.struct_size = 8; }));
    EXPECT_STATUS(ROUTECAP_ERR_DTYPE, read([](auto &r) { r.dtype = ROUTECAP_DTYPE_I16; }));
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, read([](auto &r) { r.ranks = 3; }));
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, read([](auto &r) { r.rows = 17; }));
    for (auto change : std::initializer_list<void (*)(routecap_received &)>{
             [](auto &r) { r.flags = 4; },
             [](auto &r) { r.flags = 3; },
             [](auto &r) { r.ranks = 0; },
             [](auto &r) { r.ranks = 1025; },
             [](auto &r) { r.rank = 4; },
             [](auto &r) { r.experts = 1u << 16; },
             [](auto &r) { r.k = 33; },
             [](auto &r) { r.tokens_per_rank = 0; },
             [](auto &r) { r.tokens_per_rank = 1u << 25; },
             [](auto &r) { r.expanded_rows = 4; },
             [](auto &r) { r.expert_alignment = 8; },
             [](auto &r) { r.reserved = 1; },
             [](auto &r) { r.executed = nullptr; },
             [](auto &r) { r.metadata = nullptr; },
             [](auto &r) { r.ids = nullptr; },
             [](auto &r) { r.expert_ends = r.metadata; },
             [](auto &r) { r.flags = ROUTECAP_RECEIVED_EXPANDED; },
             [](auto &r) { r.flags = ROUTECAP_RECEIVED_EXPANDED, r.ids = nullptr; },
             [](auto &r) {
                 r.flags = ROUTECAP_RECEIVED_EXPANDED, r.ids = nullptr, r.rows = 0,
                 r.expanded_rows = 4;
             },
             [](auto &r) {
                 r.flags = ROUTECAP_RECEIVED_EXPANDED, r.ids = nullptr, r.expert_ends = r.metadata,
                 r.expanded_rows = 1u << 31;
             },
             [](auto &r) {
                 r.flags = ROUTECAP_RECEIVED_EXPANDED, r.executed = nullptr, r.rows = 0,
                 r.expanded_rows = 4;
             }})
        EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, read(change));

    const int32_t a[] = {-1, 3, 5}, b[] = {4, -1, 6};
    const int32_t *tables[] = {a, b};
    int32_t merged[3] = {7, 7, 7};
    EXPECT_STATUS(ROUTECAP_ERR_CONFLICT, routecap_received_merge(tables, 2, 3, merged));
    EXPECT_EQ(merged[0], 7);
    EXPECT_STATUS(ROUTECAP_OK, routecap_received_merge(tables, 2, 2, merged));
    EXPECT_EQ(merged[0], 4);
    EXPECT_EQ(merged[1], 3);
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_received_merge(tables, 0, 2, merged));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_received_merge(nullptr, 2, 2, merged));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_received_merge(tables, 2, 2, nullptr));
    const int32_t *one_is_missing[] = {a, nullptr};
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_received_merge(one_is_missing, 2, 2, merged));
    EXPECT_STATUS(ROUTECAP_OK, routecap_received_merge(one_is_missing, 2, 0, nullptr));
}
