// What the engine's side must know of a request's operations until the worker has applied them.
// Guarded by the registry's mutex.
//
// A request's operations are numbered in the order of the log, in which they are applied. What is
// noted here of operation n holds while Progress::applied is less than n. Callers pass that as
// `applied`. An operation is applied once step `after` was filed, which is never less than that of
// an earlier operation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/numbers.h"

namespace routecap {

// Notes of one kind, in the order of the log. Those of operations that were applied are forgotten
// where room is made.
template <class Note>
class PendingNotes {
public:
    // Makes room for one more. Throws without memory.
    void make_room(uint64_t applied) {
        if (notes_.size() < notes_.capacity()) return;
        notes_.erase(notes_.begin(),
                     std::find_if(notes_.begin(), notes_.end(),
                                  [applied](const Note &note) { return applied < note.number; }));
        // Half is free afterwards, so that this is seldom done.
        if (2 * notes_.size() >= notes_.capacity()) notes_.reserve(2 * notes_.size() + 2);
    }
    // There must be room.
    void add(const Note &note) noexcept { notes_.push_back(note); }

    // Calls f(note) for each that is not applied.
    template <class F>
    void for_each(uint64_t applied, F f) const {
        for (const Note &note : notes_)
            if (applied < note.number) f(note);
    }
    template <class F>
    void for_each(F f) {
        for (Note &note : notes_) f(note);
    }

private:
    std::vector<Note> notes_;
};

// An operation adds or changes rows [first, end).
struct Change {
    uint64_t first = 0, end = 0;
    uint64_t number = 0;
    Ticket after = Ticket::none;

    bool touches(const Change &other) const { return first <= other.end && other.first <= end; }
    // A later one joins it.
    void join(const Change &later) {
        first = std::min(first, later.first), end = std::max(end, later.end);
        number = later.number, after = later.after;
    }
};

// An operation cuts rows at and after `rows`, of steps up to `step`.
struct Cut {
    uint64_t rows;
    Ticket step;
    uint64_t number;
    Ticket after;
};

// An operation gives rows [first, end), of steps up to `step`, to a child or to a store.
struct Lending {
    uint64_t first, end;
    Ticket step;
    uint64_t number;
    Ticket after;
};

}  // namespace routecap
