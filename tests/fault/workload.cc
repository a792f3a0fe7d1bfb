#include "workload.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "faults.h"

namespace faults {
namespace {

using namespace rig;

// Two bytes an id; a layer of each kind: recorded alone, recomputed, recorded with others into
// memory of the engine.
const Shape kShape{.layers = 3, .k = 2, .experts = 300, .rows = 64};
constexpr uint32_t kRecorded = 0, kRouted = 1, kBound = 2;

// Of calls that wait: nothing here takes the one, and the other is for what may never come because
// a fault stays.
constexpr int64_t kTimeout = 20'000'000'000, kShort = 1'000'000;

}  // namespace

// ---- Calls --------------------------------------------------------------------------------

// What the header lets a function return when memory or the driver fails, beside
// ROUTECAP_ERR_NO_MEMORY.
bool Workload::allowed(const char *function, int32_t status) const {
    enum {
        kDevice = 1,
        kThread = 2,
        kMissing = 4,
        kNotReady = 8,
        kPartial = 16,
        kLost = 32,
        kPending = 64,
        kNothingThere = 128
    };
    static const std::map<int32_t, int> kinds{
        {ROUTECAP_ERR_DEVICE, kDevice},
        {ROUTECAP_ERR_DEVICE_LOST, kDevice},
        {ROUTECAP_ERR_THREAD, kThread},
        {ROUTECAP_INCOMPLETE, kMissing},
        {ROUTECAP_NOT_CAPTURED, kMissing},
        {ROUTECAP_ERR_NOT_READY, kNotReady},
        {ROUTECAP_PARTIAL, kPartial},
        {ROUTECAP_LOST, kLost},
        {ROUTECAP_PENDING, kPending},
        {ROUTECAP_ERR_UNKNOWN_REQUEST, kNothingThere},
        {ROUTECAP_ERR_UNKNOWN_STEP, kNothingThere},
        {ROUTECAP_ERR_OUT_OF_RANGE, kNothingThere},
        {ROUTECAP_ERR_STATE, kNothingThere},
        {ROUTECAP_ERR_CONFLICT, kNothingThere},
    };
    static const std::map<std::string_view, int> documented{
        {"routecap_capturer_create", kDevice | kThread},
        {"routecap_sink_bind", kDevice},
        {"routecap_layer_record", kDevice},
        {"routecap_layers_record", kDevice},
        {"routecap_layer_route", kDevice},
        {"routecap_received_read", kDevice},
        {"routecap_received_compare", kDevice},
        {"routecap_capturer_probe", kDevice | kPartial},
        {"routecap_step_begin", kDevice},
        {"routecap_step_snapshot", kDevice},
        {"routecap_step_discard", kDevice},
        {"routecap_step_issue", kDevice | kPartial | kLost},
        {"routecap_step_poll", kLost | kPending},
        {"routecap_step_finalize", kLost | kPending},
        {"routecap_request_accept_batch", kPartial},
        {"routecap_request_coverage", kMissing | kNotReady},
        {"routecap_request_extract", kMissing | kNotReady},
        {"routecap_request_extract_batch", kPartial},
        {"routecap_request_extract_into", kMissing | kNotReady},
        {"routecap_request_finish_batch", kPartial},
        {"routecap_request_close_batch", kPartial},
        {"routecap_request_publish_batch", kPartial},
        {"routecap_request_adopt_batch", kPartial},
        {"routecap_routing_wait", kMissing | kPending},
        {"routecap_routing_coverage", kMissing},
        {"routecap_routing_merge", kMissing},
        {"routecap_routing_copy_to", kMissing},
        {"routecap_routing_deserialize", kMissing},
        {"routecap_routing_import", kMissing},
    };
    if (status == ROUTECAP_ERR_NO_MEMORY) return true;
    const auto kind = kinds.find(status);
    if (kind == kinds.end()) return false;
    // Where calls before it have failed for good a call may find nothing to work on, or what a
    // begin that failed has not forgotten.
    if (kind->second == kNothingThere) return (!retry_ || lost_) && failures_ > 0;
    const auto of = documented.find(function);
    return of != documented.end() && (of->second & kind->second) != 0;
}

// Makes a call. In an untouched run it returns one of `untouched`.
template <class F>
int32_t Workload::call(const char *function, F f, std::initializer_list<int32_t> untouched) {
    for (int attempt = 0;; attempt++) {
        const int32_t status = inside(function, f);
        if (std::find(untouched.begin(), untouched.end(), status) != untouched.end()) return status;
        EXPECT_GT(injected(), 0u) << function << " returned " << Status{status} << ": "
                                  << routecap_last_error();
        EXPECT_TRUE(allowed(function, status))
            << function << " returned " << Status{status} << ": " << routecap_last_error();
        said_lost_ |= status == ROUTECAP_LOST;
        if (status >= 0) return status;
        EXPECT_NE(*routecap_last_error(), 0) << function;
        failures_++;
        if (capturer_ != nullptr) check_load(false);
        lost_ |= status == ROUTECAP_ERR_DEVICE_LOST;
        if (!retry_ || lost_) return status;
        EXPECT_EQ(attempt, 0) << function << ", made again, returned " << Status{status} << ": "
                              << routecap_last_error();
        if (attempt > 0) return status;
    }
}

// No cell is counted that was not computed; if there was no fault, each is.
void Workload::check_load(bool all) const {
    routecap_load load{};
    load.struct_size = sizeof load;
    std::vector<uint64_t> counts(ROUTECAP_LOAD_PHASES * computed_.size());
    EXPECT_STATUS(ROUTECAP_OK, inside("routecap_capturer_load", [&] {
                      return routecap_capturer_load(capturer_, &load, counts.data(), counts.size());
                  }));
    for (size_t i = 0; i < computed_.size(); i++) {
        const uint64_t counted = counts[i] + counts[computed_.size() + i];
        ASSERT_TRUE(all ? counted == computed_[i] : counted <= computed_[i])
            << "layer " << i / kShape.experts << ": expert " << i % kShape.experts << " was chosen "
            << computed_[i] << " times, and is counted " << counted << " times";
    }
}

#define CALL(function, ...) call(#function, [&] { return function(__VA_ARGS__); })
#define CALL_FOR(untouched, function, ...) \
    call(#function, [&] { return function(__VA_ARGS__); }, {untouched})

// ---- What is there ------------------------------------------------------------------------

// From now on the load of these rows may be counted, once more; or will not be.
void Workload::compute(const Sequence &sequence, uint64_t first, uint64_t end, int times) {
    for (uint64_t p = first; p < end; p++)
        for (uint32_t l = 0; l < kShape.layers; l++)
            for (const int64_t id : routed(kShape, sequence.seed, p, l))
                computed_[l * kShape.experts + static_cast<size_t>(id)] +=
                    static_cast<uint64_t>(times);
}

void Workload::Sequence::forget(uint64_t first, uint64_t end) {
    for (std::vector<bool> *rows : {&due, &seen})
        std::fill(rows->begin() + static_cast<long>(first), rows->begin() + static_cast<long>(end),
                  false);
}

// Whether every row that is due must be there: nothing has failed so far, or a call said so,
// changed nothing, and was made again. Faults behind the calls, where rows are copied and filed,
// may have cost rows.
bool Workload::intact() const {
    if (injected() == 0) return true;
    return retry_ && !lost_ && !refused_ && injected() == failures_;
}

// Whether what is in flight stays there until the workload lands it.
bool Workload::waits_to_land() const { return manual_ || fake() != nullptr; }

// Every row of a routing is right or missing; it is there if it was there before, and, in an intact
// run, if it is due.
void Workload::check(routecap_routing *routing, Sequence &sequence) {
    if (routing == nullptr) return;
    const bool all = intact();
    const Rows rows = contents(routing, kShape);
    const uint64_t first = view_of(routing).first;
    for (uint64_t r = 0; r < rows.size(); r++) {
        const uint64_t position = first + r;
        bool there = true;
        for (uint32_t l = 0; l < kShape.layers; l++) {
            there &= rows[r][l].has_value();
            if (rows[r][l]) {
                ASSERT_TRUE(sequence.due[position]) << "row " << position << " cannot be there";
                ASSERT_EQ(*rows[r][l], routed(kShape, sequence.seed, position, l))
                    << "row " << position << " layer " << l;
            }
        }
        if (all && sequence.due[position]) {
            ASSERT_TRUE(there) << "row " << position << " of sequence " << sequence.seed;
        }
        missing_ |= sequence.due[position] && !there;
        if (sequence.seen[position]) {
            ASSERT_TRUE(there) << "row " << position << " of sequence " << sequence.seed
                               << " was there before";
        }
        sequence.seen[position] = there;
    }
}

// Looks at everything of a request that has landed, with memory to do so.
void Workload::observe(Sequence &sequence) {
    if (sequence.handle == 0) return;
    const Pause pause;
    routecap_routing *routing = nullptr;
    EXPECT_TRUE(last_ == 0 || routecap_step_finalize(capturer_, last_, -1, nullptr) >= 0)
        << routecap_last_error();
    EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_progress(capturer_));
    ASSERT_GE(routecap_request_extract(capturer_, sequence.handle, 0, ROUTECAP_ROWS_LANDED,
                                       ROUTECAP_EXTRACT_SHARE, 0, &routing),
              0)
        << routecap_last_error();
    check(RoutingPtr(routing).get(), sequence);
}

// ---- The forward path ---------------------------------------------------------------------

Workload::Workload(bool manual, bool retry)
    : manual_(manual),
      retry_(retry),
      device_(std::make_unique<Device>()),
      computed_(size_t{kShape.layers} * kShape.experts) {
    bound_ = device_->allocate(size_t{kShape.rows} * kShape.k * sizeof(int32_t));
}

Workload::~Workload() {
    if (engine_lost()) fake()->reset();  // now its own calls work again
}

void Workload::create() {
    const std::vector<int32_t> provenance{
        ROUTECAP_PROVENANCE_CAPTURED, ROUTECAP_PROVENANCE_RECOMPUTED, ROUTECAP_PROVENANCE_CAPTURED};
    routecap_config config;
    CALL(routecap_config_init, &config, sizeof config);
    config.backend = backend();
    config.layers = kShape.layers, config.k = kShape.k, config.experts = kShape.experts,
    config.rows = kShape.rows, config.slots = 3;
    config.flags = ROUTECAP_CONFIG_LOAD | (manual_ ? ROUTECAP_CONFIG_MANUAL_PROGRESS : 0u);
    config.layer_provenance = provenance.data();
    routecap_memory memory{};
    memory.struct_size = sizeof memory;
    CALL(routecap_config_memory, &config, &memory);
    CALL(routecap_capturer_create, &config, &capturer_);
    if (capturer_ == nullptr) return;

    routecap_sink sink{};
    sink.struct_size = sizeof sink;
    sink.dtype = ROUTECAP_DTYPE_I32;
    sink.ids = bound_;
    sink.rows = kShape.rows;
    sink.k = kShape.k;
    CALL(routecap_sink_bind, capturer_, kBound, 1, &sink);
    CALL(routecap_sink_layer, capturer_, kRecorded, &sink);
}

void Workload::open(std::initializer_list<Sequence *> sequences) {
    for (Sequence *s : sequences) CALL(routecap_request_open, capturer_, nullptr, &s->handle, 1);
}

// A forward pass of these tokens, from sink row 0 on.
void Workload::pass(const std::vector<Tokens> &tokens, bool snapshot) {
    uint32_t rows = 0;
    std::array<std::vector<int32_t>, 3> ids;
    std::vector<float> logits;
    for (const Tokens &t : tokens) {
        for (uint64_t p = t.position; p < t.position + t.count; p++) {
            for (uint32_t l : {kRecorded, kBound})
                for (int64_t id : routed(kShape, t.seed, p, l))
                    ids[l].push_back(static_cast<int32_t>(id));
            std::vector<float> row(kShape.experts);
            const auto chosen = routed(kShape, t.seed, p, kRouted);
            for (size_t c = 0; c < chosen.size(); c++)
                row[static_cast<size_t>(chosen[c])] = static_cast<float>(9 - c);
            logits.insert(logits.end(), row.begin(), row.end());
        }
        rows += t.count;
    }
    const auto upload = [&](const auto &v) {
        return device_->upload(v.data(), v.size() * sizeof v[0]);
    };
    const routecap_stream stream = device_->stream();
    CALL(routecap_step_begin, capturer_, rows, stream);

    routecap_source source{};
    source.struct_size = sizeof source;
    source.dtype = ROUTECAP_DTYPE_I32;
    source.ids = upload(ids[kRecorded]);
    source.rows = rows;
    CALL(routecap_layer_record, capturer_, kRecorded, &source, stream);

    const routecap_layer_source layer{kBound, 0, upload(ids[kBound]), nullptr};
    source.ids = nullptr;
    CALL(routecap_layers_record, capturer_, &source, &layer, sizeof layer, 1, stream);

    routecap_router router;
    CALL(routecap_router_init, &router, sizeof router, ROUTECAP_METHOD_TOPK);
    routecap_logits l{};
    l.struct_size = sizeof l;
    l.dtype = ROUTECAP_DTYPE_F32;
    l.logits = upload(logits);
    l.rows = rows;
    CALL(routecap_layer_route, capturer_, kRouted, &router, &l, stream);
    if (snapshot) CALL(routecap_step_snapshot, capturer_, stream);
}

routecap_step Workload::issue(const std::vector<routecap_span> &spans,
                              const routecap_issue_options *options) {
    routecap_step step = 0;
    std::vector<int32_t> status(spans.size());
    const int32_t issued = CALL(routecap_step_issue, capturer_, spans.data(), sizeof spans[0],
                                spans.size(), options, status.data(), &step, device_->stream());
    refused_ |= issued == ROUTECAP_PARTIAL;
    last_ = std::max(last_, step);
    return step;
}

void Workload::land(routecap_step step) {
    if (step == 0) return;
    CALL(routecap_step_finalize, capturer_, step, retry_ || injected() == 0 ? kTimeout : kShort,
         nullptr);
    CALL(routecap_capturer_progress, capturer_);
    CALL(routecap_step_poll, capturer_, step);
}

void Workload::first_steps() {
    pass({{a_.seed, 0, 30}, {b_.seed, 250, 20}});  // a page's end among the rows of b
    compute(a_, 0, 30), compute(b_, 250, 270);
    land(issue({Rig::span(a_.handle, 0, 0, 30), Rig::span(b_.handle, 250, 30, 20)}));
    a_.expect(0, 30);
    b_.expect(250, 270);
    observe(a_), observe(b_);
}

// Waits for the worker to publish, with memory to do so, or does it.
void Workload::settle(const routecap_store *store) {
    const Pause pause;
    routecap_store_counts counts{};
    counts.struct_size = sizeof counts;
    do {
        EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_progress(capturer_));
        EXPECT_STATUS(ROUTECAP_OK, routecap_store_stats(store, &counts));
    } while (counts.blocks_in_flight > 0 && !testing::Test::HasFailure());
}

