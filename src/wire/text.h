// Text that is parsed from its beginning.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/status.h"
#include "routecap.h"

namespace routecap::wire {

// Each take() returns whether the item was there.
class Text {
public:
    Text(const uint8_t *text, size_t n)
        : begin_(reinterpret_cast<const char *>(text)), at_(begin_), end_(begin_ + n) {}

    size_t offset() const { return static_cast<size_t>(at_ - begin_); }
    bool at_end() const { return at_ == end_; }
    char peek() const { return at_ == end_ ? '\0' : *at_; }
    void spaces() {
        while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r')) at_++;
    }
    bool take(char c) {
        if (peek() != c || at_ == end_) return false;
        at_++;
        return true;
    }
    bool take(std::string_view word) {
        if (static_cast<size_t>(end_ - at_) < word.size() ||
            std::string_view(at_, word.size()) != word)
            return false;
        at_ += word.size();
        return true;
    }
    // Up to the character, which is taken too.
    bool until(char c, std::string_view &text) {
        const auto *found =
            at_ == end_
                ? nullptr
                : static_cast<const char *>(std::memchr(at_, c, static_cast<size_t>(end_ - at_)));
        if (found == nullptr) {
            at_ = end_;
            return false;
        }
        text = {at_, static_cast<size_t>(found - at_)};
        at_ = found + 1;
        return true;
    }
    // A number of no more than `most`.
    bool number(uint64_t most, uint64_t &value) {
        const auto [next, failure] = std::from_chars(at_, end_, value);
        if (failure != std::errc{} || value > most || (*at_ == '0' && next - at_ > 1)) return false;
        at_ = next;
        return true;
    }
    int32_t refuse(const char *what) const {
        return report(ROUTECAP_ERR_FORMAT, "%s, at byte %zu", what, offset());
    }

private:
    const char *begin_, *at_, *end_;
};

}  // namespace routecap::wire
