// What differs between the host and a device: the sink's memory, the work of begin, record and snapshot, and the copy to host memory.
//
// A capturer drives its backend; after the copy everything is shared. Calls with a stream come from one thread at a time; landed and
// contents from whoever files.
#pragma once

#include <cstdint>

#include "kernels/slot.h"
#include "routecap.h"
#include "sink.h"

namespace routecap {

// A checked routecap_source.
struct Source {
    const void *ids;
    int32_t dtype;
    int64_t row_stride, column_stride;
    uint32_t rows;
    const int32_t *live_rows, *row_base, *row_index;
    uint32_t first_row;
    int32_t offset;
    const int32_t *table;
    uint32_t table_size;
};

// Where positions of a step's rows come from, if from the device.
struct DevicePositions {
    const void *positions = nullptr;
    int32_t dtype = 0;
};

// A step's rows in host memory.
struct SlotContents {
    uint8_t *slot;
    uint32_t covered;
    uint64_t conflicts;
    uint64_t dropped;
};

class Backend {
public:
    virtual ~Backend() = default;
    virtual Sink &sink() = 0;
    virtual const kernels::SlotLayout &layout() const = 0;

    // The forward path, in stream order.
    virtual int32_t check(routecap_stream stream) = 0;
    virtual int32_t begin(uint32_t rows, routecap_stream stream) = 0;
    virtual int32_t record(uint32_t layer, const Source &source, routecap_stream stream) = 0;
    virtual int32_t snapshot(routecap_stream stream) = 0;
    // Brings the first `rows` rows of a slot, with their positions if asked for, to the host.
    virtual int32_t copy(int32_t slot, uint32_t rows, const DevicePositions &positions, routecap_stream stream) = 0;
    // Makes `slot`, or none (kNoSlot), the one that the next snapshot fills; clears it and disarms what was begun.
    virtual int32_t name_slot(int32_t slot, routecap_stream stream) = 0;

    // Filing.
    virtual bool landed(int32_t slot) = 0;
    virtual SlotContents contents(int32_t slot) = 0;
};

}  // namespace routecap
