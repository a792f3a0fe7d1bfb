#include "plan/row_writer.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/element.h"
#include "kernels/list.h"

namespace routecap {
namespace {

// Rows whose narrow ids stay in the processor's caches while layer after layer is written.
constexpr uint64_t kBytesAtOnce = 32768;

template <class T, class Id>
void widen(T *to, const Id *from, uint64_t n) {
    if constexpr (sizeof(T) == sizeof(Id))
        std::memcpy(to, from, n * sizeof(T));
    else
        for (uint64_t i = 0; i < n; i++) to[i] = static_cast<T>(from[i]);
}

// Results of at least this many bytes do not stay in the caches. They are written with streaming
// stores, because a store through the caches first reads the memory that it overwrites.
constexpr uint64_t kBytesPastCaches = 8 << 20;

// Copies to memory that nobody will read soon.
void copy_past_caches(void *to, const void *from, size_t bytes) {
    auto *out = static_cast<uint8_t *>(to);
    const auto *in = static_cast<const uint8_t *>(from);
#if defined(__SSE2__)
    const size_t before = std::min(bytes, (16 - reinterpret_cast<uintptr_t>(out) % 16) % 16);
    std::memcpy(out, in, before);
    size_t at = before;
    for (; at + 16 <= bytes; at += 16)
        _mm_stream_si128(reinterpret_cast<__m128i *>(out + at),
                         _mm_loadu_si128(reinterpret_cast<const __m128i *>(in + at)));
    out += at, in += at, bytes -= at;
#endif
    std::memcpy(out, in, bytes);
}

constexpr uint32_t kStreamed = 8;  // ids that are widened to whole vectors of any width

#if defined(__SSE2__)
template <class Id>
__m128i as_16_bits(const Id *ids) {
    if constexpr (sizeof(Id) == 1)
        return _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(ids)),
                                 _mm_setzero_si128());
    else
        return _mm_loadu_si128(reinterpret_cast<const __m128i *>(ids));
}

// To memory at a multiple of 16.
template <class T>
void stream(T *to, __m128i ids) {
    auto *out = reinterpret_cast<__m128i *>(to);
    if constexpr (sizeof(T) == 2) return _mm_stream_si128(out, ids);
    const __m128i zero = _mm_setzero_si128();
    const __m128i low = _mm_unpacklo_epi16(ids, zero), high = _mm_unpackhi_epi16(ids, zero);
    if constexpr (sizeof(T) == 4) {
        _mm_stream_si128(out, low);
        _mm_stream_si128(out + 1, high);
    } else {
        _mm_stream_si128(out, _mm_unpacklo_epi32(low, zero));
        _mm_stream_si128(out + 1, _mm_unpackhi_epi32(low, zero));
        _mm_stream_si128(out + 2, _mm_unpacklo_epi32(high, zero));
        _mm_stream_si128(out + 3, _mm_unpackhi_epi32(high, zero));
    }
}
#endif

// Widens to memory that nobody will read soon.
template <class T, class Id>
void widen_past_caches(T *to, const Id *from, uint64_t n) {
    if constexpr (sizeof(T) == sizeof(Id)) return copy_past_caches(to, from, n * sizeof(T));
#if defined(__SSE2__)
    if constexpr (sizeof(T) > sizeof(Id)) {
        for (; n > 0 && reinterpret_cast<uintptr_t>(to) % 16 != 0; n--)
            *to++ = static_cast<T>(*from++);
        for (; n >= kStreamed; n -= kStreamed, to += kStreamed, from += kStreamed)
            stream(to, as_16_bits(from));
    }
#endif
    widen(to, from, n);
}

template <class T, class Id>
void widen(T *to, const Id *from, uint64_t n, bool past_caches) {
    return past_caches ? widen_past_caches(to, from, n) : widen(to, from, n);
}

}  // namespace

RowWriter::RowWriter(const Plan &plan, const RowTarget &to)
    : plan_(plan),
      to_(to),
      past_caches_(plan.cells() * plan.k() * to.element_bytes >= kBytesPastCaches) {
    const kernels::Filler &filler = plan.filler();
    std::vector<uint32_t> sizes;
    for (const kernels::PlanLayer &layer : plan.layers()) {
        const uint32_t experts = layer.rule.experts;
        const auto known = std::find(sizes.begin(), sizes.end(), experts);
        cycle_of_.push_back(static_cast<size_t>(known - sizes.begin()));
        if (known != sizes.end()) continue;
        sizes.push_back(experts);
        auto &cycle = cycles_.emplace_back((experts + plan.k()) * to.element_bytes);
        with_width(to.element_bytes, [&]<class T>(T) {
            auto *at = reinterpret_cast<T *>(cycle.data());
            for (uint32_t r = 0; r < experts + plan.k(); r++)
                at[r] = static_cast<T>(kernels::balanced(r % experts, experts, filler.ranks));
        });
    }
}

RowWriter::~RowWriter() {
#if defined(__SSE2__)
    if (past_caches_) _mm_sfence();  // other threads see what was written past the caches
#endif
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
        write_experts(to, filler.number(piece.ordinal + r, at.index, at.rule.experts, at.rule.k),
                      layer);
    if (to_.classes != nullptr)
        to_.classes[(piece.row + r * piece.step) * to_.row_stride + layer * to_.layer_stride] =
            ROUTECAP_PLAN_CLASS_LOST;
}

