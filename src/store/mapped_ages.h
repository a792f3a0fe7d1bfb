// Which of many slots should be taken next: a tree of fan-out 16 over one number per slot, in
// memory that several processes write.
//
// A number is 0 (not to be taken), kFree, kFirst (before all others that are in use), or a stamp:
// the time of last use, counted in uses. A node has the number of the oldest below it, so finding
// the oldest reads one cache line per level. Stamps wrap, and are compared by their distance from
// now: what was not used for 2^31 uses passes for new.
//
// What is here is a hint: who takes a slot asks the slot itself. When nobody writes, every node is
// right: whoever changes a leaf looks at the nodes above it afterwards, and a node is only changed
// from what it was when its children were read. A process that dies between a leaf and the root
// leaves nodes that are not right; rebuild() mends them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace routecap {

class MappedAges {
public:
    using Number = std::atomic<uint32_t>;
    static_assert(Number::is_always_lock_free && sizeof(Number) == sizeof(uint32_t));
    static constexpr uint32_t kNone = 0, kFree = 1, kFirst = 2, kFirstStamp = 3;
    static constexpr uint32_t kNoSlot = UINT32_MAX;

    // How many numbers it takes in all.
    static size_t numbers(uint32_t slots) {
        size_t n = 0;
        for (uint32_t width = slots;; width = groups(width)) {
            n += size_t{groups(width)} * kFan;
            if (width <= kFan) return n;
        }
    }

    // At `memory`, 64-byte aligned; `clock` counts uses.
    MappedAges(Number *memory, uint32_t slots, Number *clock) : clock_(clock) {
        for (uint32_t width = slots;; width = groups(width)) {
            levels_[depth_++] = {memory, width};
            memory += size_t{groups(width)} * kFan;
            if (width <= kFan) return;
        }
    }

    // All slots at once, before anybody else knows of them.
    void fill(uint32_t number) {
        for (uint32_t i = 0; i < levels_[0].width; i++) levels_[0].at[i].store(number);
        rebuild();
    }

    uint32_t get(uint32_t slot) const { return levels_[0].at[slot].load(); }
    // `uses` stamps in a row, of which this is the first.
    uint32_t stamps(uint32_t uses) { return clock_->fetch_add(uses, std::memory_order_relaxed); }
    uint32_t stamp() {
        uint32_t number;
        do number = stamps(1);
        while (number < kFirstStamp);
        return number;
    }
    static uint32_t as_stamp(uint32_t number) { return std::max(number, kFirstStamp); }

    void set(uint32_t slot, uint32_t number) {
        const uint32_t before = levels_[0].at[slot].exchange(number);
        mend_above(slot, before);
    }
    // The same by who has just claimed the slot, for a stamp. No other change of the number matters
    // then, and nobody has to see at once that what was the oldest is not.
    void renew(uint32_t slot, uint32_t before, uint32_t stamp) {
        levels_[0].at[slot].store(stamp, std::memory_order_release);
        const uint32_t next = slot + 1;  // if it is free as this was, nothing above changes
        if (before != kFree || next % kFan == 0 || next == levels_[0].width || get(next) != kFree)
            mend_above(slot, before);
    }
    // Only if it still is `seen`.
    bool change(uint32_t slot, uint32_t seen, uint32_t number) {
        if (!levels_[0].at[slot].compare_exchange_strong(seen, number)) return false;
        mend_above(slot, seen);
        return true;
    }

    // Many changes. The nodes above a group are looked at once for those in a row that are in it.
    class Changes {
    public:
        explicit Changes(MappedAges &ages) : ages_(ages) {}
        ~Changes() { mend(); }
        Changes(const Changes &) = delete;
        void change(uint32_t slot, uint32_t seen, uint32_t number) {
            if (slot / kFan != group_) mend();
            group_ = slot / kFan;
            ages_.levels_[0].at[slot].compare_exchange_strong(seen, number);
        }

    private:
        void mend() {
            if (group_ != kNoSlot) ages_.mend_group(group_);
        }

