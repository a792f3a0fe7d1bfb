// How conversations were put together wrongly, each in a few lines as it was done, with the rows
// that come out; and the same calls given to a sequence.
#include "calls.h"

#include <numeric>

using namespace calls;

namespace {

// Prompts and answers of a small conversation.
const TokenIds kPrompt = {11, 12, 13, 14, 15}, kAnswer = {21, 22, 23}, kTool = {31, 32, 33, 34},
               kSecond = {41, 42, 43, 44};

// How many of the first rows are those that are right; and how many there are in all.
size_t right(const Rows &rows, const Rows &truth) {
    size_t n = 0;
    for (size_t r = 0; r < std::min(rows.size(), truth.size()); r++) n += rows[r] == truth[r];
    return n;
}

// AReaL 1.0.4 and verl #6029: a call is aborted and submitted again with what it had sampled. Both
// answers have all rows, and the arrays are joined one behind the other.
TEST(Assembly, a_call_that_was_aborted_and_submitted_again_has_each_row_once) {
    const TokenIds part = kPrompt + kAnswer, whole = part + kSecond;
    const Rows first = computed(part), again = computed(whole, 1);
    const Rows truth = first + Rows(again.begin() + 7, again.end());

    const Rows wrong = first + again;
    EXPECT_EQ(wrong.size(), 18u);  // of 11
    EXPECT_EQ(right(wrong, truth), 7u);

    Sequence sequence;
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(part, routing_of(first), {.tag = 3}));
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(whole, routing_of(again), {.tag = 4}));
    EXPECT_EQ(sequence.rows(), truth);
    EXPECT_EQ(sequence.report.rows_overlap, 7u);
    EXPECT_EQ(sequence.report.rows_boundary, 1u);
    EXPECT_EQ(sequence.report.rows_taken, 4u);
}

// verl #6046, #6054 and #7222: each turn's rows take the place of all before, so that tokens of
// earlier turns have rows of a prefill that did not sample them.
TEST(Assembly, turns_keep_the_rows_with_which_their_tokens_were_sampled) {
    const TokenIds turn1 = kPrompt + kAnswer, turn2 = turn1 + kTool + kSecond;
    const Rows rows1 = computed(turn1, 1), rows2 = computed(turn2, 2);
    const Rows truth = rows1 + Rows(rows2.begin() + 7, rows2.end());

    EXPECT_EQ(right(rows2, truth), 8u);  // of 15

    Sequence sequence;
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(turn1, routing_of(rows1)));
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(turn2, routing_of(rows2)));
    EXPECT_EQ(sequence.rows(), truth);
    EXPECT_EQ(sequence.report.rows_differed, 7u);
    EXPECT_EQ(sequence.report.first_differed, 0u);
}

// miles: each turn is sent without its prefix, and the last one is assigned, not joined.
TEST(Assembly, turns_that_come_without_their_prefix_are_joined) {
    const TokenIds turn1 = kPrompt + kAnswer, turn2 = turn1 + kTool + kSecond;
    const Rows all = computed(turn2);
    const Rows rows2(all.begin() + 7, all.end());

    EXPECT_EQ(right(rows2, all), 0u);

    Sequence sequence;
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(turn1, routing_of(computed(turn1))));
    EXPECT_STATUS(ROUTECAP_OK,
                  sequence.append(kTool + kSecond, turn1.size(), routing_of(rows2, 7)));
    EXPECT_EQ(sequence.rows(), all);
    EXPECT_EQ(sequence.report.rows_boundary, 1u);
}

// miles #3277: a decode is retracted, its rows are computed again, and the answer pairs the
// probabilities of the first decode with the rows of the second.
TEST(Assembly, rows_of_a_retracted_decode_stay_with_its_tokens) {
    const TokenIds streamed = kPrompt + kAnswer, whole = streamed + kSecond;
    const Rows decoded = computed(streamed, 1), again = computed(whole, 2);
    const Rows truth = decoded + Rows(again.begin() + 7, again.end());

    EXPECT_EQ(right(again, truth), 4u);  // the answer's own array

    // The stream's parts are appended as they come. They share a number, the answer has it too.
    Sequence sequence;
    const routecap_append_options call{.prompt_tokens = 5, .call = 1};
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(streamed, routing_of(decoded), call));
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(whole, routing_of(again), call));
    EXPECT_EQ(sequence.rows(), truth);
    EXPECT_EQ(sequence.report.rows_differed, 7u);
}

