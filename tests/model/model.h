// A capturer as simple as it can be: maps of rows, and a log of what has been called and has not landed. It predicts ids, validity, tags, statuses,
// lengths and counters of the real one exactly, for a capturer with manual progress on the host backend and memory enough.
#pragma once

#include <rig.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace model {

struct Row {
    rig::Row cells;
    uint64_t tag = 0;
    bool any() const;
};
using Rows = std::map<uint64_t, Row>;  // by position

struct Routing {
    bool ready = true;
    bool all = false;  // pending, of a finish without a limit
    uint64_t first = 0, rows = 0;
    Rows content;
    int32_t status() const;
};

struct Request;

// One thing that was called and is applied when steps land.
struct Span {
    std::shared_ptr<Request> request;
    std::vector<uint64_t> positions;  // of each row
    std::vector<Row> rows;            // what the step's slot holds for them; nothing beyond the rows covered
    uint64_t bound_first = 0, bound_end = 0;
    bool device = false, speculative = false;
    uint64_t draft_index = 0;
    uint64_t cut = UINT64_MAX;
};

struct Entry {
    std::shared_ptr<Request> request;  // whose pending operations it counts in; null for a step
    std::vector<Span> spans;           // of a step
    uint64_t step = 0, tag = 0, dropped = 0, conflicts = 0;
    std::function<void()> apply;  // of an operation
    // The request's highest position before and after, as far as device positions matter.
    uint64_t raises_to = 0, cuts_to = UINT64_MAX;
};

struct Draft {
    uint64_t step, first_index, rows, position, end, cut = UINT64_MAX;
    bool device, filed;
    // One past the row's highest position; 0 if it was cut.
    uint64_t end_of(uint64_t index) const {
        if (device) return position < cut ? std::min(cut, end) : 0;
        return position + (index - first_index) < cut ? position + (index - first_index) + 1 : 0;
    }
};

struct LandedDraft {
    uint64_t step, first_index, tag;
    std::vector<uint64_t> positions;  // kGone: counted already
    std::vector<Row> rows;
    std::vector<bool> cut;
};

struct Request {
    int32_t policy = ROUTECAP_POLICY_KEEP;
    Rows content;
    uint64_t length = 0, placed = 0, flagged_end = 0;
    std::vector<Draft> drafts;
    std::vector<LandedDraft> landed_drafts;
    uint64_t changing_first = 0, changing_end = 0;  // by operations that are not applied
    int pending = 0;                                // operations with such rows, since the last was applied
    bool device = false;
    int lending = 0;  // forks that are not applied
    uint64_t lending_end = 0, lending_step = 0;
};
using RequestPtr = std::shared_ptr<Request>;

struct Counters {
    uint64_t issued = 0, lost_steps = 0;
    uint64_t rows_issued = 0, in_flight = 0, provisional = 0, delivered = 0, missing = 0, lost = 0, late = 0, rejected = 0, unplaced = 0, refused = 0;
    uint64_t skipped = 0, overlapped = 0, mismatched = 0, dropped = 0, conflicting = 0;
};

class Capturer {
public:
    Capturer(const rig::Shape &shape, uint32_t slots) : shape_(shape), slots_(slots) {}

    // Calls f(entry) for the steps and operations in flight.
    uint64_t length(const Request &r) const;
    // Whether rows [first, end) may be read now.
    bool ready(const RequestPtr &r, uint64_t first, uint64_t end, bool take) const;
    uint64_t landed_end(const RequestPtr &r, uint64_t first, bool take) const;

    uint64_t steps_in_flight() const;
    bool slot_free() const { return steps_in_flight() < slots_; }

    // Issues a step; returns its ticket.
    uint64_t issue(std::vector<Span> spans, uint64_t tag, bool lost, uint64_t skipped, uint64_t dropped, uint64_t conflicts);
    int32_t accept(const RequestPtr &r, uint64_t step, const std::vector<uint32_t> *rows, uint64_t count);
    void truncate(const RequestPtr &r, uint64_t rows);
    RequestPtr fork(const RequestPtr &r, uint64_t rows);
    void attach(const RequestPtr &r, const std::shared_ptr<Routing> &routing, uint64_t rows);
    std::shared_ptr<Routing> finish(const RequestPtr &r, uint64_t rows);
    void close(const RequestPtr &r);
    Routing read(const Request &r, uint64_t first, uint64_t rows) const;
    void take(Request &r, uint64_t first, uint64_t rows);
    // Unites routings; false on a conflict.
    bool merge(const std::vector<const Routing *> &routings, Routing &merged) const;

    void land();  // applies everything
    rig::Rows rows_of(const Routing &routing) const;

    Counters counters;

private:
    void file(Request &r, uint64_t position, const Row &row, int32_t policy);
    void file_step(Entry &entry);
    void operate(const RequestPtr &r, uint64_t first, uint64_t end, Entry entry);
    void cut_in_flight(const RequestPtr &r, uint64_t end);
    static constexpr uint64_t kGone = UINT64_MAX;

    rig::Shape shape_;
    uint32_t slots_;
    std::vector<Entry> log_;
    uint64_t tickets_ = 0;
};

}  // namespace model
