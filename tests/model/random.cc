// Random operations on the library and on the model, compared call by call.
#include <algorithm>
#include <cstdlib>
#include <random>

#include "model.h"

namespace {

using namespace rig;
using model::RequestPtr;

class Run {
public:
    Run(const Shape &shape, uint32_t slots, uint64_t seed)
        : random_(seed),
          rig_({.shape = shape, .slots = slots, .flags = ROUTECAP_CONFIG_COMPARE, .held = true}),
          model_(shape, slots),
          shape_(shape) {}

    void go(int operations) {
        for (int i = 0; i < operations && !testing::Test::HasFailure(); i++) one();
        land();
        for (const auto &[handle, r] : requests_) check_request(handle, r);
        check_routings(true);
        routings_.clear();
        for (const auto &[handle, r] : requests_) {
            rig_.close(handle);
            model_.close(r);
        }
        land();
        EXPECT_EQ(rig_.stats().bytes_in_use, 0u);
    }

private:
    uint64_t below(uint64_t n) { return n == 0 ? 0 : random_() % n; }
    bool chance(int percent) { return static_cast<int>(below(100)) < percent; }

    void one() {
        struct Kind {
            int share;
            void (Run::*run)();
        };
        static constexpr Kind kinds[] = {{39, &Run::step},   {15, &Run::land},  {12, &Run::accept}, {9, &Run::read},        {6, &Run::open},  {5, &Run::truncate},
                                         {3, &Run::fork},    {3, &Run::attach}, {3, &Run::merge},   {3, &Run::cut_routing}, {2, &Run::finish}, {1, &Run::close}};
        int what = static_cast<int>(below(101));
        if (requests_.empty()) return open();
        for (const Kind &kind : kinds)
            if ((what -= kind.share) < 0) {
                (this->*kind.run)();
                break;
            }
        if (chance(10)) check_routings(false);
        check_counters();
    }

    std::pair<routecap_request, RequestPtr> any() {
        auto it = requests_.begin();
        std::advance(it, static_cast<ptrdiff_t>(below(requests_.size())));
        return *it;
    }

    void open() {
        if (requests_.size() > 6) return;
        auto r = std::make_shared<model::Request>();
        r->policy = chance(30) ? ROUTECAP_POLICY_REPLACE : ROUTECAP_POLICY_KEEP;
        requests_.emplace(rig_.open(r->policy), r);
    }

    // ---- Steps

    static routecap_issue_options options_with(const std::vector<int64_t> &positions) {
        routecap_issue_options options{};
        options.struct_size = sizeof options;
        options.positions = positions.data();
        options.positions_dtype = ROUTECAP_DTYPE_I64;
        return options;
    }

    // What a layer's router wrote for a sink row.
    Cell write_row(uint64_t seed, uint64_t position, uint32_t layer, std::vector<int64_t> &ids) {
        ids = routed(shape_, seed, position, layer);
        switch (below(40)) {
            case 0: ids[below(shape_.k)] = shape_.experts; return Cell();
            case 1: ids[below(shape_.k)] = -1; return Cell();
            case 2:
                if (shape_.k == 1) return ids;
                ids[0] = ids[1];
                return Cell();
            default: return ids;
        }
    }

