#include "wire/format.h"

#include <cstring>
#include <string>

#include "base/status.h"
#include "base/structs.h"

namespace routecap::wire {
namespace {

constexpr Dtype kDtypes[] = {
    {ROUTECAP_DTYPE_U8, 1, false, "uint8", "|u1", UINT8_MAX},
    {ROUTECAP_DTYPE_I8, 1, true, "int8", "|i1", INT8_MAX},
    {ROUTECAP_DTYPE_U16, 2, false, "uint16", "<u2", UINT16_MAX},
    {ROUTECAP_DTYPE_I16, 2, true, "int16", "<i2", INT16_MAX},
    {ROUTECAP_DTYPE_U32, 4, false, "uint32", "<u4", UINT32_MAX},
    {ROUTECAP_DTYPE_I32, 4, true, "int32", "<i4", INT32_MAX},
    {ROUTECAP_DTYPE_U64, 8, false, "uint64", "<u8", INT64_MAX},
    {ROUTECAP_DTYPE_I64, 8, true, "int64", "<i8", INT64_MAX},
};

constexpr uint32_t kShape = ROUTECAP_WIRE_FACT_SHAPE, kDtype = ROUTECAP_WIRE_FACT_DTYPE,
                   kFirst = ROUTECAP_WIRE_FACT_FIRST, kValidity = ROUTECAP_WIRE_FACT_VALIDITY,
                   kAll = 2 * ROUTECAP_WIRE_FACT_WEIGHTS - 1;

constexpr Format kFormats[] = {
    {ROUTECAP_WIRE_SERIALIZED, 1, kAll, "routecap", "", ".routecap", false, false},
    {ROUTECAP_WIRE_NPY, 1, kShape | kDtype | kValidity, "npy", "", ".npy", false, true},
    {ROUTECAP_WIRE_NPY_BASE64, 1, kShape | kDtype | kValidity, "npy.base64", "vllm", ".npy.b64",
     true, true},
    {ROUTECAP_WIRE_RAW, 1, kValidity, "raw", "", "", false, false},
    {ROUTECAP_WIRE_RAW_BASE64, 1, kValidity, "raw.base64", "sglang", ".b64", true, false},
    {ROUTECAP_WIRE_OBJECT, 1, kShape | kDtype | kFirst | kValidity, "object",
     "dynamo prime-rl verifiers", ".routes.json", true, false},
    {ROUTECAP_WIRE_NRLRE1, 1, kShape | kDtype | kValidity, "nrlre1", "nemo-rl", ".nrlre1", true,
     false},
    {ROUTECAP_WIRE_LISTS, 1, kShape | kValidity, "lists", "megatron", ".lists.json", false, false},
};

// Whether one of the words is this one.
bool has_word(std::string_view words, std::string_view word) {
    while (!words.empty()) {
        const size_t end = std::min(words.find(' '), words.size());
        if (words.substr(0, end) == word) return true;
        words.remove_prefix(std::min(end + 1, words.size()));
    }
    return false;
}

}  // namespace

const Dtype *find_dtype(int32_t dtype) {
    for (const Dtype &d : kDtypes)
        if (d.dtype == dtype) return &d;
    return nullptr;
}
const Dtype *find_dtype(std::string_view name) {
    for (const Dtype &d : kDtypes)
        if (name == d.name || name == d.descr) return &d;
    return nullptr;
}

const Format *find_format(int32_t format) {
    for (const Format &f : kFormats)
        if (f.format == format) return &f;
    return nullptr;
}

int32_t check_format(int32_t format, bool any) {
    if (find_format(format) != nullptr || (any && format == ROUTECAP_WIRE_ANY)) return ROUTECAP_OK;
    return report(ROUTECAP_ERR_ARGUMENT, "format is %d", format);
}

int32_t describe(int32_t format, routecap_wire_description *description) {
    if (int32_t s = check_output(description, "description"); s < 0) return s;
    if (int32_t s = check_format(format); s < 0) return s;
    const Format &f = *find_format(format);
    write_struct(description, routecap_wire_description{.struct_size = 0,
                                                        .format = f.format,
                                                        .version = f.version,
                                                        .facts = f.facts,
                                                        .name = f.name,
                                                        .aliases = f.aliases,
                                                        .ending = f.ending});
    return ROUTECAP_OK;
}

int32_t find(const char *name, int32_t *format) {
    if (name == nullptr || format == nullptr)
        return report(ROUTECAP_ERR_ARGUMENT, "%s is NULL", name == nullptr ? "name" : "format");
    std::string all;
    for (const Format &f : kFormats) {
        if (std::strcmp(name, f.name) == 0 || has_word(f.aliases, name) ||
            (*name != '\0' && std::strcmp(name, f.ending) == 0)) {
            *format = f.format;
            return ROUTECAP_OK;
        }
        all.append(all.empty() ? "" : ", ").append(f.name);
        if (*f.aliases != '\0') all.append(" (").append(f.aliases).append(")");
    }
    return report(ROUTECAP_ERR_ARGUMENT, "no format %.40s; there are %s", name, all.c_str());
}

int32_t usual_dtype(int32_t format, uint32_t experts) {
    switch (format) {
        case ROUTECAP_WIRE_RAW:
        case ROUTECAP_WIRE_RAW_BASE64: return ROUTECAP_DTYPE_I32;
        case ROUTECAP_WIRE_NRLRE1: return experts <= 128 ? ROUTECAP_DTYPE_I8 : ROUTECAP_DTYPE_I16;
        case ROUTECAP_WIRE_LISTS: return ROUTECAP_DTYPE_I64;
        default: return experts <= 256 ? ROUTECAP_DTYPE_U8 : ROUTECAP_DTYPE_U16;
    }
}

}  // namespace routecap::wire
