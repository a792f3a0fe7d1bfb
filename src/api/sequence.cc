// Sequences: the rows of a conversation of many calls.
#include "sequence/sequence.h"
#include "api/call.h"
#include "base/structs.h"

using namespace routecap;

namespace {

Sequence **sequence_output(routecap_sequence **sequence) {
    return reinterpret_cast<Sequence **>(sequence);
}
Sequence *sequence_of(const routecap_sequence *sequence) {
    return reinterpret_cast<Sequence *>(const_cast<routecap_sequence *>(sequence));
}

template <class Body>
int32_t with(const routecap_sequence *sequence, Body body,
             const char *call = __builtin_FUNCTION()) noexcept {
    if (sequence == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "sequence is NULL");
    if (sequence_of(sequence)->process() != process_generation()) return forked();
    return guard([&] { return body(*sequence_of(sequence)); }, call);
}

}  // namespace

routecap_status routecap_sequence_create(const routecap_sequence_config *config,
                                         routecap_sequence **sequence) {
    if (int32_t s = clear(sequence, "sequence"); s < 0) return s;
    return guard([&] { return Sequence::create(config, sequence_output(sequence)); });
}

void routecap_sequence_free(routecap_sequence *sequence) {
    if (sequence == nullptr || sequence_of(sequence)->process() != process_generation()) return;
    delete sequence_of(sequence);
}

routecap_status routecap_sequence_append(routecap_sequence *sequence, const int32_t *tokens,
                                         uint64_t token_start, uint64_t count,
                                         const routecap_routing *routing,
                                         const routecap_append_options *options,
                                         routecap_append_report *report_) {
    const auto append = [&](const Routing *r) {
        const auto body = [&](Sequence &s) {
            return s.append(tokens, token_start, count, r, options, report_);
        };
        return with(sequence, body, nullptr);
    };
    if (routing == nullptr) return guard([&] { return append(nullptr); });
    return with_rows(routing, [&](const Routing &r) { return append(&r); });
}

routecap_status routecap_sequence_truncate(routecap_sequence *sequence, uint64_t tokens) {
    return with(sequence, [&](Sequence &s) { return s.truncate(tokens); });
}

routecap_status routecap_sequence_fork(const routecap_sequence *sequence, uint64_t tokens,
                                       routecap_sequence **child) {
    if (int32_t s = clear(child, "child"); s < 0) return s;
    return with(sequence,
                [&](const Sequence &s) { return s.fork(tokens, sequence_output(child)); });
}

routecap_status routecap_sequence_routing(const routecap_sequence *sequence,
                                          routecap_routing **routing) {
    if (int32_t s = clear(routing, "routing"); s < 0) return s;
    return with(sequence, [&](const Sequence &s) {
        Routing *rows = s.routing();
        *routing = routing_handle(rows);
        return rows->poll();
    });
}

routecap_status routecap_sequence_spans(const routecap_sequence *sequence,
                                        routecap_sequence_span *spans, size_t span_size,
                                        size_t capacity, uint64_t *count) {
    if (int32_t s = check_array(spans, capacity, span_size, sizeof *spans, "spans"); s < 0)
        return s;
    if (count == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "count is NULL");
    return with(sequence, [&](const Sequence &s) {
        *count = s.spans(spans, span_size, capacity);
        return ROUTECAP_OK;
    });
}

routecap_status routecap_sequence_tokens(const routecap_sequence *sequence, uint64_t first,
                                         int32_t *tokens, size_t capacity, uint64_t *count) {
    if (tokens == nullptr && capacity > 0) return report(ROUTECAP_ERR_ARGUMENT, "tokens is NULL");
    if (count == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "count is NULL");
    return with(sequence,
                [&](const Sequence &s) { return s.tokens(first, tokens, capacity, *count); });
}

routecap_status routecap_sequence_report(const routecap_sequence *sequence,
                                         routecap_append_report *report_) {
    if (int32_t s = check_output(report_, "report"); s < 0) return s;
    return with(sequence, [&](const Sequence &s) {
        write_struct(report_, s.sums());
        return ROUTECAP_OK;
    });
}

routecap_status routecap_sequence_serialize(const routecap_sequence *sequence,
                                            routecap_sequence_flags flags, void *dst,
                                            size_t dst_bytes, uint64_t *needed) {
    return with(sequence,
                [&](const Sequence &s) { return serialize(s, flags, dst, dst_bytes, needed); });
}

routecap_status routecap_sequence_deserialize(const void *data, size_t bytes, uint64_t budget_bytes,
                                              routecap_sequence **sequence) {
    if (int32_t s = clear(sequence, "sequence"); s < 0) return s;
    return guard([&] { return deserialize(data, bytes, budget_bytes, sequence_output(sequence)); });
}
