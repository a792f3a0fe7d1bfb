#include "wire/message.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/status.h"
#include "base/structs.h"
#include "wire/base64.h"

namespace routecap::wire {
namespace {

constexpr size_t kLongestNrlreHead = 128;
constexpr size_t kTellTheFormat = 512;  // if these first bytes do not tell, none do
constexpr char kNpyMagic[] = "\x93NUMPY";
constexpr char kNrlreMagic[] = "nrlre1:";
constexpr char kSerializedMagic[] = "ROUTECAP";
constexpr char kNpyInBase64[] = "k05VTVBZ";  // of the six bytes of the magic

// Whether the bytes begin with the magic, or with as much of it as fits.
bool begins(const uint8_t *data, size_t n, std::string_view magic) {
    return std::equal(data, data + std::min(n, magic.size()), magic.begin(),
                      [](uint8_t byte, char c) { return byte == static_cast<uint8_t>(c); });
}

// Parses a text from its beginning. Each take() returns whether the item was there. At the end of a
// text that may continue, the result is pending instead.
class Text {
public:
    Text(const uint8_t *text, size_t n, bool whole)
        : begin_(reinterpret_cast<const char *>(text)),
          at_(begin_),
          end_(begin_ + n),
          whole_(whole) {}

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
    // An error, or PENDING if the text merely ends too early.
    int32_t refuse(const char *what) const {
        if (!whole_ && at_ == end_) return ROUTECAP_PENDING;
        return report(ROUTECAP_ERR_FORMAT, "%s, at byte %zu", what, offset());
    }

private:
    const char *begin_, *at_, *end_;
    bool whole_;
};

int32_t check_shape(MessageFacts &said, uint64_t rows, uint64_t columns, uint64_t k) {
    if (rows > ROUTECAP_MAX_POSITION || columns < 1 || columns > ROUTECAP_MAX_LAYERS || k < 1 ||
        k > ROUTECAP_MAX_K)
        return report(ROUTECAP_ERR_FORMAT, "a shape of %llu rows, %llu columns and %llu ids",
                      ull(rows), ull(columns), ull(k));
    said.rows = rows, said.columns = static_cast<uint32_t>(columns),
    said.k = static_cast<uint32_t>(k);
    said.facts |= ROUTECAP_WIRE_FACT_SHAPE;
    return ROUTECAP_OK;
}

int32_t check_dtype(MessageFacts &said, std::string_view name) {
    const Dtype *dtype = find_dtype(name);
    if (dtype == nullptr)
        return report(ROUTECAP_ERR_FORMAT, "ids of type %.*s",
                      static_cast<int>(std::min<size_t>(name.size(), 20)), name.data());
    said.dtype = dtype->dtype;
    said.facts |= ROUTECAP_WIRE_FACT_DTYPE;
    return ROUTECAP_OK;
}

// "[" three numbers "]"
int32_t read_dimensions(Text &text, char open, char close, uint64_t (&dimension)[3]) {
    if (!text.take(open)) return text.refuse("the shape is not a list");
    for (int i = 0; i < 3; i++) {
        text.spaces();
        if (!text.number(UINT64_MAX, dimension[i]))
            return text.refuse("the shape does not have three numbers");
        text.spaces();
        if (!text.take(',') && i < 2) return text.refuse("the shape does not have three numbers");
    }
    text.spaces();
    if (!text.take(close)) return text.refuse("the shape does not have three numbers");
    return ROUTECAP_OK;
}

// The dictionary in a .npy file's head.
int32_t read_npy_dictionary(Text text, MessageFacts &said) {
    std::string_view descr, key;
    uint64_t dimension[3];
    unsigned seen = 0;
    if (!text.take('{')) return text.refuse("the head has no dictionary");
    while (text.spaces(), !text.take('}')) {
        if (!text.take('\'') || !text.until('\'', key)) return text.refuse("the head has no key");
        text.spaces();
        if (!text.take(':')) return text.refuse("the head has a key without a value");
        text.spaces();
        const unsigned bit = key == "descr"           ? 1u
                             : key == "fortran_order" ? 2u
                             : key == "shape"         ? 4u
                                                      : 0u;
        if (bit == 0 || (seen & bit) != 0)
            return text.refuse("the head has a key that it should not have");
        seen |= bit;
        if (bit == 1 && !(text.take('\'') && text.until('\'', descr)))
            return text.refuse("the head has no type");
        if (bit == 2 && !text.take("False")) return text.refuse("the array is not in C order");
        if (bit == 4)
            if (int32_t s = read_dimensions(text, '(', ')', dimension); s != ROUTECAP_OK) return s;
        text.spaces();
        if (!text.take(',') && text.peek() != '}') return text.refuse("the head is damaged");
    }
    while (!text.at_end())
        if (!text.take(' ') && !(text.take('\n') && text.at_end()))
            return text.refuse("the head is damaged");
    if (seen != 7) return text.refuse("the head does not say type, order and shape");
    if (int32_t s = check_dtype(said, descr); s < 0) return s;
    return check_shape(said, dimension[0], dimension[1], dimension[2]);
}

// Skips any JSON value.
int32_t skip_value(Text &text) {
    std::string open;  // what must be closed
    do {
        text.spaces();
        std::string_view ignored;
        if (text.take('"')) {
            for (bool more = true; more;) {
                if (!text.until('"', ignored)) return text.refuse("a string without an end");
                const size_t last = ignored.find_last_not_of('\\');
                // The quote was escaped.
                more = (ignored.size() - (last == ignored.npos ? 0 : last + 1)) % 2 == 1;
            }
        } else if (text.peek() == '{' || text.peek() == '[') {
            if (open.size() == 32) return text.refuse("too many brackets");
            open += text.take('{') ? '}' : (static_cast<void>(text.take('[')), ']');
            continue;
        } else if (!open.empty() && text.take(open.back())) {
            open.pop_back();
        } else {
            const size_t from = text.offset();
            while (!text.at_end() && std::strchr("+-.0123456789eEtrufalsn", text.peek()) != nullptr)
                text.take(text.peek());
            if (text.offset() == from) return text.refuse("a value is missing");
            if (text.at_end()) return text.refuse("the object has no end");
        }
        text.spaces();
        while (!open.empty() && (text.take(',') || text.take(':'))) text.spaces();
    } while (!open.empty());
    return ROUTECAP_OK;
}

}  // namespace

int32_t read_npy(const uint8_t *data, size_t n, MessageFacts &said, size_t &head) {
    if (!begins(data, n, kNpyMagic))
        return report(ROUTECAP_ERR_FORMAT, "the first bytes are not those of a .npy file");
    if (n < 8) return ROUTECAP_PENDING;
    const uint32_t major = data[6], length_bytes = major == 1 ? 2 : 4;
    if (major < 1 || major > 3 || data[7] != 0)
        return report(ROUTECAP_ERR_FORMAT, "version %u.%u of .npy; this library reads 1.0 to 3.0",
                      major, data[7]);
    if (n < 8 + length_bytes) return ROUTECAP_PENDING;
    uint64_t length = 0;
    std::memcpy(&length, data + 8, length_bytes);
    if (length > kLongestNpyHead - 12)
        return report(ROUTECAP_ERR_FORMAT, "the head of the .npy file has %llu bytes", ull(length));
    head = 8 + length_bytes + length;
    if (n < head) return ROUTECAP_PENDING;
    said.version = major;
    return read_npy_dictionary(Text(data + 8 + length_bytes, length, true), said);
}

int32_t read_nrlre1(const uint8_t *data, size_t n, MessageFacts &said, size_t &head) {
    if (!begins(data, n, kNrlreMagic))
        return report(ROUTECAP_ERR_FORMAT, "the text does not begin with %s", kNrlreMagic);
    const size_t looked_at = std::min(n, kLongestNrlreHead);
    if (std::count(data, data + looked_at, ':') < 3 && n < kLongestNrlreHead)
        return ROUTECAP_PENDING;
    Text text(data, looked_at, true);
    std::string_view dtype;
    uint64_t dimension[3];
    if (!text.take(kNrlreMagic) || !text.until(':', dtype))
        return text.refuse("the head has no type");
    for (int i = 0; i < 3; i++) {
        if (!text.number(UINT64_MAX, dimension[i]))
            return text.refuse("the shape is not ROWSxCOLUMNSxK");
        if (!text.take(i < 2 ? 'x' : ':')) return text.refuse("the shape is not ROWSxCOLUMNSxK");
    }
    if (int32_t s = check_dtype(said, dtype); s < 0) return s;
    head = text.offset();
    return check_shape(said, dimension[0], dimension[1], dimension[2]);
}

int32_t read_object(const uint8_t *bytes, size_t n, MessageFacts &said, size_t &data,
                    size_t &data_size) {
    Text text(bytes, n, true);
    std::string_view key, value;
    unsigned seen = 0;
    text.spaces();
    if (!text.take('{')) return text.refuse("this is not a JSON object");
    for (bool more = true; more;) {
        text.spaces();
        if (!text.take('"') || !text.until('"', key))
            return text.refuse("a key of the object is missing");
        text.spaces();
        if (!text.take(':')) return text.refuse("a key has no value");
        text.spaces();
        const unsigned bit = key == "data"    ? 1u
                             : key == "shape" ? 2u
                             : key == "dtype" ? 4u
                             : key == "start" ? 8u
                                              : 0u;
        if ((seen & bit) != 0) return text.refuse("a key is there twice");
        seen |= bit;
        if (bit == 1) {
            if (!text.take('"')) return text.refuse("\"data\" is not a string");
            data = text.offset();
            if (!text.until('"', value)) return text.refuse("\"data\" has no end");
            data_size = value.size();
        } else if (bit == 2) {
            uint64_t dimension[3];
            if (int32_t s = read_dimensions(text, '[', ']', dimension); s != ROUTECAP_OK) return s;
            if (int32_t s = check_shape(said, dimension[0], dimension[1], dimension[2]); s < 0)
                return s;
        } else if (bit == 4) {
            if (!text.take('"') || !text.until('"', value))
                return text.refuse("\"dtype\" is not a string");
            if (int32_t s = check_dtype(said, value); s < 0) return s;
        } else if (bit == 8) {
            if (text.take("null")) {  // as if it were not there
            } else if (!text.number(ROUTECAP_MAX_POSITION, said.first)) {
                return text.refuse("\"start\" is not a position");
            } else {
                said.facts |= ROUTECAP_WIRE_FACT_FIRST;
            }
        } else if (int32_t s = skip_value(text); s != ROUTECAP_OK) {
            return s;
        }
        text.spaces();
        more = text.take(',');
    }
    if (!text.take('}')) return text.refuse("the object has no end");
    text.spaces();
    if (!text.at_end()) return text.refuse("there is text after the object");
    if ((seen & 3) != 3) return text.refuse("the object does not have \"data\" and \"shape\"");
    return ROUTECAP_OK;
}

int32_t detect(const uint8_t *data, size_t n, int32_t &format, bool &certain) {
    certain = true;
    const uint8_t *end = data + std::min(n, kTellTheFormat);
    const uint8_t *from = std::find_if(data, end, [](uint8_t byte) {
        return byte != ' ' && byte != '\t' && byte != '\r' && byte != '\n';
    });
    if (from == end)
        return n < kTellTheFormat
                   ? ROUTECAP_PENDING
                   : report(ROUTECAP_ERR_FORMAT, "the first %zu bytes are blanks", kTellTheFormat);
    if (*from == '{') return format = ROUTECAP_WIRE_OBJECT, ROUTECAP_OK;
    if (*from == '[') return format = ROUTECAP_WIRE_LISTS, ROUTECAP_OK;
    for (const auto &[magic, of] :
         {std::pair{kSerializedMagic, ROUTECAP_WIRE_SERIALIZED},
          std::pair{kNpyMagic, ROUTECAP_WIRE_NPY}, std::pair{kNrlreMagic, ROUTECAP_WIRE_NRLRE1},
          std::pair{kNpyInBase64, ROUTECAP_WIRE_NPY_BASE64}}) {
        if (!begins(data, n, magic)) continue;
        format = of;
        return n < std::strlen(magic) ? ROUTECAP_PENDING : ROUTECAP_OK;
    }
    const auto is_base64 = [](uint8_t c) {
        return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
               c == '+' || c == '/' || c == '=';
    };
    if (!std::all_of(data, end, is_base64))
        return report(ROUTECAP_ERR_FORMAT, "the first bytes are of no format that is known");
    format = ROUTECAP_WIRE_RAW_BASE64;
    certain = false;
    return ROUTECAP_OK;
}

int32_t check_bytes(const void *data, size_t bytes, const char *name, const uint8_t *&at) {
    static constexpr uint8_t kNothing = 0;
    if (data == nullptr && bytes > 0) return report(ROUTECAP_ERR_ARGUMENT, "%s is NULL", name);
    at = bytes > 0 ? static_cast<const uint8_t *>(data) : &kNothing;
    return ROUTECAP_OK;
}

Frame frame(const Format &format, const MessageFacts &said) {
    const Dtype *dtype = find_dtype(said.dtype);
    const std::string rows = std::to_string(said.rows), columns = std::to_string(said.columns),
                      k = std::to_string(said.k);
    if (format.npy) {
        // As numpy writes it: 64 bytes, or the next multiple, padded with spaces before the line's
        // end.
        std::string text = std::string("{'descr': '") + dtype->descr +
                           "', 'fortran_order': False, 'shape': (" + rows + ", " + columns + ", " +
                           k + "), }";
        text.append(63 - (10 + text.size()) % 64, ' ').append("\n");
        std::string head(kNpyMagic, 6);
        head.append("\x01\x00", 2);
        head.push_back(static_cast<char>(text.size() & 0xff));
        head.push_back(static_cast<char>(text.size() >> 8));
        return {head + text, ""};
    }
    if (format.format == ROUTECAP_WIRE_NRLRE1)
        return {kNrlreMagic + std::string(dtype->name) + ":" + rows + "x" + columns + "x" + k + ":",
                ""};
    if (format.format == ROUTECAP_WIRE_OBJECT)
        return {"{\"data\":\"", "\",\"shape\":[" + rows + "," + columns + "," + k +
                                    "],\"start\":" + std::to_string(said.first) + ",\"dtype\":\"" +
                                    dtype->name + "\"}"};
    return {};
}

}  // namespace routecap::wire
