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

TEST(Sequence, an_empty_one_has_no_rows) {
    Sequence sequence;
    EXPECT_EQ(sequence.rows(), Rows{});
    EXPECT_EQ(sequence.sums().tokens, 0u);
    EXPECT_EQ(sequence.sums().bytes, 0u);
    EXPECT_EQ(sequence.sums().first_differed, ROUTECAP_ROWS_ALL);
    EXPECT_STATUS(ROUTECAP_OK, sequence.append({5}, nullptr));
    EXPECT_EQ(sequence.rows(), Rows{});  // one token has no row
    EXPECT_STATUS(ROUTECAP_INCOMPLETE, sequence.append({5, 6}, nullptr));
    EXPECT_EQ(sequence.rows(), missing_rows(kShape, 1));
}

TEST(Sequence, a_delta_without_the_boundary_row_leaves_a_hole_there) {
    const TokenIds all = counted(9);
    Sequence sequence;
    const Rows rows = computed(all);
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(counted(5), routing_of(computed(counted(5)))));
    EXPECT_STATUS(ROUTECAP_INCOMPLETE,
                  sequence.append(counted(4, 6), 5, routing_of({rows[5], rows[6], rows[7]}, 5)));
    Rows expected = rows;
    expected[4] = Row(kShape.layers);
    EXPECT_EQ(sequence.rows(), expected);
    EXPECT_EQ(sequence.report.rows_missing, 1u);
    // Rows alone, for tokens that are known.
    EXPECT_STATUS(ROUTECAP_OK, sequence.append({}, 9, routing_of({rows[4]}, 4)));
    EXPECT_EQ(sequence.rows(), rows);
    EXPECT_EQ(sequence.report.rows_filled, 1u);
}

TEST(Sequence, a_call_that_ends_earlier_cuts_nothing) {
    const TokenIds all = counted(9);
    Sequence sequence;
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(all, routing_of(computed(all))));
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(counted(4), routing_of(computed(counted(4), 1))));
    EXPECT_EQ(sequence.rows(), computed(all));
    EXPECT_EQ(sequence.report.tokens, 9u);
    EXPECT_EQ(sequence.report.tokens_common, 4u);
    EXPECT_EQ(sequence.report.rows_differed, 3u);
}

TEST(Sequence, cells_of_two_calls_make_one_row_and_the_first_has_it) {
    const TokenIds all = counted(4);
    const Rows rows = computed(all);
    Rows some = rows, others = rows;
    for (Row &row : some) row[1] = std::nullopt;
    for (Row &row : others) row[0] = std::nullopt;
    Sequence sequence;
    EXPECT_STATUS(ROUTECAP_INCOMPLETE, sequence.append(all, routing_of(some, 0, 1)));
    EXPECT_EQ(sequence.rows(), some);
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(all, routing_of(others, 0, 2)));
    EXPECT_EQ(sequence.rows(), rows);
    EXPECT_EQ(sequence.report.rows_filled, 3u);
    ASSERT_EQ(sequence.spans().size(), 1u);
    EXPECT_EQ(sequence.spans()[0].call, 1u);
}

TEST(Sequence, the_newest_rows_take_the_place_of_others_where_that_is_asked_for) {
    const TokenIds all = counted(6);
    const Rows old = computed(all, 1);
    Rows now = computed(all, 2);
    now[3] = Row(kShape.layers);  // which it lacks
    now[4][2] = std::nullopt;
    Sequence sequence;
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(all, routing_of(old)));
    EXPECT_STATUS(ROUTECAP_OK,
                  sequence.append(all, routing_of(now), {.policy = ROUTECAP_APPEND_NEWEST}));
    now[3] = old[3];
    now[4][2] = old[4][2];
    EXPECT_EQ(sequence.rows(), now);
    EXPECT_EQ(sequence.report.rows_replaced, 4u);
    const auto spans = sequence.spans();
    ASSERT_EQ(spans.size(), 3u);
    EXPECT_EQ(spans[0].call, 2u);
    EXPECT_EQ(spans[1].call, 1u);
    EXPECT_EQ(spans[1].first, 3u);
    EXPECT_EQ(spans[2].call, 2u);
}

TEST(Sequence, where_equality_is_insisted_on_nothing_else_is_taken) {
    const TokenIds all = counted(6);
    Sequence sequence;
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(all, routing_of(computed(all))));
    const State before(sequence);
    const routecap_append_options equal{.policy = ROUTECAP_APPEND_EQUAL};
    EXPECT_STATUS(ROUTECAP_ERR_CONFLICT,
                  sequence.append(counted(8), routing_of(computed(counted(8), 1)), equal));
    EXPECT_NE(std::strstr(routecap_last_error(), "row 0"), nullptr);
    EXPECT_STATUS(ROUTECAP_ERR_CONFLICT, sequence.append({1, 2, 9}, nullptr, equal));
    EXPECT_NE(std::strstr(routecap_last_error(), "token 2"), nullptr);
    EXPECT_EQ(State(sequence), before);
    Rows turned = computed(counted(8));  // the same sets
    for (Row &row : turned)
        for (Cell &cell : row) std::reverse(cell->begin(), cell->end());
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(counted(8), routing_of(turned), equal));
    EXPECT_EQ(sequence.report.rows_differed, 0u);
}