        MappedAges &ages_;
        uint32_t group_ = kNoSlot;
    };

    bool older(uint32_t a, uint32_t b) const {
        const uint32_t now = clock_->load(std::memory_order_relaxed);
        return rank(a, now) > rank(b, now);
    }

    // The slot to be taken, and its number; kNoSlot if there is none.
    struct Oldest {
        uint32_t slot, number;
    };
    // `guess`: one that may well be it, as the slot behind the last often is.
    Oldest oldest(uint32_t guess = 0) {
        for (;;) {
            Best best = best_of(depth_ - 1, 0);
            if (best.rank == 0) return {kNoSlot, kNone};
            if (guess < levels_[0].width && get(guess) == best.number) return {guess, best.number};
            uint32_t level = depth_ - 1;
            while (level > 0) {
                const Best below = best_of(level - 1, best.index);
                if (below.rank < best.rank) break;
                best = below;
                level--;
            }
            if (level == 0) return {best.index, best.number};
            // What the node says is not there. It is being changed, or who changed it is dead.
            mend_from(level, best.index);
        }
    }

    // Makes every node right, if nobody writes.
    void rebuild() {
        for (uint32_t level = 1; level < depth_; level++)
            for (uint32_t index = 0; index < levels_[level].width; index++) mend(level, index);
    }

private:
    static constexpr uint32_t kFan = 16, kMostLevels = 8;
    static constexpr uint32_t kHalf = 1u << 31;
    static constexpr uint32_t groups(uint32_t width) { return width / kFan + (width % kFan != 0); }

    struct Level {
        Number *at;
        uint32_t width;
    };
    struct Best {
        uint32_t rank, number, index;
    };

    // Higher is older. A stamp that is ahead of now was taken since now was read.
    static uint32_t rank(uint32_t number, uint32_t now) {
        if (number < kFirstStamp) return number == kNone ? 0 : UINT32_MAX - number;
        const uint32_t age = now - number;
        return age > kHalf ? 1 : age + 1;
    }
    // The oldest of a group, the first of equals.
    Best best_of(uint32_t level, uint32_t group) const {
        const uint32_t now = clock_->load(std::memory_order_relaxed);
        const Level &l = levels_[level];
        const uint32_t first = group * kFan, end = std::min(first + kFan, l.width);
        Best best{0, kNone, first};
        for (uint32_t i = first; i < end; i++) {
            const uint32_t number = l.at[i].load();
            if (number == kFree) return {rank(kFree, now), kFree, i};
            const uint32_t r = rank(number, now);
            if (r > best.rank) best = {r, number, i};
        }
        return best;
    }
    // Makes a node what its children say. Whether it changed, by this call or another.
    bool mend(uint32_t level, uint32_t index) {
        Number &node = levels_[level].at[index];
        for (bool again = false;; again = true) {
            uint32_t shown = node.load();
            // Whoever changes a child from here on finds this in the node, or is seen next time.
            const uint32_t number = best_of(level - 1, index).number;
            if (number == shown) return again;
            node.compare_exchange_strong(shown, number);
        }
    }
    void mend_from(uint32_t level, uint32_t index) {
        for (; level < depth_ && mend(level, index); level++) index /= kFan;
    }
    // Leaves of a group were changed.
    void mend_group(uint32_t group) { mend_from(1, group); }
    // A leaf was `before`, and is something else: nodes that showed it, or must show it now.
    void mend_above(uint32_t index, uint32_t before) {
        for (uint32_t level = 1; level < depth_; level++) {
            const uint32_t number = levels_[level - 1].at[index].load();
            index /= kFan;
            const uint32_t shown = levels_[level].at[index].load();
            const uint32_t now = clock_->load(std::memory_order_relaxed);
            // Most uses make one newer that was not the oldest of its group.
            if (shown != before && rank(number, now) <= rank(shown, now)) return;
            before = shown;
            if (!mend(level, index)) return;
        }
    }

    Number *const clock_;
    Level levels_[kMostLevels]{};
    uint32_t depth_ = 0;
};

}  // namespace routecap