// What one sequence computed is there for another. A store is made in it and freed, with what has
// not landed.
void Workload::prefixes() {
    routecap_store_config config{};
    CALL(routecap_store_config_init, &config, sizeof config);
    config.block_rows = 5, config.key_bytes = 8, config.budget_bytes = 4 << 20;
    routecap_config shape{};
    CALL(routecap_config_init, &shape, sizeof shape);
    const int32_t provenance[] = {0, ROUTECAP_PROVENANCE_RECOMPUTED, 0};
    shape.layers = kShape.layers, shape.k = kShape.k, shape.experts = kShape.experts;
    shape.layer_provenance = provenance;
    routecap_store *store = nullptr;
    CALL(routecap_store_create, &config, &shape, &store);
    uint64_t keys[6];
    const int32_t tokens[30] = {1, 2, 3};
    CALL(routecap_key_chain, "seed", 4, tokens, 30, 5, 8, keys, sizeof keys);
    if (store != nullptr && a_.handle != 0 && adopted_.handle != 0) {
        CALL(routecap_request_publish, capturer_, a_.handle, store, 0, keys, 4, 0);
        routecap_publish_item more{a_.handle, 20, keys + 4, 2, 0, 0};
        CALL(routecap_request_publish_batch, capturer_, store, &more, sizeof more, 1, 0);
        routecap_adoption found{};
        found.struct_size = sizeof found;
        adopted_.expect(0, 30);
        CALL(routecap_request_adopt, capturer_, adopted_.handle, store, 0, keys, 4, 0, &found);
        routecap_adopt_item rest{};
        rest.request = adopted_.handle, rest.first = 20, rest.keys = keys + 4, rest.count = 2;
        CALL(routecap_request_adopt_batch, capturer_, store, &rest, sizeof rest, 1, 0);
        observe(adopted_);
        settle(store);
        CALL(routecap_store_retain, store, keys, 6, nullptr);
        CALL(routecap_store_release, store, keys, 6);
        CALL(routecap_store_retain, store, keys + 1, 5, nullptr);
        CALL(routecap_store_contains, store, keys, 6, 0, nullptr, nullptr);
        CALL(routecap_store_evict, store, keys, 1, nullptr);
        CALL(routecap_store_advance, store, 1);
        routecap_store_counts counts{};
        counts.struct_size = sizeof counts;
        CALL(routecap_store_stats, store, &counts);
        EXPECT_EQ(0u, counts.blocks_mismatched);
    }
    inside("routecap_store_free", [&] { routecap_store_free(store); });
}

