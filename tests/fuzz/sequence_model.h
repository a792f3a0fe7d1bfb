// A sequence whose rows are put together one by one, as sequence.h says it.
#pragma once

#include <algorithm>

#include "model.h"

namespace model {

using Tokens = std::vector<int32_t>;

struct Owner {
    uint64_t call, tag;
    uint32_t origin;
    bool operator==(const Owner &) const = default;
};

struct Sequence {
    ShapePtr shape;
    Tokens tokens;
    bool known = true;  // or the sequence has digests only
    Rows rows;          // also that of the last token, where it was cut there
    std::map<uint64_t, Owner> owners;
    routecap_append_report sums{};

    Sequence() { sums.first_differed = ROUTECAP_ROWS_ALL; }

    uint64_t seen() const { return tokens.empty() ? 0 : tokens.size() - 1; }
    RowPtr at(uint64_t position) const {
        const auto row = rows.find(position);
        return row == rows.end() ? nullptr : row->second;
    }
    void cut(uint64_t length) {
        if (length >= tokens.size()) return;
        tokens.resize(length);
        rows.erase(rows.lower_bound(length), rows.end());
        owners.erase(owners.lower_bound(length), owners.end());
        if (tokens.empty()) known = true;
    }
    Routing routing() const {
        Routing all{shape, 0, seen()};
        for (const auto &[position, row] : rows)
            if (position < seen()) all.content.emplace(position, row);
        return all;
    }
    uint64_t missing() const {
        uint64_t n = 0;
        for (uint64_t p = 0; p < seen(); p++) n += at(p) == nullptr || !at(p)->complete();
        return n;
    }
    std::vector<routecap_sequence_span> spans() const {
        std::vector<routecap_sequence_span> all;
        for (const auto &[position, owner] : owners) {
            if (position >= seen()) break;
            if (!all.empty() && all.back().first + all.back().rows == position &&
                Owner{all.back().call, all.back().tag, all.back().origin} == owner)
                all.back().rows++;
            else
                all.push_back({position, 1, owner.call, owner.tag, owner.origin, 0});
        }
        return all;
    }
};

struct Append {
    Tokens tokens;
    uint64_t start = 0;
    std::shared_ptr<const Routing> routing;
    routecap_append_options options{};
};

// What the call does to a sequence, or the error that it is.
int32_t append(Sequence &m, const Append &call, routecap_append_report &r);

}  // namespace model
