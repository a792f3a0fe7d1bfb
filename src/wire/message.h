// What stands around the ids in a message: it is read here, of a whole message or of its beginning,
// and written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "routecap.h"
#include "wire/format.h"

namespace routecap::wire {

// What the bytes say beside the ids: only what `facts` has means something.
struct MessageFacts {
    uint32_t version = 1;
    uint32_t facts = 0;
    int32_t dtype = 0;
    uint32_t columns = 0, k = 0;
    uint64_t first = 0, rows = 0;

    bool has(uint32_t fact) const { return (facts & fact) != 0; }
};

constexpr size_t kLongestNpyHead = 65536 + 12;

// Each of these reads the head of a message from its beginning. Returns ROUTECAP_OK,
// ROUTECAP_PENDING if there is more of it to come, or an error.
int32_t read_npy(const uint8_t *data, size_t n, MessageFacts &said, size_t &head);
int32_t read_nrlre1(const uint8_t *text, size_t n, MessageFacts &said, size_t &head);

// Reads an object, and says where its data are. `whole`: it must be complete; otherwise reading
// ends where the data begin or the text ends.
int32_t read_object(const uint8_t *text, size_t n, bool whole, MessageFacts &said, size_t &data,
                    size_t &data_size);

// The bytes of a caller, never null.
int32_t check_bytes(const void *data, size_t bytes, const char *name, const uint8_t *&at);

// Which format the first bytes are of. As above.
int32_t detect(const uint8_t *data, size_t n, int32_t &format, bool &certain);
int32_t probe(const void *data, size_t bytes, routecap_wire_info *info);

// What stands before and behind the ids of a message that says this much.
struct Frame {
    std::string head, tail;
};
Frame frame(const Format &format, const MessageFacts &said);

}  // namespace routecap::wire
