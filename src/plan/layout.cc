#include "plan/layout.h"

#include <algorithm>

#include "base/shape.h"
#include "base/status.h"

namespace routecap {
namespace {

constexpr uint64_t kMaxRows = ROUTECAP_MAX_PLAN_ROWS;

int32_t too_many_rows() {
    return report(ROUTECAP_ERR_ARGUMENT, "with its padding the micro-batch has more than %llu rows",
                  ull(kMaxRows));
}

// Rounded up; of numbers up to kMaxRows, so that nothing overflows.
uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

struct Sample {
    uint64_t length, needed;
    uint64_t start;    // column of the first token
    uint64_t padded;   // columns
    uint64_t offset;   // of column 0 in the whole micro-batch
    uint64_t ordinal;  // how many rows before it are filled

    uint64_t filled() const { return padded - needed; }
};

// Columns [from, to) of a sequence.
struct Columns {
    uint64_t from, to;
};

class Maker {
public:
    Maker(const routecap_plan_config &config, PlanLayout &layout) : c_(config), layout_(layout) {}

    int32_t make() {
        if (int32_t s = check(); s < 0) return s;
        if (int32_t s = read_samples(); s < 0) return s;
        if (int32_t s = packed() ? pad_packed() : pad_to_width(); s < 0) return s;
        uint64_t offset = 0, ordinal = 0;
        for (Sample &sample : samples_) {
            sample.offset = offset, sample.ordinal = ordinal;
            offset += sample.padded, ordinal += sample.filled();
        }
        layout_.total = offset;
        return packed() ? divide_packed() : divide_padded();
    }

private:
    bool packed() const { return c_.layout == ROUTECAP_PLAN_LAYOUT_PACKED; }
    bool zigzag() const { return c_.context == ROUTECAP_PLAN_CONTEXT_ZIGZAG; }
    bool sequence_parallel() const { return (c_.flags & ROUTECAP_PLAN_SEQUENCE_PARALLEL) != 0; }
    uint64_t divisor() const { return context_ * (sequence_parallel() ? tensor_ : 1); }
    uint64_t chunks() const { return context_ * (zigzag() ? 2 : 1); }

    int32_t check() {
        const auto known = [](const char *name, int32_t value, int32_t last) {
            return value >= 0 && value <= last
                       ? ROUTECAP_OK
                       : report(ROUTECAP_ERR_ARGUMENT, "config.%s is %d", name, value);
        };
        if (int32_t s = known("layout", c_.layout, ROUTECAP_PLAN_LAYOUT_PADDED_LEFT); s < 0)
            return s;
        if (int32_t s = known("context", c_.context, ROUTECAP_PLAN_CONTEXT_ALLGATHER); s < 0)
            return s;
        if ((c_.flags &
             ~uint32_t{ROUTECAP_PLAN_SEQUENCE_PARALLEL | ROUTECAP_PLAN_SEQUENCE_FIRST}) != 0)
            return report(ROUTECAP_ERR_ARGUMENT, "config.flags is %u", c_.flags);
        const auto rank = [](const char *name, uint32_t given, uint64_t size, bool divides,
                             uint64_t &own) {
            own = given == ROUTECAP_PLAN_RANK_UNSET && !divides ? 0 : given;
            if (own == ROUTECAP_PLAN_RANK_UNSET)
                return report(ROUTECAP_ERR_ARGUMENT,
                              "config.%s_size is %llu and config.%s_rank is not set: set which "
                              "of these ranks this is, 0 to %llu",
                              name, ull(size), name, ull(size - 1));
            if (size <= ROUTECAP_MAX_RANKS && own < size) return ROUTECAP_OK;
            return report(ROUTECAP_ERR_ARGUMENT, "config.%s_rank is %llu of %llu", name, ull(own),
                          ull(size));
        };
        context_ = std::max(c_.context_size, 1u), tensor_ = std::max(c_.tensor_size, 1u);
        for (const int32_t s :
             {rank("context", c_.context_rank, context_, context_ > 1, context_rank_),
              rank("tensor", c_.tensor_rank, tensor_, tensor_ > 1 && sequence_parallel(),
                   tensor_rank_)})
            if (s < 0) return s;
        if (c_.context == ROUTECAP_PLAN_CONTEXT_NONE && context_ != 1)
            return report(ROUTECAP_ERR_ARGUMENT,
                          "config.context_size is %llu, and config.context does not say how it "
                          "divides",
                          ull(context_));
        const auto unused = [](const char *name, bool set, const char *where) {
            return set ? report(ROUTECAP_ERR_ARGUMENT, "config.%s is for %s layouts", name, where)
                       : ROUTECAP_OK;
        };
        for (const int32_t s :
             {unused("padded_lengths", !packed() && c_.padded_lengths != nullptr, "packed"),
              unused("align_total", !packed() && c_.align_total != 0, "packed"),
              unused("least_total", !packed() && c_.least_total != 0, "packed"),
              unused("align_rank", !packed() && c_.align_rank != 0, "packed"),
              unused("starts", packed() && c_.starts != nullptr, "padded"),
              unused("width", packed() && c_.width != 0, "padded"),
              unused("flags: SEQUENCE_FIRST",
                     packed() && (c_.flags & ROUTECAP_PLAN_SEQUENCE_FIRST) != 0, "padded")})
            if (s < 0) return s;
        for (const uint64_t n : {c_.align, c_.align_total, c_.align_rank, c_.least_total, c_.width})
            if (n > kMaxRows) return too_many_rows();
        align_ = c_.align != 0 ? c_.align
                 : c_.context == ROUTECAP_PLAN_CONTEXT_ALLGATHER && packed()
                     ? 1
                     : divisor() * (zigzag() ? 2 : 1);
        return align_ > kMaxRows ? too_many_rows() : ROUTECAP_OK;
    }

