// The check of a dispatch on every backend: what routecap_received_read makes of the tensors that an
// expert-parallel dispatch (DeepEP v2) brings to a rank, and what routecap_received_compare counts,
// on a simulator of both layouts that follows DeepEP's two kernels and shares nothing with the
// library.
//
// Why by column and by token, not only by number: the received rows of a source rank come in any
// order, columns of other ranks read -1, and what lies behind the live rows looks like rows.
#include <rig.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <set>

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

// ---- What vLLM's class does to the ids of received rows ---------------------------------------

// In place: local ids become global, and all else, the rows behind the live ones too, becomes -1.
template <class T>
void globalize(Handle<T> &h, const Model &shape, uint32_t rank) {
    const auto live = static_cast<size_t>(h.psum_num_recv_tokens_per_scaleup_rank.back());
    for (size_t i = 0; i < h.recv_topk_idx.size(); i++) {
        T &id = h.recv_topk_idx[i];
        id = id >= 0 && i / shape.k < live ? static_cast<T>(id + shape.first_expert(rank)) : -1;
    }
}

// ---- The check ------------------------------------------------------------------------------

// One rank's table in device memory, all zero, with memory around it that must stay what it is.
class Table {
public:
    Table(Device &device, size_t cells) : device_(device), cells_(cells) {
        around_ = static_cast<unsigned char *>(device.allocate(bytes() + 2 * kGuard, kBeside));
        set(std::vector<int32_t>(cells));
    }

    int32_t *cells() const { return reinterpret_cast<int32_t *>(around_ + kGuard); }

    void set(const std::vector<int32_t> &cells) {
        device_.write(this->cells(), cells.data(), bytes());
    }

    std::vector<int32_t> get() const {
        std::vector<unsigned char> all(bytes() + 2 * kGuard);
        device_.read(all.data(), around_, all.size());
        for (size_t i = 0; i < kGuard; i++)
            EXPECT_TRUE(all[i] == kBeside && all[all.size() - 1 - i] == kBeside)
                << "written beside it";
        std::vector<int32_t> cells(cells_);
        if (cells_ > 0) std::memcpy(cells.data(), all.data() + kGuard, bytes());
        return cells;
    }

private:
    static constexpr size_t kGuard = 64;
    static constexpr unsigned char kBeside = 0x55;
    size_t bytes() const { return cells_ * sizeof(int32_t); }

    Device &device_;
    size_t cells_;
    unsigned char *around_;
};

constexpr auto kAsItIs = [](routecap_received &) {};

template <class T>
routecap_received received(const Model &shape, uint32_t rank, uint32_t m) {
    routecap_received r{};
    r.struct_size = sizeof r;
    r.ranks = shape.ranks, r.rank = rank, r.k = shape.k, r.experts = shape.experts;
    r.tokens_per_rank = m;
    r.dtype = sizeof(T) == 4 ? ROUTECAP_DTYPE_I32 : ROUTECAP_DTYPE_I64;
    return r;
}

// Has the library read what a rank received into `table`, after a change of the arguments. Returns
// how many columns it ignored.
template <class T, class Change = decltype(kAsItIs)>
uint64_t read(Rig &rig, const Model &shape, uint32_t rank, const Handle<T> &h, const Table &table,
              Change change = kAsItIs) {
    Device &device = rig.device();
    routecap_received_counts counts{};
    auto *counted = static_cast<routecap_received_counts *>(device.allocate(sizeof counts));
    rig.forward([&] {
        const auto upload = [&](const auto &v) {
            return device.upload(v.data(), v.size() * sizeof v[0]);
        };
        routecap_received r = received<T>(shape, rank, h.num_max_tokens_per_rank);
        r.rows = h.num_recv_tokens;
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
        r.executed = table.cells();
        r.counts = counted;
        change(r);
        EXPECT_STATUS(ROUTECAP_OK, routecap_received_read(rig.capturer(), &r, rig.stream()));
    });
    device.read(&counts, counted, sizeof counts);
    EXPECT_EQ(counts.tokens + counts.columns + counts.equal + counts.lost + counts.extra, 0u);
    return counts.ignored;
}

