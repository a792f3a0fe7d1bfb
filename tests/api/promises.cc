// What issue accepts is filed: whatever is called in a budget that is too small, no row that was
// accepted is refused later, the budget is exceeded by no more than routecap_step_issue says, and
// all of it comes back.
#include <rig.h>

#include <algorithm>
#include <random>

using namespace rig;

namespace {

// Pages of few rows, so that spans, bounds, cuts and shares often meet their ends.
const Shape kWide{.layers = 256, .k = 8, .experts = 256, .rows = 48};

class Engine {
public:
    // Without `lends` rows are shared, forked and taken only where nothing is in flight.
    Engine(uint64_t seed, bool manual, bool lends)
        : random_(seed),
          lends_(lends),
          memory_(memory_of(kWide)),
          budget_(memory_.page_bytes * (2 + below(9)) + below(2) * 3000) {
        rig_ = std::make_unique<Rig>(Options{.shape = kWide,
                                             .flags = ROUTECAP_CONFIG_COMPARE,
                                             .budget_bytes = budget_,
                                             .held = manual});
        std::vector<int32_t> ids;
        for (uint32_t r = 0; r < kWide.rows; r++)
            for (uint32_t c = 0; c < kWide.k; c++)
                ids.push_back(static_cast<int32_t>((r * 7 + c) % kWide.experts));
        int32_t *to = static_cast<int32_t *>(rig_->device().allocate(ids.size() * sizeof ids[0]));
        rig_->device().write(to, ids.data(), ids.size() * sizeof ids[0]);
        rig_->device().synchronize();
        ids_ = to;
        page_rows_ = memory_.page_rows;
    }

    void run(int operations) {
        for (int i = 0; i < operations && !testing::Test::HasFailure(); i++) {
            one();
            const routecap_stats s = rig_->stats();
            const uint64_t most = budget_ + (lends_ ? touched_ * memory_.page_bytes : 0);
            most_ever_ = std::max(most_ever_, most);
            ASSERT_LE(s.bytes_in_use, most);
            ASSERT_LE(s.bytes_peak, most_ever_);
            ASSERT_EQ(s.rows_refused, refused_) << "after operation " << i;
        }
    }

    // Everything ends; the routings that are left hold memory until they go.
    void end() {
        for (const routecap_request r : requests_) rig_->close(r);
        requests_.clear();
        rig_->open_gate();
        rig_->bytes_in_use();  // all is applied then
        const routecap_stats s = rig_->stats();
        EXPECT_EQ(s.rows_refused, refused_);
        routings_.clear();
        EXPECT_EQ(rig_->bytes_in_use(), 0u);
        delivered_ = s.rows_delivered;
    }

    uint64_t refused() const { return refused_; }
    uint64_t delivered() const { return delivered_; }

private:
    uint64_t below(uint64_t n) { return random_() % n; }
    template <class T>
    const T &any(const std::vector<T> &of) {
        return of[below(of.size())];
    }
    routecap_request any_request() {
        if (requests_.empty() || (requests_.size() < 5 && below(4) == 0))
            requests_.push_back(
                rig_->open(below(3) == 0 ? ROUTECAP_POLICY_REPLACE : ROUTECAP_POLICY_KEEP));
        return any(requests_);
    }
    void forget(routecap_request r) {
        requests_.erase(std::find(requests_.begin(), requests_.end(), r));
        std::erase_if(waiting_, [r](const Waiting &w) { return w.request == r; });
    }
    uint64_t length(routecap_request r) {
        routecap_coverage coverage{};
        coverage.struct_size = sizeof coverage;
        const int32_t status =
            routecap_request_coverage(rig_->capturer(), r, 0, 0, &coverage, nullptr, 0, 0);
        return status >= 0 ? coverage.length : 0;
    }

    void one() {
        switch (below(16)) {
            case 0:
            case 1: land(); break;
            case 2: accept(); break;
            case 3:
                EXPECT_STATUS(ROUTECAP_OK,
                              routecap_request_truncate(rig_->capturer(), any_request(),
                                                        below(3 * page_rows_)));
                break;
            case 4: fork(); break;
            case 5: attach(); break;
            case 6: close(); break;
            case 7: finish(); break;
            case 8:
            case 9: extract(); break;
            case 10: import(); break;
            case 11:
                if (!routings_.empty())
                    routings_.erase(routings_.begin() +
                                    static_cast<ptrdiff_t>(below(routings_.size())));
                break;
            default: issue(); break;
        }
        if (routings_.size() > 6) routings_.erase(routings_.begin());
    }

