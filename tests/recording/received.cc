// routecap_received_read on every backend: what an expert-parallel dispatch (DeepEP v2) brings to a
// rank and what is made of it, on a simulator of both layouts that follows DeepEP's two kernels and
// shares nothing with the library.
//
// Why by column and by token, not only by number: the received rows of a source rank come in any
// order, columns of other ranks read -1, and what lies behind the live rows looks like rows.
#include <rig.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

using namespace rig;

namespace {

using Random = std::mt19937_64;

uint32_t below(Random &random, uint64_t n) { return static_cast<uint32_t>(random() % n); }
int32_t align(int32_t n, int32_t to) { return (n + to - 1) / to * to; }

// ---- Before the dispatch --------------------------------------------------------------------

struct Model {
    uint32_t ranks, scaleup;  // scaleup peers of a rank; scaleup < ranks is DeepEP's hybrid mode
    uint32_t k, experts;

    uint32_t local_experts() const { return experts / ranks; }
    uint32_t first_expert(uint32_t rank) const { return rank * local_experts(); }
};

// (tokens, k) global ids of every rank, as its router chose them; -1: no selection.
using Batches = std::vector<std::vector<int32_t>>;

std::vector<int32_t> choose(const Model &shape, Random &random) {
    std::vector<int32_t> ids(shape.experts);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random);
    const uint32_t kind = below(random, 8);
    if (kind == 0) {  // as many as possible on one rank
        const auto rank = static_cast<int32_t>(below(random, shape.ranks)),
                   local = static_cast<int32_t>(shape.local_experts());
        std::stable_partition(ids.begin(), ids.end(),
                              [&](int32_t id) { return id / local == rank; });
    }
    ids.resize(shape.k);
    std::shuffle(ids.begin(), ids.end(), random);
    for (int32_t &id : ids)
        if (kind == 1 || (kind == 2 && below(random, 2) == 0)) id = -1;
    return ids;
}

Batches route(const Model &shape, uint32_t most_tokens, Random &random) {
    Batches rows(shape.ranks);
    for (auto &rank : rows)
        for (uint32_t t = 0, tokens = below(random, most_tokens + 1); t < tokens; t++) {
            const std::vector<int32_t> ids = choose(shape, random);
            rank.insert(rank.end(), ids.begin(), ids.end());
        }
    return rows;
}

// ---- The dispatch ---------------------------------------------------------------------------

struct Mode {
    bool do_expand, do_cpu_sync;
    int32_t expert_alignment;
};
constexpr Mode kDecode{false, false, 1}, kPrefill{true, true, 1};  // of vLLM's class

// What a rank has after a dispatch: the handle, and recv_topk_idx.
template <class T>
struct Handle {
    Mode mode;
    uint32_t num_max_tokens_per_rank, num_recv_tokens, num_expanded_tokens;
    std::vector<int32_t> num_recv_tokens_per_expert_list;  // aligned; empty without the CPU's sync
    std::vector<int32_t> psum_num_recv_tokens_per_scaleup_rank, psum_num_recv_tokens_per_expert;
    std::vector<int32_t> recv_src_metadata;  // [num_recv_tokens, 2 + k]
    std::vector<T> recv_topk_idx;            // [num_recv_tokens, k]; empty if expanded
};

