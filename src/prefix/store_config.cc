#include "prefix/store_config.h"

#include "base/status.h"
#include "base/structs.h"

namespace routecap {

int32_t read_store_config(const routecap_store_config *config, const routecap_config *shape,
                          StoreConfig &out) {
    routecap_store_config c;
    if (int32_t s = read_struct(c, config, "config"); s < 0) return s;
    routecap_config of;
    if (int32_t s = read_struct(of, shape, "shape"); s < 0) return s;
    if (int32_t s = make_shape(shape_source(of, of.id_space, of.layer_provenance, of.weights_dtype),
                               "shape", out.shape);
        s < 0)
        return s;
    if ((c.flags & ~ROUTECAP_STORE_SLOT_KEYS) != 0)
        return report(ROUTECAP_ERR_ARGUMENT, "config.flags is %u", c.flags);
    out.flags = c.flags;
    out.block_rows = c.block_rows != 0 ? c.block_rows : 16;
    out.key_bytes = c.key_bytes != 0 ? c.key_bytes : 32;
    out.budget_bytes = c.budget_bytes != 0 ? c.budget_bytes : uint64_t{1} << 30;
    out.generation = c.generation;
    if (int32_t s =
            check_between("config", "block_rows", out.block_rows, 1, ROUTECAP_MAX_BLOCK_ROWS);
        s < 0)
        return s;
    return check_between("config", "key_bytes", out.key_bytes, ROUTECAP_MIN_KEY_BYTES,
                         ROUTECAP_MAX_KEY_BYTES);
}

}  // namespace routecap
