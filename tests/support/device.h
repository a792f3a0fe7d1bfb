// Where the rig's engine keeps its tensors and runs its work: host memory, or a CUDA device through
// the driver that is there.
//
//   ROUTECAP_TEST_BACKEND=cuda   run on the CUDA backend (default: host)
//   ROUTECAP_TEST_GRAPH=1        capture each forward pass into a graph and replay it
#pragma once

#include <routecap.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace rig {

bool on_cuda();
bool in_graphs();
int32_t backend();  // ROUTECAP_BACKEND_*

class Device {
public:
    Device();
    ~Device();
    Device(const Device &) = delete;

    routecap_stream stream() const { return stream_; }

    // Data that the stream's work can read until it has run; on the host backend the data itself.
    const void *upload(const void *data, size_t bytes);
    // Memory of the device, all bytes `fill`, as long as this object lives.
    void *allocate(size_t bytes, unsigned char fill = 0);
    // In the order of the stream, and part of a pass that is captured.
    void write(void *to, const void *from, size_t bytes);
    // After all work of the stream.
    void read(void *to, const void *from, size_t bytes);
    void synchronize();
    // Runs a pass, possibly as a graph.
    void forward(const std::function<void()> &pass);

    // The rest is for CUDA.
    // A pass as a graph, which may be replayed until this object goes. `mode`: 0 global, 1 of this
    // thread, 2 relaxed.
    class Graph {
    public:
        ~Graph();
        Graph(Graph &&other) noexcept : replay_(std::exchange(other.replay_, nullptr)) {}
        void replay(routecap_stream stream) const;

    private:
        friend class Device;
        explicit Graph(void *replay) : replay_(replay) {}
        void *replay_;
    };
    Graph capture(const std::function<void()> &pass, int mode = 2);
    // Another stream. fork: what is enqueued on it waits for what is on this one so far; join: the
    // other way round.
    routecap_stream make_stream();
    void fork(routecap_stream to) { order(stream_, to); }
    void join(routecap_stream from) { order(from, stream_); }
    // Nothing that is enqueued after close_gate runs until open_gate.
    void close_gate();
    void open_gate();

private:
    unsigned char *take_pool();
    void order(routecap_stream before, routecap_stream after);

    routecap_stream stream_ = nullptr;

    std::vector<void *> allocations_;
    // Page-locked memory for uploads: the last is filled, and begun anew once the stream has run.
    std::vector<unsigned char *> pools_;
    size_t used_ = 0;
    bool capturing_ = false;
    std::vector<routecap_stream> streams_;
    uint32_t *gate_ = nullptr;  // in page-locked memory: how often it was opened
    uint32_t closed_ = 0;
};

}  // namespace rig