// Three steps that land later, and everything that may happen to their requests meanwhile.
void Workload::several_in_flight() {
    if (fake() != nullptr) fake()->hold();
    compute(b_, 270, 274), compute(c_, 0, 20), compute(ended_, 0, 5), compute(a_, 30, 33);
    // A tree of drafts, in two spans that begin at one position; the second token of the second
    // branch follows the first of the first.
    pass({{a_.seed, 30, 4}, {a_.seed, 30, 2}});
    constexpr uint32_t kDraft = ROUTECAP_SPAN_SPECULATIVE;
    const routecap_step drafts =
        issue({Rig::span(a_.handle, 30, 0, 4, kDraft), Rig::span(a_.handle, 30, 4, 2, kDraft)});

    pass({{b_.seed, 270, 4}, {c_.seed, 0, 10}}, false);
    std::vector<int64_t> positions{270, 271, 272, 273};
    routecap_issue_options options{};
    options.struct_size = sizeof options;
    options.snapshot = ROUTECAP_SNAPSHOT_MAKE;
    options.tag = 7;
    options.positions = device_->upload(positions.data(), positions.size() * sizeof positions[0]);
    options.positions_dtype = ROUTECAP_DTYPE_I64;
    routecap_span placed = Rig::span(b_.handle, 260, 0, 4, ROUTECAP_SPAN_DEVICE_POSITIONS);
    placed.position_end = 280;
    const routecap_step second = issue({placed, Rig::span(c_.handle, 0, 4, 10)}, &options);

    pass({{c_.seed, 10, 10}, {ended_.seed, 0, 5}});
    const routecap_step third =
        issue({Rig::span(c_.handle, 10, 0, 10), Rig::span(ended_.handle, 0, 10, 5)});
    b_.expect(270, 274);
    c_.expect(0, 20);
    ended_.expect(0, 5);
    attached_.expect(0, 5);

    if (drafts != 0) {
        const uint32_t path[] = {0, 2, 5};  // positions 30, 32, 31
        CALL(routecap_request_accept, capturer_, a_.handle, drafts, path, 3);
        a_.expect(30, 33);
    }
    if (CALL(routecap_request_fork, capturer_, a_.handle, 20, &forked_.handle) == ROUTECAP_OK)
        forked_.expect(0, 20);
    if (CALL(routecap_request_truncate, capturer_, c_.handle, 15) == ROUTECAP_OK) {
        c_.forget(15, 20);
        if (waits_to_land()) compute(c_, 15, 20, -1);
    }
    if (ended_.handle != 0) {
        routecap_routing *routing = nullptr;
        if (CALL(routecap_request_finish, capturer_, ended_.handle, 5, &routing) == ROUTECAP_OK) {
            ended_.handle = 0;
            pending_.reset(routing);
            if (attached_.handle != 0)
                CALL(routecap_request_attach, capturer_, attached_.handle, routing,
                     ROUTECAP_ROWS_ALL);
        }
    }
    if (fake() != nullptr) fake()->release();
    for (routecap_step step : {drafts, second, third}) land(step);
    for (Sequence *s : {&a_, &b_, &c_, &forked_, &attached_}) observe(*s);
    if (pending_ != nullptr) {
        {
            const Pause pause;
            ASSERT_GE(routecap_routing_wait(pending_.get(), kTimeout), 0) << routecap_last_error();
            ASSERT_NE(routecap_routing_poll(pending_.get()), ROUTECAP_PENDING);
        }
        check(pending_.get(), ended_);
    }
}

