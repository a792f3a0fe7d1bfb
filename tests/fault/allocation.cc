// Memory that runs out, one allocation after another, where rows are filed and where the wire's
// formats and sequences are made: the call says so, and nothing is wrong, stays charged, or ends the
// process. Whatever else a capturer or a store does is in loops.cc.
#include <rig.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

namespace {

// The allocation of this thread that fails: 1 is the next; 0: none.
thread_local uint64_t fail_at = 0;
thread_local bool failed = false;
// Allocations after it that fail too.
thread_local uint64_t more_fail = 0;

bool may_allocate() {
    if (fail_at == 0 || --fail_at > 0) return true;
    failed = true;
    if (more_fail > 0) more_fail--, fail_at = 1;
    return false;
}

}  // namespace

#include <replace_new.h>

namespace {

using namespace rig;

// Runs `call` with its n-th allocation failing. False if it needed fewer.
template <class Call>
bool with_failure(uint64_t n, Call call) {
    failed = false;
    fail_at = n;
    call();
    fail_at = 0;
    return failed;
}

void expect_sum(const routecap_stats &s) {
    EXPECT_EQ(s.rows_issued, s.rows_in_flight + s.rows_provisional + s.rows_delivered +
                                 s.rows_missing + s.rows_lost + s.rows_late + s.rows_rejected +
                                 s.rows_unplaced + s.rows_refused);
}

// Filing is one thing after another here, on this thread, so that every allocation in it can be
// made to fail.
const Options kOptions{
    .shape = {.layers = 3, .k = 2, .experts = 300, .rows = 600}, .slots = 8, .held = true};

}  // namespace

TEST(Allocation, nothing_stays_in_use) {
    bool more = true;
    for (uint64_t n = 1; more; n++) {
        SCOPED_TRACE(n);
        Rig rig(kOptions);
        const routecap_request a = rig.open();
        rig.step({{a, {1, 0, 300}}}, 0);
        const routecap_step t = rig.step({{a, {1, 300, 300}}}, ROUTECAP_SPAN_SPECULATIVE);
        ASSERT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), a, t, nullptr, 200));
        int32_t progress = -1;
        more = with_failure(n, [&] { progress = routecap_capturer_progress(rig.capturer()); });
        EXPECT_STATUS(ROUTECAP_OK, progress);
        rig.close(a);
        EXPECT_EQ(rig.bytes_in_use(), 0u);
        expect_sum(rig.stats());
    }
}

// They were ABSENT. The list of drafts has room from the first, which is accepted before.
TEST(Allocation, drafts_without_memory_are_refused) {
    bool more = true;
    uint64_t refused = 0;
    for (uint64_t n = 1; more; n++) {
        SCOPED_TRACE(n);
        Rig rig(kOptions);
        const routecap_request a = rig.open();
        const auto draft = [&](uint64_t first, uint32_t rows) {
            const routecap_step t = rig.step({{a, {1, first, rows}}}, ROUTECAP_SPAN_SPECULATIVE);
            ASSERT_STATUS(ROUTECAP_OK,
                          routecap_request_accept(rig.capturer(), a, t, nullptr, rows));
        };
        draft(0, 1);
        rig.open_gate();
        draft(1, 300);
        int32_t progress = -1;
        more = with_failure(n, [&] { progress = routecap_capturer_progress(rig.capturer()); });
        EXPECT_STATUS(ROUTECAP_OK, progress);
        rig.open_gate();
        rig.expect_length(a, 301);
        std::vector<routecap_missing> missing(16);
        routecap_coverage covered{};
        covered.struct_size = sizeof covered;
        EXPECT_GE(routecap_request_coverage(rig.capturer(), a, 0, ROUTECAP_ROWS_ALL, &covered,
                                            missing.data(), sizeof missing[0], missing.size()),
                  0);
        for (uint64_t b = 0; b < covered.blocks; b++)
            EXPECT_EQ(ROUTECAP_MISSING_REFUSED, missing[b].reason);
        EXPECT_EQ(covered.rows_empty, rig.stats().rows_refused);
        refused += covered.rows_empty == 300;
        expect_sum(rig.stats());
    }
    EXPECT_GE(refused, 2u) << "the positions of the drafts, and their page";
}

// Begin waits for a step to be filed while a finish waits for memory. It tried without a pause.
TEST(Allocation, begin_pauses_while_nothing_can_be_filed) {
    Rig rig(kOptions);
    const routecap_request a = rig.open(), b = rig.open();
    rig.step({{a, {1, 0, 4}}});
    rig.open_gate();
    const RoutingPtr routing(rig.finish(a, ROUTECAP_ROWS_ALL));
    for (uint64_t i = 0; i < kOptions.slots; i++) rig.step({{b, {2, i, 1}}});
    const auto began = std::chrono::steady_clock::now();
    more_fail = 19;
    EXPECT_TRUE(with_failure(1, [&] { EXPECT_STATUS(ROUTECAP_OK, rig.begin(1)); }));
    EXPECT_EQ(0u, more_fail);
    EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(20));
}