template <class T>
Handle<T> dispatch(const Model &shape, const Batches &rows, uint32_t rank, uint32_t m, Mode mode,
                   Random &random) {
    // The wire: each token once to every rank that has one of its experts, in the slots of its
    // peer's buffer as they come.
    struct Token {
        const int32_t *topk_idx;
        int32_t src_token_global_idx;
    };
    const auto local = static_cast<int32_t>(shape.local_experts()),
               start = local * static_cast<int32_t>(rank), end = start + local;
    std::vector<std::vector<Token>> buffers(shape.scaleup);
    for (uint32_t source = 0; source < shape.ranks; source++)
        for (uint32_t t = 0; t < rows[source].size() / shape.k; t++) {
            const int32_t *ids = rows[source].data() + t * shape.k;
            if (std::any_of(ids, ids + shape.k,
                            [&](int32_t id) { return start <= id && id < end; }))
                buffers[source % shape.scaleup].push_back(
                    {ids, static_cast<int32_t>(source * m + t)});
        }
    for (auto &buffer : buffers) std::shuffle(buffer.begin(), buffer.end(), random);

    // The counts, and their prefix sums: inclusive by peer; by expert exclusive where it is the
    // expansion's cursor, otherwise inclusive.
    Handle<T> h{};
    h.mode = mode;
    h.num_max_tokens_per_rank = m;
    std::vector<Token> received;
    for (const auto &buffer : buffers) {
        received.insert(received.end(), buffer.begin(), buffer.end());
        h.psum_num_recv_tokens_per_scaleup_rank.push_back(static_cast<int32_t>(received.size()));
    }
    std::vector<int32_t> counts(shape.local_experts());
    for (const Token &token : received)
        for (uint32_t c = 0; c < shape.k; c++)
            if (const int32_t id = token.topk_idx[c]; start <= id && id < end)
                counts[static_cast<size_t>(id - start)]++;
    std::vector<int32_t> psum{0};
    for (int32_t &count : counts)
        psum.push_back(psum.back() + (count = align(count, mode.expert_alignment)));
    h.psum_num_recv_tokens_per_expert = mode.do_expand ? std::vector(psum.begin(), psum.end() - 1)
                                                       : std::vector(psum.begin() + 1, psum.end());
    if (mode.do_cpu_sync) {
        h.num_recv_tokens = static_cast<uint32_t>(received.size());
        h.num_expanded_tokens = static_cast<uint32_t>(psum.back());
        h.num_recv_tokens_per_expert_list = counts;
    } else {
        h.num_recv_tokens = shape.ranks * m;
        h.num_expanded_tokens = static_cast<uint32_t>(
            align(static_cast<int32_t>(shape.ranks * m * std::min(shape.k, shape.local_experts())) +
                      (mode.expert_alignment - 1) * local,
                  mode.expert_alignment));
    }

    // Memory as it is found: rows of another step, for all one can see.
    for (uint32_t i = 0; i < h.num_recv_tokens; i++) {
        h.recv_src_metadata.push_back(static_cast<int32_t>(below(random, shape.ranks * m)));
        for (uint32_t c = 0; c <= shape.k; c++)
            h.recv_src_metadata.push_back(
                static_cast<int32_t>(below(random, uint64_t{h.num_expanded_tokens} + 1)) - 1);
        for (uint32_t c = 0; c < shape.k && !mode.do_expand; c++)
            h.recv_topk_idx.push_back(static_cast<T>(below(random, shape.local_experts() + 1)) - 1);
    }

    // The epilogue: the rows of one peer after another, the warps in any order.
    std::vector<size_t> order(received.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) {
        int32_t *metadata = h.recv_src_metadata.data() + i * (2 + shape.k);
        metadata[0] = received[i].src_token_global_idx;
        for (uint32_t c = 0; c < shape.k; c++) {
            const int32_t id = received[i].topk_idx[c],
                          local_id = start <= id && id < end ? id - start : -1;
            if (!mode.do_expand)
                h.recv_topk_idx[i * shape.k + c] = static_cast<T>(local_id);
            else
                metadata[2 + c] =
                    local_id < 0
                        ? -1
                        : h.psum_num_recv_tokens_per_expert[static_cast<size_t>(local_id)]++;
        }
    }
    return h;
}

// ---- vLLM's class, literally ----------------------------------------------------------------

template <class T>
std::vector<T> globalize_recv_topk_idx(std::vector<T> topk_idx, const std::vector<int32_t> &psum,
                                       uint32_t rank_expert_offset, uint32_t num_experts,
                                       uint32_t topk) {
    const int64_t num_recv = psum.back();
    for (size_t offs = 0; offs < topk_idx.size(); offs++) {
        const int64_t val = topk_idx[offs], g = val + rank_expert_offset,
                      row = static_cast<int64_t>(offs / topk);
        const bool valid = val >= 0 && g < static_cast<int64_t>(num_experts) && row < num_recv;
        topk_idx[offs] = static_cast<T>(valid ? g : -1);
    }
    return topk_idx;
}

