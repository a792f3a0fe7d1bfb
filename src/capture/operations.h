// The entries of the log: steps to be filed, and operations on requests.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "capture/request_table.h"
#include "prefix/adoption.h"
#include "prefix/publication.h"

namespace routecap {

// Pointers to a RowStore are valid until the Finish or Close of its request was applied.
struct FileStep {
    int32_t slot;
};
// Rows that an issue lost or refused. Why they are missing must be known in the order of the log,
// or an earlier truncate would forget it.
struct Miss {
    RowStore *rows;
    uint64_t position;
    uint64_t end;
    Ticket step;                   // of drafts; otherwise none
    uint32_t first_index, drafts;  // of drafts
    bool device_positions;
    uint8_t reason;
};
struct Settle {
    RowStore *rows;
    Ticket step;
    uint64_t keep_first;
    std::unique_ptr<std::vector<uint32_t>> kept;  // or null: the first keep_first
};
struct Truncate {
    RowStore *rows;
    uint64_t end;
    // No earlier operation on the request waits to be applied, so rows can go before the steps in
    // flight have landed.
    bool alone;
};
struct Fork {
    RowStore *parent;
    RowStore *child;
    uint64_t end;
};
struct Attach {
    RowStore *rows;
    RoutingPtr routing;
    uint64_t end;
};
struct Publish {
    RowStore *rows;
    std::shared_ptr<Publication> publication;
};
struct Adopt {
    RowStore *rows;
    std::unique_ptr<Adoption> adoption;
    uint64_t end;
};
struct Finish {
    RequestDataPtr data;
    uint64_t end;
    bool all;  // the routing ends where the rows do
};
struct Close {
    OpenRequestPtr data;
    bool alone;  // as in Truncate
};

struct LogEntry {
    Ticket after;  // the step that must have been filed before
    std::variant<FileStep, Miss, Settle, Truncate, Fork, Attach, Publish, Adopt, Finish, Close>
        what;

    template <class What>
    LogEntry(Ticket a, What &&w)
        : after(a), what(std::in_place_type<What>, std::forward<What>(w)) {}
};

}  // namespace routecap
