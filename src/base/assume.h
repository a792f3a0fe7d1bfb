// ROUTECAP_ASSUME(x): x holds, as the callers of the function see to.
//
// Where it does not, debug builds and those with a sanitizer, the fuzz targets among them, print it
// and abort. Others take it for granted, so that the compiler leaves out what x excludes.
#pragma once

#include <cstdio>
#include <cstdlib>

#if !defined(NDEBUG) || defined(ROUTECAP_SANITIZED)
#define ROUTECAP_ASSUME(x) ((x) ? static_cast<void>(0) : ::routecap::untrue(#x, __FILE__, __LINE__))
#else
#define ROUTECAP_ASSUME(x) ((x) ? static_cast<void>(0) : __builtin_unreachable())
#endif

namespace routecap {

[[noreturn, gnu::cold]] inline void untrue(const char *what, const char *file, int line) {
    std::fprintf(stderr, "routecap: %s:%d: %s does not hold\n", file, line, what);
    std::abort();
}

}  // namespace routecap
