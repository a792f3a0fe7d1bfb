// The host backend.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>

#include "backend/backends.h"
#include "base/status.h"
#include "kernels/list.h"

namespace routecap {
namespace {

struct Free {
    void operator()(uint8_t *memory) const { ::operator delete(memory, kAlignment); }
    static constexpr std::align_val_t kAlignment{64};
};
using Memory = std::unique_ptr<uint8_t, Free>;

Memory allocate(size_t bytes) {
    return Memory(bytes == 0 ? nullptr
                             : static_cast<uint8_t *>(::operator new(bytes, Free::kAlignment)));
}

template <class Kernel>
void run(const Kernel &kernel) {
    for (uint32_t o = 0, outer = kernel.outer(), inner = kernel.inner(); o < outer; o++)
        for (uint32_t i = 0; i < inner; i++) kernel.item(o, i);
}

class HostBackend final : public Backend {
public:
    explicit HostBackend(const BackendConfig &config)
        : shape_(config.shape),
          rows_(config.rows),
          epoch_(config.first_epoch - 1),
          layout_(config.rows, *shape_),
          sink_memory_(
              allocate(config.external_sink ? 0 : sink_bytes(rows_, *shape_, config.sink_dtype))),
          weight_memory_(allocate(config.external_sink ? 0 : weights_bytes(rows_, *shape_))),
          sink_(*shape_, rows_, config.sink_dtype, sink_memory_.get(), weight_memory_.get()) {
        if (config.slots == 0) return;
        slots_ = allocate(config.slots * layout_.bytes());
        // Of no epoch.
        for (uint32_t s = 0; s < config.slots; s++)
            *layout_.header(slot(static_cast<int32_t>(s))) = {};
        slot_count_ = config.slots;
        in_slots_ = std::make_unique<InSlot[]>(config.slots);
        name_slot(0, nullptr);
    }

    const kernels::SlotLayout &layout() const override { return layout_; }
    const Sink &sink() const override { return sink_; }
    int32_t bind(uint32_t first_layer, uint32_t layers, const routecap_sink &sink) override {
        return sink_.bind(first_layer, layers, sink);
    }
    routecap_sink give_out(uint32_t layer) override { return sink_.give_out(layer); }

    int32_t enter(routecap_stream stream, bool &capturing) override {
        capturing = false;
        return stream == nullptr
                   ? ROUTECAP_OK
                   : report(ROUTECAP_ERR_ARGUMENT, "the host backend has no streams: pass NULL");
    }

    uint64_t capture() const override { return 0; }
    int32_t check_memory(const void *, const char *) override { return ROUTECAP_OK; }

    int32_t begin(uint32_t rows, routecap_stream) override {
        sink_.seal();
        const kernels::Begin kernel{
            sink_.layers().data(), shape_->layers, rows, sink_.begin_items(rows), &control_,
            slots_.get(),          layout_};
        if (shape_->weight_bytes != 0)
            run(kernels::BeginWeights{kernel, sink_.weights().data(), shape_->weight_bytes});
        else
            run(kernel);
        kernel.once();
        return ROUTECAP_OK;
    }

    int32_t record(const RecordSource &source, std::span<const RecordedLayer> layers, bool,
                   routecap_stream) override {
        if (source.weighted) {
            kernels::with_weight_columns(
                shape_->kernel_k(), shape_->weight_bytes, [&]<uint32_t K, class W>() {
                    for (const RecordedLayer &l : layers)
                        run(kernels::RecordWeights<K, 1, W>{
                            {source.ids, 1, &control_, {{l.ids, l.table, sink_.layers()[l.layer]}}},
                            source.weights,
                            {sink_.weights()[l.layer]},
                            {l.weights}});
                });
            return ROUTECAP_OK;
        }
        kernels::with_columns(shape_->kernel_k(), [&]<uint32_t K>() {
            for (const RecordedLayer &l : layers)
                run(kernels::RecordOne<K>{
                    source.ids, 1, &control_, {{l.ids, l.table, sink_.layers()[l.layer]}}});
        });
        return ROUTECAP_OK;
    }