    void step() {
        // Spans first: which sink rows are whose.
        std::vector<model::Span> spans;
        std::vector<routecap_span> given;
        std::vector<int32_t> expected_status;
        std::vector<int64_t> positions(shape_.rows, -1);
        std::map<model::Request *, std::vector<std::pair<uint64_t, uint64_t>>> used;
        uint64_t skipped = 0;
        const uint32_t n = static_cast<uint32_t>(below(5));
        uint32_t row = 0;
        for (uint32_t i = 0; i < n && row < shape_.rows; i++) {
            if (chance(5)) {  // a request that is gone
                given.push_back(Rig::span(0xdead0000beef, 0, row, 1));
                expected_status.push_back(ROUTECAP_ERR_UNKNOWN_REQUEST);
                skipped++;
                continue;
            }
            auto [handle, r] = any();
            const uint32_t rows = 1 + static_cast<uint32_t>(below(std::min<uint64_t>(shape_.rows - row, chance(20) ? 14 : 4)));
            const uint64_t length = model_.length(*r);
            uint64_t position = chance(75) ? length : below(length + 6);
            if (chance(2)) position += 40;
            model::Span s;
            s.request = r;
            s.speculative = chance(30);
            s.device = chance(20);
            s.bound_first = position;
            s.bound_end = position + rows;
            if (s.device) s.bound_end = position + 1 + below(rows + 3);
            routecap_span g = Rig::span(handle, position, row, rows, (s.speculative ? ROUTECAP_SPAN_SPECULATIVE : 0) | (s.device ? ROUTECAP_SPAN_DEVICE_POSITIONS : 0));
            for (uint32_t k = 0; k < rows; k++) {
                uint64_t p = position + k;
                if (s.device) {
                    int64_t &on_device = positions[row + k];  // one for the sink row, whoever names it
                    if (on_device < 0) on_device = static_cast<int64_t>(chance(10) ? position + 100 : position + below(rows + 3));
                    p = static_cast<uint64_t>(on_device);
                }
                s.positions.push_back(p);
            }
            if (s.device) g.position_end = s.bound_end;
            if (!s.speculative && !s.device) {  // must not overlap
                bool overlaps = false;
                for (auto [a, b] : used[r.get()]) overlaps |= std::max(a, s.bound_first) < std::min(b, s.bound_end);
                if (overlaps) {
                    auto wrong = given;
                    wrong.push_back(g);
                    const routecap_issue_options options = options_with(positions);
                    rig_.issue(wrong, ROUTECAP_ERR_OVERLAP, nullptr, &options);
                    continue;
                }
                used[r.get()].emplace_back(s.bound_first, s.bound_end);
            }
            spans.push_back(std::move(s));
            given.push_back(g);
            expected_status.push_back(ROUTECAP_OK);
            if (!chance(10)) row += rows;  // else the next span names the same sink rows
        }

        // The forward pass, with what may be forgotten in it.
        const bool begins = !chance(4), snapshots = !chance(4), makes = chance(20);
        // A slot is named by the last issue or discard, or by begin.
        if (begins && !named_) named_ = model_.slot_free();
        const uint32_t begun = begins ? (chance(90) ? shape_.rows : static_cast<uint32_t>(below(shape_.rows + 1))) : 0;
        if (begins) {
            EXPECT_STATUS(ROUTECAP_OK, rig_.begin(begun));
        }
        std::vector<std::vector<Cell>> sink(shape_.rows, std::vector<Cell>(shape_.layers));
        if (begins) dropped_ = conflicts_ = 0;
        const uint64_t seed = below(3);
                for (uint32_t l = 0; l < shape_.layers; l++) {
            if (chance(3)) continue;  // a silent layer
            std::vector<std::vector<int64_t>> ids(shape_.rows);
            std::vector<Cell> cells(shape_.rows);
            for (uint32_t k = 0; k < shape_.rows; k++) cells[k] = write_row(seed, k, l, ids[k]);
            EXPECT_STATUS(ROUTECAP_OK, rig_.record(l, ids));
            for (uint32_t k = 0; k < begun; k++) sink[k][l] = cells[k];
            dropped_ += shape_.rows - begun;
            if (chance(3)) {  // again, through an index, so that only the backend can see it
                std::vector<int32_t> again(static_cast<size_t>(shape_.k) * 2, 0), index = {0, static_cast<int32_t>(shape_.rows - 1)};
                routecap_source source{};
                source.struct_size = sizeof source;
                source.dtype = ROUTECAP_DTYPE_I32;
                source.ids = again.data();
                source.rows = 2;
                source.row_index = index.data();
                EXPECT_STATUS(ROUTECAP_OK, rig_.record(l, source));
                for (int32_t k : index) (static_cast<uint32_t>(k) < begun ? conflicts_ : dropped_)++;
            }
        }
        if (snapshots) {
            EXPECT_STATUS(ROUTECAP_OK, rig_.snapshot());
        }
        if (chance(4)) {  // it was a warm-up
            EXPECT_STATUS(ROUTECAP_OK, routecap_step_discard(rig_.capturer(), rig_.stream()));
            if (snapshots) dropped_ = conflicts_ = 0;
            if (!named_) named_ = model_.slot_free();
            return;
        }

        // Which rows the slot covers: a second snapshot, made by issue, finds nothing armed.
        const uint32_t covered = snapshots != makes ? begun : 0;
        const bool taken = snapshots || makes;
        for (size_t i = 0, g = 0; i < spans.size(); i++, g++) {
            while (expected_status[g] != ROUTECAP_OK) g++;
            for (size_t k = 0; k < spans[i].positions.size(); k++) {
                const uint32_t sink_row = given[g].sink_row + static_cast<uint32_t>(k);
                model::Row r;
                r.cells = sink_row < covered ? sink[sink_row] : std::vector<Cell>(shape_.layers);
                r.tag = tag_;
                spans[i].rows.push_back(std::move(r));
            }
        }
        const bool lost = !named_ && !given.empty();
        const bool files = named_ && !spans.empty();
        std::vector<int32_t> status;
        routecap_issue_options options = options_with(positions);
        options.snapshot = makes ? ROUTECAP_SNAPSHOT_MAKE : ROUTECAP_SNAPSHOT_TAKE;
        options.tag = tag_;
        const routecap_step step = rig_.issue(given, lost ? ROUTECAP_LOST : skipped > 0 ? ROUTECAP_PARTIAL : ROUTECAP_OK, &status, &options);
        EXPECT_EQ(status, expected_status);
        std::vector<std::pair<RequestPtr, uint64_t>> drafted;
        for (const model::Span &s : spans)
            if (s.speculative) drafted.emplace_back(s.request, step);
        EXPECT_EQ(model_.issue(std::move(spans), tag_, lost, skipped, taken ? dropped_ : 0, taken ? conflicts_ : 0), step);
        if (taken) dropped_ = conflicts_ = 0;
        for (auto &d : drafted) drafts_.push_back(d);
        EXPECT_STATUS(files ? ROUTECAP_PENDING : lost ? ROUTECAP_LOST : ROUTECAP_OK, routecap_step_poll(rig_.capturer(), step));
        if (files || !named_) named_ = model_.slot_free();
        if (chance(20)) tag_++;
    }

