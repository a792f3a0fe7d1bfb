#include "capture/load_counter.h"

#include <algorithm>
#include <cstring>

namespace routecap {

static size_t counts_of(const Shape &shape) {
    return size_t{ROUTECAP_LOAD_PHASES} * shape.layers * shape.experts;
}

LoadCounter::LoadCounter(ShapePtr shape, bool by_tag)
    : shape_(std::move(shape)),
      by_tag_(by_tag),
      size_(counts_of(*shape_)),
      counts_(std::make_unique<uint64_t[]>(series().size() * size_)) {}

size_t LoadCounter::bytes(const Shape &shape, bool by_tag) {
    return sizeof(LoadCounter) + (by_tag ? kMostSeries : 1) * counts_of(shape) * sizeof(uint64_t);
}

void LoadCounter::add_step(uint64_t ticket, uint64_t tag) noexcept {
    Reading &sums = series_[series_of(tag)].sums;
    if (sums.steps++ == 0) sums.first_step = ticket;
    sums.last_step = ticket;
}

void LoadCounter::add(const RowSource &rows, uint64_t count, const uint8_t *known, uint64_t tag,
                      Phase phase) noexcept {
    const uint32_t s = series_of(tag);
    uint64_t *const counts =
        &counts_[s * size_ + static_cast<size_t>(phase) * shape_->layers * shape_->experts];
    for (uint64_t r = 0; r < count; r++) {
        const uint8_t *valid = rows.validity_of(r), *cell = rows.ids_of(r);
        if (known == nullptr || shape_->row_empty(known))
            series_[s].sums.rows[static_cast<size_t>(phase)] += !shape_->row_empty(valid);
        uint64_t *to = counts;
        for (uint32_t l = 0; l < shape_->layers;
             l++, cell += shape_->cell_bytes, to += shape_->experts) {
            if (!Shape::valid(valid, l) || (known != nullptr && Shape::valid(known, l))) continue;
            for (uint32_t c = 0; c < shape_->k; c++) {
                uint16_t id = cell[c];
                if (shape_->id_bytes == 2) std::memcpy(&id, cell + size_t{2} * c, sizeof id);
                to[id]++;
            }
        }
    }
}

// Where steps of a tag are counted. A new tag takes the place of the oldest, whose counts join
// those of others.
uint32_t LoadCounter::series_of(uint64_t tag) noexcept {
    if (!by_tag_) return 0;
    uint32_t oldest = 1;
    for (uint32_t s = 1; s < kMostSeries; s++) {
        if (series_[s].is(tag)) return s;
        if (series_[s].serial < series_[oldest].serial) oldest = s;
    }
    add_up(oldest, series_[0].sums, counts_.get());
    std::fill_n(&counts_[oldest * size_], size_, 0);
    series_[oldest] = {tag, ++serials_, {}};
    return oldest;
}

void LoadCounter::add_up(uint32_t s, Reading &sums, uint64_t *to) const noexcept {
    const Reading &add = series_[s].sums;
    if (add.steps > 0) {
        sums.first_step =
            sums.steps == 0 ? add.first_step : std::min(sums.first_step, add.first_step);
        sums.last_step = std::max(sums.last_step, add.last_step);
        sums.steps += add.steps;
    }
    for (size_t phase = 0; phase < sums.rows.size(); phase++) sums.rows[phase] += add.rows[phase];
    for (size_t i = 0; to != nullptr && i < size_; i++) to[i] += counts_[s * size_ + i];
}

bool LoadCounter::read(const uint64_t *tag, Reading &reading, uint64_t *to) const {
    const auto all = series();
    if (to != nullptr) std::fill_n(to, size_, 0);
    for (uint32_t s = 0; s < all.size(); s++) {
        if (tag != nullptr && !all[s].is(*tag)) continue;
        add_up(s, reading, to);
        if (tag != nullptr) return true;
    }
    return tag == nullptr;
}

size_t LoadCounter::tags(std::span<uint64_t> tags) const {
    auto sorted = series_;
    std::sort(sorted.begin(), sorted.end(),
              [](const Series &a, const Series &b) { return a.serial < b.serial; });
    size_t known = 0;
    for (const Series &each : sorted) {
        if (each.serial == 0) continue;
        if (known < tags.size()) tags[known] = each.tag;
        known++;
    }
    return known;
}

}  // namespace routecap
