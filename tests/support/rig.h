// A small engine for tests: it routes by formula, drives a capturer through the public header, and
// knows what every read must give.
//
// Tests describe a forward pass as a function and hand it to forward(); ids are host vectors. On
// the CUDA backend the rig uploads them and may capture the pass into a graph, so that the same
// tests run there (see device.h).
#pragma once

#include <gtest/gtest.h>
#include <routecap.h>

#include "device.h"
#include "views.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace rig {

// Prints as its name.
struct Status {
    int32_t value;
    bool operator==(const Status &) const = default;
};
std::ostream &operator<<(std::ostream &out, Status status);

#define EXPECT_STATUS(expected, call) \
    EXPECT_EQ((::rig::Status{expected}), (::rig::Status{call})) << routecap_last_error()
#define ASSERT_STATUS(expected, call) \
    ASSERT_EQ((::rig::Status{expected}), (::rig::Status{call})) << routecap_last_error()

// How many of n turns a test makes that is a draw, of random calls or of the order of threads: all
// of them, or one of ROUTECAP_TEST_ONE_OF, where less time is given.
inline int draws(int n) {
    const char *one_of = std::getenv("ROUTECAP_TEST_ONE_OF");
    return one_of == nullptr ? n : std::max(n / std::max(std::atoi(one_of), 1), 1);
}

// ---- What is expected ----------------------------------------------------------------------

using Cell = std::optional<std::vector<int64_t>>;  // k ids in their order, or missing
using Row = std::vector<Cell>;                     // by layer
using Rows = std::vector<Row>;

struct Shape {
    uint32_t layers = 4, k = 2, experts = 16, rows = 32;
};

// The ids that the router of a layer chooses for a token: k distinct ids, different for every seed,
// position and layer as far as experts allow.
std::vector<int64_t> routed(const Shape &shape, uint64_t seed, uint64_t position, uint32_t layer);
Row routed_row(const Shape &shape, uint64_t seed, uint64_t position);
Rows routed_rows(const Shape &shape, uint64_t seed, uint64_t first, uint64_t end);
Rows missing_rows(const Shape &shape, uint64_t rows);
Rows operator+(Rows a, const Rows &b);

// ---- The rig -------------------------------------------------------------------------------

struct Options {
    Shape shape;
    uint32_t slots = 4;
    uint32_t flags = 0;
    int32_t sink_dtype = 0;
    uint64_t budget_bytes = 0;
    int32_t role = ROUTECAP_ROLE_OWNER;
    uint32_t max_requests = 0;
    std::vector<int32_t> layer_map;
    std::vector<uint32_t> layer_experts;
    std::vector<int32_t> layer_provenance;
    bool held = false;  // steps land when the test lets them: land() or open_gate()
};

// Tokens of one sequence in a batch.
struct Tokens {
    uint64_t seed;
    uint64_t position;
    uint32_t count;
};

// What a capturer of this shape allocates and takes, as the library says.
routecap_memory memory_of(const Shape &shape);

class Rig {
public:
    explicit Rig(const Options &options = {});
    ~Rig();
    Rig(const Rig &) = delete;

    routecap_capturer *capturer() const { return capturer_; }
    const Shape &shape() const { return options_.shape; }
    Device &device() { return device_; }
    routecap_stream stream() const { return device_.stream(); }

    // Requests.
    routecap_request open(int32_t policy = ROUTECAP_POLICY_KEEP);
    void close(routecap_request request) {
        EXPECT_STATUS(ROUTECAP_OK, routecap_request_close(capturer_, request));
    }

    // A forward pass.
    void forward(const std::function<void()> &pass) { device_.forward(pass); }
    int32_t begin(uint32_t rows) { return routecap_step_begin(capturer_, rows, stream()); }
    int32_t snapshot() { return routecap_step_snapshot(capturer_, stream()); }
    // Records from a source whose pointers are to host memory.
    int32_t record(uint32_t layer, routecap_source source);
    // Records ids (rows x columns) into a layer.
    int32_t record(uint32_t layer, const std::vector<std::vector<int64_t>> &ids,
                   uint32_t first_row = 0, int32_t dtype = ROUTECAP_DTYPE_I32);
    // Records the tokens of a batch, in order, from sink row first_row on, into one layer or all.
    void record_tokens(uint32_t layer, const std::vector<Tokens> &batch, uint32_t first_row = 0);
    void record_all(const std::vector<Tokens> &batch, uint32_t first_row = 0);
    // The whole pass for a batch.
    void run(const std::vector<Tokens> &batch);

    // Issue. Positions in the options are in host memory. Unless the rig is held, it waits before
    // for the step that must have landed to lose none.
    static routecap_span span(routecap_request request, uint64_t position, uint32_t sink_row,
                              uint32_t rows, uint32_t flags = 0);
    routecap_step issue(const std::vector<routecap_span> &spans, int32_t expected = ROUTECAP_OK,
                        std::vector<int32_t> *status = nullptr,
                        const routecap_issue_options *options = nullptr);
    // Runs and issues one span per sequence.
    routecap_step step(const std::vector<std::pair<routecap_request, Tokens>> &batch,
                       uint32_t flags = 0);

    // Landing.
    void land(routecap_step step, int32_t expected = ROUTECAP_OK);
    void open_gate();  // everything issued so far

    // Reading: each checks status, ids, exactly the missing cells, and that view, coverage and
    // copies agree.
    void expect(routecap_request request, uint64_t first, const Rows &rows,
                int32_t mode = ROUTECAP_EXTRACT_SHARE);
    void expect_length(routecap_request request, uint64_t length);
    routecap_routing *extract(routecap_request request, uint64_t first, uint64_t rows,
                              int32_t expected, int32_t mode = ROUTECAP_EXTRACT_SHARE);
    routecap_routing *finish(routecap_request request, uint64_t rows);

    routecap_stats stats() const;
    std::vector<routecap_layer_stats> layer_stats() const;
    // Waits until everything issued so far has landed and was applied, then returns the bytes in
    // use.
    uint64_t bytes_in_use();

private:
    Options options_;
    Device device_;
    routecap_capturer *capturer_ = nullptr;
    routecap_step last_ = 0;
};

// Checks a routing against rows, by view, coverage and copies, and its reading status.
void expect_routing(const routecap_routing *routing, const Shape &shape, uint64_t first,
                    const Rows &rows);
// What expect_routing compares: ids and validity as the view has them.
Rows contents(const routecap_routing *routing, const Shape &shape);
routecap_view view_of(const routecap_routing *routing);

struct RoutingFree {
    void operator()(routecap_routing *routing) const { routecap_routing_free(routing); }
};
using RoutingPtr = std::unique_ptr<routecap_routing, RoutingFree>;

}  // namespace rig
