// Plans of any numbers: each is refused, or has every row of its rank once, and writes every byte
// of its results and none beside.
//
// An input is a configuration, of which some numbers are as large as they can be, and where the
// routing of its samples has holes.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "bytes.h"
#include "check.h"

namespace {

using fuzz::Bytes;

constexpr uint64_t kMostCells = 1 << 14;  // of a plan whose results are looked at

struct PlanFree {
    void operator()(routecap_plan *plan) const { routecap_plan_free(plan); }
};
struct RoutingFree {
    void operator()(routecap_routing *routing) const { routecap_routing_free(routing); }
};
using RoutingPtr = std::unique_ptr<routecap_routing, RoutingFree>;

// Small, seldom enormous.
uint64_t size(Bytes &in, uint64_t small) {
    if (!in.chance(3)) return in.below(small);
    return in.pick<uint64_t>({UINT64_MAX, uint64_t{1} << 63, uint64_t{1} << 40, uint64_t{1} << 31,
                              ROUTECAP_MAX_PLAN_ROWS, ROUTECAP_MAX_PLAN_ROWS - 1, 1 << 20});
}

struct Config : routecap_plan_config {
    std::vector<uint64_t> lengths_, cu_lengths_, needed_, padded_, starts_;
    std::vector<int32_t> map_;
    std::vector<uint32_t> experts_;

    explicit Config(Bytes &in) {
        SAME_STATUS(ROUTECAP_OK, routecap_plan_config_init(this, sizeof(routecap_plan_config)));
        layout = static_cast<int32_t>(in.below(in.chance(4) ? 5 : 3));
        context = static_cast<int32_t>(in.below(in.chance(4) ? 6 : 4));
        context_size = static_cast<uint32_t>(size(in, 5)),
        tensor_size = static_cast<uint32_t>(size(in, 4));
        if (context == ROUTECAP_PLAN_CONTEXT_NONE && !in.chance(4)) context_size = 0;
        context_rank = static_cast<uint32_t>(in.below(std::max(context_size, 1u) + in.chance(4)));
        tensor_rank = static_cast<uint32_t>(in.below(std::max(tensor_size, 1u) + in.chance(4)));
        flags = static_cast<uint32_t>(in.below(in.chance(4) ? 9 : 4));
        samples = in.below(6);
        uint64_t tokens = 0;
        cu_lengths_.push_back(in.chance(2) ? 1 : 0);
        for (uint64_t i = 0; i < samples; i++) {
            lengths_.push_back(size(in, 20));
            cu_lengths_.push_back(tokens += lengths_.back());
            needed_.push_back(in.chance(32) ? ROUTECAP_ROWS_ALL : in.below(20));
            padded_.push_back(lengths_.back() + in.below(9)), starts_.push_back(in.below(9));
        }
        const bool cumulative = in.chance(64);
        if (!cumulative || in.chance(4)) lengths = lengths_.data();
        if (cumulative) cu_lengths = cu_lengths_.data();
        if (in.chance(64)) needed = needed_.data();
        if (in.chance(32)) padded_lengths = padded_.data();
        if (in.chance(32)) starts = starts_.data();
        if (in.chance(64)) width = size(in, 40);
        if (in.chance(64)) align = size(in, 20);
        if (in.chance(64)) align_total = size(in, 20);
        if (in.chance(32)) least_total = size(in, 60);
        if (in.chance(64)) align_rank = size(in, 20);
        layers = static_cast<uint32_t>(in.chance(4) ? size(in, 2000) : 1 + in.below(9));
        k = static_cast<uint32_t>(in.chance(4) ? size(in, 40) : 1 + in.below(9));
        experts = static_cast<uint32_t>(in.chance(4) ? size(in, 40000)
                                                     : in.pick<uint64_t>({9, 16, 64, 256, 300}));
        expert_parallel = static_cast<uint32_t>(size(in, 9));
        int32_t index = -1;
        for (uint32_t l = 0; l < std::min(layers, 64u); l++) {
            map_.push_back(index += static_cast<int32_t>(in.chance(2) ? 0 : 1 + in.below(3)));
            experts_.push_back(static_cast<uint32_t>(9 + in.below(300)));
        }
        if (layers <= 64 && in.chance(128)) layer_map = map_.data();
        if (layers <= 64 && in.chance(64)) layer_experts = experts_.data();
        dtype = static_cast<int32_t>(1 + in.below(in.chance(4) ? 9 : 6));
        order = static_cast<int32_t>(in.below(in.chance(4) ? 3 : 2));
        fill = static_cast<int32_t>(in.below(in.chance(4) ? 3 : 2));
        lost = static_cast<int32_t>(in.below(in.chance(4) ? 4 : 3));
        fill_value = in.pick<int64_t>({0, -1, 255, 65535, INT64_MIN});
        lost_value = in.pick<int64_t>({-1, 0, 255, 65535, INT64_MAX});
    }
    Config(const Config &) = delete;

