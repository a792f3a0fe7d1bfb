// Holds what the library says against what the model says. Any difference ends the process.
#pragma once

#include <routecap.h>

#include <cstdint>
#include <string>
#include <vector>

#include "model.h"

namespace check {

// What is told before the process ends; a program may set it.
extern void (*on_failure)();
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Prints, if calls are to be printed as they are made: ROUTECAP_FUZZ_TRACE=1.
void trace(const char *format, ...) __attribute__((format(printf, 1, 2)));

// A status, with what the header says of routecap_last_error.
void status(const char *call, int32_t expected, int32_t got);
#define SAME_STATUS(expected, call) check::status(#call, expected, call)
void number(const char *what, uint64_t expected, uint64_t got);
#define SAME(expected, got) \
    check::number(#got, static_cast<uint64_t>(expected), static_cast<uint64_t>(got))

void coverage(const routecap_coverage &expected, const std::vector<routecap_missing> &blocks,
              const routecap_coverage &got, const std::vector<routecap_missing> &first_blocks);

// All that a routing shows: status, view, coverage, and whether its serialised form is that of the
// model.
void routing(const routecap_routing *routing, const model::Routing &expected);
// The rows of its view alone, the cheapest whole comparison. `refused` is called for a cell that is
// missing and should be there (no ids), or is there and should be missing from a row that has
// others (k ids): rows may have been refused for memory. Without it that is a failure. Returns how
// many valid cells were compared.
using Refused =
    std::function<void(uint64_t position, size_t layer, const std::vector<int64_t> &ids)>;
uint64_t rows(const routecap_routing *routing, const model::Routing &expected,
              const Refused &refused = {});

// Copies out, into a buffer with guards, and compares all of it. `read` is the status that reading
// has by itself, `expected` what the model then has read.
struct Copy {
    routecap_copy_options options;
    bool asks = false;     // for the size
    int64_t dst_less = 0;  // bytes that dst is too small
    bool mask = true;
    int64_t mask_less = 0;
};
void copy(const Copy &copy, int32_t read, const model::Routing &expected,
          const std::function<int32_t(const routecap_copy_options *, void *, size_t, uint8_t *,
                                      size_t, uint64_t *)> &call);

// The load that a capturer counted, of a tag or of all steps. `lacks`: rows that the model has may
// be missing in it.
void load(const routecap_capturer *capturer, const model::Shape &shape, const model::Load &expected,
          bool lacks = false);

std::vector<uint8_t> serialized(const routecap_routing *routing);
// What the pieces of a splice are, one after another.
std::vector<uint8_t> spliced(const routecap_splice &splice, const routecap_piece *pieces,
                             const std::vector<uint8_t> &header, const std::vector<uint8_t> &head,
                             const std::vector<uint8_t> &tail);

}  // namespace check