    int32_t route(uint32_t layer, const kernels::Router &router, const kernels::Logits &logits,
                  routecap_stream) override {
        const kernels::SinkLayer &sink = sink_.layers()[layer];
        run(kernels::Route<1, kernels::kAnyScore>{router, logits, sink.rule.k, sink, &control_});
        return ROUTECAP_OK;
    }

    int32_t read_received(const routecap_received &r, routecap_stream) override {
        return kernels::with_received(r, [](const auto &body) {
            run(body);
            return ROUTECAP_OK;
        });
    }
    int32_t compare_received(const routecap_received &r, routecap_stream) override {
        run(kernels::chosen(r));
        return ROUTECAP_OK;
    }

    int32_t wait_for(routecap_stream, uint32_t &rows_begun) override {
        rows_begun = control_.rows();
        return ROUTECAP_OK;
    }
    int32_t read_layer(uint32_t layer, uint32_t rows, void *ids) override {
        const kernels::SinkLayer &from = sink_.layers()[layer];
        const size_t element = sink_element_bytes(from.dtype), bytes = from.rule.k * element;
        for (uint32_t r = 0; r < rows; r++)
            std::memcpy(static_cast<uint8_t *>(ids) + r * bytes,
                        static_cast<const uint8_t *>(from.ids) + static_cast<int64_t>(r) *
                                                                     from.row_stride *
                                                                     static_cast<int64_t>(element),
                        bytes);
        return ROUTECAP_OK;
    }

    int32_t snapshot(routecap_stream) override {
        snapshot(sink_.layers().data(), sink_.weights().data(), control_);
        return ROUTECAP_OK;
    }

    void name_slot(int32_t slot, routecap_stream) override {
        control_.named = {slot, ++epoch_};
        if (slot == kernels::kNoSlot) return;
        in(slot).epoch = epoch_;
        in(slot).gone = false;
    }
    void expect(int32_t slot) override { in(slot).landed.store(false, std::memory_order_relaxed); }

    void copy(int32_t slot, uint32_t rows, const DevicePositions &from, int32_t next,
              routecap_stream stream) override {
        if (from.rows > 0)
            std::memcpy(layout_.positions(this->slot(slot), rows), from.positions, from.bytes());
        name_slot(next, stream);
        in(slot).landed.store(true, std::memory_order_release);
    }

    bool landed(int32_t slot) override { return in(slot).landed.load(std::memory_order_acquire); }
    SlotContents contents(int32_t slot) override {
        return read_slot(layout_, this->slot(slot), in(slot).epoch);
    }
    const char *failure(int32_t slot) const override {
        return in(slot).gone ? "the rows of this step did not arrive" : nullptr;
    }

    void await(int32_t slot, routecap_step ticket, uint32_t rows, const DevicePositions &from,
               int32_t next) override {
        in(slot).rows.store(rows, std::memory_order_release);
        in(slot).positions = from;
        name_slot(next, nullptr);
        in(slot).awaited.store(ticket, std::memory_order_release);
    }
    void arrive(routecap_step ticket, const ArrivedLayers *layers, uint32_t rows) override {
        for (uint32_t s = 0; s < slot_count_; s++)
            if (uint64_t awaited = ticket; in_slots_[s].awaited.compare_exchange_strong(
                    awaited, 0, std::memory_order_acquire, std::memory_order_relaxed))
                land(static_cast<int32_t>(s), layers, rows);
    }
    uint32_t awaited_rows(routecap_step ticket) const override {
        const auto awaits = [ticket](const InSlot &step) {
            return step.awaited.load(std::memory_order_acquire) == ticket;
        };
        for (uint32_t s = 0; s < slot_count_; s++) {
            const InSlot &step = in_slots_[s];
            if (!awaits(step)) continue;
            const uint32_t rows = step.rows.load(std::memory_order_acquire);
            return awaits(step) ? rows : 0;  // the slot may be another step's by now
        }
        return 0;
    }
    void give_up() override {
        for (uint32_t s = 0; s < slot_count_; s++)
            if (in_slots_[s].awaited.exchange(0, std::memory_order_acquire) != 0)
                land(static_cast<int32_t>(s), nullptr, 0);
    }

private:
    // The forward path's until it is landed, then the step worker's until its step was filed.
    struct InSlot {
        uint64_t epoch = 0;  // with which it was named last
        std::atomic<bool> landed{false};
        // Of a step whose rows arrive later.
        std::atomic<uint64_t> awaited{0};  // its ticket, until they have
        bool gone = false;                 // they will not come
        std::atomic<uint32_t> rows{0};     // one past the last that a span names
        DevicePositions positions{};
    };

