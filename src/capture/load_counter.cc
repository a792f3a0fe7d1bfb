#include "capture/load_counter.h"

#include <algorithm>
#include <cstring>

namespace routecap {

// Rows apart that wait to be counted, at most; and pages.
constexpr size_t kMostRuns = 4096, kMostPages = 1024;

static size_t most_runs(uint32_t sink_rows) { return std::min<size_t>(sink_rows, kMostRuns); }
static size_t counts_of(const Shape &shape) {
    return size_t{ROUTECAP_LOAD_PHASES} * shape.layers * shape.experts;
}

LoadCounter::LoadCounter(ShapePtr shape, uint32_t sink_rows, bool by_tag)
    : shape_(std::move(shape)),
      by_tag_(by_tag),
      size_(counts_of(*shape_)),
      counting_(make_block()),
      handed_over_(make_block()),
      total_(make_block()) {
    runs_.reserve(most_runs(sink_rows));
    pages_.reserve(kMostPages);
}

size_t LoadCounter::bytes(const Shape &shape, uint32_t sink_rows, bool by_tag) {
    return sizeof(LoadCounter) +
           size_t{3} * (by_tag ? kMostSeries : 1) * counts_of(shape) * sizeof(uint64_t) +
           most_runs(sink_rows) * sizeof(Run) + kMostPages * sizeof(PageRef);
}

LoadCounter::Block LoadCounter::make_block() const {
    Block block{};
    block.counts = std::make_unique<uint64_t[]>((by_tag_ ? kMostSeries : 1) * size_);
    return block;
}

// ---- Noting -----------------------------------------------------------------------------------

void LoadCounter::add(const RowSource &rows, uint64_t count, uint64_t tag, Phase phase) noexcept {
    if (!runs_.empty()) {
        Run &last = runs_.back();
        const RowSource next = last.from.from(last.rows);
        if (rows.ids == next.ids && rows.validity == next.validity && tag == last.tag &&
            phase == last.phase && rows.ids_stride == last.from.ids_stride) {
            last.rows += count;
            return;
        }
    }
    const Run run{rows, count, tag, phase};
    if (runs_.size() < runs_.capacity())
        runs_.push_back(run);
    else
        this->count(run);
}

void LoadCounter::add_missing(const RowSource &row, const uint8_t *known, uint64_t tag,
                              Phase phase) noexcept {
    if (shape_->row_empty(known)) return add(row, 1, tag, phase);
    const uint32_t s = series_of(tag);
    counting_.series[s].used = true;
    count_cells(row.ids, counts(counting_, s, phase), [&](uint32_t layer) {
        return Shape::valid(row.validity, layer) && !Shape::valid(known, layer);
    });
}

void LoadCounter::hold(PageRef page) noexcept {
    if (pages_.size() == pages_.capacity()) count();
    pages_.push_back(std::move(page));
}

// ---- Counting -----------------------------------------------------------------------------------

void LoadCounter::add_step(uint64_t ticket, uint64_t tag) noexcept {
    Reading &sums = counting_.series[series_of(tag)].sums;
    if (sums.steps++ == 0) sums.first_step = ticket;
    sums.last_step = ticket;
}

void LoadCounter::count() noexcept {
    for (const Run &run : runs_) count(run);
    runs_.clear();
    pages_.clear();
}

void LoadCounter::count(const Run &run) noexcept {
    const uint32_t s = series_of(run.tag);
    uint64_t *to = counts(counting_, s, run.phase);
    uint64_t rows = 0;
    RowSource row = run.from;
    for (uint64_t r = 0; r < run.rows; r++, row = row.from(1)) {
        if (shape_->row_full(row.validity))
            count_cells(row.ids, to, [](uint32_t) { return true; });
        else if (!shape_->row_empty(row.validity))
            count_cells(row.ids, to, [&](uint32_t l) { return Shape::valid(row.validity, l); });
        else
            continue;
        rows++;
    }
    Series &series = counting_.series[s];
    series.sums.rows[static_cast<size_t>(run.phase)] += rows;
    series.used |= rows > 0;
}

// ids [layers, k] of one row -> counts [layers, experts], of the layers that are valid
template <class Valid>
void LoadCounter::count_cells(const uint8_t *ids, uint64_t *to, Valid valid) const noexcept {
    const auto each = [&]<class Id>(Id id) {
        const uint8_t *cell = ids;
        for (uint32_t l = 0; l < shape_->layers; l++, to += shape_->experts) {
            const uint8_t *end = cell + shape_->cell_bytes;
            if (!valid(l)) cell = end;
            for (; cell < end; cell += sizeof id) {
                std::memcpy(&id, cell, sizeof id);
                to[id]++;
            }
        }
    };
    shape_->id_bytes == 1 ? each(uint8_t{}) : each(uint16_t{});
}

// Where steps of a tag are counted. A new tag takes the place of the oldest, whose counts join
// those of others.
uint32_t LoadCounter::series_of(uint64_t tag) noexcept {
    if (!by_tag_) return 0;
    if (tags_[last_series_] == tag) return last_series_;
    uint32_t oldest = 1;
    for (uint32_t s = 1; s < kMostSeries; s++) {
        if (tags_[s] == tag) return last_series_ = s;
        if (tags_[s].serial < tags_[oldest].serial) oldest = s;
    }
    add_up(counting_, oldest, counting_, 0);
    clear(counting_, oldest);
    tags_[oldest] = {tag, ++serials_};
    counting_.series[oldest].serial = serials_;
    return last_series_ = oldest;
}

void LoadCounter::add_up(const Block &from, uint32_t s, Reading &sums, uint64_t *to) const {
    const Series &series = from.series[s];
    if (series.sums.steps > 0) {
        sums.first_step = sums.steps == 0 ? series.sums.first_step
                                          : std::min(sums.first_step, series.sums.first_step);
        sums.last_step = std::max(sums.last_step, series.sums.last_step);
        sums.steps += series.sums.steps;
    }
    for (size_t phase = 0; phase < sums.rows.size(); phase++)
        sums.rows[phase] += series.sums.rows[phase];
    if (!series.used || to == nullptr) return;
    const uint64_t *add = counts(from, s);
    for (size_t i = 0; i < size_; i++) to[i] += add[i];
}

void LoadCounter::add_up(const Block &from, uint32_t from_series, Block &to,
                         uint32_t to_series) noexcept {
    add_up(from, from_series, to.series[to_series].sums, counts(to, to_series));
    to.series[to_series].used |= from.series[from_series].used;
}

// Its serial stays.
void LoadCounter::clear(Block &block, uint32_t series) noexcept {
    Series &s = block.series[series];
    if (s.used) std::fill_n(counts(block, series), size_, 0);
    s = {.serial = s.serial, .sums = {}};
}

// ---- Reading ----------------------------------------------------------------------------------

void LoadCounter::hand_over() noexcept {
    std::swap(counting_, handed_over_);
    known_tags_ = tags_;
    for (uint32_t s = 1; s < kMostSeries; s++) counting_.series[s].serial = tags_[s].serial;
}

void LoadCounter::merge() noexcept {
    for (uint32_t s = 0; s < (by_tag_ ? kMostSeries : 1); s++) {
        if (total_.series[s].serial != handed_over_.series[s].serial) {
            add_up(total_, s, total_, 0);
            clear(total_, s);
            total_.series[s].serial = handed_over_.series[s].serial;
        }
        add_up(handed_over_, s, total_, s);
        clear(handed_over_, s);
    }
}

bool LoadCounter::read(const uint64_t *tag, Reading &reading, uint64_t *to) const {
    uint32_t first = 0, end = by_tag_ ? kMostSeries : 1;
    if (tag != nullptr) {
        while (first < end && !(known_tags_[first] == *tag)) first++;
        if (first == end) return false;
        end = first + 1;
    }
    if (to != nullptr) std::fill_n(to, size_, 0);
    for (uint32_t s = first; s < end; s++) add_up(total_, s, reading, to);
    return true;
}

size_t LoadCounter::tags(std::span<uint64_t> tags) const {
    Tags sorted = known_tags_;
    std::sort(sorted.begin(), sorted.end(),
              [](const Tag &a, const Tag &b) { return a.serial < b.serial; });
    size_t known = 0;
    for (const Tag &tag : sorted) {
        if (tag.serial == 0) continue;
        if (known < tags.size()) tags[known] = tag.tag;
        known++;
    }
    return known;
}

}  // namespace routecap
