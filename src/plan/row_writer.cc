#include "plan/row_writer.h"

#include <algorithm>
#include <cstring>

#include "kernels/list.h"

namespace routecap {
namespace {

// Rows whose narrow ids stay in the processor's nearest cache while layer after layer is written.
constexpr uint64_t kBytesAtOnce = 16384;

template <class T, class Id>
void widen(T *to, const Id *from, uint64_t n) {
    if constexpr (sizeof(T) == sizeof(Id))
        std::memcpy(to, from, n * sizeof(T));
    else
        for (uint64_t i = 0; i < n; i++) to[i] = static_cast<T>(from[i]);
}

}  // namespace

RowWriter::RowWriter(const Plan &plan, const RowTarget &to) : plan_(plan), to_(to) {
    const kernels::Filler &filler = plan.filler();
    std::vector<uint32_t> sizes;
    for (const kernels::PlanLayer &layer : plan.layers()) {
        const auto known = std::find(sizes.begin(), sizes.end(), layer.experts);
        cycle_of_.push_back(static_cast<size_t>(known - sizes.begin()));
        if (known != sizes.end()) continue;
        sizes.push_back(layer.experts);
        auto &cycle = cycles_.emplace_back((layer.experts + plan.k()) * to.element_bytes);
        with_width(to.element_bytes, [&]<class T>(T) {
            auto *at = reinterpret_cast<T *>(cycle.data());
            for (uint32_t r = 0; r < layer.experts + plan.k(); r++)
                at[r] = static_cast<T>(
                    kernels::balanced(r % layer.experts, layer.experts, filler.ranks));
        });
    }
}

// ---- Needed rows ----------------------------------------------------------------------------

template <class T>
void RowWriter::write_lost(const Piece &piece, uint64_t r, size_t layer) {
    const kernels::Filler &filler = plan_.filler();
    const kernels::PlanLayer &at = plan_.layers()[layer];
    T *to = cell<T>(piece.row + r * piece.step, layer);
    if (filler.lost == ROUTECAP_PLAN_LOST_MARK)
        std::fill_n(to, plan_.k(), static_cast<T>(filler.lost_value));
    else
        std::copy_n(experts_from<T>(
                        filler.number(piece.ordinal + r, at.index, at.experts, plan_.k()), layer),
                    plan_.k(), to);
    if (to_.classes != nullptr)
        to_.classes[(piece.row + r * piece.step) * to_.row_stride + layer * to_.layer_stride] =
            ROUTECAP_PLAN_CLASS_LOST;
}

template <class T, class Id, uint32_t K>
void RowWriter::copy(const Piece &piece) {
    const PlanSource &from = *piece.source;
    const uint32_t k = kernels::columns<K>(plan_.k());
    const size_t layers = from.layers.size();
    const auto ids = [&](uint64_t r, size_t layer) {
        return reinterpret_cast<const Id *>(piece.ids + r * from.row_bytes) +
               size_t{from.layers[layer]} * k;
    };
    const bool rows_follow = piece.step == 1 && layers == from.routing->shape().layers;
    if (to_.layer_stride == 1 && from.adjacent && piece.validity == nullptr) {
        if (rows_follow) return widen(cell<T>(piece.row, 0), ids(0, 0), piece.rows * layers * k);
        for (uint64_t r = 0; r < piece.rows; r++)
            widen(cell<T>(piece.row + r * piece.step, 0), ids(r, 0), layers * k);
        return;
    }
    const uint64_t at_once = kBytesAtOnce / from.row_bytes + 1;
    for (uint64_t first = 0; first < piece.rows; first += at_once) {
        const uint64_t end = std::min(piece.rows, first + at_once);
        for (size_t l = 0; l < layers; l++) {
            T *to = cell<T>(piece.row + first * piece.step, l);
            const uint64_t stride = piece.step * to_.row_stride * k;
            for (uint64_t r = first; r < end; r++, to += stride) {
                if (piece.valid(from, r, l))
                    widen(to, ids(r, l), k);
                else
                    write_lost<T>(piece, r, l);
            }
        }
    }
}

void RowWriter::write(const Piece &piece) {
    if (piece.source != nullptr && piece.validity == nullptr)
        classify(piece.row, piece.step, piece.rows, ROUTECAP_PLAN_CLASS_VALID);
    with_width(to_.element_bytes, [&]<class T>(T) {
        if (piece.source == nullptr) {
            for (size_t l = 0; l < plan_.layers().size(); l++)
                for (uint64_t r = 0; r < piece.rows; r++) write_lost<T>(piece, r, l);
            return;
        }
        kernels::with_columns(plan_.k(), [&]<uint32_t K>() {
            if (piece.source->width == 1)
                copy<T, uint8_t, K>(piece);
            else
                copy<T, uint16_t, K>(piece);
        });
    });
    if (to_.classes == nullptr || piece.validity == nullptr) return;
    for (uint64_t r = 0; r < piece.rows; r++)
        for (size_t l = 0; l < plan_.layers().size(); l++)
            if (piece.valid(*piece.source, r, l))
                to_.classes[(piece.row + r * piece.step) * to_.row_stride + l * to_.layer_stride] =
                    ROUTECAP_PLAN_CLASS_VALID;
}

// ---- The rest -------------------------------------------------------------------------------

template <class T>
void RowWriter::fill_cells(const routecap_plan_run &run) {
    const kernels::Filler &filler = plan_.filler();
    const uint32_t k = plan_.k();
    for (size_t l = 0; l < plan_.layers().size(); l++) {
        const kernels::PlanLayer &at = plan_.layers()[l];
        uint32_t number = filler.number(run.ordinal, at.index, at.experts, k);
        for (uint64_t r = 0; r < run.rows; r++) {
            T *to = cell<T>(run.row + r * run.step, l);
            if (filler.fill == ROUTECAP_PLAN_FILL_VALUE) {
                std::fill_n(to, k, static_cast<T>(filler.fill_value));
                continue;
            }
            std::copy_n(experts_from<T>(number, l), k, to);
            number += k;
            if (number >= at.experts) number -= at.experts;
        }
    }
}

void RowWriter::fill(const routecap_plan_run &run) {
    classify(run.row, run.step, run.rows, static_cast<uint8_t>(run.row_class));
    with_width(to_.element_bytes, [&]<class T>(T) { fill_cells<T>(run); });
}

void RowWriter::classify(uint64_t row, uint64_t step, uint64_t rows, uint8_t row_class) {
    if (to_.classes == nullptr) return;
    const uint64_t layers = plan_.layers().size();
    const bool by_row = to_.layer_stride == 1;
    if (step != 1) {
        for (uint64_t r = 0; r < rows; r++) classify(row + r * step, 1, 1, row_class);
    } else if (by_row) {
        std::memset(to_.classes + row * layers, row_class, rows * layers);
    } else {
        for (uint64_t l = 0; l < layers; l++)
            std::memset(to_.classes + l * to_.layer_stride + row, row_class, rows);
    }
}

}  // namespace routecap
