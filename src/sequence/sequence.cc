#include "sequence/sequence.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/reserve.h"
#include "base/status.h"
#include "base/structs.h"
#include "sequence/join.h"

namespace routecap {
namespace {

using Span = routecap_sequence_span;

uint64_t end_of(const Span &span) { return span.first + span.rows; }

// Adds a span behind all others, to the last if it continues it.
void add_span(std::vector<Span> &spans, const Span &span) {
    if (!spans.empty()) {
        Span &last = spans.back();
        if (end_of(last) == span.first && last.call == span.call && last.tag == span.tag &&
            last.origin == span.origin) {
            last.rows += span.rows;
            return;
        }
    }
    spans.push_back(span);
}

// Returns the spans after a call: cut where the sequence was cut, and with the call's own spans
// where rows were taken from it.
std::vector<Span> with_call(std::span<const Span> spans, uint64_t cut,
                            std::span<const RowRange> of_call, Span call) {
    std::vector<Span> parts;
    const auto add = [&](Span span, uint64_t first, uint64_t end) {
        span.first = first, span.rows = end - first;
        if (first < end) parts.push_back(span);
    };
    size_t i = 0;
    for (const Span &span : spans) {
        const uint64_t end = std::min(end_of(span), cut);
        uint64_t position = span.first;
        while (i < of_call.size() && of_call[i].end <= position) i++;
        for (size_t j = i; position < end; j++) {
            const bool last = j == of_call.size();
            add(span, position, last ? end : std::min(end, of_call[j].first));
            position = last ? end : std::max(position, of_call[j].end);
        }
    }
    for (const RowRange &rows : of_call) add(call, rows.first, rows.end);
    std::sort(parts.begin(), parts.end(),
              [](const Span &a, const Span &b) { return a.first < b.first; });
    return parts;
}

// The first span that ends behind a position.
size_t span_at(const std::vector<Span> &spans, uint64_t position) {
    const auto before = [position](const Span &span) { return end_of(span) <= position; };
    return static_cast<size_t>(std::partition_point(spans.begin(), spans.end(), before) -
                               spans.begin());
}

void cut_segments(std::vector<Segment> &segments, uint64_t end) noexcept {
    while (!segments.empty() && segments.back().first >= end) segments.pop_back();
    if (!segments.empty())
        segments.back().rows = std::min(segments.back().end(), end) - segments.back().first;
}

StoragePtr storage_of(const ShapePtr &shape, uint64_t budget_bytes) {
    return std::make_shared<const Storage>(
        shape, PagePool::plain(shape, budget_bytes == 0 ? UINT64_MAX : budget_bytes),
        std::make_shared<Completion>());
}

constexpr uint64_t kTokenBytes = sizeof(int32_t);

}  // namespace

// ---- Making ---------------------------------------------------------------------------------

int32_t Sequence::create(const routecap_sequence_config *config, Sequence **sequence) {
    routecap_sequence_config c;
    if (int32_t s = read_struct(c, config, "config"); s < 0) return s;
    ShapePtr shape;
    if (int32_t s =
            make_shape(shape_source(c, c.id_space, nullptr, c.weights_dtype), "config", shape);
        s < 0)
        return s;
    *sequence = new Sequence(storage_of(shape, c.budget_bytes));
    return ROUTECAP_OK;
}

Sequence::~Sequence() { storage_->pool->unreserve(tokens_.size() * kTokenBytes); }

// Takes memory for the tokens from the budget; forgets them if it refuses.
bool Sequence::charge_tokens() {
    if (storage_->pool->reserve(tokens_.size() * kTokenBytes)) return true;
    tokens_.clear();
    return false;
}

int32_t Sequence::restore(Parts parts, const Routing &rows, uint64_t budget_bytes,
                          Sequence **sequence) {
    std::unique_ptr<Sequence> made(
        new Sequence(storage_of(std::make_shared<const Shape>(rows.shape()), budget_bytes)));
    made->tokens_ = std::move(parts.ids);
    Joined joined;
    const JoinedRows all{.sequence = {},
                         .kept = 0,
                         .call = rows.segments(),
                         .taken = {rows.first(), rows.end()},
                         .preferred = {}};
    if (!made->charge_tokens() || !join(*made->storage_, all, made->own_, joined))
        return report(ROUTECAP_ERR_NO_MEMORY, "the sequence exceeds the budget");

    // Spans name the rows that are there, and no others.
    std::vector<RowRange> named;
    for (const Span &span : parts.spans) {
        if (!named.empty() && named.back().end == span.first)
            named.back().end = end_of(span);
        else
            named.push_back({span.first, end_of(span)});
        add_span(made->spans_, span);
    }
    if (named != joined.of_call)
        return report(ROUTECAP_ERR_FORMAT, "the spans are not those of the rows that are there");
    made->length_ = parts.tokens;
    made->digests_ = std::move(parts.digests);
    made->segments_ = std::move(joined.segments);
    made->total_.call = parts.calls;
    *sequence = made.release();
    return ROUTECAP_OK;
}

int32_t Sequence::fork(uint64_t tokens, Sequence **child) const {
    if (tokens == ROUTECAP_ROWS_ALL) tokens = length_;
    if (tokens > length_)
        return report(ROUTECAP_ERR_OUT_OF_RANGE, "%llu tokens of a sequence of %llu", ull(tokens),
                      ull(length_));
    if (int32_t s = check_cut(tokens); s < 0) return s;
    std::unique_ptr<Sequence> made(new Sequence(storage_));
    made->length_ = length_;
    made->digests_ = digests_;
    made->segments_ = segments_;
    made->spans_ = spans_;
    made->total_ = total_;
    made->cut(tokens);
    if (knows_tokens())
        made->tokens_.assign(tokens_.begin(), tokens_.begin() + static_cast<ptrdiff_t>(tokens));
    if (!made->charge_tokens())
        return report(ROUTECAP_ERR_NO_MEMORY, "the fork's tokens exceed the budget");
    *child = made.release();
    return ROUTECAP_OK;
}

// ---- Appending ------------------------------------------------------------------------------

// A checked call of append.
struct Sequence::Call {
    std::span<const int32_t> tokens;
    uint64_t start, end;  // of the tokens
    uint64_t common;      // up to here they are the sequence's
    bool diverges;        // the sequence has another token there
    uint64_t number;
    routecap_append_options options;
    StoragePtr storage;  // of the sequence with these rows
    std::span<const Segment> segments;
    uint64_t first_row, rows_end;

