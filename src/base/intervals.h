// A set of numbers kept as disjoint intervals. Most sets here are one interval, which lives inside
// the object; the others are nodes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/node_pool.h"

namespace routecap {

// Needs clear() before its end: its nodes belong to a Nodes. A change takes one node at most.
class Intervals {
public:
    struct Interval {
        uint64_t begin, end;
    };

    // Whether [begin, end) is in the first interval: a quick look that may say no too often.
    bool contains(uint64_t begin, uint64_t end) const {
        return begin >= first_.begin && end <= first_.end;
    }

    bool has(uint64_t number) const {
        bool found = false;
        for_each([&](const Interval &i) { found |= number >= i.begin && number < i.end; });
        return found;
    }
    // How many numbers of [begin, end) are not in the set.
    uint64_t absent(uint64_t begin, uint64_t end) const {
        uint64_t n = end - begin;
        for_each([&](const Interval &i) {
            const uint64_t b = std::max(begin, i.begin), e = std::min(end, i.end);
            if (b < e) n -= e - b;
        });
        return n;
    }

    void add(uint64_t begin, uint64_t end, Nodes &nodes) noexcept {
        if (begin >= end) return;
        const auto touches = [&](const Interval &i) { return begin <= i.end && end >= i.begin; };
        const auto absorb = [&](const Interval &i) {
            begin = std::min(begin, i.begin), end = std::max(end, i.end);
        };
        if (first_.begin != first_.end && touches(first_)) absorb(first_), first_ = {0, 0};
        Node **at = &more_;
        while (*at != nullptr) {
            if (touches((*at)->interval))
                absorb((*at)->interval), *at = nodes.give(*at);
            else
                at = &(*at)->next;
        }
        if (first_.begin == first_.end && (more_ == nullptr || end < more_->interval.begin)) {
            first_ = {begin, end};
            return;
        }
        pull(nodes);
        if (end < first_.begin) std::swap(first_.begin, begin), std::swap(first_.end, end);
        for (at = &more_; *at != nullptr && (*at)->interval.begin < begin;) at = &(*at)->next;
        *at = nodes.take([&] { return Node{{begin, end}, *at}; });
    }

    // Removes [begin, end) and returns how many of those numbers were in the set.
    uint64_t remove(uint64_t begin, uint64_t end, Nodes &nodes) noexcept {
        if (begin >= end) return 0;
        uint64_t removed = 0;
        // What is left of an interval: its first part in place, its second, if there are two, as a
        // node behind it.
        const auto cut = [&](Interval &i, Node *&place_for_second_part) {
            const uint64_t b = std::max(begin, i.begin), e = std::min(end, i.end);
            if (b >= e) return;
            removed += e - b;
            const Interval right{e, i.end};
            i.end = b;
            if (right.begin == right.end) return;
            if (i.begin == i.end)
                i = right;
            else
                place_for_second_part = nodes.take([&] {
                    return Node{right, place_for_second_part};
                });
        };
        cut(first_, more_);
        for (Node **at = &more_; *at != nullptr;) {
            cut((*at)->interval, (*at)->next);
            if ((*at)->interval.begin == (*at)->interval.end)
                *at = nodes.give(*at);
            else
                at = &(*at)->next;
        }
        if (first_.begin == first_.end) first_ = {0, 0}, pull(nodes);
        return removed;
    }

    template <class F>
    void for_each(F f) const {
        if (first_.begin != first_.end) f(first_);
        for (const Node *node = more_; node != nullptr; node = node->next) f(node->interval);
    }
    // How many nodes a copy takes.
    size_t nodes() const {
        size_t n = 0;
        for (const Node *node = more_; node != nullptr; node = node->next) n++;
        return n;
    }

    // Whether it is one interval at most. Then all of it is in the object's first bytes, and
    // clear_first() empties it.
    bool simple() const { return more_ == nullptr; }
    void clear_first() { first_ = {0, 0}; }
    void clear(Nodes &nodes) {
        clear_first();
        nodes.give_all(more_);
    }

private:
    struct Node {
        Interval interval;
        Node *next;
    };
    // The first of the nodes becomes first_, where that is empty.
    void pull(Nodes &nodes) noexcept {
        if (first_.begin != first_.end || more_ == nullptr) return;
        first_ = more_->interval;
        more_ = nodes.give(more_);
    }

    Interval first_{0, 0};
    Node *more_ = nullptr;  // after first_, ascending
};

}  // namespace routecap