// A pass in a graph: replayed and issued, replayed and discarded.
void Workload::graphs() {
    if (!on_cuda() || !engine_stays()) return;
    graph_ = std::make_unique<Device::Graph>(device_->capture([&] { pass({{c_.seed, 15, 8}}); }));
    graph_->replay(device_->stream());
    compute(c_, 15, 23);
    const routecap_step step = issue({Rig::span(c_.handle, 15, 0, 8)});
    c_.expect(15, 23);
    graph_->replay(device_->stream());
    CALL(routecap_step_discard, capturer_, device_->stream());
    land(step);
    observe(c_);
}

void Workload::probing() {
    pass({{9, 0, 8}}, false);
    std::vector<routecap_layer_probe> probes(kShape.layers);
    if (CALL(routecap_capturer_probe, capturer_, 8, probes.data(), sizeof probes[0], probes.size(),
             device_->stream()) == ROUTECAP_OK) {
        for (const routecap_layer_probe &p : probes) EXPECT_EQ(p.rows_written, 8u);
    }
    int32_t *const executed = static_cast<int32_t *>(bound_);
    routecap_received received{};
    received.struct_size = sizeof received;
    received.ranks = 1;
    received.experts = kShape.experts;
    received.k = kShape.k;
    received.tokens_per_rank = kShape.rows;
    received.dtype = ROUTECAP_DTYPE_I32;
    received.executed = executed;
    received.counts = reinterpret_cast<routecap_received_counts *>(executed);
    CALL(routecap_received_read, capturer_, &received, device_->stream());
    CALL(routecap_received_compare, capturer_, &received, device_->stream());
    CALL(routecap_step_discard, capturer_, device_->stream());
}