    // One past the last row that may be taken. A row at the last token's place is ignored, because
    // that token was never an input.
    uint64_t last_row() const { return end > 0 ? end - 1 : 0; }
};

int32_t Sequence::read_call(const int32_t *tokens, uint64_t token_start, uint64_t count,
                            const Routing *routing, const routecap_append_options *options,
                            Call &call) const {
    call.options = {};
    if (options != nullptr)
        if (int32_t s = read_struct(call.options, options, "options"); s < 0) return s;
    const routecap_append_options &o = call.options;
    if (o.flags != 0 || o.policy < ROUTECAP_APPEND_KEEP || o.policy > ROUTECAP_APPEND_EQUAL)
        return report(ROUTECAP_ERR_ARGUMENT, "options.policy is %d, options.flags %u", o.policy,
                      o.flags);
    if (tokens == nullptr && count > 0) return report(ROUTECAP_ERR_ARGUMENT, "tokens is NULL");
    if (token_start > length_)
        return report(ROUTECAP_ERR_OUT_OF_RANGE,
                      "tokens begin at %llu, beyond the sequence's %llu tokens", ull(token_start),
                      ull(length_));
    if (count > ROUTECAP_MAX_POSITION - token_start)
        return report(ROUTECAP_ERR_OUT_OF_RANGE, "%llu tokens from %llu on", ull(count),
                      ull(token_start));
    call.tokens = {tokens, count};
    call.start = token_start, call.end = token_start + count;
    if (o.prompt_tokens > call.end)
        return report(ROUTECAP_ERR_OUT_OF_RANGE, "options.prompt_tokens is %llu of %llu tokens",
                      ull(o.prompt_tokens), ull(call.end));
    call.number = o.call != 0 ? o.call : total_.call + 1;
    if (call.number == 0) return report(ROUTECAP_ERR_OUT_OF_RANGE, "no higher call number is left");

    call.storage = storage_;
    call.first_row = call.rows_end = 0;
    if (routing != nullptr) {
        const ShapePtr &ours = storage_->shape;
        if (!ours->same_rows(routing->shape()))
            return report(ROUTECAP_ERR_SHAPE_MISMATCH,
                          "k, the id space, the layers or their experts differ");
        if (ShapePtr both = with_provenance_of_both(ours, routing->shape()); both != ours)
            call.storage = std::make_shared<const Storage>(std::move(both), storage_->pool,
                                                           storage_->completion);
        call.segments = routing->segments();
        call.first_row = routing->first(), call.rows_end = routing->end();
    }
    return compare_tokens(call);
}

int32_t Sequence::compare_tokens(Call &call) const {
    const uint64_t both = std::min(length_, call.end);
    if (knows_tokens()) {
        const std::span<const int32_t> ours(tokens_);
        const auto theirs = call.tokens.first(both - std::min(both, call.start));
        call.common =
            call.start +
            static_cast<uint64_t>(std::mismatch(theirs.begin(), theirs.end(),
                                                ours.begin() + static_cast<ptrdiff_t>(call.start))
                                      .first -
                                  theirs.begin());
    } else if (call.start == 0 && call.end >= length_) {
        call.common = common_tokens(digests_, call.tokens.first(length_));
    } else {
        return report(ROUTECAP_ERR_STATE,
                      "the sequence does not know its tokens: give all %llu of them, from 0 on",
                      ull(length_));
    }
    call.diverges = call.common < both;
    if (call.diverges && call.options.policy == ROUTECAP_APPEND_EQUAL)
        return report(ROUTECAP_ERR_CONFLICT, "token %llu is not the sequence's", ull(call.common));
    return ROUTECAP_OK;
}

// Which rows of the call meet those of the sequence, and which are preferred.
JoinedRows Sequence::rows_to_join(const Call &call, uint64_t kept, uint64_t length) const {
    JoinedRows rows{.sequence = segments_,
                    .kept = kept,
                    .call = call.segments,
                    .taken = {call.first_row, std::min(call.rows_end, call.last_row())},
                    .preferred = {}};
    if (rows.taken.first >= rows.taken.end) rows.taken = {kept, kept};
    const uint64_t prompt = call.options.prompt_tokens;
    if (call.options.policy == ROUTECAP_APPEND_NEWEST)
        rows.preferred = {0, length};
    else if (call.options.policy == ROUTECAP_APPEND_KEEP && prompt != 0 && prompt <= kept &&
             kept < call.end)
        rows.preferred = {kept - 1, kept};  // the call sampled the token after this row
    return rows;
}

// What an append of these rows did, as far as it is known before the sequence changes.
routecap_append_report Sequence::report_of(const Call &call, const Joined &joined,
                                           uint64_t kept) const {
    routecap_append_report r{};
    r.call = call.number;
    r.tokens_common = call.common;
    r.tokens_cut = length_ - kept;
    for (size_t i = span_at(spans_, kept); i < spans_.size(); i++)
        r.rows_cut += end_of(spans_[i]) - std::max(spans_[i].first, kept);
    r.rows_overlap = joined.overlap;
    r.rows_differed = joined.differed;
    r.first_differed = joined.first_differed;
    r.rows_taken = joined.took;
    r.rows_boundary = joined.boundary;
    r.rows_filled = joined.filled;
    r.rows_replaced = joined.replaced;
    const uint64_t beyond = std::max(call.first_row, call.last_row());
    r.rows_beyond = call.rows_end > beyond ? call.rows_end - beyond : 0;
    return r;
}

void Sequence::add_to_total(const routecap_append_report &r) {
    total_.call = std::max(total_.call, r.call);
    total_.tokens_common = r.tokens_common;
    total_.first_differed = std::min(total_.first_differed, r.first_differed);
    for (const auto sum :
         {&routecap_append_report::tokens_cut, &routecap_append_report::rows_cut,
          &routecap_append_report::rows_overlap, &routecap_append_report::rows_differed,
          &routecap_append_report::rows_taken, &routecap_append_report::rows_boundary,
          &routecap_append_report::rows_filled, &routecap_append_report::rows_replaced,
          &routecap_append_report::rows_beyond})
        total_.*sum += r.*sum;
}

int32_t Sequence::append(const int32_t *tokens, uint64_t token_start, uint64_t count,
                         const Routing *routing, const routecap_append_options *options,
                         routecap_append_report *report_) {
    if (int32_t s = check_wanted(report_, "report"); s < 0) return s;
    Call call;
    if (int32_t s = read_call(tokens, token_start, count, routing, options, call); s < 0) return s;

    const uint64_t kept = call.diverges ? call.common : length_;
    const uint64_t length = call.diverges ? call.end : std::max(length_, call.end);
    const JoinedRows rows = rows_to_join(call, kept, length);

    OwnRows own = own_;
    Joined joined;
    if (!join(*call.storage, rows, own, joined))
        return report(ROUTECAP_ERR_NO_MEMORY, "the call's rows exceed the budget");
    if (joined.differed > 0 && call.options.policy == ROUTECAP_APPEND_EQUAL)
        return report(ROUTECAP_ERR_CONFLICT,
                      "%llu rows have different ids than in the sequence, from row %llu on",
                      ull(joined.differed), ull(joined.first_differed));

    routecap_append_report r = report_of(call, joined, kept);

    // Everything that may fail happens before the sequence changes.
    const uint64_t changed =
        joined.of_call.empty() ? kept : std::min(kept, joined.of_call.front().first);
    const size_t first_changed = span_at(spans_, changed);
    const std::vector<Span> spans =
        with_call(std::span(spans_).subspan(first_changed), kept, joined.of_call,
                  {0, 0, call.number, call.options.tag, call.options.origin, 0});
    reserve_amortized(spans_, first_changed + spans.size());
    reserve_amortized(segments_, segments_.size() + joined.segments.size());
    reserve_amortized(tokens_, length);
    const uint64_t held = tokens_.size();
    if (length > held && !storage_->pool->reserve((length - held) * kTokenBytes))
        return report(ROUTECAP_ERR_NO_MEMORY, "the call's tokens exceed the budget");

    storage_ = std::move(call.storage);
    if (!knows_tokens()) {
        const auto known = call.tokens.first(kept);
        tokens_.assign(known.begin(), known.end());
    }
    cut(kept);
    own_ = std::move(own);
    digests_.clear();
    if (length > kept) {
        const auto more = call.tokens.last(length - kept);
        tokens_.insert(tokens_.end(), more.begin(), more.end());
        length_ = length;
    }
    if (length < held) storage_->pool->unreserve((held - length) * kTokenBytes);
    cut_segments(segments_, joined.first);
    for (Segment &segment : joined.segments) push(segments_, std::move(segment));
    spans_.resize(std::min(spans_.size(), first_changed));
    for (const Span &span : spans) add_span(spans_, span);

    return tell_of_change(r, report_);
}

// The report of a call that changed the sequence.
int32_t Sequence::tell_of_change(routecap_append_report &r, routecap_append_report *wanted) {
    describe(r);
    add_to_total(r);
    if (wanted != nullptr) write_struct(wanted, r);
    if (r.rows_missing == 0) return ROUTECAP_OK;
    return report(ROUTECAP_INCOMPLETE, "%llu of %llu rows of the sequence lack cells",
                  ull(r.rows_missing), ull(visible_rows()));
}

// ---- Cutting --------------------------------------------------------------------------------

int32_t Sequence::check_cut(uint64_t tokens) const {
    if (knows_tokens() || tokens >= length_ || tokens % kDigestTokens == 0) return ROUTECAP_OK;
    return report(ROUTECAP_ERR_STATE,
                  "the sequence does not know its tokens: it can be cut at multiples of %llu only",
                  ull(kDigestTokens));
}

int32_t Sequence::truncate(uint64_t tokens) {
    if (int32_t s = check_cut(tokens); s < 0) return s;
    const uint64_t held = tokens_.size();
    cut(tokens);
    storage_->pool->unreserve((held - tokens_.size()) * kTokenBytes);
    return ROUTECAP_OK;
}

// Forgets the tokens. Their memory stays charged to the budget.
void Sequence::cut(uint64_t tokens) noexcept {
    if (tokens >= length_) return;
    length_ = tokens;
    if (tokens_.size() > tokens) tokens_.resize(tokens);
    if (digests_.size() > digests_of(tokens)) digests_.resize(digests_of(tokens));
    cut_segments(segments_, tokens);
    if (segments_.empty()) own_ = OwnRows();
    while (!spans_.empty() && spans_.back().first >= tokens) spans_.pop_back();
    if (!spans_.empty())
        spans_.back().rows = std::min(end_of(spans_.back()), tokens) - spans_.back().first;
}

// ---- Reading --------------------------------------------------------------------------------

Routing *Sequence::rows(uint64_t end) const {
    std::vector<Segment> segments = segments_;
    cut_segments(segments, end);
    return new Routing(storage_, 0, end, std::move(segments));
}

uint64_t Sequence::spans(routecap_sequence_span *spans, size_t span_size, size_t capacity) const {
    uint64_t count = 0;
    for (Span span : spans_) {
        if (span.first >= visible_rows()) break;
        span.rows = std::min(end_of(span), visible_rows()) - span.first;
        if (count < capacity) write_bytes(&at(spans, span_size, count), span_size, span);
        count++;
    }
    return count;
}

int32_t Sequence::tokens(uint64_t first, int32_t *tokens, size_t capacity, uint64_t &count) const {
    if (!knows_tokens()) return report(ROUTECAP_ERR_STATE, "the sequence does not know its tokens");
    if (first > length_)
        return report(ROUTECAP_ERR_OUT_OF_RANGE, "token %llu of %llu", ull(first), ull(length_));
    count = length_ - first;
    std::copy_n(tokens_.begin() + static_cast<ptrdiff_t>(first),
                std::min(count, uint64_t{capacity}), tokens);
    return ROUTECAP_OK;
}

routecap_append_report Sequence::sums() const {
    routecap_append_report sums = total_;
    describe(sums);
    return sums;
}

// What the sequence is now.
void Sequence::describe(routecap_append_report &report) const {
    uint64_t complete = 0;
    for (const Segment &segment : segments_) {
        if (segment.first >= visible_rows()) break;
        complete += complete_rows(
            *storage_->shape, segment.part(segment.first, std::min(segment.end(), visible_rows())));
    }
    report.tokens = length_;
    report.rows_missing = visible_rows() - complete;
    report.bytes = storage_->pool->used();
}

}  // namespace routecap