    // Everything lands and is applied. Within its budget the capturer can exceed it only by what
    // waits now.
    void land() {
        rig_->open_gate();
        const RoutingPtr last(rig_->finish(rig_->open(), 0));
        EXPECT_STATUS(ROUTECAP_OK, routecap_routing_wait(last.get(), -1));
        if (rig_->stats().bytes_in_use > budget_) return;
        touched_ = 0;
        for (const Waiting &waiting : waiting_) touched_ += waiting.pages;
    }
    // Pages that rows of a span may be in.
    uint64_t pages_of(const routecap_span &span) const {
        const bool device = (span.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0;
        const uint64_t end = device ? span.position_end : span.position + span.rows;
        return std::min<uint64_t>(span.rows,
                                  (end - 1) / page_rows_ - span.position / page_rows_ + 1);
    }

    void issue() {
        if (rig_->stats().steps_in_flight > 2) land();  // or a device would lose steps
        std::vector<routecap_span> spans;
        std::vector<int64_t> positions(kWide.rows, 0);
        std::vector<std::pair<routecap_request, std::pair<uint64_t, uint64_t>>> settled;
        uint32_t row = 0;
        for (uint64_t n = 1 + below(3); n > 0 && row < kWide.rows; n--) {
            const routecap_request r = any_request();
            const auto rows = static_cast<uint32_t>(
                1 + below(std::min<uint64_t>(kWide.rows - row, below(3) == 0 ? 40 : 6)));
            const uint64_t position = below(3) == 0   ? below(4 * page_rows_)
                                      : below(2) == 0 ? below(page_rows_)
                                                      : length(r);
            routecap_span span =
                Rig::span(r, position, row, rows, below(4) == 0 ? ROUTECAP_SPAN_SPECULATIVE : 0);
            if (below(4) == 0) {
                span.flags |= ROUTECAP_SPAN_DEVICE_POSITIONS;
                span.position_end =
                    position + 1 + below(below(2) == 0 ? 30 * page_rows_ : rows + 2);
                for (uint32_t i = 0; i < rows; i++)
                    positions[row + i] = static_cast<int64_t>(
                        position + below(span.position_end - position + below(2)));
            }
            if (span.flags == 0) {
                const auto overlaps = [&, r = r](const auto &other) {
                    return other.first == r && std::max(other.second.first, position) <
                                                   std::min(other.second.second, position + rows);
                };
                if (std::any_of(settled.begin(), settled.end(), overlaps)) continue;
                settled.push_back({r, {position, position + rows}});
            }
            spans.push_back(span);
            row += rows;
        }
        const uint32_t first_layer = below(2) == 0 ? 0 : static_cast<uint32_t>(below(kWide.layers));
        rig_->forward([&] {
            EXPECT_STATUS(ROUTECAP_OK, rig_->begin(kWide.rows));
            record(first_layer);
            EXPECT_STATUS(ROUTECAP_OK, rig_->snapshot());
        });
        routecap_issue_options options{};
        options.struct_size = sizeof options;
        options.tag = below(3);
        options.positions =
            rig_->device().upload(positions.data(), positions.size() * sizeof positions[0]);
        options.positions_dtype = ROUTECAP_DTYPE_I64;
        std::vector<int32_t> status(spans.size() + 1);
        routecap_step step = 0;
        const int32_t issued =
            routecap_step_issue(rig_->capturer(), spans.data(), sizeof(routecap_span), spans.size(),
                                &options, status.data(), &step, rig_->stream());
        ASSERT_GE(issued, 0) << routecap_last_error();
        for (size_t i = 0; i < spans.size(); i++) {
            if (status[i] == ROUTECAP_ERR_NO_MEMORY) refused_ += spans[i].rows;
            if (status[i] == ROUTECAP_OK) touched_ += pages_of(spans[i]);
            if ((spans[i].flags & ROUTECAP_SPAN_SPECULATIVE) == 0) continue;
            drafts_.emplace_back(spans[i].request, step);
            if (status[i] == ROUTECAP_OK)
                waiting_.push_back({spans[i].request, step, pages_of(spans[i])});
        }
    }

    void record(uint32_t first_layer) {
        std::vector<routecap_layer_source> layers;
        for (uint32_t l = first_layer; l < kWide.layers; l++)
            layers.push_back({l, 0, ids_, nullptr});
        routecap_source source{};
        source.struct_size = sizeof source;
        source.dtype = ROUTECAP_DTYPE_I32;
        source.rows = kWide.rows;
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_layers_record(rig_->capturer(), &source, layers.data(),
                                             sizeof layers[0], layers.size(), rig_->stream()));
    }

