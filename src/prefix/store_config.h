// What a store is made of.
#pragma once

#include <cstdint>

#include "base/shape.h"
#include "routecap.h"

namespace routecap {

struct StoreConfig {
    ShapePtr shape;
    uint32_t flags;
    uint32_t block_rows;
    uint32_t key_bytes;
    uint64_t budget_bytes;
    uint64_t generation;

    bool slot_keys() const { return (flags & ROUTECAP_STORE_SLOT_KEYS) != 0; }
};
// Checks what a caller gave.
int32_t read_store_config(const routecap_store_config *config, const routecap_config *shape,
                          StoreConfig &out);

}  // namespace routecap