// Has the library compare the sum of all ranks' tables with the ids that a rank's router chose.
template <class T>
routecap_received_counts compare(Rig &rig, const Model &shape, uint32_t rank, uint32_t m,
                                 const std::vector<int32_t> &ids, const Table &sum) {
    Device &device = rig.device();
    routecap_received_counts counts{};
    auto *counted = static_cast<routecap_received_counts *>(device.allocate(sizeof counts));
    const std::vector<T> chosen(ids.begin(), ids.end());
    rig.forward([&] {
        routecap_received r = received<T>(shape, rank, m);
        r.tokens = static_cast<uint32_t>(ids.size() / shape.k);
        r.topk_ids = device.upload(chosen.data(), chosen.size() * sizeof(T));
        r.executed = sum.cells();
        r.counts = counted;
        EXPECT_STATUS(ROUTECAP_OK, routecap_received_compare(rig.capturer(), &r, rig.stream()));
    });
    device.read(&counts, counted, sizeof counts);
    EXPECT_EQ(counts.ignored, 0u);
    return counts;
}

// The sum over all ranks, as a collective makes it.
std::vector<int32_t> add(const std::vector<std::vector<int32_t>> &tables) {
    std::vector<int32_t> sum(tables[0].size());
    for (const auto &table : tables)
        for (size_t i = 0; i < sum.size(); i++) sum[i] += table[i];
    return sum;
}

using Counts = std::vector<routecap_received_counts>;  // by rank

// A step of every rank: its router chose `chosen`, and what was sent is `sent`. `change` changes the
// arguments of a rank's reading, after what it did to its handle.
struct Step {
    Model shape;
    uint32_t m;
    Mode mode = kDecode;
    Batches chosen, sent;
};
constexpr auto kUnchanged = [](uint32_t, auto &) { return kAsItIs; };

template <class T, class Change = decltype(kUnchanged)>
Counts check(Rig &rig, const Step &step, Random &random, Change change = kUnchanged) {
    const Model &shape = step.shape;
    std::vector<std::vector<int32_t>> tables;
    std::vector<uint64_t> ignored;
    uint32_t m = step.m;
    for (uint32_t rank = 0; rank < shape.ranks; rank++) {
        Handle<T> h = dispatch<T>(shape, step.sent, rank, step.m, step.mode, random);
        const auto argument = change(rank, h);
        m = h.num_max_tokens_per_rank;
        const Table table(rig.device(), size_t{shape.ranks} * m * shape.k);
        ignored.push_back(read(rig, shape, rank, h, table, argument));
        tables.push_back(table.get());
    }
    Table sum(rig.device(), tables[0].size());
    sum.set(add(tables));
    Counts counts;
    for (uint32_t rank = 0; rank < shape.ranks; rank++) {
        counts.push_back(compare<T>(rig, shape, rank, m, step.chosen[rank], sum));
        counts.back().ignored = ignored[rank];
    }
    sum.get();
    return counts;
}

