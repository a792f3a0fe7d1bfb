// received: read what this rank received in an expert-parallel dispatch (DeepEP v2).
//
// metadata (rows, 2 + k): where each received token comes from; ids (rows, k), or in the expanded
// layout the rows of each local expert
// -> global_ids (rows, k) or (expanded_rows): what the experts are given; executed (ranks * M, k):
// what they did, by source token and column. An item is one column of a received token and, in the
// expanded layout, one expanded row. What contradicts itself is ignored and counted.
#pragma once

#include "body.h"

namespace routecap::kernels {

constexpr int32_t kNotExecuted = -1;  // in every byte, so that a memset fills a table with it
constexpr unsigned char kNotExecutedByte = 0xff;

// Common to both layouts: the received tokens, this rank's experts, and the table of executed
// experts.
struct Dispatch {
    uint32_t rows;             // of metadata
    const int32_t *live_rows;  // or nullptr: all rows are live
    const int32_t *metadata;   // its column 0 is source rank * M + source token
    uint32_t sources;          // ranks * M
    uint32_t k;
    uint32_t experts;        // of all ranks
    uint32_t first_expert;   // of this rank
    uint32_t local_experts;  // of this rank
    int32_t *executed;       // (sources, k), filled with kNotExecuted before; or nullptr
    uint64_t *ignored;       // or nullptr

    size_t executed_bytes() const { return size_t{sources} * k * sizeof *executed; }

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
        const bool sound = local >= 0 && local < static_cast<int64_t>(local_experts) &&
                           source >= 0 && source < static_cast<int64_t>(sources);
        if (sound &&
            put(executed + source * k + column, static_cast<int32_t>(first_expert + local)))
            return;
        if (ignored != nullptr) count(ignored, 1);
    }

private:
    // If two rows claim the same column of one token, the second finds it filled.
    ROUTECAP_BODY static bool put(int32_t *cell, int32_t id) {
#if defined(__CUDA_ARCH__)
        return atomicCAS(cell, kNotExecuted, id) == kNotExecuted;
#else
        if (*cell != kNotExecuted) return false;
        *cell = id;
        return true;
#endif
    }
};

// One row per received token. ids may be global_ids.
struct Received {
    Dispatch from;
    uint32_t ids_first;  // the expert that id 0 stands for: first_expert, or 0 where ids are global
    int32_t dtype;       // of ids and global_ids: ROUTECAP_DTYPE_I32 or _I64
    const void *ids;
    void *global_ids;  // or nullptr

    ROUTECAP_BODY uint32_t outer() const { return 1; }
    ROUTECAP_BODY uint32_t inner() const { return from.items(); }
    ROUTECAP_BODY void item(uint32_t, uint32_t i) const {
        if (dtype == ROUTECAP_DTYPE_I32)
            item<int32_t>(i);
        else
            item<int64_t>(i);
    }

private:
    template <class T>
    ROUTECAP_BODY void item(uint32_t i) const {
        const uint32_t row = i / from.k;
        const int64_t id =
            from.live(row) ? static_cast<int64_t>(static_cast<const T *>(ids)[i]) : -1;
        if (global_ids != nullptr) {
            const bool kept = id >= 0 && id < static_cast<int64_t>(from.experts) - ids_first;
            static_cast<T *>(global_ids)[i] = static_cast<T>(kept ? id + ids_first : -1);
        }
        if (from.executed != nullptr && id >= 0)
            from.execute(row, i % from.k,
                         id - (static_cast<int64_t>(from.first_expert) - ids_first));
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
    int32_t dtype;     // of global_ids: ROUTECAP_DTYPE_I32 or _I64
    void *global_ids;  // or nullptr

    ROUTECAP_BODY uint32_t outer() const { return 1; }
    ROUTECAP_BODY uint32_t inner() const {
        return from.items() > expanded_rows ? from.items() : expanded_rows;
    }
    ROUTECAP_BODY void item(uint32_t, uint32_t i) const {
        if (global_ids != nullptr && i < expanded_rows) {
            const uint32_t local = expert(i);
            const int32_t id =
                local < from.local_experts ? static_cast<int32_t>(from.first_expert + local) : -1;
            if (dtype == ROUTECAP_DTYPE_I32)
                static_cast<int32_t *>(global_ids)[i] = id;
            else
                static_cast<int64_t *>(global_ids)[i] = id;
        }
        if (from.executed != nullptr && i < from.items()) {
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

}  // namespace routecap::kernels
