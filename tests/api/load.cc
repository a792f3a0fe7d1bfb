// The load of the experts by tag and in windows, against a count of what was issued.
#include <rig.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <random>

using namespace rig;

namespace {

// [phases, layers, experts], and of what.
struct Load {
    std::vector<uint64_t> counts;
    uint64_t steps = 0;
    std::array<uint64_t, ROUTECAP_LOAD_PHASES> rows{};

    explicit Load(const Shape &shape)
        : counts(size_t{ROUTECAP_LOAD_PHASES} * shape.layers * shape.experts) {}
    bool operator==(const Load &) const = default;

    // Rows of a step that landed.
    void add(const Shape &shape, const Tokens &tokens) {
        const size_t phase = tokens.count == 1 ? ROUTECAP_PHASE_DECODE : ROUTECAP_PHASE_PREFILL;
        steps++;
        rows[phase] += tokens.count;
        for (uint64_t p = tokens.position; p < tokens.position + tokens.count; p++)
            for (uint32_t l = 0; l < shape.layers; l++)
                for (const int64_t id : routed(shape, tokens.seed, p, l))
                    counts[(phase * shape.layers + l) * shape.experts + static_cast<size_t>(id)]++;
    }
    Load since(const Load &earlier) const {
        Load window = *this;
        window.steps -= earlier.steps;
        for (size_t i = 0; i < rows.size(); i++) window.rows[i] -= earlier.rows[i];
        for (size_t i = 0; i < counts.size(); i++) window.counts[i] -= earlier.counts[i];
        return window;
    }
};

Load read(const Rig &rig, const uint64_t *tag, uint64_t *first_step = nullptr) {
    Load load(rig.shape());
    routecap_load said{.struct_size = sizeof said};
    EXPECT_STATUS(ROUTECAP_OK, routecap_capturer_load(rig.capturer(), tag, &said,
                                                      load.counts.data(), load.counts.size()));
    load.steps = said.steps;
    load.rows = {said.rows_prefill, said.rows_decode};
    if (first_step != nullptr) *first_step = said.first_step;
    return load;
}

std::vector<uint64_t> tags(const Rig &rig) {
    std::vector<uint64_t> tags(ROUTECAP_MAX_LOAD_TAGS);
    uint64_t count = 0;
    EXPECT_STATUS(ROUTECAP_OK,
                  routecap_capturer_load_tags(rig.capturer(), tags.data(), tags.size(), &count));
    tags.resize(count);
    return tags;
}

}  // namespace

// More tags than are kept apart, some of which come back.
TEST(Load, a_window_of_each_tag_is_what_its_steps_brought_in_it) {
    Rig rig({.slots = 8, .flags = ROUTECAP_CONFIG_LOAD | ROUTECAP_CONFIG_LOAD_TAGS});
    const Shape &shape = rig.shape();
    const routecap_request request = rig.open();
    std::mt19937 random(5);
    std::deque<uint64_t> kept;  // the oldest first
    std::map<uint64_t, Load> before;
    Load all_before = read(rig, nullptr);
    uint64_t position = 0, apart = 0;
    for (uint64_t window = 0; window < 60 && !HasFailure(); window++) {
        std::map<uint64_t, Load> expected;
        Load all(shape);
        routecap_step last = 0;
        for (int i = 0; i < 6; i++) {
            const uint64_t tag = window / 8 + random() % 6;
            const Tokens tokens{1, position,
                                random() % 2 == 0 ? 1 : 2 + static_cast<uint32_t>(random() % 9)};
            position += tokens.count;
            rig.run({tokens});
            const routecap_issue_options options{.struct_size = sizeof options, .tag = tag};
            last = rig.issue({Rig::span(request, tokens.position, 0, tokens.count)}, ROUTECAP_OK,
                             nullptr, &options);
            if (std::find(kept.begin(), kept.end(), tag) == kept.end()) {
                kept.push_back(tag);
                if (kept.size() > ROUTECAP_MAX_LOAD_TAGS) {
                    expected.erase(kept.front()), before.erase(kept.front());
                    kept.pop_front();
                }
            }
            expected.try_emplace(tag, shape).first->second.add(shape, tokens);
            all.add(shape, tokens);
        }
        rig.land(last);
        ASSERT_EQ(tags(rig), std::vector<uint64_t>(kept.begin(), kept.end()));
        for (const uint64_t tag : kept) {
            const Load now = read(rig, &tag);
            const Load &then = before.try_emplace(tag, shape).first->second;
            const auto in_window = expected.find(tag);
            EXPECT_EQ(now.since(then),
                      in_window != expected.end() ? in_window->second : Load(shape))
                << "tag " << tag << " in window " << window;
            before.at(tag) = now;
            apart += now.steps;
        }
        const Load now = read(rig, nullptr);
        EXPECT_EQ(now.since(all_before), all) << "window " << window;
        all_before = now;
    }
    EXPECT_EQ(all_before.steps, 360u);
    EXPECT_GT(kept.back(), uint64_t{ROUTECAP_MAX_LOAD_TAGS});  // some are kept apart no more
    EXPECT_GT(apart, 0u);
    const uint64_t gone = 0;
    routecap_load none{.struct_size = sizeof none};
    EXPECT_STATUS(ROUTECAP_ERR_OUT_OF_RANGE,
                  routecap_capturer_load(rig.capturer(), &gone, &none, nullptr, 0));
}

TEST(Load, a_tag_that_comes_back_says_since_when_it_is_counted) {
    Rig rig({.slots = 4, .flags = ROUTECAP_CONFIG_LOAD | ROUTECAP_CONFIG_LOAD_TAGS});
    const routecap_request request = rig.open();
    routecap_step last = 0;
    for (uint64_t p = 0; p < ROUTECAP_MAX_LOAD_TAGS + 2; p++) {
        rig.run({{1, p, 1}});
        const routecap_issue_options options{.struct_size = sizeof options,
                                             .tag = p % (ROUTECAP_MAX_LOAD_TAGS + 1)};
        last = rig.issue({Rig::span(request, p, 0, 1)}, ROUTECAP_OK, nullptr, &options);
    }
    rig.land(last);
    const uint64_t back = 0;
    uint64_t first_step = 0;
    EXPECT_EQ(read(rig, &back, &first_step).steps, 1u);
    EXPECT_EQ(first_step, last);
}