    void land() {
        rig_.open_gate();
        model_.land();
    }

    // ---- Requests

    void accept() {
        if (drafts_.empty()) return;
        const size_t i = below(drafts_.size());
        auto [r, step] = drafts_[i];
        const auto handle = std::find_if(requests_.begin(), requests_.end(), [&, request = r](const auto &p) { return p.second == request; });
        if (handle == requests_.end()) {
            drafts_.erase(drafts_.begin() + static_cast<ptrdiff_t>(i));
            return;
        }
        const uint64_t count = below(6);
        std::vector<uint32_t> rows;
        const bool list = chance(50);
        for (uint32_t k = 0; list && rows.size() < count && k < 20; k++)
            if (chance(50)) rows.push_back(k);
        const uint64_t n = list ? rows.size() : count;
        const int32_t expected = model_.accept(r, step, list ? &rows : nullptr, n);
        EXPECT_STATUS(expected, routecap_request_accept(rig_.capturer(), handle->first, step, list ? rows.data() : nullptr, n));
    }

    void truncate() {
        auto [handle, r] = any();
        const uint64_t rows = below(model_.length(*r) + 3);
        EXPECT_STATUS(ROUTECAP_OK, routecap_request_truncate(rig_.capturer(), handle, rows));
        model_.truncate(r, rows);
    }

    void fork() {
        if (requests_.size() > 8) return;
        auto [handle, r] = any();
        const uint64_t length = model_.length(*r), rows = below(length + 2);
        routecap_request child = 0;
        EXPECT_STATUS(rows > length ? ROUTECAP_ERR_OUT_OF_RANGE : ROUTECAP_OK, routecap_request_fork(rig_.capturer(), handle, rows, &child));
        if (rows <= length) requests_.emplace(child, model_.fork(r, rows));
    }

    void attach() {
        if (routings_.empty()) return;
        auto [handle, r] = any();
        const auto &held = routings_[below(routings_.size())];
        const uint64_t end = held.expected->first + held.expected->rows, rows = below(end + 2);
        EXPECT_STATUS(rows > end ? ROUTECAP_ERR_OUT_OF_RANGE : ROUTECAP_OK,
                      routecap_request_attach(rig_.capturer(), handle, held.routing.get(), rows));
        if (rows <= end) model_.attach(r, held.expected, rows);
    }

