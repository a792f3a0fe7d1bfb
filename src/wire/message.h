// The parts of a message around its ids: reads them from a whole message or from its beginning, and
// writes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "routecap.h"
#include "wire/format.h"

namespace routecap::wire {

// What a message says besides its ids. A field has a meaning only if its fact is in `facts`.
struct MessageFacts {
    uint32_t version = 1;
    uint32_t facts = 0;
    int32_t dtype = 0;
    uint32_t columns = 0, k = 0;
    uint64_t first = 0, rows = 0;

    bool has(uint32_t fact) const { return (facts & fact) != 0; }
};

// Each of these reads the head of a message. The first returns ROUTECAP_PENDING if the bytes end
// within it.
int32_t read_npy(const uint8_t *data, size_t n, MessageFacts &said, size_t &head);
int32_t read_nrlre1(const uint8_t *text, size_t n, MessageFacts &said, size_t &head);

// Reads a whole object and finds its data.
int32_t read_object(const uint8_t *text, size_t n, MessageFacts &said, size_t &data,
                    size_t &data_size);

// The bytes of a caller, never null.
int32_t check_bytes(const void *data, size_t bytes, const char *name, const uint8_t *&at);

// Finds the format of a whole message by its first bytes.
int32_t detect(const uint8_t *data, size_t n, int32_t &format);

// The text before and after the ids of a message with these facts.
struct Frame {
    std::string head, tail;
};
Frame frame(const Format &format, const MessageFacts &said);

}  // namespace routecap::wire
