// The serialised form of a sequence.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/crc32c.h"
#include "base/status.h"
#include "routing/serialized.h"
#include "sequence/sequence.h"

namespace routecap {
namespace {

constexpr char kMagic[8] = {'R', 'O', 'U', 'T', 'E', 'S', 'E', 'Q'};
constexpr uint32_t kVersion = 1;
constexpr uint64_t kAlignment = 64;

struct Header {
    char magic[8];
    uint32_t version;
    uint32_t flags;  // ROUTECAP_SEQUENCE_WITH_TOKENS
    uint64_t bytes;
    uint64_t tokens;
    uint64_t spans;
    uint64_t calls;
    uint32_t check;  // CRC32C of all before the rows, of which these bytes count as 0
    uint32_t reserved;
    uint64_t reserved2;

    bool has_tokens() const { return (flags & ROUTECAP_SEQUENCE_WITH_TOKENS) != 0; }
};
static_assert(sizeof(Header) == 64 && sizeof(routecap_sequence_span) == 40);

// Where everything lies; one after another, but for the rows, which are aligned.
struct Layout {
    uint64_t spans, digests, tokens, tokens_end, rows;

    explicit Layout(const Header &header)
        : spans(sizeof header),
          digests(spans + header.spans * sizeof(routecap_sequence_span)),
          tokens(digests + digests_of(header.tokens) * sizeof(TokenDigest)),
          tokens_end(tokens + (header.has_tokens() ? header.tokens * sizeof(int32_t) : 0)),
          rows((tokens_end + kAlignment - 1) / kAlignment * kAlignment) {}
};

uint32_t check_of(const uint8_t *data, const Layout &layout) {
    return crc32c_without(data, layout.rows, offsetof(Header, check));
}

// An array at some place, of whatever alignment.
template <class T>
std::vector<T> read_array(const uint8_t *from, uint64_t n) {
    std::vector<T> array(n);
    if (n > 0) std::memcpy(array.data(), from, n * sizeof(T));
    return array;
}

template <class T>
void write_array(uint8_t *to, std::span<const T> array) {
    if (!array.empty()) std::memcpy(to, array.data(), array.size_bytes());
}

int32_t check_spans(const std::vector<routecap_sequence_span> &spans, uint64_t calls) {
    uint64_t position = 0;
    for (size_t i = 0; i < spans.size(); i++) {
        const routecap_sequence_span &span = spans[i];
        if (span.first < position || span.rows == 0 || span.first > ROUTECAP_MAX_POSITION ||
            span.rows > ROUTECAP_MAX_POSITION - span.first)
            return report(ROUTECAP_ERR_FORMAT, "span %zu has rows [%llu,+%llu) from %llu on", i,
                          ull(span.first), ull(span.rows), ull(position));
        if (span.call == 0 || span.call > calls || span.reserved != 0)
            return report(ROUTECAP_ERR_FORMAT, "span %zu is of call %llu of %llu, reserved %u", i,
                          ull(span.call), ull(calls), span.reserved);
        position = span.first + span.rows;
    }
    return ROUTECAP_OK;
}

int32_t read_header(const uint8_t *data, size_t bytes, Header &header) {
    if (data == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "data is NULL");
    if (bytes < sizeof header || std::memcmp(data, kMagic, sizeof kMagic) != 0)
        return report(ROUTECAP_ERR_FORMAT, "%zu bytes, not those of a serialised sequence", bytes);
    std::memcpy(&header, data, sizeof header);
    if (header.version != kVersion)
        return report(ROUTECAP_ERR_FORMAT,
                      "version %u of a serialised sequence; this library reads %u", header.version,
                      kVersion);
    if ((header.flags & ~ROUTECAP_SEQUENCE_WITH_TOKENS) != 0 || header.reserved != 0 ||
        header.reserved2 != 0)
        return report(ROUTECAP_ERR_FORMAT, "flags %u, or a reserved field is not 0", header.flags);
    if (header.bytes != bytes)
        return report(ROUTECAP_ERR_FORMAT, "%zu bytes of a sequence of %llu", bytes,
                      ull(header.bytes));
    // Numbers that the bytes could hold, so that sums of them do not overflow.
    if (header.tokens > ROUTECAP_MAX_POSITION || header.spans > bytes ||
        Layout(header).rows > bytes)
        return report(ROUTECAP_ERR_FORMAT, "%zu bytes do not hold %llu tokens and %llu spans",
                      bytes, ull(header.tokens), ull(header.spans));
    return ROUTECAP_OK;
}

}  // namespace

int32_t serialize(const Sequence &sequence, uint32_t flags, void *dst, size_t dst_bytes,
                  uint64_t *needed) {
    if ((flags & ~ROUTECAP_SEQUENCE_WITH_TOKENS) != 0)
        return report(ROUTECAP_ERR_ARGUMENT, "flags is %u", flags);
    if (flags != 0 && !sequence.knows_tokens())
        return report(ROUTECAP_ERR_STATE, "the sequence does not know its tokens");
    const RoutingPtr rows(sequence.known_rows());
    uint64_t rows_bytes = 0;
    serialize(*rows, nullptr, 0, &rows_bytes);
    Header header{.magic = {},
                  .version = kVersion,
                  .flags = flags,
                  .bytes = 0,
                  .tokens = sequence.length(),
                  .spans = sequence.all_spans().size(),
                  .calls = sequence.calls(),
                  .check = 0,
                  .reserved = 0,
                  .reserved2 = 0};
    std::memcpy(header.magic, kMagic, sizeof kMagic);
    const Layout layout(header);
    header.bytes = layout.rows + rows_bytes;
    if (needed != nullptr) *needed = header.bytes;
    if (dst == nullptr || dst_bytes < header.bytes)
        return report(ROUTECAP_ERR_BUFFER_TOO_SMALL, "the sequence takes %llu bytes, dst has %zu",
                      ull(header.bytes), dst_bytes);
    auto *to = static_cast<uint8_t *>(dst);
    const std::vector<TokenDigest> digests = sequence.digests();
    std::memcpy(to, &header, sizeof header);
    write_array(to + layout.spans, sequence.all_spans());
    write_array(to + layout.digests, std::span(digests));
    if (flags != 0) write_array(to + layout.tokens, sequence.token_ids());
    std::memset(to + layout.tokens_end, 0, layout.rows - layout.tokens_end);
    header.check = check_of(to, layout);
    std::memcpy(to, &header, sizeof header);
    return serialize(*rows, to + layout.rows, rows_bytes, nullptr);
}

int32_t deserialize(const void *data, size_t bytes, uint64_t budget_bytes, Sequence **sequence) {
    const auto *from = static_cast<const uint8_t *>(data);
    Header header;
    if (int32_t s = read_header(from, bytes, header); s < 0) return s;
    const Layout layout(header);
    if (header.check != check_of(from, layout))
        return report(ROUTECAP_ERR_FORMAT,
                      "the bytes are not what was written: their check differs");
    if (std::any_of(from + layout.tokens_end, from + layout.rows,
                    [](uint8_t byte) { return byte != 0; }))
        return report(ROUTECAP_ERR_FORMAT, "padding is not zero");

    Sequence::Parts parts{
        .tokens = header.tokens,
        .calls = header.calls,
        .ids = read_array<int32_t>(from + layout.tokens, header.has_tokens() ? header.tokens : 0),
        .digests = read_array<TokenDigest>(from + layout.digests, digests_of(header.tokens)),
        .spans = read_array<routecap_sequence_span>(from + layout.spans, header.spans)};
    if (int32_t s = check_spans(parts.spans, header.calls); s < 0) return s;
    if (header.has_tokens()) {
        if (common_tokens(parts.digests, parts.ids) != header.tokens)
            return report(ROUTECAP_ERR_FORMAT, "the digests are not those of the tokens");
        parts.digests.clear();
    }
    Routing *made = nullptr;
    if (int32_t s =
            deserialize(from + layout.rows, bytes - layout.rows, 0, nullptr, nullptr, &made);
        s < 0)
        return s;
    const RoutingPtr rows(made);
    const uint64_t seen = header.tokens - std::min<uint64_t>(header.tokens, 1);
    if (rows->first() != 0 || (rows->end() != seen && rows->end() != header.tokens))
        return report(ROUTECAP_ERR_FORMAT, "rows [%llu,%llu) of %llu tokens", ull(rows->first()),
                      ull(rows->end()), ull(header.tokens));
    return Sequence::restore(std::move(parts), *rows, budget_bytes, sequence);
}

}  // namespace routecap