template <class T>
void RowWriter::write_experts(T *to, uint32_t number, size_t layer) {
    const uint32_t used = plan_.layers()[layer].rule.k;
    std::copy_n(experts_from<T>(number, layer), used, to);
    std::fill_n(to + used, plan_.k() - used, static_cast<T>(to_.none));
}

template <class T, class Id>
void RowWriter::mark_unused(T *to, const Id *from, size_t layer) {
    const uint32_t least = plan_.layers()[layer].rule.least;
    for (uint32_t c = plan_.k(); c > least && from[c - 1] == kernels::kUnused<Id>; c--)
        to[c - 1] = static_cast<T>(to_.none);
}

template <class T, class Id, uint32_t K>
void RowWriter::copy(const Piece &piece) {
    if (!piece.whole || piece.step != 1 || !plan_.ids()->uniform)
        copy_cells<T, Id, K>(piece);
    else if (to_.layer_stride == 1 && piece.source->adjacent)
        copy_rows<T, Id>(piece);
    else if (to_.row_stride == 1)
        copy_layers<T, Id, K>(piece);
    else
        copy_cells<T, Id, K>(piece);
}

// The layers of a row follow one another in both.
template <class T, class Id>
void RowWriter::copy_rows(const Piece &piece) {
    const uint64_t n = piece.source->layers.size() * plan_.k();
    for (uint64_t r = 0; r < piece.rows; r++)
        widen(cell<T>(piece.row + r, 0), piece.cell<Id>(r, 0, plan_.k()), n, past_caches_);
}

// The rows of a layer follow one another in the target: some rows of each layer at a time.
template <class T, class Id, uint32_t K>
void RowWriter::copy_layers(const Piece &piece) {
    alignas(64) T memory[kBytesAtOnce / sizeof(T)];
    const uint32_t k = kernels::columns<K>(plan_.k());
    const bool gathered = past_caches_ && k % kStreamed != 0;  // in memory, to be copied as one
    const uint64_t at_once =
        std::min<uint64_t>(kBytesAtOnce / piece.source->stride + 1, kBytesAtOnce / (k * sizeof(T)));
    for (uint64_t first = 0; first < piece.rows; first += at_once) {
        const uint64_t rows = std::min(at_once, piece.rows - first);
        for (size_t l = 0; l < plan_.layers().size(); l++) {
            T *const to = cell<T>(piece.row + first, l), *const wide = gathered ? memory : to;
            for (uint64_t r = 0; r < rows; r++)
                widen(wide + r * k, piece.cell<Id>(first + r, l, k), k, past_caches_ && !gathered);
            if (gathered) copy_past_caches(to, memory, rows * k * sizeof(T));
        }
    }
}

template <class T, class Id, uint32_t K>
void RowWriter::copy_cells(const Piece &piece) {
    const uint32_t k = kernels::columns<K>(plan_.k());
    for (uint64_t r = 0; r < piece.rows; r++)
        for (size_t l = 0; l < plan_.layers().size(); l++) {
            if (!piece.valid(r, l)) {
                write_lost<T>(piece, r, l);
                continue;
            }
            T *const to = cell<T>(piece.row + r * piece.step, l);
            const Id *const from = piece.cell<Id>(r, l, k);
            widen(to, from, k);
            if constexpr (K == 0) mark_unused(to, from, l);
        }
}

void RowWriter::write(const Piece &piece) {
    if (piece.source == nullptr) {
        with_width(to_.element_bytes, [&]<class T>(T) {
            for (size_t l = 0; l < plan_.layers().size(); l++)
                for (uint64_t r = 0; r < piece.rows; r++) write_lost<T>(piece, r, l);
        });
        return;
    }
    with_width(to_.element_bytes, [&]<class T>(T) {
        kernels::with_columns(plan_.ids()->kernel_k(), [&]<uint32_t K>() {
            if (piece.source->width == 1)
                copy<T, uint8_t, K>(piece);
            else
                copy<T, uint16_t, K>(piece);
        });
    });
    if (piece.whole) {
        classify(piece.row, piece.step, piece.rows, ROUTECAP_PLAN_CLASS_VALID);
        return;
    }
    if (to_.classes == nullptr) return;
    for (uint64_t r = 0; r < piece.rows; r++)
        for (size_t l = 0; l < plan_.layers().size(); l++)
            if (piece.valid(r, l))
                to_.classes[(piece.row + r * piece.step) * to_.row_stride + l * to_.layer_stride] =
                    ROUTECAP_PLAN_CLASS_VALID;
}

// ---- The rest -------------------------------------------------------------------------------

template <class T>
void RowWriter::fill_cells(const PlanRun &run) {
    const kernels::Filler &filler = plan_.filler();
    for (size_t l = 0; l < plan_.layers().size(); l++) {
        const kernels::PlanLayer &at = plan_.layers()[l];
        const uint32_t k = at.rule.k;
        uint32_t number = filler.number(run.ordinal, at.index, at.rule.experts, k);
        for (uint64_t r = 0; r < run.rows; r++) {
            T *to = cell<T>(run.row + r * run.step, l);
            if (filler.fill == ROUTECAP_PLAN_FILL_VALUE) {
                std::fill_n(to, plan_.k(), static_cast<T>(filler.fill_value));
                continue;
            }
            write_experts(to, number, l);
            number += k;
            if (number >= at.rule.experts) number -= at.rule.experts;
        }
    }
}

void RowWriter::fill(const PlanRun &run) {
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