// verifiers 0.4.0: the last token has no row yet, and a copy of the row before it is sent in its
// place.
TEST(Assembly, a_copy_in_the_place_of_the_last_row_is_not_taken) {
    const TokenIds turn1 = kPrompt + kAnswer, turn2 = turn1 + kTool;
    const Rows truth = computed(turn2);
    Rows padded = computed(turn1);
    padded.push_back(padded.back());  // 8 rows of 8 tokens

    const Rows wrong = padded + Rows(truth.begin() + 8, truth.end());
    EXPECT_EQ(wrong.size(), truth.size());
    EXPECT_EQ(right(wrong, truth), 10u);  // of 11: the row at the boundary is wrong

    Sequence sequence;
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(turn1, routing_of(padded)));
    EXPECT_EQ(sequence.report.rows_beyond, 1u);
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(turn2, routing_of(truth)));
    EXPECT_EQ(sequence.rows(), truth);
    EXPECT_EQ(sequence.report.rows_differed, 0u);
    EXPECT_EQ(sequence.report.rows_boundary, 1u);
}

// AReno #524: the chat template renders the last answer otherwise when a message follows it (here
// without its thoughts). The new call shares fewer tokens than were kept, and the kept count is cut
// from its rows.
TEST(Assembly, a_template_that_renders_earlier_tokens_otherwise_cuts_where_it_differs) {
    const TokenIds turn1 = kPrompt + kAnswer;
    const TokenIds turn2 = kPrompt + TokenIds{22, 23} + kTool + kSecond;  // token 5 is another
    const Rows rows1 = computed(turn1), rows2 = computed(turn2);

    Rows wrong(rows1);
    wrong.insert(wrong.end(), rows2.begin() + static_cast<ptrdiff_t>(rows1.size()), rows2.end());
    EXPECT_EQ(wrong.size(), rows2.size());
    EXPECT_EQ(right(wrong, rows2), rows2.size() - 2);  // rows 5 and 6 are of tokens that are gone

    Sequence sequence;
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(turn1, routing_of(rows1)));
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(turn2, routing_of(rows2)));
    EXPECT_EQ(sequence.rows(), rows2);
    EXPECT_EQ(sequence.report.tokens_common, 5u);
    EXPECT_EQ(sequence.report.tokens_cut, 3u);
    EXPECT_EQ(sequence.report.rows_cut, 2u);
}

// verl #6089: the response is cut at a stop string, its rows are not (17,804 rows beside 18,057).
TEST(Assembly, rows_behind_a_stop_are_not_taken) {
    const TokenIds issued =
                       kPrompt + TokenIds{21, 22, 23, 24, 25},  // drafts were accepted behind it
        stopped = kPrompt + TokenIds{21, 22}, next = stopped + kTool;
    EXPECT_NE(computed(issued).size(), stopped.size() - 1);

    Sequence sequence;
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(stopped, routing_of(computed(issued))));
    EXPECT_EQ(sequence.rows(), computed(stopped));
    EXPECT_EQ(sequence.report.rows_beyond, 3u);
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(next, routing_of(computed(next))));
    EXPECT_EQ(sequence.rows(), computed(next));
}

// strands-sglang #72: rows from a start on are asked for, and the server sends all.
TEST(Assembly, a_server_that_sends_all_rows_where_some_were_asked_for_is_noticed) {
    const TokenIds turn1 = kPrompt + kAnswer, turn2 = turn1 + kTool;
    const Rows all = computed(turn2);

    const Rows wrong = computed(turn1) + all;  // "they begin at 7"
    EXPECT_NE(wrong.size(), all.size());

    Sequence sequence;
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(turn1, routing_of(computed(turn1))));
    // Whoever believes the start has rows at positions that no token has.
    Sequence believes = sequence.fork();
    EXPECT_STATUS(ROUTECAP_OK, believes.append(turn2, routing_of(all, 7)));
    EXPECT_EQ(believes.report.rows_beyond, 7u);
    // Positions as they are: nothing is taken twice.
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(turn2, routing_of(all)));
    EXPECT_EQ(sequence.report.rows_beyond, 0u);
    EXPECT_EQ(sequence.rows(), all);
}

// SkyRL, verl, prime-rl and twinkle: rows that are not there are zeros, which are expert 0.
TEST(Assembly, a_hole_stays_a_hole_until_a_call_fills_it) {
    const TokenIds turn1 = kPrompt + kAnswer, turn2 = turn1 + kTool;
    Rows cached = computed(turn1);  // rows 0 to 3 came from a prefix cache
    for (size_t r = 0; r < 4; r++) cached[r] = Row(kShape.layers);

    Sequence sequence;
    EXPECT_STATUS(ROUTECAP_INCOMPLETE, sequence.append(turn1, routing_of(cached)));
    EXPECT_EQ(sequence.rows(), cached);
    EXPECT_EQ(sequence.report.rows_missing, 4u);
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(turn2, routing_of(computed(turn2))));
    EXPECT_EQ(sequence.rows(), computed(turn2));
    EXPECT_EQ(sequence.report.rows_filled, 4u);
}

