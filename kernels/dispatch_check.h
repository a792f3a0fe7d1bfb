// Comparing the experts that executed a token with those that its router chose, in an
// expert-parallel dispatch (DeepEP v2).
//
// Received, ReceivedExpanded: metadata (rows, 2 + k) says where each received token comes from; ids
// (rows, k), or in the expanded layout the rows of each local expert, which experts it is for
// -> executed (ranks * M, k): what this rank executed, by source token and column.
// Chosen: the sum of all ranks' tables, and the router's ids -> counts.
#pragma once

#include "body.h"
#include "routecap/dispatch_check.h"

namespace routecap::kernels {

// An element of `executed`: 0, or an id that one rank has put there. In a sum over ranks, the bits
// from kOnce on count the ranks; 1024 ranks with any ids fit.
constexpr int32_t kOnce = 1 << 20;
ROUTECAP_BODY constexpr int32_t executed_once(int32_t id) { return kOnce + id; }
// The id; -1: nobody's; -2: of several ranks, or no such element.
constexpr int32_t kNobody = -1, kSeveral = -2;
ROUTECAP_BODY constexpr int32_t executed_id(int32_t cell) {
    if (cell == 0) return kNobody;
    return cell >= kOnce && cell < kOnce + ROUTECAP_MAX_EXPERTS ? cell - kOnce : kSeveral;
}

// Common to both layouts: the received tokens, this rank's experts, and the table.
struct Dispatch {
    uint32_t rows;             // of metadata
    const int32_t *live_rows;  // or nullptr: all rows are live
    const int32_t *metadata;   // its column 0 is source rank * M + source token
    uint32_t sources;          // ranks * M
    uint32_t k;
    uint32_t first_expert;   // of this rank
    uint32_t local_experts;  // of this rank
    int32_t *executed;       // (sources, k)
    uint64_t *ignored;

    ROUTECAP_BODY uint32_t items() const { return rows * k; }
    ROUTECAP_BODY bool live(uint32_t row) const {
        return live_rows == nullptr || static_cast<int64_t>(row) < *live_rows;
    }
    ROUTECAP_BODY const int32_t *origin(uint32_t row) const {
        return metadata + static_cast<int64_t>(row) * (2 + static_cast<int64_t>(k));
    }

    // The source token of a live row had local expert `local` of this rank in `column`.
    ROUTECAP_BODY void execute(uint32_t row, uint32_t column, int64_t local) const {
        const int64_t source = *origin(row);
        const bool sound = allocated() && local >= 0 &&
                           local < static_cast<int64_t>(local_experts) && source >= 0 &&
                           source < static_cast<int64_t>(sources);
        if (!sound ||
            !put(executed + source * k + column,
                 executed_once(static_cast<int32_t>(first_expert) + static_cast<int32_t>(local))))
            ignore();
    }
    ROUTECAP_BODY void ignore() const { count(ignored, 1); }

private:
    // Whether DeepEP can have allocated so many rows: all that could come, or as many as came.
    ROUTECAP_BODY bool allocated() const {
        return live_rows == nullptr || rows == sources || static_cast<int64_t>(rows) == *live_rows;
    }

    // If two rows claim the same column of one token, the second finds it filled.
    ROUTECAP_BODY static bool put(int32_t *cell, int32_t value) {
#if defined(__CUDA_ARCH__)
        return atomicCAS(cell, 0, value) == 0;
#else
        if (*cell != 0) return false;
        *cell = value;
        return true;
#endif
    }
};

// One row per received token.
struct Received {
    Dispatch from;
    uint32_t ids_first;  // the expert that id 0 stands for: first_expert, or 0 where ids are global
    bool masked;         // the engine says that ids behind the live rows are -1
    int32_t dtype;       // of ids: ROUTECAP_DTYPE_I32 or _I64
    const void *ids;

    ROUTECAP_BODY uint32_t outer() const { return 1; }
    ROUTECAP_BODY uint32_t inner() const { return from.items(); }
    ROUTECAP_BODY void item(uint32_t, uint32_t i) const {
        const uint32_t row = i / from.k;
        const bool live = from.live(row);
        if (!live && !masked) return;
        const int64_t id = dtype == ROUTECAP_DTYPE_I32 ? static_cast<const int32_t *>(ids)[i]
                                                       : static_cast<const int64_t *>(ids)[i];
        if (id < 0) return;
        if (live)
            from.execute(row, i % from.k,
                         id - (static_cast<int64_t>(from.first_expert) - ids_first));
        else
            from.ignore();
    }
};

// One row per received token and local expert, those of an expert next to one another from an
// aligned row on. Column 2 + c of a token's metadata is the expanded row of its column c, negative
// where another rank has it.
struct ReceivedExpanded {
    Dispatch from;
    const int32_t *expert_ends;  // (local_experts): the row behind the last of each expert
    uint32_t alignment;
    uint32_t expanded_rows;