// torch.repeat_interleave(arange(num_local) + rank_expert_offset, counts)
template <class T>
std::vector<T> repeat_interleave(const std::vector<int32_t> &counts, uint32_t rank_expert_offset) {
    std::vector<T> ids;
    for (size_t e = 0; e < counts.size(); e++)
        ids.insert(ids.end(), static_cast<size_t>(counts[e]),
                   static_cast<T>(e + rank_expert_offset));
    return ids;
}

// ---- Reading it -----------------------------------------------------------------------------

// What one call made.
template <class T>
struct Made {
    std::vector<T> global_ids;
    std::vector<int32_t> executed;
    uint64_t ignored = 0;
};

// Has the library read what a rank received, after a change of the arguments; with memory around
// what it writes that must stay what it is.
template <class T, class Change>
Made<T> read(Rig &rig, const Model &shape, uint32_t rank, const Handle<T> &h, Change change) {
    constexpr size_t kGuard = 64;
    constexpr unsigned char kBeside = 0xff;  // as a cell of `executed` that may be written
    Device &device = rig.device();
    const auto room = [&](size_t bytes) {
        return static_cast<unsigned char *>(device.allocate(bytes + 2 * kGuard, kBeside)) + kGuard;
    };
    const size_t ids = h.mode.do_expand ? h.num_expanded_tokens : h.recv_topk_idx.size(),
                 cells = size_t{shape.ranks} * h.num_max_tokens_per_rank * shape.k;
    unsigned char *global_ids = room(ids * sizeof(T)), *executed = room(cells * sizeof(int32_t));
    auto *ignored = static_cast<uint64_t *>(device.allocate(sizeof(uint64_t)));
    rig.forward([&] {
        const auto upload = [&](const auto &v) {
            return device.upload(v.data(), v.size() * sizeof v[0]);
        };
        routecap_received r{};
        r.struct_size = sizeof r;
        r.ranks = shape.ranks, r.rank = rank, r.k = shape.k, r.experts = shape.experts;
        r.tokens_per_rank = h.num_max_tokens_per_rank;
        r.rows = h.num_recv_tokens;
        if (!h.mode.do_cpu_sync)
            r.live_rows = static_cast<const int32_t *>(
                device.upload(&h.psum_num_recv_tokens_per_scaleup_rank.back(), 4));
        r.metadata = static_cast<const int32_t *>(upload(h.recv_src_metadata));
        if (h.mode.do_expand) {
            r.flags = ROUTECAP_RECEIVED_EXPANDED;
            r.expert_ends = static_cast<const int32_t *>(upload(h.psum_num_recv_tokens_per_expert));
            r.expert_alignment = static_cast<uint32_t>(h.mode.expert_alignment);
            r.expanded_rows = h.num_expanded_tokens;
        } else {
            r.ids = upload(h.recv_topk_idx);
        }
        r.dtype = sizeof(T) == 4 ? ROUTECAP_DTYPE_I32 : ROUTECAP_DTYPE_I64;
        r.global_ids = global_ids;
        r.executed = reinterpret_cast<int32_t *>(executed);
        r.ignored = ignored;
        change(r);
        EXPECT_STATUS(ROUTECAP_OK, routecap_received_read(rig.capturer(), 0, &r, rig.stream()));
    });
    const auto contents = [&](auto &to, const unsigned char *at, size_t n) {
        to.resize(n);
        std::vector<unsigned char> all(n * sizeof to[0] + 2 * kGuard);
        device.read(all.data(), at - kGuard, all.size());
        for (size_t i = 0; i < kGuard; i++)
            EXPECT_TRUE(all[i] == kBeside && all[all.size() - 1 - i] == kBeside)
                << "written beside it";
        if (n > 0) std::memcpy(to.data(), all.data() + kGuard, n * sizeof to[0]);
    };
    Made<T> made;
    contents(made.global_ids, global_ids, ids);
    contents(made.executed, executed, cells);
    device.read(&made.ignored, ignored, sizeof made.ignored);
    return made;
}
template <class T>
Made<T> read(Rig &rig, const Model &shape, uint32_t rank, const Handle<T> &h) {
    return read(rig, shape, rank, h, [](routecap_received &) {});
}