TEST(Sequence, a_cut_one_has_the_row_of_its_last_token_again_when_another_follows) {
    const TokenIds all = counted(9);
    Sequence sequence;
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(all, routing_of(computed(all))));
    EXPECT_STATUS(ROUTECAP_OK, routecap_sequence_truncate(sequence, 5));
    EXPECT_EQ(sequence.rows(), computed(counted(5)));
    const TokenIds other = counted(5) + TokenIds{99, 98};
    const Rows rows = computed(other);
    EXPECT_STATUS(ROUTECAP_OK, sequence.append({99, 98}, 5, routing_of({rows[5]}, 5)));
    EXPECT_EQ(sequence.rows(), rows);
    EXPECT_STATUS(ROUTECAP_OK, routecap_sequence_truncate(sequence, 100));
    EXPECT_EQ(sequence.rows(), rows);
    EXPECT_STATUS(ROUTECAP_OK, routecap_sequence_truncate(sequence, 0));
    EXPECT_EQ(sequence.sums().bytes, 0u);
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
        routecap_routing_serialize(whole.get(), 0, nullptr, 0, &needed);
        bytes.resize(needed / 8 + 1);
        ASSERT_STATUS(ROUTECAP_OK,
                      routecap_routing_serialize(whole.get(), 0, bytes.data(), needed, nullptr));
        routecap_routing *lent = nullptr;
        ASSERT_STATUS(ROUTECAP_OK, routecap_routing_deserialize(bytes.data(), needed, 0,
                                                                Released::note, &released, &lent));
        EXPECT_STATUS(ROUTECAP_OK, sequence.append(tokens, RoutingPtr(lent)));
        EXPECT_EQ(released.count, turn + 1);  // the sequence does not hold on to it
    }
    EXPECT_EQ(sequence.rows(), computed(tokens));
    EXPECT_LE(sequence.sums().bytes, one + 2 * (256 * 7 + 128) + 40);
}

TEST(Sequence, rows_of_a_capturer_are_shared_and_outlive_it) {
    Shape shape = kShape;
    shape.rows = 600;
    Sequence sequence(0, shape);
    {
        Rig rig({.shape = shape});
        const routecap_request request = rig.open();
        rig.land(rig.step({{request, {1, 0, 600}}}));
        const RoutingPtr routing(rig.finish(request, 600));
        EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(routing.get(), -1));
        EXPECT_STATUS(ROUTECAP_OK, sequence.append(counted(601), routing));
    }
    EXPECT_EQ(sequence.rows(), routed_rows(shape, 1, 0, 600));
}

TEST(Sequence, a_pending_routing_is_refused) {
    Rig rig({.shape = {.layers = 3, .k = 2, .experts = 200, .rows = 8}, .held = true});
    const routecap_request request = rig.open();
    rig.step({{request, {1, 0, 4}}});
    const RoutingPtr routing(rig.finish(request, 4));
    Sequence sequence;
    EXPECT_STATUS(ROUTECAP_ERR_NOT_READY, sequence.append(counted(5), routing));
    rig.open_gate();
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(counted(5), routing));
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

Sequence from_bytes(const std::vector<uint8_t> &bytes, int32_t expected = ROUTECAP_OK,
                    uint64_t budget_bytes = 0) {
    routecap_sequence *made = nullptr;
    EXPECT_STATUS(expected,
                  routecap_sequence_deserialize(bytes.data(), bytes.size(), budget_bytes, &made));
    EXPECT_EQ(made == nullptr, expected < 0);
    return Sequence(made);
}

TEST(Sequence, bytes_with_tokens_are_the_whole_sequence) {
    const TokenIds turn1 = counted(70), turn2 = counted(150);
    Sequence sequence;
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(turn1, routing_of(computed(turn1, 1)), {.tag = 5}));
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(turn2, routing_of(computed(turn2, 2)), {.tag = 6}));
    const auto bytes = sequence.bytes(ROUTECAP_SEQUENCE_WITH_TOKENS);
    Sequence again = from_bytes(bytes);
    EXPECT_EQ(again.bytes(ROUTECAP_SEQUENCE_WITH_TOKENS), bytes);
    EXPECT_EQ(again.rows(), sequence.rows());
    EXPECT_EQ(again.spans().size(), 2u);
    const TokenIds turn3 = counted(160);
    EXPECT_STATUS(ROUTECAP_OK, again.append(counted(10, 151), 150,
                                            routing_of(computed(turn3, 149, 159, 2), 149)));
    EXPECT_EQ(again.report.call, 3u);
    EXPECT_EQ(again.report.rows_boundary, 1u);
    from_bytes(bytes, ROUTECAP_ERR_NO_MEMORY, 500);
}

