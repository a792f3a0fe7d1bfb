// The bytes of one input, read as decisions: what libFuzzer mutates and what a plain run draws at
// random. Beyond the end every decision is the first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace fuzz {

class Bytes {
public:
    Bytes(const uint8_t *data, size_t size) : at_(data), end_(data + size) {}

    bool empty() const { return at_ == end_; }
    size_t left() const { return static_cast<size_t>(end_ - at_); }
    uint64_t number(size_t bytes) {
        uint64_t value = 0;
        for (size_t b = 0; b < bytes; b++) value = value << 8 | (empty() ? 0 : *at_++);
        return value;
    }
    // One of 0..n-1; 0 for n = 0.
    uint64_t below(uint64_t n) {
        return n <= 1 ? 0 : number(n <= 256 ? 1 : n <= 65536 ? 2 : 8) % n;
    }
    // True for so many of 256 bytes; not at the end.
    bool chance(unsigned of_256) { return number(1) + of_256 > 255; }
    template <class T>
    T pick(std::initializer_list<T> list) {
        return list.begin()[below(list.size())];
    }

private:
    const uint8_t *at_, *end_;
};

}  // namespace fuzz