// One step in one mode on every rank: both products, and the ranks' tables merged, in which every
// row must be what its token was sent to.
template <class T>
std::vector<int32_t> expect_step(Rig &rig, const Model &shape, const Batches &rows, uint32_t m,
                                 Mode mode, Random &random) {
    std::vector<std::vector<int32_t>> tables;
    for (uint32_t rank = 0; rank < shape.ranks; rank++) {
        const Handle<T> h = dispatch<T>(shape, rows, rank, m, mode, random);
        const Made<T> made = read(rig, shape, rank, h);
        std::vector<T> expected;
        if (!mode.do_expand) {
            expected =
                globalize_recv_topk_idx(h.recv_topk_idx, h.psum_num_recv_tokens_per_scaleup_rank,
                                        shape.first_expert(rank), shape.experts, shape.k);
        } else {
            // Without the CPU's sync there is no list, and there are rows behind the last expert's.
            const Handle<T> exact =
                dispatch<T>(shape, rows, rank, m, {true, true, mode.expert_alignment}, random);
            expected = repeat_interleave<T>(exact.num_recv_tokens_per_expert_list,
                                            shape.first_expert(rank));
            expected.resize(h.num_expanded_tokens, -1);
        }
        EXPECT_EQ(made.global_ids, expected);
        EXPECT_EQ(made.ignored, 0u);
        tables.push_back(made.executed);
    }
    std::vector<const int32_t *> pointers;
    for (const auto &table : tables) pointers.push_back(table.data());
    std::vector<int32_t> merged(tables[0].size(), 77);
    EXPECT_STATUS(ROUTECAP_OK, routecap_received_merge(pointers.data(), pointers.size(),
                                                       merged.size(), merged.data()));
    std::vector<int32_t> sent(merged.size(), -1);
    for (uint32_t source = 0; source < shape.ranks; source++)
        std::copy(rows[source].begin(), rows[source].end(),
                  sent.begin() + static_cast<ptrdiff_t>(size_t{source} * m * shape.k));
    EXPECT_EQ(merged, sent);
    return merged;
}

template <class T>
class Received : public testing::Test {
protected:
    Rig rig{{.shape = {.layers = 1, .k = 3, .experts = 16, .rows = 16}}};
};
using IdTypes = testing::Types<int32_t, int64_t>;
TYPED_TEST_SUITE(Received, IdTypes);

uint32_t local_experts_for(uint32_t k, uint32_t ranks, Random &random) {
    const uint32_t least = (k + ranks - 1) / ranks;
    return least + (below(random, 2) == 0 ? 0 : below(random, 33));
}
uint32_t round_up_to_power_of_two(uint32_t n) {
    uint32_t power = 1;
    while (power < n) power *= 2;
    return power;
}

}  // namespace

