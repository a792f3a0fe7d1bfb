#include "rows/merge.h"

#include <algorithm>
#include <cstring>

namespace routecap {
namespace {

// How the reason of a cell that both lack compares: positive if from's stands.
int32_t compare_reasons(const Shape &shape, const uint8_t *to, const uint8_t *from,
                        uint32_t layer) {
    return reason_rank(shape.reason(from, layer)) - reason_rank(shape.reason(to, layer));
}

}  // namespace

Meeting compare_rows(const Shape &shape, const uint8_t *to, const uint8_t *from) {
    Meeting m;
    const uint8_t *has = shape.validity(to), *other = shape.validity(from);
    for (uint32_t b = 0; b < shape.validity_bytes; b++) {
        m.overlap |= (has[b] & other[b]) != 0;
        m.fills |= (other[b] & ~has[b]) != 0;
        m.keeps |= has[b] != 0;
    }
    if (shape.row_full(to)) return m;
    for (uint32_t l = 0; l < shape.layers; l++) {
        if (shape.valid(to, l) || shape.valid(from, l)) continue;
        const int32_t order = compare_reasons(shape, to, from, l);
        m.reasons |= order > 0;
        m.keeps |= order < 0;
    }
    return m;
}

bool differ(const Shape &shape, const uint8_t *a, const uint8_t *b) {
    if (std::memcmp(a, b, shape.bytes()) == 0) return false;
    for (uint32_t l = 0; l < shape.layers; l++)
        if (shape.valid(a, l) && shape.valid(b, l) && !shape.same_cell(a, b, l)) return true;
    return false;
}

Tag merge(const Shape &shape, uint8_t *to, Tag to_tag, const uint8_t *from, Tag from_tag) {
    const bool empty = shape.row_empty(to);
    const bool arrives = shape.row_reason(to) != 0 && shape.row_reason(from) == 0;
    bool filled = false;
    for (uint32_t l = 0; l < shape.layers; l++) {
        if (shape.valid(to, l)) continue;
        if (shape.valid(from, l)) {
            shape.copy_cell(to, from, l);
            filled = true;
        } else if (compare_reasons(shape, to, from, l) > 0) {
            shape.mark(to, l, shape.reason(from, l));
        }
    }
    if (arrives || (filled && empty)) return from_tag;
    return filled ? std::min(to_tag, from_tag) : to_tag;
}

}  // namespace routecap
