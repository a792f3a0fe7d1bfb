// An inference engine in miniature: sequences arrive, are prefilled in chunks, decode, guess ahead,
// fork, are preempted, aborted and finished, with several steps in flight. It routes by formula and
// drives a capturer through the public header; the model (../fuzz/model.h) is told the same, and
// applies everything at once, because what is in the end read does not depend on when a step lands.
#pragma once

#include <device.h>
#include <routecap.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "../fuzz/model.h"

namespace soak {

// What one round is like. All of it follows from the seed and the round's number.
struct Shape {
    uint32_t layers, k, experts, rows, slots;
    int32_t dtype;  // of the ids that are recorded
    // How they come into the sink: 0 a call per layer, 1 one call for all, 2 written there, 3
    // written into memory of the engine's.
    int tap;
    int32_t policy;
    uint64_t pages;  // budget; 0: plenty
    // Prefixes. Rows that are attached may be refused for memory later; those that issue accepted
    // may not.
    bool attaches;
    bool may_lose;       // steps, on the host backend
    uint32_t sequences;  // that run at a time
    // Sequences publish what they have computed and adopt what others published. Nothing is lost,
    // cut or computed otherwise then, so that every block is whole whoever publishes it first.
    bool store;
    uint32_t block_rows;
    // A k of each layer, fewer experts for some tokens, and a decoder that runs layers twice.
    bool fewer;
    int32_t weights;  // their dtype; 0: none are captured
    uint32_t most(uint32_t layer) const { return fewer ? k - layer % std::min(k, 3u) : k; }
    uint32_t least(uint32_t layer) const { return fewer ? most(layer) / 2 : k; }
    // In memory that routers write.
    int64_t none() const { return tap >= 2 ? int64_t{ROUTECAP_NO_EXPERT} : int64_t{experts}; }
    std::string text() const;
};

// What is known of a sequence. Its tokens are only appended to: the row at a position is always
// that of the token there.
struct Sequence {
    routecap_request handle = 0;
    model::RequestPtr request;
    uint64_t number = 0;
    size_t prompt = 0, last = 0;  // tokens of the prompt, and when it ends
    size_t computed = 0;          // rows that were issued and are settled
    bool guesses = false, streams = false;
    bool drifts = false;  // what it computes next is computed otherwise

    // Drafts that wait to be accepted: of which step, each one's token, and its depth behind the
    // last token (1: next).
    uint64_t draft_step = 0, verified_at = 0;
    std::vector<std::pair<uint64_t, size_t>> drafts;

    size_t published = 0;  // blocks
    size_t taken = 0;      // rows that were taken, in parts
    std::vector<std::pair<routecap_routing *, model::RoutingPtr>> parts;

    std::mutex mutex;  // guards what follows, for readers
    std::vector<uint64_t> tokens;
    std::vector<std::string> history;
};
using SequencePtr = std::shared_ptr<Sequence>;

// A routing of a sequence that is to be compared, by readers.
struct Result {
    routecap_routing *routing = nullptr;
    model::RoutingPtr expected;
    SequencePtr sequence;
    std::vector<std::pair<routecap_routing *, model::RoutingPtr>> parts;  // that were taken before
};

struct Totals {
    uint64_t steps = 0, rows = 0, requests = 0, forks = 0, attached = 0, aborted = 0, preempted = 0,
             accepted = 0, advanced = 0;
    uint64_t published = 0, adopted = 0, evicted = 0;  // blocks
    uint64_t rows_issued = 0, rows_delivered = 0;      // of rounds with memory enough
    uint64_t rows_lost = 0, rows_refused = 0, steps_lost = 0, bytes_peak = 0;
    std::atomic<uint64_t> routings{0}, cells_compared{0}, live_cells_compared{0}, cells{0},
        cells_refused{0};
};

// Where the program is, for what it says if something differs: set by each thread.
extern thread_local const Sequence *examined;

class Engine {
public:
    Engine(const Shape &shape, uint64_t seed, bool graphs, Totals &totals);
    ~Engine();

    void step();
    // Ends all sequences; then, with all results compared, compares the counters.
    void finish_all();
    void compare_counters();