    int32_t read_samples() {
        if (c_.samples > ROUTECAP_MAX_PLAN_SAMPLES)
            return report(ROUTECAP_ERR_ARGUMENT, "config.samples is %llu", ull(c_.samples));
        if (c_.samples == 0) return ROUTECAP_OK;
        if ((c_.lengths == nullptr) == (c_.cu_lengths == nullptr))
            return report(ROUTECAP_ERR_ARGUMENT,
                          "one of config.lengths and config.cu_lengths is required, and not both");
        if (c_.cu_lengths != nullptr && c_.cu_lengths[0] != 0)
            return report(ROUTECAP_ERR_ARGUMENT, "config.cu_lengths begins with %llu, not with 0",
                          ull(c_.cu_lengths[0]));
        samples_.resize(c_.samples);
        uint64_t tokens = 0;
        for (uint64_t i = 0; i < c_.samples; i++) {
            Sample &sample = samples_[i];
            if (c_.cu_lengths != nullptr && c_.cu_lengths[i + 1] < c_.cu_lengths[i])
                return report(ROUTECAP_ERR_ARGUMENT, "config.cu_lengths falls at %llu", ull(i));
            sample.length =
                c_.cu_lengths != nullptr ? c_.cu_lengths[i + 1] - c_.cu_lengths[i] : c_.lengths[i];
            if (sample.length > kMaxRows - tokens) return too_many_rows();
            tokens += sample.length;
            sample.needed = sample.length - (sample.length > 0);
            if (c_.needed != nullptr) {
                sample.needed = c_.needed[i] == ROUTECAP_ROWS_ALL ? sample.length : c_.needed[i];
                if (sample.needed > sample.length)
                    return report(ROUTECAP_ERR_ARGUMENT,
                                  "config.needed[%llu] is %llu, of %llu tokens", ull(i),
                                  ull(sample.needed), ull(sample.length));
            }
            layout_.lengths.push_back(sample.length);
        }
        return ROUTECAP_OK;
    }

    int32_t pad_packed() {
        uint64_t total = 0;
        for (uint64_t i = 0; i < samples_.size(); i++) {
            Sample &sample = samples_[i];
            sample.padded = c_.padded_lengths != nullptr ? c_.padded_lengths[i]
                                                         : round_up(sample.length, align_);
            if (sample.padded < sample.length)
                return report(ROUTECAP_ERR_ARGUMENT,
                              "config.padded_lengths[%llu] is %llu, of %llu tokens", ull(i),
                              ull(sample.padded), ull(sample.length));
            if (sample.padded > kMaxRows - total) return too_many_rows();
            total += sample.padded;
        }
        uint64_t align = c_.align_total;
        if (align == 0) align = c_.context == ROUTECAP_PLAN_CONTEXT_ALLGATHER ? divisor() : 1;
        const uint64_t whole = round_up(std::max(total, c_.least_total), align);
        if (whole > kMaxRows) return too_many_rows();
        if (whole > total && samples_.empty())
            return report(ROUTECAP_ERR_ARGUMENT,
                          "there is no sequence that could be padded to %llu rows", ull(whole));
        if (!samples_.empty()) samples_.back().padded += whole - total;
        return ROUTECAP_OK;
    }