    void accept() {
        if (drafts_.empty()) return;
        const size_t i = below(drafts_.size());
        const auto [r, step] = drafts_[i];
        drafts_.erase(drafts_.begin() + static_cast<ptrdiff_t>(i));
        // That may be too many, or none may wait.
        if (routecap_request_accept(rig_->capturer(), r, step, nullptr, below(4)) == ROUTECAP_OK)
            std::erase_if(waiting_, [r = r, step = step](const Waiting &w) {
                return w.request == r && w.step == step;
            });
    }
    bool may_lend(routecap_request r) {
        if (lends_) return true;
        land();
        return std::none_of(waiting_.begin(), waiting_.end(),
                            [r](const Waiting &w) { return w.request == r; });
    }
    void fork() {
        if (requests_.size() > 6) return;
        routecap_request child = 0;
        const routecap_request r = any_request();
        if (!may_lend(r)) return;
        const uint64_t rows = length(r);
        const int32_t status = routecap_request_fork(
            rig_->capturer(), r, below(2) == 0 ? ROUTECAP_ROWS_ALL : below(rows + 1), &child);
        if (status == ROUTECAP_OK) requests_.push_back(child);
    }
    void attach() {
        if (routings_.empty()) return;
        EXPECT_STATUS(ROUTECAP_OK,
                      routecap_request_attach(rig_->capturer(), any_request(), any(routings_).get(),
                                              ROUTECAP_ROWS_ALL));
    }
    void close() {
        const routecap_request r = any_request();
        rig_->close(r);
        forget(r);
    }
    void finish() {
        const routecap_request r = any_request();
        routings_.emplace_back(
            rig_->finish(r, below(2) == 0 ? ROUTECAP_ROWS_ALL : below(3 * page_rows_)));
        forget(r);
    }
    void extract() {
        const routecap_request r = any_request();
        if (!may_lend(r)) return;
        const uint64_t rows = length(r), first = below(rows + 1);
        routecap_routing *routing = nullptr;
        const int32_t status = routecap_request_extract(
            rig_->capturer(), r, first, below(2) == 0 ? ROUTECAP_ROWS_ALL : below(rows - first + 1),
            static_cast<int32_t>(below(3)), 0, &routing);
        EXPECT_EQ(status >= 0, routing != nullptr);
        if (routing != nullptr) routings_.emplace_back(routing);
    }
    // A routing of other memory, whose rows line up with no page; or of rows that are not there.
    void import() {
        if (routings_.empty() || below(2) == 0) {
            routecap_view view{};
            view.struct_size = sizeof view;
            view.dtype = ROUTECAP_DTYPE_U8;
            view.layers = kWide.layers, view.k = kWide.k, view.experts = kWide.experts;
            view.first = below(page_rows_), view.rows = 1 + below(3 * page_rows_);
            view.segment_size = sizeof(routecap_segment);
            routecap_routing *nothing = nullptr;
            ASSERT_STATUS(ROUTECAP_NOT_CAPTURED,
                          routecap_routing_import(&view, 0, nullptr, nullptr, &nothing));
            routings_.emplace_back(nothing);
            return;
        }
        const routecap_routing *of = any(routings_).get();
        if (routecap_routing_poll(of) == ROUTECAP_PENDING) return;
        uint64_t bytes = 0;
        EXPECT_STATUS(ROUTECAP_ERR_BUFFER_TOO_SMALL,
                      routecap_routing_serialize(of, nullptr, 0, &bytes));
        std::vector<uint8_t> data(bytes);
        EXPECT_STATUS(ROUTECAP_OK, routecap_routing_serialize(of, data.data(), bytes, nullptr));
        routecap_routing *back = nullptr;
        EXPECT_GE(routecap_routing_deserialize(data.data(), bytes, 0, nullptr, nullptr, &back), 0);
        routings_.emplace_back(back);
    }

    std::mt19937_64 random_;
    const bool lends_;
    const routecap_memory memory_;
    const uint64_t budget_;
    std::unique_ptr<Rig> rig_;
    const int32_t *ids_ = nullptr;
    uint64_t page_rows_ = 0, refused_ = 0, delivered_ = 0;
    std::vector<routecap_request> requests_;
    std::vector<std::pair<routecap_request, routecap_step>> drafts_;
    struct Waiting {  // drafts that were not accepted as yet
        routecap_request request;
        routecap_step step;
        uint64_t pages;
    };
    std::vector<Waiting> waiting_;
    // Pages that spans in flight and waiting drafts touched since the capturer was last within its
    // budget; and the most bytes that they ever allowed.
    uint64_t touched_ = 0, most_ever_ = 0;
    std::vector<RoutingPtr> routings_;
};

void run_seeds(int seeds, bool manual, bool lends = true) {
    uint64_t refused = 0, delivered = 0;
    for (int seed = 1; seed <= seeds && !testing::Test::HasFailure(); seed++) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        Engine engine(static_cast<uint64_t>(seed), manual, lends);
        engine.run(250);
        if (!testing::Test::HasFailure()) engine.end();
        refused += engine.refused(), delivered += engine.delivered();
    }
    EXPECT_GT(refused, 0u) << "memory was never short";
    EXPECT_GT(delivered, 0u);
}

}  // namespace

// Under a sanitizer a seed takes a second.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSeeds = 15;
#else
constexpr int kSeeds = 60;
#endif

TEST(Promises, no_row_that_issue_accepted_is_refused_later_with_manual_progress) {
    run_seeds(draws(kSeeds), true);
}
TEST(Promises, no_row_that_issue_accepted_is_refused_later_with_a_worker) {
    run_seeds(draws(kSeeds), false);
}
TEST(Promises, the_budget_is_kept_to_where_nothing_is_lent_in_flight) {
    for (const bool manual : {true, false}) run_seeds(draws(kSeeds / 2), manual, false);
}
