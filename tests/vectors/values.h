// Values of the vectors as C has them: numbers, buffers that notice what is written beyond them,
// structs of any size.
#pragma once

#include "fields.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace vectors {

using json = nlohmann::ordered_json;

constexpr int kUntouched = 77;  // in every element that a call may write

// ---- Values --------------------------------------------------------------------------------

template <class T>
T number(const json &value) {
    if (!value.is_string()) return value.get<T>();
    const std::string text = value.get<std::string>();
    if constexpr (std::is_floating_point_v<T>) {
        return static_cast<T>(std::strtod(text.c_str(), nullptr));  // nan, inf, -inf
    } else {
        if (text == "ALL") return static_cast<T>(ROUTECAP_ROWS_ALL);
        if (text == "LANDED") return static_cast<T>(ROUTECAP_ROWS_LANDED);
        return text[0] == '-' ? static_cast<T>(std::stoll(text))
                              : static_cast<T>(std::stoull(text));
    }
}

template <class T>
std::vector<T> numbers(const json &values) {
    std::vector<T> result;
    for (const json &value : values) result.push_back(number<T>(value));
    return result;
}

// A number as the vectors write it.
template <class T>
json written(T value) {
    if constexpr (std::is_same_v<T, uint64_t>) {
        if (value == ROUTECAP_ROWS_ALL) return "ALL";
        if (value == ROUTECAP_ROWS_LANDED) return "LANDED";
    }
    const bool plain = std::abs(static_cast<long double>(value)) <= 9007199254740992.0L;  // 2^53
    return plain ? json(value) : json(std::to_string(value));
}

template <class T>
json written(const std::vector<T> &values) {
    json result = json::array();
    for (const T &value : values) result.push_back(written(value));
    return result;
}

inline json written_bytes(const std::vector<uint8_t> &data) {
    json lines = json::array();
    std::string line;
    for (size_t i = 0; i < data.size(); i++) {
        line += "0123456789abcdef"[data[i] / 16];
        line += "0123456789abcdef"[data[i] % 16];
        if (line.size() == 128 || i + 1 == data.size()) lines.push_back(std::exchange(line, ""));
    }
    return lines;
}

// With --answers, what a vector expects is replaced by what the library answers.
inline bool takes_answers = false;

// Fields that whoever answers does not know, and how many were expected.
inline std::set<std::string> unknown_fields;
inline size_t unknown_seen = 0;

// Compares, where README.md says that something is compared.
inline void expect(const json &expected, const json &answered, const std::string &what) {
    if (expected == answered) return;
    if (!takes_answers || expected.is_null())  // null: the vector says nothing of it
        ADD_FAILURE() << what << ": expected " << expected << ", got " << answered;
    else
        const_cast<json &>(expected) = answered;  // of a file, which is written afterwards
}

template <class T>
void expect_value(const json &expected, T value, const std::string &what) {
    if constexpr (std::is_floating_point_v<T>) {
        if (expected.is_object() || number<T>(expected) != value) expect(expected, value, what);
    } else {
        expect(expected, written(value), what);
    }
}

inline std::vector<uint8_t> bytes(const json &lines) {
    std::string digits;
    for (const json &line : lines) digits += line.get<std::string>();
    std::vector<uint8_t> result;
    for (size_t i = 0; i + 1 < digits.size(); i += 2)
        result.push_back(static_cast<uint8_t>(std::stoul(digits.substr(i, 2), nullptr, 16)));
    return result;
}

inline size_t element_size(int32_t dtype) {
    switch (dtype) {
        case ROUTECAP_DTYPE_U8: return 1;
        case ROUTECAP_DTYPE_I16:
        case ROUTECAP_DTYPE_U16:
        case ROUTECAP_DTYPE_F16:
        case ROUTECAP_DTYPE_BF16: return 2;
        case ROUTECAP_DTYPE_I64: return 8;
        default: return 4;  // also for numbers that are no dtype
    }
}

