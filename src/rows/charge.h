// Memory that rows on their way into a request may need, reserved in the budget.
#pragma once

#include <cstdint>

namespace routecap {

// Reserved when rows are issued, and on its way with them. Filing takes from it what the rows turn
// out to need, and gives the rest back: that of drafts once they are settled.
struct Charge {
    uint32_t pages = 0;
    uint32_t tags = 0;  // for whole pages whose rows get a second tag

    bool none() const { return (pages | tags) == 0; }
    uint64_t bytes(uint64_t page_bytes, uint64_t tag_bytes) const {
        return pages * page_bytes + tags * tag_bytes;
    }
};

}  // namespace routecap