    ROUTECAP_BODY uint32_t outer() const { return 1; }
    ROUTECAP_BODY uint32_t inner() const { return from.items(); }
    ROUTECAP_BODY void item(uint32_t, uint32_t i) const {
        const uint32_t row = i / from.k, column = i % from.k;
        if (!from.live(row)) return;
        const int64_t at = from.origin(row)[2 + column];
        if (at < 0) return;
        const uint32_t local =
            at < static_cast<int64_t>(expanded_rows) ? expert(at) : from.local_experts;
        // Not a gap before the next expert.
        const bool filled = local < from.local_experts && at < expert_ends[local];
        from.execute(row, column, filled ? static_cast<int64_t>(local) : -1);
    }

private:
    // The local expert that a row belongs to, the gap before the next expert included;
    // local_experts if none.
    ROUTECAP_BODY uint32_t expert(int64_t row) const {
        uint32_t low = 0, high = from.local_experts;
        while (low < high) {
            const uint32_t middle = (low + high) / 2;
            const int64_t end = expert_ends[middle], a = alignment;
            if ((end + a - 1) / a * a > row)
                high = middle;
            else
                low = middle + 1;
        }
        return low;
    }
};

// The tokens of one rank. An item is a row of its part of the table: a token, or one that it did
// not send.
struct Chosen {
    const int32_t *executed;  // (rows, k): the sum of all ranks' tables
    uint32_t rows;            // tokens_per_rank
    uint32_t k;
    uint32_t tokens;  // rows of ids
    int32_t dtype;    // of ids: ROUTECAP_DTYPE_I32 or _I64
    const void *ids;  // (tokens, k)
    routecap_received_counts *counts;

    ROUTECAP_BODY uint32_t outer() const { return 1; }
    ROUTECAP_BODY uint32_t inner() const { return rows; }
    ROUTECAP_BODY void item(uint32_t, uint32_t row) const {
        uint32_t columns = 0, equal = 0, replaced = 0, swapped = 0, lost = 0, extra = 0;
        for (uint32_t c = 0; c < k; c++) {
            const int64_t want = chosen(row, c), is = ran(row, c);
            columns += want >= 0;
            if (is == kSeveral || (want < 0 && is != kNobody))
                extra++;
            else if (want < 0)
                continue;
            else if (is == want)
                equal++;
            else if (is == kNobody)
                lost++;
            else if (trade(row, want, is))
                swapped++;
            else
                replaced++;
        }
        add(counts->tokens, row < tokens);
        add(counts->columns, columns);
        add(counts->equal, equal);
        add(counts->replaced, replaced);
        add(counts->swapped, swapped);
        add(counts->lost, lost);
        add(counts->tokens_lost, lost > 0 && lost == columns);
        add(counts->extra, extra);
    }

private:
    ROUTECAP_BODY static void add(uint64_t &counter, uint32_t n) {
        if (n > 0) count(&counter, n);
    }
    ROUTECAP_BODY int64_t chosen(uint32_t row, uint32_t c) const {
        if (row >= tokens) return -1;
        const int64_t at = static_cast<int64_t>(row) * k + c;
        return dtype == ROUTECAP_DTYPE_I32 ? static_cast<const int32_t *>(ids)[at]
                                           : static_cast<const int64_t *>(ids)[at];
    }
    ROUTECAP_BODY int64_t ran(uint32_t row, uint32_t c) const {
        return executed_id(executed[static_cast<int64_t>(row) * k + c]);
    }
    // Whether the token chose the expert that ran in a different column, and the chosen one ran in
    // a different column.
    ROUTECAP_BODY bool trade(uint32_t row, int64_t want, int64_t is) const {
        bool is_chosen = false, want_ran = false;
        for (uint32_t c = 0; c < k; c++) {
            is_chosen |= chosen(row, c) == is;
            want_ran |= ran(row, c) == want;
        }
        return is_chosen && want_ran;
    }
};

// ---- Made from what a caller gave ------------------------------------------------------------

// Calls launch(body) with the element body that reads a checked `r`.
template <class F>
int32_t with_received(const routecap_received &r, F launch) {
    const uint32_t local = r.experts / r.ranks;
    const Dispatch from{.rows = r.rows,
                        .live_rows = r.live_rows,
                        .metadata = r.metadata,
                        .sources = r.ranks * r.tokens_per_rank,
                        .k = r.k,
                        .first_expert = r.rank * local,
                        .local_experts = local,
                        .executed = r.executed,
                        .ignored = &r.counts->ignored};
    if ((r.flags & ROUTECAP_RECEIVED_EXPANDED) != 0)
        return launch(ReceivedExpanded{from, r.expert_ends, r.expert_alignment, r.expanded_rows});
    const bool global = (r.flags & ROUTECAP_RECEIVED_GLOBAL) != 0;
    return launch(Received{from, global ? 0 : from.first_expert, global, r.dtype, r.ids});
}

// The element body that compares a checked `r`.
inline Chosen chosen(const routecap_received &r) {
    const uint64_t own = uint64_t{r.rank} * r.tokens_per_rank * r.k;
    return {.executed = r.executed + own,
            .rows = r.tokens_per_rank,
            .k = r.k,
            .tokens = r.tokens,
            .dtype = r.dtype,
            .ids = r.topk_ids,
            .counts = r.counts};
}

}  // namespace routecap::kernels
