#include "base/shape.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/status.h"

namespace routecap {

bool Shape::same_cell(const uint8_t *row_a, const uint8_t *row_b, uint32_t layer) const {
    const uint8_t *a = cell(row_a, layer), *b = cell(row_b, layer);
    if (std::memcmp(a, b, cell_bytes) == 0) return true;
    const auto subset = [this](const auto *x, const auto *y) {  // both are sets of k
        return std::all_of(x, x + k, [&](auto id) { return std::find(y, y + k, id) != y + k; });
    };
    return id_bytes == 1 ? subset(a, b)
                         : subset(reinterpret_cast<const uint16_t *>(a),
                                  reinterpret_cast<const uint16_t *>(b));
}

LayerName Shape::layer_name(uint32_t layer) const {
    LayerName name;
    const auto decoder = static_cast<uint32_t>(layer_map[layer]);
    if (decoder == layer)
        std::snprintf(name.text, sizeof name.text, "%u", layer);
    else
        std::snprintf(name.text, sizeof name.text, "%u (captured layer %u)", decoder, layer);
    return name;
}

ShapePtr with_provenance_of_both(const ShapePtr &a, const Shape &b) {
    if (a->can_hold(b)) return a;
    std::vector<int32_t> provenance = a->layer_provenance;
    for (uint32_t l = 0; l < a->layers; l++)
        if (b.is_recomputed(l)) provenance[l] = ROUTECAP_PROVENANCE_RECOMPUTED;
    return std::make_shared<const Shape>(a->k, a->id_space, a->layer_map, a->layer_experts,
                                         std::move(provenance));
}

int32_t check_between(const char *what, const char *name, uint64_t value, uint64_t low,
                      uint64_t high) {
    if (value >= low && value <= high) return ROUTECAP_OK;
    return report(ROUTECAP_ERR_ARGUMENT, "%s.%s is %llu, not in [%llu,%llu]", what, name,
                  ull(value), ull(low), ull(high));
}

int32_t make_shape(const ShapeSource &from, const char *what, ShapePtr &shape) {
    if (int32_t s = check_between(what, "layers", from.layers, 1, ROUTECAP_MAX_LAYERS); s < 0)
        return s;
    if (int32_t s = check_between(what, "k", from.k, 1, ROUTECAP_MAX_K); s < 0) return s;
    std::vector<int32_t> map(from.layers);
    std::vector<uint32_t> experts(from.layers, from.experts);
    std::vector<int32_t> provenance(from.layers, ROUTECAP_PROVENANCE_CAPTURED);
    for (uint32_t l = 0; l < from.layers; l++) {
        map[l] = from.layer_map != nullptr ? from.layer_map[l] : static_cast<int32_t>(l);
        if (map[l] < 0 || (l > 0 && map[l] <= map[l - 1]))
            return report(ROUTECAP_ERR_ARGUMENT,
                          "%s.layer_map[%u] is %d; it must ascend strictly from 0 or more", what, l,
                          map[l]);
        if (from.layer_experts != nullptr) experts[l] = from.layer_experts[l];
        const char *name = from.layer_experts != nullptr ? "layer_experts" : "experts";
        if (int32_t s = check_between(what, name, experts[l], from.k, ROUTECAP_MAX_EXPERTS); s < 0)
            return s;
        if (from.layer_provenance != nullptr) provenance[l] = from.layer_provenance[l];
        if (provenance[l] != ROUTECAP_PROVENANCE_CAPTURED &&
            provenance[l] != ROUTECAP_PROVENANCE_RECOMPUTED)
            return report(ROUTECAP_ERR_ARGUMENT, "%s.layer_provenance[%u] is %d", what, l,
                          provenance[l]);
    }
    if (from.id_space != ROUTECAP_ID_SPACE_LOGICAL && from.id_space != ROUTECAP_ID_SPACE_PHYSICAL)
        return report(ROUTECAP_ERR_ARGUMENT, "%s.id_space is %d", what, from.id_space);
    shape = std::make_shared<const Shape>(from.k, from.id_space, std::move(map), std::move(experts),
                                          std::move(provenance));
    return ROUTECAP_OK;
}

}  // namespace routecap
