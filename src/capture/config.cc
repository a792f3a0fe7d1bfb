#include "capture/config.h"

#include <cstdlib>
#include <string_view>

#include "backend/sink.h"
#include "base/declared.h"
#include "base/status.h"
#include "base/structs.h"
#include "capture/steps.h"
#include "rows/pages.h"

namespace routecap {
namespace {

#define ROUTECAP_OR(name, member) | ROUTECAP_CONFIG_##name
constexpr uint32_t kFlags = 0 ROUTECAP_CONFIG_FLAGS(ROUTECAP_OR);
#undef ROUTECAP_OR

int32_t between(const char *name, uint64_t value, uint64_t low, uint64_t high) {
    return check_between("config", name, value, low, high);
}

}  // namespace

int32_t read_config(const routecap_config *config, Config &out) {
    routecap_config c;
    if (int32_t s = read_struct(c, config, "config"); s < 0) return s;
    out.role = c.role;
    if (c.role == ROUTECAP_ROLE_DISABLED) return ROUTECAP_OK;
    if (c.role != ROUTECAP_ROLE_OWNER && c.role != ROUTECAP_ROLE_MIRROR)
        return report(ROUTECAP_ERR_ARGUMENT, "config.role is %d", c.role);
    if (c.backend <= 0)
        return report(ROUTECAP_ERR_ARGUMENT, "config.backend is %d: it was not set", c.backend);
    if (c.backend != ROUTECAP_BACKEND_HOST && c.backend != ROUTECAP_BACKEND_CUDA)
        return report(ROUTECAP_ERR_NO_BACKEND,
                      "config.backend is %d, which this library does not know", c.backend);
    if (c.backend == ROUTECAP_BACKEND_CUDA && c.device < 0)
        return report(ROUTECAP_ERR_ARGUMENT, "config.device is %d", c.device);
    if ((c.flags & ~kFlags) != 0)
        return report(ROUTECAP_ERR_ARGUMENT, "config.flags is %u", c.flags);
    if (int32_t s = make_shape(shape_source(c, c.id_space, c.layer_provenance, c.weights_dtype),
                               "config", out.shape);
        s < 0)
        return s;
    if (int32_t s = between("rows", c.rows, 1, ROUTECAP_MAX_ROWS); s < 0) return s;
    out.backend = c.backend;
    out.device = c.device;
    out.rows = c.rows;
    out.slots = c.slots != 0 ? c.slots : 2;
    if (int32_t s = between("slots", out.slots, 1, ROUTECAP_MAX_SLOTS); s < 0) return s;
    out.sink_dtype = c.sink_dtype != 0 ? c.sink_dtype : ROUTECAP_DTYPE_I16;
    if (sink_element_bytes(out.sink_dtype) == 0)
        return report(ROUTECAP_ERR_ARGUMENT, "config.sink_dtype is %d", c.sink_dtype);
#define ROUTECAP_FLAG(name, member) out.member = (c.flags & ROUTECAP_CONFIG_##name) != 0;
    ROUTECAP_CONFIG_FLAGS(ROUTECAP_FLAG)
#undef ROUTECAP_FLAG
    const char *checked = std::getenv("ROUTECAP_CHECKED");
    out.checked = out.checked ||
                  (checked != nullptr && checked[0] != '\0' && std::string_view(checked) != "0");
    out.max_requests = c.max_requests != 0 ? c.max_requests : 65536;
    if (int32_t s = between("max_requests", out.max_requests, 1, 1u << 24); s < 0) return s;
    out.budget_bytes = c.budget_bytes != 0 ? c.budget_bytes : uint64_t{1} << 30;
    const uint64_t page = PagePool::page_bytes(*out.shape, out.shape->page_rows);
    return between("budget_bytes", out.budget_bytes, page, UINT64_MAX);
}

BackendConfig Config::of_backend() const {
    return {.shape = shape,
            .backend = backend,
            .device = device,
            .rows = rows,
            .slots = role == ROUTECAP_ROLE_OWNER ? Steps::slots_for(slots) : 0,
            .sink_dtype = sink_dtype,
            .external_sink = external_sink,
            .checked = checked,
            .first_epoch = first_epoch};
}

}  // namespace routecap
