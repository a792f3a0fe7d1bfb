// The wire formats: their names, the facts that they carry, and the types of their ids.
#pragma once

#include <cstdint>
#include <string_view>

#include "routecap.h"

namespace routecap::wire {

// A type of ids in messages.
struct Dtype {
    int32_t dtype;  // ROUTECAP_DTYPE_*
    uint32_t bytes;
    bool is_signed;
    const char *name;   // as numpy calls it
    const char *descr;  // as a .npy file does
    int64_t largest;

    // Whether the ids of this many experts fit.
    bool holds(uint32_t experts) const { return experts - 1 <= static_cast<uint64_t>(largest); }
};
const Dtype *find_dtype(int32_t dtype);
const Dtype *find_dtype(std::string_view name_or_descr);

struct Format {
    int32_t format;
    uint32_t version;
    uint32_t facts;
    const char *name, *aliases, *ending;
    bool base64;  // the ids are
    bool npy;     // a header of .npy stands before them
};
// Null if there is none.
const Format *find_format(int32_t format);

// Checks the number of a format: ROUTECAP_OK, or an error that names it. `any`: ANY is allowed.
int32_t check_format(int32_t format, bool any = false);

int32_t describe(int32_t format, routecap_wire_description *description);
int32_t find(const char *name, int32_t *format);

// The type that other writers of the format use for the ids of this many experts.
int32_t usual_dtype(int32_t format, uint32_t experts);

}  // namespace routecap::wire