    // Readers, on any thread: compare the next result, if there is one, or the rows of a sequence
    // that runs.
    bool compare_next();
    void compare_running(uint64_t random);

private:
    // One row of the sink, and one forward pass of them.
    struct SinkRow {
        uint64_t token;
        bool drift;
        int64_t position;
    };
    struct Batch {
        std::vector<SinkRow> rows;
        std::vector<routecap_span> spans;
        std::vector<SequencePtr> sequences;  // of each span
        std::vector<SequencePtr> guessing;
        bool device_positions = false;
    };

    uint64_t below(uint64_t n) { return n == 0 ? 0 : random_() % n; }
    bool chance(unsigned of_thousand) { return below(1000) < of_thousand; }
    bool fault(unsigned of_thousand) { return chance(of_thousand) && shape_.store == 0; }
    void note(const SequencePtr &s, const char *format, ...) __attribute__((format(printf, 3, 4)));
    // Whether a call succeeded that may be refused for memory in this round.
    bool done(const char *call, int32_t expected, int32_t status);

    SequencePtr make(size_t tokens);
    void arrive();
    void verify(const SequencePtr &s);
    void fork(const SequencePtr &s);
    void preempt(const SequencePtr &s);
    void stream(const SequencePtr &s);
    void create_store(const routecap_config &config);
    void adopt(const SequencePtr &s);
    void publish(const SequencePtr &s, size_t rows);
    routecap_store_counts settled();
    std::vector<uint64_t> some_keys();
    void evict();
    void advance();
    void retain();
    void compare_store();
    void abort(const SequencePtr &s);
    void finish(const SequencePtr &s);
    void start(const SequencePtr &s);
    void stop(const SequencePtr &s);

    void schedule(Batch &batch);
    void schedule(const SequencePtr &s, Batch &batch);
    void span(const SequencePtr &s, uint64_t position, const std::vector<uint64_t> &tokens,
              uint32_t flags, Batch &batch);
    void forward(Batch &batch);
    std::vector<int64_t> in_view(uint64_t token, uint32_t layer, bool drift) const;
    std::vector<model::RowPtr> write_ids(const Batch &batch, uint32_t rows, uint32_t silent);
    std::vector<uint32_t> weigh(uint64_t token, uint32_t layer, bool drift);
    void pass(uint32_t rows, uint32_t silent, bool begins, bool snapshots);
    void record(uint32_t rows, uint32_t silent);
    void wait_for_slots(uint64_t step);
    void note_memory(const Batch &batch, const std::vector<int32_t> &status);
    void compare(Result result);

    const Shape shape_;
    std::mt19937_64 random_;
    const bool graphs_;
    Totals &totals_;
    rig::Device device_;
    routecap_capturer *capturer_ = nullptr;
    routecap_store *store_ = nullptr;
    std::shared_ptr<model::Shape> model_shape_;
    std::unique_ptr<model::Capturer> model_;
    routecap_store_config store_config_{};
    model::StorePtr blocks_;  // of the store
    uint64_t named_ = 0;      // blocks in calls of publish
    uint64_t numbers_ = 0, tag_ = 1, last_step_ = 0;
    uint64_t landed_ = 0;  // the newest step that was waited for
    bool stale_in_flight_ =
        false;  // blocks with stale rows were published, and may not have landed

    // Spans that were in flight or drafts that waited since the capturer was last within its
    // budget, and how many pages each touched: they may bring it above, by those and their tags.
    struct Touched {
        uint64_t step;           // that must be filed
        const Sequence *drafts;  // whose drafts they are, as long as nobody accepts them
        uint64_t pages;
    };
    std::vector<Touched> touched_;
    routecap_memory memory_{};
    uint64_t most_bytes_ = 0;  // that it could have in use so far

    // Device memory that the routers write: ids [layers, rows, k], how many rows are live, and
    // positions by sink row.
    unsigned char *ids_ = nullptr, *weights_ = nullptr;  // both laid out alike
    int32_t *live_ = nullptr;
    int64_t *positions_ = nullptr;
    std::vector<unsigned char> written_, written_weights_;  // the same on the host
    std::map<uint32_t, rig::Device::Graph> captured_;

    std::mutex mutex_;  // guards what follows
    std::vector<SequencePtr> running_;
    std::deque<Result> results_;

    std::deque<Result> prefixes_;                  // of finished sequences, to be used again
    std::deque<std::vector<uint64_t>> published_;  // tokens
    std::atomic<uint64_t> cells_refused_{0};
};

}  // namespace soak