// M is of the step: vLLM rounds it up to a power of two in decode, and takes the buffer's own
// capacity in prefill. Aligned experts leave gaps, in which no token was executed.
TYPED_TEST(Received, every_token_is_restored_whatever_the_step) {
    Random random(11);
    for (uint32_t ranks : {1u, 2u, 4u, 8u})
        for (uint32_t k : {1u, 2u, 3u, 6u, 8u, 16u})
            for (uint32_t tokens : {1u, 9u, 24u, 0u}) {
                const Model shape{ranks, below(random, 3) == 0 && ranks > 2 ? ranks / 2 : ranks, k,
                                  ranks * local_experts_for(k, ranks, random)};
                const int32_t alignments[] = {1, 2, 8, 10, 128};
                const Mode mode{below(random, 4) > 0, below(random, 2) == 0,
                                alignments[below(random, 5)]};
                SCOPED_TRACE(testing::Message()
                             << ranks << " ranks, " << shape.scaleup << " of a domain, k " << k
                             << ", " << shape.experts << " experts, " << tokens << " tokens, "
                             << (mode.do_expand ? "expanded" : "rows") << " aligned to "
                             << mode.expert_alignment << (mode.do_cpu_sync ? "" : ", worst case"));
                const Batches rows = route(shape, tokens, random);
                expect_step<TypeParam>(this->rig, shape, rows, round_up_to_power_of_two(tokens),
                                       kDecode, random);
                expect_step<TypeParam>(this->rig, shape, rows, tokens + 7, mode, random);
                if (testing::Test::HasFailure()) return;
            }
}

// ---- Contradictions -------------------------------------------------------------------------

// Rows that cannot be, among rows that can: no write goes astray, what is sound is kept, the rest
// is counted.
TYPED_TEST(Received, what_contradicts_itself_is_ignored_and_counted) {
    Random random(17);
    const auto one_of = [&](std::initializer_list<int64_t> values) {
        return *(values.begin() + below(random, values.size()));
    };
    uint64_t ignored = 0;
    for (int repeat = 0; repeat < 200; repeat++) {
        const Model shape{4, 4, 1 + below(random, 8), 4 * (2 + below(random, 6))};
        const uint32_t m = 8, sources = shape.ranks * m, rank = below(random, 4),
                       first = shape.first_expert(rank), local = shape.local_experts();
        const Mode mode{repeat % 2 == 0, repeat % 4 < 2,
                        static_cast<int32_t>(1 + below(random, 4))};
        Handle<TypeParam> h =
            dispatch<TypeParam>(shape, route(shape, m, random), rank, m, mode, random);
        const int32_t expanded = static_cast<int32_t>(h.num_expanded_tokens);
        for (uint32_t i = 0; i < h.num_recv_tokens; i++) {
            int32_t *metadata = h.recv_src_metadata.data() + size_t{i} * (2 + shape.k);
            if (below(random, 4) == 0)
                metadata[0] = static_cast<int32_t>(
                    one_of({-1, INT32_MIN, sources, INT32_MAX, below(random, sources)}));
            for (uint32_t c = 0; c < shape.k; c++) {
                if (below(random, 4) != 0) continue;
                const int64_t at = below(random, h.num_expanded_tokens + 1u);
                if (mode.do_expand)
                    metadata[2 + c] = static_cast<int32_t>(
                        one_of({-1, -5, INT32_MIN, expanded, INT32_MAX, at, at}));
                else
                    h.recv_topk_idx[i * shape.k + c] = static_cast<TypeParam>(
                        one_of({-7, local, shape.experts - first, shape.experts, 1 << 20}));
            }
        }
        int32_t &live = h.psum_num_recv_tokens_per_scaleup_rank.back();
        if (below(random, 4) == 0)
            live = static_cast<int32_t>(
                one_of({-3, INT32_MIN, INT32_MAX, static_cast<int64_t>(h.num_recv_tokens) + 1}));
        const Made<TypeParam> made = read(this->rig, shape, rank, h);

        // Which ids each cell was offered.
        std::vector<std::vector<int32_t>> offered(made.executed.size());
        uint64_t contradictions = 0;
        for (uint32_t i = 0; i < h.num_recv_tokens; i++) {
            if (!mode.do_cpu_sync && static_cast<int64_t>(i) >= live) continue;
            const int32_t *metadata = h.recv_src_metadata.data() + size_t{i} * (2 + shape.k);
            for (uint32_t c = 0; c < shape.k; c++) {
                int64_t id = mode.do_expand ? metadata[2 + c] : h.recv_topk_idx[i * shape.k + c];
                if (id < 0) continue;
                if (mode.do_expand) {
                    int32_t start = 0, found = -1;
                    for (uint32_t e = 0; e < local; e++) {
                        const int32_t end = h.psum_num_recv_tokens_per_expert[e];
                        if (start <= id && id < end) found = static_cast<int32_t>(e);
                        start = align(end, mode.expert_alignment);
                    }
                    id = found;
                }
                if (id < 0 || id >= local || metadata[0] < 0 ||
                    metadata[0] >= static_cast<int32_t>(sources))
                    contradictions++;
                else
                    offered[static_cast<size_t>(metadata[0]) * shape.k + c].push_back(
                        static_cast<int32_t>(id + first));
            }
        }
        const std::vector<int32_t> &executed = made.executed;
        for (size_t cell = 0; cell < executed.size(); cell++) {
            const auto &ids = offered[cell];
            ASSERT_TRUE(ids.empty()
                            ? executed[cell] == -1
                            : std::find(ids.begin(), ids.end(), executed[cell]) != ids.end());
            contradictions += ids.empty() ? 0 : ids.size() - 1;
        }
        ASSERT_EQ(made.ignored, contradictions);
        if (!mode.do_expand) {
            std::vector<int32_t> psum{mode.do_cpu_sync ? INT32_MAX : live};
            ASSERT_EQ(made.global_ids, globalize_recv_topk_idx(h.recv_topk_idx, psum, first,
                                                               shape.experts, shape.k));
        }
        ignored += made.ignored;
    }
    EXPECT_GT(ignored, 500u);
}

