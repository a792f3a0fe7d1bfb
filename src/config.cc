#include "config.h"

#include <utility>

#include "pages.h"
#include "sink.h"
#include "status.h"
#include "structs.h"

namespace routecap {
namespace {

constexpr uint32_t kFlags = ROUTECAP_CONFIG_COMPARE | ROUTECAP_CONFIG_EXTERNAL_SINK | ROUTECAP_CONFIG_MANUAL_PROGRESS;

int32_t between(const char *name, uint64_t value, uint64_t low, uint64_t high) {
    if (value >= low && value <= high) return ROUTECAP_OK;
    return report(ROUTECAP_ERR_ARGUMENT, "config.%s is %llu, not in [%llu,%llu]", name, static_cast<unsigned long long>(value),
                  static_cast<unsigned long long>(low), static_cast<unsigned long long>(high));
}

int32_t read_shape(const routecap_config &c, ShapePtr &shape) {
    if (int32_t s = between("layers", c.layers, 1, ROUTECAP_MAX_LAYERS); s < 0) return s;
    if (int32_t s = between("k", c.k, 1, ROUTECAP_MAX_K); s < 0) return s;
    std::vector<int32_t> map(c.layers);
    std::vector<uint32_t> experts(c.layers, c.experts);
    std::vector<int32_t> provenance(c.layers, ROUTECAP_PROVENANCE_CAPTURED);
    for (uint32_t l = 0; l < c.layers; l++) {
        map[l] = c.layer_map != nullptr ? c.layer_map[l] : static_cast<int32_t>(l);
        if (map[l] < 0 || (l > 0 && map[l] <= map[l - 1]))
            return report(ROUTECAP_ERR_ARGUMENT, "config.layer_map[%u] is %d; it must ascend strictly from 0 or more", l, map[l]);
        if (c.layer_experts != nullptr) experts[l] = c.layer_experts[l];
        if (int32_t s = between(c.layer_experts != nullptr ? "layer_experts" : "experts", experts[l], c.k, ROUTECAP_MAX_EXPERTS); s < 0) return s;
        if (c.layer_provenance != nullptr) provenance[l] = c.layer_provenance[l];
        if (provenance[l] != ROUTECAP_PROVENANCE_CAPTURED && provenance[l] != ROUTECAP_PROVENANCE_RECOMPUTED)
            return report(ROUTECAP_ERR_ARGUMENT, "config.layer_provenance[%u] is %d", l, provenance[l]);
    }
    if (c.id_space != ROUTECAP_ID_SPACE_LOGICAL && c.id_space != ROUTECAP_ID_SPACE_PHYSICAL)
        return report(ROUTECAP_ERR_ARGUMENT, "config.id_space is %d", c.id_space);
    shape = std::make_shared<const Shape>(c.k, c.id_space, std::move(map), std::move(experts), std::move(provenance));
    return ROUTECAP_OK;
}

}  // namespace

int32_t read_config(const routecap_config *config, Config &out) {
    routecap_config c;
    if (int32_t s = read_struct(c, config, "config"); s < 0) return s;
    out.role = c.role;
    if (c.role == ROUTECAP_ROLE_DISABLED) return ROUTECAP_OK;
    if (c.role != ROUTECAP_ROLE_OWNER && c.role != ROUTECAP_ROLE_MIRROR) return report(ROUTECAP_ERR_ARGUMENT, "config.role is %d", c.role);
    if (c.backend != ROUTECAP_BACKEND_HOST && c.backend != ROUTECAP_BACKEND_CUDA)
        return report(ROUTECAP_ERR_ARGUMENT, "config.backend is %d, which is no backend", c.backend);
    if ((c.flags & ~kFlags) != 0 || c.reserved != 0)
        return report(ROUTECAP_ERR_ARGUMENT, "config.flags is %u and config.reserved %u", c.flags, c.reserved);
    if (int32_t s = read_shape(c, out.shape); s < 0) return s;
    if (int32_t s = between("rows", c.rows, 1, ROUTECAP_MAX_ROWS); s < 0) return s;
    out.backend = c.backend;
    out.device = c.device;
    out.rows = c.rows;
    out.slots = c.slots != 0 ? c.slots : 4;
    if (int32_t s = between("slots", out.slots, 1, ROUTECAP_MAX_SLOTS); s < 0) return s;
    out.sink_dtype = c.sink_dtype != 0 ? c.sink_dtype : ROUTECAP_DTYPE_I16;
    if (sink_element_bytes(out.sink_dtype) == 0) return report(ROUTECAP_ERR_ARGUMENT, "config.sink_dtype is %d", c.sink_dtype);
    out.compare = (c.flags & ROUTECAP_CONFIG_COMPARE) != 0;
    out.external_sink = (c.flags & ROUTECAP_CONFIG_EXTERNAL_SINK) != 0;
    out.manual_progress = (c.flags & ROUTECAP_CONFIG_MANUAL_PROGRESS) != 0;
    out.max_requests = c.max_requests != 0 ? c.max_requests : 65536;
    if (int32_t s = between("max_requests", out.max_requests, 1, 1u << 24); s < 0) return s;
    out.budget_bytes = c.budget_bytes != 0 ? c.budget_bytes : uint64_t{1} << 30;
    const uint64_t page = PagePool::page_bytes(*out.shape, out.shape->page_rows);
    return between("budget_bytes", out.budget_bytes, page, UINT64_MAX);
}

}  // namespace routecap
