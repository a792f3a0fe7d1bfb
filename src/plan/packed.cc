// The ids of a rank as they are uploaded: packed on the host, unpacked by a kernel.
#include <cstring>

#include "backend/backends.h"
#include "base/status.h"
#include "base/structs.h"
#include "kernels/list.h"
#include "plan/plan.h"
#include "plan/row_writer.h"
#include "plan/sources.h"

namespace routecap {
namespace {

using kernels::PackedHeader;
using kernels::RowWord;

// Offsets of the parts of the packed bytes, for this many needed rows.
PackedHeader header_of(const Plan &plan, uint64_t needed, bool with_validity) {
    const auto after = [](uint64_t offset, uint64_t bytes) {
        return (offset + bytes + 15) / 16 * 16;
    };
    const uint64_t layers = plan.layers().size();
    PackedHeader h{};
    h.magic = PackedHeader::kMagic;
    h.filler = plan.filler();
    h.shape = plan.shape();
    h.id_bytes = plan.ids()->id_bytes;
    h.validity_bytes = plan.ids()->validity_bytes;
    h.row_words = after(sizeof h, layers * sizeof(kernels::PlanLayer));
    uint64_t end = after(h.row_words, plan.layout().rows * sizeof(RowWord));
    if (with_validity) {
        h.validity = end;
        end = after(end, needed * h.validity_bytes);
    }
    h.ids = end;
    h.bytes = after(end, needed * layers * plan.k() * h.id_bytes);
    return h;
}

void write_validity(const Plan &plan, const Piece &piece, uint32_t row_bytes, uint8_t *to) {
    for (uint64_t r = 0; r < piece.rows; r++)
        for (size_t l = 0; l < plan.layers().size(); l++)
            if (piece.source != nullptr && piece.valid(r, l))
                to[r * row_bytes + l / 8] |= static_cast<uint8_t>(1u << l % 8);
}

int32_t unpack_on_host(const Plan &plan, const void *packed, const routecap_plan_target &to,
                       routecap_stream stream) {
    if (stream != nullptr)
        return report(ROUTECAP_ERR_ARGUMENT, "the host backend has no streams: pass NULL");
    kernels::with_columns(plan.shape().kernel_k(), [&]<uint32_t K>() {
        const kernels::Unpack<K> body{static_cast<const uint8_t *>(packed), to.dst, to.classes,
                                      plan.shape()};
        for (uint32_t o = 0; o < body.outer(); o++)
            for (uint32_t i = 0; i < body.inner(); i++) body.item(o, i);
    });
    return ROUTECAP_OK;
}

int32_t check_memory(const char *name, const void *memory) {
    if (memory != nullptr && reinterpret_cast<uintptr_t>(memory) % 8 == 0) return ROUTECAP_OK;
    return report(ROUTECAP_ERR_ARGUMENT, "%s is %p, which is NULL or not aligned to 8 bytes", name,
                  memory);
}

}  // namespace

// Large enough for every plan of the same shape, because a captured graph may upload any of them.
uint64_t packed_bytes(const Plan &plan) { return header_of(plan, plan.layout().rows, true).bytes; }

int32_t pack(const Plan &plan, const routecap_plan_source *sources, size_t source_size,
             size_t count, void *packed, size_t bytes, routecap_plan_report *report_) {
    if (int32_t s = check_wanted(report_, "report"); s < 0) return s;
    if (bytes < packed_bytes(plan))
        return report(ROUTECAP_ERR_BUFFER_TOO_SMALL, "packed has %zu bytes and needs %llu", bytes,
                      ull(packed_bytes(plan)));
    if (int32_t s = check_memory("packed", packed); s < 0) return s;
    PlanSources found(plan);
    if (int32_t s = found.read(sources, source_size, count); s < 0) return s;
    found.report_to(report_);
    const int32_t status = found.status();
    if (status < 0) return status;

    const PackedHeader header = header_of(plan, plan.layout().needed, found.cells_lost() > 0);
    auto *at = static_cast<uint8_t *>(packed);
    std::memcpy(at, &header, sizeof header);
    std::memcpy(at + sizeof header, plan.layers().data(), plan.layers().size_bytes());
    auto *words = reinterpret_cast<RowWord *>(at + header.row_words);
    const auto name_rows = [&](const auto &run, uint32_t row_class, uint64_t n) {
        for (uint64_t r = 0; r < run.rows; r++)
            words[run.row + r * run.step] = {row_class, static_cast<uint32_t>(n + r)};
    };
    for (const PlanRun &run : plan.layout().runs)
        if (run.row_class != ROUTECAP_PLAN_CLASS_VALID)
            name_rows(run, static_cast<uint32_t>(run.row_class), run.ordinal);
    if (header.validity != 0)
        std::memset(at + header.validity, 0, plan.layout().needed * header.validity_bytes);
    RowWriter writer(plan, {.ids = at + header.ids,
                            .classes = nullptr,
                            .element_bytes = header.id_bytes,
                            .row_stride = plan.layers().size(),
                            .layer_stride = 1,
                            .none = -1});  // kUnused of either width
    uint64_t n = 0;
    for (Piece piece : found.pieces()) {
        name_rows(piece, ROUTECAP_PLAN_CLASS_VALID, n);
        if (header.validity != 0)
            write_validity(plan, piece, header.validity_bytes,
                           at + header.validity + n * header.validity_bytes);
        piece.row = n, piece.step = 1;
        writer.write(piece);
        n += piece.rows;
    }
    return status;
}

int32_t unpack(const Plan &plan, const void *packed, size_t bytes,
               const routecap_plan_target *target, routecap_stream stream) {
    routecap_plan_target t;
    if (int32_t s = read_struct(t, target, "target"); s < 0) return s;
    if (t.reserved != 0) return refuse_reserved(static_cast<int32_t>(t.reserved));
    if (int32_t s = check_memory("packed", packed); s < 0) return s;
    PackedHeader header{};
    if (bytes >= sizeof header) std::memcpy(&header, packed, sizeof header);
    const PackedHeader expected = header_of(plan, plan.layout().needed, header.validity != 0);
    if (std::memcmp(&header, &expected, sizeof header) != 0 || bytes < packed_bytes(plan))
        return report(ROUTECAP_ERR_STATE, "packed holds nothing that was packed for this plan");
    if (int32_t s = check_result(plan, t.dst, t.dst_bytes, t.classes, t.classes_bytes); s < 0)
        return s;
    if (t.backend != ROUTECAP_BACKEND_HOST) {
        if (int32_t s = check_memory("target.scratch", t.scratch); s < 0) return s;
        if (t.scratch_bytes < packed_bytes(plan))
            return report(ROUTECAP_ERR_BUFFER_TOO_SMALL, "scratch has %llu bytes and needs %llu",
                          ull(t.scratch_bytes), ull(packed_bytes(plan)));
    }
    if (t.backend == ROUTECAP_BACKEND_HOST) return unpack_on_host(plan, packed, t, stream);
    if (t.backend == ROUTECAP_BACKEND_CUDA)
        return cuda_unpack(
            t.device,
            {packed, header.bytes, packed_bytes(plan), t.scratch, t.dst, t.classes, plan.shape()},
            stream);
    return report(ROUTECAP_ERR_ARGUMENT, "target.backend is %d: %s", t.backend,
                  backend_info(t.backend).detail);
}

}  // namespace routecap
