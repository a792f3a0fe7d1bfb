#include "base/status.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

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
#define ROUTECAP_NAME(name) \
    case name: return #name
    switch (status) {
        ROUTECAP_NAME(ROUTECAP_OK);
        ROUTECAP_NAME(ROUTECAP_INCOMPLETE);
        ROUTECAP_NAME(ROUTECAP_LOST);
        ROUTECAP_NAME(ROUTECAP_PENDING);
        ROUTECAP_NAME(ROUTECAP_PARTIAL);
        ROUTECAP_NAME(ROUTECAP_NOT_CAPTURED);
        ROUTECAP_NAME(ROUTECAP_ERR_ARGUMENT);
        ROUTECAP_NAME(ROUTECAP_ERR_STRUCT_SIZE);
        ROUTECAP_NAME(ROUTECAP_ERR_UNKNOWN_LAYER);
        ROUTECAP_NAME(ROUTECAP_ERR_UNKNOWN_REQUEST);
        ROUTECAP_NAME(ROUTECAP_ERR_UNKNOWN_STEP);
        ROUTECAP_NAME(ROUTECAP_ERR_OUT_OF_RANGE);
        ROUTECAP_NAME(ROUTECAP_ERR_CAPACITY);
        ROUTECAP_NAME(ROUTECAP_ERR_OVERLAP);
        ROUTECAP_NAME(ROUTECAP_ERR_DTYPE);
        ROUTECAP_NAME(ROUTECAP_ERR_SHAPE_MISMATCH);
        ROUTECAP_NAME(ROUTECAP_ERR_BUFFER_TOO_SMALL);
        ROUTECAP_NAME(ROUTECAP_ERR_FORMAT);
        ROUTECAP_NAME(ROUTECAP_ERR_LOSSY);
        ROUTECAP_NAME(ROUTECAP_ERR_STATE);
        ROUTECAP_NAME(ROUTECAP_ERR_DISABLED);
        ROUTECAP_NAME(ROUTECAP_ERR_NOT_READY);
        ROUTECAP_NAME(ROUTECAP_ERR_INCOMPLETE);
        ROUTECAP_NAME(ROUTECAP_ERR_CONFLICT);
        ROUTECAP_NAME(ROUTECAP_ERR_FORKED);
        ROUTECAP_NAME(ROUTECAP_ERR_CAPTURING);
        ROUTECAP_NAME(ROUTECAP_ERR_RECOMPUTED);
        ROUTECAP_NAME(ROUTECAP_ERR_NOT_BEGUN);
        ROUTECAP_NAME(ROUTECAP_ERR_NOT_SNAPSHOT);
        ROUTECAP_NAME(ROUTECAP_ERR_SNAPSHOT_TWICE);
        ROUTECAP_NAME(ROUTECAP_ERR_ISSUED_TWICE);
        ROUTECAP_NAME(ROUTECAP_ERR_ROWS_NOT_BEGUN);
        ROUTECAP_NAME(ROUTECAP_ERR_TWO_THREADS);
        ROUTECAP_NAME(ROUTECAP_ERR_NO_MEMORY);
        ROUTECAP_NAME(ROUTECAP_ERR_TOO_MANY_REQUESTS);
        ROUTECAP_NAME(ROUTECAP_ERR_THREAD);
        ROUTECAP_NAME(ROUTECAP_ERR_NO_BACKEND);
        ROUTECAP_NAME(ROUTECAP_ERR_DRIVER_TOO_OLD);
        ROUTECAP_NAME(ROUTECAP_ERR_DEVICE);
        ROUTECAP_NAME(ROUTECAP_ERR_DEVICE_LOST);
        ROUTECAP_NAME(ROUTECAP_ERR_INTERNAL);
        default: return "ROUTECAP_STATUS_UNKNOWN";
    }
#undef ROUTECAP_NAME
}

}  // namespace routecap