    InSlot &in(int32_t slot) const { return in_slots_[static_cast<size_t>(slot)]; }
    uint8_t *slot(int32_t n) const { return layout_.slot(slots_.get(), n); }

    // The rows of a step have arrived, or will not.
    void land(int32_t slot, const ArrivedLayers *layers, uint32_t rows) {
        InSlot &step = in(slot);
        if (layers == nullptr) {
            step.gone = true;
        } else {
            uint8_t *to = this->slot(slot);
            *layout_.header(to) = {};
            layout_.header(to)->epoch = step.epoch;
            layout_.header(to)->begun = 1;
            const kernels::Named named(slot, step.epoch);
            const uint32_t named_rows = step.rows.load(std::memory_order_relaxed);
            kernels::Control control{named, named, std::min(rows, named_rows), 0, 0, 0};
            snapshot(layers->layers.data(), layers->weights.data(), control);
            if (step.positions.rows > 0)
                std::memcpy(layout_.positions(to, named_rows), step.positions.positions,
                            step.positions.bytes());
        }
        step.landed.store(true, std::memory_order_release);
    }

    void snapshot(const kernels::SinkLayer *layers, const kernels::WeightSink *weights,
                  kernels::Control &control) {
        if (shape_->weight_bytes != 0) return snapshot_weights(layers, weights, control);
        kernels::with_columns(shape_->kernel_k(), [&]<uint32_t K>() {
            const auto take = [&]<class Id>(Id) {
                const kernels::Snapshot<Id, K> kernel{layers,   shape_->layers, shape_->k,
                                                      &control, slots_.get(),   layout_};
                run(kernel);
                kernel.once();
            };
            shape_->id_bytes == 1 ? take(uint8_t{}) : take(uint16_t{});
        });
    }

    void snapshot_weights(const kernels::SinkLayer *layers, const kernels::WeightSink *weights,
                          kernels::Control &control) {
        kernels::with_weight_columns(
            shape_->kernel_k(), shape_->weight_bytes, [&]<uint32_t K, class W>() {
                const auto take = [&]<class Id>(Id) {
                    const kernels::SnapshotWeights<Id, K, W> kernel{
                        {layers, shape_->layers, shape_->k, &control, slots_.get(), layout_},
                        weights,
                        kernels::NanRule(shape_->weights_dtype)};
                    run(kernel);
                    kernel.once();
                };
                shape_->id_bytes == 1 ? take(uint8_t{}) : take(uint16_t{});
            });
    }

    const ShapePtr shape_;
    const uint32_t rows_;
    uint64_t epoch_;  // of the last naming
    const kernels::SlotLayout layout_;
    const Memory sink_memory_, weight_memory_;
    Sink sink_;
    kernels::Control control_{.named = {kernels::kNoSlot, 0},
                              .begun = {kernels::kNoSlot, 0},
                              .armed = 0,
                              .done = 0,
                              .conflicts = 0,
                              .dropped = 0};
    Memory slots_;
    uint32_t slot_count_ = 0;
    std::unique_ptr<InSlot[]> in_slots_;
};

}  // namespace

std::unique_ptr<Backend> make_host_backend(const BackendConfig &config) {
    return std::make_unique<HostBackend>(config);
}

}  // namespace routecap