// verl #6046, NeMo-RL #4018, miles #2782: weights change while a sample is made. Each row keeps the
// version with which its token was sampled, and rows that a cache served from older weights show.
TEST(Assembly, a_partial_rollout_over_versions_of_the_weights_says_which_row_is_of_which) {
    const TokenIds part = kPrompt + kAnswer, whole = part + kSecond;
    Sequence sequence;
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(part, routing_of(computed(part, 1), 0, 71),
                                               {.tag = 71, .origin = 1}));
    EXPECT_STATUS(ROUTECAP_OK, sequence.append(whole, routing_of(computed(whole, 2), 0, 72),
                                               {.tag = 72, .origin = 2}));
    const auto spans = sequence.spans();
    ASSERT_EQ(spans.size(), 2u);
    EXPECT_EQ(spans[0].first + spans[0].rows, 7u);
    EXPECT_EQ(spans[0].tag, 71u);
    EXPECT_EQ(spans[1].rows, 4u);
    EXPECT_EQ(spans[1].call, 2u);
    EXPECT_EQ(spans[1].tag, 72u);
    EXPECT_EQ(spans[1].origin, 2u);
    const RoutingPtr routing = sequence.routing();
    const routecap_view view = view_of(routing.get());
    for (size_t s = 0; s < view.segment_count; s++)  // rows keep their own tags
        for (uint64_t r = 0; r < view.segments[s].rows; r++)
            EXPECT_EQ(
                view.segments[s].tags != nullptr ? view.segments[s].tags[r] : view.segments[s].tag,
                view.segments[s].first + r < 7 ? 71u : 72u);
}

// A call is submitted again after an abort and samples something else.
TEST(Assembly, a_retry_that_samples_otherwise_has_its_own_row_before_its_first_token) {
    const TokenIds aborted = kPrompt + kAnswer, retried = kPrompt + kSecond;
    const Rows first = computed(aborted, 1), second = computed(retried, 2);
    for (const bool told : {false, true}) {
        Sequence sequence;
        EXPECT_STATUS(ROUTECAP_OK, sequence.append(aborted, routing_of(first)));
        EXPECT_STATUS(ROUTECAP_OK, sequence.append(retried, routing_of(second),
                                                   {.prompt_tokens = told ? kPrompt.size() : 0}));
        // Row 4 is that from which token 5 was sampled: now by the retry.
        const ptrdiff_t kept = told ? 4 : 5;
        EXPECT_EQ(sequence.rows(), Rows(first.begin(), first.begin() + kept) +
                                       Rows(second.begin() + kept, second.end()));
        EXPECT_EQ(sequence.report.rows_replaced, told ? 1u : 0u);
    }
}

// The same where cells are missing: in the retry's row before its first token, and in the aborted
// call's row before that, so that both rows are made of cells of both calls. That row was made of
// the aborted call's cells as the other was, and said to be the retry's.
TEST(Assembly, a_retrys_row_before_its_first_token_is_its_own_beside_a_row_that_it_fills) {
    const TokenIds aborted = kPrompt + kAnswer, retried = kPrompt + kSecond;
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
                                                       {.prompt_tokens = kPrompt.size()}));
            EXPECT_EQ(sequence.rows(), expected) << hole << lacks;
            EXPECT_EQ(sequence.report.rows_replaced, 1u);
            const RoutingPtr routing = sequence.routing();
            const routecap_view view = view_of(routing.get());
            const uint64_t of_first = lacks ? 5 : 4;  // a row with a cell of the first call has its tag
            for (size_t s = 0; s < view.segment_count; s++)
                for (uint64_t r = 0; r < view.segments[s].rows; r++)
                    EXPECT_EQ(view.segments[s].tags != nullptr ? view.segments[s].tags[r]
                                                               : view.segments[s].tag,
                              view.segments[s].first + r < of_first ? 1u : 2u);
        }
}

// Samples of one prompt hold its rows once.
TEST(Assembly, samples_of_one_prompt_hold_its_rows_once) {
    TokenIds prompt(4000);
    std::iota(prompt.begin(), prompt.end(), 1);
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
    const uint64_t tokens = 8 * 4003 * 4, page = 256 * 7 + 128;
    EXPECT_LE(parent.sums().bytes, one + tokens + 8 * page);
}

}  // namespace