// What must be counted of a rank whose router chose `chosen`, and whose tokens `ran`: by sets, as
// the header has it.
routecap_received_counts expected(const Model &shape, const std::vector<int32_t> &chosen,
                                  const std::vector<int32_t> &ran) {
    routecap_received_counts is{};
    for (size_t at = 0; at < chosen.size(); at += shape.k) {
        const std::vector want(chosen.begin() + static_cast<ptrdiff_t>(at),
                               chosen.begin() + static_cast<ptrdiff_t>(at + shape.k)),
            got(ran.begin() + static_cast<ptrdiff_t>(at),
                ran.begin() + static_cast<ptrdiff_t>(at + shape.k));
        const std::set<int32_t> wanted(want.begin(), want.end()), seen(got.begin(), got.end());
        uint64_t columns = 0, lost = 0;
        for (uint32_t c = 0; c < shape.k; c++) {
            columns += want[c] >= 0;
            if (want[c] < 0)
                is.extra += got[c] >= 0;
            else if (got[c] < 0)
                lost++;
            else if (got[c] == want[c])
                is.equal++;
            else if (wanted.contains(got[c]) && seen.contains(want[c]))
                is.swapped++;
            else
                is.replaced++;
        }
        is.tokens++;
        is.columns += columns;
        is.lost += lost;
        is.tokens_lost += columns > 0 && lost == columns;
    }
    return is;
}

void expect_counts(const routecap_received_counts &is, const routecap_received_counts &of) {
    EXPECT_EQ(is.tokens, of.tokens);
    EXPECT_EQ(is.columns, of.columns);
    EXPECT_EQ(is.equal, of.equal);
    EXPECT_EQ(is.replaced, of.replaced);
    EXPECT_EQ(is.swapped, of.swapped);
    EXPECT_EQ(is.lost, of.lost);
    EXPECT_EQ(is.tokens_lost, of.tokens_lost);
    EXPECT_EQ(is.extra, of.extra);
    EXPECT_EQ(is.ignored, of.ignored);
}

// What every rank must count, if no tensor was damaged.
void expect_all(const Step &step, const Counts &counts) {
    for (uint32_t rank = 0; rank < step.shape.ranks; rank++) {
        SCOPED_TRACE(testing::Message() << "rank " << rank);
        expect_counts(counts[rank], expected(step.shape, step.chosen[rank], step.sent[rank]));
    }
}

template <class T>
class Received : public testing::Test {
protected:
    Rig rig{{.shape = {.layers = 1, .k = 3, .experts = 16, .rows = 16}}};
    Random random{23};

