#include "host/host_backend.h"

#include <new>
#include <vector>

#include "kernels/begin.h"
#include "kernels/record.h"
#include "kernels/snapshot.h"
#include "status.h"

namespace routecap {
namespace {

struct Free {
    void operator()(uint8_t *memory) const { ::operator delete(memory, kAlignment); }
    static constexpr std::align_val_t kAlignment{64};
};
using Memory = std::unique_ptr<uint8_t, Free>;

Memory allocate(size_t bytes) { return Memory(bytes == 0 ? nullptr : static_cast<uint8_t *>(::operator new(bytes, Free::kAlignment))); }

template <class Kernel>
void run(const Kernel &kernel) {
    for (uint32_t o = 0, outer = kernel.outer(), inner = kernel.inner(); o < outer; o++)
        for (uint32_t i = 0; i < inner; i++) kernel.item(o, i);
}

class HostBackend final : public Backend {
public:
    explicit HostBackend(const Config &config)
        : shape_(config.shape),
          rows_(config.rows),
          layout_(config.rows, shape_->validity_bytes, shape_->ids_bytes),
          sink_memory_(allocate(config.external_sink ? 0 : shape_->layers * sink_layer_bytes(rows_, shape_->k, config.sink_dtype))),
          sink_(shape_->layer_experts, rows_, shape_->k, config.sink_dtype, sink_memory_.get()) {
        if (config.role != ROUTECAP_ROLE_OWNER) return;
        for (uint32_t s = 0; s < config.slots; s++) slots_.push_back(slot_memory_.emplace_back(allocate(layout_.bytes())).get());
    }

    Sink &sink() override { return sink_; }
    const kernels::SlotLayout &layout() const override { return layout_; }

    int32_t check(routecap_stream stream) override {
        return stream == nullptr ? ROUTECAP_OK : report(ROUTECAP_ERR_ARGUMENT, "the host backend has no streams: pass NULL");
    }

    int32_t begin(uint32_t rows, routecap_stream) override {
        kernels::with_columns(shape_->k, [&]<uint32_t K>() {
            const kernels::Begin<K> kernel{sink_.layers().data(), shape_->layers, shape_->k, rows, &control_, slots_.data(), layout_};
            run(kernel);
            kernel.once();
        });
        return ROUTECAP_OK;
    }

    int32_t record(uint32_t layer, const Source &s, routecap_stream) override {
        kernels::with_columns(shape_->k, [&]<uint32_t K>() {
            run(kernels::Record<K>{s.ids, s.row_stride, s.column_stride, s.dtype, s.rows, s.live_rows, s.row_base, s.row_index, s.first_row,
                                   shape_->k, s.table, s.table_size, s.offset, sink_.layers()[layer], &control_});
        });
        return ROUTECAP_OK;
    }

    int32_t snapshot(routecap_stream) override {
        if (shape_->id_bytes == 1)
            snapshot<uint8_t>();
        else
            snapshot<uint16_t>();
        return ROUTECAP_OK;
    }

    int32_t copy(int32_t slot, uint32_t rows, const DevicePositions &from, routecap_stream) override {
        if (from.positions == nullptr) return ROUTECAP_OK;
        int64_t *to = layout_.positions(slots_[static_cast<size_t>(slot)], rows);
        for (uint32_t r = 0; r < rows; r++)
            to[r] = from.dtype == ROUTECAP_DTYPE_I32 ? static_cast<const int32_t *>(from.positions)[r]
                                                     : static_cast<const int64_t *>(from.positions)[r];
        return ROUTECAP_OK;
    }

    int32_t name_slot(int32_t slot, routecap_stream) override {
        control_.slot = slot;
        control_.armed = 0;
        if (slot != kernels::kNoSlot) *layout_.header(slots_[static_cast<size_t>(slot)]) = {};
        return ROUTECAP_OK;
    }

    bool landed(int32_t) override { return true; }

    SlotContents contents(int32_t slot) override {
        uint8_t *memory = slots_[static_cast<size_t>(slot)];
        const kernels::SlotHeader &header = *layout_.header(memory);
        return {memory, header.covered, header.conflicts, header.dropped};
    }

private:
    template <class Id>
    void snapshot() {
        kernels::with_columns(shape_->k, [&]<uint32_t K>() {
            const kernels::Snapshot<Id, K> kernel{sink_.layers().data(), shape_->layers, shape_->k, rows_, &control_, slots_.data(), layout_};
            run(kernel);
            kernel.after();
        });
    }

    const ShapePtr shape_;
    const uint32_t rows_;
    const kernels::SlotLayout layout_;
    const Memory sink_memory_;
    Sink sink_;
    kernels::Control control_{0, kernels::kNoSlot, 0, 0};
    std::vector<Memory> slot_memory_;
    std::vector<uint8_t *> slots_;
};

}  // namespace

std::unique_ptr<Backend> make_host_backend(const Config &config) { return std::make_unique<HostBackend>(config); }

}  // namespace routecap
