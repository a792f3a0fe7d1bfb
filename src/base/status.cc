#include "base/status.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "base/declared.h"
#include "routecap.h"

namespace routecap {
namespace {

thread_local char error_text[256] = "";

}  // namespace

int32_t report(int32_t status, const char *format, ...) noexcept {
    std::va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(error_text, sizeof error_text, format, arguments);
    va_end(arguments);
    return status;
}

const char *last_error() noexcept { return error_text; }

KeptError::KeptError() noexcept { std::memcpy(text_, error_text, sizeof text_); }
KeptError::~KeptError() {
    static_assert(sizeof text_ == sizeof error_text);
    std::memcpy(error_text, text_, sizeof text_);
}

const char *status_name(int32_t status) noexcept {
    switch (status) {
#define ROUTECAP_NAME(name) \
    case name: return #name;
        ROUTECAP_STATUSES(ROUTECAP_NAME)
#undef ROUTECAP_NAME
        default: return "ROUTECAP_STATUS_UNKNOWN";
    }
}

}  // namespace routecap