// ---- Reading ------------------------------------------------------------------------------

void Workload::reading() {
    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    std::vector<routecap_missing> blocks(4);
    CALL(routecap_request_coverage, capturer_, a_.handle, 0, ROUTECAP_ROWS_ALL, &coverage,
         blocks.data(), sizeof blocks[0], blocks.size());

    routecap_routing *routing = nullptr;
    for (const int32_t mode : {ROUTECAP_EXTRACT_SHARE, ROUTECAP_EXTRACT_COPY}) {
        CALL(routecap_request_extract, capturer_, a_.handle, 0, 33, mode, 0, &routing);
        check(RoutingPtr(std::exchange(routing, nullptr)).get(), a_);
    }
    const int32_t taken = CALL(routecap_request_extract, capturer_, a_.handle, 5, 10,
                               ROUTECAP_EXTRACT_TAKE, 0, &routing);
    RoutingPtr middle(std::exchange(routing, nullptr));
    check(middle.get(), a_);
    if (taken >= 0) a_.forget(5, 15);
    observe(a_);

    std::vector<routecap_extract_item> items(2);
    items[0] = {b_.handle, 250, 24, ROUTECAP_EXTRACT_COPY, 0, nullptr, 0, 0};
    items[1] = {c_.handle, 0, 15, ROUTECAP_EXTRACT_SHARE, 0, nullptr, 0, 0};
    CALL(routecap_request_extract_batch, capturer_, items.data(), sizeof items[0], items.size());
    RoutingPtr first(items[0].routing), second(items[1].routing);
    check(first.get(), b_);
    check(second.get(), c_);

    routecap_copy_options options;
    CALL(routecap_copy_options_init, &options, sizeof options);
    options.dtype = ROUTECAP_DTYPE_I32;
    std::vector<int32_t> ids(512 * kShape.layers * kShape.k, 12345);
    std::vector<uint8_t> mask(512 * kShape.layers);
    const auto copied = [&](int32_t status, uint64_t from, const Sequence &s, uint64_t rows) {
        for (size_t cell = 0; status >= 0 && cell < rows * kShape.layers; cell++) {
            const auto expected = routed(kShape, s.seed, from + cell / kShape.layers,
                                         static_cast<uint32_t>(cell % kShape.layers));
            for (size_t c = 0; c < kShape.k; c++)
                ASSERT_EQ(ids[cell * kShape.k + c], mask[cell] ? expected[c] : -1);
        }
    };
    const int32_t into =
        CALL(routecap_request_extract_into, capturer_, b_.handle, 250, 20, &options, ids.data(),
             ids.size() * 4, mask.data(), mask.size(), nullptr);
    copied(into, 250, b_, 20);
    EXPECT_TRUE(injected() > 0 || second != nullptr);
    if (second == nullptr) return;
    copied(CALL(routecap_routing_copy_to, second.get(), &options, ids.data(), ids.size() * 4,
                mask.data(), mask.size(), nullptr),
           0, c_, 15);

    CALL(routecap_routing_coverage, second.get(), &coverage, blocks.data(), sizeof blocks[0],
         blocks.size());
    routecap_routing *prompt = nullptr, *generated = nullptr, *merged = nullptr;
    CALL(routecap_routing_split, second.get(), 6, ROUTECAP_ROWS_ALL, &prompt, &generated);
    EXPECT_EQ(prompt == nullptr, generated == nullptr);
    const RoutingPtr head(prompt), tail(generated);
    check(prompt, c_), check(generated, c_);
    CALL(routecap_routing_slice, second.get(), 3, 5, &routing);
    check(RoutingPtr(routing).get(), c_);
    if (prompt != nullptr) {
        const routecap_routing *both[] = {generated, prompt};
        CALL(routecap_routing_merge, both, 2, 0, &merged);
        check(RoutingPtr(merged).get(), c_);
        CALL(routecap_routing_retain, prompt);
        routecap_routing_free(prompt);
    }
    EXPECT_TRUE(injected() > 0 || (first != nullptr && middle != nullptr && merged != nullptr));
}