// An issue that is to take the snapshot makes its memory first. If that fails, the same issue made
// again takes the snapshot, and no row is missing.
TEST(Allocation, an_issue_without_memory_takes_no_snapshot) {
    bool more = true;
    for (uint64_t n = 1; more; n++) {
        SCOPED_TRACE(n);
        Rig rig(kOptions);
        const routecap_request a = rig.open();
        std::vector<routecap_span> spans;  // drafts take memory of their own
        for (uint32_t row = 0; row < 600; row++)
            spans.push_back(Rig::span(a, row, row, 1, ROUTECAP_SPAN_SPECULATIVE));
        const routecap_issue_options options{.struct_size = sizeof options,
                                             .snapshot = ROUTECAP_SNAPSHOT_MAKE};
        routecap_step step = 0;
        const auto issue = [&] {
            return routecap_step_issue(rig.capturer(), spans.data(), sizeof spans[0], spans.size(),
                                       &options, nullptr, &step, rig.stream());
        };
        EXPECT_STATUS(ROUTECAP_OK, rig.begin(600));
        rig.record_all({{1, 0, 600}});
        int32_t status = ROUTECAP_OK;
        more = with_failure(n, [&] { status = issue(); });
        EXPECT_STATUS(more ? ROUTECAP_ERR_NO_MEMORY : ROUTECAP_OK, status);
        if (more) {
            EXPECT_STATUS(ROUTECAP_OK, issue());
        }
        EXPECT_STATUS(ROUTECAP_OK, routecap_request_accept(rig.capturer(), a, step, nullptr, 600));
        rig.open_gate();
        expect_routing(RoutingPtr(rig.extract(a, 0, 600, ROUTECAP_OK)).get(), rig.shape(), 0,
                       routed_rows(rig.shape(), 1, 0, 600));
    }
}