    void read() {
        auto [handle, r] = any();
        const uint64_t length = model_.length(*r);
        const uint64_t first = below(length + 2);
        uint64_t rows = chance(20) ? ROUTECAP_ALL : chance(25) ? ROUTECAP_LANDED : below(length + 3);
        const uint64_t asked = rows;
        const int32_t mode = static_cast<int32_t>(below(3));
        const bool strict = chance(15);
        int32_t expected = ROUTECAP_OK;
        model::Routing content;
        if (first > length) {
            expected = ROUTECAP_ERR_OUT_OF_RANGE;
        } else {
            if (rows == ROUTECAP_ALL) rows = length - first;
            if (rows == ROUTECAP_LANDED) rows = std::min(length, model_.landed_end(r, first, mode == ROUTECAP_EXTRACT_TAKE)) - first;
            if (rows > length - first) {
                expected = ROUTECAP_ERR_OUT_OF_RANGE;
            } else if (!model_.ready(r, first, first + rows, mode == ROUTECAP_EXTRACT_TAKE)) {
                expected = ROUTECAP_ERR_NOT_READY;
            } else {
                content = model_.read(*r, first, rows);
                expected = content.status();
                if (strict && expected != ROUTECAP_OK) expected = ROUTECAP_ERR_INCOMPLETE;
            }
        }
        routecap_routing *routing = nullptr;
        ASSERT_STATUS(expected, routecap_request_extract(rig_.capturer(), handle, first, asked, mode, strict ? ROUTECAP_STRICT : 0, &routing));
        if (expected < 0) return;
        if (mode == ROUTECAP_EXTRACT_TAKE) model_.take(*r, first, rows);
        hold(routing, std::make_shared<model::Routing>(content));
    }

    void finish() {
        auto [handle, r] = any();
        const uint64_t rows = chance(50) ? ROUTECAP_ALL : below(model_.length(*r) + 4);
        hold(rig_.finish(handle, rows), model_.finish(r, rows));
        requests_.erase(handle);
    }

    void close() {
        auto [handle, r] = any();
        rig_.close(handle);
        model_.close(r);
        requests_.erase(handle);
    }

    void check_request(routecap_request handle, const RequestPtr &r) {
        rig_.expect_length(handle, model_.length(*r));
        const model::Routing content = model_.read(*r, 0, model_.length(*r));
        rig_.expect(handle, 0, model_.rows_of(content));
    }

    // ---- Routings

    struct Held {
        RoutingPtr routing;
        std::shared_ptr<model::Routing> expected;
    };

    void hold(routecap_routing *routing, std::shared_ptr<model::Routing> expected) {
        routings_.push_back({RoutingPtr(routing), std::move(expected)});
        if (routings_.size() > 24) routings_.erase(routings_.begin() + static_cast<ptrdiff_t>(below(routings_.size())));
    }

    void check_routings(bool all) {
        for (const Held &held : routings_) {
            if (!all && !chance(20)) continue;
            if (!held.expected->ready) {
                EXPECT_STATUS(ROUTECAP_PENDING, routecap_routing_poll(held.routing.get()));
                continue;
            }
            ASSERT_NO_FATAL_FAILURE(expect_routing(held.routing.get(), shape_, held.expected->first, model_.rows_of(*held.expected)));
            const routecap_view view = view_of(held.routing.get());
            for (size_t i = 0; i < view.segment_count; i++)
                for (uint64_t k = 0; k < view.segments[i].rows; k++) {
                    const routecap_segment &s = view.segments[i];
                    const auto row = held.expected->content.find(s.first + k);
                    if (row == held.expected->content.end() || !row->second.any()) continue;
                    ASSERT_EQ(s.tags != nullptr ? s.tags[k] : s.tag, row->second.tag) << "tag of row " << s.first + k;
                }
        }
    }

    void cut_routing() {
        if (routings_.empty()) return;
        const size_t index = below(routings_.size());
        routecap_routing *whole = routings_[index].routing.get();
        const auto e = routings_[index].expected;
        if (!e->ready) {
            routecap_routing *none = nullptr;
            EXPECT_STATUS(ROUTECAP_ERR_NOT_READY, routecap_routing_slice(whole, 0, 0, &none));
            return;
        }
        const auto part = [&](uint64_t first, uint64_t rows) {
            auto p = std::make_shared<model::Routing>();
            p->first = first;
            p->rows = rows;
            p->content = model::Rows(e->content.lower_bound(first), e->content.lower_bound(first + rows));
            return p;
        };
        if (chance(50)) {
            const uint64_t prompt = below(e->first + e->rows + 3), generated = chance(50) ? ROUTECAP_ALL : below(e->rows + 2);
            routecap_routing *a = nullptr, *b = nullptr;
            ASSERT_STATUS(ROUTECAP_OK, routecap_routing_split(whole, prompt, generated, &a, &b));
            const uint64_t middle = std::clamp(prompt, e->first, e->first + e->rows);
            const auto first = part(e->first, middle - e->first), second = part(middle, std::min(generated, e->first + e->rows - middle));
            hold(a, first);
            hold(b, second);
        } else {
            const uint64_t first = e->first + below(e->rows + 2), rows = below(e->rows + 2);
            routecap_routing *slice = nullptr;
            const bool fits = first + rows <= e->first + e->rows;
            ASSERT_STATUS(fits ? ROUTECAP_OK : ROUTECAP_ERR_OUT_OF_RANGE, routecap_routing_slice(whole, first, rows, &slice));
            if (fits) hold(slice, part(first, rows));
        }
    }

