// Routings of rows that were not captured here: arrays of any origin, checked, and lent or copied.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/shape.h"
#include "routecap.h"
#include "routing/routing.h"

namespace routecap {

// Memory of a caller, and what it wants to hear when nobody uses it any more. Says nothing until it
// is armed.
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

// Rows of some shape, in segments that are in order; what no segment has is ABSENT. A segment
// without ids has a reason.
struct ImportedRows {
    ShapePtr shape;
    uint64_t first, rows;
    std::vector<routecap_segment> segments;
};

// Whether every valid cell of a segment is k distinct experts of its layer. Without validity all
// cells are valid, which is the fast case. Otherwise it leaves a line about the first that is not.
bool ids_are_valid(const Shape &shape, const routecap_segment &segment);

// Checks the ids, unless they are trusted, and makes a routing, of the segments' arrays (with a
// release) or of a copy.
int32_t import_rows(ImportedRows rows, uint32_t flags, routecap_release release, void *context,
                    Routing **routing);

int32_t import_view(const routecap_view *view, uint32_t flags, routecap_release release,
                    void *context, Routing **routing);

}  // namespace routecap
