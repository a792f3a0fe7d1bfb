// Memory that was reserved for rows on their way into a request.
#pragma once

#include <cstdint>

namespace routecap {

// Reserved when rows are issued, for what they may turn out to need. What is left of `kept` when
// they were filed is promised to the request (RowStore::keep); the rest goes back, that of drafts
// once they are settled.
struct ReservedMemory {
    // Pages that the request keeps, for indices where it had neither a page nor the promise of one.
    uint32_t kept = 0;
    // For copies of pages that others see, for drafts, and for rows of which only the device knows
    // where they go.
    uint32_t pages = 0;
    uint32_t tags = 0;  // for whole pages whose rows get a second tag

    bool none() const { return (kept | pages | tags) == 0; }
    uint64_t bytes(uint64_t page_bytes, uint64_t tag_bytes) const {
        return (uint64_t{kept} + pages) * page_bytes + tags * tag_bytes;
    }
};

}  // namespace routecap