    // Two ranks of five and eight tokens, of which nothing is wrong.
    Step small(Mode mode = kDecode) {
        const Model shape{2, 2, 3, 12};
        Step step{shape, 8, mode, Batches(2), {}};
        for (uint32_t rank = 0; rank < 2; rank++)
            for (uint32_t t = 0; t < (rank == 0 ? 5u : 8u); t++)
                for (uint32_t c = 0; c < shape.k; c++)
                    step.chosen[rank].push_back(static_cast<int32_t>((t + 5 * c + rank) % 12));
        step.sent = step.chosen;
        return step;
    }
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
TYPED_TEST(Received, every_column_is_equal_whatever_the_step) {
    for (uint32_t ranks : {1u, 2u, 4u, 8u})
        for (uint32_t k : {1u, 2u, 3u, 6u, 8u, 16u})
            for (uint32_t tokens : {1u, 9u, 24u, 0u}) {
                Random &random = this->random;
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
                const Step decode{shape, round_up_to_power_of_two(tokens), kDecode, rows, rows};
                expect_all(decode, check<TypeParam>(this->rig, decode, random));
                const Step other{shape, tokens + 7, mode, rows, rows};
                expect_all(other, check<TypeParam>(this->rig, other, random));
                // As the experts get the ids.
                const auto in_place = [&](uint32_t rank, Handle<TypeParam> &h) {
                    globalize(h, shape, rank);
                    return [](routecap_received &r) { r.flags = ROUTECAP_RECEIVED_GLOBAL; };
                };
                expect_all(decode, check<TypeParam>(this->rig, decode, random, in_place));
                if (testing::Test::HasFailure()) return;
            }
}

// ---- What did not run as chosen -------------------------------------------------------------

// Ids exchanged, lost, added and replaced on the way, in any mixture: each column is counted once,
// by its kind.
TYPED_TEST(Received, what_ran_differently_is_counted_by_its_kind) {
    Random &random = this->random;
    routecap_received_counts all{};
    for (int repeat = 0; repeat < 60; repeat++) {
        const Model shape{4, 4, 1 + below(random, 8), 4 * (2 + below(random, 6))};
        const Mode mode{repeat % 2 == 0, repeat % 4 < 2,
                        static_cast<int32_t>(1 + below(random, 4))};
        Step step{shape, 16, mode, route(shape, 12, random), {}};
        step.sent = step.chosen;
        for (auto &rows : step.sent)
            for (size_t at = 0; at < rows.size(); at += shape.k) {
                int32_t *row = rows.data() + at;
                for (uint32_t damage = below(random, 4); damage > 0; damage--) {
                    int32_t &id = row[below(random, shape.k)];
                    switch (below(random, 4)) {
                        case 0: id = -1; break;
                        case 1: id = static_cast<int32_t>(below(random, shape.experts)); break;
                        case 2: std::swap(id, row[below(random, shape.k)]); break;
                        default: std::fill(row, row + shape.k, -1);
                    }
                }
            }
        const Counts counts = check<TypeParam>(this->rig, step, random);
        expect_all(step, counts);
        for (const auto &c : counts) {
            all.replaced += c.replaced, all.swapped += c.swapped, all.lost += c.lost;
            all.tokens_lost += c.tokens_lost, all.extra += c.extra;
        }
        if (testing::Test::HasFailure()) return;
    }
    for (uint64_t each : {all.replaced, all.swapped, all.lost, all.tokens_lost, all.extra})
        EXPECT_GT(each, 50u);
}

// The recipe before compared two routings, in which a cell without all its ids is missing: it found
// the first of these, and not one of the others.
TYPED_TEST(Received, a_replaced_id_is_found) {
    for (Mode mode : {kDecode, kPrefill}) {
        Step step = this->small(mode);
        step.sent[0][4] = 11;  // token 1 chose 1, 6 and 11
        step.sent[0][5] = 7;
        const Counts counts = check<TypeParam>(this->rig, step, this->random);
        EXPECT_EQ(counts[0].replaced, 2u);
        EXPECT_EQ(counts[0].equal, 13u);
        EXPECT_EQ(counts[1].equal, 24u);
    }
}

TYPED_TEST(Received, a_lost_expert_is_found) {
    for (Mode mode : {kDecode, kPrefill}) {
        Step step = this->small(mode);
        step.sent[1][7] = -1;
        const Counts counts = check<TypeParam>(this->rig, step, this->random);
        EXPECT_EQ(counts[1].lost, 1u);
        EXPECT_EQ(counts[1].tokens_lost, 0u);
        EXPECT_EQ(counts[1].equal, 23u);
    }
}

TYPED_TEST(Received, a_lost_token_is_found) {
    for (Mode mode : {kDecode, kPrefill}) {
        Step step = this->small(mode);
        for (size_t c : {6u, 7u, 8u}) step.sent[1][c] = -1;
        const Counts counts = check<TypeParam>(this->rig, step, this->random);
        EXPECT_EQ(counts[1].lost, 3u);
        EXPECT_EQ(counts[1].tokens_lost, 1u);
        EXPECT_EQ(counts[1].tokens, 8u);
    }
}

TYPED_TEST(Received, swapped_columns_are_found) {
    for (Mode mode : {kDecode, kPrefill}) {
        Step step = this->small(mode);
        std::swap(step.sent[0][0], step.sent[0][2]);
        const Counts counts = check<TypeParam>(this->rig, step, this->random);
        EXPECT_EQ(counts[0].swapped, 2u);
        EXPECT_EQ(counts[0].replaced, 0u);
    }
}

// With a larger one, the tokens of rank 1 were taken for others of rank 0, and nothing was ignored:
// 292 of 349 columns of a step were wrong. DeepEP allocates ranks * tokens_per_rank rows, or as many
// as it received; anything else is of a different step.
TYPED_TEST(Received, tokens_per_rank_of_a_larger_step_is_found) {
    for (const bool cpu_sync : {false, true}) {
        const Step step = this->small({false, cpu_sync, 1});
        const auto larger = [](uint32_t, Handle<TypeParam> &h) {
            h.num_max_tokens_per_rank *= 4;
            return kAsItIs;
        };
        const Counts counts = check<TypeParam>(this->rig, step, this->random, larger);
        if (cpu_sync) {  // as many rows as came: only the comparison can know
            EXPECT_EQ(counts[0].equal, 15u);
            EXPECT_EQ(counts[0].extra, 24u);
            EXPECT_EQ(counts[1].tokens_lost, 8u);
        } else {
            EXPECT_EQ(counts[0].ignored + counts[1].ignored, 39u);
            EXPECT_EQ(counts[0].lost, 15u);
            EXPECT_EQ(counts[1].lost, 24u);
        }
    }
}

TYPED_TEST(Received, a_table_of_an_earlier_step_is_found) {
    Step step = this->small();
    const size_t cells = size_t{2} * step.m * step.shape.k;
    Table stale(this->rig.device(), cells), sum(this->rig.device(), cells);
    std::vector<std::vector<int32_t>> tables;
    uint64_t ignored = 0;
    for (uint32_t rank = 0; rank < 2; rank++) {
        const auto h =
            dispatch<TypeParam>(step.shape, step.sent, rank, step.m, kDecode, this->random);
        if (rank == 1) read(this->rig, step.shape, rank, h, stale);  // and once more
        const Table fresh(this->rig.device(), cells);
        ignored += read(this->rig, step.shape, rank, h, rank == 1 ? stale : fresh);
        tables.push_back((rank == 1 ? stale : fresh).get());
    }
    EXPECT_GT(ignored, 10u);

    // One that is the sum of all ranks already, and is added up once more.
    sum.set(add({add(tables), add(tables)}));
    const auto counts = compare<TypeParam>(this->rig, step.shape, 1, step.m, step.chosen[1], sum);
    EXPECT_EQ(counts.extra, 24u);
    EXPECT_EQ(counts.equal, 0u);
}

// An engine that does not mask what lies behind the live rows has its experts compute rows that
// nobody sent.
TYPED_TEST(Received, a_tail_that_the_engine_did_not_mask_is_found) {
    const Step step = this->small();
    for (const bool masked : {true, false}) {
        uint64_t tail = 0;
        const auto in_place = [&](uint32_t rank, Handle<TypeParam> &h) {
            const auto before = h.recv_topk_idx;
            globalize(h, step.shape, rank);
            if (!masked)
                for (size_t i =
                         static_cast<size_t>(h.psum_num_recv_tokens_per_scaleup_rank.back()) *
                         step.shape.k;
                     i < before.size(); i++)
                    tail += (h.recv_topk_idx[i] = before[i]) >= 0;
            return [](routecap_received &r) { r.flags = ROUTECAP_RECEIVED_GLOBAL; };
        };
        const Counts counts = check<TypeParam>(this->rig, step, this->random, in_place);
        EXPECT_EQ(counts[0].ignored + counts[1].ignored, tail);
        EXPECT_EQ(tail == 0, masked);
        EXPECT_EQ(counts[0].equal + counts[1].equal, 39u);
    }
}

TYPED_TEST(Received, a_column_that_two_ranks_executed_is_found) {
    const Step step = this->small();
    const auto both = [](uint32_t rank, Handle<TypeParam> &h) {
        // Rank 1 has the first live row of rank 0's columns, too.
        if (rank == 1)
            for (size_t c = 0; c < 3; c++) h.recv_topk_idx[c] = 0;
        return kAsItIs;
    };
    const Counts counts = check<TypeParam>(this->rig, step, this->random, both);
    EXPECT_GT(counts[0].extra + counts[1].extra, 0u);
    EXPECT_LT(counts[0].equal + counts[1].equal, 39u);
}

TYPED_TEST(Received, ids_that_are_global_or_not_must_be_said) {
    const Step step = this->small();
    const auto not_said = [&](uint32_t rank, Handle<TypeParam> &h) {
        globalize(h, step.shape, rank);
        return kAsItIs;
    };
    EXPECT_GT(check<TypeParam>(this->rig, step, this->random, not_said)[1].ignored, 0u);
    const auto said_of_local = [](uint32_t, auto &) {
        return [](routecap_received &r) { r.flags = ROUTECAP_RECEIVED_GLOBAL; };
    };
    EXPECT_GT(check<TypeParam>(this->rig, step, this->random, said_of_local)[1].ignored, 0u);
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
        const Table table(this->rig.device(), size_t{sources} * shape.k);
        const uint64_t counted = read(this->rig, shape, rank, h, table, [&](routecap_received &r) {
            if (mode.do_cpu_sync) r.live_rows = nullptr;
        });
        const std::vector<int32_t> executed = table.get();

        // Which ids each cell was offered.
        std::vector<std::vector<int32_t>> offered(executed.size());
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
        // Of several that a cell was offered, either may have it: it must be there.
        std::vector<int32_t> ids;
        uint64_t sound = 0, several = 0;
        for (const auto &cell : offered) {
            ids.push_back(cell.size() == 1 ? cell[0] : -1);
            sound += cell.size() == 1, several += cell.size() > 1;
            contradictions += cell.empty() ? 0 : cell.size() - 1;
        }
        uint64_t equal = 0, extra = 0;
        for (uint32_t source = 0; source < shape.ranks; source++) {
            const auto from = ids.begin() + static_cast<ptrdiff_t>(size_t{source} * m * shape.k);
            const auto counts = compare<TypeParam>(
                this->rig, shape, source, m,
                {from, from + static_cast<ptrdiff_t>(size_t{m} * shape.k)}, table);
            equal += counts.equal, extra += counts.extra;
            ASSERT_EQ(counts.lost + counts.replaced + counts.swapped, 0u);
        }
        ASSERT_EQ(equal, sound);
        ASSERT_EQ(extra, several);
        ASSERT_EQ(counted, contradictions);
        ignored += counted;
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
        const uint32_t rank = below(random, 4), m = 8;
        const Mode mode{repeat % 2 == 0, repeat % 4 < 2,
                        static_cast<int32_t>(1 + below(random, 4))};
        Handle<TypeParam> h =
            dispatch<TypeParam>(shape, route(shape, m, random), rank, m, mode, random);
        for (int32_t &n : h.recv_src_metadata) n = wild32();
        for (int32_t &n : h.psum_num_recv_tokens_per_expert) n = wild32();
        for (int32_t &n : h.psum_num_recv_tokens_per_scaleup_rank) n = wild32();
        for (TypeParam &n : h.recv_topk_idx) n = static_cast<TypeParam>(wild());
        const bool global = !mode.do_expand && below(random, 2) == 0;
        Table table(this->rig.device(), size_t{shape.ranks} * m * shape.k);
        read(this->rig, shape, rank, h, table, [&](routecap_received &r) {
            if (global) r.flags = ROUTECAP_RECEIVED_GLOBAL;
        });
        table.get();
        // Nor does a table of any numbers, or any ids.
        std::vector<int32_t> numbers(size_t{shape.ranks} * m * shape.k), ids(size_t{m} * shape.k);
        for (int32_t &n : numbers) n = wild32();
        for (int32_t &id : ids) id = wild32();
        table.set(numbers);
        const auto counts = compare<TypeParam>(this->rig, shape, rank, m, ids, table);
        EXPECT_EQ(table.get(), numbers);
        EXPECT_LE(counts.equal + counts.replaced + counts.swapped + counts.lost, counts.columns);
    }
}