// The serialised form, and arrays of others.
void Workload::other_memory() {
    if (pending_ == nullptr) return;
    uint64_t needed = 0;
    CALL_FOR(ROUTECAP_ERR_BUFFER_TOO_SMALL, routecap_routing_serialize, pending_.get(), nullptr, 0,
             &needed);
    std::vector<uint64_t> bytes(needed / 8 + 1);
    if (CALL(routecap_routing_serialize, pending_.get(), bytes.data(), needed, nullptr) !=
        ROUTECAP_OK)
        return;
    routecap_routing *routing = nullptr;
    CALL(routecap_routing_deserialize, bytes.data(), needed, 0, nullptr, nullptr, &routing);
    check(RoutingPtr(std::exchange(routing, nullptr)).get(), ended_);
    int released = 0;
    const auto release = [](void *count) { ++*static_cast<int *>(count); };
    const int32_t lent =
        CALL(routecap_routing_deserialize, bytes.data(), needed, 0, release, &released, &routing);
    EXPECT_TRUE(released == 0 || lent == ROUTECAP_NOT_CAPTURED);
    check(RoutingPtr(std::exchange(routing, nullptr)).get(), ended_);
    EXPECT_EQ(released, lent >= 0);

    const routecap_view view = view_of(pending_.get());
    CALL(routecap_routing_import, &view, 0, nullptr, nullptr, &routing);
    check(RoutingPtr(std::exchange(routing, nullptr)).get(), ended_);

    routecap_serialized info{};
    info.struct_size = sizeof info;
    CALL(routecap_serialized_info, bytes.data(), needed, &info);
    routecap_splice splice{};
    splice.struct_size = sizeof splice;
    std::vector<uint64_t> header(2 * info.header_bytes / 8 + 16);
    routecap_piece pieces[ROUTECAP_MAX_PIECES];
    CALL(routecap_serialized_splice, bytes.data(), needed, bytes.data(), needed, 2, header.data(),
         header.size() * 8, pieces, sizeof pieces[0], std::size(pieces), &splice);
}

