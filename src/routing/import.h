// Makes routings from rows of any origin. They are checked, and then lent or copied.
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

// Consecutive rows, as records of their shape; or without them, missing for one reason.
struct ImportedRun {
    uint64_t first, rows;
    const uint8_t *records = nullptr;
    const uint64_t *tags = nullptr;  // [rows]; NULL: `tag` is that of all
    Tag tag = Tag::none;
    int32_t reason = 0;
    bool complete = false;  // said to lack no cell
    // Not NULL: where the records are copied, each before it is looked at, because a caller could
    // change its own meanwhile.
    uint8_t *copy = nullptr;
    const uint8_t *checks = nullptr;  // [rows] of 4 bytes, of any alignment; NULL: there are none
};

// Rows of one shape, in ordered runs. Rows in no run are ABSENT.
struct ImportedRows {
    ShapePtr shape;
    uint64_t first, rows;
    std::vector<ImportedRun> runs;
    std::shared_ptr<const void> memory;  // keeps the records and tags
};

// Memory for records.
std::shared_ptr<uint8_t[]> make_records(const Shape &shape, uint64_t rows);

// Checks the rows, except for the ids of trusted ones, and makes a routing of them.
int32_t import_rows(ImportedRows rows, uint32_t flags, Routing **routing);

int32_t import_view(const routecap_view *view, uint32_t flags, routecap_release release,
                    void *context, Routing **routing);

}  // namespace routecap
