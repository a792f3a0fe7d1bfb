#include "wire/lists.h"

#include "base/status.h"

namespace routecap::wire {
namespace {

constexpr size_t kIdsAtOnce = 2048;
// The text around the lists. A star stands for a word of letters and digits.
constexpr char kBefore[] = "ndarray\",{\"data\":", kBehind[] = ",\"dtype\":\"*\"}]";

int32_t refuse(const char *what, uint64_t at) {
    return report(ROUTECAP_ERR_FORMAT, "%s, at byte %llu", what, ull(at));
}

}  // namespace

int32_t Lists::end_number(uint64_t at) {
    if (!digits_) return refuse("a number without digits", at);
    if (in_cell_ == ROUTECAP_MAX_K) return refuse("a cell has too many ids", at);
    ids_.push_back(negative_ ? -static_cast<int64_t>(number_) : static_cast<int64_t>(number_));
    in_cell_++;
    after_ = After::value;
    return ROUTECAP_OK;
}

int32_t Lists::close_list(uint64_t at, const Begin &begin, const Give &give) {
    if (after_ == After::comma) return refuse("a comma before a bracket", at);
    if (depth_ == 3) {
        if (in_cell_ == 0 || (k_ != 0 && in_cell_ != k_))
            return refuse("a cell and the first cell differ in their number of ids", at);
        k_ = in_cell_, in_cell_ = 0;
        if (++in_row_ > ROUTECAP_MAX_LAYERS) return refuse("a row has too many cells", at);
    } else if (depth_ == 2) {
        if (in_row_ == 0 || (columns_ != 0 && in_row_ != columns_))
            return refuse("a row and the first row differ in their number of cells", at);
        if (columns_ == 0)
            if (int32_t s = begin(in_row_, k_); s < 0) return s;
        columns_ = in_row_, in_row_ = 0;
        if (ids_.size() >= kIdsAtOnce) {
            if (int32_t s = give(ids_.data(), ids_.size()); s < 0) return s;
            ids_.clear();
        }
    }
    depth_--;
    done_ = depth_ == 0;
    if (done_ && around_ == Around::within) around_ = Around::behind, expected_ = kBehind;
    after_ = After::value;
    return ROUTECAP_OK;
}

// One character of what is around the lists.
int32_t Lists::read_around(uint8_t c, uint64_t at) {
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') return ROUTECAP_OK;
    if (*expected_ == '*') {
        if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) return ROUTECAP_OK;
        expected_++;
    }
    if (*expected_ == '\0' || *expected_ != static_cast<char>(c))
        return refuse("this is not a list of integers", at);
    if (*++expected_ == '\0' && around_ == Around::before) around_ = Around::within;
    return ROUTECAP_OK;
}

int32_t Lists::write(const uint8_t *text, uint64_t n, const Begin &begin, const Give &give) {
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t c = text[i];
        const uint64_t at = read_ + i;
        if (around_ == Around::before || around_ == Around::behind) {
            if (int32_t s = read_around(c, at); s < 0) return s;
            continue;
        }
        if (after_ == After::number) {
            const auto digit = static_cast<uint8_t>(c - '0');
            if (digit < 10) {
                if (digits_ && number_ == 0) return refuse("a number with a zero before it", at);
                if (number_ > 99'999'999'999'999'999)
                    return refuse("a number that is too long", at);
                number_ = number_ * 10 + digit, digits_ = true;
                continue;
            }
            if (int32_t s = end_number(at); s < 0) return s;
        }
        switch (c) {
            case ' ':
            case '\t':
            case '\n':
            case '\r': break;
            case '[':
                if (done_ || depth_ == 3 || (after_ != After::open && after_ != After::comma))
                    return refuse("a bracket that should not be there", at);
                depth_++;
                after_ = After::open;
                break;
            case ']':
                if (depth_ == 0) return refuse("a bracket that should not be there", at);
                if (int32_t s = close_list(at, begin, give); s < 0) return s;
                break;
            case ',':
                if (depth_ == 0 || after_ != After::value)
                    return refuse("a comma that should not be there", at);
                after_ = After::comma;
                break;
            case '"':
                if (depth_ != 1 || after_ != After::open || around_ != Around::nothing)
                    return refuse("a string that should not be there", at);
                around_ = Around::before, expected_ = kBefore, depth_ = 0, after_ = After::comma;
                break;
            default: {
                const auto digit = static_cast<uint8_t>(c - '0');
                if (depth_ != 3 || after_ == After::value || (c != '-' && digit > 9))
                    return refuse("this is not a list of integers", at);
                negative_ = c == '-', digits_ = !negative_, number_ = negative_ ? 0 : digit;
                after_ = After::number;
                // The usual number has a few digits, all of which are here.
                uint64_t end = i + 1;
                for (; !negative_ && end < n && end < i + 9 &&
                       static_cast<uint8_t>(text[end] - '0') < 10;
                     end++)
                    number_ = number_ * 10 + text[end] - '0';
                if (!negative_ && end < n && end < i + 9 && (c != '0' || end == i + 1)) {
                    if (int32_t s = end_number(at); s < 0) return s;
                    i = end - 1;
                } else {
                    number_ = negative_ ? 0 : digit;
                }
            }
        }
    }
    read_ += n;
    return ROUTECAP_OK;
}

int32_t Lists::finish(const Give &give) {
    if (!done_ || (around_ == Around::behind && *expected_ != '\0'))
        return refuse("the list has no end", read_);
    return ids_.empty() ? ROUTECAP_OK : give(ids_.data(), ids_.size());
}

}  // namespace routecap::wire
