// The contract of sequence.h: budgets, shapes, refusals, bytes, and what is shared.
#include "calls.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <thread>

using namespace calls;

namespace {

TokenIds counted(size_t n, int32_t first = 1) {
    TokenIds tokens(n);
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
}

// Everything that a sequence says.
struct State {
    std::vector<uint8_t> bytes;
    uint64_t used;
    explicit State(const Sequence &sequence)
        : bytes(sequence.bytes(ROUTECAP_SEQUENCE_WITH_TOKENS)), used(sequence.sums().bytes) {}
    bool operator==(const State &) const = default;
};

// A call is submitted again after an abort and samples something else. Cells are missing in the
// retry's row before its first token, and in the aborted call's row before that, so that both rows
// are made of cells of both calls. The retry's row was made of the aborted call's cells as the
// other was, and said to be the retry's.
TEST(Sequence, a_retrys_row_before_its_first_token_is_its_own_beside_a_row_that_it_fills) {
    const TokenIds prompt = {11, 12, 13, 14, 15};
    const TokenIds aborted = prompt + TokenIds{21, 22, 23},
                   retried = prompt + TokenIds{41, 42, 43, 44};
    for (const bool hole : {false, true})
        for (const bool lacks : {false, true}) {
            Rows first = computed(aborted, 1), second = computed(retried, 2);
            Rows expected =
                Rows(first.begin(), first.begin() + 4) + Rows(second.begin() + 4, second.end());
            if (hole) first[3][0] = std::nullopt, expected[3][0] = second[3][0];
            if (lacks) second[4][1] = std::nullopt, expected[4][1] = first[4][1];
            Sequence sequence;
            sequence.append(aborted, routing_of(first, 0, 1));
            EXPECT_STATUS(ROUTECAP_OK, sequence.append(retried, routing_of(second, 0, 2),
                                                       {.prompt_tokens = prompt.size()}));
            EXPECT_EQ(sequence.rows(), expected) << hole << lacks;
            EXPECT_EQ(sequence.report.rows_replaced, 1u);
            const RoutingPtr routing = sequence.routing();
            const routecap_view view = view_of(routing.get());
            const uint64_t of_first =
                lacks ? 5 : 4;  // a row with a cell of the first call has its tag
            for (size_t s = 0; s < view.segment_count; s++)
                for (uint64_t r = 0; r < view.segments[s].rows; r++)
                    EXPECT_EQ(view.segments[s].tags != nullptr ? view.segments[s].tags[r]
                                                               : view.segments[s].tag,
                              view.segments[s].first + r < of_first ? 1u : 2u);
        }
}

// Samples of one prompt hold its rows once.
TEST(Sequence, samples_of_one_prompt_hold_its_rows_once) {
    const TokenIds prompt = counted(4000);
    Sequence parent;
    EXPECT_STATUS(ROUTECAP_OK, parent.append(prompt, routing_of(computed(prompt))));
    const uint64_t one = parent.sums().bytes;
    std::vector<Sequence> samples;
    for (int32_t s = 0; s < 8; s++) {
        samples.push_back(parent.fork());
        const TokenIds whole = prompt + TokenIds{s, s + 1, s + 2};
        EXPECT_STATUS(ROUTECAP_OK, samples.back().append(whole, routing_of(computed(whole))));
        EXPECT_EQ(samples.back().rows(), computed(whole));
    }
    const uint64_t tokens = 8 * 4003 * 4, page = 256 * (8 + 8) + 128;
    EXPECT_LE(parent.sums().bytes, one + tokens + 8 * page);
}

TEST(Sequence, a_routing_that_was_given_out_does_not_change) {
    Sequence sequence;
    TokenIds tokens = counted(3);
    std::vector<std::pair<RoutingPtr, Rows>> given;
    for (int32_t turn = 0; turn < 60; turn++) {  // in one page, token by token
        tokens.push_back(turn);
        EXPECT_STATUS(ROUTECAP_OK, sequence.append(tokens, routing_of(computed(tokens))));
        if (turn % 7 == 6) {
            EXPECT_STATUS(ROUTECAP_OK, routecap_sequence_truncate(sequence, tokens.size() - 4));
            tokens.resize(tokens.size() - 4);
        }
        given.emplace_back(sequence.routing(), computed(tokens));
    }
    Sequence child = sequence.fork(20);
    for (Sequence *each : {&sequence, &child}) {
        const TokenIds next = TokenIds(tokens.begin(), tokens.begin() + 20) +
                              TokenIds{each == &child ? 1000 : 2000, 1, 2, 3};
        EXPECT_STATUS(ROUTECAP_OK, each->append(next, routing_of(computed(next))));
        EXPECT_EQ(each->rows(), computed(next));
    }
    for (const auto &[routing, rows] : given) EXPECT_EQ(contents(routing.get(), kShape), rows);
}

// A hundred full calls of a conversation would hold a hundred large arrays.
TEST(Sequence, a_large_routing_is_not_kept_for_a_few_rows) {
    struct Released {
        int count = 0;
        static void note(void *context) { static_cast<Released *>(context)->count++; }
    } released;
    TokenIds tokens = counted(3000);
    Sequence sequence;
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(tokens, routing_of(computed(tokens))));
    const uint64_t one = sequence.sums().bytes;
    for (int32_t turn = 0; turn < 10; turn++) {
        tokens.push_back(turn);
        const RoutingPtr whole = routing_of(computed(tokens));
        std::vector<uint64_t> bytes;
        uint64_t needed = 0;
        ASSERT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                      routecap_routing_serialize(whole.get(), nullptr, 0, &needed));
        bytes.resize(needed / 8 + 1);
        ASSERT_STATUS(ROUTECAP_OK,
                      routecap_routing_serialize(whole.get(), bytes.data(), needed, nullptr));
        routecap_routing *lent = nullptr;
        ASSERT_STATUS(ROUTECAP_OK, routecap_routing_deserialize(bytes.data(), needed, 0,
                                                                Released::note, &released, &lent));
        EXPECT_STATUS(ROUTECAP_OK, sequence.append(tokens, RoutingPtr(lent)));
        EXPECT_EQ(released.count, turn + 1);  // the sequence does not hold on to it
    }
    EXPECT_EQ(sequence.rows(), computed(tokens));
    EXPECT_LE(sequence.sums().bytes, one + 2 * (256 * (7 + 8) + 128) + 40);
}

