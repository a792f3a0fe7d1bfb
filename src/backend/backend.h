// What differs between the host and a device: the sink's memory, the work of begin, record and
// snapshot, and the copy to host memory.
//
// A capturer drives its backend; after the copy everything is shared. Calls with a stream come from
// one thread at a time, landed, contents and failure from whoever files, at the same time and
// without a lock.
#pragma once

#include <cstdint>
#include <span>

#include "backend/sink.h"
#include "kernels/dispatch_check.h"
#include "kernels/record.h"
#include "kernels/route.h"
#include "kernels/slot.h"
#include "routecap.h"

namespace routecap {

// The positions of the first `rows` sink rows of a step, where spans have device positions.
struct DevicePositions {
    const void *positions;
    int32_t dtype;
    uint32_t rows;

    size_t bytes() const { return size_t{rows} * (dtype == ROUTECAP_DTYPE_I32 ? 4 : 8); }
};

// A step's rows in host memory, and what its slot tells of the forward that filled it.
struct SlotContents {
    uint8_t *slot;
    uint32_t covered = 0;
    uint64_t conflicts = 0;
    uint64_t dropped = 0;
    bool begun = false;
    uint32_t snapshots = 0;
};

// What record is given of one layer: its ids and, if there are tables, its table.
struct RecordedLayer {
    uint32_t layer;
    const void *ids;
    const int32_t *table;
};

// Whether the rows of a step in flight are in host memory.
enum class Arrival { coming, arrived, failed };

// An owner's backend starts with slot 0 named.
class Backend {
public:
    virtual ~Backend() = default;
    virtual const kernels::SlotLayout &layout() const = 0;
    virtual const Sink &sink() const = 0;
    virtual int32_t bind(uint32_t first_layer, uint32_t layers, const routecap_sink &sink) = 0;
    virtual routecap_sink give_out(uint32_t layer) = 0;

    // The forward path, in stream order. Before each call below, enter() says whether the stream
    // can be used, and whether it is being captured.
    virtual int32_t enter(routecap_stream stream, bool &capturing) = 0;
    // A number of its own for the capture that enter() found; 0: none.
    virtual uint64_t capture() const = 0;
    // Refuses an address that is no memory which the device can read.
    virtual int32_t check_memory(const void *address, const char *name) = 0;
    virtual int32_t begin(uint32_t rows, routecap_stream stream) = 0;
    virtual int32_t record(const kernels::Source &source, std::span<const RecordedLayer> layers,
                           bool overlap, routecap_stream stream) = 0;
    virtual int32_t route(uint32_t layer, const kernels::Router &router,
                          const kernels::Logits &logits, routecap_stream stream) = 0;
    // Fills the table of what was executed, if it is wanted, and reads a dispatch into it.
    virtual int32_t read_dispatch(const kernels::Received &body, routecap_stream stream) = 0;
    virtual int32_t read_dispatch(const kernels::ReceivedExpanded &body,
                                  routecap_stream stream) = 0;
    virtual int32_t snapshot(routecap_stream stream) = 0;

    // Not while capturing. What fails here costs the step its rows, and failure() of its slot says
    // what it was. Makes `slot`, or none (kNoSlot), the one that the next snapshot fills; disarms
    // what was begun. Where that fails, rows that are begun before the next naming are lost; an
    // eager begin names the slot once more.
    virtual void name_slot(int32_t slot, routecap_stream stream) = 0;
    // Called before the filing thread can see the step in `slot`. The step counts as not landed
    // until copy() has returned.
    virtual void expect(int32_t slot) = 0;
    // Names `next` as name_slot() does, and brings the first `rows` rows of `slot`, and positions
    // behind them, to the host.
    virtual void copy(int32_t slot, uint32_t rows, const DevicePositions &positions, int32_t next,
                      routecap_stream stream) = 0;

    // For probes, on the forward path. Waits for the stream and says how many rows are begun; then
    // the first `rows` rows of a layer, dense.
    virtual int32_t wait_for(routecap_stream stream, uint32_t &rows_begun) = 0;
    virtual int32_t read_layer(uint32_t layer, uint32_t rows, void *ids) = 0;

    // Filing, by one thread at a time. Whether a slot's copy has arrived or failed; asked again
    // and again until it has.
    virtual bool landed(int32_t slot) = 0;
    // Of a slot that has landed: its rows, none of which are covered if they were lost; and which
    // call of the driver lost them, in one line that stays until the slot is named again, or
    // nullptr. The thread that made the copy may ask that too.
    virtual SlotContents contents(int32_t slot) = 0;
    virtual const char *failure(int32_t slot) const = 0;

    // For any thread that looks at the step in a slot from outside; it may be filed meanwhile.
    virtual Arrival arrival(int32_t slot) const = 0;
};

// Whether a backend can be used, and one line about it in static storage.
struct BackendInfo {
    bool available;
    int32_t devices;
    const char *detail;
};

// What a backend allocates on a device, and as page-locked host memory.
struct DeviceMemory {
    uint64_t device_bytes, pinned_bytes;
};

// What a slot holds of the step that was named with this epoch.
inline SlotContents read_slot(const kernels::SlotLayout &layout, uint8_t *slot, uint64_t epoch) {
    const kernels::SlotHeader &header = *layout.header(slot);
    if (header.epoch != epoch) return {slot};
    return {.slot = slot,
            .covered = header.covered,
            .conflicts = header.conflicts,
            .dropped = header.dropped,
            .begun = header.begun != 0,
            .snapshots = header.snapshots};
}

}  // namespace routecap
