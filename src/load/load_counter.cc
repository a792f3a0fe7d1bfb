#include "load/load_counter.h"

#include <algorithm>
#include <cstring>

namespace routecap {

static size_t counts_of(const Shape &shape) {
    return size_t{ROUTECAP_LOAD_PHASES} * shape.layers * shape.experts;
}

LoadCounter::LoadCounter(ShapePtr shape) : shape_(std::move(shape)), counts_(counts_of(*shape_)) {}

size_t LoadCounter::bytes(const Shape &shape) {
    return sizeof(LoadCounter) + counts_of(shape) * sizeof(uint64_t);
}

void LoadCounter::add_step(uint64_t ticket) noexcept {
    if (sums_.steps++ == 0) sums_.first_step = ticket;
    sums_.last_step = ticket;
}

void LoadCounter::add(const uint8_t *rows, uint64_t count, const uint8_t *known,
                      Phase phase) noexcept {
    uint64_t *const counts =
        &counts_[static_cast<size_t>(phase) * shape_->layers * shape_->experts];
    for (uint64_t r = 0; r < count; r++, rows += shape_->stride) {
        const uint8_t *cell = rows;
        if (known == nullptr || shape_->row_empty(known))
            sums_.rows[static_cast<size_t>(phase)] += !shape_->row_empty(rows);
        uint64_t *to = counts;
        for (uint32_t l = 0; l < shape_->layers;
             l++, cell += shape_->cell_bytes, to += shape_->experts) {
            if (!shape_->valid(rows, l) || (known != nullptr && shape_->valid(known, l))) continue;
            const uint32_t used = shape_->count(rows, l);
            for (uint32_t c = 0; c < used; c++) {
                uint16_t id = cell[c];
                if (shape_->id_bytes == 2) std::memcpy(&id, cell + size_t{2} * c, sizeof id);
                to[id]++;
            }
        }
    }
}

LoadCounter::Sums LoadCounter::read(uint64_t *counts) const {
    if (counts != nullptr) std::copy(counts_.begin(), counts_.end(), counts);
    return sums_;
}

}  // namespace routecap
