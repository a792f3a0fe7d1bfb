#include "capture/probe.h"

#include <algorithm>
#include <cstring>

#include "kernels/body.h"

namespace routecap {
namespace {

template <class T>
void widen(std::span<const unsigned char> bytes, std::vector<int64_t> &ids, int64_t &poison) {
    ids.resize(bytes.size() / sizeof(T));
    for (size_t i = 0; i < ids.size(); i++) {
        T id;
        std::memcpy(&id, bytes.data() + i * sizeof(T), sizeof(T));
        ids[i] = id;
    }
    poison = kernels::kPoison<T>;
}

// Whether every second id is 0, of so many that no router does that: the upper halves of wider ids,
// which were read as ids too.
bool halves(std::span<const int64_t> ids) {
    constexpr size_t kEnough = 16;
    if (ids.size() < kEnough) return false;
    bool same = true;  // all that are not halves
    for (size_t i = 0; i < ids.size(); i++) {
        if (i % 2 == 1 && ids[i] != 0) return false;
        same &= i % 2 == 1 || ids[i] == ids[0];
    }
    return !same;
}

}  // namespace

routecap_layer_probe Probe::without_sink(uint32_t rows) {
    before_.clear();
    routecap_layer_probe p{};
    p.found = rows > 0 ? ROUTECAP_PROBE_SILENT : 0;
    p.rows_unwritten = rows;
    p.lowest = p.highest = -1;
    return p;
}

routecap_layer_probe Probe::layer(std::span<const unsigned char> bytes, int32_t dtype,
                                  uint32_t rows, const kernels::CellRule &rule) {
    std::vector<int64_t> ids;
    int64_t poison = 0;
    switch (dtype) {
        case ROUTECAP_DTYPE_I16: widen<int16_t>(bytes, ids, poison); break;
        case ROUTECAP_DTYPE_I32: widen<int32_t>(bytes, ids, poison); break;
        default: widen<int64_t>(bytes, ids, poison); break;
    }
    routecap_layer_probe p{};
    p.lowest = p.highest = -1;
    bool sequence = true, constant = true;
    const int64_t *first = nullptr;  // the first row that was written
    for (uint32_t r = 0; r < rows; r++) {
        const int64_t *row = ids.data() + size_t{r} * rule.k;
        uint32_t used = rule.k, written = 0, in_range = 0;
        while (used > rule.least && row[used - 1] == kernels::kNoExpert) used--;
        bool ascending = used > 0, distinct = true;
        for (uint32_t c = 0; c < used; c++) {
            written += row[c] != poison;
            ascending &= row[c] == c;
            distinct &= std::find(row, row + c, row[c]) == row + c;
            if (row[c] < 0 || row[c] >= static_cast<int64_t>(rule.experts)) continue;
            in_range++;
            const auto id = static_cast<int32_t>(row[c]);
            p.lowest = p.lowest < 0 ? id : std::min(p.lowest, id);
            p.highest = std::max(p.highest, id);
        }
        const bool all = written == used;
        (all ? p.rows_written : written == 0 ? p.rows_unwritten : p.rows_incomplete)++;
        p.rows_out_of_range += in_range < written;
        if (!all) continue;
        p.rows_duplicate += in_range == used && !distinct;
        sequence &= ascending;
        if (first == nullptr) first = row;
        constant &= std::equal(row, row + rule.k, first);
    }
    const bool several = p.rows_written > 1;
    const auto flag = [&p](bool is, uint32_t found) { p.found |= is ? found : 0; };
    flag(rows > 0 && p.rows_unwritten == rows, ROUTECAP_PROBE_SILENT);
    flag(p.rows_incomplete > 0 || (p.rows_unwritten > 0 && p.rows_unwritten < rows),
         ROUTECAP_PROBE_INCOMPLETE);
    flag(p.rows_out_of_range > 0, ROUTECAP_PROBE_OUT_OF_RANGE);
    flag(p.rows_duplicate > 0, ROUTECAP_PROBE_DUPLICATE);
    flag(several && sequence, ROUTECAP_PROBE_SEQUENCE);
    flag(several && constant, ROUTECAP_PROBE_CONSTANT);
    flag(several && ids == before_, ROUTECAP_PROBE_REPEATED);
    flag(p.rows_written == rows && halves(ids), ROUTECAP_PROBE_WORD_SIZE);
    before_ = std::move(ids);
    return p;
}

}  // namespace routecap
