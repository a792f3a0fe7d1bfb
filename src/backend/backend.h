// What differs between the host and a device: the sink's memory, the work of begin, record and
// snapshot, and the copy to host memory.
// What follows the copy is the same for all backends. One thread at a time makes the calls with a
// stream. The filing thread calls landed, contents and failure at the same time, without a lock.
#pragma once

#include <cstdint>
#include <span>

#include "backend/sink.h"
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

// A step's rows in host memory, and what the device noted about the forward pass in its slot.
struct SlotContents {
    uint8_t *slot;
    uint32_t covered = 0;
    uint64_t conflicts = 0;
    uint64_t dropped = 0;
    bool begun = false;
    uint32_t snapshots = 0;
};

// The ids of one layer to record, and the table and the weights for them, if there are any.
struct RecordedLayer {
    uint32_t layer;
    const void *ids;
    const int32_t *table;
    const void *weights;
};

// How ids lie in the memory of layers, and weights beside them.
struct RecordSource {
    kernels::Source ids;
    kernels::WeightSource weights;
    bool weighted = false;  // at least one layer has weights
};

// "Naming" a slot tells the device which slot the next snapshot fills, and begins a new epoch. A
// backend with slots starts with slot 0 named.
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
    // A number for the graph capture that enter() found, different for each capture; 0: none.
    virtual uint64_t capture() const = 0;
    // Refuses an address that the device cannot read.
    virtual int32_t check_memory(const void *address, const char *name) = 0;
    virtual int32_t begin(uint32_t rows, routecap_stream stream) = 0;
    virtual int32_t record(const RecordSource &source, std::span<const RecordedLayer> layers,
                           bool overlap, routecap_stream stream) = 0;
    virtual int32_t route(uint32_t layer, const kernels::Router &router,
                          const kernels::Logits &logits, routecap_stream stream) = 0;
    // Of a checked dispatch: into its table, and the sum of all ranks' tables into its counts.
    virtual int32_t read_received(const routecap_received &r, routecap_stream stream) = 0;
    virtual int32_t compare_received(const routecap_received &r, routecap_stream stream) = 0;
    virtual int32_t snapshot(routecap_stream stream) = 0;
    // All three at once, of the first rows of the sink.
    virtual int32_t whole_step(const RecordSource &source, std::span<const RecordedLayer> layers,
                               routecap_stream stream) {
        if (int32_t s = begin(source.ids.to.rows, stream); s < 0) return s;
        if (source.ids.to.rows > 0 && !layers.empty())
            if (int32_t s = record(source, layers, false, stream); s < 0) return s;
        return snapshot(stream);
    }

    // Names `slot`, or none (kNoSlot), and disarms the rows that were begun. Not while capturing.
    // If this fails, the step loses its rows, and failure() of its slot gives the reason. Rows that
    // are begun before the next naming are then lost too; an eager begin therefore names the slot
    // once more.
    virtual void name_slot(int32_t slot, routecap_stream stream) = 0;
    // Called before the filing thread can see the step in `slot`. The step counts as not landed
    // until copy() has returned.
    virtual void expect(int32_t slot) = 0;
    // Names `next` as name_slot() does. Brings the first `rows` rows of `slot` to the host, and
    // after them the positions.
    virtual void copy(int32_t slot, uint32_t rows, const DevicePositions &positions, int32_t next,
                      routecap_stream stream) = 0;

    // For probes, on the forward path. wait_for() waits for the stream and returns how many rows
    // are begun. read_layer() then copies the first `rows` rows of a layer, without gaps.
    virtual int32_t wait_for(routecap_stream stream, uint32_t &rows_begun) = 0;
    virtual int32_t read_layer(uint32_t layer, uint32_t rows, void *ids) = 0;

    // For the filing thread. Returns whether a slot's copy has arrived or failed. The filing thread
    // asks until it has.
    virtual bool landed(int32_t slot) = 0;
    // For a slot that has landed. contents() returns its rows; if they were lost, none is covered.
    // failure() returns the line about the driver's call that lost them, valid until the slot is
    // named again, or nullptr. The thread that called copy() may also call failure().
    virtual SlotContents contents(int32_t slot) = 0;
    virtual const char *failure(int32_t slot) const = 0;

    // Steps whose rows arrive later, which the host backend alone has. await() is called in place
    // of copy(). Any thread calls arrive() with the sinks of all layers in host memory, of which
    // `rows` rows are there, or with nullptr if they will not come. It does nothing if the step
    // awaits no rows. give_up() comes last: no rows can arrive any more.
    virtual void await(int32_t, routecap_step, uint32_t, const DevicePositions &, int32_t) {}
    virtual void arrive(routecap_step, const ArrivedLayers *, uint32_t) {}
    // One past the last sink row that spans of such a step name; 0 if it awaits no rows. Any thread
    // may ask.
    virtual uint32_t awaited_rows(routecap_step) const { return 0; }
    virtual void give_up() {}
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

// The contents of a slot, if they are those of the step with this epoch; otherwise a step without
// rows.
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
