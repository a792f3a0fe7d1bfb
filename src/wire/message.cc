#include "wire/message.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "base/structs.h"
#include "wire/text.h"

namespace routecap::wire {
namespace {

constexpr uint64_t kLongestNpyHead = 65536;
constexpr size_t kLongestNrlreHead = 128;
constexpr size_t kTellTheFormat = 512;  // if these first bytes do not tell, none do
constexpr char kNpyMagic[] = "\x93NUMPY";
constexpr char kNrlreMagic[] = "nrlre1:";
constexpr char kSerializedMagic[] = "RCAPROWS";
constexpr char kNpyInBase64[] = "k05VTVBZ";  // of the six bytes of the magic

bool begins(const uint8_t *data, size_t n, std::string_view magic) {
    return n >= magic.size() && std::memcmp(data, magic.data(), magic.size()) == 0;
}

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
    if (n < 8) return ROUTECAP_PENDING;
    if (!begins(data, n, kNpyMagic))
        return report(ROUTECAP_ERR_FORMAT, "the first bytes are not those of a .npy file");
    const uint32_t major = data[6], length_bytes = major == 1 ? 2 : 4;
    if (major < 1 || major > 3 || data[7] != 0)
        return report(ROUTECAP_ERR_FORMAT, "version %u.%u of .npy; this library reads 1.0 to 3.0",
                      major, data[7]);
    if (n < 8 + length_bytes) return ROUTECAP_PENDING;
    uint64_t length = 0;
    std::memcpy(&length, data + 8, length_bytes);
    if (length > kLongestNpyHead)
        return report(ROUTECAP_ERR_FORMAT, "the head of the .npy file has %llu bytes", ull(length));
    head = 8 + length_bytes + length;
    if (n < head) return ROUTECAP_PENDING;
    said.version = major;
    return read_npy_dictionary(Text(data + 8 + length_bytes, length), said);
}

int32_t read_nrlre1(const uint8_t *data, size_t n, MessageFacts &said, size_t &head) {
    Text text(data, std::min(n, kLongestNrlreHead));
    std::string_view dtype;
    uint64_t dimension[3];
    if (!text.take(kNrlreMagic) || !text.until(':', dtype))
        return text.refuse("the head does not begin with nrlre1: and a type");
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
    Text text(bytes, n);
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

int32_t detect(const uint8_t *data, size_t n, int32_t &format) {
    const uint8_t *end = data + std::min(n, kTellTheFormat);
    const uint8_t *from = std::find_if(data, end, [](uint8_t byte) {
        return byte != ' ' && byte != '\t' && byte != '\r' && byte != '\n';
    });
    if (from == end)
        return report(ROUTECAP_ERR_FORMAT, "the first %td bytes are blanks", end - data);
    if (*from == '{') return format = ROUTECAP_WIRE_OBJECT, ROUTECAP_OK;
    if (*from == '[') return format = ROUTECAP_WIRE_LISTS, ROUTECAP_OK;
    for (const auto &[magic, of] :
         {std::pair{kSerializedMagic, ROUTECAP_WIRE_SERIALIZED},
          std::pair{kNpyMagic, ROUTECAP_WIRE_NPY}, std::pair{kNrlreMagic, ROUTECAP_WIRE_NRLRE1},
          std::pair{kNpyInBase64, ROUTECAP_WIRE_NPY_BASE64}})
        if (begins(data, n, magic)) return format = of, ROUTECAP_OK;
    const auto is_base64 = [](uint8_t c) {
        return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
               c == '+' || c == '/' || c == '=';
    };
    return report(ROUTECAP_ERR_FORMAT,
                  std::all_of(data, end, is_base64)
                      ? "the bytes may be raw.base64, or anything else in base64: say which"
                      : "the first bytes are of no format that is known");
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