// ---- The end ------------------------------------------------------------------------------

void Workload::ending() {
    check_load(intact() && waits_to_land());
    compute(b_, 274, 277);
    // What is in flight when its request ends and when the capturer does.
    pass({{b_.seed, 274, 3}});
    const routecap_step last = issue({Rig::span(b_.handle, 274, 0, 3, ROUTECAP_SPAN_SPECULATIVE)});
    if (last != 0) {
        routecap_accept_item accept{b_.handle, last, nullptr, 3, 0, 0};
        CALL(routecap_request_accept_batch, capturer_, &accept, sizeof accept, 1);
        if (accept.status == ROUTECAP_OK) b_.expect(274, 277);
        refused_ |= accept.status == ROUTECAP_ERR_NO_MEMORY;
    }
    // Finds a device that was lost behind the calls.
    CALL(routecap_step_discard, capturer_, device_->stream());
    std::vector<routecap_finish_item> items(2);
    items[0] = {a_.handle, ROUTECAP_ROWS_ALL, nullptr, 0, 0};
    items[1] = {b_.handle, 277, nullptr, 0, 0};
    CALL(routecap_request_finish_batch, capturer_, items.data(), sizeof items[0], items.size());
    if (c_.handle != 0) CALL(routecap_request_close, capturer_, c_.handle);
    const routecap_request rest[] = {forked_.handle, attached_.handle, adopted_.handle};
    CALL(routecap_request_close_batch, capturer_, rest, nullptr, 3);

    routecap_stats s{};
    s.struct_size = sizeof s;
    CALL(routecap_capturer_stats, capturer_, &s);
    std::vector<routecap_layer_stats> layers(kShape.layers);
    CALL(routecap_capturer_layer_stats, capturer_, layers.data(), sizeof layers[0], layers.size());
    inside("routecap_capturer_destroy",
           [&] { routecap_capturer_destroy(std::exchange(capturer_, nullptr)); });
    // Routings outlive the capturer, and are ready; empty, if there was no memory up to the end to
    // gather their rows.
    if (!retry_ && !memory_stays()) a_.seen = b_.seen = std::vector<bool>(512);
    for (const auto &[item, sequence] : {std::pair(&items[0], &a_), std::pair(&items[1], &b_)}) {
        const RoutingPtr routing(item->routing);
        EXPECT_EQ(routing == nullptr, item->status < 0);
        if (routing == nullptr) continue;
        EXPECT_NE(routecap_routing_wait(routing.get(), 0), ROUTECAP_PENDING);
        check(routing.get(), *sequence);
    }
    pending_.reset();
}

void Workload::run() {
    create();
    if (capturer_ == nullptr) return;
    open({&a_, &b_, &c_, &ended_, &attached_, &adopted_});
    first_steps();
    prefixes();
    several_in_flight();
    graphs();
    probing();
    reading();
    other_memory();
    ending();
    // Rows that a driver's fault has cost are not only missing: some call has said why, be it that
    // the step or the device is lost.
    EXPECT_TRUE(!missing_ || failures_ > 0 || refused_ || said_lost_ || !memory_stays());
}

}  // namespace faults