// Elements of some dtype in memory of exactly their size, so that reading or writing beyond it is
// seen by AddressSanitizer.
class Elements {
public:
    Elements(size_t count, int32_t dtype)
        : dtype_(dtype),
          count_(count),
          memory_(new uint8_t[std::max<size_t>(count * element_size(dtype), 1)]) {
        for (size_t i = 0; i < count; i++) set(i, json(kUntouched));
    }
    Elements(const json &values, int32_t dtype) : Elements(values.size(), dtype) {
        for (size_t i = 0; i < values.size(); i++) set(i, values[i]);
    }
    void set(size_t i, const json &value) {
        const auto put = [&](auto v) { std::memcpy(memory_.get() + i * sizeof v, &v, sizeof v); };
        switch (dtype_) {
            case ROUTECAP_DTYPE_F32: return put(number<float>(value));
            case ROUTECAP_DTYPE_I64: return put(number<int64_t>(value));
            default: break;
        }
        const auto v = number<int64_t>(value);
        // Little endian. Of F16 and BF16 the vectors have the bits.
        std::memcpy(memory_.get() + i * element_size(dtype_), &v, element_size(dtype_));
    }
    json at(size_t i) const {
        const auto get = [&](auto v) {
            std::memcpy(&v, memory_.get() + i * sizeof v, sizeof v);
            if constexpr (std::is_same_v<decltype(v), float>)
                if (!std::isfinite(v)) return json(std::isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
            return json(v);
        };
        const auto half = [&](int infinity) {
            const json bits = get(uint16_t{});
            return (bits.get<int>() & 0x7fff) > infinity ? json("nan") : bits;
        };
        switch (dtype_) {
            case ROUTECAP_DTYPE_F16: return half(0x7c00);
            case ROUTECAP_DTYPE_BF16: return half(0x7f80);
            case ROUTECAP_DTYPE_U8: return get(uint8_t{});
            case ROUTECAP_DTYPE_I16: return get(int16_t{});
            case ROUTECAP_DTYPE_U16: return get(uint16_t{});
            case ROUTECAP_DTYPE_U32: return get(uint32_t{});
            case ROUTECAP_DTYPE_I64: return get(int64_t{});
            case ROUTECAP_DTYPE_F32: return get(float{});
            default: return get(int32_t{});
        }
    }
    template <class T = void>
    T *data(size_t first = 0) {
        return reinterpret_cast<T *>(memory_.get() + first * element_size(dtype_));
    }
    size_t count() const { return count_; }
    bool untouched() const {
        for (size_t i = 0; i < count_; i++)
            if (at(i) != json(kUntouched)) return false;
        return true;
    }

private:
    int32_t dtype_;
    size_t count_;
    std::unique_ptr<uint8_t[]> memory_;
};

// ---- One call ------------------------------------------------------------------------------

// What a vector says of a call. Everything in it must be looked at: what a replayer does not know
// it must not pass over.
class Said {
public:
    explicit Said(const json &object) : object_(object) {}
    ~Said() {
        for (const auto &[key, value] : object_.items())
            EXPECT_TRUE(seen_.count(key)) << "not known: " << key;
    }
    bool has(const std::string &key) const {
        seen_.insert(key);
        return object_.contains(key) && !object_[key].is_null();
    }
    const json &operator[](const std::string &key) const {
        static const json kNothing;
        return has(key) ? object_[key] : kNothing;
    }
    template <class T>
    T get(const std::string &key, T otherwise = {}) const {
        return has(key) ? number<T>(object_[key]) : otherwise;
    }

private:
    const json &object_;
    mutable std::set<std::string> seen_;
};

// A struct of C, of its own size or the one that a vector gives it; memory beyond it is 0 or 1.
template <class T>
class Struct {
public:
    explicit Struct(const json &said = json()) {
        const size_t size =
            said.is_object() && said.contains("size") ? said["size"].get<size_t>() : sizeof(T);
        tail_ = said.is_object() && said.value("tail", 0) != 0;
        memory_.assign(std::max(size, sizeof(T)), 0);
        std::fill(memory_.begin() + sizeof(T), memory_.end(), tail_);
        get()->struct_size = static_cast<uint32_t>(size);
    }
    T *get() { return reinterpret_cast<T *>(memory_.data()); }
    T *operator->() { return get(); }
    T &operator*() { return *get(); }
    // After the library has filled it: a larger one's tail is zero, what a smaller one does not
    // have is untouched.
    void expect_filled() {
        for (size_t i = sizeof(T); i < memory_.size(); i++)
            EXPECT_EQ(memory_[i], 0) << "byte " << i;
        for (size_t i = get()->struct_size; i < sizeof(T); i++)
            EXPECT_EQ(memory_[i], 0) << "byte " << i;
    }

private:
    std::vector<uint8_t> memory_;
    uint8_t tail_ = 0;
};

// Compares the fields that are expected; rest(key, value) compares what is not among the struct's
// plain fields. With --answers an empty object gets all plain fields but `reserved`.
template <class T, class Others>
void expect_fields(T &s, const json &expected, Others &&rest) {
    std::set<std::string> known;
    const bool all = takes_answers && expected == json::object();
    fields(s, [&](const char *name, auto &field) {
        known.insert(name);
        if (all && std::string(name) != "reserved")
            const_cast<json &>(expected)[name] = json::object();
        if (!expected.contains(name)) return;
        if (unknown_fields.count(name) > 0)
            unknown_seen++;
        else
            expect_value(expected[name], field, name);
    });
    for (const auto &[key, value] : expected.items())
        if (known.count(key) == 0) rest(key, value);
}
template <class T>
void expect_fields(T &s, const json &expected) {
    expect_fields(s, expected, [](const std::string &key, const json &) {
        ADD_FAILURE() << "not known: " << key;
    });
}

// Structs beside one another, perhaps at distances that are not theirs.
template <class T>
class Array {
public:
    Array(const std::vector<T> &elements, size_t size)
        : size_(size), memory_(elements.size() * size + 1, 0) {
        for (size_t i = 0; i < elements.size(); i++)
            std::memcpy(memory_.data() + i * size, &elements[i], std::min(size, sizeof(T)));
    }
    T *data() { return reinterpret_cast<T *>(memory_.data()); }
    T at(size_t i) const {
        T element{};
        std::memcpy(&element, memory_.data() + i * size_, std::min(size_, sizeof(T)));
        return element;
    }
    void set(size_t i, const T &element) {
        std::memcpy(memory_.data() + i * size_, &element, std::min(size_, sizeof(T)));
    }
    size_t size() const { return size_; }
    std::vector<uint8_t> take() { return std::move(memory_); }
    void spoil(uint8_t tail, size_t count) {
        for (size_t i = 0; i < count; i++)
            for (size_t b = sizeof(T); b < size_; b++) memory_[i * size_ + b] = tail;
    }

private:
    size_t size_;
    std::vector<uint8_t> memory_;
};

template <class T>
void expect_each(const Array<T> &array, const json &expected, size_t count) {
    if (expected.size() != count) expect(expected, json(count, json::object()), "structs");
    for (size_t i = 0; i < std::min(count, expected.size()); i++) {
        T each = array.at(i);
        expect_fields(each, expected[i]);
    }
}

}  // namespace vectors
