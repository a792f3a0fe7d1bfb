// Memory that was reserved for rows beyond the pages that their request keeps.
#pragma once

#include <cstdint>

namespace routecap {

// For what may turn out to be needed: a page for rows that are shared or of which only the device knows where they go, tags for a page whose rows get a
// second one. What is left goes back when the rows were filed, or settled.
struct Purse {
    uint32_t pages = 0;
    uint32_t tags = 0;   // for whole pages
    uint32_t added = 0;  // pages that were promised to the request for these rows, and are not in here

    uint64_t bytes(uint64_t page_bytes, uint64_t tag_bytes) const { return pages * page_bytes + tags * tag_bytes; }
};

}  // namespace routecap
