// What an expert-parallel dispatch (DeepEP v2) brings to a rank and what is made of it: the element
// bodies of kernels/dispatch_check.h, on a simulator of both layouts. The simulator follows DeepEP's two kernels
// and shares nothing with the bodies.
//
// Why by column and by token, not only by number: the received rows of a source rank come in any
// order, columns of other ranks read -1, and what lies behind the live rows looks like rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "backend/dispatch_check.h"

using namespace routecap::kernels;

namespace {

using Random = std::mt19937_64;

uint32_t below(Random &random, uint64_t n) { return static_cast<uint32_t>(random() % n); }
int32_t align(int32_t n, int32_t to) { return (n + to - 1) / to * to; }

// ---- Before the dispatch --------------------------------------------------------------------

struct Shape {
    uint32_t ranks, scaleup;  // scaleup peers of a rank; scaleup < ranks is DeepEP's hybrid mode
    uint32_t k, experts;

    uint32_t local_experts() const { return experts / ranks; }
    uint32_t first_expert(uint32_t rank) const { return rank * local_experts(); }
};

// (tokens, k) global ids of every rank, as its router chose them; -1: no selection.
using Rows = std::vector<std::vector<int32_t>>;

std::vector<int32_t> choose(const Shape &shape, Random &random) {
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

Rows route(const Shape &shape, uint32_t most_tokens, Random &random) {
    Rows rows(shape.ranks);
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
Handle<T> dispatch(const Shape &shape, const Rows &rows, uint32_t rank, uint32_t m, Mode mode,
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

// Memory that begins as garbage, with more of it on both sides that must stay what it is.
template <class T>
class Guarded {
public:
    Guarded(size_t n, T garbage) : garbage_(garbage), memory_(n + 2 * kGuard, garbage) {}
    T *data() { return memory_.data() + kGuard; }
    size_t size() const { return memory_.size() - 2 * kGuard; }
    std::vector<T> contents() const { return {memory_.begin() + kGuard, memory_.end() - kGuard}; }
    bool intact() const {
        const auto garbage = [this](T t) { return t == garbage_; };
        return std::all_of(memory_.begin(), memory_.begin() + kGuard, garbage) &&
               std::all_of(memory_.end() - kGuard, memory_.end(), garbage);
    }

private:
    static constexpr ptrdiff_t kGuard = 64;
    const T garbage_;
    std::vector<T> memory_;
};

// One call on one rank, item by item.
template <class T>
struct Call {
    Guarded<T> global_ids;
    Guarded<int32_t> executed;
    uint64_t ignored = 0;
    bool expanded;
    Received rows{};
    ReceivedExpanded expanded_rows{};

    Call(const Shape &shape, uint32_t rank, const Handle<T> &h)
        // An expert like any other.
        : global_ids(h.mode.do_expand ? h.num_expanded_tokens : h.recv_topk_idx.size(), 5),
          // Where a stray write would find room.
          executed(size_t{shape.ranks} * h.num_max_tokens_per_rank * shape.k, kNotExecuted),
          expanded(h.mode.do_expand) {
        const Dispatch from{.rows = h.num_recv_tokens,
                            .live_rows = h.mode.do_cpu_sync
                                             ? nullptr
                                             : &h.psum_num_recv_tokens_per_scaleup_rank.back(),
                            .metadata = h.recv_src_metadata.data(),
                            .sources = shape.ranks * h.num_max_tokens_per_rank,
                            .k = shape.k,
                            .experts = shape.experts,
                            .first_expert = shape.first_expert(rank),
                            .local_experts = shape.local_experts(),
                            .executed = executed.data(),
                            .ignored = &ignored};
        const int32_t dtype = sizeof(T) == 4 ? ROUTECAP_DTYPE_I32 : ROUTECAP_DTYPE_I64;
        rows = {from, from.first_expert, dtype, h.recv_topk_idx.data(), global_ids.data()};
        expanded_rows = {from,
                         h.psum_num_recv_tokens_per_expert.data(),
                         static_cast<uint32_t>(h.mode.expert_alignment),
                         h.num_expanded_tokens,
                         dtype,
                         global_ids.data()};
        EXPECT_EQ(from.executed_bytes(), executed.size() * sizeof(int32_t));
        std::memset(executed.data(), kNotExecutedByte, from.executed_bytes());
    }
    Call(const Call &) = delete;
    uint32_t items() const {
        return expanded ? expanded_rows.outer() * expanded_rows.inner()
                        : rows.outer() * rows.inner();
    }
    void item(uint32_t i) const { expanded ? expanded_rows.item(0, i) : rows.item(0, i); }
    void run(Random &random) const {
        std::vector<uint32_t> order(items());
        std::iota(order.begin(), order.end(), 0u);
        std::shuffle(order.begin(), order.end(), random);
        for (const uint32_t i : order) item(i);
    }
};

// Merges the ranks' tables: on the host, and as ncclMax would. Every row must be what its token was
// sent to, by column and as a set.
void expect_restored(const Shape &shape, const Rows &rows, uint32_t m,
                     std::vector<std::vector<int32_t>> tables) {
    std::vector<const int32_t *> pointers;
    for (const auto &table : tables) pointers.push_back(table.data());
    std::vector<int32_t> merged(tables[0].size(), 77), reduced = tables[0];
    ASSERT_TRUE(
        routecap::merge_executed(pointers.data(), pointers.size(), merged.size(), merged.data()));
    for (const auto &table : tables)
        for (size_t i = 0; i < table.size(); i++) reduced[i] = std::max(reduced[i], table[i]);
    ASSERT_EQ(merged, reduced);
    for (uint32_t source = 0; source < shape.ranks; source++)
        for (uint32_t t = 0; t < m; t++) {
            const int32_t *restored = merged.data() + (size_t{source} * m + t) * shape.k;
            std::vector<int32_t> row(restored, restored + shape.k), sent(shape.k, -1);
            if (t < rows[source].size() / shape.k)
                std::copy_n(rows[source].data() + size_t{t} * shape.k, shape.k, sent.begin());
            ASSERT_EQ(row, sent) << "token " << t << " of rank " << source;
            std::sort(row.begin(), row.end());
            std::sort(sent.begin(), sent.end());
            ASSERT_EQ(row, sent);
        }
}

// One step in one mode on every rank: both products.
template <class T>
void expect_step(const Shape &shape, const Rows &rows, uint32_t m, Mode mode, Random &random) {
    std::vector<std::vector<int32_t>> tables;
    for (uint32_t rank = 0; rank < shape.ranks; rank++) {
        const Handle<T> h = dispatch<T>(shape, rows, rank, m, mode, random);
        Call<T> call(shape, rank, h);
        call.run(random);
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
        ASSERT_EQ(call.global_ids.contents(), expected);
        ASSERT_TRUE(call.global_ids.intact() && call.executed.intact());
        ASSERT_EQ(call.ignored, 0u);
        tables.push_back(call.executed.contents());
    }
    expect_restored(shape, rows, m, std::move(tables));
}

template <class T>
class Reading : public testing::Test {};
using IdTypes = testing::Types<int32_t, int64_t>;
TYPED_TEST_SUITE(Reading, IdTypes);

uint32_t local_experts_for(uint32_t k, uint32_t ranks, Random &random) {
    const uint32_t least = (k + ranks - 1) / ranks;
    return least + (below(random, 2) == 0 ? 0 : below(random, 33));
}
uint32_t scaleup_for(uint32_t ranks, Random &random) {
    return below(random, 3) == 0 && ranks > 2 ? ranks / 2 : ranks;
}
uint32_t round_up_to_power_of_two(uint32_t n) {
    uint32_t power = 1;
    while (power < n) power *= 2;
    return power;
}

}  // namespace

// ---- Both products --------------------------------------------------------------------------

// M is of the step: vLLM rounds it up to a power of two in decode, and takes the buffer's own
// capacity in prefill.
TYPED_TEST(Reading, every_token_is_restored_whatever_the_step) {
    Random random(11);
    for (uint32_t ranks : {1u, 2u, 4u, 8u})
        for (uint32_t k = 1; k <= 16; k++) {
            const Shape shape{ranks, scaleup_for(ranks, random), k,
                              ranks * local_experts_for(k, ranks, random)};
            for (uint32_t tokens : {1u, 9u, 2u, 24u, 0u, 5u}) {
                SCOPED_TRACE(testing::Message()
                             << ranks << " ranks, " << shape.scaleup << " of a domain, k " << k
                             << ", " << shape.experts << " experts, " << tokens << " tokens");
                const Rows rows = route(shape, tokens, random);
                expect_step<TypeParam>(shape, rows, round_up_to_power_of_two(tokens), kDecode,
                                       random);
                expect_step<TypeParam>(shape, rows, tokens + 7, kPrefill, random);
                if (testing::Test::HasFatalFailure()) return;
            }
        }
}

// Aligned experts leave gaps: the class numbers them like the expert before, and no token was
// executed there.
TYPED_TEST(Reading, gaps_and_worst_case_rows_are_nobodys) {
    Random random(12);
    for (uint32_t ranks : {1u, 2u, 4u, 8u})
        for (uint32_t k : {1u, 2u, 6u, 8u, 16u})
            for (int32_t alignment : {1, 2, 8, 10, 128})
                for (bool sync : {true, false}) {
                    const Shape shape{ranks, scaleup_for(ranks, random), k,
                                      ranks * local_experts_for(k, ranks, random)};
                    SCOPED_TRACE(testing::Message()
                                 << ranks << " ranks, k " << k << ", " << shape.experts
                                 << " experts, aligned to " << alignment
                                 << (sync ? ", exact" : ", worst case"));
                    const Rows rows = route(shape, 8, random);
                    expect_step<TypeParam>(shape, rows, 8, {true, sync, alignment}, random);
                    expect_step<TypeParam>(shape, rows, 8, {false, sync, alignment}, random);
                    if (testing::Test::HasFatalFailure()) return;
                }
}

TYPED_TEST(Reading, a_rank_that_received_nothing_executed_nothing) {
    Random random(13);
    const Shape shape{4, 4, 3, 8};
    Rows rows(4);
    rows[1] = {6, 7, -1, 7, -1, 6};  // both tokens to rank 3 only
    for (Mode mode : {kDecode, Mode{true, false, 4}, kPrefill}) {
        expect_step<TypeParam>(shape, rows, 2, mode, random);
        const Handle<TypeParam> h = dispatch<TypeParam>(shape, rows, 0, 2, mode, random);
        ASSERT_EQ(h.psum_num_recv_tokens_per_scaleup_rank.back(), 0);
        Call<TypeParam> call(shape, 0, h);
        call.run(random);
        EXPECT_EQ(call.global_ids.contents(), std::vector<TypeParam>(call.global_ids.size(), -1));
        EXPECT_EQ(call.executed.contents(), std::vector<int32_t>(call.executed.size(), -1));
    }
}

// Each has its handle, its M and its outputs, and the calls know nothing of one another.
TYPED_TEST(Reading, two_micro_batches_at_once) {
    Random random(14);
    for (int repeat = 0; repeat < 20; repeat++) {
        const Shape shape{4, 4, 6, 4 * local_experts_for(6, 4, random)};
        const Rows rows[2] = {route(shape, 16, random), route(shape, 30, random)};
        const uint32_t m[2] = {16, 32};
        const Mode mode[2] = {kDecode, repeat % 2 == 0 ? kDecode : Mode{true, true, 4}};
        std::vector<std::vector<int32_t>> tables[2];
        for (uint32_t rank = 0; rank < shape.ranks; rank++) {
            const Handle<TypeParam> h[2] = {
                dispatch<TypeParam>(shape, rows[0], rank, m[0], mode[0], random),
                dispatch<TypeParam>(shape, rows[1], rank, m[1], mode[1], random)};
            Call<TypeParam> call[2] = {{shape, rank, h[0]}, {shape, rank, h[1]}};
            for (uint32_t next[2] = {0, 0};
                 next[0] < call[0].items() || next[1] < call[1].items();) {
                const uint32_t b = next[0] == call[0].items()   ? 1
                                   : next[1] == call[1].items() ? 0
                                                                : below(random, 2);
                call[b].item(next[b]++);
            }
            for (int b : {0, 1}) tables[b].push_back(call[b].executed.contents());
        }
        for (int b : {0, 1}) expect_restored(shape, rows[b], m[b], std::move(tables[b]));
    }
}

// ---- Where it is tapped ---------------------------------------------------------------------

// The class globalises in place; so does the body, and it may also come after the class.
TYPED_TEST(Reading, in_place_of_the_class_or_behind_it) {
    Random random(15);
    const Shape shape{4, 4, 5, 24};
    const Rows rows = route(shape, 16, random);
    for (uint32_t rank = 0; rank < shape.ranks; rank++) {
        const Handle<TypeParam> h = dispatch<TypeParam>(shape, rows, rank, 16, kDecode, random);
        Call<TypeParam> apart(shape, rank, h), in_place(shape, rank, h),
            has_ready_operations(shape, rank, h);
        apart.run(random);

        std::copy(h.recv_topk_idx.begin(), h.recv_topk_idx.end(), in_place.global_ids.data());
        in_place.rows.ids = in_place.global_ids.data();
        in_place.run(random);
        EXPECT_EQ(in_place.global_ids.contents(), apart.global_ids.contents());
        EXPECT_EQ(in_place.executed.contents(), apart.executed.contents());

        const std::vector<TypeParam> global =
            globalize_recv_topk_idx(h.recv_topk_idx, h.psum_num_recv_tokens_per_scaleup_rank,
                                    shape.first_expert(rank), shape.experts, shape.k);
        has_ready_operations.rows.ids = global.data();
        has_ready_operations.rows.ids_first = 0;
        has_ready_operations.run(random);
        EXPECT_EQ(has_ready_operations.global_ids.contents(), apart.global_ids.contents());
        EXPECT_EQ(has_ready_operations.executed.contents(), apart.executed.contents());
        EXPECT_EQ(has_ready_operations.ignored, 0u);
    }
}

TYPED_TEST(Reading, either_product_alone) {
    Random random(16);
    const Shape shape{2, 2, 4, 12};
    const Rows rows = route(shape, 16, random);
    for (Mode mode : {kDecode, Mode{true, true, 8}}) {
        const Handle<TypeParam> h = dispatch<TypeParam>(shape, rows, 1, 16, mode, random);
        Call<TypeParam> both(shape, 1, h), ids(shape, 1, h), table(shape, 1, h);
        both.run(random);
        ids.rows.from.executed = ids.expanded_rows.from.executed = nullptr;
        ids.rows.from.metadata = ids.expanded_rows.from.metadata = nullptr;
        ids.run(random);
        EXPECT_EQ(ids.global_ids.contents(), both.global_ids.contents());
        table.rows.global_ids = table.expanded_rows.global_ids = nullptr;
        table.run(random);
        EXPECT_EQ(table.executed.contents(), both.executed.contents());
    }
}

// ---- Contradictions -------------------------------------------------------------------------

// Rows that cannot be, among rows that can: no write goes astray, what is sound is kept, the rest
// is counted.
TYPED_TEST(Reading, what_contradicts_itself_is_ignored_and_counted) {
    Random random(17);
    const auto one_of = [&](std::initializer_list<int64_t> values) {
        return *(values.begin() + below(random, values.size()));
    };
    uint64_t ignored = 0;
    for (int repeat = 0; repeat < 400; repeat++) {
        const Shape shape{4, 4, 1 + below(random, 8), 4 * (2 + below(random, 6))};
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
        Call<TypeParam> call(shape, rank, h);
        call.run(random);

        // Which ids each cell was offered.
        std::vector<std::vector<int32_t>> offered(call.executed.size());
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
        const std::vector<int32_t> executed = call.executed.contents();
        for (size_t cell = 0; cell < executed.size(); cell++) {
            const auto &ids = offered[cell];
            ASSERT_TRUE(ids.empty()
                            ? executed[cell] == -1
                            : std::find(ids.begin(), ids.end(), executed[cell]) != ids.end());
            contradictions += ids.empty() ? 0 : ids.size() - 1;
        }
        ASSERT_EQ(call.ignored, contradictions);
        ASSERT_TRUE(call.global_ids.intact() && call.executed.intact());
        if (!mode.do_expand) {
            std::vector<int32_t> psum{mode.do_cpu_sync ? INT32_MAX : live};
            ASSERT_EQ(
                call.global_ids.contents(),
                globalize_recv_topk_idx(h.recv_topk_idx, psum, first, shape.experts, shape.k));
        }
        ignored += call.ignored;
    }
    EXPECT_GT(ignored, 1000u);
}

// The rows that the metadata and the counts know, where fewer were given.
TYPED_TEST(Reading, an_expanded_row_outside_the_rows_is_ignored_and_counted) {
    Random random(19);
    const Shape shape{2, 2, 4, 12};
    const Handle<TypeParam> h =
        dispatch<TypeParam>(shape, route(shape, 32, random), 1, 32, {true, true, 4}, random);
    Call<TypeParam> call(shape, 1, h);
    const uint32_t given = call.expanded_rows.expanded_rows /= 2;
    call.run(random);
    uint64_t inside = 0, outside = 0;
    for (size_t i = 0; i < h.recv_src_metadata.size(); i++)
        if (const int64_t row = h.recv_src_metadata[i]; i % (2 + shape.k) >= 2 && row >= 0)
            (row < given ? inside : outside)++;
    const std::vector<int32_t> executed = call.executed.contents();
    EXPECT_GT(outside, 0u);
    EXPECT_EQ(call.ignored, outside);
    EXPECT_EQ(
        executed.size() - static_cast<size_t>(std::count(executed.begin(), executed.end(), -1)),
        inside);
}

TYPED_TEST(Reading, no_number_is_so_wild_that_it_writes_elsewhere) {
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
    for (int repeat = 0; repeat < 300; repeat++) {
        const Shape shape{4, 4, 1 + below(random, 5), 4 * (2 + below(random, 6))};
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
        Call<TypeParam> call(shape, rank, h);
        call.rows.ids_first = below(random, 2) == 0 ? 0 : first;
        call.run(random);
        ASSERT_TRUE(call.global_ids.intact() && call.executed.intact());
        for (const int32_t id : call.executed.contents())
            ASSERT_TRUE(id == -1 || (id >= static_cast<int32_t>(first) &&
                                     id < static_cast<int32_t>(first + local)));
        for (const TypeParam id : call.global_ids.contents())
            ASSERT_TRUE(id >= -1 && id < static_cast<TypeParam>(shape.experts));
    }
}

// ---- Merging --------------------------------------------------------------------------------

TEST(Merge, different_ids_in_one_cell_are_a_conflict_and_nothing_is_written) {
    std::vector<int32_t> a{-1, 4, -1, 7}, b{2, -1, -1, 8}, c{-1, 4, -1, -1}, merged{9, 9, 9, 9};
    const int32_t *conflicting[] = {a.data(), b.data(), c.data()},
                  *agreeing[] = {a.data(), c.data()};
    EXPECT_FALSE(routecap::merge_executed(conflicting, 3, 4, merged.data()));
    EXPECT_EQ(merged, (std::vector<int32_t>{9, 9, 9, 9}));
    b[3] = 7;
    EXPECT_TRUE(routecap::merge_executed(conflicting, 3, 4, merged.data()));
    EXPECT_EQ(merged, (std::vector<int32_t>{2, 4, -1, 7}));
    EXPECT_TRUE(routecap::merge_executed(agreeing, 2, 4, a.data()));  // into one of them
    EXPECT_EQ(a, (std::vector<int32_t>{-1, 4, -1, 7}));
    EXPECT_TRUE(routecap::merge_executed(conflicting, 0, 4, merged.data()));
    EXPECT_EQ(merged, (std::vector<int32_t>(4, -1)));
}