    int32_t pad_to_width() {
        uint64_t longest = 0;
        for (const Sample &sample : samples_) longest = std::max(longest, sample.length);
        width_ = c_.width != 0 ? c_.width : round_up(longest, align_);
        if (samples_.size() > 0 && width_ > kMaxRows / samples_.size()) return too_many_rows();
        for (uint64_t i = 0; i < samples_.size(); i++) {
            Sample &sample = samples_[i];
            sample.padded = width_;
            if (sample.length > width_)
                return report(ROUTECAP_ERR_ARGUMENT, "sample %llu has %llu tokens, of %llu columns",
                              ull(i), ull(sample.length), ull(width_));
            sample.start = c_.starts != nullptr                            ? c_.starts[i]
                           : c_.layout == ROUTECAP_PLAN_LAYOUT_PADDED_LEFT ? width_ - sample.length
                                                                           : 0;
            if (sample.start > width_ - sample.length)
                return report(ROUTECAP_ERR_ARGUMENT,
                              "config.starts[%llu] is %llu, with %llu tokens of %llu columns",
                              ull(i), ull(sample.start), ull(sample.length), ull(width_));
        }
        return ROUTECAP_OK;
    }

    int32_t check_divides(const char *what, uint64_t i, uint64_t rows, uint64_t by) const {
        if (rows % by == 0) return ROUTECAP_OK;
        return report(ROUTECAP_ERR_ARGUMENT,
                      "%s %llu has %llu rows, which is not a multiple of %llu", what, ull(i),
                      ull(rows), ull(by));
    }

    // Adds the context-parallel rank's share of a sequence with this many columns.
    std::vector<Columns> chunks_of(uint64_t columns) const {
        const uint64_t chunk = columns / chunks(), r = context_rank_;
        std::vector<Columns> own{{r * chunk, (r + 1) * chunk}};
        if (zigzag()) own.push_back({columns - (r + 1) * chunk, columns - r * chunk});
        return own;
    }

    int32_t divide_packed() {
        const bool by_sequence = zigzag() || context_ == 1;
        if (by_sequence) {
            for (uint64_t i = 0; i < samples_.size(); i++)
                if (int32_t s = check_divides("sequence", i, samples_[i].padded, chunks()); s < 0)
                    return s;
        } else if (int32_t s =
                       check_divides("micro-batch of", samples_.size(), layout_.total, context_);
                   s < 0) {
            return s;
        }
        const uint64_t own = layout_.total / context_;
        const uint64_t rows = round_up(own, c_.align_rank != 0 ? c_.align_rank : 1);
        if (rows > kMaxRows / context_) return too_many_rows();
        if (int32_t s = set_window(rows); s < 0) return s;
        layout_.rows = window_.to - window_.from;
        for (uint64_t i = 0; i < samples_.size(); i++) {
            const Sample &sample = samples_[i];
            if (by_sequence) {
                for (const Columns &columns : chunks_of(sample.padded)) add(i, columns);
                continue;
            }
            const uint64_t first = own * context_rank_;
            const uint64_t from = std::max(first, sample.offset),
                           to = std::min(first + own, sample.offset + sample.padded);
            if (from < to) add(i, {from - sample.offset, to - sample.offset});
        }
        // The padding of all ranks, one rank after another, as a sequence of its own.
        const uint64_t tail = rows - own;
        const uint64_t filled =
            samples_.empty() ? 0 : samples_.back().ordinal + samples_.back().filled();
        samples_.push_back({0, 0, 0, tail * context_, layout_.total, filled});
        add(samples_.size() - 1, {tail * context_rank_, tail * (context_rank_ + 1)});
        layout_.total += tail * context_;
        return ROUTECAP_OK;
    }