TEST(Sequence, rows_of_a_capturer_leave_its_budget_and_outlive_it) {
    Shape shape = kShape;
    shape.rows = 600;
    Sequence sequence(0, shape);
    {
        Rig rig({.shape = shape});
        const routecap_request request = rig.open();
        rig.land(rig.step({{request, {1, 0, 600}}}));
        RoutingPtr routing(rig.finish(request, 600));
        EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(routing.get(), -1));
        EXPECT_STATUS(ROUTECAP_OK, sequence.append(counted(601), routing));
        routing.reset();
        EXPECT_EQ(rig.bytes_in_use(), 0u);
    }
    EXPECT_EQ(sequence.rows(), routed_rows(shape, 1, 0, 600));
}

// ---- Budgets --------------------------------------------------------------------------------

TEST(Sequence, a_budget_refuses_and_changes_nothing) {
    const TokenIds some = counted(300), all = counted(900);
    Sequence sequence(8000);
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(some, routing_of(computed(some))));
    const State before(sequence);
    EXPECT_LE(before.used, 8000u);
    EXPECT_STATUS(ROUTECAP_ERR_NO_MEMORY, sequence.append(all, routing_of(computed(all))));
    EXPECT_STATUS(ROUTECAP_ERR_NO_MEMORY, sequence.append(counted(3000), nullptr));
    EXPECT_EQ(State(sequence), before);
    routecap_sequence *child = nullptr;
    std::vector<Sequence> forks;
    int32_t status = ROUTECAP_OK;
    while ((status = routecap_sequence_fork(sequence, 250, &child)) == ROUTECAP_OK)
        forks.emplace_back(child);
    EXPECT_STATUS(ROUTECAP_ERR_NO_MEMORY, status);
    EXPECT_EQ(child, nullptr);
    EXPECT_GE(forks.size(), 1u);
    forks.clear();
    EXPECT_EQ(State(sequence), before);
}

TEST(Sequence, what_is_freed_leaves_the_budget) {
    const TokenIds all = counted(500);
    Sequence sequence(20000);
    for (int turn = 0; turn < 50; turn++) {
        EXPECT_STATUS(ROUTECAP_OK, sequence.append(all, routing_of(computed(all))));
        { Sequence child = sequence.fork(); }
        EXPECT_STATUS(ROUTECAP_OK, routecap_sequence_truncate(sequence, 0));
        EXPECT_EQ(sequence.sums().bytes, 0u);
    }
}

// ---- Bytes ----------------------------------------------------------------------------------

// ---- Arguments ------------------------------------------------------------------------------

