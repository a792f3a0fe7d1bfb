// One conversation: its token ids, and the rows that calls brought for them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/process.h"
#include "routecap.h"
#include "routing/routing.h"
#include "sequence/own_rows.h"
#include "sequence/token_digests.h"

namespace routecap {

struct JoinedRows;  // join.h
struct Joined;

class Sequence {
public:
    static int32_t create(const routecap_sequence_config *config, Sequence **sequence);

    // What the bytes of a sequence say, checked: its rows may be one more than are seen.
    struct Parts {
        uint64_t tokens, calls;
        std::vector<int32_t> ids;          // of all tokens, or
        std::vector<TokenDigest> digests;  // of tokens that are not known
        std::vector<routecap_sequence_span> spans;
    };
    static int32_t restore(Parts parts, const Routing &rows, uint64_t budget_bytes,
                           Sequence **sequence);

    Sequence(const Sequence &) = delete;
    Sequence &operator=(const Sequence &) = delete;
    ~Sequence();

    uint32_t process() const { return process_; }

    int32_t append(const int32_t *tokens, uint64_t token_start, uint64_t count,
                   const Routing *routing, const routecap_append_options *options,
                   routecap_append_report *report);
    int32_t truncate(uint64_t tokens);
    int32_t fork(uint64_t tokens, Sequence **child) const;

    // All rows that are seen; and with the row of the last token, if it is known.
    Routing *routing() const { return rows(visible_rows()); }
    Routing *known_rows() const {
        const bool last = !segments_.empty() && segments_.back().end() == length_;
        return rows(last ? length_ : visible_rows());
    }
    uint64_t spans(routecap_sequence_span *spans, size_t span_size, size_t capacity) const;
    int32_t tokens(uint64_t first, int32_t *tokens, size_t capacity, uint64_t &count) const;
    routecap_append_report sums() const;

    uint64_t length() const { return length_; }
    uint64_t calls() const { return total_.call; }
    bool knows_tokens() const { return tokens_.size() == length_; }
    std::span<const int32_t> token_ids() const { return tokens_; }
    std::vector<TokenDigest> digests() const {
        return knows_tokens() ? token_digests(tokens_) : digests_;
    }
    std::span<const routecap_sequence_span> all_spans() const { return spans_; }

private:
    explicit Sequence(StoragePtr storage) : storage_(std::move(storage)) {
        total_.first_differed = ROUTECAP_ROWS_ALL;
    }

    struct Call;
    int32_t read_call(const int32_t *tokens, uint64_t token_start, uint64_t count,
                      const Routing *routing, const routecap_append_options *options,
                      Call &call) const;
    int32_t compare_tokens(Call &call) const;
    JoinedRows rows_to_join(const Call &call, uint64_t kept, uint64_t length) const;
    routecap_append_report report_of(const Call &call, const Joined &joined, uint64_t kept) const;
    void add_to_total(const routecap_append_report &r);
    uint64_t visible_rows() const { return length_ > 0 ? length_ - 1 : 0; }
    Routing *rows(uint64_t end) const;
    int32_t check_cut(uint64_t tokens) const;
    void cut(uint64_t tokens) noexcept;
    bool charge_tokens();
    void describe(routecap_append_report &report) const;
    int32_t tell_of_change(routecap_append_report &report, routecap_append_report *wanted);

    StoragePtr storage_;
    uint64_t length_ = 0;               // tokens
    std::vector<int32_t> tokens_;       // all of them, or none: then there are
    std::vector<TokenDigest> digests_;  // of blocks of them
    // Rows before `length_`, ascending. That of the last token is known only where the sequence was
    // cut there.
    std::vector<Segment> segments_;
    std::vector<routecap_sequence_span> spans_;
    OwnRows own_;
    routecap_append_report total_{};
    const uint32_t process_ = process_generation();
};

// The serialised form of a sequence, as docs/format.md specifies it: written, and read without
// trust.
int32_t serialize(const Sequence &sequence, uint32_t flags, void *dst, size_t dst_bytes,
                  uint64_t *needed);
int32_t deserialize(const void *data, size_t bytes, uint64_t budget_bytes, Sequence **sequence);

}  // namespace routecap