    int32_t divide_padded() {
        if (width_ % chunks() != 0)
            return report(ROUTECAP_ERR_ARGUMENT, "%llu columns are not a multiple of %llu",
                          ull(width_), ull(chunks()));
        if (int32_t s = set_window(width_ / context_); s < 0) return s;
        layout_.width = window_.to - window_.from;
        layout_.rows = layout_.width * samples_.size();
        const bool sequence_first = (c_.flags & ROUTECAP_PLAN_SEQUENCE_FIRST) != 0;
        step_ = sequence_first ? samples_.size() : 1;
        for (uint64_t i = 0; i < samples_.size(); i++) {
            local_ = 0;
            base_ = sequence_first ? i : i * layout_.width;
            for (const Columns &columns : chunks_of(width_)) add(i, columns);
        }
        return ROUTECAP_OK;
    }

    // Returns the tensor-parallel rank's share of this many rows.
    int32_t set_window(uint64_t rows) {
        window_ = {0, rows};
        if (!sequence_parallel()) return ROUTECAP_OK;
        if (rows % tensor_ != 0)
            return report(ROUTECAP_ERR_ARGUMENT,
                          "a context-parallel rank has %llu rows%s, which is not a multiple of "
                          "tensor_size %llu",
                          ull(rows), packed() ? "" : " of each sequence", ull(tensor_));
        const uint64_t each = rows / tensor_;
        window_ = {each * tensor_rank_, each * (tensor_rank_ + 1)};
        return ROUTECAP_OK;
    }

    // Adds the next columns of the context-parallel rank. Of these, this rank has those in the
    // window.
    void add(uint64_t i, Columns columns) {
        const uint64_t first = local_;
        local_ += columns.to - columns.from;
        const uint64_t from = std::clamp(window_.from, first, local_),
                       to = std::clamp(window_.to, first, local_);
        if (from >= to) return;
        const Sample &s = samples_[i];
        columns = {columns.from + (from - first), columns.from + (to - first)};
        const uint64_t row = base_ + (from - window_.from) * step_;
        const uint64_t first_not_needed = s.start + s.needed, end = s.start + s.length;
        const auto part = [&](uint64_t low, uint64_t high, int32_t row_class) {
            low = std::max(low, columns.from), high = std::min(high, columns.to);
            if (low >= high) return;
            const bool valid = row_class == ROUTECAP_PLAN_CLASS_VALID;
            const uint64_t before = low < s.start ? 0 : s.needed;
            layout_.runs.push_back(
                {.sample = i,
                 .first = row_class == ROUTECAP_PLAN_CLASS_PADDING ? low : low - s.start,
                 .rows = high - low,
                 .row = row + (low - columns.from) * step_,
                 .step = step_,
                 .ordinal = valid ? s.offset + low : s.ordinal + low - before,
                 .row_class = row_class});
            count(row_class) += high - low;
            if (valid) add_range({i, low - s.start, high - low});
        };
        part(0, s.start, ROUTECAP_PLAN_CLASS_PADDING);
        part(s.start, first_not_needed, ROUTECAP_PLAN_CLASS_VALID);
        part(first_not_needed, end, ROUTECAP_PLAN_CLASS_NOT_NEEDED);
        part(end, s.padded, ROUTECAP_PLAN_CLASS_PADDING);
    }

    uint64_t &count(int32_t row_class) {
        return row_class == ROUTECAP_PLAN_CLASS_VALID     ? layout_.needed
               : row_class == ROUTECAP_PLAN_CLASS_PADDING ? layout_.padding
                                                          : layout_.not_needed;
    }

    void add_range(const routecap_plan_range &range) {
        auto &all = layout_.ranges;
        if (!all.empty() && all.back().sample == range.sample &&
            all.back().first + all.back().rows == range.first)
            all.back().rows += range.rows;
        else
            all.push_back(range);
    }

    const routecap_plan_config &c_;
    PlanLayout &layout_;
    uint64_t context_ = 1, tensor_ = 1, context_rank_ = 0, tensor_rank_ = 0;
    uint64_t align_ = 1, width_ = 0;
    std::vector<Sample> samples_;
    Columns window_{};                          // of the rows of the context-parallel rank, or of
                                                // their columns
    uint64_t local_ = 0, base_ = 0, step_ = 1;  // rows so far, and where they go
};

}  // namespace

int32_t make_layout(const routecap_plan_config &config, PlanLayout &layout) {
    return Maker(config, layout).make();
}

}  // namespace routecap
