#include "base/shape.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/status.h"

namespace routecap {

bool Shape::same_cell(const uint8_t *row_a, const uint8_t *row_b, uint32_t layer) const {
    const uint8_t *a = cell(row_a, layer), *b = cell(row_b, layer);
    if (std::memcmp(a, b, cell_bytes) == 0) return true;
    const auto subset = [&](const auto *x, const auto *y) {  // both are sets of n
        const uint32_t n = count_ids(x, layer);
        return n == count_ids(y, layer) &&
               std::all_of(x, x + n, [&](auto id) { return std::find(y, y + n, id) != y + n; });
    };
    return id_bytes == 1 ? subset(a, b)
                         : subset(reinterpret_cast<const uint16_t *>(a),
                                  reinterpret_cast<const uint16_t *>(b));
}

LayerName Shape::layer_name(uint32_t layer) const {
    LayerName name;
    const auto decoder = static_cast<uint32_t>(of.map[layer]);
    if (of.visit[layer] != 0)
        std::snprintf(name.text, sizeof name.text, "%u in visit %u (captured layer %u)", decoder,
                      of.visit[layer], layer);
    else if (decoder == layer)
        std::snprintf(name.text, sizeof name.text, "%u", layer);
    else
        std::snprintf(name.text, sizeof name.text, "%u (captured layer %u)", decoder, layer);
    return name;
}

void Layers::add(const Layers &from, size_t l) {
    map.push_back(from.map[l]), visit.push_back(from.visit[l]);
    experts.push_back(from.experts[l]), k.push_back(from.k[l]), least.push_back(from.least[l]);
    provenance.push_back(from.provenance[l]);
}

size_t Layers::find(std::pair<int32_t, uint32_t> wanted) const {
    size_t low = 0;
    for (size_t n = size(); n > 0;) {
        const size_t half = n / 2;
        if (key(low + half) < wanted)
            low += half + 1, n -= half + 1;
        else
            n = half;
    }
    return low < size() && key(low) == wanted ? low : size();
}

ShapePtr with_provenance_of_both(const ShapePtr &a, const Shape &b) {
    if (a->can_hold(b)) return a;
    Layers layers = a->of;
    for (uint32_t l = 0; l < a->layers; l++)
        if (b.is_recomputed(l)) layers.provenance[l] = ROUTECAP_PROVENANCE_RECOMPUTED;
    return std::make_shared<const Shape>(a->k, a->id_space, a->weights_dtype, std::move(layers));
}

int32_t check_between(const char *what, const char *name, uint64_t value, uint64_t low,
                      uint64_t high) {
    if (value >= low && value <= high) return ROUTECAP_OK;
    return report(ROUTECAP_ERR_ARGUMENT, "%s.%s is %llu, not in [%llu,%llu]", what, name,
                  ull(value), ull(low), ull(high));
}

// Layer l of a description, appended to those before it.
static int32_t add_layer(const ShapeSource &from, const char *what, uint32_t l, Layers &to) {
    const auto given = [l](const auto *array, auto otherwise) {
        return array != nullptr ? array[l] : otherwise;
    };
    to.map.push_back(given(from.layer_map, static_cast<int32_t>(l)));
    to.visit.push_back(given(from.layer_visit, 0u));
    if (to.map[l] < 0 || (l > 0 && to.key(l) <= to.key(l - 1)))
        return report(ROUTECAP_ERR_ARGUMENT,
                      "%s.layer_map[%u] is %d in visit %u; it must ascend strictly from 0 or more",
                      what, l, to.map[l], to.visit[l]);
    to.k.push_back(given(from.layer_k, from.k));
    if (int32_t s = check_between(what, "layer_k", to.k[l], 1, from.k); s < 0) return s;
    to.least.push_back(given(from.layer_min_k, to.k[l]));
    if (int32_t s = check_between(what, "layer_min_k", to.least[l], 0, to.k[l]); s < 0) return s;
    to.experts.push_back(given(from.layer_experts, from.experts));
    const char *name = from.layer_experts != nullptr ? "layer_experts" : "experts";
    if (int32_t s = check_between(what, name, to.experts[l], to.k[l], ROUTECAP_MAX_EXPERTS); s < 0)
        return s;
    to.provenance.push_back(
        given(from.layer_provenance, static_cast<int32_t>(ROUTECAP_PROVENANCE_CAPTURED)));
    if (to.provenance[l] != ROUTECAP_PROVENANCE_CAPTURED &&
        to.provenance[l] != ROUTECAP_PROVENANCE_RECOMPUTED)
        return report(ROUTECAP_ERR_ARGUMENT, "%s.layer_provenance[%u] is %d", what, l,
                      to.provenance[l]);
    return ROUTECAP_OK;
}

int32_t make_shape(const ShapeSource &from, const char *what, ShapePtr &shape) {
    if (int32_t s = check_between(what, "layers", from.layers, 1, ROUTECAP_MAX_LAYERS); s < 0)
        return s;
    if (int32_t s = check_between(what, "k", from.k, 1, ROUTECAP_MAX_K); s < 0) return s;
    Layers layers;
    for (uint32_t l = 0; l < from.layers; l++)
        if (int32_t s = add_layer(from, what, l, layers); s < 0) return s;
    if (from.id_space != ROUTECAP_ID_SPACE_LOGICAL && from.id_space != ROUTECAP_ID_SPACE_PHYSICAL)
        return report(ROUTECAP_ERR_ARGUMENT, "%s.id_space is %d", what, from.id_space);
    if (from.weights_dtype != 0 && weight_element_bytes(from.weights_dtype) == 0)
        return report(ROUTECAP_ERR_DTYPE, "%s.weights_dtype is %d; weights are F32, F16 or BF16",
                      what, from.weights_dtype);
    shape =
        std::make_shared<const Shape>(from.k, from.id_space, from.weights_dtype, std::move(layers));
    if (shape->weight_bytes != 0 && shape->stride > kMostRowBytes)
        return report(ROUTECAP_ERR_ARGUMENT,
                      "%s.weights_dtype: a row of ids and weights has %u bytes, and at most %u are "
                      "kept",
                      what, shape->stride, kMostRowBytes);
    return ROUTECAP_OK;
}

}  // namespace routecap
