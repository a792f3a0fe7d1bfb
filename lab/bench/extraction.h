// Reading rows out, beside what memory allows.
#pragma once

#include <routecap.h>

#include "measure.h"

namespace bench {

// Measures every way to read rows 0..rows-1 of a request that has them all, `row_bytes` of ids
// each, against memcpy of as many bytes. With `targets`, they are printed beside the figures.
void extraction(Report &report, routecap_capturer *capturer, routecap_request request,
                uint64_t rows, size_t row_bytes, int repetitions, const std::string &parameters,
                bool targets);

}  // namespace bench