// Bytes of every format: a call that fails for memory gives nothing and leaves nothing, and the
// same call made again works.
TEST(Allocation, formats_of_the_wire_fail_whole) {
    Rig rig(kOptions);
    const routecap_request a = rig.open();
    rig.step({{a, {1, 0, 600}}}, 0);
    rig.open_gate();
    const RoutingPtr routing(rig.extract(a, 0, 600, ROUTECAP_OK));
    for (int32_t format = ROUTECAP_WIRE_SERIALIZED; format <= ROUTECAP_WIRE_LISTS; format++) {
        SCOPED_TRACE(format);
        routecap_wire_hint hint{};
        hint.struct_size = sizeof hint, hint.layers = 3, hint.k = 2, hint.experts = 300;
        routecap_wire_options options{};
        options.struct_size = sizeof options, options.format = format;
        std::vector<uint8_t> message(100'000);
        uint64_t bytes = 0;
        bool more = true;
        for (uint64_t n = 1; more; n++) {
            SCOPED_TRACE(n);
            more = false;
            const auto again = [&](auto call) {
                int32_t status = 0;
                if (!with_failure(n, [&] { status = call(); })) return status;
                more = true;
                EXPECT_STATUS(ROUTECAP_ERR_NO_MEMORY, status);
                return call();
            };
            EXPECT_STATUS(ROUTECAP_OK, again([&] {
                              return routecap_wire_encode(routing.get(), &options, message.data(),
                                                          message.size(), &bytes, nullptr);
                          }));
            routecap_routing *decoded = nullptr;
            EXPECT_STATUS(ROUTECAP_OK, again([&] {
                              return routecap_wire_decode(message.data(), bytes, format, &hint,
                                                          nullptr, &decoded);
                          }));
            expect_routing(RoutingPtr(decoded).get(), rig.shape(), 0,
                           routed_rows(rig.shape(), 1, 0, 600));
            EXPECT_STATUS(
                ROUTECAP_OK, again([&] {
                    routecap_wire_decoder *decoder = nullptr;
                    int32_t status = routecap_wire_decoder_create(format, &hint, &decoder);
                    for (size_t at = 0; at < bytes && status >= 0; at += 1000)
                        status = routecap_wire_decoder_write(decoder, message.data() + at,
                                                             std::min<size_t>(1000, bytes - at));
                    routecap_routing *whole = nullptr;
                    if (status >= 0)
                        status = routecap_wire_decoder_finish(decoder, nullptr, &whole);
                    EXPECT_EQ(whole != nullptr, status >= 0);
                    routecap_routing_free(whole);
                    routecap_wire_decoder_free(decoder);
                    return status;
                }));
        }
    }
}

// A call on a sequence that fails for memory changes nothing, and works when it is made again.
TEST(Allocation, sequences_are_as_they_were_when_a_call_fails) {
    Rig rig(kOptions);
    const auto rows_of = [&](uint64_t first, uint64_t rows, uint64_t seed, uint32_t layers) {
        const routecap_request request = rig.open();
        rig.forward([&] {
            EXPECT_STATUS(ROUTECAP_OK, rig.begin(static_cast<uint32_t>(rows)));
            for (uint32_t l = 0; l < layers; l++)
                rig.record_tokens(l, {{seed, first, static_cast<uint32_t>(rows)}});
            EXPECT_STATUS(ROUTECAP_OK, rig.snapshot());
        });
        const routecap_issue_options options{.struct_size = sizeof options, .tag = seed + layers};
        rig.issue({Rig::span(request, first, 0, static_cast<uint32_t>(rows))}, ROUTECAP_OK, nullptr,
                  &options);
        rig.open_gate();
        routecap_routing *routing = nullptr;
        EXPECT_GE(routecap_request_extract(rig.capturer(), request, first, rows,
                                           ROUTECAP_EXTRACT_SHARE, 0, &routing),
                  0);
        return RoutingPtr(routing);
    };
    const RoutingPtr partial = rows_of(0, 300, 1, 2), whole = rows_of(0, 320, 1, 3),
                     next = rows_of(319, 81, 1, 3);
    std::vector<int32_t> tokens(401);
    for (size_t t = 0; t < tokens.size(); t++) tokens[t] = static_cast<int32_t>(t);
    const auto bytes_of = [](const routecap_sequence *sequence, std::vector<uint8_t> &bytes) {
        uint64_t needed = 0;
        EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                      routecap_sequence_serialize(sequence, 1, nullptr, 0, &needed));
        bytes.resize(needed);
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_sequence_serialize(sequence, 1, bytes.data(), needed, nullptr));
        routecap_append_report report{.struct_size = sizeof report};
        EXPECT_STATUS(ROUTECAP_OK, routecap_sequence_report(sequence, &report));
        return report.bytes;
    };
    bool more = true;
    for (uint64_t n = 1; more; n++) {
        SCOPED_TRACE(n);
        more = false;
        const routecap_sequence_config config{
            .struct_size = sizeof config, .layers = 3, .k = 2, .experts = 300};
        routecap_sequence *sequence = nullptr, *child = nullptr, *again_of_bytes = nullptr;
        const auto again = [&](auto call) {
            std::vector<uint8_t> before, after;
            const uint64_t held = sequence != nullptr ? bytes_of(sequence, before) : 0;
            int32_t status = 0;
            if (!with_failure(n, [&] { status = call(); })) return status;
            more = true;
            EXPECT_STATUS(ROUTECAP_ERR_NO_MEMORY, status);
            if (sequence != nullptr) {
                EXPECT_EQ(bytes_of(sequence, after), held);
                EXPECT_EQ(before, after);
            }
            return call();
        };
        const auto append = [&](const RoutingPtr &routing, uint64_t count) {
            return routecap_sequence_append(sequence, tokens.data(), 0, count, routing.get(),
                                            nullptr, nullptr);
        };
        EXPECT_STATUS(ROUTECAP_OK,
                      again([&] { return routecap_sequence_create(&config, &sequence); }));
        EXPECT_STATUS(ROUTECAP_INCOMPLETE, again([&] { return append(partial, 301); }));
        EXPECT_STATUS(ROUTECAP_OK, again([&] { return append(whole, 321); }));
        EXPECT_STATUS(ROUTECAP_OK, again([&] { return append(next, 401); }));
        EXPECT_STATUS(ROUTECAP_OK,
                      again([&] { return routecap_sequence_fork(sequence, 200, &child); }));
        EXPECT_STATUS(ROUTECAP_OK, again([&] { return routecap_sequence_truncate(child, 100); }));
        std::vector<uint8_t> bytes;
        bytes_of(sequence, bytes);
        EXPECT_STATUS(ROUTECAP_OK, again([&] {
                          return routecap_sequence_serialize(sequence, 1, bytes.data(),
                                                             bytes.size(), nullptr);
                      }));
        EXPECT_STATUS(ROUTECAP_OK, again([&] {
                          return routecap_sequence_deserialize(bytes.data(), bytes.size(), 0,
                                                               &again_of_bytes);
                      }));
        for (routecap_sequence *each : {sequence, again_of_bytes}) {
            routecap_routing *routing = nullptr;
            EXPECT_STATUS(ROUTECAP_OK,
                          again([&] { return routecap_sequence_routing(each, &routing); }));
            expect_routing(RoutingPtr(routing).get(), rig.shape(), 0,
                           routed_rows(rig.shape(), 1, 0, 400));
        }
        for (routecap_sequence *each : {sequence, child, again_of_bytes})
            routecap_sequence_free(each);
    }
}
