// What the benchmarks of plans gather: sequences of many lengths of 48 layers x 8 of 128 experts.
#pragma once

#include <routecap.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "check.h"

namespace bench {

constexpr uint32_t kPlanLayers = 48, kPlanK = 8, kPlanExperts = 128;

class PlanSamples {
public:
    // So many tokens in all.
    explicit PlanSamples(uint64_t tokens) {
        for (uint64_t left = tokens, n = 700; left > 0; n = n * 7 % 8009 + 200) {
            lengths_.push_back(left <= n + 1 ? left : n);
            left -= lengths_.back();
        }
        for (const uint64_t length : lengths_) {
            std::vector<uint8_t> ids((length - 1) * kPlanLayers * kPlanK);
            for (size_t i = 0; i < ids.size(); i++)
                ids[i] = static_cast<uint8_t>((i / kPlanK * 31 + i % kPlanK * 5) % kPlanExperts);
            routecap_segment segment{};
            segment.rows = length - 1, segment.ids = ids.data();
            routecap_view view{};
            view.struct_size = sizeof view, view.dtype = ROUTECAP_DTYPE_U8;
            view.layers = kPlanLayers, view.k = kPlanK, view.experts = kPlanExperts;
            view.rows = length - 1, view.segments = &segment;
            view.segment_size = sizeof segment, view.segment_count = 1;
            routecap_routing *routing = nullptr;
            CHECK(routecap_routing_import(&view, 0, nullptr, nullptr, &routing));
            sources_.push_back({sources_.size(), routing});
        }
    }
    ~PlanSamples() {
        for (const routecap_plan_source &source : sources_)
            routecap_routing_free(const_cast<routecap_routing *>(source.routing));
    }
    PlanSamples(const PlanSamples &) = delete;

    const std::vector<routecap_plan_source> &sources() const { return sources_; }
    // Of the first rank, to which the configuration's other fields belong.
    routecap_plan_config config(int32_t order, int32_t context, uint32_t context_size) const {
        routecap_plan_config config;
        CHECK(routecap_plan_config_init(&config, sizeof config));
        config.samples = lengths_.size(), config.lengths = lengths_.data();
        config.layers = kPlanLayers, config.k = kPlanK, config.experts = kPlanExperts;
        config.expert_parallel = 8, config.context = context, config.context_size = context_size;
        config.context_rank = 0;
        config.dtype = ROUTECAP_DTYPE_I64, config.order = order;
        return config;
    }

private:
    std::vector<uint64_t> lengths_;
    std::vector<routecap_plan_source> sources_;
};

}  // namespace bench