TEST(Sequence, bytes_without_tokens_know_them_again_by_their_digests) {
    const TokenIds all = counted(150);
    Sequence sequence;
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(all, routing_of(computed(all))));
    const auto bytes = sequence.bytes(0);
    EXPECT_LT(bytes.size() + 500, sequence.bytes(ROUTECAP_SEQUENCE_WITH_TOKENS).size());
    {  // the same tokens and more
        Sequence again = from_bytes(bytes);
        EXPECT_EQ(again.rows(), sequence.rows());
        uint64_t count = 0;
        EXPECT_STATUS(ROUTECAP_ERR_STATE, routecap_sequence_tokens(again, 0, nullptr, 0, &count));
        EXPECT_STATUS(ROUTECAP_ERR_STATE, again.append({7}, 150, nullptr));
        EXPECT_STATUS(ROUTECAP_ERR_STATE, again.append(counted(149), nullptr));
        EXPECT_STATUS(ROUTECAP_ERR_STATE, routecap_sequence_truncate(again, 100));
        const TokenIds more = counted(170);
        EXPECT_STATUS(ROUTECAP_OK, again.append(more, routing_of(computed(more, 1))));
        EXPECT_EQ(again.report.tokens_common, 150u);
        EXPECT_EQ(again.report.rows_differed, 149u);
        EXPECT_STATUS(ROUTECAP_OK, routecap_sequence_tokens(again, 0, nullptr, 0, &count));
        EXPECT_EQ(count, 170u);
    }
    {  // other tokens from 140 on: what is before the block that they are in is kept
        Sequence again = from_bytes(bytes);
        TokenIds other = all;
        other[140] = 0;
        EXPECT_STATUS(ROUTECAP_OK, again.append(other, routing_of(computed(other))));
        EXPECT_EQ(again.report.tokens_common, 128u);
        EXPECT_EQ(again.report.rows_cut, 149u - 128u);
        EXPECT_EQ(again.rows(), computed(other));
    }
    Sequence again = from_bytes(bytes);
    EXPECT_STATUS(ROUTECAP_OK, routecap_sequence_truncate(again, 128));
    EXPECT_EQ(again.rows(), computed(counted(128)));
}

TEST(Sequence, damaged_bytes_are_refused) {
    const TokenIds all = counted(150);
    Sequence sequence;
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(all, routing_of(computed(all))));
    const auto bytes = sequence.bytes(ROUTECAP_SEQUENCE_WITH_TOKENS);
    for (size_t at = 0; at < bytes.size(); at++) {
        auto damaged = bytes;
        damaged[at] = static_cast<uint8_t>(damaged[at] ^ 1);
        from_bytes(damaged, ROUTECAP_ERR_FORMAT);
    }
    for (size_t size = 1; size < bytes.size(); size += size < 1000 ? 1 : 97)
        from_bytes({bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size)},
                   ROUTECAP_ERR_FORMAT);
}

// ---- Arguments ------------------------------------------------------------------------------

TEST(Sequence, refusals_name_what_is_wrong) {
    routecap_sequence *made = nullptr;
    routecap_sequence_config config{
        .struct_size = sizeof config, .layers = 3, .k = 2, .experts = 9};
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_sequence_create(&config, nullptr));
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_sequence_create(nullptr, &made));
    config.reserved = 1;
    EXPECT_STATUS(ROUTECAP_ERR_ARGUMENT, routecap_sequence_create(&config, &made));
    config.reserved = 0, config.k = 10;
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

TEST(Sequence, a_layer_that_is_recomputed_in_a_routing_is_recomputed_in_it) {
    const TokenIds all = counted(3);
    const RoutingPtr captured = routing_of(computed(all));
    routecap_view view = view_of(captured.get());
    const int32_t provenance[] = {0, ROUTECAP_PROVENANCE_RECOMPUTED, 0};
    view.layer_provenance = provenance;
    routecap_routing *recomputed = nullptr;
    ASSERT_STATUS(ROUTECAP_OK, routecap_routing_import(&view, 0, nullptr, nullptr, &recomputed));
    Sequence sequence;
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(all, captured));
    const RoutingPtr before = sequence.routing();
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(all, RoutingPtr(recomputed)));
    EXPECT_EQ(view_of(before.get()).layer_provenance[1], 0);
    EXPECT_EQ(view_of(sequence.routing().get()).layer_provenance[1], 1);
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
