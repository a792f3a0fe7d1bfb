// Reading the rows of open requests. Rows are gathered under the mutex of their RowStore, in time
// that grows with pages; copying and scanning come after it. Any thread may call.
//
// Every function returns a status and is described in routecap.h; arguments come as they are, and
// structs may be of any version.
#pragma once

#include <cstdint>
#include <vector>

#include "capture/capture_state.h"
#include "capture/config.h"
#include "capture/request_table.h"
#include "routecap.h"
#include "routing/coverage.h"
#include "routing/routing.h"

namespace routecap {

class Reader {
public:
    // Without a state the capturer is a mirror, or disabled, and has no rows.
    Reader(const Config &config, CaptureState *state) : config_(config), state_(state) {}

    int32_t coverage(routecap_request request, uint64_t first, uint64_t rows,
                     routecap_coverage *coverage, routecap_missing *missing, size_t missing_size,
                     size_t capacity);
    int32_t extract(routecap_request request, uint64_t first, uint64_t rows, int32_t mode,
                    uint32_t flags, Routing **routing);
    int32_t extract_batch(routecap_extract_item *items, size_t item_size, size_t count);
    int32_t extract_into(routecap_request request, uint64_t first, uint64_t rows,
                         const routecap_copy_options *options, void *dst, size_t dst_bytes,
                         uint8_t *mask, size_t mask_bytes, uint64_t *needed);

private:
    struct Range {
        uint64_t first, rows, length;
        uint64_t end() const { return first + rows; }
    };
    int32_t read(routecap_request request, uint64_t first, uint64_t rows, bool take,
                 Strictness strictness, Range &range, std::vector<Segment> &segments);
    int32_t find_to_read(routecap_request handle, RequestDataPtr &data);
    int32_t look_at(routecap_request handle, RowStore &store, uint64_t first, uint64_t rows,
                    bool take, Range &range) REQUIRES(store.mutex);

    const Config &config_;
    CaptureState *const state_;
};

}  // namespace routecap
