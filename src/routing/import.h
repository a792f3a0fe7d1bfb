// Makes routings from arrays of any origin. The arrays are checked, and then lent or copied.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/shape.h"
#include "routecap.h"
#include "routing/routing.h"

namespace routecap {

// Memory that a caller lends, and the callback that says when it is no longer used. The callback is
// called only after arm(): if the call that lends the memory fails, the caller is not called back.
class Lender {
public:
    Lender(routecap_release release, void *context) : release_(release), context_(context) {}
    Lender(const Lender &) = delete;
    Lender &operator=(const Lender &) = delete;
    ~Lender() {
        if (armed_) release_(context_);
    }
    void arm() { armed_ = release_ != nullptr; }

private:
    const routecap_release release_;
    void *const context_;
    bool armed_ = false;
};

// Rows of one shape, in ordered segments. Rows in no segment are ABSENT. A segment without ids has
// a reason. `checks` is empty, or has for each segment where the CRC32C of its rows are, 4 bytes
// each, of any alignment.
struct ImportedRows {
    ShapePtr shape;
    uint64_t first, rows;
    std::vector<routecap_segment> segments;
    std::vector<const uint8_t *> checks;
};

// CRC32C of the row at this place of a segment: of its position, ids, tag and validity, those of
// the last two that the segment has for each row.
uint32_t row_check(const Shape &shape, const routecap_segment &segment, uint64_t row);

// Whether every valid cell of a segment is k distinct experts of its layer. Without validity all
// cells are valid, which is the fast case. Otherwise it leaves a line about the first that is not.
bool ids_are_valid(const Shape &shape, const routecap_segment &segment);

// Checks the ids, unless they are trusted, and makes a routing. With a release it uses the arrays
// of the segments in place; otherwise it copies them.
int32_t import_rows(ImportedRows rows, uint32_t flags, routecap_release release, void *context,
                    Routing **routing);

int32_t import_view(const routecap_view *view, uint32_t flags, routecap_release release,
                    void *context, Routing **routing);

}  // namespace routecap
