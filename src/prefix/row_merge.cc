#include "prefix/row_merge.h"

#include <algorithm>
#include <cstring>

namespace routecap {

void merge_row(const Shape &shape, uint8_t *to_ids, uint8_t *to_validity, uint64_t &to_tag,
               const uint8_t *from_ids, const uint8_t *from_validity, uint64_t from_tag) {
    if (shape.row_reason(from_ids, from_validity) != 0) return;
    const bool empty = shape.row_empty(to_validity);
    if (shape.row_reason(to_ids, to_validity) != 0) {  // the row was not there
        std::memcpy(to_ids, from_ids, shape.ids_bytes);
        std::memcpy(to_validity, from_validity, shape.validity_bytes);
        if (!shape.row_empty(from_validity)) to_tag = from_tag;
        return;
    }
    bool filled = false;
    for (uint32_t l = 0; l < shape.layers; l++) {
        if (Shape::valid(to_validity, l)) continue;
        const size_t cell = size_t{l} * shape.cell_bytes;
        if (Shape::valid(from_validity, l)) {
            std::memcpy(to_ids + cell, from_ids + cell, shape.cell_bytes);
            Shape::set_valid(to_validity, l);
            filled = true;
        } else if (const int32_t reason = shape.reason(from_ids, l);
                   reason_rank(reason) > reason_rank(shape.reason(to_ids, l))) {
            shape.mark(to_ids, l, reason);
        }
    }
    if (filled) to_tag = empty ? from_tag : std::min(to_tag, from_tag);
}

}  // namespace routecap