TYPED_TEST(Received, no_number_is_so_wild_that_it_writes_elsewhere) {
    Random random(18);
    const auto wild = [&]() -> int64_t {
        switch (below(random, 4)) {
            case 0: return static_cast<int64_t>(random());
            case 1: return static_cast<int64_t>(below(random, 80)) - 16;
            case 2: return INT64_MAX - static_cast<int64_t>(below(random, 40));
            default:
                return static_cast<int64_t>(INT32_MAX) - static_cast<int64_t>(below(random, 40));
        }
    };
    const auto wild32 = [&] { return static_cast<int32_t>(wild()); };
    for (int repeat = 0; repeat < 150; repeat++) {
        const Model shape{4, 4, 1 + below(random, 5), 4 * (2 + below(random, 6))};
        const uint32_t rank = below(random, 4), first = shape.first_expert(rank),
                       local = shape.local_experts();
        const Mode mode{repeat % 2 == 0, repeat % 4 < 2,
                        static_cast<int32_t>(1 + below(random, 4))};
        Handle<TypeParam> h =
            dispatch<TypeParam>(shape, route(shape, 8, random), rank, 8, mode, random);
        for (int32_t &n : h.recv_src_metadata) n = wild32();
        for (int32_t &n : h.psum_num_recv_tokens_per_expert) n = wild32();
        for (int32_t &n : h.psum_num_recv_tokens_per_scaleup_rank) n = wild32();
        for (TypeParam &n : h.recv_topk_idx) n = static_cast<TypeParam>(wild());
        const bool global = !mode.do_expand && below(random, 2) == 0;
        const Made<TypeParam> made = read(this->rig, shape, rank, h, [&](routecap_received &r) {
            if (global) r.flags = ROUTECAP_RECEIVED_GLOBAL;
        });
        for (const int32_t id : made.executed)
            ASSERT_TRUE(id == -1 || (id >= static_cast<int32_t>(first) &&
                                     id < static_cast<int32_t>(first + local)));
        for (const TypeParam id : made.global_ids)
            ASSERT_TRUE(id >= -1 && id < static_cast<TypeParam>(shape.experts));
    }
}

// ---- Refusals -------------------------------------------------------------------------------

TEST(ReceivedRouting, refusals) {
    Rig rig({.shape = {.layers = 1, .k = 3, .experts = 16, .rows = 8}});
    auto *memory = static_cast<int32_t *>(rig.device().allocate(4096));
    const auto read = [&](auto change, uint32_t layer = 0) {
        routecap_received r{};
        r.struct_size = sizeof r;
        r.ranks = 4;
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