TEST(Sequence, refusals_name_what_is_wrong) {
    routecap_sequence *made = nullptr;
    routecap_sequence_config config{
        .struct_size = sizeof config, .layers = 3, .k = 2, .experts = 9};
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_sequence_create(&config, nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_sequence_create(nullptr, &made));
    config.weights_dtype = ROUTECAP_DTYPE_I16;
    EXPECT_STATUS(ROUTECAP_ERR_DTYPE, routecap_sequence_create(&config, &made));
    config.weights_dtype = 0, config.k = 10;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_sequence_create(&config, &made));
    config.k = 2, config.struct_size = 8;
    EXPECT_STATUS(ROUTECAP_ERR_STRUCT_SIZE, routecap_sequence_create(&config, &made));
    EXPECT_EQ(made, nullptr);

    Sequence sequence;
    const TokenIds all = counted(5);
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(all, routing_of(computed(all))));
    const State before(sequence);
    EXPECT_STATUS(ROUTECAP_ERR_OUT_OF_RANGE, sequence.append({1}, 6, nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_OUT_OF_RANGE, sequence.append(all, nullptr, {.prompt_tokens = 6}));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, sequence.append(all, nullptr, {.policy = 3}));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, sequence.append(all, nullptr, {.flags = 1}));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_sequence_append(sequence, nullptr, 0, 1, nullptr, nullptr, nullptr));
    EXPECT_STATUS(
        ROUTECAP_ERR_OUT_OF_RANGE,
        routecap_sequence_append(sequence, all.data(), 5, UINT64_MAX, nullptr, nullptr, nullptr));
    Sequence other(0, {.layers = 3, .k = 2, .experts = 201});
    EXPECT_STATUS(ROUTECAP_ERR_SHAPE_MISMATCH, other.append(all, routing_of(computed(all))));
    routecap_sequence *child = nullptr;
    EXPECT_STATUS(ROUTECAP_ERR_OUT_OF_RANGE, routecap_sequence_fork(sequence, 6, &child));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_sequence_fork(nullptr, 0, &child));
    uint64_t count = 0;
    EXPECT_STATUS(ROUTECAP_ERR_OUT_OF_RANGE,
                  routecap_sequence_tokens(sequence, 6, nullptr, 0, &count));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_sequence_spans(sequence, nullptr, 40, 1, &count));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT,
                  routecap_sequence_serialize(sequence, 2, nullptr, 0, &count));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_sequence_deserialize(nullptr, 9, 0, &made));
    routecap_sequence_free(nullptr);
    EXPECT_EQ(State(sequence), before);
}

TEST(Sequence, a_forked_process_cannot_use_it) {
    Sequence sequence;
    EXPECT_STATUS(ROUTECAP_OK, sequence.append({1, 2}, 0, routing_of(computed({1, 2}))));
    const pid_t child = fork();
    if (child == 0) {
        uint64_t count = 0;
        const bool ok =
            routecap_sequence_truncate(sequence, 0) == ROUTECAP_ERR_FORKED &&
            routecap_sequence_tokens(sequence, 0, nullptr, 0, &count) == ROUTECAP_ERR_FORKED;
        routecap_sequence_free(sequence);
        _exit(ok ? 0 : 1);
    }
    int status = 1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

// ---- Threads --------------------------------------------------------------------------------

// Forks share pages and a budget. Each has a thread, while others read what was given out.
TEST(Sequence, forks_may_be_used_by_threads_of_their_own) {
    const TokenIds prompt = counted(300);
    Sequence parent(1 << 22);
    EXPECT_STATUS(ROUTECAP_OK, parent.append(prompt, routing_of(computed(prompt))));
    const RoutingPtr shared = parent.routing();
    std::vector<std::thread> threads;
    for (int32_t t = 0; t < 4; t++)
        threads.emplace_back([&, t, child = std::make_shared<Sequence>(parent.fork())] {
            TokenIds tokens = prompt;
            for (int32_t turn = 0; turn < 40; turn++) {
                tokens.push_back(t * 1000 + turn);
                ASSERT_STATUS(ROUTECAP_OK,
                              child->append(tokens, routing_of(computed(tokens), 0,
                                                               static_cast<uint64_t>(turn / 7))));
                if (turn % 9 == 8) {
                    ASSERT_STATUS(ROUTECAP_OK, routecap_sequence_truncate(*child, 295));
                    tokens.resize(295);
                }
                Sequence again = child->fork();
                ASSERT_EQ(contents(shared.get(), kShape).size(), 299u);
            }
            ASSERT_EQ(child->rows(), computed(tokens));
        });
    TokenIds tokens = prompt;
    for (int32_t turn = 0; turn < 40; turn++) {
        tokens.push_back(turn);
        ASSERT_STATUS(ROUTECAP_OK, parent.append(tokens, routing_of(computed(tokens))));
    }
    for (std::thread &thread : threads) thread.join();
    EXPECT_EQ(parent.rows(), computed(tokens));
}

}  // namespace