// ---- Refusals -------------------------------------------------------------------------------

TEST(ReceivedRouting, refusals) {
    Rig rig({.shape = {.layers = 1, .k = 3, .experts = 16, .rows = 8}});
    auto *memory = static_cast<int32_t *>(rig.device().allocate(4096));
    const auto good = [&] {
        routecap_received r{};
        r.struct_size = sizeof r;
        r.ranks = 4;
        r.experts = 16;
        r.k = 3;
        r.tokens_per_rank = 4;
        r.rows = 2;
        r.tokens = 4;
        r.metadata = memory;
        r.ids = memory;
        r.topk_ids = memory;
        r.dtype = ROUTECAP_DTYPE_I32;
        r.executed = memory + 256;
        r.counts = reinterpret_cast<routecap_received_counts *>(memory + 512);
        return r;
    };
    const auto read = [&](auto change) {
        routecap_received r = good();
        change(r);
        return routecap_received_read(rig.capturer(), &r, rig.stream());
    };
    const auto compare = [&](auto change) {
        routecap_received r = good();
        change(r);
        return routecap_received_compare(rig.capturer(), &r, rig.stream());
    };
    const auto same = [](auto &) {};
    EXPECT_STATUS(ROUTECAP_OK, read(same));
    EXPECT_STATUS(ROUTECAP_OK, compare(same));
    for (auto change : std::initializer_list<void (*)(routecap_received &)>{
             [](auto &r) { r.flags = 4; }, [](auto &r) { r.ranks = 0; },
             [](auto &r) { r.ranks = 1025; }, [](auto &r) { r.rank = 4; },
             [](auto &r) { r.experts = 0; }, [](auto &r) { r.experts = 1u << 16; },
             [](auto &r) { r.k = 0; }, [](auto &r) { r.k = 33; },
             [](auto &r) { r.tokens_per_rank = 0; }, [](auto &r) { r.tokens_per_rank = 1u << 25; },
             [](auto &r) { r.executed = nullptr; }, [](auto &r) { r.counts = nullptr; }}) {
        EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, read(change));
        EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, compare(change));
    }
    for (int32_t dtype : {0, ROUTECAP_DTYPE_U8, ROUTECAP_DTYPE_I16}) {
        EXPECT_STATUS(ROUTECAP_ERR_DTYPE, read([&](auto &r) { r.dtype = dtype; }));
        EXPECT_STATUS(ROUTECAP_ERR_DTYPE, compare([&](auto &r) { r.dtype = dtype; }));
    }
    const auto three = [](auto &r) { r.ranks = 3; };
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, read(three));
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, compare(three));
    const auto small = [](auto &r) { r.struct_size = 8; };
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE, read(small));
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE, compare(small));

    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, read([](auto &r) { r.rows = 17; }));
    for (auto change : std::initializer_list<void (*)(routecap_received &)>{
             [](auto &r) { r.flags = 3; }, [](auto &r) { r.expanded_rows = 4; },
             [](auto &r) { r.expert_alignment = 8; }, [](auto &r) { r.metadata = nullptr; },
             [](auto &r) { r.ids = nullptr; }, [](auto &r) { r.expert_ends = r.metadata; },
             [](auto &r) { r.flags = ROUTECAP_RECEIVED_EXPANDED; },
             [](auto &r) { r.flags = ROUTECAP_RECEIVED_EXPANDED, r.ids = nullptr; },
             [](auto &r) {
                 r.flags = ROUTECAP_RECEIVED_EXPANDED, r.ids = nullptr, r.expert_ends = r.metadata,
                 r.expanded_rows = 1u << 31;
             }})
        EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, read(change));

    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, compare([](auto &r) { r.tokens = 5; }));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, compare([](auto &r) { r.topk_ids = nullptr; }));
    EXPECT_STATUS(ROUTECAP_OK, compare([](auto &r) { r.topk_ids = nullptr, r.tokens = 0; }));
}