    void merge() {
        if (routings_.empty()) return;
        std::vector<const routecap_routing *> parts;
        std::vector<const model::Routing *> expected;
        bool ready = true;
        for (uint64_t n = 1 + below(3); n > 0; n--) {
            const Held &held = routings_[below(routings_.size())];
            parts.push_back(held.routing.get());
            expected.push_back(held.expected.get());
            ready &= held.expected->ready;
        }
        model::Routing united;
        int32_t status = ROUTECAP_ERR_NOT_READY;
        if (ready) status = model_.merge(expected, united) ? united.status() : ROUTECAP_ERR_CONFLICT;
        routecap_routing *merged = nullptr;
        ASSERT_STATUS(status, routecap_routing_merge(parts.data(), parts.size(), &merged));
        if (status >= 0) hold(merged, std::make_shared<model::Routing>(united));
    }

    void check_counters() {
        const routecap_stats s = rig_.stats();
        const model::Counters &c = model_.counters;
        EXPECT_EQ(s.steps_issued, c.issued);
        EXPECT_EQ(s.steps_lost, c.lost_steps);
        EXPECT_EQ(s.rows_issued, c.rows_issued);
        EXPECT_EQ(s.rows_in_flight, c.in_flight);
        EXPECT_EQ(s.rows_provisional, c.provisional);
        EXPECT_EQ(s.rows_delivered, c.delivered);
        EXPECT_EQ(s.rows_missing, c.missing);
        EXPECT_EQ(s.rows_lost, c.lost);
        EXPECT_EQ(s.rows_late, c.late);
        EXPECT_EQ(s.rows_rejected, c.rejected);
        EXPECT_EQ(s.rows_unplaced, c.unplaced);
        EXPECT_EQ(s.rows_refused, c.refused);
        EXPECT_EQ(s.rows_skipped, c.skipped);
        EXPECT_EQ(s.rows_overlapped, c.overlapped);
        EXPECT_EQ(s.rows_mismatched, c.mismatched);
        EXPECT_EQ(s.rows_dropped, c.dropped);
        EXPECT_EQ(s.cells_conflicting, c.conflicting);
        EXPECT_EQ(s.rows_issued, s.rows_in_flight + s.rows_provisional + s.rows_delivered + s.rows_missing + s.rows_lost + s.rows_late +
                                     s.rows_rejected + s.rows_unplaced + s.rows_refused);
    }

    std::mt19937_64 random_;
    Rig rig_;
    model::Capturer model_;
    Shape shape_;
    std::map<routecap_request, RequestPtr> requests_;
    std::vector<std::pair<RequestPtr, uint64_t>> drafts_;
    std::vector<Held> routings_;
    uint64_t tag_ = 1;
    uint64_t dropped_ = 0, conflicts_ = 0;  // since the last begin or snapshot
    bool named_ = true;  // whether a slot is named for the next forward
};

void runs(const Shape &shape, int operations, uint64_t seeds) {
    if (const char *more = std::getenv("ROUTECAP_TEST_EFFORT")) seeds *= std::strtoull(more, nullptr, 10);
    for (uint64_t seed = 0; seed < seeds; seed++) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        Run(shape, static_cast<uint32_t>(1 + seed % 5), seed).go(operations);
        if (testing::Test::HasFailure()) return;
    }
}

}  // namespace

// Four rows to a page, so that pages are split, shared and copied all the time.
TEST(Model, wide_rows) { runs({.layers = 66, .k = 32, .experts = 300, .rows = 16}, 300, 5); }
TEST(Model, narrow_rows) { runs({.layers = 3, .k = 2, .experts = 5, .rows = 24}, 2000, 40); }
TEST(Model, one_layer_one_expert) { runs({.layers = 1, .k = 1, .experts = 256, .rows = 16}, 1500, 20); }
