#include "sequence_model.h"

namespace model {

static bool any(const RowPtr &row) { return row != nullptr && row->any(); }

int32_t append(Sequence &m, const Append &call, routecap_append_report &r) {
    const routecap_append_options &o = call.options;
    const uint64_t end = call.start + call.tokens.size();
    if (call.routing && !m.shape->matches(*call.routing->shape)) return ROUTECAP_ERR_SHAPE_MISMATCH;
    if (call.start > m.tokens.size() || o.prompt_tokens > end) return ROUTECAP_ERR_OUT_OF_RANGE;
    if (!m.known && (call.start > 0 || end < m.tokens.size())) return ROUTECAP_ERR_STATE;
    const uint64_t both = std::min<uint64_t>(m.tokens.size(), end);
    uint64_t common = call.start;
    while (common < both && m.tokens[common] == call.tokens[common - call.start]) common++;
    if (!m.known && common < both) common = common / 64 * 64;
    const bool diverges = common < both, equal = o.policy == ROUTECAP_APPEND_EQUAL;
    if (diverges && equal) return ROUTECAP_ERR_CONFLICT;
    const uint64_t kept = diverges ? common : m.tokens.size();

    Sequence next = m;
    r = {};
    r.call = o.call != 0 ? o.call : m.sums.call + 1;
    r.tokens_common = common;
    r.tokens_cut = m.tokens.size() - kept;
    for (const auto &[position, row] : m.rows) r.rows_cut += position >= kept && any(row);
    r.first_differed = ROUTECAP_ROWS_ALL;
    next.cut(kept);
    next.known = true;
    for (uint64_t p = next.tokens.size(); p < end; p++)
        next.tokens.push_back(call.tokens[p - call.start]);

    const uint64_t last = end > 0 ? end - 1 : 0;
    for (uint64_t p = call.routing ? call.routing->first : 0;
         call.routing && p < call.routing->end(); p++) {
        if (p >= last) {
            r.rows_beyond++;
            continue;
        }
        const RowPtr old = next.at(p), now = call.routing->at(p);
        const bool preferred = o.policy == ROUTECAP_APPEND_NEWEST ||
                               (o.policy == ROUTECAP_APPEND_KEEP && o.prompt_tokens != 0 &&
                                p + 1 == kept && kept < end && o.prompt_tokens <= kept);
        bool overlap = false, differs = false, gain = false;
        for (size_t l = 0; l < m.shape->cells(); l++) {
            const bool a = old != nullptr && old->valid(l), b = now != nullptr && now->valid(l);
            overlap |= a && b;
            differs |= a && b && !old->same_set(*now, l);
            gain |= b && !a;
        }
        r.rows_overlap += overlap;
        r.rows_differed += differs;
        if (differs) r.first_differed = std::min(r.first_differed, p);
        r.rows_taken += gain || (preferred && any(now));
        r.rows_boundary += gain && p + 1 == kept;
        r.rows_filled += gain && p + 1 < kept;
        r.rows_replaced += preferred && overlap;
        const RowPtr row = preferred ? unite(now, old) : unite(old, now);
        if (row != nullptr) next.rows[p] = row;
        if (any(now) && (preferred || !any(old))) next.owners[p] = {r.call, o.tag, o.origin};
    }
    if (equal && r.rows_differed > 0) return ROUTECAP_ERR_CONFLICT;
    if (call.routing) {  // a layer that is recomputed in any call is so in the sequence
        auto shape = std::make_shared<Shape>(*m.shape);
        for (size_t l = 0; l < shape->cells(); l++)
            shape->layers[l].provenance =
                std::max(shape->layers[l].provenance, call.routing->shape->layers[l].provenance);
        next.shape = shape;
    }
    m = std::move(next);
    r.tokens = m.tokens.size();
    r.rows_missing = m.missing();
    routecap_append_report &s = m.sums;
    s.call = std::max(s.call, r.call);
    s.tokens_common = r.tokens_common;
    s.first_differed = std::min(s.first_differed, r.first_differed);
    s.tokens_cut += r.tokens_cut, s.rows_cut += r.rows_cut, s.rows_overlap += r.rows_overlap;
    s.rows_differed += r.rows_differed, s.rows_taken += r.rows_taken;
    s.rows_boundary += r.rows_boundary, s.rows_filled += r.rows_filled;
    s.rows_replaced += r.rows_replaced, s.rows_beyond += r.rows_beyond;
    return r.rows_missing == 0 ? ROUTECAP_OK : ROUTECAP_INCOMPLETE;
}

}  // namespace model