    uint64_t length(uint64_t i) const {
        return lengths != nullptr ? lengths_[i] : cu_lengths_[i + 1] - cu_lengths_[i];
    }
    uint32_t experts_of(uint32_t l) const { return layer_experts ? experts_[l] : experts; }
};

// A routing of all tokens of a sample, of which some rows are left out.
RoutingPtr routing(Bytes &in, const Config &c, uint64_t rows) {
    std::vector<uint32_t> experts;
    for (uint32_t l = 0; l < c.layers; l++) experts.push_back(c.experts_of(l));
    const bool narrow = *std::max_element(experts.begin(), experts.end()) <= 256;
    std::vector<uint16_t> wide(rows * c.layers * c.k);
    for (size_t i = 0; i < wide.size(); i++)
        wide[i] = static_cast<uint16_t>((i / c.k * 7 + i % c.k) % experts[i / c.k % c.layers]);
    const std::vector<uint8_t> bytes(wide.begin(), wide.end());
    std::vector<routecap_segment> segments;
    for (uint64_t at = 0; at < rows;) {
        const uint64_t n = 1 + in.below(rows - at);
        routecap_segment segment{};
        segment.first = at, segment.rows = n;
        segment.ids = narrow ? static_cast<const void *>(bytes.data() + at * c.layers * c.k)
                             : wide.data() + at * c.layers * c.k;
        if (!in.chance(64)) segments.push_back(segment);
        at += n;
    }
    routecap_view view{};
    view.struct_size = sizeof view;
    view.dtype = narrow ? ROUTECAP_DTYPE_U8 : ROUTECAP_DTYPE_I16;
    view.layers = c.layers, view.k = c.k, view.rows = rows;
    view.layer_map = c.layer_map, view.layer_experts = experts.data();
    view.segments = segments.data(), view.segment_size = sizeof(routecap_segment);
    view.segment_count = segments.size();
    routecap_routing *made = nullptr;
    if (routecap_routing_import(&view, 0, nullptr, nullptr, &made) < 0)
        check::fail("import: %s", routecap_last_error());
    return RoutingPtr(made);
}

// Memory between guards.
class Room {
public:
    Room(uint64_t bytes, uint8_t before) : memory_(bytes + 64, before) {
        std::fill_n(memory_.begin(), 32, uint8_t{0xc5});
        std::fill_n(memory_.end() - 32, 32, uint8_t{0xc5});
    }
    uint8_t *data() { return memory_.data() + 32; }
    std::vector<uint8_t> contents() const {
        for (size_t i = 0; i < 32; i++)
            if (memory_[i] != 0xc5 || memory_[memory_.size() - 1 - i] != 0xc5)
                check::fail("memory beside a result was written");
        return {memory_.begin() + 32, memory_.end() - 32};
    }

private:
    std::vector<uint8_t> memory_;
};

struct Result {
    std::vector<uint8_t> ids, classes;
    bool operator==(const Result &) const = default;
};

// The result of a call, which does not depend on what its memory held.
template <class Call>
Result written(const routecap_plan_shape &shape, Call call) {
    Result results[2];
    for (const uint8_t before : {0x00, 0xff}) {
        Room ids(shape.ids_bytes, before), classes(shape.classes_bytes, before);
        call(ids.data(), classes.data());
        results[before != 0] = {ids.contents(), classes.contents()};
    }
    if (!(results[0] == results[1])) check::fail("a byte of a result was not written");
    return results[0];
}

void look_at(Bytes &in, const Config &c, const routecap_plan *plan) {
    routecap_plan_shape shape{};
    shape.struct_size = sizeof shape;
    SAME_STATUS(ROUTECAP_OK, routecap_plan_describe(plan, &shape));
    SAME(shape.rows, shape.rows_needed + shape.rows_not_needed + shape.rows_padding);
    if (shape.total_rows > ROUTECAP_MAX_PLAN_ROWS || shape.rows > shape.total_rows)
        check::fail("%llu of %llu rows", static_cast<unsigned long long>(shape.rows),
                    static_cast<unsigned long long>(shape.total_rows));
    uint64_t count = 0, needed = 0;
    std::vector<routecap_plan_range> ranges(shape.ranges);
    SAME_STATUS(ROUTECAP_OK,
                routecap_plan_ranges(plan, ranges.data(), sizeof ranges[0], ranges.size(), &count));
    for (const routecap_plan_range &range : ranges) needed += range.rows;
    SAME(shape.rows_needed, needed);

    uint64_t tokens = 0;
    for (uint64_t i = 0; i < c.samples; i++) tokens += c.length(i);
    if (std::max(shape.rows, tokens) * c.layers * c.k > kMostCells) return;
    std::vector<RoutingPtr> routings;
    std::vector<routecap_plan_source> sources;
    for (uint64_t i = 0; i < c.samples; i++) {
        if (in.chance(32)) continue;
        routings.push_back(routing(in, c, c.length(i)));
        sources.push_back({i, routings.back().get()});
    }
    routecap_plan_report report{};
    report.struct_size = sizeof report;
    std::vector<uint64_t> packed(shape.packed_bytes / 8 + 1);
    const int32_t status =
        routecap_plan_pack(plan, sources.data(), sizeof sources[0], sources.size(), packed.data(),
                           packed.size() * 8, &report);
    const bool strict = c.lost == ROUTECAP_PLAN_LOST_ERROR;
    const int32_t expected = report.cells_lost == 0 ? ROUTECAP_OK
                             : strict               ? ROUTECAP_ERR_INCOMPLETE
                                                    : ROUTECAP_INCOMPLETE;
    SAME(static_cast<uint32_t>(expected), static_cast<uint32_t>(status));
    SAME(shape.rows, report.rows_valid + report.rows_partial + report.rows_lost +
                         report.rows_not_needed + report.rows_padding);
    if (status < 0) return;
    const Result gathered = written(shape, [&](uint8_t *ids, uint8_t *classes) {
        SAME(static_cast<uint32_t>(expected),
             static_cast<uint32_t>(routecap_plan_gather(plan, sources.data(), sizeof sources[0],
                                                        sources.size(), ids, shape.ids_bytes,
                                                        classes, shape.classes_bytes, &report)));
    });
    const Result unpacked = written(shape, [&](uint8_t *ids, uint8_t *classes) {
        routecap_plan_target target{};
        target.struct_size = sizeof target, target.backend = ROUTECAP_BACKEND_HOST;
        target.dst = ids, target.dst_bytes = shape.ids_bytes;
        target.classes = classes, target.classes_bytes = shape.classes_bytes;
        SAME_STATUS(ROUTECAP_OK,
                    routecap_plan_unpack(plan, packed.data(), packed.size() * 8, &target, nullptr));
    });
    if (!(gathered == unpacked)) check::fail("what is unpacked is not what is gathered");
    for (const uint8_t each : gathered.classes)
        if (each > ROUTECAP_PLAN_CLASS_LOST) check::fail("class %u", each);
    std::vector<routecap_routing *> back(c.samples);
    if (routecap_plan_scatter(plan, gathered.ids.data(), gathered.ids.size(),
                              gathered.classes.data(), gathered.classes.size(), back.data(),
                              back.size()) < 0)
        check::fail("scatter: %s", routecap_last_error());
    for (routecap_routing *each : back) routecap_routing_free(each);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Bytes in(data, size);
    const Config config(in);
    routecap_plan *made = nullptr;
    const int32_t status = routecap_plan_create(&config, &made);
    const std::unique_ptr<routecap_plan, PlanFree> plan(made);
    if (status != ROUTECAP_OK && status != ROUTECAP_ERR_ARGUMENT && status != ROUTECAP_ERR_DTYPE)
        check::fail("create returned %s", routecap_status_name(status));
    if ((made != nullptr) != (status == ROUTECAP_OK)) check::fail("create: a plan and an error");
    if (made != nullptr) look_at(in, config, made);
    return 0;
}
